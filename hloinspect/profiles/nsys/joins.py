"""Join of what ran on devices with XLA's instructions: row, launching call, and the range around the call.

A row and its call have one correlation id, which is unique in a process only. The innermost NVTX range on the call's
thread that contains all of the call names the instruction; the range of a module around that names the program. What a
CUDA graph ran was launched as one: its instruction is that of the range in which the node of the graph was made.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hloinspect.profiles.distinct import distinct_rows
from hloinspect.profiles.nsys import names
from hloinspect.profiles.nsys.database import ABSENT, ROW, Database
from hloinspect.profiles.nsys.ranges import Ranges, innermost, nested
from hloinspect.profiles.nsys.tables import NODES, NVTX, PROCESS_BITS, Calls, Rows, strings_of
from hloinspect.timeline.spans import Flags, Ints

PUSH_POP, START_END, DOMAIN = 59, 60, 75
"""Values of NVTX_EVENTS.eventType (ENUM_NSYS_EVENT_TYPE)."""

COMMAND_BUFFER = "command_buffer"
_UNNUMBERED = 1 << 40
"""The first number of a program that its ranges do not number, or that has the number of another one."""

_MAX_CLONES = 8
_CORRELATION_BITS = 40
_DOMAINS = 10_000
"""The most rows of NVTX domains that are read."""


@dataclass(frozen=True, slots=True)
class Program:
    """A program that ranges name: the number that events have, and the name of its module."""

    number: int
    name: str


@dataclass(frozen=True, slots=True)
class XlaRanges:
    """XLA's ranges: of thunks, whose kinds are indices into ``ops``, and of modules, with indices into ``programs``."""

    thunks: Ranges
    modules: Ranges
    ops: tuple[str, ...]
    programs: tuple[Program, ...]

    def __len__(self) -> int:
        return len(self.thunks) + len(self.modules)

    def around(self, thread: Ints, start: Ints, end: Ints) -> tuple[Ints, Ints]:
        """Return the instruction and the program of the innermost ranges around each call, -1 for none."""
        found = []
        for ranges in (self.thunks, self.modules):
            place = innermost(ranges, thread, start, end)
            found.append(np.where(place >= 0, ranges.kind[place], -1) if len(ranges) else place)
        return found[0], found[1]


@dataclass(frozen=True, slots=True)
class Joined:
    """For each row: an index into ``ops``, one into ``programs``, and one of its call, -1 for none."""

    op: Ints
    program: Ints
    call: Ints
    ops: tuple[str, ...]
    programs: tuple[Program, ...]
    unlaunched: int


def xla_ranges(database: Database) -> XlaRanges:
    """Return XLA's ranges: those of the domain TSL, or where a process has no rows of domains, those named like
    them."""
    known = database.columns(NVTX)
    if not {"start", "end", "eventType", "globalTid"} <= set(known):
        none = nested(*(np.zeros(0, np.int64),) * 4)
        return XlaRanges(none, none, (), ())
    columns = database.integers(
        NVTX, ("start", "end", "eventType", "globalTid", "endGlobalTid", "textId", "domainId", ROW)
    )
    thread, start, end = columns["globalTid"], columns["start"], columns["end"]
    # One that was never closed has no end: it is around nothing, as in NVIDIA's own reports.
    usable = (columns["eventType"] == PUSH_POP) & (start != ABSENT) & (thread != ABSENT) & (end >= start)
    usable &= (columns["endGlobalTid"] == ABSENT) | (columns["endGlobalTid"] == thread)
    for process, domain in _domains(database, np.flatnonzero(columns["eventType"] == DOMAIN)).items():
        usable &= (thread & PROCESS_BITS != process) | (columns["domainId"] == domain)
    kind, texts = _kinds(database, columns["textId"], columns[ROW])
    usable &= kind >= 0

    def chosen(of_kind: Ints) -> Ranges:
        own = of_kind[kind] if len(of_kind) else kind
        these = np.flatnonzero(usable & (own >= 0))
        return nested(thread[these], start[these], end[these], own[these])

    ops: dict[str, int] = {"": -1}
    for text in texts:
        ops.setdefault(names.thunk_op(text), len(ops) - 1)
    programs, program_of = _programs(texts)
    thunks = chosen(np.array([ops[names.thunk_op(text)] for text in texts], np.int64))
    return XlaRanges(thunks, chosen(program_of), tuple(op for op in ops if op), programs)


