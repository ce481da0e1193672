"""What every command does with its output: colour or not, how wide, and where it goes."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable
from typing import IO, TYPE_CHECKING, Any

import click

from hloinspect.errors import UsageError

if TYPE_CHECKING:
    from hloinspect.report.schema import Report


def use_color(stream: IO[Any]) -> bool:
    """Return whether ``stream`` gets colour: a terminal that can, unless NO_COLOR is set (no-color.org)."""
    if os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
        return False
    return stream.isatty()


def width(stream: IO[Any]) -> int:
    """Return how many columns to write: the terminal's, from 60 to 100; 100 where ``stream`` is none."""
    if not stream.isatty():
        return 100
    return max(60, min(100, shutil.get_terminal_size().columns))


def emit(text: str, output: str | None) -> None:
    """Write ``text`` and one line end to the file ``output``, or to stdout where that is None or ``-``.

    Commands may style always: colour is taken out here where it is not wanted. Raises UsageError if the file cannot be
    written.
    """
    text = text.rstrip("\n")
    if output is None or output == "-":
        click.echo(text, color=use_color(sys.stdout))
        return
    try:
        with open(output, "w", encoding="utf-8") as file:
            file.write(click.unstyle(text) + "\n")
    except OSError as exc:
        raise UsageError(f"cannot write {output}: {exc.strerror}") from exc


def emit_report(
    report: Report, style: str, output: str | None, to_text: Callable[[Report, int, bool], str], show_all: bool
) -> None:
    """Write a report as JSON or, by ``to_text`` (report, columns, everything), as text. Raises as ``emit`` does."""
    if style == "json":
        from hloinspect.report.json import to_json

        emit(to_json(report), output)
    else:
        emit(to_text(report, width(sys.stdout), show_all), output)
