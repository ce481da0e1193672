"""Reader of a dump's ``*-buffer-assignment.txt``: what XLA allocated, by colour, and which values lie where.

Spelling: openxla/xla, service/buffer_assignment.cc, ``BufferAllocation::ToString`` and ``HloValue::ToShortString``. A
colour is a memory space: 0 (not printed) is device memory, 5 pinned host memory.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final, Literal

from hloinspect.hlo.shape import HOST_MEMORY_SPACE

AllocationKind = Literal["parameter", "constant", "thread-local", "temporary", "result", "other"]

PARAMETER: Final = "parameter"
CONSTANT: Final = "constant"
THREAD_LOCAL: Final = "thread-local"
TEMPORARY: Final = "temporary"
RESULT: Final = "result"
OTHER: Final = "other"

_ALLOCATION = re.compile(r"allocation (\d{1,9}): size (\d{1,18})(.*)")
_VALUE = re.compile(
    r"\s+value: <\d{1,12} (\S+?)(?:\{([\d, ]*)\})?(?: \(phi\))? @\d{1,9}> "
    r"\(size=(\d{1,18}),offset=(\d{1,18})\): (.*)"
)
_COLOR = re.compile(r"\bcolor (\d{1,9})")
_PARAMETER = re.compile(r"\bparameter (\d{1,9})")


@dataclass(frozen=True, slots=True)
class AssignedValue:
    """A value in an allocation: instruction, path into its result, and bytes from the start of the allocation."""

    instruction: str
    path: tuple[int, ...]
    offset_bytes: int
    bytes: int
    shape: str


@dataclass(frozen=True, slots=True)
class Allocation:
    """An allocation of XLA.

    ``kind`` is parameter, constant, thread-local (inside kernels, without memory of its own), temporary, result or
    other. ``parameter`` is its number or -1. ``lives_out`` is whether a result may lie in it.
    """

    index: int
    bytes: int
    color: int
    kind: AllocationKind
    parameter: int
    lives_out: bool
    values: tuple[AssignedValue, ...]


@dataclass(frozen=True, slots=True)
class AssignedBytes:
    """Bytes of all allocations in device memory and in pinned host memory, and those of temporaries among them."""

    device_bytes: int
    host_bytes: int
    device_temp_bytes: int
    host_temp_bytes: int


def parse_assignment(text: str) -> tuple[Allocation, ...]:
    """Return the allocations that a buffer assignment lists, in its order. It is empty for text that lists none.

    Lines that are neither an allocation nor a value are skipped.
    """
    found: list[tuple[re.Match[str], list[AssignedValue]]] = []
    for line in text.splitlines():
        if match := _ALLOCATION.match(line):
            found.append((match, []))
        elif found and (value := _VALUE.match(line)):
            name, path, size, offset, shape = value.groups()
            places = tuple(int(part) for part in (path or "").split(",") if part.strip())
            found[-1][1].append(AssignedValue(name, places, int(offset), int(size), shape))
        elif found and not line.startswith(" "):
            break  # the table of uses follows
    return tuple(_allocation(match, tuple(values)) for match, values in found)


def _allocation(match: re.Match[str], values: tuple[AssignedValue, ...]) -> Allocation:
    words = match.group(3).partition("|")[0] + match.group(3).rpartition("|")[2]  # a shape stands between bars
    color, parameter = _COLOR.search(words), _PARAMETER.search(words)
    lives_out = "maybe-live-out" in words
    kind: AllocationKind = OTHER
    marks: tuple[tuple[str, AllocationKind], ...] = (
        ("parameter ", PARAMETER),
        ("thread-local", THREAD_LOCAL),
        ("constant", CONSTANT),
        ("preallocated-temp", TEMPORARY),
        ("maybe-live-out", RESULT),
        ("output shape", RESULT),
    )
    for mark, name in marks:
        if mark in words:
            kind = name
            break
    return Allocation(
        index=int(match.group(1)),
        bytes=int(match.group(2)),
        color=int(color.group(1)) if color else 0,
        kind=kind,
        parameter=int(parameter.group(1)) if parameter else -1,
        lives_out=lives_out,
        values=values,
    )


def sum_allocations(allocations: tuple[Allocation, ...]) -> AssignedBytes | None:
    """Return the sums of the allocations, or None if there are none. Memory local to kernels is not counted."""
    real = [allocation for allocation in allocations if allocation.kind != THREAD_LOCAL]
    if not real:
        return None

    def total(on_host: bool, kind: AllocationKind | Literal[""] = "") -> int:
        return sum(a.bytes for a in real if (a.color == HOST_MEMORY_SPACE) == on_host and kind in ("", a.kind))

    return AssignedBytes(total(False), total(True), total(False, TEMPORARY), total(True, TEMPORARY))
