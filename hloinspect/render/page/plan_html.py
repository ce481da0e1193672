"""A plan as one page: the front, the points, and a panel for each point. It has no script and loads nothing.

A mark or a row is a link to its point, whose panel the style sheet shows (``:target``). The same plan gives the same
bytes.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path

from hloinspect.plan.model import Plan, Point
from hloinspect.render.page.elements import element, sentence, table, text
from hloinspect.render.page.plan_chart import Mark, axis_over, chart, group_of, legend
from hloinspect.render.terminal.plan_text import plan_text, rate_text, settings_text
from hloinspect.units import bytes_text, time_text

_GIB = 2.0**30

_STYLE = Path(__file__).with_name("plan.css")


def plan_html(plan: Plan, pages: Mapping[int, str] | None = None) -> str:
    """Return the page as text. ``pages`` are addresses of the whole reports of points, relative to the page."""
    style = _STYLE.read_text(encoding="utf-8")
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode("ascii")
    policy = f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"
    head = (
        '<meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        '<meta name="generator" content="hloinspect">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{text(plan.source)} - hloinspect plan</title><style>{style}</style>"
    )
    body = "".join(
        [
            element("h1", text(f"Plan of {plan.source} for {', '.join(plan.targets)}")),
            _verdict(plan),
            _charts(plan),
            *(_panel(plan, point, (pages or {}).get(point.number)) for point in plan.points),
            _points(plan),
            _details(plan),
        ]
    )
    return f'<!DOCTYPE html>\n<html lang="en">\n<head>{head}</head>\n<body><main>{body}</main></body>\n</html>\n'


def _verdict(plan: Plan) -> str:
    if plan.best is None:
        return element("p", sentence(plan.why), class_="verdict bad")
    chosen = plan.point(plan.best)
    link = f'<a href="#point-{plan.best}">Point {plan.best}, {text(settings_text(chosen))}</a>'
    words = f'<p class="verdict">{link}</p>{element("p", sentence(plan.why))}'
    if plan.tied:
        others = ", ".join(f'<a href="#point-{number}">{number}</a>' for number in plan.tied[:20])
        words += f"<p>May be as fast within the range of the prediction: {others}.</p>"
    return words


def _charts(plan: Plan) -> str:
    timed = [point for point in plan.points if point.step is not None]
    if not timed:
        return ""
    groups = list(dict.fromkeys(group_of(point) for point in plan.points))
    size = axis_over("device memory, GiB", [_gib(point) for point in timed])
    rate = axis_over(plan.unit, [_rate(plan, point) for point in timed])
    front = chart(
        plan,
        [_mark(groups, point, _gib(point), _rate(plan, point)) for point in timed if _gib(point)],
        size,
        rate,
        "Speed against device memory; the dashed line is the front",
        plan.front,
    )
    name, numbers = _across(plan, timed)
    step = axis_over("predicted step, ms", [point.step.time_ms for point in timed if point.step])
    times = chart(
        plan,
        [_mark(groups, point, numbers[point.number], point.step.time_ms if point.step else 0.0) for point in timed],
        axis_over(name, list(numbers.values())),
        step,
        f"Step time against {name}",
    )
    note = "A hollow mark does not fit, or has lost its offload. The best point has an edge in the colour of the text."
    if name == "point":  # nothing that varies is a number
        times = ""
    return f'<div class="charts">{times}{front}</div>{legend(groups)}<p><small>{note}</small></p>'


def _across(plan: Plan, points: Sequence[Point]) -> tuple[str, dict[int, float]]:
    """Return the axis of numbers with the most values (batch before others), else the points' own numbers."""
    for name in sorted(plan.axes, key=lambda name: (name != "batch", -len(plan.axes[name]))):
        try:
            found = {point.number: float(point.settings[name]) for point in points}
        except (KeyError, ValueError):
            continue
        if len(set(found.values())) > 1:
            return name, found
    return "point", {point.number: float(point.number) for point in points}


def _rate(plan: Plan, point: Point) -> float:
    return (point.tokens_per_s or 0.0) if plan.unit == "tokens/s" else point.speed


def _gib(point: Point) -> float:
    return (point.memory.device_bytes or 0) / _GIB if point.memory is not None else 0.0


def _mark(groups: Sequence[str], point: Point, x: float, y: float) -> Mark:
    step = f"{time_text(point.step.time_ms)} a step" if point.step is not None else ""
    label = f"point {point.number}: {settings_text(point)}, {step}"
    return Mark(point.number, x, y, groups.index(group_of(point)), label, not point.is_good)


