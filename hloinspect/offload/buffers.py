"""Which values are one and the same buffer in host memory: through tuples, loops, calls and in-place updates.

A round trip is a copy to the host and the copy that brings it back, and what links them is the buffer. Buffers are the
classes of a union-find over all leaves in host memory.
"""

from __future__ import annotations

from hloinspect.hlo.model import Computation, Instruction, Operand
from hloinspect.hlo.shape import Shape
from hloinspect.offload.program import Program

Path = tuple[int, ...]
Node = tuple[str, str, Path]

_SAME = frozenset({"bitcast", "opt-barrier", "optimization-barrier", "reshape"})


class HostBuffers:
    """The host buffers of a program. ``buffer`` names the class of a value; equal names mean one buffer."""

    def __init__(self, program: Program) -> None:
        self._module = program.module
        self._parent: dict[Node, Node] = {}
        for computation in program.computations():
            for index in computation.may_touch_host():
                self._visit(computation, computation.instruction(index))

    def buffer(self, computation: str, name: str, path: Path) -> Node:
        """The representative of the buffer that a leaf lies in."""
        return self._find((computation, name, path))

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

    def _host_leaves(self, shape: Shape) -> list[Path]:
        return [path for path, leaf in shape.leaves if leaf.on_host]

    def _link(self, computation: Computation, name: str, path: Path, operand: Operand, rest: Path) -> None:
        self._union((computation.name, name, path), self._operand(computation, operand, rest))

    @staticmethod
    def _operand(computation: Computation, operand: Operand, rest: Path) -> Node:
        return (computation.name, operand.name, operand.path + rest)

    def _visit(self, computation: Computation, instruction: Instruction) -> None:
        opcode, operands, name = instruction.opcode, instruction.operands, instruction.name
        leaves = self._host_leaves(instruction.shape)
        if not operands:
            return
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
        elif instruction.done_of:
            inside: Path = (0,) if instruction.done_of == "copy" else (1,)
            for path in leaves:
                self._link(computation, name, path, operands[0], inside + path)
        elif opcode == "copy-start":
            if (source := instruction.shape.at((1,))) is not None and source.on_host:
                self._link(computation, name, (1,), operands[0], ())
        else:
            self._in_place(computation, instruction)

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
            # a conditional's operand 0 chooses; branch n takes operand n + 1
            arguments = call.operands[position + 1 : position + 2] if branches else call.operands
            for number, operand in enumerate(arguments):
                shape = self._module.shape_of(computation, operand)
                for path in self._host_leaves(shape) if shape else ():
                    self._parameter(callee, number, path, self._operand(computation, operand, path))
            root = self._module.computations[callee].root
            for path in leaves:
                self._union((callee, root.name, path), (computation.name, call.name, path))

    def _parameter(self, callee: str, number: int, path: Path, node: Node) -> None:
        parameters = self._module.computations[callee].parameters
        if number < len(parameters):
            self._union((callee, parameters[number].name, path), node)

    def _in_place(self, computation: Computation, instruction: Instruction) -> None:
        """An operand and a result of one shape in host memory: an update in place (a dynamic-update-slice, or a
        fusion or an async start around one)."""
        prefix: Path = (1,) if instruction.is_generic_async_start else ()
        result = instruction.shape.at(prefix)
        if result is None or instruction.opcode == "copy":
            return
        for path in self._host_leaves(result):
            leaf = result.at(path)
            for operand in instruction.operands:
                shape = self._module.shape_of(computation, operand)
                if shape is not None and leaf is not None and shape.on_host and shape.dims == leaf.dims:
                    self._link(computation, instruction.name, prefix + path, operand, ())
                    break
