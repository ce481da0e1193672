"""Tables of fields in the documentation, from the types of results and the texts below their fields.

A page holds ``<!-- fields of NAME -->`` and ``<!-- end of fields -->``, and what stands between them is generated. NAME
is a record of one of the page's documents (``TransferInfo``). The fields of records behind it (``with TensorInfo``) are
rows of the same table.
"""

from __future__ import annotations

import re
import types
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from tests.support.field_words import field_words
from tests.support.json_schemas import DOCUMENTS, records_of, types_of_fields
from tests.support.places import ROOT

DOCS = ROOT / "docs"

PAGES: Mapping[str, tuple[str, ...]] = {
    "report.md": ("report", "check", "diff"),
    "ci.md": ("baseline",),
    "plan.md": ("plan",),
    "passes.md": ("passes",),
    "maxtext.md": ("maxtext",),
}
"""The pages with tables, and the documents that each describes."""

_BLOCK = re.compile(r"<!-- fields of (\w+)(?: with ([\w, ]+?))? -->\n(.*?)<!-- end of fields -->", re.DOTALL)
_HEADING = re.compile(r"^#+ (.*)$", re.MULTILINE)
_LINK = re.compile(r"docs/((?:rules/)?(\w+))\.md(#[\w-]+)?")


@dataclass(frozen=True, slots=True)
class Block:
    """The table of one record in a page: where it stands, and the records whose fields are rows of it."""

    record: str
    inside: tuple[str, ...]
    heading: str


def page_with_tables(name: str) -> str:
    """Return the text of a page with its tables as they should be."""
    text = (DOCS / name).read_text(encoding="utf-8")
    known = {record.__name__: record for each in PAGES[name] for record in records_of(DOCUMENTS[each].record)}
    places = {**_places(), **{block.record: f"#{_anchor(block.heading)}" for block in blocks_of(text)}}

    def filled(match: re.Match[str]) -> str:
        inside = frozenset((match[2] or "").replace(" ", "").split(",")) - {""}
        writer = _Table(places, inside, name)
        rows = "\n".join(writer.rows(known[match[1]], ""))
        begin = match[0].partition("\n")[0]
        return f"{begin}\n| field | type | is |\n|---|---|---|\n{rows}\n<!-- end of fields -->"

    return _BLOCK.sub(filled, text)


def blocks_of(text: str) -> Iterator[Block]:
    """Yield the tables of a page."""
    for match in _BLOCK.finditer(text):
        headings = _HEADING.findall(text[: match.start()])
        inside = tuple(part.strip() for part in (match[2] or "").split(",") if part.strip())
        yield Block(match[1], inside, headings[-1])


def _places() -> dict[str, str]:
    """Return where each record has its table, as a link from any page."""
    texts = {name: (DOCS / name).read_text(encoding="utf-8") for name in PAGES}
    return {
        block.record: f"{name}#{_anchor(block.heading)}" for name, text in texts.items() for block in blocks_of(text)
    }


def _anchor(heading: str) -> str:
    """Return how GitHub names the anchor of a heading."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


class _Table:
    """Writes the rows of a record."""

    def __init__(self, places: Mapping[str, str], inside: frozenset[str], page: str) -> None:
        self._places, self._inside, self._page = places, inside, page

    def rows(self, record: type, prefix: str) -> Iterator[str]:
        """Yield a row for each field, and behind it the rows of the record in it."""
        types_of, words = types_of_fields(record), field_words(record)
        for field in fields(record):
            declared = types_of[field.name]
            path = f"{prefix}{field.name}"
            yield f"| `{path}` | {self._type(declared)} | {self._linked(words.get(field.name, ''))} |"
            for found, mark in _records_in(declared):
                if found.__name__ in self._inside:
                    yield from self.rows(found, f"{path}{mark}.")

    def _linked(self, text: str) -> str:
        def link(match: re.Match[str]) -> str:
            path, name, anchor = match[1], match[2], match[3] or ""
            page = "" if f"{path}.md" == self._page else f"{path}.md"
            return f"[{'rules' if name == 'index' else name}]({page}{anchor})"

        here = text.replace(f" (docs/{self._page})", "")
        return _LINK.sub(link, here).replace("``", "`").replace("|", "\\|")

    def _type(self, declared: Any, many: bool = False) -> str:
        origin, arguments = get_origin(declared), get_args(declared)
        if origin is Annotated:
            return self._type(arguments[0], many)
        if origin is Literal:
            return ", ".join(f"`{word}`" for word in arguments)
        if origin in (Union, types.UnionType):
            parts = [self._type(argument, many) for argument in arguments if argument is not type(None)]
            return " or ".join([*dict.fromkeys(parts), *(["null"] if type(None) in arguments else [])])
        if is_dataclass(declared):
            return self._object(declared.__name__, many)
        if origin in (tuple, list):
            return f"list of {self._type(arguments[0], many=True)}"
        if origin is not None and issubclass(origin, Mapping):
            return f"object: {self._type(arguments[1])} by name"
        return _simple(declared, many)

    def _object(self, name: str, many: bool) -> str:
        word = "objects" if many else "object"
        return f"[{word}]({self._places[name]})" if name in self._places and name not in self._inside else word


def _simple(declared: Any, many: bool) -> str:
    words: Mapping[Any, tuple[str, str]] = {
        str: ("text", "texts"),
        int: ("integer", "integers"),
        float: ("number", "numbers"),
        bool: ("true or false", "true or false"),
    }
    return words.get(declared, ("any", "any"))[many]


def _records_in(declared: Any, mark: str = "") -> Iterator[tuple[type, str]]:
    """Yield the records that a field holds, with what stands behind its name: ``[]`` for those of a list."""
    origin, arguments = get_origin(declared), get_args(declared)
    if is_dataclass(declared) and isinstance(declared, type):
        yield declared, mark
    elif origin in (tuple, list):
        yield from _records_in(arguments[0], f"{mark}[]")
    elif origin in (Union, types.UnionType, Annotated):
        for argument in arguments:
            yield from _records_in(argument, mark)
    elif origin is not None and isinstance(origin, type) and issubclass(origin, Mapping):
        yield from _records_in(arguments[1], f"{mark}.*")


def records_without_table() -> list[str]:
    """Return the records of all documents that have neither a table nor rows in one."""
    blocks = [block for name in PAGES for block in blocks_of((DOCS / name).read_text(encoding="utf-8"))]
    shown = {word for block in blocks for word in (block.record, *block.inside)}
    found = {record.__name__ for document in DOCUMENTS.values() for record in records_of(document.record)}
    return sorted(found - shown)


def page_path(name: str) -> Path:
    """Return the file of a page."""
    return DOCS / name
