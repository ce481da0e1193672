"""The baseline: a small JSON file in the user's repository, one entry for each step and target, sorted, so that a
change of it can be read in a review."""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hloinspect.errors import InputError, UsageError
from hloinspect.gate.snapshot import FindingGroup, Made, MemorySnapshot, Snapshot, Split, TransferGroup

if TYPE_CHECKING:
    from hloinspect.compile.result import Configuration

SCHEMA = "hloinspect.baseline/1"
_MAX_BYTES = 64 << 20
_LINE = 100
_HOW = "make it with `hloinspect check ... --baseline {path} --update-baseline`"


@dataclass(frozen=True, slots=True)
class Baseline:
    """The entries of a baseline file, sorted by step, target, devices and kind."""

    path: Path
    entries: tuple[Snapshot, ...] = ()

    def find(self, wanted: Snapshot) -> Snapshot | None:
        """The entry for the same step, target, number of devices and kind (predicted or measured)."""
        return next((entry for entry in self.entries if entry.key == wanted.key), None)

    def why_missing(self, wanted: Snapshot) -> str:
        """One sentence on why there is no entry, for ``find`` that gave None."""
        same = [entry for entry in self.entries if entry.step == wanted.step]
        if not same:
            more = f"; it has {', '.join(sorted({e.step for e in self.entries})[:4])}" if self.entries else ""
            return f"{self.path} has no entry for {wanted.step}{more} (--update-baseline adds it)"
        has = ", ".join(sorted({_where(entry) for entry in same}))
        return (
            f"{self.path} has no entry for {wanted.step} on {_where(wanted)}, only on {has} (--update-baseline adds it)"
        )

    def updated(self, entries: Sequence[Snapshot]) -> Baseline:
        """With these entries in place of those of the same key."""
        merged = {entry.key: entry for entry in (*self.entries, *entries)}
        return Baseline(self.path, tuple(merged[key] for key in sorted(merged)))


def _where(entry: Snapshot) -> str:
    return f"{entry.devices} x {entry.target or 'no target'}, {entry.kind}"


# ---- reading


def load_baseline(path: Path) -> Baseline:
    """The baseline in a file. Raises InputError, one line with the file, where it is missing or not whole."""
    try:
        if path.stat().st_size > _MAX_BYTES:
            raise InputError(f"{path} is too large for a baseline ({_MAX_BYTES >> 20} MiB at most)")
        data = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InputError(f"there is no baseline {path}: {_HOW.format(path=path)}") from None
    except (OSError, ValueError, RecursionError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else error
        raise InputError(f"{path} is not a baseline: {reason}") from None
    schema = data.get("schema") if isinstance(data, dict) else None
    if schema != SCHEMA:
        raise InputError(f"{path} is not a baseline: its schema is {schema!r}, and this version reads {SCHEMA!r}")
    try:
        entries = [_entry(entry) for entry in data["entries"]]
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise InputError(f"{path} is not a whole {SCHEMA}: {type(error).__name__}: {error}") from None
    return Baseline(path).updated(entries)


def _entry(data: Mapping[str, Any]) -> Snapshot:
    made = dict(data["made"])
    made["flags"] = None if made["flags"] is None else tuple(map(str, made["flags"]))
    made["configuration"] = _configuration(made.get("configuration"))
    return Snapshot(
        step=str(data["step"]),
        target=None if data["target"] is None else str(data["target"]),
        devices=int(data["devices"]),
        kind=str(data["kind"]),
        made=Made(**made),
        step_ms=_number(data["step_ms"]),
        stall_ms=_split(data["stall_ms"]),
        exposed_ms=_split(data["exposed_ms"]),
        bytes_per_step={part: int(data["bytes_per_step"][part]) for part in ("d2h", "h2d")},
        verdicts=_counts(data["verdicts"]),
        memory=MemorySnapshot(**data["memory"]),
        transfers=tuple(_transfer(item) for item in data["transfers"]),
        findings=tuple(_finding(item) for item in data["findings"]),
        rules_not_run=tuple(map(str, data["rules_not_run"])),
    )


def _configuration(data: dict[str, Any] | None) -> Configuration | None:
    """Return the configuration of an entry, None where it has none, as in baselines of before it was kept."""
    if data is None:
        return None
    from hloinspect.compile.result import configuration_from

    return configuration_from(data)


def _number(value: object) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < float("inf"):
        raise ValueError(f"{value!r} is no amount")
    return float(value)


def _split(value: Mapping[str, Any] | None) -> Split | None:
    if value is None:
        return None
    parts = [_number(value[part]) for part in ("d2h", "h2d", "total")]
    return Split(*(0.0 if part is None else part for part in parts))


def _counts(value: Mapping[str, Any]) -> dict[str, int]:
    return {str(word): int(count) for word, count in sorted(value.items())}


def _transfer(data: Mapping[str, Any]) -> TransferGroup:
    whole = {name: int(data[name]) for name in ("loop_depth", "count", "runs", "bytes", "bytes_per_step")}
    times = {name: _number(data[name]) for name in ("duration_ms", "cover_ms", "wait_ms")}
    return TransferGroup(
        **{
            **data,
            **whole,
            **times,
            "shape": tuple(int(n) for n in data["shape"]),
            "mechanisms": _counts(data["mechanisms"]),
            "verdicts": _counts(data["verdicts"]),
        }
    )


def _finding(data: Mapping[str, Any]) -> FindingGroup:
    if data["severity"] not in ("error", "warning", "info"):
        raise ValueError(f"{data['severity']!r} is no severity")
    return FindingGroup(**{**data, "count": int(data["count"])})


# ---- writing


def to_json(baseline: Baseline) -> str:
    """The file's text: sorted, floats to a picosecond or so, a line end at the end."""
    from hloinspect.report.json import rounded

    entries = [asdict(entry) for entry in baseline.entries]
    return _laid_out({"schema": SCHEMA, "entries": rounded(entries)}, "") + "\n"


def _laid_out(value: Any, margin: str) -> str:
    """JSON with what fits on one line on one line: a line of a difference then says something by itself."""
    line = json.dumps(value)
    if not isinstance(value, (dict, list)) or len(margin) + len(line) <= _LINE:
        return line
    inner = margin + " "
    if isinstance(value, dict):
        parts = [f"{inner}{json.dumps(key)}: {_laid_out(item, inner)}" for key, item in value.items()]
        return "{\n" + ",\n".join(parts) + f"\n{margin}}}"
    return "[\n" + ",\n".join(f"{inner}{_laid_out(item, inner)}" for item in value) + f"\n{margin}]"


def update_baseline(path: Path, entries: Sequence[Snapshot]) -> Baseline:
    """Puts entries into the baseline in a file, in place of those of the same key; the others stay. The file is made
    if need be, and other processes that do the same wait. Raises InputError, and UsageError where it cannot be
    written."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with _locked(path):
            old = load_baseline(path) if path.exists() else Baseline(path)
            new = old.updated(entries)
            _replace(path, to_json(new))
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror or error}") from None
    return new


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """The right to change a file, for one process at a time. The folder is what is locked: the file is replaced, and a
    lock file of its own would have to be kept out of the user's repository."""
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
