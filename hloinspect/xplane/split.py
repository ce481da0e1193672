"""Finds where the events of a line lie.

Each event says how long it is, so each is found from the one before: a walk that Python does slowly. Many stretches
of a line are walked at once with numpy instead, each from a place that is guessed: the statistics of an event have the
same tag as the events of a line, so a walk that begins anywhere among them soon is at an event's begin. A guess that no
walk from the line's true begin arrives at is not used.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hloinspect.xplane.space import Flags, Ints
from hloinspect.xplane.varints import Bytes
from hloinspect.xplane.wire import WireError, fields, varint

EVENT_TAG = 0x22  # XLine.events and XEvent.stats: field 4 with a length
LANE_BYTES = 1 << 13
MIN_LANES = 16
_WARM_UP = 24
_FEW = 24
"""So few walks are cheaper one event at a time."""

_AFTER = np.array([2 + length if length < 128 else 3 + (length & 127) for length in range(256)])
"""How far behind an event's tag the next one is, by the first byte of its length; the second one is still to be
added."""

_LINE_HEAD = (1, 2, 3)  # id, name, timestamp_ns


def split(chunk: bytes, size: int, is_last: bool) -> tuple[Ints, int]:
    """Where each whole event's tag stands in the first ``size`` bytes of a stretch of a line, and how much of it these
    and other fields take.

    The chunk goes on for ten bytes more. A last field that is cut off is left, unless ``is_last``. Raises WireError.
    """
    lanes = _walk(chunk, size) if size >= MIN_LANES * LANE_BYTES else _NO_LANES
    parts: list[Ints] = []
    single: list[int] = []
    position = 0
    while position < size:
        lane = lanes.number.get(position)
        if lane is not None and lanes.counts[lane]:
            if single:
                parts.append(np.array(single, np.int64))
                single = []
            parts.append(lanes.places[lane, : lanes.counts[lane]])
            position = lanes.ends[lane]
            continue
        try:
            is_event, behind = _next(chunk, position, size)
        except WireError:
            if is_last:
                raise
            break
        if is_event:
            single.append(position)
        position = behind
    parts.append(np.array(single, np.int64))
    return np.concatenate(parts), position


def _next(chunk: bytes, position: int, size: int) -> tuple[bool, int]:
    """Whether the field at ``position`` is an event, and the index behind it."""
    if chunk[position] == EVENT_TAG:
        length, behind = varint(chunk, position + 1, size)
        if length > size - behind:
            raise WireError("it is cut off")
        return True, behind + length
    number, _, _, _, behind = next(fields(chunk, position, size))
    if number in _LINE_HEAD:
        raise WireError("a line of it names itself behind its events")
    return False, behind


@dataclass(frozen=True, slots=True)
class _Lanes:
    """Walks: for each its events, how many they are, and where the next one would be. ``number`` is by begin."""

    number: dict[int, int]
    places: Ints
    counts: list[int]
    ends: list[int]


_NO_LANES = _Lanes({}, np.zeros((0, 0), np.int64), [], [])


def _walk(chunk: bytes, size: int) -> _Lanes:
    """Walks from many places to where the next walk began, or to what is no whole event of less than 16 KB."""
    buffer = np.frombuffer(chunk, np.uint8)
    starts = _starts(chunk, buffer, size)
    steps: list[Ints] = []
    taken, ends = np.zeros(len(starts), np.int64), starts.copy()
    live, position, stop = np.arange(len(starts)), starts, np.append(starts[1:], size)

    def leave(gone: Flags, where: Ints) -> None:
        ends[live[gone]], taken[live[gone]] = where[gone], len(steps)

    while live.size >= _FEW:
        good, behind = _step(buffer, position, size)
        if not good.all():
            leave(~good, position)
            live, position, stop, behind = live[good], position[good], stop[good], behind[good]
        steps.append(position if len(live) == len(starts) else _spread(position, live, len(starts)))
        position, more = behind, behind < stop
        if not more.all():
            leave(~more, position)
            live, position, stop = live[more], position[more], stop[more]
    ends[live], taken[live] = position, len(steps)
    places = np.stack(steps, axis=1) if steps else np.zeros((len(starts), 0), np.int64)
    number = {start: lane for lane, start in enumerate(starts.tolist())}
    return _Lanes(number, places, taken.tolist(), ends.tolist())


def _spread(values: Ints, at: Ints, size: int) -> Ints:
    found = np.zeros(size, np.int64)
    found[at] = values
    return found


def _starts(chunk: bytes, buffer: Bytes, size: int) -> Ints:
    """The true begin, and a guess every few thousand bytes."""
    guesses = [chunk.find(EVENT_TAG, at, size) for at in range(LANE_BYTES, size - LANE_BYTES, LANE_BYTES)]
    position = np.array([guess for guess in guesses if guess >= 0], np.int64)
    for _ in range(_WARM_UP):
        good, behind = _step(buffer, position, size)
        lost = np.flatnonzero(~good)
        if lost.size:  # it was no tag
            again = [chunk.find(EVENT_TAG, at + 1, size) for at in position[lost].tolist()]
            behind[lost] = np.where(np.array(again) < 0, size, again)
        position = behind[behind < size]
    return np.unique(np.append(position, 0))


def _step(buffer: Bytes, position: Ints, size: int) -> tuple[Flags, Ints]:
    """Whether a whole event may be at each position, and the index behind it. Lengths of one and two bytes are read."""
    length = buffer.take(position + 1)
    behind = position + _AFTER.take(length)
    good = buffer.take(position) == EVENT_TAG
    long = np.flatnonzero(length > 127)
    if long.size:
        more = buffer.take(position[long] + 2).astype(np.int64)
        behind[long] += more << 7
        good[long] &= more < 128
    good &= behind <= size
    return good, behind
