"""Decoding the events of a line together: one numpy operation reads a field of thousands of events.

XEvent (tsl/profiler/protobuf/xplane.proto): metadata_id = 1, offset_ps = 2 or num_occurrences = 5, duration_ps = 3,
stats = 4. Events are read in blocks, so that memory beyond that of the columns stays small. Events with a frequent
layout are read by that layout (``layouts.py``). Of the others one field of all events is read after the other.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hloinspect.profiles.xplane.layouts import (
    DURATION_PS,
    METADATA_ID,
    OCCURRENCES,
    OFFSET_PS,
    STAT,
    EventLayout,
    Layouts,
)
from hloinspect.profiles.xplane.space import ABSENT, BYTES, DOUBLE, INT64, REF, STR, UINT64, Columns, StatColumn
from hloinspect.profiles.xplane.split import event_contents, find_events
from hloinspect.profiles.xplane.varints import Bytes, Places, read_varints, words_of
from hloinspect.profiles.xplane.wire import VARINT, Buffer, WireError, fields, signed
from hloinspect.timeline.spans import Flags, Ints

WINDOW_BYTES = 1 << 23
BLOCK_EVENTS = 1 << 17
ROOM = 1.1
TOGETHER = 1 << 12
"""Events that are read together. Their bytes and arrays fit into a core's cache."""

MAX_EVENTS = 1 << 25
"""Most events of one line, far above what a profiler keeps (CUPTI's collector stops at 2 Mi).

An empty event takes two bytes in a file, and 25 in columns.
"""

STRAGGLERS = 64
MANY_ROUNDS = 48
"""Rounds after which events are read one by one, once only a few events with very many fields are left."""

PAD_BYTES = 32
_STATS_TAG = 0x22  # XEvent.stats: field 4 with a length
_METADATA_ID, _OFFSET_PS, _DURATION_PS = 0x08, 0x10, 0x18
_OCCURRENCES = 0x28
_MAX_TIME_PS = 1 << 62
_MANY_IDS = 1 << 20
_VALUE_TAGS = {0x11: DOUBLE, 0x18: UINT64, 0x20: INT64, 0x2A: STR, 0x32: BYTES, 0x38: REF}


@dataclass(frozen=True, slots=True)
class _Slot:
    """A requested statistic: its values in one block, and its different texts in all blocks."""

    kinds: NDArray[np.uint8]
    bits: Ints
    texts: dict[bytes, int]

    def put(self, event: int, kind: int, value: int | bytes) -> None:
        self.kinds[event] = kind
        self.bits[event] = self.texts.setdefault(value, len(self.texts)) if isinstance(value, bytes) else signed(value)


@dataclass(slots=True)
class _Wanted:
    """The requested statistics by id. ``table`` gives the slot of an id, or -1. Its last element is that of all greater
    ids."""

    slots: dict[int, int]
    table: Ints


@dataclass(frozen=True, slots=True)
class _Table:
    """The columns of events of a line."""

    metadata_id: Ints
    offset_ps: Ints
    duration_ps: Ints
    timed: Flags
    counted: Flags
    slots: tuple[_Slot, ...]

    def part(self, begin: int, end: int) -> _Table:
        """Return the table of some of the events, which shares its memory with this one."""
        return _Table(
            self.metadata_id[begin:end],
            self.offset_ps[begin:end],
            self.duration_ps[begin:end],
            self.timed[begin:end],
            self.counted[begin:end],
            tuple(_Slot(slot.kinds[begin:end], slot.bits[begin:end], slot.texts) for slot in self.slots),
        )


def _new_table(size: int, texts: Sequence[dict[bytes, int]]) -> _Table:
    slots = tuple(_Slot(np.zeros(size, np.uint8), np.zeros(size, np.int64), own) for own in texts)
    metadata_id, offset_ps, duration_ps = (np.zeros(size, np.int64) for _ in range(3))
    return _Table(metadata_id, offset_ps, duration_ps, np.zeros(size, np.bool_), np.zeros(size, np.bool_), slots)


def _grown(table: _Table, size: int, texts: Sequence[dict[bytes, int]]) -> _Table:
    """Return a table with the same events and room for more."""
    new, count = _new_table(size, texts), len(table.metadata_id)
    for name in ("metadata_id", "offset_ps", "duration_ps", "timed", "counted"):
        getattr(new, name)[:count] = getattr(table, name)
    for slot, old in zip(new.slots, table.slots, strict=True):
        slot.kinds[:count], slot.bits[:count] = old.kinds, old.bits
    return new


