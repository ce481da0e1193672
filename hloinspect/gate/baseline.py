"""The baseline: a small JSON file in the user's repository, one entry for each step and target, sorted, so that a
change of it can be read in a review."""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from hloinspect.decoding import Fault, decode, newer_version, parse_json, read_text, shown
from hloinspect.errors import InputError, UsageError
from hloinspect.gate.snapshot import Snapshot
from hloinspect.kinds import Verdict

SCHEMA = "hloinspect.baseline/1"
_LINE = 100
_RENAME = "--as NAME, or name = in pyproject.toml"
_HOW = "make it with `hloinspect check ... --baseline {path} --update-baseline`"


@dataclass(frozen=True, slots=True)
class _Content:
    """What a baseline file holds."""

    schema: str
    entries: tuple[Snapshot, ...]


@dataclass(frozen=True, slots=True)
class Baseline:
    """The entries of a baseline file, sorted by step, target, devices and kind."""

    path: Path
    entries: tuple[Snapshot, ...] = ()

    def find(self, wanted: Snapshot) -> Snapshot | None:
        """Return the entry for the same step, target, number of devices and kind (predicted or measured)."""
        return next((entry for entry in self.entries if entry.key == wanted.key), None)

    def why_missing(self, wanted: Snapshot) -> str:
        """Say in one sentence why there is no entry, where ``find`` has returned None."""
        same = [entry for entry in self.entries if entry.step == wanted.step]
        if not same:
            more = f"; it has {', '.join(sorted({e.step for e in self.entries})[:4])}" if self.entries else ""
            return f"{self.path} has no entry for {wanted.step}{more} (--update-baseline adds it)"
        has = ", ".join(sorted({_where(entry) for entry in same}))
        return (
            f"{self.path} has no entry for {wanted.step} on {_where(wanted)}, only on {has} (--update-baseline adds it)"
        )

    def updated(self, entries: Sequence[Snapshot]) -> Baseline:
        """Return the baseline with these entries in place of those of the same key."""
        merged = {entry.key: entry for entry in (*self.entries, *entries)}
        return Baseline(self.path, tuple(merged[key] for key in sorted(merged)))


def _where(entry: Snapshot) -> str:
    return f"{entry.devices} x {entry.target or 'no target'}, {entry.kind}"


# ---- reading


