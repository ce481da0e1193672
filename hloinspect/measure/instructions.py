"""Measured time of each instruction of a step on one device: a small table, whatever the number of events.

An **execution** of an instruction is one event. Only where the module fixes how often an instruction runs in a step,
and each step has an equal multiple of that many events, do so many successive events form one execution (a product
whose parts another kernel adds up). Its time is the sum of its events. Only steps that count are in the table.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from hloinspect.kinds import InstructionClass
from hloinspect.measure import events
from hloinspect.measure.events import Op
from hloinspect.measure.figures import Floats
from hloinspect.measure.join import ProgramJoin, class_in
from hloinspect.timeline.spans import Flags, Ints

MAX_SAMPLES = 64
"""The number of times that are kept of an instruction on a device: all of up to so many executions, else as many evenly
spaced quantiles. A percentile of them is off by at most one in 128 of the executions."""

MAX_MATCHED = 1 << 18
"""The number of executions of collectives that are kept of a device to be matched with other devices (2 MiB)."""

_MOST_PS = float(1 << 62)
"""Sums are exact up to 2**53 ps, and end here, whatever a damaged file says."""

_TIME_BITS = 44
"""Bits of an execution's time in the key that is sorted: 17 s."""


@dataclass(frozen=True, slots=True)
class InstructionTimes:
    """The instructions of one device: columns with one element for each, and times in ps.

    ``programs`` is the program of each, ``classes`` its class. ``executions``, ``events`` and ``total_ps`` are sums
    over ``steps`` steps. The times of single executions are ``sample_ps[first[i]:first[i + 1]]``, sorted; each stands
    for as many executions as the others of its instruction. ``matched`` has for collectives, by their number in the
    table, the time of each execution: a row for each step that counts.
    """

    names: tuple[str, ...]
    programs: tuple[int, ...]
    classes: tuple[InstructionClass, ...]
    steps: int
    executions: Ints
    events: Ints
    total_ps: Ints
    sample_ps: Ints
    first: Ints
    matched: Mapping[int, Ints] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class StepEvents:
    """The events of a device with the step of each (-1 for none), sorted by start.

    ``clean`` says which steps count. ``runs`` is how often each program runs in all of those together: once a step
    where it is not there.
    """

    start_ps: Ints
    end_ps: Ints
    op: NDArray[np.int32] | Ints
    step: Ints
    clean: Flags
    ops: Sequence[Op]
    runs: Mapping[int, int] = field(default_factory=dict)


