"""The command ``hloinspect trace`` as a user sees it, on synthetic traces of GPUs (no public one of an offload
exists)."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click import unstyle
from click.testing import CliRunner, Result

from hloinspect.analyze.trace import trace
from hloinspect.cli import main
from hloinspect.errors import InputError, UsageError
from hloinspect.measure.file import measure_file
from hloinspect.profiles.xplane.schema import xplane_pb2 as schema
from hloinspect.render.page import html_page
from hloinspect.render.terminal.measured_text import to_text
from hloinspect.report.json import to_json
from hloinspect.report.schema import Report
from hloinspect.timeline.timeline import overlap
from tests.support.cuda_runtime import PROGRAM, Run, Speeds, compiled
from tests.support.cuda_traces import US, Device, Program, Trace, d2h, kernel, write_trace
from tests.support.json_schemas import faults

UNROLLED = "jax0.12.0.1/gb200_offload_unrolled"
SCAN = "jax0.12.0.1/gb200_offload_scan"
OPTIMIZER = "jax0.12.0.1/gb200_optimizer"
SLOW = Speeds(d2h=1200 * US, h2d=1800 * US)


def played(name: str, steps: int = 4, speeds: Speeds | None = None) -> Run:
    own = compiled(name)
    run = Run(own.module, own.directions, program=PROGRAM, speeds=speeds)
    run.steps(steps)
    return run


def trace_of(run: Run, name: str, devices: int = 1, **more: Any) -> Trace:
    one = run.device()
    every = tuple(Device(number, one.events) for number in range(devices))
    return Trace(every, (compiled(name).program,), tuple(run.annotations), **more)


@pytest.fixture(scope="module")
def slow(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return two devices that wait for their copies."""
    folder = tmp_path_factory.mktemp("slow")
    return write_trace(trace_of(played(UNROLLED, 5, SLOW), UNROLLED, 2), folder / "host.xplane.pb")


@pytest.fixture(scope="module")
def report(slow: Path) -> Report:
    return trace(str(slow), target="gb200").report


def run_command(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["trace", *arguments], standalone_mode=False)


def test_the_first_lines_say_how_long_the_step_waits(slow: Path) -> None:
    text = run_command(str(slow)).output.splitlines()
    assert text[0] == "judged: the module in the profile, which is what ran"
    assert text[1].startswith("the model does not explain this profile: ")  # the played speeds are no H100's
    place = next(number for number, line in enumerate(text) if "measured on 2 x NVIDIA H100" in line)
    assert text[place + 2].startswith("measured step ")
    assert "waiting for the host" in "".join(text[place + 2 : place + 4])
    assert run_command(str(slow)).return_value == 0


@pytest.mark.parametrize("width", [100, 80, 60])
def test_no_line_is_longer_than_requested(report: Report, width: int) -> None:
    for line in unstyle(to_text(report, width)).splitlines():
        if width == 100 or not line.startswith((" h2d", " d2h", " transfer", "HLO")):
            assert len(line) <= width, line


def test_predicted_and_measured_waits_stand_in_one_row(report: Report) -> None:
    text = unstyle(to_text(report))
    (header,) = [line for line in text.splitlines() if line.startswith(" transfer")]
    assert {"waits", "model", "ratio"} <= set(header.split())
    assert "predicted for gb200" in text
    for transfer in report.transfers:
        assert transfer.predicted is not None
        assert transfer.measured is not None


def test_the_json_keeps_the_contract(slow: Path, report: Report, tmp_path: Path) -> None:
    assert faults(json.loads(to_json(report)), "report") == []
    out = tmp_path / "out.json"
    assert run_command(str(slow), "--format", "json", "-o", str(out)).output == ""
    found = json.loads(out.read_text())
    assert faults(found, "report") == []
    assert found["input"]["kind"] == "trace"
    assert len(found["input"]["sha256"]) == 64


def test_the_waits_of_the_transfers_add_up_to_the_stall(report: Report) -> None:
    step = report.step.measured
    assert step is not None
    waits = [t.measured.wait_ms for t in report.transfers if t.measured]
    assert sum(waits) == pytest.approx(step.stall_ms)
    assert step.stall_d2h_ms + step.stall_h2d_ms == pytest.approx(step.stall_ms)
    parts = step.compute_ms + step.collective_exposed_ms + step.exposed_ms.total + step.idle_ms
    assert parts == pytest.approx(step.time_ms)


def test_verdicts_follow_the_covered_share(report: Report) -> None:
    for transfer in report.transfers:
        found = transfer.measured
        assert found is not None
        share = found.cover_ms / found.duration_ms
        expected = "exposed" if share < 0.10 else "partial" if share < 0.95 else transfer.verdict
        assert transfer.verdict == expected


