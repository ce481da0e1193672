"""Simulation of a schedule in the order of the runtime, with a record of what each stream did when.

Semantics (XLA:GPU async_execution.cc; facts of TPU traces agree):

* kernels run one after the other on the main stream;
* an async start is issued when everything before it on the main stream is finished, and takes no time there;
* at a ``-done`` the main stream waits for its pair;
* copies of one direction queue behind each other on one copy engine (or share it, in one of the scenarios); the
  directions run side by side;
* collectives run on a communication stream, device-to-device copies on a side stream, each in order;
* kernels and copies share device memory's bandwidth (contention.py);
* a copy without a pair holds the main stream.

A loop runs until an iteration ends as it began, with the same work unfinished. That iteration is then multiplied.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from hloinspect.hardware.target import Target
from hloinspect.kinds import D2H, H2D
from hloinspect.offload.pairs import Key
from hloinspect.offload.transfers import Transfer
from hloinspect.predict.contention import MAX_TAKEN, Idle, Kernels, SideStream
from hloinspect.predict.durations import Durations
from hloinspect.predict.link import Link, Rates, Served, rates_of
from hloinspect.predict.record import Piece, Recorder
from hloinspect.predict.scenario import Scenario
from hloinspect.predict.schedule import (
    BlockingCollective,
    BlockingHostCopy,
    BlockingTransfer,
    Branch,
    Done,
    Loop,
    Operation,
    Run,
    Schedule,
    StartCollective,
    StartHostCopy,
    StartSide,
    StartTransfer,
)
from hloinspect.timeline.timeline import COLLECTIVE, COMPUTE, DONE, START, WAIT, Fold, IntervalKind, Timeline

MIN_ITERATIONS, MAX_ITERATIONS, MAX_OPERATIONS = 64, 512, 50_000
"""The numbers of iterations after which a loop that has not settled is extrapolated: more for a short body, which is
cheap. What was started long before may take that long to end (a collective, a large copy)."""

MAX_ITERATIONS_IN_ALL = 20_000
"""The limit of iterations of all loops together: nested loops that do not settle would multiply."""


@dataclass(frozen=True, slots=True)
class Window:
    """The interval from a transfer's start to the moment at which the main stream reached its wait, in its last
    execution.

    ``ahead_bytes`` were still to be moved in its direction when it was started.
    """

    transfer: int
    start_ps: float
    ahead_bytes: float
    length_ps: float = 0.0


class Simulator:
    """One run of a schedule on a target under a scenario. ``free`` transfers take no time (for counterfactuals)."""

    def __init__(  # noqa: PLR0913  (a step, a machine and a scenario; the rest is for counterfactuals)
        self,
        schedule: Schedule,
        target: Target,
        scenario: Scenario,
        rates: Rates,
        free: frozenset[int] | None = frozenset(),
        durations: Durations | None = None,
        record: bool = True,
    ) -> None:
        self._schedule = schedule
        self._target = target
        self._scenario = scenario
        self._rates = rates
        self._free = free  # None: all of them
        self._durations = durations or Durations(target, scenario)
        self._hbm_bytes_per_ps = target.hbm_bytes_per_s.at(scenario.figures) * scenario.memory_efficiency / 1e12
        self._link = Link(rates, self._on_served, self._on_passed, scenario.fair)
        self._side = SideStream(self._on_side)
        self._side_tickets: dict[Key, int] = {}
        self._beside: tuple[Kernels, float] | None = None  # what the main stream runs, and the part of it that is done
        self._now = 0.0
        self._communication = 0.0
        self._ends: dict[Key, float] = {}
        self._tickets: dict[Key, int] = {}  # of the latest copy that each start has issued
        self._host_copies: dict[int, str] = {}  # by ticket: the instruction of a copy that is no transfer
        self._under_way: dict[int, None] = {}  # tickets of copies without a wait so far, in order
        self._recorder = Recorder(record)
        self._lengths: dict[str, float] = {}
        self._iterations_run = 0
        self.unsettled: list[str] = []
        self.queued_behind: dict[int, int] = {}
        self.windows: dict[int, Window] = {}
        self._begun: dict[int, Window] = {}

    def run(self, device: str = "device") -> Timeline:
        """Return the timeline of one step."""
        self._step()
        return Timeline(device, "predicted", tuple(self._recorder.segments), tuple(self._recorder.folds))

    def time_ps(self) -> float:
        """Return only the time of one step, in picoseconds."""
        self._step()
        return self._now

    def _step(self) -> None:
        self._computation(self._schedule.entry)
        for ticket in list(self._under_way):  # the step ends when everything it started has ended
            self._wait_for(ticket)
        self._hold(self._communication)
        self._link.advance(self._now)
        while self._side.busy:
            self._side_event()
        self._close()

    # operations

    def _computation(self, name: str) -> None:
        for operation in self._schedule.operations[name]:
            self._operation(operation)

    def _operation(self, operation: Operation) -> None:
        match operation:
            case Run():
                self._run_kernels(operation)
            case StartTransfer():
                self._start_transfer(operation)
            case Done():
                self._done(operation.key)
            case BlockingTransfer():
                self._blocking_transfer(operation)
            case BlockingHostCopy():
                self._blocking_host_copy(operation)
            case StartHostCopy():
                self._start_host_copy(operation)
            case StartCollective():
                begin = max(self._now, self._communication)
                self._communication = begin + self._collective_time(operation)
                self._ends[operation.key] = self._communication
                self._recorder.add(Piece(begin, self._communication, COLLECTIVE, "communication", 0, operation.key[1]))
            case BlockingCollective():
                self._main(self._collective_time(operation), COLLECTIVE, operation.name)
            case StartSide():
                self._link.advance(self._now)
                latency, memory = self._durations.side_ps(operation.cost)
                self._side_tickets[operation.key] = self._side.submit(operation.key[1], latency, memory)
            case Loop():
                self._loop(operation)
            case Branch():
                self._computation(self._chosen(operation))

    def _run_kernels(self, run: Run) -> None:
        """Run kernels one after the other, slower while copies to or from the host take their share of the
        bandwidth."""
        begin = self._now
        self._link.advance(begin)
        if not self._link.busy and not self._side.busy:
            self._now += self._durations.total_ps(run)
        else:
            place = (0, 0.0)
            while place[0] < len(run.costs):
                kernels = self._durations.kernels(run, self._taken(self._link.bytes_per_ps()))
                at = kernels.moment_of(place)
                self._beside = (kernels, at - self._now)
                end = self._now + kernels.time_ps - at
                self._link.step(end)
                place = (
                    (len(run.costs), 0.0)
                    if self._link.now_ps >= end
                    else kernels.place(at + self._link.now_ps - self._now)
                )
                self._now = self._link.now_ps
            self._beside = None
        self._recorder.add(Piece(begin, self._now, COMPUTE, "main", 0, run.first))

    def _taken(self, bytes_per_ps: float) -> float:
        return min(MAX_TAKEN, bytes_per_ps / self._hbm_bytes_per_ps)

    def _collective_time(self, operation: StartCollective | BlockingCollective) -> float:
        return self._durations.collective_ps(operation.collective)

    def _main(self, time_ps: float, kind: IntervalKind, name: str) -> None:
        begin = self._now
        self._now += time_ps
        self._recorder.add(Piece(begin, self._now, kind, "main", 0, name))

    def _is_free(self, transfer: int) -> bool:
        return self._free is None or transfer in self._free

    def _start_transfer(self, start: StartTransfer) -> None:
        transfer = start.transfer
        if self._is_free(transfer.id):
            return
        if transfer.mechanism == "kernel" and self._scenario.kernels_block:
            self._blocking_transfer(BlockingTransfer(transfer, None))
            return
        self._tickets[start.key] = self._submit(transfer)
        self._recorder.mark(self._now, self._now, transfer.id, START)

    def _blocking_transfer(self, operation: BlockingTransfer) -> None:
        """Run a transfer that is a kernel: it works while its bytes move, and ends with the later of the two."""
        transfer = operation.transfer
        ticket = None if self._is_free(transfer.id) else self._submit(transfer)
        if operation.work is not None:
            self._run_kernels(operation.work)
        if ticket is not None:
            self._wait_for(ticket)

    def _submit(self, transfer: Transfer) -> int:
        self._link.advance(self._now)
        ahead = self._link.queued(transfer.direction)
        if ahead and ahead[-1].transfer != transfer.id:
            self.queued_behind[transfer.id] = ahead[-1].transfer
        ticket = self._link.submit(transfer.direction, transfer.id, transfer.bytes, self._now, transfer.stream)
        self._under_way[ticket] = None
        self._begun[ticket] = Window(transfer.id, self._now, sum(job.bytes for job in ahead))
        return ticket

    def _blocking_host_copy(self, operation: BlockingHostCopy) -> None:
        """Copy host memory on the main stream: half of the bytes cross the link in each direction."""
        if self._free is None:
            return
        half = operation.copy.bytes / 2
        self._link.advance(self._now)
        tickets = [self._link.submit(direction, 0, half, self._now, None) for direction in (D2H, H2D)]
        self._host_copies |= dict.fromkeys(tickets, operation.copy.instruction)
        for ticket in tickets:
            self._wait_for(ticket)

    def _start_host_copy(self, operation: StartHostCopy) -> None:
        if self._free is not None:
            ticket = self._link.submit(H2D, 0, operation.copy.bytes, self._now, None)
            self._tickets[operation.key] = ticket
            self._host_copies[ticket] = operation.copy.instruction
            self._under_way[ticket] = None

    def _host_copy_time(self, operation: BlockingHostCopy) -> float:
        return operation.copy.bytes / 2 / min(self._rates.both.values())

    def _done(self, key: Key) -> None:
        if key in self._tickets:
            begun, ticket = self._now, self._tickets.pop(key)
            window = self._begun.get(ticket)
            self._wait_for(ticket)
            if window is not None:  # without one it is a copy within host memory
                self._recorder.mark(begun, self._now, window.transfer, DONE)
        elif key in self._ends:
            self._hold(self._ends.pop(key))
        elif key in self._side_tickets:
            ticket = self._side_tickets.pop(key)
            self._link.advance(self._now)
            while self._side.holds(ticket):
                self._side_event()

    def _side_event(self) -> None:
        """Stop the main stream until the next side copy is finished, or the rates of the link change."""
        self._link.step(self._now + self._side.time_left_ps(self._taken(self._link.bytes_per_ps())))
        self._now = self._link.now_ps

    def _wait_for(self, ticket: int) -> None:
        """Wait for a copy on the main stream. The wait is charged to the copy at work in its direction's queue
        meanwhile."""
        self._link.advance(self._now)
        begun = self._begun.pop(ticket, None)
        if begun is not None:
            self.windows[begun.transfer] = replace(begun, length_ps=self._now - begun.start_ps)
        self._under_way.pop(ticket, None)
        self._now = max(self._now, self._link.finish(ticket))

    def _hold(self, until_ps: float) -> None:
        """Wait for a collective or a device-side copy on the main stream. This is no stall of a transfer."""
        self._now = max(self._now, until_ps)

    # loops and branches

    def _chosen(self, branch: Branch) -> str:
        if len(branch.callees) == 1:
            return branch.callees[0]
        pick = max if self._scenario.longest_branch else min
        return pick(branch.callees, key=lambda name: round(self._length(name)))  # of equal ones the first

    def _length(self, name: str) -> float:
        """Return the time of all that a computation issues, one after the other, to choose a branch.

        Transfers count even where they are free, so that a counterfactual takes the same branch.
        """
        if name not in self._lengths:
            self._lengths[name] = self._sum_of(name)
        return self._lengths[name]

    def _sum_of(self, name: str) -> float:
        total = 0.0
        for operation in self._schedule.operations[name]:
            match operation:
                case Run():
                    total += self._durations.total_ps(operation)
                case StartCollective() | BlockingCollective():
                    total += self._collective_time(operation)
                case StartSide():
                    total += operation.cost.time_ps(self._target, self._scenario)
                case StartTransfer() | BlockingTransfer():
                    moved = operation.transfer
                    total += self._rates.latency_ps + moved.bytes / self._rates.alone[moved.direction]
                case BlockingHostCopy():
                    total += self._host_copy_time(operation)
                case StartHostCopy():
                    total += self._rates.latency_ps + operation.copy.bytes / self._rates.alone[H2D]
                case Loop():
                    total += operation.trips * self._length(operation.body)
                    if operation.condition is not None:
                        total += (operation.trips + 1) * self._length(operation.condition)
                case Branch():
                    total += self._length(self._chosen(operation))
        return total

    def _loop(self, loop: Loop) -> None:
        self._iterations(loop)
        if loop.condition is not None:
            self._computation(loop.condition)

    def _iterations(self, loop: Loop) -> None:
        patience = max(
            MIN_ITERATIONS, min(MAX_ITERATIONS, MAX_OPERATIONS // (1 + len(self._schedule.operations[loop.body])))
        )
        for iteration in range(loop.trips):
            self._close()
            first_segment, begin, before = len(self._recorder.segments), self._now, self._backlog()
            if loop.condition is not None:
                self._computation(loop.condition)
            self._computation(loop.body)
            self._close()
            settled = self._backlog() == before
            left = loop.trips - iteration - 1
            self._iterations_run += 1
            fold = Fold(first_segment, len(self._recorder.segments), 1, iteration, loop.trips, loop.body)
            if left and (settled or iteration + 1 == patience or self._iterations_run > MAX_ITERATIONS_IN_ALL):
                if not settled:
                    self.unsettled.append(loop.body)
                self._recorder.iterations(replace(fold, iterations=left + 1))
                self._repeat(first_segment, left, (self._now - begin) * left)
                return
            self._recorder.iterations(fold)

    def _backlog(self) -> tuple[object, ...]:
        """Return the unfinished work, relative to now. If an iteration leaves it as it found it, the next one will do
        the same."""
        self._link.advance(self._now)
        return (
            self._link.state(),
            round(max(0.0, self._communication - self._now)),
            self._side.state(),
            frozenset(self._tickets),  # the next iteration may wait for a copy that this one has started
            tuple((key, round(end - self._now)) for key, end in self._ends.items() if end > self._now),
        )

    def _repeat(self, first_segment: int, more: int, shift_ps: float) -> None:
        self._recorder.repeat(first_segment, more, shift_ps)
        self._link.advance(self._now)
        self._now += shift_ps
        self._link.shift(shift_ps)
        self._communication += shift_ps
        self._begun = {
            ticket: replace(window, start_ps=window.start_ps + shift_ps) for ticket, window in self._begun.items()
        }
        self._ends = {key: end + shift_ps for key, end in self._ends.items()}

    # recording

    def _on_passed(self, start_ps: float, end_ps: float, bytes_per_ps: float) -> None:
        """Give side copies what is left of device memory's bandwidth while the clock of the link moves."""
        if not self._side.busy:
            return
        if self._beside is None:
            self._side.serve(start_ps, end_ps, Idle(self._taken(bytes_per_ps)), start_ps)
        else:
            kernels, shift = self._beside
            self._side.serve(start_ps, end_ps, kernels, start_ps + shift)

    def _on_side(self, start_ps: float, end_ps: float, name: str) -> None:
        self._recorder.go_on(Piece(start_ps, end_ps, COMPUTE, "side", 0, name))

    def _on_served(self, served: Served) -> None:
        direction, name = served.direction, self._host_copies.get(served.ticket, "")
        self._recorder.go_on(
            Piece(served.start_ps, served.end_ps, direction, direction, served.transfer, name, served.ticket)
        )
        if served.charged and served.end_ps > self._now:
            begin = max(served.start_ps, self._now)
            self._recorder.go_on(Piece(begin, served.end_ps, WAIT, "main", served.transfer, "", served.ticket))

    def _close(self) -> None:
        """End the open segment now."""
        self._link.advance(self._now)
        self._recorder.close(self._now)


