"""``hloinspect report``: one page with a timeline, for a browser."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from hloinspect.cli.numbers import JOBS
from hloinspect.cli.options import (
    Progress,
    RuleOptions,
    compiling_options,
    gather_compiling,
    gather_judging,
    gather_tracing,
    hlo_option,
    judging_options,
    refuse_hlo,
    rule_options,
)
from hloinspect.errors import UsageError, printable

if TYPE_CHECKING:
    from hloinspect.analyze.options import JudgeOptions, TraceOptions
    from hloinspect.options import CompileOptions
    from hloinspect.report.schema import Report

DEFAULT = "report.html"

EPILOG = """\b
Examples:
  hloinspect report step.hlo --target gb200
  hloinspect report train.py:step --target h100 -o step.html
  hloinspect report profile/ --target gb200 -o run.html        (predicted and measured on one scale)
  hloinspect report old.hlo new.hlo --target gb200 -o change.html

Exit codes: 0 written, 2 wrong use or unreadable input, 3 written, but not enough evidence to say."""

EXIT_UNKNOWN = 3


@click.command("report", epilog=EPILOG)
@click.argument("inputs", metavar="INPUT...", nargs=-1, required=True)
@click.option("-o", "--output", metavar="FILE", help=f"The page's file; {DEFAULT} by default, - for standard output.")
@click.option("--open", "show", is_flag=True, help="Open the page in the browser.")
@judging_options
@compiling_options
@click.option("--target-b", metavar="NAME", help="Hardware for a second INPUT where it is another than the first's.")
@click.option("--module", metavar="NAME", help="Which module of a dump: its number, its name, or both.")
@click.option("--expect", metavar="MODULE", help="Of a trace: say whether this is what ran (see `hloinspect trace`).")
@click.option("--against", metavar="RAN", help="Of others: say how far this is what ran (see `hloinspect inspect`).")
@hlo_option
@click.option("--jobs", type=JOBS, metavar="N", help="Of a trace of many hosts: processes.")
@click.option("--allow-broken", is_flag=True, help="Of a trace of many hosts: go without files that cannot be read.")
@rule_options
@gather_compiling
@gather_judging
@gather_tracing
def command(
    inputs: tuple[str, ...],
    output: str | None,
    show: bool,
    compiling: CompileOptions,
    judging: JudgeOptions,
    tracing: TraceOptions,
    target_b: str | None,
    against: str | None,
    rules: RuleOptions,
) -> int:
    """Write a page with the step's timeline, its transfers and findings, for INPUT or for two side by side.

    INPUT is what `hloinspect inspect` or `hloinspect trace` takes: a step, HLO text or proto, a dump, a directory of
    `hloinspect compile`, an .xplane.pb or a profile directory. The page is one file that needs no network and no
    server: open it from disk, or send it to somebody.
    """
    from hloinspect.analyze.answer import answer
    from hloinspect.render.page import html_page

    path = Path(output or DEFAULT)
    refuse_hlo(tracing.hlo, inputs)
    _check(inputs, output, show, target_b)
    judging = replace(judging, rules=rules.choice(), against=against)
    progress = Progress(after_s=1.0)
    try:
        answers = [
            answer(source, compiling, replace(judging, target=target), tracing, progress)
            for source, target in zip(inputs, (judging.target, target_b or judging.target), strict=False)
        ]
        page = html_page(*answers)
    finally:
        progress.clear()
    if output == "-":
        click.echo(page, nl=False, color=True)
    else:
        _write(path, page, show)
    return EXIT_UNKNOWN if any(_is_unsure(answer.report) for answer in answers) else 0


def _check(inputs: tuple[str, ...], output: str | None, show: bool, target_b: str | None) -> None:
    """Raise UsageError for what is wrong before anything is read."""
    if len(inputs) > 2:
        raise UsageError(f"a page shows one INPUT, or two side by side; these are {len(inputs)}")
    if target_b is not None and len(inputs) == 1:
        raise UsageError("--target-b is for a second INPUT; there is one")
    if show and output == "-":
        raise UsageError("--open needs a file: give -o a name")
    if output is None:
        _spare(Path(DEFAULT))


def _spare(path: Path) -> None:
    """Raise UsageError where a file of the default name is no page of ours, which would be overwritten."""
    from hloinspect.render.page.page import MARK

    if not path.exists():
        return
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            ours = MARK in file.read(4096)
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror}") from error
    if not ours:
        raise UsageError(f"{path} is there and is no page of hloinspect: name another file with -o")


def _write(path: Path, page: str, show: bool) -> None:
    try:
        path.write_text(page, encoding="utf-8", newline="\n")
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror}") from error
    click.echo(printable(f"{path} ({len(page) / 1000:,.0f} kB): open it in a browser"))
    if show:
        import webbrowser

        webbrowser.open(path.resolve().as_uri())


def _is_unsure(report: Report) -> bool:
    from hloinspect.cli.inspect import exit_code

    doubtful = report.trace is not None and any(unknown.affects == "time" for unknown in report.unknown)
    return doubtful or exit_code(report) == EXIT_UNKNOWN
