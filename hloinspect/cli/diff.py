"""``hloinspect diff``: two answers side by side."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from hloinspect.cli.console import emit, width
from hloinspect.cli.options import Progress, compiling_options, judging_options, output_options, rule_options
from hloinspect.options import Production

EPILOG = """\b
Examples:
  hloinspect diff old.hlo new.hlo --target gb200
  hloinspect diff train.py:step train.py:pipelined --target h100
  hloinspect diff train.py:step profile/ --target gb200        (the prediction, and what was measured)
  hloinspect diff step.hlo step.hlo --target gb200 --target-b h100

Exit codes: 0 compared (whatever the answer), 2 wrong use or unreadable input, 3 not enough evidence on one side."""

EXIT_UNKNOWN = 3


@click.command("diff", epilog=EPILOG)
@click.argument("before", metavar="A")
@click.argument("after", metavar="B")
@judging_options
@compiling_options
@click.option("--target-b", metavar="NAME", help="Hardware for B where it is another than A's.")
@click.option("--all", "show_all", is_flag=True, help="Show every transfer that differs.")
@rule_options
@output_options
def command(
    before: str,
    after: str,
    target: str | None,
    link: str | None,
    devices: int | None,
    topology: str | None,
    xla_flags: tuple[str, ...],
    production: Production,
    cache: Path | None,
    target_b: str | None,
    show_all: bool,
    select: tuple[str, ...],
    ignore: tuple[str, ...],
    severity: tuple[str, ...],
    style: str,
    output: str | None,
) -> int:
    """Say what is different in B: transfers that came, went, lost their cover or grew, new findings, and figures.

    A and B are what `hloinspect check` takes: steps, modules, dumps or traces. Transfers are matched by direction,
    tensor, loop and source, so another jax or a renumbered module does not matter. Predicted and measured may be
    compared; each side says which it is.
    """
    from hloinspect.gate.config import GatedStep
    from hloinspect.gate.difference import snapshot_difference
    from hloinspect.gate.gate import name_of, report_of
    from hloinspect.gate.judge import doubt_of
    from hloinspect.gate.snapshot import snapshot_of
    from hloinspect.rules.config import load_choice, with_options

    here = Path.cwd()
    rules = with_options(load_choice(here), select, ignore, severity)
    progress = Progress()
    snapshots, doubts = [], []
    try:
        for source, hardware in ((before, target), (after, target_b or target)):
            name = name_of(source, here)
            step = GatedStep(source, name, hardware, link, devices, topology, xla_flags, production=production)
            report = report_of(step, rules=rules, cache=cache, on_progress=progress)
            snapshots.append(snapshot_of(report, step.name))
            doubts.append(doubt_of(report, "stall"))
    finally:
        progress.clear()
    found = snapshot_difference(*snapshots)
    if style == "json":
        from hloinspect.render.data.check_json import diff_to_json

        emit(diff_to_json(found), output)
    else:
        from hloinspect.render.terminal.diff_text import to_text

        text = to_text(found, width(sys.stdout), show_all)
        sides = [f"cannot tell of {side}: {doubt}" for side, doubt in zip("AB", doubts, strict=True) if doubt]
        emit("\n".join([text, *(["", *sides] if sides else [])]), output)
    return EXIT_UNKNOWN if any(doubts) else 0
