"""The texts below the fields of records, which the schemas and the tables of fields are generated from."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Mapping
from dataclasses import fields
from functools import cache


@cache
def field_words(record: type) -> Mapping[str, str]:
    """Return the text below each field of a dataclass, on one line; a field without one is left out."""
    body = ast.parse(textwrap.dedent(inspect.getsource(record))).body[0]
    assert isinstance(body, ast.ClassDef)
    found: dict[str, str] = {}
    for statement, following in zip(body.body, body.body[1:], strict=False):
        if not isinstance(statement, ast.AnnAssign) or not isinstance(statement.target, ast.Name):
            continue
        if isinstance(following, ast.Expr) and isinstance(following.value, ast.Constant):
            found[statement.target.id] = " ".join(str(following.value.value).split())
    return found


def record_words(record: type) -> str:
    """Return the docstring of a dataclass, on one line."""
    return " ".join((record.__doc__ or "").split())


def fields_without_words(record: type) -> list[str]:
    """Return the fields of a dataclass that nothing is said of."""
    return [f"{record.__name__}.{field.name}" for field in fields(record) if field.name not in field_words(record)]
