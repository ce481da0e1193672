"""Device and host memory along a timeline: which buffers live when each instruction runs.

The live ranges are those of the schedule (memory/liveness.py); a timeline's intervals have the names of instructions,
and so say when each place of the schedule is reached. Between two of them time goes with the number of instructions.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from hloinspect.hlo.shape import HOST_MEMORY_SPACE
from hloinspect.memory.assign import SpaceUse
from hloinspect.memory.estimate import Memory, device_spaces
from hloinspect.memory.live import Liveness
from hloinspect.timeline.timeline import COLLECTIVE, COMPUTE, Segment, Timeline

MAX_POINTS = 4000
"""Points of one curve. Where a segment has more, the greatest of each part of it is kept."""


@dataclass(frozen=True, slots=True)
class SegmentCurve:
    """Steps of the two curves in one segment: from each time (picoseconds from the segment's start) on so many bytes
    are needed."""

    times_ps: tuple[int, ...]
    device_bytes: tuple[int, ...]
    host_bytes: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class MemoryCurve:
    """Bytes that are needed over a timeline, a curve for each of its segments, and the most of each."""

    segments: tuple[SegmentCurve, ...]
    device_peak_bytes: int
    host_peak_bytes: int


def memory_curve(memory: Memory, timeline: Timeline) -> MemoryCurve | None:
    """Return the memory along a timeline; None where no interval has the name of an instruction of the schedule."""
    live = memory.live
    device = _held(live, device_spaces(live), memory.device)
    host = _held(live, (HOST_MEMORY_SPACE,), memory.host)
    places: dict[str, int] = {}
    for time, (computation, index) in enumerate(live.order):
        places.setdefault(live.module.computations[computation].instruction(index).name, time)
    segments = timeline.segments
    marks = [_marks(segment, places) for segment in segments]
    if not any(marks):
        return None
    total = sum(segment.end_ps - segment.start_ps for segment in segments) or 1
    curves, before = [], 0
    for segment, own in zip(segments, marks, strict=True):
        share = max(20, round(MAX_POINTS * (segment.end_ps - segment.start_ps) / total))
        points = list(_points(own, live, before))
        before = points[-1][1]
        curves.append(_curve(points, segment.end_ps - segment.start_ps, device, host, share))
    return MemoryCurve(tuple(curves), max(device, default=0), max(host, default=0))


def _held(live: Liveness, spaces: Iterable[int], use: SpaceUse) -> list[int]:
    """Return the bytes that are needed at each time of the flat schedule: arguments, results and temporaries."""
    chosen = set(spaces)
    standing = sum(
        buffer.bytes
        for buffer in live.buffers
        if buffer.memory_space in chosen and (buffer.parameter >= 0 or buffer.is_result)
    )
    changes = [0] * (len(live.order) + 2)
    for buffer in use.temporaries:
        for first, last in buffer.spans:
            changes[min(first, len(live.order))] += buffer.bytes
            changes[min(last, len(live.order)) + 1] -= buffer.bytes
    found, held = [], standing
    for change in changes[: len(live.order)]:
        held += change
        found.append(held)
    return found


def _marks(segment: Segment, places: dict[str, int]) -> list[tuple[int, int, int]]:
    """Return when the main stream is where: (start, end, place in the schedule), times from the segment's start."""
    found = [
        (i.start_ps - segment.start_ps, i.end_ps - segment.start_ps, places[i.name])
        for i in segment.intervals
        if i.stream == "main" and i.kind in (COMPUTE, COLLECTIVE) and i.name in places
    ]
    return sorted(found)


def _points(marks: Sequence[tuple[int, int, int]], live: Liveness, before: int) -> Iterable[tuple[int, int]]:
    """Yield times from the segment's start, each with the place of the schedule that is reached then."""
    yield 0, marks[0][2] if marks else before
    for number, (start, end, place) in enumerate(marks):
        last = place + 1
        own = live.order[place][0]
        if number + 1 < len(marks):
            last = max(last, marks[number + 1][2])
        else:
            while last < len(live.order) and live.order[last][0] == own:
                last += 1
        for reached in range(place, last):
            yield start + (end - start) * (reached - place) // (last - place), reached


def _curve(
    points: Sequence[tuple[int, int]], length: int, device: Sequence[int], host: Sequence[int], most: int
) -> SegmentCurve:
    """Return the curve through these points; of many, the greatest of each of ``most`` equal parts of the segment."""
    steps: list[list[int]] = []
    part = -1
    for time, place in points:
        here = time if len(points) <= most else min(most - 1, time * most // max(1, length))
        if here == part:
            steps[-1][1] = max(steps[-1][1], device[place])
            steps[-1][2] = max(steps[-1][2], host[place])
        else:
            part = here
            steps.append([time, device[place], host[place]])
    kept = [step for number, step in enumerate(steps) if not number or step[1:] != steps[number - 1][1:]]
    return SegmentCurve(
        tuple(step[0] for step in kept), tuple(step[1] for step in kept), tuple(step[2] for step in kept)
    )
