"""Programs of one step on one GPU: the runs of each, which of them are parts of the step, and the waits of each.

Each program is measured by its own schedule. Only then its runs are put together with those of the others.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from hloinspect.measure import events
from hloinspect.measure.cycle import (
    MANY,
    UNEVEN,
    Grouping,
    Ran,
    annotated_programs,
    annotated_steps,
    cycle_text,
    from_first,
    repeating_programs,
    repeating_steps,
    rotations_of,
)
from hloinspect.measure.events import DeviceEvents, OnLine
from hloinspect.measure.join import ProgramJoin
from hloinspect.measure.measured import StepProgram
from hloinspect.measure.runs import StepMarks, runs_on
from hloinspect.measure.steps import Runs
from hloinspect.measure.waits import FAR, LaunchTimes, Stream, charge_waits, done_table
from hloinspect.timeline.spans import Flags, Ints, union

_LEAST, _MOST = np.iinfo(np.int64).min, np.iinfo(np.int64).max
MOST_PROGRAMS, MOST_RUNS = 16, 1 << 18
"""How many programs besides the main one are looked at, those that took the longest, and how many runs in all."""

SMALL_SHARE = 0.01
"""A program without host transfers that takes less than this share of the main program's time does not make a step one
of several programs. Else the time between ``jit_convert_element_type`` and the step would count as the step's."""

UPDATES_SHARE = 0.25
"""The share of its arguments' bytes that a program's results must have, if it has no host transfers, so that it may end
a step of several runs of another program: an update returns what it was given, an evaluation does not."""

_RANKS = 1 << 40


@dataclass(frozen=True, slots=True)
class Part:
    """A program on one device: its events, its main stream, and its runs by their places on that."""

    program: int
    joined: ProgramJoin | None
    own: Flags
    main: Stream
    places: Ints
    runs: Runs
    notes: Sequence[str]

    @property
    def count(self) -> int:
        """Return the number of runs, one where the schedule shows none."""
        return max(len(self.runs), 1)

    @property
    def last_transfer(self) -> int:
        """Return the greatest id of a transfer of its module."""
        return max((transfer.id for transfer in self.joined.offload.transfers), default=0) if self.joined else 0

    @property
    def begin_ps(self) -> Ints:
        """Return when the first operation of each run began on the main stream."""
        return self.main.start_ps[self.places[self.runs.first]]

    @property
    def end_ps(self) -> Ints:
        """Return when the last operation of each run ended on the main stream."""
        return self.main.end_ps[self.places[self.runs.last]]

    def mark(self, found: DeviceEvents, marks: StepMarks | None, launched: LaunchTimes) -> Ints:
        """Return the step annotation in which each run was launched, -1 for none."""
        if marks is None or not len(marks.number):
            return np.full(len(self.runs), -1, np.int64)
        if self.runs.mark is not None:
            return self.runs.mark
        return marks.around(launched(found.correlation[self.main.event[self.places[self.runs.first]]]))


@dataclass(frozen=True, slots=True)
class Cycle:
    """The programs of a step, the main one first, and the order in which they run in it (empty if it is alone).

    ``is_annotated``: step annotations say so.
    """

    parts: tuple[Part, ...]
    order: tuple[int, ...] = ()
    is_annotated: bool = False

    def transfer_of_op(self, found: DeviceEvents) -> Ints:
        """Return the transfer of each op, with ids that are unique over the programs of the step."""
        own = found.table("transfer")
        if len(self.parts) == 1:
            return own
        program, unique = found.table("program"), np.zeros(len(own), np.int64)
        for part, offset in zip(self.parts, self.offsets, strict=True):
            these = (program == part.program) & (own > 0)
            unique[these] = own[these] + offset
        return unique

    @property
    def offsets(self) -> tuple[int, ...]:
        """Return what is added to the transfer ids of each program."""
        offsets = [0]
        for part in self.parts[:-1]:
            offsets.append(offsets[-1] + part.last_transfer)
        return tuple(offsets)

    def place_of_op(self, found: DeviceEvents) -> Ints:
        """Return the place of each op in the schedules of the step's programs one after the other, -1 for none."""
        rank = found.table("rank")
        if len(self.parts) == 1:
            return rank
        program, place = found.table("program"), np.full(len(rank), -1, np.int64)
        for number, one in enumerate(dict.fromkeys(self.order)):
            these = (program == one) & (rank >= 0)
            place[these] = rank[these] + number * _RANKS
        return place


