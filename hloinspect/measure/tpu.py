"""Steps of one TPU.

Runs stand on ``XLA Modules``. The wait for a transfer is the duration of its ``-done`` on ``XLA Ops``. ``Async XLA
Ops`` is not needed: it repeats the windows from start to done, and is often empty.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from hloinspect.kinds import D2H, SetAsideReason
from hloinspect.measure import events, join
from hloinspect.measure.events import BY_HLO, BY_NAME, Op
from hloinspect.measure.instructions import StepEvents, instruction_times
from hloinspect.measure.join import DONE, START, WHOLE, ProgramJoin
from hloinspect.measure.measured import MeasuredDevice
from hloinspect.measure.memcpy import ALONE_SHARE
from hloinspect.measure.overlap import FROM_HOST, TO_HOST, Busy, Moves, figures, transfer_figures
from hloinspect.measure.queue import CLEAN_SHARE, MODULES, OPS
from hloinspect.measure.steps import CLOCK, IMPOSSIBLE, MISSING, WARM_UP, edge_reason, unusual, warm_up
from hloinspect.measure.typical import Work, typical_step
from hloinspect.profiles.distinct import distinct
from hloinspect.profiles.xplane import EventMetadata, Plane
from hloinspect.profiles.xplane.embedded import PROGRAM_ID, program_id_of
from hloinspect.profiles.xplane.wire import WireError, fields
from hloinspect.timeline.spans import Flags, Ints, union
from hloinspect.units import PS_PER_MS, listed

PEAK_HBM = "peak_hbm_bw_gigabytes_per_second"
HBM_SLACK = 0.9
"""The least time of an operation, as a share of the time that its bytes take at the peak rate of HBM. A faster one
cannot be true."""

_HBM_SPACE = 1
_OP = re.compile(r"%?[\w.-]+ = .*? ([a-z][\w-]*)\(")
_HOST = "S(5)"
_COLLECTIVE = re.compile(r"(?:all-|reduce-scatter|collective-|ragged-all)[\w-]*")


@dataclass(frozen=True, slots=True)
class TpuTrace:
    """The events of one TPU: runs of programs, and operations sorted by start."""

    run_begin: Ints
    run_end: Ints
    run_program: Ints
    run_name: Mapping[int, str]
    start_ps: Ints
    end_ps: Ints
    op: Ints
    ops: tuple[Op, ...]
    roles: tuple[str, ...]
    least_ps: Ints
    unusable: int = 0


def tpu_trace(plane: Plane, join_to: Callable[[int], ProgramJoin | None]) -> TpuTrace | None:
    """Return the events of a TPU, or None where it has no operations. Raises InputError where they are damaged."""
    lines = {line.name: line for line in plane.lines}
    if OPS not in lines or MODULES not in lines:
        return None
    modules, columns = lines[MODULES].columns(), lines[OPS].columns()
    runs = np.flatnonzero(modules.usable)
    runs = runs[np.argsort(modules.start_ps[runs], kind="stable")]
    programs = {number: program_id_of(kind) or 0 for number, kind in plane.events.items()}
    program = np.array([programs.get(number, 0) for number in modules.metadata_id[runs].tolist()], np.int64)
    names = {programs[number]: re.sub(r"\(\d+\)$", "", kind.name) for number, kind in plane.events.items()}
    order = np.flatnonzero(columns.usable)
    order = order[np.argsort(columns.start_ps[order], kind="stable")]
    used, op = distinct(columns.metadata_id[order])
    found = [_op(plane.events.get(number), join_to) for number in used.tolist()]
    peak = plane.stats.get(PEAK_HBM)
    least = [  # a start or a wait says nothing: it does not last as long as its copy
        _least_ps(plane.events.get(number), peak) if role == WHOLE and one.kind == events.COMPUTE else 0
        for number, (one, role) in zip(used.tolist(), found, strict=True)
    ]
    begin = modules.start_ps[runs]
    if not len(order) or not len(runs):
        return None
    return TpuTrace(
        run_begin=begin,
        run_end=np.minimum(modules.end_ps[runs], np.append(begin[1:], np.iinfo(np.int64).max)),
        run_program=program,
        run_name={int(number): names.get(int(number), "") for number in np.unique(program)},
        start_ps=columns.start_ps[order],
        end_ps=columns.end_ps[order],
        op=op,
        ops=tuple(one for one, _ in found),
        roles=tuple(role for _, role in found),
        least_ps=np.array(least, np.int64),
        unusable=int((~columns.usable).sum()),
    )


def _least_ps(kind: EventMetadata | None, peak_gbps: object) -> int:
    """Return the least time in which an operation can move its bytes from and to HBM, 0 where the trace does not give
    them."""
    breakdown = kind.stats.get("memory_access_breakdown") if kind else None
    if not isinstance(breakdown, bytes) or not isinstance(peak_gbps, (int, float)) or peak_gbps <= 0:
        return 0
    total = 0
    try:  # OpMetrics.MemoryAccessed (xplane's op_metrics.proto): operation_type = 1, memory_space = 2, bytes = 3
        for number, _, _, begin, end in fields(breakdown, 0, len(breakdown)):
            if number == 1:
                own = {n: value for n, _, value, _, _ in fields(breakdown, begin, end)}
                total += own.get(3, 0) if own.get(2) == _HBM_SPACE else 0
    except WireError:
        return 0
    return min(int(HBM_SLACK * total / peak_gbps * 1e3), 1 << 60)


def _op(kind: EventMetadata | None, join_to: Callable[[int], ProgramJoin | None]) -> tuple[Op, str]:
    """Return the description of an operation, and its role in an async pair."""
    if kind is None:
        return Op(events.COMPUTE, BY_NAME, 0, -1, 0, 0, "?"), WHOLE
    program = program_id_of(kind) if PROGRAM_ID in kind.stats else None
    name = kind.display_name or kind.name
    module = join_to(program or 0)
    joined = module.find(name) if module is not None else None
    named = name if program else ""
    if joined is None:
        op, role = _op_by_name(kind.name, name, program or 0)
        return replace(op, instruction=named), role
    what = {
        join.COLLECTIVE: events.COLLECTIVE,
        join.CONTROL: events.IGNORED,
        join.HOST_COPY: events.HOST_COPY,
        join.CALLBACK: events.CALLBACK,
    }.get(joined.kind, events.COMPUTE)
    if joined.kind == join.TRANSFER:
        what = events.TO_HOST if joined.direction == D2H else events.FROM_HOST
    op = Op(
        *(what, BY_HLO, program or 0, joined.rank, joined.transfer, joined.bytes, name),
        asynchronous=joined.asynchronous,
        pair=joined.pair,
        instruction=named,
    )
    return op, joined.role


def _op_by_name(text: str, name: str, program: int) -> tuple[Op, str]:
    """Return the description of an operation without a module, from the text of its instruction.

    It is a transfer if it copies or slices with host memory in its result (the rule of xprof). Which of several it is
    stays unknown: transfer 0.
    """
    match = _OP.match(text)
    opcode = match[1] if match else re.sub(r"[.\d]+$", "", name)
    half = START if opcode.endswith("-start") else DONE if opcode.endswith("-done") else WHOLE
    if _COLLECTIVE.fullmatch(opcode):
        return Op(events.COLLECTIVE, BY_NAME, program, -1, 0, 0, name), half
    if opcode in ("while", "conditional", "call"):
        return Op(events.IGNORED, BY_NAME, program, -1, 0, 0, name), WHOLE
    if _HOST in text and opcode.startswith(("copy", "dynamic-slice", "dynamic-update-slice", "async", "slice")):
        result = text.partition(" = ")[2]
        head = result.partition("}")[0] if opcode.startswith("copy") else result.partition(opcode + "(")[0]
        kind = events.TO_HOST if _HOST in head and not opcode.startswith("dynamic-slice") else events.FROM_HOST
        return Op(kind, BY_NAME, program, -1, 0, 0, name), half
    return Op(events.COMPUTE, BY_NAME, program, -1, 0, 0, name), half


def main_tpu_program(trace: TpuTrace, join_to: Callable[[int], ProgramJoin | None]) -> int | None:
    """Return the program that took the most of the TPU's time, among those with host transfers if there are any."""
    time = trace.run_end - trace.run_begin
    times = {int(n): int(time[trace.run_program == n].sum()) for n in np.unique(trace.run_program)}
    with_transfers = [n for n in times if (joined := join_to(n)) is not None and joined.offload.transfers]
    return max(with_transfers or list(times), key=lambda n: (times[n], -n), default=None)


