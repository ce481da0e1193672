"""Exports of Nsight Systems that are damaged or made to harm, and the reading of one within limits.

``answer_of`` reads in this process. ``answers_elsewhere`` reads in another one, with limits: for files that might make
a reader hang or fill the memory.
"""

from __future__ import annotations

import hashlib
import json
import os
import sqlite3
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from hloinspect import trace as trace_file
from hloinspect.errors import InputError
from tests.support.cuda_traces import D2H, MAIN, US, Device, Event, Trace, memcpy_details
from tests.support.nsys_builder import SCHEMA, Cell, Export, Form, columns_of, new_database
from tests.support.nsys_traces import Writing, export_of
from tests.support.places import ROOT

KERNEL, MEMCPY, RUNTIME = (f"CUPTI_ACTIVITY_KIND_{kind}" for kind in ("KERNEL", "MEMCPY", "RUNTIME"))
ENDLESS = "WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c)"
LIMIT_S = 60
LIMIT_MB = 1500
ELSEWHERE = """
import json, resource, sys, time
from hloinspect import trace
from hloinspect.errors import InputError
resource.setrlimit(resource.RLIMIT_CPU, (LIMIT_S, LIMIT_S + 5))
resource.setrlimit(resource.RLIMIT_AS, (LIMIT_MB << 20, LIMIT_MB << 20))
for path in sys.argv[1:]:
    begin = time.process_time()
    try:
        found = trace(path).files[0].events
    except InputError as error:
        found = str(error)
    peak = next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmHWM"))
    print(json.dumps([found, time.process_time() - begin, peak / 1024]), flush=True)
"""


@dataclass(frozen=True, slots=True)
class Answer:
    """The number of events of devices, or the complaint; processor seconds, and the peak of memory in MB."""

    found: int | str
    cpu_s: float
    peak_mb: float


def small_trace() -> Trace:
    """Return a trace of a few events in two runs of a program: the smallest that has every kind of row."""
    events: list[Event] = []
    for run in range(2):
        start = (100 + 200 * run) * US
        details = memcpy_details("device", "pinned", 4096)
        events += [
            Event(MAIN, start, start + 20 * US, "fusion_1", "fusion.1", 7, launched_ps=start - 9 * US, run=run),
            Event(
                *(D2H, start + 20 * US, start + 60 * US, "MemcpyD2H", "copy-start.1", 7, details),
                launched_ps=start - 5 * US,
                launch="cuMemcpyDtoHAsync_v2",
                what="d2h",
                transfer="copy-start.1",
                run=run,
            ),
            Event(
                *(MAIN, start + 60 * US, start + 61 * US, "Memset", "", 0),
                memset="kind:device size:4 async:1",
                launched_ps=start - 3 * US,
                run=run,
            ),
            Event(MAIN, start + 61 * US, start + 90 * US, "fusion_2", "fusion.2", 7, launched_ps=start - US, run=run),
        ]
    return Trace((Device(0, tuple(events)),))


def small_export(form: Form = "2026.2") -> Export:
    """Return that trace as rows, with a graph of each kind beside it."""
    export = export_of(small_trace(), Writing(form))
    export.add("CUPTI_ACTIVITY_KIND_GRAPH_TRACE", start=600_000, end=610_000, streamId=13, contextId=1, graphId=1)
    export.add("CUDA_GRAPH_NODE_EVENTS", start=1, end=2, eventClass=1, globalTid=5, nameId=1, graphNodeId=1)
    return export


def tables_of(export: Export) -> list[str]:
    """Return the names of the tables that an export of this version has rows for."""
    return [table for table in export.rows if columns_of(table, export.form) is not None]


