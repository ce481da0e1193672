"""Read what people may have edited into typed records: baselines, manifests, configuration, targets.

``decode`` takes parsed JSON or TOML and a type, a frozen dataclass or a TypedDict, and returns a record of that type or
raises ``Fault``, which names the field. msgspec checks the types and the closed sets and builds the record. What it
passes is checked here: unknown keys, numbers out of bounds, and rules of single fields, which stand in the type as
``Annotated[T, rule]``. msgspec is imported where something is decoded, and not by importing this module.
"""

from __future__ import annotations

import functools
import json
import math
import re
import tomllib
import types
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass
from pathlib import Path
from typing import Annotated, Any, Final, Literal, NotRequired, TypeVar, Union, get_args, get_origin
from typing import get_type_hints as _type_hints

from hloinspect._version import __version__
from hloinspect.errors import printable

_T = TypeVar("_T")

MOST_WHOLE: Final = 2**63 - 1
_MAX_DIGITS = 19
_SHOWN = 60
_MOST_KNOWN = 20
_MAPS = (dict, Mapping)
_MOST_CHARS = 64 << 20
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*")


class Fault(Exception):
    """A field that is not what it must be. The text is one line that begins with the field's path.

    ``key`` is the key that is unknown or missing, "" where the fault is in a value.
    """

    def __init__(self, path: str, reason: str, key: str = "") -> None:
        text = reason.removeprefix(": ") if not path and reason.startswith(":") else f"{path or 'it'}{reason}"
        super().__init__(printable(text))
        self.path, self.reason, self.key = path, reason, key

    def below(self, path: str) -> Fault:
        """Return the same fault in a file of which only a part was decoded."""
        joined = f"{path}{self.path}" if self.path.startswith("[") else f"{path}.{self.path}".rstrip(".")
        return Fault(joined, self.reason, self.key)


# ---- parsing


class NoNumber:
    """What a file spells where a number stands, and no finite number of a usual length is."""

    def __init__(self, text: str) -> None:
        self.text = text

    def __repr__(self) -> str:
        return self.text


def read_text(path: Path) -> str:
    """Return the text of a file. Raises OSError, and ValueError for what is not UTF-8 and for more text than anybody
    edits: a link to a device such as /dev/zero has no size, and no end."""
    with path.open(encoding="utf-8") as file:
        text = file.read(_MOST_CHARS + 1)
    if len(text) > _MOST_CHARS:
        raise ValueError(f"it is too large ({_MOST_CHARS >> 20} MiB at most)")
    return text


def parse_json(text: str) -> object:
    """Return parsed JSON. Raises ValueError for what is none, and for a key that is there twice."""
    return json.loads(text, parse_constant=NoNumber, parse_float=_float, parse_int=_int, object_pairs_hook=_object)


def parse_toml(text: str) -> dict[str, object]:
    """Return parsed TOML. Raises ValueError for what is none."""
    return tomllib.loads(text, parse_float=_float)


def _float(text: str) -> object:
    value = float(text)
    return value if math.isfinite(value) else NoNumber(text)


def _int(text: str) -> object:
    return int(text) if len(text) <= _MAX_DIGITS + text.startswith("-") else NoNumber(text)


