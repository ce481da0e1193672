"""Times of instructions: what is measured is what a brute-force oracle counts, on random events and on played modules.

The events are synthetic. The modules that say how often an instruction runs are our own compiled ones.
"""

from __future__ import annotations

import pickle
import random
from collections import defaultdict
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hloinspect.measure import events
from hloinspect.measure.events import BY_HLO, Op
from hloinspect.measure.file import measure_file
from hloinspect.measure.instructions import MAX_SAMPLES, InstructionTimes, StepEvents, instruction_times, percentiles
from hloinspect.measure.join import ProgramJoin, join_of
from tests.measure.test_oracle import random_run
from tests.support.cuda_checks import one, play, trace_of
from tests.support.cuda_loops import play_loop
from tests.support.cuda_runtime import PROGRAM, Form, Speeds, compiled
from tests.support.cuda_traces import US, Device, Trace, in_hlo_proto, write_trace
from tests.support.instruction_oracle import Happened, instructions, percentile
from tests.support.thorough import examples

SCAN = "jax0.12.0.1/gb200_offload_scan"
ITERATIONS = 4


@cache
def joined(name: str = SCAN) -> ProgramJoin:
    return join_of(in_hlo_proto(compiled(name).proto), name)


@cache
def bodies() -> tuple[str, ...]:
    """Return instructions of the loops' bodies, which run four times a step."""
    program = joined().offload.program
    inside = [c for c in program.computations() if program.executions[c.name] == ITERATIONS]
    return tuple(i.name for c in inside for i in c if i.opcode == "fusion")[:4]


@cache
def entries() -> tuple[str, ...]:
    return tuple(i.name for i in joined().module.entry if i.opcode == "fusion")[:4]


def some_events(rng: random.Random) -> tuple[list[Happened], list[bool]]:
    """Return random events of instructions that run once a step, four times, or as often as it comes."""
    steps = rng.randrange(1, 5)
    clean = [rng.random() < 0.8 for _ in range(steps)]
    found = []
    kinds = {name: rng.choice((0, 1, 1, 2, 3)) for name in (*bodies(), *entries(), "gone.1")}
    for step in range(steps):
        for name, kernels in kinds.items():
            runs = ITERATIONS if name in bodies() else 1
            count = runs * kernels if kernels < 3 else rng.randrange(4)
            for _ in range(count * (40 if rng.random() < 0.03 else 1)):
                start = step * 10**9 + rng.randrange(10**8)
                found.append(Happened(start, start + rng.choice((0, 5, rng.randrange(10**6))), name, step))
        if rng.random() < 0.3:
            found.append(Happened(step * 10**9 + 5, step * 10**9 + 50, "", -1))
    return sorted(found, key=lambda one: one.start_ps), clean


def measured(found: list[Happened], clean: list[bool], collective: frozenset[str]) -> InstructionTimes | None:
    """Return what is measured of events that are given as columns."""
    names = sorted({event.instruction for event in found})
    ops = tuple(
        Op(
            events.IGNORED if not name else events.COLLECTIVE if name in collective else events.COMPUTE,
            *(BY_HLO, PROGRAM, 1, 0, 0, name),
        )
        for name in names
    )
    columns = StepEvents(
        np.array([event.start_ps for event in found], np.int64),
        np.array([event.end_ps for event in found], np.int64),
        np.array([names.index(event.instruction) for event in found], np.int32),
        np.array([event.step for event in found], np.int64),
        np.array(clean, np.bool_),
        ops,
    )
    return instruction_times(columns, lambda program: joined())


@given(st.integers(0, 2**32))
@settings(max_examples=examples(150, 4000), deadline=None)
def test_times_of_instructions_are_those_that_the_oracle_counts(seed: int) -> None:
    rng = random.Random(seed)
    found, clean = some_events(rng)
    runs = {**dict.fromkeys(bodies(), ITERATIONS), **dict.fromkeys(entries(), 1)}
    collective = frozenset(rng.sample([*bodies(), *entries()], 3))
    table, expected = measured(found, clean, collective), instructions(found, clean, runs)
    if table is None:
        assert not expected
        return
    assert (set(table.names), table.steps) == (set(expected), sum(clean))
    for place, name in enumerate(table.names):
        own = expected[name]
        assert (table.executions[place], table.events[place]) == (len(own.executions), own.events)
        assert table.total_ps[place] == own.total_ps
        kept = table.sample_ps[table.first[place] : table.first[place + 1]].tolist()
        count, most = len(own.executions), min(len(own.executions), MAX_SAMPLES)
        assert kept == [own.executions[(2 * at + 1) * count // (2 * most)] for at in range(most)]
        if name in collective and len({len(row) for row in own.rows}) == 1:
            assert table.matched[place].tolist() == own.rows
        else:
            assert place not in table.matched


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(1, 4), st.integers(0, 3)), max_size=40))
@settings(max_examples=examples(150, 4000), deadline=None)
def test_percentiles_are_those_of_the_values_written_out(rows: list[tuple[int, int, int]]) -> None:
    values, weights, groups = (np.array([row[i] for row in rows], np.int64) for i in range(3))
    shares = (0.1, 0.5, 0.9)
    found = percentiles(values, weights.astype(np.float64), groups, 4, shares)
    for group in range(4):
        own = [row for row in rows if row[2] == group]
        for share, column in zip(shares, found, strict=True):
            wanted = percentile([row[0] for row in own], [row[1] for row in own], share) if own else 0.0
            assert column[group] == pytest.approx(wanted)


