"""``hloinspect check``: the gate."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from hloinspect.cli.console import emit
from hloinspect.cli.options import Progress, judging_options, output_options
from hloinspect.errors import UsageError

if TYPE_CHECKING:
    from hloinspect.gate.budget import BudgetResult
    from hloinspect.report.schema import Report

EPILOG = """\b
Examples:
  hloinspect check train.py:step --target gb200 --budget stall=2%
  hloinspect check step.hlo --target h100 --budget stall.h2d=0.5ms --budget exposed=5%

Metrics: stall, stall.d2h, stall.h2d, exposed, exposed.d2h, exposed.h2d; a limit is a share of the step (%) or a time
(us, ms, s) a step. Exit codes: 0 all within, 1 one is over, 2 wrong use or unreadable input, 3 not enough evidence
(--allow-unknown makes that a pass)."""

EXIT_FAILED = 1
EXIT_UNKNOWN = 3
SCHEMA = "hloinspect.check/1"


@click.command("check", epilog=EPILOG)
@click.argument("inputs", metavar="INPUT...", nargs=-1, required=True)
@judging_options
@click.option("--budget", "budgets", multiple=True, metavar="METRIC=LIMIT", help="What the step may cost; repeatable.")
@click.option("--allow-unknown", is_flag=True, help="Pass where there is not enough evidence to say.")
@output_options
def command(
    inputs: tuple[str, ...],
    target: str | None,
    link: str | None,
    devices: int | None,
    topology: str | None,
    xla_flags: tuple[str, ...],
    budgets: tuple[str, ...],
    allow_unknown: bool,
    style: str,
    output: str | None,
) -> int:
    """Fail when host transfers cost a step more than its budget.

    INPUT is what `hloinspect inspect` takes. Times are predicted. What cannot be told is a failure of its own (exit
    code 3), never a pass.
    """
    from hloinspect.api import check, inspect
    from hloinspect.gate.budget import OVER, parse_budget
    from hloinspect.verdict import UNKNOWN

    if not budgets:
        raise UsageError("a gate needs a limit: --budget stall=2% (see `hloinspect check --help`)")
    for budget in budgets:
        parse_budget(budget)  # before anything is compiled
    progress = Progress()
    results: list[tuple[Report, Sequence[BudgetResult]]] = []
    try:
        for text in inputs:
            found = inspect(
                text,
                target=target,
                link=link,
                devices=devices,
                topology=topology,
                xla_flags=xla_flags,
                on_progress=progress,
            )
            results.append((found.report, check(found.report, budgets)))
    finally:
        progress.clear()
    emit(_json(results) if style == "json" else _text(results), output)
    statuses = {result.status for _, verdicts in results for result in verdicts}
    if OVER in statuses:
        return EXIT_FAILED
    return EXIT_UNKNOWN if UNKNOWN in statuses and not allow_unknown else 0


def _json(results: Sequence[tuple[Report, Sequence[BudgetResult]]]) -> str:
    import json

    checks = [
        {"input": report.input.path, "target": report.target.name if report.target else None, **asdict(result)}
        for report, verdicts in results
        for result in verdicts
    ]
    return json.dumps({"schema": SCHEMA, "checks": checks}, indent=2)


_LABELS = {"within": ("ok", "green"), "over": ("FAILED", "red"), "unknown": ("UNKNOWN", "magenta")}


def _text(results: Sequence[tuple[Report, Sequence[BudgetResult]]]) -> str:
    from hloinspect.errors import printable as clean
    from hloinspect.report.text import time_text

    lines = []
    for report, verdicts in results:
        for result in verdicts:
            label, color = _LABELS[result.status]
            line = f"{click.style(label, fg=color, bold=True)}  {clean(report.input.path)}  {result.budget.text}"
            if result.value_ms is not None and result.value is not None and result.limit_ms is not None:
                share = f" = {result.value:.2f} %" if result.budget.unit == "%" else ""
                value, limit = time_text(result.value_ms), time_text(result.limit_ms)
                line += f"  {result.kind} {value}{share} of at most {limit} a step"
            lines.append(f"{line}  ({clean(result.reason)})")
        if any(result.status == "over" for result in verdicts):
            lines += _culprits(report)
    return "\n".join(lines)


def _culprits(report: Report) -> list[str]:
    """The transfers that cost the most, and the command that shows more."""
    from hloinspect.errors import printable as clean
    from hloinspect.report.text import time_text

    costly = sorted(report.transfers, key=lambda t: -(t.predicted.wait_ms if t.predicted else 0.0))[:3]
    lines = []
    for transfer in costly:
        if transfer.predicted is None or transfer.predicted.wait_ms <= 0:
            continue
        source = transfer.source
        where = f"{clean(source.file)}:{source.line}" if source else clean(transfer.computation)
        wait = time_text(transfer.predicted.wait_ms)
        lines.append(f"        {transfer.direction} {transfer.id} waits {wait}: {clean(transfer.reason)}  {where}")
    name = report.target.name if report.target else "NAME"
    lines.append(f"        look closer: hloinspect inspect {clean(report.input.path)} --target {name}")
    return lines
