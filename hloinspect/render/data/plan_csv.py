"""The points of a plan as CSV, one a line, for a spreadsheet or a data frame."""

from __future__ import annotations

import csv
import io

from hloinspect.plan.model import Plan, Point

_FIGURES = (
    "target", "devices", "good", "fits", "obstacle", "error", "offload_lost", "fault", "front", "best",
    "time_ms", "low_ms", "high_ms", "compute_ms", "stall_ms", "without_transfers_ms", "samples_per_s", "tokens_per_s",
    "recompute_flops", "device_bytes", "device_limit_bytes", "host_bytes", "host_limit_bytes", "d2h_bytes", "h2d_bytes",
    "same_as", "compile_s", "from_cache",
)  # fmt: skip
_FORMULA = ("=", "+", "-", "@", "\t", "\r")
"""Beginnings that a spreadsheet takes for a formula."""


def plan_csv(plan: Plan) -> str:
    """Return a line with the names of the columns, and one for each point: its number, its settings, its figures."""
    axes = [name for name in plan.axes if name != "target"]
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(["point", *axes, *_FIGURES])
    for point in plan.points:
        figures = _figures(plan, point)
        settings = [_cell(point.settings.get(name, "")) for name in axes]
        writer.writerow([point.number, *settings, *(_cell(figures[name]) for name in _FIGURES)])
    return out.getvalue()


def _figures(plan: Plan, point: Point) -> dict[str, object]:
    step, memory = point.step, point.memory
    return {
        **{name: getattr(point, name) for name in _FIGURES if hasattr(point, name)},
        "good": point.is_good,
        "front": point.number in plan.front,
        "best": point.number == plan.best,
        **{
            name: getattr(step, name) if step else None
            for name in ("time_ms", "low_ms", "high_ms", "compute_ms", "stall_ms", "without_transfers_ms")
        },
        **{
            name: getattr(memory, name) if memory else None
            for name in ("device_bytes", "device_limit_bytes", "host_bytes", "host_limit_bytes")
        },
    }


def _cell(value: object) -> object:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return round(value, 6)
    if isinstance(value, str) and value.startswith(_FORMULA) and not value.lstrip("+-").replace(".", "", 1).isdecimal():
        return "'" + value
    return value