def measure_tpu(name: str, trace: TpuTrace, program: int, joined: ProgramJoin | None) -> MeasuredDevice | None:
    """Return the runs of ``program`` on one TPU, or None where it did not run."""
    begin, end, step, lost = _windows(trace, program)
    if not len(begin):
        return None
    kind = np.array([op.kind for op in trace.ops], np.int64)[trace.op]
    moves, alone, unpaired = _moves(trace, kind, step)
    compute, collective = (union(trace.start_ps[kind == k], trace.end_ps[kind == k]) for k in _WORK)
    none = np.zeros(0, np.int64)
    busy = Busy(compute, collective, union(none, none))
    columns = figures(begin, end, busy, moves, np.zeros(len(begin), np.int64))
    reasons, details, notes = _set_aside(trace, step, columns["time_ps"], joined, unpaired, lost)
    clean = np.array([not reason for reason in reasons], np.bool_)
    of_instructions = _with_unnamed(trace, step, begin, end)
    return MeasuredDevice(
        name=name,
        platform="tpu",
        program=program,
        numbers=np.arange(len(begin)),
        start_ps=begin,
        end_ps=end,
        figures=columns,
        transfers=transfer_figures(len(begin), busy, moves, alone),
        set_aside=reasons,
        details=details,
        notes=notes,
        typical=typical_step(name, columns["time_ps"], clean, begin, end, partial(_work, trace, kind), moves),
        instructions=instruction_times(
            StepEvents(trace.start_ps, trace.end_ps, trace.op, of_instructions, clean, trace.ops),
            lambda number: joined if number == program else None,
            np.array([role == WHOLE for role in trace.roles], np.bool_),
        ),
    )


