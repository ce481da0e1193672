"""Edits to the text of a ``GpuTargetConfigProto``, for jaxlibs that know fewer of its fields."""

from __future__ import annotations

import re

_UNKNOWN_FIELD = re.compile(r'has no field named "(?P<name>\w+)"')
_FIELD_VALUE = re.compile(r'\s*:?\s*(?:"(?:[^"\\]|\\.)*"|[^\s{}"]+)')


def unknown_field(parser_log: str) -> str | None:
    """Return the field that protobuf's text parser complains of in ``parser_log``, or None.

    protobuf logs ``... Message type "stream_executor.GpuDeviceInfoProto" has no field named "thread_dim_limit_x".``
    and XLA's own error does not repeat it.
    """
    match = _UNKNOWN_FIELD.search(parser_log)
    return match["name"] if match else None


def without_field(text: str, name: str) -> str:
    """Return ``text`` without any field ``name``, scalar or message, at any depth. Unchanged where it has none."""
    field = re.compile(rf"(?<![\w\"]){re.escape(name)}\b(?=\s*[:{{])")
    while match := field.search(text):
        text = text[: match.start()] + text[_end_of_value(text, match.end()) :]
    return text


def _end_of_value(text: str, start: int) -> int:
    if re.match(r"\s*:?\s*\{", text[start:]):
        return _end_of_message(text, start)
    value = _FIELD_VALUE.match(text, start)
    return value.end() if value else start


def _end_of_message(text: str, start: int) -> int:
    depth = 0
    for token in re.compile(r'"(?:[^"\\]|\\.)*"|[{}]').finditer(text, start):
        depth += {"{": 1, "}": -1}.get(token[0], 0)
        if depth == 0 and token[0] == "}":
            return token.end()
    return len(text)
