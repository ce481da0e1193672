"""The different rows of columns of integers, without sorting where numbers are small."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hloinspect.timeline.spans import Ints

_DENSE = 1 << 22


def distinct(columns: Sequence[Ints]) -> tuple[Ints, tuple[Ints, ...]]:
    """Return for each row the number of its values among the different ones, and these, sorted, as columns."""
    code = np.zeros(len(columns[0]), np.int64)
    size = 1
    for column in columns:
        low, high = (int(np.min(column)), int(np.max(column))) if len(column) else (0, 0)
        if high - low < _DENSE // size:
            part, span = column - low, high - low + 1
        else:
            values, part = np.unique(column, return_inverse=True)
            span = len(values)
        code = code * span + part
        size *= span
        if size > _DENSE:
            values, code = np.unique(code, return_inverse=True)
            size = len(values)
    seen = np.zeros(size, np.bool_)
    seen[code] = True
    place = np.cumsum(seen) - 1
    example = np.zeros(int(seen.sum()), np.int64)
    code = place[code] if len(code) else code
    example[code] = np.arange(len(code))
    return code, tuple(column[example] for column in columns)
