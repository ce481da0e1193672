"""The timeline of one device, and the overlap computed from it, for predictions and measurements.

A simulated schedule and a profiler's trace both become a Timeline, so exposed time, waits and verdicts are computed in
one place.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import Final, Literal

from hloinspect.kinds import D2H, H2D, Basis
from hloinspect.timeline.intervals import Span, covered_length, intersect, length, subtract, union

IntervalKind = Literal["compute", "collective", "d2h", "h2d", "wait"]
Role = Literal["start", "done"]
Stream = Literal["main", "side", "communication", "d2h", "h2d"]

COMPUTE: Final = "compute"
COLLECTIVE: Final = "collective"
WAIT: Final = "wait"
START: Final = "start"
DONE: Final = "done"

KINDS: tuple[IntervalKind, ...] = (COMPUTE, COLLECTIVE, D2H, H2D, WAIT)


@dataclass(frozen=True, slots=True)
class Interval:
    """A time interval of one stream.

    ``transfer`` is the transfer that runs, or the transfer that a wait is charged to, or 0. ``stream`` is main, side,
    communication, d2h or h2d. ``resumed`` marks the rest of an interval that the end of a segment has cut.
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
    """The time at which the main stream reaches the start or the `done` of a transfer.

    It lasts from when the main stream reaches it until the main stream continues. ``role`` is start or done. Marks are
    not part of the overlap.
    """

    start_ps: int
    end_ps: int
    transfer: int
    role: Role


@dataclass(frozen=True, slots=True)
class Segment:
    """A part of the step that runs ``repeat`` times. Intervals that cross its start or end are cut there.

    Cutting keeps sums right: a loop's steady iteration begins with the rest of the iteration before it. ``marks`` are
    in order, and exist only in predicted timelines.
    """

    repeat: int
    start_ps: int
    end_ps: int
    intervals: tuple[Interval, ...]
    marks: tuple[Mark, ...] = ()


@dataclass(frozen=True, slots=True)
class Fold:
    """Iterations of a loop: the segments from ``first`` up to ``end`` run one after the other, ``iterations`` times.

    The loop has ``of`` iterations. ``before`` of them precede these, in other folds. ``name`` is the loop's body.
    """

    first: int
    end: int
    iterations: int
    before: int
    of: int
    name: str


@dataclass(frozen=True, slots=True)
class Timeline:
    """The segments of one step on one device. ``kind`` is "predicted" or "measured".

    ``folds`` are nested as the loops are, the inner ones first. A segment's ``repeat`` is the product of the iterations
    of the folds around it.
    """

    device: str
    kind: Basis
    segments: tuple[Segment, ...]
    folds: tuple[Fold, ...] = ()


@dataclass(frozen=True, slots=True)
class StepTimes:
    """Times of one step in picoseconds. Exposed times are unions: concurrent transfers count once."""

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
    """Picoseconds per step that one transfer runs, is covered by compute or a collective, and makes the device wait."""

    duration_ps: int = 0
    cover_ps: int = 0
    wait_ps: int = 0

    @property
    def exposed_ps(self) -> int:
        """Return the time that neither compute nor a collective covers."""
        return self.duration_ps - self.cover_ps


@dataclass(frozen=True, slots=True)
class Overlap:
    """The times of a step, and those of each transfer by its id, from one timeline."""

    step: StepTimes
    transfers: dict[int, TransferTimes] = field(default_factory=dict)


def overlap(timeline: Timeline) -> Overlap:
    """Return the overlap of transfers with compute and collectives in one step."""
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
