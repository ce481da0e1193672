"""Steps of one GPU. CUPTI times what ran on each stream; a wait of a stream shows only as its idle time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Literal

import numpy as np

from hloinspect.kinds import SetAsideReason
from hloinspect.measure import events
from hloinspect.measure.events import DeviceEvents
from hloinspect.measure.instructions import StepEvents, instruction_times
from hloinspect.measure.join import ProgramJoin
from hloinspect.measure.measured import MeasuredDevice
from hloinspect.measure.overlap import BOTH, FROM_HOST, TO_HOST, Busy, Moves, figures, transfer_figures
from hloinspect.measure.parts import (
    Cycle,
    charged,
    is_kind,
    part_of,
    program_figures,
    runs_of_step,
    step_programs,
    time_between,
    windows,
)
from hloinspect.measure.runs import StepMarks
from hloinspect.measure.steps import IMPOSSIBLE, WARM_UP, edge_reason, unusual, warm_up
from hloinspect.measure.typical import Work, typical_step
from hloinspect.measure.waits import LaunchTimes, Stream
from hloinspect.timeline.spans import Flags, Ints, Spans, union
from hloinspect.units import listed

_OTHER_COPIES = (events.OTHER_TO_HOST, events.OTHER_FROM_HOST)


def main_gpu_program(found: DeviceEvents, joins: Callable[[int], ProgramJoin | None]) -> int | None:
    """Return the program that took the most of the GPU's time, among those with host transfers if there are any."""
    time, count = found.spent
    programs = found.table("program")
    times = {
        number: int(time[programs == number].sum())
        for number in sorted(set(programs[count > 0].tolist()))
        if number != 0
    }
    with_transfers = [n for n in times if (joined := joins(n)) is not None and joined.offload.transfers]
    candidates = with_transfers or list(times)
    return max(candidates, key=lambda number: (times[number], -number), default=None)


def measure_gpu(  # noqa: PLR0913  (the events of a device, and all that is known of its programs and its launches)
    name: str,
    found: DeviceEvents,
    program: int,
    joins: Callable[[int], ProgramJoin | None],
    marks: StepMarks | None,
    launched: LaunchTimes,
    most_bytes_per_s: float,
    known: Sequence[int] | None = None,
) -> MeasuredDevice | None:
    """Return the steps of ``program`` on one GPU, or None where none of its operations is on a stream.

    Other programs that run in every step are parts of it (parts.py). ``known`` is the order of the programs in a step
    of another device.
    """
    own = part_of(found, program, joins(program), marks, launched)
    if own is None:
        return None
    cycle = step_programs(found, own, joins, marks, launched, known)
    ran = runs_of_step(found, own, cycle, marks, launched)
    step_of_run, numbers, notes = ran.grouping.step_of_run, ran.grouping.numbers, [*ran.notes, *ran.grouping.notes]
    is_one_each = len(numbers) == len(step_of_run)  # each run is one step
    step = ran.run if is_one_each else np.where(ran.run >= 0, step_of_run[np.maximum(ran.run, 0)], -1)
    begin, end = windows(found, step, len(numbers))
    moving = found.chosen(is_kind(found, *events.MOVES))
    wait, host_bound, launches_known = charged(
        found, ran, (begin, end) if is_one_each and not cycle.order else None, launched
    )
    moves = _moves(found, moving, step, wait[moving], cycle)
    busy = _busy(found)
    columns = figures(begin, end, busy, moves, _by_step(host_bound, step_of_run, len(numbers)))
    aside = ran.grouping.outside
    reasons, details = _set_aside(found, step, moving, columns["time_ps"], cycle, most_bytes_per_s, aside)
    clean = np.array([not reason for reason in reasons], np.bool_)
    often = {
        part.program: int(clean[step_of_run[number]].sum()) for part, number in zip(ran.parts, ran.numbers, strict=True)
    }
    transfers = transfer_figures(len(numbers), busy, moves, None)
    is_main = moves.transfer <= own.last_transfer
    shown = moves if len(cycle.parts) == 1 else replace(moves, transfer=moves.transfer * is_main)
    return MeasuredDevice(
        name=name,
        platform="gpu",
        program=program,
        numbers=numbers,
        start_ps=begin,
        end_ps=end,
        figures=columns,
        transfers={number: own_figures for number, own_figures in transfers.items() if number <= own.last_transfer},
        set_aside=reasons,
        details=details,
        notes=tuple(notes),
        launches_known=launches_known,
        typical=typical_step(name, columns["time_ps"], clean, begin, end, partial(_work, found, own.main), shown),
        instructions=instruction_times(
            StepEvents(found.start_ps, found.end_ps, found.op, step, clean, found.ops, often), joins
        ),
        programs=program_figures(found, ran, len(numbers), transfers),
        order=cycle.order,
        between_ps=time_between(found, ran, begin, end),
    )


def _by_step(of_run: Ints, step_of_run: Ints, steps: int) -> Ints:
    total = np.zeros(steps, np.int64)
    np.add.at(total, step_of_run, of_run)
    return total


# ---- what runs


