"""Counts of what one text of a pass does with the host: placements, transfers, host buffers, host compute.

A fast search of the raw bytes shows whether anything can differ from the text before. Only then the text is read, by
the same readers that judge a finished module.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from hloinspect.errors import HloParseError
from hloinspect.hlo.model import Computation, Instruction, Module, Operand
from hloinspect.hlo.scan import closing
from hloinspect.hlo.shape import parse_shape
from hloinspect.hlo.text import TextComputation, callees_of, parse_text
from hloinspect.kinds import D2H, H2D, Direction, ItemKind, Mechanism
from hloinspect.offload.buffers import HostBuffers
from hloinspect.offload.events import HOST_COMPUTE
from hloinspect.offload.source import read_source
from hloinspect.offload.transfer import Transfer
from hloinspect.offload.transfers import Offload, find_offload, wrapped_body
from hloinspect.placements.marks import ANNOTATION, TARGETS, placement_of

KINDS: Mapping[ItemKind, str] = {
    "annotation_d2h": "annotations for the host",
    "annotation_h2d": "annotations for the device",
    "mark_d2h": "MoveToHost",
    "mark_h2d": "MoveToDevice",
    "host_buffer": "buffers in host memory",
    "copy_d2h": "synchronous copies d2h",
    "copy_h2d": "synchronous copies h2d",
    "slice_d2h": "synchronous slices d2h",
    "slice_h2d": "synchronous slices h2d",
    "kernel_d2h": "kernels that write host memory",
    "kernel_h2d": "kernels that read host memory",
    "async_d2h": "asynchronous starts d2h",
    "async_h2d": "asynchronous starts h2d",
    "async_kernel": "asynchronous without memcpy",
    "host_copy": "copies within host memory",
    "host_compute": "host compute",
    "host_mark": "marked for host compute",
}
"""Everything that is counted, in the order in which it is shown, with its description."""

MOVES: Mapping[Direction, tuple[ItemKind, ...]] = {
    D2H: ("copy_d2h", "slice_d2h", "kernel_d2h", "async_d2h"),
    H2D: ("copy_h2d", "slice_h2d", "kernel_h2d", "async_h2d"),
}
"""The kinds that move bytes over the link."""

PLACED: Mapping[Direction, tuple[ItemKind, ...]] = {
    D2H: ("annotation_d2h", "mark_d2h"),
    H2D: ("annotation_h2d", "mark_h2d"),
}
"""The kinds that wait for a pass that carries them out."""

HOST_MARKS = ('_xla_compute_type="host"', "DEVICE_TYPE_HOST")
"""Marks of work for the host: that of JAX, and that of the call in which XLA collects it."""

_SLICES = frozenset({"slice", "dynamic-slice", "dynamic-update-slice"})
_SAME_VALUE = frozenset(
    {"bitcast", "copy", "convert", "reshape", "transpose", "opt-barrier", "optimization-barrier", "custom-call"}
)
_MAX_STEPS_BACK = 24

_LOOK = (
    b"S(5)",
    b"annotate_device_placement",
    b'"MoveTo',
    b'"PinTo',
    b"HostExecute",
    *(mark.encode() for mark in HOST_MARKS),
)
_METADATA = re.compile(rb", metadata=\{[^}]*+\}")
_DEFINITION = re.compile(rb"\s+(?:ROOT )?%([^\s=]+) = ")
_NUMBERS = re.compile(rb"[\d.#]*+\Z")
_SPELLED = re.compile(rb"%[\w.\-#]*+")


@dataclass(frozen=True, slots=True)
class Item:
    """A placement or a move."""

    kind: ItemKind
    """What it is (``kinds``)."""

    name: str
    """Name of the instruction."""

    computation: str
    """Its computation."""

    bytes: int
    """Bytes of one execution."""

    tensor: str
    """Its array."""

    mechanism: Mechanism | Literal[""]
    """What moves the bytes; empty for what moves none."""

    op_name: str
    """JAX's name of the operation."""

    place: str
    """The user's line, as ``file:line``."""

    names: tuple[str, ...]
    """Its own name, its wait's and those of what it wraps."""

    values: tuple[str, ...]
    """The arrays that its data came from, the nearest first."""

    @property
    def direction(self) -> Direction | Literal[""]:
        """Return ``d2h``, ``h2d``, or "" for what stays within host memory."""
        if self.kind.endswith(D2H):
            return D2H
        return H2D if self.kind.endswith(H2D) else ""


