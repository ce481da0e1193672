"""A computation as a part of HLO text. Its instructions are found without parsing them."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Collection, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

from hloinspect.errors import HloParseError
from hloinspect.hlo.model import Computation, Instruction, Module
from hloinspect.hlo.scan import FrameTables
from hloinspect.hlo.shape import parse_shape
from hloinspect.hlo.text_instruction import NAME, TextInstruction

_FIRST_WORD = re.compile(r" ([a-z][\w\-]*)\(")
_FIRST_OPERAND = re.compile(r"[^%()]*+(?:\([^()]*+\)[^%()]*+)*+%([\w.\-]+)")  # its shape may come before it
# These search many lines at once. They begin with a line break, since a regex finds literals fastest.
_OUTLINE = re.compile(
    r"\n[ \t]++(?:ROOT )?%?[^\s=%]++ = (?:([a-z]\w*+)\[([^\]\n]*+)\]\S*+|\([^\n]*?\)) ([a-z][\w\-]*+)\("
)
_PLACES = re.compile(r"\n[ \t]++(?:ROOT )?%?([^\s=%]++) = (?:\([^\n]*?\)|[^\s(]\S*+) ([a-z][\w\-]*+)\(")
_STEM = re.compile(r".*?(?=[\d.\-]*+\Z)")
# Text that may differ between computations that do the same: metadata, where a slice begins, and names. Names after "="
# are those of other computations.
_METADATA = ", metadata={"
_METADATA_REST = re.compile(r'(?:[^{}"]++|"(?:[^"\\]++|\\.)*+")*+\}')
_SLICE = re.compile(r"slice=\{[^}]*+\}")
_NAME_CHARACTERS = re.compile(r"[\w.\-]++")
_MOST_STEMS = 8
_USE = re.compile(r"%([\w.\-]+)")
_NO_OPERANDS = frozenset({"constant", "parameter", "iota"})


@lru_cache(maxsize=65536)
def _elements(dims: str) -> int:
    """Return the number of elements of an array from its printed dimensions."""
    return parse_shape(f"pred[{dims}]").element_count


@dataclass(frozen=True, slots=True)
class _Table:
    """Places of a computation's instructions by name and by opcode, and where each begins in the module's text.

    The last one is empty where some lines are no instructions. After a shape the opcode is the first word with a
    parenthesis, since nothing in a layout has a space before it.
    """

    positions: dict[str, int]
    opcodes: dict[str, list[int]]
    offsets: list[int]


class TextComputation(Computation):
    """A computation as a part of the module's text, which is cut out and split into instructions at first use."""

    execution_thread = ""

    def __init__(
        self, name: str, is_entry: bool, module_text: str, start: int, end: int, frame_tables: FrameTables
    ) -> None:
        self.name = name
        self.is_entry = is_entry
        self.frame_tables = frame_tables
        self.module_text = module_text
        self.start = start
        self.end = end
        self._cache: dict[int, TextInstruction] = {}
        self._has_table = False

    @property
    def has_percent(self) -> bool:
        """Return whether names are spelled with a percent sign. XLA writes a whole module in one way or the other."""
        return self.module_text.startswith(("  %", "  ROOT %"), self.start)

    @property
    def text(self) -> str:
        """Return the text between the braces. Every use cuts it out again, so that the module is not stored twice."""
        return self.module_text[self.start : self.end]

    def mentions(self, *words: str) -> bool:
        """Return whether its text contains one of the words."""
        text, start, end = self.module_text, self.start, self.end
        return any(text.find(word, start, end) >= 0 for word in words)

    def fault(self, message: str, index: int, offset: int) -> HloParseError:
        """Return an error about an instruction, ``offset`` characters into its line. Lines are counted only now."""
        line = self.module_text.count("\n", 0, self.start) + 1
        line += index if self._table.offsets else self._split[1][index]
        return HloParseError(message, line, offset + 1)

    def __len__(self) -> int:
        return self._size

    @cached_property
    def _size(self) -> int:
        if not self._has_table:
            text, before, end = self.module_text, self.start - 1, self.end
            found = text.count("\n  %", before, end) + text.count("\n  ROOT ", before, end)
            if found == text.count("\n", before, end):
                return found  # a line, an instruction; most are only counted
        return len(self._table.offsets) or len(self._split[0])

    @cached_property
    def _split(self) -> tuple[list[str], list[int]]:
        """Return the lines of the instructions, and the number of lines before each where not every line is one.

        An instruction may have several lines: a frontend attribute with line breaks inside (the metadata of Pallas
        kernels). Such lines are joined once, so that many of them take linear time.
        """
        lines: list[str] = []
        numbers: list[int] = []
        continued: dict[int, list[str]] = {}
        for number, line in enumerate(self.text.split("\n")):
            if line.startswith(("  %", "  ROOT ")) or NAME.match(line):
                lines.append(line)
                numbers.append(number)
            elif lines and line and not line.isspace():
                continued.setdefault(len(lines) - 1, []).append(line)
        for index, more in continued.items():
            lines[index] = "\n".join((lines[index], *more))
        return lines, numbers

    @cached_property
    def _table(self) -> _Table:
        """Return where its instructions are, without parsing lines."""
        self._has_table = True
        text, before, end = self.module_text, self.start - 1, self.end
        offsets: list[int] = []
        names: list[str] = []
        opcodes: dict[str, list[int]] = {}
        for index, found in enumerate(_PLACES.finditer(text, before, end)):
            name, opcode = found.groups()
            offsets.append(found.start() + 1)
            names.append(name)
            if opcode in opcodes:
                opcodes[opcode].append(index)
            else:
                opcodes[opcode] = [index]
        if len(offsets) == text.count("\n", before, end) > 0:
            return _Table(dict(zip(names, range(len(names)), strict=True)), opcodes, offsets)
        positions: dict[str, int] = {}
        opcodes = {}
        for index, line in enumerate(self._split[0]):
            match = NAME.match(line)
            word = _FIRST_WORD.search(line, match.end() - 1) if match else None
            if match:
                positions[match.group(2)] = index
            if word:
                opcodes.setdefault(word.group(1), []).append(index)
        return _Table(positions, opcodes, [])

    def line(self, index: int) -> str:
        """Return the text of an instruction."""
        offsets = self._table.offsets
        if not offsets:
            return self._split[0][index]
        end = offsets[index + 1] - 1 if index + 1 < len(offsets) else self.end
        return self.module_text[offsets[index] : end]

    def _containing(self, words: Iterable[str]) -> Iterator[int]:
        """Yield the places of the instructions whose text contains one of the words. A place may come twice."""
        offsets, text, end = self._table.offsets, self.module_text, self.end
        if not offsets:
            words = tuple(words)
            yield from (i for i, line in enumerate(self._split[0]) if any(word in line for word in words))
            return
        for word in words:
            position = self.start
            while (position := text.find(word, position, end)) >= 0:
                index = bisect_right(offsets, position) - 1
                yield index
                position = offsets[index + 1] if index + 1 < len(offsets) else end

    def instruction(self, index: int) -> TextInstruction:
        found = self._cache.get(index)
        if found is None:
            found = TextInstruction(self.line(index), self, index)
            self._cache[index] = found
        return found

    def position(self, name: str) -> int | None:
        return self._table.positions.get(name)

    @cached_property
    def root(self) -> Instruction:
        offsets = self._table.offsets
        if offsets:
            place = self.module_text.rfind("\n  ROOT ", self.start - 1, self.end)
            if place >= 0:
                return self.instruction(bisect_right(offsets, place + 1) - 1)
        for index in range(len(self) - 1, -1, -1):
            if self.line(index).lstrip().startswith("ROOT "):
                return self.instruction(index)
        return super().root

    @cached_property
    def parameters(self) -> tuple[Instruction, ...]:
        found = [self.instruction(index) for index in self.ending_in("parameter")]
        return tuple(sorted(found, key=lambda instruction: instruction.parameter_number))

    def ending_in(self, *suffixes: str) -> Sequence[int]:
        if not self.is_entry and not self._has_table and not self.mentions(*(f"{suffix}(" for suffix in suffixes)):
            return []  # the table of a computation that nobody reads in parts costs more than it saves
        found = [places for opcode, places in self._table.opcodes.items() if opcode.endswith(suffixes)]
        return found[0] if len(found) == 1 else sorted(index for places in found for index in places)

    def signature(self, module: Module) -> Hashable:
        pieces: list[str] = []
        for piece in self.text.split(_METADATA):
            rest = _METADATA_REST.match(piece) if pieces else None
            pieces.append(piece[rest.end() :] if rest else piece)
        text = "".join(pieces)
        if "={%" in text:
            return None
        if "slice={" in text:
            text = _SLICE.sub("", text)
        parts = _USE.split(text)
        numbers: dict[str, int] = {}
        names: list[int | str] = [numbers.setdefault(name, len(numbers)) for name in parts[1::2]]
        if "=%" in text:
            for place, before in enumerate(parts[:-1:2]):
                if before.endswith("="):
                    callee = module.computations.get(parts[2 * place + 1])
                    names[place] = parts[2 * place + 1] if callee is None else module.alike(callee).name
        return tuple(parts[::2]), tuple(names)

    def may_touch_host(self) -> Sequence[int]:
        return self._host_places

    @cached_property
    def _host_places(self) -> list[int]:
        return list(self._containing(["S(5)"])) if self.is_entry or self.mentions("S(5)") else []

    def outline(self) -> Iterator[tuple[str, int]]:
        found = _OUTLINE.findall(self.module_text, self.start - 1, self.end)
        if len(found) != len(self):  # an unknown spelling, or a faulty line, which then raises
            return super().outline()
        return ((opcode, _elements(dims) if dtype else 0) for dtype, dims, opcode in found)

    def async_ends(self) -> Iterator[tuple[str, int, str, str]]:
        if not self.has_percent:
            yield from super().async_ends()
            return
        for index in self.ending_in("-start", "-update", "-done"):
            line = self.line(index)
            name = NAME.match(line)
            opcode = _FIRST_WORD.search(line, name.end() - 1) if name else None
            if name and opcode:
                operand = _FIRST_OPERAND.match(line, opcode.end())
                yield opcode.group(1), index, name.group(2), operand.group(1) if operand else ""

    def mentioning(self, *words: str, among: Sequence[int] | None = None) -> Sequence[int]:
        if among is None:
            return sorted({*self._containing(words)}) if self.mentions(*words) else []
        return [index for index in among if any(word in self.line(index) for word in words)]

    def users_of(self, names: Collection[str]) -> Sequence[int]:
        if not names:
            return []
        if not self.has_percent:
            return super().users_of(names)
        wanted = frozenset(names)
        stems = {found.group() for name in wanted if (found := _STEM.match(name))}
        if self._table.offsets and len(stems) <= _MOST_STEMS:
            places = {index for stem in stems for index in self._naming(stem, wanted)}
        else:
            places = {index for index in range(len(self)) if not wanted.isdisjoint(_USE.findall(self.line(index)))}
        return sorted(places.difference(*(self._table.opcodes.get(opcode, ()) for opcode in _NO_OPERANDS)))

    def _naming(self, stem: str, names: Collection[str]) -> Iterator[int]:
        """Yield the places of the instructions whose text contains one of the names, which all begin with ``stem``."""
        text, end, offsets = self.module_text, self.end, self._table.offsets
        word, position = f"%{stem}", self.start
        while (position := text.find(word, position, end)) >= 0:
            found = _NAME_CHARACTERS.match(text, position + 1, end)
            if found is not None and found.group() in names:
                yield bisect_right(offsets, position) - 1
            position += len(word)
