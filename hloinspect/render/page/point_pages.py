"""The whole report of each point of a plan, as a page of its own beside the plan's."""

from __future__ import annotations

from pathlib import Path

from hloinspect.analyze.inspect import Inspection
from hloinspect.errors import InputError
from hloinspect.plan.judge import WritePage
from hloinspect.render.page import html_page


def write_pages_to(folder: Path) -> WritePage:
    """Return what writes the page of a point to ``pointN.html`` of this folder, which is made now.

    Raise InputError, now or when a page is written, where the folder cannot be written to.
    """
    _made(folder)

    def write(number: int, found: Inspection) -> None:
        _made(folder)
        try:
            (folder / f"point{number}.html").write_text(html_page(found), encoding="utf-8")
        except OSError as error:
            raise _unwritable(folder, error) from None

    return write


def _made(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _unwritable(folder, error) from None


def _unwritable(folder: Path, error: OSError) -> InputError:
    return InputError(f"{folder} cannot be written to: {error.strerror or error}")
