"""The blocking rules, which no budget overrides: wrong values, and steps that cannot run."""

from __future__ import annotations

from dataclasses import dataclass

from hloinspect.compile.known_errors import REFUSED
from hloinspect.gate.budget import with_article
from hloinspect.gate.snapshot import MEASURED, kind_of
from hloinspect.kinds import NoteKind
from hloinspect.report.schema import Report
from hloinspect.rules.blocking import BLOCKING, TOO_LARGE, WRONG_VALUES
from hloinspect.rules.rule import ERROR

OVER_REPORT = frozenset(BLOCKING) - {REFUSED}
"""Those of them that check a report. A step that the compiler refuses has none, and is never judged."""

_NO_ERROR = "here, which fails a check only by a budget that counts it"


@dataclass(frozen=True, slots=True)
class Note:
    """One line on a blocking rule that fails nothing.

    ``kind``: it found less than an error, it was left out, it could not run, or it could not run at all on the module
    that is checked, so that it is unknown whether values are wrong (``undecided``, which is no pass).
    """

    code: str
    kind: NoteKind
    text: str


def blocking_notes(report: Report) -> tuple[Note, ...]:
    """Return what has to be said of the blocking rules beside their errors, so that a pass is not read as more than it
    is."""
    found = [finding for finding in report.findings if finding.code in BLOCKING and finding.severity != ERROR]
    notes = [Note(f.code, "found", f"{f.code} is {with_article(f.severity)} {_NO_ERROR}: {f.message}") for f in found]
    for left_out in report.rules_left_out:
        codes = sorted(OVER_REPORT) if left_out.code == "ALL" else [left_out.code]
        notes += [
            Note(code, "left out", f"{_named(code)} was not looked for: {left_out.reason}")
            for code in codes
            if code in OVER_REPORT
        ]
    for rule in report.rules_not_run:
        ran = rule.code == TOO_LARGE and kind_of(report) == MEASURED  # a step that was profiled did fit
        if rule.code in OVER_REPORT and not ran:
            is_checked = rule.code == WRONG_VALUES and kind_of(report) != MEASURED
            text = f"{_named(rule.code)} could not be looked for: {rule.reason}"
            notes.append(Note(rule.code, "undecided" if is_checked else "could not look", text))
    return tuple(notes)


def _named(code: str) -> str:
    return f"{code} ({BLOCKING[code]})"
