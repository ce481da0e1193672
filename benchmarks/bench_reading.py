"""Speed of reading: text to transfers, the whole inspection, and jaxlib's parser on the same text in the same run.

    python benchmarks/bench_reading.py FILE...            a table in Markdown, best of several iterations on one core
    python benchmarks/bench_reading.py --processes FILE   the whole command as a process: seconds and peak memory

Times are processor seconds, since other programs share the machine.
"""

from __future__ import annotations

import argparse
import gc
import gzip
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from hloinspect.hlo import parse_text
from hloinspect.offload.transfers import find_offload

ITERATIONS = 5
# What XLA prints and jaxlib's own parser refuses.
UNREADABLE = re.compile(r"(\ball-reduce-start\(.*), output_to_operand_aliasing=\{(?:[^{}]|\{[^{}]*\})*\}")


def read(path: Path) -> str:
    """Return the text of a module, unpacked."""
    data = path.read_bytes()
    return (gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data).decode()


def best(work: Callable[[], object], iterations: int = ITERATIONS) -> float:
    """Return the least processor time that ``work`` took, in seconds."""
    times = []
    for _ in range(iterations):
        started = time.process_time()
        work()
        times.append(time.process_time() - started)
    return min(times)


def jaxlib_parser() -> Callable[[str], object] | None:
    """Return jaxlib's own text parser, where it is installed."""
    try:
        from jaxlib import _hlo
    except ImportError:
        return None
    parse: Callable[[str], object] = _hlo.hlo_module_from_text
    return parse


def rate(size_bytes: int, seconds: float) -> str:
    return f"{size_bytes / 1e6 / seconds:.0f}"


def table(paths: list[Path]) -> list[str]:
    """Return one row for each file."""
    parse = jaxlib_parser()
    rows = [
        "| file | text | transfers | text to transfers | | jaxlib parses | |",
        "|---|---|---|---|---|---|---|",
        "| | MB | | s | MB/s | s | MB/s |",
    ]
    for path in paths:
        text = read(path)
        count = len(find_offload(parse_text(text)).transfers)
        ours = best(lambda text=text: find_offload(parse_text(text)))  # type: ignore[misc]
        theirs = ("-", "-")
        if parse is not None:
            readable = UNREADABLE.sub(r"\1", text)
            try:
                seconds = best(lambda text=readable: parse(text), 2)  # type: ignore[misc]
                theirs = (f"{seconds:.3f}", rate(len(text), seconds))
            except Exception as error:
                theirs = (type(error).__name__, "-")
        rows.append(
            f"| {path.name} | {len(text) / 1e6:.1f} | {count} | {ours:.3f} | {rate(len(text), ours)} "
            f"| {theirs[0]} | {theirs[1]} |"
        )
    return rows


def processes(paths: list[Path], target: str) -> list[str]:
    """Return rows that list the transfers and inspect fully, as whole processes."""
    rows = ["| file | command | user + system s | peak MB |", "|---|---|---|---|"]
    for path in paths:
        for what, more in (("list the transfers", []), ("inspect", ["--target", target])):
            seconds, peak = measured([sys.executable, "-m", "hloinspect", "inspect", str(path), *more])
            rows.append(f"| {path.name} | {what} | {seconds:.2f} | {peak / 1e6:.0f} |")
    return rows


def measured(command: list[str]) -> tuple[float, float]:
    """Return the least processor seconds of three runs of a command, and its peak memory in bytes."""
    times, peak = [], 0.0
    for _ in range(3):
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        _, _, usage = os.wait4(process.pid, 0)
        process.returncode = 0
        times.append(usage.ru_utime + usage.ru_stime)
        peak = max(peak, usage.ru_maxrss * 1024)
    return min(times), peak


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--processes", action="store_true")
    parser.add_argument("--target", default="gb200")
    options = parser.parse_args()
    gc.disable()  # as the command does
    print("\n".join(processes(options.files, options.target) if options.processes else table(options.files)))


if __name__ == "__main__":
    main()
