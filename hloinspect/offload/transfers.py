"""Finding every transfer between device and host memory in a scheduled module.

A transfer has host memory, ``S(5)``, on exactly one side. Memory spaces decide, never opcodes or names: a TPU prefetch
into VMEM and a device-to-device slice copy look similar and are no transfers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from hloinspect.hlo.access import accesses, is_free, update_operand
from hloinspect.hlo.model import Computation, Instruction, Module, Operand
from hloinspect.hlo.shape import HOST_MEMORY_SPACE, Shape
from hloinspect.kinds import D2H, H2D, Direction, Mechanism
from hloinspect.offload.buffers import HostBuffers, Node
from hloinspect.offload.events import host_event_kind, host_events
from hloinspect.offload.mechanism import slice_mechanism
from hloinspect.offload.pairs import AsyncPairs, async_pairs
from hloinspect.offload.program import CONTROL_FLOW, Program, build_program
from hloinspect.offload.records import HostCopy, HostEvent, HostValue
from hloinspect.offload.roundtrips import EntryBuffers, round_trips
from hloinspect.offload.source import producer, read_source
from hloinspect.offload.transfer import Tensor, Transfer

__all__ = ["HostCopy", "HostValue", "Offload", "Tensor", "Transfer", "find_offload", "wrapped_body"]


@dataclass(frozen=True, slots=True)
class Offload:
    """All that a module does with host memory.

    ``host_events`` communicate with the host without a transfer: computation there, callbacks, feeds, sends and
    receives.
    """

    program: Program
    transfers: tuple[Transfer, ...]
    host_copies: tuple[HostCopy, ...]
    host_values: tuple[HostValue, ...]
    pairs: AsyncPairs
    host_events: tuple[HostEvent, ...] = ()

    @property
    def unfollowed(self) -> tuple[str, ...]:
        """Return the names of the instructions of ``host_events``."""
        return tuple(event.instruction for event in self.host_events)

    def bytes_per_step(self, direction: Direction) -> int:
        """Return the bytes that all transfers of a direction move in a step."""
        return sum(t.bytes_per_step for t in self.transfers if t.direction == direction)


@dataclass(frozen=True, slots=True)
class _Found:
    """A transfer whose partner is not known yet. ``data`` is the operand whose value moves to the host."""

    direction: Direction
    mechanism: Mechanism
    asynchronous: bool
    bytes: int
    shape: Shape
    data: Operand | None
    host: tuple[Operand | None, tuple[int, ...]]  # operand and path, or (None, path in the result)


def find_offload(module: Module) -> Offload:
    """Return every transfer of a module in the order of its schedule.

    Each has its executions, mechanism, window, source and round trip. Raises HloParseError where the module cannot be
    followed.
    """
    program = build_program(module)
    buffers = HostBuffers(program)
    pairs = async_pairs(program)
    transfers: list[Transfer] = []
    copies: list[HostCopy] = []
    for computation in program.computations():
        candidates = _candidates(computation)
        if not candidates:
            continue
        for index in candidates:
            instruction = computation.instruction(index)
            executions = program.executions[computation.name]
            for found in _transfers_of(module, computation, instruction):
                if isinstance(found, HostCopy):
                    copies.append(replace(found, executions=executions))
                else:
                    transfers.append(_transfer(program, buffers, computation, instruction, found, pairs))
    ordered = [replace(transfer, id=number) for number, transfer in enumerate(transfers, 1)]
    entry_value = EntryBuffers(*_entry_buffers(module, buffers), _copied_buffers(program, buffers, copies))
    return Offload(
        program=program,
        transfers=tuple(round_trips(program, ordered, entry_value)),
        host_copies=tuple(copies),
        host_values=tuple(_host_values(module)),
        pairs=pairs,
        host_events=tuple(host_events(program)),
    )


def _candidates(computation: Computation) -> Sequence[int]:
    """Return the places of the instructions with host memory in their result or among their operands, and a few others.

    Text prints no shapes of operands. So a kernel or a plain copy that only reads host memory has no S(5) in its own
    line.
    """
    marked = computation.may_touch_host()
    on_host = {i.name for i in map(computation.instruction, marked) if i.shape.host_bytes}
    if not on_host:
        return marked
    return sorted({*marked, *computation.users_of(on_host)})


def _transfers_of(module: Module, computation: Computation, instruction: Instruction) -> Iterator[_Found | HostCopy]:
    opcode = instruction.opcode
    if opcode in CONTROL_FLOW or is_free(instruction) or instruction.done_of or opcode.endswith("-update"):
        return
    if host_event_kind(module, instruction):
        return
    if opcode == "copy-start":
        yield from _copy_start(computation, instruction)
    elif instruction.is_generic_async_start:
        yield from _async_start(module, computation, instruction)
    elif opcode == "copy":
        yield from _synchronous_copy(module, computation, instruction)
    else:
        yield from _kernel(module, computation, instruction)


def _copy_start(computation: Computation, start: Instruction) -> Iterator[_Found | HostCopy]:
    """Yield form F1: the result is (destination, source, context) (hlo_computation.cc, CreateAsyncInstructions)."""
    destination, source = start.shape.at((0,)), start.shape.at((1,))
    if destination is None or source is None or not start.operands:
        return
    if destination.on_host and source.on_host:
        yield HostCopy(start.name, computation.name, "dma", destination.size_bytes, 0)
    elif destination.on_host:
        yield _Found(D2H, "dma", True, destination.size_bytes, destination, start.operands[0], (None, (0,)))
    elif source.on_host:
        yield _Found(H2D, "dma", True, destination.size_bytes, destination, None, (start.operands[0], ()))


def _async_start(module: Module, computation: Computation, start: Instruction) -> Iterator[_Found | HostCopy]:
    """Yield forms F2 and F3, a slice into or out of a host buffer: the result is ((operands), result, context)."""
    result = start.shape.at((1,))
    shapes = [module.shape_of(computation, operand) for operand in start.operands]
    hosts = [number for number, shape in enumerate(shapes) if shape is not None and shape.on_host]
    if result is None or result.is_tuple or not (hosts or result.on_host):
        return
    mechanism = slice_mechanism(module, start)
    if result.on_host:
        update = _update_number(module, start, shapes, hosts)
        moved = shapes[update] if update is not None else None
        if update is None or moved is None:
            yield HostCopy(start.name, computation.name, mechanism, result.size_bytes, 0)
        elif moved.on_host:
            size = min(moved.size_bytes, result.size_bytes)  # of a slice the result, of an update the update
            yield HostCopy(start.name, computation.name, mechanism, size, 0)
        else:
            yield _Found(D2H, mechanism, True, moved.size_bytes, moved, start.operands[update], (None, (1,)))
    else:
        yield _Found(H2D, mechanism, True, result.size_bytes, result, None, (start.operands[hosts[0]], ()))


def _update_number(
    module: Module, start: Instruction, shapes: Sequence[Shape | None], hosts: Sequence[int]
) -> int | None:
    """Return which operand of a start goes into the host buffer: the update of a dynamic-update-slice, or the only
    array."""
    if start.start_of == "dynamic-update-slice":
        return 1 if len(shapes) > 1 else None
    number = _updating_parameter(module, wrapped_body(module, start))
    if number is not None and number < len(shapes):
        return number
    return _largest(shapes, hosts)


def _largest(shapes: Sequence[Shape | None], hosts: Sequence[int]) -> int | None:
    """Return the number of the largest array among operands, outside host memory if possible."""
    arrays = [i for i, shape in enumerate(shapes) if shape is not None and not shape.is_tuple and shape.dims]
    others = [i for i in arrays if i not in hosts]
    return max(others or arrays, key=lambda i: shapes[i].size_bytes, default=None)  # type: ignore[union-attr]


def _updating_parameter(module: Module, body: Computation | None) -> int | None:
    """Return the number of the parameter that is the update of a body's dynamic-update-slice or scatter, or None."""
    for instruction in body or ():
        update = update_operand(instruction)
        if body is None or update is None:
            continue
        made, _ = module.resolve(body, update)
        for _step in range(len(body)):
            if made is None or made.opcode == "parameter" or not made.operands:
                break
            made, _ = module.resolve(body, made.operands[0])
        if made is not None and made.parameter_number >= 0:
            return made.parameter_number
    return None


