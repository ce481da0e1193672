"""Unions, intersections and differences of time intervals, for predictions and traces.

Intervals are half-open pairs ``(start, end)`` of integers (picoseconds). A *union* is a sorted list of disjoint
intervals that do not touch. Every function takes any list and returns unions. The cost is that of sorting.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence

Span = tuple[int, int]


def union(intervals: Iterable[Span]) -> list[Span]:
    """Return the time that at least one interval covers. Empty and reversed intervals are ignored."""
    merged: list[Span] = []
    for start, end in sorted(intervals):
        if end <= start:
            continue
        if merged and start <= merged[-1][1]:
            if end > merged[-1][1]:
                merged[-1] = (merged[-1][0], end)
        else:
            merged.append((start, end))
    return merged


def length(covered: Iterable[Span]) -> int:
    """Return the total length of disjoint intervals."""
    return sum(end - start for start, end in covered)


def intersect(one: Sequence[Span], other: Sequence[Span]) -> list[Span]:
    """Return the time that two unions share."""
    shared: list[Span] = []
    i = j = 0
    while i < len(one) and j < len(other):
        start = max(one[i][0], other[j][0])
        end = min(one[i][1], other[j][1])
        if start < end:
            shared.append((start, end))
        if one[i][1] < other[j][1]:
            i += 1
        else:
            j += 1
    return shared


def subtract(one: Sequence[Span], other: Sequence[Span]) -> list[Span]:
    """Return the time of one union that the other does not cover."""
    left: list[Span] = []
    j = 0
    for start, end in one:
        while j < len(other) and other[j][1] <= start:
            j += 1
        position, k = start, j
        while k < len(other) and other[k][0] < end:
            if other[k][0] > position:
                left.append((position, other[k][0]))
            position = max(position, other[k][1])
            k += 1
        if position < end:
            left.append((position, end))
    return left


def covered_length(start: int, end: int, covered: Sequence[Span]) -> int:
    """Return how much of ``[start, end)`` a union covers.

    The cost is logarithmic in the length of the union, plus the number of intervals in ``[start, end)``.
    """
    index = max(bisect_right(covered, (start, start)) - 1, 0)
    total = 0
    while index < len(covered) and covered[index][0] < end:
        total += max(0, min(end, covered[index][1]) - max(start, covered[index][0]))
        index += 1
    return total
