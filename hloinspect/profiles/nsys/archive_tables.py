"""Tables of an nsys-jax archive: Parquet files as columns of numpy.

pyarrow is imported here only. ``trace.parquet`` has had three sets of columns:

* until Nsight Systems 2024.4: Name (``TSL:Thunk:#...``), Projected Start, Projected Duration, Orig Start, Orig Duration
  (times of the launching range on the host), NumGPUOps, PID, TID, RangeId, ParentId, and others;
* from 2024.5: Text (without a domain), Start, End (projected), PID, TID, Range ID, Parent ID, and others;
* from 2026.1.1 also Domain.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from hloinspect.errors import InputError, UsageError
from hloinspect.timeline.spans import Flags, Ints

if TYPE_CHECKING:
    import pyarrow

_TYPE = "a column is not of the expected type"
INSTALL = 'pip install "hloinspect[nsys]"'
MAX_ROWS = 1 << 24
"""Most rows of a table."""

MAX_COLUMNS = 1000
"""Most columns of a table."""

MAX_TABLE_BYTES = 1 << 32
"""Most bytes of a table, unpacked, as its file states them."""

_OLD = ("Name", "Projected Start", "Projected Duration", "PID", "TID", "RangeId", "ParentId")
_OLD_MAY = ("Orig Start", "Orig Duration", "NumGPUOps")
_NEW = ("Text", "Start", "End", "PID", "Range ID", "Parent ID")
_NEW_MAY = ("TID", "Domain")
_REPEATED = ("Name", "Text", "Domain")
"""Columns of texts that repeat: each different text is read once, however often the table has it."""

_TWO_LEVELS = re.compile(r"\('(\w+)', '(\w+)'\)")
_LAUNCHER = re.compile(r"Xla(?:Launcher)?:#(.*)#", re.DOTALL)
_NUMBER = re.compile(r"(\w+)=(\d{1,9})(?:,|$)")


@dataclass(frozen=True, slots=True)
class Ranges:
    """The rows of a projected trace: NVTX ranges with GPU work. Every array has one element for each row.

    ``name`` is an index into ``names``, -1 for a row without one: GPU work outside of any range. Times are in ns:
    ``start`` and ``end`` those of the range's GPU work, ``launched`` the end of the range on the host (-1 where that is
    not known). ``range_id`` and ``parent_id`` are -1 where there is none. ``gpu_ops`` is the number of kernels, copies
    and memsets, 0 where that is not known.
    """

    name: Ints
    names: tuple[str, ...]
    start: Ints
    end: Ints
    launched: Ints
    process: Ints
    thread: Ints
    range_id: Ints
    parent_id: Ints
    gpu_ops: Ints

    def __len__(self) -> int:
        return len(self.name)


@dataclass(frozen=True, slots=True)
class DeviceFacts:
    """What ``device-metadata.parquet`` says of a GPU. Numbers are 0, and texts empty, where it says nothing.

    ``number`` is the device's number in the whole run, from XLA's name for it, -1 where it has none.
    """

    number: int
    name: str
    memory_bytes: int
    memory_bytes_per_s: int
    clock_hz: int
    cores: int


def read_ranges(data: bytes, name: str) -> Ranges:
    """Return a projected trace (the content of a ``trace.parquet``). Raises InputError, and UsageError without
    pyarrow."""
    file = _open(data, name)
    found = set(file.schema_arrow.names)
    is_old = found.issuperset(_OLD)
    if not is_old and not found.issuperset(_NEW):
        raise InputError(
            f"{name}: expected the columns of nvtx_gpu_proj_trace (Name, Projected Start, ... or Text, Start, End, "
            f"...), found {', '.join(sorted(found))[:200]}"
        )
    must, may = (_OLD, _OLD_MAY) if is_old else (_NEW, _NEW_MAY)
    table = _read(file, [*must, *(column for column in may if column in found)], name)
    with _errors(name, _TYPE):
        return _old_ranges(table) if is_old else _new_ranges(table)


def read_launchers(data: bytes, name: str) -> Mapping[tuple[int, int], int]:
    """Return the number of the device in the whole run for each launching thread, by process and thread id.

    XLA names them ``XlaLauncher:#global=3,local=3,process=0,slice=0#`` if a process drives several devices. Raises
    InputError.
    """
    table = _read(_open(data, name), ["Name", "PID", "TID"], name)
    with _errors(name, _TYPE):
        codes, names = _texts(table, "Name")
        process, thread = _integers(table, "PID"), _integers(table, "TID")
    numbers = [_number(text) if text.startswith("XlaLauncher:#") else -1 for text in names]
    known = np.array([*numbers, -1], np.int64)[codes]
    chosen = np.flatnonzero(known >= 0)
    pairs = zip(process[chosen].tolist(), thread[chosen].tolist(), strict=True)
    return dict(zip(pairs, known[chosen].tolist(), strict=True))


def read_devices(data: bytes, name: str) -> tuple[DeviceFacts, ...]:
    """Return what is known of the GPUs of a process, in the order of their numbers in it. Raises InputError."""
    file = _open(data, name)
    columns = {match.groups(): full for full in file.schema_arrow.names if (match := _TWO_LEVELS.fullmatch(full))}
    wanted = {
        key: columns[place]
        for key, place in {
            "name": ("TARGET_INFO_GPU", "name"),
            "memory": ("TARGET_INFO_GPU", "totalMemory"),
            "rate": ("TARGET_INFO_GPU", "memoryBandwidth"),
            "clock": ("TARGET_INFO_GPU", "clockRate"),
            "cores": ("TARGET_INFO_GPU", "smCount"),
            "xla": ("TARGET_INFO_NVTX_CUDA_DEVICE", "name"),
        }.items()
        if place in columns
    }
    table = _read(file, list(wanted.values()), name)
    with _errors(name, _TYPE):
        rows = table.to_pylist()

    def number(row: Mapping[str, object], key: str) -> int:
        value = row.get(wanted.get(key, ""))
        return int(value) if isinstance(value, (int, float)) and 0 <= value < 1 << 62 else 0

    return tuple(
        DeviceFacts(
            _number(str(row.get(wanted.get("xla", "")) or "")),
            str(row.get(wanted.get("name", "")) or ""),
            *(number(row, key) for key in ("memory", "rate", "clock", "cores")),
        )
        for row in rows
    )


def read_host(data: bytes, name: str) -> str:
    """Return the name of the host from ``system-metadata.parquet``, or "". Raises InputError."""
    table = _read(_open(data, name), ["name", "value"], name)
    with _errors(name, _TYPE):
        rows = table.to_pylist()
    return next((str(row["value"] or "") for row in rows if row["name"] == "Hostname"), "")


def _number(text: str) -> int:
    """Return the number of a device in the whole run (``global=``) from XLA's name for it or its thread, or -1."""
    match = _LAUNCHER.fullmatch(text[:200])
    found = dict(_NUMBER.findall(match[1])) if match else {}
    return int(found.get("global", -1))


