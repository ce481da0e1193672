"""Facts from the host's plane about a device's run: step annotations, and when each operation was launched."""

from __future__ import annotations

from functools import cached_property

import numpy as np

from hloinspect.measure.runs import StepMarks
from hloinspect.profiles.xplane import Columns, Plane, XSpace
from hloinspect.timeline.spans import Ints

PLANES = ("/host:CPU", "/host:CUPTI")
_THREADS = "Host Threads/"
_CORRELATION, _STEP = "correlation_id", "step_num"


def step_marks(space: XSpace) -> StepMarks | None:
    """Return the step annotations (``jax.profiler.StepTraceAnnotation``) of the thread that has the most, or None."""
    best: Columns | None = None
    for plane in _planes(space, _STEP):
        for line in plane.lines:
            if line.name.startswith(_THREADS):
                continue
            columns = line.columns((_STEP,))
            if best is None or columns.stats[_STEP].present.sum() > best.stats[_STEP].present.sum():
                best = columns
    if best is None or not best.stats[_STEP].present.any():
        return None
    chosen = np.flatnonzero(best.stats[_STEP].present & best.usable)
    chosen = chosen[np.argsort(best.start_ps[chosen], kind="stable")]
    return StepMarks(best.stats[_STEP].integers()[chosen], best.start_ps[chosen], best.end_ps[chosen])


def _planes(space: XSpace, stat: str) -> list[Plane]:
    return [p for p in space.planes if p.name in PLANES and stat in p.metadata.stat_names.values()]


class Launches:
    """The times at which driver calls returned, by correlation id. They are read when they are first needed."""

    def __init__(self, space: XSpace) -> None:
        self._space = space

    def any(self) -> bool:
        """Return whether there is a driver call at all."""
        return bool(len(self._calls[0]))

    def __call__(self, correlation: Ints) -> Ints:
        """Return for each correlation id the end of its driver call, -1 where there is none."""
        numbers, ends = self._calls
        if not len(numbers):
            return np.full(len(correlation), -1, np.int64)
        place = np.minimum(np.searchsorted(numbers, correlation), len(numbers) - 1)
        return np.where((numbers[place] == correlation) & (correlation != 0), ends[place], -1)

    @cached_property
    def _calls(self) -> tuple[Ints, Ints]:
        numbers, ends = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
        for plane in _planes(self._space, _CORRELATION):
            driver = [line for line in plane.lines if line.name.startswith(_THREADS)]
            for line in driver or plane.lines:
                columns = line.columns((_CORRELATION,))
                chosen = columns.stats[_CORRELATION].present & columns.usable
                numbers.append(columns.stats[_CORRELATION].integers()[chosen])
                ends.append(columns.end_ps[chosen])
        number, end = np.concatenate(numbers), np.concatenate(ends)
        order = np.argsort(number, kind="stable")
        number, end = number[order], end[order]
        if not len(number):
            return number, end
        first = np.flatnonzero(np.concatenate(([True], number[1:] != number[:-1])))
        return number[first], np.maximum.reduceat(end, first)
