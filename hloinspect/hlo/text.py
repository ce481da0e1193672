"""Reader of HLO text: every spelling of JAX 0.5 to 0.12, tolerant, and linear in the size of the text.

Spellings differ by who prints (facts: hlo_instruction.cc ``PrintWithCanonicalNameMap``, debug_options flags
``xla_syntax_sugar_async_ops`` and ``xla_dump_compact_gte``):

* ``compiled.as_text()`` writes async pairs as ``fusion-start(...)``; dumps as ``async-start(...),
calls=%async_computation``;
* dumps since JAX 0.11 write ``%tuple#3`` instead of a get-tuple-element;
* stack frames stand in tables in front of the computations, or inline as ``source_file=... source_line=...``.

Text is cut into computations at once; a computation into lines, and a line into parts, when somebody asks for it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import cached_property, lru_cache
from typing import Any

from hloinspect.errors import HloParseError
from hloinspect.hlo.groups import parse_replica_groups
from hloinspect.hlo.model import (
    NO_METADATA,
    Computation,
    DotDimensions,
    Frame,
    Instruction,
    Metadata,
    Module,
    Operand,
    ReplicaGroups,
)
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

_NAME = re.compile(r"\s+(ROOT )?%?([^\s=%]+) = ")
_OPCODE = re.compile(r" ?([a-z][\w\-]*)\(")
_HEADER = re.compile(r"(ENTRY )?%?([\w.\-]+)(?: |\(|$)")
_CLOSE = re.compile(r"\}(?:\Z|\n|, execution_thread=| //)")
_FIRST_WORD = re.compile(r" ([a-z][\w\-]*)\(")
_PAIR = re.compile(r"\{(\d{1,9}),\s?(\d{1,9})\}")
_TUPLE = re.compile(r"\((?:[^()\"]++|\((?:[^()\"]++|\([^()\"]*+\))*+\))*+\)")  # what most tuple shapes look like
_FIRST_OPERAND = re.compile(r"[^%()]*+(?:\([^()]*+\)[^%()]*+)*+%([\w.\-]+)")  # its shape may stand in front
_OUTLINE = re.compile(
    r"^\s++(?:ROOT )?%?[^\s=%]++ = (?:([a-z]\w*+)\[([^\]]*+)\]\S*+|\([^\n]*?\)) ([a-z][\w\-]*+)\(", re.MULTILINE
)
_USE = re.compile(r"%([\w.\-]+)")
_COMMENT = re.compile(r"/\*[^*]*\*/")
_FIELD = re.compile(r'\b(\w++)=("(?:[^"\\]|\\.)*+"|[^\s"}]+)')
_ONE_CALLEE = re.compile(r"(?:, kind=\w+)?, (calls|to_apply)=%?([\w.\-]+)(?=,|$)")  # what most callers look like
_INTEGER = re.compile(r"-?\d{1,20}")
_INTEGER_DTYPE = re.compile(r"pred|[su]\d+")
_NO_OPERANDS = frozenset({"constant", "parameter", "iota"})
_CALLED_KEYS = {
    "calls": "calls",
    "to_apply": "to_apply",
    "body": "body",
    "condition": "condition",
    "called_computations": "calls",
    "branch_computations": "branches",
    "true_computation": "branches",
    "false_computation": "branches",
    "select": "to_apply",  # select and scatter of a select-and-scatter
    "scatter": "to_apply",
}


@lru_cache(maxsize=65536)
def _elements(dims: str) -> int:
    """Elements of an array by its printed dimensions."""
    return parse_shape(f"pred[{dims}]").element_count


class TextInstruction(Instruction):
    """An instruction as a line of text."""

    def __init__(self, line: str, computation: TextComputation, index: int) -> None:
        name = _NAME.match(line)
        if name is None:
            found = line.strip()[:60]
            raise computation.fault(f"expected an instruction 'name = shape opcode(...)', found {found!r}", index, 0)
        start = name.end()
        if line.startswith("(", start):
            shallow = _TUPLE.match(line, start)
            end = shallow.end() if shallow else closing(line, start)
            if end < 0:
                raise computation.fault("a tuple shape is not closed", index, start)
        else:
            end = line.find(" ", start)
        opcode = _OPCODE.match(line, end) if end >= 0 else None
        if opcode is None:
            found = line[start : start + 60]
            raise computation.fault(f"expected a shape and an opcode, found {found!r}", index, start)
        close = line.find(")", opcode.end())
        inside = line[opcode.end() : close]
        if close < 0 or "(" in inside or '"' in inside:
            close = closing(line, opcode.end() - 1) - 1
        if close < 0:
            message = f"the operands of {name.group(2)} are not closed (a truncated file?)"
            raise computation.fault(message, index, opcode.end() - 1)
        self.is_root = name.group(1) is not None
        self.name = name.group(2)
        self.opcode = opcode.group(1)
        self.index = index
        self.computation = computation.name
        self._owner = computation
        self._shape_text = line[start:end]
        self._arguments = line[opcode.end() : close]
        self._tail = line[close + 1 :]

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
        name = text.rsplit(None, 1)[-1].lstrip("%")  # an operand may be printed with its shape in front
        if "#" not in name:
            return Operand(name)
        base, *path = name.split("#")
        if not all(part.isdecimal() and len(part) < 10 for part in path):
            raise self._owner.fault(f"not an operand: {text[:60]!r}", self.index, 0)
        return Operand(base, tuple(map(int, path)))

    @cached_property
    def attributes(self) -> Mapping[str, str]:
        """All attributes behind the operands, as text."""
        return split_attributes(self._tail)

    @cached_property
    def called(self) -> Mapping[str, tuple[str, ...]]:
        if quick := _ONE_CALLEE.match(self._tail):
            return {_CALLED_KEYS[quick.group(1)]: (quick.group(2),)}
        found: dict[str, tuple[str, ...]] = {}
        for key, text in self.attributes.items():
            if role := _CALLED_KEYS.get(key):
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
        """The backend's configuration as it stands in the text."""
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
        text = self.attributes.get("index", "") if self.opcode == "get-tuple-element" else ""
        return count_in(text, -1)

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


