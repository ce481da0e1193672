"""Two answers side by side for a terminal."""

from __future__ import annotations

import textwrap

import click

from hloinspect.gate.difference import Difference
from hloinspect.gate.explain import amount_text, changed_metrics, explanation, percent_text, snapshot_title

_COLORS = {"gone": "red", "new": "yellow", "changed": "cyan"}


def to_text(found: Difference, width: int = 100, show_all: bool = False) -> str:
    """What differs, the figures first."""
    lines = [f"A  {snapshot_title(found.before)}", f"B  {snapshot_title(found.after)}"]
    rows = [("", "A", "B", "")]
    rows += [
        (c.metric, amount_text(c.before, c.unit), amount_text(c.after, c.unit), percent_text(c))
        for c in changed_metrics(found)
    ]
    if len(rows) > 1:
        widths = [max(len(row[column]) for row in rows) for column in range(4)]
        lines.append("")
        for number, row in enumerate(rows):
            cells = [row[0].ljust(widths[0]), *(row[i].rjust(widths[i]) for i in (1, 2, 3))]
            text = " " + "   ".join(cells).rstrip()
            lines.append(text if number else click.style(text, bold=True))
    told = explanation(found, show_all)
    if told:
        lines.append("")
    for line in told:
        wrapped = textwrap.wrap(line, width, subsequent_indent=" " * 9, break_long_words=False, break_on_hyphens=False)
        word = line.partition(" ")[0]
        if word in _COLORS:
            wrapped[0] = click.style(word, fg=_COLORS[word]) + wrapped[0][len(word) :]
        lines += wrapped
    if len(rows) == 1 and not told:
        lines += ["", click.style("no difference", fg="green") + ": the same transfers, figures and findings"]
    return "\n".join(lines)