def _kinds(database: Database, text_id: Ints, row: Ints) -> tuple[Ints, list[str]]:
    """Return for each row the index of its name, -1 where it is none of XLA's, and these names."""
    texts: dict[str, int] = {}
    code, (wanted,) = distinct_rows((np.where(text_id == ABSENT, -1, text_id),))  # small numbers are not sorted
    registered = strings_of(database, frozenset(wanted.tolist()), names.MAX_NAME)
    is_ours = {number: text for number, text in registered.items() if text.startswith((names.THUNK, names.MODULE))}
    number_of = [texts.setdefault(is_ours[n], len(texts)) if n in is_ours else -1 for n in wanted.tolist()]
    kind = np.array(number_of, np.int64)[code]
    if "text" in database.columns(NVTX):
        _add_written(database, row, kind, texts)
    return kind, list(texts)


def _add_written(database: Database, row: Ints, kind: Ints, texts: dict[str, int]) -> None:
    """Set the kinds of the rows that have their name in them, and add these names."""
    where = f"text >= '{names.THUNK}' AND text < '{names.MODULE[:-1]}$'"
    found: dict[bytes, list[int]] = {}
    for number, text in database.numbered(NVTX, f"substr(text, 1, {names.MAX_NAME})", where):
        found.setdefault(text, []).append(number)
    for text, rows in found.items():
        name = text.decode("utf-8", "replace")
        if name.startswith((names.THUNK, names.MODULE)):
            place = np.searchsorted(row, rows)
            kind[place[place < len(row)]] = texts.setdefault(name, len(texts))


def _domains(database: Database, is_there: Ints) -> dict[int, int]:
    """Return the number of the domain TSL by process. Each numbers its domains for itself.

    A process whose rows of domains are cut off, or that has none, is not there: its ranges are known by their names.
    """
    if not len(is_there):
        return {}
    rows = database.rows(NVTX, ("domainId", "globalTid", "text", "textId"), f"eventType = {DOMAIN}", _DOMAINS)
    found = [row for row in rows if isinstance(row[0], int) and isinstance(row[1], int)]
    registered = strings_of(database, frozenset(row[3] for row in found if isinstance(row[3], int)), 256)
    own: dict[int, int] = {}
    for number, tid, text, text_id in found:
        name = text if isinstance(text, str) else registered.get(text_id, "") if isinstance(text_id, int) else ""
        if name == names.TSL and isinstance(number, int) and isinstance(tid, int):
            own[tid & PROCESS_BITS] = number
    return own


def _programs(texts: Sequence[str]) -> tuple[tuple[Program, ...], Ints]:
    """Return the programs that names of ranges name, and for each name the index of its program, -1 for none.

    Each process numbers its programs for itself. Where two have one number and other names, the later one gets a new
    number.
    """
    found: dict[names.ModuleName, int] = {}
    programs: list[Program] = []
    taken: set[int] = set()
    by_kind = np.full(len(texts), -1, np.int64)
    for kind, text in enumerate(texts):
        module = names.module_of(text)
        if module is None:
            continue
        if module not in found:
            found[module] = len(programs)
            number = module.program if module.program and module.program not in taken else _UNNUMBERED + len(programs)
            taken.add(number)
            programs.append(Program(number, module.name))
        by_kind[kind] = found[module]
    return tuple(programs), by_kind


# ---- rows and their calls


def join_rows(database: Database, rows: Rows, calls: Calls, xla: XlaRanges) -> Joined:
    """Return the instruction, the program and the call of each row."""
    call = _calls_of(rows, calls)
    launched = call >= 0
    used = np.zeros(len(calls), np.bool_)
    used[call[launched]] = True
    these = np.flatnonzero(used)
    of_call = np.full((2, len(calls) + 1), -1, np.int32)  # the last one is for rows without a call
    of_call[:, these] = xla.around(calls.thread[these], calls.start[these], calls.end[these])
    op, program = of_call[0].take(call).astype(np.int64), of_call[1].take(call).astype(np.int64)
    ops = list(xla.ops)
    in_graph = np.flatnonzero(rows.node != ABSENT)
    if len(in_graph):
        nodes = _creations(database, xla)
        _join_nodes(nodes, rows, in_graph, _Found(op, program, ops))
    unlaunched = int((~launched & (rows.correlation > 0)).sum())
    return Joined(op, program, call, tuple(ops), xla.programs, unlaunched)


