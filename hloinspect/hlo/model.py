"""Model of an HLO module, the same for every source.

Instructions are in the order of their schedule. Readers make subclasses of Instruction that parse an attribute at its
first use: a step of 126 unrolled layers has 55 MB of text, and an analysis reads a tenth of it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

from hloinspect.errors import HloParseError
from hloinspect.hlo.shape import MAX_NESTING, Shape


@dataclass(frozen=True, slots=True)
class Operand:
    """A use of a value: the instruction's name, and the path into its tuple where the text has ``%t#1#0``."""

    name: str
    path: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Frame:
    """A frame of the user's stack. ``function`` and ``column`` may be unknown ("" and 0)."""

    file: str
    line: int
    function: str = ""
    column: int = 0


@dataclass(frozen=True, slots=True)
class Metadata:
    """Metadata of an instruction from JAX: its op_name and its stack frames, the innermost first."""

    op_name: str = ""
    frames: tuple[Frame, ...] = ()


@dataclass(frozen=True, slots=True)
class DotDimensions:
    """Contracting and batch dimensions of the two operands of a dot."""

    lhs_contracting: tuple[int, ...]
    rhs_contracting: tuple[int, ...]
    lhs_batch: tuple[int, ...] = ()
    rhs_batch: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class ReplicaGroups:
    """The participants of a collective: ``groups`` groups of ``size`` devices. ``first`` has the members of the first
    one.

    ``size`` is 0 where the text names no groups. All devices then form one.
    """

    groups: int
    size: int
    first: tuple[int, ...]


NO_METADATA = Metadata()
ASYNC_PAIRS = frozenset({"copy", "all-gather", "all-reduce", "collective-permute", "async", "send", "recv"})
"""Opcodes that have an ``x-start`` of their own in XLA. Any other ``x-start`` in text stands for ``async-start`` around
an ``x`` (hlo_instruction.cc, ``HloInstruction::PrintWithCanonicalNameMap``, syntax sugar of async ops)."""


class Instruction(ABC):
    """An instruction. ``index`` is its place in the computation's schedule."""

    name: str
    opcode: str
    index: int
    is_root: bool
    computation: str

    @property
    @abstractmethod
    def shape(self) -> Shape:
        """Return the shape of the result."""

    @property
    @abstractmethod
    def operands(self) -> tuple[Operand, ...]:
        """Return the operands in order. Constants, parameters and iotas have none."""

    @property
    @abstractmethod
    def called(self) -> Mapping[str, tuple[str, ...]]:
        """Return the names of the computations it calls, by role: calls, to_apply, body, condition, branches."""

    @property
    @abstractmethod
    def metadata(self) -> Metadata:
        """Return op_name and stack frames."""

    @property
    @abstractmethod
    def backend_config(self) -> Mapping[str, Any]:
        """Return the backend's configuration, or an empty one where it is not a JSON object."""

    @property
    @abstractmethod
    def frontend_attributes(self) -> Mapping[str, str]:
        """Return the attributes that the frontend attached."""

    @property
    @abstractmethod
    def custom_call_target(self) -> str:
        """Return the target of a custom call, or ""."""

    @property
    @abstractmethod
    def tuple_index(self) -> int:
        """Return the index of a get-tuple-element, or -1."""

    @property
    @abstractmethod
    def parameter_number(self) -> int:
        """Return the number of a parameter, or -1."""

    @property
    @abstractmethod
    def constant_integer(self) -> int | None:
        """Return the value of a scalar integer or boolean constant, or None."""

    @property
    @abstractmethod
    def comparison_direction(self) -> str:
        """Return EQ, NE, LT, LE, GT or GE of a compare, or ""."""

    @property
    @abstractmethod
    def dot_dimensions(self) -> DotDimensions | None:
        """Return the dimension numbers of a dot, or None."""

    @property
    @abstractmethod
    def dim_labels(self) -> str:
        """Return the dimension labels of a convolution (``b01f_01io->b01f``), or ""."""

    @property
    @abstractmethod
    def feature_groups(self) -> int:
        """Return feature_group_count of a convolution, which is 1 by default."""

    @property
    @abstractmethod
    def replica_groups(self) -> ReplicaGroups:
        """Return the groups of a collective, of size 0 where none are named."""

    @property
    @abstractmethod
    def window_text(self) -> str:
        """Return the window of a convolution in XLA's spelling (``size=3x3 pad=1_1x1_1``), or ""."""

    @property
    @abstractmethod
    def is_host_transfer(self) -> bool:
        """Return whether a send or recv transfers to or from the host."""

    @property
    @abstractmethod
    def source_target_pairs(self) -> tuple[tuple[int, int], ...]:
        """Return the pairs (source device, target device) of a collective-permute."""

    @cached_property
    def start_of(self) -> str:
        """Return the opcode that an async start contains in its spelling (``copy``, ``fusion``, ``async``), or ""."""
        return self.opcode[:-6] if self.opcode.endswith("-start") else ""

    @cached_property
    def done_of(self) -> str:
        """Return the opcode that an async done contains in its spelling, or ""."""
        return self.opcode[:-5] if self.opcode.endswith("-done") else ""

    @cached_property
    def is_generic_async_start(self) -> bool:
        """Return whether it is ``async-start`` or short for it. Its result is then ((operands), result, context...)."""
        return self.start_of == "async" or bool(self.start_of and self.start_of not in ASYNC_PAIRS)

    @property
    def called_names(self) -> tuple[str, ...]:
        """Return the names of all computations it calls, in the order in which they are printed."""
        return tuple(name for names in self.called.values() for name in names)

    def __repr__(self) -> str:
        return f"<{self.computation}/{self.name} = {self.opcode}>"


