"""Fuzzer of both readers and of everything that uses their modules, for a given time.

    python benchmarks/fuzz_readers.py --minutes 120 --seed 1 [--seeds DIR]...

Seeds are the committed fixtures (and every file below the folders given with --seeds). Each input is a seed with a few
random edits: bytes flipped, pieces cut out, doubled or moved, numbers made huge, brackets and quotes dropped, names
exchanged. The only good ends are a module of which everything can be read, or an InputError. Anything else, or an input
that takes longer than --limit seconds, is written to --keep and makes the exit code 1.
"""

from __future__ import annotations

import argparse
import gzip
import random
import re
import signal
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from hloinspect.errors import InputError
from hloinspect.hardware import load_target
from hloinspect.hlo import load_module_bytes
from hloinspect.hlo.model import Module
from hloinspect.memory.estimate import memory_of
from hloinspect.offload.slices import check_slices
from hloinspect.offload.transfers import find_offload
from hloinspect.predict import predict
from hloinspect.report.build import build_report
from hloinspect.report.schema import InputInfo, MemoryInfo, ProgramInfo
from hloinspect.rules.engine import run_rules
from hloinspect.rules.evidence import Evidence

ROOT = Path(__file__).resolve().parents[1]
MAX_SEED_BYTES = 300_000
TOKENS = [
    b"{",
    b"}",
    b"(",
    b")",
    b"[",
    b"]",
    b'"',
    b"\\",
    b",",
    b"#",
    b"%",
    b"=",
    b"\n",
    b"/*",
    b"*/",
    b"S(5)",
    b"calls=%",
    b"-start(",
    b"-done(",
]
NUMBERS = [b"0", b"-1", b"99999999999999999999", b"2147483648", b"9223372036854775807", b"1e9"]
ATTRIBUTES = [
    *("shape", "operands", "called", "metadata", "backend_config", "frontend_attributes", "custom_call_target"),
    *("tuple_index", "parameter_number", "constant_integer", "comparison_direction", "dot_dimensions", "dim_labels"),
    *("feature_groups", "replica_groups", "window_text", "source_target_pairs", "is_host_transfer"),
]


class TooSlow(Exception):
    """An input took longer than the limit."""


def seeds(folders: list[Path]) -> list[bytes]:
    """Return the contents of all seed files, unpacked, the small ones only: edits in a small file reach more of the
    reader."""
    files = [*ROOT.glob("fixtures/*/*/module.hlo.*"), *ROOT.glob("tests/data/*.hlo.*")]
    files += [path for folder in folders for path in folder.rglob("*") if path.is_file()]
    found = []
    for path in sorted(files):
        data = path.read_bytes()
        if path.suffix == ".gz":
            data = gzip.decompress(data)
        if 0 < len(data) <= MAX_SEED_BYTES:
            found.append(data)
    return found


def edit(data: bytes, rng: random.Random) -> bytes:
    """Return the data with one random edit."""
    if not data:
        return b"HloModule x"
    at = rng.randrange(len(data))
    end = min(len(data), at + rng.choice((1, 2, 8, 40, 200, 2000)))
    kind = rng.randrange(10)
    if kind == 0:
        return data[:at] + bytes([data[at] ^ 1 << rng.randrange(8)]) + data[at + 1 :]
    if kind == 1:
        return data[:at] + data[end:]
    if kind == 2:
        return data[:end] + data[at:end] * rng.choice((1, 2, 50)) + data[end:]
    if kind == 3:
        to = rng.randrange(len(data))
        return data[:to] + data[at:end] + data[to:]
    if kind == 4:
        return data[:at]
    if kind == 5:
        return data[:at] + rng.choice(TOKENS) * rng.choice((1, 1, 3, 500)) + data[at:]
    if kind == 6:
        token = rng.choice(TOKENS)
        place = data.find(token, at)
        return data if place < 0 else data[:place] + data[place + len(token) :]
    if kind == 7:
        numbers = list(re.finditer(rb"\d+", data[at : at + 400]))
        if not numbers:
            return data
        chosen = rng.choice(numbers)
        return data[: at + chosen.start()] + rng.choice(NUMBERS) + data[at + chosen.end() :]
    if kind == 8:
        names = list(re.finditer(rb"%[\w.\-]+", data[at : at + 2000]))
        if len(names) < 2:
            return data
        one, other = rng.choice(names), rng.choice(names)
        return data[: at + one.start()] + other.group() + data[at + one.end() :]
    return data[:at] + rng.randbytes(rng.choice((1, 4, 64))) + data[end:]


def read_everything(module: Module) -> None:
    """Read every attribute of every instruction, then all that is built on them."""
    for computation in module.computations.values():
        for instruction in computation:
            for attribute in ATTRIBUTES:
                getattr(instruction, attribute)
    offload = find_offload(module)
    slices, target = check_slices(offload.program), load_target("gb200")
    prediction = predict(offload, target, devices=8, domain=4)
    used = memory_of(offload, prediction.timeline)
    memory = MemoryInfo(used.device.total_bytes if used else None, None, int(target.hbm_bytes.value), None, "estimated")
    source = InputInfo("fuzz", module.kind, None)
    report = build_report(source, offload, ProgramInfo(), target, 8, prediction, memory, (), (), used)
    run_rules(Evidence(report, offload, prediction, target, slices))


def attempt(data: bytes) -> str:
    """Return how one input ended: "refused" or "read". Any other exception goes through."""
    try:
        read_everything(load_module_bytes(data, "fuzz", max_bytes=1 << 26))
    except InputError:
        return "refused"
    return "read"


def run(inputs: list[bytes], rng: random.Random, until: Callable[[], bool], limit_s: float, keep: Path) -> Counter[str]:
    """Attempt edited seeds until ``until`` says so, and count how they end."""

    def on_alarm(_signal: int, _frame: object) -> None:
        raise TooSlow

    signal.signal(signal.SIGPROF, on_alarm)
    counts: Counter[str] = Counter()
    slowest = 0.0
    while not until():
        data = rng.choice(inputs)
        for _ in range(rng.choice((1, 1, 2, 3, 8))):
            data = edit(data, rng)
        signal.setitimer(signal.ITIMER_PROF, limit_s)
        started = time.process_time()
        try:
            end = attempt(data)
        except (Exception, TooSlow) as error:
            end = type(error).__name__
            keep.mkdir(parents=True, exist_ok=True)
            name = keep / f"{end}-{counts[end]}.bin"
            name.write_bytes(data)
            name.with_suffix(".txt").write_text(traceback.format_exc())
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)
        slowest = max(slowest, time.process_time() - started)
        counts[end] += 1
    counts["slowest_ms"] = round(slowest * 1e3)
    return counts


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seeds", type=Path, action="append", default=[])
    parser.add_argument("--limit", type=float, default=20.0, help="seconds one input may take")
    parser.add_argument("--keep", type=Path, default=Path("fuzz-findings"))
    options = parser.parse_args()
    inputs = seeds(options.seeds)
    deadline = time.monotonic() + options.minutes * 60
    counts = run(inputs, random.Random(options.seed), lambda: time.monotonic() > deadline, options.limit, options.keep)
    attempts = sum(count for end, count in counts.items() if end != "slowest_ms")
    print(f"{attempts} inputs from {len(inputs)} seeds in {options.minutes:g} minutes: {dict(counts)}")
    return 0 if set(counts) <= {"refused", "read", "slowest_ms"} else 1


if __name__ == "__main__":
    sys.exit(main())