def _written_number(module: Module, computation: Computation, kernel: Instruction) -> int | None:
    """Return which operand of a kernel holds what it writes to host memory: an update, or the largest array."""
    shapes = [module.shape_of(computation, operand) for operand in kernel.operands]
    hosts = [number for number, shape in enumerate(shapes) if shape is not None and shape.on_host]
    if (update := update_operand(kernel)) is not None:
        return kernel.operands.index(update)
    body = (
        module.computations.get(next(iter(kernel.called.get("calls", ())), "")) if kernel.opcode == "fusion" else None
    )
    number = _updating_parameter(module, body)
    return number if number is not None and number < len(shapes) else _largest(shapes, hosts)


def wrapped_body(module: Module, start: Instruction) -> Computation | None:
    """Return the innermost computation in an async start: that of the fusion inside, or the async computation."""
    body = module.computations.get(next(iter(start.called.get("calls", ())), ""))
    if body is not None and start.start_of == "async" and body.root.opcode == "fusion":
        return module.computations.get(next(iter(body.root.called.get("calls", ())), ""), body)
    return body


def _synchronous_copy(module: Module, computation: Computation, copy: Instruction) -> Iterator[_Found | HostCopy]:
    """Yield forms F4 and F5: a copy without a pair blocks the main stream (thunk_emitter.cc, EmitCopy)."""
    source = module.shape_of(computation, copy.operands[0]) if copy.operands else None
    if source is None:
        return
    if source.on_host and copy.shape.on_host:
        yield HostCopy(copy.name, computation.name, "dma", copy.shape.size_bytes, 0)
    elif copy.shape.on_host:
        yield _Found(D2H, "dma", False, copy.shape.size_bytes, copy.shape, copy.operands[0], (None, ()))
    elif source.on_host:
        yield _Found(H2D, "dma", False, copy.shape.size_bytes, copy.shape, None, (copy.operands[0], ()))


