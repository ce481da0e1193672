"""Values and buffers: when each lives, which are one and the same, and which share memory."""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from dataclasses import dataclass

from hloinspect.hlo.model import Instruction
from hloinspect.hlo.shape import Shape
from hloinspect.memory.inplace import Path

ALIGNMENT = 256
"""Temporaries begin at multiples of this (xla/service/gpu, ``kXlaAllocatedBufferAlignBytes`` and the heap's own)."""


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a value is made: an instruction, the path into its result, and the array there."""

    instruction: Instruction
    path: Path
    shape: Shape


@dataclass(frozen=True, slots=True)
class Buffer:
    """Values in one piece of memory. ``spans`` are the times [first, last] at which it is needed, in order and apart.

    ``parameter`` is the entry's parameter that it is, or -1; ``is_result`` whether a result of the step lies in it.
    Buffers of one ``chain`` are written over each other, one after the other; -1 where there is none.
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
    """Values by number, each with the first and last time at which it is needed. Two union-finds: of values that are
    one, and of values that lie in one buffer."""

    def __init__(self) -> None:
        self.origins: list[Origin] = []
        self._starts = array("q")
        self._ends = array("q")
        self._same = array("q")
        self._shared = array("q")

    def __len__(self) -> int:
        return len(self.origins)

    def add(self, origin: Origin, start: int, end: int) -> int:
        """A new value."""
        number = len(self.origins)
        self.origins.append(origin)
        self._starts.append(start)
        self._ends.append(end)
        self._same.append(number)
        self._shared.append(number)
        return number

    def value(self, number: int) -> int:
        """The value that stands for all that are one with it."""
        return _find(self._same, number)

    def buffer(self, number: int) -> int:
        """The value that stands for all that lie in the buffer of a value."""
        return _find(self._shared, number)

    def start(self, number: int) -> int:
        """The first time at which a value is needed."""
        return self._starts[self.value(number)]

    def end(self, number: int) -> int:
        """The last time at which a value is needed."""
        return self._ends[self.value(number)]

    def touch(self, numbers: Iterable[int], time: int) -> None:
        """Values are needed at a time."""
        for number in numbers:
            value = self.value(number)
            if self._ends[value] < time:
                self._ends[value] = time

    def merge(self, number: int, into: int) -> None:
        """Two values are one: it lives from when either begins until both have ended."""
        one, other = self.value(number), self.value(into)
        if one != other:
            self._starts[other] = min(self._starts[other], self._starts[one])
            self._ends[other] = max(self._ends[other], self._ends[one])
            self._same[one] = other
            self.share(one, other)

    def share(self, number: int, other: int) -> None:
        """Two values lie in one buffer."""
        one, two = self.buffer(number), self.buffer(other)
        if one != two:
            self._shared[one] = two

    def groups(self, without: set[int]) -> dict[int, list[int]]:
        """The values of each buffer, those that are one named once; ``without`` are left out."""
        found: dict[int, list[int]] = {}
        for number, parent in enumerate(self._same):
            if number == parent and number not in without:
                found.setdefault(self.buffer(number), []).append(number)
        return found


def join_spans(spans: list[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    """Sorted spans, those that overlap or touch put together."""
    joined: list[tuple[int, int]] = []
    for first, last in spans:
        if joined and first <= joined[-1][1] + 1:
            joined[-1] = (joined[-1][0], max(joined[-1][1], last))
        else:
            joined.append((first, last))
    return tuple(joined)


@dataclass(frozen=True, slots=True)
class Chunk:
    """What lies at one place: a buffer, or several that are written over each other, the first of them for
    ``first_length`` instructions."""

    bytes: int
    spans: tuple[tuple[int, int], ...]
    first_length: int

    @property
    def whole_length(self) -> int:
        return self.spans[-1][1] - self.spans[0][0]