def write_untyped(export: Export, path: Path, changed: Mapping[tuple[str, int, str], Cell]) -> Path:
    """Write an export whose columns have no type, so that any value stays as it is, with some cells changed.

    ``changed`` is by table, number of the row, and column.
    """
    path.unlink(missing_ok=True)
    with new_database(path) as connection:
        for table in tables_of(export):
            columns = columns_of(table, export.form) or ()
            names = ", ".join(f'"{column.name}"' for column in columns)
            connection.execute(f"CREATE TABLE {table} ({names})")
            rows = [
                [changed.get((table, n, column.name), row.get(column.name, column.default)) for column in columns]
                for n, row in enumerate(export.rows[table])
            ]
            connection.executemany(f"INSERT INTO {table} VALUES ({', '.join('?' * len(columns))})", rows)
    return path


def changed(path: Path, *statements: str, form: Form = "2026.2") -> Path:
    """Write the small export and run statements on it."""
    small_export(form).write(path)
    connection = sqlite3.connect(path, isolation_level=None)
    for statement in statements:
        connection.execute(statement)
    connection.close()
    return path


def _in_schema(path: Path, change: str) -> Path:
    """Write the small export and change the table of tables itself."""
    return changed(path, "PRAGMA writable_schema = ON", change, "PRAGMA writable_schema = RESET")


def sql_of_the_file(folder: Path) -> dict[str, Path]:
    """Return files whose own SQL must not run, by what it would do."""
    folder.mkdir(exist_ok=True)
    huge = "length(hex(zeroblob(400000000)))"
    drop, view = f"DROP TABLE {KERNEL}", f"CREATE VIEW {KERNEL} AS"
    device = "0 AS deviceId, 1 AS contextId, 7 AS streamId, x AS correlationId, 1 AS globalPid, 11 AS shortName"
    statements: dict[str, tuple[str, ...]] = {
        "an endless view": (drop, f"{view} {ENDLESS} SELECT x AS start, x + 1 AS 'end', {device} FROM c"),
        "an endless view of texts": (
            "DROP TABLE StringIds",
            f"CREATE VIEW StringIds AS {ENDLESS} SELECT x AS id, 'a' AS value FROM c",
        ),
        "a view that never gives a row": (drop, f"{view} {ENDLESS} SELECT x AS start FROM c WHERE x < 0"),
        "a view of memory": (drop, f"{view} SELECT {huge} AS start, 1 AS 'end'"),
        "a view of itself": (drop, f"{view} SELECT * FROM {KERNEL}"),
        "a view that reads files": (drop, f"{view} SELECT readfile('/etc/passwd') AS start"),
        "a view that loads code": (drop, f"{view} SELECT load_extension('evil') AS start"),
        "a trigger": (
            "CREATE VIEW v AS SELECT 1",
            f"CREATE TRIGGER t AFTER INSERT ON {KERNEL} BEGIN DELETE FROM StringIds; END",
            "CREATE TRIGGER u INSTEAD OF INSERT ON v BEGIN DELETE FROM StringIds; END",
        ),
        "an endless default": (drop, f"CREATE TABLE {KERNEL} (start DEFAULT ({huge}), 'end' CHECK ({huge} > 0))"),
        "a generated column": (
            drop,
            f"CREATE TABLE {KERNEL} (deviceId, contextId, streamId, globalPid, correlationId, demangledName, "
            f"shortName, start AS ({huge}), 'end' AS (start + {huge}))",
            f"INSERT INTO {KERNEL} VALUES (0, 1, 7, 1, 1, 1, 1)",
        ),
        "an index over an expression": (f"CREATE INDEX i ON {KERNEL} (start, abs(start)) WHERE start > 0",),
    }
    made = {name: changed(folder / f"{n}.sqlite", *own) for n, (name, own) in enumerate(statements.items())}
    for module in ("fts5(start, deviceId)", "fts4(start, deviceId)", "rtree(start, a, b)"):
        try:
            made[module] = changed(
                folder / f"{module[:4]}.sqlite", drop, f"CREATE VIRTUAL TABLE {KERNEL} USING {module}"
            )
        except sqlite3.OperationalError:  # this SQLite has no such module
            continue
    schemas = (
        "ATTACH ''/tmp/other.sqlite'' AS other",
        f"CREATE TABLE {KERNEL} (start) ; DROP TABLE StringIds",
        f"CREATE VIRTUAL TABLE {KERNEL} USING nothing(a)",
        f"CREATE TABLE {KERNEL} AS {ENDLESS} SELECT x FROM c",
        "",
    )
    for number, text in enumerate(schemas):
        change = f"UPDATE sqlite_master SET sql = '{text}' WHERE name = '{KERNEL}'"
        made[f"the statement {text!r}"] = _in_schema(folder / f"schema{number}.sqlite", change)
    loop = f"UPDATE sqlite_master SET rootpage = 1 WHERE name IN ('{KERNEL}', 'StringIds')"
    made["tables that are the table of tables"] = _in_schema(folder / "root.sqlite", loop)
    return made