@dataclass(frozen=True, slots=True)
class Count:
    """The number of items of a kind of ``KINDS``, and their bytes, each execution counted once."""

    kind: ItemKind
    count: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Census:
    """The counts of a text and its items.

    ``counts`` has the kinds that exist, in the order of ``KINDS``. ``items`` are those that can be followed.
    """

    counts: tuple[Count, ...] = ()
    items: tuple[Item, ...] = ()

    def of(self, kind: ItemKind) -> Count:
        """Return the count of one kind, with zeros where there is none."""
        return next((count for count in self.counts if count.kind == kind), Count(kind, 0, 0))

    def moves(self, direction: Direction) -> int:
        """Return the number of instructions that move bytes in a direction."""
        return sum(self.of(kind).count for kind in MOVES[direction])

    def placements(self, direction: Direction) -> int:
        """Return the number of instructions that request a move in a direction or make one."""
        return self.moves(direction) + self.waiting(direction)

    def waiting(self, direction: Direction) -> int:
        """Return the number of annotations and marks that no pass has carried out yet."""
        return sum(self.of(kind).count for kind in PLACED[direction])


# ---- the fast search


def signature(raw: bytes) -> bytes:
    """Return a hash of the lines of HLO text that concern the host, or b"" where there are none.

    These are the lines with host memory or a mark in them, and those that use an array in host memory. The hashes of
    two texts are equal where no such line differs.
    """
    lines: set[bytes] = set()
    for mark in _LOOK:
        lines.update(raw[start:end] for start, end in _lines_with(raw, mark, 0, len(raw)))
    for start, limit, names in _host_arrays(raw):
        lines.update(_uses(raw, names, start, limit))
    if not lines:
        return b""
    digest = hashlib.blake2b(digest_size=20)
    for line in sorted(_METADATA.sub(b"", line) for line in lines):
        digest.update(line + b"\n")
    return digest.digest()


def _lines_with(raw: bytes, word: bytes, position: int, limit: int) -> Iterator[tuple[int, int]]:
    while (position := raw.find(word, position, limit)) >= 0:
        start = raw.rfind(b"\n", 0, position) + 1
        end = raw.find(b"\n", position)
        position = end = len(raw) if end < 0 else end
        yield start, end


def _host_names(line: bytes, compact: bool) -> list[bytes]:
    """Return how arrays in host memory that a line defines are spelled where they are used."""
    found = _DEFINITION.match(line)
    if found is None:
        return []
    name = b"%" + found.group(1)
    if line[found.end() : found.end() + 1] != b"(":
        return [name] if b"S(5)" in line[found.end() :].partition(b" ")[0] else []
    if not compact:
        return []  # other lines then take parts out of a tuple, and contain S(5)
    text = line[found.end() :].decode("utf-8", "replace")
    try:
        shape = parse_shape(text[: closing(text, 0)])
    except HloParseError:
        return [name]
    return [name + b"".join(b"#%d" % index for index in path) for path, leaf in shape.leaves if leaf.on_host]


def _host_arrays(raw: bytes) -> Iterator[tuple[int, int, set[bytes]]]:
    """Yield, for each computation with arrays in host memory, where the first is defined, its end, and all their
    spellings.

    A spelling is that of a use.
    """
    compact = b"#" in raw
    begin, limit = 0, -1
    names: set[bytes] = set()
    for start, end in _lines_with(raw, b"S(5)", 0, len(raw)):
        if start > limit:
            if names:
                yield begin, limit, names
            close = raw.find(b"\n}", start)
            begin, limit, names = start, len(raw) if close < 0 else close, set()
        names.update(_host_names(raw[start:end], compact))
    if names:
        yield begin, limit, names


