"""NVTX ranges around calls: of each call the innermost range on its thread that contains all of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from hloinspect.profiles.distinct import distinct_rows
from hloinspect.timeline.spans import Ints

MAX_CLIMB = 256
"""Ranges around a call that are looked at. XLA nests a few for each loop in a loop."""


@dataclass(frozen=True, slots=True)
class Ranges:
    """Ranges by thread and start, those around others first. ``kind`` is the caller's number of what a range is."""

    thread: Ints
    start: Ints
    end: Ints
    kind: Ints

    def __len__(self) -> int:
        return len(self.start)

    def threads(self) -> Iterator[tuple[int, int, int]]:
        """Yield each thread, and the places of its first range and behind its last."""
        firsts = _firsts(self.thread)
        for thread, (first, last) in zip(
            self.thread[firsts].tolist(), pairwise([*firsts.tolist(), len(self)]), strict=True
        ):
            yield thread, first, last


def nested(thread: Ints, start: Ints, end: Ints, kind: Ints) -> Ranges:
    """Return ranges in the order of their nesting."""
    order = np.lexsort((-end, start, thread))
    return Ranges(thread[order], start[order], end[order], kind[order])


def _firsts(values: Ints) -> Ints:
    """Return the places where a value differs from the one before."""
    if not len(values):
        return np.zeros(0, np.int64)
    return np.flatnonzero(np.concatenate(([True], values[1:] != values[:-1])))


def innermost(ranges: Ranges, thread: Ints, start: Ints, end: Ints) -> Ints:
    """Return for each call the range of its thread that contains all of it and begins last, -1 for none.

    Of ranges that begin at one time the shortest counts.
    """
    found = np.full(len(start), -1, np.int64)
    if not len(ranges) or not len(start):
        return found
    code, values = distinct_rows((thread,))
    order = np.argsort(code, kind="stable")
    bounds = np.searchsorted(code[order], np.arange(len(values[0]) + 1))
    place_of = {value: place for place, value in enumerate(values[0].tolist())}
    for one, first, last in ranges.threads():
        place = place_of.get(one)
        if place is not None:
            calls = order[bounds[place] : bounds[place + 1]]
            inside = _innermost(ranges.start[first:last], ranges.end[first:last], start[calls], end[calls])
            found[calls] = np.where(inside >= 0, inside + first, -1)
    return found


def _innermost(starts: Ints, ends: Ints, start: Ints, end: Ints) -> Ints:
    """Return for each call of a thread the last of the thread's ranges that contains it.

    It is mostly the last one that begins before the call. Where that has ended, it is one that does not end before the
    call does; where all before have ended, there is none.
    """
    found = np.searchsorted(starts, start, side="right") - 1
    reached = np.maximum.accumulate(ends)
    found[(found < 0) | (reached[found] < end)] = -1
    outside = np.flatnonzero((found >= 0) & (ends[found] < end))
    around = _around(ends.tolist()) if len(outside) else reached
    for _ in range(MAX_CLIMB):
        if not len(outside):
            return found
        found[outside] = around[found[outside]]
        outside = outside[ends[found[outside]] < end[outside]]
    found[outside] = -1
    return found


def _around(ends: Sequence[int]) -> Ints:
    """Return for each range of a thread the nearest earlier one that does not end before it, -1 for none.

    Where ranges are nested, as push and pop make them, that is the one around it. A loop: each depends on those before.
    """
    open_ranges: list[int] = []
    found = []
    for place, end in enumerate(ends):
        while open_ranges and ends[open_ranges[-1]] < end:
            open_ranges.pop()
        found.append(open_ranges[-1] if open_ranges else -1)
        open_ranges.append(place)
    return np.array(found, np.int64)
