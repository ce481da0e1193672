"""Steps of one GPU. CUPTI times what ran on each stream; a wait of a stream shows only as its idle time."""

from __future__ import annotations

from collections.abc import Callable
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
from hloinspect.measure.runs import StepMarks, runs_on
from hloinspect.measure.steps import IMPOSSIBLE, UNANNOTATED, WARM_UP, Runs, edge_reason, unusual, warm_up
from hloinspect.measure.typical import Work, typical_step
from hloinspect.measure.waits import FAR, LaunchTimes, Stream, charge_waits, done_table
from hloinspect.timeline.spans import Flags, Ints, Spans, union
from hloinspect.units import listed

_LEAST, _MOST = np.iinfo(np.int64).min, np.iinfo(np.int64).max
_OTHER_COPIES = (events.OTHER_TO_HOST, events.OTHER_FROM_HOST)
MANY = 0.8
"""The share of step annotations that must have the same number of runs in them. Only then the annotations are
followed."""


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


def measure_gpu(  # noqa: PLR0913  (the events of a device, and all that is known of its program and its launches)
    name: str,
    found: DeviceEvents,
    program: int,
    joined: ProgramJoin | None,
    marks: StepMarks | None,
    launched: LaunchTimes,
    most_bytes_per_s: float,
    joins: Callable[[int], ProgramJoin | None] | None = None,
) -> MeasuredDevice | None:
    """Return the steps of ``program`` on one GPU, or None where none of its operations is on a stream.

    ``joins`` gives the module of any program.
    """
    own = found.flags(found.table("program") == program)
    main = _main_stream(found, program)
    if main is None:
        return None
    places, runs, notes = runs_on(found, main, own, joined.loops if joined else (), marks, launched)
    run = _run_of(found, own, main, places, runs, joined)
    if runs.mark is not None and marks is not None:
        run = _run_by_mark(found, own, run, runs.mark, marks.around(launched(found.correlation[own])))
    step_of_run, numbers, aside, said = _steps(main, places, runs, marks, launched, found)
    notes += said
    is_one_each = len(numbers) == len(step_of_run)  # each run is one step
    step = run if is_one_each else np.where(run >= 0, step_of_run[np.maximum(run, 0)], -1)
    begin, end = _windows(found, step, len(numbers))
    windows = (begin, end) if is_one_each else _windows(found, run, max(len(runs), 1))
    moving = found.chosen(_is_kind(found, *events.MOVES))
    waits = charge_waits(found, main, run, windows, joined, launched)
    moves = _moves(found, moving, step, waits.wait_ps[moving])
    busy = _busy(found)
    columns = figures(begin, end, busy, moves, _by_step(waits.host_bound_ps, step_of_run, len(numbers)))
    reasons, details = _set_aside(found, step, moving, columns["time_ps"], joined, most_bytes_per_s, aside)
    clean = np.array([not reason for reason in reasons], np.bool_)
    return MeasuredDevice(
        name=name,
        platform="gpu",
        program=program,
        numbers=numbers,
        start_ps=begin,
        end_ps=end,
        figures=columns,
        transfers=transfer_figures(len(numbers), busy, moves, None),
        set_aside=reasons,
        details=details,
        notes=tuple(notes),
        launches_known=waits.launches_known,
        typical=typical_step(name, columns["time_ps"], clean, begin, end, partial(_work, found, main), moves),
        instructions=instruction_times(
            StepEvents(found.start_ps, found.end_ps, found.op, step, clean, found.ops), joins or (lambda _: joined)
        ),
    )


# ---- the main stream and the runs


def _main_stream(found: DeviceEvents, program: int) -> Stream | None:
    """Return the stream with the most work of the program."""
    is_own = (found.table("program") == program) & (found.spent[1] > 0)
    work = is_own & _is_kind(found, events.COMPUTE)
    if not work.any():
        work = is_own
    if not work.any():
        return None
    time = np.zeros(len(found.lines), np.int64)
    np.add.at(time, found.line, (found.end_ps - found.start_ps + 1) * found.flags(work))
    line = int(np.argmax(time))
    event = np.flatnonzero(found.line == line)
    start, end, op = found.start_ps[event], found.end_ps[event], found.op[event]
    ranked = (found.table("program") == program) & (found.table("rank") >= 0)
    rank = found.table("rank").take(op)
    return Stream(event, start, end, np.maximum.accumulate(end), ranked.take(op), rank, op, line)


