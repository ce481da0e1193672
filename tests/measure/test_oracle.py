"""Random timelines of real modules: what `hloinspect trace` measures is what a brute-force oracle sees.

The runtime is played with random speeds. For the property, the events are then moved at random, also to where no device
would put them.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hloinspect.measure.file import measure_file
from hloinspect.measure.measured import MeasuredDevice
from hloinspect.offload.transfers import find_offload
from tests.support.cuda_runtime import Form, Run, Speeds, compiled
from tests.support.cuda_traces import MAIN, US, Device, Event, Trace, write_trace
from tests.support.thorough import examples
from tests.support.tpu_traces import random_tpu_run
from tests.support.trace_oracle import FIGURES, TRANSFER_FIGURES, OracleStep, measure

MODULES = {
    "optimizer": 12,  # two transfers, collectives and slices on side streams, in two loops, on four devices
    "callback": 3,  # a transfer across a callback
    "jax0.12.0.1/gb200_host_stack_donated": 3,  # a kernel that writes to the host, and little else
    "jax0.12.0.1/h100_offload_by_xla": 3,  # twelve transfers among few operations
    "jax0.12.0.1/gb200_offload_scan": 1,  # transfers and slices in two loops
    "jax0.12.0.1/gb200_optimizer": 1,  # twenty transfers, at the beginning and at the end
}
"""The modules that are played, and how often each."""
BETWEEN_PS = 600 * US
MOST_TRIES = 20


@cache
def start_names(name: str) -> dict[int, str]:
    """Return the start instruction of each transfer of a module by its id."""
    return {transfer.id: transfer.start for transfer in find_offload(compiled(name).module).transfers}


def random_run(name: str, rng: random.Random, steps: int) -> Run:
    """Return the module run with speeds that change from one instruction to the next, and a host that is late at
    times."""

    def some(most_us: int) -> int:
        return rng.randrange(1, most_us * 1000) * 1000

    lateness = rng.choice((0.0, 0.0, 0.1, 0.4))
    speeds = Speeds(
        kernel=lambda op: some(40),
        transfer=lambda op: some(rng.choice((20, 300, 1500))),
        slice=some(10),
        collective=some(80),
        launch=rng.choice((1, 2, 20)) * US,
        between_steps=BETWEEN_PS,
        late=lambda op, step: some(150) if rng.random() < lateness else 0,
    )
    form = Form(name=rng.choice(("", "MemcpyD2D", "MemcpyD2H")), hero=rng.random() < 0.7)
    run = Run(compiled(name).module, compiled(name).directions, speeds=speeds, form=form)
    run.steps(steps)
    return run


def disturbed(events: Sequence[Event], rng: random.Random) -> list[Event]:
    """Return events in which copies and collectives are earlier or later, longer or shorter, and launches return
    otherwise.

    A stream still does one thing after the other, and nothing moves out of its run: a trace does not show of which run
    it then is. Transfers of one direction may get separate streams (XLA of JAX 0.10 spreads them over several) and then
    overlap.
    """
    for _ in range(MOST_TRIES):
        found = _moved(events, rng)
        if not _behind(found) - _behind(events):
            return found
    return list(events)


def _behind(events: Sequence[Event]) -> set[int]:
    """Return the places of the events that begin after the last operation of their run."""
    last = {event.run: event.end_ps for event in events if event.stream == MAIN and event.op}
    return {place for place, event in enumerate(events) if event.start_ps >= last[event.run]}


def _moved(events: Sequence[Event], rng: random.Random) -> list[Event]:
    reached: dict[int, int] = {}
    found: dict[int, Event] = {}
    first = {event.run: event.start_ps for event in reversed(events) if event.stream == MAIN and event.op}
    streams = rng.choice((1, 3))
    for place, event in sorted(enumerate(events), key=lambda one: one[1].start_ps):
        start, end, launched = event.start_ps, event.end_ps, event.launched_ps
        stream = event.stream + (10 * rng.randrange(streams) if event.transfer else 0)
        if stream != MAIN and rng.random() < 0.5:
            start = max(start + rng.randrange(-100, 100) * US // 2, first[event.run])
            end = start + max(1000, event.duration_ps + rng.randrange(-40, 40) * US)
        start = max(start, reached.get(stream, 0))
        end = max(end, start + 1000)
        if rng.random() < 0.3 and launched is not None:
            launched = max(2 * US, launched + rng.randrange(-300, 300) * US)
        reached[stream] = end
        found[place] = replace(event, stream=stream, start_ps=start, end_ps=end, launched_ps=launched)
    return [found[place] for place in range(len(events))]


def measured(name: str, events: Sequence[Event], path: Path, *, host: bool = True) -> MeasuredDevice:
    """Return what the file says after a trace of these events was written to it."""
    write_trace(Trace((Device(0, tuple(events)),), (compiled(name).program,), host=host), path)
    (device,) = measure_file(path).devices
    return device


def assert_agrees(device: MeasuredDevice, expected: Sequence[OracleStep], name: str) -> None:
    """Compare every figure of every step and transfer, and the identity."""
    steps = list(device.steps)
    assert len(steps) == len(expected)
    for index, (step, own) in enumerate(zip(steps, expected, strict=True)):
        assert {figure: getattr(step, figure) for figure in FIGURES} == {f: getattr(own, f) for f in FIGURES}
        assert step.compute_ps + step.collective_exposed_ps + step.exposed_ps + step.idle_ps == step.time_ps
        transfers = {
            start_names(name)[number]: {figure: int(found[figure][index]) for figure in TRANSFER_FIGURES}
            for number, found in device.transfers.items()
        }
        assert transfers == {n: {f: getattr(o, f) for f in TRANSFER_FIGURES} for n, o in own.transfers.items()}


def some_module(rng: random.Random) -> str:
    return rng.choices(list(MODULES), list(MODULES.values()))[0]


@given(st.integers(0, 2**32))
@settings(max_examples=examples(25, 1000))
def test_the_oracle_finds_in_the_events_what_the_runtime_waited_for(seed: int) -> None:
    rng = random.Random(seed)
    run = random_run(some_module(rng), rng, 2)
    for truth, step in zip(run.truth, measure(run.events, run.awaited_at_end), strict=True):
        assert (step.start_ps, step.end_ps) == (truth.start_ps, truth.end_ps)
        assert {name: own.wait_ps for name, own in step.transfers.items() if own.wait_ps} == dict(truth.waits)
        assert {name: own.duration_ps for name, own in step.transfers.items()} == dict(truth.durations)


@given(st.integers(0, 2**32), st.booleans())
@settings(max_examples=examples(40, 1600))
def test_what_is_measured_is_what_the_oracle_sees(
    tmp_path_factory: pytest.TempPathFactory, seed: int, host: bool
) -> None:
    rng = random.Random(seed)
    name = some_module(rng)
    run = random_run(name, rng, rng.choice((1, 3, 4)))
    events = run.events if rng.random() < 0.4 else disturbed(run.events, rng)
    device = measured(name, events, tmp_path_factory.mktemp("trace") / "host.xplane.pb", host=host)
    assert_agrees(device, measure(events, run.awaited_at_end, launches_known=host), name)


TPU = "jax0.12.0.1/v6e_offload_scan"
WAITED = ("stall_ps", "stall_d2h_ps", "stall_h2d_ps")


@given(st.integers(0, 2**32))
@settings(max_examples=examples(10, 500))
def test_what_is_measured_on_a_tpu_is_what_the_oracle_sees(tmp_path_factory: pytest.TempPathFactory, seed: int) -> None:
    """Give the oracle the windows of transfers as events; waits are the durations of the dones."""
    run = random_tpu_run(compiled(TPU), random.Random(seed), 2)
    path = tmp_path_factory.mktemp("trace") / "host.xplane.pb"
    path.write_bytes(run.bytes())
    (device,) = measure_file(path).devices
    steps = list(device.steps)
    for step, own, waits in zip(steps, measure(run.events, [()] * len(steps)), run.waits, strict=True):
        figures = [name for name in FIGURES if name not in WAITED]
        assert {name: getattr(step, name) for name in figures} == {name: getattr(own, name) for name in figures}
        assert step.stall_ps == step.stall_d2h_ps + step.stall_h2d_ps == sum(waits.values())
        found = {start_names(TPU)[number]: transfer for number, transfer in step.transfers.items()}
        assert {name: transfer.wait_ps for name, transfer in found.items()} == dict(waits)
        assert {name: (t.events, t.duration_ps, t.cover_ps) for name, t in found.items()} == {
            name: (t.events, t.duration_ps, t.cover_ps) for name, t in own.transfers.items()
        }