def instruction_times(
    found: StepEvents, join_to: Callable[[int], ProgramJoin | None], whole: Flags | None = None
) -> InstructionTimes | None:
    """Return the times of the instructions in the steps that count, or None where there is no such step or event.

    ``whole`` says of each op that an event of it is all of a collective, if it is one, and not half of a pair.
    """
    steps = int(found.clean.sum())
    keys, of_op = _instructions(found.ops)
    chosen = _chosen(found, of_op >= 0)
    if not steps or not len(keys):
        return None
    own = slice(None) if chosen is None else chosen
    number = of_op.take(found.op[own])
    time = found.end_ps[own] - found.start_ps[own]
    count = np.bincount(number, minlength=len(keys))
    if not count.any():
        return None
    joins = {program: join_to(program) for program in sorted({program for program, _ in keys})}
    total = np.minimum(np.bincount(number, weights=time, minlength=len(keys)), _MOST_PS).astype(np.int64)
    expected = [_executions(joins[program], name) if n else 0 for (program, name), n in zip(keys, count, strict=True)]
    often = np.array([found.runs.get(program, steps) for program, _ in keys], np.int64)
    each = np.maximum(often * np.array(expected, np.int64), 1)
    parts = np.where((np.array(expected) > 0) & (count > 0) & (count % each == 0), count // each, 1)
    is_collective = _collectives(found.ops, of_op, len(keys), whole)
    special = ((parts > 1) | is_collective) & (count > 0)
    matched: dict[int, Ints] = {}
    if special.any():
        executions = _Executions(number, time, found.step[own], steps)
        number, time, matched = executions.of(special, parts, is_collective)
    runs = np.bincount(number, minlength=len(keys))
    samples, first = _samples(number, time, runs)
    seen = np.flatnonzero(count)
    place = {old: new for new, old in enumerate(seen.tolist())}
    lengths = np.diff(first)
    return InstructionTimes(
        names=tuple(keys[i][1] for i in seen.tolist()),
        programs=tuple(keys[i][0] for i in seen.tolist()),
        classes=tuple(class_in(joins[keys[i][0]], keys[i][1]) for i in seen.tolist()),
        steps=steps,
        executions=runs[seen],
        events=count[seen],
        total_ps=total[seen],
        sample_ps=samples,
        first=np.concatenate(([0], np.cumsum(lengths[seen]))),
        matched={place[old]: rows for old, rows in matched.items()},
    )


def _instructions(ops: Sequence[Op]) -> tuple[list[tuple[int, str]], Ints]:
    """Return the program and name of each instruction, and the instruction of each op, -1 for what is none.

    Several ops are one instruction: a copy inside a fusion is named by itself, or by the fusion.
    """
    numbers: dict[tuple[int, str], int] = {}
    of_op = np.full(len(ops), -1, np.int64)
    for place, op in enumerate(ops):
        if op.kind != events.IGNORED and not op.is_hidden:
            of_op[place] = numbers.setdefault((op.program, op.name), len(numbers))
    return list(numbers), of_op


def _chosen(found: StepEvents, is_instruction: Flags) -> Ints | None:
    """Return the events of instructions in steps that count, None where these are all events."""
    counts = np.append(found.clean, False)[found.step] if len(found.step) else np.zeros(0, np.bool_)
    if not is_instruction.all():
        counts &= is_instruction.take(found.op)
    return None if counts.all() else np.flatnonzero(counts)


def _executions(joined: ProgramJoin | None, name: str) -> int:
    return joined.executions_of(name) if joined is not None else 0


def _collectives(ops: Sequence[Op], of_op: Ints, count: int, whole: Flags | None) -> Flags:
    """Return which instructions are collectives whose events can be matched with those of other devices."""
    chosen = (np.array([op.kind for op in ops], np.int64) == events.COLLECTIVE) & (of_op >= 0)
    found = np.zeros(count, np.bool_)
    found[of_op[chosen if whole is None else chosen & whole]] = True
    return found


@dataclass(frozen=True, slots=True)
class _Executions:
    """Events, one element each, from which executions are made: instruction, time, and step."""

    number: Ints
    time: Ints
    step: Ints
    steps: int

    def of(self, special: Flags, parts: Ints, is_collective: Flags) -> tuple[Ints, Ints, dict[int, Ints]]:
        """Return instruction and time of each execution, and the times of collectives as a row for each step.

        Each execution of an instruction consists of so many ``parts`` if all steps have equally many events of it. Only
        events of ``special`` instructions are put in order, which are few.
        """
        mine = np.flatnonzero(special.take(self.number))
        order = mine[np.lexsort((self.step[mine], self.number[mine]))]  # stable: by start within a step
        begins = np.flatnonzero(np.concatenate(([True], self.number[order][1:] != self.number[order][:-1])))
        numbers, times, matched = [], [], {}
        room = MAX_MATCHED
        for own in np.split(order, begins[1:]):
            which = int(self.number[own[0]])
            is_even = self._is_even(own)
            together = self.time[own].reshape(-1, int(parts[which]) if is_even else 1).sum(axis=1)
            numbers.append(np.full(len(together), which, np.int64))
            times.append(together)
            if is_collective[which] and is_even and len(together) <= room:
                matched[which] = together.reshape(self.steps, -1)
                room -= len(together)
        rest = np.ones(len(self.number), np.bool_)
        rest[mine] = False
        return np.concatenate((self.number[rest], *numbers)), np.concatenate((self.time[rest], *times)), matched

    def _is_even(self, own: Ints) -> bool:
        """Return whether each step that counts has as many of these events, which are sorted by step."""
        if len(own) % self.steps:
            return False
        rows = self.step[own].reshape(self.steps, -1)
        return bool((rows == rows[:, :1]).all() and (rows[1:, 0] > rows[:-1, 0]).all())


def _samples(number: Ints, time: Ints, count: Ints) -> tuple[Ints, Ints]:
    """Return the sorted times that are kept of each instruction, and where those of each begin."""
    if int(np.max(time, initial=0)) < 1 << _TIME_BITS and int(np.min(time, initial=0)) >= 0 and len(count) < 1 << 19:
        key = (number << _TIME_BITS) | time
        key.sort()
        ordered = key & ((1 << _TIME_BITS) - 1)
    else:
        ordered = time[np.lexsort((time, number))]
    kept = np.minimum(count, MAX_SAMPLES)
    first = np.concatenate(([0], np.cumsum(kept)))
    begin = np.repeat(np.cumsum(count) - count, kept)
    place = np.arange(int(kept.sum())) - np.repeat(first[:-1], kept)
    ahead = (2 * place + 1) * np.repeat(count, kept) // (2 * np.repeat(np.maximum(kept, 1), kept))
    return ordered[begin + ahead], first


# ---- percentiles over devices


def percentiles(values: Ints, weights: Floats, group: Ints, groups: int, shares: Sequence[float]) -> list[Floats]:
    """Return for each share the value of each group below which that share of its weight lies.

    Where the share ends between two values it is their mean, so that 0.5 gives the usual median. Groups without values
    get 0.
    """
    order = np.lexsort((values, group))
    values, weights, group = values[order].astype(np.float64), weights[order], group[order]
    size = np.bincount(group, minlength=groups)
    last = np.cumsum(size)
    reached = np.cumsum(weights)
    before = np.concatenate(([0.0], reached))[last - size]
    whole = np.concatenate(([0.0], reached))[last] - before
    found = []
    for share in shares:
        target, slack = before + share * whole, 1e-9 * np.maximum(whole, 1e-300)
        low = np.clip(np.searchsorted(reached, target - slack), last - size, np.maximum(last - 1, 0))
        high = np.clip(np.searchsorted(reached, target + slack), last - size, np.maximum(last - 1, 0))
        some = size > 0
        result = np.zeros(groups)
        result[some] = (values[low[some]] + values[high[some]]) / 2
        found.append(result)
    return found
