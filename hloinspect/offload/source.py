"""The user's line of a transfer, which is the line of its producer.

The transfer's own frame is the ``lax.scan`` line (a slice into a stack) or missing (an unrolled copy). So the value is
followed back through bitcasts, tuples, fusion roots and loop carries to the instruction that computed it.
"""

from __future__ import annotations

from dataclasses import dataclass

from hloinspect.hlo.model import Computation, Frame, Instruction, Metadata, Module, Operand
from hloinspect.offload.program import Program
from hloinspect.offload.records import SourceInfo

Path = tuple[int, ...]

_TRANSPARENT = frozenset(
    {"bitcast", "copy", "convert", "transpose", "reshape", "opt-barrier", "optimization-barrier", "reduce-precision"}
)
_LIBRARY_MARKS = ("/site-packages/", "/dist-packages/", "<frozen", "/lib/python3")
_MAX_STEPS = 256


@dataclass(frozen=True, slots=True)
class Source:
    """A place in the user's program. ``op_name`` is JAX's name stack."""

    file: str
    line: int
    function: str
    column: int
    op_name: str

    @property
    def info(self) -> SourceInfo:
        """Return what a report says of the place."""
        return SourceInfo(self.file, self.line, self.function or None)


def is_library_frame(frame: Frame) -> bool:
    """Return whether a frame lies in an installed package or the standard library, and not in the user's own code."""
    return any(mark in frame.file for mark in _LIBRARY_MARKS)


def user_frame(frames: tuple[Frame, ...]) -> Frame | None:
    """Return the innermost frame of the user's own code, or the innermost of all where every frame is a library's."""
    own = [frame for frame in frames if frame.file and not is_library_frame(frame)]
    return own[0] if own else (frames[0] if frames else None)


def read_source(metadata: Metadata) -> Source | None:
    """Return the place that metadata names, or None where it has no frame."""
    frame = user_frame(metadata.frames)
    if frame is None or not frame.file:
        return None
    return Source(frame.file, frame.line, frame.function, frame.column, metadata.op_name)


@dataclass(frozen=True, slots=True)
class Producer:
    """The instruction that computed a value, and the entry parameter's name if it is an argument of the step."""

    source: Source | None
    op_name: str
    argument: str


def producer(program: Program, computation: Computation, operand: Operand) -> Producer:
    """Return what computed an operand's value.

    It is followed through loop carries, into the body first and then to the initial value.
    """
    search = _ProducerSearch(program)
    return search.climb(computation, operand)


def _nearest(passed: list[Instruction]) -> Producer:
    """Return the last of the passed instructions that has a frame, or the op_name of the last one.

    The search begins at the end, so the metadata of most instructions is not parsed.
    """
    for instruction in reversed(passed):
        if instruction.metadata.frames:
            return Producer(read_source(instruction.metadata), instruction.metadata.op_name, "")
    return Producer(None, passed[-1].metadata.op_name if passed else "", "")


class _ProducerSearch:
    def __init__(self, program: Program) -> None:
        self._module: Module = program.module
        self._entry = program.module.entry_name
        self._sites = {site.callee: site for site in program.call_sites}
        self._seen: set[tuple[str, str, Path]] = set()
        self._fusions: list[tuple[Computation, Instruction]] = []

    def climb(self, computation: Computation, operand: Operand) -> Producer:
        passed: list[Instruction] = []
        for _ in range(_MAX_STEPS):
            instruction, path = self._module.resolve(computation, operand)
            if instruction is None or (computation.name, instruction.name, path) in self._seen:
                break
            self._seen.add((computation.name, instruction.name, path))
            passed.append(instruction)
            step = self._step(computation, instruction, path)
            if step is None:
                if instruction.opcode == "parameter" and computation.name == self._entry:
                    metadata = instruction.metadata
                    return Producer(read_source(metadata), metadata.op_name, metadata.op_name or instruction.name)
                break
            computation, operand = step
        return _nearest(passed)

    def _step(
        self, computation: Computation, instruction: Instruction, path: Path
    ) -> tuple[Computation, Operand] | None:
        """Return where the value of an instruction comes from, or None if the instruction computes it."""
        opcode, operands = instruction.opcode, instruction.operands
        if opcode == "parameter":
            return self._argument(computation, instruction, path)
        if opcode in ("fusion", "call"):
            callee = self._module.computations.get(next(iter(instruction.called_names), ""))
            if callee is None or not len(callee):
                return None
            if opcode == "fusion":
                self._fusions.append((computation, instruction))
            return callee, Operand(callee.root.name, path)
        if not operands:
            return None
        if opcode == "tuple":
            part = operands[path[0]] if path and path[0] < len(operands) else None
            return (computation, Operand(part.name, part.path + path[1:])) if part else None
        if opcode in _TRANSPARENT or instruction.start_of == "copy":
            return computation, Operand(operands[0].name, operands[0].path + path)
        if instruction.done_of:
            return computation, Operand(operands[0].name, operands[0].path)
        if opcode == "while":
            body = self._module.computations.get(next(iter(instruction.called.get("body", ())), ""))
            if body is None or not len(body):
                return computation, Operand(operands[0].name, operands[0].path + path)
            return body, Operand(body.root.name, path)
        return None

    def _argument(
        self, computation: Computation, parameter: Instruction, path: Path
    ) -> tuple[Computation, Operand] | None:
        number = parameter.parameter_number
        if self._fusions:  # inside a fusion's body: continue at the fusion's operand
            entry_value, fusion = self._fusions.pop()
            if 0 <= number < len(fusion.operands):
                operand = fusion.operands[number]
                return entry_value, Operand(operand.name, operand.path + path)
            return None
        site = self._sites.get(computation.name)
        if site is None:
            return None
        caller = self._module.computations[site.caller]
        call = caller.instruction(site.index)
        if call.opcode == "while":
            root = computation.root
            carried, rest = self._module.resolve(computation, Operand(root.name, path))
            invariant = (
                carried is not None and carried.opcode == "tuple" and bool(rest) and rest[0] < len(carried.operands)
            )
            if invariant and carried is not None:
                part = carried.operands[rest[0]]
                made, made_path = self._module.resolve(computation, Operand(part.name, part.path + rest[1:]))
                if made is not None and not (made.opcode == "parameter" and made_path == path):
                    return computation, Operand(part.name, part.path + rest[1:])
            operand = call.operands[0]
            return caller, Operand(operand.name, operand.path + path)
        offset = 1 + call.called_names.index(computation.name) if call.opcode == "conditional" else number
        if 0 <= offset < len(call.operands):
            operand = call.operands[offset]
            return caller, Operand(operand.name, operand.path + path)
        return None
