"""Writing a module as HLO text: from the model of either reader, in one spelling, for ``parse_text``.

The text is read as a model that gives the same answers as the first one. It is meant for that and not for XLA's parser,
which needs more of most instructions (the dimensions of a transpose) than the model has. If an instruction was read
from text, its attributes that are not in the model are kept as they are. Everything else is lost:

* tiles and other extras of TPU layouts (``T(8,128)``); they identify the platform, so a comment names it instead; *
values of constants other than integer scalars, which are written as ``{...}``, as XLA abbreviates arrays; * ends of
source locations (written as their beginnings), and metadata other than op_name and frames; * members of a proto's
replica groups after the first group: the remaining devices are written instead.

The readers accept source lines and columns, device numbers and similar counts of up to nine digits. So does this.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from itertools import count, islice
from typing import TypeVar

from hloinspect.errors import HloParseError
from hloinspect.hlo.model import Computation, Frame, Instruction, Metadata, Module, Operand, ReplicaGroups
from hloinspect.hlo.shape import Shape

_Key = TypeVar("_Key")
_NAME = re.compile(r"[\w.\-]+")
_WORDS = re.compile(r'[^(){}\[\]",\n]*')
_PLAIN = re.compile(r"[ !#-\[\]-~]*")
_ESCAPES = {ord('"'): '\\"', ord("\\"): "\\\\", ord("\n"): "\\n", ord("\r"): "\\r", ord("\t"): "\\t"}
_MARKS = {"gpu": "operation_queue_id", "tpu": "T(8,128)", "cpu": "outer_dimension_partitions"}
"""Marks by which the text reader recognizes a platform. They are written for modules that would lose it."""

_REWRITTEN = frozenset(
    {
        "calls", "to_apply", "body", "condition", "called_computations", "branch_computations", "true_computation",
        "false_computation", "select", "scatter", "metadata", "backend_config", "frontend_attributes",
    }
)  # fmt: skip
"""Attributes of a text that are always written from the model."""


def print_module(module: Module) -> str:
    """Return the HLO text of a module in the order of its schedule, which ``parse_text`` reads as the same model.

    The module's docstring lists what is lost. Raises HloParseError for a name or value that text cannot contain. XLA
    makes no such names.
    """
    tables = _FrameTables()
    computations = [_computation(module, computation, tables) for computation in module.computations.values()]
    attributes = {"is_scheduled": "true"} if module.is_scheduled else {}
    attributes |= {key: value for key, value in module.attributes.items() if key != "is_scheduled"}
    header = ", ".join([f"HloModule {_name(module.name)}", *(f"{key}={value}" for key, value in attributes.items())])
    parts = [header]
    if module.platform in _MARKS:
        parts.append(f"// {module.platform}: {_MARKS[module.platform]}")
    return "\n\n".join([*parts, *tables.sections(), *computations]) + "\n"


def print_shape(shape: Shape) -> str:
    """Return a shape as XLA prints it, with layout and memory space: ``(bf16[8,4]{1,0:S(5)}, s32[])``."""
    if shape.is_tuple:
        return "(" + ", ".join(map(print_shape, shape.elements)) + ")"
    space = f":S({shape.memory_space})" if shape.memory_space else ""
    layout = ",".join(map(str, shape.minor_to_major)) + space
    return f"{shape}{{{layout}}}" if layout else str(shape)


def _name(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise HloParseError(f"{name[:60]!r} is no name that HLO text can spell")
    return name


def _words(text: str) -> str:
    """Return a value that stands without quotes, such as dimension labels. Raises HloParseError where that is
    impossible."""
    if not _WORDS.fullmatch(text):
        raise HloParseError(f"{text[:60]!r} is no value that HLO text can spell")
    return text


def _quoted(text: str) -> str:
    """Return a string in quotes, escaped as by absl::CEscape: bytes beyond ASCII are octal."""
    if _PLAIN.fullmatch(text):
        return f'"{text}"'
    escaped = (
        _ESCAPES.get(byte) or (chr(byte) if 32 <= byte < 127 else f"\\{byte:03o}")
        for byte in text.encode("utf-8", "replace")
    )
    return f'"{"".join(escaped)}"'


# ---- computations and instructions


def _computation(module: Module, computation: Computation, tables: _FrameTables) -> str:
    parameters = ", ".join(f"{_name(p.name)}: {p.shape}" for p in computation.parameters)
    result = str(computation.root.shape) if len(computation) else "()"
    head = f"{'ENTRY ' if computation.is_entry else ''}%{_name(computation.name)} ({parameters}) -> {result} {{"
    thread = f", execution_thread={_quoted(computation.execution_thread)}" if computation.execution_thread else ""
    lines = [_instruction(module, computation, instruction, tables) for instruction in computation]
    return "\n".join([head, *lines, f"}}{thread}"])


def _instruction(module: Module, computation: Computation, instruction: Instruction, tables: _FrameTables) -> str:
    raw: Mapping[str, str] = getattr(instruction, "attributes", {})
    attributes = dict(_attributes(instruction, raw)) | dict(_called(module, computation, instruction))
    attributes |= {key: text for key, text in raw.items() if key not in attributes and key not in _REWRITTEN}
    if pairs := instruction.frontend_attributes:
        spelt = ",".join(f"{_name(key)}={_quoted(value)}" for key, value in pairs.items())
        attributes["frontend_attributes"] = f"{{{spelt}}}"
    if metadata := _metadata(instruction.metadata, tables):
        attributes["metadata"] = metadata
    if config := _backend_config(instruction):
        attributes["backend_config"] = config  # the last one, as in XLA's text, where the reader expects it
    root = "ROOT " if instruction.is_root else ""
    tail = "".join(f", {key}={text}" for key, text in attributes.items())
    shape, opcode = print_shape(instruction.shape), _name(instruction.opcode)
    return f"  {root}%{_name(instruction.name)} = {shape} {opcode}({_arguments(instruction)}){tail}"


def _arguments(instruction: Instruction) -> str:
    if instruction.opcode == "parameter":
        return str(instruction.parameter_number) if instruction.parameter_number >= 0 else ""
    if instruction.opcode == "constant":
        value = instruction.constant_integer
        if value in (0, 1) and instruction.shape.dtype == "pred":
            return "true" if value else "false"
        return "{...}" if value is None else str(value)
    return ", ".join(map(_operand, instruction.operands))


def _operand(operand: Operand) -> str:
    return "".join([f"%{_name(operand.name)}", *(f"#{index}" for index in operand.path)])


def _attributes(instruction: Instruction, raw: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yield the attributes in the model besides names, strings and calls. ``raw`` are the attributes of a text."""
    if instruction.tuple_index >= 0:
        yield "index", str(instruction.tuple_index)
    if instruction.window_text:
        yield "window", f"{{{_words(instruction.window_text)}}}"
    if instruction.dim_labels:
        yield "dim_labels", _words(instruction.dim_labels)
    if instruction.feature_groups != 1:
        yield "feature_group_count", str(instruction.feature_groups)
    if (dims := instruction.dot_dimensions) is not None:
        yield "lhs_batch_dims", _braced(dims.lhs_batch)
        yield "lhs_contracting_dims", _braced(dims.lhs_contracting)
        yield "rhs_batch_dims", _braced(dims.rhs_batch)
        yield "rhs_contracting_dims", _braced(dims.rhs_contracting)
    if instruction.comparison_direction:
        yield "direction", _words(instruction.comparison_direction)
    if "replica_groups" in raw:  # all groups, where the model has the first
        yield from ((key, raw[key]) for key in ("replica_groups", "device_ids") if key in raw)
    elif instruction.replica_groups.size:
        yield "replica_groups", _replica_groups(instruction.replica_groups)
    if pairs := instruction.source_target_pairs:
        yield "source_target_pairs", "{" + ",".join(map(_braced, pairs)) + "}"
    if instruction.is_host_transfer:
        yield "is_host_transfer", "true"
    if instruction.custom_call_target:
        yield "custom_call_target", _quoted(instruction.custom_call_target)


