"""Bandwidth of device memory, and who gets it: host copies first, then the main stream's kernels, then side copies.

Work needs time and bandwidth. Work that needs less bandwidth than there is takes its own time; work that needs more is
slowed down. A copy engine keeps its rate beside kernels, and takes that rate from them: 2 to 3 % of device memory's
bandwidth on most targets, up to a fifth on GH200. A copy within device memory gets what a kernel leaves: beside a
transpose it makes almost no progress (openxla/xla pull request 46150), beside a matrix product it runs almost as fast
as alone.

Bandwidth is counted in time: a picosecond of it is what device memory moves in one. Collectives are not counted.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Protocol

MAX_TAKEN = 0.9
"""The largest share of device memory's bandwidth that host copies take. A link that would take more is a mistake."""

NOTHING_PS = 1.0
"""Work that takes no longer is done: two events this near to each other are one moment, whichever way their times were
rounded. The clock of a step of 1,000 s counts in eighths of a picosecond."""

_ROUNDING = 1e-9


class Beside(Protocol):
    """The bandwidth that the main stream leaves, from some moment on."""

    def left_ps(self, until_ps: float) -> float:
        """Return the bandwidth left over until a moment."""

    def moment_ps(self, left_ps: float) -> float:
        """Return the first moment by which this much was left over, or infinity if there is none."""


@dataclass(frozen=True, slots=True)
class Idle:
    """A main stream that stands still, or does what needs no bandwidth: only host copies take their share."""

    taken: float

    def left_ps(self, until_ps: float) -> float:
        return (1.0 - self.taken) * until_ps

    def moment_ps(self, left_ps: float) -> float:
        return left_ps / (1.0 - self.taken)


@dataclass(frozen=True, slots=True)
class Kernels:
    """Kernels one after the other while host copies take a steady share of the bandwidth.

    ``ends_ps[i]`` is the moment at which the first i are finished, ``lefts_ps[i]`` the bandwidth that they leave until
    then.
    """

    ends_ps: tuple[float, ...]
    lefts_ps: tuple[float, ...]

    @property
    def time_ps(self) -> float:
        """Return the time that all of them take together."""
        return self.ends_ps[-1]

    def left_ps(self, until_ps: float) -> float:
        index = max(1, min(bisect_right(self.ends_ps, until_ps), len(self.ends_ps) - 1))
        begin, end = self.ends_ps[index - 1], self.ends_ps[index]
        share = min(1.0, (until_ps - begin) / (end - begin)) if end > begin else 1.0
        return self.lefts_ps[index - 1] + share * (self.lefts_ps[index] - self.lefts_ps[index - 1])

    def moment_ps(self, left_ps: float) -> float:
        index = bisect_left(self.lefts_ps, left_ps)
        if index == len(self.lefts_ps):
            return float("inf")
        if index == 0:
            return 0.0
        low, high = self.lefts_ps[index - 1], self.lefts_ps[index]
        return self.ends_ps[index - 1] + (left_ps - low) / (high - low) * (
            self.ends_ps[index] - self.ends_ps[index - 1]
        )

    def place(self, at_ps: float) -> tuple[int, float]:
        """Return (number of finished kernels, finished share of the next one) at a moment."""
        index = bisect_right(self.ends_ps, at_ps) - 1
        if index >= len(self.ends_ps) - 1:
            return len(self.ends_ps) - 1, 0.0
        return index, (at_ps - self.ends_ps[index]) / (self.ends_ps[index + 1] - self.ends_ps[index])

    def moment_of(self, place: tuple[int, float]) -> float:
        """Return the moment at which a place is reached."""
        index, share = place
        if not share:
            return self.ends_ps[index]
        return self.ends_ps[index] + share * (self.ends_ps[index + 1] - self.ends_ps[index])


def kernels_of(work: Sequence[tuple[float, float]], taken: float) -> Kernels:
    """Return the kernels given as (time, bandwidth) in picoseconds, beside host copies that take a share of the
    bandwidth."""
    free = 1.0 - taken
    times = [max(time, memory / free) for time, memory in work]
    lefts = [max(0.0, free * time - memory) for time, (_, memory) in zip(times, work, strict=True)]
    return Kernels(tuple(accumulate(times, initial=0.0)), tuple(accumulate(lefts, initial=0.0)))


@dataclass(slots=True)
class _Job:
    ticket: int
    name: str
    latency_ps: float
    memory_ps: float
    slack_ps: float


class SideStream:
    """A stream beside the main one that makes device-side copies in order.

    Each copy first works without device memory (``latency_ps``: its launch, or what it computes), and then needs
    ``memory_ps`` of bandwidth. ``served`` is called for every interval in which a copy was at work: start, end, name.
    """

    def __init__(self, served: Callable[[float, float, str], None]) -> None:
        self._served = served
        self._jobs: deque[_Job] = deque()
        self._tickets = 0

    @property
    def busy(self) -> bool:
        """Return whether any copy is unfinished."""
        self._drop()
        return bool(self._jobs)

    def _drop(self) -> None:
        while (
            self._jobs and self._jobs[0].latency_ps <= NOTHING_PS and self._jobs[0].memory_ps <= self._jobs[0].slack_ps
        ):
            self._jobs.popleft()

    def submit(self, name: str, latency_ps: float, memory_ps: float) -> int:
        """Put a copy into the queue now, and return its ticket."""
        self._tickets += 1
        self._jobs.append(_Job(self._tickets, name, latency_ps, memory_ps, NOTHING_PS + _ROUNDING * memory_ps))
        return self._tickets

    def holds(self, ticket: int) -> bool:
        """Return whether a copy is unfinished."""
        return self.busy and self._jobs[0].ticket <= ticket

    def time_left_ps(self, taken: float) -> float:
        """Return the time that the next copy takes from now on if the main stream stands still."""
        head = self._jobs[0]
        return head.latency_ps + Idle(taken).moment_ps(head.memory_ps)

    def serve(self, start_ps: float, end_ps: float, beside: Beside, at_ps: float) -> None:
        """Work from one moment to another. ``at_ps`` is the start on the clock of ``beside``."""
        now = start_ps
        while now < end_ps and self.busy:
            job = self._jobs[0]
            begin = now
            step = min(job.latency_ps, end_ps - now)
            job.latency_ps -= step
            now += step
            if job.latency_ps <= 0:
                now = self._move(job, now, end_ps, beside, at_ps - start_ps)
            self._served(begin, now, job.name)

    def _move(self, job: _Job, now_ps: float, end_ps: float, beside: Beside, shift_ps: float) -> float:
        """Give a copy the bandwidth that is left over, and return the moment until which it used it."""
        before = beside.left_ps(now_ps + shift_ps)
        through = beside.moment_ps(before + job.memory_ps) - shift_ps
        if through <= end_ps:
            job.memory_ps = 0.0
            return max(now_ps, through)
        job.memory_ps -= beside.left_ps(end_ps + shift_ps) - before
        return end_ps

    def state(self) -> tuple[tuple[str, int, int], ...]:
        """Return the unfinished work, to compare the beginning of a loop's iteration with that of the one before."""
        return tuple((job.name, round(job.latency_ps), round(job.memory_ps)) for job in self._jobs)
