"""Finding the files of a run, of any format of profiles that has several files in a directory."""

from __future__ import annotations

from pathlib import Path

from hloinspect.errors import InputError
from hloinspect.profiles.nsys.archive_members import find_archives
from hloinspect.profiles.xplane.find import find_xplanes


def find_profiles(path: str | Path) -> tuple[Path, ...]:
    """Return the traces of one run, sorted by name: a file, the XSpaces of a profile directory (``find_xplanes``), or
    the archives of nsys-jax in a directory (``find_archives``). Raises InputError where there is none."""
    try:
        return find_xplanes(path)
    except InputError:
        try:
            found = find_archives(path) if Path(path).is_dir() else ()
        except (OSError, ValueError):
            found = ()
        if not found:
            raise
        return found
