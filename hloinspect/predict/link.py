"""The link between a device and its host: one queue for each direction, both slower while both run."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from hloinspect.hardware.target import HostLink
from hloinspect.kinds import D2H, H2D, Direction
from hloinspect.predict.contention import NOTHING_PS
from hloinspect.predict.scenario import Scenario

FAIR_COPIES = 4
"""The number of copies of one direction that a fair link serves at once. XLA spreads them over as many streams
(execution_stream_assignment.cc, jax 0.10)."""


@dataclass(slots=True, eq=False)
class Job:
    """A copy in a queue: what is left of its start-up time and of its bytes."""

    ticket: int
    direction: Direction
    transfer: int
    latency_ps: float
    bytes: float
    stream: str | None


@dataclass(frozen=True, slots=True)
class Served:
    """An interval in which a direction worked on the copy ``ticket`` of one transfer.

    ``charged`` says that the main stream waits because of this copy.
    """

    start_ps: float
    end_ps: float
    direction: Direction
    transfer: int
    charged: bool
    ticket: int = 0


@dataclass(frozen=True, slots=True)
class Rates:
    """Bytes a picosecond of each direction, alone and while the other runs, and the start-up time of a copy."""

    alone: dict[str, float]
    both: dict[str, float]
    latency_ps: float


def rates_of(link: HostLink, scenario: Scenario) -> Rates:
    """Return the rates that a link gives one device: its own, or its share of the host memory's rate where that is
    less.

    The devices at work share the host's memory. While both directions move they share it in proportion to their duplex
    factors, the rate that PCIe leaves to each beside the other.
    """
    full = {D2H: link.d2h_bytes_per_s.value, H2D: link.h2d_bytes_per_s.value}
    own = {d: rate * scenario.link_efficiency for d, rate in full.items()}
    whole = link.host_bytes_per_s.value / scenario.sharers if link.host_bytes_per_s else float("inf")
    one_way = {
        d: min(whole, figure.value / scenario.sharers if figure else whole)
        for d, figure in ((D2H, link.host_d2h_bytes_per_s), (H2D, link.host_h2d_bytes_per_s))
    }
    weights = {D2H: link.d2h_duplex.value, H2D: link.h2d_duplex.value}
    alone = {d: min(own[d], one_way[d]) / 1e12 for d in full}
    both = {
        d: min(own[d] * part, one_way[d], whole * part / sum(weights.values())) / 1e12 for d, part in weights.items()
    }
    return Rates(alone, both, link.latency_us.value * 1e6)


@dataclass(frozen=True, slots=True)
class _Pace:
    """The jobs at work, the rate of each moving job by direction, and the rate of all together."""

    active: list[Job]
    rates: dict[str, float]
    moving: float


class Link:
    """Two queues, one for each direction, served in order or fairly.

    Time only goes forward: ``advance`` serves up to a moment, ``finish`` until a copy is finished. ``served`` is called
    for every interval of service, in order of time within each direction. ``passed`` is called for every interval of
    time, with the bytes a picosecond that moved in it, both directions together.
    """

    def __init__(
        self,
        rates: Rates,
        served: Callable[[Served], None],
        passed: Callable[[float, float, float], None] | None = None,
        fair: bool = False,
    ) -> None:
        self._rates = rates
        self._served = served
        self._passed = passed
        self._at_once = FAIR_COPIES if fair else 1
        self._nothing_bytes = {direction: rate * NOTHING_PS for direction, rate in rates.alone.items()}
        self._queues: dict[str, deque[Job]] = {D2H: deque(), H2D: deque()}
        self._streams: dict[str, deque[int]] = {}
        self._jobs: dict[int, Job] = {}
        self._finished: dict[int, float] = {}
        self._pace: _Pace | None = None
        self._tickets = 0
        self.now_ps = 0.0

    @property
    def busy(self) -> bool:
        """Return whether anything waits or runs."""
        return any(self._queues.values())

    def submit(self, direction: Direction, transfer: int, size_bytes: float, at_ps: float, stream: str | None) -> int:
        """Put a copy into its queue at a moment, and return a ticket to wait for it with.

        Copies of one ``stream`` go one after the other even where their directions differ; None is a separate stream.
        """
        self.advance(at_ps)
        self._tickets += 1
        job = Job(self._tickets, direction, transfer, self._rates.latency_ps, size_bytes, stream)
        self._queues[direction].append(job)
        self._jobs[self._tickets] = job
        self._pace = None
        if stream is not None:
            self._streams.setdefault(stream, deque()).append(self._tickets)
        return self._tickets

    def advance(self, to_ps: float) -> None:
        """Serve the queues until ``to_ps``."""
        while self.now_ps < to_ps:
            self.step(to_ps)

    def finish(self, ticket: int) -> float:
        """Serve until a copy is finished, and return that moment, which may lie in the past. Call it once for each
        copy."""
        while ticket not in self._finished:
            self.step(float("inf"), ticket)
        return self._finished.pop(ticket)

    def queued(self, direction: Direction) -> list[Job]:
        """Return the copies that wait or run in a direction, the first of the queue first."""
        return list(self._queues[direction])

    def shift(self, by_ps: float) -> None:
        """Move the clock forward without serving anything, for iterations of a loop that repeat exactly."""
        self.now_ps += by_ps
        self._finished = {ticket: moment + by_ps for ticket, moment in self._finished.items()}

    def state(self) -> tuple[tuple[str, int, int], ...]:
        """Return the queues' content, to compare the beginning of a loop's iteration with that of the one before."""
        return tuple(
            (direction, job.transfer, round(job.bytes + job.latency_ps))
            for direction, queue in self._queues.items()
            for job in queue
        )

    def bytes_per_ps(self) -> float:
        """Return the bytes a picosecond that move now, both directions together."""
        return self._paced().moving

    def _active(self) -> list[Job]:
        """Return the jobs at work: the first (few) of each direction, but of one stream only the oldest."""
        active = []
        for queue in self._queues.values():
            for position, job in enumerate(queue):
                if position == self._at_once:
                    break
                if job.stream is None or self._streams[job.stream][0] == job.ticket:
                    active.append(job)
        return active

    def _paced(self) -> _Pace:
        """Return the jobs and rates that hold until the next event."""
        if self._pace is None:
            active = self._active()
            counts: dict[str, int] = {}
            for job in active:
                if job.latency_ps <= 0:
                    counts[job.direction] = counts.get(job.direction, 0) + 1
            rates = self._rates.both if len(counts) == 2 else self._rates.alone
            each = {direction: rates[direction] / count for direction, count in counts.items()}
            self._pace = _Pace(active, each, sum(rates[direction] for direction in counts))
        return self._pace

    def step(self, until_ps: float, awaited: int = 0) -> None:
        """Serve up to the next event: the end of a start-up, the end of a copy, or ``until_ps``.

        ``awaited`` is the ticket for which the main stream waits.
        """
        pace = self._paced()
        active, rates = pace.active, pace.rates
        step = until_ps - self.now_ps
        for job in active:
            step = min(step, job.bytes / rates[job.direction] if job.latency_ps <= 0 else job.latency_ps)
        end = self.now_ps + step
        if end > self.now_ps:  # a step shorter than the clock's resolution takes no time
            charged = _charged(active, self._jobs[awaited]) if awaited else None
            for job in active:
                self._served(Served(self.now_ps, end, job.direction, job.transfer, job is charged, job.ticket))
            if self._passed is not None:
                self._passed(self.now_ps, end, pace.moving)
        for job in active:
            if job.latency_ps > 0:
                job.latency_ps -= step
                if job.latency_ps <= NOTHING_PS:
                    job.latency_ps = 0.0
                    self._pace = None
            else:
                job.bytes -= step * rates[job.direction]
            if job.latency_ps <= 0 and job.bytes <= self._nothing_bytes[job.direction]:
                self._pace = None
                self._queues[job.direction].remove(job)
                del self._jobs[job.ticket]
                if job.stream is not None:
                    self._streams[job.stream].popleft()
                self._finished[job.ticket] = end
        self.now_ps = end if step < until_ps - self.now_ps else until_ps


def _charged(active: list[Job], awaited: Job) -> Job:
    """Return the copy that causes a wait.

    It is the awaited copy once that is at work. Until then it is the copy at work in its direction, or another one if
    its stream holds it back.
    """
    return min(active, key=lambda job: (job is not awaited, job.direction != awaited.direction, job.ticket))
