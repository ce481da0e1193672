"""Origin of an entry of a baseline: the input that it was recorded of. An update does not replace another input's
entry."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

NAMED = "an input that was given its name"
"""The origin of an input without a path that is the same on every machine, and whose name the user gave."""

PROGRAM = "a program of Python"
"""The origin of a program without a file. It has its module's name."""

_STDIN = "-"


def origin_of(source: str | None, baseline: Path, is_named: bool = False) -> str:
    """Return what distinguishes an input from others of the same name.

    It is the path relative to the baseline's folder where both are of one project, and so the same on every machine.
    For any other file it is the name of its folder and a digest of its path. ``source`` is the INPUT, None for a
    program without a file; ``is_named`` says whether the user gave the name.
    """
    if source is None or source == _STDIN:
        return NAMED if is_named else PROGRAM
    file, colon, function = source.rpartition(":")
    is_step = bool(colon) and file.endswith(".py")
    if colon and not is_step and not os.path.exists(source):
        return source  # a module of Python, or an address
    path, end = (file, f":{function}") if is_step else (source, "")
    if seen := _seen_from(path, baseline):
        return seen + end
    if is_named:
        return NAMED
    folder, name = os.path.split(os.path.abspath(path))
    digest = hashlib.sha256(os.fsencode(folder)).hexdigest()[:12]
    return f"{os.path.basename(folder)}/{name}{end} (folder {digest})"


def _seen_from(path: str, baseline: Path) -> str:
    """Return a file's path from a baseline's folder, or "" where the file is outside of the baseline's project."""
    head, name = os.path.split(path.rstrip(os.sep))
    for real in (os.path.abspath, os.path.realpath):  # first as written: a link may change later
        folder, file = Path(real(baseline.parent)), Path(real(head or os.curdir), name)
        if file.is_relative_to(_project_of(folder)):
            return Path(os.path.relpath(file, folder)).as_posix()
    return ""


def _project_of(folder: Path) -> Path:
    """Return the folder below which all is the same on every machine.

    It is the repository's, else that of pyproject.toml, else the working directory where ``folder`` is below it, else
    ``folder``.
    """
    for mark in (".git", "pyproject.toml"):
        for each in (folder, *folder.parents):
            if (each / mark).exists():
                return each
    here = Path.cwd()
    return here if folder.is_relative_to(here) and here != Path(here.anchor) else folder
