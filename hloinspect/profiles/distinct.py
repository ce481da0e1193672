"""The different values of columns of integers, without sorting where numbers are small."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from hloinspect.timeline.spans import Ints

_DENSE = 1 << 22
"""The span of numbers from which on they are sorted."""


def distinct(values: Ints) -> tuple[Ints, Ints]:
    """Return what ``np.unique`` returns with the inverse. Small numbers are not sorted."""
    keys, _, inverse = distinct_places(values, index=False)
    return keys, inverse


def distinct_places(values: Ints, *, index: bool = True) -> tuple[Ints, Ints, Ints]:
    """Return the different values, sorted, a place of each (if ``index``), and for each element the number of its
    value."""
    if not len(values):
        return values, values, values
    low, high = int(np.min(values)), int(np.max(values))
    if low == high:
        return values[:1], np.zeros(1, np.int64), np.zeros(len(values), np.int64)
    if high - low >= _DENSE:
        keys, first, inverse = np.unique(values, return_index=True, return_inverse=True)
        return keys, first, inverse
    moved = values - low
    seen = np.zeros(high - low + 1, np.bool_)
    seen[moved] = True
    keys = np.flatnonzero(seen)
    place = np.zeros(len(seen), np.int64)
    place[keys] = np.arange(len(keys))
    inverse = place[moved]
    first = np.zeros(len(keys), np.int64)
    if index:
        first[inverse] = np.arange(len(values))
    return keys + low, first, inverse


def distinct_rows(columns: Sequence[Ints]) -> tuple[Ints, tuple[Ints, ...]]:
    """Return for each row the number of its values among the different ones, and these, sorted, as columns."""
    code, size = np.zeros(len(columns[0]), np.int64), 1
    for column in columns:
        code, size = with_column(code, size, column)
    _, example, code = distinct_places(code)
    return code, tuple(column[example] for column in columns)


def with_column(code: Ints, size: int, column: NDArray[np.uint8] | Ints) -> tuple[Ints, int]:
    """Return codes that also distinguish the values of a column, and their number. The given codes are below
    ``size``."""
    low, high = (int(np.min(column)), int(np.max(column))) if len(column) else (0, 0)
    if low == high:
        return code, size
    if (high - low + 1) * size > _DENSE:
        keys, code = distinct(code)
        size = len(keys)
    if (high - low + 1) * size > _DENSE:
        keys, column = distinct(column.astype(np.int64))
        low, high = 0, len(keys) - 1
    span = high - low + 1
    code = code * span
    code += column
    code -= low
    return code, size * span
