"""Judgement of a report by budgets. A pass needs evidence for all of it; an unknown never passes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, cast

from hloinspect.gate.budget import ABSOLUTE, COUNT, FINDINGS, LOST, SIZE, TIME, Budget, counted_rule, counts
from hloinspect.gate.snapshot import MEASURED, Snapshot, figures_of, kind_of, snapshot_of
from hloinspect.kinds import UNKNOWN, Amount, Basis, BudgetStatus, BudgetUnit, Direction, Verdict
from hloinspect.report.schema import Report, RuleNotRun
from hloinspect.thresholds import UNSEEN_SHARE

if TYPE_CHECKING:
    from hloinspect.gate.difference import Difference

WITHIN: Final = "within"
OVER: Final = "over"
MISSING: Final = "missing"

_UNITS: Mapping[Amount, BudgetUnit] = {TIME: "ms", SIZE: "bytes", COUNT: "count"}
_ROUNDING = 1e-6
"""The precision of times in a baseline, in ms."""

_NOT_STATIC = "needs a trace"
"""The beginning of the reasons of rules that need a measurement (rules/engine.py)."""


@dataclass(frozen=True, slots=True)
class BudgetResult:
    """The result of one budget.

    ``status`` is within, over, unknown (not enough evidence), or missing (the baseline has nothing to compare with).
    ``value``, ``limit`` and ``baseline`` are in ``unit``: % or ms, bytes, count. ``limit`` is what is allowed, also
    where the budget is a tolerance. ``value_ms`` and ``limit_ms`` are the same of times in ms a step. All are None
    where they are not known. ``kind`` says predicted or measured.
    """

    budget: Budget
    status: BudgetStatus
    value: float | None
    limit: float | None
    baseline: float | None
    unit: BudgetUnit
    value_ms: float | None
    limit_ms: float | None
    kind: Basis
    reason: str


def check_budget(
    report: Report,
    budget: Budget,
    before: Snapshot | None = None,
    now: Snapshot | None = None,
    missing: str = "there is no baseline",
    changes: Difference | None = None,
) -> BudgetResult:
    """Return the result of one budget. Over is over even where something else is unknown; within needs all evidence.

    ``before`` is the baseline's entry, ``missing`` why there is none. ``now`` is the report's own snapshot and
    ``changes`` what differs between the two, where they exist already.
    """
    now = now or snapshot_of(report, "")
    if budget.needs_baseline and before is None:
        return _unsettled(budget, MISSING, kind_of(report), missing)
    base = None if before is None or budget.metric == LOST else amount_of(before, budget.metric)
    if budget.op != ABSOLUTE and base is None:
        return _unsettled(budget, MISSING, kind_of(report), f"the baseline has no {budget.words}")
    if before is not None and budget.op != ABSOLUTE and budget.metric.startswith(FINDINGS):
        return _new_findings(report, budget, before, now, changes or _difference(before, now))
    lost = (changes or _difference(before, now)) if before is not None and budget.metric == LOST else None
    value = float(lost.lost_runs) if lost else amount_of(now, budget.metric)
    doubt = doubt_of(report, budget.metric, before if budget.op != ABSOLUTE else None)
    if value is None or (lost and _has_no_module(report)):
        return _unsettled(budget, UNKNOWN, now.kind, doubt or f"there is no {budget.words}")
    share = _whole(report, now, budget) if budget.unit == "%" and budget.op == ABSOLUTE else None
    if budget.unit == "%" and budget.op == ABSOLUTE and not share:
        return _unsettled(budget, UNKNOWN, now.kind, doubt or f"there is nothing to take {budget.limit:g} % of")
    limit = _allowed(budget, base, share, before)
    status: BudgetStatus = OVER if value > limit else UNKNOWN if doubt else WITHIN
    reason = doubt if status == UNKNOWN else _reason(budget, lost)
    is_time = budget.kind == TIME
    scale = 100 / share if share else 1.0
    unit: BudgetUnit = "%" if share else _UNITS[budget.kind]
    return BudgetResult(
        budget=budget,
        status=status,
        value=value * scale,
        limit=limit * scale,
        baseline=None if base is None else base * scale,
        unit=unit,
        value_ms=value if is_time else None,
        limit_ms=limit if is_time else None,
        kind=now.kind,
        reason=reason,
    )


def _new_findings(report: Report, budget: Budget, before: Snapshot, now: Snapshot, changes: Difference) -> BudgetResult:
    """Return the result of a budget of new findings: one that is gone does not compensate for another that came."""
    from hloinspect.gate.findings import new_count

    code, severity = counted_rule(budget.metric)
    value = float(new_count(changes.findings, code, severity))
    doubt = doubt_of(report, budget.metric, before)
    status: BudgetStatus = OVER if value > budget.limit else UNKNOWN if doubt else WITHIN
    reason = doubt if status == UNKNOWN else f"new {budget.words}"
    return BudgetResult(budget, status, value, budget.limit, None, "count", None, None, now.kind, reason)


def _difference(before: Snapshot, now: Snapshot) -> Difference:
    from hloinspect.gate.difference import snapshot_difference  # not needed without a baseline

    return snapshot_difference(before, now)


def _unsettled(budget: Budget, status: BudgetStatus, kind: Basis, reason: str) -> BudgetResult:
    unit = _UNITS[budget.kind]
    return BudgetResult(budget, status, None, None, None, unit, None, None, kind, reason)


def _reason(budget: Budget, lost: Difference | None) -> str:
    if lost is not None and lost.lost:
        return f"{budget.words}: {lost.lost[0]}"
    return budget.words


def _whole(report: Report, now: Snapshot, budget: Budget) -> float | None:
    """Return the amount that an absolute percentage is a share of."""
    if budget.kind == TIME:
        return now.step_ms
    memory = report.memory
    limit = memory.device_limit_bytes if budget.metric == "memory.device" else memory.host_limit_bytes
    return None if limit is None else float(limit)


def _allowed(budget: Budget, base: float | None, share: float | None, before: Snapshot | None) -> float:
    if budget.op == ABSOLUTE:
        return budget.limit if share is None else budget.limit / 100 * share
    assert base is not None
    tolerance = budget.limit if budget.unit != "%" else budget.limit / 100 * base
    if budget.kind == TIME:
        # 5 % of a stall of nothing is nothing, and no regression that anyone could see.
        noise = UNSEEN_SHARE * (before.step_ms or 0.0) if before is not None and budget.unit == "%" else 0.0
        return base + max(tolerance, noise) + _ROUNDING
    return base + tolerance


def amount_of(snapshot: Snapshot, metric: str) -> float | None:
    """Return a metric's value in ms, bytes or a count, None where it is not known."""
    family, _, part = metric.partition(".")
    if family == "step":
        return snapshot.step_ms
    if family in ("stall", "exposed"):
        split = snapshot.stall_ms if family == "stall" else snapshot.exposed_ms
        return None if split is None else float(getattr(split, part or "total"))
    if family == "memory":
        size = snapshot.memory.device_bytes if part == "device" else snapshot.memory.host_bytes
        return None if size is None else float(size)
    if family == "bytes":
        return float(snapshot.bytes_per_step[cast(Direction, part)] if part else sum(snapshot.bytes_per_step.values()))
    if family == FINDINGS:
        chosen = [f for f in snapshot.findings if counts(metric, f.code, f.severity)]
        return float(sum(finding.count for finding in chosen))
    if part in ("d2h", "h2d"):
        return float(sum(group.count for group in snapshot.transfers if group.direction == part))
    return float(snapshot.verdicts.get(cast(Verdict, part), 0) if part else sum(snapshot.verdicts.values()))


