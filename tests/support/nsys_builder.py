"""Builder of synthetic exports of Nsight Systems (SQLite) from rows. Each says in its own tables that it is synthetic.

    export = Export("2024.4")
    thread = global_id(pid=700, tid=701)
    export.domain(thread, 1, "TSL")
    export.push_pop(thread, 100, 200, "Thunk:#hlo_op=copy-start.1#", domain=1, registered=True)
    export.call(thread, 120, 130, "cuMemcpyDtoHAsync_v2", correlation=9)
    export.memcpy(140, 900, correlation=9, globalPid=process_of(thread), bytes=64, copyKind=2, srcKind=2, dstKind=1)
    export.write(tmp_path / "synthetic.sqlite")

Tables and columns are those of NVIDIA's "SQLite Schema Reference" (release 2026.4) and of real exports of 2022.2,
2024.4 and 2026.2. As nsys does (``--lazy``), it writes only tables that have rows. A column that its version does not
have is left out, and one that must not be NULL is 0 or "" where no value is given.
"""

from __future__ import annotations

import random
import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal

Form = Literal["2022.2", "2024.4", "2026.2"]
FORMS: tuple[Form, ...] = ("2022.2", "2024.4", "2026.2")
Cell = int | float | str | bytes | None

_DEVICE = "start! end! deviceId! contextId! greenContextId@2024 streamId! correlationId globalPid"
_META = "name~! value~"
SCHEMA: Mapping[str, str] = {
    "StringIds": "id# value~!",
    "PROCESSES@2024": "globalPid pid name~",
    "ThreadNames": "nameId! priority globalTid",
    "ANALYSIS_DETAILS": "globalVid! duration! startTime! stopTime!",
    "TARGET_INFO_SESSION_START_TIME": "utcEpochNs utcTime~ localTime~ systemClockNs@2026",
    "TARGET_INFO_SYSTEM_ENV": "globalVid devStateName~! name~! nameEnum! value~!",
    "TARGET_INFO_GPU": "vmId! id! name~ busLocation~ isDiscrete l2CacheSize totalMemory memoryBandwidth clockRate "
    "smCount pwGpuId uuid~ luid chipName~ cuDevice asyncEngines computeMajor computeMinor smMajor smMinor",
    "TARGET_INFO_CUDA_DEVICE@2026": "gpuId cudaId! pid! uuid~ numMultiprocessors",
    "TARGET_INFO_CUDA_CONTEXT_INFO@2024": "nullStreamId! hwId! vmId! processId! deviceId! contextId! parentContextId "
    "isGreenContext numMultiprocessors",
    "TARGET_INFO_CUDA_NULL_STREAM": "streamId! hwId! vmId! processId! contextId!",
    "TARGET_INFO_CUDA_STREAM": "streamId! hwId! vmId! processId! contextId! priority! flag!",
    "TARGET_INFO_NVTX_CUDA_DEVICE": "name~! hwId! vmId! deviceId!",
    "TARGET_INFO_NVTX_CUDA_STREAM@2024": "name~! hwId! vmId! processId! deviceId! contextId! streamId!",
    "DIAGNOSTIC_EVENT": "timestamp! timestampType! source! severity! text~! globalPid",
    "NVTX_EVENTS": "start! end eventType! rangeId category color text~ globalTid endGlobalTid textId domainId "
    "uint64Value int64Value doubleValue% uint32Value int32Value floatValue% jsonTextId jsonText~ binaryData~@2024",
    "CUPTI_ACTIVITY_KIND_RUNTIME": "start! end! eventClass! globalTid correlationId nameId! returnValue! callchainId",
    "CUPTI_ACTIVITY_KIND_KERNEL": f"{_DEVICE} demangledName! shortName! mangledName launchType cacheConfig "
    "registersPerThread! gridX! gridY! gridZ! blockX! blockY! blockZ! staticSharedMemory! dynamicSharedMemory! "
    "localMemoryPerThread! localMemoryTotal! gridId! sharedMemoryExecuted graphNodeId sharedMemoryLimitConfig "
    "graphId@2024 clusterX@2026 clusterY@2026 clusterZ@2026 tensorSizeMinusOneElements~!@2026",
    "CUPTI_ACTIVITY_KIND_MEMCPY": f"{_DEVICE} bytes! copyKind! deprecatedSrcId srcKind dstKind srcDeviceId "
    "srcContextId dstDeviceId dstContextId migrationCause graphNodeId virtualAddress copyCount@2026",
    "CUPTI_ACTIVITY_KIND_MEMSET": f"{_DEVICE} value! bytes! graphNodeId memKind",
    "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION": f"{_DEVICE} deprecatedSyncType@2026 syncType! eventId! eventSyncId@2024",
    "CUPTI_ACTIVITY_KIND_GRAPH_TRACE": f"{_DEVICE} graphId! graphExecId!",
    "CUDA_GRAPH_NODE_EVENTS": "start! end! eventClass! globalTid nameId! graphNodeId! originalGraphNodeId",
    "EXPORT_META_DATA@2022": _META,
    "META_DATA_EXPORT@2024": _META,
    "META_DATA_CAPTURE@2024": _META,
    "ENUM_CUDA_MEMCPY_OPER@2024": "id# name~ label~",
    "ENUM_CUDA_MEM_KIND@2024": "id# name~ label~",
    "ENUM_NSYS_EVENT_TYPE@2024": "id# name~ label~",
}
"""Columns by table: ``!`` must not be NULL, ``#`` is the primary key, ``~`` is TEXT, ``%`` REAL, others are INTEGER.
``@`` is the year of the first version of nsys that is known to have it (``@2022``: only that one)."""

