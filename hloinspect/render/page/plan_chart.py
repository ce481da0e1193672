"""The chart of a plan as SVG: one mark for each point, its shape and colour by policy, each a link to the point."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from hloinspect.plan.axes import policy_label
from hloinspect.plan.model import Plan, Point
from hloinspect.render.page.elements import element, text

WIDTH, HEIGHT = 720.0, 380.0
LEFT, RIGHT, TOP, BOTTOM = 76.0, 16.0, 14.0, 48.0
SHAPES = ("circle", "square", "triangle", "diamond", "cross", "ring")
_ROUND = (1.0, 1.2, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0)
_CORNERS = {
    "square": ((-1, -1), (1, -1), (1, 1), (-1, 1)),
    "triangle": ((0, -1.2), (1.1, 0.9), (-1.1, 0.9)),
    "diamond": ((0, -1.3), (1.3, 0), (0, 1.3), (-1.3, 0)),
    "cross": (
        *((-1, -0.4), (-0.4, -0.4), (-0.4, -1), (0.4, -1), (0.4, -0.4), (1, -0.4)),
        *((1, 0.4), (0.4, 0.4), (0.4, 1), (-0.4, 1), (-0.4, 0.4), (-1, 0.4)),
    ),
}
COLORS = 6
"""Classes c0 to c5 of the page's style. Each of 6 groups has its own shape and colour; mixed they give 36 marks."""


@dataclass(frozen=True, slots=True)
class Mark:
    """A point's place in a chart. ``group`` is the number of its policy."""

    number: int
    x: float
    y: float
    group: int
    label: str
    hollow: bool


@dataclass(frozen=True, slots=True)
class Axis:
    """The name of an axis, its unit, and its two ends."""

    title: str
    low: float
    high: float

    def place(self, value: float) -> float:
        """Return 0 at the low end, 1 at the high one."""
        return (value - self.low) / (self.high - self.low)


def axis_over(title: str, values: Sequence[float]) -> Axis:
    """Return an axis from zero to a round number beyond the largest value."""
    largest = max((value for value in values if math.isfinite(value)), default=1.0) or 1.0
    step = 10.0 ** math.floor(math.log10(largest))
    high = next((step * factor for factor in _ROUND if step * factor >= largest), 10.0 * step)
    return Axis(title, 0.0, high)


def chart(plan: Plan, marks: Sequence[Mark], across: Axis, up: Axis, title: str, line: Sequence[int] = ()) -> str:
    """Return the picture. ``line`` are the points that are joined: the front."""
    place = {mark.number: _at(mark, across, up) for mark in marks}
    parts = [*_frame(across, up)]
    joined = sorted(place[number] for number in line if number in place)
    if len(joined) > 1:
        parts.append(f'<polyline class="front" points="{" ".join(f"{x:.1f},{y:.1f}" for x, y in joined)}"/>')
    for mark in marks:
        x, y = place[mark.number]
        shape = _shape(SHAPES[mark.group % len(SHAPES)], x, y)
        more = f"{' hollow' if mark.hollow else ''}{' best' if mark.number == plan.best else ''}"
        kind = f"mark c{mark.group % COLORS}{more}"
        parts.append(
            f'<a href="#point-{mark.number}" class="{kind}" aria-label="{text(mark.label)}">'
            f"<title>{text(mark.label)}</title>{shape}</a>"
        )
    inner = "".join(parts)
    picture = (
        f'<svg viewBox="0 0 {WIDTH:.0f} {HEIGHT:.0f}" role="group" aria-label="{text(title)}" '
        f'preserveAspectRatio="xMidYMid meet">{inner}</svg>'
    )
    return element("figure", element("figcaption", text(title)) + picture)


def _at(mark: Mark, across: Axis, up: Axis) -> tuple[float, float]:
    x = LEFT + across.place(mark.x) * (WIDTH - LEFT - RIGHT)
    return x, HEIGHT - BOTTOM - up.place(mark.y) * (HEIGHT - TOP - BOTTOM)


def _frame(across: Axis, up: Axis) -> list[str]:
    """Return the lines and numbers of both axes."""
    parts = []
    for tick in range(6):
        share = tick / 5
        x, y = LEFT + share * (WIDTH - LEFT - RIGHT), HEIGHT - BOTTOM - share * (HEIGHT - TOP - BOTTOM)
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(f'<text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{share * up.high:,.6g}</text>')
        parts.append(
            f'<text x="{x:.1f}" y="{HEIGHT - BOTTOM + 18}" text-anchor="middle">{share * across.high:,.6g}</text>'
        )
    parts.append(
        f'<text x="{(LEFT + WIDTH - RIGHT) / 2}" y="{HEIGHT - 8}" text-anchor="middle">{text(across.title)}</text>'
    )
    middle = (TOP + HEIGHT - BOTTOM) / 2
    parts.append(
        f'<text x="16" y="{middle}" text-anchor="middle" transform="rotate(-90 16 {middle})">{text(up.title)}</text>'
    )
    return parts


def _shape(kind: str, x: float, y: float, r: float = 7.0) -> str:
    if kind == "circle":
        return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{r}"/>'
    if kind == "ring":
        hole = f'<circle class="hole" cx="{x:.1f}" cy="{y:.1f}" r="{r / 2.5:.1f}"/>'
        return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{r}"/>{hole}'
    points = " ".join(f"{x + dx * r:.1f},{y + dy * r:.1f}" for dx, dy in _CORNERS[kind])
    return f'<polygon points="{points}"/>'


def legend(groups: Sequence[str]) -> str:
    """Return the shapes with the policies that they stand for."""
    items = []
    for number, name in enumerate(groups):
        shape = _shape(SHAPES[number % len(SHAPES)], 10.0, 10.0)
        picture = f'<svg width="20" height="20" aria-hidden="true"><g class="mark c{number % COLORS}">{shape}</g></svg>'
        items.append(f"<li>{picture} {text(name)}</li>")
    return f'<ul class="legend">{"".join(items)}</ul>'


def group_of(point: Point) -> str:
    """Return what a mark's shape and colour stand for: the policy, or the input."""
    return policy_label(point.settings) or point.settings.get("input") or "the step as it is"
