#!/usr/bin/env python3
"""Writer of a large synthetic export of Nsight Systems: a step of one of our own modules, many times on eight GPUs.

usage: python benchmarks/big_nsys.py OUT.sqlite DUMP ROWS

It is the step of big_trace.py in the form of nsys 2026.2: one process with a thread for each GPU. ROWS counts kernels,
copies, calls and ranges together. Rows of one step are made by tests/support/nsys_traces.py, and SQLite repeats them
with times and correlation ids of their own. DUMP is the folder for the module as XLA dumps it.
"""

from __future__ import annotations

import gzip
import sqlite3
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from big_trace import DEVICES, FIXTURE, PROGRAM_ID, one_step

from tests.support.cuda_traces import Device, Program, Trace
from tests.support.nsys_builder import columns_of
from tests.support.nsys_traces import Writing, export_of, write_dump

_KINDS = ("KERNEL", "MEMCPY", "RUNTIME")
COUNTED = (*(f"CUPTI_ACTIVITY_KIND_{kind}" for kind in _KINDS), "NVTX_EVENTS")
REPEATED = (*COUNTED, "CUPTI_ACTIVITY_KIND_MEMSET", "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION")
FORM = "2026.2"


def write_big_export(path: Path, dump: Path, rows: int) -> int:
    """Write the export and its dump, and return the number of rows. Steps are whole, as many as fit."""
    step, step_ps = one_step()
    module = gzip.decompress((FIXTURE / "module.hlo.pb.gz").read_bytes())
    trace = Trace(
        tuple(Device(n, tuple(replace(event, run=0) for event in step)) for n in range(DEVICES)),
        (Program("jit_train_step", PROGRAM_ID, module),),
    )
    write_dump(trace, dump)
    export = export_of(trace, Writing(FORM, mixed=False, noise=False))
    export.write(path)
    correlations = [int(row["correlationId"] or 0) for row in export.rows[COUNTED[2]]]
    ids_a_step = 4 * len(step)
    assert all((number & 0xFFFFFF) < 100 + ids_a_step for number in correlations)
    assert rows // DEVICES // len(step) * ids_a_step < 1 << 24, "more ids than a device has"
    per_step = sum(len(export.rows[table]) for table in COUNTED)
    steps = max(1, rows // per_step)
    extra = np.random.default_rng(0).integers(0, step_ps // 100_000, steps)
    begins = np.concatenate(([0], np.cumsum(step_ps // 1000 + extra)[:-1])).tolist()
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("PRAGMA journal_mode = OFF")
    connection.execute("BEGIN")
    connection.execute("CREATE TEMP TABLE step (n, begin_ns)")
    connection.executemany("INSERT INTO step VALUES (?, ?)", list(enumerate(begins))[1:])
    for table in REPEATED:
        if table in export.rows:
            connection.execute(_repeat(table, ids_a_step))
    connection.execute("COMMIT")
    (count,) = connection.execute(f"SELECT {' + '.join(f'(SELECT count(*) FROM {t})' for t in COUNTED)}").fetchone()
    connection.close()
    return int(count)


def _repeat(table: str, ids_a_step: int) -> str:
    """Return the statement that adds the rows of all further steps to those of the first."""
    of_column = {
        "start": "t.start + s.begin_ns",
        "end": 't."end" + s.begin_ns',
        "correlationId": f"t.correlationId + s.n * {ids_a_step}",
    }
    cells = [of_column.get(column.name, f"t.{column.name}") for column in columns_of(table, FORM) or ()]
    which = "WHERE t.eventType = 59" if table == "NVTX_EVENTS" else ""
    return f"INSERT INTO {table} SELECT {', '.join(cells)} FROM step s JOIN {table} t {which} ORDER BY s.n, t.rowid"


if __name__ == "__main__":
    print(write_big_export(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])))
