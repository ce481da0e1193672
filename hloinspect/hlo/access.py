"""Bytes that an instruction reads and writes: only the slice of a slice, and only the update of an in-place update.

Both the bytes over the host link and the bytes through device memory are computed from it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hloinspect.hlo.model import Computation, Instruction, Module, Operand
from hloinspect.hlo.shape import Shape

Path = tuple[int, ...]

MAX_NESTING = 8
"""Levels of nested fusions that are read. A TPU's products have the slices of their operands one level down."""

_SLICES = frozenset({"dynamic-slice", "slice", "gather"})
_UPDATES = frozenset({"dynamic-update-slice", "scatter"})
_FREE_CALLS = frozenset({"AllocateBuffer", "ConcatBitcast", "Noop", "PrepareAsyncCallStart", "PrepareAsyncCallDone"})
_HANDS_THROUGH = frozenset({"tuple", "get-tuple-element", "bitcast", "reshape", "parameter"})
_FREE = frozenset(
    {
        "parameter", "constant", "tuple", "get-tuple-element", "bitcast", "after-all", "opt-barrier",
        "optimization-barrier", "partition-id", "replica-id", "add-dependency", "domain",
    }
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Access:
    """Bytes that an operand (``operand`` >= 0) or a leaf of the result (``operand`` = -1, ``path``) costs."""

    operand: int
    path: Path
    bytes: int
    memory_space: int


def is_free(instruction: Instruction) -> bool:
    """Return whether an instruction is bookkeeping only: no thunk runs for it."""
    return instruction.opcode in _FREE or (
        instruction.opcode == "custom-call" and instruction.custom_call_target in _FREE_CALLS
    )


def update_operand(instruction: Instruction) -> Operand | None:
    """Return the update of a dynamic-update-slice (operand 1) or scatter (its last operand)."""
    if instruction.opcode == "dynamic-update-slice" and len(instruction.operands) > 1:
        return instruction.operands[1]
    if instruction.opcode == "scatter" and len(instruction.operands) > 2:
        return instruction.operands[-1]
    return None


def accesses(module: Module, computation: Computation, instruction: Instruction) -> tuple[Access, ...]:
    """Return what an instruction reads and writes in memory. A fusion reads and writes what its body does."""
    shapes = [module.shape_of(computation, operand) for operand in instruction.operands]
    callee = _callee(module, instruction)
    if callee is None:
        return _own(module, computation, instruction, shapes)
    callee = module.alike(callee)
    keyed = (instruction.shape, *shapes)
    key = ("accesses", callee.name, *map(id, keyed))  # shapes are many, and hashing what is in them takes long
    found: tuple[object, tuple[Access, ...]] | None = module.memo.get(key)
    if found is None:
        # The shapes stay with what was found, so that no id of theirs is ever another shape's.
        found = module.memo[key] = keyed, _fused(module, callee, instruction.shape, shapes)
    return found[1]


def _own(
    module: Module, computation: Computation, instruction: Instruction, shapes: Sequence[Shape | None]
) -> tuple[Access, ...]:
    """Return the accesses of an instruction that is no fusion."""
    reads = (
        Access(number, path, _plain_read(instruction, number, leaf), leaf.memory_space)
        for number, shape in enumerate(shapes)
        if shape is not None
        for path, leaf in shape.leaves
    )
    writes = (
        Access(-1, path, _plain_write(module, computation, instruction, leaf), leaf.memory_space)
        for path, leaf in instruction.shape.leaves
    )
    return tuple(access for access in (*reads, *writes) if access.bytes)


def _fused(module: Module, body: Computation, result: Shape, shapes: Sequence[Shape | None]) -> tuple[Access, ...]:
    """Return the accesses of a fusion whose operands and result have these shapes."""
    if not _touches_parts(module, body) and body.root.opcode not in _HANDS_THROUGH:
        return _whole(shapes, result)
    reads = (
        Access(number, path, _fused_read(module, body, number, leaf), leaf.memory_space)
        for number, shape in enumerate(shapes)
        if shape is not None
        for path, leaf in shape.leaves
    )
    writes = (
        Access(-1, path, _fused_write(module, body, path, leaf), leaf.memory_space) for path, leaf in result.leaves
    )
    return tuple(access for access in (*reads, *writes) if access.bytes)


def _touches_parts(module: Module, body: Computation) -> bool:
    """Return whether the body of a fusion, or a fusion nested in it, has a slice, a gather or an update."""
    if body.touches_parts:
        return True
    key = ("touches parts", body.name)
    if key not in module.memo:
        nested = (_callee(module, body.instruction(index)) for index in body.ending_in("fusion"))
        module.memo[key] = any(each is not None and _touches_parts(module, each) for each in nested)
    found: bool = module.memo[key]
    return found


def _callee(module: Module, instruction: Instruction) -> Computation | None:
    """Return the body of a fusion, or None for any other instruction."""
    if instruction.opcode != "fusion":
        return None
    return module.computations.get(next(iter(instruction.called.get("calls", ())), ""))


def _whole(shapes: Sequence[Shape | None], result: Shape) -> tuple[Access, ...]:
    """Return the accesses of a fusion without slices or updates: all of its operands and of its result."""
    sides = [(number, shape) for number, shape in enumerate(shapes) if shape is not None]
    return tuple(
        Access(number, path, leaf.size_bytes, leaf.memory_space)
        for number, shape in (*sides, (-1, result))
        for path, leaf in shape.leaves
        if leaf.size_bytes
    )


def _size_of(module: Module, computation: Computation, operand: Operand | None) -> int | None:
    shape = module.shape_of(computation, operand) if operand else None
    return None if shape is None else shape.size_bytes


def _plain_read(instruction: Instruction, number: int, leaf: Shape) -> int:
    if instruction.opcode in _SLICES and number == 0:
        return min(leaf.size_bytes, instruction.shape.size_bytes)
    if instruction.opcode in _UPDATES and number == 0:
        return 0
    return leaf.size_bytes


def _plain_write(module: Module, computation: Computation, instruction: Instruction, leaf: Shape) -> int:
    if instruction.opcode in _UPDATES:
        size = _size_of(module, computation, update_operand(instruction))
        return leaf.size_bytes if size is None else size
    return leaf.size_bytes


def _fused_read(module: Module, body: Computation, number: int, leaf: Shape, depth: int = 0) -> int:
    """Return the bytes that a fusion reads of a parameter.

    These are all of its bytes, unless every use takes a slice of it or only updates it in place. In a fusion nested
    ``depth`` deep no use counts as an update in place.
    """
    if not _touches_parts(module, body):
        return leaf.size_bytes
    parameters = body.parameters
    if number >= len(parameters):
        return leaf.size_bytes
    users = body.users
    total = 0
    pending = [(parameters[number].name, False)]
    seen = {parameters[number].name}
    while pending:
        name, updated = pending.pop()
        for user, position in users.get(name, ()):
            if user.opcode in _SLICES and position == 0:
                total += user.shape.size_bytes
            elif updated and user.opcode == "tuple" and user.is_root:
                continue
            elif not updated and depth < MAX_NESTING and (nested := _callee(module, user)) is not None:
                total += _nested_read(module, nested, position, leaf, depth + 1)
            elif position == 0 and ((user.opcode in _UPDATES and not depth) or user.opcode in ("bitcast", "reshape")):
                after = updated or user.opcode in _UPDATES
                if user.is_root and not after:
                    return leaf.size_bytes
                if user.name not in seen and not user.is_root:  # an updated value that is not the result is read again
                    seen.add(user.name)
                    pending.append((user.name, after))
            else:
                return leaf.size_bytes
            if total >= leaf.size_bytes:
                return leaf.size_bytes
    return total


def _nested_read(module: Module, body: Computation, number: int, leaf: Shape, depth: int) -> int:
    key = ("nested read", body.name, number, leaf.size_bytes)
    if key not in module.memo:
        module.memo[key] = _fused_read(module, body, number, leaf, depth)
    size: int = module.memo[key]
    return size


def _fused_write(module: Module, body: Computation, path: Path, leaf: Shape) -> int:
    """Return the bytes that a fusion writes to a leaf of its result: only the update where its root updates a
    parameter."""
    instruction, rest = module.resolve(body, Operand(body.root.name))
    if instruction is not None and instruction.opcode == "tuple" and path and path[0] < len(instruction.operands):
        instruction, rest = _through_bitcasts(module, body, instruction.operands[path[0]])
    elif instruction is not None:
        instruction, rest = _through_bitcasts(module, body, Operand(instruction.name, rest))
    size = 0
    for _ in range(len(body)):  # bounded, since in a module written by hand a value may depend on itself
        if instruction is None or instruction.opcode not in _UPDATES or not instruction.operands or rest:
            break
        size += _size_of(module, body, update_operand(instruction)) or leaf.size_bytes
        instruction, rest = _through_bitcasts(module, body, instruction.operands[0])
    if instruction is not None and instruction.opcode == "parameter":
        return min(size, leaf.size_bytes)  # 0 bytes where it is only passed on
    return leaf.size_bytes


def _through_bitcasts(module: Module, body: Computation, operand: Operand) -> tuple[Instruction | None, Path]:
    instruction, path = module.resolve(body, operand)
    for _ in range(len(body)):
        if instruction is None or instruction.opcode not in ("bitcast", "reshape") or not instruction.operands:
            break
        instruction, path = module.resolve(body, instruction.operands[0])
    return instruction, path
