"""Timelines as the page carries them: columns of small integers, one row of the picture a timeline.

Times are counted in a unit that leaves nine digits to the step, starts are differences to the one before, and names are
numbers of one table for the whole page. A step of 5,600 intervals takes 150 kB so.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from hloinspect.errors import printable
from hloinspect.kinds import D2H, H2D
from hloinspect.render.page.memory_curve import MemoryCurve, SegmentCurve
from hloinspect.timeline.timeline import (
    COLLECTIVE,
    COMPUTE,
    KINDS,
    WAIT,
    Interval,
    IntervalKind,
    Segment,
    Stream,
    Timeline,
)

MAX_INTERVALS = 20_000
"""Intervals of one timeline that are drawn one by one; of more, short neighbours are drawn as one."""

LANES = ("main", "wait", "side", "communication", D2H, H2D)
"""The rows of a band, from the top; waits have their own, below the stream that waits."""

MAX_TEXT = 2000
"""Characters of one text; no name that is meant to be read is longer."""

_DIGITS = 9


class Strings:
    """Texts by number, each kept once and made harmless."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}

    def number(self, text: str) -> int:
        """Return the number of a text. A very long one is cut."""
        shown = text if len(text) <= MAX_TEXT else f"{text[:MAX_TEXT]}\u2026"
        return self._numbers.setdefault(printable(shown), len(self._numbers))

    @property
    def table(self) -> list[str]:
        """Return the texts in the order of their numbers."""
        return list(self._numbers)


@dataclass(frozen=True, slots=True)
class Band:
    """One timeline of the picture, and the memory under it. ``label`` says whose it is."""

    label: str
    timeline: Timeline
    memory: MemoryCurve | None = None


def encode_band(band: Band, strings: Strings) -> dict[str, object]:
    """Return the band as plain lists (assets/decode.js reads them)."""
    timeline, drawn_together_ps = thinned(band.timeline, MAX_INTERVALS)
    unit = unit_ps(timeline)
    curves = band.memory.segments if band.memory is not None else ()
    found: dict[str, object] = {
        "label": strings.number(band.label),
        "device": strings.number(timeline.device),
        "kind": timeline.kind,
        "unit_ps": unit,
        "together_ps": drawn_together_ps,
        "folds": [[f.first, f.end, f.iterations, f.before, f.of, strings.number(f.name)] for f in timeline.folds],
        "segments": [_segment(segment, unit, strings) for segment in timeline.segments],
    }
    if band.memory is not None:
        scale = max(1, max(band.memory.device_peak_bytes, band.memory.host_peak_bytes) >> 20)
        found["memory"] = {
            "unit_bytes": scale,
            "device_peak_bytes": band.memory.device_peak_bytes,
            "host_peak_bytes": band.memory.host_peak_bytes,
            "segments": [_curve(curve, unit, scale) for curve in curves],
        }
    return found


def unit_ps(timeline: Timeline) -> int:
    """Return the picoseconds of the unit in which a timeline's times are written: a power of ten."""
    longest = max((segment.end_ps for segment in timeline.segments), default=0)
    return int(10 ** max(0, len(str(longest)) - _DIGITS))


def _segment(segment: Segment, unit: int, strings: Strings) -> dict[str, object]:
    intervals = sorted(segment.intervals, key=lambda i: (i.start_ps, i.end_ps, KINDS.index(i.kind), i.transfer))
    starts = [_units(i.start_ps - segment.start_ps, unit) for i in intervals]
    return {
        "repeat": segment.repeat,
        "start": _units(segment.start_ps, unit),
        "length": _units(segment.end_ps - segment.start_ps, unit),
        "starts": deltas(starts),
        "lengths": [_units(i.end_ps - segment.start_ps, unit) - s for i, s in zip(intervals, starts, strict=True)],
        "kinds": "".join(str(KINDS.index(i.kind)) for i in intervals),
        "lanes": "".join(str(lane_of(i)) for i in intervals),
        "transfers": [i.transfer for i in intervals],
        "names": deltas([strings.number(i.name) for i in intervals]),
    }


def lane_of(interval: Interval) -> int:
    """Return the row of an interval, as a place in ``LANES``."""
    return LANES.index("wait" if interval.kind == WAIT else interval.stream)


def _units(ps: int, unit: int) -> int:
    return (ps + unit // 2) // unit


def deltas(numbers: Iterable[int]) -> list[int]:
    """Return each number less the one before."""
    found, before = [], 0
    for number in numbers:
        found.append(number - before)
        before = number
    return found


def _curve(curve: SegmentCurve, unit: int, scale: int) -> dict[str, list[int]]:
    return {
        "times": deltas(_units(time, unit) for time in curve.times_ps),
        "device": deltas(-(-size // scale) for size in curve.device_bytes),
        "host": deltas(-(-size // scale) for size in curve.host_bytes),
    }


# ---- steps of very many events


def thinned(timeline: Timeline, most: int) -> tuple[Timeline, int]:
    """Return the timeline with at most about ``most`` intervals, and the length in picoseconds below which neighbours
    became one (0 where none did). Transfers and waits are never merged."""
    count = sum(len(segment.intervals) for segment in timeline.segments)
    if count <= most:
        return timeline, 0
    step = sum(segment.end_ps - segment.start_ps for segment in timeline.segments)
    grain = max(1, step // (8 * most))
    while True:
        segments = tuple(replace(s, intervals=_merged(s.intervals, grain)) for s in timeline.segments)
        left = sum(len(segment.intervals) for segment in segments)
        # Transfers cannot be merged away: what is left of them is left.
        if left <= most or grain > step:
            return replace(timeline, segments=segments), grain
        grain *= 2


def _merged(intervals: Sequence[Interval], grain: int) -> tuple[Interval, ...]:
    """Return intervals of which neighbours of compute or collectives that are shorter than ``grain``, with gaps shorter
    than that, became one."""
    found: list[Interval] = []
    runs: dict[tuple[IntervalKind, Stream], list[Interval]] = {}

    def end_run(key: tuple[IntervalKind, Stream]) -> None:
        run = runs.pop(key, [])
        if len(run) == 1:
            found.append(run[0])
        elif run:
            name = f"{run[0].name} and {len(run) - 1:,} more"
            found.append(replace(run[0], end_ps=max(i.end_ps for i in run), name=name))

    for interval in sorted(intervals, key=lambda i: (i.start_ps, i.end_ps)):
        short = interval.end_ps - interval.start_ps < grain
        if interval.kind not in (COMPUTE, COLLECTIVE) or not short:
            found.append(interval)
            continue
        key: tuple[IntervalKind, Stream] = (interval.kind, interval.stream)
        run = runs.get(key)
        if run and (interval.start_ps - run[-1].end_ps >= grain or interval.end_ps - run[0].start_ps > 4 * grain):
            end_run(key)
        runs.setdefault(key, []).append(interval)
    for rest in list(runs):
        end_run(rest)
    return tuple(found)
