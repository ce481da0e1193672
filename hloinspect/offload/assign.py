"""How much memory XLA will assign to the buffers of a module: its own procedure, followed on the live ranges.

Largest first, a buffer goes into the gap that a donated argument or a result leaves, if it is not in the way there; all
others are packed by best fit, in order of size and in order of life, and the better packing counts (openxla/xla,
service/buffer_assignment.cc, ``AssignBuffersForComputations``, and heap_simulator.cc,
``GlobalDecreasingSizeBestFitHeap``).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from hloinspect.offload.liveness import Liveness
from hloinspect.offload.values import Buffer, join_spans

Numbers = npt.NDArray[np.int64]

ALIGNMENT = 256
"""Temporaries begin at multiples of this (xla/service/gpu, ``kXlaAllocatedBufferAlignBytes`` and the heap's own)."""

MAX_PLACED = 50_000
"""Buffers for which room beside arguments and results is looked for, the largest first; the rest gets its own."""

MAX_PACKED = 6000
"""Buffers that are packed one by one. Of more, the smallest count with what they need at once, without gaps."""

BOTH_ORDERS = 2500
"""Up to this many, both orders are tried; beyond, the order of size alone (the order that nearly always wins)."""


@dataclass(frozen=True, slots=True)
class SpaceUse:
    """Bytes in one memory space. ``peak_time`` is when the temporaries need the most (a time of the liveness).

    ``lower_bytes`` is what the temporaries need at that time without any gap between them.
    """

    argument_bytes: int
    output_bytes: int
    alias_bytes: int
    temp_bytes: int
    lower_bytes: int
    peak_time: int
    temporaries: tuple[Buffer, ...]

    @property
    def total_bytes(self) -> int:
        """Arguments, temporaries, and results that are not arguments."""
        return self.argument_bytes + self.temp_bytes + self.output_bytes - self.alias_bytes


def assign(live: Liveness, spaces: Iterable[int]) -> SpaceUse:
    """What the buffers of some memory spaces need together (device memory is more than one space on a GPU with
    collectives' own memory)."""
    uses = [_assign(live, space) for space in spaces]
    if not uses:
        return SpaceUse(0, 0, 0, 0, 0, 0, ())
    largest = max(uses, key=lambda use: use.lower_bytes)
    return SpaceUse(
        argument_bytes=sum(use.argument_bytes for use in uses),
        output_bytes=sum(use.output_bytes for use in uses),
        alias_bytes=sum(use.alias_bytes for use in uses),
        temp_bytes=sum(use.temp_bytes for use in uses),
        lower_bytes=sum(use.lower_bytes for use in uses),
        peak_time=largest.peak_time,
        temporaries=tuple(buffer for use in uses for buffer in use.temporaries),
    )


def spaces_of(live: Liveness) -> tuple[int, ...]:
    """The memory spaces that the buffers lie in."""
    return tuple(sorted({buffer.memory_space for buffer in live.buffers}))


def _assign(live: Liveness, space: int) -> SpaceUse:
    buffers = [buffer for buffer in live.buffers if buffer.memory_space == space and buffer.bytes > 0]
    outputs = sum(leaf.size_bytes for _, leaf in live.module.entry.root.shape.leaves if leaf.memory_space == space)
    arguments = sum(
        leaf.size_bytes
        for parameter in live.module.entry.parameters
        for _, leaf in parameter.shape.leaves
        if leaf.memory_space == space
    )
    aliased = sum(buffer.bytes for buffer in buffers if buffer.parameter >= 0 and buffer.is_result)
    temporaries = _beside_arguments(buffers)
    lower, when = peak(temporaries)
    return SpaceUse(arguments, outputs, aliased, _packed(temporaries, lower), lower, when, tuple(temporaries))


def peak(buffers: Sequence[Buffer | _Chunk]) -> tuple[int, int]:
    """The most bytes that buffers need at one time, and the first such time."""
    if not buffers:
        return 0, 0
    changes: dict[int, int] = defaultdict(int)
    for buffer in buffers:
        for first, last in buffer.spans:
            changes[first] += buffer.bytes
            changes[last + 1] -= buffer.bytes
    held = most = when = 0
    for time in sorted(changes):
        held += changes[time]
        if held > most:
            most, when = held, time
    return most, when


class _Gaps:
    """Times at which allocations that are there anyway are free: one row a gap."""

    def __init__(self) -> None:
        self._rows: list[tuple[int, int, int]] = []  # first, last, allocation
        self._table: Numbers = np.empty((0, 3), dtype=np.int64)
        self._live = 0

    def add(self, allocation: int, spans: Sequence[tuple[int, int]], end: int) -> None:
        """A new allocation with the spans in which it is taken."""
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
        """Puts a buffer into the newest allocation that is free in all its spans. False if there is none."""
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
        """Cuts a span out of whatever gaps of an allocation still hold it."""
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


def _beside_arguments(buffers: Sequence[Buffer]) -> list[Buffer]:
    """The temporaries for which there is no room in donated arguments and results while these are not needed."""
    end = max((span[1] for buffer in buffers for span in buffer.spans), default=0)
    gaps = _Gaps()
    left: list[Buffer] = []
    allocations = 0
    for number, buffer in enumerate(sorted(buffers, key=lambda b: (-b.bytes, not b.is_result))):
        if buffer.parameter >= 0:
            if not buffer.is_donated:
                continue
        elif not buffer.is_result:
            if not (allocations and number < MAX_PLACED and gaps.take(buffer.spans)):
                left.append(buffer)
            continue
        gaps.add(allocations, buffer.spans, end)
        allocations += 1
    return left


@dataclass(frozen=True, slots=True)
class _Chunk:
    """What lies at one place: a buffer, or several that are written over each other, the first of them for
    ``first_length`` instructions."""

    bytes: int
    spans: tuple[tuple[int, int], ...]
    first_length: int

    @property
    def whole_length(self) -> int:
        return self.spans[-1][1] - self.spans[0][0]


def _packed(buffers: Sequence[Buffer], lower: int) -> int:
    """Bytes of the packing of buffers; ``lower`` is what they need at once."""
    chunks = _chunks(buffers)
    largest = sorted(chunks, key=lambda chunk: (-chunk.bytes, -chunk.first_length))[:MAX_PACKED]
    rest = lower - peak(largest)[0]
    size = _heap(largest)
    if len(largest) <= BOTH_ORDERS:
        size = min(size, _heap(sorted(largest, key=lambda chunk: (-chunk.whole_length, -chunk.bytes))))
    return size + rest


def _chunks(buffers: Sequence[Buffer]) -> list[_Chunk]:
    chains: dict[int, list[Buffer]] = {}
    for number, buffer in enumerate(buffers):
        chains.setdefault(buffer.chain if buffer.chain >= 0 else -1 - number, []).append(buffer)
    found = []
    for links in chains.values():
        first = min(links, key=lambda buffer: buffer.spans[0]).spans[0]
        spans = join_spans(sorted(span for buffer in links for span in buffer.spans))
        found.append(_Chunk(links[0].bytes, spans, first[1] - first[0]))
    return found


def _heap(chunks: Sequence[_Chunk]) -> int:
    """The size of a heap into which chunks are put by best fit, one after the other."""
    count = sum(len(chunk.spans) for chunk in chunks)
    table = np.zeros((4, count), dtype=np.int64)  # first and last time, offset, end
    filled = size = 0
    for chunk in chunks:
        taken = np.zeros(filled, dtype=np.bool_)
        for first, last in chunk.spans:
            taken |= (table[0, :filled] <= last) & (table[1, :filled] >= first)
        rows = np.flatnonzero(taken)
        offset = _best_fit(table[2, rows], table[3, rows], chunk.bytes)
        end = offset + (chunk.bytes + ALIGNMENT - 1) // ALIGNMENT * ALIGNMENT
        for first, last in chunk.spans:
            table[:, filled] = (first, last, offset, end)
            filled += 1
        size = max(size, offset + chunk.bytes)
    return size


def _best_fit(offsets: Numbers, ends: Numbers, size: int) -> int:
    """Where a chunk of ``size`` goes among others: into the smallest hole that holds it, else behind all."""
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
