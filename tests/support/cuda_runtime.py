"""A model of XLA:GPU's runtime: what it does with a scheduled module, and when. Synthetic traces are made from it.

    run = Run(module, directions)
    run.steps(4)
    run.device(0)      # the events, for cuda_traces.Trace
    run.truth          # for each step what the main stream waited for: transfers by name, and the host

A host thread launches one instruction after the other. The main stream runs them in order. A start makes a side stream
wait for the main stream and then runs there, and its `done` makes the main stream wait for it (async_execution.cc). The
known waits are recorded while the step is played, from what made each start late, and not computed from the events
afterwards. Nothing of hloinspect except the reader of modules is used here. The fixture's own record says which start
moves data in which direction.
"""

from __future__ import annotations

import gzip
import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache

from hloinspect.hlo import Computation, Instruction, Module, load_module_bytes
from tests.support.cuda_traces import (
    COLLECTIVES,
    D2H,
    H2D,
    MAIN,
    SIDE,
    US,
    Annotation,
    Device,
    Event,
    Program,
    kernel_name,
    memcpy_details,
)
from tests.support.places import ROOT

_FREE = frozenset(
    {"parameter", "constant", "tuple", "get-tuple-element", "bitcast", "after-all", "add-dependency", "opt-barrier"}
)
_NCCL = ("all-gather", "all-reduce", "reduce-scatter", "all-to-all", "collective-permute")
SIDE_STREAMS = 4
_CALLS = {"d2h": ("MemcpyD2H", "cuMemcpyDtoHAsync_v2"), "h2d": ("MemcpyH2D", "cuMemcpyHtoDAsync_v2")}


@dataclass(frozen=True, slots=True)
class Speeds:
    """Picoseconds that each operation takes. All are whole nanoseconds.

    ``kernel`` and ``late`` are functions of the instruction's name and the number of its step: how long it runs, and
    how long the host waits before it launches it. ``transfer``, where given, replaces ``d2h`` and ``h2d``.
    """

    kernel: Callable[[str], int] = lambda op: 20 * US
    d2h: int = 100 * US
    h2d: int = 100 * US
    transfer: Callable[[str], int] | None = None
    slice: int = 3 * US
    collective: int = 30 * US
    launch: int = 2 * US
    python: int = 60 * US
    between_steps: int = 50 * US
    late: Callable[[str, int], int] = lambda op, step: 0


@dataclass(frozen=True, slots=True)
class Form:
    """Form of slices over host memory: the event's name, the memories in CUPTI's record, and the instruction in hlo_op.

    That is the hero inside the fusion (JAX >= 0.10) or the fusion. An empty ``name`` makes it a kernel, which names no
    memory. ``synchronous``: copies run on the main stream and their `done` does nothing (no stream assigned).
    """

    name: str = "MemcpyD2D"
    hero: bool = True
    synchronous: bool = False


@dataclass(slots=True)
class StepTruth:
    """Waits of the main stream in one step, in ps. ``waits`` are by the name of the transfer's start instruction."""

    start_ps: int
    end_ps: int = 0
    waits: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    host_ps: int = 0
    other_ps: int = 0
    durations: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    before_ps: int = 0  # how long the main stream was idle before the step's first event on it

    @property
    def stall_ps(self) -> int:
        return sum(self.waits.values())


PROGRAM = 7
DATA = {
    "optimizer": ("optimizer_on_four", {"copy-start.2": ("h2d", 65536), "copy-start.1.0": ("d2h", 65536)}),
    "callback": ("callback", {"copy-start.1": ("h2d", 262144)}),
}


@dataclass(frozen=True, slots=True)
class Compiled:
    """A module of the fixtures: its file, and direction and bytes of each transfer by its start."""

    module: Module
    proto: bytes
    directions: dict[str, tuple[str, int]]

    @property
    def program(self) -> Program:
        return Program(self.module.name, PROGRAM, self.proto)


@cache
def compiled(name: str) -> Compiled:
    """Return a fixture by its directory, or one of tests/data."""
    if name in DATA:
        file, directions = DATA[name]
        proto = gzip.decompress((ROOT / "tests" / "data" / f"{file}.hlo.pb.gz").read_bytes())
    else:
        home = ROOT / "fixtures" / name
        proto = gzip.decompress((home / "module.hlo.pb.gz").read_bytes())
        expected = json.loads((home / "expected.json").read_text())["transfers"]
        directions = {start: (way, own["bytes_each"][0]) for way, own in expected.items() for start in own["names"]}
    module = load_module_bytes(proto)
    return Compiled(module, proto, directions)


