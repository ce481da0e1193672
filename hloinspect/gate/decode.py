"""Reads the entries of a baseline strictly: each fault is named by the path of its field.

A reader takes a value of parsed JSON and its path, such as ``entries[0].transfers[3].bytes``, and returns what it
stands for or raises FieldError. What is no finite number in JSON (``NaN``, ``1e400``) is a ``_NoNumber`` until a reader
meets it.
"""

from __future__ import annotations

import difflib
import json
import math
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from hloinspect._version import __version__
from hloinspect.gate.snapshot import (
    MEASURED,
    PREDICTED,
    FindingGroup,
    Made,
    MemorySnapshot,
    Snapshot,
    Split,
    Subject,
    TransferGroup,
)
from hloinspect.kinds import EXPOSED, HIDDEN, PARTIAL, SYNCHRONOUS, UNKNOWN
from hloinspect.rules.rule import SEVERITIES

if TYPE_CHECKING:
    from hloinspect.inputs.manifest import Configuration

_T = TypeVar("_T")
_Reader = Callable[[Any, str], _T]

_MAX_WHOLE = 2**63
_MAX_AMOUNT = 1e18
"""Milliseconds or GB/s. Far more than any, and a sum or a percentage of it is still finite."""

_MAX_DIGITS = 19
_SHOWN = 60
_DIRECTIONS = ("d2h", "h2d")
_VERDICTS = (HIDDEN, PARTIAL, EXPOSED, SYNCHRONOUS, UNKNOWN)
_SOURCES = ("artifacts", "estimated", "unknown")
_MECHANISM = re.compile(r"(synchronous )?(dma|kernel|unknown)")
_CODE = re.compile(r"HLO\d{3}")


class FieldError(Exception):
    """A field that is not what it must be. The text is one line that begins with the field's path."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"{path or 'the file'}{reason}")


class _NoNumber:
    """What JSON text spells where a number stands, and no finite number is."""

    def __init__(self, text: str) -> None:
        self.text = text

    def __repr__(self) -> str:
        return self.text


def parsed(text: str) -> Any:
    """Return parsed JSON. Raises ValueError for what is none, and for a key that is there twice."""
    return json.loads(text, parse_constant=_NoNumber, parse_float=_float, parse_int=_int, object_pairs_hook=_object)


def _float(text: str) -> object:
    value = float(text)
    return value if math.isfinite(value) else _NoNumber(text)


def _int(text: str) -> object:
    return int(text) if len(text) <= _MAX_DIGITS else _NoNumber(text)


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        counts = Counter(key for key, _ in pairs)
        raise ValueError(f"the key {shown(next(key for key in counts if counts[key] > 1))} is there twice")
    return found


def shown(value: object) -> str:
    """Return a value of parsed JSON on one line, cut where it is long."""
    text = repr(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


# ---- readers of single values


def _text(value: Any, path: str) -> str:
    if not isinstance(value, str):
        raise FieldError(path, f": {shown(value)} is no text")
    return value


def _whole(value: Any, path: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < _MAX_WHOLE:
        raise FieldError(path, f": {shown(value)} is no whole number of 0 or more")
    return value


def _positive(value: Any, path: str) -> int:
    if _whole(value, path) == 0:
        raise FieldError(path, ": 0 is no number of 1 or more")
    return int(value)


def _amount(value: Any, path: str) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < _MAX_AMOUNT:
        raise FieldError(path, f": {shown(value)} is no amount of 0 or more")
    return float(value)


def _one_of(*words: str) -> _Reader[str]:
    def read(value: Any, path: str) -> str:
        if not isinstance(value, str) or value not in words:
            raise FieldError(path, f": {shown(value)} is none of {', '.join(words)}")
        return value

    return read


def _matching(pattern: re.Pattern[str], what: str) -> _Reader[str]:
    def read(value: Any, path: str) -> str:
        if not isinstance(value, str) or not pattern.fullmatch(value):
            raise FieldError(path, f": {shown(value)} is no {what}")
        return value

    return read


def _maybe(reader: _Reader[_T]) -> _Reader[_T | None]:
    return lambda value, path: None if value is None else reader(value, path)


# ---- readers of lists and objects


def _many(reader: _Reader[_T]) -> _Reader[tuple[_T, ...]]:
    def read(value: Any, path: str) -> tuple[_T, ...]:
        if not isinstance(value, list):
            raise FieldError(path, f": {shown(value)} is no list")
        return tuple(reader(item, f"{path}[{number}]") for number, item in enumerate(value))

    return read


def _counts(word: _Reader[str]) -> _Reader[dict[str, int]]:
    """Read how many there are of each word."""

    def read(value: Any, path: str) -> dict[str, int]:
        found = _mapping(value, path)
        return {word(key, f"{path}, a key"): _whole(found[key], f"{path}.{key}") for key in sorted(found)}

    return read


def _mapping(value: Any, path: str) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise FieldError(path, f": {shown(value)} is no object")
    return value


def _record(
    made: Callable[..., _T], fields: Mapping[str, _Reader[Any]], optional: Mapping[str, _Reader[Any]] | None = None
) -> _Reader[_T]:
    """Read an object of these keys. Those of ``optional`` may be missing, as in what an older version wrote."""
    every = {**fields, **(optional or {})}

    def read(value: Any, path: str) -> _T:
        found = _mapping(value, path)
        missing = [key for key in fields if key not in found]
        for key in found:
            if key not in every:
                raise FieldError(path, _unknown_key(key, missing))
        if missing:
            raise FieldError(f"{path}.{missing[0]}".lstrip("."), " is missing")
        return made(**{key: every[key](item, f"{path}.{key}".lstrip(".")) for key, item in found.items()})

    return read


def _unknown_key(key: str, missing: Sequence[str]) -> str:
    """Return what is wrong with a key: misspelt where one like it is missing, else a newer version's."""
    near = difflib.get_close_matches(key, missing, n=1)
    if near:
        return f" has the unknown key {shown(key)}: is it {near[0]!r}?"
    return f" has the key {shown(key)}, which this version ({__version__}) does not know: did a newer one write it?"