def _moves(found: DeviceEvents, moving: Ints, step: Ints, waits: Ints, cycle: Cycle) -> Moves:
    op = found.op[moving]
    kind = found.table("kind")[op]
    direction = np.where(kind == events.TO_HOST, TO_HOST, np.where(kind == events.FROM_HOST, FROM_HOST, BOTH))
    return Moves(
        start_ps=found.start_ps[moving],
        end_ps=found.end_ps[moving],
        transfer=cycle.transfer_of_op(found)[op],
        direction=direction,
        step=step[moving],
        bytes=found.table("bytes")[op],
        wait_ps=waits,
    )


def _busy(found: DeviceEvents) -> Busy:
    def spans(*wanted: int) -> Spans:
        chosen = found.chosen(is_kind(found, *wanted))
        return union(found.start_ps[chosen], found.end_ps[chosen])

    return Busy(spans(events.COMPUTE), spans(events.COLLECTIVE), spans(*_OTHER_COPIES))


def _work(found: DeviceEvents, main: Stream, first_ps: int, last_ps: int) -> Work:
    """Return the work that runs within ``[first_ps, last_ps)``."""
    until = int(np.searchsorted(found.start_ps, last_ps))
    chosen = np.flatnonzero(found.end_ps[:until] > first_ps)
    kind = found.table("kind")[found.op[chosen]]
    working = (kind == events.COMPUTE) | (kind == events.COLLECTIVE)
    chosen, kind = chosen[working], kind[working]
    return Work(
        start_ps=found.start_ps[chosen],
        end_ps=found.end_ps[chosen],
        is_collective=kind == events.COLLECTIVE,
        is_main=found.line[chosen] == main.line,
        name=found.op[chosen].astype(np.int64),
        names=[op.name for op in found.ops],
    )


# ---- which steps count


def _set_aside(  # noqa: PLR0913  (one pass over the columns of a device, each an array of its own)
    found: DeviceEvents,
    step: Ints,
    moving: Ints,
    time_ps: Ints,
    cycle: Cycle,
    most_bytes_per_s: float,
    aside: dict[int, SetAsideReason],
) -> tuple[tuple[SetAsideReason | Literal[""], ...], tuple[str, ...]]:
    """Return the reason for which each step does not count ("" for those that do), and what was seen."""
    count = len(time_ps)
    reasons: list[SetAsideReason | Literal[""]] = [aside.get(number, "") for number in range(count)]
    details = [""] * count
    is_fixed, place = _is_fixed(found, cycle), cycle.place_of_op(found)
    fixed_step, fixed_op = step, found.op
    if not is_fixed.all() or (len(step) and int(np.min(step)) < 0):
        fixed = np.flatnonzero((step >= 0) & found.flags(is_fixed))
        fixed_step, fixed_op = step[fixed], found.op[fixed]
    wrong, _, expected = unusual(fixed_step, fixed_op.astype(np.int64), count, len(found.ops))
    for number in np.flatnonzero(wrong).tolist():
        these = fixed_op[fixed_step == number]
        seen = np.bincount(these, minlength=len(found.ops))
        first, last = _missing_ends(seen, expected, place)
        reasons[number] = reasons[number] or edge_reason(number, count, first, last)
        odd = np.flatnonzero(seen != expected)
        details[number] = listed([f"{found.ops[op].name}: {seen[op]} of {expected[op]}" for op in odd.tolist()], 3)
    copied = moving[step[moving] >= 0] if most_bytes_per_s else moving[:0]
    size, time = found.table("bytes")[found.op[copied]], found.end_ps[copied] - found.start_ps[copied]
    fast = copied[size * 1e12 > most_bytes_per_s * np.maximum(time, 1)]
    for number in sorted(set(step[fast].tolist())):
        reasons[number] = reasons[number] or IMPOSSIBLE
        details[number] = details[number] or "a copy faster than the device's own memory"
    if count and not reasons[0] and warm_up(time_ps, np.array([not reason for reason in reasons])):
        reasons[0] = WARM_UP
        details[0] = f"{time_ps[0] / float(np.median(time_ps[1:])):.1f} times the median"
    return tuple(reasons), tuple(details)


def _is_fixed(found: DeviceEvents, cycle: Cycle) -> Flags:
    """Return which ops run equally often in every step.

    Ops in a branch do not, nor those in a loop whose number of iterations is not in the module.
    """
    fixed = np.ones(len(found.ops), np.bool_)
    free = {part.program: part.joined.data_dependent for part in cycle.parts if part.joined is not None}
    for number, op in enumerate(found.ops):
        fixed[number] = not any(first <= op.rank <= last for first, last in free.get(op.program, ()))
    return fixed


def _missing_ends(seen: Ints, expected: Ints, rank: Ints) -> tuple[bool, bool]:
    """Return whether the first ops of the schedule, and whether the last ones, are among those that are missing."""
    known = np.flatnonzero((expected > 0) & (rank >= 0))
    if not len(known):
        return True, True
    first, last = known[np.argmin(rank[known])], known[np.argmax(rank[known])]
    return bool(seen[first] < expected[first]), bool(seen[last] < expected[last])
