"""Helpers for tests of synthetic CUDA traces: play a module, measure its trace, and compare with the known result."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from hloinspect.measure.measured import MeasuredDevice, MeasuredFile
from tests.measure.test_oracle import assert_agrees, start_names
from tests.support.cuda_runtime import PROGRAM, Form, Run, Speeds, compiled
from tests.support.cuda_traces import Event, Trace
from tests.support.trace_oracle import measure

Answer = Callable[[Trace], MeasuredFile]


def play(
    name: str, steps: int = 4, *, speeds: Speeds | None = None, form: Form | None = None, blocking: bool = True
) -> Run:
    own = compiled(name)
    run = Run(own.module, own.directions, program=PROGRAM, speeds=speeds, form=form, blocking=blocking)
    run.steps(steps)
    return run


def trace_of(run: Run, name: str, **more: object) -> Trace:
    return Trace((run.device(),), (compiled(name).program,), tuple(run.annotations), **more)  # type: ignore[arg-type]


def one(file: MeasuredFile) -> MeasuredDevice:
    (device,) = file.devices
    return device


def waits(device: MeasuredDevice, name: str) -> list[dict[str, int]]:
    """Return for each step the waits of its transfers by start instruction, without those of zero."""
    starts = start_names(name)
    return [{starts[n]: t.wait_ps for n, t in step.transfers.items() if t.wait_ps} for step in device.steps]


def assert_is_as_played(device: MeasuredDevice, run: Run, name: str) -> None:
    """Assert that every figure of every step, and each transfer's time and wait, are those of the oracle and the
    runtime."""
    steps = list(device.steps)
    assert_agrees(device, measure(run.events, run.awaited_at_end), name)
    assert waits(device, name) == [dict(truth.waits) for truth in run.truth]
    for step, truth in zip(steps, run.truth, strict=True):
        assert {start_names(name)[n]: t.duration_ps for n, t in step.transfers.items()} == dict(truth.durations)


def assert_all_steps_count(device: MeasuredDevice) -> None:
    assert device.set_aside == ("",) * len(device.set_aside)


def in_graphs(run: Run, chosen: Callable[[Event], bool]) -> list[Event]:
    """Return events of which the chosen ones run as nodes of a CUDA graph.

    The graph was made before the profile, so the events name its launch.
    """
    return [replace(e, op="command_buffer_3", graph=(5, n % 40)) if chosen(e) else e for n, e in enumerate(run.events)]
