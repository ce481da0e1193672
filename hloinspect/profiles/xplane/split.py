"""Finding where the events of a line lie.

Each event has its own length, so each one is found from the one before, which is slow in Python. Here numpy steps
through many parts of a line at once, each from a guessed place. The statistics of an event have the same tag as the
events of a line, so steps that begin at a statistic soon reach the start of an event. A guess is used only if the steps
from the line's true start arrive at it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hloinspect.profiles.xplane.varints import Bytes, Quads, quads_of, read_varints, words_of
from hloinspect.profiles.xplane.wire import BytesLike, WireError, fields, varint
from hloinspect.timeline.spans import Flags, Ints

EVENT_TAG = 0x22  # XLine.events and XEvent.stats: field 4 with a length
LANE_BYTES = (1 << 13) + 3 * 64
"""Bytes between guessed places. It is no power of two, since these places would share few sets of a cache."""

MIN_LANES = 16
_WARM_UP = 8
_FEW = 24
"""Number of walks below which reading one event at a time is faster."""

_WINDOW = 1 << 8
_METADATA_ID, _OFFSET_PS = 0x08, 0x10
_FAR = 1 << 40
_HEAD = np.dtype([("tag", "u1"), ("length", "<u2"), ("rest", "u1")])


def _lengths() -> Ints:
    table = np.full((256, 256), _FAR)  # by the second byte and the first
    low = np.arange(128)
    table[:, :128] = 2 + low
    table[:128, 128:] = 3 + low + (low[:, None] << 7)
    return table.ravel()


_AFTER = _lengths()
"""Distance from an event's tag to the next one, by the two bytes behind it. It is _FAR for a length of more bytes."""

_LINE_HEAD = (1, 2, 3)  # id, name, timestamp_ns


def find_events(data: BytesLike, end: int, is_last: bool) -> tuple[Ints, int]:
    """Return where the tag of each whole event stands in the first ``end`` bytes, and where these fields end.

    The data are a part of a line, and continue for ten bytes behind ``end``. A last field that is cut off is left out
    unless ``is_last``. Raises WireError.
    """
    lanes = _walk(data, end) if end >= MIN_LANES * LANE_BYTES else _NO_LANES
    parts: list[Ints] = []
    single: list[int] = []
    position = 0
    while position < end:
        lane = lanes.number.get(position)
        if lane is not None and lanes.counts[lane]:
            if single:
                parts.append(np.array(single, np.int64))
                single = []
            last = int(lanes.broken[np.searchsorted(lanes.broken, lane)])
            places = lanes.places[lane : last + 1]
            parts.append(places[np.arange(places.shape[1]) < lanes.counts[lane : last + 1, None]])
            position = int(lanes.ends[last])
            continue
        try:
            is_event, behind = _next(data, position, end)
        except WireError:
            if is_last:
                raise
            break
        if is_event:
            single.append(position)
        position = behind
    parts.append(np.array(single, np.int64))
    return np.concatenate(parts), position


def event_contents(data: BytesLike, tags: Ints) -> tuple[Ints, Ints]:
    """Return where the contents of the events with these tags begin and end. The data continue for ten bytes behind a
    tag."""
    _, length = _heads(quads_of(data), tags)
    begin = tags + 2
    begin += length & np.uint16(128) > 0
    end = _AFTER.take(length)
    longer = np.flatnonzero(end == _FAR)
    end += tags
    if longer.size:
        size, begin[longer] = read_varints(np.frombuffer(data, np.uint8), words_of(data), tags[longer] + 1)
        end[longer] = begin[longer] + size
    return begin, end


def _next(data: BytesLike, position: int, end: int) -> tuple[bool, int]:
    """Return whether the field at ``position`` is an event, and the index behind it."""
    if data[position] == EVENT_TAG:
        length, behind = varint(data, position + 1, end)
        if length > end - behind:
            raise WireError("it is cut off")
        return True, behind + length
    number, _, _, _, behind = next(fields(data, position, end))
    if number in _LINE_HEAD:
        raise WireError("a line has its name after its events")
    return False, behind