def _calls_of(rows: Rows, calls: Calls) -> Ints:
    """Return the index of each row's call, -1 for none: the one of its process with its correlation id."""
    if not len(calls) or not len(rows):
        return np.full(len(rows), -1, np.int64)
    call_process = calls.thread & PROCESS_BITS
    processes = np.unique(call_process)
    process = rows.process if len(processes) > 1 else np.where(rows.process == ABSENT, processes[0], rows.process)
    known, row_key = _keys(processes, process, rows.correlation)
    _, call_key = _keys(processes, call_process, calls.correlation)
    order = np.argsort(call_key)
    if (call_key[order[1:]] == call_key[order[:-1]]).any():  # not so in an export: the first one counts
        order = np.argsort(call_key, kind="stable")
    call_key = call_key[order]
    place = np.minimum(np.searchsorted(call_key, row_key), len(order) - 1)
    return np.where(known & (call_key[place] == row_key), order[place], -1)


def _keys(processes: Ints, process: Ints, correlation: Ints) -> tuple[Flags, Ints]:
    """Return whether each is of a known process with a correlation id, and a number of both."""
    number = np.minimum(np.searchsorted(processes, process), len(processes) - 1)
    known = (processes[number] == process) & (correlation > 0) & (correlation < 1 << _CORRELATION_BITS)
    return known, (number << _CORRELATION_BITS) | np.where(known, correlation, 0)


# ---- nodes of CUDA graphs


@dataclass(frozen=True, slots=True)
class _Found:
    """Instructions and programs of rows, which are filled in, and the names of the instructions."""

    op: Ints
    program: Ints
    ops: list[str]


@dataclass(frozen=True, slots=True)
class _Nodes:
    """Nodes of graphs, sorted by process and number, and the instruction and program of each, -1 for none."""

    process: Ints
    number: Ints
    op: Ints
    program: Ints


def _join_nodes(nodes: _Nodes, rows: Rows, in_graph: Ints, found: _Found) -> None:
    """Set the instructions of rows that CUDA graphs ran, by the creation of their nodes.

    Where that was not recorded, the name is that of a command buffer, which names no instruction of the module.
    """
    op, program, ops = found.op, found.program, found.ops
    node = _places(rows.process[in_graph], rows.node[in_graph], nodes.process, nodes.number)
    made = np.where(node >= 0, nodes.op[node], -1) if len(nodes.op) else node
    is_made = made >= 0
    those = in_graph[is_made]
    op[those] = made[is_made]
    program[those] = np.where(program[those] >= 0, program[those], nodes.program[node[is_made]])
    others = in_graph[~is_made]
    number = np.arange(-1, len(ops))
    for launch in np.unique(op[others]).tolist():
        name = ops[launch] if launch >= 0 else ""
        if not name.startswith(COMMAND_BUFFER):
            number[launch + 1] = len(ops)
            ops.append(f"{COMMAND_BUFFER} ({name})" if name else COMMAND_BUFFER)
    op[others] = number[op[others] + 1]


def _places(process: Ints, node: Ints, known: Ints, numbers: Ints) -> Ints:
    """Return the place of each node among sorted ones (``known`` processes, ``numbers``), -1 where it is not there."""
    if not len(known):
        return np.full(len(process), -1, np.int64)
    values, code = np.unique(np.concatenate((numbers, node)), return_inverse=True)
    _, part = np.unique(np.concatenate((known, process)), return_inverse=True)
    key = part * len(values) + code
    place = np.minimum(np.searchsorted(key[: len(known)], key[len(known) :]), len(known) - 1)
    return np.where(key[place] == key[len(known) :], place, -1)


def _creations(database: Database, xla: XlaRanges) -> _Nodes:
    """Return the nodes of graphs by their first creation. A clone is like its original."""
    columns = ("start", "end", "globalTid", "graphNodeId", "originalGraphNodeId")
    found = database.integers(NODES, columns)
    start, end, thread, node, original = (found[name] for name in columns)
    process = thread & PROCESS_BITS
    order = np.lexsort((start, node, process))
    same = np.zeros(len(order), np.bool_)
    same[1:] = (node[order[1:]] == node[order[:-1]]) & (process[order[1:]] == process[order[:-1]])
    order = order[~same]
    start, end, thread, node, original, process = (c[order] for c in (start, end, thread, node, original, process))
    op, program = xla.around(thread, start, np.maximum(end, start))
    origin = _places(process, original, process, node)
    for _ in range(_MAX_CLONES):
        copied = (op < 0) & (origin >= 0)
        op, program = np.where(copied, op[origin], op), np.where(copied, program[origin], program)
    return _Nodes(process, node, op, program)
