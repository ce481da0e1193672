"""The link between a device and its host: one queue a direction, both slower while both run."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from hloinspect.hardware.target import HostLink
from hloinspect.offload.transfers import D2H, H2D
from hloinspect.predict.scenario import Scenario

_DONE_BYTES = 1e-3


@dataclass(slots=True)
class Job:
    """A copy in a queue: what is left of its start-up time and of its bytes."""

    ticket: int
    transfer: int
    latency_ps: float
    bytes: float
    stream: str | None


@dataclass(frozen=True, slots=True)
class Served:
    """A stretch in which a direction worked on one transfer."""

    start_ps: float
    end_ps: float
    direction: str
    transfer: int


@dataclass(frozen=True, slots=True)
class Rates:
    """Bytes a picosecond of each direction, alone and while the other runs; start-up time of a copy."""

    alone: dict[str, float]
    both: dict[str, float]
    latency_ps: float


def rates_of(link: HostLink, scenario: Scenario) -> Rates:
    """The rates that a link gives one device: its own, or its share of the host's memory where that is less.

    The host's memory is shared by the devices at work and by the directions in which each of them moves.
    """
    full = {D2H: link.d2h_bytes_per_s.value, H2D: link.h2d_bytes_per_s.value}
    share = link.host_bytes_per_s.value / scenario.sharers if link.host_bytes_per_s else float("inf")
    alone = {d: min(rate * scenario.link_efficiency, share) / 1e12 for d, rate in full.items()}
    both = {
        d: min(rate * scenario.link_efficiency * link.duplex_factor.value, share / 2) / 1e12 for d, rate in full.items()
    }
    return Rates(alone, both, link.latency_us.value * 1e6)


class Link:
    """Two first-come queues. Time only goes forward: ``advance`` serves up to a moment, ``finish`` until a copy is
    through.

    ``served`` is called for every stretch of service, in order of time within each direction.
    """

    def __init__(self, rates: Rates, served: Callable[[Served], None]) -> None:
        self._rates = rates
        self._served = served
        self._queues: dict[str, deque[Job]] = {D2H: deque(), H2D: deque()}
        self._finished: dict[int, float] = {}
        self._tickets = 0
        self.now_ps = 0.0

    def submit(self, direction: str, transfer: int, size_bytes: float, at_ps: float, stream: str | None) -> int:
        """Queues a copy at a moment; returns a ticket to wait for it with. Copies of one ``stream`` go one after the
        other even where their directions differ; None is a stream of its own."""
        self.advance(at_ps)
        self._tickets += 1
        self._queues[direction].append(Job(self._tickets, transfer, self._rates.latency_ps, size_bytes, stream))
        return self._tickets

    def advance(self, to_ps: float) -> None:
        """Serves the queues until ``to_ps``."""
        while self.now_ps < to_ps and any(self._queues.values()):
            self._serve(to_ps)
        self.now_ps = max(self.now_ps, to_ps)

    def finish(self, ticket: int) -> float:
        """Serves until a copy is through; returns the moment (it may lie in the past). Each copy is asked for once."""
        while ticket not in self._finished:
            self._serve(float("inf"))
        return self._finished.pop(ticket)

    def queued(self, direction: str) -> list[Job]:
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

    def _heads(self) -> dict[str, Job]:
        """The job that each direction works on. One whose stream still holds an older job of the other direction
        waits."""
        heads = {direction: queue[0] for direction, queue in self._queues.items() if queue}
        blocked = [
            direction
            for direction, job in heads.items()
            if job.stream is not None
            and any(
                other.stream == job.stream and other.ticket < job.ticket
                for elsewhere, queue in self._queues.items()
                if elsewhere != direction
                for other in queue
            )
        ]
        for direction in blocked:
            del heads[direction]
        return heads

    def _serve(self, until_ps: float) -> None:
        """Serves the heads of both queues up to the next event: a start-up over, a copy through, or ``until_ps``."""
        heads = self._heads()
        moving = [direction for direction, job in heads.items() if job.latency_ps <= 0]
        rates = self._rates.both if len(moving) == 2 else self._rates.alone
        left = {d: job.bytes / rates[d] if job.latency_ps <= 0 else job.latency_ps for d, job in heads.items()}
        step = min(*left.values(), until_ps - self.now_ps)
        end = self.now_ps + step
        for direction, job in heads.items():
            if step > 0:
                self._served(Served(self.now_ps, end, direction, job.transfer))
            if job.latency_ps > 0:
                job.latency_ps -= step
                if job.latency_ps < 1e-6:
                    job.latency_ps = 0.0
            else:
                job.bytes -= step * rates[direction]
            if job.latency_ps <= 0 and job.bytes <= _DONE_BYTES:
                self._queues[direction].popleft()
                self._finished[job.ticket] = end
        self.now_ps = end
