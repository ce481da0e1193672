"""Events of one GPU as columns. Their kind comes from the module, else from the memory that they copy, else from the
name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from hloinspect.kinds import D2H, ClassifiedBy, HostMemory
from hloinspect.measure import join
from hloinspect.measure.join import Joined, ProgramJoin
from hloinspect.measure.memcpy import PINNED, UNSTATED, CopyKind, copy_kind
from hloinspect.profiles.distinct import distinct, distinct_places, with_column
from hloinspect.profiles.xplane import Columns, Plane, StatColumn
from hloinspect.profiles.xplane.embedded import PROGRAM_ID
from hloinspect.profiles.xplane.space import REF
from hloinspect.timeline.spans import Flags, Ints

IGNORED, COMPUTE, COLLECTIVE, TO_HOST, FROM_HOST, HOST_COPY, OTHER_TO_HOST, OTHER_FROM_HOST, CALLBACK = range(9)
"""Kinds of events. A host copy goes both ways. The kinds ``OTHER_...`` are no offload of the program."""

MOVES = (TO_HOST, FROM_HOST, HOST_COPY)
BY_HLO, BY_MEMCPY, BY_NAME = range(3)
BY: tuple[ClassifiedBy, ...] = ("hlo", "memcpy", "name")
STREAM = "Stream #"
_OP_STATS = ("hlo_op", PROGRAM_ID, "memcpy_details")
_CORRELATION = "correlation_id"
COMMAND_BUFFER = "command_buffer"
GRAPH = "CudaGraphExec"
_PLAIN, _NCCL, _GRAPH, _MEMCPY = range(4)


@dataclass(frozen=True, slots=True)
class Op:
    """The common properties of all events of one kind.

    ``rank`` is the place in the program's schedule, ``pair`` the async pair (``Joined``), ``name`` the text to show.
    ``is_graph`` marks a whole CUDA graph as one event. ``memory`` is the host's side of a copy. ``instruction`` is the
    instruction that the events name, "" where they name none: the module may have no such instruction.
    """

    kind: int
    by: int
    program: int
    rank: int
    transfer: int
    bytes: int
    name: str
    is_hidden: bool = False
    is_graph: bool = False
    asynchronous: bool = True
    pair: int = 0
    instruction: str = ""
    memory: HostMemory = UNSTATED


OnLine = tuple[Ints, Ints, Ints, Ints, NDArray[np.int32], Ints]
"""The events of a stream: their places, begins, ends, the latest end so far, ops, and ranks."""


@dataclass(frozen=True)
class DeviceEvents:
    """Every event of a device, one element each, sorted by start.

    ``op`` is an index into ``ops``, ``line`` one into ``lines`` (ids of streams). ``correlation`` is 0 where an event
    has none.
    """

    start_ps: Ints
    end_ps: Ints
    op: NDArray[np.int32]
    line: NDArray[np.int32]
    correlation: Ints
    ops: tuple[Op, ...]
    lines: tuple[int, ...]
    unusable: int = 0
    tables: dict[str, Ints] = field(default_factory=dict)
    columns: dict[str, Ints] = field(default_factory=dict)
    on_lines: dict[int, OnLine] = field(default_factory=dict)

    @cached_property
    def spent(self) -> tuple[Ints, Ints]:
        """Return the time of all events of each op, in ps, and their number."""
        time = np.zeros(len(self.ops), np.int64)
        np.add.at(time, self.op, self.end_ps - self.start_ps)
        return time, np.bincount(self.op, minlength=len(self.ops))

    def flags(self, of_op: Flags) -> Flags:
        """Return for each event the flag of its op."""
        return of_op.take(self.op)

    def chosen(self, of_op: Flags) -> Ints:
        """Return the indices of the events whose op has its flag set."""
        return np.flatnonzero(of_op.take(self.op))

    def table(self, name: str) -> Ints:
        """Return an attribute of each op, as a column over ``ops``."""
        if name not in self.tables:
            self.tables[name] = np.array([int(getattr(op, name)) for op in self.ops], np.int64)
        return self.tables[name]

    def column(self, name: str) -> Ints:
        """Return an attribute of each event's op."""
        if name not in self.columns:
            self.columns[name] = self.table(name)[self.op]
        return self.columns[name]


