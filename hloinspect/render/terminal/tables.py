"""Plain tables: columns as wide as what is in them, colours left out of account."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import click


def table(
    header: Sequence[str],
    rows: Sequence[Sequence[str]],
    left: Collection[int] = (0,),
    width: int = 100,
    spare: Sequence[int] = (),
) -> list[str]:
    """A line for the header, in bold, and one for each row. The columns ``left`` begin where the others end. Where the
    lines would be longer than ``width`` gaps are narrowed, and the columns ``spare`` left out, one by one."""
    for dropped in range(len(spare) + 1):
        shown = [column for column in range(len(header)) if column not in spare[:dropped]]
        own = [left_one for left_one, column in enumerate(shown) if column in left]
        lines = _lines([[row[column] for column in shown] for row in (header, *rows)], own, width)
        if max(len(click.unstyle(line)) for line in lines) <= width:
            break
    return [click.style(lines[0], bold=True), *lines[1:]]


def _lines(rows: Sequence[Sequence[str]], left: Collection[int], width: int) -> list[str]:
    cells = [[click.unstyle(cell) for cell in row] for row in rows]
    widths = [max(len(row[column]) for row in cells) for column in range(len(rows[0]))]
    free = width - 1 - sum(widths)
    gap = " " * max(1, min(3, free // max(1, len(widths) - 1)))
    lines = []
    for styled in rows:
        padded = []
        for column, cell in enumerate(styled):
            space = " " * (widths[column] - len(click.unstyle(cell)))
            padded.append(cell + space if column in left else space + cell)
        lines.append((" " + gap.join(padded)).rstrip())
    return lines
