"""Which rows of a projected trace are events of a device, and the instruction and program of each.

Ranges are nested: XlaModule > Thunk ``while.1`` > Thunk ``fusion.3`` > a range of NCCL. The time of a range is that of
all GPU work launched in it, so the events are the deepest thunks. A thunk right inside one of the same name (an
asynchronous start has two ranges, a library call with a workspace too) is a part of that one.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hloinspect.errors import InputError
from hloinspect.profiles.nsys import names as titles
from hloinspect.profiles.nsys.archive_tables import Ranges
from hloinspect.timeline.spans import Flags, Ints

MAX_DEPTH = 256
"""Most levels of ranges. XLA nests one for each loop or branch around an instruction."""

_OTHER, _MODULE, _THUNK = range(3)


@dataclass(frozen=True, slots=True)
class Program:
    """A module that ran, by XLA's number and name. ``number`` is -1 where the range does not have it (autotuning)."""

    number: int
    name: str


@dataclass(frozen=True, slots=True)
class Work:
    """The events of a projected trace, sorted by start. Every array has one element for each event.

    ``row`` is its row in the trace. ``op`` is an index into ``ops`` (instruction names), ``program`` one into
    ``programs``, -1 for none, ``run`` the row of its program's range (XlaModule). ``lost_ops`` is the number of GPU
    operations that programs launched outside of any event, as far as that is known.
    """

    row: Ints
    op: Ints
    ops: tuple[str, ...]
    program: Ints
    programs: tuple[Program, ...]
    run: Ints
    lost_ops: int


def work_of(ranges: Ranges, path: str) -> Work:
    """Return the events of a trace. Raises InputError, which begins with ``path``, where ranges contain each other."""
    kinds, op_of_name, ops, program_of_name, programs = _read_names(ranges.names)
    kind = np.append(kinds, _OTHER)[ranges.name]
    parent = _parents(ranges)
    is_thunk = kind == _THUNK
    thunks = np.flatnonzero(is_thunk)
    above = _nearest(parent, thunks, is_thunk, path)
    module = _nearest(parent, thunks, kind == _MODULE, path)
    op = np.append(op_of_name, -1)[ranges.name]
    is_part = np.zeros(len(kind), np.bool_)
    is_part[thunks] = (above >= 0) & (op[above] == op[thunks])
    encloses = np.zeros(len(kind), np.bool_)
    encloses[above[(above >= 0) & ~is_part[thunks]]] = True
    while True:  # what a part contains, the range around it contains too
        more = above[is_part[thunks] & encloses[thunks]]
        if not len(more) or encloses[more].all():
            break
        encloses[more] = True
    chosen = ~encloses[thunks] & ~is_part[thunks] & (ranges.end[thunks] >= ranges.start[thunks])
    row, run = thunks[chosen], module[chosen]
    order = np.argsort(ranges.start[row], kind="stable")
    row, run = row[order], run[order]
    program = np.where(run >= 0, np.append(program_of_name, -1)[ranges.name[run]], -1)
    within = np.flatnonzero(kind == _MODULE)
    within = within[np.isin(within, run)]
    lost = int(ranges.gpu_ops[within].sum() - ranges.gpu_ops[row[run >= 0]].sum())
    return Work(row, op[row], ops, program, programs, run, max(lost, 0))


def _read_names(names: tuple[str, ...]) -> tuple[Ints, Ints, tuple[str, ...], Ints, tuple[Program, ...]]:
    """Return for each name its kind, its instruction (an index into the second table), and its program."""
    kinds, op_of, program_of = (np.full(len(names), value, np.int64) for value in (_OTHER, -1, -1))
    ops: dict[str, int] = {}
    programs: dict[Program, int] = {}
    for place, name in enumerate(names):
        title = name.removeprefix(f"{titles.TSL}:")
        if op := titles.thunk_op(title):
            kinds[place], op_of[place] = _THUNK, ops.setdefault(op, len(ops))
        elif title.startswith(titles.MODULE):
            kinds[place] = _MODULE
            if module := titles.module_of(title):
                program = Program(-1 if module.program is None else module.program, module.name)
                program_of[place] = programs.setdefault(program, len(programs))
    return kinds, op_of, tuple(ops), program_of, tuple(programs)


def _parents(ranges: Ranges) -> Ints:
    """Return the row of the range around each row, -1 for none. Of rows with one id (parts of a CUDA graph) the first
    counts."""
    known = np.flatnonzero(ranges.range_id >= 0)
    ids, first = ranges.range_id[known], np.arange(len(known))
    if (ids[1:] <= ids[:-1]).any():
        ids, first = np.unique(ids, return_index=True)
    if not len(ids):
        return np.full(len(ranges), -1, np.int64)
    place = np.minimum(np.searchsorted(ids, ranges.parent_id), len(ids) - 1)
    found = (ids[place] == ranges.parent_id) & (ranges.parent_id >= 0)
    return np.where(found, known[first[place]], np.int64(-1))


def _nearest(parent: Ints, rows: Ints, wanted: Flags, path: str) -> Ints:
    """Return for each of the rows the nearest range around it that is wanted, or -1."""
    found = np.full(len(rows), -1, np.int64)
    place, left = parent[rows], np.arange(len(rows))
    for _ in range(MAX_DEPTH):
        inside = place >= 0
        place, left = place[inside], left[inside]
        if not len(left):
            return found
        is_here = wanted[place]
        found[left[is_here]] = place[is_here]
        place, left = parent[place[~is_here]], left[~is_here]
    raise InputError(f"{path}: its ranges contain each other, or are nested more than {MAX_DEPTH} levels deep")
