"""A result as JSON, in the order of its schema."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

_DIGITS = 6


def rounded(value: object) -> object:
    """Return parsed JSON with its floats rounded to a picosecond (of milliseconds), so that equal answers are equal
    bytes."""
    if isinstance(value, float):
        return round(value, _DIGITS)
    if isinstance(value, dict):
        return {key: rounded(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [rounded(item) for item in value]
    return value


def to_json(record: DataclassInstance) -> str:
    """Return a record, such as a report, as indented JSON text in the order of its fields."""
    return json.dumps(rounded(asdict(record)), indent=2)


def document_json(schema: str, record: DataclassInstance) -> str:
    """Return a record as indented JSON text, with the name of its schema in front."""
    found = rounded(asdict(record))
    assert isinstance(found, dict)
    return json.dumps({"schema": schema, **found}, indent=2)
