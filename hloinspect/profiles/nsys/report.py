"""Reports of Nsight Systems (``.nsys-rep``): exported by an installed nsys, since only that can read them.

The format is not documented, and NVIDIA changes it. ``nsys export`` reads those of its own version and of earlier ones.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

from hloinspect.errors import InputError
from hloinspect.profiles.content import SQLITE, content_of, is_packed
from hloinspect.profiles.nsys.packed import temporary_folder, unpacked_file
from hloinspect.profiles.nsys.sqlite import EXPORT, open_sqlite
from hloinspect.profiles.xplane.space import XSpace

PROGRAM = "nsys"
TIMEOUT_S = 3600.0
"""Seconds after which an export is given up. One of 8 GB takes about ten minutes."""

_MOST_WORDS = 300


def open_report(path: str | Path, on_progress: Callable[[str], None] | None = None) -> XSpace:
    """Return the profile in a report, from an export into a temporary folder. Raises InputError where there is no
    nsys, or where it fails."""
    name = str(path)
    program = shutil.which(PROGRAM)
    if program is None:
        raise InputError(
            f"{name}: a report of Nsight Systems, which only nsys can read, and it is not on PATH: run `{EXPORT}` "
            "where it is installed, and give the .sqlite"
        )
    if on_progress is not None:
        on_progress(f"exporting {Path(name).name} with nsys")
    if is_packed(path):
        with unpacked_file(path) as file:
            return _exported(program, file, name)
    return _exported(program, Path(path), name)


def _exported(program: str, path: Path, name: str) -> XSpace:
    with temporary_folder(name) as folder:
        report, target = folder / "report.nsys-rep", folder / "report.sqlite"
        report.symlink_to(path.resolve())  # nsys takes a file by its suffix, and may write beside it
        command = [program, "export", "--type", "sqlite", "--force-overwrite", "true", "--output", str(target)]
        _run([*command, str(report)], folder, name)
        if content_of(target) != SQLITE:
            raise InputError(f"{name}: nsys wrote no SQLite file: run `{EXPORT}` to see why")
        return open_sqlite(target, name)


def _run(command: Sequence[str], folder: Path, name: str) -> None:
    """Run nsys to its end. Raises InputError with its own words where it fails."""
    with (folder / "words").open("wb+") as words:
        try:
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=words, stderr=words, cwd=folder, start_new_session=True
            )
        except OSError as error:
            raise InputError(f"{name}: nsys cannot be run: {error.strerror or error}") from None
        try:
            status = process.wait(TIMEOUT_S)
        except subprocess.TimeoutExpired:
            raise InputError(
                f"{name}: nsys took more than {TIMEOUT_S:.0f} s: run `{EXPORT}` and give the .sqlite"
            ) from None
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        words.seek(0)
        said = " ".join(words.read(1 << 16).decode("utf-8", "replace").split())
    if status:
        shown = said if len(said) <= _MOST_WORDS else f"... {said[-_MOST_WORDS:]}"
        raise InputError(f"{name}: nsys cannot export it (a newer nsys may): {shown or f'exit code {status}'}")
