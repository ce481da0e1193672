"""Errors of a gate that does not pass, with the whole answer attached."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hloinspect.errors import HloInspectError

if TYPE_CHECKING:
    from hloinspect.gate.gate import Checked
    from hloinspect.report.schema import Report


class BudgetExceeded(HloInspectError):
    """A step that costs more than its budget (``hloinspect.check``).

    ``checked`` has every budget's result, ``report`` the whole answer.
    """

    def __init__(self, message: str, checked: Checked) -> None:
        super().__init__(message)
        self.checked = checked

    def __reduce__(self) -> tuple[type[BudgetExceeded], tuple[str, Checked]]:
        """Return what makes the error again: it crosses processes, of pytest-xdist or a pool, and is copied."""
        return type(self), (str(self), self.checked)

    @property
    def report(self) -> Report:
        """Return the report that was compared with the budget."""
        return self.checked.report


class NotEnoughEvidence(BudgetExceeded):
    """A step that may or may not be within its budget: something is unknown, or the baseline lacks it."""
