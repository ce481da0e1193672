#!/usr/bin/env python3
"""Times `hloinspect trace` against xprof and jax.profiler.ProfileData: same file, same run, whole processes, one core.

usage: python benchmarks/bench_trace.py [--events N] [--linear N,N,...] [--host] [--runs N] [--xprof PYTHON]

The trace is that of big_trace.py: one of our own compiled steps on eight GPUs. What each does:

    hloinspect trace        the full answer: steps, every transfer's wait, exposed time, verdict; the report as JSON
    xprof kernel_stats      a table of kernels by total time (one of its lightest tools that read GPU planes)
    xprof overview_page     its first page
    ProfileData, read       no answer: name, start, duration and every statistic of every event, in Python

``--xprof`` is a Python with xprof (pip install xprof); the default is this one. Each run is a separate process, import
included, bound to one core, on a fresh copy (xprof leaves caches beside a trace and would read them the next time). CPU
time is user and system of the process; the smallest of the runs counts, as other work on the machine only adds.
"""

from __future__ import annotations

import argparse
import compileall
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]

XPROF = """
import sys
from xprof.convert import raw_to_tool_data
data, kind = raw_to_tool_data.xspace_to_tool_data([sys.argv[1]], TOOL, {})
assert data and len(data) > 500, f"{TOOL} answered {data!r}"
"""
PROFILE_DATA = """
import sys
from jax.profiler import ProfileData
events = stats = 0
for plane in ProfileData.from_file(sys.argv[1]).planes:
    for line in plane.lines:
        for event in line.events:
            event.name, event.start_ns, event.duration_ns
            events += 1
            for _ in event.stats:
                stats += 1
print(events, stats)
"""


@dataclass(frozen=True, slots=True)
class Cost:
    """The CPU time, wall time and memory of one process."""

    cpu_s: float
    wall_s: float
    peak_mb: float
    error: str = ""


def commands(xprof: str) -> dict[str, list[str]]:
    """Return the command of each contestant; the trace's path follows."""
    return {
        "hloinspect trace": [sys.executable, "-m", "hloinspect", "trace", "--format", "json", "-o", os.devnull],
        "xprof kernel_stats": [xprof, "-c", f"TOOL = 'kernel_stats'{XPROF}"],
        "xprof overview_page": [xprof, "-c", f"TOOL = 'overview_page'{XPROF}"],
        "ProfileData, read": [sys.executable, "-c", PROFILE_DATA],
    }


def run(command: list[str], trace: Path) -> Cost:
    """Run a command on a copy of the trace in a separate folder."""
    with tempfile.TemporaryDirectory(dir=trace.parent) as folder:
        copy = Path(folder) / f"host{''.join(trace.suffixes)}"
        shutil.copyfile(trace, copy)
        copy.read_bytes()  # so that no run includes reading from disk
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "TF_CPP_MIN_LOG_LEVEL": "3"}
        begin = time.perf_counter()
        core = min(os.sched_getaffinity(0))
        with open(Path(folder) / "error", "w+b") as error:
            process = subprocess.Popen(
                ["taskset", "-c", str(core), *command, str(copy)],
                stdout=subprocess.DEVNULL,
                stderr=error,
                env=environment,
            )
            _, status, used = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(status)
            wall = time.perf_counter() - begin
            error.seek(0)
            text = error.read().decode(errors="replace").strip()
        failed = process.returncode not in (0, 3)  # 3: not enough evidence for a verdict; the work was done
        last = text.splitlines()[-1] if text else "no message"
        return Cost(used.ru_utime + used.ru_stime, wall, used.ru_maxrss / 1024, last if failed else "")


def best(command: list[str], trace: Path, runs: int) -> Cost:
    """Return the run with the least CPU time."""
    costs = [run(command, trace) for _ in range(runs)]
    return min(costs, key=lambda cost: (bool(cost.error), cost.cpu_s))


def write(folder: Path, events: int, host: bool) -> tuple[Path, int]:
    """Write the trace in a separate process: a child's peak memory begins at its parent's."""
    path = folder / f"{events}.xplane.pb"
    command = [sys.executable, str(ROOT / "benchmarks" / "big_trace.py"), str(path), str(events)]
    done = subprocess.run(command + ["--host"] * host, check=True, capture_output=True, text=True)
    return path, int(done.stdout)


def compare(trace: Path, runs: int, xprof: str) -> None:
    """Print the table of all contestants on one trace."""
    print("| what | CPU seconds | seconds | peak memory, MB |")
    print("|---|---|---|---|")
    for name, command in commands(xprof).items():
        cost = best(command, trace, runs)
        row = (
            f"did not run: {cost.error} | |"
            if cost.error
            else f"{cost.cpu_s:.2f} | {cost.wall_s:.2f} | {cost.peak_mb:,.0f}"
        )
        print(f"| {name} | {row} |", flush=True)


def linear(folder: Path, sizes: list[int], host: bool, runs: int) -> None:
    """Print the table of hloinspect alone over sizes."""
    print("| events | MB | CPU seconds | seconds | peak memory, MB | CPU us an event |")
    print("|---|---|---|---|---|---|")
    for size in sizes:
        trace, events = write(folder, size, host)
        cost = best(commands(sys.executable)["hloinspect trace"], trace, runs)
        megabytes = trace.stat().st_size / 1e6
        row = (
            f"did not run: {cost.error} | | | |"
            if cost.error
            else f"{cost.cpu_s:.2f} | {cost.wall_s:.2f} | {cost.peak_mb:,.0f} | {cost.cpu_s / events * 1e6:.2f}"
        )
        print(f"| {events:,} | {megabytes:,.0f} | {row} |", flush=True)
        trace.unlink()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--events", type=int, default=2_000_000, help="of the devices, in the comparison")
    parser.add_argument(
        "--linear", default="1000000,2000000,5000000,10000000", help="sizes for hloinspect; '' for none"
    )
    parser.add_argument("--host", action="store_true", help="with the launching calls: twice the events")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--xprof", default=sys.executable, help="a Python that has xprof")
    options = parser.parse_args()
    compileall.compile_dir(ROOT / "hloinspect", quiet=1)  # as pip does when it installs, xprof too
    with tempfile.TemporaryDirectory() as folder:
        trace, events = write(Path(folder), options.events, options.host)
        size = trace.stat().st_size / 1e6
        print(
            f"{events:,} events, {size:.0f} MB, 8 devices; Python {platform.python_version()}, {platform.machine()}\n"
        )
        compare(trace, options.runs, options.xprof)
        trace.unlink()
        if options.linear:
            print()
            linear(Path(folder), [int(size) for size in options.linear.split(",")], options.host, options.runs)
    return 0


if __name__ == "__main__":
    sys.exit(main())
