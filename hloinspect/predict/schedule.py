"""Schedule of a module as the runtime sees it: for each computation the list of what is issued, in order.

Kernels between two events are one *run*, because the simulator needs only their sum. A schedule of tens of thousands of
instructions becomes a few hundred operations.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from hloinspect.hlo.access import is_free
from hloinspect.hlo.evaluate import known_trip_count
from hloinspect.hlo.model import Computation, Instruction, Module
from hloinspect.offload.pairs import Key
from hloinspect.offload.program import Program
from hloinspect.offload.transfers import HostCopy, Offload, Transfer
from hloinspect.predict.collective import ENDS, STARTS, Collective, collective_of, fused_collective, start_of_fused
from hloinspect.predict.cost import Cost, cost_of, in_device_memory

_COPY = re.compile(r"(?:\.(?:\d+|clone|cloned|remat\d*))+$")
"""The text that XLA appends to the name of an instruction that is one of several."""


@dataclass(frozen=True, slots=True, eq=False)
class Run:
    """Kernels one after the other on the main stream. Each is a key of its own, however alike two of them are."""

    costs: tuple[Cost, ...]
    first: str


@dataclass(frozen=True, slots=True)
class StartTransfer:
    """An async start of a host transfer."""

    key: Key
    transfer: Transfer


@dataclass(frozen=True, slots=True)
class BlockingTransfer:
    """A transfer without a pair, during which the main stream does nothing else. ``work`` is the kernel's own, if it is
    one."""

    transfer: Transfer
    work: Run | None


@dataclass(frozen=True, slots=True)
class BlockingHostCopy:
    """A copy of host memory that the main stream reads and writes."""

    copy: HostCopy


@dataclass(frozen=True, slots=True)
class StartHostCopy:
    """An async start of a copy within host memory.

    XLA runs it on the stream of the copies from the host, in their order (jax 0.12's thunk sequences; earlier a
    separate stream).
    """

    key: Key
    copy: HostCopy


@dataclass(frozen=True, slots=True)
class StartCollective:
    """An async start of a collective."""

    key: Key
    collective: Collective


@dataclass(frozen=True, slots=True)
class BlockingCollective:
    """A collective on the main stream."""

    collective: Collective
    name: str


@dataclass(frozen=True, slots=True)
class StartSide:
    """An async start of device-side work: a slice copy on another stream, a prefetch into VMEM."""

    key: Key
    cost: Cost


@dataclass(frozen=True, slots=True)
class Done:
    """An operation at which the main stream waits for a pair."""

    key: Key


@dataclass(frozen=True, slots=True)
class Loop:
    """A while loop. ``condition`` is None where the runtime counts iterations itself."""

    body: str
    condition: str | None
    trips: int


@dataclass(frozen=True, slots=True)
class Branch:
    """A call (one callee) or a conditional (one of several)."""

    callees: tuple[str, ...]


Operation = (
    Run
    | StartTransfer
    | BlockingTransfer
    | BlockingHostCopy
    | StartHostCopy
    | StartCollective
    | BlockingCollective
    | StartSide
    | Done
    | Loop
    | Branch
)


@dataclass(frozen=True, slots=True)
class Schedule:
    """The operations of every computation that the device runs. ``opaque`` names calls priced by their bytes alone."""

    entry: str
    operations: dict[str, tuple[Operation, ...]]
    opaque: tuple[str, ...]


def device_count(module: Module) -> int:
    """Return the number of devices that run the module together: num_partitions x replica_count of its header."""
    counts = [module.attributes.get(key, "1") for key in ("num_partitions", "replica_count")]
    return max(1, int(counts[0] if counts[0].isdecimal() else 1) * int(counts[1] if counts[1].isdecimal() else 1))


def schedule_of(offload: Offload, devices: int, domain: int) -> Schedule:
    """Compile a program to operations. ``domain`` is the number of devices in one domain of the interconnect."""
    builder = _Builder(offload, devices, domain)
    operations = {computation.name: builder.build(computation) for computation in offload.program.computations()}
    return Schedule(offload.program.module.entry_name, operations, tuple(sorted(builder.opaque)))


def operations_of(offload: Offload, devices: int, domain: int) -> dict[str, Operation | Cost]:
    """Return what each executed instruction is to the schedule, by name. Those that take no time are left out."""
    builder = _Builder(offload, devices, domain)
    found = {}
    for computation in offload.program.computations():
        for instruction in computation:
            event = builder.event(computation, instruction)
            if event is not None:
                found[instruction.name] = event
    return found


def matrix_flops(schedule: Schedule, program: Program) -> float:
    """Return the FLOPs on the matrix units in one step of one device.

    They are those of kernels and of transfers that are kernels, in every iteration of every loop.
    """
    total = 0.0
    for name, operations in schedule.operations.items():
        for operation in operations:
            run = operation.work if isinstance(operation, BlockingTransfer) else operation
            if isinstance(run, Run):
                total += program.executions[name] * sum(cost.matrix_flops for cost in run.costs)
    return total


class _Builder:
    def __init__(self, offload: Offload, devices: int, domain: int) -> None:
        self._program: Program = offload.program
        self._module = offload.program.module
        self._devices = devices
        self._domain = domain
        self._pairs = offload.pairs
        self._unfollowed = frozenset(offload.unfollowed)
        self._transfers: dict[Key, list[Transfer]] = {}
        for transfer in offload.transfers:
            self._transfers.setdefault((transfer.computation, transfer.start), []).append(transfer)
        self._copies = {(copy.computation, copy.instruction): copy for copy in offload.host_copies}
        self._trips = {(site.caller, site.index, site.callee): site.times for site in offload.program.call_sites}
        self.opaque: set[str] = set()

    def build(self, computation: Computation) -> tuple[Operation, ...]:
        operations: list[Operation] = []
        costs: list[Cost] = []
        first = ""

        def flush() -> None:
            nonlocal first
            if costs:
                operations.append(Run(tuple(costs), first))
                costs.clear()
            first = ""

        for instruction in computation:
            event = self.event(computation, instruction)
            if isinstance(event, Cost):
                first = first or instruction.name
                costs.append(event)
            elif event is not None:
                flush()
                operations.append(event)
        flush()
        return tuple(operations)

    def event(self, computation: Computation, instruction: Instruction) -> Operation | Cost | None:
        """Return what an instruction is to the schedule, or None if it takes no time."""
        opcode = instruction.opcode
        if is_free(instruction):
            return None
        if opcode == "while":
            return self._loop(computation, instruction)
        if opcode in ("call", "conditional"):
            return Branch(tuple(dict.fromkeys(instruction.called_names)))
        if instruction.done_of or opcode.endswith("-update"):
            key = self._pairs.done_keys.get((computation.name, instruction.name))
            return Done(key) if key is not None and instruction.done_of else None
        key = (computation.name, instruction.name)
        found = self._transfers.get(key)
        if found:
            if found[0].asynchronous:
                return StartTransfer(self._key(computation, instruction), found[0])
            kernel = found[0].mechanism == "kernel"
            cost = (cost_of(self._module, computation, instruction),) if kernel else ()
            return BlockingTransfer(found[0], Run(cost, instruction.name) if kernel else None)
        if key in self._copies:
            if instruction.start_of:
                return StartHostCopy(self._key(computation, instruction), self._copies[key])
            return BlockingHostCopy(self._copies[key])
        if instruction.name in self._unfollowed:  # how long the host takes is not in the module
            return None
        return self._device_work(computation, instruction)

    def _device_work(self, computation: Computation, instruction: Instruction) -> Operation | Cost:
        if self._module.platform == "tpu" and (fused := fused_collective(self._module, instruction)) is not None:
            operation = self._fused(computation, instruction, *fused)
            if operation is not None:
                return operation
        collective = collective_of(self._module, computation, instruction, self._devices, self._domain)
        if collective is not None:
            if not instruction.start_of:
                return BlockingCollective(collective, instruction.name)
            return StartCollective(self._key(computation, instruction), collective)
        if instruction.start_of:
            return StartSide(self._key(computation, instruction), side_cost(self._module, instruction))
        cost = cost_of(self._module, computation, instruction)
        if not cost.known:
            self.opaque.add(_called(instruction))
        return cost

    def _fused(
        self, computation: Computation, fusion: Instruction, role: str, body: Computation, inner: Instruction
    ) -> Operation | None:
        """Return the operation at an end of a collective that is split over fusions, or None for compute that runs
        beside it."""
        if role == STARTS:
            collective = collective_of(self._module, body, inner, self._devices, self._domain)
            return StartCollective((computation.name, fusion.name), collective) if collective is not None else None
        start = start_of_fused(self._module, computation, fusion) if role == ENDS else None
        return Done((computation.name, start.name)) if start is not None else None

    def _key(self, computation: Computation, start: Instruction) -> Key:
        key = (computation.name, start.name)
        return self._pairs.start_keys.get(key, key)

    def _loop(self, computation: Computation, loop: Instruction) -> Operation:
        body = loop.called.get("body", ("",))[0]
        condition = None if known_trip_count(loop) is not None else loop.called.get("condition", ("",))[0]
        return Loop(body, condition, self._trips.get((computation.name, loop.index, body), 1))


def side_cost(module: Module, start: Instruction) -> Cost:
    """Return the cost of an async copy within device memory.

    It reads and writes what it moves; a prefetch into VMEM only reads. A copy-start has (destination, source, context),
    every other start ((operands), result, context).
    """
    moved = start.shape.at((0,)) if start.start_of == "copy" else start.shape.at((1,))
    if moved is None:
        return Cost(known=False)
    arrays = [leaf for _, leaf in start.shape.leaves if leaf.size_bytes > 8]  # neither indices nor contexts
    sides = 2 if all(in_device_memory(module, leaf.memory_space) for leaf in arrays) else 1
    operands = start.shape.at((0,)) if start.start_of != "copy" else None
    if operands is not None:
        smallest = [leaf.size_bytes for _, leaf in operands.leaves if leaf.size_bytes > 8]
        return Cost(bytes=sides * min([moved.size_bytes, *smallest]))
    return Cost(bytes=sides * moved.size_bytes)


def _called(call: Instruction) -> str:
    """Return the name of what an opaque call calls, with the kernel's own name if the call has it: many share one
    target."""
    target, name = call.custom_call_target or call.opcode, _COPY.sub("", call.name)
    return target if name in ("", target, call.opcode) else f"{target} ({name})"
