"""Synthetic TPU traces: the events on ``XLA Modules`` and ``XLA Ops`` of a scheduled module.

One operation follows the other. The event of a while contains those of its iterations. A start takes no time, and its
copy runs beside the operations that follow. A `done` lasts until the copy has ended.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from hloinspect.hlo import Computation, Instruction, Module, load_module
from hloinspect.offload.transfers import Offload, find_offload
from tests.support.xspace_builder import LineBuilder, TraceBuilder

US = 1_000_000
PROGRAM = (1 << 63) + 5  # as on a real TPU, beyond what an int64 holds
_QUIET = frozenset({"get-tuple-element", "tuple", "parameter", "bitcast", "constant", "after-all"})


@dataclass
class TpuRun:
    """A module played ``steps`` times.

    ``waits`` has for each step the duration of each transfer's waits in ps. ``busy`` has the ps of everything that is
    neither a start nor a `done` of a transfer.
    """

    module: Module
    copy_ps: Callable[[str], int]
    work_ps: Callable[[str], int] = lambda name: 10 * US
    hlo_proto: bytes = b""
    with_module: bool = True
    now: int = 5 * US
    waits: list[dict[int, int]] = field(default_factory=list)
    busy: list[int] = field(default_factory=list)
    times: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.offload: Offload = find_offload(self.module)
        self.space = TraceBuilder()
        plane = self.space.plane("/device:TPU:0", device_type_string="TPU v6 Lite")
        self._modules, self._ops = plane.line("XLA Modules", id=2), plane.line("XLA Ops", id=3)
        self._ready: dict[str, int] = {}
        sites = self.offload.program.call_sites
        self._iterations = {(site.caller, site.index, site.callee): site.times for site in sites}
        self._starts = {(t.computation, t.start): t.id for t in self.offload.transfers}
        self._dones = {(t.done_computation, t.done): t for t in self.offload.transfers}
        if self.with_module:
            self.space.embed(self.module.name, PROGRAM, self.hlo_proto, id_is_stat=False)

    def steps(self, count: int) -> None:
        for _ in range(count):
            begin = self.now
            self.waits.append(defaultdict(int))
            self.busy.append(0)
            self._computation(self.module.entry)
            self._modules.event(f"{self.module.name}({PROGRAM})", begin, self.now - begin)
            self.times.append(self.now - begin)
            self.now += 3 * US

    def write(self, path: Path) -> Path:
        return self.space.write(path)

    def _computation(self, computation: Computation) -> None:
        for instruction in computation:
            if instruction.opcode not in _QUIET:
                self._instruction(computation, instruction)

    def _instruction(self, computation: Computation, instruction: Instruction) -> None:
        key = (computation.name, instruction.name)
        if instruction.opcode == "while":
            begin = self.now
            (condition,), (body,) = instruction.called["condition"], instruction.called["body"]
            for iteration in range(self._iterations[computation.name, instruction.index, body] + 1):
                self._computation(self.module.computations[condition])
                if iteration < self._iterations[computation.name, instruction.index, body]:
                    self._computation(self.module.computations[body])
            self._event(self._ops, computation, instruction, begin, self.now - begin)
        elif key in self._starts:
            self._ready[instruction.name] = self.now + self.copy_ps(instruction.name)
            self._event(self._ops, computation, instruction, self.now, 0)
        elif key in self._dones:
            transfer = self._dones[key]
            wait = max(0, self._ready[transfer.start] - self.now)
            self.waits[-1][transfer.id] += wait
            self._event(self._ops, computation, instruction, self.now, wait)
            self.now += wait
        else:
            duration = self.work_ps(instruction.name)
            self.busy[-1] += duration
            self._event(self._ops, computation, instruction, self.now, duration)
            self.now += duration

    def _event(
        self, line: LineBuilder, computation: Computation, instruction: Instruction, at: int, lasts: int
    ) -> None:
        shape = "bf16[8]{0:S(5)}" if self._is_to_host(computation, instruction) else "bf16[8]{0}"
        source = "S(5)" if (computation.name, instruction.name) in {**self._starts, **self._dones} else ""
        text = f"%{instruction.name} = {shape} {instruction.opcode}(bf16[8]{{0:{source}}} %x)"
        constant = {"program_id": PROGRAM - (1 << 64), "hlo_category": instruction.opcode}
        line.event(text, at, lasts, display_name=instruction.name, constant=constant)

    def _is_to_host(self, computation: Computation, instruction: Instruction) -> bool:
        key = (computation.name, instruction.name)
        return any(
            t.direction == "d2h" and key in ((t.computation, t.start), (t.done_computation, t.done))
            for t in self.offload.transfers
        )


def scan_module(root: Path) -> tuple[Module, bytes]:
    """Return a scan with an offloaded activation, compiled for a v6e, and its proto."""
    import gzip

    path = root / "fixtures" / "jax0.12.0.1" / "v6e_offload_scan" / "module.hlo.pb.gz"
    return load_module(path), gzip.decompress(path.read_bytes())
