"""Plain data as TOML text: the standard library only reads it."""

from __future__ import annotations

import json


def toml_text(document: dict[str, object]) -> str:
    """Return a document with one line for each of its keys. A ``str`` that begins with ``@`` is the spelling of a
    number, and is written without the ``@``."""
    return "".join(f"{json.dumps(key)} = {_value(value)}\n" for key, value in document.items())


def _value(value: object) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(key)} = {_value(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_value, value)) + "]"
    if isinstance(value, str) and value.startswith("@"):
        return value[1:]
    return json.dumps(value)