@dataclass(slots=True)
class _Block:
    """Some events of a line that are being read: where the next field of each begins, and where each event ends."""

    data: memoryview
    buffer: Bytes
    words: Places
    position: Ints
    end: Ints
    wanted: _Wanted
    table: _Table


def line_columns(
    data: Buffer, start: int, end: int, names: Sequence[str], stat_names: Mapping[int, str], origin_ps: int
) -> Columns:
    """Return the events of an XLine as columns, with statistics by name. Raises WireError.

    The line's first event begins at ``start``, and the line ends at ``end``. ``stat_names`` are those of the plane.
    Offsets count from ``origin_ps``.
    """
    wanted = _wanted(names, stat_names)
    layouts = Layouts(wanted.slots, _VALUE_TAGS)
    texts: list[dict[bytes, int]] = [{} for _ in names]
    table, count = _new_table(0, texts), 0
    for window, tags, share in _windows(data, start, end):
        if count + len(tags) > len(table.metadata_id):
            # Room for the rest too, if it is like this part. Memory that is not written is not used.
            table = _grown(table, min(MAX_EVENTS, count + int(len(tags) * max(1.0, ROOM * share))), texts)
        for first in range(0, len(tags), BLOCK_EVENTS):
            own = tags[first : first + BLOCK_EVENTS]
            block = _new_block(window, own, wanted, table.part(count, count + len(own)))
            if wanted.slots:  # without them most bytes of an event are not read
                _read_alike(block, layouts)
            _read_events(block)
            count += len(own)
    table = table.part(0, count)
    start_ps, end_ps, usable = _times(table, origin_ps)
    stats = {
        name: StatColumn(slot.kinds, slot.bits, tuple(slot.texts), stat_names)
        for name, slot in zip(names, table.slots, strict=True)
    }
    return Columns(table.metadata_id, start_ps, end_ps, usable, stats)


def _wanted(names: Sequence[str], stat_names: Mapping[int, str]) -> _Wanted:
    """Return the requested statistics by id.

    Ids above a million, which no profiler gives, are not in the table. ``_read_stat`` finds them one by one.
    """
    numbers = {name: number for number, name in sorted(stat_names.items(), reverse=True)}
    slots = {numbers[name]: slot for slot, name in enumerate(names) if name in numbers}
    small = {number: slot for number, slot in slots.items() if 0 <= number < _MANY_IDS}
    table = np.full(max(small, default=0) + 2, -1, np.int64)
    for number, slot in small.items():
        table[number] = slot
    return _Wanted(slots, table)


def _new_block(data: memoryview, tags: Ints, wanted: _Wanted, table: _Table) -> _Block:
    return _Block(data, np.frombuffer(data, np.uint8), words_of(data), *event_contents(data, tags), wanted, table)


def _times(table: _Table, origin_ps: int) -> tuple[Ints, Ints, Flags]:
    """Return start, end, and which events have a valid time. Numbers that do not fit are set to the start of the
    line."""
    offset, duration = table.offset_ps, table.duration_ps
    possible = (offset >= -_MAX_TIME_PS) & (offset <= _MAX_TIME_PS) & (duration >= 0)
    if not possible.all():
        offset = np.where(possible, offset, 0)
    possible &= duration <= _MAX_TIME_PS - offset
    usable = possible & (table.timed | ~table.counted)
    if not usable.all():
        offset, duration = np.where(usable, offset, 0), np.where(usable, duration, 0)
    start = offset + origin_ps
    return start, start + duration, usable


# ---- where each event lies


def _windows(data: Buffer, start: int, end: int) -> Iterator[tuple[memoryview, Ints, float]]:
    """Yield parts of a line, where the events in each lie, and the ratio of the line's rest to the part.

    Each part is a copy that replaces the one before. The rest includes the part. Bytes follow a copy, so that a number
    at its end can be read at full length.

    A copy is fast to make and fast to read at random: it stays in the caches, and numpy requests large pages for it.
    """
    position, size, count = start, WINDOW_BYTES, 0
    everything = np.frombuffer(data, np.uint8)
    room = np.empty(0, np.uint8)
    while position < end:
        length = min(size, end - position)
        if len(room) < length + PAD_BYTES:
            room = np.empty(length + PAD_BYTES, np.uint8)
        room[:length] = everything[position : position + length]
        room[length : length + PAD_BYTES] = 0
        window = memoryview(room)[: length + PAD_BYTES]
        tags, used = find_events(window, length, position + length == end)
        if not used:
            size *= 2  # one event, or one other field, that is longer than the part
            continue
        count += len(tags)
        if count > MAX_EVENTS:
            raise WireError(f"a line has more than {MAX_EVENTS:,} events")
        if len(tags):
            yield window, tags, (end - position) / used
        position += used
        size = WINDOW_BYTES