def _kernel(module: Module, computation: Computation, instruction: Instruction) -> Iterator[_Found | HostCopy]:
    """Yield form F6: an ordinary instruction with host memory among its operands or results, a kernel over the link."""
    touched = [a for a in accesses(module, computation, instruction) if a.memory_space == HOST_MEMORY_SPACE]
    reads = sum(a.bytes for a in touched if a.operand >= 0)
    writes = sum(a.bytes for a in touched if a.operand < 0)
    if reads and writes:
        yield HostCopy(instruction.name, computation.name, "kernel", reads + writes, 0)
    elif reads:
        read = next(a for a in touched if a.operand >= 0)
        shape = _of_size(reads, instruction.shape, module.shape_of(computation, instruction.operands[read.operand]))
        yield _Found(H2D, "kernel", False, reads, shape, None, (instruction.operands[read.operand], read.path))
    elif writes:
        write = next(a for a in touched if a.operand < 0)
        number = _written_number(module, computation, instruction)
        data = instruction.operands[number] if number is not None else None
        moved = module.shape_of(computation, data) if data is not None else None
        shape = _of_size(writes, instruction.shape.at(write.path) or instruction.shape, moved)
        yield _Found(D2H, "kernel", False, writes, shape, data, (None, write.path))


def _of_size(size: int, shape: Shape, other: Shape | None) -> Shape:
    """Return the shape to show for a move of ``size`` bytes: the one of the two that has this size, or plain bytes."""
    for candidate in (shape, other):
        if candidate is not None and not candidate.is_tuple and candidate.size_bytes == size:
            return candidate
    return Shape("u8", (size,))


def _transfer(
    program: Program,
    buffers: HostBuffers,
    computation: Computation,
    instruction: Instruction,
    found: _Found,
    pairs: AsyncPairs,
) -> Transfer:
    key = (computation.name, instruction.name)
    done = pairs.dones.get(pairs.start_keys.get(key, key)) or pairs.dones.get(key) if found.asynchronous else None
    operand, path = found.host
    if operand is not None:
        buffer = buffers.value(computation.name, operand.name, operand.path + path)
    else:
        buffer = buffers.value(computation.name, instruction.name, path)
    made = None
    if found.data is not None:
        made = producer(program, computation, found.data)
    elif operand is not None:
        made = producer(program, computation, Operand(operand.name, operand.path + path))
    argument = made.argument if made else ""
    return Transfer(
        id=0,
        direction=found.direction,
        mechanism=found.mechanism if program.module.platform != "tpu" or not found.asynchronous else "dma",
        asynchronous=found.asynchronous,
        bytes=found.bytes,
        executions=program.executions[computation.name],
        tensor=Tensor(found.shape.dtype, found.shape.dims, argument),
        start=instruction.name,
        done=done.name if done else None,
        computation=computation.name,
        start_index=instruction.index,
        done_index=done.index if done else None,
        done_computation=done.computation if done else None,
        loop_depth=program.loop_depth[computation.name],
        conditional=computation.name in program.conditional,
        source=(made.source if made and found.data is not None else None) or read_source(instruction.metadata),
        round_trip=None,
        buffer=buffer,
    )


def _copied_buffers(program: Program, buffers: HostBuffers, copies: Sequence[HostCopy]) -> frozenset[Node]:
    """Return the host buffers that copies within host memory read or write."""
    found = set()
    for copy in copies:
        computation = program.module.computations[copy.computation]
        instruction = computation.find(copy.instruction)
        if instruction is None:
            continue
        for path, leaf in instruction.shape.leaves:
            if leaf.on_host:
                found.add(buffers.value(copy.computation, copy.instruction, path))
        for operand in instruction.operands:
            shape = program.module.shape_of(computation, operand)
            for path, leaf in shape.leaves if shape else ():
                if leaf.on_host:
                    found.add(buffers.value(copy.computation, operand.name, operand.path + path))
    return frozenset(found)


def _entry_buffers(module: Module, buffers: HostBuffers) -> tuple[frozenset[Node], frozenset[Node]]:
    """Return the host buffers that are arguments of the step, and those that are results."""
    entry = module.entry
    arguments = {
        buffers.value(entry.name, parameter.name, path)
        for parameter in entry.parameters
        for path, leaf in parameter.shape.leaves
        if leaf.on_host
    }
    if entry.root.index not in entry.may_touch_host():
        return frozenset(arguments), frozenset()
    results = {
        buffers.value(entry.name, entry.root.name, path) for path, leaf in entry.root.shape.leaves if leaf.on_host
    }
    return frozenset(arguments), frozenset(results)


def _host_values(module: Module) -> Iterator[HostValue]:
    """Yield form F12: arguments and results of the step in host memory."""
    for parameter in module.entry.parameters:
        if parameter.shape.host_bytes:
            name = parameter.metadata.op_name or parameter.name
            yield HostValue("parameter", name, parameter.shape.host_bytes)
    if module.entry.root.index not in module.entry.may_touch_host():
        return
    for path, leaf in module.entry.root.shape.leaves:
        if leaf.on_host:
            yield HostValue("result", f"result{list(path)}", leaf.size_bytes)
