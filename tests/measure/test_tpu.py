"""TPU traces played from one of our own compiled modules: the waits are known before the trace is read."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hloinspect.analyze.trace import trace
from hloinspect.measure.file import measure_file
from hloinspect.measure.measured import MeasuredDevice
from hloinspect.profiles.xplane.schema import xplane_pb2 as schema
from tests.support.thorough import examples
from tests.support.tpu_runtime import US, TpuRun, scan_module


def played(root: Path, copy_us: int, steps: int = 4, **more: object) -> TpuRun:
    module, proto = scan_module(root)
    run = TpuRun(module, lambda name: copy_us * US, hlo_proto=proto, **more)  # type: ignore[arg-type]
    run.steps(steps)
    return run


def one(path: Path) -> MeasuredDevice:
    (device,) = measure_file(path).devices
    return device


def assert_is_as_played(device: MeasuredDevice, run: TpuRun) -> None:
    assert device.figures["time_ps"].tolist() == run.times
    assert device.figures["stall_ps"].tolist() == [sum(waits.values()) for waits in run.waits]
    assert device.figures["compute_ps"].tolist() == run.busy
    for step, waits in zip(device.steps, run.waits, strict=True):
        assert {number: own.wait_ps for number, own in step.transfers.items()} == dict(waits)
        assert step.compute_ps + step.collective_exposed_ps + step.exposed_ps + step.idle_ps == step.time_ps


@pytest.mark.parametrize("copy_us", [1, 40, 2000])
def test_dones_are_waits_and_whiles_are_no_work(root: Path, tmp_path: Path, copy_us: int) -> None:
    run = played(root, copy_us)
    device = one(run.write(tmp_path / "host.xplane.pb"))
    assert_is_as_played(device, run)
    assert device.set_aside == ("",) * 4
    assert {own.events for step in device.steps for own in step.transfers.values()} == {4}
    report = trace(str(tmp_path / "host.xplane.pb")).report
    if copy_us != 40:
        assert {transfer.verdict for transfer in report.transfers} == {"hidden" if copy_us == 1 else "exposed"}


@given(st.integers(0, 2**32))
@settings(max_examples=examples(8, 400))
def test_random_steps_are_measured_as_they_were_played(
    root: Path, tmp_path_factory: pytest.TempPathFactory, seed: int
) -> None:
    rng = random.Random(seed)
    module, proto = scan_module(root)
    run = TpuRun(
        module,
        copy_ps=lambda name: rng.randrange(1, 3000) * US,
        work_ps=lambda name: rng.randrange(0, 60) * US,
        hlo_proto=proto,
    )
    run.steps(2)
    assert_is_as_played(one(run.write(tmp_path_factory.mktemp("trace") / "host.xplane.pb")), run)


def test_a_step_whose_start_is_lost_is_named_and_the_done_still_counts(root: Path, tmp_path: Path) -> None:
    run = played(root, 300)
    space = schema.XSpace.FromString(run.space.bytes())
    plane = space.planes[0]
    names = {number: kind.display_name for number, kind in plane.event_metadata.items()}
    ops = plane.lines[1].events
    starts = [n for n, event in enumerate(ops) if names[event.metadata_id] == b"dynamic-slice-start"]
    del ops[starts[5]]  # the second of four in the second of four steps
    path = tmp_path / "host.xplane.pb"
    path.write_bytes(space.SerializeToString())
    device = one(path)
    assert device.set_aside == ("", "events are missing or unpaired", "", "")
    assert device.details[1].startswith("dynamic-slice-start: 3 of 4")
    assert device.figures["stall_ps"].tolist() == [sum(waits.values()) for waits in run.waits]


def test_without_a_module_totals_hold_and_the_gap_is_reported(root: Path, tmp_path: Path) -> None:
    run = played(root, 500, with_module=False)
    path = run.write(tmp_path / "host.xplane.pb")
    device = one(path)
    assert device.figures["stall_ps"].tolist() == [sum(waits.values()) for waits in run.waits]
    assert (device.figures["stall_d2h_ps"] > 0).all()
    assert (device.figures["stall_h2d_ps"] > 0).all()
    report = trace(str(path)).report
    assert report.step.measured is not None
    assert report.transfers == ()
    assert any("carries no module" in unknown.reason for unknown in report.unknown)
