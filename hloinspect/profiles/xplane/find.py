"""Finding the files of a trace. A profile directory holds one XSpace for each host, and other files of viewers."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from hloinspect.errors import InputError
from hloinspect.profiles.content import NSYS_SUFFIXES

SUFFIXES = (".xplane.pb", ".xplane.pb.gz")
EXPECTED = "expected a profile with plugins/profile/<run>/<host>.xplane.pb, found none"
_CHROME_SUFFIXES = ("trace.json.gz", "trace.json")
_BY_TIME = re.compile(r"\d{4}(?:_\d\d){5}")
_HOMES = (("plugins", "profile"), ("profile",), ())


class Folders(Protocol):
    """Directories to search: those of this machine (``_Local``), or of a bucket (``remote.py``). Paths are texts with
    slashes."""

    def entries(self, folder: str) -> Mapping[str, bool] | None:
        """Return the names in a directory, and whether each is a directory. Return None where there is no such
        directory."""

    def written(self, file: str) -> float:
        """Return when a file was written, in seconds."""


def find_xplanes(path: str | Path, expected: str = EXPECTED) -> tuple[Path, ...]:
    """Return the traces of one run, one file for each host, sorted by name. Raises InputError where there is none.

    ``path`` is a file (which is returned), a log directory (its newest run in ``plugins/profile``), that directory
    itself, or the directory of a run. The newest run is the one with the latest name, since ``jax.profiler`` names runs
    by time. Where other names are among them, it is the run whose traces were written last. ``expected`` is said where
    there is none.
    """
    name, path = str(path), Path(path)
    try:
        if not path.is_dir():
            if path.exists():
                return (path,)
            raise InputError(f"{name}: no such file or directory")
        if own := newest_run(_Local(), str(path)):
            return tuple(map(Path, own))
        others = sorted(p for p in path.rglob("*") if p.name.endswith(_CHROME_SUFFIXES))[:1]
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else error
        raise InputError(f"{name}: cannot be read: {reason}") from None
    hint = f"; there is {others[0]}, a Chrome trace: name it to read that" if others else ""
    raise InputError(f"{name}: {expected}{hint}")


def newest_run(folders: Folders, top: str) -> tuple[str, ...]:
    """Return the traces in a directory, or else those of the newest run below it. It is empty where there are none."""
    own = _traces(folders, top)
    for home in _HOMES if not own else ():
        folder = "/".join((top, *home))
        runs = {run: found for run in _folders_in(folders, folder) if (found := _traces(folders, f"{folder}/{run}"))}
        if runs:
            return runs[_newest(folders, runs)]
    return own


def host_of(path: Path) -> str:
    """Return the host of a trace from its file's name, which may contain dots (``10.0.0.1_6003.xplane.pb``)."""
    for suffix in (*reversed(SUFFIXES), *NSYS_SUFFIXES):
        if path.name.endswith(suffix):
            return path.name.removesuffix(suffix)
    return path.name


def _traces(folders: Folders, folder: str) -> tuple[str, ...]:
    """Return the traces in a directory, without the caches that xprof writes beside them."""
    found = folders.entries(folder) or {}
    names = (name for name, is_folder in found.items() if name.endswith(SUFFIXES) and not is_folder)
    return tuple(f"{folder}/{name}" for name in sorted(names))


def _folders_in(folders: Folders, folder: str) -> Iterator[str]:
    return (name for name, is_folder in (folders.entries(folder) or {}).items() if is_folder)


def _newest(folders: Folders, runs: Mapping[str, Sequence[str]]) -> str:
    if all(_BY_TIME.fullmatch(run) for run in runs):
        return max(runs)
    return max(runs, key=lambda run: (max(map(folders.written, runs[run])), run))


class _Local:
    """Directories of this machine."""

    def entries(self, folder: str) -> Mapping[str, bool] | None:
        place = Path(folder)
        if not place.is_dir():
            return None
        return {entry.name: entry.is_dir() for entry in place.iterdir() if entry.is_dir() or entry.is_file()}

    def written(self, file: str) -> float:
        return Path(file).stat().st_mtime
