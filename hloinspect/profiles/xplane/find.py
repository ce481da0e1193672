"""Which files are the trace? A profile directory holds one XSpace a host, and much else that viewers leave there."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from hloinspect.errors import InputError

SUFFIXES = (".xplane.pb", ".xplane.pb.gz")
EXPECTED = "expected a profile with plugins/profile/<run>/<host>.xplane.pb, found none"
_CHROME_SUFFIXES = ("trace.json.gz", "trace.json")
_BY_TIME = re.compile(r"\d{4}(?:_\d\d){5}")
_HOMES = (("plugins", "profile"), ("profile",), ())


class Folders(Protocol):
    """Where to look: folders here (``_Local``), or in a bucket (``remote.py``). Places are texts with slashes."""

    def entries(self, folder: str) -> Mapping[str, bool] | None:
        """The names in a folder, and which of them are folders; None where there is no such folder."""

    def written(self, file: str) -> float:
        """When a file was written, in seconds."""


def find_xplanes(path: str | Path) -> tuple[Path, ...]:
    """The traces of one run, one file a host, sorted by name.

    ``path`` is a file (taken as it is), a log directory (its newest run in ``plugins/profile``), that directory itself,
    or the directory of a run. The newest run is the one with the latest name, as ``jax.profiler`` names them by time;
    where other names are among them, the one whose traces were written last.

    Raises InputError where there is none.
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
    raise InputError(f"{name}: {EXPECTED}{hint}")


def newest_run(folders: Folders, top: str) -> tuple[str, ...]:
    """The traces in a folder, or else those of the newest run below it; none where there are none."""
    own = _traces(folders, top)
    for home in _HOMES if not own else ():
        folder = "/".join((top, *home))
        runs = {run: found for run in _folders_in(folders, folder) if (found := _traces(folders, f"{folder}/{run}"))}
        if runs:
            return runs[_newest(folders, runs)]
    return own


def host_of(path: Path) -> str:
    """The host that a trace is of, by its file's name: it may hold dots (``10.0.0.1_6003.xplane.pb``)."""
    for suffix in reversed(SUFFIXES):
        if path.name.endswith(suffix):
            return path.name.removesuffix(suffix)
    return path.name


def _traces(folders: Folders, folder: str) -> tuple[str, ...]:
    """Not what a viewer has made of them: xprof writes its caches beside them."""
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
    """Folders of this machine."""

    def entries(self, folder: str) -> Mapping[str, bool] | None:
        place = Path(folder)
        if not place.is_dir():
            return None
        return {entry.name: entry.is_dir() for entry in place.iterdir() if entry.is_dir() or entry.is_file()}

    def written(self, file: str) -> float:
        return Path(file).stat().st_mtime
