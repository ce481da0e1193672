"""An estimate of the memory that XLA will assign to the buffers of a module, by XLA's own procedure on the live ranges.

Buffers are taken in order of size, the largest first. A buffer goes into memory of a donated argument or a result if
that is free while the buffer lives. All others are packed by best fit, once in order of size and once in order of life,
and the smaller result counts (openxla/xla, service/buffer_assignment.cc, ``AssignBuffersForComputations``, and
heap_simulator.cc, ``GlobalDecreasingSizeBestFitHeap``).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from hloinspect.memory.liveness import Liveness
from hloinspect.memory.values import ALIGNMENT, Buffer, Chunk, join_spans

MAX_PLACED = 50_000
"""Most buffers for which free memory of arguments and results is searched, the largest first. The others get their
own."""

MAX_PACKED = 6000
"""Most buffers that are packed one by one. Of more, the smallest count as the bytes that they need at once, without
gaps."""

FEW = 1500
"""Number of buffers up to which lists are fast enough, so that numpy is not imported, which takes longer."""

BOTH_ORDERS = 2500
"""Number of buffers up to which both orders are tried. Beyond, only the order of size is, which is nearly always
better."""


@dataclass(frozen=True, slots=True)
class SpaceUse:
    """Bytes in one memory space. ``peak_time`` is when the temporaries need the most (a time of the liveness).

    ``lower_bytes`` is what the temporaries need at that time, without any gap between them.
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
        """Return the bytes of arguments, temporaries, and results that are not arguments."""
        return self.argument_bytes + self.temp_bytes + self.output_bytes - self.alias_bytes


def assign_buffers(live: Liveness, spaces: Iterable[int]) -> SpaceUse:
    """Return the bytes that the buffers of some memory spaces need together.

    Device memory has more than one space on a GPU where collectives have memory of their own.
    """
    uses = [_assign_space(live, space) for space in spaces]
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
    """Return the memory spaces in which the buffers lie."""
    return tuple(sorted({buffer.memory_space for buffer in live.buffers}))


def _assign_space(live: Liveness, space: int) -> SpaceUse:
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


def peak(buffers: Sequence[Buffer | Chunk]) -> tuple[int, int]:
    """Return the most bytes that buffers need at one time, and the first such time."""
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


def gaps_for(count: int) -> Gaps:
    """Return an empty table of gaps for this many buffers: of lists for a few, of numpy's columns for many."""
    if count <= FEW:
        return PlainGaps()
    from hloinspect.memory.assign_columns import ColumnGaps

    return ColumnGaps()


def heap_of(chunks: Sequence[Chunk]) -> int:
    """Return the size of a heap into which chunks are put by best fit, one after the other."""
    if len(chunks) <= FEW:
        return plain_heap(chunks)
    from hloinspect.memory.assign_columns import column_heap

    return column_heap(chunks)


class Gaps(Protocol):
    """The times at which existing allocations are free."""

    def add(self, allocation: int, spans: Sequence[tuple[int, int]], end: int) -> None:
        """Add an allocation with the spans in which it is in use."""

    def take(self, spans: Sequence[tuple[int, int]]) -> bool:
        """Put a buffer into the newest allocation that is free in all its spans. Return False if there is none."""


class PlainGaps:
    """Gaps in a list."""

    def __init__(self) -> None:
        self._gaps: list[tuple[int, int, int]] = []  # first, last, allocation

    def add(self, allocation: int, spans: Sequence[tuple[int, int]], end: int) -> None:
        begin = 0
        for first, last in (*spans, (end + 1, end + 1)):
            if first > begin:
                self._gaps.append((begin, first - 1, allocation))
            begin = last + 1

    def take(self, spans: Sequence[tuple[int, int]]) -> bool:
        allocations: set[int] | None = None
        for first, last in spans:
            found = {gap[2] for gap in self._gaps if gap[0] <= first and gap[1] >= last}
            allocations = found if allocations is None else allocations & found
            if not allocations:
                return False
        if not allocations:
            return False
        chosen = max(allocations)
        for first, last in spans:
            self._gaps = [part for gap in self._gaps for part in _without(gap, chosen, first, last)]
        return True


def _without(gap: tuple[int, int, int], allocation: int, first: int, last: int) -> tuple[tuple[int, int, int], ...]:
    """Return the parts of a gap that remain when a span of an allocation is taken."""
    begin, end, owner = gap
    if owner != allocation or begin > last or end < first:
        return (gap,)
    left = ((begin, first - 1, owner),) if first > begin else ()
    right = ((last + 1, end, owner),) if end > last else ()
    return left + right


def plain_heap(chunks: Sequence[Chunk]) -> int:
    """Return the size of a heap into which chunks are put by best fit, computed with lists."""
    placed: list[tuple[int, int, int, int]] = []  # first and last time, offset, end
    size = 0
    for chunk in chunks:
        taken = sorted({(o, e) for f, la, o, e in placed for first, last in chunk.spans if f <= last and la >= first})
        reach = offset = 0
        best: int | None = None
        for begin, end in taken:
            hole = begin - reach
            if hole >= chunk.bytes and (best is None or hole < best):
                best, offset = hole, reach
            reach = max(reach, end)
        if best is None:
            offset = reach
        aligned = offset + (chunk.bytes + ALIGNMENT - 1) // ALIGNMENT * ALIGNMENT
        placed += [(first, last, offset, aligned) for first, last in chunk.spans]
        size = max(size, offset + chunk.bytes)
    return size


def _beside_arguments(buffers: Sequence[Buffer]) -> list[Buffer]:
    """Return the temporaries that do not fit into donated arguments and results while these are not needed."""
    end = max((span[1] for buffer in buffers for span in buffer.spans), default=0)
    gaps = gaps_for(len(buffers))
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


def _packed(buffers: Sequence[Buffer], lower: int) -> int:
    """Return the size of the heap into which buffers are packed. ``lower`` is what they need at once."""
    chunks = _chunks(buffers)
    largest = sorted(chunks, key=lambda chunk: (-chunk.bytes, -chunk.first_length))[:MAX_PACKED]
    rest = lower - peak(largest)[0]
    size = heap_of(largest)
    if len(largest) <= BOTH_ORDERS:
        size = min(size, heap_of(sorted(largest, key=lambda chunk: (-chunk.whole_length, -chunk.bytes))))
    return size + rest


def _chunks(buffers: Sequence[Buffer]) -> list[Chunk]:
    chains: dict[int, list[Buffer]] = {}
    for number, buffer in enumerate(buffers):
        chains.setdefault(buffer.chain if buffer.chain >= 0 else -1 - number, []).append(buffer)
    found = []
    for links in chains.values():
        first = min(links, key=lambda buffer: buffer.spans[0]).spans[0]
        spans = join_spans(sorted(span for buffer in links for span in buffer.spans))
        found.append(Chunk(links[0].bytes, spans, first[1] - first[0]))
    return found