class TextComputation(Computation):
    """A computation as a stretch of the module's text, cut out and split into instructions when somebody asks for
    one."""

    def __init__(
        self, name: str, is_entry: bool, module_text: str, start: int, end: int, frame_tables: FrameTables
    ) -> None:
        self.name = name
        self.is_entry = is_entry
        self.execution_thread = ""
        self.frame_tables = frame_tables
        self._module_text = module_text
        self._start = start
        self._end = end
        self._cache: dict[int, TextInstruction] = {}

    @cached_property
    def text(self) -> str:
        """The text between the braces."""
        return self._module_text[self._start : self._end]

    def fault(self, message: str, index: int, offset: int) -> HloParseError:
        """An error about an instruction, ``offset`` characters into its line. Lines are counted now, when one is
        faulty."""
        line = self._module_text.count("\n", 0, self._start) + 1 + self._split[1][index]
        return HloParseError(message, line, offset + 1)

    def __len__(self) -> int:
        return len(self.lines)

    @property
    def lines(self) -> Sequence[str]:
        """The instructions' lines."""
        return self._split[0]

    @cached_property
    def _split(self) -> tuple[list[str], list[int]]:
        """The lines of the instructions and how many lines stand in front of each.

        An instruction may go on over several lines: a frontend attribute with line breaks inside (the metadata of
        Pallas kernels). Those are joined once each, so that many of them stay linear.
        """
        lines: list[str] = []
        numbers: list[int] = []
        continued: dict[int, list[str]] = {}
        for number, line in enumerate(self.text.split("\n")):
            if line.startswith(("  %", "  ROOT ")) or _NAME.match(line):
                lines.append(line)
                numbers.append(number)
            elif lines and line and not line.isspace():
                continued.setdefault(len(lines) - 1, []).append(line)
        for index, more in continued.items():
            lines[index] = "\n".join((lines[index], *more))
        return lines, numbers

    def instruction(self, index: int) -> TextInstruction:
        found = self._cache.get(index)
        if found is None:
            found = TextInstruction(self.lines[index], self, index)
            self._cache[index] = found
        return found

    @cached_property
    def _index(self) -> tuple[dict[str, int], dict[str, list[int]]]:
        """Places by name and by opcode, without taking lines apart: behind a shape the opcode is the first word with a
        parenthesis, since what stands in a layout has no space in front."""
        names: dict[str, int] = {}
        opcodes: dict[str, list[int]] = {}
        for index, line in enumerate(self.lines):
            name = _NAME.match(line)
            opcode = _FIRST_WORD.search(line, name.end() - 1) if name else None
            if name:
                names[name.group(2)] = index
            if opcode:
                opcodes.setdefault(opcode.group(1), []).append(index)
        return names, opcodes

    def position(self, name: str) -> int | None:
        return self._index[0].get(name)

    @cached_property
    def root(self) -> Instruction:
        for index in range(len(self.lines) - 1, -1, -1):
            if self.lines[index].lstrip().startswith("ROOT "):
                return self.instruction(index)
        return super().root

    @cached_property
    def parameters(self) -> tuple[Instruction, ...]:
        found = [self.instruction(index) for index in self.ending_in("parameter")]
        return tuple(sorted(found, key=lambda instruction: instruction.parameter_number))

    def ending_in(self, *suffixes: str) -> Sequence[int]:
        if "_index" not in self.__dict__ and not any(f"{suffix}(" in self.text for suffix in suffixes):
            return []  # an index of a computation that nobody takes apart is not worth its while
        found = [places for opcode, places in self._index[1].items() if opcode.endswith(suffixes)]
        return found[0] if len(found) == 1 else sorted(index for places in found for index in places)

    def may_touch_host(self) -> Sequence[int]:
        return self._host_places

    @cached_property
    def _host_places(self) -> list[int]:
        if "S(5)" not in self.text:
            return []
        return [index for index, line in enumerate(self.lines) if "S(5)" in line]

    def outline(self) -> Iterator[tuple[str, int]]:
        found = _OUTLINE.findall(self.text)
        if len(found) != len(self):  # a spelling that this does not know, or a faulty line, which then raises
            return super().outline()
        return ((opcode, _elements(dims) if dtype else 0) for dtype, dims, opcode in found)

    def async_ends(self) -> Iterator[tuple[str, int, str, str]]:
        if "%" not in self.text:
            yield from super().async_ends()
            return
        for index in self.ending_in("-start", "-update", "-done"):
            line = self.lines[index]
            name = _NAME.match(line)
            opcode = _FIRST_WORD.search(line, name.end() - 1) if name else None
            if name and opcode:
                operand = _FIRST_OPERAND.match(line, opcode.end())
                yield opcode.group(1), index, name.group(2), operand.group(1) if operand else ""

    def mentioning(self, *words: str) -> Sequence[int]:
        if not any(word in self.text for word in words):
            return []
        return [index for index, line in enumerate(self.lines) if any(word in line for word in words)]

    def users_of(self, names: Collection[str]) -> Sequence[int]:
        if not names:
            return []
        wanted = frozenset(names)
        if "%" not in self.text:
            return super().users_of(names)
        lines = self.lines
        places = (index for opcode, found in self._index[1].items() if opcode not in _NO_OPERANDS for index in found)
        return sorted(index for index in places if not wanted.isdisjoint(_USE.findall(lines[index])))


