"""A prediction written as a profile: ``hloinspect trace`` reads the same step out of it, and XProf shows it."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from subprocess import CompletedProcess

import pytest

import hloinspect
from hloinspect.analyze.inspect import Inspection
from hloinspect.analyze.trace import LIMIT_PREDICTED
from hloinspect.cli.timelines import emit_timeline
from hloinspect.errors import UsageError
from hloinspect.profiles.open import open_trace
from hloinspect.profiles.xplane import embedded_modules
from hloinspect.render.traces.xspace import HOST, STEPS, to_xspace, write_profile
from hloinspect.report.schema import Report, TransferInfo
from hloinspect.rules.choice import Choice
from tests.support.places import ROOT

FIXTURES = ROOT / "fixtures" / "jax0.12.0.1"
MODULES = {
    "gb200_compute_on": "gb200",
    "gb200_compute_on_host_memory": "gb200",
    "gb200_host_stack_not_donated": "gb200",
    "gb200_offload_scan": "gb200",
    "gb200_offload_scan_double_buffered": "gb200",
    "gb200_optimizer": "gb200",
    "gb200_remat": "gb200",
    "h100_offload_by_xla": "h100",
    "h100_offload_scan": "h100",
    "v6e_offload_scan": "v6e",
}
NO_RULES = Choice(select=())
NEAR_MS = 1e-6
"""A thousand picoseconds: sums of rounded times."""


@cache
def inspected(name: str) -> Inspection:
    module = FIXTURES / name / "module.hlo.pb.gz"
    return hloinspect.inspect(str(module), target=MODULES[name], memory=False, rules=NO_RULES)


def written(found: Inspection, folder: Path) -> Path:
    assert found.prediction is not None
    return write_profile(found.offload, found.prediction, folder).path


def measured(folder: Path) -> Report:
    return hloinspect.trace(str(folder), rules=NO_RULES).report


# ---- what was predicted is measured


@pytest.mark.parametrize("name", MODULES)
def test_the_predicted_step_is_measured_in_its_profile(name: str, tmp_path: Path) -> None:
    found = inspected(name)
    written(found, tmp_path)
    report = measured(tmp_path)
    predicted, seen = found.report.step.predicted, report.step.measured
    assert predicted is not None
    assert seen is not None
    assert seen.steps_analyzed == STEPS
    assert seen.steps_set_aside == ()
    assert seen.time_ms == pytest.approx(predicted.time_ms, abs=NEAR_MS)
    assert seen.stall_ms == pytest.approx(predicted.stall_ms, abs=NEAR_MS)
    assert not report.unknown
    assert LIMIT_PREDICTED in report.limits
    assert [t.id for t in report.transfers] == [t.id for t in found.report.transfers]
    if found.report.module.platform == "gpu":
        assert seen.compute_ms == pytest.approx(predicted.compute_ms, abs=NEAR_MS)
        assert seen.exposed_ms.total == pytest.approx(predicted.exposed_ms.total, abs=NEAR_MS)
        for before, after in zip(found.report.transfers, report.transfers, strict=True):
            _same_transfer(before, after)


def _same_transfer(before: TransferInfo, after: TransferInfo) -> None:
    assert before.predicted is not None
    assert after.measured is not None
    assert after.measured.runs == before.executions
    assert after.measured.duration_ms == pytest.approx(before.predicted.duration_ms, abs=NEAR_MS)
    assert after.measured.exposed_ms == pytest.approx(before.predicted.exposed_ms, abs=NEAR_MS)
    assert after.verdict == before.verdict


WAITS_ALIKE = (
    "gb200_offload_scan",
    "gb200_optimizer",
    "h100_offload_scan",
    "v6e_offload_scan",
)


@pytest.mark.parametrize("name", WAITS_ALIKE)
def test_each_wait_is_that_of_the_same_transfer(name: str, tmp_path: Path) -> None:
    written(inspected(name), tmp_path)
    for before, after in zip(inspected(name).report.transfers, measured(tmp_path).transfers, strict=True):
        assert before.predicted is not None
        assert after.measured is not None
        assert after.measured.wait_ms == pytest.approx(before.predicted.wait_ms, abs=NEAR_MS)


def test_a_wait_behind_another_copy_is_charged_to_that_one_by_the_model_and_to_the_done_by_a_trace(
    tmp_path: Path,
) -> None:
    found = inspected("h100_offload_by_xla")
    written(found, tmp_path)
    pairs = list(zip(found.report.transfers, measured(tmp_path).transfers, strict=True))
    differences = [
        before.predicted.wait_ms - after.measured.wait_ms
        for before, after in pairs
        if before.predicted is not None and after.measured is not None
    ]
    assert max(differences) > 1
    assert sum(differences) == pytest.approx(0, abs=NEAR_MS)


def test_on_a_tpu_the_measured_duration_is_the_window_around_the_copy(tmp_path: Path) -> None:
    found = inspected("v6e_offload_scan")
    written(found, tmp_path)
    for before, after in zip(found.report.transfers, measured(tmp_path).transfers, strict=True):
        assert before.predicted is not None
        assert after.measured is not None
        assert after.measured.is_window
        assert after.measured.runs == before.executions
        assert after.measured.duration_ms >= before.predicted.duration_ms - NEAR_MS


@pytest.mark.slow
@pytest.mark.parametrize(
    ("module", "target"), [("hlo/s_off.hlo", "h100"), ("maxtext/llama405b_nv.hlo.gz", "gb200")], ids=["scan", "405b"]
)
def test_modules_that_came_as_text_are_measured_too(corpus: Path, tmp_path: Path, module: str, target: str) -> None:
    found = hloinspect.inspect(str(corpus / module), target=target, memory=False, rules=NO_RULES)
    assert found.prediction is not None
    assert not write_profile(found.offload, found.prediction, tmp_path).has_proto
    report = measured(tmp_path)
    predicted, seen = found.report.step.predicted, report.step.measured
    assert predicted is not None
    assert seen is not None
    assert seen.time_ms == pytest.approx(predicted.time_ms, abs=NEAR_MS)
    assert seen.stall_ms == pytest.approx(predicted.stall_ms, abs=NEAR_MS)
    for before, after in zip(found.report.transfers, report.transfers, strict=True):
        _same_transfer(before, after)


# ---- the file


def test_the_module_in_the_profile_is_the_one_that_was_read(tmp_path: Path) -> None:
    from hloinspect.hlo.load import load_module_bytes
    from hloinspect.hlo.print import print_module

    found = inspected("gb200_offload_scan")
    (proto,) = embedded_modules(open_trace(written(found, tmp_path))).values()
    assert print_module(load_module_bytes(proto)) == print_module(found.offload.program.module)


def test_fields_that_are_not_looked_at_are_in_it_too() -> None:
    import gzip

    from hloinspect.hlo.proto import serialized
    from hloinspect.hlo.schema import hlo_pb2

    original = gzip.decompress((FIXTURES / "gb200_offload_scan" / "module.hlo.pb.gz").read_bytes())
    kept = serialized(inspected("gb200_offload_scan").offload.program.module)
    assert kept is not None
    alone = hlo_pb2.HloModuleProto.FromString(kept)
    for computation in alone.computations:
        computation.DiscardUnknownFields()
    assert len(alone.SerializeToString()) < len(kept)  # there are such fields
    assert len(kept) >= 0.99 * len(original)


def test_the_same_prediction_is_the_same_run(tmp_path: Path) -> None:
    found = inspected("gb200_offload_scan")
    path = written(found, tmp_path)
    content = path.read_bytes()
    assert path.parent.parent == tmp_path / "plugins" / "profile"
    assert path.name == f"{HOST}.xplane.pb"
    assert written(found, tmp_path) == path
    assert path.read_bytes() == content
    assert [file for file in tmp_path.rglob("*") if file.is_file()] == [path]


def test_another_link_is_another_run(tmp_path: Path) -> None:
    module = str(FIXTURES / "gb200_offload_scan" / "module.hlo.pb.gz")
    slow = hloinspect.inspect(module, target="gb200", link="50GB/s", memory=False, rules=NO_RULES)
    assert written(slow, tmp_path).parent != written(inspected("gb200_offload_scan"), tmp_path).parent


def test_a_run_of_that_name_that_is_something_else_is_left_alone(tmp_path: Path) -> None:
    found = inspected("gb200_offload_scan")
    path = written(found, tmp_path)
    path.write_bytes(b"mine")
    with pytest.raises(UsageError, match="is not this prediction"):
        written(found, tmp_path)
    assert path.read_bytes() == b"mine"


def test_measuring_a_profile_leaves_nothing_beside_it(tmp_path: Path) -> None:
    path = written(inspected("gb200_offload_scan"), tmp_path)
    measured(tmp_path)
    assert [file for file in tmp_path.rglob("*") if file.is_file()] == [path]


def test_a_step_that_cannot_be_written_out_is_refused() -> None:
    found = inspected("gb200_offload_scan")
    assert found.prediction is not None
    timeline = found.prediction.timeline
    alone = {n for n in range(len(timeline.segments)) if not any(f.first <= n < f.end for f in timeline.folds)}
    many = tuple(s if n in alone else replace(s, repeat=s.repeat * 10**6) for n, s in enumerate(timeline.segments))
    folds = tuple(replace(fold, iterations=fold.iterations * 10**6) for fold in timeline.folds)
    endless = replace(found.prediction, timeline=replace(timeline, segments=many, folds=folds))
    with pytest.raises(UsageError, match="too many for a profile"):
        to_xspace(found.offload, endless)


def test_operations_of_a_tpu_follow_each_other(tmp_path: Path) -> None:
    space = open_trace(written(inspected("v6e_offload_scan"), tmp_path))
    (plane,) = space.planes_of("/device:TPU:")
    lines = {line.name: line.columns() for line in plane.lines}
    assert list(lines) == ["Steps", "XLA Modules", "XLA Ops", "Async XLA Ops"]
    operations = lines["XLA Ops"]
    assert (operations.start_ps[1:] >= operations.end_ps[:-1]).all()
    assert len(lines["Steps"].start_ps) == len(lines["XLA Modules"].start_ps) == STEPS


# ---- the command


def test_the_command_says_where_the_run_is(hloinspect: Callable[..., CompletedProcess[str]], tmp_path: Path) -> None:
    module = str(FIXTURES / "gb200_offload_scan" / "module.hlo.pb.gz")
    arguments = ("inspect", module, "--target", "gb200", "--format", "xplane")
    done = hloinspect(*arguments, "-o", "logs", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    path, hint = done.stdout.splitlines()
    assert (tmp_path / path.removeprefix("wrote ")).is_file()
    assert "--logdir logs" in hint


def test_a_profile_needs_a_directory_that_can_be_written(tmp_path: Path) -> None:
    found = inspected("gb200_offload_scan")
    (tmp_path / "file").write_text("")
    for output, message in ((None, "-o DIR"), ("-", "-o DIR"), (str(tmp_path / "file"), "Not a directory")):
        with pytest.raises(UsageError, match=message) as raised:
            emit_timeline(found, "xplane", output)
        assert "\n" not in str(raised.value)


def test_a_trace_without_a_target_has_no_prediction_to_write(tmp_path: Path) -> None:
    written(inspected("gb200_offload_scan"), tmp_path)
    with pytest.raises(UsageError, match=r"no predicted step to write: .*--target"):
        emit_timeline(hloinspect.trace(str(tmp_path)), "xplane", str(tmp_path / "out"))
    assert not (tmp_path / "out").exists()


# ---- XProf (not in the dev extra: 350 MB with what it needs)

SHOW = """
import json, sys
from xprof.convert import raw_to_tool_data as xprof
def tool(name):
    content, _ = xprof.xspace_to_tool_data([sys.argv[1]], name, {})
    return content if isinstance(content, str) else content.decode("utf8", "replace")
