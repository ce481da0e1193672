"""Two answers side by side for a terminal."""

from __future__ import annotations

import click

from hloinspect.gate.difference import Difference
from hloinspect.gate.explain import (
    amount_text,
    changed_metrics,
    explanation,
    not_compared,
    percent_text,
    snapshot_title,
    without_module,
)
from hloinspect.render.terminal.table import NARROW, Column, table
from hloinspect.render.terminal.wrap import wrapped

_COLORS = {"gone": "red", "new": "yellow", "changed": "cyan"}
_COLUMNS = (Column(is_left=True), Column("A"), Column("B"), Column())


def to_text(found: Difference, width: int = 100, show_all: bool = False) -> str:
    """Return what differs, the figures first."""
    lines = [f"A  {snapshot_title(found.before)}", f"B  {snapshot_title(found.after)}"]
    bare = without_module(found)
    rows = [
        (c.metric, amount_text(c.before, c.unit), amount_text(c.after, c.unit), percent_text(c))
        for c in changed_metrics(found)
    ]
    if rows:
        lines += ["", *table(_COLUMNS, rows, width, NARROW)]
    changes = explanation(found, show_all) if not bare else []
    if changes:
        lines.append("")
    if bare:
        lines += ["", *wrapped(not_compared(bare), width, 0, 3)]
    for line in changes:
        part = wrapped(line, width, 0, 9)
        word = line.partition(" ")[0]
        if word in _COLORS:
            part[0] = click.style(word, fg=_COLORS[word]) + part[0][len(word) :]
        lines += part
    if not rows and not changes and not bare:
        lines += ["", click.style("no difference", fg="green") + ": the same transfers, figures and findings"]
    return "\n".join(lines)