def _object(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found = dict(pairs)
    if len(found) < len(pairs):
        counts = Counter(key for key, _ in pairs)
        raise ValueError(f"the key {shown(next(key for key in counts if counts[key] > 1))} is there twice")
    return found


def shown(value: object) -> str:
    """Return a parsed value on one line, cut where it is long."""
    if value is None or isinstance(value, bool):
        return json.dumps(value)
    try:
        text = repr(value)
    except (RecursionError, ValueError):  # nested too deeply; a whole number of thousands of digits
        return "a value that is too large"
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


# ---- rules of single fields


class Rule:
    """What a value must be beside its type; by itself only what an error calls the value. A rule meets values before
    their types are checked, and has nothing to say of a value of another type.

    ``expected`` is what is expected, as in "expected a whole number of 0 or more"; "" where the type says it. (Rules
    are no dataclasses: every command makes them, and most need none.)
    """

    __slots__ = ("expected",)

    def __init__(self, expected: str = "") -> None:
        self.expected = expected

    def fault(self, value: object) -> Fault | None:
        """Return what is wrong, with a path from the value on, or None."""

    def other(self, value: object) -> Fault:
        """Return the fault that a value is not what is expected."""
        return Fault("", f": expected {self.expected}, found {shown(value)}")


class Bounds(Rule):
    """A number from ``least`` to ``most``."""

    __slots__ = ("least", "most")

    def __init__(self, least: float, most: float, expected: str) -> None:
        super().__init__(expected)
        self.least, self.most = least, most

    def fault(self, value: object) -> Fault | None:
        """Return what is wrong with a number."""
        if isinstance(value, bool) or not isinstance(value, int | float) or self.least <= value <= self.most:
            return None
        return self.other(value)


class Pattern(Rule):
    """Text that a regular expression matches as a whole."""

    __slots__ = ("pattern",)

    def __init__(self, pattern: str, expected: str) -> None:
        super().__init__(expected)
        self.pattern = pattern

    def fault(self, value: object) -> Fault | None:
        """Return what is wrong with a text."""
        return self.other(value) if isinstance(value, str) and not re.fullmatch(self.pattern, value) else None


class OneLine(Rule):
    """Text that is not blank and that a terminal can show on one line."""

    __slots__ = ()

    def fault(self, value: object) -> Fault | None:
        """Return what is wrong with a text."""
        fits = not isinstance(value, str) or (value.strip() and value.isprintable())
        return None if fits else self.other(value)


class Complete(Rule):
    """A map that has at least these keys, or none at all where it may be empty."""

    __slots__ = ("keys", "or_empty")

    def __init__(self, keys: Sequence[str], or_empty: bool = False) -> None:
        super().__init__()
        self.keys, self.or_empty = keys, or_empty

    def fault(self, value: object) -> Fault | None:
        """Return which key is missing."""
        if not isinstance(value, dict) or (self.or_empty and not value):
            return None
        missing = [key for key in self.keys if key not in value]
        return Fault(missing[0], " is missing", missing[0]) if missing else None


Count = Annotated[int, Bounds(0, MOST_WHOLE, "a whole number of 0 or more")]
Positive = Annotated[int, Bounds(1, MOST_WHOLE, "a whole number of 1 or more")]
NonNegative = Annotated[float, Bounds(0, 1e18, "an amount of 0 or more")]
"""Milliseconds, seconds or GB/s. Far more than any, and a sum or a percentage of it is still finite."""

Line = Annotated[str, OneLine("one line of text")]
_ANY_WHOLE = Bounds(-MOST_WHOLE, MOST_WHOLE, "a whole number of 19 digits at most")


# ---- decoding


def newer_version(version: object) -> str:
    """Return the version of hloinspect that a file names where it is newer than this one, else ""."""
    if not isinstance(version, str):
        return ""
    wrote, this = ([int(part[:9]) for part in re.findall(r"\d+", text)[:3]] for text in (version, __version__))
    return version if wrote > this else ""


def decode(
    data: object, kind: type[_T], newer: str = "", older: Collection[str] = frozenset(), toml: bool = False
) -> _T:
    """Return a record of parsed data. Raises Fault.

    ``newer`` is the version of hloinspect that wrote the file where it is newer than this one: an unknown key is then
    that version's, and no misspelling. ``older`` are keys that only older versions wrote.
    """
    import msgspec

    reader = _Reader(newer, older, toml)
    if fault := reader.fault(data, kind, ""):
        raise fault
    try:
        return msgspec.convert(data, kind)
    except (msgspec.ValidationError, UnicodeEncodeError):  # the latter for a lone surrogate where no text is expected
        raise reader.mistyped(data, kind, "") from None


class _Reader:
    """Looks for the first fault of parsed data by its type."""

    def __init__(self, newer: str, older: Collection[str], toml: bool) -> None:
        self._newer, self._older, self._toml = newer, older, toml

    def fault(self, value: object, hint: object, path: str) -> Fault | None:
        """Return the first unknown or missing key, number out of bounds or broken rule."""
        kind, rules = _fitting(value, hint)
        if isinstance(value, dict):
            found = self._keys(value, kind, path) if _is_record(kind) else _other_key(value, kind, path)
            if found is not None:
                return found
        more: tuple[Rule, ...] = (_ANY_WHOLE,) if kind is int else ()
        for rule in (*rules, *more):
            if found := rule.fault(value):
                return found.below(path) if path else found
        parts = _parts(value, kind, path)
        return next((found for item, inner, at in parts if (found := self.fault(item, inner, at))), None)

    def _keys(self, value: Mapping[str, object], kind: Any, path: str) -> Fault | None:
        known = _fields(kind)
        missing = [name for name, (_, required) in known.items() if required and name not in value]
        for key in value:
            if key in known:
                continue
            if self._newer:
                which = f"hloinspect {self._newer} knows and this version ({__version__}) does not: use that one"
                return Fault(path, f" has the key {shown(key)}, which {which}", key)
            if key in self._older:
                return Fault(path, f" has the key {shown(key)} of an older version", key)
            return Fault(path, _unknown(key, missing, list(known)), key)
        if missing:
            return Fault(f"{path}.{missing[0]}".lstrip("."), " is missing", missing[0])
        return None

    def mistyped(self, value: object, hint: object, path: str) -> Fault:
        """Return the fault in a value that msgspec has refused: the innermost part that is not of its type."""
        import msgspec

        kind, rules = _fitting(value, hint)
        for item, inner, at in _parts(value, kind, path):
            try:
                msgspec.convert(item, inner)
            except (msgspec.ValidationError, UnicodeEncodeError):
                return self.mistyped(item, inner, at)
        expected = next((rule.expected for rule in rules if rule.expected), "") or self._expected(kind)
        return Fault(path, f": expected {expected}, found {shown(value)}")

    def _expected(self, hint: object) -> str:
        """Return what a type is called in an error."""
        plain, rules = _stripped(hint)
        if rules and rules[0].expected:
            return rules[0].expected
        if get_origin(plain) is Literal:
            return _either([str(word) for word in get_args(plain)])
        if get_origin(plain) in (Union, types.UnionType):
            given = [each for each in get_args(plain) if not (self._toml and each is type(None))]  # TOML has no null
            return _either(list(dict.fromkeys(self._expected(each) for each in given)))
        if _is_record(plain) or get_origin(plain) in _MAPS:
            return "a table" if self._toml else "an object"
        if get_origin(plain) in (tuple, list):
            return "a list"
        names: dict[object, str] = {
            int: "a whole number",
            float: "a number",
            str: "text",
            bool: "true or false",
            type(None): "null",
        }
        return names.get(plain, "another value")


def _either(words: list[str]) -> str:
    return " or ".join(filter(None, (", ".join(words[:-1]), words[-1])))


def _unknown(key: str, missing: Sequence[str], known: Sequence[str]) -> str:
    """Return what to say of an unknown key, with the known one that is nearest: first of those that are missing."""
    import difflib

    near = difflib.get_close_matches(key, missing, n=1) or difflib.get_close_matches(key, known, n=1)
    hint = f": did you mean {near[0]}?" if near else f"; known are {', '.join(known[:_MOST_KNOWN])}"
    return f": unknown key {shown(key)}{hint}"


def _other_key(value: Mapping[str, object], kind: Any, path: str) -> Fault | None:
    """Return the fault in a key of a map whose keys are a closed set, or have a rule."""
    if get_origin(kind) not in _MAPS:
        return None
    words, rules = _stripped(get_args(kind)[0])
    known = get_args(words) if get_origin(words) is Literal else ()
    for key in value:
        if known and key not in known:
            missing = [str(word) for word in known if word not in value]
            return Fault(path, _unknown(key, missing, [str(word) for word in known]))
        if any(rule.fault(key) for rule in rules):
            return Fault(path, f": the key {shown(key)} is not {rules[0].expected}")
    return None


def _stripped(hint: Any) -> tuple[Any, tuple[Rule, ...]]:
    """Return a type without what is said about it, and the rules that were said."""
    rules: tuple[Rule, ...] = ()
    while get_origin(hint) is Annotated:
        rules = (*rules, *(mark for mark in hint.__metadata__ if isinstance(mark, Rule)))
        hint = get_args(hint)[0]
    return hint, rules


def _fitting(value: object, hint: object) -> tuple[Any, tuple[Rule, ...]]:
    """Return the type that a value is read as, of a union the alternative that has the value's form, and its rules."""
    plain, rules = _stripped(hint)
    if get_origin(plain) not in (Union, types.UnionType):
        return plain, rules
    for each in get_args(plain):
        inner, own = _stripped(each)
        if _has_form(value, inner):
            return inner, (*rules, *own)
    return plain, rules


def _has_form(value: object, plain: Any) -> bool:
    if isinstance(value, dict):
        return _is_record(plain) or get_origin(plain) in _MAPS
    if isinstance(value, list | tuple):
        return get_origin(plain) in (tuple, list)
    if isinstance(value, bool) or value is None:
        return plain is type(value)
    if isinstance(value, int | float):
        return plain is float or plain is type(value)
    return isinstance(value, str) and plain is str


def _is_record(kind: object) -> bool:
    return isinstance(kind, type) and (is_dataclass(kind) or hasattr(kind, "__required_keys__"))


def _parts(value: object, kind: Any, path: str) -> Iterator[tuple[object, object, str]]:
    """Yield what a value consists of: each item with its type and its path."""
    if isinstance(value, dict):
        if _is_record(kind):
            for name, (inner, _) in _fields(kind).items():
                if name in value:
                    yield value[name], inner, f"{path}.{name}".lstrip(".")
        elif get_origin(kind) in _MAPS:
            for key, item in value.items():
                step = f".{key}" if _NAME.fullmatch(key) else f"[{shown(key)}]"
                yield item, get_args(kind)[1], f"{path}{step}".lstrip(".")
    elif isinstance(value, list | tuple) and get_origin(kind) in (tuple, list):
        inner = get_args(kind)
        for number, item in enumerate(value):
            yield item, inner[0] if inner[-1] is ... else inner[min(number, len(inner) - 1)], f"{path}[{number}]"


@functools.cache
def _fields(kind: Any) -> dict[str, tuple[object, bool]]:
    """Return the type of each field of a record, and whether it must be there."""
    hints = _type_hints(kind, include_extras=True)
    if is_dataclass(kind):
        required = {f.name for f in fields(kind) if f.default is MISSING and f.default_factory is MISSING}
    else:  # __required_keys__ does not see a NotRequired in annotations that are text (Python 3.11 to 3.13)
        required = {name for name in kind.__required_keys__ if get_origin(hints[name]) is not NotRequired}
    return {
        name: (get_args(hint)[0] if get_origin(hint) is NotRequired else hint, name in required)
        for name, hint in hints.items()
    }