VERSIONS: Mapping[Form, tuple[str, str]] = {
    "2022.2": ("2022.2.1.31-5fe97ab", "2.9.1"),
    "2024.4": ("2024.4.1.61-244134315967v0", "3.11.2"),
    "2026.2": ("2026.2.1.210-262137639646v0", "3.25.0"),
}
COPIES = ("Unknown", "Host-to-Device", "Device-to-Host", "", "", "", "", "", "Device-to-Device", "Host-to-Host")
MEMORIES = ("Pageable", "Pinned", "Device", "Array", "Managed", "Device Static", "Managed Static", "Unknown")
EVENT_TYPES = {34: "NvtxMark", 59: "NvtxPushPopRange", 60: "NvtxStartEndRange", 75: "NvtxDomainCreate"}
MARK, PUSH_POP, START_END, DOMAIN = 34, 59, 60, 75
VM = 1 << 48
SYNTHETIC = "synthetic: made by the tests of hloinspect, not by nsys"


def global_id(pid: int, tid: int = 0) -> int:
    """Return the ``globalTid`` of a thread, or the ``globalPid`` of a process (tid 0), on the first virtual machine."""
    return VM | pid << 24 | tid


def process_of(thread: int) -> int:
    """Return the ``globalPid`` of a ``globalTid``."""
    return thread & ~0xFFFFFF


@dataclass(frozen=True, slots=True)
class Column:
    """A column of one version: its type, whether it is a key, and what it holds where no value is given."""

    name: str
    type: str
    rule: str
    default: Cell


@cache
def columns_of(table: str, form: Form) -> tuple[Column, ...] | None:
    """Return the columns that a table has in this version, or None where it has no such table. Raises KeyError."""
    key = next(key for key in SCHEMA if key.partition("@")[0] == table)
    if not _is_in(key, form, only_2022=True):
        return None
    found = []
    for word in SCHEMA[key].split():
        if not _is_in(word, form):
            continue
        name = word.partition("@")[0].rstrip("!#~%")
        marks = word.partition("@")[0][len(name) :]
        kind = "TEXT" if "~" in marks else "REAL" if "%" in marks else "INTEGER"
        rule = "NOT NULL PRIMARY KEY" if "#" in marks else "NOT NULL" if "!" in marks else ""
        found.append(Column(name, kind, rule, None if not rule else "" if kind == "TEXT" else 0))
    return tuple(found)


def _is_in(word: str, form: Form, *, only_2022: bool = False) -> bool:
    year, own = word.partition("@")[2], form.partition(".")[0]
    return not year or (own == "2022" if only_2022 and year == "2022" else own >= year)


def create_table(table: str, form: Form) -> str:
    """Return the statement that makes a table of this version."""
    columns = columns_of(table, form)
    assert columns is not None
    return f"CREATE TABLE {table} ({', '.join(f'{_quoted(c.name)} {c.type} {c.rule}'.rstrip() for c in columns)})"


def _quoted(name: str) -> str:
    return f'"{name}"' if name == "end" else name


@contextmanager
def new_database(path: Path) -> Iterator[sqlite3.Connection]:
    """Yield a database to write, and commit it at the end. A test needs no journal, and no wait for the disk."""
    connection = sqlite3.connect(path)
    try:
        connection.execute("PRAGMA synchronous = OFF")
        connection.execute("PRAGMA journal_mode = OFF")
        with connection:
            yield connection
    finally:
        connection.close()


