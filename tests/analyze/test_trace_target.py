"""The target of a profile: the one of its device, that of ``--target``, or none."""

from __future__ import annotations

import gzip
import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from click import unstyle
from click.testing import CliRunner, Result

from hloinspect.analyze.inspect import inspect
from hloinspect.analyze.options import JudgeOptions
from hloinspect.analyze.target import target_of_profile
from hloinspect.analyze.trace import trace
from hloinspect.cli import main
from hloinspect.errors import HloInspectError, InputError, UsageError
from hloinspect.measure.file import measure_file
from hloinspect.options import CompileOptions
from hloinspect.report.json import to_json
from hloinspect.report.schema import Report
from tests.support.cuda_runtime import PROGRAM, Run, Speeds, compiled
from tests.support.cuda_traces import H100, US, Device, Trace, write_trace
from tests.support.json_schemas import faults
from tests.support.places import FIXTURES
from tests.support.target_files import write
from tests.support.xspace_builder import Unsigned, Value

NAME = "jax0.12.0.1/gb200_offload_unrolled"


def profile(folder: Path, stats: Mapping[str, Value | None] | None = None, module: bool = True, steps: int = 4) -> str:
    """A synthetic trace of two devices that wait for their copies; a statistic of None is left out."""
    own = compiled(NAME)
    run = Run(own.module, own.directions, program=PROGRAM, speeds=Speeds(d2h=1200 * US, h2d=1800 * US))
    run.steps(steps)
    both = tuple(Device(number, run.device().events) for number in range(2))
    programs = (own.program,) if module else (replace(own.program, module_proto=b"\x0a\x03abc"),)
    made = Trace(both, programs, tuple(run.annotations))
    merged = {key: value for key, value in {**H100, **(stats or {})}.items() if value is not None}
    return str(write_trace(replace(made, device_stats=merged), folder / "host.xplane.pb"))


@pytest.fixture(scope="module")
def h100(tmp_path_factory: pytest.TempPathFactory) -> str:
    return profile(tmp_path_factory.mktemp("h100"))


def run_command(*arguments: str) -> Result:
    return CliRunner().invoke(main, [*arguments], standalone_mode=False)


def measured(report: Report) -> object:
    """What a report says that was measured, and the verdicts."""
    kept = [
        (t.id, t.verdict, t.robust, t.reason, replace(t.measured, wait_ratio=None))
        for t in report.transfers
        if t.measured
    ]
    return kept, report.step.measured, report.devices, report.trace, report.unknown


def test_without_a_target_the_device_of_the_profile_decides_it(h100: str):
    report = trace(h100).report
    assert report.target is not None
    assert (report.target.name, report.target.source, report.target.devices) == ("h100", "profile", 1)
    assert report.step.predicted is not None
    assert all(transfer.predicted for transfer in report.transfers)
    given = trace(h100, target="h100").report
    assert given.target == replace(report.target, source="given")
    assert given.step == report.step
    text = unstyle(run_command("trace", h100).output)
    assert "predicted for h100 (target from the profile's device name): step" in " ".join(text.split())
    assert faults(json.loads(to_json(report)), "report") == []


def test_what_was_measured_and_its_verdicts_do_not_depend_on_the_target(h100: str):
    reports = [trace(h100, target=name).report for name in (None, "none", "h100", "gb200", "v5e")]
    assert len({repr(measured(report)) for report in reports}) == 1
    codes = {run_command("trace", h100, *more).return_value for more in ((), ("--target", "none"), ("--target", "v5e"))}
    assert codes == {0}


def test_none_leaves_only_the_measurement(h100: str):
    report = trace(h100, target="none").report
    assert report.target is None
    assert report.step.predicted is None
    assert not any("target" in limit for limit in report.limits)
    header = next(
        line
        for line in unstyle(run_command("trace", h100, "--target", "none").output).splitlines()
        if "waits" in line.split()
    )
    assert "model" not in header


def test_the_rate_stays_in_the_table_where_there_is_room(h100: str, monkeypatch: pytest.MonkeyPatch):
    from hloinspect.render.terminal.measured_text import to_text

    for width, shown in ((140, True), (80, False)):
        text = unstyle(to_text(trace(h100).report, width))
        header = next(line for line in text.splitlines() if line.startswith(" transfer")).split()
        assert ("GB/s" in header) == shown
        assert {"model", "waits", "verdict"} <= set(header)


def test_a_given_target_overrides_and_a_contradiction_is_said(h100: str):
    report = trace(h100, target="gb200").report
    assert report.target is not None
    assert (report.target.name, report.target.source) == ("gb200", "given")
    (limit,) = [limit for limit in report.limits if "another machine" in limit and "profile's device" in limit]
    assert limit == (
        "the profile's device is NVIDIA H100 80GB HBM3, which is h100: the prediction for gb200 is one for another "
        "machine"
    )
    assert not any("profile's device" in limit for limit in trace(h100, target="h100").report.limits)


def test_a_users_target_contradicts_a_profile_only_by_the_names_that_it_has(h100: str, tmp_path: Path):
    def limits(text: str) -> list[str]:
        found = trace(h100, target=write(tmp_path, text)).report.limits
        return [limit for limit in found if "profile's device" in limit]

    assert limits('base = "h100"\nlaunch_us = 4.0\n') == []
    assert "which is h100: the prediction for mine" in limits('base = "gb200"\n')[0]
    assert limits('base = "gb200"\ndevice_names = []\n') == []


