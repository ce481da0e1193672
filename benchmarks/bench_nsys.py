#!/usr/bin/env python3
"""Times of `hloinspect trace` on an export of Nsight Systems against those on an XSpace with as many events.

usage: python benchmarks/bench_nsys.py [--rows N] [--runs N]

Both are of one of our own compiled steps on eight GPUs (big_trace.py, big_nsys.py). The export has N rows (kernels,
copies, calls and ranges together), the XSpace N events, in a second row with the launching calls. Each run is a process
with its imports on one core, on a fresh copy of the file. The runs are interleaved, so that a change of the machine's
speed meets both. CPU time is user and system; the least of the runs counts, and the ratio of two neighbours is given.
"""

from __future__ import annotations

import argparse
import compileall
import os
import platform
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from bench_trace import ROOT, Cost, run, write

TRACE = [sys.executable, "-m", "hloinspect", "trace", "--format", "json", "-o", os.devnull]


def write_export(folder: Path, rows: int) -> tuple[Path, Path, int]:
    """Write the export and its dump in a separate process, and return both and the number of rows."""
    path, dump = folder / f"{rows}.sqlite", folder / "dump"
    command = [sys.executable, str(ROOT / "benchmarks" / "big_nsys.py"), str(path), str(dump), str(rows)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return path, dump, int(done.stdout)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--runs", type=int, default=5)
    options = parser.parse_args()
    compileall.compile_dir(ROOT / "hloinspect", quiet=1)  # as pip does when it installs
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        export, dump, rows = write_export(folder, options.rows)
        traces = {
            "export of nsys": (export, rows, [*TRACE, "--hlo", str(dump)]),
            "XSpace": (*write(folder, options.rows, host=False), TRACE),
        }
        (folder / "host").mkdir()
        traces["XSpace with calls"] = (*write(folder / "host", options.rows // 2, host=True), TRACE)
        costs: dict[str, list[Cost]] = {what: [] for what in traces}
        for _ in range(options.runs):
            for what, (path, _, command) in traces.items():
                costs[what].append(run(command, path))
        print(f"{options.runs} runs each, 8 devices; Python {platform.python_version()}, {platform.machine()}\n")
        print("| what | rows or events | MB | CPU seconds | peak memory, MB | the export takes as many times |")
        print("|---|---|---|---|---|---|")
        for what, (path, count, _) in traces.items():
            failed = next((cost.error for cost in costs[what] if cost.error), "")
            least = min(costs[what], key=lambda cost: cost.cpu_s)
            pairs = zip(costs["export of nsys"], costs[what], strict=True)
            times = statistics.median(one.cpu_s / other.cpu_s for one, other in pairs)
            size = path.stat().st_size / 1e6
            row = (
                f"{least.cpu_s:.2f} | {least.peak_mb:,.0f} | {times:.2f}"
                if not failed
                else f"did not run: {failed} | |"
            )
            print(f"| {what} | {count:,} | {size:,.0f} | {row} |", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
