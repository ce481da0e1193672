"""A second simulator, slow and exact, for comparison with the first one, and the small schedules that both run.

It is written from the semantics (docstring of hloinspect/predict/simulate.py; XLA:GPU async_execution.cc), not from the
code. Loops are unrolled, time is a fraction, and between two events nothing changes, so everything that runs between
them is added there. Nothing is folded, cut or put into intervals.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from fractions import Fraction

from hloinspect.hardware.target import Figure, HostLink, Level, Range, Target
from hloinspect.offload.transfers import HostCopy, Tensor, Transfer
from hloinspect.predict.collective import Collective
from hloinspect.predict.cost import Cost
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

MS = 10**9
"""Picoseconds in a millisecond: the unit of the small schedules."""

D2H, H2D = "d2h", "h2d"


# A machine of round numbers: an operation takes 1 ps, and so does a byte over the interconnect. At the default rate of
# the link a byte takes 1,000 ps. Device memory is so fast by default that its use slows nothing.


@dataclass(frozen=True)
class Machine:
    """The link and device memory in bytes per picosecond, and what a scenario may change."""

    d2h: Fraction = Fraction(1, 1000)
    h2d: Fraction = Fraction(1, 1000)
    duplex: tuple[Fraction, Fraction] = (Fraction(1), Fraction(1))
    latency_ps: int = 0
    kernels_block: bool = False
    longest_branch: bool = True
    fair: bool = False
    hbm: Fraction = Fraction(10**6)

    def both(self, direction: str) -> Fraction:
        """Return the rate of a direction while both directions move."""
        return self.d2h * self.duplex[0] if direction == D2H else self.h2d * self.duplex[1]

    def target(self) -> Target:
        one = Range(1.0, 1.0, 1.0, "test")
        link = HostLink(
            d2h_bytes_per_s=Figure(float(self.d2h * 10**12), "test"),
            h2d_bytes_per_s=Figure(float(self.h2d * 10**12), "test"),
            d2h_duplex=Figure(float(self.duplex[0]), "test"),
            h2d_duplex=Figure(float(self.duplex[1]), "test"),
            latency_us=Figure(self.latency_ps / 1e6, "test"),
            sharers=1,
            host_bytes_per_s=None,
            host_memory_bytes=None,
            efficiency=one,
        )
        return Target(
            name="round",
            title="round numbers",
            platform="gpu",
            peak_flops={"bf16": Figure(1e12, "test")},
            vector_flops=Figure(1e12, "test"),
            hbm_bytes=Figure(1e12, "test"),
            hbm_bytes_per_s=Figure(float(self.hbm * 10**12), "test"),
            launch_us=Figure(0.0, "test"),
            link=link,
            levels=(Level("near", 1 << 20, Figure(1e12, "test"), Figure(0.0, "test")),),
            matmul_efficiency=one,
            memory_efficiency=one,
            collective_efficiency=one,
            xla_target_config=None,
            xla_topology_name=None,
            notes=(),
        )

    def scenario(self) -> Scenario:
        return Scenario("test", 1.0, 1.0, 1.0, 1.0, 1, self.kernels_block, self.longest_branch, self.fair)


# Operations with times in picoseconds.


def kernel(ps: int, size: int = 0) -> Cost:
    """Return the cost of this many operations and bytes of device memory."""
    return Cost(vector_flops=float(ps), bytes=size)


def work(ps: int, size: int = 0) -> Run:
    return Run((kernel(ps, size),), "work")


def works(*kernels: tuple[int, int]) -> Run:
    """Return kernels that run one after the other, each as (operations, bytes)."""
    return Run(tuple(kernel(ps, size) for ps, size in kernels), "work")


def transfer(
    number: int, direction: str, size: int, *, asynchronous: bool = True, mechanism: str = "dma", computation: str = "e"
) -> Transfer:
    return Transfer(
        id=number,
        direction=direction,
        mechanism=mechanism,
        asynchronous=asynchronous,
        bytes=size,
        executions=1,
        tensor=Tensor("u8", (size,)),
        start=f"start.{number}",
        done=f"done.{number}" if asynchronous else None,
        computation=computation,
        start_index=0,
        done_index=1 if asynchronous else None,
        done_computation=computation if asynchronous else None,
        loop_depth=0,
        conditional=False,
        source=None,
        round_trip=None,
        buffer=None,
    )


def start(number: int, direction: str, size: int, *, mechanism: str = "dma") -> StartTransfer:
    return StartTransfer(("e", f"start.{number}"), transfer(number, direction, size, mechanism=mechanism))


def done(number: int) -> Done:
    return Done(("e", f"start.{number}"))


def blocking(number: int, direction: str, size: int, work_ps: int | None = None) -> BlockingTransfer:
    """Return a blocking transfer. ``work_ps`` is what the kernel that moves the bytes computes besides."""
    run = None if work_ps is None else work(work_ps)
    return BlockingTransfer(transfer(number, direction, size, asynchronous=False), run)


def host_copy(size: int) -> BlockingHostCopy:
    return BlockingHostCopy(HostCopy("copy", "e", "dma", size, 1))


def start_host_copy(name: str, size: int) -> StartHostCopy:
    return StartHostCopy(("e", name), HostCopy(name, "e", "dma", size, 1))


def collective_of_ps(ps: int) -> Collective:
    return Collective("collective-permute", ps, 2, 2)


def start_collective(name: str, ps: int) -> StartCollective:
    return StartCollective(("e", name), collective_of_ps(ps))


def start_side(name: str, ps: int, size: int = 0) -> StartSide:
    return StartSide(("e", name), kernel(ps, size))


def done_of(name: str) -> Done:
    return Done(("e", name))


def blocking_collective(ps: int) -> BlockingCollective:
    return BlockingCollective(collective_of_ps(ps), "collective")


def schedule(entry: list[Operation], **computations: list[Operation]) -> Schedule:
    return Schedule("entry", {"entry": tuple(entry), **{k: tuple(v) for k, v in computations.items()}}, ())


# The simulator.


@dataclass
class Expected:
    """The times of a step, in exact picoseconds. The names are those of StepTimes."""

    time_ps: Fraction = Fraction(0)
    compute_ps: Fraction = Fraction(0)
    collective_exposed_ps: Fraction = Fraction(0)
    exposed_d2h_ps: Fraction = Fraction(0)
    exposed_h2d_ps: Fraction = Fraction(0)
    exposed_ps: Fraction = Fraction(0)
    stall_ps: Fraction = Fraction(0)
    busy_d2h_ps: Fraction = Fraction(0)
    busy_h2d_ps: Fraction = Fraction(0)
    duration: dict[int, Fraction] = field(default_factory=lambda: defaultdict(Fraction))
    cover: dict[int, Fraction] = field(default_factory=lambda: defaultdict(Fraction))
    wait: dict[int, Fraction] = field(default_factory=lambda: defaultdict(Fraction))


@dataclass(eq=False)
class _Flow:
    """One execution of a transfer."""

    transfer: int
    direction: str
    latency: Fraction
    bytes: Fraction
    awaited: bool = False
    over: bool = False

    @property
    def empty(self) -> bool:
        return not self.latency and not self.bytes


@dataclass(eq=False)
class _Task:
    """One execution on the communication or the side stream: its time alone, then its bytes of device memory."""

    left: Fraction
    bytes: Fraction = Fraction(0)
    over: bool = False

    @property
    def empty(self) -> bool:
        return not self.left and not self.bytes


@dataclass(frozen=True)
class _Work:
    """A kernel or a collective on the main stream: its time alone, and its bytes of device memory."""

    kind: str
    ps: Fraction
    bytes: Fraction = Fraction(0)


@dataclass(frozen=True)
class _Pace:
    """The rates until the next event, in bytes per picosecond (of a whole kernel: its share per picosecond)."""

    rates: dict[str, Fraction]  # of each moving copy, by direction
    active: list[_Flow]
    main: Fraction
    side: Fraction


class BruteForce:
    """Simulator of one run of a schedule.

    ``free`` transfers take no time. None means all of them, and copies within host memory.
    """

    def __init__(self, what: Schedule, machine: Machine, free: frozenset[int] | None = frozenset()) -> None:
        self._schedule = what
        self._machine = machine
        self._free = free
        self._queues: dict[str, deque[_Flow]] = {D2H: deque(), H2D: deque()}
        self._communication: deque[_Task] = deque()
        self._side: deque[_Task] = deque()
        self._at_once = 4 if machine.fair else 1
        self._latest: dict[tuple[str, str], _Flow | _Task] = {}
        self._started: list[_Flow] = []
        self.result = Expected()

    def run(self) -> Expected:
        for item in self._actions():
            if isinstance(item, _Work):
                done = Fraction(0)
                while item.ps and done < 1:
                    done += self._tick(item, None, 1 - done)
            else:
                if isinstance(item, _Flow):
                    item.awaited = True
                while not item.over:
                    self._tick(None, item, None)
        return self.result

    # The main stream, one operation after the other. Starts take effect when the main stream reaches them.

    def _actions(self) -> Iterator[_Work | _Flow | _Task]:
        yield from self._body(self._schedule.entry)
        for flow in self._started:
            if not flow.awaited:
                yield flow
        yield from list(self._communication)
        yield from list(self._side)

    def _body(self, name: str) -> Iterator[_Work | _Flow | _Task]:
        for operation in self._schedule.operations[name]:
            yield from self._operation(operation)

    def _operation(self, operation: Operation) -> Iterator[_Work | _Flow | _Task]:
        match operation:
            case Run():
                yield from [self._kernel(cost) for cost in operation.costs]
            case BlockingCollective():
                yield _Work("collective", Fraction(operation.collective.bytes))
            case BlockingHostCopy():
                if self._free is not None:
                    half = Fraction(operation.copy.bytes, 2)
                    yield from [self._queue(0, direction, half) for direction in (D2H, H2D)]
            case StartHostCopy():
                if self._free is not None:
                    self._latest[operation.key] = self._queue(0, H2D, Fraction(operation.copy.bytes))
            case StartTransfer():
                flow = self._submit(operation.transfer)
                if flow and operation.transfer.mechanism == "kernel" and self._machine.kernels_block:
                    yield flow
                elif flow:
                    self._latest[operation.key] = flow
            case BlockingTransfer():
                flow = self._submit(operation.transfer)
                if operation.work is not None:
                    yield from [self._kernel(cost) for cost in operation.work.costs]
                if flow:
                    yield flow
            case StartCollective():
                self._latest[operation.key] = task = _Task(Fraction(operation.collective.bytes))
                self._communication.append(task)
            case StartSide():
                whole = self._kernel(operation.cost)  # its time without device memory comes first
                alone = whole.ps - whole.bytes / self._machine.hbm
                self._latest[operation.key] = task = _Task(alone, whole.bytes)
                self._side.append(task)
            case Done():
                if operation.key in self._latest:
                    yield self._latest[operation.key]
            case Branch():
                yield from self._body(self._choice(operation))
            case Loop():
                for _ in range(operation.trips):
                    if operation.condition is not None:
                        yield from self._body(operation.condition)
                    yield from self._body(operation.body)
                if operation.condition is not None:  # it runs once more than it holds
                    yield from self._body(operation.condition)

    def _kernel(self, cost: Cost) -> _Work:
        size = Fraction(cost.bytes)
        return _Work("compute", max(Fraction(cost.vector_flops), size / self._machine.hbm), size)

    def _submit(self, moved: Transfer) -> _Flow | None:
        if self._free is None or moved.id in self._free:
            return None
        return self._queue(moved.id, moved.direction, Fraction(moved.bytes))

    def _queue(self, transfer: int, direction: str, size: Fraction) -> _Flow:
        flow = _Flow(transfer, direction, Fraction(self._machine.latency_ps), size)
        self._queues[direction].append(flow)
        self._started.append(flow)
        return flow

    def _choice(self, branch: Branch) -> str:
        lengths = [(self._work_in(name), name) for name in branch.callees]
        best = max(lengths)[0] if self._machine.longest_branch else min(lengths)[0]
        return next(name for length, name in lengths if length == best)

    def _work_in(self, name: str) -> Fraction:
        """Return all work in a computation, as if one operation ran at a time. It decides which branch is the
        longest."""
        total = Fraction(0)
        for operation in self._schedule.operations[name]:
            match operation:
                case Run():
                    total += sum(self._kernel(cost).ps for cost in operation.costs)
                case BlockingCollective() | StartCollective():
                    total += operation.collective.bytes
                case StartSide():
                    total += self._kernel(operation.cost).ps
                case BlockingHostCopy():
                    total += Fraction(operation.copy.bytes, 2) / min(self._machine.both(D2H), self._machine.both(H2D))
                case StartHostCopy():
                    total += self._machine.latency_ps + operation.copy.bytes / self._machine.h2d
                case StartTransfer() | BlockingTransfer():
                    rate = self._machine.d2h if operation.transfer.direction == D2H else self._machine.h2d
                    total += self._machine.latency_ps + operation.transfer.bytes / rate
                case Branch():
                    total += self._work_in(self._choice(operation))
                case Loop():
                    total += operation.trips * self._work_in(operation.body)
                    if operation.condition is not None:
                        total += (operation.trips + 1) * self._work_in(operation.condition)
        return total

    # time

    def _pace(self, work: _Work | None) -> _Pace:
        """Return the present rates: of the link first, then the main stream, then the side stream with the rest."""
        machine = self._machine
        active = [flow for queue in self._queues.values() for flow in list(queue)[: self._at_once]]
        moving = [flow.direction for flow in active if not flow.latency]
        rates = {D2H: machine.d2h, H2D: machine.h2d}
        if len(set(moving)) == 2:
            rates = {direction: machine.both(direction) for direction in rates}
        left = machine.hbm - sum(rates[direction] for direction in set(moving))
        main = Fraction(0)
        if work is not None:
            main = min(1 / work.ps, left / work.bytes) if work.bytes else 1 / work.ps
            left -= main * work.bytes
        each = {direction: rates[direction] / moving.count(direction) for direction in set(moving)}
        return _Pace(each, active, main, left)

    def _tick(self, work: _Work | None, awaited: _Flow | _Task | None, limit: Fraction | None) -> Fraction:
        """Advance to the next event, with at most a share ``limit`` of the main stream's work. Return the share
        done."""
        for flows in self._queues.values():
            _drop(flows, self._at_once)
        for tasks in (self._communication, self._side):
            _drop(tasks, 1)
        if awaited is not None and awaited.over:
            return Fraction(0)
        pace = self._pace(work)
        events = [flow.latency or flow.bytes / pace.rates[flow.direction] for flow in pace.active]
        events += [task.left for task in (*list(self._communication)[:1], *list(self._side)[:1]) if task.left]
        if self._side and not self._side[0].left and pace.side:
            events.append(self._side[0].bytes / pace.side)
        if limit is not None:
            events.append(limit / pace.main)
        step = min(events)
        self._count(step, work.kind if work else "", awaited, pace.active)
        for flow in pace.active:
            if flow.latency:
                flow.latency -= step
            else:
                flow.bytes -= step * pace.rates[flow.direction]
        for stream in (self._communication, self._side):
            if stream and stream[0].left:
                stream[0].left -= step
            elif stream:
                stream[0].bytes -= step * pace.side
        return step * pace.main

    def _count(self, step: Fraction, kind: str, awaited: _Flow | _Task | None, active: list[_Flow]) -> None:
        result = self.result
        compute = kind == "compute" or bool(self._side)
        collective = kind == "collective" or bool(self._communication)
        busy = {flow.direction for flow in active}
        result.time_ps += step
        result.compute_ps += step * compute
        result.collective_exposed_ps += step * (collective and not compute)
        result.busy_d2h_ps += step * (D2H in busy)
        result.busy_h2d_ps += step * (H2D in busy)
        bare = not (compute or collective)
        result.exposed_d2h_ps += step * (bare and D2H in busy)
        result.exposed_h2d_ps += step * (bare and H2D in busy)
        result.exposed_ps += step * (bare and bool(busy))
        for flow in active:
            result.duration[flow.transfer] += step
            result.cover[flow.transfer] += step * (not bare)
        if isinstance(awaited, _Flow):
            result.stall_ps += step
            first = next(flow for flow in active if flow.direction == awaited.direction)
            result.wait[(awaited if awaited in active else first).transfer] += step


def _drop(queue: deque[_Flow] | deque[_Task], at_once: int) -> None:
    """Remove what has ended: only what runs can end, the first of a queue or the first few."""
    while found := next((item for item in list(queue)[:at_once] if item.empty), None):
        found.over = True
        queue.remove(found)  # type: ignore[arg-type]


def brute_force(what: Schedule, machine: Machine, free: frozenset[int] | None = frozenset()) -> Expected:
    """Return the exact times of one step."""
    return BruteForce(what, machine, free).run()