def test_a_typical_step_as_a_timeline_gives_the_same_figures(slow: Path, tmp_path: Path) -> None:
    other = write_trace(trace_of(played(SCAN, 3), SCAN), tmp_path / "scan.xplane.pb")
    for device in (*measure_file(slow).devices, *measure_file(other).devices):
        assert device.typical is not None
        found = overlap(device.typical.timeline())
        (step,) = [s for s in device.steps if s.time_ps == found.step.time_ps][:1]
        for name in (
            *("compute_ps", "collective_exposed_ps", "exposed_d2h_ps", "exposed_h2d_ps", "exposed_ps", "stall_ps"),
            *("busy_d2h_ps", "busy_h2d_ps"),
        ):
            assert getattr(found.step, name) == getattr(step, name), name
        for number, times in found.transfers.items():
            own = step.transfers[number]
            assert (times.duration_ps, times.cover_ps, times.wait_ps) == (own.duration_ps, own.cover_ps, own.wait_ps)


def test_copies_have_their_rate_alone_and_beside_the_other_direction(tmp_path: Path) -> None:
    run = played(OPTIMIZER, 3, Speeds(kernel=lambda op: US, d2h=400 * US, h2d=500 * US))
    found = trace(str(write_trace(trace_of(run, OPTIMIZER), tmp_path / "host.xplane.pb")))
    (device,) = found.files[0].devices
    rates = [t.measured for t in found.report.transfers if t.measured]
    assert any(one.gbps_alone for one in rates)
    assert any(one.gbps_together for one in rates)
    for own, one in zip(device.transfers.values(), rates, strict=True):
        assert one.gbps == pytest.approx(own["bytes"].sum() / own["duration_ps"].sum() * 1e3)
        assert one.gbps in (one.gbps_alone, one.gbps_together) or one.gbps_alone is one.gbps_together is None


def test_an_expected_module_is_known_in_text_and_proto_and_another_is_reported(slow: Path, root: Path) -> None:
    folder = root / "fixtures" / UNROLLED
    for name in ("module.hlo.txt.gz", "module.hlo.pb.gz"):
        found = trace(str(slow), expect=str(folder / name)).report
        assert found.trace is not None
        assert found.trace.expected is not None
        assert (found.trace.expected.status, found.trace.expected.differences) == ("same", ())
        assert " ".join(unstyle(to_text(found)).split()).startswith("this is the schedule of ")
    done = run_command(str(slow), "--expect", str(root / "fixtures" / SCAN / "module.hlo.pb.gz"))
    assert done.return_value == 3
    assert " ".join(done.output.split()).startswith("this is NOT the program of ")
    assert "transfers expected and not run" in " ".join(done.output.split())


def test_dropped_events_put_every_verdict_in_doubt(slow: Path, tmp_path: Path) -> None:
    space = schema.XSpace.FromString(slow.read_bytes())
    space.warnings.append(b"Detected GPU events dropped on host: activity buffer overflow")
    path = tmp_path / "host.xplane.pb"
    path.write_bytes(space.SerializeToString())
    done = run_command(str(path))
    assert done.return_value == 3
    assert "not known: the profiler says: Detected GPU events dropped" in done.output
    assert all(transfer.robust is False for transfer in trace(str(path)).report.transfers)
    assert "? the profiler dropped events" in done.output


def test_a_trace_without_an_accelerator_is_unknown(tmp_path: Path) -> None:
    path = write_trace(replace(trace_of(played(UNROLLED, 1), UNROLLED), devices=()), tmp_path / "host.xplane.pb")
    done = run_command(str(path))
    assert done.return_value == 3
    assert "no events of an accelerator" in done.output
    assert faults(json.loads(to_json(trace(str(path)).report)), "report") == []


def test_a_trace_without_its_module_cannot_name_transfers(tmp_path: Path) -> None:
    path = write_trace(replace(trace_of(played(UNROLLED), UNROLLED), modules=()), tmp_path / "host.xplane.pb")
    done = run_command(str(path))
    assert done.return_value == 3
    assert "the trace carries no module of its program" in done.output
    assert "enable_hlo_proto" in done.output
    assert faults(json.loads(to_json(trace(str(path)).report)), "report") == []


@pytest.mark.parametrize("annotated", [True, False])
def test_without_a_schedule_runs_are_separated_by_annotations_or_by_repeats(tmp_path: Path, annotated: bool) -> None:
    run = played(UNROLLED, 4)
    if not annotated:
        run.annotations = []
    whole = replace(trace_of(run, UNROLLED), modules=())
    file = measure_file(write_trace(whole, tmp_path / "host.xplane.pb"))
    (device,) = file.devices
    how = "step annotations" if annotated else "repeats of an operation"
    assert any(how in limit for limit in file.limits)
    assert len(device.numbers) == 4
    assert device.clean.all()


