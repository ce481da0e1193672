"""A plan for a terminal: the points, the front, the largest sizes that fit, and what would be elsewhere."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import click

from hloinspect.errors import printable
from hloinspect.plan.model import Plan, Point
from hloinspect.render.terminal.plan_more import elsewhere_lines, search_lines, tensor_lines
from hloinspect.render.terminal.table import NARROW, columns_named, table
from hloinspect.render.terminal.wrap import wrapped
from hloinspect.thresholds import SCHEDULER_MEMORY_SHARE
from hloinspect.units import bytes_text, listed, time_text

_MOST_ROWS = 60
_MOST_NUMBERS = 12
_LONGEST = 160  # of an error's text
_LAYOUT = replace(NARROW, narrowing=(("range", None), ("recomputes", None), ("link", None), ("host", None)))


def plan_text(plan: Plan, width: int = 100, show_all: bool = False) -> str:
    """Return the plan in at most ``width`` columns where names allow it.

    Without ``show_all`` a long table is cut to the points of the front, the best of the rest, and those that failed.
    """
    lines = [*_head(plan), "", *_points(plan, width, show_all), "", *_verdict(plan, width)]
    for part in (
        _largest(plan, width),
        search_lines(plan, width),
        tensor_lines(plan, width),
        elsewhere_lines(plan, width),
        _meanings(plan, width),
    ):
        if part:
            lines += ["", *part]
    lines += ["", *(line for limit in plan.limits for line in wrapped(f"limit: {limit}", width, 0, 3))]
    return "\n".join(lines)


def _head(plan: Plan) -> list[str]:
    count = len(plan.points)
    reused = count - plan.compiled - sum(point.error is not None for point in plan.points)
    from_cache = f" ({reused} from the cache)" if reused and plan.compiled else ""
    made = f"compiled without a device in {plan.seconds:.0f} s{from_cache}" if plan.compiled else "nothing compiled"
    if reused and not plan.compiled and any(point.compile_s is not None for point in plan.points):
        made = f"all from the cache, in {plan.seconds:.0f} s"
    devices = plan.points[0].devices if plan.points else 1
    title = click.style(printable(plan.source[:80]), bold=True)
    return [f"{title}   {devices} x {printable(', '.join(plan.targets))}   {count} points, predicted, {made}"]


# --- the points -----------------------------------------------------------------------------------


def _points(plan: Plan, width: int, show_all: bool) -> list[str]:
    shown = list(plan.points) if show_all or len(plan.points) <= _MOST_ROWS else _chosen(plan)
    axes = [name for name in plan.axes if _varies(plan, name)] or list(plan.axes)[:1]
    recomputes = any(point.recompute_flops for point in plan.points)
    moves = any(point.d2h_bytes or point.h2d_bytes for point in plan.points)
    header = ["", *axes, "step", "range", *(["waits"] if moves else []), plan.unit]
    header += [*(["recomputes"] if recomputes else []), "device", *(["host", "link"] if moves else []), "fits"]
    rows = [_row(plan, point, axes, recomputes, moves) for point in shown]
    lines = table(columns_named(header, {"", *axes, "fits"}), rows, width, _LAYOUT)
    hidden = len(plan.points) - len(shown)
    if hidden:
        lines.append(f" {hidden} more points with --all")
    return [*lines, *_remarks(shown, width)]


def _varies(plan: Plan, name: str) -> bool:
    return len({point.settings.get(name) for point in plan.points}) > 1


def _chosen(plan: Plan) -> list[Point]:
    """Return the front, what failed, and the fastest of the rest, in the order of the points."""
    wanted = {*plan.front, *(point.number for point in plan.points if point.error or not point.is_good)}
    for point in sorted(plan.points, key=lambda point: -point.speed):
        if len(wanted) >= _MOST_ROWS:
            break
        wanted.add(point.number)
    return [point for point in plan.points if point.number in wanted]


def _row(plan: Plan, point: Point, axes: Sequence[str], recomputes: bool, moves: bool) -> list[str]:
    mark = "*" if point.number == plan.best else "+" if point.number in plan.front else ""
    settings = [printable(point.settings.get(name, "own" if name == "policy" else "")) for name in axes]
    start = [f"{mark}{point.number}", *settings]
    if point.step is None:
        blanks = 2 + 2 * moves + recomputes + 2 + moves
        word = "error" if point.error else "unknown"
        return [*start, *[""] * blanks, _red(word) if point.error else word]
    step, memory = point.step, point.memory
    rate = point.tokens_per_s if plan.unit == "tokens/s" else point.speed
    device = "unknown" if memory is None or memory.device_bytes is None else bytes_text(memory.device_bytes)
    host = "unknown" if memory is None or memory.host_bytes is None else bytes_text(memory.host_bytes)
    link = point.d2h_bytes + point.h2d_bytes
    return [
        *start,
        time_text(step.time_ms),
        f"{_short(step.low_ms, step.time_ms)} to {_short(step.high_ms, step.time_ms)}",
        *([time_text(step.stall_ms) if step.stall_ms else "-"] if moves else []),
        rate_text(rate or 0.0),
        *([_flops(point.recompute_flops)] if recomputes else []),
        device,
        *([host if memory is not None and memory.host_bytes else "-"] if moves else []),
        *([bytes_text(link) if link else "-"] if moves else []),
        _fits(point),
    ]


def _short(time_ms: float, like_ms: float) -> str:
    """Return a time without its unit, with as many digits as that of the step beside it."""
    return f"{time_ms / 1e3:.1f}" if like_ms >= 10_000 else f"{time_ms:.0f}" if like_ms >= 100 else f"{time_ms:.3g}"


def rate_text(value: float) -> str:
    """Return a rate: ``65,215``, or three digits of a small one."""
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"


def _flops(value: float | None) -> str:
    """Return a number of operations: ``12.3 TF``."""
    if not value:
        return "-"
    for size, unit in ((1e15, "PF"), (1e12, "TF"), (1e9, "GF"), (1e6, "MF")):
        if value >= size:
            return f"{value / size:.3g} {unit}"
    return f"{value:.0f} F"


def _fits(point: Point) -> str:
    if point.fault is not None:
        return _red("wrong")
    if point.offload_lost is not None:
        return _red("offload lost")
    if point.fits is None:
        return "unknown"
    if not point.fits:
        return _red("no")
    return click.style("tight", fg="yellow") if point.memory is not None and point.memory.is_tight else "yes"


def _red(text: str) -> str:
    return click.style(text, fg="red")


def _remarks(points: Sequence[Point], width: int) -> list[str]:
    """Return what the table has no room for: errors, lost offloads, equal schedules, what does not fit."""
    groups: dict[str, list[int]] = {}
    for point in points:
        if point.error:
            groups.setdefault(_cut(f"error: {point.error}"), []).append(point.number)
        if point.fault:
            groups.setdefault(f"compiled wrongly: {point.fault}", []).append(point.number)
        if point.offload_lost:
            groups.setdefault(f"offload deleted by XLA: {point.offload_lost}", []).append(point.number)
        if point.obstacle:
            groups.setdefault(f"does not fit into {point.obstacle}", []).append(point.number)
        if point.same_as is not None:
            groups.setdefault(f"the same schedule as point {point.same_as}", []).append(point.number)
        for note in point.notes:
            groups.setdefault(_cut(note), []).append(point.number)
    lines = []
    for text, numbers in groups.items():
        lines += wrapped(
            f"point{'s' if len(numbers) > 1 else ''} {listed(numbers, _MOST_NUMBERS)}: {printable(text)}", width, 1, 4
        )
    if any(point.fits and point.memory is not None and point.memory.is_tight for point in points):
        lines += wrapped(
            f"tight: more than the {SCHEDULER_MEMORY_SHARE:.0%} of device memory to which XLA's scheduler keeps: it "
            f"may do transfers one after the other then",
            width,
            1,
            4,
        )
    return lines


def _cut(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= _LONGEST else text[: _LONGEST - 3] + "..."


# --- what follows ---------------------------------------------------------------------------------


def settings_text(point: Point) -> str:
    """Return a point's settings: ``policy=offload:hid batch=8``."""
    return printable(" ".join(f"{name}={value}" for name, value in point.settings.items())) or "the step as it is"


