"""Model of a profiler's trace: planes (a device, a host), lines (a stream, a thread), and events as columns."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from hloinspect.timeline.spans import Flags, Ints

StatValue = int | float | str | bytes
ProfileKind = Literal["xplane", "chrome", "nsys", "nsys-jax"]
"""Formats of profiles: XSpace, Chrome trace, an export of Nsight Systems (SQLite), an archive of nsys-jax."""

ABSENT, DOUBLE, UINT64, INT64, STR, BYTES, REF = 0, 2, 3, 4, 5, 6, 7
"""Types of a statistic's value: 0 for nothing, else the number of the field in XStat's oneof."""


@dataclass(frozen=True, slots=True)
class StatColumn:
    """One statistic of every event of a line.

    ``kinds`` (uint8) is the type of its value for each event. ``bits`` (int64) is the number, the bits of a double, an
    index into ``texts`` (STR and BYTES), or the id of a statistic whose name is the text (REF, ``names``).
    """

    kinds: NDArray[np.uint8]
    bits: Ints
    texts: tuple[bytes, ...]
    names: Mapping[int, str]

    @property
    def present(self) -> Flags:
        """Return which events have it, as one bool for each event."""
        return np.not_equal(self.kinds, ABSENT)

    def integers(self, absent: int = 0) -> Ints:
        """Return its integers, and ``absent`` for events without one.

        A uint64 of 2**63 or more becomes negative (``signed``).
        """
        whole = (self.kinds == INT64) | (self.kinds == UINT64)
        return np.where(whole, self.bits, np.int64(absent))

    def numbers(self, absent: float = 0.0) -> NDArray[np.float64]:
        """Return its integers and doubles, and ``absent`` for events without one."""
        found = np.full(len(self.bits), absent, np.float64)
        signed, unsigned, double = (self.kinds == kind for kind in (INT64, UINT64, DOUBLE))
        found[signed] = self.bits[signed]
        found[unsigned] = self.bits[unsigned].view(np.uint64)
        found[double] = self.bits[double].view(np.float64)
        return found

    def labels(self) -> tuple[Ints, tuple[str, ...]]:
        """Return the index of each event's text (-1 for none), and the different texts."""
        codes = np.full(len(self.bits), -1, np.int64)
        found: dict[str, int] = {}
        for kinds in ((STR, BYTES), (REF,)):
            chosen = np.isin(self.kinds, kinds)
            values, inverse = np.unique(self.bits[chosen], return_inverse=True)
            own = [self.names.get(v, "") if kinds == (REF,) else _text(self.texts[v]) for v in values.tolist()]
            numbers = [found.setdefault(text, len(found)) for text in own]
            codes[chosen] = np.array(numbers, np.int64)[inverse]
        return codes, tuple(found)


def number_column(values: Ints, present: Flags, kind: int) -> StatColumn:
    """Return a statistic of numbers of a type, for the events that have it."""
    return StatColumn(present.astype(np.uint8) * np.uint8(kind), values.astype(np.int64), (), {})


def name_column(ids: Ints, present: Flags, names: Mapping[int, str]) -> StatColumn:
    """Return a statistic of texts, which are ``names`` by their ids, for the events that have it."""
    return StatColumn(present.astype(np.uint8) * np.uint8(REF), ids.astype(np.int64), (), names)


def absent_column(size: int) -> StatColumn:
    """Return a statistic that none of ``size`` events has."""
    return StatColumn(np.zeros(size, np.uint8), np.zeros(size, np.int64), (), {})


@dataclass(frozen=True, slots=True)
class Columns:
    """The events of a line in the order of the file. Every array has one element for each event.

    ``start_ps`` and ``end_ps`` count from the trace's ``base_ns``. ``usable`` is false for an event without a time of
    its own: it stands for many events (``num_occurrences``, of the option gpu_aggregated_tracing), or its time is
    impossible (negative, or beyond 64 bits).
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
        """Return the duration of each event in picoseconds."""
        return self.end_ps - self.start_ps


def held(columns: Columns) -> Callable[[Sequence[str]], Columns]:
    """Return a line's ``decode`` for events that are in memory: statistics that it does not have, no event has."""

    def decode(stats: Sequence[str]) -> Columns:
        own = {name: columns.stats.get(name) or absent_column(len(columns)) for name in stats}
        return Columns(columns.metadata_id, columns.start_ps, columns.end_ps, columns.usable, own)

    return decode


@dataclass(frozen=True, slots=True)
class EventMetadata:
    """Name and constant statistics of all events of one kind. ``stats`` are by name."""

    id: int
    name: str
    display_name: str
    stats: Mapping[str, StatValue]


@dataclass(frozen=True, slots=True)
class Line:
    """A stream or a thread. The offsets of its events count from ``timestamp_ns``, as the file has it."""

    id: int
    name: str
    timestamp_ns: int
    decode: Callable[[Sequence[str]], Columns]

    def columns(self, stats: Sequence[str] = ()) -> Columns:
        """Return its events and the requested statistics by name. Each statistic has a column, even if no event has it.

        Every call decodes the events again, so keep the result. Raises InputError where the events are damaged.
        """
        return self.decode(stats)


@dataclass(frozen=True, slots=True)
class PlaneMetadata:
    """The tables of a plane: kinds of events and of statistics by id, and statistics of the plane itself by name."""

    events: Mapping[int, EventMetadata]
    stat_names: Mapping[int, str]
    stats: Mapping[str, StatValue]


@dataclass(frozen=True)
class Plane:
    """A device or a host (``/device:GPU:0``, ``/host:CPU``). Its tables are decoded at first use."""

    id: int
    name: str
    lines: tuple[Line, ...]
    read_metadata: Callable[[], PlaneMetadata]

    @cached_property
    def metadata(self) -> PlaneMetadata:
        """Return the decoded tables. Raises InputError where they are damaged."""
        return self.read_metadata()

    @property
    def events(self) -> Mapping[int, EventMetadata]:
        """Return the kinds of events by id. An event may have an id that is missing here."""
        return self.metadata.events

    @property
    def stats(self) -> Mapping[str, StatValue]:
        """Return the statistics of the plane by name, such as ``gpu_device_name`` and ``memory_bandwidth``."""
        return self.metadata.stats


@dataclass(frozen=True, slots=True)
class Gap:
    """Something that a trace of its kind, or this one, does not show: the reason, a remedy, and what is unknown
    therefore."""

    reason: str
    remedy: str
    affects: Literal["time", "transfers"]


@dataclass(frozen=True, slots=True)
class XSpace:
    """A trace that was read from ``path``.

    Times of columns count from ``base_ns``. It is 0, or the earliest line's time where the file has UNIX times, whose
    picoseconds do not fit into 64 bits. ``capped``: the format holds at most a million events, so the profiler may have
    left some out. ``errors`` and ``warnings`` are those of the profiler, such as dropped events. ``kind`` is the format
    that was read. ``gaps`` is what the reader knows to be missing, ``notes`` what it says besides.
    """

    path: str
    planes: tuple[Plane, ...]
    errors: tuple[str, ...]
    warnings: tuple[str, ...]
    hostnames: tuple[str, ...]
    base_ns: int = 0
    capped: bool = False
    kind: ProfileKind = "xplane"
    gaps: tuple[Gap, ...] = ()
    notes: tuple[str, ...] = ()

    def planes_of(self, prefix: str) -> tuple[Plane, ...]:
        """Return the planes whose names begin with ``prefix``, such as ``/device:GPU:``."""
        return tuple(plane for plane in self.planes if plane.name.startswith(prefix))


def _text(data: bytes) -> str:
    return data.decode("utf-8", "replace")
