"""Time of a collective, level by level of the interconnect.

Devices of one domain (an NVLink domain, an ICI slice) reach each other at the domain's rate. Bytes that leave the
domain share the network cards of all members. Both happen at once, so the time is the larger of the two. A price at the
slowest link for all bytes would be too high, and transfers would seem hidden behind the collective.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from hloinspect.hardware.target import Side, Target
from hloinspect.hlo.model import Computation, Instruction, Module, ReplicaGroups
from hloinspect.hlo.shape import Shape

COLLECTIVES = frozenset(
    {"all-gather", "all-reduce", "reduce-scatter", "all-to-all", "ragged-all-to-all", "collective-permute",
     "collective-broadcast"}
)  # fmt: skip


MAX_WRAPPING = 4
"""The number of computations to look through for the operation of an async start. A TPU puts a call between the two."""


@dataclass(frozen=True, slots=True)
class Collective:
    """One collective: ``size`` members, at most ``near`` of them in one domain.

    ``bytes`` is the larger of its inputs and its outputs on one device.
    """

    opcode: str
    bytes: int
    size: int
    near: int

    def time_ps(self, target: Target, efficiency: float = 1.0, side: Side = "value") -> float:
        """Return the time in picoseconds on a target. It is 0 in a group of one.

        Links reach the share ``efficiency`` of their rate. Inside a domain the target's own figures of this kind count
        instead, where it has some; ``side`` chooses their shortest time (``high``) or their longest (``low``).
        """
        if self.size <= 1:
            return 0.0
        outside = self.size - self.near
        passes = 2.0 if self.opcode == "all-reduce" else 1.0
        moved = self.bytes if self.opcode == "collective-permute" else self.bytes * (self.size - 1) / self.size
        domain, network = _levels(target)
        within = self.near > 1 or outside == 0
        across_s = passes * self._crossing(outside) / network[0] / efficiency if outside else 0.0
        exchange = target.exchanges.get(ALIKE.get(self.opcode, self.opcode))
        if exchange is None:
            inside_s = passes * moved / domain[0] / efficiency if within else 0.0
            return (max(inside_s, across_s) + (network[1] if outside else domain[1])) * 1e12
        inside_s = exchange.seconds(passes * moved, self.near, domain[0], side) if within else 0.0
        return (max(inside_s, across_s) + (network[1] if outside else 0.0)) * 1e12

    def _crossing(self, outside: int) -> float:
        """Return the bytes that one member's network card carries in one pass."""
        if self.opcode in ("all-gather", "reduce-scatter", "all-reduce"):
            return self.bytes * outside / self.size / self.near  # each member's card carries its share
        if self.opcode == "collective-permute":
            return float(self.bytes)
        return self.bytes * outside / self.size


ALIKE: Final = {"ragged-all-to-all": "all-to-all", "collective-broadcast": "all-gather"}
"""Kinds that no table has, and the kinds whose figures they take."""


def _levels(target: Target) -> tuple[tuple[float, float], tuple[float, float]]:
    """Return (bytes a second, latency in seconds) of the nearest and of the farthest level."""
    if not target.levels:
        return (50e9, 10e-6), (50e9, 10e-6)
    near, far = target.levels[0], target.levels[-1]
    return (
        (near.bytes_per_s.value, near.latency_us.value * 1e-6),
        (far.bytes_per_s.value, far.latency_us.value * 1e-6),
    )


def members_in_one_domain(groups: ReplicaGroups, devices: int, domain: int) -> tuple[int, int]:
    """Return (members of a group, the most of them in one domain) for domains of ``domain`` consecutive devices."""
    size = groups.size or devices
    members = groups.first or tuple(range(size))
    counts: dict[int, int] = {}
    for member in members:
        counts[member // domain] = counts.get(member // domain, 0) + 1
    return size, max(counts.values(), default=1)


STARTS, CONTINUES, ENDS = "starts", "continues", "ends"


def fused_collective(module: Module, fusion: Instruction) -> tuple[str, Computation, Instruction] | None:
    """Return what a TPU's fusion does with the collective inside it, the body of the fusion, and the collective.

    Return None for a fusion without a collective. XLA:TPU splits a collective into fusions that all hold a copy of it.
    The fusion that makes semaphores (``u32[]`` in memory space 2) starts it. The one that only takes them waits for it.
    The fusions between take them and hand them on: they are compute that runs beside it (``async-collective-start`` and
    ``-done``; seen in modules compiled for v5e).
    """
    body = (
        module.computations.get(next(iter(fusion.called.get("calls", ())), "")) if fusion.opcode == "fusion" else None
    )
    if body is None:
        return None
    makes = _has_semaphore(fusion.shape)
    takes = any(_has_semaphore(parameter.shape) for parameter in body.parameters)
    if not makes and not takes:
        return None
    found = (body.instruction(index) for index in body.ending_in(*COLLECTIVES))
    inner = next((instruction for instruction in found if instruction.opcode in COLLECTIVES), None)
    if inner is None:
        return None
    return (CONTINUES if makes and takes else STARTS if makes else ENDS), body, inner


def start_of_fused(module: Module, computation: Computation, end: Instruction) -> Instruction | None:
    """Return the fusion that started the collective for which ``end`` waits, found by following the semaphores back."""
    at = end
    for _ in range(len(computation)):
        semaphores = (
            module.resolve(computation, operand)[0]
            for operand in at.operands
            if (shape := module.shape_of(computation, operand)) is not None and _has_semaphore(shape)
        )
        origin = next((instruction for instruction in semaphores if instruction is not None), None)
        found = fused_collective(module, origin) if origin is not None else None
        if origin is None or found is None or found[0] == ENDS:
            return None
        if found[0] == STARTS:
            return origin
        at = origin
    return None


def _has_semaphore(shape: Shape) -> bool:
    return any(leaf.dtype == "u32" and not leaf.dims and leaf.memory_space == 2 for _, leaf in shape.leaves)


def collective_of(
    module: Module, computation: Computation, instruction: Instruction, devices: int, domain: int
) -> Collective | None:
    """Return the collective that an instruction is or starts, or None.

    ``instruction`` may be ``x``, ``x-start`` or an async start around ``x``.
    """
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
