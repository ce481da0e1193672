"""``hloinspect diff``: two answers side by side."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from hloinspect.cli.console import emit, width
from hloinspect.cli.options import (
    Progress,
    RuleOptions,
    compiling_options,
    gather_compiling,
    gather_judging,
    hlo_option,
    judging_options,
    output_options,
    refuse_hlo,
    rule_options,
)

if TYPE_CHECKING:
    from hloinspect.analyze.options import JudgeOptions
    from hloinspect.options import CompileOptions

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
@hlo_option
@rule_options
@output_options
@gather_compiling
@gather_judging
def command(
    before: str,
    after: str,
    compiling: CompileOptions,
    judging: JudgeOptions,
    target_b: str | None,
    hlo: tuple[str, ...],
    show_all: bool,
    rules: RuleOptions,
    style: str,
    output: str | None,
) -> int:
    """Say what is different in B: transfers that came, went, lost their cover or grew, new findings, and figures.

    A and B are what `hloinspect check` takes: steps, modules, dumps or traces. Transfers are matched by direction,
    tensor, loop and source, so another jax or a renumbered module does not matter. Predicted and measured may be
    compared; each side says which it is.
    """
    from hloinspect.analyze.answer import answer
    from hloinspect.analyze.options import TraceOptions
    from hloinspect.gate.difference import snapshot_difference
    from hloinspect.gate.gate import name_of
    from hloinspect.gate.judge import doubt_of
    from hloinspect.gate.snapshot import snapshot_of

    refuse_hlo(hlo, (before, after))
    tracing = TraceOptions(hlo=hlo)
    judging = replace(judging, rules=rules.choice())
    progress = Progress()
    snapshots, doubts = [], []
    try:
        for source, target in ((before, judging.target), (after, target_b or judging.target)):
            report = answer(source, compiling, replace(judging, target=target), tracing, progress).report
            snapshots.append(snapshot_of(report, name_of(source, Path.cwd())))
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
        sides = [f"not known of {side}: {doubt}" for side, doubt in zip("AB", doubts, strict=True) if doubt]
        emit("\n".join([text, *(["", *sides] if sides else [])]), output)
    return EXIT_UNKNOWN if any(doubts) else 0