# ---- Parquet


def _open(data: bytes, name: str) -> pyarrow.parquet.ParquetFile:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise UsageError(f"{name} is a Parquet file, which needs pyarrow: {INSTALL}") from None
    with _errors(name, "expected a Parquet file, found other or damaged data"):
        metadata = pyarrow.parquet.read_metadata(pyarrow.BufferReader(data))
        rows = metadata.num_rows
        texts = [column for column in _REPEATED if column in metadata.schema.names]
        file = pyarrow.parquet.ParquetFile(pyarrow.BufferReader(data), metadata=metadata, read_dictionary=texts)
        names = file.schema_arrow.names  # decoded here, so that damaged ones are an error of the file
    if rows > MAX_ROWS or len(names) > MAX_COLUMNS:
        raise InputError(
            f"{name}: expected a table of at most {MAX_ROWS:,} rows and {MAX_COLUMNS:,} columns, found {rows:,} and "
            f"{len(names):,}"
        )
    return file


def _read(file: pyarrow.parquet.ParquetFile, columns: Sequence[str], name: str) -> pyarrow.Table:
    with _errors(name, "the Parquet file is damaged"):
        missing = [column for column in columns if column not in file.schema_arrow.names]
        if missing:
            found = ", ".join(file.schema_arrow.names)[:200]
            raise InputError(f"{name}: expected the column {missing[0]}, found {found}")
        # pyarrow ends the process where a damaged file's facts about a column are read (RowGroupMetaData.column).
        groups = range(file.metadata.num_row_groups)
        stated = sum(file.metadata.row_group(group).total_byte_size for group in groups)
        if stated > MAX_TABLE_BYTES:
            raise InputError(f"{name}: expected at most {MAX_TABLE_BYTES:,} bytes (unpacked), found {stated:,}")
        return file.read(columns=list(columns), use_threads=False)


