"""Columns of intervals, compared with the algebra on lists."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from hloinspect.timeline import intervals
from hloinspect.timeline.intervals import Span
from hloinspect.timeline.spans import Spans, gaps, intersect, merge, subtract, union

END = 40
lists = st.lists(st.tuples(st.integers(0, END), st.integers(0, END)), max_size=12)


def columns(pairs: list[Span]) -> tuple[np.ndarray, np.ndarray]:
    table = np.array(pairs, np.int64).reshape(-1, 2)
    return table[:, 0], table[:, 1]


def spans(pairs: list[Span]) -> Spans:
    return union(*columns(pairs))


def pairs_of(found: Spans) -> list[Span]:
    return list(zip(found.start.tolist(), found.end.tolist(), strict=True))


@given(lists)
def test_unions_are_the_same(pairs: list[Span]) -> None:
    assert pairs_of(spans(pairs)) == intervals.union(pairs)
    assert spans(pairs).length == intervals.length(intervals.union(pairs))


@given(lists, lists)
def test_differences_intersections_and_merged_unions_are_the_same(one: list[Span], other: list[Span]) -> None:
    a, b = intervals.union(one), intervals.union(other)
    assert pairs_of(subtract(spans(one), spans(other))) == intervals.subtract(a, b)
    assert pairs_of(intersect(spans(one), spans(other))) == intervals.intersect(a, b)
    assert pairs_of(merge(spans(one), spans(other))) == intervals.union(one + other)


@given(lists, st.integers(0, END), st.integers(0, END))
def test_gaps_are_what_is_left_of_an_interval(pairs: list[Span], start: int, end: int) -> None:
    whole = intervals.union([(start, end)])
    assert pairs_of(gaps(spans(pairs), start, end)) == intervals.subtract(whole, intervals.union(pairs))


@given(lists, lists)
def test_lengths_within_windows_are_the_same(pairs: list[Span], windows: list[Span]) -> None:
    start, end = columns(windows)
    covered = intervals.union(pairs)
    expected = [intervals.covered_length(a, b, covered) if a < b else 0 for a, b in windows]
    assert spans(pairs).within(start, end).tolist() == expected
