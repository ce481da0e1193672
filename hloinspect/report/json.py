"""A result as JSON, in the order of its schema."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

_DIGITS = 6


def rounded(value: object) -> object:
    """Floats cut to picoseconds of a millisecond's fraction, so that equal answers are equal bytes."""
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