@dataclass(frozen=True, slots=True)
class _Lanes:
    """Walks in the order of their starts.

    Each has its events (a row of ``places``), their number, and the place of its next event. ``number`` is by start.
    ``broken`` are the walks that do not end where the next one begins.
    """

    number: dict[int, int]
    places: Ints
    counts: Ints
    ends: Ints
    broken: Ints


_NONE = np.zeros(0, np.int64)
_NO_LANES = _Lanes({}, np.zeros((0, 0), np.int64), _NONE, _NONE, _NONE)


def _walk(data: BytesLike, end: int) -> _Lanes:
    """Return walks from many places. Each ends where the next began, or at anything but a whole event below 16 KB."""
    quads = quads_of(data)
    starts = _starts(data, quads, end)
    steps: list[Ints] = []
    taken, ends = np.zeros(len(starts), np.int64), starts.copy()
    live, position, stop = np.arange(len(starts)), starts, np.append(starts[1:], end)

    def leave(gone: Flags, where: Ints) -> None:
        ends[live[gone]], taken[live[gone]] = where[gone], len(steps)

    while live.size >= _FEW:
        good, behind = _step(quads, position)
        more = behind < stop
        if not (good & more).all():
            good &= behind <= end
            leave(~good, position)
            more &= good
            steps.append(_spread(position, live, len(starts)))
            leave(good & ~more, behind)
            live, behind, stop = live[more], behind[more], stop[more]
        else:
            steps.append(position if len(live) == len(starts) else _spread(position, live, len(starts)))
        position = behind
    ends[live], taken[live] = position, len(steps)
    places = np.stack(steps, axis=1) if steps else np.zeros((len(starts), 0), np.int64)
    number = {begin: lane for lane, begin in enumerate(starts.tolist())}
    broken = np.append(np.flatnonzero(ends[:-1] != starts[1:]), len(starts) - 1)
    return _Lanes(number, places, taken, ends, broken)


def _spread(values: Ints, at: Ints, size: int) -> Ints:
    found = np.zeros(size, np.int64)
    found[at] = values
    return found


def _starts(data: BytesLike, quads: Quads, end: int) -> Ints:
    """Return the true start and a guess every few thousand bytes: the place most like an event, and then a few steps
    on."""
    width, count = min(_WINDOW, LANE_BYTES), max(0, end // LANE_BYTES - 2)
    bytes_at = [np.ndarray((count, width), np.uint8, data, LANE_BYTES + at, (LANE_BYTES, 1)) for at in range(8)]
    is_tag = bytes_at[0] == EVENT_TAG
    # An event is its length, metadata_id and offset_ps. A statistic has no field with the tag of offset_ps.
    is_event = is_tag & ((bytes_at[2] == _METADATA_ID) | (bytes_at[3] == _METADATA_ID))
    is_event &= np.any([bytes_at[at] == _OFFSET_PS for at in (4, 5, 6, 7)], axis=0)
    guess = np.where(is_event.any(axis=1), is_event.argmax(axis=1), is_tag.argmax(axis=1))
    position = LANE_BYTES * np.arange(1, count + 1) + guess
    for _ in range(_WARM_UP):
        good, behind = _step(quads, position)
        position = behind[good]
        position = position[position < end]
    position = np.sort(np.append(position, 0))
    found: Ints = position[np.append(True, position[1:] > position[:-1])]
    return found


def _step(quads: Quads, position: Ints) -> tuple[Flags, Ints]:
    """Return whether each position may be an event, and the index behind it. Lengths of one and two bytes are read."""
    tag, length = _heads(quads, position)
    behind = _AFTER.take(length)
    behind += position
    return tag == EVENT_TAG, behind


def _heads(quads: Quads, position: Ints) -> tuple[Bytes, NDArray[np.uint16]]:
    """Return the byte at each position, and the two bytes behind it as a number."""
    head = quads[position].view(_HEAD)
    return head["tag"], head["length"]
