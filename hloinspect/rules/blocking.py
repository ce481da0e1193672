"""The rules whose errors come before everything else: wrong values, and steps that cannot run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from hloinspect.compile.known_errors import REFUSED
from hloinspect.rules.rule import ERROR

if TYPE_CHECKING:
    from hloinspect.report.schema import FindingInfo, Report

TOO_LARGE, WRONG_VALUES = "HLO209", "HLO301"

BLOCKING: Mapping[str, str] = {
    TOO_LARGE: "does not fit into device memory",
    WRONG_VALUES: "wrong values",
    REFUSED: "the compiler refuses the step",
}
"""Codes of the rules, and the meaning of their errors. These fail a check whatever its budgets are (gate/blocking.py),
and a report begins with them."""


def blocking_findings(report: Report) -> tuple[FindingInfo, ...]:
    """Return the errors of these rules, in the order of the report."""
    return tuple(f for f in report.findings if f.code in BLOCKING and f.severity == ERROR)
