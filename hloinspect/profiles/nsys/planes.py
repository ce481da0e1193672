"""Planes of an export of Nsight Systems: a device's streams and the host's calls, with XLA's statistics."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from hloinspect.errors import InputError
from hloinspect.profiles.distinct import distinct_rows
from hloinspect.profiles.nsys.database import ABSENT
from hloinspect.profiles.nsys.devices import Gpus
from hloinspect.profiles.nsys.joins import Joined
from hloinspect.profiles.nsys.tables import GRAPH, KERNEL, MEMCPY, MEMSET, Calls, Clock, Rows
from hloinspect.profiles.xplane.space import (
    INT64,
    UINT64,
    Columns,
    EventMetadata,
    Line,
    Plane,
    PlaneMetadata,
    StatColumn,
    absent_column,
    held,
    name_column,
    number_column,
)
from hloinspect.timeline.spans import Flags, Ints

MAX_LINES = 100_000
"""The most streams and threads of a file."""

_MEMORY = ("pageable", "pinned", "device", "array", "managed", "device_static", "managed_static", "unknown")
"""ENUM_CUDA_MEM_KIND, in the words of XLA's profiler. CUPTI's own numbers are others."""

_UNKNOWN = 7
_END = {0: "H", 1: "H", 2: "D", 3: "D", 5: "D"}
_COPY_ENDS = {1: "HD", 2: "DH", 3: "HD", 4: "DH", 5: "DD", 6: "DD", 7: "DD", 8: "DD", 9: "HH", 10: "DD"}
"""Ends of a copy by ENUM_CUDA_MEMCPY_OPER: host, device (or an array there, or a peer's)."""

_PEER, _MIGRATIONS = 10, (11, 12, 13)
MIGRATIONS = "Unified memory"
"""Name of the line with migrations of unified memory, which no stream runs."""

_STREAM_WORDS = {KERNEL: "Compute", MEMSET: "Memset", GRAPH: "Graph"}


class Texts:
    """A table of texts that statistics refer to: the names of statistics first, then their values."""

    def __init__(self, names: Sequence[str]) -> None:
        self._numbers = {name: number for number, name in enumerate(names, 1)}
        self.names: dict[int, str] = {number: name for name, number in self._numbers.items()}

    def number(self, text: str) -> int:
        """Return the number of a text, which is added if it is new."""
        number = self._numbers.setdefault(text, len(self._numbers) + 1)
        self.names[number] = text
        return number


@dataclass(slots=True)
class _Kinds:
    """Kinds of events by name."""

    numbers: dict[str, int] = field(default_factory=dict)

    def number(self, name: str) -> int:
        return self.numbers.setdefault(name, len(self.numbers) + 1)

    def table(self) -> dict[int, EventMetadata]:
        return {number: EventMetadata(number, name, "", {}) for name, number in self.numbers.items()}


@dataclass(frozen=True, slots=True)
class DeviceKey:
    """A device of a process."""

    process: int
    device: int

    @property
    def pid(self) -> int:
        """Return the process's number on its machine."""
        return (self.process >> 24) & 0xFFFFFF


_Array32 = NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class _Events:
    """All rows, sorted by line. Texts are numbers of ``Texts``, 0 for none."""

    start_ps: Ints
    end_ps: Ints
    usable: Flags
    kind: _Array32
    op: _Array32
    program: _Array32
    details: _Array32
    call: _Array32


# ---- devices


@dataclass(frozen=True, slots=True)
class Shared:
    """What all planes of a file share: its name for errors, the clock, the registered strings that are needed, and the
    table of texts."""

    name: str
    clock: Clock
    strings: Mapping[int, str]
    texts: Texts


def device_planes(
    rows: Rows, joined: Joined, gpus: Gpus, shared: Shared
) -> tuple[tuple[Plane, ...], tuple[DeviceKey, ...]]:
    """Return a plane for each device of each process, and which device of which process each is.

    Correlation ids of the planes are places of calls, from 1, since a process's own ids are unique in it only.
    """
    kinds, texts, clock = _Kinds(), shared.texts, shared.clock
    kind, details, is_migration = _labels(rows, shared.strings, kinds, texts)
    device_of, devices = distinct_rows((rows.process, rows.device))
    line_of, lines = distinct_rows(
        (device_of, np.where(is_migration, -1, rows.context), np.where(is_migration, -1, rows.stream))
    )
    if len(lines[0]) > MAX_LINES:
        raise InputError(f"{shared.name}: expected at most {MAX_LINES:,} streams, found {len(lines[0]):,}")
    order = np.argsort(line_of, kind="stable")
    start, is_begin = clock.to_ps(rows.start)
    end, is_end = clock.to_ps(rows.end)
    op = np.array([0, *(texts.number(op) for op in joined.ops)], np.int32)[joined.op + 1]
    events = _Events(
        start_ps=start[order],
        end_ps=end[order],
        usable=(is_begin & is_end)[order],
        kind=kind[order],
        op=op[order],
        program=(joined.program + 1).astype(np.int32)[order],
        details=details[order],
        call=(joined.call + 1).astype(np.int32)[order],
    )
    table = rows.table[order]
    programs = (
        np.array([0, *(program.number for program in joined.programs)], np.int64),
        np.array([0, *(texts.number(program.name) for program in joined.programs)], np.int64),
    )
    bounds = np.searchsorted(line_of[order], np.arange(len(lines[0]) + 1))
    keys = [DeviceKey(p, d) for p, d in zip(*(column.tolist() for column in devices), strict=True)]
    of_device: dict[int, list[Line]] = {}
    for number, (device, context, stream) in enumerate(zip(*(column.tolist() for column in lines), strict=True)):
        own = slice(int(bounds[number]), int(bounds[number + 1]))
        name = MIGRATIONS if context == stream == -1 else f"Stream #{stream}({_words(table[own], events, own, kinds)})"
        of_device.setdefault(device, []).append(Line(stream, name, 0, _decoder(events, own, programs, texts)))
    event_table = kinds.table()
    numbers = _numbers(keys)
    planes: list[Plane] = []
    places = sorted(range(len(keys)), key=lambda place: numbers[place])
    for place in places:
        key = keys[place]
        metadata = PlaneMetadata(event_table, texts.names, dict(gpus.stats(key.pid, key.device)))
        planes.append(_plane(len(planes) + 1, f"/device:GPU:{numbers[place]}", of_device[place], metadata))
    return tuple(planes), tuple(keys[place] for place in places)


def _plane(number: int, name: str, lines: Sequence[Line], metadata: PlaneMetadata) -> Plane:
    return Plane(number, name, tuple(lines), lambda: metadata)


def _numbers(keys: Sequence[DeviceKey]) -> list[int]:
    """Return the number of each device in names of planes: its own where no two are the same, else its place."""
    own = [key.device for key in keys]
    return own if len(set(own)) == len(own) else list(range(len(keys)))


def _words(table: Ints, events: _Events, own: slice, kinds: _Kinds) -> str:
    """Return what a stream does, as XLA's profiler writes it: ``Compute,MemcpyD2H``."""
    words = [word for number, word in _STREAM_WORDS.items() if (table == number).any()]
    names = {number: name for name, number in kinds.numbers.items()}
    copies = np.unique(events.kind[own][table == MEMCPY]).tolist()
    return ",".join([*words, *(names[number] for number in copies)])


def _labels(rows: Rows, strings: Mapping[int, str], kinds: _Kinds, texts: Texts) -> tuple[_Array32, _Array32, Flags]:
    """Return the kind of each row, the text of its copy's details (0 for none), and whether it is a migration."""
    kind, details = np.zeros(len(rows), np.int32), np.zeros(len(rows), np.int32)
    name = rows.detail[KERNEL]["demangledName"]
    code, (values,) = distinct_rows((name,))
    numbers = [kinds.number(strings.get(value, "kernel")) for value in values.tolist()]
    kind[rows.of(KERNEL)] = np.array(numbers, np.int32)[code]
    graph = rows.detail[GRAPH]["graphExecId"]
    code, (values,) = distinct_rows((graph,))
    numbers = [kinds.number(f"CudaGraphExec:{value if value != ABSENT else 0}") for value in values.tolist()]
    kind[rows.of(GRAPH)] = np.array(numbers, np.int32)[code]
    kind[rows.of(MEMSET)] = kinds.number("Memset")
    copy = rows.detail[MEMCPY]
    code, values_of = distinct_rows(
        (*(copy[name] for name in ("copyKind", "srcKind", "dstKind", "bytes")), rows.device[rows.of(MEMCPY)])
    )
    described = [_copy(*row) for row in zip(*(column.tolist() for column in values_of), strict=True)]
    kind[rows.of(MEMCPY)] = np.array([kinds.number(name) for name, _ in described], np.int32)[code]
    details[rows.of(MEMCPY)] = np.array([texts.number(text) for _, text in described], np.int32)[code]
    is_migration = np.zeros(len(rows), np.bool_)
    is_migration[rows.of(MEMCPY)] = np.isin(copy["copyKind"], _MIGRATIONS)
    return kind, details, is_migration


def _copy(operation: int, source: int, target: int, size: int, device: int) -> tuple[str, str]:
    """Return the name and the details of a copy, as XLA's profiler has them.

    The memory at both ends says what it is. Where that is unknown, the kind of the copy says its direction, and the
    details name no memory, as those of old traces do.
    """
    size = max(size, 0)
    if operation in _MIGRATIONS:
        return "MemcpyUVM", f"kind_src:managed kind_dst:managed size:{size} dest:{device} async:1"
    is_known = 0 <= source < _UNKNOWN and 0 <= target < _UNKNOWN
    ends = _END.get(source, "") + _END.get(target, "") if is_known else ""
    if len(ends) < 2:
        ends = _COPY_ENDS.get(operation, "")
    name = "MemcpyP2P" if operation == _PEER else f"Memcpy{ends[0]}2{ends[1]}" if ends else "Memcpy"
    if not is_known and ends in ("HD", "DH"):
        return name, f"size:{size} dest:{device} async:1"
    words = [_MEMORY[kind] if 0 <= kind < len(_MEMORY) else "unknown" for kind in (source, target)]
    return name, f"kind_src:{words[0]} kind_dst:{words[1]} size:{size} dest:{device} async:1"


Programs = tuple[Ints, Ints]
"""For each program, from 1: its number, and the text of its module's name. Both are 0 for none."""


def _decoder(events: _Events, own: slice, programs: Programs, texts: Texts) -> Callable[[Sequence[str]], Columns]:
    def named(numbers: NDArray[np.int32] | Ints) -> StatColumn:
        return name_column(numbers.astype(np.int64), numbers > 0, texts.names)

    def column(name: str) -> StatColumn:
        if name == "hlo_op":
            return named(events.op[own])
        if name == "memcpy_details":
            return named(events.details[own])
        if name == "hlo_module":
            return named(programs[1][events.program[own]])
        if name == "program_id":
            return number_column(programs[0][events.program[own]], events.program[own] > 0, INT64)
        if name == "correlation_id":
            return number_column(events.call[own].astype(np.int64), events.call[own] > 0, UINT64)
        return absent_column(len(events.kind[own]))

    def decode(stats: Sequence[str]) -> Columns:
        return Columns(
            events.kind[own].astype(np.int64),
            events.start_ps[own],
            events.end_ps[own],
            events.usable[own],
            {name: column(name) for name in stats},
        )

    return decode


# ---- the host


@dataclass(frozen=True, slots=True)
class Marks:
    """Steps that ranges of the user mark: times in ns, and the number of each."""

    thread: int
    start: Ints
    end: Ints
    number: Ints


def host_plane(number: int, calls: Calls, used: Flags, marks: Marks | None, shared: Shared) -> Plane:
    """Return the host's plane: the calls that launched something (``used``), a line for each thread, and marks of
    steps."""
    kinds, clock = _Kinds(), shared.clock
    chosen = np.flatnonzero(used)
    thread_of, (threads,) = distinct_rows((calls.thread[chosen],))
    if len(threads) > MAX_LINES:
        raise InputError(f"{shared.name}: expected at most {MAX_LINES:,} threads, found {len(threads):,}")
    order = np.argsort(thread_of, kind="stable")
    chosen = chosen[order]
    bounds = np.searchsorted(thread_of[order], np.arange(len(threads) + 1))
    kind = np.full(len(chosen), kinds.number("call"), np.int64)
    start, is_begin = clock.to_ps(calls.start[chosen])
    end, is_end = clock.to_ps(calls.end[chosen])
    lines = []
    for place, thread in enumerate(threads.tolist()):
        own = slice(int(bounds[place]), int(bounds[place + 1]))
        ids = number_column(chosen[own] + 1, np.ones(own.stop - own.start, np.bool_), UINT64)
        columns = Columns(kind[own], start[own], end[own], (is_begin & is_end)[own], {"correlation_id": ids})
        tid = thread & 0xFFFFFF
        lines.append(Line(tid, f"Host Threads/{tid}", 0, held(columns)))
    if marks is not None:
        begin, is_begin = clock.to_ps(marks.start)
        end, is_end = clock.to_ps(marks.end)
        steps = {"step_num": number_column(marks.number, np.ones(len(begin), np.bool_), INT64)}
        step_kind = np.full(len(begin), kinds.number("step"), np.int64)
        own_columns = Columns(step_kind, begin, np.maximum(begin, end), is_begin & is_end, steps)
        lines.append(Line(marks.thread & 0xFFFFFF, "NVTX steps", 0, held(own_columns)))
    metadata = PlaneMetadata(kinds.table(), shared.texts.names, {})
    return _plane(number, "/host:CPU", lines, metadata)
