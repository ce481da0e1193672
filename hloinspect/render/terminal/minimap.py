"""A step in a few rows of characters, for the terminal: what the main stream and both directions of the link do when.

A column is an equal share of the step. A loop takes the columns of all its iterations, and shows its steady one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby

import click

from hloinspect.kinds import D2H, H2D
from hloinspect.timeline.intervals import Span, covered_length, length, subtract, union
from hloinspect.timeline.timeline import COLLECTIVE, COMPUTE, WAIT, Segment, Timeline

LEVELS = " ▁▂▃▄▅▆▇█"
ASCII_LEVELS = " .-=#"
WAITING, ASCII_WAITING = "░", "w"
"""A column of the main stream in which it waits longer than it works."""

_LABEL = 7
_NOTE = 16
_LEAST = 20
"""Columns below which a picture shows too little."""


@dataclass(frozen=True, slots=True)
class Stage:
    """A part of the picture: segments that follow each other and happen equally often."""

    repeat: int
    segments: tuple[Segment, ...]

    @property
    def iteration_ps(self) -> int:
        """Return how long they take once."""
        return sum(segment.end_ps - segment.start_ps for segment in self.segments)

    def spans(self, *kinds: str) -> list[Span]:
        """Return when something of these kinds goes on, from the stage's begin."""
        found: list[Span] = []
        begin = 0
        for segment in self.segments:
            shift = begin - segment.start_ps
            found += [(i.start_ps + shift, i.end_ps + shift) for i in segment.intervals if i.kind in kinds]
            begin += segment.end_ps - segment.start_ps
        return union(found)


def minimap(timeline: Timeline, width: int, *, is_unicode: bool = True, is_window: bool = False) -> list[str]:
    """Return rows of at most ``width`` columns, styled: the main stream, each direction with copies, and where loops
    are.

    There are none for a timeline without transfers or without time, or where there is no room. ``is_window``: a
    transfer's time is its window, from `copy-start` to the end of `copy-done`, and not that of its copy.
    """
    columns = width - _LABEL - _NOTE
    stages = _stages(timeline.segments)
    kinds = {i.kind for segment in timeline.segments for i in segment.intervals}
    directions = [direction for direction in (D2H, H2D) if direction in kinds]
    sized = _sized(stages, columns)
    if not directions or not sized or columns < _LEAST:
        return []
    total = sum(stage.repeat * stage.iteration_ps for stage in stages)
    waited = sum(stage.repeat * length(stage.spans(WAIT)) for stage in stages)
    mark = WAITING if is_unicode else ASCII_WAITING
    lines = [_line("main", _main_row(sized, is_unicode), f"{mark} waits {_percent(waited, total)}")]
    word = "open" if is_window else "busy"
    for direction in directions:
        busy = sum(stage.repeat * length(stage.spans(direction)) for stage in stages)
        cells = [_level(share, is_unicode) for share in _shares(sized, direction)]
        lines.append(_line(direction, "".join(cells), f"{word} {_percent(busy, total)}", "cyan"))
    if any(stage.repeat > 1 for stage, _ in sized):
        lines.append(_line("", _loops(sized), "xN iterations"))
    return lines


def _line(label: str, cells: str, note: str, color: str | None = None) -> str:
    return f" {label:<{_LABEL - 1}}{click.style(cells, fg=color) if color else cells}  {note}".rstrip()


def _percent(part: int, whole: int) -> str:
    return f"{100 * part / whole:.0f} %" if whole else "0 %"


def _stages(segments: Iterable[Segment]) -> list[Stage]:
    return [Stage(repeat, tuple(alike)) for repeat, alike in groupby(segments, lambda segment: segment.repeat)]


def _sized(stages: Sequence[Stage], columns: int) -> list[tuple[Stage, int]]:
    """Return the stages with the columns of each, by their share of the step; those with none are left out."""
    total = sum(stage.repeat * stage.iteration_ps for stage in stages)
    found, passed, taken = [], 0, 0
    for stage in stages:
        passed += stage.repeat * stage.iteration_ps
        end = (2 * passed * columns + total) // (2 * total) if total else 0
        if end > taken:
            found.append((stage, end - taken))
        taken = max(taken, end)
    return found


def _bins(stage: Stage, columns: int, spans: Sequence[Span]) -> list[float]:
    """Return the share of each column's time that spans cover."""
    iteration = stage.iteration_ps
    fine = [(start * columns, end * columns) for start, end in spans]  # so that columns begin at whole numbers
    return [
        covered_length(iteration * number, iteration * (number + 1), fine) / iteration if iteration else 0.0
        for number in range(columns)
    ]


def _shares(sized: Iterable[tuple[Stage, int]], *kinds: str) -> list[float]:
    return [share for stage, columns in sized for share in _bins(stage, columns, stage.spans(*kinds))]


def _level(share: float, is_unicode: bool) -> str:
    """Return the character of a column that is filled to a share; anything above nothing shows."""
    levels = LEVELS if is_unicode else ASCII_LEVELS
    most = len(levels) - 1
    return levels[min(most, max(1, round(share * most)))] if share > 0 else levels[0]


def _main_row(sized: Sequence[tuple[Stage, int]], is_unicode: bool) -> str:
    """Return the work of the main stream, in red where it mostly waits; neighbours of one colour are styled
    together."""
    mark = WAITING if is_unicode else ASCII_WAITING
    cells: list[tuple[str, str | None]] = []
    for stage, columns in sized:
        work = stage.spans(COMPUTE, COLLECTIVE)
        idle = subtract(stage.spans(WAIT), work)
        for busy, waits in zip(_bins(stage, columns, work), _bins(stage, columns, idle), strict=True):
            cells.append((mark, "red") if waits > busy else (_level(busy, is_unicode), "green"))
    row, at = "", 0
    while at < len(cells):
        end = at
        while end < len(cells) and cells[end][1] == cells[at][1]:
            end += 1
        row += click.style("".join(cell for cell, _ in cells[at:end]), fg=cells[at][1])
        at = end
    return row


def _loops(sized: Iterable[tuple[Stage, int]]) -> str:
    """Return where each loop is, and how many iterations it has: ``|x8      |x8     |``."""
    row = ""
    for stage, columns in sized:
        label = f"|x{stage.repeat:,}" if stage.repeat > 1 else "|"
        row += (label if len(label) < columns else "|").ljust(columns)[:columns]
    return row