@dataclass(frozen=True, slots=True)
class StepRuns:
    """The runs of all programs of the step: which events are of which, and which run is of which step.

    ``run`` is that of every event, -1 for none. ``numbers`` are, for each part, the numbers of its runs.
    """

    parts: tuple[Part, ...]
    run: Ints
    numbers: tuple[Ints, ...]
    grouping: Grouping
    notes: Sequence[str]


# ---- one program


def part_of(
    found: DeviceEvents, program: int, joined: ProgramJoin | None, marks: StepMarks | None, launched: LaunchTimes
) -> Part | None:
    """Return the runs of a program, or None where none of its operations is on a stream."""
    own = found.flags(found.table("program") == program)
    main = _main_stream(found, program)
    if main is None:
        return None
    places, runs, notes = runs_on(found, main, own, joined.loops if joined else (), marks, launched)
    return Part(program, joined, own, main, places, runs, notes)


def _main_stream(found: DeviceEvents, program: int) -> Stream | None:
    """Return the stream with the most work of the program."""
    is_own = (found.table("program") == program) & (found.spent[1] > 0)
    work = is_own & is_kind(found, events.COMPUTE)
    if not work.any():
        work = is_own
    if not work.any():
        return None
    time = np.zeros(len(found.lines), np.int64)
    np.add.at(time, found.line, (found.end_ps - found.start_ps + 1) * found.flags(work))
    line = int(np.argmax(time))
    event, start, end, reached, op, rank = _on_line(found, line)
    ranked = (found.table("program") == program) & (found.table("rank") >= 0)
    return Stream(event, start, end, reached, ranked.take(op), rank, op, line)


def _on_line(found: DeviceEvents, line: int) -> OnLine:
    """Return the events of a stream. They are kept: the programs of a step mostly share a main stream."""
    if line not in found.on_lines:
        event = np.flatnonzero(found.line == line)
        end, op = found.end_ps[event], found.op[event]
        own = (event, found.start_ps[event], end, np.maximum.accumulate(end), op, found.table("rank").take(op))
        found.on_lines[line] = own
    return found.on_lines[line]


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


def _runs_by_event(found: DeviceEvents, part: Part, marks: StepMarks | None, launched: LaunchTimes) -> Ints:
    """Return the run of every event of a program, -1 for others."""
    run = _run_of(found, part.own, part.main, part.places, part.runs, part.joined)
    if part.runs.mark is not None and marks is not None:
        return _run_by_mark(found, part.own, run, part.runs.mark, marks.around(launched(found.correlation[part.own])))
    return run


def _run_by_mark(found: DeviceEvents, own: Flags, run: Ints, of_run: Ints, mark: Ints) -> Ints:
    """Return the run of every event by the step annotation in which it was launched, where that is known."""
    place = np.minimum(np.searchsorted(of_run, mark), len(of_run) - 1)
    by_mark = np.full(len(found.start_ps), -1, np.int64)
    by_mark[own] = np.where(of_run[place] == mark, place, -1)
    return np.where(by_mark >= 0, by_mark, run)


def _steps(part: Part, marks: StepMarks | None, launched: LaunchTimes, found: DeviceEvents) -> Grouping:
    """Return the steps of a program that is the only one of its step."""
    count = part.count
    one_each = np.arange(count)
    if marks is None or not len(marks.number) or not len(part.runs):
        return Grouping(one_each, one_each, {}, [])
    if len(marks.number) == count:
        return Grouping(one_each, marks.number, {}, [])
    mark = marks.around(launched(found.correlation[part.main.event[part.places[part.runs.first]]]))
    held = np.bincount(mark[mark >= 0], minlength=len(marks.number))
    held = held[held > 0]
    if not len(held) or int(np.max(np.bincount(held))) < MANY * len(held):
        return Grouping(one_each, one_each, {}, [UNEVEN])
    return annotated_steps(mark, marks.number)


def windows(found: DeviceEvents, step: Ints, steps: int) -> tuple[Ints, Ints]:
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


def is_kind(found: DeviceEvents, *wanted: int) -> Flags:
    """Return which ops are of one of these kinds."""
    return np.isin(found.table("kind"), wanted)


# ---- the programs of a step