@contextmanager
def _errors(name: str, what: str) -> Iterator[None]:
    """Raise any error of pyarrow, or of a value of another type, as one line: the name, and ``what`` is wrong."""
    import pyarrow

    try:
        yield
    except (pyarrow.ArrowException, LookupError, OSError, OverflowError, TypeError, ValueError) as error:
        raise InputError(f"{name}: {what}: {' '.join(str(error).split())[:200]}") from None


def _texts(table: pyarrow.Table, name: str) -> tuple[Ints, tuple[str, ...]]:
    """Return the index of each row's text, -1 for none, and the different texts."""
    import pyarrow

    column = table.column(name)
    if not pyarrow.types.is_dictionary(column.type):
        column = column.dictionary_encode()
    column = column.unify_dictionaries().combine_chunks()
    if isinstance(column, pyarrow.ChunkedArray):  # of an empty table
        column = column.chunk(0) if column.num_chunks else pyarrow.array([], pyarrow.string()).dictionary_encode()
    codes = column.indices.cast(pyarrow.int64()).fill_null(-1).to_numpy(zero_copy_only=False)
    return codes.astype(np.int64), tuple(str(text or "") for text in column.dictionary.to_pylist())


def _numbers(table: pyarrow.Table, name: str) -> tuple[Ints, Flags]:
    """Return a column of whole numbers, and which rows have one. Columns with gaps are stored as floats."""
    values: NDArray[np.generic] = table.column(name).to_numpy()
    if not np.issubdtype(values.dtype, np.number):
        values = np.array(values, np.float64)
    if np.issubdtype(values.dtype, np.integer):
        return values.astype(np.int64), np.ones(len(values), np.bool_)
    present = np.isfinite(values) & (np.abs(values) < 2.0**62)
    return np.where(present, values, 0).astype(np.int64), present


def _integers(table: pyarrow.Table, name: str, absent: int = -1) -> Ints:
    values, present = _numbers(table, name)
    return np.where(present, values, np.int64(absent))


def _old_ranges(table: pyarrow.Table) -> Ranges:
    name, names = _texts(table, "Name")
    start = _integers(table, "Projected Start")
    has = set(table.column_names)
    launched, gpu_ops = np.full(len(name), -1, np.int64), np.zeros(len(name), np.int64)
    if has.issuperset(("Orig Start", "Orig Duration")):
        begun, present = _numbers(table, "Orig Start")
        lasted, ended = _numbers(table, "Orig Duration")
        launched = np.where(present & ended, begun + lasted, np.int64(-1))
    if "NumGPUOps" in has:
        gpu_ops = np.clip(_integers(table, "NumGPUOps", 0), 0, 1 << 32)
    return Ranges(
        name,
        names,
        start,
        start + _integers(table, "Projected Duration", 0),
        launched,
        _integers(table, "PID"),
        _integers(table, "TID"),
        _integers(table, "RangeId"),
        _integers(table, "ParentId"),
        gpu_ops,
    )


def _new_ranges(table: pyarrow.Table) -> Ranges:
    name, names = _texts(table, "Text")
    if "Domain" in table.column_names:
        name, names = _with_domain(name, names, *_texts(table, "Domain"))
    none = np.zeros(len(name), np.int64)
    thread = _integers(table, "TID") if "TID" in table.column_names else none
    return Ranges(
        name,
        names,
        _integers(table, "Start"),
        _integers(table, "End"),
        none - 1,
        _integers(table, "PID"),
        thread,
        _integers(table, "Range ID"),
        _integers(table, "Parent ID"),
        none,
    )


def _with_domain(
    name: Ints, names: tuple[str, ...], domain: Ints, domains: tuple[str, ...]
) -> tuple[Ints, tuple[str, ...]]:
    """Return the names with their domain in front (``TSL:Thunk:#...``), as the older columns have them."""
    pairs, codes = np.unique(np.stack((domain, name)), axis=1, return_inverse=True)
    texts = [
        "" if text < 0 else f"{domains[d]}:{names[text]}" if d >= 0 and domains[d] else names[text]
        for d, text in zip(pairs[0].tolist(), pairs[1].tolist(), strict=True)
    ]
    codes = codes.ravel().astype(np.int64)
    return np.where(name < 0, np.int64(-1), codes), tuple(texts)