def _run_of(
    found: DeviceEvents, own: Flags, main: Stream, places: Ints, runs: Runs, joined: ProgramJoin | None
) -> Ints:
    """Return the run of every event of the program, -1 for others and for those before the first.

    Time decides: an event that begins after a run's first operation on the main stream belongs to it. An event that
    begins between the last operation of one run and the first of the next may belong to either. It belongs to the next
    one if the schedule has it before that operation, or has the wait for the transfer before the last one. An event
    that is no transfer also does if it is nearer to the begin of the schedule.
    """
    run = np.full(len(found.start_ps), -1, np.int64)
    if not len(runs):
        run[own] = 0
        return run
    first, last = places[runs.first], places[runs.last]
    begins, ends = main.start_ps[first], main.end_ps[last]
    event = None if own.all() else np.flatnonzero(own)
    start, op = (found.start_ps, found.op) if event is None else (found.start_ps[event], found.op[event])
    each = np.diff(np.searchsorted(start, begins), prepend=0, append=len(start))
    index = np.repeat(np.arange(-1, len(begins)), each)
    # nothing lies between runs before the end of the first one, or after the begin of the last one
    place = np.flatnonzero(start >= np.repeat(np.concatenate(([_LEAST], ends[:-1], [_MOST])), each))
    before, behind = np.maximum(index[place], 0), np.minimum(index[place] + 1, len(first) - 1)
    op = op[place]
    rank, low, high = found.table("rank")[op], main.rank[first][behind], main.rank[last][before]
    pair = np.where(found.table("transfer") > 0, found.table("pair"), 0)
    awaited = done_table(joined, pair[op]).max(axis=1, initial=-1)
    nearer = np.where(awaited >= 0, awaited <= high, rank - low < high - rank)
    ahead = (rank >= 0) & ((rank < low) | (nearer & (index[place] >= 0)))
    index[place[ahead]] += 1
    if not main.ranked.any():
        index = np.maximum(index, 0)
    if event is None:
        return index
    run[event] = index
    return run


def _run_by_mark(found: DeviceEvents, own: Flags, run: Ints, of_run: Ints, mark: Ints) -> Ints:
    """Return the run of every event by the step annotation in which it was launched, where that is known."""
    place = np.minimum(np.searchsorted(of_run, mark), len(of_run) - 1)
    by_mark = np.full(len(found.start_ps), -1, np.int64)
    by_mark[own] = np.where(of_run[place] == mark, place, -1)
    return np.where(by_mark >= 0, by_mark, run)


def _steps(
    main: Stream,
    places: Ints,
    runs: Runs,
    marks: StepMarks | None,
    launched: LaunchTimes,
    found: DeviceEvents,
) -> tuple[Ints, Ints, dict[int, SetAsideReason], list[str]]:
    """Return the step of each run, the numbers of the steps, steps to set aside, and notes."""
    count = max(len(runs), 1)
    one_each = np.arange(count)
    if marks is None or not len(marks.number) or not len(runs):
        return one_each, one_each, {}, []
    if len(marks.number) == count:
        return one_each, marks.number, {}, []
    times = launched(found.correlation[main.event[places[runs.first]]])
    mark = marks.around(times)
    inside = mark >= 0
    held = np.bincount(mark[inside], minlength=len(marks.number))
    held = held[held > 0]
    if not len(held) or int(np.max(np.bincount(held))) < MANY * len(held):
        return (
            one_each,
            one_each,
            {},
            ["step annotations were not followed: they do not hold the runs evenly"],
        )
    group = np.where(inside, mark, -1 - np.arange(count))
    new = np.concatenate(([True], group[1:] != group[:-1]))
    step = np.cumsum(new) - 1
    firsts = np.flatnonzero(new)
    outside: dict[int, SetAsideReason] = {
        int(step[place]): UNANNOTATED for place in firsts.tolist() if not inside[place]
    }
    numbers = np.where(inside[firsts], marks.number[np.maximum(mark[firsts], 0)], -1)
    return step, numbers, outside, []


