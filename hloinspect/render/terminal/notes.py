"""The last lines of every report for a terminal: what is not known, and where what is known ends."""

from __future__ import annotations

from collections.abc import Iterable

import click

from hloinspect.errors import printable
from hloinspect.render.terminal.wrap import wrapped
from hloinspect.report.schema import Unknown


def unknown_lines(unknown: Iterable[Unknown], width: int) -> list[str]:
    """Return what a report could not determine, and how to get it."""
    texts = (f"not known: {printable(one.reason)}. Try: {printable(one.remedy)}" for one in unknown)
    return [click.style(line, fg="magenta") for text in texts for line in wrapped(text, width, 0, 3)]


def limit_lines(limits: Iterable[str], width: int) -> list[str]:
    """Return the limits of a report."""
    return [line for limit in limits for line in wrapped(f"limit: {printable(limit)}", width, 0, 3)]
