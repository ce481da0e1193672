"""The tables of a terminal: columns side by side, and what is left out or cut first where there is no room for all."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace

import click

from hloinspect.render.terminal.wrap import shown_length, wrapped

Step = tuple[str, int | Callable[[str], str] | None]
"""A column, by its name, and what is done to it: None leaves it out, a number is the least width that
it is cut to, a function shortens each of its cells."""


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table. ``name`` is its head, which may have several lines.

    Cells stand to the right, or with ``is_left`` to the left. Unless it is cut, the column is at least ``least`` wide.
    The cells of the last column may be wrapped (``is_wrapped``): they get the room that the others leave, at least
    ``least``.
    """

    name: str = ""
    is_left: bool = False
    least: int = 0
    is_wrapped: bool = False


@dataclass(frozen=True, slots=True)
class Layout:
    """How a table stands. ``narrowing`` is what it does without, in order, until it fits. ``gaps`` are the least and
    the most columns between two cells."""

    narrowing: Sequence[Step] = ()
    gaps: tuple[int, int] = (2, 2)
    indent: int = 1
    has_head: bool = True


PLAIN = Layout()
NARROW = Layout(gaps=(1, 3))
"""With gaps that are narrower where there is little room."""


def columns_named(names: Sequence[str], left: Collection[str]) -> list[Column]:
    """Return columns with these names, those of ``left`` to the left."""
    return [Column(name, name in left) for name in names]


def cut(text: str, width: int) -> str:
    """Return ``text``, with an ellipsis where it is longer than ``width``."""
    return text if len(text) <= width else text[: max(0, width - 1)] + "\u2026"


def table(columns: Sequence[Column], rows: Sequence[Sequence[str]], width: int, layout: Layout = PLAIN) -> list[str]:
    """Return the lines of a table, its head in bold, in ``width`` columns if ``layout`` can do that.

    Cells may be styled: colours do not count as characters.
    """
    heads = max(column.name.count("\n") + 1 for column in columns) if layout.has_head else 0
    filled = [_filled(one, _head(one, heads), [row[place] for row in rows]) for place, one in enumerate(columns)]
    for name, how in layout.narrowing:
        over = _total(filled, layout, layout.gaps[0]) - width
        if over <= 0:
            break
        if how is None:
            filled = [one for one in filled if one.column.name != name]
        else:
            filled = [_shortened(one, how, over) if one.column.name == name else one for one in filled]
    least, most = layout.gaps
    gap = next((gap for gap in range(most, least, -1) if _total(filled, layout, gap) <= width), least)
    lines = []
    for number in range(heads):
        line = _lines([one.head[number] for one in filled], filled, width, gap, layout.indent)[0]
        lines.append(click.style(line, bold=True))
    for number in range(len(rows)):
        lines += _lines([one.cells[number] for one in filled], filled, width, gap, layout.indent)
    return lines


@dataclass(frozen=True, slots=True)
class _Filled:
    """A column with the lines of its head, its cells, and how wide it is."""

    column: Column
    head: Sequence[str]
    cells: Sequence[str]
    width: int


def _filled(column: Column, head: Sequence[str], cells: Sequence[str]) -> _Filled:
    counted = head if column.is_wrapped else (*head, *cells)
    return _Filled(column, head, cells, max([column.least, *map(shown_length, counted)]))


def _head(column: Column, heads: int) -> list[str]:
    """Return the lines of a head, the last one lowest."""
    lines = column.name.split("\n") if heads else []
    return [""] * (heads - len(lines)) + lines


def _total(filled: Sequence[_Filled], layout: Layout, gap: int) -> int:
    """Return how wide a table is with a gap."""
    return layout.indent + sum(one.width for one in filled) + gap * (len(filled) - 1)


def _shortened(filled: _Filled, how: int | Callable[[str], str], over: int) -> _Filled:
    """Return a column that is narrower, where that helps, in a table that is too wide by ``over``."""
    if callable(how):
        return _filled(filled.column, filled.head, [how(cell) for cell in filled.cells])
    room = max([how, filled.width - over, *map(len, filled.head)])
    cells = [cut(click.unstyle(cell), room) if shown_length(cell) > room else cell for cell in filled.cells]
    return _filled(replace(filled.column, least=0), filled.head, cells)


def _lines(cells: Sequence[str], filled: Sequence[_Filled], width: int, gap: int, indent: int) -> list[str]:
    """Return the line of a row; several where its last cell is wrapped."""
    padded = []
    for cell, one in zip(cells, filled, strict=True):
        space = " " * (one.width - shown_length(cell))
        padded.append(cell + space if one.column.is_left else space + cell)
    more: list[str] = []
    if filled[-1].column.is_wrapped:
        margin = indent + sum(one.width for one in filled[:-1]) + gap * (len(filled) - 1)
        padded[-1], *more = wrapped(cells[-1], max(filled[-1].width, width - margin)) or [""]
        more = [" " * margin + line for line in more]
    return [(" " * indent + (" " * gap).join(padded)).rstrip(), *more]