def _points(plan: Plan) -> str:
    axes = list(plan.axes)
    head = ["", *axes, "step", "range", "waits", plan.unit, "device", "host", "fits"]
    rows = []
    for point in plan.points:
        cells = [text(point.settings.get(name, "")) for name in axes]
        step, memory = point.step, point.memory
        if step is None:
            figures = ["", "", "", "", "", "", text("error" if point.error else "unknown")]
        else:
            fits = (
                "wrong"
                if point.fault
                else "offload lost"
                if point.offload_lost
                else {True: "yes", False: "no", None: "unknown"}[point.fits]
            )
            figures = [
                time_text(step.time_ms),
                f"{time_text(step.low_ms)} to {time_text(step.high_ms)}",
                time_text(step.stall_ms),
                rate_text(_rate(plan, point)),
                "unknown" if memory is None or memory.device_bytes is None else bytes_text(memory.device_bytes),
                "" if memory is None or not memory.host_bytes else bytes_text(memory.host_bytes),
                fits,
            ]
        mark = " (best)" if point.number == plan.best else " (front)" if point.number in plan.front else ""
        link = f'<th scope="row"><a href="#point-{point.number}">{point.number}</a>{mark}</th>'
        rest = "".join(f"<td>{cell}</td>" for cell in cells)
        rows.append(f"<tr>{link}{rest}{''.join(f'<td class=number>{cell}</td>' for cell in figures)}</tr>")
    heads = "".join(f'<th scope="col">{text(name)}</th>' for name in head)
    return (
        '<h2 id="points">All points</h2><div class="scroll"><table><thead><tr>'
        f"{heads}</tr></thead><tbody>{''.join(rows)}</tbody></table></div>"
    )


def _panel(plan: Plan, point: Point, page: str | None) -> str:
    """Return what is shown when a point is chosen."""
    parts = [element("h2", f"Point {point.number}: {text(settings_text(point))}")]
    for words in (
        point.error,
        point.fault,
        point.offload_lost,
        point.obstacle and f"does not fit into {point.obstacle}",
    ):
        if words:
            parts.append(element("p", sentence(words), class_="bad"))
    if page:
        parts.append(f'<p><a href="{text(page)}">The whole report of this point, with its timeline</a></p>')
    if point.same_as is not None:
        parts.append(f'<p>Its schedule is that of <a href="#point-{point.same_as}">point {point.same_as}</a>.</p>')
    if point.step is not None:
        parts.append(_figures(point))
    if point.transfers:
        rows = [
            (
                f"{line.direction} {line.id}",
                f"{line.name or ''} {line.tensor}".strip(),
                bytes_text(line.bytes_per_step),
                "" if line.duration_ms is None else time_text(line.duration_ms),
                "" if line.wait_ms is None else time_text(line.wait_ms),
                line.verdict,
            )
            for line in point.transfers[:200]
        ]
        head = ("transfer", "tensor", "moves a step", "takes", "waits", "verdict")
        parts.append(table(head, rows, f"{len(point.transfers)} transfers", (2, 3, 4)))
    if code := plan.policies.get(point.settings.get("policy", "")):
        parts.append(f"<pre>{text(code)}</pre>")
    parts += [element("p", sentence(note)) for note in point.notes]
    parts.append('<p><a href="#points">Back to all points</a></p>')
    return element("section", "".join(parts), class_="point", id=f"point-{point.number}")


def _figures(point: Point) -> str:
    step, memory = point.step, point.memory
    assert step is not None
    rows = [
        ("step", time_text(step.time_ms), f"{time_text(step.low_ms)} to {time_text(step.high_ms)}"),
        ("waits for the host", time_text(step.stall_ms), f"{step.stall_ms / max(step.time_ms, 1e-9):.1%} of the step"),
        ("with free transfers", time_text(step.without_transfers_ms), ""),
        ("with perfect overlap", time_text(step.ideal_ms), ""),
    ]
    if point.recompute_flops:
        again = f"{point.recompute_flops / 1e12:,.4g} TFLOP"
        rows.append(("computes again", again, "against the point that computes least"))
    if memory is not None and memory.device_bytes is not None:
        limit = memory.device_limit_bytes
        rows.append(("device memory", bytes_text(memory.device_bytes), f"of {bytes_text(limit)}" if limit else ""))
    if memory is not None and memory.host_bytes:
        limit = memory.host_limit_bytes
        of = f"of {bytes_text(limit)}, for {memory.host_devices} devices" if limit else ""
        rows.append(("pinned host memory", bytes_text(memory.host_bytes), of))
    return table(("", "predicted", ""), rows, "One step of one device", (1,))


def _details(plan: Plan) -> str:
    """Return the plan's text, which has what the page does not draw: other links, tensors, the search."""
    return f"<h2>As text</h2><pre>{_plain(plan)}</pre>"


def _plain(plan: Plan) -> str:
    import click

    return "\n".join(text(line) for line in click.unstyle(plan_text(plan, 120)).splitlines())
