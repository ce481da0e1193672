"""Text in lines for a terminal: paragraphs with an indent, and short parts one after the other."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

import click


def wrapped(text: str, width: int, first: int = 0, rest: int = 0) -> list[str]:
    """Return the lines of ``text``, indented by ``first`` columns, those after the first by ``rest``.

    A word is never broken: names, flags and paths can be copied. So a line is longer than ``width`` where one word is.
    """
    return textwrap.wrap(
        text,
        width,
        initial_indent=" " * first,
        subsequent_indent=" " * rest,
        break_long_words=False,
        break_on_hyphens=False,
    )


def shown_length(text: str) -> int:
    """Return how many columns a text takes that may be styled."""
    return len(click.unstyle(text)) if "\x1b" in text else len(text)


def flow(parts: Sequence[str], separator: str, width: int, indent: int) -> list[str]:
    """Return lines of parts, one after the other; a part that would go beyond ``width`` begins a new line.

    New lines have ``indent``. A part that is longer than a line is wrapped.
    """
    lines = _part(parts[0], "", width, indent)
    for part in parts[1:]:
        if shown_length(lines[-1] + separator + part) <= width:
            lines[-1] += separator + part
        else:
            lines[-1] += separator.rstrip()
            lines += _part(part, " " * indent, width, indent)
    return lines


def _part(part: str, lead: str, width: int, indent: int) -> list[str]:
    """Return a part on one line if it fits there. A styled part is not wrapped, but has less indent if need be."""
    plain = click.unstyle(part) if "\x1b" in part else part
    if len(lead + plain) <= width:
        return [lead + part]
    if plain != part:
        return [lead[: max(0, width - len(plain))] + part]
    own = len(plain) - len(plain.lstrip())
    return wrapped(plain.lstrip(), width, len(lead) + own, indent)
