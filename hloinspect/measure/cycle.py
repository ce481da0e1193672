"""Programs that are one step together: a training loop may call one for the gradient and one for the update.

Step annotations decide where there are any. Else the order in which the programs ran does, if it repeats.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from hloinspect.kinds import SetAsideReason
from hloinspect.measure.runs import MOST
from hloinspect.measure.steps import UNANNOTATED
from hloinspect.timeline.spans import Ints

MANY = 0.8
"""The share of steps in which a program must run to be a part of the step, and that must have the same order of
programs. Also the share of step annotations that must hold as many runs of the main program as each other."""

LEAST_ACCUMULATED = 3
"""How often a program that ends several runs of another one must have run."""

CLEAR, LEAST_PAUSE_PS = 1.5, 10_000_000
"""The ratio of the longest pause between two programs to the next longest from which on it separates steps, and the
least such pause: a device that is fed ahead pauses for a few microseconds only."""

UNEVEN = "step annotations were not followed: they do not hold the runs evenly"


@dataclass(frozen=True, slots=True)
class Ran:
    """The runs of all programs that may be a part of the step, one element each, sorted by begin.

    ``mark`` is the step annotation in which a run was launched, -1 where that is none or not known.
    """

    program: Ints
    begin_ps: Ints
    end_ps: Ints
    mark: Ints


@dataclass(frozen=True, slots=True)
class Grouping:
    """The step of each run, the numbers of the steps, those to set aside, and notes."""

    step_of_run: Ints
    numbers: Ints
    outside: dict[int, SetAsideReason]
    notes: list[str]


# ---- which programs


def annotated_programs(ran: Ran, main: int) -> tuple[int, ...] | None:
    """Return the programs that run in most step annotations, or None where these do not hold the main program's runs.

    They are in the order in which they first ran. A program that also runs in many annotations without the main one is
    not among them: then the main one is the rare one, such as a checkpoint.
    """
    mark = ran.mark[ran.program == main]
    inside = mark[mark >= 0]
    if not len(mark) or len(inside) < MOST * len(mark):
        return None
    annotations, held = np.unique(inside, return_counts=True)
    if int(np.max(np.bincount(held))) < MANY * len(annotations):
        return None
    found = []
    for program in dict.fromkeys(ran.program[np.isin(ran.mark, annotations)].tolist()):
        own = np.unique(ran.mark[(ran.program == program) & (ran.mark >= 0)])
        if np.isin(own, annotations).sum() >= MANY * max(len(annotations), len(own)):
            found.append(program)
    return tuple(found)


def repeating_programs(
    sequence: Sequence[int], main: int, small: Collection[int], closing: Collection[int]
) -> tuple[int, ...]:
    """Return the programs of a step in the order in which they repeat, from any of them on; ``(main,)`` where none
    repeats with it.

    The shortest cycle counts, so that an evaluation after every tenth step is no part of it. ``small`` are programs
    that take hardly any time: they are only parts of a step that is several programs without them. ``closing`` are
    those that may end a step of several runs of another program, as an update after accumulated gradients does.
    """
    base = _shortest([program for program in sequence if program not in small], main, closing)
    if len(base) < 2:
        return base
    found = base
    counts = Counter(sequence)
    for program in sorted(set(small) & set(sequence), key=lambda one: (-counts[one], one)):
        allowed = {*found, program}
        longer = _pattern([one for one in sequence if one in allowed], base[0])
        found = longer if longer is not None and allowed <= set(longer) else found
    return found


def _shortest(sequence: Sequence[int], main: int, closing: Collection[int]) -> tuple[int, ...]:
    counts = Counter(sequence)
    first = {program: place for place, program in reversed(list(enumerate(sequence)))}
    for marker in sorted(counts, key=lambda one: (-counts[one], one != main, first[one])):
        found = _pattern(sequence, marker) if counts[marker] <= counts[main] else None
        if found is None or main not in found or len(set(found)) < 2:
            continue
        is_accumulated = len(set(found)) < len(found)
        if not is_accumulated or (marker in closing and counts[marker] >= LEAST_ACCUMULATED):
            return found
    return (main,)


def _pattern(sequence: Sequence[int], marker: int) -> tuple[int, ...] | None:
    """Return the marker and the programs that usually run before it comes again, or None where they vary."""
    places = [place for place, program in enumerate(sequence) if program == marker]
    parts = [tuple(sequence[a + 1 : b]) for a, b in pairwise(places)]
    if not parts:
        return None
    seen = Counter(program for part in parts for program in set(part))
    usual = {program for program, count in seen.items() if count >= MANY * len(parts)}
    kept = Counter(tuple(program for program in part if program in usual) for part in parts)
    most, count = kept.most_common(1)[0]
    return (marker, *most) if count >= MANY * len(parts) else None


# ---- where a step begins


def rotations_of(cycle: Sequence[int]) -> list[tuple[int, ...]]:
    """Return a cycle from each of its places on."""
    return [tuple(cycle[place:]) + tuple(cycle[:place]) for place in range(len(cycle))]


def from_first(ran: Ran, cycle: Sequence[int]) -> tuple[int, ...]:
    """Return the cycle from the program on with which a step begins.

    That is after the longest pause of the device if it is clearly the longest; else at the first of repeated runs; else
    as the trace begins. ``ran`` has only the runs of the cycle's programs.
    """
    rotations = rotations_of(cycle)
    places = places_in(ran.program.tolist(), cycle)
    pause = np.maximum(ran.begin_ps[1:] - ran.end_ps[:-1], 0)
    follows = (places[:-1] + 1) % len(cycle) == places[1:]
    usual = [
        float(np.median(own)) if len(own := pause[follows & (places[1:] == place)]) else 0.0
        for place in range(len(cycle))
    ]
    longest, next_longest = sorted(usual)[-1], sorted(usual)[-2]
    if longest > max(CLEAR * next_longest, LEAST_PAUSE_PS):
        return rotations[usual.index(longest)]
    counts = Counter(cycle)
    most = max(counts.values())
    if most > 1:
        return next(one for one in rotations if counts[one[0]] == most and one[-1] != one[0])
    return rotations[int(places[0])]


def places_in(sequence: Sequence[int], cycle: Sequence[int]) -> Ints:
    """Return the place of each run in the cycle: the next one of its program, from that of the run before it on."""
    size = len(cycle)
    after = {
        (place, program): next((p for p in (*range(place, size), *range(place)) if cycle[p] == program), 0)
        for place in range(size)
        for program in set(cycle)
    }
    found, place = [], 0
    for program in sequence:
        here = after[place, program]
        found.append(here)
        place = (here + 1) % size
    return np.array(found, np.int64)


# ---- the steps


def annotated_steps(mark: Ints, number: Ints) -> Grouping:
    """Return the steps of runs by the annotation of each; ``number`` is that of each annotation."""
    inside = mark >= 0
    group = np.where(inside, mark, -1 - np.arange(len(mark)))
    new = np.concatenate(([True], group[1:] != group[:-1]))
    step = np.cumsum(new) - 1
    firsts = np.flatnonzero(new)
    outside: dict[int, SetAsideReason] = {
        int(step[place]): UNANNOTATED for place in firsts.tolist() if not inside[place]
    }
    numbers = np.where(inside[firsts], number[np.maximum(mark[firsts], 0)], -1)
    return Grouping(step, numbers, outside, [])


def repeating_steps(sequence: Sequence[int], cycle: Sequence[int]) -> Grouping:
    """Return the steps of runs by their order: a run that does not come after the one before it begins a step."""
    places = places_in(sequence, cycle)
    step = np.cumsum(np.concatenate(([True], places[1:] <= places[:-1]))) - 1
    return Grouping(step, np.arange(int(step[-1]) + 1), {}, [])


def cycle_text(names: Sequence[str]) -> str:
    """Return a cycle in words: ``jit_grad x4, jit_update``."""
    counts = Counter(names)
    return ", ".join(name if count == 1 else f"{name} x{count}" for name, count in counts.items())
