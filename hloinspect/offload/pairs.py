"""Pairs of async starts and their waits: in one computation, through updates, and around loops.

Since XLA of August 2026 a start's context may be carried by a while: it starts in one iteration, and its wait is in the
next one or after the loop (openxla/xla commit e28fcc12a6). Every start and every `done` of such a chain has one key.
"""

from __future__ import annotations

from dataclasses import dataclass

from hloinspect.hlo.model import Computation, Instruction
from hloinspect.offload.buffers import AsyncContexts
from hloinspect.offload.program import Program

Key = tuple[str, str]
"""Key of an async pair: computation and name of a start that represents all starts with the same context."""


@dataclass(frozen=True, slots=True)
class Wait:
    """The place of the wait for a pair."""

    name: str
    computation: str
    index: int


@dataclass(frozen=True)
class AsyncPairs:
    """The async pairs of a program.

    ``start_keys`` and ``done_keys`` give the key of a start or a `done` by (computation, name). ``dones`` gives the
    first wait of each key.
    """

    start_keys: dict[Key, Key]
    done_keys: dict[Key, Key]
    dones: dict[Key, Wait]


def async_pairs(program: Program) -> AsyncPairs:
    """Return the pairs of a program.

    A `done` whose start is not found has no key. A start without a `done` has no entry in ``dones``.
    """
    starts: dict[Key, Key] = {}
    dones: dict[Key, Key] = {}
    first: dict[Key, Wait] = {}
    lost: list[tuple[Computation, int]] = []
    for computation in program.computations():
        begun: dict[str, str] = {}
        for opcode, index, name, operand in computation.async_ends():
            if opcode.endswith("-start"):
                begun[name] = name
                starts[(computation.name, name)] = (computation.name, name)
                continue
            start = begun.get(operand)
            if opcode.endswith("-update"):
                if start is not None:
                    begun[name] = start
            elif start is None:
                lost.append((computation, index))
            else:
                dones[(computation.name, name)] = (computation.name, start)
                first.setdefault((computation.name, start), Wait(name, computation.name, index))
    if lost:
        waiting = [(c, c.instruction(index)) for c, index in lost]
        _pair_by_context(program, starts, dones, first, [(c, i) for c, i in waiting if i.operands])
    return AsyncPairs(starts, dones, first)


def _context(instruction: Instruction) -> tuple[int, ...] | None:
    """Return the path of a start's context, which is the last element of its result if that is a scalar u32."""
    elements = instruction.shape.elements
    if not elements or elements[-1].dtype != "u32" or elements[-1].dims:
        return None
    return (len(elements) - 1,)


def _pair_by_context(
    program: Program,
    starts: dict[Key, Key],
    dones: dict[Key, Key],
    first: dict[Key, Wait],
    lost: list[tuple[Computation, Instruction]],
) -> None:
    """Pair each `done` whose start is not in its own computation with a start elsewhere that has the same context."""
    contexts = AsyncContexts(program)
    keys: dict[object, Key] = {}
    for start in list(starts):
        computation = program.module.computations[start[0]]
        instruction = computation.find(start[1])
        path = _context(instruction) if instruction is not None else None
        if path is not None:
            key = keys.setdefault(contexts.value(start[0], start[1], path), start)
            starts[start] = key
    members: dict[Key, list[Key]] = {}
    for start, key in starts.items():
        members.setdefault(key, []).append(start)
    for computation, instruction in reversed(lost):  # a `done` inside the loop comes before the one after it
        operand = instruction.operands[0]
        shape = program.module.shape_of(computation, operand)
        if shape is None or not shape.elements:
            continue
        path = (*operand.path, len(shape.elements) - 1)
        found = keys.get(contexts.value(computation.name, operand.name, path))
        if found is None:
            continue
        dones[(computation.name, instruction.name)] = found
        for start in members[found]:
            first.setdefault(start, Wait(instruction.name, computation.name, instruction.index))
    for done, key in list(dones.items()):  # pairs of one computation are part of a chain too
        dones[done] = starts.get(key, key)
