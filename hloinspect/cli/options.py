"""Options that several commands share."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import TypeVar

import click

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
            click.option(
                "--devices", type=click.IntRange(min=1), metavar="N", help="Number of devices the step runs on."
            ),
            click.option(
                "--topology", metavar="PxHxD", help="NVLink domains x hosts x devices a host, such as 2x16x4."
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
