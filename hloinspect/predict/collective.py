"""Time of a collective, level by level of the interconnect.

Devices of one domain (an NVLink domain, an ICI slice) reach each other at the domain's rate; what crosses domains is
shared by all members' network cards. The two run at once, so the time is the larger of them. Pricing all bytes at the
slowest link would make collectives too long and hide transfers behind them that do not hide.
"""

from __future__ import annotations

from dataclasses import dataclass

from hloinspect.hardware.target import Target
from hloinspect.hlo.model import Computation, Instruction, Module, ReplicaGroups

COLLECTIVES = frozenset(
    {"all-gather", "all-reduce", "reduce-scatter", "all-to-all", "ragged-all-to-all", "collective-permute",
     "collective-broadcast"}
)  # fmt: skip


MAX_WRAPPING = 4
"""Computations to look through for what an async start runs: a TPU puts a call between it and the collective."""


@dataclass(frozen=True, slots=True)
class Collective:
    """``bytes`` is the larger of what goes in and what comes out, on one device; ``size`` members, at most ``near``
    of them in one domain."""

    opcode: str
    bytes: int
    size: int
    near: int

    def time_ps(self, target: Target, efficiency: float = 1.0) -> float:
        """Picoseconds on a target whose links reach a share ``efficiency`` of their rate; 0 in a group of one."""
        if self.size <= 1:
            return 0.0
        outside = self.size - self.near
        passes = 2.0 if self.opcode == "all-reduce" else 1.0
        moved = self.bytes if self.opcode == "collective-permute" else self.bytes * (self.size - 1) / self.size
        domain, network = _levels(target)
        inside_s = passes * moved / domain[0] if self.near > 1 or outside == 0 else 0.0
        across_s = 0.0
        if outside:
            if self.opcode in ("all-gather", "reduce-scatter", "all-reduce"):
                crossing = self.bytes * outside / self.size / self.near  # each member's card carries its share
            elif self.opcode == "collective-permute":
                crossing = float(self.bytes)
            else:
                crossing = self.bytes * outside / self.size
            across_s = passes * crossing / network[0]
        return (max(inside_s, across_s) / efficiency + (network[1] if outside else domain[1])) * 1e12


def _levels(target: Target) -> tuple[tuple[float, float], tuple[float, float]]:
    """(bytes a second, latency in seconds) of the nearest and of the farthest level."""
    if not target.levels:
        return (50e9, 10e-6), (50e9, 10e-6)
    near, far = target.levels[0], target.levels[-1]
    return (
        (near.bytes_per_s.value, near.latency_us.value * 1e-6),
        (far.bytes_per_s.value, far.latency_us.value * 1e-6),
    )


def members_in_one_domain(groups: ReplicaGroups, devices: int, domain: int) -> tuple[int, int]:
    """(members of a group, the most of them in one domain) for domains of ``domain`` consecutive devices."""
    size = groups.size or devices
    members = groups.first or tuple(range(size))
    counts: dict[int, int] = {}
    for member in members:
        counts[member // domain] = counts.get(member // domain, 0) + 1
    return size, max(counts.values(), default=1)


def collective_of(
    module: Module, computation: Computation, instruction: Instruction, devices: int, domain: int
) -> Collective | None:
    """The collective that an instruction is or starts, or None. ``instruction`` may be ``x``, ``x-start`` or an async
    start around ``x``."""
    opcode = instruction.start_of or instruction.opcode
    source, within = instruction, computation
    for _ in range(MAX_WRAPPING):
        if opcode != "async" and not (opcode == "call" and (instruction.start_of or within is not computation)):
            break
        body = module.computations.get(next(iter(source.called_names), ""))
        if body is None:
            break
        source, within, opcode = body.root, body, body.root.opcode
    if opcode not in COLLECTIVES:
        return None
    shapes = (module.shape_of(within, operand) for operand in source.operands)
    going_in = sum(shape.size_bytes for shape in shapes if shape is not None)
    if source.source_target_pairs:
        crosses = any(a // domain != b // domain for a, b in source.source_target_pairs)
        return Collective(opcode, going_in, 2, 1 if crosses else 2)
    size, near = members_in_one_domain(source.replica_groups, devices, domain)
    coming_out = going_in * size if opcode == "all-gather" else going_in
    return Collective(opcode, max(going_in, coming_out), size, near)
