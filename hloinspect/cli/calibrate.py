"""``hloinspect calibrate``: a target with the rates that a machine reaches."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from hloinspect.cli.console import emit, width
from hloinspect.cli.options import Progress, hlo_option

if TYPE_CHECKING:
    from hloinspect.calibrate.calibrate import Calibration

EPILOG = """\b
Examples:
  hloinspect calibrate profile/ --base gb200 -o mytarget.toml
  hloinspect calibrate host.xplane.pb --format json | jq .figures
  hloinspect inspect train.py:step --target mytarget.toml

Exit codes: 0 good, 2 wrong use or unreadable input, 3 the trace has no figure (and nothing is written)."""

EXIT_UNKNOWN = 3
SCHEMA = "hloinspect.calibration/1"


@click.command("calibrate", epilog=EPILOG)
@click.argument("trace", metavar="TRACE")
@click.option(
    "--base", metavar="NAME", help="Target for what the trace does not show. Default: the trace's own device."
)
@hlo_option
@click.option("-o", "--output", metavar="FILE", help="Write the target to this TOML file, for --target.")
@click.option("--format", "style", type=click.Choice(["text", "json"]), default="text", show_default=True)
def command(trace: str, base: str | None, hlo: tuple[str, ...], output: str | None, style: str) -> int:
    """Measure the rates that a machine reaches, from a trace, and make a target of them.

    TRACE is an .xplane.pb (or .gz), a profile directory (its newest run, all hosts), a Chrome trace, or what Nsight
    Systems wrote (an export to SQLite, or a report where nsys is installed). Measured are
    host copies in each direction alone, the factor with both on, the start-up time of a copy, and matrix products; each
    figure says how many copies it rests on. What the trace does not show is taken from the base, and the output says
    so."""
    from hloinspect.calibrate.calibrate import calibrate

    progress = Progress()
    progress("reading the trace")
    try:
        found = calibrate(trace, base, hlo)
    finally:
        progress.clear()
    if found.figures and output is not None:
        emit(found.toml, output)
    written = output if found.figures and output != "-" else None
    if output != "-":  # the file itself went there
        emit(_json(found) if style == "json" else _text(found, width(sys.stdout), written), None)
    return 0 if found.figures else EXIT_UNKNOWN


def _json(found: Calibration) -> str:
    import json
    from dataclasses import asdict

    document = {
        "schema": SCHEMA,
        "traces": found.traces,
        "platform": found.platform,
        "device": found.device,
        "devices": found.devices,
        "base": found.base.name,
        "figures": [asdict(figure) for figure in found.figures],
        "left": [asdict(one) for one in found.left],
        "notes": found.notes,
        "toml": found.toml,
    }
    return json.dumps(document, indent=2)


_UNITS = {"bytes_per_s": (1e9, "GB/s"), "latency_us": (1.0, "us")}


def _amount(figure_key: str, value: float) -> str:
    for ending, (scale, unit) in _UNITS.items():
        if figure_key.endswith(ending):
            return f"{value / scale:.4g} {unit}"
    return f"{100 * value:.4g} %"


def _text(found: Calibration, columns: int, written: str | None) -> str:
    from hloinspect.errors import printable
    from hloinspect.render.terminal.table import Column, Layout, table
    from hloinspect.render.terminal.wrap import wrapped

    device = f" ({printable(found.device)})" if found.device else ""
    hosts = f" on {len(found.traces)} hosts" if len(found.traces) > 1 else ""
    devices = f"{found.devices} x {found.platform.upper()}{device}{hosts}"
    head = f"{printable(found.traces[0])}   {devices}   base {found.base.name}"
    lines = [click.style(head, bold=True), ""]
    keys = [figure.key for figure in found.figures] + [one.key for one in found.left]
    shown = (Column(is_left=True, least=max(map(len, keys))), Column(is_left=True, least=30, is_wrapped=True))
    layout = Layout(indent=0, has_head=False)
    rows = []
    for figure in found.figures:
        low, high = _amount(figure.key, figure.low), _amount(figure.key, figure.high)
        spread = f" ({low} to {high})" if low != high else ""
        text = f"{_amount(figure.key, figure.value)}{spread}, measured: {figure.count:,} {figure.what}"
        rows.append((figure.key, printable(text)))
    lines += table(shown, rows, columns, layout)
    if not found.figures:
        lines.append(click.style("nothing was measured", fg="magenta"))
    lines += ["", f"left to {found.base.name}"] if found.left else []
    lines += table(shown, [(one.key, printable(one.reason)) for one in found.left], columns, layout)
    lines += ["", *(line for note in found.notes for line in wrapped(printable(note), columns))] if found.notes else []
    if found.figures:
        name = printable(written) if written else "mytarget.toml"
        lines += [
            "",
            f"use it with --target {name}" if written else f"write it with -o {name}, then use it with --target",
        ]
    return "\n".join(lines)
