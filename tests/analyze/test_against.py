"""The first lines of a report: which module was judged, and how far it is the one that ran."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click import unstyle
from click.testing import CliRunner, Result

from hloinspect.analyze.inspect import inspect
from hloinspect.analyze.trace import trace
from hloinspect.cli import main
from hloinspect.errors import InputError
from hloinspect.measure.explained import explained
from hloinspect.render.page import html_page
from hloinspect.render.terminal.report_text import to_text
from hloinspect.report.json import to_json
from hloinspect.report.judged import judged_in_profile
from tests.support.cuda_checks import play, trace_of
from tests.support.cuda_runtime import compiled
from tests.support.cuda_traces import write_trace
from tests.support.gate_samples import compiled_directory
from tests.support.json_schemas import faults
from tests.support.modules_changed import source_of
from tests.support.places import FIXTURES

SCAN, OLDER, SAVE = "jax0.12.0.1/gb200_offload_scan", "jax0.10.2/gb200_offload_scan", "jax0.12.0.1/gb200_save"
NAME = "jit_train_step"


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["inspect", *arguments], standalone_mode=False)


def proto(name: str) -> str:
    return str(FIXTURES / name / "module.hlo.pb.gz")


def dump(folder: Path, flags: str | None = "", *names: str) -> Path:
    """Write a directory as --xla_dump_to would, with the modules of fixtures."""
    folder.mkdir()
    for number, name in enumerate(names or (SCAN,), 1):
        stem = f"module_{number:04}.{NAME}"
        (folder / f"{stem}.sm_10.0a_gpu_after_optimizations.txt").write_text(source_of(name))
        if flags is not None:
            (folder / f"{stem}.debug_options").write_text(flags)
    return folder


@pytest.fixture(scope="module")
def profile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_trace(trace_of(play(SCAN), SCAN), tmp_path_factory.mktemp("run") / "host.xplane.pb")


def test_a_compilation_is_compared_with_the_profile_of_its_run(tmp_path: Path, profile: Path) -> None:
    own = compiled_directory(tmp_path / "own", SCAN, FIXTURES)
    done = run(str(own), "--against", str(profile))
    assert done.output.split("\n")[0].startswith("this is the schedule that ran (")
    assert "kernels" in done.output.split("jit_train_step")[0]
    report = inspect(str(own), against=str(profile)).report
    assert report.against is not None
    assert (report.against.status, report.against.kind, report.against.differences) == ("same", "profile", ())
    assert report.against.path == str(profile)
    assert faults(json.loads(to_json(report)), "report") == []
    assert "This is the schedule that ran" in html_page(inspect(str(own), against=str(profile)))


def test_a_compilation_of_another_program_has_exit_code_3(tmp_path: Path, profile: Path) -> None:
    own = str(compiled_directory(tmp_path / "own", SAVE, FIXTURES))
    done = run(own, "--against", str(profile))
    assert done.return_value == 3
    assert done.output.startswith("this is NOT the program that ran (")
    assert "not known: the judged module is not the program that ran" in done.output
    assert "transfers run and not compiled: 2 of 2" in " ".join(done.output.split())
    report = inspect(own, against=str(profile)).report
    assert report.against is not None
    assert report.against.counts is not None
    assert report.against.counts.transfers == 2
    assert [unknown.affects for unknown in report.unknown if "not the program" in unknown.reason] == ["transfers"]


def test_flags_are_compared_where_a_dump_has_them(tmp_path: Path) -> None:
    own = str(compiled_directory(tmp_path / "own", SCAN, FIXTURES))
    flags = inspect(own).report.program.flags
    assert flags == ()  # so whatever a dump has is of the run alone
    ran = dump(tmp_path / "ran", 'xla_gpu_enable_pipelined_all_gather: true\nxla_dump_to: "/tmp/x"\n')
    report = inspect(own, against=str(ran)).report
    assert report.against is not None
    assert report.against.counts is not None
    assert (report.against.status, report.against.kind, report.against.counts.flags) == ("same", "dump", 1)
    assert report.against.differences == ("flags: 1 differ: only ran with xla_gpu_enable_pipelined_all_gather=true",)


@pytest.mark.parametrize(
    ("ours", "theirs", "differ"),
    [
        ("xla_gpu_a: 1\nxla_gpu_b: false\n", "xla_gpu_a: 1\nxla_gpu_b: false\n", 0),
        ("xla_gpu_a: 1\n", "xla_gpu_a: 2\n", 1),
        ("xla_gpu_a: 1\n", "xla_gpu_b: 2\n", 2),
        (
            "xla_gpu_enable_pipelined_all_gather: true\n",
            "xla_gpu_pipeline_all_gather: COLLECTIVE_PIPELINING_MODE_ON",
            0,
        ),
        ("xla_gpu_a: 1\n", "".join(f"xla_gpu_flag_{n}: {n}\n" for n in range(300)) + "xla_gpu_a: 1", 0),
        ("xla_gpu_a: 1\n", None, None),
    ],
)
def test_two_dumps_are_compared_by_their_flags(
    tmp_path: Path, ours: str, theirs: str | None, differ: int | None
) -> None:
    report = inspect(str(dump(tmp_path / "a", ours)), against=str(dump(tmp_path / "b", theirs))).report
    assert report.against is not None
    assert report.against.counts is not None
    assert report.against.counts.flags == differ
    assert report.against.status == "same"


def test_versions_of_jax_are_named_where_both_are_known(tmp_path: Path) -> None:
    ours, theirs = (compiled_directory(tmp_path / name, of, FIXTURES) for name, of in (("a", SCAN), ("b", OLDER)))
    report = inspect(str(ours), against=str(theirs / "manifest.json")).report
    assert report.against is not None
    assert report.against.kind == "compiled"
    assert any(line.startswith("jax: 0.12.0.1 compiled, 0.10.2 ran") for line in report.against.differences)


def test_of_a_dump_the_module_of_the_same_name_is_compared(tmp_path: Path) -> None:
    ran = dump(tmp_path / "ran", None, SCAN)
    (ran / "module_0007.jit_other.sm_10.0a_gpu_after_optimizations.txt").write_text(
        source_of("jax0.12.0.1/gb200_offload_unrolled")
    )
    for against in (ran, ran / f"module_0001.{NAME}.sm_10.0a_gpu_after_optimizations.txt"):
        report = inspect(proto(SCAN), against=str(against)).report
        assert report.against is not None
        assert (report.against.status, report.against.kind) == ("same", "dump")


@pytest.mark.parametrize("flags", ["", None])
def test_the_first_line_on_a_dump_names_its_module_and_whether_flags_are_known(
    tmp_path: Path, flags: str | None
) -> None:
    folder = dump(tmp_path / "ran", flags)
    report = inspect(str(folder)).report
    assert report.judged is not None
    assert (report.judged.module_from, report.judged.flags_known) == ("dump", flags is not None)
    assert report.judged.schedule_hash == report.module.schedule_hash
    assert report.judged.before_scheduling == "045a8cd50d77c16d87556660512a36b3"
    known = "XLA flags not known" if flags is None else "XLA flags known"
    first = f"judged: module_0001.{NAME} as XLA dumped it, schedule {report.module.schedule_hash}, {known}"
    assert unstyle(to_text(report)).split("\n")[0] == first
    assert faults(json.loads(to_json(report)), "report") == []
    assert "as XLA dumped it" in html_page(report)


def test_a_module_alone_has_no_first_line_about_it() -> None:
    report = inspect(proto(SCAN)).report
    assert (report.judged, report.against) == (None, None)
    assert unstyle(to_text(report)).startswith(f"{NAME}   ")


def test_the_first_line_on_a_profile_says_what_was_judged(profile: Path, tmp_path: Path) -> None:
    report = trace(str(profile)).report
    assert report.judged is not None
    assert report.judged.text == "judged: the module in the profile, which is what ran"
    assert report.judged.explained is not None
    assert report.judged.explained.found == report.judged.explained.events
    whole = trace_of(play(SCAN), SCAN)
    bare = trace(str(write_trace(replace(whole, modules=()), tmp_path / "bare.xplane.pb"))).report
    assert bare.judged is not None
    assert bare.judged.text.startswith("judged: events alone")
    other = replace(whole.modules[0], module_proto=compiled(SAVE).proto)
    wrong = trace(str(write_trace(replace(whole, modules=(other,)), tmp_path / "wrong.xplane.pb"))).report
    assert wrong.judged is not None
    assert "but it does not explain the events" in wrong.judged.text
    for found in (report, bare, wrong):
        assert faults(json.loads(to_json(found)), "report") == []


def test_a_profile_that_is_a_prediction_is_not_said_to_have_run(tmp_path: Path) -> None:
    path = tmp_path / "step.xplane.pb"
    assert run(proto(SCAN), "--target", "gb200", "--format", "xplane", "-o", str(path)).return_value == 0
    report = trace(str(path)).report
    assert report.judged is not None
    assert report.judged.text.endswith("which is a prediction: nothing ran")


def test_an_expected_dump_is_compared_too(profile: Path, tmp_path: Path) -> None:
    report = trace(str(profile), expect=str(dump(tmp_path / "dump", "xla_gpu_a: 1\n"))).report
    assert report.compared is not None
    assert (report.compared.status, report.compared.differences) == ("same", ())
    other = trace(str(profile), expect=str(dump(tmp_path / "other", "xla_gpu_a: 1\n", SAVE))).report
    assert other.compared is not None
    assert other.compared.differences[-1] == "a profile holds no XLA flags; expected: xla_gpu_a=1"


@pytest.mark.parametrize(
    ("against", "reason"),
    [
        ("nowhere.hlo", "no such file or directory; expected a profile, HLO, or a directory"),
        ("nowhere.xplane.pb", "no such file"),
        ("train.py:step", "expected a profile, HLO, or a directory"),
        ("", "the input's name is empty"),
    ],
)
def test_what_cannot_be_compared_with_is_an_error_in_one_line(against: str, reason: str) -> None:
    with pytest.raises(InputError, match=reason) as error:
        inspect(proto(SCAN), against=against)
    assert "\n" not in str(error.value)


def test_a_profile_without_a_module_has_nothing_to_compare_with(tmp_path: Path) -> None:
    path = write_trace(replace(trace_of(play(SCAN), SCAN), modules=()), tmp_path / "host.xplane.pb")
    with pytest.raises(InputError, match=r"holds no module of the program that ran.*--xla_dump_to"):
        inspect(proto(SCAN), against=str(path))


def test_a_module_that_was_given_beside_the_profile_says_how_far_it_explains_it() -> None:
    found = inspect(proto(SCAN))
    module, info = found.offload.program.module, found.report.module
    events = {"a": 98, "b": 2}
    for names, text in (
        (
            {"a", "b"},
            "judged: the module of dump/, which is not in the profile; it has the instructions of 100 % of the",
        ),
        (
            {"a"},
            "judged: the module of dump/, which is not in the profile, but it does not explain the events: it has the",
        ),
    ):
        judged = judged_in_profile(module, info, explained(names, events), "dump/")
        assert judged.text.startswith(text)
        assert judged.module_from == "given"
        assert judged.explained is not None
        assert (judged.explained.events, judged.explained.names) == (100, 2)
    assert "no event names an instruction of it" in judged_in_profile(module, info, None, "dump/").text


def test_a_page_is_compared_too_and_a_trace_has_another_option(profile: Path, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    done = CliRunner().invoke(main, ["report", proto(SCAN), "--against", str(profile), "-o", str(page)])
    assert done.exit_code == 3  # there is no target
    assert "This is the schedule that ran" in page.read_text()
    done = CliRunner().invoke(main, ["report", str(profile), "--against", proto(SCAN), "-o", str(page)])
    assert done.exit_code == 2
    assert "--expect" in done.stderr


def test_help_names_it(hloinspect: Callable[..., Any]) -> None:
    assert "--against RAN" in hloinspect("inspect", "--help").stdout


def test_a_real_archive_of_nsys_jax_is_explained_by_its_module_and_is_what_ran(corpus: Path) -> None:
    pytest.importorskip("pyarrow")
    folder = corpus / "gpu" / "h100_maxtext_fsdp4"
    report = trace(str(folder)).report
    assert report.judged is not None
    assert report.judged.explained is not None
    assert (report.judged.explained.found, report.judged.explained.events) == (19_600, 19_600)
    against = inspect(str(next(folder.glob("*.hlo.pb.xz"))), against=str(folder)).report.against
    assert against is not None
    assert (against.status, against.kind) == ("same", "profile")


def test_a_dump_of_a_real_run_is_compared_with_another_policy(corpus: Path) -> None:
    ran = corpus / "dump_maxtext_gb200"
    done = run(str(corpus / "maxtext" / "ds671b_scan_mla.hlo.gz"), "--target", "gb200", "--against", str(ran))
    assert done.return_value == 3
    assert done.output.startswith("this is NOT the program that ran (")
    report = inspect(str(ran), target="gb200", against=str(next(ran.glob("*after_optimizations.txt")))).report
    assert report.against is not None
    assert report.against.counts is not None
    assert (report.against.status, report.against.counts.flags, report.against.differences) == ("same", 0, ())