def _work(trace: TpuTrace, kind: Ints, first_ps: int, last_ps: int) -> Work:
    """Return the work that runs within ``[first_ps, last_ps)``."""
    within = (trace.start_ps < last_ps) & (trace.end_ps > first_ps)
    chosen = np.flatnonzero(within & np.isin(kind, _WORK))
    return Work(
        start_ps=trace.start_ps[chosen],
        end_ps=trace.end_ps[chosen],
        is_collective=kind[chosen] == events.COLLECTIVE,
        is_main=np.ones(len(chosen), np.bool_),
        name=trace.op[chosen],
        names=[op.name for op in trace.ops],
    )


def _with_unnamed(trace: TpuTrace, step: Ints, begin: Ints, end: Ints) -> Ints:
    """Return the step of each operation. One that names no program, as in a Chrome trace, is of the run around it."""
    unnamed = np.array([not op.program for op in trace.ops], np.bool_)[trace.op]
    if not unnamed.any():
        return step
    place = np.searchsorted(begin, trace.start_ps, side="right") - 1
    inside = unnamed & (place >= 0) & (trace.start_ps < end[np.maximum(place, 0)])
    return np.where(inside, place, step)


_WORK = (events.COMPUTE, events.COLLECTIVE)
_MOVING = (events.TO_HOST, events.FROM_HOST, events.HOST_COPY)


def _windows(trace: TpuTrace, program: int) -> tuple[Ints, Ints, Ints, Flags]:
    """Return the windows of the runs, the step of each operation (-1 for none), and which windows were made up.

    A window is made up for a run whose own event is missing: operations of the program between two runs.
    """
    chosen = trace.run_program == program
    begin, end = trace.run_begin[chosen], trace.run_end[chosen]
    own = np.array([op.program == program for op in trace.ops], np.bool_)[trace.op]
    place = np.searchsorted(begin, trace.start_ps, side="right") - 1
    inside = (
        (place >= 0) & (trace.start_ps <= end[np.maximum(place, 0)]) if len(begin) else np.zeros(len(own), np.bool_)
    )
    orphans = np.flatnonzero(own & ~inside)
    lost = np.zeros(len(begin), np.bool_)
    if len(orphans):
        group = place[orphans]
        first = np.concatenate(([True], group[1:] != group[:-1]))
        bounds = np.flatnonzero(first)
        more_begin = trace.start_ps[orphans[bounds]]
        more_end = np.maximum.reduceat(trace.end_ps[orphans], bounds)
        begin, end = np.concatenate((begin, more_begin)), np.concatenate((end, more_end))
        lost = np.concatenate((lost, np.ones(len(more_begin), np.bool_)))
        order = np.argsort(begin, kind="stable")
        begin, end, lost = begin[order], end[order], lost[order]
        end[:-1] = np.minimum(end[:-1], begin[1:])
        place = np.searchsorted(begin, trace.start_ps, side="right") - 1
        inside = (place >= 0) & (trace.start_ps <= end[np.maximum(place, 0)])
    return begin, end, np.where(inside & own, place, -1), lost


