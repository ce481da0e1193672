"""An instruction as a line of HLO text. Each part is parsed at its first use."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from functools import cached_property
from typing import Any, Protocol

from hloinspect.errors import HloParseError
from hloinspect.hlo.groups import parse_replica_groups
from hloinspect.hlo.model import NO_METADATA, DotDimensions, Frame, Instruction, Metadata, Operand, ReplicaGroups
from hloinspect.hlo.scan import (
    FrameTables,
    closing,
    count_in,
    integers_in,
    names_in,
    split_attributes,
    split_list,
    unquote,
)
from hloinspect.hlo.shape import Shape, parse_shape

NAME = re.compile(r"\s+(ROOT )?%?([^\s=%]+) = ")
_OPCODE = re.compile(r" ?([a-z][\w\-]*)\(")
_PAIR = re.compile(r"\{(\d{1,9}),\s?(\d{1,9})\}")
_TUPLE = re.compile(r"\((?:[^()\"]++|\((?:[^()\"]++|\([^()\"]*+\))*+\))*+\)")  # most tuple shapes match it
_LINE = re.compile(
    rf'\s+(ROOT )?%?([^\s=%]+) = ((?!\()[^ ]*+|{_TUPLE.pattern}) ?([a-z][\w\-]*+)\(([^()"]*+)\)'
)  # most lines match it
_COMMENT = re.compile(r"/\*[^*]*\*/")
_FIELD = re.compile(r'\b(\w++)=("(?:[^"\\]|\\.)*+"|[^\s"}]+)')
_ONE_CALLEE = re.compile(r"(?:, kind=\w+)?, (calls|to_apply)=%([\w.\-]+)(?=,|$)")  # most callers match it
_INDEX = re.compile(r", index=(\d{1,9})(?=,|$)")
_INTEGER = re.compile(r"-?\d{1,20}")
_INTEGER_DTYPE = re.compile(r"pred|[su]\d+")
_CALLED_KEYS = {
    "calls": "calls",
    "to_apply": "to_apply",
    "body": "body",
    "condition": "condition",
    "called_computations": "calls",
    "branch_computations": "branches",
    "true_computation": "branches",
    "false_computation": "branches",
    "select": "to_apply",  # the select of a select-and-scatter
    "scatter": "to_apply",
}


class Owner(Protocol):
    """The computation that contains an instruction's line, as far as the instruction needs it."""

    name: str
    frame_tables: FrameTables

    @property
    def has_percent(self) -> bool:
        """Return whether names are spelled with a percent sign."""

    def fault(self, message: str, index: int, offset: int) -> HloParseError:
        """Return an error about the instruction of this index, ``offset`` characters into its line."""