def step_programs(
    found: DeviceEvents,
    main: Part,
    joins: Callable[[int], ProgramJoin | None],
    marks: StepMarks | None,
    launched: LaunchTimes,
    known: Sequence[int] | None,
) -> Cycle:
    """Return the programs of the step of the main program."""
    others = _others(found, main, joins, marks, launched)
    if not others or not len(main.runs):
        return Cycle((main,))
    parts = {part.program: part for part in (main, *others)}
    ran = _ran(found, tuple(parts.values()), marks, launched)
    programs = annotated_programs(ran, main.program)
    time = _times(found)
    least = SMALL_SHARE * time[main.program]
    small = {one.program for one in others if time[one.program] < least and not _transfers(one)}
    if programs is not None:
        if len(set(programs) - small) < 2:
            return Cycle((main,))
        return Cycle((main, *(parts[one] for one in sorted(programs) if one != main.program)), programs, True)
    closing = {one.program for one in parts.values() if _closes(one)}
    cycle = repeating_programs(ran.program.tolist(), main.program, small, closing)
    if len(cycle) < 2:
        return Cycle((main,))
    several = (main, *(parts[one] for one in sorted(set(cycle)) if one != main.program))
    if known is not None and tuple(known) in rotations_of(cycle):
        return Cycle(several, tuple(known))
    return Cycle(several, from_first(_ran(found, several, marks, launched, exact=True), cycle))


def _times(found: DeviceEvents) -> dict[int, int]:
    programs, time = found.table("program"), found.spent[0]
    numbers, place = np.unique(programs, return_inverse=True)
    total = np.zeros(len(numbers), np.int64)
    np.add.at(total, place, time)
    return dict(zip(numbers.tolist(), total.tolist(), strict=True))


def _others(
    found: DeviceEvents,
    main: Part,
    joins: Callable[[int], ProgramJoin | None],
    marks: StepMarks | None,
    launched: LaunchTimes,
) -> list[Part]:
    """Return the other programs that may be a part of the step: each ran twice or more."""
    programs, count = found.table("program"), found.spent[1]
    often = set(programs[count > 1].tolist()) - {0, main.program}
    if not often:
        return []
    time = _times(found)
    chosen = sorted(often, key=lambda one: (-time[one], one))[:MOST_PROGRAMS]
    parts = [part_of(found, one, joins(one), marks, launched) for one in chosen]
    several = [part for part in parts if part is not None and len(part.runs) > 1]
    return several if sum(len(part.runs) for part in (main, *several)) <= MOST_RUNS else []


def _ran(
    found: DeviceEvents,
    parts: Sequence[Part],
    marks: StepMarks | None,
    launched: LaunchTimes,
    *,
    exact: bool = False,
) -> Ran:
    """Return the runs of the programs, by the begin of their first operation on the main stream.

    They last until their last one there ends, or if ``exact`` from their first to their last event on any stream.
    """
    begin = np.concatenate([part.begin_ps for part in parts])
    order = np.argsort(begin, kind="stable")
    around = [
        windows(found, _runs_by_event(found, part, marks, launched), len(part.runs))
        if exact
        else (part.begin_ps, part.end_ps)
        for part in parts
    ]
    return Ran(
        np.concatenate([np.full(len(part.runs), part.program, np.int64) for part in parts])[order],
        np.concatenate([first for first, _ in around])[order],
        np.concatenate([last for _, last in around])[order],
        np.concatenate([part.mark(found, marks, launched) for part in parts])[order],
    )


def _transfers(part: Part) -> bool:
    return part.joined is not None and bool(part.joined.offload.transfers)


def _closes(part: Part) -> bool:
    """Return whether a program may end a step of several runs of another one: it changes much of what it is given."""
    if part.joined is None:
        return False
    if _transfers(part):
        return True
    entry = part.joined.module.entry
    given = sum(instruction.shape.size_bytes for instruction in entry if instruction.opcode == "parameter")
    return entry.root.shape.size_bytes >= UPDATES_SHARE * given


# ---- the runs of a step


