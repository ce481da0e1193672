"""Finding the files of a profile of any known format."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from hloinspect.errors import InputError
from hloinspect.profiles.nsys.archive_members import find_archives
from hloinspect.profiles.nsys.find import find_reports, other_reports
from hloinspect.profiles.xplane.find import find_xplanes
from hloinspect.units import listed

_SHOWN = 3

EXPECTED = (
    "expected a profile with plugins/profile/<run>/<host>.xplane.pb, or exports, reports or archives of "
    "Nsight Systems, found none"
)


def find_profiles(path: str | Path) -> tuple[Path, ...]:
    """Return the profiles of one run, one for each host or rank. Raises InputError where there is none.

    ``path`` is a file, or a directory: of ``jax.profiler`` (``find_xplanes``), with archives of nsys-jax, or with
    exports or reports of Nsight Systems, whichever there is first.
    """
    try:
        return find_xplanes(path, EXPECTED)
    except InputError:
        if others := _others(Path(path)):
            return others
        raise


def left_out(path: str | Path, found: Collection[Path]) -> str:
    """Return which exports and reports of Nsight Systems in a directory are none of ``found``, as a limit, or ""."""
    path = Path(path)
    try:
        others = other_reports(path, found) if path.is_dir() else ()
    except OSError:
        return ""
    if not others:
        return ""
    read = listed([one.name for one in found], _SHOWN)
    return (
        f"{path} has other profiles, which are not read: {listed(others, _SHOWN)} (read: {read}); name one to read it"
    )


def _others(path: Path) -> tuple[Path, ...]:
    try:
        return (find_archives(path) or find_reports(path)) if path.is_dir() else ()
    except (OSError, ValueError, InputError):
        return ()
