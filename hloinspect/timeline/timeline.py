"""Where prediction and measurement meet: the timeline of one device, and the overlap that follows from it.

A simulated schedule and a profiler's trace both become a Timeline, so exposed time, waits and verdicts are computed
once, here.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import Final, Literal

from hloinspect.kinds import Basis
from hloinspect.timeline.intervals import Span, covered_length, intersect, length, subtract, union

IntervalKind = Literal["compute", "collective", "d2h", "h2d", "wait"]
Role = Literal["start", "done"]
Stream = Literal["main", "side", "communication", "d2h", "h2d"]

COMPUTE: Final = "compute"
COLLECTIVE: Final = "collective"
D2H: Final = "d2h"
H2D: Final = "h2d"
WAIT: Final = "wait"
START: Final = "start"
DONE: Final = "done"


@dataclass(frozen=True, slots=True)
class Interval:
    """A stretch of one stream. ``transfer`` is the transfer that moves, or for a wait the one it is charged to; else 0.

    ``stream`` is main, side, communication, d2h or h2d. ``resumed``: it is the rest of one that a segment's end cut.
    """

    start_ps: int
    end_ps: int
    kind: IntervalKind
    stream: Stream
    transfer: int = 0
    name: str = ""
    resumed: bool = False


@dataclass(frozen=True, slots=True)
class Mark:
    """Where the main stream comes to an end of a transfer: its start, or its done, from when it is come to until when
    the main stream goes on. ``role`` is start or done. They take no part in overlap."""

    start_ps: int
    end_ps: int
    transfer: int
    role: Role


@dataclass(frozen=True, slots=True)
class Segment:
    """A stretch of the step that happens ``repeat`` times; intervals that cross an end are cut there.

    Cutting keeps sums right: in a loop's steady turn the tail of the turn before stands at the beginning. ``marks`` are
    those of predicted timelines, in order.
    """

    repeat: int
    start_ps: int
    end_ps: int
    intervals: tuple[Interval, ...]
    marks: tuple[Mark, ...] = ()


@dataclass(frozen=True, slots=True)
class Fold:
    """Turns of a loop: the segments from ``first`` up to ``end`` happen one after the other, ``turns`` times over.

    ``before`` turns of the ``of`` that the loop makes have gone before, in folds of their own. ``name`` is the loop's
    body.
    """

    first: int
    end: int
    iterations: int
    before: int
    of: int
    name: str


@dataclass(frozen=True, slots=True)
class Timeline:
    """The segments of one step on one device; ``kind`` is "predicted" or "measured".

    ``folds`` lie in each other like the loops, the inner ones first; a segment's ``repeat`` is the product of the turns
    of those around it.
    """

    device: str
    kind: Basis
    segments: tuple[Segment, ...]
    folds: tuple[Fold, ...] = ()


@dataclass(frozen=True, slots=True)
class StepTimes:
    """Picoseconds of one step. Exposed times are unions: concurrent transfers count once."""

    time_ps: int
    compute_ps: int
    collective_exposed_ps: int
    exposed_d2h_ps: int
    exposed_h2d_ps: int
    exposed_ps: int
    stall_ps: int
    busy_d2h_ps: int
    busy_h2d_ps: int


@dataclass(slots=True)
class TransferTimes:
    """Picoseconds a step that one transfer runs, is covered by compute or a collective, and makes the device wait."""

    duration_ps: int = 0
    cover_ps: int = 0
    wait_ps: int = 0

    @property
    def exposed_ps(self) -> int:
        return self.duration_ps - self.cover_ps


@dataclass(frozen=True, slots=True)
class Overlap:
    """What a timeline says: the step and each transfer by its id."""

    step: StepTimes
    transfers: dict[int, TransferTimes] = field(default_factory=dict)


def overlap(timeline: Timeline) -> Overlap:
    """The overlap of transfers with compute and collectives in one step."""
    totals: dict[str, int] = defaultdict(int)
    transfers: dict[int, TransferTimes] = defaultdict(TransferTimes)
    for segment in timeline.segments:
        _add_segment(segment, totals, transfers)
    step = StepTimes(
        time_ps=totals["time"],
        compute_ps=totals[COMPUTE],
        collective_exposed_ps=totals[COLLECTIVE],
        exposed_d2h_ps=totals["exposed_d2h"],
        exposed_h2d_ps=totals["exposed_h2d"],
        exposed_ps=totals["exposed"],
        stall_ps=totals[WAIT],
        busy_d2h_ps=totals[D2H],
        busy_h2d_ps=totals[H2D],
    )
    return Overlap(step, dict(transfers))


def _add_segment(segment: Segment, totals: dict[str, int], transfers: dict[int, TransferTimes]) -> None:
    spans: dict[str, list[Span]] = defaultdict(list)
    for interval in segment.intervals:
        spans[interval.kind].append((interval.start_ps, interval.end_ps))
    compute, collective = union(spans[COMPUTE]), union(spans[COLLECTIVE])
    d2h, h2d = union(spans[D2H]), union(spans[H2D])
    busy = union(compute + collective)
    exposed_d2h, exposed_h2d = subtract(d2h, busy), subtract(h2d, busy)
    times = segment.repeat
    totals["time"] += times * (segment.end_ps - segment.start_ps)
    totals[COMPUTE] += times * length(compute)
    totals[COLLECTIVE] += times * length(subtract(collective, compute))
    totals[D2H] += times * length(d2h)
    totals[H2D] += times * length(h2d)
    totals["exposed_d2h"] += times * length(exposed_d2h)
    totals["exposed_h2d"] += times * length(exposed_h2d)
    totals["exposed"] += times * (
        length(exposed_d2h) + length(exposed_h2d) - length(intersect(exposed_d2h, exposed_h2d))
    )
    totals[WAIT] += times * length(union(spans[WAIT]))
    for interval in segment.intervals:
        if not interval.transfer:
            continue
        entry = transfers[interval.transfer]
        duration = interval.end_ps - interval.start_ps
        if interval.kind == WAIT:
            entry.wait_ps += times * duration
        else:
            entry.duration_ps += times * duration
            entry.cover_ps += times * covered_length(interval.start_ps, interval.end_ps, busy)
