"""Options that several commands share, and how they become objects.

A ``gather_`` decorator stands directly above the function of a command: it takes the single options that click passes,
and gives the function one object in their place.
"""

from __future__ import annotations

import functools
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

import click

from hloinspect.cli.numbers import DEVICES, TOPOLOGY
from hloinspect.errors import UsageError, printable
from hloinspect.options import CompileOptions, Production, cache_folder

if TYPE_CHECKING:
    from hloinspect.rules.choice import Choice

Command = Callable[..., object]
Decorated = TypeVar("Decorated", bound=Command)


@dataclass(frozen=True, slots=True)
class RuleOptions:
    """``--select``, ``--ignore`` and ``--severity``, as they are written."""

    select: tuple[str, ...]
    ignore: tuple[str, ...]
    severity: tuple[str, ...]

    def choice(self) -> Choice:
        """Return the rules to run: those of pyproject.toml, changed by these options. Raises UsageError."""
        from hloinspect.rules.config import load_choice, with_options

        return with_options(load_choice(Path.cwd()), self.select, self.ignore, self.severity)


# --- from single options to objects ---------------------------------------------------------------


def gather_compiling(function: Decorated) -> Decorated:
    """Give the command ``compiling`` (CompileOptions) in place of the options that say how a step is compiled. A
    command may lack some of them."""

    @functools.wraps(function)
    def command(**options: Any) -> object:
        production = Production(*(options.pop(name, None) for name in ("flags_from", "autotune_results", "pgle")))
        compiling = CompileOptions(
            devices=options.pop("devices", None),
            topology=options.pop("topology", None),
            xla_flags=options.pop("xla_flags", ()),
            production=production,
            cache=None if options.pop("no_cache", True) else cache_folder(),
            keep=options.pop("keep", None),
            module=options.pop("module", None),
            timeout_s=options.pop("timeout", CompileOptions().timeout_s),
        )
        return function(compiling=compiling, **options)

    return cast(Decorated, command)


def gather_judging(function: Decorated) -> Decorated:
    """Give the command ``judging`` (JudgeOptions, without rules) in place of ``--target``, ``--link`` and ``--memory``,
    and ``rules`` (RuleOptions) in place of the options about rules."""

    @functools.wraps(function)
    def command(**options: Any) -> object:
        from hloinspect.analyze.options import JudgeOptions

        rules = RuleOptions(*(options.pop(name) for name in ("select", "ignore", "severity")))
        judging = JudgeOptions(
            target=options.pop("target"), link=options.pop("link"), memory=options.pop("memory", False) or None
        )
        return function(judging=judging, rules=rules, **options)

    return cast(Decorated, command)


def gather_tracing(function: Decorated) -> Decorated:
    """Give the command ``tracing`` (TraceOptions) in place of the options that say how a profile is read."""

    @functools.wraps(function)
    def command(**options: Any) -> object:
        from hloinspect.analyze.options import TraceOptions

        tracing = TraceOptions(
            expect=options.pop("expect"),
            hlo=options.pop("hlo", ()),
            jobs=options.pop("jobs"),
            scheduler=options.pop("scheduler", None),
            allow_broken=options.pop("allow_broken"),
        )
        return function(tracing=tracing, **options)

    return cast(Decorated, command)


# --- options --------------------------------------------------------------------------------------


def judging_options(function: Decorated) -> Decorated:
    """Add ``--target --link --devices --topology --xla-flag``: what a step is compiled and judged for."""
    for option in reversed(
        (
            click.option(
                "--target",
                metavar="NAME",
                help="Hardware to judge for: a name of `hloinspect targets`, or a TOML file. Default: the input's own.",
            ),
            click.option(
                "--link", metavar="RATE", help="Host link instead of the target's: 225GB/s, or d2h=170GB/s,h2d=415GB/s."
            ),
            click.option("--devices", type=DEVICES, metavar="N", help="Number of devices the step runs on."),
            click.option(
                "--topology",
                type=TOPOLOGY,
                metavar="PxHxD",
                help="NVLink domains x hosts x devices a host, such as 2x16x4.",
            ),
            click.option(
                "--xla-flag",
                "xla_flags",
                multiple=True,
                metavar="FLAG",
                help="XLA flag for compiling a step; repeatable.",
            ),
        )
    ):
        function = option(function)
    return function


