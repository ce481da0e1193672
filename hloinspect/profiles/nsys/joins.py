"""Join of what ran on devices with XLA's instructions: row, launching call, and the range around the call.

A row and its call have one correlation id, which is unique in a process only. The innermost NVTX range on the call's
thread that contains all of the call names the instruction; the range of a module around that names the program. What a
CUDA graph ran was launched as one: its instruction is that of the range in which the node of the graph was made.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hloinspect.profiles.nsys import names
from hloinspect.profiles.nsys.database import ABSENT, ROW, Database
from hloinspect.profiles.nsys.ranges import Ranges, innermost, nearest, nested
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
    """XLA's ranges. ``op`` is for each an index into ``ops``, ``program`` one into ``programs``, -1 for none."""

    ranges: Ranges
    op: Ints
    program: Ints
    ops: tuple[str, ...]
    programs: tuple[Program, ...]


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
    columns = database.integers(NVTX, ("start", "end", "eventType", "globalTid", "endGlobalTid", "textId", "domainId"))
    usable = (columns["eventType"] == PUSH_POP) & (columns["start"] != ABSENT) & (columns["globalTid"] != ABSENT)
    usable &= (columns["endGlobalTid"] == ABSENT) | (columns["endGlobalTid"] == columns["globalTid"])
    usable &= columns["end"] >= columns["start"]  # one that was never closed has no end, and is around nothing
    usable &= _in_domain(database, columns["globalTid"], columns["domainId"])
    kind, texts = _kinds(database, columns["textId"])
    chosen = np.flatnonzero(usable & (kind >= 0))
    kind = kind[chosen]
    thread, start, end = (columns[name][chosen] for name in ("globalTid", "start", "end"))
    ranges = nested(thread, start, end, kind)
    is_module = np.array([text.startswith(names.MODULE) for text in texts], np.bool_)
    ops: dict[str, int] = {"": -1}
    for text in texts:
        ops.setdefault(names.thunk_op(text), len(ops) - 1)
    op_of = np.array([ops[names.thunk_op(text)] for text in texts], np.int64)
    programs, program_of = _programs(np.unique(kind[is_module[kind]]), texts)
    op = _of_nearest(ranges, op_of)
    return XlaRanges(ranges, op, _of_nearest(ranges, program_of), tuple(op for op in ops if op), programs)


def _of_nearest(ranges: Ranges, of_kind: Ints) -> Ints:
    """Return for each range what its kind has, or the kind of the nearest range around it that has something."""
    if not len(ranges):
        return np.zeros(0, np.int64)
    own = of_kind[ranges.kind]
    around = nearest(ranges, own >= 0)
    return np.where(around >= 0, own[around], -1)


def _kinds(database: Database, text_id: Ints) -> tuple[Ints, list[str]]:
    """Return for each row the index of its name, -1 where it is none of XLA's, and these names."""
    texts: dict[str, int] = {}
    kind = np.full(len(text_id), -1, np.int64)
    wanted = np.unique(text_id[text_id != ABSENT])
    registered = strings_of(database, frozenset(wanted.tolist()), names.MAX_NAME)
    is_ours = {number: text for number, text in registered.items() if text.startswith((names.THUNK, names.MODULE))}
    if len(wanted):
        number_of = np.array(
            [texts.setdefault(is_ours[n], len(texts)) if n in is_ours else -1 for n in wanted.tolist()]
        )
        place = np.minimum(np.searchsorted(wanted, text_id), len(wanted) - 1)
        kind = np.where(wanted[place] == text_id, number_of[place], -1)
    if "text" in database.columns(NVTX):
        written = _written(database)
        if written:
            row = database.integers(NVTX, (ROW,))[ROW]
            place = np.searchsorted(row, np.array([number for number, _ in written]))
            kind[place] = [texts.setdefault(text, len(texts)) for _, text in written]
    return kind, list(texts)


def _written(database: Database) -> list[tuple[int, str]]:
    """Return the rows whose name of XLA is in the row itself: SQLite's number of each, and the name."""
    conditions = (f"(text >= '{prefix}' AND text < '{prefix[:-1]}$')" for prefix in (names.THUNK, names.MODULE))
    where = f"typeof(text) = 'text' AND ({' OR '.join(conditions)})"
    found = database.numbered(NVTX, f"substr(text, 1, {names.MAX_NAME})", where)
    return [(row, text) for row, text in found if text.startswith((names.THUNK, names.MODULE))]


def _in_domain(database: Database, thread: Ints, domain: Ints) -> Flags:
    """Return which ranges may be XLA's by their domain. Each process numbers its domains for itself."""
    rows = database.rows(NVTX, ("domainId", "globalTid", "text", "textId"), f"eventType = {DOMAIN}", _DOMAINS)
    found = [row for row in rows if isinstance(row[0], int) and isinstance(row[1], int)]
    registered = strings_of(database, frozenset(row[3] for row in found if isinstance(row[3], int)), 256)
    own: dict[int, int] = {}
    known: set[int] = set()
    for number, tid, text, text_id in found:
        assert isinstance(number, int)
        assert isinstance(tid, int)
        name = text if isinstance(text, str) else registered.get(text_id, "") if isinstance(text_id, int) else ""
        known.add(tid & PROCESS_BITS)
        if name == names.TSL:
            own[tid & PROCESS_BITS] = number
    fits = np.ones(len(thread), np.bool_)
    process = thread & PROCESS_BITS
    for one in known:
        # A process whose rows of domains are partly cut off by --times may lack that of TSL.
        if one in own:
            fits &= (process != one) | (domain == own[one])
    return fits


def _programs(kinds: Ints, texts: Sequence[str]) -> tuple[tuple[Program, ...], Ints]:
    """Return the programs of the kinds of ranges that are modules, and for each kind the index of its program, -1 for
    none.

    Each process numbers its programs for itself. Where two have one number and other names, the later one gets a new
    number.
    """
    found: dict[names.ModuleName, int] = {}
    programs: list[Program] = []
    taken: set[int] = set()
    by_kind = np.full(len(texts), -1, np.int64)
    for kind in kinds.tolist():
        module = names.module_of(texts[kind])
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
    around = np.full(len(calls), -1, np.int64)
    used = np.zeros(len(calls), np.bool_)
    used[call[launched]] = True
    these = np.flatnonzero(used)
    around[these] = innermost(xla.ranges, calls.thread[these], calls.start[these], calls.end[these])
    op = np.full(len(rows), -1, np.int64)
    program = np.full(len(rows), -1, np.int64)
    if len(xla.ranges) and len(calls):
        place = np.where(launched, around[np.maximum(call, 0)], -1)
        inside = place >= 0
        op[inside], program[inside] = xla.op[place[inside]], xla.program[place[inside]]
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
    place = innermost(xla.ranges, thread, start, np.maximum(end, start))
    if not len(xla.ranges):
        return _Nodes(process, node, place, place)
    op = np.where(place >= 0, xla.op[place], -1)
    program = np.where(place >= 0, xla.program[place], -1)
    origin = _places(process, original, process, node)
    for _ in range(_MAX_CLONES):
        copied = (op < 0) & (origin >= 0)
        op, program = np.where(copied, op[origin], op), np.where(copied, program[origin], program)
    return _Nodes(process, node, op, program)