def _moves(trace: TpuTrace, kind: Ints, step: Ints) -> tuple[Moves, Flags, NDArray[np.bool_]]:
    """Return the windows of the transfers, which of them were alone, and which steps have halves without the other."""
    chosen = np.flatnonzero(np.isin(kind, _MOVING) & (step >= 0))
    role = np.array([_ROLE[r] if op.asynchronous or op.by == BY_NAME else 2 for op, r in _ops(trace)], np.int64)
    transfer = np.array([op.transfer for op in trace.ops], np.int64)
    group = _groups(trace)
    starts = chosen[role[trace.op[chosen]] == 0]
    dones = chosen[role[trace.op[chosen]] == 1]
    whole = chosen[role[trace.op[chosen]] == 2]
    pair_start, pair_done, unpaired_dones, unpaired_steps = _pair(trace, step, group, starts, dones)
    end_of = np.concatenate((pair_done, unpaired_dones, whole))
    begin_of = np.concatenate((pair_start, unpaired_dones, whole))
    what = trace.op[begin_of]
    start, end = trace.start_ps[begin_of], trace.end_ps[end_of]
    kinds_of = kind[begin_of]
    moves = Moves(
        start_ps=start,
        end_ps=end,
        transfer=transfer[what],
        direction=np.where(kinds_of == events.TO_HOST, TO_HOST, np.where(kinds_of == events.FROM_HOST, FROM_HOST, 2)),
        step=step[end_of],
        bytes=np.array([op.bytes for op in trace.ops], np.int64)[what],
        wait_ps=trace.end_ps[end_of] - trace.start_ps[end_of],
    )
    return moves, _alone(moves, len(pair_done)), unpaired_steps


_ROLE = {START: 0, DONE: 1, WHOLE: 2}


def _ops(trace: TpuTrace) -> zip[tuple[Op, str]]:
    return zip(trace.ops, trace.roles, strict=True)


def _groups(trace: TpuTrace) -> Ints:
    """Return for each op the key by which its halves are paired: the pair, or without a module the name."""
    group = np.zeros(len(trace.ops), np.int64)
    names: dict[str, int] = {}
    for number, op in enumerate(trace.ops):
        stem = op.name.replace("-start", "").replace("-done", "")
        group[number] = op.pair or -1 - names.setdefault(stem, len(names))
    return group


def _pair(
    trace: TpuTrace, step: Ints, group: Ints, starts: Ints, dones: Ints
) -> tuple[Ints, Ints, Ints, NDArray[np.bool_]]:
    """Return starts and dones that belong together, dones without a start, and which steps have halves left over.

    Within a step the n-th done is that of the n-th start where there are as many. Otherwise each done takes the latest
    start that is still open. (Other tools pair first-in-first-out; one dropped event then shifts all later pairs.)
    """
    steps = max(int(np.max(step, initial=-1)) + 1, 1)
    least = int(np.min(group, initial=0))

    def cells(halves: Ints) -> tuple[Ints, Ints]:
        cell = (group[trace.op[halves]] - least) * steps + step[halves]
        order = np.argsort(cell, kind="stable")
        return halves[order], cell[order]

    starts, start_cell = cells(starts)
    dones, done_cell = cells(dones)
    size = int(max(np.max(start_cell, initial=-1), np.max(done_cell, initial=-1))) + 1
    odd = np.bincount(start_cell, minlength=size) != np.bincount(done_cell, minlength=size)
    even_start, even_done = starts[~odd[start_cell]], dones[~odd[done_cell]]
    wrong = trace.start_ps[even_start] > trace.end_ps[even_done]
    odd[start_cell[~odd[start_cell]][wrong]] = True
    even_start, even_done = starts[~odd[start_cell]], dones[~odd[done_cell]]
    pairs: list[tuple[int, int]] = []
    lone: list[int] = []
    for cell in np.flatnonzero(odd).tolist():
        _latest_first(trace, starts[start_cell == cell], dones[done_cell == cell], pairs, lone)
    unpaired = np.zeros(steps, np.bool_)
    unpaired[np.flatnonzero(odd) % steps] = True
    found = np.array(pairs, np.int64).reshape(-1, 2)
    return (
        np.concatenate((even_start, found[:, 0])),
        np.concatenate((even_done, found[:, 1])),
        np.array(lone, np.int64),
        unpaired,
    )


def _latest_first(trace: TpuTrace, starts: Ints, dones: Ints, pairs: list[tuple[int, int]], lone: list[int]) -> None:
    """Give each done the latest start before it that is still open, or add the done to ``lone``."""
    halves = [(int(trace.start_ps[i]), 0, i) for i in starts.tolist()]
    halves += [(int(trace.start_ps[i]), 1, i) for i in dones.tolist()]
    open_starts: list[int] = []
    for _, is_done, index in sorted(halves):
        if not is_done:
            open_starts.append(index)
        elif open_starts:
            pairs.append((open_starts.pop(), index))
        else:
            lone.append(index)


