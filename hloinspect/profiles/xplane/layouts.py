"""Reading together all events of equal layout: same fields, same statistics, numbers of the same lengths.

A profiler writes millions of events in a few dozen layouts. One event is read field by field. That shows which bytes of
it are structure (tags, lengths, ids of statistics, whether a number continues) and where the numbers lie. Among the
other events of its length, those with the same structure are found by comparing these bytes, and their numbers are read
from the same places. Events of any other kind are left to ``columns.py``, which reads all events.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from hloinspect.profiles.xplane.space import DOUBLE
from hloinspect.profiles.xplane.varints import Words, squeeze
from hloinspect.profiles.xplane.wire import BYTES, VARINT, BytesLike, WireError, fields, signed
from hloinspect.timeline.spans import Ints

MAX_BYTES = 1 << 10
MAX_LAYOUTS = 32
"""Most layouts of events of one length. Further ones are not used."""

MIN_EVENTS = 8
ROWS = 1 << 12
"""Events that are compared together. Their bytes and arrays fit into a core's cache."""

_MAX_TRIES = 4
METADATA_ID, OFFSET_PS, DURATION_PS, STAT, OCCURRENCES = 1, 2, 3, 4, 5
_NUMBERS = (METADATA_ID, OFFSET_PS, DURATION_PS, OCCURRENCES)
Rows = NDArray[np.void]
Sink = Callable[[Ints, "EventLayout", Iterable[Ints]], None]


@dataclass(frozen=True, slots=True)
class Field:
    """A number in an event: ``size`` bytes from its byte ``place`` on.

    ``slot`` and ``kind`` are those of a statistic (``space.py``).
    """

    number: int
    place: int
    size: int
    slot: int = -1
    kind: int = 0


@dataclass(frozen=True, slots=True)
class EventLayout:
    """A layout: events whose bytes are ``want`` where ``mask`` has ones have these ``fields``.

    ``mask`` and ``want`` are words of eight bytes. ``number`` counts from 1.
    """

    number: int
    mask: Words
    want: Words
    fields: tuple[Field, ...]


@dataclass(slots=True)
class Layouts:
    """The layouts found so far, by length of event.

    ``slots`` are the ids of the statistics to keep. ``kinds`` are the tags that their values may have.
    """

    slots: Mapping[int, int]
    kinds: Mapping[int, int]
    known: dict[int, list[EventLayout]] = field(default_factory=dict)
    every: list[EventLayout] = field(default_factory=list)

    def read(self, data: BytesLike, begin: Ints, length: Ints, sink: Sink) -> Ints:
        """Read the events that begin at ``begin`` as far as layouts allow. Return the indices of the events that are
        left.

        The ``sink`` gets the indices of events of equal layout, that layout, and the numbers of each of its fields.
        ``data`` continues for eight bytes behind the last event.
        """
        left: list[Ints] = []
        order = np.argsort(np.minimum(length, MAX_BYTES).astype(np.int16), kind="stable")
        ordered = length[order]
        edges = np.flatnonzero(ordered[1:] != ordered[:-1]) + 1
        for members in np.split(order, edges):
            size = int(length[members[0]])
            if len(members) < MIN_EVENTS or not 0 < size < MAX_BYTES:
                left.append(members)
                continue
            for piece in range(0, len(members), ROWS):
                left.append(self._read_alike(data, begin, members[piece : piece + ROWS], size, sink))
        return np.concatenate(left) if left else order

    def _read_alike(self, data: BytesLike, begin: Ints, members: Ints, size: int, sink: Sink) -> Ints:
        """Read the events ``members``, which have one length. Return the indices of those that are left."""
        rows = _rows(data, begin[members], size)
        layouts = self.known.setdefault(size, [])
        failed: list[int] = []
        tried = 0
        while len(members):
            if tried == len(layouts):
                if len(layouts) == MAX_LAYOUTS or len(failed) == _MAX_TRIES or len(members) < MIN_EVENTS:
                    break
                number = len(self.every) + 1
                made = layout_of(rows[:1].tobytes(), size, self.slots, self.kinds, number)
                if made is None:
                    failed.append(int(members[0]))
                    members, rows = members[1:], rows[1:]
                    continue
                layouts.append(made)
                self.every.append(made)
            layout = layouts[tried]
            tried += 1
            alike = _alike(rows, layout)
            if alike.all():
                sink(members, layout, _numbers(rows, layout))
                members = members[:0]
            elif alike.any():
                sink(members[alike], layout, _numbers(rows[alike], layout))
                members, rows = members[~alike], rows[~alike]
        return np.append(members, failed).astype(np.int64)


