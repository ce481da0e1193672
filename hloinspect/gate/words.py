"""Text of a gate's results, in lines without colour: the same for the terminal, every CI report and errors."""

from __future__ import annotations

from collections.abc import Sequence

from hloinspect.errors import printable
from hloinspect.gate.budget import ABSOLUTE, FINDINGS, Budget, counts, family_of
from hloinspect.gate.explain import amount_text, amount_texts, explanation, finding_line, look_closer
from hloinspect.gate.gate import Checked, NewFinding, Unread
from hloinspect.gate.judge import OVER, BudgetResult
from hloinspect.report.schema import FindingInfo, Report
from hloinspect.rules.blocking import BLOCKING
from hloinspect.rules.rule import INFO
from hloinspect.units import time_text

MAX_CULPRITS = 3


def title_of_unread(unread: Unread) -> str:
    """Return a title like ``train.py:step (gb200)``."""
    return printable(unread.name) + (f" ({printable(unread.target)})" if unread.target else "")


def title(checked: Checked) -> str:
    """Return a title like ``train.py:step (8 x gb200)``."""
    target = checked.report.target
    return printable(checked.name) + (f" ({target.devices} x {printable(target.name)})" if target else "")


def finding_text(finding: FindingInfo) -> str:
    """Return one line on a finding that no budget overrides: ``HLO301 (wrong values): ...; try: ...  (a.py:21)``."""
    place = f"  ({finding.source.file}:{finding.source.line})" if finding.source else ""
    meaning = BLOCKING[finding.code]
    return printable(f"{finding.code} ({meaning}): {finding.message}; try: {finding.remedy}{place}")


def new_finding_lines(checked: Checked) -> list[str]:
    """Return a line for each finding that is new, with the budget that allows it."""
    return [f"{finding_line(new.change)}  ({_allowed(new)})" for new in checked.new]


def _allowed(new: NewFinding) -> str:
    return f"allowed by {', '.join(map(printable, new.allowed_by))}" if new.allowed_by else "no budget counts it"


def result_text(result: BudgetResult) -> str:
    """Return a line like ``stall=2%  predicted 0.3 ms = 0.40 % of at most 1.5 ms a step  (waiting for the host)``."""
    line = result.budget.text
    if result.value is not None and result.limit is not None:
        unit = "ms" if result.value_ms is not None else result.unit
        value = result.value_ms if result.value_ms is not None else result.value
        limit = result.limit_ms if result.limit_ms is not None else result.limit
        share = f" = {result.value:.2f} %" if result.unit == "%" and unit == "ms" else ""
        amount, allowed = amount_texts(value, limit, unit)
        line += f"  {result.kind} {amount}{share} of at most {allowed}"
        line += " a step" if unit == "ms" else ""
        if result.baseline is not None and result.budget.op == "+":
            line += f", baseline {amount_text(result.baseline, result.unit)}"
    return f"{line}  ({printable(result.reason)})"


def details(checked: Checked) -> list[str]:
    """Return the details of a check that did not pass, without colour.

    They are the differences from the baseline, the transfers that cost the most, and the commands to look closer.
    """
    report = checked.report
    known = report.trace is None or report.module.instructions  # else no transfer is known, and none is gone
    lines = explanation(checked.difference) if checked.difference and known else []
    over = [result.budget for result in checked.results if result.status == OVER]
    lines += _explained(checked, over)
    if any(family_of(budget) != FINDINGS for budget in over):
        lines += culprits(report)
    elif report.unknown:
        lines += [f"{printable(unknown.reason)}; try: {printable(unknown.remedy)}" for unknown in report.unknown[:2]]
    target = report.target
    source = report.input.path if report.input.kind != "dump" else checked.name
    command = look_closer(
        source, target.name if target else None, target.devices if target else None, report.trace is not None
    )
    return [*lines, f"look closer: {command}"]


def _explained(checked: Checked, over: Sequence[Budget]) -> list[str]:
    """Return the messages and remedies of findings that are new or that these budgets count."""
    counting = [budget for budget in over if family_of(budget) == FINDINGS]
    new = [f for f in _new_of(checked) if f.severity != INFO or _is_counted(f, counting)]
    new.sort(key=lambda finding: not _is_counted(finding, counting))
    limits = [budget for budget in counting if budget.op == ABSOLUTE]
    others = [f for f in checked.report.findings if f not in new and _is_counted(f, limits)]
    left = sum(max(len(found) - MAX_CULPRITS, 0) for found in (new, others))
    shown = [*new[:MAX_CULPRITS], *others[:MAX_CULPRITS]]
    lines = [f"{f.code}: {printable(f.message)}; try: {printable(f.remedy)}" for f in shown]
    return lines + ([f"and {left} more"] if left else [])


def _new_of(checked: Checked) -> list[FindingInfo]:
    """Return the report's findings that the baseline has not, or has with a lower severity."""
    if not checked.new:
        return []
    from hloinspect.gate.snapshot import findings_of

    return findings_of(checked.report, [new.change.group for new in checked.new])


def _is_counted(finding: FindingInfo, budgets: Sequence[Budget]) -> bool:
    return any(counts(budget.metric, finding.code, finding.severity) for budget in budgets)


def culprits(report: Report) -> list[str]:
    """Return the transfers that the step waits for the longest, a line each, with the line of the user's code."""
    waits = [((t.measured or t.predicted), t) for t in report.transfers]
    costly = sorted(waits, key=lambda pair: (-(pair[0].wait_ms if pair[0] else 0.0), pair[1].id))[:MAX_CULPRITS]
    found = []
    for times, transfer in costly:
        if times is None or times.wait_ms <= 0:
            continue
        source = transfer.source
        where = f"{printable(source.file)}:{source.line}" if source else printable(transfer.computation)
        head = f"{transfer.direction} {transfer.id} waits {time_text(times.wait_ms)}"
        found.append(f"{head}: {printable(transfer.reason)}  {where}")
    return found