def _alone(moves: Moves, pairs: int) -> Flags:
    """Return which windows give a rate.

    They share hardly any time with another, and they were waited for, so that the copy began and ended with the window.
    """
    order = np.argsort(moves.start_ps, kind="stable")
    start, end = moves.start_ps[order], moves.end_ps[order]
    shared = np.zeros(len(moves), np.int64)
    if len(order) > 1:
        reached = np.maximum.accumulate(end)
        shared[order[1:]] += np.maximum(reached[:-1] - start[1:], 0)
        shared[order[:-1]] += np.maximum(end[:-1] - start[1:], 0)
    is_pair = np.arange(len(moves)) < pairs
    return np.asarray(
        (shared <= ALONE_SHARE * (moves.end_ps - moves.start_ps)) & is_pair & (moves.wait_ps > 0), np.bool_
    )


def _set_aside(
    trace: TpuTrace,
    step: Ints,
    time_ps: Ints,
    joined: ProgramJoin | None,
    unpaired: NDArray[np.bool_],
    lost: Flags,
) -> tuple[tuple[SetAsideReason | Literal[""], ...], tuple[str, ...], tuple[str, ...]]:
    """Return the reason for which each step does not count, what was seen, and notes."""
    count = len(time_ps)
    reasons: list[SetAsideReason | Literal[""]] = [""] * count
    details = [""] * count
    inside = np.flatnonzero(step >= 0)
    free = joined.data_dependent if joined else ()
    fixed = np.array([not any(a <= op.rank <= b for a, b in free) for op in trace.ops], np.bool_)
    seen = inside[fixed[trace.op[inside]]]
    wrong, _, expected = unusual(step[seen], trace.op[seen], count, len(trace.ops))
    for number in np.flatnonzero(wrong).tolist():
        own = np.bincount(trace.op[seen[step[seen] == number]], minlength=len(trace.ops))
        ranks = np.array([op.rank for op in trace.ops], np.int64)
        known = np.flatnonzero((expected > 0) & (ranks >= 0))
        ends = [known[np.argmin(ranks[known])], known[np.argmax(ranks[known])]] if len(known) else []
        short = [bool(own[op] < expected[op]) for op in ends] or [True, True]
        reasons[number] = edge_reason(number, count, *short)
        odd = np.flatnonzero(own != expected)
        details[number] = listed([f"{trace.ops[op].name}: {own[op]} of {expected[op]}" for op in odd.tolist()], 3)
    for number in np.flatnonzero(lost).tolist():
        reasons[number], details[number] = MISSING, details[number] or "its event on XLA Modules"
    for number in np.flatnonzero(unpaired).tolist():
        reasons[number], details[number] = reasons[number] or MISSING, details[number] or "a start or a done"
    notes = _impossible(trace, step, time_ps, inside, reasons, details)
    if count and not reasons[0] and warm_up(time_ps, np.array([not reason for reason in reasons])):
        reasons[0], details[0] = WARM_UP, f"{time_ps[0] / float(np.median(time_ps[1:])):.1f} times the median"
    return tuple(reasons), tuple(details), notes


def _impossible(
    trace: TpuTrace,
    step: Ints,
    time_ps: Ints,
    inside: Ints,
    reasons: list[SetAsideReason | Literal[""]],
    details: list[str],
) -> tuple[str, ...]:
    """Set aside the steps with an operation that HBM does not allow, and return notes.

    Such a clock jumps forth and back. Then steps that are off the median are no better: what one is too short, others
    are too long.
    """
    duration = trace.end_ps[inside] - trace.start_ps[inside]
    least = trace.least_ps[trace.op[inside]]
    fast = inside[duration < least]
    if not len(fast):
        return ()
    for event in fast.tolist():
        number = int(step[event])
        if not reasons[number]:
            reasons[number] = IMPOSSIBLE
            took = (int(trace.end_ps[event]) - int(trace.start_ps[event])) / PS_PER_MS
            needs = int(trace.least_ps[trace.op[event]]) / PS_PER_MS
            details[number] = f"{trace.ops[trace.op[event]].name} took {took:.3g} ms, its bytes need {needs:.3g} ms"
    sound = np.array([reason in ("", IMPOSSIBLE) for reason in reasons], np.bool_)
    median = float(np.median(time_ps[sound])) if sound.any() else 0.0
    for number in np.flatnonzero(np.abs(time_ps - median) > CLEAN_SHARE * median).tolist():
        if not reasons[number]:
            reasons[number] = CLOCK
            details[number] = f"{(time_ps[number] - median) / PS_PER_MS:+.3g} ms off the median"
    return (
        "the device's clock jumps: some operations are faster than HBM allows, so that steps more than "
        f"{100 * CLEAN_SHARE:.1f} % off the median were set aside too",
    )