@pytest.mark.parametrize(
    ("stats", "words"),
    [
        (
            {"gpu_device_name": "NVIDIA H800"},
            "no target has the name of the profile's device, NVIDIA H800; --target NAME",
        ),
        (
            {"memory_size": Unsigned(10_500_000_000)},
            "the profile's device, NVIDIA H100 80GB HBM3 with 9.78 GiB; --target",
        ),
    ],
)
def test_an_unknown_device_is_only_measured_and_the_report_says_so(
    tmp_path: Path, stats: Mapping[str, Value | None], words: str
):
    path = profile(tmp_path, stats)
    report = trace(path).report
    assert report.target is None
    assert report.step.predicted is None
    assert any(words in limit for limit in report.limits)
    assert run_command("trace", path).return_value == 0
    with pytest.raises(UsageError, match="add --target"):
        trace(path, link="50GB/s")
    assert trace(path, target="h200").report.step.predicted is not None


def test_a_profile_that_does_not_name_its_device_is_only_measured(tmp_path: Path):
    path = profile(tmp_path, {"gpu_device_name": None})
    report = trace(path).report
    assert report.target is None
    assert not any("target" in limit for limit in report.limits)
    with pytest.raises(UsageError, match=r"add --target \(the profile does not name its device\)"):
        trace(path, devices=8)


def test_the_name_of_a_device_may_be_anything(tmp_path: Path):
    path = profile(tmp_path, {"gpu_device_name": "\x1b[31mNVIDIA \n H200 " * 10_000})
    report = trace(path).report
    assert report.target is None
    (limit,) = [limit for limit in report.limits if "no prediction" in limit]
    assert len(limit) < 400
    assert "\x1b" not in limit


def test_a_device_without_its_memory_goes_by_the_name_alone(tmp_path: Path):
    report = trace(profile(tmp_path, {"memory_size": None})).report
    assert report.target is not None
    assert report.target.name == "h100"


def test_link_and_devices_work_with_the_target_of_the_device(h100: str):
    fast, slow = (trace(h100, link=link).report for link in ("400GB/s", "1GB/s"))
    assert fast.step.predicted is not None
    assert slow.step.predicted is not None
    assert fast.step.predicted.stall_ms < slow.step.predicted.stall_ms
    target = trace(h100, devices=8, link="50GB/s").report.target
    assert target is not None
    assert target.link is not None
    assert (target.devices, target.link.d2h_gbps, target.source) == (8, 50.0, "profile")


def test_wrong_options_are_refused_before_anything_is_measured(tmp_path: Path):
    lost = str(tmp_path / "none.xplane.pb")
    for more in ({"link": "50Gb/s"}, {"target": "zx81"}, {"target": "none", "devices": 8}):
        with pytest.raises(HloInspectError) as raised:
            trace(lost, **more)  # type: ignore[arg-type]
        assert not isinstance(raised.value, InputError)


def test_a_profile_without_its_module_still_names_the_target(tmp_path: Path):
    report = trace(profile(tmp_path, module=False)).report
    assert report.target is not None
    assert (report.target.name, report.target.source, report.target.devices) == ("h100", "profile", 2)
    assert report.step.predicted is None
    assert report.step.measured is not None


def test_hosts_with_different_devices_have_no_target(h100: str, tmp_path: Path):
    other = profile(tmp_path, {"gpu_device_name": "NVIDIA H200", "memory_size": Unsigned(151_000_000_000)})
    files = [measure_file(h100), measure_file(other)]
    chosen = target_of_profile(None, JudgeOptions(), CompileOptions(), files)
    assert chosen.target is None
    assert "the profile's devices are of different targets: NVIDIA H100 80GB HBM3, NVIDIA H200" in chosen.limits[0]
    same = target_of_profile(None, JudgeOptions(), CompileOptions(), [files[0], files[0]])
    assert same.target is not None
    assert same.target.name == "h100"


def test_a_prediction_that_hloinspect_has_written_as_a_profile_names_no_device(tmp_path: Path):
    module = FIXTURES / NAME / "module.hlo.txt.gz"
    assert (
        run_command("inspect", str(module), "--target", "h100", "--format", "xplane", "-o", str(tmp_path)).return_value
        == 0
    )
    report = trace(str(tmp_path)).report
    assert report.target is None
    assert not any("profile's device" in limit for limit in report.limits)
    again = trace(str(tmp_path), target="h100").report
    assert not any("profile's device" in limit for limit in again.limits)


def test_check_diff_and_report_take_the_target_of_the_device(h100: str, tmp_path: Path):
    done = run_command("check", h100, "--budget", "stall=99%", "--report", f"json={tmp_path / 'check.json'}")
    assert done.return_value == 0, done.output
    assert '"h100"' in (tmp_path / "check.json").read_text()
    page = tmp_path / "page.html"
    run_command("report", h100, "-o", str(page))
    assert "Predicted beside it for 1 x h100, the target of that device." in page.read_text()
    assert "h100" in run_command("diff", h100, h100).output or run_command("diff", h100, h100).return_value == 0


def test_the_report_on_a_module_says_who_named_its_target(tmp_path: Path):
    text = gzip.decompress((FIXTURES / NAME / "module.hlo.txt.gz").read_bytes())
    (tmp_path / "module_0001.jit_step.sm_10.0_gpu_after_optimizations.txt").write_bytes(text)
    beside = 'device_description_str: "NVIDIA GB200"'
    (tmp_path / "module_0001.jit_step.gpu_target_config.pbtxt").write_text(beside)
    sources = {}
    for name in (None, "h100"):
        target = inspect(str(tmp_path), target=name).report.target
        assert target is not None
        sources[target.name] = target.source
    assert sources == {"gb200": "input", "h100": "given"}


def test_a_target_without_names_of_devices_may_be_another_machine(h100: str) -> None:
    limits = trace(h100, target="vr200").report.limits
    assert any("NVIDIA H100 80GB HBM3 (h100); vr200 has no names of devices" in limit for limit in limits)