def _braced(numbers: tuple[int, ...]) -> str:
    return "{" + ",".join(map(str, numbers)) + "}"


def _replica_groups(found: ReplicaGroups) -> str:
    """Return all groups: the first as it is, the others from the remaining devices in order."""
    if found.first == tuple(range(found.size)):
        return f"[{found.groups},{found.size}]<=[{found.groups * found.size}]"
    taken = set(found.first)
    rest = (device for device in count() if device not in taken)
    others = (tuple(islice(rest, found.size)) for _ in range(found.groups - 1))
    return "{" + ",".join(map(_braced, (found.first, *others))) + "}"


def _called(module: Module, computation: Computation, instruction: Instruction) -> Iterator[tuple[str, str]]:
    """Yield the attributes that name computations, by role and in the model's order."""
    alone = len(instruction.called) == 1
    for role, names in instruction.called.items():
        spelt = [f"%{_name(name)}" for name in names]
        together = "{" + ", ".join(spelt) + "}"
        if role in ("condition", "body") and len(spelt) == 1:
            yield role, spelt[0]
        elif role == "to_apply" and instruction.opcode == "select-and-scatter" and len(spelt) == 2:
            yield "select", spelt[0]
            yield "scatter", spelt[1]
        elif role == "branches":
            chosen_by = module.shape_of(computation, instruction.operands[0]) if instruction.operands else None
            if len(spelt) == 2 and chosen_by is not None and chosen_by.dtype == "pred":
                yield "true_computation", spelt[0]
                yield "false_computation", spelt[1]
            else:
                yield "branch_computations", together
        elif role == "calls" and (instruction.custom_call_target or len(spelt) > 1):
            yield "called_computations", together
        else:
            yield role, spelt[0] if alone and len(spelt) == 1 else together


