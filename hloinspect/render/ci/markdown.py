"""The gate's answer as Markdown: the step summary of GitHub Actions, or a comment on a pull request."""

from __future__ import annotations

from collections.abc import Sequence

from hloinspect.errors import printable
from hloinspect.gate.explain import amount_text, amount_texts, changed_metrics, percent_text
from hloinspect.gate.gate import ERROR, FAILED, PASSED, Checked, Unread, overall
from hloinspect.gate.judge import BudgetResult
from hloinspect.gate.words import details, finding_text, new_finding_lines, title, title_of_unread
from hloinspect.report.schema import FindingInfo

_WORDS = {PASSED: "passed", FAILED: "failed", ERROR: "not all could be read"}
_MARKS = {"within": "ok", "over": "**FAILED**", "unknown": "unknown", "missing": "**no baseline**"}


def render(checks: Sequence[Checked], allow_unknown: bool = False, unread: Sequence[Unread] = ()) -> str:
    """Return a table of what fails whatever the budgets are, of all budgets and of what could not be read.

    Below it stand what nobody looked for, what changed for each step that did not pass, and what is new and which
    figures differ for each step with a baseline.
    """
    word = _WORDS.get(overall(checks, allow_unknown, unread), "not enough evidence")
    lines = [f"### hloinspect: {word}", ""]
    lines += ["| step | budget | | now | allowed | baseline |", "|---|---|---|---|---|---|"]
    for checked in checks:
        lines += [_blocked(checked, finding) for finding in checked.blocked]
        lines += [_row(checked, result) for result in checked.results]
    lines += [
        f"| {_cell(title_of_unread(one))} | {one.code} | **ERROR** | {_cell(one.message)} | | |" for one in unread
    ]
    notes = [f"- {_cell(title(checked))}: {_cell(note.text)}" for checked in checks for note in checked.notes]
    lines += ["", *notes] if notes else []
    for checked in checks:
        if checked.new and checked.status(allow_unknown) == PASSED:
            lines += ["", f"**{_cell(title(checked))}**", "", "```text", *map(_line, new_finding_lines(checked)), "```"]
        if checked.status(allow_unknown) != PASSED:
            lines += ["", f"**{_cell(title(checked))}**", "", "```text", *map(_line, details(checked)), "```"]
        if checked.difference is not None and (changed := changed_metrics(checked.difference)):
            lines += ["", f"<details><summary>{_cell(title(checked))}: figures that changed</summary>", ""]
            lines += ["| figure | baseline | now | |", "|---|---|---|---|"]
            for change in changed:
                values = [amount_text(value, change.unit) for value in (change.before, change.after)]
                lines.append(f"| {change.metric} | {values[0]} | {values[1]} | {percent_text(change)} |")
            lines += ["", "</details>"]
    return "\n".join(lines)


def _blocked(checked: Checked, finding: FindingInfo) -> str:
    return f"| {_cell(title(checked))} | {finding.code} | **FAILED** | {_cell(finding_text(finding))} | | |"


def _row(checked: Checked, result: BudgetResult) -> str:
    now, allowed, baseline = (amount_text(v, result.unit) for v in (result.value, result.limit, result.baseline))
    if result.value is not None and result.limit is not None:
        now, allowed = amount_texts(result.value, result.limit, result.unit)
    mark = _MARKS[result.status]
    if result.value is None:
        now = _cell(result.reason)
    cells = (_cell(title(checked)), f"`{_cell(result.budget.text)}`", mark, now, allowed, baseline)
    return f"| {' | '.join('' if cell == '?' else cell for cell in cells)} |"


def _cell(text: str) -> str:
    """Return text that neither ends a cell nor begins a tag."""
    shown = printable(text).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return shown.replace("|", "\\|").replace("`", "'")


def _line(text: str) -> str:
    return printable(text).replace("```", "'''")
