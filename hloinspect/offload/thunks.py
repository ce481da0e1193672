"""XLA:GPU's thunk sequence: what the runtime executes, and on which stream.

``--xla_dump_to`` leaves two files, and so does ``hloinspect compile``. ``thunk_sequence.txt`` has one line for each
thunk, and indents those inside others (xla/backends/gpu/runtime/sequential_thunk.cc, ToString)::

    048: kAsyncStart   [prev=046 (2)  | sink         ] stream=memcpy_d2h_stream, async_id=48
        050: kDynamicSliceFusion [source | sink] params=1, results=1
            049: kCopy [source | sink] kCopy

``thunk_metadata.txt`` has the HLO instruction of each thunk (``profile_annotation``). Streams are
``computation_stream[k]`` until jax 0.11 and ``memcpy_d2h_stream`` and ``memcpy_h2d_stream`` in 0.12. The module's text
names none. A thunk without a stream of its own runs on the main one.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Literal, TypeVar

from hloinspect.errors import HloParseError
from hloinspect.hlo.access import accesses
from hloinspect.hlo.model import Computation, Instruction, Module
from hloinspect.hlo.shape import HOST_MEMORY_SPACE
from hloinspect.kinds import D2H, H2D, Direction, Mechanism
from hloinspect.offload.mechanism import DMA, KERNEL, UNKNOWN
from hloinspect.offload.program import build_program
from hloinspect.offload.transfers import Offload

MAIN_STREAM = "main"

# Kinds of thunk (xla/backends/gpu/runtime/thunk_kind.proto) by what moves their bytes.
_COPY_KINDS = frozenset({"kCopy"})
_KERNEL_KINDS = frozenset({"kCustomKernel", "kKernel"})
_AROUND_WORK = frozenset({"kAsyncStart", "kDynamicSliceFusion", "kDynamicSlice", "kSequential"})
_CONTROL = frozenset({"kWhile", "kConditional", "kCommandBuffer", "kSequential"})
_TALKS_TO_HOST = ("kHostExecute", "kHostSend", "kHostRecv", "kInfeed", "kOutfeed")

_THUNK = re.compile(r"( *)(\d{1,18}): (k[A-Za-z0-9]{1,80})[ \t]*(?:\[[^\]]*\])?[ \t]*(.*)")
_HEADING = re.compile(r" *[a-z][a-z0-9_]*:")
_STREAM = re.compile(r"\bstream=([^,\s]+)")
_ASYNC_ID = re.compile(r"\basync_id=(\d{1,18})\b")
_FIELD = re.compile(r'([A-Za-z_][A-Za-z0-9_]*): (?:"((?:[^"\\]|\\.)*)"|(\S+))')
_Value = TypeVar("_Value", bound=str)
_NO_THUNKS = "No thunks."


@dataclass(frozen=True, slots=True)
class Thunk:
    """One step of the runtime.

    ``name`` is its HLO instruction, or "" where the metadata is missing. ``parent`` is the id of the thunk around it (a
    loop, a conditional, an asynchronous start). ``stream`` is "" where none is named. ``async_id`` joins a start and
    its `done`.
    """

    id: int
    kind: str
    name: str
    parent: int | None
    stream: str
    async_id: int | None


@dataclass(frozen=True, slots=True)
class ThunkSequence:
    """All thunks of a module in the order of the file: a thunk comes before those inside it."""

    thunks: tuple[Thunk, ...]

    def children(self) -> Mapping[int, tuple[Thunk, ...]]:
        """Return the thunks directly inside each thunk that has any, by its id."""
        found: dict[int, list[Thunk]] = {}
        for thunk in self.thunks:
            if thunk.parent is not None:
                found.setdefault(thunk.parent, []).append(thunk)
        return {parent: tuple(inside) for parent, inside in found.items()}


@dataclass(frozen=True, slots=True)
class TransferThunk:
    """A host transfer as the runtime executes it. ``mechanism`` is ``dma``, ``kernel`` or ``unknown``."""

    thunk: Thunk
    instruction: str
    computation: str
    direction: Direction
    mechanism: Mechanism
    stream: str
    asynchronous: bool


# --- reading ---------------------------------------------------------------------------------------------------------


def parse_thunks(sequence_text: str, metadata_text: str | None) -> ThunkSequence:
    """Return the thunks of a ``thunk_sequence.txt``, named by the ``thunk_metadata.txt`` beside it (None: no names).

    Unknown kinds, headings and descriptions are skipped. Raises HloParseError, with the line, for a text that is no
    thunk sequence, for metadata that cannot be read, and for two files that do not belong together.
    """
    thunks: list[Thunk] = []
    ids: set[int] = set()
    enclosing: list[tuple[int, int]] = []  # indentation and id of the thunks around this line
    for number, line in enumerate(sequence_text.splitlines(), 1):
        match = _THUNK.fullmatch(line)
        if match is None:
            _check_other_line(line, number, bool(thunks))
            continue
        indent, identifier, kind, rest = len(match[1]), int(match[2]), match[3], match[4]
        if identifier in ids:
            raise HloParseError(f"thunk {match[2]} is there twice", number, indent + 1)
        ids.add(identifier)
        while enclosing and enclosing[-1][0] >= indent:
            enclosing.pop()
        stream, async_id = _STREAM.search(rest), _ASYNC_ID.search(rest)
        thunks.append(
            Thunk(
                id=identifier,
                kind=kind,
                name="",
                parent=enclosing[-1][1] if enclosing else None,
                stream=stream[1] if stream else "",
                async_id=int(async_id[1]) if async_id else None,
            )
        )
        enclosing.append((indent, identifier))
    names = _names(metadata_text) if metadata_text is not None else {}
    return ThunkSequence(tuple(_named(thunk, names) for thunk in thunks))


def _check_other_line(line: str, number: int, begun: bool) -> None:
    """Refuse a line without a thunk unless it is blank, a heading (``body:``), or the indented rest of a
    description."""
    stripped = line.strip()
    if not stripped or stripped == _NO_THUNKS or (begun and (line[0] in " \t" or _HEADING.fullmatch(line.rstrip()))):
        return
    raise HloParseError("not a thunk sequence: expected a line as '001: kCopy [source | sink] ...'", number, 1)


def _named(thunk: Thunk, names: Mapping[int, tuple[str, str, int]]) -> Thunk:
    if thunk.id not in names:
        return thunk
    name, kind, line = names[thunk.id]
    if kind != thunk.kind:
        raise HloParseError(
            f"thunk {thunk.id} is a {kind} here and a {thunk.kind} in the thunk sequence: not of one module", line, 1
        )
    return replace(thunk, name=name)


def _names(text: str) -> dict[int, tuple[str, str, int]]:
    """Return name, kind and line by thunk id of a thunk_metadata.txt (text format of ThunkMetadataListProto).

    Command buffers made after the sequence was printed have no id, and are left out.
    """
    found: dict[int, tuple[str, str, int]] = {}
    fields: dict[str, str] = {}
    depth, began = 0, 0
    for number, raw in enumerate(text.splitlines(), 1):
        line = raw.strip()
        if line.endswith("{") and '"' not in line:
            if depth == 0:
                fields, began = {}, number
            depth += 1
        elif line == "}":
            depth -= 1
            if depth < 0:
                raise HloParseError("thunk metadata: a '}' too many", number, 1)
            identifier = fields.get("thunk_id", "")
            if depth == 0 and re.fullmatch(r"\d{1,18}", identifier):
                name = fields.get("profile_annotation", "")
                found.setdefault(int(identifier), (name, fields.get("thunk_kind", ""), began))
        elif match := _FIELD.fullmatch(line):
            fields[match[1]] = re.sub(r"\\(.)", r"\1", match[2]) if match[2] is not None else match[3]
        elif line and not line.startswith("#"):
            raise HloParseError("not thunk metadata: expected a line as 'thunk_id: 15'", number, 1)
    if depth:
        raise HloParseError("thunk metadata ends inside a record (a truncated file?)", began, 1)
    return found


# --- what thunks say of transfers
# ---------------------------------------------------------------------------------------


def transfer_thunks(module: Module, thunks: ThunkSequence) -> tuple[TransferThunk, ...]:
    """Return every thunk that moves bytes between device and host memory, in the sequence's order.

    A thunk's name leads to its instruction in ``module``, whose shapes give the direction. Kind and stream are those of
    the thunk. Without metadata there are none. Computation on the host, sends and receives are not counted, as in
    ``find_offload``. Raises HloParseError where the module cannot be followed.
    """
    children = thunks.children()
    launched = tuple(_launched(thunks))
    home = _instructions(module, {thunk.name for thunk in launched})
    found = []
    for thunk in launched:
        if thunk.name not in home or thunk.kind.startswith(_TALKS_TO_HOST):
            continue
        computation, instruction = home[thunk.name]
        direction = _direction(module, computation, instruction)
        if direction:
            found.append(
                TransferThunk(
                    thunk=thunk,
                    instruction=instruction.name,
                    computation=computation.name,
                    direction=direction,
                    mechanism=_mechanism(thunk, children),
                    stream=thunk.stream or MAIN_STREAM,
                    asynchronous=thunk.kind == "kAsyncStart",
                )
            )
    return tuple(found)


def streams_of(offload: Offload, thunks: ThunkSequence) -> Mapping[int, str]:
    """Return the stream of each transfer by transfer id, in XLA's name, or ``main`` for a synchronous one.

    A transfer is left out if no thunk has its name, or several thunks on different streams: its stream is unknown.
    """
    return _agreed(offload, {thunk: thunk.stream or MAIN_STREAM for thunk in _launched(thunks)})


def mechanisms_of(offload: Offload, thunks: ThunkSequence) -> Mapping[int, Mechanism]:
    """Return the mechanism of each transfer by transfer id: ``dma`` or ``kernel``, from the thunk that moves the bytes.

    It is right also where the text of the module has lost the marker. Transfers whose mechanism is unclear are left
    out.
    """
    children = thunks.children()
    agreed = _agreed(offload, {thunk: _mechanism(thunk, children) for thunk in _launched(thunks)})
    return {transfer: mechanism for transfer, mechanism in agreed.items() if mechanism != UNKNOWN}


def with_thunks(offload: Offload, thunks: ThunkSequence) -> Offload:
    """Return the offload with the streams of the runtime, and with its mechanism where the module does not show it."""
    streams, mechanisms = streams_of(offload, thunks), mechanisms_of(offload, thunks)
    transfers = tuple(
        replace(
            transfer,
            stream=streams.get(transfer.id),
            mechanism=mechanisms.get(transfer.id, UNKNOWN) if transfer.mechanism == UNKNOWN else transfer.mechanism,
        )
        for transfer in offload.transfers
    )
    return replace(offload, transfers=transfers)


def _agreed(offload: Offload, values: Mapping[Thunk, _Value]) -> dict[int, _Value]:
    """Return for each transfer the value that all thunks of its name have. A computation called twice has two of
    each."""
    by_name: dict[str, set[_Value]] = {}
    for thunk, value in values.items():
        if thunk.name:
            by_name.setdefault(thunk.name, set()).add(value)
    found = ((transfer.id, by_name.get(transfer.start, set())) for transfer in offload.transfers)
    return {number: next(iter(named)) for number, named in found if len(named) == 1}


def _launched(thunks: ThunkSequence) -> Iterator[Thunk]:
    """Yield what loops, conditionals and the entry run, without control flow, each `done`, and the work inside a
    start."""
    kind_of: dict[int, str] = {}
    for thunk in thunks.thunks:
        kind_of[thunk.id] = thunk.kind
        inside_work = thunk.parent is not None and kind_of[thunk.parent] not in _CONTROL
        if inside_work:
            kind_of[thunk.id] = "work"
        elif thunk.kind not in _CONTROL and not thunk.kind.endswith("Done"):
            yield thunk


def _mechanism(thunk: Thunk, children: Mapping[int, tuple[Thunk, ...]]) -> Mechanism:
    """Return what moves a thunk's bytes, if the copies and kernels inside it are all of one kind."""
    kinds: set[Mechanism] = set()
    waiting = [thunk]
    while waiting:
        one = waiting.pop()
        inside = children.get(one.id, ())
        if one.kind in _AROUND_WORK and inside:
            waiting.extend(inside)
        else:
            kinds.add(DMA if one.kind in _COPY_KINDS else KERNEL if one.kind in _KERNEL_KINDS else UNKNOWN)
    return next(iter(kinds)) if len(kinds) == 1 else UNKNOWN


