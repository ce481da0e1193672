"""Interval algebra against a bitmap with one bit for each picosecond."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from hloinspect.timeline.intervals import Span, covered_length, intersect, length, subtract, union

END = 40
spans = st.lists(st.tuples(st.integers(0, END), st.integers(0, END)), max_size=12)


def bitmap(intervals: list[Span]) -> set[int]:
    return {moment for start, end in intervals for moment in range(start, end)}


def runs(moments: set[int]) -> list[Span]:
    """Return a set of moments as sorted, disjoint intervals that do not touch, which is unique."""
    starts = sorted(m for m in moments if m - 1 not in moments)
    ends = sorted(m + 1 for m in moments if m + 1 not in moments)
    return list(zip(starts, ends, strict=True))


@given(spans)
def test_a_union_is_the_time_that_any_interval_covers(intervals: list[Span]) -> None:
    assert union(intervals) == runs(bitmap(intervals))
    assert length(union(intervals)) == len(bitmap(intervals))


@given(spans)
def test_a_union_of_a_union_is_itself(intervals: list[Span]) -> None:
    assert union(union(intervals)) == union(intervals)


@given(spans, spans)
def test_an_intersection_is_the_time_that_both_cover(one: list[Span], other: list[Span]) -> None:
    assert intersect(union(one), union(other)) == runs(bitmap(one) & bitmap(other))


@given(spans, spans)
def test_a_difference_is_the_time_that_only_the_first_covers(one: list[Span], other: list[Span]) -> None:
    assert subtract(union(one), union(other)) == runs(bitmap(one) - bitmap(other))


@given(spans, st.integers(-5, END + 5), st.integers(-5, END + 5))
def test_the_covered_length_of_an_interval_counts_its_covered_moments(
    intervals: list[Span], start: int, end: int
) -> None:
    assert covered_length(start, end, union(intervals)) == len(bitmap(intervals) & set(range(start, end)))


def test_touching_intervals_become_one() -> None:
    assert union([(3, 5), (1, 3)]) == [(1, 5)]


def test_empty_and_reversed_intervals_count_for_nothing() -> None:
    assert union([(2, 2), (5, 4)]) == []


def test_a_hole_is_cut_out_of_the_middle() -> None:
    assert subtract([(0, 10)], [(2, 3), (5, 7)]) == [(0, 2), (3, 5), (7, 10)]
