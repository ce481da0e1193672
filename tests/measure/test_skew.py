"""Skew of collectives: what is matched over devices is what a brute-force oracle finds. The devices are synthetic."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hloinspect.analyze.trace import trace
from hloinspect.measure.instructions import InstructionTimes
from hloinspect.measure.measured import MeasuredDevice
from hloinspect.measure.skew import collective_skew
from tests.support.cuda_checks import play, trace_of
from tests.support.cuda_runtime import compiled
from tests.support.cuda_traces import Device, Trace, write_trace
from tests.support.instruction_oracle import skew
from tests.support.thorough import examples

STEP = 10_000


def a_device(begins: list[int], clean: list[bool], rows: list[list[int]], numbers: list[int]) -> MeasuredDevice:
    """Return a device with one collective, whose executions are given for the steps that count."""
    times = np.array(rows, np.int64).reshape(max(sum(clean), 1), -1)
    table = InstructionTimes(
        *(("all-reduce.1",), (1,), ("all-reduce",), sum(clean)),
        *(np.array([times.size]), np.array([times.size]), np.array([int(times.sum())])),
        *(np.sort(times.ravel()), np.array([0, times.size])),
        matched={0: times},
    )
    begin = np.array(begins, np.int64)
    return MeasuredDevice(
        *("/device:GPU:0", "gpu", 1, np.array(numbers, np.int64), begin, begin + STEP - 100),
        figures={},
        transfers={},
        set_aside=tuple("" if counts else "warm-up" for counts in clean),
        details=("",) * len(clean),
        instructions=table,
    )


def some_run(rng: random.Random) -> tuple[list[list[MeasuredDevice]], list[dict[int, list[int]]]]:
    """Return the devices of one or two files, and for each device its executions by step of the run.

    Each file has a clock of its own. Within a file a device may lack the first or last steps, and does not begin quite
    when the others do.
    """
    steps, executions = rng.randrange(2, 6), rng.randrange(1, 4)
    files, every = [], []
    for _ in range(rng.choice((1, 2))):
        clock = rng.randrange(10**9)
        devices = []
        for place in range(rng.randrange(1, 4)):
            first, last = (0, steps) if place == 0 else (rng.randrange(2), steps - rng.randrange(2))
            own = list(range(first, last)) or [0]
            clean = [rng.random() < 0.8 for _ in own]
            rows = {step: [rng.randrange(1, 50) for _ in range(executions)] for step in own}
            begins = [clock + step * STEP + rng.randrange(STEP // 3) for step in own]
            kept = {step: rows[step] for step, counts in zip(own, clean, strict=True) if counts}
            device = a_device(begins, clean, list(kept.values()) or [[]], list(range(len(own))))
            devices.append(device if kept else replace(device, instructions=None))
            every.append(kept)
        files.append(devices)
    return files, every


@given(st.integers(0, 2**32))
@settings(max_examples=examples(150, 4000), deadline=None)
def test_skew_is_what_the_oracle_finds(seed: int) -> None:
    files, rows = some_run(random.Random(seed))
    found = collective_skew(files, frozenset({"all-reduce.1"}))
    places = [place for place, own in enumerate(rows) if own]
    able = [rows[place] for place in places]
    if len(able) < 2 or not set(able[0]).intersection(*able[1:]):
        assert not found
        return
    least, waits = skew(able)
    own = found["all-reduce.1"]
    assert own.least_ps.tolist() == least
    assert [own.skew_ps[place] for place in places] == pytest.approx(waits)


def test_files_with_different_numbers_of_steps_are_not_matched_with_each_other() -> None:
    """Match only within a file: nothing shows which step of the one is which of the other."""
    first = a_device([0, STEP], [True, True], [[5], [6]], [0, 1])
    second = a_device([0, STEP, 2 * STEP], [True] * 3, [[1], [2], [3]], [0, 1, 2])
    assert not collective_skew([[first], [second]], frozenset({"all-reduce.1"}))


def test_step_annotations_match_files_with_different_numbers_of_steps() -> None:
    first = a_device([0, STEP], [True, True], [[5], [6]], [7, 8])
    second = a_device([0, STEP, 2 * STEP], [True] * 3, [[1], [2], [30]], [6, 7, 8])
    found = collective_skew([[first], [second]], frozenset({"all-reduce.1"}))["all-reduce.1"]
    assert found.least_ps.tolist() == [2, 6]
    assert found.skew_ps == {0: 1.5, 1: 12.0}


def test_the_wait_for_a_slow_device_is_skew_and_the_rest_is_the_collective(tmp_path: Path) -> None:
    """Let the second device reach every collective 40 us after the first: the first waits so long in each."""
    name = "optimizer"
    run = play(name, 4)
    late = 40_000_000
    quick = [
        replace(event, start_ps=max(event.start_ps - late, 0)) if event.what == "collective" else event
        for event in run.events
    ]
    path = write_trace(
        Trace((Device(0, tuple(quick)), run.device(1)), (compiled(name).program,)), tmp_path / "host.xplane.pb"
    )
    report = trace(str(path)).report
    assert report.instructions is not None
    rows = [one for one in report.instructions.largest if one.skew_ms is not None]
    assert rows
    for one in rows:
        assert one.skew_ms == pytest.approx(one.executions * 0.04 / 2, rel=0.01)  # the mean of two devices
        assert one.least_ms is not None
        assert one.total_ms == pytest.approx(one.executions * one.least_ms + one.skew_ms, rel=0.01)
    first, second = report.instructions.skew_by_device
    assert (first.device, first.skew_ms, second.device) == ("/device:GPU:1", 0, "/device:GPU:0")
    total = sum(one.skew_ms or 0 for one in report.instructions.classes)
    assert second.skew_ms == pytest.approx(2 * total)


def test_a_single_device_has_no_skew(tmp_path: Path) -> None:
    run = play("optimizer", 3)
    report = trace(str(write_trace(trace_of(run, "optimizer"), tmp_path / "host.xplane.pb"))).report
    assert report.instructions is not None
    assert report.instructions.skew_by_device == ()
    assert {one.skew_ms for one in report.instructions.classes} == {None}
