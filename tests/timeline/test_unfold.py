"""Timelines written out iteration by iteration, against loops written by hand and the sums of the folded timeline."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hloinspect.kinds import D2H, H2D
from hloinspect.predict.schedule import Loop, Operation, Schedule
from hloinspect.predict.simulate import simulate
from hloinspect.timeline.intervals import length, subtract, union
from hloinspect.timeline.timeline import (
    COLLECTIVE,
    COMPUTE,
    DONE,
    START,
    WAIT,
    Fold,
    Interval,
    Segment,
    Timeline,
    overlap,
)
from hloinspect.timeline.unfold import Layout, Window, unfold
from tests.predict.test_against_brute_force import machines, schedules
from tests.support import brute_force as bf
from tests.support.thorough import examples

STREAMS = {COMPUTE: "main", WAIT: "main", COLLECTIVE: "communication", D2H: D2H, H2D: H2D}


@dataclass(frozen=True)
class Iterations:
    """A loop of a synthetic step. Its iterations hold segments (lists of intervals from 0 to a length) and loops."""

    iterations: int
    inside: tuple[Any, ...]


Bit = tuple[int, tuple[tuple[int, int, str, int], ...]]


@st.composite
def bits(draw: Any) -> Bit:
    length = draw(st.integers(1, 6))
    found = []
    for _ in range(draw(st.integers(0, 3))):
        start = draw(st.integers(0, length - 1))
        kind = draw(st.sampled_from([COMPUTE, COLLECTIVE, D2H, H2D, WAIT]))
        number = 0 if kind in (COMPUTE, COLLECTIVE) else draw(st.integers(1, 2))
        found.append((start, draw(st.integers(start + 1, length)), kind, number))
    return length, tuple(found)


programs = st.lists(
    st.recursive(
        bits(),
        lambda inner: st.builds(Iterations, st.integers(1, 4), st.lists(inner, min_size=1, max_size=3).map(tuple)),
    ),
    max_size=4,
)


def folded(program: list[Any]) -> Timeline:
    """Return a program as the simulator records it: an iteration once, where it runs first."""
    segments: list[Segment] = []
    folds: list[Fold] = []

    def put(part: Any, begin: int, times: int) -> int:
        if isinstance(part, Iterations):
            first, now = len(segments), begin
            for inner in part.inside:
                now = put(inner, now, times * part.iterations)
            folds.append(Fold(first, len(segments), part.iterations, 0, part.iterations, "body"))
            return begin + part.iterations * (now - begin)
        length, found = part
        intervals = tuple(Interval(begin + a, begin + b, kind, STREAMS[kind], n) for a, b, kind, n in found)
        segments.append(Segment(times, begin, begin + length, intervals))
        return begin + int(length)

    now = 0
    for part in program:
        now = put(part, now, 1)
    return Timeline("device", "predicted", tuple(segments), tuple(folds))


def written_out(program: list[Any]) -> Counter[tuple[int, str, int]]:
    """Return what runs in every picosecond, from running the program iteration by iteration."""
    found: Counter[tuple[int, str, int]] = Counter()

    def run(part: Any, begin: int) -> int:
        if isinstance(part, Iterations):
            for _ in range(part.iterations):
                for inner in part.inside:
                    begin = run(inner, begin)
            return begin
        for a, b, kind, number in part[1]:
            found.update((begin + moment, kind, number) for moment in range(a, b))
        return begin + int(part[0])

    now = 0
    for part in program:
        now = run(part, now)
    return found


@settings(max_examples=examples(50, 2000))
@given(programs)
def test_iterations_follow_each_other_as_if_loops_were_written_out(program: list[Any]) -> None:
    found: Counter[tuple[int, str, int]] = Counter()
    starts = []
    for one in unfold(folded(program)):
        starts.append(one.start_ps)
        assert one.times == 1
        found.update((moment, one.kind, one.transfer) for moment in range(one.start_ps, one.end_ps))
    assert found == written_out(program)
    assert starts == sorted(starts)


@settings(max_examples=examples(50, 2000))
@given(programs, st.integers(0, 60))
def test_what_stays_folded_counts_as_often_as_it_happens(program: list[Any], limit: int) -> None:
    timeline = folded(program)
    layout = Layout(timeline, limit)
    windows, iterations = list(layout.windows()), list(layout.iterations())
    assert layout.end_ps - layout.start_ps == overlap(timeline).step.time_ps
    spent: Counter[tuple[str, int]] = Counter()
    for one in windows:
        spent[one.kind, one.transfer] += one.times * (one.end_ps - one.start_ps)
    wanted: Counter[tuple[str, int]] = Counter()
    for segment in timeline.segments:
        for interval in segment.intervals:
            wanted[interval.kind, interval.transfer] += segment.repeat * (interval.end_ps - interval.start_ps)
    assert spent == wanted
    as_is = sum(len(segment.intervals) for segment in timeline.segments) + len(timeline.folds)
    assert len(windows) + len(iterations) <= max(limit, as_is)
    assert layout.is_folded == any(iteration.last > iteration.first for iteration in iterations)
    assert all(iteration.start_ps < iteration.shown_ps <= iteration.end_ps <= layout.end_ps for iteration in iterations)


def test_segments_of_one_loop_alternate() -> None:
    parts = (Segment(3, 0, 2, (span(0, 2, COMPUTE),)), Segment(3, 2, 5, (span(2, 5, D2H, 1),)))
    timeline = Timeline("device", "predicted", parts, (Fold(0, 2, 3, 0, 3, "body"),))
    assert [(one.kind, one.start_ps, one.iterations) for one in unfold(timeline)] == [
        *((COMPUTE, 0, (1,)), (D2H, 2, (1,))),
        *((COMPUTE, 5, (2,)), (D2H, 7, (2,))),
        *((COMPUTE, 10, (3,)), (D2H, 12, (3,))),
    ]


def span(start: int, end: int, kind: str, number: int = 0, *, resumed: bool = False) -> Interval:
    return Interval(start, end, kind, STREAMS[kind], number, "", resumed)


def test_what_an_iterations_end_cuts_is_joined_and_not_with_that_of_the_next_iteration() -> None:
    iteration = (span(0, 3, D2H, 1, resumed=True), span(5, 10, D2H, 1), span(8, 10, COMPUTE))
    parts = (Segment(1, -4, 0, (span(-4, 0, D2H, 1),)), Segment(3, 0, 10, iteration), Segment(1, 10, 12, ()))
    found = list(unfold(Timeline("device", "predicted", parts)))
    assert [(one.start_ps, one.end_ps) for one in found if one.kind == D2H] == [(-4, 3), (5, 13), (15, 23), (25, 30)]
    assert [one.start_ps for one in found if one.kind == COMPUTE] == [8, 18, 28]  # alike, but not resumed: two


def test_a_folded_loop_shows_one_iteration_and_the_end_of_the_others() -> None:
    parts = (
        Segment(50, 0, 10, (span(0, 4, COMPUTE), span(4, 9, H2D, 1))),
        Segment(1, 10, 12, (span(10, 12, COMPUTE),)),
    )
    layout = Layout(Timeline("device", "predicted", parts, (Fold(0, 1, 50, 2, 52, "body"),)), limit=10)
    (iteration,) = layout.iterations()
    assert (
        iteration.start_ps,
        iteration.shown_ps,
        iteration.end_ps,
        iteration.first,
        iteration.last,
        iteration.of,
    ) == (0, 10, 500, 3, 52, 52)
    assert [(one.start_ps, one.times, one.iterations) for one in layout.windows()] == [
        (0, 50, (3,)),
        (4, 50, (3,)),
        (500, 1, ()),
    ]


def test_the_loop_that_saves_the_most_is_folded_first() -> None:
    parts = (Segment(100, 0, 1, (span(0, 1, COMPUTE),)), Segment(5, 1, 2, (span(1, 2, COMPUTE),)))
    found = list(unfold(Timeline("device", "predicted", parts), limit=20))
    assert Counter(one.times for one in found) == {100: 1, 1: 5}


def test_folds_that_contradict_the_segments_are_refused() -> None:
    parts = (Segment(3, 0, 1, ()), Segment(1, 1, 2, ()))
    for folds in ((Fold(0, 2, 3, 0, 3, ""),), (Fold(0, 3, 1, 0, 1, ""),), (Fold(1, 1, 1, 0, 1, ""),)):
        with pytest.raises(ValueError, match=r"segment|loop"):
            unfold(Timeline("device", "predicted", parts, folds))


def laid_out(*operations: Operation, **bodies: list[Operation]) -> list[Window]:
    """Return a step on a target where a megabyte takes a millisecond, written out."""
    machine = bf.Machine()
    simulation = simulate(bf.schedule(list(operations), **bodies), machine.target(), machine.scenario())
    return list(unfold(simulation.timeline))


def test_each_copy_of_a_simulated_loop_is_one_interval_even_beyond_its_iteration() -> None:
    # An iteration waits for the copy of the one before. Copies follow each other without a gap, and each is cut by an
    # end.
    body: list[Operation] = [bf.done(1), bf.start(1, D2H, 3 * 10**6), bf.work(2 * bf.MS)]
    copies = [one for one in laid_out(Loop("body", None, 7), body=body) if one.kind == D2H]
    assert [(one.start_ps // bf.MS, one.end_ps // bf.MS) for one in copies] == [(3 * n, 3 * n + 3) for n in range(7)]
    assert [one.iterations for one in copies] == [(iteration,) for iteration in range(1, 8)]


def test_simulated_loops_in_loops_number_their_iterations_from_the_outermost_on() -> None:
    inner: list[Operation] = [bf.start(1, H2D, 3 * 10**6), bf.work(2 * bf.MS), bf.done(1)]
    outer: list[Operation] = [Loop("inner", None, 3), bf.work(bf.MS)]
    found = laid_out(Loop("outer", None, 4), outer=outer, inner=inner)
    copies = [one for one in found if one.kind == H2D]
    assert [one.iterations for one in copies] == [
        (iteration, part) for iteration in range(1, 5) for part in range(1, 4)
    ]
    assert [one.start_ps // bf.MS for one in copies] == [
        10 * iteration + 3 * part for iteration in range(4) for part in range(3)
    ]


def test_a_collective_that_is_longer_than_its_iteration_is_one_interval() -> None:
    body: list[Operation] = [bf.done_of("a"), bf.start_collective("a", 3 * bf.MS), bf.work(bf.MS)]
    found = laid_out(Loop("body", None, 5), body=body)
    runs = [(one.start_ps // bf.MS, one.end_ps // bf.MS) for one in found if one.kind == COLLECTIVE]
    assert runs == [(3 * iteration, 3 * iteration + 3) for iteration in range(5)]


def test_every_start_and_done_of_a_simulated_step_is_marked_where_the_main_stream_comes_to_it() -> None:
    body: list[Operation] = [bf.start(1, D2H, 3 * 10**6), bf.work(4 * bf.MS), bf.done(1)]
    operations = [bf.start(2, H2D, 10**6), bf.done(2), Loop("body", None, 3), bf.start(3, H2D, 10**6), bf.done(3)]
    machine = bf.Machine()
    simulation = simulate(bf.schedule(operations, body=body), machine.target(), machine.scenario())
    marks = [
        (mark.role, mark.transfer, mark.start_ps // bf.MS, mark.end_ps // bf.MS)
        for mark in Layout(simulation.timeline).marks()
    ]
    assert marks == [
        *((START, 2, 0, 0), (DONE, 2, 0, 1)),
        *((START, 1, 1, 1), (DONE, 1, 5, 5), (START, 1, 5, 5), (DONE, 1, 9, 9), (START, 1, 9, 9), (DONE, 1, 13, 13)),
        *((START, 3, 13, 13), (DONE, 3, 13, 14)),
    ]


def test_a_done_that_takes_no_time_between_two_loops_is_in_neither() -> None:
    iteration: list[Operation] = [bf.work(bf.MS)]
    operations = [bf.start(1, H2D, 10**6), Loop("a", None, 5), bf.done(1), Loop("b", None, 5), bf.start(2, D2H, 1)]
    machine = bf.Machine()
    simulation = simulate(bf.schedule(operations, a=iteration, b=iteration), machine.target(), machine.scenario())
    marks = [(mark.role, mark.transfer, mark.start_ps // bf.MS) for mark in Layout(simulation.timeline).marks()]
    assert marks == [(START, 1, 0), (DONE, 1, 5), (START, 2, 10)]


# ---- against the same schedule without loops


def unrolled(what: Schedule) -> Schedule:
    """Return a schedule with its loops written out."""

    def of(name: str) -> list[Operation]:
        found: list[Operation] = []
        for operation in what.operations[name]:
            if isinstance(operation, Loop):
                condition = of(operation.condition) if operation.condition is not None else []
                found += (condition + of(operation.body)) * operation.trips + condition
            else:
                found.append(operation)
        return found

    return replace(what, operations={name: tuple(of(name)) for name in what.operations})


def spans_of(windows: list[Window]) -> dict[tuple[str, str, int], list[tuple[int, int]]]:
    found: dict[tuple[str, str, int], list[tuple[int, int]]] = defaultdict(list)
    for one in windows:
        found[one.kind, one.stream, one.transfer].append((one.start_ps, one.end_ps))
    return found


@settings(max_examples=examples(25, 1000), suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(schedules(depth=2), machines.map(lambda machine: replace(machine, fair=False)))
def test_a_folded_simulation_laid_out_is_the_simulation_of_the_unrolled_schedule(
    what: Schedule, machine: bf.Machine
) -> None:
    timelines = [simulate(one, machine.target(), machine.scenario()).timeline for one in (what, unrolled(what))]
    assert not timelines[1].folds
    layouts = [Layout(timeline) for timeline in timelines]
    windows, wanted = (list(layout.windows()) for layout in layouts)
    whole = layouts[1].end_ps - layouts[1].start_ps
    # times of folded iterations are rounded, those of copies in an iteration are equal
    near = whole // 10**6 + 100 * (len(wanted) + 1)
    assert abs(layouts[0].end_ps - layouts[0].start_ps - whole) <= near
    found, expected = spans_of(windows), spans_of(wanted)
    for key in {*found, *expected}:
        mine, other = union(found[key]), union(expected[key])
        assert length(subtract(mine, other)) + length(subtract(other, mine)) <= near * (len(other) + 1)
        if key[0] in (D2H, H2D) and key[2]:  # copies are distinguished also where one follows the other
            mine, other = ([s for s in spans if s[1] - s[0] > 4 * near] for spans in (found[key], expected[key]))
            assert len(mine) == len(other)
    marks, others = (list(layout.marks()) for layout in layouts)
    assert [(mark.transfer, mark.role) for mark in marks] == [(mark.transfer, mark.role) for mark in others]
    assert all(abs(a.start_ps - b.start_ps) <= near for a, b in zip(marks, others, strict=True))
