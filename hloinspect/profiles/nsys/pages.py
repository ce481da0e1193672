"""Columns of integers of a table, read from the pages of an SQLite file: three times as fast as through SQLite.

This reads what SQLite's document "Database File Format" (sections 1.6 and 2.1) calls a table b-tree. Whatever is not
usual there (a page of another kind, a cell that does not fit into its page, a value that continues on another page)
gives None, and SQLite itself reads the table then: it knows what is damage and what is not.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from hloinspect.profiles.xplane.varints import Bytes, words_of
from hloinspect.timeline.spans import Flags, Ints

ABSENT = np.iinfo(np.int64).min
"""What a column holds where a row has no integer."""

ROW = ""
"""Name of the column of SQLite's numbers of rows. A column of a table has no empty name here."""

_INTERIOR, _LEAF = 5, 13
_MAX_DEPTH = 20
_TOGETHER = 1 << 15
"""Rows that are read together: their bytes stay in the caches."""

_MAX_COLUMNS = 100
_REAL, _ZERO, _ONE = 7, 8, 9
_SIZES = np.array([0, 1, 2, 3, 4, 6, 8, 8, 0, 0, 0, 0, *((code - 12) // 2 for code in range(12, 128))], np.uint8)
"""Bytes of a value by its type code below 128 (section 2.1): integers, a real, 0, 1, and texts and blobs."""


class _Unusual(Exception):
    """Something that SQLite has to read."""


@dataclass(frozen=True, slots=True)
class Pages:
    """A mapped SQLite file. ``usable`` is what a page has without its reserved end."""

    data: Bytes
    size: int
    usable: int

    def table(self, root: int, columns: Sequence[int]) -> tuple[list[Ints], int] | None:
        """Return columns of the table whose tree begins at page ``root``, and how many cells hold no integer and are
        not NULL, or None where SQLite has to read it.

        Columns are counted from 0, and -1 is the row's number. A cell without an integer is ``ABSENT``.
        """
        if len(self.data) < 2 * self.size or max(columns, default=0) >= _MAX_COLUMNS:
            return None
        try:
            leaves = self._leaves(root)
            parts = [self._rows(leaves[first:last], columns) for first, last in self._shares(leaves)]
        except (_Unusual, IndexError):
            return None
        none = np.zeros(0, np.int64)
        found = [np.concatenate([none, *(values[place] for values, _ in parts)]) for place in range(len(columns))]
        return found, sum(wrong for _, wrong in parts)

    # ---- pages

    def _u16(self, place: Ints) -> Ints:
        return self.data[place].astype(np.int64) << 8 | self.data[place + 1]

    def _u32(self, place: Ints) -> Ints:
        return self._u16(place) << 16 | self._u16(place + 2)

    def _leaves(self, root: int) -> Ints:
        """Return the places of the pages that hold the rows, in the order of the rows."""
        level = np.array([root], np.int64)
        for _ in range(_MAX_DEPTH):
            if (level < 2).any() or (level > len(self.data) // self.size).any():
                raise _Unusual
            if len(level) > 1 and len(np.unique(level)) < len(level):
                raise _Unusual
            place = (level - 1) * self.size
            kind = self.data[place]
            if (kind == _LEAF).all():
                return place
            if not (kind == _INTERIOR).all():
                raise _Unusual
            count = self._u16(place + 3)
            cell = self._cells(place, count, 12)
            level = np.insert(self._u32(cell), np.cumsum(count), self._u32(place + 8))
        raise _Unusual

    def _cells(self, place: Ints, count: Ints, head: int) -> Ints:
        """Return the places of the cells of pages, whose heads are so long."""
        if (head + 2 * count > self.usable).any():
            raise _Unusual
        page = np.repeat(place, count)
        first = np.repeat(np.cumsum(count) - count, count)
        start = self._u16(page + head + 2 * (np.arange(len(page)) - first))
        if (start < head).any() or (start > self.usable - 4).any():
            raise _Unusual
        return page + start

    def _shares(self, leaves: Ints) -> list[tuple[int, int]]:
        """Return the leaves in parts of about so many rows."""
        reached = np.cumsum(self._u16(leaves + 3))
        cuts = np.searchsorted(reached, np.arange(_TOGETHER, int(reached[-1]) + 1, _TOGETHER)) + 1
        bounds = np.unique(np.concatenate(([0], np.minimum(cuts, len(leaves)), [len(leaves)])))
        return list(zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True))

    # ---- rows

    def _rows(self, leaves: Ints, columns: Sequence[int]) -> tuple[list[Ints], int]:
        count = self._u16(leaves + 3)
        cell = self._cells(leaves, count, 8)
        stop = np.repeat(leaves + self.usable, count)
        payload, begin = self._varints(cell, stop)
        number, head = self._varints(begin, stop)
        local = self._local(payload)
        if int((head - cell + local).sum()) > len(leaves) * self.usable:
            raise _Unusual  # cells share bytes: a page would have more rows than it has room for
        stop = np.minimum(stop, head + local)
        if (head >= stop).any():
            raise _Unusual
        length = self.data[head].astype(np.int64)
        body = head + length
        width = max(columns, default=-1) + 1
        if (length > 127).any() or (length <= width).any() or (body > stop).any():
            raise _Unusual  # a head of more than 127 bytes, or of a row that is older than the last columns
        if not len(head):
            return [number for _ in columns], 0
        offsets, codes = self._offsets(head, body, width)
        found: list[Ints] = []
        wrong = 0
        for column in columns:
            if column < 0:
                found.append(number)
                continue
            values, odd = self._values(codes[:, column], body + offsets[:, column], stop)
            found.append(values)
            wrong += odd
        return found, wrong

    def _local(self, payload: Ints) -> Ints:
        """Return how many bytes of each row are in its page (section 1.6). The others are on pages that follow."""
        least = (self.usable - 12) * 32 // 255 - 23
        rest = least + (payload - least) % (self.usable - 4)
        within = payload <= self.usable - 35
        return np.where(within, payload, np.where(rest <= self.usable - 35, rest, least))

    def _varints(self, place: Ints, stop: Ints) -> tuple[Ints, Ints]:
        """Return the number at each place, and the place behind it: groups of seven bits, the highest first."""
        byte = self.data[place]
        value, behind = (byte & 127).astype(np.int64), place + 1
        more = np.flatnonzero(byte > 127)
        for group in range(2, 9):
            if not len(more):
                break
            byte = self.data[behind[more]]
            value[more] = value[more] << 7 | (byte & 127)
            behind[more] += 1
            more = more[byte > 127]
            if group == 8 and len(more):
                raise _Unusual  # nine bytes: a number of 64 bits
        if (behind > stop).any():
            raise _Unusual
        return value, behind

    def _offsets(self, head: Ints, body: Ints, width: int) -> tuple[NDArray[np.int32], NDArray[np.uint8]]:
        """Return where in its row's values each of the first values begins, and its type code: 127 for large ones."""
        if not width:
            return np.zeros((len(head), 0), np.int32), np.zeros((len(head), 0), np.uint8)
        heads = np.ndarray((len(self.data) - width + 1,), np.dtype(f"V{width}"), self.data.data, 0, (1,))
        codes = heads[head + 1].view(np.uint8).reshape(-1, width)
        sizes = _SIZES.take(codes & 127)
        offsets = np.zeros((len(head), width), np.int32)
        np.cumsum(sizes[:, :-1], axis=1, out=offsets[:, 1:])
        wide = np.flatnonzero((codes > 127).any(axis=1))
        if len(wide):
            codes[wide], offsets[wide] = self._wide(head[wide] + 1, body[wide], width)
        return offsets, codes

    def _wide(self, place: Ints, body: Ints, width: int) -> tuple[Ints, Ints]:
        """Return the codes and sizes of rows with a code of more than a byte, as a text of 58 bytes has."""
        codes = np.zeros((len(place), width), np.int64)
        for column in range(width):
            codes[:, column], place = self._varints(place, body)
        sizes = np.where(codes < 12, _SIZES[np.minimum(codes, 12)], (codes - 12) // 2)
        if (sizes > len(self.data)).any():
            raise _Unusual
        offsets = np.minimum(np.cumsum(sizes, axis=1) - sizes, len(self.data))
        return np.minimum(codes, 127), offsets

    def _values(self, code: NDArray[np.uint8], place: Ints, stop: Ints) -> tuple[Ints, int]:
        """Return the integers of a column, and how many cells hold something else."""
        size = _SIZES[np.minimum(code, _ONE)].astype(np.int64)
        if (place + size > stop).any():
            raise _Unusual
        is_integer: Flags = (code > 0) & (code <= _ONE) & (code != _REAL)
        shift = 64 - 8 * size
        is_stored = is_integer & (size > 0)
        values = np.full(len(code), ABSENT)
        if is_stored.all():
            values = self._words(place) >> shift
        elif is_stored.any():
            values[is_stored] = self._words(place[is_stored]) >> shift[is_stored]
        values[code == _ZERO], values[code == _ONE] = 0, 1
        return values, int(((code > 0) & ~is_integer).sum())

    def _words(self, place: Ints) -> Ints:
        """Return the eight bytes from each place on, the highest first. Behind the file's end there are zeros."""
        last = len(self.data) - 8
        if int(np.max(place)) <= last:
            return np.asarray(words_of(self.data.data)[place].view(">i8").astype(np.int64))
        tail = np.concatenate((self.data[last:], np.zeros(8, np.uint8)))
        words = words_of(self.data.data)[np.minimum(place, last)].view(">i8").astype(np.int64)
        behind = np.flatnonzero(place > last)
        words[behind] = words_of(tail.data)[place[behind] - last].view(">i8").astype(np.int64)
        return np.asarray(words)


def map_pages(path: str | Path) -> Pages | None:
    """Return the mapped file, or None where it cannot be mapped or is written in another way than we read."""
    try:
        data = np.memmap(path, np.uint8, "r")
    except (OSError, ValueError):
        return None
    if len(data) < 100:
        return None
    size = int(data[16]) << 8 | int(data[17])
    size = 1 << 16 if size == 1 else size
    usable = size - int(data[20])
    return Pages(data.view(np.ndarray), size, usable) if size >= 512 and usable >= 480 else None
