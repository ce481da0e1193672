"""Changes of a pass in the instructions that concern the host, line by line."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from hloinspect.errors import HloParseError, InputError
from hloinspect.hlo.model import Computation, Instruction, Module, Operand
from hloinspect.hlo.shape import Shape
from hloinspect.hlo.text import parse_text
from hloinspect.hlo.text_computation import TextComputation
from hloinspect.passes.census import HOST_MARKS
from hloinspect.passes.dump import PassDump, PassText, matching, read_text
from hloinspect.passes.ledger import Ledger
from hloinspect.placements.marks import placement_of

_MARKS = ("annotate_device_placement", "MoveTo", "PinTo", "HostExecute", *HOST_MARKS)
_KEPT = ("custom_call_target", "kind", "calls", "to_apply", "body", "condition", "dynamic_slice_sizes")
_PLAIN = frozenset({"parameter", "tuple", "get-tuple-element", "while"})
_MANY = 6  # most operands or parts of a tuple that are written out
_STEM = re.compile(r"[\d.]*\Z|\.clone.*\Z")
_Like = tuple[str, str, str]  # first part of the name, opcode, shape
_USE = re.compile(r"%([^\s,()=#]+)")


@dataclass(frozen=True, slots=True)
class ChangedLine:
    """A line of a difference. ``sign`` is "-" (only before), "+" (only after) or " " (both)."""

    sign: Literal["-", "+", " "]
    """``-`` for a line of the text before, ``+`` for one of the text after, a space for one of both."""

    text: str
    """The instruction."""


@dataclass(frozen=True, slots=True)
class Part:
    """The difference in one computation."""

    computation: str
    """Name of the computation."""

    lines: tuple[ChangedLine, ...]
    """Its lines that differ, each with a line around it that does not."""


@dataclass(frozen=True, slots=True)
class TextDifference:
    """The changes between the texts ``before`` and ``after``, by computation. Renamed instructions count as equal.

    ``left_out`` counts changed lines that only pass values on: parameters, tuples and their parts, loops.
    """

    before: PassText
    after: PassText
    parts: tuple[Part, ...]
    left_out: int


def find_differences(ledger: Ledger, wanted: str, verbose: bool = False) -> tuple[TextDifference, ...]:
    """Return the differences that a pass made: one for each of its texts in which something that concerns the host
    changed.

    ``wanted`` is a pass, PIPELINE/PASS or a number. A text named by its number always has a difference. ``verbose``
    keeps metadata and writes long lists out. Raises InputError where no text is of that pass.
    """
    dump = ledger.dump
    places = [place for place in matching(dump.texts, wanted) if place > 0]
    if not places:
        raise InputError(f"{dump.directory}: no text of a pass {wanted!r}{_nearest(dump, wanted)}")
    changed = {change.place for change in ledger.changes}
    chosen = places if wanted.isdecimal() else [place for place in places if place in changed]
    return tuple(compare_texts(dump.texts[place - 1], dump.texts[place], verbose) for place in chosen)


def _nearest(dump: PassDump, wanted: str) -> str:
    names = sorted({text.name for text in dump.texts} - {"pipeline-start"})
    found = difflib.get_close_matches(wanted, names, n=1)
    return f": did you mean {found[0]}?" if found else ""


def compare_texts(before: PassText, after: PassText, verbose: bool = False) -> TextDifference:
    """Return the difference between two texts. Raises InputError where one is damaged."""
    old, new = _module(before), _module(after)
    try:
        parts, left_out = _parts(old, new, verbose)
    except HloParseError as error:
        raise InputError(f"{before.path} or {after.path.name}: {error}") from None
    return TextDifference(before, after, tuple(parts), left_out)


def _parts(old: Module, new: Module, verbose: bool) -> tuple[list[Part], int]:
    """Return the computations that differ, and the number of changed lines that are left out."""
    affected = _affected(old)
    for name, instructions in _affected(new).items():
        affected.setdefault(name, set()).update(instructions)
    parts: list[Part] = []
    left_out = 0
    for name in affected:
        sides = [module.computations.get(name) for module in (old, new)]
        left, right = (_lines(side, affected[name], verbose) if side else [] for side in sides)
        renamed = _renamed(*(_names(side) if side else [] for side in sides))
        lines = list(_changed(left, right, renamed))
        kept = [line for line, plain in lines if verbose or not plain]
        left_out += sum(line.sign != " " for line, _ in lines) - sum(line.sign != " " for line in kept)
        if any(line.sign != " " for line in kept):
            parts.append(Part(name, tuple(kept)))
    return parts, left_out


def _module(text: PassText) -> Module:
    try:
        return parse_text(read_text(text).decode("utf-8", "replace"))
    except HloParseError as error:
        raise InputError(f"{text.path}: {error}") from None


@dataclass(frozen=True, slots=True)
class _Written:
    """An instruction as it is shown. ``plain`` means that it only passes values on."""

    plain: bool
    text: str


def _affected(module: Module) -> dict[str, set[str]]:
    """Return the names of the instructions that concern the host, by computation."""
    found = {c.name: {c.instruction(index).name for index in _places(module, c)} for c in module.computations.values()}
    return {name: instructions for name, instructions in found.items() if instructions}


def _lines(computation: Computation, names: set[str], verbose: bool) -> list[_Written]:
    places = sorted(place for name in names if (place := computation.position(name)) is not None)
    return [_written(computation, place, verbose) for place in places]


def _names(computation: Computation) -> list[tuple[str, _Like]]:
    return [(instruction.name, _like(instruction)) for instruction in computation]


def _places(module: Module, computation: Computation) -> list[int]:
    """Return the places of instructions that touch host memory, are marked for the host or use the result of a
    placement."""
    marked = computation.may_touch_host()
    on_host = {i.name for i in map(computation.instruction, marked) if i.shape.host_bytes}
    reading = {index for index in computation.users_of(on_host) if _reads_host(module, computation, index)}
    mentioned = computation.mentioning(*_MARKS)
    placements = {i.name for i in map(computation.instruction, mentioned) if placement_of(i)}
    return sorted({*marked, *reading, *mentioned, *computation.users_of(placements)})


def _reads_host(module: Module, computation: Computation, index: int) -> bool:
    """Return whether an operand lies in host memory.

    An instruction that takes another part out of a tuple with host memory does not count.
    """
    instruction = computation.instruction(index)
    if instruction.opcode == "get-tuple-element":
        return instruction.shape.host_bytes > 0
    return any((shape := module.shape_of(computation, o)) and shape.host_bytes for o in instruction.operands)


def _like(instruction: Instruction) -> _Like:
    return _STEM.sub("", instruction.name), instruction.opcode, str(instruction.shape)


def _written(computation: Computation, index: int, verbose: bool) -> _Written:
    instruction = computation.instruction(index)
    plain = instruction.opcode in _PLAIN and not (computation.is_entry and instruction.opcode == "parameter")
    if verbose and isinstance(computation, TextComputation):
        return _Written(plain, computation.line(index).strip())
    text = f"%{instruction.name} = {_shape_text(instruction.shape)} {instruction.opcode}({_operands_text(instruction)})"
    return _Written(plain, text + "".join(f", {note}" for note in _attributes(instruction)))


def _shape_text(shape: Shape) -> str:
    if not shape.is_tuple:
        return f"{shape} S(5)" if shape.on_host else str(shape)
    if len(shape.leaves) <= _MANY:
        return f"({', '.join(_shape_text(part) for part in shape.elements)})"
    hosts = [f"{_path_text(path)} {leaf} S(5)" for path, leaf in shape.leaves if leaf.on_host]
    return f"(tuple of {len(shape.leaves)}{': ' if hosts else ''}{', '.join(hosts)})"


def _path_text(path: tuple[int, ...]) -> str:
    return "".join(f"#{index}" for index in path)


def _operands_text(instruction: Instruction) -> str:
    if instruction.opcode == "parameter":
        return str(instruction.parameter_number)
    shown = [f"%{_operand_text(operand)}" for operand in instruction.operands[:_MANY]]
    more = len(instruction.operands) - len(shown)
    return ", ".join(shown) + (f", ... {more} more" if more else "")


def _operand_text(operand: Operand) -> str:
    return operand.name + _path_text(operand.path)


def _attributes(instruction: Instruction) -> Iterator[str]:
    attributes = getattr(instruction, "attributes", {})
    if instruction.tuple_index >= 0:
        yield f"index={instruction.tuple_index}"
    for key in _KEPT:
        if key in attributes:
            yield f"{key}={attributes[key]}"
    for key, value in instruction.frontend_attributes.items():
        if key in ("_xla_buffer_placement", "_xla_compute_type"):
            yield f"{key}={value}"
    config = instruction.backend_config
    for key in ("dynamic_slice_config", "fusion_backend_config"):
        if config.get(key):
            yield f"{key}={json.dumps(config[key], separators=(',', ':'))}"


def _changed(old: list[_Written], new: list[_Written], renamed: dict[str, str]) -> Iterator[tuple[ChangedLine, bool]]:
    """Yield the lines of a computation that differ, with one equal line around each, and whether they are plain."""
    left = [line.text for line in old]
    right = [_USE.sub(lambda use: f"%{renamed.get(use.group(1), use.group(1))}", line.text) for line in new]
    matcher = difflib.SequenceMatcher(None, left, right, autojunk=False)
    for group in matcher.get_grouped_opcodes(1):
        for tag, start, end, begin, stop in group:
            if tag != "equal":
                yield from ((ChangedLine("-", line.text), line.plain) for line in old[start:end])
            yield from (
                (ChangedLine(" " if tag == "equal" else "+", line.text), line.plain) for line in new[begin:stop]
            )


def _renamed(old: list[tuple[str, _Like]], new: list[tuple[str, _Like]]) -> dict[str, str]:
    """Return the names that only one side has, each with the first one of the other side that it can be.

    Both have the same first part, opcode and shape.
    """
    here, there = {name for name, _ in new}, {name for name, _ in old}
    free: dict[_Like, list[str]] = {}
    for name, like in reversed(old):
        if name not in here:
            free.setdefault(like, []).append(name)
    return {name: free[like].pop() for name, like in new if name not in there and free.get(like)}
