"""The link between a device and its host: one queue a direction, both slower while both run."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from hloinspect.hardware.target import HostLink
from hloinspect.kinds import Direction
from hloinspect.offload.transfers import D2H, H2D
from hloinspect.predict.scenario import Scenario

_DONE_BYTES = 1e-3


FAIR_COPIES = 4
"""Copies of one direction that a fair link serves at once: XLA deals them to so many streams
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
    """A stretch in which a direction worked on one transfer, in its copy of that ``ticket``. ``charged``: somebody
    waits, because of this one."""

    start_ps: float
    end_ps: float
    direction: Direction
    transfer: int
    charged: bool
    ticket: int = 0


@dataclass(frozen=True, slots=True)
class Rates:
    """Bytes a picosecond of each direction, alone and while the other runs; start-up time of a copy."""

    alone: dict[str, float]
    both: dict[str, float]
    latency_ps: float


def rates_of(link: HostLink, scenario: Scenario) -> Rates:
    """The rates that a link gives one device: its own, or its share of what the host's memory does where that is less.

    The host's memory is shared by the devices at work, and while both directions move by the two of them, in
    proportion to their duplex factors: what PCIe lets each have beside the other.
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
    """The jobs that are worked on, the rate of each moving one by direction, and that of all together."""

    active: list[Job]
    rates: dict[str, float]
    moving: float


class Link:
    """Two queues, one a direction, that are served first come first, or fairly. Time only goes forward: ``advance``
    serves up to a moment, ``finish`` until a copy is through.

    ``served`` is called for every stretch of service, in order of time within each direction; ``passed`` for every
    stretch of time with the bytes a picosecond that moved in it, both ways together.
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
        self._queues: dict[str, deque[Job]] = {D2H: deque(), H2D: deque()}
        self._streams: dict[str, deque[int]] = {}
        self._jobs: dict[int, Job] = {}
        self._finished: dict[int, float] = {}
        self._pace: _Pace | None = None
        self._tickets = 0
        self.now_ps = 0.0

    @property
    def busy(self) -> bool:
        """Whether anything waits or runs."""
        return any(self._queues.values())

    def submit(self, direction: Direction, transfer: int, size_bytes: float, at_ps: float, stream: str | None) -> int:
        """Queues a copy at a moment; returns a ticket to wait for it with. Copies of one ``stream`` go one after the
        other even where their directions differ; None is a stream of its own."""
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
        """Serves the queues until ``to_ps``."""
        while self.now_ps < to_ps:
            self.step(to_ps)

    def finish(self, ticket: int) -> float:
        """Serves until a copy is through; returns the moment (it may lie in the past). Each copy is asked for once."""
        while ticket not in self._finished:
            self.step(float("inf"), ticket)
        return self._finished.pop(ticket)

    def queued(self, direction: Direction) -> list[Job]:
        """What waits or runs in a direction, the head first."""
        return list(self._queues[direction])

    def shift(self, by_ps: float) -> None:
        """Moves the link's clock on without serving anything: turns of a loop that repeat exactly."""
        self.now_ps += by_ps
        self._finished = {ticket: moment + by_ps for ticket, moment in self._finished.items()}

    def state(self) -> tuple[tuple[str, int, int], ...]:
        """What is queued, for telling whether a loop's turn begins like the one before."""
        return tuple(
            (direction, job.transfer, round(job.bytes + job.latency_ps))
            for direction, queue in self._queues.items()
            for job in queue
        )

    def bytes_per_ps(self) -> float:
        """What moves now, both ways together."""
        return self._paced().moving

    def _active(self) -> list[Job]:
        """The jobs that are worked on: the first of each direction, or the first few, but of one stream only the
        oldest."""
        active = []
        for queue in self._queues.values():
            for position, job in enumerate(queue):
                if position == self._at_once:
                    break
                if job.stream is None or self._streams[job.stream][0] == job.ticket:
                    active.append(job)
        return active

    def _paced(self) -> _Pace:
        """What is worked on until the next event."""
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
        """Serves up to the next event: a start-up over, a copy through, or ``until_ps``. ``awaited`` is the ticket that
        the main stream waits for."""
        pace = self._paced()
        active, rates = pace.active, pace.rates
        step = until_ps - self.now_ps
        for job in active:
            step = min(step, job.bytes / rates[job.direction] if job.latency_ps <= 0 else job.latency_ps)
        end = self.now_ps + step
        if step > 0:
            charged = _charged(active, self._jobs[awaited]) if awaited else None
            for job in active:
                self._served(Served(self.now_ps, end, job.direction, job.transfer, job is charged, job.ticket))
            if self._passed is not None:
                self._passed(self.now_ps, end, pace.moving)
        for job in active:
            if job.latency_ps > 0:
                job.latency_ps -= step
                if job.latency_ps < 1e-6:
                    job.latency_ps = 0.0
                    self._pace = None
            else:
                job.bytes -= step * rates[job.direction]
            if job.latency_ps <= 0 and job.bytes <= _DONE_BYTES:
                self._pace = None
                self._queues[job.direction].remove(job)
                del self._jobs[job.ticket]
                if job.stream is not None:
                    self._streams[job.stream].popleft()
                self._finished[job.ticket] = end
        self.now_ps = end if step < until_ps - self.now_ps else until_ps


def _charged(active: list[Job], awaited: Job) -> Job:
    """Whose fault a wait is: the awaited copy's own once it is worked on, until then that of what is worked on in its
    direction; of another one where its stream holds it back."""
    return min(active, key=lambda job: (job is not awaited, job.direction != awaited.direction, job.ticket))