class TextInstruction(Instruction):
    """An instruction as a line of text."""

    def __init__(self, line: str, computation: Owner, index: int) -> None:
        self.index = index
        self.computation = computation.name
        self._owner = computation
        usual = _LINE.match(line)
        if usual is None:
            self._parse_unusual(line)
            return
        root, self.name, self._shape_text, self.opcode, self._arguments = usual.groups()
        self.is_root = root is not None
        self._tail = line[usual.end() :]

    def _parse_unusual(self, line: str) -> None:
        """Parse a line with quoted strings or parentheses among the operands, or with a fault."""
        name = NAME.match(line)
        if name is None:
            found = line.strip()[:60]
            raise self._fault(f"expected an instruction 'name = shape opcode(...)', found {found!r}", 0)
        start = name.end()
        if line.startswith("(", start):
            shallow = _TUPLE.match(line, start)
            end = shallow.end() if shallow else closing(line, start)
            if end < 0:
                raise self._fault("a tuple shape is not closed", start)
        else:
            end = line.find(" ", start)
        opcode = _OPCODE.match(line, end) if end >= 0 else None
        if opcode is None:
            found = line[start : start + 60]
            raise self._fault(f"expected a shape and an opcode, found {found!r}", start)
        close = closing(line, opcode.end() - 1) - 1
        if close < 0:
            message = f"the operands of {name.group(2)} are not closed (a truncated file?)"
            raise self._fault(message, opcode.end() - 1)
        self.is_root = name.group(1) is not None
        self.name = name.group(2)
        self.opcode = opcode.group(1)
        self._shape_text = line[start:end]
        self._arguments = line[opcode.end() : close]
        self._tail = line[close + 1 :]

    def _fault(self, message: str, offset: int) -> HloParseError:
        return self._owner.fault(message, self.index, offset)

    @cached_property
    def shape(self) -> Shape:
        try:
            return parse_shape(self._shape_text)
        except HloParseError as error:
            raise self._owner.fault(f"{error} in {self.name}", self.index, 0) from None

    @cached_property
    def operands(self) -> tuple[Operand, ...]:
        if self.opcode in ("constant", "parameter", "iota") or not self._arguments:
            return ()
        text = _COMMENT.sub("", self._arguments) if "/*" in self._arguments else self._arguments
        return tuple(self._operand(part) for part in split_list(text))

    def _operand(self, text: str) -> Operand:
        name = text.rsplit(None, 1)[-1].lstrip("%")  # an operand may be printed with its shape before it
        if "#" not in name:
            return Operand(name)
        base, *path = name.split("#")
        if not all(part.isdecimal() and len(part) < 10 for part in path):
            raise self._owner.fault(f"not an operand: {text[:60]!r}", self.index, 0)
        return Operand(base, tuple(map(int, path)))

    @cached_property
    def attributes(self) -> Mapping[str, str]:
        """Return all attributes behind the operands, as text."""
        return split_attributes(self._tail)

    @cached_property
    def called(self) -> Mapping[str, tuple[str, ...]]:
        if quick := _ONE_CALLEE.match(self._tail):
            return {_CALLED_KEYS[quick.group(1)]: (quick.group(2),)}
        found: dict[str, tuple[str, ...]] = {}
        for key, text in self.attributes.items():
            if role := _CALLED_KEYS.get(key):
                if self._owner.has_percent and text.strip("{} ,") and "%" not in text:
                    raise self._owner.fault(f"{key} of {self.name} names no computation", self.index, 0)
                found[role] = (*found.get(role, ()), *names_in(text))
        return found

    @cached_property
    def metadata(self) -> Metadata:
        text = self.attributes.get("metadata", "")
        if not text:
            return NO_METADATA
        fields = dict(_FIELD.findall(text))
        frames: tuple[Frame, ...] = ()
        if frame_id := count_in(fields.get("stack_frame_id", "")):
            frames = self._owner.frame_tables.frames(frame_id)
        if not frames and "source_file" in fields:
            line, column = count_in(fields.get("source_line", "")), count_in(fields.get("source_column", ""))
            frames = (Frame(unquote(fields["source_file"]), line, "", column),)
        return Metadata(unquote(fields.get("op_name", "")), frames)

    @cached_property
    def backend_config(self) -> Mapping[str, Any]:
        text = self.attributes.get("backend_config", "")
        if text.startswith('"'):
            text = unquote(text)
        try:
            config = json.loads(text)
        except (ValueError, RecursionError):
            return {}
        return config if isinstance(config, dict) else {}

    @property
    def backend_config_text(self) -> str:
        """Return the backend's configuration as it is in the text."""
        return self.attributes.get("backend_config", "")

    @property
    def frontend_attributes(self) -> Mapping[str, str]:
        pairs = split_attributes(self.attributes.get("frontend_attributes", "")[1:-1])
        return {key: unquote(value) for key, value in pairs.items()}

    @property
    def custom_call_target(self) -> str:
        return unquote(self.attributes.get("custom_call_target", ""))

    @property
    def tuple_index(self) -> int:
        if self.opcode != "get-tuple-element":
            return -1
        if quick := _INDEX.match(self._tail):
            return int(quick.group(1))
        return count_in(self.attributes.get("index", ""), -1)

    @property
    def parameter_number(self) -> int:
        text = self._arguments.strip() if self.opcode == "parameter" else ""
        return count_in(text, -1)

    @property
    def constant_integer(self) -> int | None:
        if self.opcode != "constant" or self.shape.dims or not _INTEGER_DTYPE.fullmatch(self.shape.dtype):
            return None
        text = self._arguments.strip()
        if text in ("true", "false"):
            return int(text == "true")
        return int(text) if _INTEGER.fullmatch(text) else None

    @property
    def comparison_direction(self) -> str:
        return self.attributes.get("direction", "") if self.opcode == "compare" else ""

    @property
    def dot_dimensions(self) -> DotDimensions | None:
        if self.opcode != "dot":
            return None
        keys = ("lhs_contracting_dims", "rhs_contracting_dims", "lhs_batch_dims", "rhs_batch_dims")
        return DotDimensions(*(integers_in(self.attributes.get(key, "")) for key in keys))

    @property
    def dim_labels(self) -> str:
        return self.attributes.get("dim_labels", "")

    @property
    def feature_groups(self) -> int:
        return max(1, count_in(self.attributes.get("feature_group_count", "")))

    @property
    def replica_groups(self) -> ReplicaGroups:
        text = self.attributes.get("replica_groups", "")
        if "device_ids" in self.attributes:  # mesh['x'=4], device_ids=(3,1,2,0) {'x'}: one value with a comma in it
            text = f"{text}, device_ids={self.attributes['device_ids']}"
        return parse_replica_groups(text)

    @property
    def window_text(self) -> str:
        return self.attributes.get("window", "").strip("{}")

    @property
    def is_host_transfer(self) -> bool:
        return self.attributes.get("is_host_transfer") == "true"

    @property
    def source_target_pairs(self) -> tuple[tuple[int, int], ...]:
        pairs = _PAIR.findall(self.attributes.get("source_target_pairs", ""))
        return tuple((int(source), int(target)) for source, target in pairs)
