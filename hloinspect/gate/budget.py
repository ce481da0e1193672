"""The grammar of budgets: ``METRIC=LIMIT`` is an absolute limit, ``METRIC+TOLERANCE`` one relative to a baseline.

``stall=2%`` (of the step), ``stall.h2d=0.5ms``, ``stall+5%`` (more than the baseline's), ``memory.device=170GiB``,
``count.exposed=0``, ``findings.error=0``, ``lost=0`` (transfers of the baseline that are gone).
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Final

from hloinspect.errors import UsageError
from hloinspect.kinds import Amount, BudgetOp, BudgetUnit

TIME: Final = "time"
SIZE: Final = "size"
COUNT: Final = "count"
ABSOLUTE: Final = "="
OVER_BASELINE: Final = "+"
LOST = "lost"
FINDINGS = "findings"

METRICS: dict[str, tuple[Amount, str]] = {
    "step": (TIME, "time of a step"),
    "stall": (TIME, "waiting for the host"),
    "stall.d2h": (TIME, "waiting for copies to the host"),
    "stall.h2d": (TIME, "waiting for copies from the host"),
    "exposed": (TIME, "transfers without cover"),
    "exposed.d2h": (TIME, "copies to the host without cover"),
    "exposed.h2d": (TIME, "copies from the host without cover"),
    "memory.device": (SIZE, "memory of a device"),
    "memory.host": (SIZE, "pinned host memory of a device"),
    "bytes": (SIZE, "bytes moved in a step"),
    "bytes.d2h": (SIZE, "bytes moved to the host in a step"),
    "bytes.h2d": (SIZE, "bytes moved from the host in a step"),
    "count": (COUNT, "transfers"),
    "count.d2h": (COUNT, "copies to the host"),
    "count.h2d": (COUNT, "copies from the host"),
    "count.hidden": (COUNT, "hidden transfers"),
    "count.partial": (COUNT, "partly covered transfers"),
    "count.exposed": (COUNT, "exposed transfers"),
    "count.synchronous": (COUNT, "synchronous transfers"),
    LOST: (COUNT, "runs of transfers that the baseline has and this step has not"),
    FINDINGS: (COUNT, "findings"),
    "findings.error": (COUNT, "findings that are errors"),
    "findings.warning": (COUNT, "findings that are warnings"),
    "findings.info": (COUNT, "findings that inform"),
}
"""The metrics, each with the kind of its amount and a text for it. ``findings.HLO101`` counts one rule's findings."""

DEFAULT_BUDGETS = ("lost=0", "stall+5%", "memory.device+5%", "memory.host+5%", "findings.error+0")
"""The budgets that a baseline gets where none is given."""

DEFAULT_MEASURED = tuple(text for text in DEFAULT_BUDGETS if not text.startswith("memory"))
"""The budgets of a trace where none is given. A trace does not have the memory."""

