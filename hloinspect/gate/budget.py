"""Budgets: ``stall=2%``, ``stall.h2d=0.5ms``, ``exposed=1ms``. What cannot be told is never within budget."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from hloinspect.errors import UsageError
from hloinspect.report.schema import Report
from hloinspect.verdict import UNKNOWN

WITHIN = "within"
OVER = "over"

_UNITS_MS = {"ps": 1e-9, "ns": 1e-6, "us": 1e-3, "ms": 1.0, "s": 1e3}
_METRICS = {
    "stall": "waiting for the host",
    "stall.d2h": "waiting for copies to the host",
    "stall.h2d": "waiting for copies from the host",
    "exposed": "transfers without cover",
    "exposed.d2h": "copies to the host without cover",
    "exposed.h2d": "copies from the host without cover",
}
_BUDGET = re.compile(r"\s*([a-z0-9.]+)\s*=\s*(\d+(?:\.\d*)?|\.\d+)\s*(%|[a-z]+)\s*")
_EXPECTED = "expected METRIC=LIMIT, such as stall=2%, stall.h2d=0.5ms or exposed=1ms"


@dataclass(frozen=True, slots=True)
class Budget:
    """A limit on one metric: a share of the step if ``unit`` is ``%``, else milliseconds. ``text`` is as the user
    wrote it."""

    text: str
    metric: str
    limit: float
    unit: str


@dataclass(frozen=True, slots=True)
class BudgetResult:
    """``status`` is within, over or unknown; ``value`` is in the budget's own unit (% or ms), None where it is unknown.

    ``limit_ms`` and ``value_ms`` are the same in milliseconds a step. ``kind`` says predicted or measured.
    """

    budget: Budget
    status: str
    value: float | None
    value_ms: float | None
    limit_ms: float | None
    kind: str
    reason: str


def parse_budget(text: str) -> Budget:
    """The budget that ``text`` spells. Raises UsageError with what was expected."""
    match = _BUDGET.fullmatch(text)
    if match is None:
        raise UsageError(f"--budget {text!r}: {_EXPECTED}")
    metric, number, unit = match.groups()
    if metric not in _METRICS:
        raise UsageError(f"--budget {text!r}: unknown metric {metric!r}; known are {', '.join(_METRICS)}")
    limit = float(number)
    if not math.isfinite(limit):
        raise UsageError(f"--budget {text!r}: {number} is no limit; {_EXPECTED}")
    if unit == "%":
        return Budget(text.strip(), metric, limit, "%")
    if unit not in _UNITS_MS:
        raise UsageError(f"--budget {text!r}: unknown unit {unit!r}; use %, us, ms or s")
    return Budget(text.strip(), metric, limit * _UNITS_MS[unit], "ms")


def _value_ms(report: Report, metric: str) -> float | None:
    step = report.step.predicted
    if step is None:
        return None
    values = {
        "stall": step.stall_ms,
        "stall.d2h": step.stall_d2h_ms,
        "stall.h2d": step.stall_h2d_ms,
        "exposed": step.exposed_ms.total,
        "exposed.d2h": step.exposed_ms.d2h,
        "exposed.h2d": step.exposed_ms.h2d,
    }
    return values[metric]


def _doubt(report: Report, metric: str) -> str:
    """Why the report cannot carry a pass, or "": something that affects time is unknown."""
    for unknown in report.unknown:
        if unknown.affects in ("time", "transfers"):
            return unknown.reason
    if report.step.predicted is None:
        return "there is no predicted step"
    if report.host_copies and metric in ("stall.d2h", "stall.h2d"):
        return f"{report.host_copies[0].instruction} moves both ways, and its wait is in stall but in neither direction"
    unsure = [transfer for transfer in report.transfers if transfer.verdict == UNKNOWN]
    if unsure:
        return f"transfer {unsure[0].id} ({unsure[0].start}): {unsure[0].reason}"
    return ""


def check_budget(report: Report, budget: Budget) -> BudgetResult:
    """Holds one budget against a report. Over is over even where something else is unknown; within needs all
    evidence."""
    step = report.step.predicted
    value_ms = _value_ms(report, budget.metric)
    doubt = _doubt(report, budget.metric)
    if step is None or value_ms is None or step.time_ms <= 0:
        return BudgetResult(budget, UNKNOWN, None, None, None, "predicted", doubt or "the step takes no time")
    limit_ms = budget.limit if budget.unit == "ms" else budget.limit / 100 * step.time_ms
    value = value_ms if budget.unit == "ms" else value_ms / step.time_ms * 100
    what = _METRICS[budget.metric]
    if value_ms > limit_ms:
        return BudgetResult(budget, OVER, value, value_ms, limit_ms, "predicted", what)
    if doubt:
        return BudgetResult(budget, UNKNOWN, value, value_ms, limit_ms, "predicted", doubt)
    return BudgetResult(budget, WITHIN, value, value_ms, limit_ms, "predicted", what)
