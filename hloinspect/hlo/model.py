"""One model of an HLO module, whatever it was read from.

Instructions stand in the order in which they are scheduled. Readers make subclasses of Instruction that parse an
attribute
when it is first asked for: a step of 126 unrolled layers has 55 MB of text, and an analysis looks at a tenth of it.
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
    """A use of a value: the instruction's name, and the path into its tuple where the text says ``%t#1#0``."""

    name: str
    path: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Frame:
    """One frame of the user's stack. ``function`` and ``column`` may be unknown ("" and 0)."""

    file: str
    line: int
    function: str = ""
    column: int = 0


@dataclass(frozen=True, slots=True)
class Metadata:
    """What JAX wrote down for an instruction: its op_name and its stack frames, the innermost first."""

    op_name: str = ""
    frames: tuple[Frame, ...] = ()


@dataclass(frozen=True, slots=True)
class DotDimensions:
    """Contracting and batch dimensions of a dot's two operands."""

    lhs_contracting: tuple[int, ...]
    rhs_contracting: tuple[int, ...]
    lhs_batch: tuple[int, ...] = ()
    rhs_batch: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class ReplicaGroups:
    """Who takes part in a collective: ``groups`` groups of ``size`` devices, ``first`` being the members of the first
    one.

    ``size`` is 0 where the text names no groups: all devices then form one.
    """

    groups: int
    size: int
    first: tuple[int, ...]


NO_METADATA = Metadata()
ASYNC_PAIRS = frozenset({"copy", "all-gather", "all-reduce", "collective-permute", "async", "send", "recv"})
"""Opcodes ``x-start`` of XLA's own; every other ``x-start`` in text is sugar for ``async-start`` around an ``x``
(hlo_instruction.cc, ``HloInstruction::PrintWithCanonicalNameMap``, syntax sugar of async ops)."""


class Instruction(ABC):
    """One instruction. ``index`` is its place in the computation's schedule."""

    name: str
    opcode: str
    index: int
    is_root: bool
    computation: str

    @property
    @abstractmethod
    def shape(self) -> Shape:
        """Shape of the result."""

    @property
    @abstractmethod
    def operands(self) -> tuple[Operand, ...]:
        """Operands in order; empty for constants, parameters and iotas."""

    @property
    @abstractmethod
    def called(self) -> Mapping[str, tuple[str, ...]]:
        """Names of the computations it calls, by role: calls, to_apply, body, condition, branches."""

    @property
    @abstractmethod
    def metadata(self) -> Metadata:
        """op_name and stack frames."""

    @property
    @abstractmethod
    def backend_config(self) -> Mapping[str, Any]:
        """The backend's configuration where it is a JSON object, else empty."""

    @property
    @abstractmethod
    def frontend_attributes(self) -> Mapping[str, str]:
        """Attributes that the frontend attached."""

    @property
    @abstractmethod
    def custom_call_target(self) -> str:
        """Target of a custom call, else ""."""

    @property
    @abstractmethod
    def tuple_index(self) -> int:
        """Index of a get-tuple-element, else -1."""

    @property
    @abstractmethod
    def parameter_number(self) -> int:
        """Number of a parameter, else -1."""

    @property
    @abstractmethod
    def constant_integer(self) -> int | None:
        """Value of a scalar integer or boolean constant, else None."""

    @property
    @abstractmethod
    def comparison_direction(self) -> str:
        """EQ, NE, LT, LE, GT or GE of a compare, else ""."""

    @property
    @abstractmethod
    def dot_dimensions(self) -> DotDimensions | None:
        """Dimension numbers of a dot, else None."""

    @property
    @abstractmethod
    def dim_labels(self) -> str:
        """Dimension labels of a convolution (``b01f_01io->b01f``), else ""."""

    @property
    @abstractmethod
    def feature_groups(self) -> int:
        """feature_group_count of a convolution; 1 by default."""

    @property
    @abstractmethod
    def replica_groups(self) -> ReplicaGroups:
        """Groups of a collective; size 0 where none are named."""

    @property
    @abstractmethod
    def window_text(self) -> str:
        """Window of a convolution in XLA's spelling (``size=3x3 pad=1_1x1_1``), else ""."""

    @property
    @abstractmethod
    def is_host_transfer(self) -> bool:
        """Whether a send or recv is one from or to the host."""

    @property
    @abstractmethod
    def source_target_pairs(self) -> tuple[tuple[int, int], ...]:
        """Who sends to whom in a collective-permute."""

    @cached_property
    def start_of(self) -> str:
        """The opcode that an async start wraps by its own spelling (``copy``, ``fusion``, ``async``), else ""."""
        return self.opcode[:-6] if self.opcode.endswith("-start") else ""

    @cached_property
    def done_of(self) -> str:
        """The same for an async done."""
        return self.opcode[:-5] if self.opcode.endswith("-done") else ""

    @cached_property
    def is_generic_async_start(self) -> bool:
        """``async-start`` or its sugar: its result is ((operands), result, context...)."""
        return self.start_of == "async" or bool(self.start_of and self.start_of not in ASYNC_PAIRS)

    @property
    def called_names(self) -> tuple[str, ...]:
        """All computations it calls, in the order in which they are printed."""
        return tuple(name for names in self.called.values() for name in names)

    def __repr__(self) -> str:
        return f"<{self.computation}/{self.name} = {self.opcode}>"


