"""What is live when: the buffers of a module over its flat schedule, as liveness.py finds them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from hloinspect.hlo.model import Instruction, Module, Operand
from hloinspect.hlo.shape import Shape
from hloinspect.memory.values import Buffer, ValueTable

Values = list[int]
"""The values of an instruction's leaves, by their numbers in the table."""


@dataclass(frozen=True, slots=True)
class LiveLeaf:
    """An array, the buffer in which it lies, and the first and last time at which this value of it is needed."""

    shape: Shape
    buffer: Buffer
    first: int
    last: int


@dataclass(frozen=True)
class Liveness:
    """The buffers of a module. ``order`` is the flat schedule, as (computation, place) by time."""

    module: Module
    buffers: tuple[Buffer, ...]
    order: tuple[tuple[str, int], ...]
    _values: dict[tuple[str, str], Values]
    _table: ValueTable
    _places: dict[int, int]

    def instruction_at(self, time: int) -> Instruction:
        """Return the instruction at a time."""
        computation, index = self.order[min(time, len(self.order) - 1)]
        return self.module.computations[computation].instruction(index)

    @cached_property
    def _times(self) -> dict[tuple[str, int], int]:
        return {place: time for time, place in enumerate(self.order)}

    def time_of(self, computation: str, index: int) -> int | None:
        """Return the time of an instruction by its place, or None where the device does not run it."""
        return self._times.get((computation, index))

    def values_of(self, computation: str, operand: Operand) -> tuple[LiveLeaf, ...]:
        """Return the leaves of an operand's value, without constants. It is empty where the value is unknown."""
        values = self._values.get((computation, operand.name), [])
        instruction = self.module.computations[computation].find(operand.name)
        if instruction is None or len(values) != len(instruction.shape.leaves):
            return ()
        depth = len(operand.path)
        return tuple(
            LiveLeaf(leaf, self.buffers[place], self._table.start(value), self._table.end(value))
            for (path, leaf), value in zip(instruction.shape.leaves, values, strict=True)
            if path[:depth] == operand.path and (place := self._places.get(self._table.buffer(value))) is not None
        )