# ---- reading events together


def _read_events(block: _Block) -> None:
    left = np.flatnonzero(block.position < block.end)
    for begin in range(0, len(left), TOGETHER):
        _read_some(block, left[begin : begin + TOGETHER])


def _read_alike(block: _Block, layouts: Layouts) -> None:
    """Read the events that have a frequent layout, and set their position to their end."""
    table = block.table
    homes = {METADATA_ID: table.metadata_id, OFFSET_PS: table.offset_ps, DURATION_PS: table.duration_ps}
    layout_of = np.zeros(len(block.position), np.uint16)

    def keep(events: Ints, layout: EventLayout, numbers: Iterable[Ints]) -> None:
        layout_of[events] = layout.number
        for what, values in zip(layout.fields, numbers, strict=True):
            home = table.slots[what.slot].bits if what.number == STAT else homes.get(what.number)
            if home is not None:
                home[events] = values

    left = layouts.read(block.data, block.position, block.end - block.position, keep)
    _keep_kinds(table, layouts.every, layout_of)
    begin = block.position[left]
    block.position = block.end.copy()
    block.position[left] = begin


def _keep_kinds(table: _Table, layouts: Sequence[EventLayout], layout_of: NDArray[np.uint16]) -> None:
    """Record which fields each event has, by its layout: 0 for none."""
    size = len(layouts) + 1
    kinds = np.zeros((len(table.slots), size), np.uint8)
    timed, counted = np.zeros(size, np.bool_), np.zeros(size, np.bool_)
    for layout in layouts:
        for what in layout.fields:
            if what.number == STAT:
                kinds[what.slot, layout.number] = what.kind
            timed[layout.number] |= what.number == OFFSET_PS
            counted[layout.number] |= what.number == OCCURRENCES
    table.timed[:] = timed.take(layout_of)
    if counted.any():
        table.counted[:] = counted.take(layout_of)
    for slot, own in zip(table.slots, kinds, strict=True):
        if own.any():
            slot.kinds[:] = own.take(layout_of)


def _read_some(block: _Block, live: Ints) -> None:
    rounds = 0
    while live.size:
        if rounds >= MANY_ROUNDS and live.size < STRAGGLERS:
            for event in live.tolist():
                _read_event(block, event)
            return
        live = _read_field(block, live)
        rounds += 1


def _read_field(block: _Block, live: Ints) -> Ints:
    """Read the next field of the events ``live``. Return those of them that have more fields."""
    tags = block.buffer[block.position[live]]
    if (tags == tags[0]).all():
        _read_fields_of(block, int(tags[0]), live)
    else:
        for tag in np.flatnonzero(np.bincount(tags)).tolist():
            _read_fields_of(block, tag, live[tags == tag])
    left = block.end[live] - block.position[live]
    if (left < 0).any():
        raise WireError("an event is cut off")
    return live[left > 0]


def _read_fields_of(block: _Block, tag: int, members: Ints) -> None:
    """Read the next field of the events ``members``, which have all the same tag there."""
    if tag == _STATS_TAG:
        _read_stats(block, members)
        return
    if tag not in (_METADATA_ID, _OFFSET_PS, _DURATION_PS, _OCCURRENCES):
        for event in members.tolist():
            begin, end = int(block.position[event]), int(block.end[event])
            block.position[event] = next(fields(block.data, begin, end))[4]
        return
    values, behind = read_varints(block.buffer, block.words, block.position[members] + 1)
    block.position[members] = behind
    if tag == _OCCURRENCES:
        block.table.counted[members] = True
    elif tag == _METADATA_ID:
        block.table.metadata_id[members] = values
    elif tag == _DURATION_PS:
        block.table.duration_ps[members] = values
    else:
        block.table.offset_ps[members] = values
        block.table.timed[members] = True


