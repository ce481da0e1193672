"""Tables for a terminal: what goes first where there is no room for all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import click

Step = tuple[str, int | None]
"""A column to cut to so many characters, or with None to leave out."""

NARROWING: tuple[Step, ...] = (
    *(("tensor", 18), ("where", 18)),
    *(("takes", None), ("window", None)),
    *(("tensor", 12), ("where", 12)),
    *(("each", None), ("p90", None), ("runs", None), ("GB/s", None)),
    *(("tensor", 8), ("where", 8)),
    *(("covered", None), ("ratio", None), ("model", None)),
)
"""What a table of transfers does without, in order, until it fits: never which it is, its wait and its verdict."""


def cut(text: str, width: int) -> str:
    """Text with an ellipsis where it is longer than ``width``."""
    return text if len(text) <= width else text[: max(0, width - 1)] + "\u2026"


def fitted(rows: Sequence[Sequence[str]], width: int, narrowing: Sequence[Step] = NARROWING) -> list[list[str]]:
    """The rows of a table, the first its head, that fit into ``width`` columns if ``narrowing`` can do that.

    Before anything is cut, the column ``where`` does without functions. A cut column gets all the room there is.
    """
    table = [list(row) for row in rows]
    if _over(table, width) > 0 and "where" in table[0]:
        place = table[0].index("where")
        for row in table[1:]:
            row[place] = row[place].partition(" in ")[0]
    for name, least in narrowing:
        over = _over(table, width)
        if over <= 0:
            break
        if name not in table[0]:
            continue
        place = table[0].index(name)
        if least is None:
            for row in table:
                del row[place]
        else:
            room = max(least, len(name), max(len(row[place]) for row in table) - over)
            for row in table:
                row[place] = cut(row[place], room)
    return table


def _widths(table: Sequence[Sequence[str]]) -> list[int]:
    return [max(map(len, column)) for column in zip(*table, strict=True)]


def _over(table: Sequence[Sequence[str]], width: int) -> int:
    """By how many columns a table is too wide."""
    widths = _widths(table)
    return 1 + sum(widths) + 2 * (len(widths) - 1) - width


def lines_of(table: Sequence[Sequence[str]], left: frozenset[str], colors: Mapping[str, str]) -> list[str]:
    """A fitted table as styled lines: its head in bold, the columns of ``left`` to the left, verdicts in colour."""
    widths, head = _widths(table), table[0]
    lines = []
    for number, row in enumerate(table):
        cells = [
            cell.ljust(size) if name in left else cell.rjust(size)
            for name, cell, size in zip(head, row, widths, strict=True)
        ]
        if number and "verdict" in head:
            place = head.index("verdict")
            cells[place] = click.style(cells[place], fg=colors.get(row[place].rstrip("?")))
        line = " " + "  ".join(cells).rstrip()
        lines.append(line if number else click.style(line, bold=True))
    return lines
