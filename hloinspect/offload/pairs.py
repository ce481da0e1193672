"""Which done waits for which async start: in one computation, through updates, and around loops.

Since XLA of August 2026 a start's context may travel through a while's tuple: started in one turn, awaited in the
next or behind the loop (openxla/xla commit e28fcc12a6). Every start and every done of such a chain belongs to one key.
"""

from __future__ import annotations

from dataclasses import dataclass

from hloinspect.hlo.model import Computation, Instruction
from hloinspect.offload.buffers import AsyncContexts
from hloinspect.offload.program import Program

Key = tuple[str, str]
"""An async pair: computation and name of a start that stands for all that share its context."""


@dataclass(frozen=True, slots=True)
class Done:
    """Where a pair is waited for."""

    name: str
    computation: str
    index: int


@dataclass(frozen=True)
class AsyncPairs:
    """``start_keys`` and ``done_keys`` give the key of a start or a done by (computation, name); ``dones`` what waits
    first."""

    start_keys: dict[Key, Key]
    done_keys: dict[Key, Key]
    dones: dict[Key, Done]


def async_pairs(program: Program) -> AsyncPairs:
    """The pairs of a program. A done without a start that can be found has no key, a start without a done no entry."""
    starts: dict[Key, Key] = {}
    dones: dict[Key, Key] = {}
    first: dict[Key, Done] = {}
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
                first.setdefault((computation.name, start), Done(name, computation.name, index))
    if lost:
        waiting = [(c, c.instruction(index)) for c, index in lost]
        _pair_by_context(program, starts, dones, first, [(c, i) for c, i in waiting if i.operands])
    return AsyncPairs(starts, dones, first)


def _context(instruction: Instruction) -> tuple[int, ...] | None:
    """The path of a start's context: the last element of its result, if that is a scalar u32."""
    elements = instruction.shape.elements
    if not elements or elements[-1].dtype != "u32" or elements[-1].dims:
        return None
    return (len(elements) - 1,)


def _pair_by_context(
    program: Program,
    starts: dict[Key, Key],
    dones: dict[Key, Key],
    first: dict[Key, Done],
    lost: list[tuple[Computation, Instruction]],
) -> None:
    """Pairs dones that found no start in their own computation by the context that they share with one elsewhere."""
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
    for computation, instruction in reversed(lost):  # a done inside the loop comes before the one behind it
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
            first.setdefault(start, Done(instruction.name, computation.name, instruction.index))
    for done, key in list(dones.items()):  # pairs of one computation take part in a chain too
        dones[done] = starts.get(key, key)
