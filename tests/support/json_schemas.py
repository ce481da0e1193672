"""JSON Schemas (draft 2020-12) from the types of results, and answers held against them.

The schemas in docs/schemas promise what a user may rely on: within version 1 no key goes, and keys may come. Tests are
stricter: a key that is in no type is a fault too.
"""

from __future__ import annotations

import json
import types
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, dataclass, fields, is_dataclass
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from jsonschema import Draft202012Validator, ValidationError

from hloinspect.gate.snapshot import Snapshot
from hloinspect.inputs.manifest import Configuration
from hloinspect.maxtext.summary import MaxTextAnswer
from hloinspect.plan.model import Plan
from hloinspect.render.data.check_json import CheckAnswer, StepDifference
from hloinspect.render.data.passes_json import PassesAnswer
from hloinspect.report.schema import Report
from tests.support.field_words import field_words, record_words
from tests.support.places import ROOT

SCHEMAS = ROOT / "docs" / "schemas"

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class BaselineFile:
    """A baseline (docs/ci.md#the-baseline), which ``hloinspect check`` writes and reads."""

    schema: Literal["hloinspect.baseline/1"]
    """Name and version of this schema."""

    entries: tuple[Snapshot, ...]
    """One entry for each step, target, number of devices and kind of figures."""


@dataclass(frozen=True, slots=True)
class Document:
    """A result that is written as JSON. ``is_read``: hloinspect also reads it, knows every key, and does without those
    that have a default."""

    name: str
    record: type
    is_read: bool = False

    @property
    def path(self) -> Path:
        """Return the file of its schema."""
        return SCHEMAS / f"{self.name}.schema.json"


DOCUMENTS = {
    document.name: document
    for document in (
        Document("report", Report),
        Document("check", CheckAnswer),
        Document("baseline", BaselineFile, is_read=True),
        Document("plan", Plan),
        Document("diff", StepDifference),
        Document("passes", PassesAnswer),
        Document("maxtext", MaxTextAnswer),
    )
}


# ---- schemas


def schema_text(document: Document) -> str:
    """Return the text of a file in docs/schemas."""
    return json.dumps(schema_of(document), indent=2) + "\n"


def schema_of(document: Document, strict: bool = False) -> Json:
    """Return the schema of a document. ``strict`` allows no key that is in no type."""
    writer = _Writer(is_open=not (strict or document.is_read), has_defaults=document.is_read)
    body = writer.object_of(document.record)
    name = f"hloinspect.{document.name}/1"
    if "schema" not in body["properties"]:
        named = {"const": name, "description": "Name and version of this schema."}
        body["properties"] = {"schema": named, **body["properties"]}
        body["required"] = ["schema", *body["required"]]
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": f"urn:hloinspect:{document.name}:1",
        "title": name,
        **body,
        "$defs": {key: writer.definitions[key] for key in sorted(writer.definitions)},
    }


class _Writer:
    """Writes schemas of types. Records that they refer to are in ``definitions``, by name."""

    def __init__(self, is_open: bool, has_defaults: bool) -> None:
        self._is_open, self._has_defaults = is_open, has_defaults
        self._records: dict[str, type] = {}
        self.definitions: dict[str, Json] = {}

    def object_of(self, record: type) -> Json:
        """Return the schema of a dataclass."""
        types_of = types_of_fields(record)
        words = field_words(record)
        found = {}
        required = []
        for field in fields(record):
            found[field.name] = {**self.schema_of(types_of[field.name])}
            if field.name in words:
                found[field.name]["description"] = plain(words[field.name])
            if not self._has_defaults or (field.default is MISSING and field.default_factory is MISSING):
                required.append(field.name)
        shape = {"type": "object", "properties": found, "required": required, "additionalProperties": self._is_open}
        return {"description": plain(record_words(record)), **shape}

    def schema_of(self, declared: Any) -> Json:
        """Return the schema of a type."""
        origin, arguments = get_origin(declared), get_args(declared)
        if origin is Annotated:
            return _with_rules(self.schema_of(arguments[0]), arguments[1:])
        if origin is Literal:
            return {"const": arguments[0]} if len(arguments) == 1 else {"enum": list(arguments)}
        if origin in (Union, types.UnionType):
            return self._union(arguments)
        if is_dataclass(declared):
            return self._reference(declared)
        if origin is tuple and arguments[-1] is not Ellipsis:
            items = [self.schema_of(each) for each in arguments]
            return {"type": "array", "prefixItems": items, "minItems": len(items), "maxItems": len(items)}
        if origin in (tuple, list):
            return {"type": "array", "items": self.schema_of(arguments[0])}
        if origin is not None and issubclass(origin, Mapping):
            return self._map(*arguments)
        return _simple(declared)

    def _reference(self, record: type) -> Json:
        name = record.__name__
        if self._records.setdefault(name, record) is not record:
            raise TypeError(f"two records of one document are called {name}")
        if name not in self.definitions:
            self.definitions[name] = {}  # a record may hold itself
            self.definitions[name] = self.object_of(record)
        return {"$ref": f"#/$defs/{name}"}

    def _map(self, key: Any, value: Any) -> Json:
        found: Json = {"type": "object", "additionalProperties": self.schema_of(value)}
        keys = self.schema_of(key)
        if keys == {"type": "integer"}:
            keys = {"pattern": "^[0-9]+$"}
        return found if keys == {"type": "string"} else {**found, "propertyNames": keys}

    def _union(self, arguments: tuple[Any, ...]) -> Json:
        parts = [self.schema_of(argument) for argument in arguments]
        words = [part.get("enum", [part["const"]] if "const" in part else None) for part in parts]
        if None not in words:
            return {"enum": [word for each in words for word in each or ()]}
        if all("type" in part and "properties" not in part for part in parts) and sum(len(p) > 1 for p in parts) < 2:
            limits = {key: value for part in parts for key, value in part.items() if key != "type"}
            return {"type": [part["type"] for part in parts], **limits}
        if parts[1:] == [{"type": "null"}] and "enum" in parts[0]:
            return {"enum": [*parts[0]["enum"], None]}
        return {"anyOf": parts}