def load_baseline(path: Path) -> Baseline:
    """Return the baseline in a file. Raises InputError, one line with the file and the field, where it is missing or
    not whole."""
    try:
        data = parse_json(read_text(path))
    except FileNotFoundError:
        raise InputError(f"there is no baseline {path}: {_HOW.format(path=path)}") from None
    except (OSError, ValueError, RecursionError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else error
        raise InputError(f"{path} is not a baseline: {reason}") from None
    schema = data.get("schema") if isinstance(data, dict) else None
    if schema != SCHEMA:
        raise InputError(f"{path} is not a baseline: its schema is {shown(schema)}, and this version reads {SCHEMA!r}")
    newer = _newer(data)
    try:
        entries = decode(data, _Content, newer=newer).entries
        for number, entry in enumerate(entries):
            _check_counts(entry, f"entries[{number}]")
    except Fault as fault:
        how = f"; if an older version wrote it, delete it and {_HOW.format(path=path)}" if fault.key else ""
        raise InputError(f"{path} is not a whole {SCHEMA}: {fault}{'' if newer else how}") from None
    if twice := _twice(entries):
        raise InputError(f"{path} has two entries for {twice.step} on {_where(twice)}: delete one of them")
    return Baseline(path).updated(entries)


def _check_counts(entry: Snapshot, path: str) -> None:
    """Raise Fault where what is counted by words does not add up: then a count was lost, or a word."""
    for number, group in enumerate(entry.transfers):
        for name, total in (("mechanisms", sum(group.mechanisms.values())), ("verdicts", sum(group.verdicts.values()))):
            if total != group.count:
                where = f"{path}.transfers[{number}].{name}"
                raise Fault(where, f": expected counts that add up to count, {group.count}, found {total}")
    totals = Counter[Verdict]()
    for group in entry.transfers:
        totals.update(group.verdicts)
    if totals != Counter(entry.verdicts):
        found = ", ".join(f"{count} {word}" for word, count in sorted(totals.items())) or "none"
        raise Fault(f"{path}.verdicts", f": expected what the transfers add up to, {found}")


def _newer(data: object) -> str:
    """Return the version that wrote an entry where it is newer than this one, else ""."""
    entries = data.get("entries") if isinstance(data, dict) else None
    made = (
        [entry.get("made") for entry in entries or () if isinstance(entry, dict)] if isinstance(entries, list) else []
    )
    return max((newer_version(each.get("hloinspect")) for each in made if isinstance(each, dict)), default="")


def _twice(entries: Sequence[Snapshot]) -> Snapshot | None:
    """Return an entry of which there is another with the same key, or None."""
    counts = Counter(entry.key for entry in entries)
    return next((entry for entry in entries if counts[entry.key] > 1), None)


# ---- writing


def to_json(baseline: Baseline) -> str:
    """Return the file's text: sorted, floats to a picosecond or so, a line end at the end."""
    from hloinspect.report.json import rounded

    entries = [asdict(entry) for entry in baseline.entries]
    return _laid_out({"schema": SCHEMA, "entries": rounded(entries)}, "") + "\n"


def _laid_out(value: object, margin: str) -> str:
    """Write JSON with what fits on one line on one line: a line of a difference then says something by itself."""
    line = json.dumps(value)
    if not isinstance(value, (dict, list)) or len(margin) + len(line) <= _LINE:
        return line
    inner = margin + " "
    if isinstance(value, dict):
        parts = [f"{inner}{json.dumps(key)}: {_laid_out(item, inner)}" for key, item in value.items()]
        return "{\n" + ",\n".join(parts) + f"\n{margin}}}"
    return "[\n" + ",\n".join(f"{inner}{_laid_out(item, inner)}" for item in value) + f"\n{margin}]"


def update_baseline(path: Path, entries: Sequence[Snapshot], named: Collection[str] = ()) -> Baseline:
    """Put entries into the baseline in a file, in place of those of the same key; the others stay. The file is made
    if need be, and other processes that do the same wait. ``named`` are the steps whose names the user gave: they may
    replace the entry of another input. A link stays one: the file that it names is changed. Raises InputError, and
    UsageError where it cannot be written, or where an entry would replace that of another input."""
    file = Path(os.path.realpath(path))
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with _locked(file):
            old = load_baseline(path) if os.path.lexists(file) else Baseline(path)
            _refuse_others(old, entries, named)
            new = old.updated(entries)
            _replace(file, to_json(new))
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror or error}") from None
    return new


def _refuse_others(old: Baseline, entries: Sequence[Snapshot], named: Collection[str]) -> None:
    """Raise UsageError where an entry would replace that of another input, which only has the same name. Of an entry
    without an origin nothing is known: an older version wrote it."""
    if twice := _twice(entries):
        inputs = [entry.origin or entry.step for entry in entries if entry.key == twice.key]
        raise UsageError(
            f"{old.path} was not changed: {' and '.join(inputs)} would both be its entry {twice.step} on "
            f"{_where(twice)}; give one of them a name of its own: {_RENAME}"
        )
    for entry in entries:
        known = old.find(entry)
        if known is None or known.origin is None or entry.step in named:
            continue
        if known.origin != entry.origin:
            this = entry.origin or "an input without an origin"
            raise UsageError(
                f"{old.path} was not changed: its entry {entry.step} on {_where(entry)} is that of {known.origin}, and "
                f"this is {this}; if it is another step, give it a name of its own, else say that it is the "
                f"same: {_RENAME} (--as {entry.step})"
            )


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold the right to change a file, for one process at a time. What is locked is the folder: the file is replaced,
    and a lock file of its own would have to be kept out of the user's repository."""
    import fcntl

    folder = os.open(path.parent, os.O_RDONLY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        yield
    finally:
        os.close(folder)


def _replace(path: Path, text: str) -> None:
    """Write a file so that nobody ever sees half of it."""
    handle, name = tempfile.mkstemp(prefix=f".{path.name}-", dir=path.parent)
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
        os.chmod(name, path.stat().st_mode & 0o777 if path.exists() else 0o644)
        os.replace(name, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(name)
        raise