def _backend_config(instruction: Instruction) -> str:
    if config := instruction.backend_config:
        return json.dumps(config, separators=(",", ":"))
    text: str = getattr(instruction, "backend_config_text", "")
    return text if text[:1] == '"' == text[-1:] or not text else _quoted(text)  # no JSON, or an empty object


def _metadata(metadata: Metadata, tables: _FrameTables) -> str:
    parts = [f"op_name={_quoted(metadata.op_name)}"] if metadata.op_name else []
    frames = metadata.frames
    if len(frames) == 1 and not frames[0].function:  # as text had it before tables existed
        place = f"source_line={frames[0].line} source_column={frames[0].column}"
        parts.append(f"source_file={_quoted(frames[0].file)} {place}")
    elif frames:
        parts.append(f"stack_frame_id={tables.id_of(frames)}")
    return "{" + " ".join(parts) + "}" if parts else ""


class _FrameTables:
    """The tables of files, functions, locations and frames, filled while instructions are printed. Ids count from 1."""

    def __init__(self) -> None:
        self._files: dict[str, int] = {}
        self._functions: dict[str, int] = {}
        self._locations: dict[tuple[int, int, int, int], int] = {}
        self._frames: dict[tuple[int, int], int] = {}
        self._stacks: dict[tuple[Frame, ...], int] = {}

    def id_of(self, frames: tuple[Frame, ...]) -> int:
        """Return the id of the innermost frame of a stack."""
        if (known := self._stacks.get(frames)) is None:
            known = 0
            for frame in reversed(frames):
                known = _number(self._frames, (self._location(frame), known))
            self._stacks[frames] = known
        return known

    def _location(self, frame: Frame) -> int:
        file = _number(self._files, frame.file) if frame.file else 0  # 0 is in no table: unknown
        function = _number(self._functions, frame.function) if frame.function else 0
        return _number(self._locations, (file, function, frame.line, frame.column))

    def sections(self) -> list[str]:
        """Return the four tables as text, or none where no instruction has frames."""
        if not self._frames:
            return []
        locations = [  # XLA's parser requires an end, which the model does not have
            f"{{file_name_id={file} function_name_id={function} "
            f"line={line} end_line={line} column={column} end_column={column}}}"
            for file, function, line, column in self._locations
        ]
        # A parent is written as its id + 1, and no parent as 1 (xla/hlo/ir/stack_frames.cc).
        frames = [f"{{file_location_id={place} parent_frame_id={parent + 1}}}" for place, parent in self._frames]
        return [
            _section("FileNames", map(_quoted, self._files)),
            _section("FunctionNames", map(_quoted, self._functions)),
            _section("FileLocations", iter(locations)),
            _section("StackFrames", iter(frames)),
        ]


def _number(numbers: dict[_Key, int], key: _Key) -> int:
    """Return the number of a key, which gets a new one at its first use."""
    return numbers.setdefault(key, len(numbers) + 1)


def _section(title: str, lines: Iterator[str]) -> str:
    return "\n".join([title, *(f"{number} {line}" for number, line in enumerate(lines, 1))])
