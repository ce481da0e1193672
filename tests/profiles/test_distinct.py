"""The different values and rows of columns, compared with sets."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from hloinspect.profiles.distinct import distinct, distinct_rows

NUMBERS = st.integers(-(1 << 63), (1 << 63) - 1) | st.integers(5, 9)


@given(st.lists(NUMBERS, max_size=12))
def test_different_values_are_those_of_a_set(values: list[int]) -> None:
    keys, which = distinct(np.array(values, np.int64))
    assert keys.tolist() == sorted(set(values))
    assert keys[which].tolist() == values


@given(st.lists(st.tuples(NUMBERS, NUMBERS, st.integers(0, 1 << 21)), max_size=12))
def test_different_rows_are_those_of_a_set(rows: list[tuple[int, int, int]]) -> None:
    columns = [np.array(column, np.int64) for column in zip(*rows, strict=True)] or [np.zeros(0, np.int64)] * 3
    which, few = distinct_rows(columns)
    keys = list(zip(*(column.tolist() for column in few), strict=True))
    assert keys == sorted(set(rows))
    assert [keys[number] for number in which.tolist()] == rows
