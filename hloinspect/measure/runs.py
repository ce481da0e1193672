"""Begin of each run of a program on the main stream of a GPU, from the schedule or other evidence."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hloinspect.measure.events import DeviceEvents
from hloinspect.measure.join import Loop
from hloinspect.measure.steps import Runs, cut_runs
from hloinspect.measure.waits import LaunchTimes, Stream
from hloinspect.timeline.spans import Flags, Ints

MOST = 0.8
"""The share of operations that must have been launched inside of a step annotation. Only then annotations separate
runs."""

_BY_MARKS = "runs of the program were separated by step annotations: its schedule does not show in the trace"
_BY_REPEATS = "runs of the program were separated by repeats of an operation: its schedule does not show in the trace"


@dataclass(frozen=True, slots=True)
class StepMarks:
    """The host's step annotations, sorted by start."""

    number: Ints
    start_ps: Ints
    end_ps: Ints

    def around(self, times_ps: Ints) -> Ints:
        """Return the annotation in which each time is, -1 for none. Times below 0 are in none."""
        mark = np.searchsorted(self.start_ps, times_ps, side="right") - 1
        inside = (times_ps >= 0) & (mark >= 0) & (times_ps <= self.end_ps[np.maximum(mark, 0)])
        return np.where(inside, mark, -1)


def runs_on(
    found: DeviceEvents,
    main: Stream,
    own: Flags,
    loops: Sequence[Loop],
    marks: StepMarks | None,
    launched: LaunchTimes,
) -> tuple[Ints, Runs, list[str]]:
    """Return the places on the main stream that were looked at, the runs as pairs of indices into these, and notes.

    ``own`` marks the events of the program. The schedule may not show runs (no module, all in graphs, a single
    operation, or a loop with an unknown number of iterations). Then the operations that were launched in one step
    annotation are a run; else a run begins where the rarest operation comes again.
    """
    places = np.flatnonzero(main.ranked)
    ranks = main.rank[places]
    runs = cut_runs(ranks, loops)
    is_shown = len(places) > 0 and bool((ranks != ranks[0]).any())
    if is_shown and runs.certain:
        return places, runs, []
    all_own = np.flatnonzero(own[main.event])
    by_marks = _by_marks(found.correlation[main.event[all_own]], marks, launched)
    if by_marks is not None:
        return all_own, by_marks, [_BY_MARKS] if not is_shown and len(by_marks) > 1 else []
    if is_shown:
        return (
            places,
            runs,
            ["the number of iterations of its loop is not in the module: each iteration was taken for a run"],
        )
    by_repeats = _by_repeats(main.op[all_own].astype(np.int64))
    return all_own, by_repeats, [_BY_REPEATS] if len(by_repeats) > 1 else []


def _runs(begins: Ints, size: int, mark: Ints | None = None) -> Runs:
    return Runs(begins, np.append(begins[1:] - 1, size - 1), False, mark)


def _by_marks(correlation: Ints, marks: StepMarks | None, launched: LaunchTimes) -> Runs | None:
    """Return the runs by the annotation in which each operation was launched, or None where most have no known one."""
    if marks is None or not len(marks.number) or not len(correlation):
        return None
    mark = marks.around(launched(correlation))
    if (mark >= 0).sum() < MOST * len(mark):
        return None
    reached = np.maximum.accumulate(mark)  # what has no known launch belongs to the annotation of the one before
    begins = np.flatnonzero(np.concatenate(([True], reached[1:] != reached[:-1])))
    return _runs(begins, len(mark), reached[begins])


def _by_repeats(op: Ints) -> Runs:
    """Return the runs by the repeats of the first operation, or of the rarest, if that is rarer."""
    if not len(op):
        return Runs(op, op, True)
    count = np.bincount(op)
    rarest = int(op[np.argmin(count[op])])
    chosen = int(op[0]) if count[op[0]] == count[rarest] else rarest
    begins = np.flatnonzero(op == chosen)
    begins[0] = 0
    return _runs(begins, len(op))
