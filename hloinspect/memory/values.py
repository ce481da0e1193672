"""Values and buffers: when each lives, which values are one, and which share memory."""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from dataclasses import dataclass

from hloinspect.hlo.model import Instruction
from hloinspect.hlo.shape import Shape
from hloinspect.memory.inplace import Path

ALIGNMENT = 256
"""Alignment of temporaries in bytes (xla/service/gpu, ``kXlaAllocatedBufferAlignBytes``, and that of the heap)."""


@dataclass(frozen=True, slots=True)
class Origin:
    """The definition of a value: an instruction, the path into its result, and the array there."""

    instruction: Instruction
    path: Path
    shape: Shape


@dataclass(frozen=True, slots=True)
class Buffer:
    """Values in one piece of memory. ``spans`` are the times [first, last] at which it is needed, in order and
    disjoint.

    ``parameter`` is the number of the entry parameter in it, or -1. ``is_result`` is whether a result of the step lies
    in it. Buffers of one ``chain`` are written over each other, one after the other. It is -1 where there is none.
    """

    origin: Origin
    bytes: int
    memory_space: int
    spans: tuple[tuple[int, int], ...]
    parameter: int
    is_donated: bool
    is_result: bool
    chain: int = -1


def _find(parents: array[int], number: int) -> int:
    while parents[number] != number:
        parents[number] = parents[parents[number]]
        number = parents[number]
    return number


class ValueTable:
    """Values by number, each with the first and last time at which it is needed.

    It has two union-finds: of values that are one, and of values that lie in one buffer.
    """

    def __init__(self) -> None:
        self.origins: list[Origin] = []
        self._starts = array("q")
        self._ends = array("q")
        self._same = array("q")
        self._shared = array("q")

    def __len__(self) -> int:
        return len(self.origins)

    def add(self, origin: Origin, start: int, end: int) -> int:
        """Add a new value and return its number."""
        number = len(self.origins)
        self.origins.append(origin)
        self._starts.append(start)
        self._ends.append(end)
        self._same.append(number)
        self._shared.append(number)
        return number

    def value(self, number: int) -> int:
        """Return the value that represents all values that are one with this one."""
        return _find(self._same, number)

    def buffer(self, number: int) -> int:
        """Return the value that represents all values in the buffer of this one."""
        return _find(self._shared, number)

    def start(self, number: int) -> int:
        """Return the first time at which a value is needed."""
        return self._starts[self.value(number)]

    def end(self, number: int) -> int:
        """Return the last time at which a value is needed."""
        return self._ends[self.value(number)]

    def touch(self, numbers: Iterable[int], time: int) -> None:
        """Record that values are needed at a time."""
        for number in numbers:
            value = self.value(number)
            if self._ends[value] < time:
                self._ends[value] = time

    def merge(self, number: int, into: int) -> None:
        """Make two values one, which lives from when either begins until both have ended."""
        one, other = self.value(number), self.value(into)
        if one != other:
            self._starts[other] = min(self._starts[other], self._starts[one])
            self._ends[other] = max(self._ends[other], self._ends[one])
            self._same[one] = other
            self.share(one, other)

    def share(self, number: int, other: int) -> None:
        """Put two values into one buffer."""
        one, two = self.buffer(number), self.buffer(other)
        if one != two:
            self._shared[one] = two

    def groups(self, without: set[int]) -> dict[int, list[int]]:
        """Return the values of each buffer except ``without``. Of values that are one only the representative is
        listed."""
        found: dict[int, list[int]] = {}
        for number, parent in enumerate(self._same):
            if number == parent and number not in without:
                found.setdefault(self.buffer(number), []).append(number)
        return found


def join_spans(spans: list[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    """Return sorted spans with those that overlap or touch joined."""
    joined: list[tuple[int, int]] = []
    for first, last in spans:
        if joined and first <= joined[-1][1] + 1:
            joined[-1] = (joined[-1][0], max(joined[-1][1], last))
        else:
            joined.append((first, last))
    return tuple(joined)


@dataclass(frozen=True, slots=True)
class Chunk:
    """The content of one place: a buffer, or several that are written over each other.

    The first of them lives for ``first_length`` instructions.
    """

    bytes: int
    spans: tuple[tuple[int, int], ...]
    first_length: int

    @property
    def whole_length(self) -> int:
        """Return the number of instructions from its first to its last use."""
        return self.spans[-1][1] - self.spans[0][0]