def _instructions(module: Module, names: set[str]) -> dict[str, tuple[Computation, Instruction]]:
    """Return where the instructions of these names are, among the computations that the device runs."""
    found: dict[str, tuple[Computation, Instruction]] = {}
    for computation in build_program(module).computations():
        for instruction in computation:
            if instruction.name in names:
                found.setdefault(instruction.name, (computation, instruction))
    return found


def _direction(module: Module, computation: Computation, instruction: Instruction) -> Direction | Literal[""]:
    """Return ``d2h`` or ``h2d`` by the memory spaces of an instruction's operands and result, or "" for no transfer."""
    shapes = [shape for o in instruction.operands if (shape := module.shape_of(computation, o)) is not None]
    if instruction.opcode == "copy-start":  # the result is (destination, source, context)
        ends = [shape is not None and shape.on_host for shape in map(instruction.shape.at, ((0,), (1,)))]
        to_host, from_host = ends[0], ends[1]
    elif instruction.is_generic_async_start:  # the result is ((operands), result, context)
        result = instruction.shape.at((1,))
        to_host = result is not None and result.on_host
        # An update in place has the buffer as an operand too, so it writes from the device if any array there is on it.
        from_device = any(shape.dims and not shape.host_bytes for shape in shapes)
        from_host = any(shape.on_host for shape in shapes) and not (to_host and from_device)
    else:
        touched = [a for a in accesses(module, computation, instruction) if a.memory_space == HOST_MEMORY_SPACE]
        to_host = any(a.operand < 0 and a.bytes for a in touched)
        from_host = any(a.operand >= 0 and a.bytes for a in touched)
    if to_host == from_host:
        return ""
    return D2H if to_host else H2D