class Computation(ABC):
    """One computation: its instructions in schedule order."""

    name: str
    is_entry: bool
    execution_thread: str

    @abstractmethod
    def __len__(self) -> int:
        """Number of instructions."""

    @abstractmethod
    def instruction(self, index: int) -> Instruction:
        """The instruction at a place in the schedule."""

    @abstractmethod
    def position(self, name: str) -> int | None:
        """The place of an instruction by name, or None."""

    @abstractmethod
    def may_touch_host(self) -> Sequence[int]:
        """Places of the instructions whose text or shape has S(5) somewhere: a superset of those that touch host
        memory."""

    def ending_in(self, *suffixes: str) -> Sequence[int]:
        """Places of the instructions whose opcode ends in one of the suffixes, and perhaps a few others."""
        return [index for index in range(len(self)) if self.instruction(index).opcode.endswith(suffixes)]

    def outline(self) -> Iterator[tuple[str, int]]:
        """Opcode and number of result elements (0 for a tuple) of every instruction, in order."""
        return ((instruction.opcode, instruction.shape.element_count) for instruction in self)

    def async_ends(self) -> Iterator[tuple[str, int, str, str]]:
        """Opcode, place, name and first operand's name (else "") of every async start, update and done, in order."""
        for index in self.ending_in("-start", "-update", "-done"):
            instruction = self.instruction(index)
            operand = instruction.operands[0].name if instruction.operands else ""
            yield instruction.opcode, index, instruction.name, operand

    def mentioning(self, *words: str, among: Sequence[int] | None = None) -> Sequence[int]:
        """Of those places (by default all) the ones that have one of the words in their text, and perhaps others."""
        return range(len(self)) if among is None else among

    def users_of(self, names: Collection[str]) -> Sequence[int]:
        """Places of the instructions with one of the names among their operands, and perhaps a few others."""
        wanted = frozenset(names)
        return [i for i in range(len(self)) if any(operand.name in wanted for operand in self.instruction(i).operands)]

    def signature(self, module: Module) -> Hashable:
        """Equal for computations of a module that are the same but for names, metadata and where their slices begin;
        None where that is not looked into."""
        return None

    def __iter__(self) -> Iterator[Instruction]:
        return (self.instruction(index) for index in range(len(self)))

    def find(self, name: str) -> Instruction | None:
        """The instruction of that name, or None."""
        index = self.position(name)
        return None if index is None else self.instruction(index)

    @cached_property
    def root(self) -> Instruction:
        """The root; the last instruction where none is marked. Raises HloParseError in an empty computation."""
        for index in range(len(self) - 1, -1, -1):
            if (instruction := self.instruction(index)).is_root:
                return instruction
        if not len(self):
            raise HloParseError(f"computation {self.name} is empty")
        return self.instruction(len(self) - 1)

    @cached_property
    def touches_parts(self) -> bool:
        """Whether it has a slice, a gather or an update: only then is less than a whole operand or result touched."""
        return bool(self.ending_in("slice", "gather", "scatter"))

    @cached_property
    def users(self) -> Mapping[str, Sequence[tuple[Instruction, int]]]:
        """Who uses a value: for each instruction's name its users and the operand's number there."""
        users: dict[str, list[tuple[Instruction, int]]] = {}
        for instruction in self:
            for number, operand in enumerate(instruction.operands):
                users.setdefault(operand.name, []).append((instruction, number))
        return users

    @cached_property
    def parameters(self) -> tuple[Instruction, ...]:
        """Parameters by number."""
        found = [instruction for instruction in self if instruction.opcode == "parameter"]
        return tuple(sorted(found, key=lambda instruction: instruction.parameter_number))


@dataclass(frozen=True)
class Module:
    """A module: computations by name in the order of the file. ``size`` is the size of what was read, in bytes."""

    name: str
    computations: Mapping[str, Computation]
    entry_name: str
    is_scheduled: bool
    attributes: Mapping[str, str]
    platform: Literal["gpu", "tpu", "cpu", ""]  # "" where nothing tells
    size_bytes: int
    kind: Literal["text", "proto"]

    @property
    def entry(self) -> Computation:
        return self.computations[self.entry_name]

    @cached_property
    def instruction_count(self) -> int:
        return sum(len(computation) for computation in self.computations.values())

    @cached_property
    def memo(self) -> dict[Hashable, Any]:
        """What analyses have found out and may ask for again, by a key of theirs."""
        return {}

    def alike(self, computation: Computation) -> Computation:
        """A computation that is the same but for names, metadata and where its slices begin, and one for all that are.

        A step of 126 unrolled layers has 24,000 fused computations, of which a few hundred differ.
        """
        key = ("alike", computation.name)
        found: Computation | None = self.memo.get(key)
        if found is None:
            signature = computation.signature(self)
            found = computation if signature is None else self.memo.setdefault(("signature", signature), computation)
            self.memo[key] = found
        return found

    def shape_of(self, computation: Computation, operand: Operand) -> Shape | None:
        """Shape of an operand's value, or None where the operand is not defined."""
        instruction = computation.find(operand.name)
        return None if instruction is None else instruction.shape.at(operand.path)

    def resolve(self, computation: Computation, operand: Operand) -> tuple[Instruction | None, tuple[int, ...]]:
        """The instruction that makes an operand's value and the path into its result, through get-tuple-elements."""
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