@dataclass(frozen=True, slots=True)
class Simulation:
    """A simulated step.

    ``queued_behind`` gives for a transfer the one for whose end it last waited in the queue. ``windows`` are those of
    the transfers' last executions. ``unsettled`` names bodies of loops that were extrapolated before they settled.
    """

    timeline: Timeline
    queued_behind: dict[int, int]
    windows: dict[int, Window]
    unsettled: tuple[str, ...]


def simulate(
    schedule: Schedule,
    target: Target,
    scenario: Scenario,
    free: frozenset[int] | None = frozenset(),
    durations: Durations | None = None,
) -> Simulation:
    """Simulate one step under a scenario.

    ``free`` are transfers that take no time; None means all of them, and host copies too. ``durations`` may be shared
    by simulations of the same schedule under the same scenario. Raises ValueError if the target has no host link.
    """
    simulator = Simulator(schedule, target, scenario, _rates(target, scenario), free, durations)
    return Simulation(
        simulator.run(target.name), simulator.queued_behind, simulator.windows, tuple(simulator.unsettled)
    )


def step_time_ps(
    schedule: Schedule, target: Target, scenario: Scenario, free: frozenset[int] | None, durations: Durations
) -> float:
    """Return the time of the step of ``simulate``, in picoseconds, without recording what happens in it."""
    return Simulator(schedule, target, scenario, _rates(target, scenario), free, durations, record=False).time_ps()


def _rates(target: Target, scenario: Scenario) -> Rates:
    if target.link is None:
        raise ValueError(f"target {target.name} has no host link")
    return rates_of(target.link, scenario)
