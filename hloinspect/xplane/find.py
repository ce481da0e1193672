"""Which files are the trace? A profile directory holds one XSpace a host, and much else that viewers leave there."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from hloinspect.errors import InputError

SUFFIXES = (".xplane.pb", ".xplane.pb.gz")
_CHROME_SUFFIXES = ("trace.json.gz", "trace.json")
_BY_TIME = re.compile(r"\d{4}(?:_\d\d){5}")


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
        own = _traces(path)
        if own:
            return own
        for folder in (path / "plugins" / "profile", path / "profile", path):
            if folder.is_dir() and (runs := {run: found for run in folder.iterdir() if (found := _traces(run))}):
                return runs[_newest(runs)]
        others = sorted(p for p in path.rglob("*") if p.name.endswith(_CHROME_SUFFIXES))[:1]
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else error
        raise InputError(f"{name}: cannot be read: {reason}") from None
    hint = f"; there is {others[0]}, a Chrome trace: name it to read that" if others else ""
    raise InputError(f"{name}: expected a profile with plugins/profile/<run>/<host>.xplane.pb, found none{hint}")


def host_of(path: Path) -> str:
    """The host that a trace is of, by its file's name: it may hold dots (``10.0.0.1_6003.xplane.pb``)."""
    for suffix in reversed(SUFFIXES):
        if path.name.endswith(suffix):
            return path.name.removesuffix(suffix)
    return path.name


def _traces(folder: Path) -> tuple[Path, ...]:
    """Not what a viewer has made of them: xprof writes its caches beside them."""
    if not folder.is_dir():
        return ()
    return tuple(sorted(p for p in folder.iterdir() if p.name.endswith(SUFFIXES) and p.is_file()))


def _newest(runs: dict[Path, tuple[Path, ...]]) -> Path:
    def written(files: Sequence[Path]) -> float:
        return max(file.stat().st_mtime for file in files)

    if all(_BY_TIME.fullmatch(run.name) for run in runs):
        return max(runs, key=lambda run: run.name)
    return max(runs, key=lambda run: (written(runs[run]), run.name))
