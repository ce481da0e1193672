"""Runs of a program that are steps, and those of them that count.

On a GPU the trace does not show where a run begins. It follows from the order in which the main stream executes the
program's schedule. A place that does not come after the one before begins a loop's next iteration or the next run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from hloinspect.kinds import SetAsideReason
from hloinspect.measure.join import Loop
from hloinspect.timeline.spans import Ints

CUT_BEGIN: Final = "cut by the trace's begin"
CUT_END: Final = "cut by the trace's end"
MISSING: Final = "events are missing or unpaired"
WARM_UP: Final = "warm-up"
IMPOSSIBLE: Final = "rates that cannot be"
CLOCK: Final = "the clock jumped"
UNANNOTATED: Final = "outside the step annotations"

WARM_UP_FACTOR = 1.5
"""The least ratio of the first step's time to the median of the others with which it counts as warm-up."""

USUAL_SHARE = 0.5
"""The share of steps that must consist of the same events. Only then the other steps are compared with those."""


@dataclass(frozen=True, slots=True)
class Runs:
    """Runs of a program by its operations on the main stream, in order: the first and last place of each.

    ``certain`` is false where the module does not distinguish iterations of a loop from runs of the program. ``mark``
    is the step annotation of each run where annotations separate them.
    """

    first: Ints
    last: Ints
    certain: bool
    mark: Ints | None = None

    def __len__(self) -> int:
        return len(self.first)


def cut_runs(ranks: Ints, loops: Sequence[Loop]) -> Runs:
    """Cut a sequence of places in the schedule into runs."""
    if not len(ranks):
        none = np.zeros(0, np.int64)
        return Runs(none, none, True)
    falls = np.flatnonzero(ranks[1:] <= ranks[:-1]) + 1
    around = _innermost(loops, int(np.min(ranks)), int(np.max(ranks)))
    certain = True
    if around is None:
        new = falls[_is_new_run(ranks, falls, loops)] if len(falls) else falls
    else:
        new, certain = _count_iterations(ranks, falls, loops, around)
    first = np.concatenate(([0], new)).astype(np.int64)
    return Runs(first, np.concatenate((first[1:] - 1, [len(ranks) - 1])), certain)


def _is_new_run(ranks: Ints, falls: Ints, loops: Sequence[Loop]) -> NDArray[np.bool_]:
    """Return which falls are neither a loop's next iteration nor another kernel of the same instruction."""
    pairs, inverse = np.unique(np.stack((ranks[falls - 1], ranks[falls])), axis=1, return_inverse=True)
    is_new = [
        a != b and _innermost(loops, b, a) is None for a, b in zip(pairs[0].tolist(), pairs[1].tolist(), strict=True)
    ]
    return np.array(is_new, np.bool_)[inverse.ravel()]


def _count_iterations(ranks: Ints, falls: Ints, loops: Sequence[Loop], around: Loop) -> tuple[Ints, bool]:
    """Return which falls begin a run, and whether that is certain, where all that the main stream runs is in one loop.

    The iterations of the loop are counted there.
    """
    before, after = ranks[falls - 1], ranks[falls]
    inner = [loop for loop in loops if around.first <= loop.first and loop.last <= around.last and loop != around]
    iteration = before != after
    for loop in inner:
        iteration &= ~((before <= loop.last) & (before >= loop.first) & (after <= loop.last) & (after >= loop.first))
    iterations = falls[iteration] if iteration.any() or len(np.unique(ranks)) > 1 else falls
    if not around.iterations:
        return iterations, False
    return iterations[around.iterations - 1 :: around.iterations], True


def _innermost(loops: Sequence[Loop], low: int, high: int) -> Loop | None:
    """Return the smallest loop around both places."""
    found = [loop for loop in loops if loop.first <= low and high <= loop.last]
    return min(found, key=lambda loop: loop.last - loop.first, default=None)


def innermost_bounds(loops: Sequence[Loop], low: Ints, high: Ints) -> tuple[Ints, Ints]:
    """Return the first and last place of the smallest loop around each pair of places, (1, 0) where there is none."""
    first, last = np.ones(len(low), np.int64), np.zeros(len(low), np.int64)
    for loop in sorted(loops, key=lambda loop: loop.first - loop.last):
        inside = (loop.first <= low) & (high <= loop.last)
        first[inside], last[inside] = loop.first, loop.last
    return first, last


# ---- which steps count


def unusual(step: Ints, op: Ints, steps: int, ops: int) -> tuple[NDArray[np.bool_], bool, Ints]:
    """Return which steps consist of other events than most, whether that is known, and each op's usual number of
    events.

    ``step`` and ``op`` are those of each event. Where fewer than half of the steps agree, each op's own most frequent
    number is what counts.
    """
    weights = np.random.default_rng(1).integers(1, 1 << 40, ops)
    signature = np.zeros(steps, np.int64)
    np.add.at(signature, step, weights[op])
    size = np.bincount(step, minlength=steps)
    marks, first, inverse, count = np.unique(signature, return_index=True, return_inverse=True, return_counts=True)
    usual = int(np.lexsort((size[first], count))[-1]) if len(marks) else 0
    if steps and count[usual] >= USUAL_SHARE * steps:
        expected = np.bincount(op[step == first[usual]], minlength=ops)
        return inverse != usual, True, expected
    cells, number = np.unique(op.astype(np.int64) * steps + step, return_counts=True)
    table = np.zeros(ops, np.int64)
    which = cells // steps
    for one in np.unique(which).tolist():
        counts = np.append(number[which == one], np.zeros(steps - int((which == one).sum()), np.int64))
        values, often = np.unique(counts, return_counts=True)
        table[one] = values[np.lexsort((values, often))[-1]]
    wrong = np.zeros(steps, np.bool_)
    wrong[(cells % steps)[number != table[which]]] = True
    present = np.zeros(steps, np.int64)
    np.add.at(present, cells % steps, table[which] > 0)
    wrong |= present != (table > 0).sum()
    return wrong, bool((~wrong).any()), table


def edge_reason(index: int, steps: int, missing_first: bool, missing_last: bool) -> SetAsideReason:
    """Return why an unusual step is set aside: at an end of the trace it may be cut."""
    if index == 0 and missing_first:
        return CUT_BEGIN
    if index == steps - 1 and missing_last:
        return CUT_END
    return MISSING


def warm_up(time_ps: Ints, counted: NDArray[np.bool_]) -> bool:
    """Return whether the first step is warm-up: it took much longer than the others, of which there are at least
    two."""
    others = time_ps[1:][counted[1:]]
    return bool(len(others) >= 2 and len(time_ps) and time_ps[0] > WARM_UP_FACTOR * float(np.median(others)))