def crowd(path: Path, table: str) -> int:
    """Make every pointer of each page of a table lead to one row of it, and return how many rows there then seem to
    be. Its tree must have two levels."""
    with sqlite3.connect(path) as connection:
        (root,) = connection.execute("SELECT rootpage FROM sqlite_master WHERE name = ?", (table,)).fetchone()
        (size,) = connection.execute("PRAGMA page_size").fetchone()
    connection.close()
    data, rows = bytearray(path.read_bytes()), 0

    def number(place: int, length: int = 2) -> int:
        return int.from_bytes(data[place : place + length], "big")

    top = (root - 1) * size
    assert data[top] == 5  # an interior page; its cells begin with the page of each child
    for child in range(number(top + 3)):
        page = (number(top + number(top + 12 + 2 * child), 4) - 1) * size
        assert data[page] == 13  # a leaf
        last = max(number(page + 8 + 2 * cell) for cell in range(number(page + 3)))
        cells = (last - 8) // 2
        data[page + 3 : page + 5], data[page + 5 : page + 7] = cells.to_bytes(2, "big"), last.to_bytes(2, "big")
        data[page + 8 : page + 8 + 2 * cells] = last.to_bytes(2, "big") * cells
        rows += cells
    path.write_bytes(bytes(data))
    return rows


def known_columns(table: str) -> list[str]:
    """Return the columns that any version of a table has."""
    words = next(words for key, words in SCHEMA.items() if key.partition("@")[0] == table).split()
    return [word.partition("@")[0].rstrip("!#~%") for word in words]


def fingerprint(path: Path) -> tuple[str, tuple[str, ...]]:
    """Return the hash of a file and the names of all that lies beside it."""
    data = path.read_bytes() if path.is_file() else b""
    return hashlib.sha256(data).hexdigest(), tuple(sorted(other.name for other in path.parent.iterdir()))


def answer_of(path: Path) -> int | str:
    """Return the number of events, or the complaint: one line that begins with the path. The file is left as it was."""
    before = fingerprint(path)
    try:
        found: int | str = trace_file(str(path)).files[0].events
    except InputError as error:
        found = str(error)
        assert found.startswith(str(path)), found
        assert "\n" not in found
        assert len(found) < 1000
    assert fingerprint(path) == before
    return found


def answers_elsewhere(paths: Sequence[Path], *, limit_s: int = LIMIT_S, limit_mb: int = LIMIT_MB) -> list[Answer]:
    """Return the answer for each file from one process that may take this processor time and memory for all."""
    before = [fingerprint(path) for path in paths]
    code = ELSEWHERE.replace("LIMIT_S", str(limit_s)).replace("LIMIT_MB", str(limit_mb))
    command = [sys.executable, "-c", code, *map(str, paths)]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, cwd=ROOT, timeout=10 * limit_s, env=_environment()
    )
    found = [Answer(*json.loads(line)) for line in done.stdout.splitlines()]
    assert len(found) == len(paths), f"{paths[len(found)].name}: {done.stderr[-2000:]}"
    assert [fingerprint(path) for path in paths] == before
    for path, answer in zip(paths, found, strict=True):
        assert isinstance(answer.found, int) or (answer.found.startswith(str(path)) and "\n" not in answer.found)
    return found


def _environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT), "OPENBLAS_NUM_THREADS": "1"}
