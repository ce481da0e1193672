"""Unions, intersections and differences of time intervals in arrays, for millions of intervals.

``timeline/intervals.py`` has the same functions for lists. A ``Spans`` is a union: sorted, disjoint, half-open
intervals of integer picoseconds that do not touch.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Flags = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Spans:
    """A union of intervals. ``before`` is the total length of the intervals before each one, and last that of all."""

    start: Ints
    end: Ints
    before: Ints

    def until(self, moment: Ints) -> Ints:
        """Return how much of the time before each moment the union covers."""
        index = np.searchsorted(self.start, moment, side="right")
        last = np.maximum(index - 1, 0)
        if not len(self.start):
            return np.zeros(len(moment), np.int64)
        inside = np.minimum(moment - self.start[last], self.end[last] - self.start[last])
        return np.asarray(np.where(index > 0, self.before[last] + inside, 0), np.int64)

    def within(self, start: Ints, end: Ints) -> Ints:
        """Return how much of each ``[start, end)`` the union covers: 0 if that is empty or reversed."""
        return np.asarray(np.maximum(self.until(end) - self.until(start), 0), np.int64)

    @property
    def length(self) -> int:
        """Return the total length in picoseconds."""
        return int(self.before[-1])


def _spans(start: Ints, end: Ints) -> Spans:
    before = np.zeros(len(start) + 1, np.int64)
    np.cumsum(end - start, out=before[1:])
    return Spans(start, end, before)


def union(start: Ints, end: Ints) -> Spans:
    """Return the time that at least one interval covers. Empty and reversed intervals are ignored."""
    if len(start) > 1 and (start[1:] < start[:-1]).any():
        order = np.argsort(start, kind="stable")
        start, end = start[order], end[order]
    real = end > start
    if not real.all():
        start, end = start[real], end[real]
    if not len(start):
        none = np.zeros(0, np.int64)
        return _spans(none, none)
    reached = np.maximum.accumulate(end)
    begins = np.flatnonzero(np.concatenate(([True], start[1:] > reached[:-1])))
    return _spans(start[begins], reached[np.concatenate((begins[1:] - 1, [len(start) - 1]))])


def merge(*several: Spans) -> Spans:
    """Return the union of several unions."""
    some = [spans for spans in several if len(spans.start)]
    if len(some) == 1:
        return some[0]
    return union(np.concatenate([s.start for s in several]), np.concatenate([s.end for s in several]))


def gaps(spans: Spans, start: int, end: int) -> Spans:
    """Return the parts of ``[start, end)`` that a union does not cover."""
    if end <= start:
        return _spans(np.zeros(0, np.int64), np.zeros(0, np.int64))
    begins = np.clip(np.concatenate(([start], spans.end)), start, end)
    ends = np.clip(np.concatenate((spans.start, [end])), start, end)
    real = ends > begins
    return _spans(begins[real], ends[real])


def subtract(one: Spans, other: Spans) -> Spans:
    """Return the time of one union that the other does not cover."""
    if not len(one.start) or not len(other.start):
        return one
    first, last = min(one.start[0], other.start[0]), max(one.end[-1], other.end[-1])
    rest = np.concatenate(([first], other.end)), np.concatenate((other.start, [last]))
    return _shared(one.start, one.end, *rest)


def intersect(one: Spans, other: Spans) -> Spans:
    """Return the time that two unions share."""
    if len(one.start) > len(other.start):
        one, other = other, one
    return _shared(one.start, one.end, other.start, other.end)


def _shared(start: Ints, end: Ints, other_start: Ints, other_end: Ints) -> Spans:
    """Return the time that two unions share. The second one may have empty intervals.

    Each interval of the first union, which is the shorter one, is cut by the intervals of the second that it meets.
    """
    first = np.searchsorted(other_end, start, side="right")
    count = np.maximum(np.searchsorted(other_start, end, side="left") - first, 0)
    own = np.repeat(np.arange(len(start)), count)
    place = np.arange(len(own)) + np.repeat(first - (np.cumsum(count) - count), count)
    begins, ends = np.maximum(start[own], other_start[place]), np.minimum(end[own], other_end[place])
    real = ends > begins
    return _spans(begins[real], ends[real])