def _windows(found: DeviceEvents, step: Ints, steps: int) -> tuple[Ints, Ints]:
    """Return the times of the first and of the last event of each step."""
    start, finish = found.start_ps, found.end_ps
    if len(step) and int(np.min(step)) < 0:
        own = np.flatnonzero(step >= 0)
        step, start, finish = step[own], start[own], finish[own]
    begin, end = np.full(steps, FAR, np.int64), np.full(steps, -FAR, np.int64)
    begin[step[::-1]] = start[::-1]  # sorted: the earliest is written last
    np.maximum.at(end, step, finish)
    begin = np.minimum(begin, np.maximum.accumulate(end))  # a step without events is empty
    end[:-1] = np.minimum(end[:-1], begin[1:])
    return begin, np.maximum(end, begin)


def _by_step(of_run: Ints, step_of_run: Ints, steps: int) -> Ints:
    total = np.zeros(steps, np.int64)
    np.add.at(total, step_of_run, of_run)
    return total


# ---- what runs


def _moves(found: DeviceEvents, moving: Ints, step: Ints, waits: Ints) -> Moves:
    op = found.op[moving]
    kind = found.table("kind")[op]
    direction = np.where(kind == events.TO_HOST, TO_HOST, np.where(kind == events.FROM_HOST, FROM_HOST, BOTH))
    return Moves(
        start_ps=found.start_ps[moving],
        end_ps=found.end_ps[moving],
        transfer=found.table("transfer")[op],
        direction=direction,
        step=step[moving],
        bytes=found.table("bytes")[op],
        wait_ps=waits,
    )


def _busy(found: DeviceEvents) -> Busy:
    def spans(*wanted: int) -> Spans:
        chosen = found.chosen(_is_kind(found, *wanted))
        return union(found.start_ps[chosen], found.end_ps[chosen])

    return Busy(spans(events.COMPUTE), spans(events.COLLECTIVE), spans(*_OTHER_COPIES))


def _is_kind(found: DeviceEvents, *wanted: int) -> Flags:
    """Return which ops are of one of these kinds."""
    return np.isin(found.table("kind"), wanted)


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
    joined: ProgramJoin | None,
    most_bytes_per_s: float,
    aside: dict[int, SetAsideReason],
) -> tuple[tuple[SetAsideReason | Literal[""], ...], tuple[str, ...]]:
    """Return the reason for which each step does not count ("" for those that do), and what was seen."""
    count = len(time_ps)
    reasons: list[SetAsideReason | Literal[""]] = [aside.get(number, "") for number in range(count)]
    details = [""] * count
    is_fixed = _is_fixed(found, joined)
    fixed_step, fixed_op = step, found.op
    if not is_fixed.all() or (len(step) and int(np.min(step)) < 0):
        fixed = np.flatnonzero((step >= 0) & found.flags(is_fixed))
        fixed_step, fixed_op = step[fixed], found.op[fixed]
    wrong, _, expected = unusual(fixed_step, fixed_op.astype(np.int64), count, len(found.ops))
    for number in np.flatnonzero(wrong).tolist():
        these = fixed_op[fixed_step == number]
        seen = np.bincount(these, minlength=len(found.ops))
        first, last = _missing_ends(seen, expected, found.table("rank"))
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


def _is_fixed(found: DeviceEvents, joined: ProgramJoin | None) -> Flags:
    """Return which ops run equally often in every step.

    Ops in a branch do not, nor those in a loop whose number of iterations is not in the module.
    """
    fixed = np.ones(len(found.ops), np.bool_)
    if joined is not None:
        free = joined.data_dependent
        for number, op in enumerate(found.ops):
            fixed[number] = not any(first <= op.rank <= last for first, last in free)
    return fixed


def _missing_ends(seen: Ints, expected: Ints, rank: Ints) -> tuple[bool, bool]:
    """Return whether the first ops of the schedule, and whether the last ones, are among those that are missing."""
    known = np.flatnonzero((expected > 0) & (rank >= 0))
    if not len(known):
        return True, True
    first, last = known[np.argmin(rank[known])], known[np.argmax(rank[known])]
    return bool(seen[first] < expected[first]), bool(seen[last] < expected[last])