_UNITS_MS = {"ps": 1e-9, "ns": 1e-6, "us": 1e-3, "ms": 1.0, "s": 1e3}
_UNITS_BYTES: dict[str, float] = {"B": 1, "kB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12}
_UNITS_BYTES |= {f"{letter}iB": 1024.0 ** (power + 1) for power, letter in enumerate("KMGT")}
_RULE = re.compile(r"findings\.(HLO\d{1,3})")
_BUDGET = re.compile(r"\s*([A-Za-z0-9.]+)\s*([=+])\s*([0-9]+(?:\.[0-9]*)?|\.[0-9]+)\s*(%|[A-Za-z]*)\s*")
_EXPECTED = "expected METRIC=LIMIT or METRIC+TOLERANCE, such as stall=2%, stall.h2d=0.5ms, stall+5% or count.exposed=0"
_NO_SHARE = frozenset({"step", "bytes", "bytes.d2h", "bytes.h2d"})


@dataclass(frozen=True, slots=True)
class Budget:
    """A limit on one metric; ``text`` is as the user wrote it.

    ``op`` is ``=`` (an absolute limit) or ``+`` (an excess over the baseline). ``unit`` is ``ms``, ``bytes``, ``count``
    or ``%``. A percentage is one of the step's time or of the available memory for ``=``, of the baseline's value for
    ``+``.
    """

    text: str
    """The budget as it was written."""

    metric: str
    """What it limits."""

    op: BudgetOp
    """``=`` for a limit, ``+`` for a tolerance over the baseline."""

    limit: float
    """The limit or the tolerance, in ``unit``."""

    unit: BudgetUnit
    """``ms``, ``bytes``, ``count``, or ``%``: of the step's time or of the memory there is for ``=``, of the baseline's
    value for ``+``."""

    @property
    def needs_baseline(self) -> bool:
        """Return whether it means nothing without a baseline."""
        return self.op == OVER_BASELINE or self.metric == LOST

    @property
    def kind(self) -> Amount:
        """Return the kind of amount that it limits: time, size or count."""
        return METRICS[self.metric][0] if self.metric in METRICS else COUNT

    @property
    def words(self) -> str:
        """Return the metric in words."""
        rule = rule_of_metric(self.metric)
        return f"findings of {rule}" if rule else METRICS[self.metric][1]


def rule_of_metric(metric: str) -> str:
    """Return the rule's code, or the beginning of one, that a metric like ``findings.HLO1`` names, else ""."""
    match = _RULE.fullmatch(metric)
    return match.group(1) if match else ""


def counted_rule(metric: str) -> tuple[str, str]:
    """Return the rule (or the beginning of its code) and the severity that a metric of findings counts; "" is any."""
    code = rule_of_metric(metric)
    return code, "" if code else metric.partition(".")[2]


def with_article(severity: str) -> str:
    """Return a severity with its article: ``an error``, ``a warning`` or ``information``."""
    return {"error": "an error", "warning": "a warning"}.get(severity, "information")


def family_of(budget: Budget) -> str:
    """Return the first part of a budget's metric: ``stall`` of ``stall.h2d``."""
    return budget.metric.partition(".")[0]


def counts(metric: str, code: str, severity: str) -> bool:
    """Return whether a metric of findings counts findings of this rule and severity."""
    rule, wanted = counted_rule(metric)
    return code.startswith(rule) and wanted in ("", severity)


def parse_budget(text: str, where: str = "--budget") -> Budget:
    """Return the budget that ``text`` spells.

    Raises UsageError, which begins with ``where`` the text stands, with what was expected.
    """
    shown = f"{where} {text[:80]!r}"
    match = _BUDGET.fullmatch(text)
    if match is None:
        raise UsageError(f"{shown}: {_EXPECTED}")
    metric, sign, number, unit = match.groups()
    op: BudgetOp = ABSOLUTE if sign == ABSOLUTE else OVER_BASELINE
    if metric not in METRICS and not rule_of_metric(metric):
        raise UsageError(f"{shown}: unknown metric {metric!r}; known are {', '.join(METRICS)}, findings.HLO101")
    _refuse_unknown_rule(rule_of_metric(metric), shown)
    limit = float(number)
    if not math.isfinite(limit):
        raise UsageError(f"{shown}: {number[:20]} is no limit; {_EXPECTED}")
    if metric == LOST and op == OVER_BASELINE:
        raise UsageError(f"{shown}: {LOST} counts against the baseline as it is: write {LOST}={number}")
    if unit == "%" and op == ABSOLUTE and metric in METRICS and METRICS[metric][0] == TIME and limit > 100:
        raise UsageError(f"{shown}: a share of the step is at most 100 %, so that this limit can never be exceeded")
    factor, unit = _unit(METRICS.get(metric, (COUNT, ""))[0], metric, op, unit, shown)
    return Budget(text.strip(), metric, op, limit * factor, unit)


def _refuse_unknown_rule(code: str, shown: str) -> None:
    if not code:
        return
    from hloinspect.rules.registry import RULES  # this imports all rules: only for those who name one

    if not any(rule.code.startswith(code) for rule in RULES):
        raise UsageError(f"{shown}: {code} is no rule's code or the beginning of one (see `hloinspect rules`)")


def _unit(kind: Amount, metric: str, op: BudgetOp, unit: str, shown: str) -> tuple[float, BudgetUnit]:
    """Return the factor for a number in ``unit``, and the unit of the product."""
    if kind == COUNT:
        if unit:
            raise UsageError(f"{shown}: {metric} is a count and takes no unit")
        return 1.0, "count"
    if unit == "%":
        if op == ABSOLUTE and metric in _NO_SHARE:
            raise UsageError(f"{shown}: there is nothing that {metric} is a share of; give an amount, or {metric}+5%")
        return 1.0, "%"
    units = _UNITS_MS if kind == TIME else _UNITS_BYTES
    if unit not in units:
        known = "%, us, ms or s" if kind == TIME else "%, MiB, GiB, MB or GB"
        what = f"unknown unit {unit!r}" if unit else "no unit"
        raise UsageError(f"{shown}: {what} for {metric}; use {known}, such as stall=2% or memory.device=170GiB")
    return units[unit], "ms" if kind == TIME else "bytes"
