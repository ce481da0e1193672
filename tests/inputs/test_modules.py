"""Modules for profiles that carry none: named with --hlo, or in a dump beside the profile. All profiles are
synthetic."""

from __future__ import annotations

import gzip
import json
import lzma
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hloinspect import check, trace
from hloinspect.calibrate.calibrate import calibrate
from hloinspect.errors import InputError, UsageError
from hloinspect.measure.hosts import measure_files
from hloinspect.measure.measured import MeasuredFile
from hloinspect.profiles.xplane.schema import xplane_pb2 as schema
from tests.support.cuda_checks import play, trace_of
from tests.support.cuda_runtime import PROGRAM, Speeds
from tests.support.cuda_traces import US, Trace, write_trace
from tests.support.nsys_traces import Writing, write_dump, write_nsys

NAME = "optimizer"
Command = Callable[..., subprocess.CompletedProcess[str]]
OTHER = "jax0.12.0.1/gb200_save"


@pytest.fixture(scope="module")
def run() -> Trace:
    return trace_of(play(NAME, speeds=Speeds(d2h=300 * US, h2d=1100 * US)), NAME)


@pytest.fixture(scope="module")
def profile(run: Trace, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_nsys(run, tmp_path_factory.mktemp("profile") / "synthetic.sqlite", Writing())


@pytest.fixture(scope="module")
def dump(run: Trace, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_dump(run, tmp_path_factory.mktemp("dump"))


def transfers(found: Any) -> int:
    return len(found.report.transfers)


def limits(found: Any) -> str:
    return " ".join(found.report.limits)


@pytest.mark.parametrize("packing", ["", ".xz", ".gz"])
def test_a_dump_has_the_module_by_number_and_name(tmp_path: Path, profile: Path, dump: Path, packing: str) -> None:
    pack = {"": bytes, ".xz": lzma.compress, ".gz": gzip.compress}[packing]
    for file in dump.iterdir():
        (tmp_path / f"{file.name}{packing}").write_bytes(pack(file.read_bytes()))
    found = trace(str(profile), hlo=str(tmp_path))
    assert transfers(found) == 2
    assert found.files[0].program == PROGRAM


def test_a_file_is_the_module_of_the_program_of_its_name(tmp_path: Path, profile: Path, dump: Path) -> None:
    (file,) = dump.iterdir()
    named = tmp_path / "any name"
    named.write_bytes(file.read_bytes())
    assert transfers(trace(str(profile), hlo=str(named))) == 2
    assert transfers(trace(str(profile), hlo=[str(tmp_path), str(named)])) == 2


def test_a_module_of_another_number_is_taken_by_its_name_and_that_is_said(
    tmp_path: Path, profile: Path, dump: Path
) -> None:
    """Each process of a run numbers its programs for itself."""
    (file,) = dump.iterdir()
    (tmp_path / file.name.replace("module_0007", "module_0042")).write_bytes(file.read_bytes())
    found = trace(str(profile), hlo=str(tmp_path))
    assert transfers(found) == 2
    assert "by its name only: module_0042" in limits(found)
    (tmp_path / file.name.replace("module_0007", "module_0043")).write_bytes(file.read_bytes())
    assert transfers(trace(str(profile), hlo=str(tmp_path))) == 0  # which of the two it was cannot be known


def test_a_module_that_did_not_run_is_said_and_not_used(tmp_path: Path, profile: Path) -> None:
    other = trace_of(play(OTHER, 1), OTHER)
    renamed = replace(other.modules[0], id=PROGRAM, name="jit_step")
    found = trace(str(profile), hlo=str(write_dump(replace(other, modules=(renamed,)), tmp_path)))
    assert transfers(found) == 0
    assert found.files[0].module is None
    assert "is not the module that ran as program 7" in limits(found)
    assert any("--hlo" in gap.remedy for gap in found.report.unknown)


def test_a_dump_without_the_module_says_what_ran_and_what_there_is(tmp_path: Path, profile: Path) -> None:
    found = trace(str(profile), hlo=str(write_dump(trace_of(play(OTHER, 1), OTHER), tmp_path)))
    assert "--hlo has no module of a program in the profile: it ran jit_step" in limits(found)


@pytest.mark.parametrize("folder", ["", "dump", "xla_dump"])
def test_a_dump_beside_the_profile_is_found(tmp_path: Path, run: Trace, folder: str) -> None:
    path = write_nsys(run, tmp_path / "synthetic.sqlite", Writing())
    assert transfers(trace(str(path))) == 0
    write_dump(run, tmp_path / folder)
    found = trace(str(path))
    assert transfers(found) == 2
    assert "modules are of the dump beside the profile" in limits(found)


def test_a_profile_with_its_modules_keeps_them(tmp_path: Path, run: Trace, dump: Path) -> None:
    path = write_trace(run, tmp_path / "host.xplane.pb")
    found = trace(str(path), hlo=str(dump))
    assert transfers(found) == 2
    assert "--hlo is not used" in limits(found)


def test_an_xspace_and_a_chrome_trace_take_modules_too(tmp_path: Path, run: Trace, dump: Path) -> None:
    whole = trace(str(write_trace(run, tmp_path / "whole" / "host.xplane.pb")))
    path = without_modules(tmp_path / "whole" / "host.xplane.pb", tmp_path / "host.xplane.pb")
    assert transfers(trace(str(path))) == 0
    found = trace(str(path), hlo=str(dump))
    assert [t.measured for t in found.report.transfers] == [t.measured for t in whole.report.transfers]
    chrome = write_chrome(path, tmp_path / "host.trace.json.gz")
    assert transfers(trace(str(chrome))) == 0
    assert transfers(trace(str(chrome), hlo=str(dump))) == 2


def without_modules(source: Path, path: Path) -> Path:
    """Write an XSpace as it is without ProfileOptions.enable_hlo_proto."""
    space = schema.XSpace.FromString(source.read_bytes())
    planes = [plane for plane in space.planes if plane.name != b"/host:metadata"]
    del space.planes[:]
    space.planes.extend(planes)
    path.write_bytes(space.SerializeToString())
    return path


def write_chrome(xplane: Path, path: Path) -> Path:
    """Write the devices of an XSpace as a Chrome trace, as the profiler's converter does."""
    from hloinspect.profiles.xplane import open_xspace

    events: list[dict[str, Any]] = []
    for pid, plane in enumerate(open_xspace(xplane).planes_of("/device:GPU:"), 1):
        events.append({"ph": "M", "pid": pid, "name": "process_name", "args": {"name": plane.name}})
        for line in plane.lines:
            head = {"ph": "M", "pid": pid, "tid": line.id, "name": "thread_name", "args": {"name": line.name}}
            events.append(head)
            columns = line.columns(("hlo_op", "hlo_module", "program_id", "memcpy_details"))
            texts = {name: columns.stats[name].labels() for name in ("hlo_op", "hlo_module", "memcpy_details")}
            numbers = columns.stats["program_id"]
            for place in range(len(columns)):
                args = {name: own[codes[place]] for name, (codes, own) in texts.items() if codes[place] >= 0}
                if numbers.present[place]:
                    args["program_id"] = str(numbers.integers()[place])
                start, time = columns.start_ps[place] / 1e6, columns.duration_ps[place] / 1e6
                name = plane.events[int(columns.metadata_id[place])].name
                events.append(
                    {"ph": "X", "pid": pid, "tid": line.id, "ts": start, "dur": time, "name": name, "args": args}
                )
    path.write_bytes(gzip.compress(json.dumps({"traceEvents": events}).encode()))
    return path


def test_other_processes_take_the_modules_too(tmp_path: Path, profile: Path, dump: Path) -> None:
    paths = [tmp_path / f"r_rank{rank}.sqlite" for rank in range(2)]
    for path in paths:
        path.write_bytes(profile.read_bytes())
    found = measure_files([str(path) for path in paths], hlo=(str(dump),), jobs=2)
    assert all(isinstance(one, MeasuredFile) and one.module is not None for one in found)
    assert transfers(trace(str(tmp_path), hlo=str(dump))) == 2


def test_check_and_calibrate_take_modules(profile: Path, dump: Path) -> None:
    checked = check(str(profile), hlo=str(dump), budget="count=2")
    assert checked.report.transfers
    found = calibrate(str(profile), "h100", (str(dump),))
    assert "carries no module" not in " ".join(one.reason for one in found.left)


@pytest.mark.parametrize("named", ["nowhere", "", "a\0b"])
def test_a_module_that_is_not_there_is_wrong_use(profile: Path, named: str) -> None:
    with pytest.raises(UsageError, match="--hlo"):
        trace(str(profile), hlo=[named])


def test_a_file_that_is_no_module_is_refused(tmp_path: Path, profile: Path) -> None:
    (tmp_path / "text").write_text("no module")
    with pytest.raises(InputError, match="text"):
        trace(str(profile), hlo=str(tmp_path / "text"))


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("trace",), 0),
        (("check", "--budget", "count=2"), 0),
        (("report", "-o", "-"), 0),
        (("calibrate", "--base", "h100"), 3),
    ],
)
def test_every_command_that_reads_profiles_has_the_option(
    hloinspect: Command, profile: Path, dump: Path, arguments: tuple[str, ...], code: int
) -> None:
    done = hloinspect(arguments[0], str(profile), *arguments[1:], "--hlo", str(dump))
    assert done.returncode == code, done.stderr
    assert not done.stderr


def test_diff_has_the_option(hloinspect: Command, profile: Path, dump: Path) -> None:
    done = hloinspect("diff", str(profile), str(profile), "--hlo", str(dump))
    assert done.returncode == 0, done.stderr


def test_the_option_without_a_profile_is_wrong_use(hloinspect: Command, dump: Path) -> None:
    (module,) = dump.iterdir()
    for command in (
        ("check", str(module), "--budget", "count=2"),
        ("report", str(module)),
        ("diff", *[str(module)] * 2),
    ):
        done = hloinspect(*command, "--hlo", str(dump))
        assert done.returncode == 2
        assert "--hlo is for a profile" in done.stderr