events = json.loads(tool("trace_viewer"))["traceEvents"]
named = [e for e in events if e.get("ph") == "M" and e["name"] == "thread_name"]
lanes = {(e["pid"], e.get("tid")): e["args"]["name"] for e in named}
found = {}
for event in events:
    if event.get("ph") == "X":
        found.setdefault(lanes.get((event["pid"], event["tid"]), ""), []).append([event["name"], event["dur"]])
print(json.dumps({"lanes": found, **{name: tool(name) for name in sys.argv[2:]}}))
"""


def xprof_python() -> str:
    """A Python that has xprof: the one of HLOINSPECT_XPROF_PYTHON, or this one."""
    named = os.environ.get("HLOINSPECT_XPROF_PYTHON")
    if not named and importlib.util.find_spec("xprof") is None:
        pytest.skip("no xprof: set HLOINSPECT_XPROF_PYTHON to a Python that has it")
    return named or sys.executable


def shown(path: Path, *tools: str) -> dict[str, dict[str, list[tuple[str, float]]]]:
    done = subprocess.run(
        [xprof_python(), "-c", SHOW, str(path), *tools], capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 0, done.stderr[-2000:]
    found: dict[str, dict[str, list[tuple[str, float]]]] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.slow
def test_xprof_shows_steps_operations_and_copies_of_a_gpu(tmp_path: Path) -> None:
    found = inspected("gb200_offload_scan")
    assert found.report.step.predicted is not None
    page = shown(written(found, tmp_path), "overview_page", "kernel_stats", "hlo_stats", "input_pipeline_analyzer")
    lanes = page["lanes"]
    assert {"Steps", "Stream #13(Compute)", "Stream #14(MemcpyD2H)", "Stream #15(MemcpyH2D)"} <= set(lanes)
    assert any(name.startswith("XLA Ops") for name in lanes)
    assert any(name.startswith("XLA Modules") for name in lanes)
    assert len(lanes["Steps"]) == STEPS
    for _, duration_us in lanes["Steps"]:
        assert duration_us == pytest.approx(found.report.step.predicted.time_ms * 1e3, rel=0.01)
    executions = sum(t.executions for t in found.report.transfers if t.direction == "d2h")
    assert [name for name, _ in lanes["Stream #14(MemcpyD2H)"]] == ["MemcpyD2H"] * (STEPS * executions)
    transfer = found.report.transfers[0]
    assert transfer.start in str(page["hlo_stats"]) or "dynamic-update-slice" in str(page["hlo_stats"])
    assert "fusion" in str(page["kernel_stats"])
    assert f"{found.report.step.predicted.time_ms:.1f}" in str(page["input_pipeline_analyzer"])


@pytest.mark.slow
def test_xprof_shows_the_host_offload_lane_of_a_tpu(tmp_path: Path) -> None:
    found = inspected("v6e_offload_scan")
    lanes = shown(written(found, tmp_path))["lanes"]
    assert {"Steps", "XLA Modules", "XLA Ops"} <= set(lanes)
    offload = [event for name, events in lanes.items() if name.startswith("Host Offload Ops") for event in events]
    assert len(offload) >= STEPS * max(t.executions for t in found.report.transfers)
    dones = [duration for name, duration in lanes["XLA Ops"] if name in {t.done for t in found.report.transfers}]
    assert found.report.step.predicted is not None
    assert sum(dones) / 1e3 / STEPS == pytest.approx(found.report.step.predicted.stall_ms, rel=0.01)