def runs_of_step(
    found: DeviceEvents, main: Part, cycle: Cycle, marks: StepMarks | None, launched: LaunchTimes
) -> StepRuns:
    """Return the run of every event of the step's programs, and the step of each run."""
    if len(cycle.parts) == 1:
        run = _runs_by_event(found, main, marks, launched)
        grouping = _steps(main, marks, launched, found)
        return StepRuns(cycle.parts, run, (np.arange(main.count),), grouping, list(main.notes))
    ran = _ran(found, cycle.parts, marks, launched)
    begins = np.concatenate([part.begin_ps for part in cycle.parts])
    number = np.empty(len(begins), np.int64)
    number[np.argsort(begins, kind="stable")] = np.arange(len(begins))
    numbers = np.split(number, np.cumsum([len(part.runs) for part in cycle.parts])[:-1])
    run = np.full(len(found.start_ps), -1, np.int64)
    for part, own in zip(cycle.parts, numbers, strict=True):
        of_part = _runs_by_event(found, part, marks, launched)
        chosen = np.flatnonzero(of_part >= 0)
        run[chosen] = own[of_part[chosen]]
    notes = list(dict.fromkeys(note for part in cycle.parts if part is main or _transfers(part) for note in part.notes))
    if cycle.is_annotated:
        assert marks is not None
        return StepRuns(cycle.parts, run, tuple(numbers), annotated_steps(ran.mark, marks.number), notes)
    if marks is not None and len(marks.number):
        notes.append(UNEVEN)
    names = _names(cycle)
    notes.append(
        f"a step is taken to be {cycle_text([names[one] for one in cycle.order])}, since they ran in this order "
        "again and again: a step annotation (jax.profiler.StepTraceAnnotation) around the step would decide it"
    )
    return StepRuns(cycle.parts, run, tuple(numbers), repeating_steps(ran.program.tolist(), cycle.order), notes)


def _names(cycle: Cycle) -> dict[int, str]:
    """Return a name of each program of the step that no other one has."""
    own = {part.program: part.joined.module.name if part.joined else "" for part in cycle.parts}
    count = Counter(own.values())
    return {
        program: f"program {program}" if not name else name if count[name] == 1 else f"{name} ({program})"
        for program, name in own.items()
    }


def charged(
    found: DeviceEvents, ran: StepRuns, known: tuple[Ints, Ints] | None, launched: LaunchTimes
) -> tuple[Ints, Ints, bool]:
    """Return the wait charged to each event, the host-bound time of each run, and whether needed launches are known.

    ``known`` are the windows of the runs where they are those of the steps.
    """
    wait, host_bound, is_known = np.zeros(0, np.int64), np.zeros(len(ran.grouping.step_of_run), np.int64), True
    for part, number in zip(ran.parts, ran.numbers, strict=True):
        run = ran.run if len(ran.parts) == 1 else _only(ran.run, number)
        around = known if known is not None else windows(found, run, len(number))
        waits = charge_waits(found, part.main, run, around, part.joined, launched)
        wait = wait + waits.wait_ps if len(wait) else waits.wait_ps
        host_bound[number] = waits.host_bound_ps
        is_known &= waits.launches_known
    return wait, host_bound, is_known


def _only(run: Ints, number: Ints) -> Ints:
    """Return the run of every event among those of one part, whose ``number`` in all runs rise; -1 for other events."""
    place = np.minimum(np.searchsorted(number, run), len(number) - 1)
    return np.where((run >= 0) & (number[place] == run), place, -1)


def program_figures(
    found: DeviceEvents, ran: StepRuns, steps: int, transfers: Mapping[int, Mapping[str, Ints]]
) -> tuple[StepProgram, ...]:
    """Return the part of each program in each step, the main one first; empty where the step is one program.

    ``transfers`` have ids that are unique over the programs. Those of the main program are not repeated.
    """
    if len(ran.parts) == 1:
        return ()
    found_parts = []
    for index, (part, number) in enumerate(zip(ran.parts, ran.numbers, strict=True)):
        begin, end = windows(found, _only(ran.run, number), len(number))
        step = ran.grouping.step_of_run[number]
        time = np.zeros(steps, np.int64)
        np.add.at(time, step, end - begin)
        offset = Cycle(ran.parts).offsets[index]
        own = {
            unique - offset: figures
            for unique, figures in transfers.items()
            if index and offset < unique <= offset + part.last_transfer
        }
        found_parts.append(StepProgram(part.program, np.bincount(step, minlength=steps), time, own))
    return tuple(found_parts)


def time_between(found: DeviceEvents, ran: StepRuns, begin: Ints, end: Ints) -> Ints:
    """Return the time of each step ``[begin, end)`` in which none of its programs runs; empty for a single program."""
    if len(ran.parts) == 1:
        return np.zeros(0, np.int64)
    first, last = windows(found, ran.run, len(ran.grouping.step_of_run))
    return end - begin - union(first, last).within(begin, end)