def _uses(raw: bytes, names: set[bytes], start: int, limit: int) -> Iterator[bytes]:
    """Yield the lines between ``start`` and ``limit`` that contain one of the names.

    The search is for the first part of names: a step has thousands of names, but few first parts.
    """
    for stem in {_NUMBERS.sub(b"", name) for name in names}:
        position = start
        while (position := raw.find(stem, position, limit)) >= 0:
            found = _SPELLED.match(raw, position)
            if found is None or found.group() not in names:
                position += len(stem)
                continue
            begin, end = next(_lines_with(raw, stem, position, limit))
            yield raw[begin:end]
            position = end


# ---- the exact reading


def census_of(raw: bytes) -> Census:
    """Return the census of HLO text, with or without a schedule. Raises HloParseError where it is damaged."""
    if not any(mark in raw for mark in _LOOK):
        return Census()
    module = parse_text(raw.decode("utf-8", "replace"))
    offload = find_offload(module)
    items = [*_placements(module), *_transfers(offload), *_others(offload)]
    totals: dict[ItemKind, tuple[int, int]] = {}
    for item in items:
        _add(totals, item.kind, item.bytes)
        if item.kind in ("async_d2h", "async_h2d") and item.mechanism == "kernel":
            _add(totals, "async_kernel", item.bytes)
    for size in _host_buffers(offload):
        _add(totals, "host_buffer", size)
    for size in _host_marks(module):
        _add(totals, "host_mark", size)
    return Census(tuple(Count(kind, *totals[kind]) for kind in KINDS if kind in totals), tuple(items))


def _add(totals: dict[ItemKind, tuple[int, int]], kind: ItemKind, size: int) -> None:
    count, total = totals.get(kind, (0, 0))
    totals[kind] = (count + 1, total + size)


def _placements(module: Module) -> Iterator[Item]:
    """Yield the placements in all computations that the entry calls. Inlining leaves copies that nothing calls."""
    for computation in _reachable(module):
        calls = computation.ending_in("custom-call")
        for index in computation.mentioning(ANNOTATION, *TARGETS, among=calls):
            instruction = computation.instruction(index)
            if (kind := placement_of(instruction)) and instruction.operands:
                yield _item(module, computation, instruction, kind, instruction.operands[0])


def _reachable(module: Module) -> list[Computation]:
    waiting, seen = [module.entry_name], {module.entry_name}
    while waiting:
        computation = module.computations[waiting.pop()]
        if isinstance(computation, TextComputation):
            callees = {name for name in callees_of(computation) if name in module.computations} - seen
            seen |= callees
            waiting += sorted(callees)
    return [computation for name, computation in module.computations.items() if name in seen]


def _transfers(offload: Offload) -> Iterator[Item]:
    module = offload.program.module
    for transfer in offload.transfers:
        computation = module.computations[transfer.computation]
        start = computation.instruction(transfer.start_index)
        names = [transfer.done] if transfer.done else []
        if start.is_generic_async_start and (body := wrapped_body(module, start)) is not None:
            names.append(body.root.name)
        data = _data_operand(module, computation, start, transfer)
        yield _item(module, computation, start, _kind(transfer, start), data, transfer, tuple(names))


def _kind(transfer: Transfer, start: Instruction) -> ItemKind:
    copied, sliced, by_kernel, asynchronous = MOVES[transfer.direction]
    if transfer.asynchronous:
        return asynchronous
    if start.opcode == "copy":
        return copied
    return sliced if start.opcode in _SLICES else by_kernel