def _simple(declared: Any) -> Json:
    names: Mapping[Any, str] = {str: "string", int: "integer", float: "number", bool: "boolean", type(None): "null"}
    if declared in names:
        return {"type": names[declared]}
    if declared in (object, Any):
        return {}
    raise TypeError(f"{declared!r} has no JSON Schema here")


def _with_rules(schema: Json, rules: tuple[Any, ...]) -> Json:
    """Return a schema with the rules of an ``Annotated`` type: bounds, a pattern, keys that a map must have."""
    for rule in rules:
        if hasattr(rule, "least") and hasattr(rule, "most"):
            schema = {**schema, "minimum": rule.least, "maximum": rule.most}
        elif hasattr(rule, "pattern"):
            schema = {**schema, "pattern": f"^(?:{rule.pattern})$"}
        elif hasattr(rule, "keys") and not rule.or_empty:
            schema = {**schema, "required": list(rule.keys)}
    return schema


def plain(text: str) -> str:
    """Return the words of a docstring as plain text."""
    return text.replace("``", "`")


# ---- answers


def faults(answer: Any, name: str) -> list[str]:
    """Return what of parsed JSON is not as the types of this document say, each with its place."""
    return _texts(_validator(name, True), answer)


def faults_for_users(answer: Any, name: str) -> list[str]:
    """Return what the committed schema of this document refuses of parsed JSON."""
    return _texts(_validator(name, False), answer)


def _texts(validator: Draft202012Validator, answer: Any) -> list[str]:
    found = [leaf for error in validator.iter_errors(answer) for leaf in _leaves(error)]
    return [f"{leaf.json_path}: {leaf.message[:300]}" for leaf in found]


def _leaves(error: ValidationError) -> Iterator[ValidationError]:
    """Yield what is wrong with a value that may also be null: what is wrong with it as it is not null."""
    others = [each for each in error.context or () if each.validator_value != "null"]
    if not others:
        yield error
    for each in others:
        yield from _leaves(each)


@cache
def _validator(name: str, strict: bool) -> Draft202012Validator:
    document = DOCUMENTS[name]
    schema = schema_of(document, strict=True) if strict else json.loads(document.path.read_text(encoding="utf-8"))
    return Draft202012Validator(schema)


def types_of_fields(record: type) -> dict[str, Any]:
    """Return the type of each field. A report names the configuration without importing it."""
    return get_type_hints(record, localns={"Configuration": Configuration}, include_extras=True)


def records_of(record: type) -> Iterator[type]:
    """Yield a record and all that it holds, each once."""
    waiting, seen = [record], {record}
    while waiting:
        current = waiting.pop(0)
        yield current
        for declared in types_of_fields(current).values():
            for found in _records_in(declared):
                if found not in seen:
                    seen.add(found)
                    waiting.append(found)


def _records_in(declared: Any) -> Iterator[type]:
    if is_dataclass(declared) and isinstance(declared, type):
        yield declared
    for argument in get_args(declared):
        yield from _records_in(argument)
