"""Pieces of HTML. Whatever comes from outside goes through ``text``: printable, and escaped."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from html import escape

from hloinspect.errors import printable

_MARKS = re.compile(r"`([^`]+)`|\*\*([^*]+)\*\*|(?<![\w-])(--[\w.=/,-]*\w)")
_WORD = re.compile(r"[a-z]+[ ,:;]")


def text(value: str) -> str:
    """Return text from outside as text of a page: nothing in it is markup, and control characters and marks that change
    the direction of writing are ``?``."""
    return escape(printable(value), quote=True)


def element(tag: str, inner: str, **attributes: str | None) -> str:
    """Return an element around HTML. Attributes are escaped; ``class_`` is class, and underscores are hyphens."""
    names = {name.rstrip("_").replace("_", "-"): value for name, value in attributes.items()}
    written = "".join(f' {name}="{text(value)}"' for name, value in names.items() if value is not None)
    return f"<{tag}{written}>{inner}</{tag}>"


def table(head: Sequence[str], rows: Iterable[Sequence[str]], caption: str, numbers: Iterable[int] = ()) -> str:
    """Return a table of texts. ``numbers`` are the columns that are set to the right; the first column names its
    row."""
    right = set(numbers)

    def cells(tag: str, row: Sequence[str]) -> str:
        return "".join(
            element(
                "th" if column == 0 else tag,
                text(cell),
                class_="number" if column in right else None,
                scope="row" if column == 0 and tag == "td" else "col" if tag == "th" else None,
            )
            for column, cell in enumerate(row)
        )

    body = "".join(f"<tr>{cells('td', row)}</tr>" for row in rows)
    inner = f"<caption>{text(caption)}</caption><thead><tr>{cells('th', head)}</tr></thead><tbody>{body}</tbody>"
    return f'<div class="scroll"><table>{inner}</table></div>'


def prose(source: str) -> str:
    """Return paragraphs of a rule's page, with its `code` and **stress**."""
    found = []
    for paragraph in re.split(r"\n\s*\n", source.strip()):
        escaped = text(" ".join(paragraph.split()))
        found.append(f"<p>{_MARKS.sub(_marked, escaped)}</p>")
    return "".join(found)


def _marked(match: re.Match[str]) -> str:
    if match[3]:
        return f'<code class="flag">{match[3]}</code>'
    return f"<code>{match[1]}</code>" if match[1] else f"<strong>{match[2]}</strong>"


def preformatted(source: str) -> str:
    """Return lines that keep their spaces and breaks."""
    return "<pre>" + "\n".join(text(line) for line in source.splitlines()) + "</pre>"


def sentence(value: str) -> str:
    """Return a text as an escaped sentence with a full stop. It gets a capital letter where it begins with a word and
    not with a name; flags and `code` are set as such."""
    shown = value[:1].upper() + value[1:] if _WORD.match(value) else value
    return _MARKS.sub(_marked, text(shown if shown.endswith((".", "?", "!")) else f"{shown}."))
