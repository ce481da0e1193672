"""The gate itself: an input becomes a report, and the report is checked against budgets and a baseline."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from hloinspect.analyze.answer import answer
from hloinspect.errors import UsageError
from hloinspect.gate.blocking import Note, blocking_notes
from hloinspect.gate.budget import DEFAULT_BUDGETS, DEFAULT_MEASURED, FINDINGS, Budget, counted_rule, parse_budget
from hloinspect.gate.config import GatedStep
from hloinspect.gate.judge import MISSING, OVER, WITHIN, BudgetResult, check_budget, doubt_of
from hloinspect.gate.snapshot import MEASURED, Snapshot, kind_of, seen_from, snapshot_of
from hloinspect.inputs.classify import DUMP
from hloinspect.kinds import UNKNOWN, GateStatus
from hloinspect.report.schema import FindingInfo, Report
from hloinspect.rules.blocking import blocking_findings

if TYPE_CHECKING:
    from hloinspect.gate.baseline import Baseline
    from hloinspect.gate.difference import Difference
    from hloinspect.gate.findings import FindingChange

PASSED: Final = "passed"
FAILED: Final = "failed"
UNDECIDED: Final = "unknown"
ERROR: Final = "error"


@dataclass(frozen=True, slots=True)
class NewFinding:
    """A finding that the baseline has not, and the budgets that count it and hold all the same."""

    change: FindingChange
    allowed_by: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Checked:
    """One step on one target: its report, the results of its budgets, and what is different from the baseline (None
    where there is none)."""

    name: str
    report: Report
    results: tuple[BudgetResult, ...]
    difference: Difference | None
    now: Snapshot

    def status(self, allow_unknown: bool = False) -> GateStatus:
        """Return passed, failed, or unknown: not enough evidence, or nothing to compare with (never allowed)."""
        statuses = {result.status for result in self.results}
        if self.blocked or OVER in statuses:
            return FAILED
        if MISSING in statuses or ((UNKNOWN in statuses or self.undecided) and not allow_unknown):
            return UNDECIDED
        return PASSED

    @property
    def blocked(self) -> tuple[FindingInfo, ...]:
        """Return the findings that fail the check whatever its budgets are."""
        return blocking_findings(self.report)

    @property
    def notes(self) -> tuple[Note, ...]:
        """Return what else has to be said of the rules behind ``blocked``, such as that one was left out."""
        return blocking_notes(self.report)

    @property
    def undecided(self) -> tuple[Note, ...]:
        """Return those of ``notes`` that leave open whether the step's values are right."""
        return tuple(note for note in self.notes if note.kind == "undecided")

    @property
    def new(self) -> tuple[NewFinding, ...]:
        """Return the findings that the baseline has not, or has as less."""
        if self.difference is None:
            return ()
        from hloinspect.gate.findings import is_new, new_count

        return tuple(
            NewFinding(
                change,
                tuple(
                    result.budget.text
                    for result in self.results
                    if result.status == WITHIN
                    and result.budget.metric.startswith(FINDINGS)
                    and new_count([change], *counted_rule(result.budget.metric))
                ),
            )
            for change in self.difference.findings
            if is_new(change)
        )

    @property
    def broken(self) -> tuple[BudgetResult, ...]:
        """Return the budgets that do not hold, or of which nothing can be said."""
        return tuple(result for result in self.results if result.status != WITHIN)


@dataclass(frozen=True, slots=True)
class Unread:
    """A step that could not be compiled or read, so that no budget was checked. ``message`` is one line, ``code``
    that of the rule that knows the compiler's error (HLO308), or ""."""

    name: str
    source: str
    target: str | None
    message: str
    code: str = ""


def overall(checks: Sequence[Checked], allow_unknown: bool = False, unread: Sequence[Unread] = ()) -> GateStatus:
    """Return the worst of all: error before failed before unknown before passed."""
    if unread:
        return ERROR
    statuses = [check.status(allow_unknown) for check in checks]
    return next((status for status in (FAILED, UNDECIDED) if status in statuses), PASSED)


def name_of(source: str, folder: Path) -> str:
    """Return what a baseline calls an input: its path as ``folder`` sees it, so that it is the same on every
    machine."""
    file, colon, function = source.rpartition(":")
    if colon and file.endswith(".py"):
        return f"{seen_from(file, folder)}:{function}"
    return source if colon else seen_from(source, folder)


def report_of(step: GatedStep, on_progress: Callable[[str], None] | None = None) -> Report:
    """Return the report on an input: measured for a trace, predicted for anything else. Raises HloInspectError."""
    return answer(step.source, step.compiling, step.judging, step.tracing, on_progress).report


def check_report(
    report: Report,
    name: str,
    budgets: Sequence[Budget],
    baseline: Baseline | None = None,
    source: str | None = None,
    is_named: bool = False,
) -> Checked:
    """Hold budgets against a report, over the baseline's entry for the step of that name; ``DEFAULT_BUDGETS`` where
    there is a baseline and no budget.

    ``source`` is the INPUT, None for a program without a file, and ``is_named`` whether the user gave the name.
    Raises UsageError where there is neither a budget nor a baseline, and for a budget over findings that counts
    nothing.
    """
    if not budgets:
        if baseline is None:
            raise UsageError("a gate needs a limit: --budget stall=2%, or --baseline (see `hloinspect check --help`)")
        budgets = _defaults(report)
    elif any(budget.metric.startswith(FINDINGS) for budget in budgets):
        from hloinspect.gate.sense import refuse_senseless_of

        refuse_senseless_of(budgets, report)
    origin = _origin(report, baseline, source, is_named) if baseline is not None else None
    now = snapshot_of(report, name, origin=origin)
    before = baseline.find(now) if baseline else None
    missing = baseline.why_missing(now) if baseline and before is None else "no --baseline was given"
    changes = None
    if before is not None:
        from hloinspect.gate.difference import snapshot_difference

        changes = snapshot_difference(before, now)  # once for all budgets: a baseline may hold many findings
    results = tuple(check_budget(report, budget, before, now, missing, changes) for budget in budgets)
    return Checked(name, report, results, changes, now)


def _origin(report: Report, baseline: Baseline, source: str | None, is_named: bool) -> str:
    """Return an input's origin, of a dump with the module."""
    from hloinspect.gate.origin import NAMED, origin_of

    origin = origin_of(source, baseline.path, is_named)
    return f"{origin}, module {report.module.name}" if report.input.kind == DUMP and origin != NAMED else origin


def _defaults(report: Report) -> list[Budget]:
    """Return what a baseline stands for, without what counts rules that were all left out."""
    from hloinspect.gate.sense import left_out_of_report, why_senseless

    left_out = left_out_of_report(report)
    defaults = DEFAULT_MEASURED if kind_of(report) == MEASURED else DEFAULT_BUDGETS
    return [budget for text in defaults if not why_senseless(budget := parse_budget(text), left_out)]


def why_no_entry(checked: Checked) -> str:
    """Return why an answer is no baseline, or "": one that rests on unknown times would let everything pass later. (A
    step with blocking findings is none either: ``Checked.blocked``.)"""
    undecided = "".join(note.text for note in checked.undecided[:1])
    return doubt_of(checked.report, "stall") or doubt_of(checked.report, "bytes") or undecided