def production_options(function: Decorated) -> Decorated:
    """Add ``--flags-from --autotune-results --pgle``: what the production run had."""
    path = click.Path(path_type=Path)
    for option in reversed(
        (
            click.option(
                "--flags-from",
                type=path,
                metavar="DUMP",
                help="XLA flags of a run: its --xla_dump_to directory, a *.debug_options, or a compiled directory.",
            ),
            click.option(
                "--autotune-results", type=path, metavar="FILE", help="What autotuning on the device found (GPU)."
            ),
            click.option("--pgle", type=path, metavar="FILE|DIR", help="Profile for XLA's latency estimates (GPU)."),
        )
    ):
        function = option(function)
    return function


def compiling_options(function: Decorated) -> Decorated:
    """Add ``production_options`` and ``--no-cache``."""
    return production_options(
        click.option("--no-cache", is_flag=True, help="Compile a step anew, and do not keep it.")(function)
    )


def rule_options(function: Decorated) -> Decorated:
    """Add ``--select --ignore --severity``: which rules run, on top of [tool.hloinspect] in pyproject.toml."""
    for option in reversed(
        (
            click.option(
                "--select", multiple=True, metavar="CODES", help="Rules to run: codes or beginnings (HLO1,HLO301)."
            ),
            click.option("--ignore", multiple=True, metavar="CODES", help="Rules not to run."),
            click.option("--severity", multiple=True, metavar="CODE=LEVEL", help="error, warning or info for a rule."),
        )
    ):
        function = option(function)
    return function


def hlo_option(function: Decorated) -> Decorated:
    """Add ``--hlo``: the modules that a profile does not carry."""
    return click.option(
        "--hlo",
        multiple=True,
        metavar="FILE|DIR",
        help="Of a profile without modules (nsys): a module, or the run's --xla_dump_to directory; repeatable.",
    )(function)


def refuse_hlo(hlo: Sequence[str], inputs: Iterable[str]) -> None:
    """Raise UsageError for ``--hlo`` where no INPUT is a profile."""
    if not hlo:
        return
    from hloinspect.inputs.classify import is_trace, is_url

    if not any(is_trace(source) or is_url(source) for source in inputs):
        raise UsageError("--hlo is for a profile, and no INPUT is one")


def output_options(function: Decorated) -> Decorated:
    """Add ``--format text|json`` and ``-o FILE``."""
    style = click.option("--format", "style", type=click.Choice(["text", "json"]), default="text", show_default=True)
    output = click.option("-o", "--output", metavar="FILE", help="Write to FILE instead of standard output.")
    return style(output(function))


def report_options(function: Decorated) -> Decorated:
    """Add ``--format text|json|perfetto|xplane``, ``-o`` and ``--timeline``: for commands whose answer has a
    timeline."""
    for option in reversed(
        (
            click.option(
                "--format",
                "style",
                type=click.Choice(["text", "json", "perfetto", "xplane"]),
                default="text",
                show_default=True,
                help="perfetto: a trace for ui.perfetto.dev; xplane: a predicted profile for XProf.",
            ),
            click.option(
                "-o",
                "--output",
                metavar="FILE",
                help="Write to FILE instead of standard output; xplane: to a directory.",
            ),
            click.option(
                "--timeline/--no-timeline",
                default=None,
                help="Draw the step in a few rows above the table. Default: on a terminal.",
            ),
        )
    ):
        function = option(function)
    return function


class Progress:
    """A line on stderr that says what a long step is doing; nothing where stderr is no terminal, or before
    ``after_s``."""

    def __init__(self, after_s: float = 0.0) -> None:
        self._shown = False
        self._after_s = after_s
        self._started = time.monotonic()

    def __call__(self, message: str) -> None:
        seconds = time.monotonic() - self._started
        if seconds >= self._after_s and sys.stderr.isatty():
            click.echo(f"\r\033[K{printable(message)} ({seconds:.0f} s)", nl=False, err=True)
            self._shown = True

    def clear(self) -> None:
        """Take the line away."""
        if self._shown:
            click.echo("\r\033[K", nl=False, err=True)
            self._shown = False
