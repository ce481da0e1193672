"""Reader of the placements that a step requests, from its HLO before all passes (``*before_optimizations.txt`` of a
dump)."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Literal

from hloinspect.errors import HloParseError
from hloinspect.hlo.evaluate import trip_count
from hloinspect.hlo.model import Computation, Instruction, Module
from hloinspect.hlo.shape import Shape, parse_shape
from hloinspect.kinds import D2H
from hloinspect.offload.source import read_source
from hloinspect.placements import flow
from hloinspect.placements.flow import (
    EntryValue,
    Flow,
    Node,
    NodeKind,
    Place,
    Placements,
    ProgramTooLargeError,
    Put,
    Where,
)
from hloinspect.placements.marks import placement_of
from hloinspect.placements.stablehlo import is_sharding

MOST_INSTRUCTIONS = 2_000_000
"""Most instructions that are followed, since a computation is walked at each of its calls. The rest is left out."""

_MOST_DEPTH = 200
_PARTS = {"slice": 1, "dynamic-slice": 1, "dynamic-update-slice": 2}
_SAME = frozenset({"reshape", "bitcast", "copy"})
_BARRIERS = frozenset({"opt-barrier", "optimization-barrier"})
_LAYOUT = "entry_computation_layout"

Value = int | tuple["Value", ...]
Make = Callable[[int], int]


def placements_before_passes(module: Module) -> Placements:
    """Return the placements that the HLO of a step requests before XLA's passes. A module that is too large has a
    ``gap``.

    Raises HloParseError where the module is damaged.
    """
    try:
        return _Reader(module).placements()
    except ProgramTooLargeError:
        return Placements("hlo", (), (), gap="the step has more calls before its passes than are followed")


class _Reader:
    def __init__(self, module: Module) -> None:
        self._module = module
        self._graph = Flow()
        self._walked = 0

    def placements(self) -> Placements:
        entry = self._module.entry
        arguments, results = _layouts(self._module)
        names = {parameter.parameter_number: parameter.metadata.op_name for parameter in entry.parameters}
        entry_values = [
            *(_entry_value("argument", number, names.get(number, ""), leaf) for number, leaf in enumerate(arguments)),
            *(_entry_value("result", number, f"result[{number}]", leaf) for number, leaf in enumerate(results)),
        ]
        given: dict[int, Value] = {
            number: self._add(flow.ARGUMENT, [], number=number, on_host=leaf.on_host)
            for number, leaf in enumerate(arguments)
        }
        self._graph.results = _leaves(self._body(entry, given, Where()))
        return Placements(
            "hlo", self._graph.requests(), tuple(entry_value for entry_value in entry_values if entry_value is not None)
        )

    def _add(  # noqa: PLR0913  (the fields of a node, most of them left out by every caller)
        self,
        kind: NodeKind,
        inputs: list[int],
        shape: Shape | None = None,
        on_host: bool | None = None,
        place: Place | None = None,
        put: Put | None = None,
        barrier: bool = False,
        number: int = -1,
    ) -> int:
        dtype, dims = ("", ()) if shape is None or shape.is_tuple else (shape.dtype, shape.dims)
        node = Node(kind, inputs, dtype, dims, on_host, place, put=put, barrier=barrier, number=number)
        return self._graph.add(node)

    def _body(self, computation: Computation, given: Mapping[int, Value], where: Where) -> Value:
        """Walk a computation with the values of its parameters, and return the value of its root."""
        if where.depth > _MOST_DEPTH:
            raise ProgramTooLargeError
        values: dict[str, Value] = {}
        for instruction in computation:
            self._walked += 1
            if self._walked > MOST_INSTRUCTIONS:
                raise ProgramTooLargeError
            values[instruction.name] = self._value(computation, instruction, values, given, where)
        return values[computation.root.name]

    def _operands(self, instruction: Instruction, values: Mapping[str, Value]) -> list[Value]:
        found = []
        for operand in instruction.operands:
            value = values.get(operand.name)
            if value is None:  # the order of the module is damaged
                value = self._add(flow.CONSTANT, [], on_host=False)
            for index in operand.path:
                value = _part(value, index)
            found.append(value)
        return found

    def _value(
        self,
        computation: Computation,
        instruction: Instruction,
        values: Mapping[str, Value],
        given: Mapping[int, Value],
        where: Where,
    ) -> Value:
        opcode = instruction.opcode
        if opcode == "parameter":
            found = given.get(instruction.parameter_number)
            return self._add(flow.CONSTANT, [], on_host=False) if found is None else found
        operands = self._operands(instruction, values)
        if opcode == "tuple":
            return tuple(operands)
        if opcode == "get-tuple-element":
            return _part(operands[0], instruction.tuple_index)
        if opcode == "while":
            return self._loop(computation, instruction, operands[0], where)
        if opcode in ("call", "conditional"):
            return self._call(instruction, operands, where)
        if opcode in _BARRIERS:
            return self._each(operands[0], lambda leaf: self._add(flow.SAME, [leaf], barrier=True))
        return self._made(instruction, operands, where)

    def _made(self, instruction: Instruction, operands: list[Value], where: Where) -> Value:
        opcode = instruction.opcode
        inputs = [leaf for operand in operands for leaf in _leaves(operand)]
        if (placement := placement_of(instruction)) and inputs:
            put = Put(placement.endswith(D2H), flow.ANNOTATION, where.runs, where.conditional, where.counted)
            return self._add(flow.PUT, inputs[:1], instruction.shape, put.to_host, _place(instruction), put)
        if opcode == "constant":
            return self._add(flow.CONSTANT, [], on_host=False)
        if opcode in _SAME or opcode == "broadcast" or is_sharding(instruction.custom_call_target):
            return self._add(flow.SAME, inputs[:1])
        kind: NodeKind = flow.PART if opcode in _PARTS else flow.OPERATION
        node = self._add(kind, inputs[: _PARTS.get(opcode, len(inputs))], None, None, _place(instruction))
        return _shaped(instruction.shape, itertools.repeat(node))

    def _loop(self, computation: Computation, loop: Instruction, initial: Value, where: Where) -> Value:
        iterations = trip_count(self._module, computation, loop)
        inside = replace(
            where,
            runs=where.runs * (1 if iterations is None else iterations),
            counted=where.counted and iterations is not None,
            depth=where.depth + 1,
        )
        merges = self._each(initial, lambda leaf: self._add(flow.MERGE, [leaf]))
        decided: list[int] = []
        for role in ("condition", "body"):
            for name in loop.called.get(role, ()):
                made = self._body(self._module.computations[name], {0: merges}, inside)
                if role == "condition":
                    decided += _leaves(made)
                    continue
                for merge, left in zip(_leaves(merges), _leaves(made), strict=False):
                    self._graph.nodes[merge].inputs.append(left)
        if iterations is not None:
            return merges
        return self._each(merges, lambda leaf: self._add(flow.MERGE, [*decided, leaf]))

    def _call(self, call: Instruction, operands: list[Value], where: Where) -> Value:
        inside = replace(where, depth=where.depth + 1)
        if call.opcode == "call":
            callee = self._module.computations[call.called_names[0]]
            return self._body(callee, dict(enumerate(operands)), inside)
        inside = replace(inside, conditional=True)
        made = [
            _leaves(self._body(self._module.computations[name], {0: value}, inside))
            for name, value in zip(call.called_names, operands[1:], strict=False)
        ]
        chosen = _leaves(operands[0])
        merged = iter([self._add(flow.MERGE, [*chosen, *leaves]) for leaves in zip(*made, strict=False)])
        return _shaped(call.shape, merged) if made else self._add(flow.CONSTANT, [], on_host=False)

    def _each(self, value: Value, make: Make) -> Value:
        return make(value) if isinstance(value, int) else tuple(self._each(part, make) for part in value)


def _leaves(value: Value) -> list[int]:
    return [value] if isinstance(value, int) else [leaf for part in value for leaf in _leaves(part)]


def _part(value: Value, index: int) -> Value:
    if isinstance(value, int):
        return value
    if not 0 <= index < len(value):
        raise HloParseError(f"element {index} of a tuple of {len(value)}")
    return value[index]


def _shaped(shape: Shape, leaves: Iterator[int]) -> Value:
    """Return leaves, given in a row, in the structure of a shape."""
    return tuple(_shaped(element, leaves) for element in shape.elements) if shape.is_tuple else next(leaves)


def _place(instruction: Instruction) -> Place | None:
    source = read_source(instruction.metadata)
    return Place(source.file, source.line, source.column, source.function) if source else None


def _layouts(module: Module) -> tuple[Sequence[Shape], Sequence[Shape]]:
    """Return the layouts of the step's arguments and results, which show their memory."""
    text = module.attributes.get(_LAYOUT, "").strip()
    if text.startswith("{") and text.endswith("}"):
        text = text[1:-1]
    arguments, arrow, results = text.partition(")->")
    if not arrow:
        return [parameter.shape for parameter in module.entry.parameters], []
    returned = parse_shape(results.strip())
    return parse_shape(arguments + ")").elements, returned.elements if returned.is_tuple else (returned,)


def _entry_value(kind: Literal["argument", "result"], number: int, name: str, leaf: Shape) -> EntryValue | None:
    return EntryValue(kind, number, name, leaf.dtype, leaf.dims) if leaf.on_host else None
