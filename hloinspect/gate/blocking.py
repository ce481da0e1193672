"""The rules that no budget may pass over: wrong values, and steps that cannot run."""

from __future__ import annotations

from dataclasses import dataclass

from hloinspect.gate.snapshot import MEASURED, kind_of
from hloinspect.report.schema import Report
from hloinspect.rules.blocking import BLOCKING, REFUSED, TOO_LARGE
from hloinspect.rules.rule import ERROR

OVER_REPORT = frozenset(BLOCKING) - {REFUSED}
"""Those of them that look at a report. A step that the compiler refuses has none, and is never judged."""


@dataclass(frozen=True, slots=True)
class Note:
    """One line on a blocking rule that fails nothing: it was left out, could not look, or found less than an error."""

    code: str
    text: str


def blocking_notes(report: Report) -> tuple[Note, ...]:
    """Return what has to be said of the blocking rules beside their errors: a pass says nothing of what nobody looked
    for."""
    notes = [
        Note(finding.code, f"{_named(finding.code)} was found as {_article(finding.severity)}: {finding.message}")
        for finding in report.findings
        if finding.code in BLOCKING and finding.severity != ERROR
    ]
    for left_out in report.rules_left_out:
        codes = sorted(OVER_REPORT) if left_out.code == "ALL" else [left_out.code]
        notes += [
            Note(code, f"{_named(code)} was not looked for: {left_out.reason}") for code in codes if code in OVER_REPORT
        ]
    for rule in report.rules_not_run:
        ran = rule.code == TOO_LARGE and kind_of(report) == MEASURED  # a step that was profiled did fit
        if rule.code in OVER_REPORT and not ran:
            notes.append(Note(rule.code, f"{_named(rule.code)} could not be looked for: {rule.reason}"))
    return tuple(notes)


def _named(code: str) -> str:
    return f"{code} ({BLOCKING[code]})"


def _article(severity: str) -> str:
    return "a warning, which fails no check" if severity == "warning" else "information, which fails no check"
