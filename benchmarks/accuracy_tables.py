"""Common parts of the accuracy scripts: a row of a comparison, quartiles, and Markdown tables."""

from __future__ import annotations

import platform
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import quantiles

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))  # a checkout is enough to run the scripts

from hloinspect import __version__  # noqa: E402


@dataclass(frozen=True, slots=True)
class Row:
    """A measured figure beside the predicted one, both in ``unit``.

    ``low`` and ``high`` span the scenarios. ``fitted`` is true where the target's figure was set from this very
    measurement: then the row only shows that the model can reach it. ``range_fitted`` is true where an end of the range
    was: then the central figure is independent, but that the range contains the measurement says nothing.
    """

    what: str
    unit: str
    measured: float
    predicted: float
    low: float
    high: float
    fitted: bool = False
    range_fitted: bool = False

    @property
    def mark(self) -> str:
        """Return what a reader must know of the row."""
        if self.fitted:
            return "fitted"
        return "range fitted" if self.range_fitted else "" if self.inside else "outside the range"

    @property
    def ratio(self) -> float:
        """Return the predicted figure over the measured one."""
        return self.predicted / self.measured

    @property
    def inside(self) -> bool:
        """Return whether the measured figure lies within the predicted range."""
        return self.low <= self.measured <= self.high


def number(value: float) -> str:
    """Return a number with three significant digits, without an exponent."""
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}"


def markdown(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table."""
    lines = [f"| {' | '.join(header)} |", f"|{'---|' * len(header)}"]
    return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in rows)])


def comparison(rows: Iterable[Row]) -> str:
    """Return the measured figures beside the predicted ones, as Markdown."""
    header = ("what", "measured", "predicted", "range", "predicted / measured", "")
    return markdown(
        header,
        (
            (
                row.what,
                f"{number(row.measured)} {row.unit}",
                number(row.predicted),
                f"{number(row.low)} to {number(row.high)}",
                f"{row.ratio:.2f}",
                row.mark,
            )
            for row in rows
        ),
    )


def five_numbers(values: Sequence[float]) -> tuple[float, float, float, float, float]:
    """Return minimum, quartiles and maximum; of one value five times that. Raises ValueError for none."""
    if not values:
        raise ValueError("no values")
    if len(values) == 1:
        return (values[0],) * 5
    low, middle, high = quantiles(values, n=4, method="inclusive")
    return min(values), low, middle, high, max(values)


def versions(*more: str) -> str:
    """Return one line with the versions that a table was made with."""
    return ", ".join([f"hloinspect {__version__}", f"Python {platform.python_version()}", *more])