def test_a_median_of_the_percentiles_is_the_usual_one() -> None:
    values = np.array([1, 2, 3, 10], np.int64)
    (found,) = percentiles(values, np.ones(4), np.zeros(4, np.int64), 1, (0.5,))
    assert found[0] == np.median(values)


def test_long_times_are_sorted_without_a_packed_key() -> None:
    found = [Happened(0, 1 << 50, entries()[0], 0), Happened(1, 5, entries()[0], 0)]
    table = measured(found, [True], frozenset())
    assert table is not None
    assert table.sample_ps.tolist() == [(1 << 50) + 4]  # two kernels of one execution
    separate = measured([*found, Happened(2, 8, "gone.1", 0), Happened(3, 4, "gone.1", 0)], [True], frozenset())
    assert separate is not None
    assert sorted(separate.sample_ps.tolist()) == [1, 6, (1 << 50) + 4]


@pytest.mark.parametrize("name", [SCAN, "optimizer", "jax0.12.0.1/gb200_optimizer"])
@pytest.mark.parametrize("hero", [True, False])
def test_a_played_module_has_the_times_that_were_played(name: str, hero: bool, tmp_path: Path) -> None:
    run = play(name, 3, speeds=Speeds(d2h=300 * US, h2d=400 * US), form=Form(hero=hero))
    device = one(measure_file(write_trace(trace_of(run, name), tmp_path / "host.xplane.pb")))
    table = device.instructions
    assert table is not None
    assert table.steps == int(device.clean.sum()) == 3
    spent: dict[str, int] = defaultdict(int)
    for event in run.events:
        if event.op and event.program:
            spent[joined(name).find(event.op).name] += event.duration_ps  # type: ignore[union-attr]
    assert dict(zip(table.names, table.total_ps.tolist(), strict=True)) == spent
    by_class: dict[str, int] = defaultdict(int)
    for kind, total in zip(table.classes, table.total_ps.tolist(), strict=True):
        by_class[kind] += total
    moved = {what: sum(e.duration_ps for e in run.events if e.what == what) for what in ("d2h", "h2d")}
    assert (by_class["d2h"], by_class["h2d"]) == (moved["d2h"], moved["h2d"])


def test_instructions_of_a_loop_run_in_each_iteration(tmp_path: Path) -> None:
    run = play(SCAN, 2)
    table = one(measure_file(write_trace(trace_of(run, SCAN), tmp_path / "host.xplane.pb"))).instructions
    assert table is not None
    for name, count in zip(table.names, table.executions.tolist(), strict=True):
        assert count == 2 * joined().executions_of(name)
    assert ITERATIONS * 2 in table.executions.tolist()


def test_a_table_stays_small_however_many_steps_there_are(tmp_path: Path) -> None:
    sizes = []
    for steps in (40, 80):
        run = play(SCAN, steps)
        table = one(measure_file(write_trace(trace_of(run, SCAN), tmp_path / "host.xplane.pb"))).instructions
        sizes.append(len(pickle.dumps(table)))
        assert table is not None
        assert len(table.sample_ps) <= MAX_SAMPLES * len(table.names)
    assert sizes[1] < 1.6 * sizes[0]


@given(st.integers(0, 2**32))
@settings(max_examples=examples(10, 300), deadline=None)
def test_files_of_random_runs_give_every_event_of_steps_that_count(
    tmp_path_factory: pytest.TempPathFactory, seed: int
) -> None:
    rng = random.Random(seed)
    run = random_run("optimizer", rng, 3)
    path = write_trace(
        Trace((Device(0, tuple(run.events)),), (compiled("optimizer").program,)),
        tmp_path_factory.mktemp("trace") / "host.xplane.pb",
    )
    device = one(measure_file(path))
    steps = [number for number, counts in enumerate(device.clean.tolist()) if counts]
    own = [event for event in run.events if event.op and event.program and event.run in steps]
    table = device.instructions
    assert table is not None
    assert int(table.events.sum()) == len(own)
    assert int(table.total_ps.sum()) == sum(event.duration_ps for event in own)


@pytest.mark.parametrize("annotated", [True, False])
def test_a_program_that_runs_several_times_in_a_step_has_an_execution_in_each_run(
    annotated: bool, tmp_path: Path
) -> None:
    """Play a step of two runs of one program and one of another: no execution is made of the events of two runs."""
    first, second = SCAN, "optimizer"
    loop = play_loop([[first, first, second]] * 4)
    file = measure_file(write_trace(loop.trace(annotated=annotated), tmp_path / "host.xplane.pb"))
    device = one(file)
    assert [(part.program, part.runs.tolist()) for part in device.programs] in (
        [(loop.program(first), [2] * 4), (loop.program(second), [1] * 4)],
        [(loop.program(second), [1] * 4), (loop.program(first), [2] * 4)],
    )
    table = device.instructions
    assert table is not None
    for program, name, executions in zip(table.programs, table.names, table.executions.tolist(), strict=True):
        module, runs = (first, 2) if program == loop.program(first) else (second, 1)
        if often := joined(module).executions_of(name):
            assert executions == table.steps * runs * often, name
