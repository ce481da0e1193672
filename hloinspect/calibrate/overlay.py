"""Measured figures as a target file on top of a built-in target."""

from __future__ import annotations

import json
from collections.abc import Sequence

from hloinspect.errors import printable
from hloinspect.hardware.target import Target
from hloinspect.measure.figures import D2H_RATE, DUPLEX, H2D_RATE, LATENCY, MATMUL, LeftOut, MeasuredFigure


def figure_source(figure: MeasuredFigure, trace: str) -> str:
    """Return a text like ``measured: 468 d2h copies of 5,368,709,120 B ... in TRACE``."""
    return f"measured: {figure.count:,} {figure.what}, in {trace}"


def overlay_toml(base: Target, figures: Sequence[MeasuredFigure], left: Sequence[LeftOut], trace: str) -> str:
    """Return the target file: ``base``, the measured figures with their sources, and comments on the figures of the
    base.

    Rates are reached ones. With both of them the link's efficiency becomes 1. Its lower bound is what the slowest tenth
    of the copies reached on a GPU, and the base's share on a TPU, of which only typical steps are measured. With one
    rate alone the base's efficiency stays, and the rate is divided by it.
    """
    by_key = {figure.key: figure for figure in figures}
    lines = [f"# Written by `hloinspect calibrate` from {printable(trace)}."]
    lines += [f"# Left to {base.name}: {one.key}: {printable(one.reason)}" for one in left]
    lines += ["", f"base = {_quoted(base.name)}", f"title = {_quoted(f'{base.title}, calibrated')}"]
    both = D2H_RATE in by_key and H2D_RATE in by_key
    efficiency = base.link.efficiency.value if base.link is not None and not both else 1.0
    for key in (D2H_RATE, H2D_RATE, DUPLEX, LATENCY):
        if key not in by_key:
            continue
        figure, divisor, note = by_key[key], 1.0, ""
        if key in (D2H_RATE, H2D_RATE) and efficiency != 1.0:
            divisor, note = efficiency, f"; divided by the base's efficiency of {efficiency:g}"
        lines += ["", f"[{key}]", f"value = {_number(figure.value / divisor)}"]
        lines += [f"source = {_quoted(figure_source(figure, trace) + note)}"]
    if both and base.link is not None:
        below = base.link.efficiency
        low, why = below.low / below.value, f"low: as in {base.name}"
        if base.platform == "gpu":
            low = min(by_key[key].low / by_key[key].value for key in (D2H_RATE, H2D_RATE))
            why = f"low: the slowest tenth of the copies in {trace}"
        source = f"the rates are reached ones; {why}"
        lines += ["", "[link.efficiency]", *_range(min(1.0, low), 1.0, 1.0, source)]
    if MATMUL in by_key:
        figure = by_key[MATMUL]
        lines += ["", f"[{MATMUL}]", *_range(figure.low, figure.value, figure.high, figure_source(figure, trace))]
    return "\n".join(lines) + "\n"


def _range(low: float, value: float, high: float, source: str) -> list[str]:
    return [
        f"low = {_number(low)}",
        f"value = {_number(value)}",
        f"high = {_number(high)}",
        f"source = {_quoted(source)}",
    ]


def _number(value: float) -> str:
    """Return a number with four digits, more than a measurement has."""
    text = f"{value:.4g}"
    return text if any(mark in text for mark in ".e") else f"{text}.0"


def _quoted(text: str) -> str:
    """Return a basic string of TOML, whose escapes are JSON's."""
    return json.dumps(printable(text), ensure_ascii=False)