def _data_operand(module: Module, computation: Computation, start: Instruction, transfer: Transfer) -> Operand | None:
    """Return the operand that is transferred: of a D2H the one of its size outside host memory, of an H2D the one
    inside."""
    for operand in start.operands:
        shape = module.shape_of(computation, operand)
        if shape is None or shape.is_tuple or shape.on_host != (transfer.direction == H2D):
            continue
        if transfer.direction == H2D or shape.size_bytes == transfer.bytes:
            return operand
    return None


def _others(offload: Offload) -> Iterator[Item]:
    module = offload.program.module
    for copy in offload.host_copies:
        instruction = module.computations[copy.computation].find(copy.instruction)
        if instruction is not None:
            yield Item(
                "host_copy", copy.instruction, copy.computation, copy.bytes, str(instruction.shape), copy.mechanism,
                instruction.metadata.op_name, _place(instruction), (copy.instruction,), (),
            )  # fmt: skip
    for event in offload.host_events:
        if event.kind == HOST_COMPUTE:
            size = event.to_host_bytes + event.from_host_bytes
            yield Item(
                "host_compute", event.instruction, event.computation, size, "", "", "", "", (event.instruction,), ()
            )


def _host_marks(module: Module) -> Iterator[int]:
    for computation in _reachable(module):
        for index in computation.mentioning(*HOST_MARKS):
            instruction = computation.instruction(index)
            if not instruction.opcode.endswith(("-start", "-done")):  # those are counted as host compute
                yield instruction.shape.size_bytes


def _host_buffers(offload: Offload) -> list[int]:
    """Return the sizes of the different buffers in host memory. In-place updates and what a loop carries are one
    buffer."""
    buffers = HostBuffers(offload.program)
    sizes: dict[object, int] = {}
    for computation in offload.program.computations():
        for index in computation.may_touch_host():
            instruction = computation.instruction(index)
            if instruction.opcode.endswith(("-start", "-update")):
                continue  # their results contain operands once more; the `done` has the buffer
            for path, leaf in instruction.shape.leaves:
                if leaf.on_host:
                    sizes[buffers.value(computation.name, instruction.name, path)] = leaf.size_bytes
    return list(sizes.values())


def _item(  # noqa: PLR0913  (where an instruction is, and what else an item may have)
    module: Module,
    computation: Computation,
    instruction: Instruction,
    kind: ItemKind,
    data: Operand | None,
    transfer: Transfer | None = None,
    names: tuple[str, ...] = (),
) -> Item:
    return Item(
        kind=kind,
        name=instruction.name,
        computation=computation.name,
        bytes=instruction.shape.size_bytes if transfer is None else transfer.bytes,
        tensor=str(instruction.shape if transfer is None else transfer.tensor),
        mechanism="" if transfer is None else transfer.mechanism,
        op_name=instruction.metadata.op_name,
        place=_place(instruction),
        names=(instruction.name, *names),
        values=_values(module, computation, data) if data is not None else (),
    )


def _place(instruction: Instruction) -> str:
    source = read_source(instruction.metadata)
    return f"{source.file}:{source.line}" if source else ""


def _values(module: Module, computation: Computation, operand: Operand) -> tuple[str, ...]:
    """Return the names of the arrays from which a value came unchanged, through barriers, tuples and changes of its
    form."""
    names: list[str] = []
    for _ in range(_MAX_STEPS_BACK):
        direct = computation.find(operand.name)
        if direct is not None and not direct.shape.is_tuple:
            names.append(direct.name)
        instruction, path = module.resolve(computation, operand)
        if instruction is None:
            break
        if not instruction.shape.is_tuple or path:
            names.append(instruction.name + "".join(f"#{index}" for index in path))
        if instruction.opcode == "tuple" and path and path[0] < len(instruction.operands):
            inner = instruction.operands[path[0]]
            operand = Operand(inner.name, inner.path + path[1:])
        elif instruction.opcode in _SAME_VALUE and len(instruction.operands) == 1:
            operand = Operand(instruction.operands[0].name, instruction.operands[0].path + path)
        else:
            break
    return tuple(dict.fromkeys(names))
