"""Clocks of several processes of one run, aligned by the collectives that all of them ran.

Each report counts from the start of its own session, and an archive of nsys-jax does not have that moment. A collective
ends on all devices at about the same time, so the median difference of these ends is the difference of two clocks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from hloinspect.timeline.spans import Ints

MIN_COMMON = 8
"""The least number of collectives that two processes must have in common."""

MAX_SPREAD_NS = 1_000_000
"""The most that the differences may differ. It is 0.04 ms in a real run; other runs of a step give milliseconds."""

MAX_SHIFT = 32
"""The most runs by which two processes may count differently."""

Ends = Mapping[tuple[str, int, str, int], int]
"""The end of each collective of a process in ns, by module, run of it, instruction, and repetition in the run."""


@dataclass(frozen=True, slots=True)
class Offset:
    """The difference between the clock of a process and that of the first one, in ns: to be taken from its times.

    ``spread_ns`` is the difference that nine of ten common collectives do not exceed, from ``ns``. ``common`` is their
    number. ``is_known`` is false where there are too few, or they differ too much; then ``ns`` is not to be used.
    """

    ns: int
    spread_ns: int
    common: int

    @property
    def is_known(self) -> bool:
        return self.common >= MIN_COMMON and self.spread_ns <= MAX_SPREAD_NS


SAME = Offset(0, 0, 0)
"""The offset of a process that is alone."""


def clock_offsets(ends: Sequence[Ends]) -> tuple[Offset, ...]:
    """Return the offset of each process, from the ends of its collectives. That of the first is 0.

    A process whose profile began or ended at another step may count its runs from another one. So each number of runs
    by which the two may differ is tried. Of those that give an offset, the one with the most collectives in common
    counts, and of these the one with the smallest spread.
    """
    if not ends:
        return ()
    first = ends[0]
    return (Offset(0, 0, len(first)), *(_offset(first, other) for other in ends[1:]))


def _offset(first: Ends, other: Ends) -> Offset:
    runs = sorted({key[1] for key in first} | {key[1] for key in other})
    far = min(runs[-1] - runs[0], MAX_SHIFT) if runs else 0
    found = [_shifted(first, other, shift) for shift in sorted(range(-far, far + 1), key=abs)]
    return min(found, key=lambda offset: (not offset.is_known, -offset.common, offset.spread_ns))


def _shifted(first: Ends, other: Ends, shift: int) -> Offset:
    """Return the offset where the other process counts a run by ``shift`` higher than the first one does."""
    moved = {(module, run + shift, op, time): end for (module, run, op, time), end in first.items()}
    difference: Ints = np.array([other[key] - end for key, end in moved.items() if key in other], np.int64)
    if not len(difference):
        return Offset(0, 0, 0)
    middle = int(np.sort(difference)[len(difference) // 2])
    return Offset(middle, int(np.quantile(np.abs(difference - middle), 0.9, method="higher")), len(difference))
