"""Overlap of a timeline against a count of every picosecond, and what the numbers mean on small timelines."""

from __future__ import annotations

from collections import Counter
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from hloinspect.kinds import D2H, EXPOSED, H2D, HIDDEN, PARTIAL, verdict_of
from hloinspect.timeline.timeline import COLLECTIVE, COMPUTE, WAIT, Interval, Segment, Timeline, overlap

END = 24


def timeline(*segments: Segment) -> Timeline:
    return Timeline("device", "predicted", segments)


def span(start: int, end: int, kind: str, number: int = 0) -> Interval:
    stream = {COMPUTE: "main", COLLECTIVE: "communication", WAIT: "main"}.get(kind, kind)
    return Interval(start, end, kind, stream, number)


@st.composite
def segments(draw: Any) -> Segment:
    intervals = []
    for _ in range(draw(st.integers(0, 8))):
        kind = draw(st.sampled_from([COMPUTE, COLLECTIVE, D2H, H2D]))
        start, end = sorted((draw(st.integers(0, END)), draw(st.integers(0, END))))
        intervals.append(span(start, end, kind, draw(st.integers(1, 3)) if kind in (D2H, H2D) else 0))
    for _ in range(draw(st.integers(0, 2))):  # a device waits for one thing at a time
        start = intervals[-1].end_ps if intervals and intervals[-1].kind == WAIT else draw(st.integers(0, END))
        intervals.append(span(start, draw(st.integers(start, END)), WAIT, draw(st.integers(1, 3))))
    return Segment(draw(st.integers(1, 4)), 0, END, tuple(intervals))


def count(what: Timeline) -> Counter[str]:
    """Return what runs in every picosecond of every segment, with counts."""
    total: Counter[str] = Counter()
    for segment in what.segments:
        for moment in range(segment.start_ps, segment.end_ps):
            on = [i for i in segment.intervals if i.start_ps <= moment < i.end_ps]
            kinds = {interval.kind for interval in on}
            bare = not kinds & {COMPUTE, COLLECTIVE}
            now = {
                "time": True,
                "compute": COMPUTE in kinds,
                "collective": COLLECTIVE in kinds and COMPUTE not in kinds,
                "d2h": D2H in kinds,
                "h2d": H2D in kinds,
                "exposed d2h": bare and D2H in kinds,
                "exposed h2d": bare and H2D in kinds,
                "exposed": bare and bool(kinds & {D2H, H2D}),
                "stall": WAIT in kinds,
            }
            total.update({name: segment.repeat for name, holds in now.items() if holds})
            for interval in on:
                if interval.kind == WAIT:
                    total[f"wait {interval.transfer}"] += segment.repeat
                elif interval.transfer:
                    total[f"duration {interval.transfer}"] += segment.repeat
                    total[f"cover {interval.transfer}"] += segment.repeat * (not bare)
    return total


@given(st.lists(segments(), max_size=3))
def test_every_figure_of_an_overlap_is_a_count_of_picoseconds(parts: list[Segment]) -> None:
    what = timeline(*parts)
    found, exact = overlap(what), count(what)
    step = found.step
    assert step.time_ps == exact["time"]
    assert step.compute_ps == exact["compute"]
    assert step.collective_exposed_ps == exact["collective"]
    assert (step.busy_d2h_ps, step.busy_h2d_ps) == (exact["d2h"], exact["h2d"])
    assert (step.exposed_d2h_ps, step.exposed_h2d_ps) == (exact["exposed d2h"], exact["exposed h2d"])
    assert step.exposed_ps == exact["exposed"]
    assert step.stall_ps == exact["stall"]
    for number in (1, 2, 3):
        times = found.transfers.get(number)
        assert (times.duration_ps if times else 0) == exact[f"duration {number}"]
        assert (times.cover_ps if times else 0) == exact[f"cover {number}"]
        assert (times.wait_ps if times else 0) == exact[f"wait {number}"]


def test_two_transfers_at_once_are_exposed_once() -> None:
    # 0..10 D2H and 4..12 H2D with nothing beside them: 10 and 8 each, 12 together.
    step = overlap(timeline(Segment(1, 0, 12, (span(0, 10, D2H, 1), span(4, 12, H2D, 2))))).step
    assert (step.exposed_d2h_ps, step.exposed_h2d_ps, step.exposed_ps) == (10, 8, 12)


def test_a_collective_covers_a_transfer_as_compute_does() -> None:
    # Transfer 0..10; compute 0..3, collective 2..6: covered 0..6.
    parts = (span(0, 10, D2H, 1), span(0, 3, COMPUTE), span(2, 6, COLLECTIVE))
    found = overlap(timeline(Segment(1, 0, 10, parts)))
    assert found.transfers[1].cover_ps == 6
    assert found.transfers[1].exposed_ps == 4
    assert found.step.collective_exposed_ps == 3  # 3..6


def test_a_folded_segment_counts_as_often_as_it_repeats() -> None:
    parts = (span(0, 4, COMPUTE), span(0, 6, H2D, 1), span(4, 6, WAIT, 1))
    found = overlap(timeline(Segment(5, 0, 6, parts)))
    assert (found.step.time_ps, found.step.stall_ps) == (30, 10)
    assert (found.transfers[1].duration_ps, found.transfers[1].wait_ps) == (30, 10)


def test_a_timeline_of_nothing_is_all_zeros() -> None:
    assert overlap(timeline()).step.time_ps == 0


def test_a_verdict_changes_exactly_at_its_thresholds() -> None:
    assert verdict_of(1000, 950) == HIDDEN
    assert verdict_of(1000, 949) == PARTIAL
    assert verdict_of(1000, 100) == PARTIAL
    assert verdict_of(1000, 99) == EXPOSED
    assert verdict_of(0, 0) == HIDDEN
