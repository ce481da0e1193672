"""Parts of HLO text: brackets, lists, attributes, quoted strings, stack frame tables. Reading them takes linear
time."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from hloinspect.hlo.model import Frame

_DELIMITER = re.compile(r'[(){}\[\]",]')
_PLAIN = r"[^(){}\[\]\"]"
# Everything up to a bracket or quote that is not closed within the next two levels: one call for a whole layout.
_BALANCED = re.compile(
    rf'(?:{_PLAIN}++|\[{_PLAIN}*+\]|\({_PLAIN}*+\)|\{{(?:{_PLAIN}++|\({_PLAIN}*+\))*+\}}|"(?:[^"\\]++|\\.)*+")*+'
)
_QUOTED = re.compile(r'"(?:[^"\\]++|\\.)*+"')
_KEY = re.compile(r"\s*([\w.\-]+)=")
_NUMBER_FIELD = re.compile(r"\b(\w++)=(\d{1,9})")
_ESCAPE = re.compile(rb"\\(?:([0-7]{3})|(.))", re.DOTALL)
_ESCAPED = {b"n": b"\n", b"r": b"\r", b"t": b"\t"}
_INTEGER = re.compile(r"-?\d{1,20}")
_MAX_FRAMES = 256


def closing(text: str, start: int) -> int:
    """Return the index behind the bracket that closes the one at ``start``, or -1. Quoted strings are skipped."""
    depth = 0
    position = start
    while match := _DELIMITER.search(text, position):
        character = match.group()
        position = match.end()
        if character in "([{":
            depth += 1
            if skipped := _BALANCED.match(text, position):
                position = skipped.end()
        elif character == '"':
            quoted = _QUOTED.match(text, position - 1)
            if quoted is None:
                return -1
            position = quoted.end()
        elif character in ")]}":
            depth -= 1
            if depth == 0:
                return position
    return -1


def _value_end(text: str, position: int) -> int:
    """Return the index of the comma that ends a value, or of the end of ``text``.

    It is -1 where a bracket or string is not closed. A value may have several parts in a row: mesh['x'=8] {'x'}.
    """
    while match := _DELIMITER.search(text, position):
        character = match.group()
        if character == '"':
            quoted = _QUOTED.match(text, match.start())
            position = quoted.end() if quoted else -1
        elif character in "([{":
            position = closing(text, match.start())
        elif character == ",":
            return match.start()
        else:
            return -1
        if position < 0:
            return -1
    return len(text)


def split_attributes(text: str) -> dict[str, str]:
    """Return the ``key=value`` pairs of a comma-separated list. Values keep their brackets and quotes.

    Parts that are no pairs are skipped. Everything after a bracket or string that is not closed is left out.
    """
    found: dict[str, str] = {}
    position = 0
    while position < len(text):
        match = _KEY.match(text, position)
        start = match.end() if match else position
        if match and match.group(1) == "backend_config" and text.endswith("}") and text.startswith("{", start):
            found["backend_config"] = text[start:]  # printed last by XLA; checked when it is read as JSON
            break
        end = _value_end(text, start)
        if end < 0:
            break
        if match:
            found[match.group(1)] = text[start:end].strip()
        position = end + 1
    return found


def split_list(text: str) -> list[str]:
    """Return the parts of a comma-separated list. Commas inside brackets and strings do not separate."""
    if not any(character in text for character in '([{"'):
        return [part for part in (piece.strip() for piece in text.split(",")) if part]
    parts, start, position = [], 0, 0
    while match := _DELIMITER.search(text, position):
        character = match.group()
        position = match.end()
        if character == ",":
            parts.append(text[start : match.start()].strip())
            start = position
        elif character in '([{"':
            quoted = _QUOTED.match(text, match.start()) if character == '"' else None
            position = quoted.end() if quoted else closing(text, match.start())
            if position < 0:
                break
    parts.append(text[start:].strip())
    return [part for part in parts if part]


def _unescape(match: re.Match[bytes]) -> bytes:
    octal, character = match.groups()
    return bytes((int(octal, 8) & 255,)) if octal else _ESCAPED.get(character, character)


def unquote(text: str) -> str:
    """Return the content of a quoted string (absl::CEscape: bytes beyond ASCII are octal), or any other text
    unchanged."""
    if len(text) >= 2 and text[0] == text[-1] == '"':
        text = text[1:-1]
        if "\\" in text:
            text = _ESCAPE.sub(_unescape, text.encode("utf-8", "replace")).decode("utf-8", "replace")
    return text


def names_in(text: str) -> tuple[str, ...]:
    """Return the names in a comma-separated list, without braces and percent signs."""
    return tuple(part.strip().lstrip("%") for part in text.strip("{}").split(",") if part.strip())


def count_in(text: str, otherwise: int = 0) -> int:
    """Return the number of up to nine digits in a text, or ``otherwise``."""
    return int(text) if text.isdecimal() and len(text) < 10 else otherwise


def integers_in(text: str) -> tuple[int, ...]:
    """Return all integers in a text, in order."""
    return tuple(int(number) for number in _INTEGER.findall(text))


class FrameTables:
    """The FileNames, FunctionNames, FileLocations and StackFrames tables in front of the computations."""

    def __init__(self, lines: Sequence[str]) -> None:
        self._tables: dict[str, dict[int, str]] = {}
        self._stacks: dict[int, tuple[Frame, ...]] = {}
        table: dict[int, str] | None = None
        for line in lines:
            number, _, rest = line.partition(" ")
            if number in ("FileNames", "FunctionNames", "FileLocations", "StackFrames") and not rest:
                table = self._tables.setdefault(number, {})
            elif table is not None and number.isdecimal() and len(number) < 10:
                table[int(number)] = rest
        # In the text a parent is written as its id + 1, and no parent as 1 (xla/hlo/ir/stack_frames.cc). A spelling
        # that was used for a short time in 2025 has the id itself. It is recognized by the 0 of the outermost frames.
        plain = any("parent_frame_id=0" in text for text in self._tables.get("StackFrames", {}).values())
        self._parent_offset = 0 if plain else 1

    def _fields(self, table: str, key: int) -> dict[str, int]:
        text = self._tables.get(table, {}).get(key, "")
        return {name: int(value) for name, value in _NUMBER_FIELD.findall(text)}

    def frames(self, frame_id: int) -> tuple[Frame, ...]:
        """Return the stack of a frame id, the innermost frame first."""
        if (known := self._stacks.get(frame_id)) is None:
            known = self._stacks[frame_id] = tuple(self._walk(frame_id))
        return known

    def _walk(self, frame_id: int) -> Iterator[Frame]:
        for _ in range(_MAX_FRAMES):
            frame = self._fields("StackFrames", frame_id)
            if frame_id <= 0 or not frame:
                return
            location = self._fields("FileLocations", frame.get("file_location_id", 0))
            yield Frame(
                file=unquote(self._tables.get("FileNames", {}).get(location.get("file_name_id", 0), "")),
                line=location.get("line", 0),
                function=unquote(self._tables.get("FunctionNames", {}).get(location.get("function_name_id", 0), "")),
                column=location.get("column", 0),
            )
            frame_id = frame.get("parent_frame_id", 0) - self._parent_offset