_TPU_MARKS = ("T(8,128)", '"scoped_memory_configs"')
_GPU_MARKS = ("operation_queue_id", "fusion_backend_config", "__cublas")


def _platform(text: str) -> str:
    """What compiled the text: only the GPU's backend writes queue ids, only the TPU's tiles layouts and reports scoped
    memory."""
    if any(mark in text for mark in _GPU_MARKS):
        return "gpu"
    return "tpu" if any(mark in text for mark in _TPU_MARKS) else ""


def parse_text(text: str) -> Module:
    """The module that HLO text spells.

    Raises HloParseError, with line and column, for text that is no HLO module or stops in the middle of one. A fault
    inside an instruction is raised when that instruction is first asked for.
    """
    if "\r" in text:
        text = text.replace("\r\n", "\n")
    begin = len(text) - len(text.lstrip())
    if begin == len(text):
        raise HloParseError("empty: expected HLO text that begins with 'HloModule'")
    line_number = text.count("\n", 0, begin) + 1
    if not text.startswith("HloModule ", begin):
        found = text[begin : begin + 200].partition("\n")[0]
        raise HloParseError(f"expected 'HloModule NAME', found {found[:40]!r}", line_number, 1)
    end = _line_end(text, begin)
    name, _, rest = text[begin + len("HloModule ") : end].partition(",")
    attributes = split_attributes(rest)
    computations = _computations(text, end + 1)
    entries = [computation.name for computation in computations if computation.is_entry]
    if not entries:
        last = text.count("\n") + 1
        raise HloParseError("no ENTRY computation: the text is truncated or no module", last, 1)
    return Module(
        name=name.strip(),
        computations={computation.name: computation for computation in computations},
        entry_name=entries[-1],
        is_scheduled=attributes.get("is_scheduled") == "true",
        attributes=attributes,
        platform=_platform(text),
        size_bytes=len(text),
        kind="text",
    )


def _line_end(text: str, position: int) -> int:
    end = text.find("\n", position)
    return len(text) if end < 0 else end


def _computations(text: str, position: int) -> list[TextComputation]:
    """The computations from a position on. What stands in front of the first are the stack frame tables."""
    found: list[TextComputation] = []
    preamble: list[str] = []
    tables = FrameTables(())
    size = len(text)
    while position < size:
        end = _line_end(text, position)
        if text[end - 1] != "{" or end == position:
            if not found:
                preamble.append(text[position:end])
            position = end + 1
            continue
        header = _HEADER.match(text, position, end)
        if header is None:
            line_number = text.count("\n", 0, position) + 1
            raise HloParseError(f"expected a computation, found {text[position:end][:60]!r}", line_number, 1)
        if not found:
            tables = FrameTables(preamble)
        close = _closing_line(text, end)
        if close < 0:
            message = f"computation {header.group(2)} is not closed: the text is truncated"
            raise HloParseError(message, text.count("\n") + 1, 1)
        is_entry = header.group(1) is not None
        computation = TextComputation(header.group(2), is_entry, text, end + 1, close - 1, tables)
        position = _line_end(text, close)
        if close + 1 < position and text.startswith(", execution_thread=", close + 1):
            computation.execution_thread = unquote(text[close + 20 : position].strip())
        found.append(computation)
        position += 1
    return found


def _closing_line(text: str, position: int) -> int:
    """Where the line that closes a computation begins, or -1. A line may begin with a brace inside an instruction
    too."""
    while (position := text.find("\n}", position)) >= 0:
        position += 1
        if _CLOSE.match(text, position):
            return position
    return -1