def gpu_events(plane: Plane, join_to: Callable[[int], ProgramJoin | None], *, correlated: bool = True) -> DeviceEvents:
    """Return the events on a GPU's streams. Other lines (counters, overhead, lines of viewers) are not the device's.

    ``join_to`` gives the module of a program id, or None where the trace has none. Correlation ids are read if
    ``correlated``: they are useless where no launching calls were traced. Raises InputError where the plane is damaged.
    """
    table = _OpTable(plane, join_to)
    starts, ends, ops, lines, correlations = [], [], [], [], []
    ids: list[int] = []
    unusable = 0
    for line in plane.lines:
        if not line.name.startswith(STREAM):
            continue
        columns = line.columns((*_OP_STATS, _CORRELATION) if correlated else _OP_STATS)
        usable = columns.usable
        if not usable.all():
            unusable += int((~usable).sum())
        codes = table.codes(columns)
        correlation = columns.stats[_CORRELATION].integers() if correlated else np.zeros(len(codes), np.int64)
        if not usable.all():
            codes, correlation = codes[usable], correlation[usable]
        starts.append(columns.start_ps[usable] if not usable.all() else columns.start_ps)
        ends.append(columns.end_ps[usable] if not usable.all() else columns.end_ps)
        ops.append(codes)
        correlations.append(correlation)
        lines.append(np.full(len(codes), len(ids), np.int32))
        ids.append(line.id)
    none = np.zeros(0, np.int64)
    start, end, correlation = (np.concatenate([none, *parts]) for parts in (starts, ends, correlations))
    op = np.concatenate([none.astype(np.int32), *ops])
    line_of = np.concatenate([none.astype(np.int32), *lines])
    if (start[1:] < start[:-1]).any():
        order = np.argsort(start, kind="stable")
        start, end, op, line_of, correlation = (c[order] for c in (start, end, op, line_of, correlation))
    return DeviceEvents(start, end, op, line_of, correlation, tuple(table.ops), tuple(ids), unusable)


class _OpTable:
    """A table of the different kinds of events of a plane, each described once."""

    def __init__(self, plane: Plane, join_to: Callable[[int], ProgramJoin | None]) -> None:
        self._join_to = join_to
        self._names = {number: kind.name for number, kind in plane.events.items()}
        self._classes = {number: _name_class(name) for number, name in self._names.items()}
        self._numbers: dict[tuple[str, int, str, str], int] = {}
        self.ops: list[Op] = []

    def codes(self, columns: Columns) -> NDArray[np.int32]:
        """Return the op of each event, as an index into ``ops``."""
        events, which = self._different(columns)
        return self._codes(_some(columns, events)).take(which)

    def _different(self, columns: Columns) -> tuple[Ints, Ints]:
        """Return one event of each kind, in their order, and the kind of every event.

        Events of one kind agree in all that an op is derived from. There are far fewer kinds than events.
        """
        code, size = np.zeros(len(columns), np.int64), 1
        for name in _OP_STATS:
            for column in (columns.stats[name].kinds, columns.stats[name].bits):
                code, size = with_column(code, size, column)
        names, name_of = distinct(columns.metadata_id)
        classes = np.array([self._classes.get(name, _PLAIN) for name in names.tolist()], np.uint8)
        code, size = with_column(code, size, classes[name_of])
        _, events, which = distinct_places(code)
        order = np.argsort(events)
        place = np.empty(len(order), np.int64)
        place[order] = np.arange(len(order))
        return events[order], place.take(which)

    def _codes(self, columns: Columns) -> NDArray[np.int32]:
        hlo, hlo_names = labels(columns.stats["hlo_op"])
        details, detail_names = labels(columns.stats["memcpy_details"])
        program = columns.stats[PROGRAM_ID]
        numbers, which = distinct(program.integers())
        kinds, kind_of = distinct(columns.metadata_id)
        classes = np.array([self._classes.get(kind, _PLAIN) for kind in kinds.tolist()], np.int64)
        code = (hlo + 1) * len(numbers) + which
        code = (code * (len(detail_names) + 1) + details + 1) * 4 + (classes[kind_of] if len(kinds) else 0)
        _, index, inverse = distinct_places(code)
        own = np.zeros(len(index), np.int32)
        for place, event in enumerate(index.tolist()):
            op = hlo_names[hlo[event]] if hlo[event] >= 0 else ""
            detail = detail_names[details[event]] if details[event] >= 0 else ""
            name = self._names.get(int(columns.metadata_id[event]), "")
            number = int(numbers[which[event]]) if program.present[event] else 0
            own[place] = self._number(op, number, detail, name)
        return own[inverse]

    def _number(self, op: str, program: int, details: str, name: str) -> int:
        key = (op, program, details, name if not op else str(_name_class(name)) + (name if details else ""))
        if key not in self._numbers:
            self._numbers[key] = len(self.ops)
            module = self._join_to(program) if program or op else None
            found = _op(op, program, details, name, module)
            self.ops.append(replace(found, instruction="" if found.is_hidden else op))
        return self._numbers[key]


