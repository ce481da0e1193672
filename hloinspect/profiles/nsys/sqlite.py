"""Reader of SQLite exports of Nsight Systems (``nsys export --type sqlite``), from 2022 on.

Tables and columns are found by name, and all but the registered strings may be missing: an export writes no empty
table, and older versions lack columns. NVIDIA's document "SQLite Schema Reference" describes them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from hloinspect.errors import InputError
from hloinspect.profiles.nsys import names
from hloinspect.profiles.nsys.database import Database
from hloinspect.profiles.nsys.devices import META, PRODUCT, Host, read_gpus, read_host, read_messages, settings
from hloinspect.profiles.nsys.joins import PUSH_POP, START_END, Joined, Program, join_rows, xla_ranges
from hloinspect.profiles.nsys.planes import DeviceKey, Marks, Shared, Texts, device_planes, host_plane
from hloinspect.profiles.nsys.tables import (
    GRAPH,
    KERNEL,
    MEMCPY,
    NVTX,
    RUNTIME,
    STRINGS,
    TABLES,
    Calls,
    Rows,
    clock_of,
    read_calls,
    read_rows,
    strings_of,
)
from hloinspect.profiles.xplane.space import EventMetadata, Gap, Plane, PlaneMetadata, StatValue, XSpace

RECORD = "nsys profile --trace=cuda,nvtx --cuda-graph-trace=node CMD"
EXPORT = "nsys export --type sqlite REPORT.nsys-rep"
_MAX_KERNEL_NAME = 4096
_STATS = ("hlo_op", "program_id", "hlo_module", "memcpy_details", "correlation_id", "step_num")
_MODE = "CUDA_GRAPH_TRACE_OPTIONS:MODE"
"""The end of a setting's name: in 2024 it begins with a process."""

_TABLES_PARAMETER, _TIMES_PARAMETER = "EXPORT_PARAM_TABLES_TO_EXPORT", "EXPORT_PARAM_TIMES_TO_EXPORT"
_NEEDED = (TABLES[KERNEL], TABLES[MEMCPY], RUNTIME, NVTX)
_SETTINGS = ("META_DATA_CAPTURE", *META)


def open_sqlite(path: str | Path, name: str = "") -> XSpace:
    """Return the profile in an SQLite export. ``name`` is what errors and the result call it, by default its path.

    Raises InputError, one line, for a file that is damaged, or no export of Nsight Systems.
    """
    with Database(path, name) as database:
        _check_kind(database)
        try:
            return _space(database)
        except MemoryError:
            raise InputError(f"{database.name}: does not fit into memory") from None


def _check_kind(database: Database) -> None:
    """Raise InputError where a database is no export of Nsight Systems."""
    tables = database.tables
    found = "an SQLite database of another kind"
    if STRINGS in tables:
        if PRODUCT in settings(database, META).get("EXPORT_PRODUCT_NAME", []):
            return
    elif "StringTable" in tables:
        found = "an export of nvprof, which is another format"
    raise InputError(f"{database.name}: expected an export of Nsight Systems, found {found}: {RECORD}, then {EXPORT}")


@dataclass(frozen=True, slots=True)
class _Parts:
    """What was read of a file."""

    rows: Rows
    calls: Calls
    joined: Joined
    has_ranges: bool


def _space(database: Database) -> XSpace:
    rows, calls = read_rows(database), read_calls(database)
    xla = xla_ranges(database)
    parts = _Parts(rows, calls, join_rows(database, rows, calls, xla), len(xla) > 0)
    host, capture = read_host(database), settings(database, _SETTINGS)
    clock = clock_of((rows.start, calls.start))
    used = np.zeros(len(calls), np.bool_)
    used[parts.joined.call[parts.joined.call >= 0]] = True
    wanted = np.unique(rows.detail[KERNEL]["demangledName"]).tolist()
    strings = strings_of(database, frozenset(wanted), _MAX_KERNEL_NAME)
    shared = Shared(database.name, clock, strings, Texts(_STATS))
    planes, keys = device_planes(rows, parts.joined, read_gpus(database), shared)
    marks = _marks(database) if len({key.process for key in keys}) == 1 else None
    host_number = len(planes) + 1
    every = (
        *planes,
        host_plane(host_number, calls, used, marks, shared),
        _metadata_plane(host_number + 1, parts.joined.programs, host, capture),
    )
    lost, said = read_messages(database)
    notes = [*database.notes, *_device_notes(keys), *(f"nsys says: {text}" for text in said), *_notes(parts, capture)]
    return XSpace(
        path=database.name,
        planes=every,
        errors=(),
        warnings=lost,
        hostnames=(host.name,) if host.name else (),
        base_ns=clock.origin_ns,
        kind="nsys",
        gaps=tuple(_gaps(database, parts, capture)),
        notes=tuple(notes),
    )


