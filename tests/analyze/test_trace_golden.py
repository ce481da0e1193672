"""The public trace of a host offload: a TPU v6e with four chips, 100 steps, six copies of 5 GiB a step.

The expected figures are in the corpus's golden.json; these tests are skipped where the corpus is not.
"""

from __future__ import annotations

import gzip
import json
import pickle
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result

from hloinspect.analyze.trace import TraceInspection, trace
from hloinspect.cli import main
from hloinspect.errors import InputError
from hloinspect.measure.file import measure_file
from hloinspect.measure.measured import MeasuredFile, StepFigures
from hloinspect.profiles.xplane import embedded_modules, open_xspace
from hloinspect.profiles.xplane.schema import xplane_pb2 as schema
from hloinspect.render.terminal.measured_text import to_text
from hloinspect.report.json import to_json
from hloinspect.timeline.timeline import overlap
from tests.support.json_schemas import faults

NAME = "tpu_v6e_host_offload.xplane.pb"


@pytest.fixture(scope="module")
def path(corpus: Path) -> Path:
    return corpus / "traces" / NAME


@pytest.fixture(scope="module")
def golden(corpus: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((corpus / "golden.json").read_text())[f"traces/{NAME}"]
    return found


@pytest.fixture(scope="module")
def whole(path: Path) -> MeasuredFile:
    return measure_file(path)


@pytest.fixture(scope="module")
def answer(path: Path) -> TraceInspection:
    return trace(str(path), target="v6e")


@pytest.fixture
def edited(path: Path, tmp_path: Path) -> Callable[[Callable[[Any], None]], Path]:
    """Return the trace with a change made to it."""

    def edit(change: Callable[[Any], None]) -> Path:
        space = schema.XSpace.FromString(path.read_bytes())
        change(space)
        other = tmp_path / NAME
        other.write_bytes(space.SerializeToString())
        return other

    return edit


def assert_is_golden(file: MeasuredFile, golden: dict[str, Any]) -> None:
    assert [device.name for device in file.devices] == [f"/device:{name}" for name in golden["devices"]]
    for device, expected in zip(file.devices, golden["devices"].values(), strict=True):
        totals = {name: int(values.sum()) / 1e12 for name, values in device.figures.items()}
        assert len(device.numbers) == expected["runs"]
        assert totals["time_ps"] == pytest.approx(expected["sum_step_s"], rel=1e-4)
        assert totals["stall_ps"] == pytest.approx(expected["done_wait_s"], rel=1e-3)
        assert totals["compute_ps"] == pytest.approx(expected["compute_s"], rel=1e-3)


def test_stall_and_step_time_of_all_four_devices_are_those_known(whole: MeasuredFile, golden: dict[str, Any]) -> None:
    assert_is_golden(whole, golden)


def test_they_are_the_same_without_the_line_of_windows(
    edited: Callable[[Callable[[Any], None]], Path], golden: dict[str, Any], whole: MeasuredFile
) -> None:
    def without_line(space: Any) -> None:
        for plane in space.planes:
            kept = [line for line in plane.lines if line.name != b"Async XLA Ops"]
            del plane.lines[:]
            plane.lines.extend(kept)

    found = measure_file(edited(without_line))
    assert_is_golden(found, golden)
    for device, other in zip(found.devices, whole.devices, strict=True):
        assert list(device.steps) == list(other.steps)


def test_the_parts_of_every_step_add_up_to_the_picosecond(whole: MeasuredFile) -> None:
    for device in whole.devices:
        own = device.figures
        parts = own["compute_ps"] + own["collective_exposed_ps"] + own["exposed_ps"] + own["idle_ps"]
        assert (parts == own["time_ps"]).all()


def test_steps_that_cannot_be_true_are_set_aside_and_the_others_give_the_known_waits(
    whole: MeasuredFile, answer: TraceInspection, golden: dict[str, Any]
) -> None:
    device = whole.devices[0]
    expected = golden["tpu0_clean_steps"]
    assert int(device.clean.sum()) == 39
    assert set(device.set_aside) == {"", "the clock jumped", "rates that cannot be"}
    offload = answer.offload
    assert offload is not None
    waits = {t.done: float(np.median(device.transfers[t.id]["wait_ps"][device.clean])) / 1e9 for t in offload.transfers}
    for done, known in expected["wait_each_ms"].items():
        assert waits[done] == pytest.approx(known, abs=0.1)
    assert waits["copy-done.1"] < 1e-3 > waits["copy-done.3"]


def test_the_waits_of_all_steps_by_done_are_those_known(
    whole: MeasuredFile, answer: TraceInspection, golden: dict[str, Any]
) -> None:
    offload = answer.offload
    assert offload is not None
    for transfer in offload.transfers:
        known = golden["tpu0_wait_by_done_s"][transfer.done]
        assert whole.devices[0].transfers[transfer.id]["wait_ps"].sum() / 1e12 == pytest.approx(known, abs=1e-4)


def test_a_window_of_a_single_copy_gives_its_rate(answer: TraceInspection, golden: dict[str, Any]) -> None:
    (alone,) = [t.measured for t in answer.report.transfers if t.measured and t.measured.gbps_alone is not None]
    assert alone.gbps_alone == pytest.approx(golden["tpu0_clean_steps"]["rates_gbps"]["d2h_alone"], abs=0.1)
    assert all(t.measured and t.measured.is_window and t.measured.gbps is None for t in answer.report.transfers)


@pytest.mark.parametrize("seed", [1, 2])
def test_steps_that_lost_events_are_named_and_the_rest_stays_what_it_was(
    seed: int, edited: Callable[[Callable[[Any], None]], Path], whole: MeasuredFile
) -> None:
    rng = random.Random(seed)
    lost: dict[str, set[int]] = {}

    def drop(space: Any) -> None:
        for plane in space.planes:
            name = plane.name.decode()
            for line in plane.lines:
                every = list(line.events)
                stays = [rng.random() >= 0.01 for _ in every]
                if line.name in (b"XLA Modules", b"XLA Ops"):
                    gone = [event.offset_ps for event, kept in zip(every, stays, strict=True) if not kept]
                    lost.setdefault(name, set()).update(line.timestamp_ns * 1000 + offset for offset in gone)
                rest = [event for event, kept in zip(every, stays, strict=True) if kept]
                del line.events[:]
                line.events.extend(rest)

    found = measure_file(edited(drop))
    for device, other in zip(found.devices, whole.devices, strict=True):
        before = list(other.steps)
        touched = {
            step.number for step in before for moment in lost[other.name] if step.start_ps <= moment < step.end_ps
        }
        assert touched
        steps = list(device.steps)
        kept = {step.start_ps: step for step in steps if not step.set_aside}
        same = [step for step in before if step.start_ps in kept]
        assert not touched & {step.number for step in same}
        assert len(same) == len(kept) >= 20
        assert mean(list(kept.values()), "stall_ps") == pytest.approx(mean(same, "stall_ps"), rel=0.005)
        assert mean(list(kept.values()), "time_ps") == pytest.approx(mean(same, "time_ps"), rel=0.005)
        named = {of_time(before, (step.start_ps + step.end_ps) // 2) for step in steps if step.set_aside in LACKING}
        assert named == touched


LACKING = ("events are missing or unpaired", "cut by the trace's begin", "cut by the trace's end")


def of_time(steps: list[StepFigures], moment: int) -> int | None:
    """Return the number of the step in whose window a moment is."""
    return next((step.number for step in steps if step.start_ps <= moment < step.end_ps), None)


def mean(steps: list[StepFigures], name: str) -> float:
    return float(np.mean([getattr(step, name) for step in steps]))


def test_a_typical_step_as_a_timeline_gives_the_same_figures(whole: MeasuredFile) -> None:
    for device in whole.devices:
        assert device.typical is not None
        found = overlap(device.typical.timeline())
        index = device.figures["time_ps"].tolist().index(found.step.time_ps)
        step = list(device.steps)[index]
        for name in ("compute_ps", "collective_exposed_ps", "exposed_d2h_ps", "exposed_h2d_ps", "exposed_ps"):
            assert getattr(found.step, name) == getattr(step, name), name
        for name in ("stall_ps", "busy_d2h_ps", "busy_h2d_ps"):
            assert getattr(found.step, name) == getattr(step, name), name
        for number, times in found.transfers.items():
            own = step.transfers[number]
            assert (times.duration_ps, times.cover_ps, times.wait_ps) == (own.duration_ps, own.cover_ps, own.wait_ps)


def test_what_is_measured_can_go_to_another_process(whole: MeasuredFile) -> None:
    again = pickle.loads(pickle.dumps(whole))
    assert [list(device.steps) for device in again.devices] == [list(device.steps) for device in whole.devices]
    assert len(pickle.dumps(replace(whole, module=None))) < 300_000


def test_measured_and_predicted_waits_stand_side_by_side(answer: TraceInspection) -> None:
    report = answer.report
    assert report.step.measured is not None
    assert report.step.predicted is not None
    assert report.step.measured.stall_ms == pytest.approx(report.step.predicted.stall_ms, rel=0.02)
    for transfer in report.transfers:
        assert transfer.measured is not None
        assert transfer.predicted is not None
        if transfer.predicted.wait_ms > 1:
            assert transfer.measured.wait_ratio == pytest.approx(1, abs=0.02)
        else:
            assert transfer.measured.wait_ms < 1e-3
    assert {transfer.verdict for transfer in report.transfers} == {"exposed"}


def test_the_report_keeps_the_contract(answer: TraceInspection, path: Path) -> None:
    for found in (answer, trace(str(path))):
        assert faults(json.loads(to_json(found.report)), "report") == []


def test_a_step_is_shown_for_every_device_and_the_sums_hold_over_all_steps(
    answer: TraceInspection, golden: dict[str, Any]
) -> None:
    for device, expected in zip(answer.report.devices, golden["devices"].values(), strict=True):
        assert device.all_steps.steps == expected["runs"]
        assert device.all_steps.stall_ms / 1e3 == pytest.approx(expected["done_wait_s"], rel=1e-3)
        assert 100 * device.all_steps.stall_ms / device.all_steps.time_ms == pytest.approx(
            expected["stall_percent"], abs=0.01
        )
        assert device.steps_analyzed + len(device.set_aside) == device.steps_seen == 100


def test_the_program_in_a_trace_is_known_again_whatever_it_is_called(
    path: Path, answer: TraceInspection, corpus: Path, tmp_path: Path
) -> None:
    expected = trace(
        str(path), expect=str(corpus / "hlo" / "tpu_v6e_host_offload.after_optimizations.txt")
    ).report.trace
    assert expected is not None
    assert expected.expected is not None
    assert expected.expected.status == "same"
    protos = embedded_modules(open_xspace(path))
    others = [proto for number, proto in protos.items() if number != answer.files[0].program]
    other = tmp_path / "other.hlo.pb"
    other.write_bytes(max(others, key=len))
    report = trace(str(path), expect=str(other)).report
    assert report.trace is not None
    assert report.trace.expected is not None
    assert report.trace.expected.status == "different"
    assert any("not that of" in unknown.reason for unknown in report.unknown)


# ---- the other traces of the corpus


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, list(arguments))


def test_a_damaged_trace_is_refused_in_one_line(corpus: Path) -> None:
    done = run("trace", str(corpus / "traces" / "corrupt.xplane.pb"))
    assert done.exit_code == 2
    assert not done.stdout
    assert len(done.stderr.splitlines()) == 1
    assert "text encoding" in done.stderr


@pytest.mark.parametrize("name", ["rocm_mi300x_jax08", "rocm_mi300x_roctracer"])
def test_a_rocm_trace_gives_kernels_and_says_why_no_copies(name: str, corpus: Path) -> None:
    done = run("trace", str(corpus / "traces" / f"{name}.xplane.pb"))
    assert done.exit_code == 3
    assert "not known: a ROCm trace does not show copies between device and host" in done.stdout
    assert "Try:" in done.stdout


def test_a_trace_of_tensorflow_has_copies_but_no_step(corpus: Path) -> None:
    path = corpus / "traces" / "cuda_v100_tensorflow_2020.xplane.pb"
    report = trace(str(path)).report
    assert any("no event on the device names the program" in unknown.reason for unknown in report.unknown)
    assert report.trace is not None
    assert {(copies.direction, copies.count) for copies in report.trace.other_copies} == {("d2h", 24), ("h2d", 202)}
    assert report.step.measured is None


@pytest.mark.parametrize("name", ["cuda_gtx1080ti_xla.xplane.pb", "tpu_vllm_no_offload.trace.json.gz"])
def test_a_program_without_host_transfers_is_reported_to_have_none(name: str, corpus: Path) -> None:
    report = trace(str(corpus / "traces" / name)).report
    assert not any(unknown.affects in ("time", "transfers") for unknown in report.unknown)
    assert "no host transfers: nothing in this program moves" in to_text(report)
    assert report.step.measured is not None
    assert report.step.measured.stall_ms == 0
    assert report.transfers == ()
    assert faults(json.loads(to_json(report)), "report") == []
    assert any("Chrome trace" in limit for limit in report.limits) == name.endswith(".json.gz")


def test_of_several_hosts_a_broken_file_is_named_and_the_rest_goes_on(path: Path, tmp_path: Path) -> None:
    run = tmp_path / "plugins" / "profile" / "2026_11_29_10_00_00"
    run.mkdir(parents=True)
    (run / "host-a.xplane.pb").symlink_to(path)
    (run / "host-b.xplane.pb.gz").write_bytes(gzip.compress(path.read_bytes(), 1))
    (run / "host-c.xplane.pb").write_bytes(path.read_bytes()[:5000])
    report = trace(str(tmp_path)).report
    assert report.trace is not None
    assert report.trace.hosts == ("host-a", "host-b")
    assert len(report.devices) == 8
    (unread,) = report.trace.unread
    assert "host-c" in unread
    assert any("host-c" in unknown.reason for unknown in report.unknown)
    (run / "host-a.xplane.pb").unlink()
    (run / "host-b.xplane.pb.gz").unlink()
    with pytest.raises(InputError, match="host-c"):
        trace(str(tmp_path))


def test_inspect_sends_a_trace_to_the_command_for_it(path: Path) -> None:
    done = run("inspect", str(path))
    assert done.exit_code == 2
    assert f"use `hloinspect trace {path}`" in done.stderr
    assert len(done.stderr.splitlines()) == 1
