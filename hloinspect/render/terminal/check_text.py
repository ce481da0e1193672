"""The gate's answer for a terminal and a log: a line for each budget; where one is broken, what changed and where."""

from __future__ import annotations

from collections.abc import Sequence

import click

from hloinspect.errors import printable
from hloinspect.gate.explain import joined
from hloinspect.gate.gate import PASSED, Checked, Unread
from hloinspect.gate.judge import OVER
from hloinspect.gate.words import details, finding_text, new_finding_lines, result_text, title, title_of_unread
from hloinspect.kinds import UNKNOWN

LABELS = {"within": "ok", "over": "FAILED", "unknown": "UNKNOWN", "missing": "MISSING"}
_COLORS = {"within": "green", "over": "red", "unknown": "magenta", "missing": "red"}
_INDENT = " " * 8


def render(checks: Sequence[Checked], allow_unknown: bool = False, unread: Sequence[Unread] = ()) -> str:
    """Return a line for what fails whatever the budgets are and for every budget of every step, in order, and then for
    the steps that could not be read."""
    lines: list[str] = []
    for checked in checks:
        failed = click.style(LABELS[OVER], fg=_COLORS[OVER], bold=True)
        lines += [f"{failed}  {title(checked)}  {finding_text(finding)}" for finding in checked.blocked]
        unknown = click.style(LABELS[UNKNOWN], fg=_COLORS[UNKNOWN], bold=True)
        lines += [f"{unknown}  {title(checked)}  {printable(note.text)}" for note in checked.undecided]
        for result in checked.results:
            label = click.style(LABELS[result.status], fg=_COLORS[result.status], bold=True)
            lines.append(f"{label}  {title(checked)}  {result_text(result)}")
        if checked.status(allow_unknown) != PASSED:
            lines += joined(details(checked), _INDENT)
        elif checked.difference is not None:
            lines += joined(new_finding_lines(checked), _INDENT)
            if checked.difference.made:
                lines += joined(["since the baseline:", *map(printable, checked.difference.made)], _INDENT)
        lines += joined([printable(note.text) for note in checked.notes if note not in checked.undecided], _INDENT)
    label = click.style("ERROR", fg="red", bold=True)
    lines += [f"{label}  {title_of_unread(one)}  {printable(one.message)}" for one in unread]
    return "\n".join(lines)
