"""The tables of an export that hold what ran on devices, and the calls that launched it, as columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from hloinspect.profiles.nsys.database import ABSENT, Database
from hloinspect.timeline.spans import Flags, Ints

KERNEL, MEMCPY, MEMSET, GRAPH = range(4)
"""What a row of ``Rows`` is: a kernel, a copy, a memset, a CUDA graph as a whole."""

_ACTIVITY = "CUPTI_ACTIVITY_KIND_"
TABLES = (f"{_ACTIVITY}KERNEL", f"{_ACTIVITY}MEMCPY", f"{_ACTIVITY}MEMSET", f"{_ACTIVITY}GRAPH_TRACE")
RUNTIME = f"{_ACTIVITY}RUNTIME"
NVTX = "NVTX_EVENTS"
NODES = "CUDA_GRAPH_NODE_EVENTS"
STRINGS = "StringIds"

_PLACE = ("start", "end", "deviceId", "contextId", "streamId", "correlationId", "globalPid")
_OWN: Mapping[int, Sequence[str]] = {
    KERNEL: ("demangledName", "graphNodeId"),
    MEMCPY: ("bytes", "copyKind", "srcKind", "dstKind", "graphNodeId"),
    MEMSET: ("bytes", "graphNodeId"),
    GRAPH: ("graphId", "graphExecId"),
}

PROCESS_BITS = ~0xFFFFFF
"""The bits of a ``globalTid`` that are its process: it is <hardware:8><VM:8><pid:24><tid:24>."""

_FAR_NS = 1 << 52
"""Times further than this from the middle of all (52 days) are no times. Picoseconds within it fit into 64 bits."""

_LONG_NS = 1 << 51
"""Times from here on (26 days) are UNIX times of ``--ts-normalize``: no session is as long."""


@dataclass(frozen=True, slots=True)
class Rows:
    """What ran on the devices, in the order of the tables. Times are ns as in the file.

    ``process`` is a ``globalPid``. ``node`` is the node of a CUDA graph of which a row is, ``ABSENT`` for none.
    ``detail`` has the columns of one table only; its rows begin at ``first`` of that table.
    """

    table: Ints
    start: Ints
    end: Ints
    process: Ints
    device: Ints
    context: Ints
    stream: Ints
    correlation: Ints
    node: Ints
    first: Sequence[int]
    detail: Sequence[Mapping[str, Ints]]

    def __len__(self) -> int:
        return len(self.start)

    def of(self, table: int) -> slice:
        """Return the place of the rows of a table."""
        return slice(self.first[table], self.first[table + 1])


@dataclass(frozen=True, slots=True)
class Calls:
    """Calls of the CUDA runtime and driver on the host."""

    start: Ints
    end: Ints
    thread: Ints
    correlation: Ints

    def __len__(self) -> int:
        return len(self.start)


def read_rows(database: Database) -> Rows:
    """Return what ran on the devices. Rows without times, device or stream are left out and counted."""
    parts: list[dict[str, Ints]] = []
    dropped = 0
    for number, table in enumerate(TABLES):
        sources = {column: column if column in database.columns(table) else _instead(column) for column in _OWN[number]}
        read = database.integers(table, (*_PLACE, *dict.fromkeys(sources.values())))
        found = {column: read[sources.get(column, column)] for column in (*_PLACE, *_OWN[number])}
        usable = found["end"] >= found["start"]
        for column in ("start", "deviceId", "streamId"):
            usable &= found[column] != ABSENT
        if not usable.all():
            dropped += int((~usable).sum())
            found = {column: values[usable] for column, values in found.items()}
        parts.append(found)
    if dropped:
        database.notes.append(f"{dropped:,} rows of devices have no time, device or stream, and are left out")
    sizes = [len(part["start"]) for part in parts]
    columns = {name: np.concatenate([part[name] for part in parts]) for name in _PLACE}
    node = np.concatenate([part.get("graphNodeId", np.full(len(part["start"]), ABSENT)) for part in parts])
    return Rows(
        np.repeat(np.arange(len(TABLES)), sizes),
        columns["start"],
        columns["end"],
        columns["globalPid"],
        columns["deviceId"],
        columns["contextId"],
        columns["streamId"],
        columns["correlationId"],
        node,
        tuple(np.cumsum([0, *sizes]).tolist()),
        tuple({own: part[own] for own in _OWN[number]} for number, part in enumerate(parts)),
    )


def _instead(column: str) -> str:
    return {"demangledName": "shortName", "graphExecId": "graphId"}.get(column, column)


def read_calls(database: Database) -> Calls:
    """Return the calls that have a correlation id."""
    columns = ("start", "end", "globalTid", "correlationId")
    found = database.integers(RUNTIME, columns)
    usable = (found["start"] != ABSENT) & (found["end"] >= found["start"]) & (found["correlationId"] > 0)
    if not usable.all():
        found = {column: values[usable] for column, values in found.items()}
    return Calls(*(found[column] for column in columns))


def strings_of(database: Database, wanted: frozenset[int], most: int) -> dict[int, str]:
    """Return the first ``most`` characters of the registered strings of these ids. Ids may be missing."""
    return database.texts(STRINGS, "id", "value", wanted, most) if wanted else {}


@dataclass(frozen=True, slots=True)
class Clock:
    """Where times begin: ``origin_ns`` of the file is 0 here."""

    origin_ns: int

    def to_ps(self, times_ns: Ints) -> tuple[Ints, Flags]:
        """Return times in ps, and which are times at all. Others become 0."""
        since = times_ns - self.origin_ns
        possible = (since > -_FAR_NS) & (since < _FAR_NS) & (times_ns != ABSENT)
        return np.where(possible, since, 0) * 1000, possible


def clock_of(starts: Sequence[Ints]) -> Clock:
    """Return where times begin: at 0 of the session, or earlier where events are from before the capture.

    Times of ``--ts-normalize`` are UNIX times. Then the first one is the begin.
    """
    every = np.concatenate([np.zeros(0, np.int64), *starts])
    if not len(every):
        return Clock(0)
    middle = int(np.partition(every, len(every) // 2)[len(every) // 2])
    near = every[(every > max(middle - _FAR_NS, ABSENT + 1)) & (every < middle + _FAR_NS)]
    first = int(near.min())
    return Clock(first if first > _LONG_NS else min(first, 0))
