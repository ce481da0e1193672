"""Detection of budgets over findings that can count nothing, since the rules that they count are left out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from hloinspect.errors import UsageError
from hloinspect.gate.budget import FINDINGS, Budget, counted_rule, with_article
from hloinspect.report.schema import Report

if TYPE_CHECKING:
    from hloinspect.rules.choice import Choice
    from hloinspect.rules.rule import Rule

_REMEDY = "take it back into what --ignore, --select, --severity or [tool.hloinspect] say, or drop the budget"


def refuse_senseless(budgets: Sequence[Budget], rules: Choice) -> None:
    """Raise UsageError for the first budget that can count nothing under this choice of rules."""
    for budget in budgets:
        if reason := why_senseless(budget, left_out_of_choice(budget, rules), rules):
            raise UsageError(f"the budget {budget.text} means nothing: {reason}; {_REMEDY}")


def refuse_senseless_of(budgets: Sequence[Budget], report: Report) -> None:
    """Raise UsageError for the first budget that counts only rules that the report was made without."""
    for budget in budgets:
        if reason := why_senseless(budget, left_out_of_report(report)):
            raise UsageError(f"the budget {budget.text} means nothing: {reason}; {_REMEDY}")


def why_senseless(budget: Budget, left_out: Mapping[str, str], rules: Choice | None = None) -> str:
    """Return why a budget can count nothing, or "". ``left_out`` maps codes of rules to what leaves them out."""
    if not budget.metric.startswith(FINDINGS):
        return ""
    fitting = rules_of(budget.metric)
    running = [rule for rule in fitting if rule.code not in left_out]
    code, severity = counted_rule(budget.metric)
    if not running:
        first = left_out[fitting[0].code]
        return f"{code or 'every rule'} is left out ({first})"
    if severity and not any(_can_be(rule, severity, rules) for rule in running):
        return f"no rule that runs can say {with_article(severity)}"
    return ""


def rules_of(metric: str) -> list[Rule]:
    """Return the rules that a metric of findings counts."""
    from hloinspect.rules.registry import RULES

    code, _ = counted_rule(metric)
    return [rule for rule in RULES if rule.code.startswith(code)]


def left_out_of_choice(budget: Budget, rules: Choice) -> dict[str, str]:
    """Return the rules of a budget that a choice leaves out: the entry that does so, by code."""
    if not budget.metric.startswith(FINDINGS):
        return {}
    return {rule.code: reason for rule in rules_of(budget.metric) if (reason := rules.why_left_out(rule.code))}


def left_out_of_report(report: Report) -> dict[str, str]:
    """Return the rules that a report was made without: the reason, by code."""
    if not report.rules_left_out:
        return {}
    every = [one.reason for one in report.rules_left_out if one.code == "ALL"]
    if every:
        return {rule.code: every[0] for rule in rules_of(FINDINGS)}
    return {one.code: one.reason for one in report.rules_left_out}


def _can_be(rule: Rule, severity: str, rules: Choice | None) -> bool:
    """Return whether a rule can have this severity: the one that was chosen for it, or its own and lower ones."""
    from hloinspect.rules.rule import SEVERITIES

    chosen = rules.severity_of(rule) if rules is not None else None
    return chosen == severity if chosen else SEVERITIES.index(rule.severity) <= SEVERITIES.index(severity)