# ---- the entries

_SPLIT = _record(Split, {"d2h": _amount, "h2d": _amount, "total": _amount})
_PLACE: Mapping[str, _Reader[Any]] = {"file": _maybe(_text), "function": _maybe(_text), "line": _maybe(_whole)}


def _texts(value: Any, path: str) -> dict[str, str]:
    return {key: _text(item, f"{path}.{key}") for key, item in _mapping(value, path).items()}


def _configuration(value: Any, path: str) -> Configuration:
    from hloinspect.inputs.manifest import Configuration

    texts = dict.fromkeys(("compile_options", "jax", "environment", "libraries"), _texts)
    hashes = dict.fromkeys(("compile_options_sha256", "target_config_sha256"), _maybe(_text))
    return _record(Configuration, {**texts, **hashes})(value, path)


_MADE = _record(
    Made,
    {
        "hloinspect": _text,
        "jax": _maybe(_text),
        "jaxlib": _maybe(_text),
        "flags": _maybe(_many(_text)),
        "topology": _maybe(_text),
        "d2h_gbps": _maybe(_amount),
        "h2d_gbps": _maybe(_amount),
        "module": _text,
        "fingerprint": _text,
        "schedule_hash": _text,
    },
    {"configuration": _maybe(_configuration)},
)
_MEMORY = _record(
    MemorySnapshot,
    {"device_bytes": _maybe(_whole), "host_bytes": _maybe(_whole), "source": _one_of(*_SOURCES)},
)
_TRANSFER = _record(
    TransferGroup,
    {
        "direction": _one_of(*_DIRECTIONS),
        "dtype": _text,
        "shape": _many(_whole),
        "name": _maybe(_text),
        **_PLACE,
        **dict.fromkeys(("loop_depth", "count", "runs", "bytes", "bytes_per_step"), _whole),
        "mechanisms": _counts(_matching(_MECHANISM, "mechanism")),
        "verdicts": _counts(_one_of(*_VERDICTS)),
        **dict.fromkeys(("duration_ms", "cover_ms", "wait_ms"), _maybe(_amount)),
    },
)
_SUBJECT = _record(Subject, {"name": _maybe(_text), "array": _maybe(_text), **_PLACE})
_FINDING = _record(
    FindingGroup,
    {
        "code": _matching(_CODE, "code of a rule"),
        "name": _text,
        "severity": _one_of(*SEVERITIES),
        **_PLACE,
        "count": _whole,
    },
    {"subjects": _maybe(_many(_SUBJECT))},
)
_ENTRY = _record(
    Snapshot,
    {
        "step": _text,
        "target": _maybe(_text),
        "devices": _positive,
        "kind": _one_of(PREDICTED, MEASURED),
        "made": _MADE,
        "step_ms": _maybe(_amount),
        "stall_ms": _maybe(_SPLIT),
        "exposed_ms": _maybe(_SPLIT),
        "bytes_per_step": _record(dict, dict.fromkeys(_DIRECTIONS, _whole)),
        "verdicts": _counts(_one_of(*_VERDICTS)),
        "memory": _MEMORY,
        "transfers": _many(_TRANSFER),
        "findings": _many(_FINDING),
        "rules_not_run": _many(_matching(_CODE, "code of a rule")),
    },
    {"origin": _maybe(_text)},
)
_BASELINE: _Reader[dict[str, Any]] = _record(dict, {"schema": _text, "entries": _many(_ENTRY)})


def read_baseline(data: Any) -> tuple[Snapshot, ...]:
    """Return the entries of a parsed baseline. Raises FieldError."""
    entries: tuple[Snapshot, ...] = _BASELINE(data, "")["entries"]
    return entries