class Run:
    """A module that runs repeatedly on one device."""

    def __init__(
        self,
        module: Module,
        directions: Mapping[str, tuple[str, int]],
        *,
        program: int = 7,
        speeds: Speeds | None = None,
        form: Form | None = None,
        start_ps: int = 10 * US,
        blocking: bool = True,
        tails: dict[int, int] | None = None,
    ) -> None:
        """Prepare a run. ``tails``: until when each stream is busy, for several modules on one device.

        ``directions`` has the direction ("d2h", "h2d") and bytes of each start that moves data over the link.
        ``blocking``: the host waits for each step before it launches the next.
        """
        self.events: list[Event] = []
        self.truth: list[StepTruth] = []
        self.annotations: list[Annotation] = []
        self.awaited_at_end: list[tuple[int, ...]] = []  # for each run, transfers whose waits come after its last event
        self._module, self._directions, self._program = module, directions, program
        self._speeds, self._form, self._blocking = speeds or Speeds(), form or Form(), blocking
        self._host = start_ps
        self._tails: dict[int, int] = defaultdict(int) if tails is None else tails
        self._running: dict[str, int] = {}  # by start: the place of its event
        self._pending: list[str] = []  # starts whose `done` the main stream has reached and not yet passed
        self._sides: dict[str, int] = {}
        self._is_first, self._run_begin = True, 0

    def steps(self, count: int) -> None:
        """Run the module ``count`` times more."""
        for _ in range(count):
            begin = self._host
            self.truth.append(StepTruth(begin))
            first = len(self.events)
            self._is_first, self._run_begin = True, first
            self._play(self._module.entry)
            own = self.events[first:]
            self.truth[-1].start_ps = min((event.start_ps for event in own), default=begin)
            self.truth[-1].end_ps = max((event.end_ps for event in own), default=begin)
            self._end_run()
            if self._blocking:
                self._host = max(self._host, *self._tails.values())
                self._pending.clear()
            self.annotations.append(Annotation(len(self.truth) - 1, begin, self._host))
            self._host += self._speeds.between_steps

    @property
    def now(self) -> int:
        """Return when the host goes on."""
        return self._host

    def device(self, ordinal: int = 0) -> Device:
        return Device(ordinal, tuple(self.events))

    # ---- the host

    def _launch(self, op: str) -> int:
        """Return when the launching call returns."""
        self._host += self._speeds.late(op, len(self.truth) - 1) + self._speeds.launch
        return self._host

    def _play(self, computation: Computation) -> None:
        for instruction in computation:
            opcode = instruction.opcode
            if opcode == "while":
                for _ in range(_trips(instruction)):
                    self._play(self._module.computations[instruction.called["body"][0]])
            elif opcode == "call":
                self._play(self._module.computations[instruction.called["to_apply"][0]])
            elif opcode.endswith("-start"):
                self._start(instruction)
            elif opcode.endswith("-done"):
                self._pending.append(instruction.operands[0].name)
            elif opcode == "partition-id":
                self._on_main(Event(MAIN, 0, 0, "Memset", memset="kind:device size:4 async:1"), 1 * US)
            elif opcode not in _FREE:
                self._operation(instruction)

    # ---- the main stream

    def _operation(self, instruction: Instruction) -> None:
        name = instruction.name
        if "callback" in instruction.custom_call_target:
            self._callback(name)
            return
        if instruction.opcode == "copy" and instruction.shape.on_host:
            details = memcpy_details("pinned", "pinned", instruction.shape.size_bytes)
            event = Event(MAIN, 0, 0, "MemcpyOther", name, self._program, details, what="both")
            self._on_main(event, self._speeds.h2d)
        elif instruction.opcode == "copy":
            event = Event(MAIN, 0, 0, "MemcpyD2D", name, self._program, memcpy_details("device", "device", 4096))
            self._on_main(event, self._speeds.slice)
        else:
            self._on_main(Event(MAIN, 0, 0, kernel_name(name), name, self._program), self._speeds.kernel(name))

    def _callback(self, name: str) -> None:
        """Copy the operand to the host, run Python while the device waits, and copy the result back."""
        for direction, kinds in (("d2h", ("device", "pageable")), ("h2d", ("pageable", "device"))):
            called, launch = _CALLS[direction]
            details = memcpy_details(*kinds, 4, asynchronous=False)
            event = Event(MAIN, 0, 0, called, name, self._program, details, launch=launch, what="other_copy")
            _, self._host = self._on_main(event, 2 * US)
            self._host += self._speeds.python

    def _on_main(self, event: Event, duration: int) -> tuple[int, int]:
        """Run an operation on the main stream and record what it waited for."""
        launched, tail = self._launch(event.op), self._tails[MAIN]
        awaited = self._awaited()
        last = max((self.events[place].end_ps for place in awaited), default=0)
        begin = max(tail, launched, last)
        truth = self.truth[-1]
        if self._is_first:  # the run may begin with transfers; the time before is no part of it
            truth.before_ps = begin - tail
            tail = min((e.start_ps for e in self.events[self._run_begin :]), default=begin)
        if begin > tail:
            if launched > last:
                truth.host_ps += begin - tail
            else:
                self._charge(awaited, tail)
        self._is_first = False
        self._place(replace(event, after=awaited), launched, begin, begin + duration)
        return begin, begin + duration

    def _awaited(self) -> tuple[int, ...]:
        """Return the places of the events of each `done` that the main stream has reached, in their order."""
        awaited = tuple(self._running[start] for start in self._pending if start in self._running)
        self._pending.clear()
        return awaited

    def _charge(self, awaited: Iterable[int], now: int) -> None:
        """Charge the waits of a main stream that is idle from ``now`` and reaches one `done` after the other."""
        truth = self.truth[-1]
        for event in (self.events[place] for place in awaited):
            if event.end_ps > now and event.what in ("d2h", "h2d"):
                truth.waits[event.transfer] += event.end_ps - now
            elif event.end_ps > now:
                truth.other_ps += event.end_ps - now
            now = max(now, event.end_ps)

    def _end_run(self) -> None:
        """Charge the waits after the run's last event to this run."""
        pending = list(self._pending)
        self.awaited_at_end.append(self._awaited())
        self._charge(self.awaited_at_end[-1], self._tails[MAIN])
        self._pending += pending  # the next run's first operation also waits for them

    # ---- side streams

    def _start(self, instruction: Instruction) -> None:
        name = instruction.name
        if name.startswith("host-call"):  # compute_on: this thread waits for the operands and computes; no device event
            met = (self.events[self._running[s]].end_ps for s in self._pending if s in self._running)
            self._host = max(self._host, self._tails[MAIN], *met) + self._speeds.python
            return
        event, duration = self._side_event(instruction)
        if event.what in ("d2h", "h2d"):
            self.truth[-1].durations[name] += duration
        if event.what in ("d2h", "h2d") and self._form.synchronous:
            begin, end = self._on_main(replace(event, stream=MAIN), duration)
            self.truth[-1].waits[name] += end - begin
            return
        # The side stream waits for all work given to the main stream, and that for each `done` it has reached.
        met = max((self.events[self._running[s]].end_ps for s in self._pending if s in self._running), default=0)
        launched = self._launch(event.op)
        begin = max(self._tails[event.stream], self._tails[MAIN], launched, met)
        self._running[name] = len(self.events)
        self._place(event, launched, begin, begin + duration)

    def _side_event(self, instruction: Instruction) -> tuple[Event, int]:
        name, program = instruction.name, self._program
        speeds = self._speeds
        if any(word in instruction.opcode or name.startswith(word) for word in _NCCL):
            kind = "".join(part.capitalize() for part in name.split("-start")[0].split("-"))
            nccl = f"ncclDevKernel_{kind}_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
            return Event(COLLECTIVES, 0, 0, nccl, name, program, what="collective"), speeds.collective
        if name not in self._directions:  # a slice of device memory
            stream = SIDE + self._sides.setdefault(name, len(self._sides)) % SIDE_STREAMS
            details = memcpy_details("device", "device", 4096)
            return Event(stream, 0, 0, "MemcpyD2D", self._inner(instruction), program, details), speeds.slice
        direction, size = self._directions[name]
        duration, stream = (speeds.d2h, D2H) if direction == "d2h" else (speeds.h2d, H2D)
        if speeds.transfer is not None:
            duration = speeds.transfer(name)
        details = memcpy_details(*(("device", "pinned") if direction == "d2h" else ("pinned", "device")), size)
        if instruction.opcode == "copy-start":
            called, launch = _CALLS[direction]
            event = Event(stream, 0, 0, called, name, program, details, launch=launch)
        elif self._form.name:
            inner = self._inner(instruction)
            event = Event(stream, 0, 0, self._form.name, inner, program, details, launch="cuMemcpyDtoDAsync_v2")
        else:
            inner = self._inner(instruction)
            event = Event(stream, 0, 0, kernel_name(self._fusion(instruction)), inner, program)
        return replace(event, what=direction, transfer=name), duration

    def _inner(self, start: Instruction) -> str:
        return self._hero(start) if self._form.hero else self._fusion(start)

    def _fusion(self, start: Instruction) -> str:
        """Return the fusion that an async start runs: the root of its computation."""
        return self._module.computations[start.called["calls"][0]].root.name

    def _hero(self, start: Instruction) -> str:
        """Return the instruction inside that fusion from which the runtime's thunk has its name."""
        fusion = self._module.computations[start.called["calls"][0]].root
        body = self._module.computations[fusion.called["calls"][0]]
        copies = [instruction.name for instruction in body if instruction.opcode == "copy"]
        return copies[-1] if copies else body.root.name

    def _place(self, event: Event, launched: int, begin: int, end: int) -> None:
        self._tails[event.stream] = end
        placed = replace(event, start_ps=begin, end_ps=end, launched_ps=launched, run=len(self.truth) - 1)
        self.events.append(placed)


def _trips(loop: Instruction) -> int:
    known = loop.backend_config.get("known_trip_count")
    assert isinstance(known, dict), f"{loop.name} does not say its trip count"
    return int(known["n"])
