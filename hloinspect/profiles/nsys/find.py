"""Finding what Nsight Systems wrote in a directory: the newest run, with the files of all its ranks."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from hloinspect.profiles.content import ARCHIVE, NSYS_SUFFIXES, RAW_SUFFIXES, REPORT, SQLITE, content_of
from hloinspect.profiles.nsys.archive_members import find_archives, is_nsys_jax

MAX_ENTRIES = 10_000
"""The most files of a directory that are looked at."""

_RANK = re.compile(
    r"(?:rank|proc|process|procid|node|host|task|worker)[-_.]?\d+|(?<=[-_.])[rp]\d+(?=[-_.]|$)", re.IGNORECASE
)
_LAST = re.compile(r"(?<=[-_.])(\d+)$")
_DIGITS = re.compile(r"(\d+)")
_KINDS: Mapping[str, str] = {".nsys-rep": REPORT}


def is_nsys(path: str | Path) -> bool:
    """Return whether a file or directory is what Nsight Systems or nsys-jax wrote, by its content. Raises OSError."""
    path = Path(path)
    if path.is_dir():
        return bool(find_archives(path) or find_reports(path))
    if path.name.endswith(RAW_SUFFIXES):
        return path.is_file()
    content = content_of(path)
    return content in (SQLITE, REPORT) or (content == ARCHIVE and is_nsys_jax(path))


def find_reports(folder: Path) -> tuple[Path, ...]:
    """Return the exports and reports of the newest run in a directory, one for each rank, in the order of ranks.

    Files whose names differ in the number of a rank, process or node only (``report_rank0.sqlite``) are of one run, and
    so are those that end in ``_0`` to ``_N`` without a gap (``--output=report_%q{SLURM_PROCID}``). ``report1`` and
    ``report2``, as nsys calls them where no name is given, are two. Of a report and its export the export is
    taken, unless the report is newer. Raises OSError.
    """
    runs = _runs(folder)
    if not runs:
        return ()
    newest = max(runs, key=lambda run: (_written(runs[run]), run))
    return tuple(sorted(runs[newest], key=lambda path: _natural(path.name)))


def other_reports(folder: Path, chosen: Collection[Path] = ()) -> tuple[str, ...]:
    """Return the names of the exports and reports in a directory that are none of ``chosen``, sorted, each export with
    its report once. Raises OSError."""
    stems = {_stem(path.name) for path in chosen if path.name.endswith(NSYS_SUFFIXES)}
    found = [path for run in _runs(folder).values() for path in run if _stem(path.name) not in stems]
    return tuple(path.name for path in sorted(found, key=lambda path: _natural(path.name)))


def _runs(folder: Path) -> dict[str, list[Path]]:
    """Return the exports and reports of each run in a directory."""
    entries = [entry for entry in folder.iterdir() if entry.name.endswith(NSYS_SUFFIXES)][:MAX_ENTRIES]
    found: dict[str, Path] = {}
    for path in sorted(entries, key=lambda path: (path.stat().st_mtime, not path.name.endswith(".nsys-rep"))):
        if content_of(path) == _KINDS.get(path.suffix, SQLITE):
            found[_stem(path.name)] = path
    runs: dict[str, list[Path]] = {}
    for stem, path in found.items():
        runs.setdefault(_RANK.sub("#", stem), []).append(path)
    numbered: dict[str, list[tuple[int, str]]] = {}
    for run in runs:
        if number := _LAST.search(run):
            numbered.setdefault(run[: number.start()], []).append((int(number[1]), run))
    for beginning, several in numbered.items():
        if len(several) > 1 and sorted(number for number, _ in several) == list(range(len(several))):
            runs[f"{beginning}#"] = [path for _, run in several for path in runs.pop(run)]
    return runs


def _stem(name: str) -> str:
    return next(name.removesuffix(suffix) for suffix in NSYS_SUFFIXES if name.endswith(suffix))


def _written(paths: Sequence[Path]) -> float:
    return max(path.stat().st_mtime for path in paths)


def _natural(name: str) -> list[tuple[int, str]]:
    """Return a key that sorts numbers in a name by their value."""
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in _DIGITS.split(name)]
