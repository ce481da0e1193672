"""The output of every command: colour or not, how wide, and where it goes."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING

import click

from hloinspect.errors import UsageError

if TYPE_CHECKING:
    from hloinspect.report.schema import Report


LEAST_COLUMNS = 60
"""Columns that text has at least; a narrower terminal gets no picture."""

Picture = Callable[[int, bool], Sequence[str]]
"""Rows that show a timeline, from the number of columns and whether they may have more than ASCII."""


def use_color(stream: IO[str]) -> bool:
    """Return whether ``stream`` gets colour: a terminal that can, unless NO_COLOR is set (no-color.org)."""
    if os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
        return False
    return stream.isatty()


def width(stream: IO[str]) -> int:
    """Return how many columns to write: the terminal's, from 60 to 100; 100 where ``stream`` is none."""
    if not stream.isatty():
        return 100
    return max(LEAST_COLUMNS, min(100, shutil.get_terminal_size().columns))


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


def emit_bytes(content: bytes, output: str | None, what: str) -> None:
    """Write bytes to a file, gzipped if its name ends in ``.gz``, or to stdout where that is no terminal.

    ``what`` says what they are. Raises UsageError if they cannot be written.
    """
    if output is None or output == "-":
        if sys.stdout.isatty():
            raise UsageError(f"{what} is binary, and standard output is a terminal: -o FILE")
        sys.stdout.buffer.write(content)
        return
    if output.endswith(".gz"):
        import gzip

        content = gzip.compress(content, mtime=0)
    try:
        with open(output, "wb") as file:
            file.write(content)
    except OSError as exc:
        raise UsageError(f"cannot write {output}: {exc.strerror}") from exc


@dataclass(frozen=True, slots=True)
class TextForm:
    """How a report is written as text: by ``to_text`` (report, columns, everything, rows of the picture).

    The rows of ``picture`` are drawn if that is ``requested``, or if it is not said and a terminal shows them.
    """

    to_text: Callable[[Report, int, bool, Sequence[str]], str]
    picture: Picture
    show_all: bool
    requested: bool | None


def emit_report(report: Report, style: str, output: str | None, text: TextForm) -> None:
    """Write a report as JSON or as text. Raises as ``emit`` does."""
    if style == "json":
        from hloinspect.report.json import to_json

        emit(to_json(report), output)
        return
    columns = width(sys.stdout)
    is_file = output not in (None, "-")
    wanted = text.requested if text.requested is not None else not is_file and _can_draw(sys.stdout)
    rows = text.picture(columns, is_file or _is_unicode(sys.stdout)) if wanted else ()
    emit(text.to_text(report, columns, text.show_all, rows), output)


def _can_draw(stream: IO[str]) -> bool:
    if not stream.isatty() or os.environ.get("TERM") == "dumb":
        return False
    return shutil.get_terminal_size().columns >= LEAST_COLUMNS


def _is_unicode(stream: IO[str]) -> bool:
    return (getattr(stream, "encoding", None) or "").lower().replace("-", "") in ("utf8", "utf16", "utf32", "cp65001")