def _read_stats(block: _Block, members: Ints) -> None:
    """Step over the next statistic of each event, and keep it if it was requested.

    Fields are written in the order of their numbers. So where no statistic is requested, an event whose time is known
    has only statistics left, and nothing more of it is read.
    """
    if not block.wanted.slots:
        done = block.table.timed[members]
        block.position[members[done]] = block.end[members[done]]
        members = members[~done]
        if not members.size:
            return
    size, begin = read_varints(block.buffer, block.words, block.position[members] + 1)
    if ((size < 0) | (size > block.end[members] - begin)).any():
        raise WireError("an event is cut off")
    end = begin + size
    block.position[members] = end
    if not block.wanted.slots:
        return
    # XStat: metadata_id = 1 comes before the value. Statistics that are written differently are read one by one.
    number, value = read_varints(block.buffer, block.words, begin + 1)
    plain = (block.buffer[begin] == _METADATA_ID) & (value <= end) & (number >= 0) & (number < _MANY_IDS)
    table = block.wanted.table
    slot = table[np.clip(number, 0, len(table) - 1)]
    chosen = np.flatnonzero((slot >= 0) & plain & (value < end))
    if chosen.size:
        _keep_stats(block, members[chosen], slot[chosen], value[chosen], end[chosen])
    if not plain.all():
        for index in np.flatnonzero(~plain).tolist():
            _read_stat(block, int(members[index]), int(begin[index]), int(end[index]))


def _keep_stats(block: _Block, members: Ints, slots: Ints, position: Ints, end: Ints) -> None:
    """Read the values at ``position``. Each field of the oneof XStat.value has its own tag."""
    tags = block.buffer[position]
    for number in np.flatnonzero(np.bincount(slots)).tolist():
        slot = block.table.slots[number]
        own = slots == number
        for tag in np.flatnonzero(np.bincount(tags[own])).tolist():
            these = np.flatnonzero(own & (tags == tag))
            events, at, stop = members[these], position[these] + 1, end[these]
            kind = _VALUE_TAGS.get(tag)
            if kind in (UINT64, INT64, REF):
                values, behind = read_varints(block.buffer, block.words, at)
            elif kind == DOUBLE:
                values, behind = block.words[at].view(np.int64), at + 8
            else:
                for event, begin, finish in zip(events.tolist(), at.tolist(), stop.tolist(), strict=True):
                    _read_value(block, slot, event, begin - 1, finish)
                continue
            if (behind != stop).any():
                raise WireError("a statistic is damaged")
            slot.kinds[events] = kind
            slot.bits[events] = values


# ---- reading one event


def _read_event(block: _Block, event: int) -> None:
    """Read the remaining fields of one event."""
    begin, finish = int(block.position[event]), int(block.end[event])
    for number, wire, value, start, end in fields(block.data, begin, finish):
        if number == 4 and wire != VARINT:
            _read_stat(block, event, start, end)
        elif wire == VARINT and number == 1:
            block.table.metadata_id[event] = signed(value)
        elif wire == VARINT and number == 2:
            block.table.offset_ps[event], block.table.timed[event] = signed(value), True
        elif wire == VARINT and number == 3:
            block.table.duration_ps[event] = signed(value)
        elif wire == VARINT and number == 5:
            block.table.counted[event] = True
    block.position[event] = finish


def _read_stat(block: _Block, event: int, start: int, end: int) -> None:
    """Keep the statistic in ``[start, end)`` if it was requested, in whatever order its fields are written."""
    number = 0
    for field_number, wire, value, _, _ in fields(block.data, start, end):
        if field_number == 1 and wire == VARINT:
            number = signed(value)
    slot = block.wanted.slots.get(number)
    if slot is not None:
        _read_value(block, block.table.slots[slot], event, start, end)


def _read_value(block: _Block, slot: _Slot, event: int, start: int, end: int) -> None:
    for number, wire, value, begin, finish in fields(block.data, start, end):
        kind = _VALUE_TAGS.get(number << 3 | wire, ABSENT)
        if kind in (UINT64, INT64, REF):
            slot.put(event, kind, value)
        elif kind == DOUBLE:
            slot.put(event, kind, int.from_bytes(block.data[begin:finish], "little"))
        elif kind:
            slot.put(event, kind, bytes(block.data[begin:finish]))