class Export:
    """The rows of an export by table. Those of NVTX and of the runtime are written in no order: nsys promises none."""

    def __init__(self, form: Form) -> None:
        self.form: Form = form
        self.rows: dict[str, list[Mapping[str, Cell]]] = {}
        self._ids: dict[str | bytes, int] = {}
        self._describe()

    # ---- rows

    def add(self, table: str, **values: Cell) -> None:
        """Add a row. Columns and tables that this version does not have are left out."""
        known = SCHEMA[next(key for key in SCHEMA if key.partition("@")[0] == table)]
        names = {word.partition("@")[0].rstrip("!#~%") for word in known.split()}
        assert names >= values.keys(), f"{table} has no {values.keys() - names}"
        if columns_of(table, self.form) is not None:
            self.rows.setdefault(table, []).append(values)

    def text(self, value: str | bytes) -> int:
        """Return the id of a text in StringIds. Ids have gaps."""
        if value not in self._ids:
            self._ids[value] = 3 * len(self._ids) + 11
            self.add("StringIds", id=self._ids[value], value=value)
        return self._ids[value]

    def domain(self, thread: int, number: int, name: str, *, at: int = 0, registered: bool = False) -> None:
        """Add the creation of an NVTX domain of a process."""
        self.add(
            "NVTX_EVENTS",
            start=at,
            eventType=DOMAIN,
            globalTid=thread,
            domainId=number,
            **self._named(name, registered),
        )

    def push_pop(
        self, thread: int, start: int, end: int | None, name: str | bytes, *, domain: int, registered: bool = False
    ) -> None:
        """Add an NVTX range of a thread. ``registered``: its name is in StringIds. An ``end`` of None: never closed."""
        self.add(
            "NVTX_EVENTS", start=start, end=end, eventType=PUSH_POP, globalTid=thread, domainId=domain,
            **self._named(name, registered),
        )  # fmt: skip

    def _named(self, name: str | bytes, registered: bool) -> dict[str, Cell]:
        return {"textId": self.text(name)} if registered else {"text": name}

    def call(self, thread: int, start: int, end: int, name: str, *, correlation: int, driver: bool = True) -> None:
        """Add a call of the CUDA driver or runtime."""
        self.add(
            "CUPTI_ACTIVITY_KIND_RUNTIME", start=start, end=end, eventClass=int(driver), globalTid=thread,
            correlationId=correlation, nameId=self.text(name),
        )  # fmt: skip

    def kernel(self, start: int, end: int, name: str, *, correlation: int, **more: Cell) -> None:
        """Add a kernel."""
        number = self.text(name)
        self.add(
            "CUPTI_ACTIVITY_KIND_KERNEL", start=start, end=end, correlationId=correlation, demangledName=number,
            shortName=number, launchType=1, registersPerThread=32, gridX=16, gridY=1, gridZ=1, blockX=128, blockY=1,
            blockZ=1, tensorSizeMinusOneElements="[]", **more,
        )  # fmt: skip

    def memcpy(self, start: int, end: int, *, correlation: int, **more: Cell) -> None:
        """Add a copy."""
        self.add(
            "CUPTI_ACTIVITY_KIND_MEMCPY",
            **{"start": start, "end": end, "correlationId": correlation, "copyCount": 1, **more},
        )

    # ---- what an export says of itself

    def _describe(self) -> None:
        product, schema = VERSIONS[self.form]
        own = {
            "EXPORT_PRODUCT_NAME": "NVIDIA Nsight Systems",
            "EXPORT_PRODUCT_VERSION": product,
            "EXPORT_SCHEMA_VERSION": schema,
            "EXPORT_PARAM_INPUT_FILE": "synthetic.nsys-rep",
            "EXPORT_PARAM_LAZY": "true",
            "EXPORT_PARAM_INCLUDE_BLOBS": "false",
            "EXPORT_PARAM_TIME_NORMALIZE": "false",
            "HLOINSPECT_TESTS": SYNTHETIC,
        }
        for name, value in own.items():
            self.add("EXPORT_META_DATA", name=name, value=value)
            self.add("META_DATA_EXPORT", name=name, value=value)
        for number, label in enumerate(COPIES):
            if label:
                self.add("ENUM_CUDA_MEMCPY_OPER", id=number, name=f"CUDA_MEMCPY_KIND_{number}", label=label)
        for number, label in enumerate(MEMORIES):
            self.add("ENUM_CUDA_MEM_KIND", id=number, name=f"CUDA_MEMOPR_MEMORY_KIND_{number}", label=label)
        for number, label in EVENT_TYPES.items():
            self.add("ENUM_NSYS_EVENT_TYPE", id=number, name=label, label=label)

    def describe(self, name: str, value: str) -> None:
        """Say something of the export, in the place of what was said before."""
        for table in ("EXPORT_META_DATA", "META_DATA_EXPORT"):
            if table in self.rows:
                self.rows[table] = [row for row in self.rows[table] if row["name"] != name]
                self.add(table, name=name, value=value)

    # ---- the file

    def write(self, path: Path, *, without: Sequence[str] = (), shuffle: int = 1) -> Path:
        """Write the file less the tables ``without``, and return its path. Each number ``shuffle`` is an order."""
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        rng = random.Random(shuffle)
        with new_database(path) as connection:
            for table, own in self.rows.items():
                if table in without:
                    continue
                rows = list(own)
                if table in ("NVTX_EVENTS", "CUPTI_ACTIVITY_KIND_RUNTIME"):
                    rng.shuffle(rows)
                connection.execute(create_table(table, self.form))
                self._insert(connection, table, rows)
        return path

    def _insert(self, connection: sqlite3.Connection, table: str, rows: Iterable[Mapping[str, Cell]]) -> None:
        columns = columns_of(table, self.form) or ()
        # bytes are text that is no UTF-8, as nsys writes for what it was given
        marks = ", ".join("CAST(? AS TEXT)" if column.type == "TEXT" else "?" for column in columns)
        cells = ([row.get(column.name, column.default) for column in columns] for row in rows)
        connection.executemany(f"INSERT INTO {table} VALUES ({marks})", cells)