class Computation(ABC):
    """A computation: its instructions in the order of the schedule."""

    name: str
    is_entry: bool
    execution_thread: str

    @abstractmethod
    def __len__(self) -> int:
        """Return the number of instructions."""

    @abstractmethod
    def instruction(self, index: int) -> Instruction:
        """Return the instruction at a place in the schedule."""

    @abstractmethod
    def position(self, name: str) -> int | None:
        """Return the place of an instruction by name, or None."""

    @abstractmethod
    def may_touch_host(self) -> Sequence[int]:
        """Return the places of instructions whose text or shape contains S(5).

        All instructions that touch host memory are among them.
        """

    def ending_in(self, *suffixes: str) -> Sequence[int]:
        """Return the places of the instructions whose opcode ends in one of the suffixes, and perhaps a few others."""
        return [index for index in range(len(self)) if self.instruction(index).opcode.endswith(suffixes)]

    def outline(self) -> Iterator[tuple[str, int]]:
        """Yield opcode and number of result elements (0 for a tuple) of every instruction, in order."""
        return ((instruction.opcode, instruction.shape.element_count) for instruction in self)

    def async_ends(self) -> Iterator[tuple[str, int, str, str]]:
        """Yield opcode, place, name and first operand's name (or "") of every async start, update and done, in
        order."""
        for index in self.ending_in("-start", "-update", "-done"):
            instruction = self.instruction(index)
            operand = instruction.operands[0].name if instruction.operands else ""
            yield instruction.opcode, index, instruction.name, operand

    def mentioning(self, *words: str, among: Sequence[int] | None = None) -> Sequence[int]:
        """Return those of the places ``among`` (by default all) whose text contains one of the words, and perhaps
        others."""
        return range(len(self)) if among is None else among

    def users_of(self, names: Collection[str]) -> Sequence[int]:
        """Return the places of the instructions with one of the names among their operands, and perhaps a few
        others."""
        wanted = frozenset(names)
        return [i for i in range(len(self)) if any(operand.name in wanted for operand in self.instruction(i).operands)]

    def signature(self, module: Module) -> Hashable:
        """Return a key that is equal for computations that differ only in names, metadata and where their slices begin.

        Only computations of one module compare. The key is None where it is not computed.
        """
        return None

    def __iter__(self) -> Iterator[Instruction]:
        return (self.instruction(index) for index in range(len(self)))

    def find(self, name: str) -> Instruction | None:
        """Return the instruction of that name, or None."""
        index = self.position(name)
        return None if index is None else self.instruction(index)

    @cached_property
    def root(self) -> Instruction:
        """Return the root, or the last instruction where none is marked. Raises HloParseError in an empty
        computation."""
        for index in range(len(self) - 1, -1, -1):
            if (instruction := self.instruction(index)).is_root:
                return instruction
        if not len(self):
            raise HloParseError(f"computation {self.name} is empty")
        return self.instruction(len(self) - 1)

    @cached_property
    def touches_parts(self) -> bool:
        """Return whether it has a slice, a gather or an update.

        Without one, instructions read and write whole operands and results.
        """
        return bool(self.ending_in("slice", "gather", "scatter"))

    @cached_property
    def users(self) -> Mapping[str, Sequence[tuple[Instruction, int]]]:
        """Return the users of each value: by the name of its instruction, the users and the number of the operand
        there."""
        users: dict[str, list[tuple[Instruction, int]]] = {}
        for instruction in self:
            for number, operand in enumerate(instruction.operands):
                users.setdefault(operand.name, []).append((instruction, number))
        return users

    @cached_property
    def parameters(self) -> tuple[Instruction, ...]:
        """Return the parameters by number."""
        found = [instruction for instruction in self if instruction.opcode == "parameter"]
        return tuple(sorted(found, key=lambda instruction: instruction.parameter_number))


