"""The searches of assign.py over many buffers, in numpy columns. A test compares their results with those of the
lists."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from hloinspect.memory.values import ALIGNMENT, Chunk

Numbers = npt.NDArray[np.int64]


class ColumnGaps:
    """Gaps in a table of numpy columns: one row for each gap."""

    def __init__(self) -> None:
        self._rows: list[tuple[int, int, int]] = []  # first, last, allocation
        self._table: Numbers = np.empty((0, 3), dtype=np.int64)
        self._live = 0

    def add(self, allocation: int, spans: Sequence[tuple[int, int]], end: int) -> None:
        """Add an allocation with the spans in which it is in use."""
        begin = 0
        for first, last in (*spans, (end + 1, end + 1)):
            if first > begin:
                self._push((begin, first - 1, allocation))
            begin = last + 1

    def _push(self, row: tuple[int, int, int]) -> None:
        if self._live == len(self._table):
            grown = np.full((max(64, 2 * len(self._table)), 3), -1, dtype=np.int64)
            grown[: self._live] = self._table[: self._live]
            self._table = grown
        self._table[self._live] = row
        self._live += 1

    def take(self, spans: Sequence[tuple[int, int]]) -> bool:
        """Put a buffer into the newest allocation that is free in all its spans. Return False if there is none."""
        table = self._table[: self._live]
        fitting: list[Numbers] = []
        allocations: set[int] | None = None
        for first, last in spans:
            rows = np.flatnonzero((table[:, 0] <= first) & (table[:, 1] >= last))
            fitting.append(rows)
            found = set(table[rows, 2].tolist())
            allocations = found if allocations is None else allocations & found
            if not allocations:
                return False
        if not allocations:
            return False
        chosen = max(allocations)
        for (first, last), rows in zip(spans, fitting, strict=True):
            here = [row for row in rows.tolist() if table[row, 2] == chosen]
            for row in here:
                begin, end = int(self._table[row, 0]), int(self._table[row, 1])
                if not begin <= first <= last <= end:  # an earlier span of this buffer has cut it
                    continue
                self._table[row] = (begin, first - 1, chosen) if first > begin else (1, 0, chosen)
                if end > last:
                    self._push((last + 1, end, chosen))
            if len(spans) > 1:
                self._recut(chosen, first, last)
        return True

    def _recut(self, allocation: int, first: int, last: int) -> None:
        """Cut a span out of those gaps of an allocation that still contain it."""
        rows = np.flatnonzero(
            (self._table[: self._live, 2] == allocation)
            & (self._table[: self._live, 0] <= last)
            & (self._table[: self._live, 1] >= first)
        )
        for row in rows.tolist():
            begin, end = int(self._table[row, 0]), int(self._table[row, 1])
            self._table[row] = (begin, first - 1, allocation) if first > begin else (1, 0, allocation)
            if end > last:
                self._push((last + 1, end, allocation))


def column_heap(chunks: Sequence[Chunk]) -> int:
    """Return the size of a heap into which chunks are put by best fit, computed with numpy."""
    count = sum(len(chunk.spans) for chunk in chunks)
    table = np.zeros((4, count), dtype=np.int64)  # first and last time, offset, end
    filled = size = 0
    for chunk in chunks:
        taken = np.zeros(filled, dtype=np.bool_)
        for first, last in chunk.spans:
            taken |= (table[0, :filled] <= last) & (table[1, :filled] >= first)
        rows = np.flatnonzero(taken)
        offset = best_fit(table[2, rows], table[3, rows], chunk.bytes)
        end = offset + (chunk.bytes + ALIGNMENT - 1) // ALIGNMENT * ALIGNMENT
        for first, last in chunk.spans:
            table[:, filled] = (first, last, offset, end)
            filled += 1
        size = max(size, offset + chunk.bytes)
    return size


def best_fit(offsets: Numbers, ends: Numbers, size: int) -> int:
    """Return the offset for a chunk of ``size`` among others: in the smallest hole that holds it, or behind all of
    them."""
    if not len(offsets):
        return 0
    order = np.argsort(offsets)
    reach = np.maximum.accumulate(ends[order])
    before = np.concatenate((np.zeros(1, dtype=np.int64), reach[:-1]))
    holes = offsets[order] - before
    fits = np.flatnonzero(holes >= size)
    if not len(fits):
        return int(reach[-1])
    return int(before[fits[holes[fits].argmin()]])