def _rows(data: BytesLike, begin: Ints, size: int) -> Rows:
    """Return the bytes of events of one length, one void of whole words each. The bytes behind an event fill the last
    word."""
    width = 8 * -(-size // 8)
    places = np.ndarray((len(data) - width + 1,), np.dtype(f"V{width}"), data, 0, (1,))
    return places[begin]


def _alike(rows: Rows, layout: EventLayout) -> NDArray[np.bool_]:
    words: Words = rows.view("<u8").reshape(len(rows), -1)
    differ: Words = (words[:, 0] ^ layout.want[0]) & layout.mask[0]
    for place in range(1, words.shape[1]):
        if layout.mask[place]:
            differ |= (words[:, place] ^ layout.want[place]) & layout.mask[place]
    same: NDArray[np.bool_] = differ == 0
    return same


def _numbers(rows: Rows, layout: EventLayout) -> Iterator[Ints]:
    stride, data = rows.itemsize, rows.view(np.uint8).data
    for one in layout.fields:
        place = min(one.place, stride - 8)
        words = np.ndarray((len(rows),), np.dtype("<u8"), data, place, (stride,))
        word = words >> np.uint64(8 * (one.place - place)) if one.place > place else words
        if one.kind == DOUBLE:
            value = word.view(np.int64)
        else:
            value = squeeze(word, min(one.size, 8)).view(np.int64)
            if one.size > 8:
                tail = np.ndarray((len(rows), one.size - 8), np.uint8, data, one.place + 8, (stride, 1))
                value |= (tail[:, 0] & 127).astype(np.int64) << 56
                if one.size == 10:
                    value |= tail[:, 1].astype(np.int64) << 63
        yield value


# ---- one event


def layout_of(
    event: bytes, size: int, slots: Mapping[int, int], kinds: Mapping[int, int], number: int = 1
) -> EventLayout | None:
    """Return the layout of an event, the first ``size`` bytes. Return None if it cannot be used to read other
    events."""
    draft = _Draft(bytearray(len(event)), bytearray(len(event)), event)
    seen: set[int] = set()
    found: list[Field] = []
    position = 0
    try:
        for tag, wire, _, start, end in fields(event, 0, size):
            if tag == STAT and wire == BYTES:
                draft.same(position, start)
                if not _stat(draft, start, end, slots, kinds, found):
                    return None
            elif tag in _NUMBERS and event[position] == tag << 3 | VARINT and tag not in seen:
                seen.add(tag)
                draft.same(position, position + 1)
                draft.number(position + 1, end)
                found.append(Field(tag, position + 1, end - position - 1))
            else:
                return None
            position = end
    except WireError:
        return None
    mask, want = (np.frombuffer(bytes(data), np.dtype("<u8")) for data in (draft.mask, draft.want))
    return EventLayout(number, mask, want, tuple(found))


@dataclass(frozen=True, slots=True)
class _Draft:
    mask: bytearray
    want: bytearray
    event: bytes

    def same(self, start: int, end: int) -> None:
        """Require these bytes to be equal."""
        self.mask[start:end] = b"\xff" * (end - start)
        self.want[start:end] = self.event[start:end]

    def number(self, start: int, end: int) -> None:
        """Require a varint of this length. Its value may be any."""
        self.mask[start:end] = b"\x80" * (end - start)
        self.want[start:end] = bytes(byte & 0x80 for byte in self.event[start:end])


def _stat(
    draft: _Draft, start: int, end: int, slots: Mapping[int, int], kinds: Mapping[int, int], found: list[Field]
) -> bool:
    """Return whether an XStat has its id and then at most one value. Add its number to ``found`` if it is requested."""
    parts = list(fields(draft.event, start, end))
    if not 0 < len(parts) < 3 or parts[0][:2] != (1, VARINT):
        return False
    behind = parts[0][4]
    draft.same(start, behind)
    if len(parts) == 1:
        return True
    _, wire, _, value, _ = parts[1]
    tag = draft.event[behind]
    kind = kinds.get(tag)
    slot = slots.get(signed(parts[0][2]), -1)
    if kind is None or (slot >= 0 and wire == BYTES):
        return False
    if wire == VARINT:
        draft.same(behind, behind + 1)
        draft.number(behind + 1, end)
    else:
        draft.same(behind, value)
    if slot >= 0:
        place = behind + 1 if wire == VARINT else value
        found.append(Field(STAT, place, end - place, slot, kind))
    return True
