"""The model of a profiler's trace: planes (a device, a host), lines (a stream, a thread), and events as columns."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Flags = NDArray[np.bool_]
StatValue = int | float | str | bytes

ABSENT, DOUBLE, UINT64, INT64, STR, BYTES, REF = 0, 2, 3, 4, 5, 6, 7
"""What a statistic holds: 0 for nothing, else the number of the field in XStat's oneof."""


@dataclass(frozen=True, slots=True)
class StatColumn:
    """One statistic of every event of a line.

    ``kinds`` (uint8) says what each event has of it. ``bits`` (int64) is the number itself, a double's bits, an index
    into ``texts`` (STR and BYTES), or the id of a statistic whose name is the text (REF; ``names``).
    """

    kinds: NDArray[np.uint8]
    bits: Ints
    texts: tuple[bytes, ...]
    names: Mapping[int, str]

    @property
    def present(self) -> Flags:
        """Which events have it."""
        return np.not_equal(self.kinds, ABSENT)

    def integers(self, absent: int = 0) -> Ints:
        """Its integers; ``absent`` where an event has none. A uint64 above 2**63 comes out negative (``signed``)."""
        whole = (self.kinds == INT64) | (self.kinds == UINT64)
        return np.where(whole, self.bits, np.int64(absent))

    def numbers(self, absent: float = 0.0) -> NDArray[np.float64]:
        """Its numbers, whole or not; ``absent`` where an event has none."""
        found = np.full(len(self.bits), absent, np.float64)
        signed, unsigned, double = (self.kinds == kind for kind in (INT64, UINT64, DOUBLE))
        found[signed] = self.bits[signed]
        found[unsigned] = self.bits[unsigned].view(np.uint64)
        found[double] = self.bits[double].view(np.float64)
        return found

    def labels(self) -> tuple[Ints, tuple[str, ...]]:
        """Its texts, each once, and for every event the index of its own (-1 where it has none)."""
        codes = np.full(len(self.bits), -1, np.int64)
        found: dict[str, int] = {}
        for kinds in ((STR, BYTES), (REF,)):
            chosen = np.isin(self.kinds, kinds)
            values, inverse = np.unique(self.bits[chosen], return_inverse=True)
            own = [self.names.get(v, "") if kinds == (REF,) else _text(self.texts[v]) for v in values.tolist()]
            numbers = [found.setdefault(text, len(found)) for text in own]
            codes[chosen] = np.array(numbers, np.int64)[inverse]
        return codes, tuple(found)


@dataclass(frozen=True, slots=True)
class Columns:
    """The events of a line, in the order of the file; every array has one element an event.

    ``start_ps`` and ``end_ps`` count from the trace's ``base_ns``. ``usable`` is false for an event that has no time of
    its own: one that stands for many (``num_occurrences``, of the option gpu_aggregated_tracing), or one whose time
    cannot be (negative, or beyond 64 bits).
    """

    metadata_id: Ints
    start_ps: Ints
    end_ps: Ints
    usable: Flags
    stats: Mapping[str, StatColumn]

    def __len__(self) -> int:
        return len(self.metadata_id)

    @property
    def duration_ps(self) -> Ints:
        return self.end_ps - self.start_ps


@dataclass(frozen=True, slots=True)
class EventMetadata:
    """What all events of one kind share. ``stats`` are constant ones, by name."""

    id: int
    name: str
    display_name: str
    stats: Mapping[str, StatValue]


@dataclass(frozen=True, slots=True)
class Line:
    """A stream or a thread. ``timestamp_ns`` is what its events' offsets count from, as the file has it."""

    id: int
    name: str
    timestamp_ns: int
    decode: Callable[[Sequence[str]], Columns]

    def columns(self, stats: Sequence[str] = ()) -> Columns:
        """Its events, with the statistics asked for by name (a column each, also of those that no event has).

        Decoded anew at every call: keep the result. Raises InputError where the events are damaged.
        """
        return self.decode(stats)


@dataclass(frozen=True, slots=True)
class PlaneMetadata:
    """The tables of a plane: kinds of events and of statistics by id, statistics of the plane itself by name."""

    events: Mapping[int, EventMetadata]
    stat_names: Mapping[int, str]
    stats: Mapping[str, StatValue]


@dataclass(frozen=True)
class Plane:
    """A device or a host (``/device:GPU:0``, ``/host:CPU``). Its tables are decoded when they are first asked for."""

    id: int
    name: str
    lines: tuple[Line, ...]
    read_metadata: Callable[[], PlaneMetadata]

    @cached_property
    def metadata(self) -> PlaneMetadata:
        """Raises InputError where the tables are damaged."""
        return self.read_metadata()

    @property
    def events(self) -> Mapping[int, EventMetadata]:
        """Kinds of events by id. An event may have an id that is not there."""
        return self.metadata.events

    @property
    def stats(self) -> Mapping[str, StatValue]:
        """Statistics of the plane by name: ``gpu_device_name``, ``memory_bandwidth``."""
        return self.metadata.stats


@dataclass(frozen=True, slots=True)
class XSpace:
    """A trace. ``path`` is what it was read from.

    Times of columns count from ``base_ns``: 0, or the earliest line's time where the file has UNIX times, of which
    picoseconds do not fit into 64 bits. ``capped``: the format holds at most a million events, and the profiler may
    have left some out. ``errors`` and ``warnings`` are the profiler's: it says there that it dropped events.
    """

    path: str
    planes: tuple[Plane, ...]
    errors: tuple[str, ...]
    warnings: tuple[str, ...]
    hostnames: tuple[str, ...]
    base_ns: int = 0
    capped: bool = False

    def planes_of(self, prefix: str) -> tuple[Plane, ...]:
        """The planes whose names begin with ``prefix``, such as ``/device:GPU:``."""
        return tuple(plane for plane in self.planes if plane.name.startswith(prefix))


def _text(data: bytes) -> str:
    return data.decode("utf-8", "replace")