def _notes(parts: _Parts, capture: dict[str, list[str]]) -> list[str]:
    """Return what to say of a file besides what it does not show."""
    rows = parts.rows
    found = []
    if len(rows) and not len(rows.start[rows.of(MEMCPY)]):
        found.append(f"the file has no copies ({TABLES[MEMCPY]} is missing, as nsys writes no empty table)")
    if any(capture.get(_TIMES_PARAMETER, ())):
        found.append("only a part of the session was exported (--times)")
    if len(rows.start[rows.of(GRAPH)]):
        mode = " or ".join(sorted({mode for key, own in capture.items() if key.endswith(_MODE) for mode in own}))
        found.append(f"CUDA graphs were traced as a whole (setting CUDA_GRAPH_TRACE_OPTIONS:MODE: {mode or 'unknown'})")
    if parts.joined.unlaunched:
        found.append(
            f"{parts.joined.unlaunched:,} of {len(rows):,} operations have no launching call in the file (it was made "
            "before the capture, or is cut off): they name no instruction"
        )
    return found


def _metadata_plane(number: int, programs: Sequence[Program], host: Host, capture: dict[str, list[str]]) -> Plane:
    """Return the plane that names the programs. It has no modules: an export holds none."""
    kinds = {
        place: EventMetadata(place, f"{program.name}({program.number})", program.name, {"program_id": program.number})
        for place, program in enumerate(programs, 1)
    }
    stats: dict[str, StatValue] = {"xla_flags": host.xla_flags} if host.xla_flags else {}
    if host.session_utc_ns:
        stats["session_utc_ns"] = host.session_utc_ns
    version = capture.get("EXPORT_PRODUCT_VERSION", [])
    if version:
        stats["nsys_version"] = version[0][:40]
    metadata = PlaneMetadata(kinds, {}, stats)
    return Plane(number, "/host:metadata", (), lambda: metadata)


def _device_notes(keys: Sequence[DeviceKey]) -> list[str]:
    """Return what device of which process each plane is, where several processes have the same numbers."""
    if len({key.device for key in keys}) == len(keys):
        return []
    return [f"GPU:{number} is device {key.device} of process {key.pid}" for number, key in enumerate(keys[:16])]


def _gaps(database: Database, parts: _Parts, capture: dict[str, list[str]]) -> list[Gap]:
    """Return what the file does not show."""
    rows = parts.rows
    found = []
    if not len(rows):
        return [Gap("the file has nothing that ran on a GPU (no table of kernels or copies)", RECORD, "time")]
    if any(capture.get(_TABLES_PARAMETER, ())) and (
        lacking := [name for name in _NEEDED if name not in database.tables]
    ):
        reason = f"only some tables of the report were exported (--tables), without {', '.join(lacking)}"
        found.append(Gap(reason, EXPORT, "time"))
    if not len(parts.calls):
        reason = f"the file has no calls of CUDA ({RUNTIME}), so nothing on the GPU can be joined to an instruction"
        found.append(Gap(reason, RECORD, "transfers"))
    elif not parts.has_ranges:
        has_table = bool(database.columns(NVTX))
        what = f"NVTX ranges, but none of XLA ({names.THUNK}hlo_op=...)" if has_table else "no NVTX ranges"
        remedy = f"profile a jitted JAX step: {RECORD}; then give its module: --hlo DIR, of XLA_FLAGS=--xla_dump_to=DIR"
        found.append(
            Gap(f"the file has {what}, so nothing on the GPU can be joined to an instruction", remedy, "transfers")
        )
    if not len(rows.start[rows.of(KERNEL)]) and not len(rows.start[rows.of(GRAPH)]):
        found.append(Gap("the file has no kernels, only copies", RECORD, "time"))
    return found


def _marks(database: Database) -> Marks | None:
    """Return the steps that the user's own ranges mark, where that is unambiguous: ranges of one kind and thread, one
    after the other, with ascending numbers."""
    columns = database.columns(NVTX)
    if not {"start", "end", "text", "globalTid", "eventType"} <= set(columns):
        return None
    where = f"eventType IN ({PUSH_POP}, {START_END}) AND end > start AND typeof(text) = 'text' AND length(text) < 40"
    where += " AND (domainId IS NULL OR domainId = 0)" if "domainId" in columns else ""
    found: dict[tuple[str, int], list[tuple[int, int, int]]] = {}
    for start, end, thread, text in database.rows(NVTX, ("start", "end", "globalTid", "text"), where):
        step = names.step_of(text) if isinstance(text, str) else None
        if step and isinstance(start, int) and isinstance(end, int) and isinstance(thread, int):
            found.setdefault((step[0], thread), []).append((start, end, step[1]))
    several = {key: sorted(steps) for key, steps in found.items() if len(steps) > 1}
    if len(several) != 1:
        return None
    (((_, thread), steps),) = several.items()
    start_ns, end_ns, number = (np.array(column, np.int64) for column in zip(*steps, strict=True))
    if (start_ns[1:] < end_ns[:-1]).any() or (number[1:] <= number[:-1]).any():
        return None
    return Marks(thread, start_ns, end_ns, number)
