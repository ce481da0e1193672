"""NVTX ranges around calls: of each call the innermost range on its thread that contains all of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from hloinspect.timeline.spans import Flags, Ints

MAX_CLIMB = 256
"""Ranges around a call that are looked at. XLA nests a few for each loop in a loop."""


@dataclass(frozen=True, slots=True)
class Ranges:
    """Ranges by thread and start, those around others first. ``kind`` is the caller's number of what a range is.

    ``around`` is for each range the nearest earlier one of its thread that does not end before it, -1 for none. Where
    ranges are nested, as push and pop make them, that is the one around it.
    """

    thread: Ints
    start: Ints
    end: Ints
    kind: Ints
    around: Ints

    def __len__(self) -> int:
        return len(self.start)


def nested(thread: Ints, start: Ints, end: Ints, kind: Ints) -> Ranges:
    """Return ranges in the order of their nesting."""
    order = np.lexsort((-end, start, thread))
    thread, start, end, kind = (column[order] for column in (thread, start, end, kind))
    around = np.full(len(start), -1, np.int64)
    bounds = [*_firsts(thread).tolist(), len(thread)]
    for first, last in pairwise(bounds):
        around[first:last] = _around(end[first:last].tolist(), first)
    return Ranges(thread, start, end, kind, around)


def _firsts(values: Ints) -> Ints:
    """Return the places where a value differs from the one before."""
    if not len(values):
        return np.zeros(0, np.int64)
    return np.flatnonzero(np.concatenate(([True], values[1:] != values[:-1])))


def _around(ends: Sequence[int], first: int) -> list[int]:
    """Return for each range of a thread the nearest earlier one that does not end before. A loop: each depends on those
    before."""
    open_ranges: list[int] = []
    found = []
    for place, end in enumerate(ends):
        while open_ranges and ends[open_ranges[-1]] < end:
            open_ranges.pop()
        found.append(open_ranges[-1] + first if open_ranges else -1)
        open_ranges.append(place)
    return found


def innermost(ranges: Ranges, thread: Ints, start: Ints, end: Ints) -> Ints:
    """Return for each call the range of its thread that contains all of it and begins last, -1 for none.

    Of ranges that begin at one time the shortest counts.
    """
    found = np.full(len(start), -1, np.int64)
    if not len(ranges) or not len(start):
        return found
    firsts = _firsts(ranges.thread)
    lasts = np.append(firsts[1:], len(ranges))
    threads = ranges.thread[firsts]
    place = np.minimum(np.searchsorted(threads, thread), len(threads) - 1)
    own = np.flatnonzero(threads[place] == thread)
    own = own[np.argsort(place[own], kind="stable")]
    bounds = np.searchsorted(place[own], np.arange(len(threads) + 1))
    for number in np.flatnonzero(bounds[1:] > bounds[:-1]).tolist():
        calls = own[bounds[number] : bounds[number + 1]]
        first, last = int(firsts[number]), int(lasts[number])
        found[calls] = first - 1 + np.searchsorted(ranges.start[first:last], start[calls], side="right")
        found[calls[found[calls] < first]] = -1
    for _ in range(MAX_CLIMB):
        outside = np.flatnonzero((found >= 0) & (ranges.end[found] < end))
        if not len(outside):
            return found
        found[outside] = ranges.around[found[outside]]
    found[(found >= 0) & (ranges.end[found] < end)] = -1
    return found


def nearest(ranges: Ranges, wanted: Flags) -> Ints:
    """Return for each range itself if it is wanted, else the nearest wanted one around it, -1 for none."""
    found = np.where(wanted, np.arange(len(ranges)), ranges.around)
    for _ in range(MAX_CLIMB):
        open_ranges = np.flatnonzero((found >= 0) & ~wanted[found])
        if not len(open_ranges):
            return found
        found[open_ranges] = ranges.around[found[open_ranges]]
    found[(found >= 0) & ~wanted[found]] = -1
    return found
