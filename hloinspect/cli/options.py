"""Options that several commands share."""

from __future__ import annotations

import functools
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar, cast

import click

from hloinspect.cli.numbers import DEVICES, TOPOLOGY
from hloinspect.options import Production, cache_folder

Decorated = TypeVar("Decorated", bound=Callable[..., object])


def judging_options(function: Decorated) -> Decorated:
    """``--target --link --devices --topology --xla-flag``: what a step is compiled and judged for."""
    for option in reversed(
        (
            click.option(
                "--target",
                metavar="NAME",
                help="Hardware to judge for: a name of `hloinspect targets`, or a TOML file.",
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
    """``--flags-from --autotune-results --pgle``: what the production run had. The command gets ``production``
    (given.Production) in their place."""

    @functools.wraps(function)
    def with_production(
        *args: object, flags_from: Path | None, autotune_results: Path | None, pgle: Path | None, **kwargs: object
    ) -> object:
        return function(*args, production=Production(flags_from, autotune_results, pgle), **kwargs)

    path = click.Path(path_type=Path)
    wrapped: Any = with_production
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
        wrapped = option(wrapped)
    return cast(Decorated, wrapped)


def compiling_options(function: Decorated) -> Decorated:
    """``production_options`` and ``--no-cache``. The command gets ``cache`` for the latter: the folder, or None."""

    @functools.wraps(function)
    def with_cache(*args: object, no_cache: bool, **kwargs: object) -> object:
        return function(*args, cache=None if no_cache else cache_folder(), **kwargs)

    wrapped: Any = with_cache
    wrapped = click.option("--no-cache", is_flag=True, help="Compile a step anew, and do not keep it.")(wrapped)
    return production_options(cast(Decorated, wrapped))


def rule_options(function: Decorated) -> Decorated:
    """``--select --ignore --severity``: which rules run, on top of [tool.hloinspect] in pyproject.toml."""
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


def output_options(function: Decorated) -> Decorated:
    """``--format text|json`` and ``-o FILE``."""
    style = click.option("--format", "style", type=click.Choice(["text", "json"]), default="text", show_default=True)
    output = click.option("-o", "--output", metavar="FILE", help="Write to FILE instead of standard output.")
    return style(output(function))


def report_options(function: Decorated) -> Decorated:
    """``--format text|json|perfetto|xplane``, ``-o`` and ``--timeline``: for commands whose answer has a timeline."""
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
    """One line on stderr that says what a long step is at; nothing where stderr is no terminal, or before
    ``after_s``."""

    def __init__(self, after_s: float = 0.0) -> None:
        self._shown = False
        self._after_s = after_s
        self._started = time.monotonic()

    def __call__(self, message: str) -> None:
        seconds = time.monotonic() - self._started
        if seconds >= self._after_s and sys.stderr.isatty():
            click.echo(f"\r\033[K{message} ({seconds:.0f} s)", nl=False, err=True)
            self._shown = True

    def clear(self) -> None:
        """Takes the line away."""
        if self._shown:
            click.echo("\r\033[K", nl=False, err=True)
            self._shown = False
