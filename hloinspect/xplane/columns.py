"""Decodes the events of a line together: one numpy step reads the next field of a hundred thousand events.

XEvent (tsl/profiler/protobuf/xplane.proto): metadata_id = 1, offset_ps = 2 or num_occurrences = 5, duration_ps = 3,
stats = 4. Events are taken in blocks, so that what is needed besides the columns themselves stays small.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from hloinspect.xplane.space import ABSENT, BYTES, DOUBLE, INT64, REF, STR, UINT64, Columns, Flags, Ints, StatColumn
from hloinspect.xplane.wire import Buffer, WireError, fields, signed, varint

BLOCK_BYTES = 1 << 23
MAX_EVENTS = 1 << 26
"""Events of one line, more than any profiler keeps (CUPTI's collector ends at 2 Mi): an empty one takes two bytes in a
file, and 25 in columns."""

_PAD = bytes(16)
_EVENTS = 0x22  # XLine.events, and XEvent.stats: field 4, with a length
_TIMESTAMP, _NAME = 3, 2
_STRAGGLERS = 64
_MANY_ROUNDS = 48
_MAX_TIME_PS = 1 << 62
_Bytes = NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class _Slot:
    """A statistic that was asked for, in one block."""

    kinds: NDArray[np.uint8]
    bits: Ints


@dataclass(slots=True)
class _Texts:
    """The texts of one statistic, each once."""

    index: dict[bytes, int] = field(default_factory=dict)

    def add(self, text: bytes) -> int:
        return self.index.setdefault(text, len(self.index))


@dataclass(slots=True)
class _Block:
    """The events of one block, while they are read. ``slot_of`` maps a statistic's id to its slot, or -1."""

    buffer: _Bytes
    data: bytes
    position: Ints
    end: Ints
    slot_of: Ints
    slots: list[_Slot]
    texts: list[_Texts]
    numbers: dict[int, Ints]
    timed: Flags
    counted: Flags


def line_columns(
    data: Buffer, start: int, end: int, names: Sequence[str], stat_names: Mapping[int, str], origin_ps: int
) -> Columns:
    """The events of the XLine in ``data[start:end]`` with the statistics ``names``; offsets count from ``origin_ps``.

    Raises WireError.
    """
    ids = {name: number for number, name in sorted(stat_names.items(), reverse=True)}
    known = [ids.get(name, -1) for name in names]
    slot_of = np.full(max([*known, 0]) + 2, -1, np.int64)  # the last one stands for every greater id
    for slot, number in enumerate(known):
        if number >= 0:
            slot_of[number] = slot
    texts = [_Texts() for _ in names]
    blocks: list[_Block] = []
    count = 0
    for block_data, starts, ends in _blocks(data, start, end):
        count += len(starts)
        if count > MAX_EVENTS:
            raise WireError(f"a line of more than {MAX_EVENTS:,} events")
        block = _new_block(block_data, starts, ends, slot_of, texts)
        _read_events(block, bool((slot_of >= 0).any()))
        block.buffer, block.data = np.empty(0, np.uint8), b""  # only the columns are kept
        blocks.append(block)
    return _joined(blocks, names, texts, stat_names, origin_ps)


def _new_block(data: bytes, starts: array[int], ends: array[int], slot_of: Ints, texts: list[_Texts]) -> _Block:
    size = len(starts)
    return _Block(
        buffer=np.frombuffer(data, np.uint8),
        data=data,
        position=np.array(starts, np.int64),
        end=np.array(ends, np.int64),
        slot_of=slot_of,
        slots=[_Slot(np.zeros(size, np.uint8), np.zeros(size, np.int64)) for _ in texts],
        texts=texts,
        numbers={number: np.zeros(size, np.int64) for number in (1, 2, 3)},
        timed=np.zeros(size, np.bool_),
        counted=np.zeros(size, np.bool_),
    )


# ---- where each event lies


def _blocks(data: Buffer, start: int, end: int) -> list[tuple[bytes, array[int], array[int]]]:
    """A copy of each stretch of the line with the places of the events in it, padded so that reading a number at its end
    stays inside."""
    raise NotImplementedError