def doubt_of(report: Report, metric: str, before: Snapshot | None = None) -> str:
    """Return why a report cannot pass on a metric, since something that affects it is unknown, or "".

    ``before`` is what a tolerance is compared with.
    """
    family, _, part = metric.partition(".")
    if family == "memory":
        return _memory_doubt(report, part, before)
    missing = [unknown.reason for unknown in report.unknown if unknown.affects == "transfers"]
    if missing:
        return missing[0]
    if family in ("bytes", LOST) or metric in ("count", "count.d2h", "count.h2d"):
        if _has_no_module(report):
            return "the trace holds no module, so its transfers are not known"
        return ""
    if family == FINDINGS:
        return _rules_doubt(report, metric, before)
    return _time_doubt(report, metric)


def _has_no_module(report: Report) -> bool:
    """Return whether a report is on a profile without a module, so that it lists no transfers."""
    return report.trace is not None and not report.module.instructions


def _memory_doubt(report: Report, part: str, before: Snapshot | None) -> str:
    alike = before is not None and before.memory.source == report.memory.source  # both too low, for one reason
    if report.memory.source == "estimated" and report.module.platform == "tpu" and not alike:
        return "memory that is estimated for a TPU is a lower bound: the padding of tiled layouts is not counted"
    if (report.memory.device_bytes if part == "device" else report.memory.host_bytes) is None:
        reasons = [unknown.reason for unknown in report.unknown if unknown.affects == "memory"]
        return reasons[0] if reasons else "a trace does not say how much memory the program has"
    return ""


def _time_doubt(report: Report, metric: str) -> str:
    for unknown in report.unknown:
        if unknown.affects == "time":
            return unknown.reason
    figures = figures_of(report)
    if figures is None:
        return f"there is no {kind_of(report)} step"
    if figures.time_ms <= 0:
        return "the step takes no time"
    if report.host_copies and metric in ("stall.d2h", "stall.h2d"):
        return f"{report.host_copies[0].instruction} moves both ways, and its wait is in stall but in neither direction"
    unsure = [transfer for transfer in report.transfers if transfer.verdict == UNKNOWN]
    return f"transfer {unsure[0].id} ({unsure[0].start}): {unsure[0].reason}" if unsure else ""


def _rules_doubt(report: Report, metric: str, before: Snapshot | None) -> str:
    """Return the reason of a rule that would count and could not run, or "".

    Rules that need a trace are not expected to run on a prediction. One that could not run for the baseline either is
    missing on both sides. But some rule must have run.
    """
    code, _ = counted_rule(metric)
    lacking = [rule for rule in report.rules_not_run if rule.code.startswith(code)]
    if not lacking:
        return ""
    from hloinspect.gate.sense import left_out_of_report, rules_of

    looked = {rule.code for rule in rules_of(metric)} - left_out_of_report(report).keys()
    if looked <= {rule.code for rule in lacking}:
        return _could_not(lacking[0])
    for rule in lacking:
        expected = kind_of(report) == MEASURED or not rule.reason.startswith(_NOT_STATIC)
        ran_before = before is None or rule.code not in before.rules_not_run
        if ran_before and expected:
            return _could_not(rule)
    return ""


def _could_not(rule: RuleNotRun) -> str:
    return f"{rule.code} {rule.name} could not run: {rule.reason} (or leave it out: --ignore {rule.code})"