@dataclass(frozen=True)
class Module:
    """A module. ``computations`` are by name in the order of the file. ``size`` is that of the file's content, in
    bytes."""

    name: str
    computations: Mapping[str, Computation]
    entry_name: str
    is_scheduled: bool
    attributes: Mapping[str, str]
    platform: Literal["gpu", "tpu", "cpu", ""]  # "" where the module does not show it
    size_bytes: int
    kind: Literal["text", "proto"]

    @property
    def entry(self) -> Computation:
        """Return the entry computation."""
        return self.computations[self.entry_name]

    @cached_property
    def instruction_count(self) -> int:
        """Return the number of instructions in all computations."""
        return sum(len(computation) for computation in self.computations.values())

    @cached_property
    def memo(self) -> dict[Hashable, Any]:
        """Return the store of results that analyses compute once, by keys of their own."""
        return {}

    def alike(self, computation: Computation) -> Computation:
        """Return one computation for all that differ only in names, metadata and where their slices begin.

        A step of 126 unrolled layers has 24,000 fused computations, of which a few hundred are different.
        """
        key = ("alike", computation.name)
        found: Computation | None = self.memo.get(key)
        if found is None:
            signature = computation.signature(self)
            found = computation if signature is None else self.memo.setdefault(("signature", signature), computation)
            self.memo[key] = found
        return found

    def shape_of(self, computation: Computation, operand: Operand) -> Shape | None:
        """Return the shape of an operand's value, or None where the operand is not defined."""
        instruction = computation.find(operand.name)
        return None if instruction is None else instruction.shape.at(operand.path)

    def resolve(self, computation: Computation, operand: Operand) -> tuple[Instruction | None, tuple[int, ...]]:
        """Return the instruction that makes an operand's value, through get-tuple-elements, and the path into its
        result."""
        name, path = operand.name, operand.path
        for _ in range(len(computation) + 1):
            instruction = computation.find(name)
            if instruction is None or instruction.opcode != "get-tuple-element" or not instruction.operands:
                return instruction, path
            source = instruction.operands[0]
            name, path = source.name, (*source.path, instruction.tuple_index, *path)
            if len(path) > MAX_NESTING:  # no shape is that deep
                break
        return None, path
