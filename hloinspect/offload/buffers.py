"""Classes of equal values: values are followed through tuples, loops, calls and in-place updates.

A round trip is a copy to the host and the copy that brings the buffer back. The buffer links them. An async start and
its `done` are linked by the context in the start's result, which a loop may carry. Both links are classes of a
union-find over some of the leaves of a program's values.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from hloinspect.hlo.model import Computation, Instruction, Operand
from hloinspect.hlo.shape import Shape
from hloinspect.offload.program import Program

Path = tuple[int, ...]
Node = tuple[str, str, Path]

_SAME = frozenset({"bitcast", "opt-barrier", "optimization-barrier", "reshape", "async-update"})


class ValueClasses(ABC):
    """Classes of the leaves that ``_keeps`` selects. ``value`` names the class of a leaf. Leaves with equal names are
    one value."""

    def __init__(self, program: Program) -> None:
        self._module = program.module
        self._parent: dict[Node, Node] = {}
        for computation in program.computations():
            for index in self._places(computation):
                instruction = computation.instruction(index)
                if instruction.operands:
                    self._visit(computation, instruction, self._kept(instruction.shape))

    def value(self, computation: str, name: str, path: Path) -> Node:
        """Return the representative of the class of a leaf."""
        return self._find((computation, name, path))

    @abstractmethod
    def _places(self, computation: Computation) -> Sequence[int]:
        """Return the places of the instructions to read."""

    @abstractmethod
    def _keeps(self, leaf: Shape) -> bool:
        """Return whether leaves of this shape are followed."""

    def _find(self, node: Node) -> Node:
        root = node
        while (above := self._parent.get(root, root)) != root:
            root = above
        while (above := self._parent.get(node, node)) != root:
            self._parent[node] = root
            node = above
        return root

    def _union(self, one: Node, other: Node) -> None:
        first, second = self._find(one), self._find(other)
        if first != second:
            self._parent[first] = second

    def _kept(self, shape: Shape) -> list[Path]:
        return [path for path, leaf in shape.leaves if self._keeps(leaf)]

    def _link(self, computation: Computation, name: str, path: Path, operand: Operand, rest: Path) -> None:
        self._union((computation.name, name, path), self._operand(computation, operand, rest))

    @staticmethod
    def _operand(computation: Computation, operand: Operand, rest: Path) -> Node:
        return (computation.name, operand.name, operand.path + rest)

    def _visit(self, computation: Computation, instruction: Instruction, leaves: list[Path]) -> None:
        opcode, operands, name = instruction.opcode, instruction.operands, instruction.name
        if opcode == "get-tuple-element":
            for path in leaves:
                self._link(computation, name, path, operands[0], (instruction.tuple_index, *path))
        elif opcode == "tuple":
            for path in leaves:
                if path and path[0] < len(operands):
                    self._link(computation, name, path, operands[path[0]], path[1:])
        elif opcode in _SAME or opcode.endswith("-update"):
            for path in leaves:
                self._link(computation, name, path, operands[0], path)
        elif opcode == "while":
            self._loop(computation, instruction, leaves)
        elif opcode in ("call", "conditional"):
            self._call(computation, instruction, leaves)
        else:
            self._other(computation, instruction, leaves)

    @abstractmethod
    def _other(self, computation: Computation, instruction: Instruction, leaves: list[Path]) -> None:
        """Link the values of all other instructions."""

    def _loop(self, computation: Computation, loop: Instruction, leaves: list[Path]) -> None:
        for path in leaves:
            result = (computation.name, loop.name, path)
            self._union(result, self._operand(computation, loop.operands[0], path))
            for role in ("body", "condition"):
                for callee in loop.called.get(role, ()):
                    self._parameter(callee, 0, path, result)
                    if role == "body":
                        self._union((callee, self._module.computations[callee].root.name, path), result)

    def _call(self, computation: Computation, call: Instruction, leaves: list[Path]) -> None:
        branches = call.called.get("branches")
        for position, callee in enumerate(call.called_names):
            # operand 0 of a conditional is the choice; branch n takes operand n + 1
            arguments = call.operands[position + 1 : position + 2] if branches else call.operands
            for number, operand in enumerate(arguments):
                shape = self._module.shape_of(computation, operand)
                for path in self._kept(shape) if shape else ():
                    self._parameter(callee, number, path, self._operand(computation, operand, path))
            root = self._module.computations[callee].root
            for path in leaves:
                self._union((callee, root.name, path), (computation.name, call.name, path))

    def _parameter(self, callee: str, number: int, path: Path, node: Node) -> None:
        parameters = self._module.computations[callee].parameters
        if number < len(parameters):
            self._union((callee, parameters[number].name, path), node)


class HostBuffers(ValueClasses):
    """The buffers in host memory."""

    def _places(self, computation: Computation) -> Sequence[int]:
        return computation.may_touch_host()

    def _keeps(self, leaf: Shape) -> bool:
        return leaf.on_host

    def _other(self, computation: Computation, instruction: Instruction, leaves: list[Path]) -> None:
        operands, name = instruction.operands, instruction.name
        if instruction.done_of:
            inside: Path = (0,) if instruction.done_of == "copy" else (1,)
            for path in leaves:
                self._link(computation, name, path, operands[0], inside + path)
        elif instruction.opcode == "copy-start":
            if (source := instruction.shape.at((1,))) is not None and source.on_host:
                self._link(computation, name, (1,), operands[0], ())
        else:
            self._in_place(computation, instruction)

    def _in_place(self, computation: Computation, instruction: Instruction) -> None:
        """Link an operand and a result of one shape in host memory, which are an update in place.

        It is a dynamic-update-slice, or a fusion or an async start around one.
        """
        prefix: Path = (1,) if instruction.is_generic_async_start else ()
        result = instruction.shape.at(prefix)
        if result is None or instruction.opcode == "copy":
            return
        for path in self._kept(result):
            leaf = result.at(path)
            for operand in instruction.operands:
                shape = self._module.shape_of(computation, operand)
                if shape is not None and leaf is not None and shape.on_host and shape.dims == leaf.dims:
                    self._link(computation, instruction.name, prefix + path, operand, ())
                    break


class AsyncContexts(ValueClasses):
    """The contexts of async starts: scalar ``u32[]`` leaves, followed only through control flow."""

    def _places(self, computation: Computation) -> Sequence[int]:
        return computation.ending_in("tuple", "get-tuple-element", "while", "call", "conditional", "-update", "barrier")

    def _keeps(self, leaf: Shape) -> bool:
        return leaf.dtype == "u32" and not leaf.dims

    def _other(self, computation: Computation, instruction: Instruction, leaves: list[Path]) -> None:
        """Link nothing: no other instruction passes a context on."""
