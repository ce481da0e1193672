"""``hloinspect inspect``: the static answer."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from hloinspect.cli.console import TextForm, emit_report
from hloinspect.cli.options import (
    Progress,
    RuleOptions,
    compiling_options,
    gather_compiling,
    gather_judging,
    judging_options,
    report_options,
    rule_options,
)
from hloinspect.cli.timelines import STYLES, emit_timeline, predicted_picture

if TYPE_CHECKING:
    from hloinspect.analyze.options import JudgeOptions
    from hloinspect.options import CompileOptions
    from hloinspect.report.schema import Report

EPILOG = """\b
Examples:
  hloinspect inspect examples/dense.py:offload_scan --target gb200
  hloinspect inspect train.py:step --target h100 --devices 8 --xla-flag xla_gpu_enable_triton_gemm=false
  hloinspect inspect module_0001.jit_step.sm_9.0_gpu_after_optimizations.txt --target h100 --link 50GB/s
  hloinspect inspect step.hlo.gz --target gb200 --format json | jq '.step.predicted'
  hloinspect inspect train.py:step --target h100 --against profile/
  hloinspect inspect step.hlo.gz --target gb200 --format perfetto -o step.perfetto-trace

Exit codes: 0 good, 2 wrong use or unreadable input, 3 not enough evidence for a verdict."""

EXIT_UNKNOWN = 3


@click.command("inspect", epilog=EPILOG)
@click.argument("input", metavar="INPUT")
@judging_options
@compiling_options
@click.option(
    "--keep", metavar="DIR", type=click.Path(path_type=Path), help="Keep what compiling a step writes in DIR."
)
@click.option("--module", metavar="NAME", help="Which module of a dump: its number, its name, or both.")
@click.option(
    "--against",
    metavar="RAN",
    help="Say how far this is what ran: a profile, a directory of --xla_dump_to, or an HLO file.",
)
@click.option("--memory", is_flag=True, help="Estimate memory also without a target, when transfers are only listed.")
@click.option("--audit", is_flag=True, help="Show all that was requested of host memory and what became of each.")
@click.option("--all", "show_all", is_flag=True, help="Show every transfer and every finding.")
@rule_options
@report_options
@gather_compiling
@gather_judging
def command(
    input: str,
    compiling: CompileOptions,
    judging: JudgeOptions,
    rules: RuleOptions,
    against: str | None,
    audit: bool,
    show_all: bool,
    style: str,
    output: str | None,
    timeline: bool | None,
) -> int:
    """Find every host transfer of INPUT and say which hide behind compute on the target.

    INPUT is a step (file.py:function or package.module:function, compiled first, without the device), HLO text or proto
    (plain or gzip, - for standard input), or a directory that `hloinspect compile` or --xla_dump_to wrote. Times are
    predicted from the schedule and the target's figures; nothing runs. Below the table stands what is wrong and what to
    do (`hloinspect rules`); [tool.hloinspect] of pyproject.toml chooses the rules.
    """
    from hloinspect.analyze.inspect import inspect_input
    from hloinspect.render.terminal.report_text import to_audit, to_text

    judging = replace(judging, rules=rules.choice(), against=against)
    progress = Progress()
    try:
        found = inspect_input(input, compiling, judging, progress)
    finally:
        progress.clear()
    report = found.report
    if style in STYLES:
        emit_timeline(found, style, output)
    else:
        text = TextForm(to_audit if audit else to_text, predicted_picture(found), show_all, timeline)
        emit_report(report, style, output, text)
    return exit_code(report)


def exit_code(report: Report) -> int:
    """Return 0, or 3 where a verdict or a transfer is missing."""
    from hloinspect.kinds import UNKNOWN

    doubtful = any(unknown.affects == "time" for unknown in report.unknown)
    unsure = any(transfer.verdict == UNKNOWN for transfer in report.transfers)
    missing = any(unknown.affects == "transfers" for unknown in report.unknown)
    return EXIT_UNKNOWN if missing or (report.transfers and (doubtful or unsure)) else 0