def test_a_graph_in_one_block_leaves_every_verdict_open(slow: Path, tmp_path: Path) -> None:
    space = schema.XSpace.FromString(slow.read_bytes())
    for plane in space.planes:
        for entry in plane.event_metadata.values():
            if entry.name.startswith(b"gemm"):
                entry.name = b"CudaGraphExec:5"
    path = tmp_path / "host.xplane.pb"
    path.write_bytes(space.SerializeToString())
    done = run_command(str(path))
    assert done.return_value == 3
    assert "traced as one block" in done.output
    report = trace(str(path)).report
    assert report.step.measured is None
    assert {(t.verdict, t.measured) for t in report.transfers} == {("unknown", None)}
    assert {found.code for found in report.findings if found.severity == "warning"} == {"HLO408", "HLO410"}
    assert all("command_buffer" in found.remedy for found in report.findings if found.code in ("HLO408", "HLO410"))
    assert "and CUDA graphs with all in them" in done.output
    page = html_page(trace(str(path), target="h100"))
    assert "No step of the profile was measured" in page
    assert "As far as is known" not in page
    assert "profile of 0 x" not in page


def test_copies_of_a_foreign_function_are_no_offload(tmp_path: Path) -> None:
    text = """HloModule m, is_scheduled=true

ENTRY main {
  a = f32[4] parameter(0)
  b = f32[4] custom-call(a), custom_call_target="my_ffi"
  ROOT c = f32[4] add(b, b)
}
"""
    events = []
    for start in (10, 110, 210):
        events.append(d2h(start * US, (start + 20) * US, "b", 4096, program=PROGRAM))
        events.append(kernel((start + 20) * US, (start + 30) * US, "b", program=PROGRAM))
        events.append(kernel((start + 30) * US, (start + 50) * US, "c", program=PROGRAM))
    whole = Trace((Device(0, tuple(events)),), (Program("m", PROGRAM, text.encode()),))
    path = write_trace(whole, tmp_path / "host.xplane.pb")
    space = schema.XSpace.FromString(path.read_bytes())
    for plane in space.planes:
        for entry in plane.event_metadata.values():
            for stat in entry.stats:
                if stat.bytes_value:
                    stat.bytes_value = text.encode()  # text serves as well as a proto
    path.write_bytes(space.SerializeToString())
    file = measure_file(path)
    assert [(copies.direction, copies.count) for copies in file.other_copies] == [("d2h", 3)]
    (device,) = file.devices
    assert device.figures["compute_ps"].tolist() == [30 * US] * 3
    assert not device.figures["busy_d2h_ps"].any()


def test_a_module_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    whole = trace_of(played(UNROLLED), UNROLLED)
    broken = tuple(replace(program, module_proto=b"\x0a\x03abc") for program in whole.modules)
    found = trace(str(write_trace(replace(whole, modules=broken), tmp_path / "host.xplane.pb"))).report
    assert found.transfers == ()
    assert any("program 7" in limit for limit in found.limits)
    assert any(unknown.affects == "transfers" for unknown in found.unknown)


def test_options_for_a_prediction_need_a_target(slow: Path) -> None:
    with pytest.raises(UsageError, match="--target none has none"):
        trace(str(slow), target="none", link="50GB/s")
    with pytest.raises(InputError, match="no such file"):
        trace(str(slow), expect="nowhere.hlo")


def test_a_link_replaces_the_targets(slow: Path) -> None:
    fast, lame = (trace(str(slow), target="gb200", link=link).report for link in ("400GB/s", "1GB/s"))
    assert fast.step.predicted is not None
    assert lame.step.predicted is not None
    assert fast.step.predicted.stall_ms < lame.step.predicted.stall_ms
    assert fast.step.measured == lame.step.measured


def test_copies_faster_than_the_targets_link_are_reported(slow: Path) -> None:
    limits = trace(str(slow), target="gb200", link="1GB/s").report.limits
    assert any("d2h copies reach 1.75 GB/s, more than the 1 of gb200" in limit for limit in limits)
    assert not any("copies reach" in limit for limit in trace(str(slow), target="gb200").report.limits)


def test_help_and_the_list_of_commands_name_it(hloinspect: Callable[..., Any]) -> None:
    assert "  trace " in hloinspect("--help").stdout
    shown = hloinspect("trace", "--help").stdout
    assert "Examples:" in shown
    assert "--expect" in shown


def test_colour_is_left_out_where_it_is_not_wanted(slow: Path, hloinspect: Callable[..., Any]) -> None:
    assert "\033" not in hloinspect("trace", str(slow), env={"NO_COLOR": "1"}).stdout