def _name_class(name: str) -> int:
    if name.startswith(("nccl", "ncclDevKernel", "rcclGeneric")):
        return _NCCL
    if name.startswith(GRAPH):
        return _GRAPH
    return _MEMCPY if name.startswith("Memcpy") else _PLAIN


def _op(op: str, program: int, details: str, name: str, module: ProgramJoin | None) -> Op:
    """Return the description of events that are called ``name``, name the instruction ``op``, and copy as ``details``
    says."""
    copy = copy_kind(details, name) if details else None
    is_graph = _name_class(name) == _GRAPH
    joined = module.find(op) if module is not None and op and not is_graph else None
    hidden = is_graph or (joined is None and op.startswith(COMMAND_BUFFER))
    shown = op or name
    size = copy.bytes if copy else 0
    if joined is not None:
        return _joined_op(joined, program, copy, name)
    if copy is not None:
        to_host = copy.direction == D2H
        ours = bool(program and op) and copy.memory in (PINNED, UNSTATED)
        kind = (TO_HOST if to_host else FROM_HOST) if ours else (OTHER_TO_HOST if to_host else OTHER_FROM_HOST)
        return Op(kind, BY_MEMCPY, program, -1, 0, size, shown, hidden, is_graph, memory=copy.memory)
    kind = COLLECTIVE if _name_class(name) == _NCCL else COMPUTE
    return Op(kind, BY_MEMCPY if details else BY_NAME, program, -1, 0, size, shown, hidden, is_graph)


def _joined_op(joined: Joined, program: int, copy: CopyKind | None, name: str) -> Op:
    kind, by, size, transfer = COMPUTE, BY_HLO, joined.bytes, 0
    to_host = copy.direction == D2H if copy else joined.direction == D2H
    if joined.kind == join.TRANSFER:
        kind, transfer = (TO_HOST if joined.direction == D2H else FROM_HOST), joined.transfer
        size = copy.bytes if copy else joined.bytes
    elif joined.kind == join.HOST_COPY:
        kind = HOST_COPY
    elif joined.kind == join.COLLECTIVE:
        kind = COLLECTIVE
    elif copy is not None and (joined.kind in (join.CALLBACK, join.CONTROL) or joined.is_custom_call):
        # a foreign function's copies are no offload, nor is a loop's condition that is copied to the host
        kind, size = (OTHER_TO_HOST if to_host else OTHER_FROM_HOST), copy.bytes
    elif joined.kind == join.CALLBACK:
        kind = CALLBACK
    elif copy is not None:
        kind, by, size = (TO_HOST if to_host else FROM_HOST), BY_MEMCPY, copy.bytes
    elif _name_class(name) == _NCCL:
        kind, by = COLLECTIVE, BY_NAME
    return Op(
        *(kind, by, program, joined.rank, transfer, size, joined.name),
        asynchronous=joined.asynchronous,
        pair=joined.pair,
        memory=copy.memory if copy else UNSTATED,
    )


# ---- columns of texts and numbers


def _some(columns: Columns, events: Ints) -> Columns:
    stats = {
        name: StatColumn(stat.kinds[events], stat.bits[events], stat.texts, stat.names)
        for name, stat in columns.stats.items()
    }
    start, end = columns.start_ps[events], columns.end_ps[events]
    return Columns(columns.metadata_id[events], start, end, columns.usable[events], stats)


def labels(column: StatColumn) -> tuple[Ints, tuple[str, ...]]:
    """Return what ``StatColumn.labels`` returns, without sorting: ids of names are small numbers."""
    kinds = column.kinds
    if not len(kinds) or not kinds.any():
        return np.full(len(kinds), -1, np.int64), ()
    is_ref = kinds == REF
    if (is_ref | (kinds == 0)).all():
        values, inverse = distinct(np.where(is_ref, column.bits, np.int64(-1)))
        names = [column.names.get(value, "") if value != -1 else None for value in values.tolist()]
        place = np.cumsum([name is not None for name in names]) - 1
        codes = np.where([name is not None for name in names], place, -1)
        return codes[inverse], tuple(name for name in names if name is not None)
    return column.labels()
