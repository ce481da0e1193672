"""Where each run of a program begins on the main stream of a GPU: by the schedule, or by what else tells."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hloinspect.measure.events import DeviceEvents
from hloinspect.measure.join import Loop
from hloinspect.measure.steps import Runs, cut_runs
from hloinspect.measure.waits import Flags, LaunchTimes, Stream
from hloinspect.timeline.spans import Ints

MOST = 0.8
"""Runs are cut by step annotations if so many operations were launched inside of one."""

_BY_MARKS = "runs of the program were told apart by step annotations: its schedule does not show in the trace"
_BY_REPEATS = "runs of the program were told apart by repeats of an operation: its schedule does not show in the trace"


@dataclass(frozen=True, slots=True)
class StepMarks:
    """The host's step annotations, sorted by start."""

    number: Ints
    start_ps: Ints
    end_ps: Ints

    def around(self, times_ps: Ints) -> Ints:
        """The annotation in which each time is, -1 for none; times below 0 are none."""
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
    """The places on the main stream that were looked at, the runs as pairs of indices into these, and what to note.

    ``own`` says which events are the program's. Where the schedule does not tell (no module, all
    in graphs, a single operation, or a loop whose turns are not known), the operations that were launched in one step
    annotation are a run; else a run begins where the rarest operation comes again.
    """
    places = np.flatnonzero(main.ranked)
    ranks = main.rank[places]
    runs = cut_runs(ranks, loops)
    is_told = len(places) > 0 and bool((ranks != ranks[0]).any())
    if is_told and runs.certain:
        return places, runs, []
    all_own = np.flatnonzero(own[main.event])
    by_marks = _by_marks(found.correlation[main.event[all_own]], marks, launched)
    if by_marks is not None:
        return all_own, by_marks, [_BY_MARKS] if not is_told and len(by_marks) > 1 else []
    if is_told:
        return places, runs, ["the module does not say how often its loop turns: each turn was taken for a run"]
    by_repeats = _by_repeats(main.op[all_own].astype(np.int64))
    return all_own, by_repeats, [_BY_REPEATS] if len(by_repeats) > 1 else []


def _runs(begins: Ints, size: int, mark: Ints | None = None) -> Runs:
    return Runs(begins, np.append(begins[1:] - 1, size - 1), False, mark)


def _by_marks(correlation: Ints, marks: StepMarks | None, launched: LaunchTimes) -> Runs | None:
    """Runs by the annotation in which each operation was launched; None where that is not known of most."""
    if marks is None or not len(marks.number) or not len(correlation):
        return None
    mark = marks.around(launched(correlation))
    if (mark >= 0).sum() < MOST * len(mark):
        return None
    reached = np.maximum.accumulate(mark)  # what has no launch of its own is of the annotation of the one before
    begins = np.flatnonzero(np.concatenate(([True], reached[1:] != reached[:-1])))
    return _runs(begins, len(mark), reached[begins])


def _by_repeats(op: Ints) -> Runs:
    """Runs by the repeats of the first operation, or of the rarest, if that is rarer."""
    if not len(op):
        return Runs(op, op, True)
    count = np.bincount(op)
    rarest = int(op[np.argmin(count[op])])
    chosen = int(op[0]) if count[op[0]] == count[rarest] else rarest
    begins = np.flatnonzero(op == chosen)
    begins[0] = 0
    return _runs(begins, len(op))
