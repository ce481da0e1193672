"""Synthetic TPU traces: a compiled module's instructions one after the other, with the known waits.

A TPU's plane has each run of a program on ``XLA Modules`` and its operations on ``XLA Ops``, loops around their bodies.
The wait for a copy is the duration of its `done`. No event shows when the copy moves, so a transfer is its window, from
the start of its start instruction to the end of its `done`. ``TpuRun.events`` has the windows as events, for the
oracle.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable

from hloinspect.hlo import Computation, Instruction
from tests.support.cuda_runtime import Compiled
from tests.support.cuda_traces import D2H, H2D, MAIN, US, Event, in_hlo_proto
from tests.support.xspace_builder import TraceBuilder, Unsigned

PROGRAM = 12_190_760_917_235_803_885  # above 2**63, as a TPU's are
ITERATIONS = 4
_FREE = frozenset({"parameter", "constant", "tuple", "get-tuple-element", "bitcast"})


class TpuRun:
    """A module that runs repeatedly on one TPU. ``took`` is a function that gives the duration of each operation."""

    def __init__(self, compiled: Compiled, took: Callable[[Instruction], int], between_steps: int = 50 * US) -> None:
        self.events: list[Event] = []
        self.waits: list[dict[str, int]] = []
        self._compiled, self._took, self._between = compiled, took, between_steps
        self._now = 10 * US
        self._open: dict[str, int] = {}
        self._builder = TraceBuilder()
        plane = self._builder.plane("/device:TPU:0", device_type_string="TPU v6 Lite")
        self._runs, self._ops = plane.line("XLA Modules", id=2), plane.line("XLA Ops", id=3)
        self._builder.embed(compiled.module.name, PROGRAM, in_hlo_proto(compiled.proto), id_is_stat=False)

    def steps(self, count: int) -> None:
        """Run the module ``count`` times more."""
        for _ in range(count):
            begin, run = self._now, len(self.waits)
            self.waits.append(defaultdict(int))
            self._play(self._compiled.module.entry)
            self._runs.event(f"{self._compiled.module.name}({PROGRAM})", begin, self._now - begin, run_id=run)
            self.events.append(Event(0, begin, self._now, "run", program=1, what="run", run=run))
            self._now += self._between

    def bytes(self) -> bytes:
        """Return the trace as the content of a file."""
        return self._builder.bytes()

    def _play(self, computation: Computation) -> None:
        for instruction in computation:
            begin = self._now
            if instruction.opcode == "while":
                for _ in range(ITERATIONS):
                    self._play(self._compiled.module.computations[instruction.called["body"][0]])
            elif instruction.opcode in _FREE:
                continue
            else:
                self._now += self._took(instruction)
                self._note(instruction, begin)
            text = f"%{instruction.name} = f32[8]{{0}} {instruction.opcode}()"
            constant = {"program_id": Unsigned(PROGRAM), "hlo_category": instruction.opcode}
            self._ops.event(text, begin, self._now - begin, display_name=instruction.name, constant=constant)

    def _note(self, instruction: Instruction, begin: int) -> None:
        name, run = instruction.name, len(self.waits) - 1
        if name in self._compiled.directions:
            self._open[name] = begin
        elif (start := name.replace("-done", "-start")) in self._compiled.directions and start != name:
            direction, _ = self._compiled.directions[start]
            stream = D2H if direction == "d2h" else H2D
            self.events.append(
                Event(
                    stream, self._open.pop(start), self._now, name, program=1, what=direction, transfer=start, run=run
                )
            )
            self.waits[-1][start] += self._now - begin
        else:
            self.events.append(Event(MAIN, begin, self._now, name, program=1, run=run))


def random_tpu_run(compiled: Compiled, rng: random.Random, steps: int) -> TpuRun:
    """Return a run with operations of 1 ps to 40 us. Each wait takes up to 300 us, or no time."""

    def took(instruction: Instruction) -> int:
        if instruction.opcode.endswith("-done"):
            return rng.choice((0, 1, rng.randrange(1, 300 * US)))
        return rng.randrange(1, 40 * US)

    run = TpuRun(compiled, took)
    run.steps(steps)
    return run