def _verdict(plan: Plan, width: int) -> list[str]:
    if plan.best is None:
        return wrapped(f"best: none; {plan.why}", width, 0, 3)
    chosen = plan.point(plan.best)
    lines = wrapped(f"best: point {plan.best}, {settings_text(chosen)}: {plan.why}", width, 0, 3)
    if plan.tied:
        lines += wrapped(
            f"may be as fast within the range: point{'s' if len(plan.tied) > 1 else ''} "
            f"{listed(plan.tied, _MOST_NUMBERS)}",
            width,
            0,
            3,
        )
    if len(plan.front) > 1:
        lines += wrapped(
            f"front (+): no other point is faster with as little memory: {listed(plan.front, _MOST_NUMBERS)}",
            width,
            0,
            3,
        )
    return lines


def _largest(plan: Plan, width: int) -> list[str]:
    if not plan.largest:
        return []
    axis = plan.largest[0].axis
    rows = []
    for one in plan.largest:
        point = plan.point(one.point) if one.point else None
        more = " (the largest tried)" if one.value == one.tried else ""
        rate = rate_text(point.speed) if point else ""
        rows.append([printable(one.policy), f"{one.value}{more}" if one.value else "none", rate])
    unit = "samples/s" if plan.unit == "tokens/s" else plan.unit
    header = ["policy", f"largest {axis} that fits", unit]
    return table(columns_named(header, header[:2]), rows, width, NARROW)


def _meanings(plan: Plan, width: int) -> list[str]:
    """Return what the names of policies and flags stand for. A search tries many policies: search_lines has its
    last."""
    lines = []
    for text, code in plan.policies.items() if plan.search is None else ():
        lines += wrapped(f"policy {printable(text)}: {printable(code)}", width, 0, 3)
    for text, flags in plan.flags.items():
        lines += wrapped(f"flags {printable(text)}: {printable(flags) or 'none'}", width, 0, 3)
    return lines
