"""Writes Perfetto traces: tracks with slices, instants and counters, names interned.

The messages are TracePacket, TrackEvent, TrackDescriptor and InternedData of Perfetto's protos (perfetto_trace.proto;
the field numbers here are those of release 0.59, and Perfetto does not change them). All packets are of one sequence.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hloinspect.errors import printable
from hloinspect.profiles.protowire import double_field, fixed64_field, integer_field, message_field, string_field

Value = int | float | str
BYTES, NO_UNIT = 3, 0
"""Units of counters (CounterDescriptor.Unit): bytes, or one that is named."""

_BEGIN, _END, _INSTANT, _COUNTER = 1, 2, 3, 4  # TrackEvent.Type
_CLEARED, _NEEDS_STATE = 1, 2  # TracePacket.SequenceFlags
_EXPLICIT = 3  # TrackDescriptor.ChildTracksOrdering
_NAMES, _ARGUMENTS, _TEXTS = 2, 3, 29  # fields of InternedData
_SEQUENCE = 1
_MAX = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class Slice:
    """A slice of a track, in picoseconds. ``flows`` go through it, ``ends`` end there; ``arguments`` are numbers of
    ``TraceWriter.arguments``."""

    start_ps: int
    end_ps: int
    name: str
    arguments: bytes = b""
    flows: tuple[int, ...] = ()
    ends: tuple[int, ...] = ()


class TraceWriter:
    """Collects packets. Times are written in whole nanoseconds, as Perfetto counts; same calls give same bytes."""

    def __init__(self) -> None:
        self._packets: list[bytes] = []
        self._interned: dict[tuple[int, str], int] = {}
        self._new: list[bytes] = []
        self._tracks = 0
        self._processes = 0
        first = integer_field(13, _CLEARED) + integer_field(87, 1)
        self._packets.append(_packet(first))

    def process(self, name: str) -> int:
        """Make a process, and return its track."""
        self._processes += 1
        process = (
            integer_field(1, self._processes) + string_field(6, printable(name)) + integer_field(3, self._processes)
        )
        return self._track(message_field(3, process) + integer_field(11, _EXPLICIT))

    def track(self, parent: int, name: str, rank: int, description: str = "") -> int:
        """Make a track for slices, the ``rank``-th of its parent's, and return it."""
        more = string_field(14, description) if description else b""
        return self._track(integer_field(5, parent) + string_field(2, printable(name)) + integer_field(12, rank) + more)

    def counter(self, parent: int, name: str, rank: int, unit: int, unit_name: str = "", description: str = "") -> int:
        """Make a track for a counter, and return it."""
        how = integer_field(3, unit) + (string_field(6, unit_name) if unit_name else b"")
        more = string_field(14, description) if description else b""
        return self._track(
            integer_field(5, parent)
            + string_field(2, printable(name))
            + integer_field(12, rank)
            + message_field(8, how)
            + more
        )

    def _track(self, descriptor: bytes) -> int:
        self._tracks += 1
        self._packets.append(_packet(message_field(60, integer_field(1, self._tracks) + descriptor)))
        return self._tracks

    def arguments(self, values: Mapping[str, Value | None]) -> bytes:
        """Return the arguments of a slice, encoded; those that are None are left out."""
        found = b""
        for name, value in values.items():
            if value is None:
                continue
            what = integer_field(1, self._number(_ARGUMENTS, name))
            if isinstance(value, str):
                what += integer_field(17, self._number(_TEXTS, printable(value)))
            elif isinstance(value, float):
                what += double_field(5, value)
            else:
                what += integer_field(4, max(-_MAX, min(_MAX, value)))
            found += message_field(4, what)
        return found

    def slices(self, track: int, slices: Sequence[Slice]) -> None:
        """Write the slices of a track, sorted by start, of which each lies in the one before or behind it; those
        without a duration are instants."""
        is_open: list[int] = []
        for one in slices:
            while is_open and is_open[-1] <= one.start_ps:
                self._end(track, is_open.pop())
            self._begin(track, one)
            if one.end_ps > one.start_ps:
                is_open.append(one.end_ps)
        while is_open:
            self._end(track, is_open.pop())

    def _begin(self, track: int, one: Slice) -> None:
        is_instant = one.end_ps == one.start_ps
        event = integer_field(9, _INSTANT if is_instant else _BEGIN) + integer_field(11, track)
        event += integer_field(10, self._number(_NAMES, printable(one.name))) + one.arguments
        event += b"".join(fixed64_field(47, flow) for flow in one.flows) + b"".join(
            fixed64_field(48, flow) for flow in one.ends
        )
        self._event(one.start_ps, event)

    def _end(self, track: int, at_ps: int) -> None:
        self._event(at_ps, integer_field(9, _END) + integer_field(11, track))

    def values(self, track: int, values: Sequence[tuple[int, Value]]) -> None:
        """Write the values of a counter: each holds from its time (picoseconds) on."""
        for at_ps, value in values:
            how = (
                double_field(44, value)
                if isinstance(value, float)
                else integer_field(30, max(-_MAX, min(_MAX, int(value))))
            )
            self._event(at_ps, integer_field(9, _COUNTER) + integer_field(11, track) + how)

    def _event(self, at_ps: int, event: bytes) -> None:
        state = message_field(12, b"".join(self._new)) if self._new else b""
        self._new.clear()
        head = integer_field(8, nanoseconds(at_ps)) + integer_field(13, _NEEDS_STATE)
        self._packets.append(_packet(head + state + message_field(11, event)))

    def _number(self, table: int, value: str) -> int:
        """Return the number of a text in a table; a new one is sent with the next packet."""
        key = (table, value)
        found = self._interned.get(key)
        if found is None:
            found = self._interned[key] = len(self._interned) + 1
            name = message_field(2, value.encode("utf-8", "replace"))
            self._new.append(message_field(table, integer_field(1, found) + name))
        return found

    def bytes(self) -> bytes:
        """Return the trace: the content of a ``.perfetto-trace`` file."""
        return b"".join(self._packets)


def nanoseconds(ps: int) -> int:
    """Return picoseconds as Perfetto has them; order is kept."""
    return max(0, (ps + 500) // 1000)


def _packet(content: bytes) -> bytes:
    return message_field(1, content + integer_field(10, _SEQUENCE))
