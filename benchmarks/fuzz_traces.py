#!/usr/bin/env python3
"""Fuzzer of `hloinspect trace`'s analysis with damaged traces, for a given time.

    python benchmarks/fuzz_traces.py --minutes 10 --seed 1 [--seeds DIR]... [--truncate 1]

Seeds are small synthetic CUDA and TPU traces of our own modules (tests/support/cuda_traces.py, and any *.xplane.pb
below the folders given with --seeds). Each input is a seed with a few edits: of its bytes (bits flipped, pieces cut
out, doubled, moved, replaced by random ones, lengths made huge), or of what it says (ids of events, names and programs
exchanged; absurd times, sizes, trip counts and step numbers; events dropped, doubled and shuffled; computations that
call each other in a circle; texts that are no text), or random bytes alone. --truncate 1 adds the smallest seed cut at
every length.

The only good ends are a measured answer (a report that can be built and printed, or "unknown"), or an InputError of one
line. Anything else, or an input that takes longer than --limit seconds of CPU or more than --memory MB, is written to
--keep and makes the exit code 1.
"""

from __future__ import annotations

import argparse
import contextlib
import gzip
import json
import random
import resource
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from google.protobuf.message import DecodeError

from hloinspect.analyze.trace import trace as trace_verb
from hloinspect.errors import HloInspectError
from hloinspect.hlo.schema import hlo_pb2
from hloinspect.profiles.xplane.schema import xplane_pb2 as schema
from hloinspect.report.json import to_json
from tests.support.cuda_runtime import Run, compiled
from tests.support.cuda_traces import Trace, trace_bytes
from tests.support.tpu_traces import TpuRun

ROOT = Path(__file__).resolve().parents[1]
HUGE = (0, 1, -1, 127, 128, (1 << 31) - 1, 1 << 32, (1 << 53) + 1, (1 << 62) - 1, (1 << 63) - 1, -(1 << 63))
TEXTS = (
    *("", "%", "()", "copy-start.1.0", "copy-done", "MemcpyD2H", "Stream #99999999999999999999(Compute)", "XLA Ops"),
    *("kind_src:pinned kind_dst:device size:999999999999999 dest:0 async:1", "size:-1", "size:\u0661", "kind_src:"),
    *(
        "\x1b[31m\n\r",
        "\ud7ff\u202e",
        "command_buffer_1",
        "CudaGraphExec:1",
        "jit_step(18446744073709551616)",
        "Infinity",
    ),
    *("/device:GPU:0", "/device:TPU:0", "/host:CPU", "/host:metadata", "ncclDevKernel_AllReduce_Sum_f32_RING_LL"),
)


class TooSlow(Exception):
    """An input took longer than the limit."""


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of one input, and the folder for those that exceed them."""

    seconds: float
    memory_mb: float
    keep: Path


@dataclass(slots=True)
class Counts:
    """How inputs ended, and the most expensive ones."""

    ends: Counter[str] = field(default_factory=Counter)
    slowest_s: float = 0.0
    peak_mb: float = 0.0

    @property
    def inputs(self) -> int:
        return sum(self.ends.values())

    @property
    def good(self) -> bool:
        return set(self.ends) <= {"answered", "unknown", "refused"}


# ---- seeds


def seeds(folders: list[Path]) -> list[bytes]:
    """Return the contents of all seeds."""
    found = [cuda_seed(2), cuda_seed(3, host=False), tpu_seed()]
    for folder in folders:
        found += [path.read_bytes() for path in sorted(folder.rglob("*.xplane.pb")) if path.stat().st_size < 1 << 20]
    return found


def cuda_seed(steps: int, *, host: bool = True) -> bytes:
    """Return a trace of momentum in host memory on four devices: transfers, collectives, two loops and slices.

    It has 148 kernels and copies in two steps.
    """
    own = compiled("optimizer")
    run = Run(own.module, own.directions)
    run.steps(steps)
    return trace_bytes(Trace((run.device(),), (own.program,), tuple(run.annotations), host))


def tpu_seed() -> bytes:
    """Return two steps of a scanned TPU module."""
    run = TpuRun(compiled("jax0.12.0.1/v6e_offload_scan"), lambda instruction: 1_000_000)
    run.steps(2)
    return run.bytes()


# ---- edits


def edit_bytes(data: bytes, rng: random.Random) -> bytes:
    """Return the data with one random edit that knows nothing of the format."""
    if not data:
        return b"\x0a\x00"
    at = rng.randrange(len(data))
    end = min(len(data), at + rng.choice((1, 2, 8, 40, 200, 2000)))
    kind = rng.randrange(7)
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
        return data[:at] + _varint(rng.choice(HUGE) & (1 << 64) - 1) + data[at + 1 :]
    return data[:at] + rng.randbytes(rng.choice((1, 4, 64))) + data[end:]


def edit_meaning(data: bytes, rng: random.Random) -> bytes:
    """Return the data with one random edit of what the trace says; bytes that are no trace are returned as they are."""
    try:
        space = schema.XSpace.FromString(data)
    except DecodeError:
        return data
    planes = [plane for plane in space.planes if plane.lines]
    if not planes:
        return data
    plane = rng.choice(planes)
    line = rng.choice(plane.lines)
    try:
        rng.choice((_edit_event, _edit_events, _edit_plane, _edit_tables, _edit_module))(space, plane, line, rng)
    except (IndexError, ValueError, DecodeError):  # nothing there to edit, or a number that the field cannot hold
        return data
    return bytes(space.SerializeToString())


def _edit_event(space: schema.XSpace, plane: schema.XPlane, line: schema.XLine, rng: random.Random) -> None:
    event = rng.choice(line.events)
    which = rng.randrange(6)
    if which == 0:
        event.offset_ps = rng.choice(HUGE)
    elif which == 1:
        event.duration_ps = rng.choice(HUGE)
    elif which == 2:
        event.metadata_id = rng.choice((*list(plane.event_metadata), *HUGE))
    elif which == 3:
        event.num_occurrences = rng.choice(HUGE)
    else:
        stat = rng.choice(event.stats)
        value = rng.choice(HUGE)
        if which == 4:
            stat.metadata_id = rng.choice((*list(plane.stat_metadata), value))
        else:
            rng.choice((_put_int, _put_double, _put_text, _put_ref))(stat, value, rng)


def _put_int(stat: schema.XStat, value: int, rng: random.Random) -> None:
    stat.int64_value = value


def _put_double(stat: schema.XStat, value: int, rng: random.Random) -> None:
    stat.double_value = rng.choice((float("nan"), float("inf"), -1e308, float(value)))


def _put_text(stat: schema.XStat, value: int, rng: random.Random) -> None:
    stat.str_value = rng.choice(TEXTS).encode()


def _put_ref(stat: schema.XStat, value: int, rng: random.Random) -> None:
    stat.ref_value = rng.choice((value & (1 << 64) - 1, rng.randrange(60)))


def _edit_events(space: schema.XSpace, plane: schema.XPlane, line: schema.XLine, rng: random.Random) -> None:
    events = [schema.XEvent.FromString(event.SerializeToString()) for event in line.events]
    which = rng.randrange(6)
    if which == 0:
        rng.shuffle(events)
    elif which == 1:
        events = [event for event in events if rng.random() < 0.9]
    elif which == 2:
        events += events[: rng.randrange(200)]
    elif which == 3:
        other = rng.choice(rng.choice([p for p in space.planes if p.lines]).lines)
        events += list(other.events)[:50]
    elif which == 4:  # two events exchange their kinds, two their times
        one, two = rng.choice(events), rng.choice(events)
        one.metadata_id, two.metadata_id = two.metadata_id, one.metadata_id
        one.offset_ps, two.offset_ps = two.offset_ps, one.offset_ps
    else:  # all at once, or all endless
        length = rng.choice((0, 10**15, 10**18))
        for event in events:
            event.duration_ps = length
    del line.events[:]
    line.events.extend(events)


def _edit_plane(space: schema.XSpace, plane: schema.XPlane, line: schema.XLine, rng: random.Random) -> None:
    which = rng.randrange(8)
    if which == 0:
        line.timestamp_ns = rng.choice(HUGE)
    elif which == 1:
        line.id = rng.choice(HUGE)
    elif which == 2:
        line.name = rng.choice(TEXTS).encode()
    elif which == 3:
        plane.name = rng.choice(TEXTS).encode()
    elif which == 4:
        copy = space.planes.add()
        copy.CopyFrom(plane)
        copy.name = b"/device:GPU:%d" % rng.randrange(4)
    elif which == 5:
        del space.planes[rng.randrange(len(space.planes))]
    elif which == 6:
        plane.lines.add().CopyFrom(line)
    else:
        space.warnings.append(rng.choice((b"Detected GPU events dropped on x", rng.randbytes(20))))


def _edit_tables(space: schema.XSpace, plane: schema.XPlane, line: schema.XLine, rng: random.Random) -> None:
    which = rng.randrange(4)
    names = list(plane.stat_metadata)
    if which == 0:  # two statistics exchange their names, or a name becomes another
        one, two = plane.stat_metadata[rng.choice(names)], plane.stat_metadata[rng.choice(names)]
        one.name, two.name = two.name, one.name
    elif which == 1:
        plane.stat_metadata[rng.choice(names)].name = rng.choice(TEXTS).encode()
    elif which == 2:
        del plane.stat_metadata[rng.choice(names)]
    else:
        kind = plane.event_metadata[rng.choice(list(plane.event_metadata))]
        kind.name = kind.display_name = rng.choice(TEXTS).encode()


def _edit_module(space: schema.XSpace, plane: schema.XPlane, line: schema.XLine, rng: random.Random) -> None:
    """Edit the embedded module (circles of calls, exchanged names, absurd trip counts), or its entry in the table."""
    home = next((p for p in space.planes if p.name == b"/host:metadata"), None)
    if home is None:
        return
    entry = home.event_metadata[rng.choice(list(home.event_metadata))]
    stat = rng.choice(entry.stats)
    if stat.WhichOneof("value") != "bytes_value" or rng.random() < 0.2:
        rng.choice((_put_int, _put_text, _put_ref))(stat, rng.choice(HUGE), rng)
        return
    if rng.random() < 0.2:
        stat.bytes_value = edit_bytes(stat.bytes_value, rng)
        return
    module = hlo_pb2.HloProto.FromString(stat.bytes_value)
    computations = module.hlo_module.computations
    ids = [computation.id for computation in computations]
    computation = rng.choice(computations)
    instruction = rng.choice(computation.instructions)
    which = rng.randrange(5)
    if which == 0:
        callers = [i for c in computations for i in c.instructions if i.called_computation_ids]
        caller = rng.choice(callers)
        caller.called_computation_ids[0] = rng.choice(ids)
    elif which == 1:
        other = rng.choice(rng.choice(computations).instructions)
        instruction.name, other.name = other.name, instruction.name
    elif which == 2:
        instruction.operand_ids.append(rng.choice(rng.choice(computations).instructions).id)
    elif which == 3:
        instruction.opcode = rng.choice(("while", "call", "copy-start", "copy-done", "async-start", "tuple", "x"))
    else:
        for loop in (i for i in computation.instructions if i.opcode == "while"):
            loop.backend_config = json.dumps({"known_trip_count": {"n": str(rng.choice(HUGE))}}).encode()
    stat.bytes_value = module.SerializeToString()


def damaged(inputs: list[bytes], rng: random.Random) -> bytes:
    """Return one input: a seed with a few edits, or random bytes."""
    if rng.random() < 0.05:
        start = rng.choice((b"", b"\x0a", b"\x0a\x80", b"\x1f\x8b\x08\x00"))
        return start + rng.randbytes(rng.choice((0, 1, 10, 100, 10_000)))
    data = rng.choice(inputs)
    for _ in range(rng.choice((1, 1, 1, 2, 3, 8))):
        data = (edit_meaning if rng.random() < 0.6 else edit_bytes)(data, rng)
    return gzip.compress(data, 1) if rng.random() < 0.02 else data


# ---- attempts


def attempt(path: Path) -> str:
    """Return how one input ended. Any exception but a refusal in one line goes through."""
    try:
        report = trace_verb(str(path)).report
    except HloInspectError as error:
        return "refused" if "\n" not in str(error) else "refused in several lines"
    to_json(report)
    return "unknown" if report.unknown else "answered"


def run(inputs: Iterator[bytes], counts: Counts, folder: Path, limits: Limits) -> None:
    """Attempt the inputs and count how they end."""

    def on_alarm(_signal: int, _frame: object) -> None:
        raise TooSlow

    signal.signal(signal.SIGPROF, on_alarm)
    path = folder / "host.xplane.pb"
    for data in inputs:
        path.unlink(missing_ok=True)  # a new file: the old one may still be mapped
        path.write_bytes(data)
        before = _peak_mb()
        signal.setitimer(signal.ITIMER_PROF, limits.seconds)
        started, trouble = time.process_time(), ""
        try:
            end = attempt(path)
        except (Exception, TooSlow) as error:
            end, trouble = type(error).__name__, traceback.format_exc()
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)
        counts.slowest_s = max(counts.slowest_s, time.process_time() - started)
        counts.peak_mb = max(counts.peak_mb, _peak_mb())
        if _peak_mb() - before > limits.memory_mb:
            end, trouble = "too much memory", f"{before:.0f} MB before, {_peak_mb():.0f} MB after"
        if trouble:
            limits.keep.mkdir(parents=True, exist_ok=True)
            name = limits.keep / f"{end.replace(' ', '-')}-{counts.ends[end]}.xplane.pb"
            name.write_bytes(data)
            name.with_suffix(".txt").write_text(trouble)
        counts.ends[end] += 1


def _peak_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def _varint(value: int) -> bytes:
    data = b""
    while value > 127:
        data += bytes([value & 127 | 128])
        value >>= 7
    return data + bytes([value])


def many(inputs: list[bytes], rng: random.Random, count: int | None, minutes: float) -> Iterator[bytes]:
    """Yield damaged inputs: ``count`` of them, or for ``minutes``."""
    deadline = time.process_time() + minutes * 60
    made = 0
    while made < count if count is not None else time.process_time() < deadline:
        yield damaged(inputs, rng)
        made += 1


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=1.0, help="of the processor's time")
    parser.add_argument("--inputs", type=int, help="so many, however long it takes")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seeds", type=Path, action="append", default=[])
    parser.add_argument("--truncate", type=int, metavar="N", help="first, the smallest seed cut at every Nth length")
    parser.add_argument("--limit", type=float, default=20.0, help="seconds of CPU one input may take")
    parser.add_argument("--memory", type=float, default=300.0, help="MB that one input may add to the peak")
    parser.add_argument("--keep", type=Path, default=Path("fuzz-findings"))
    options = parser.parse_args()
    inputs, counts = seeds(options.seeds), Counts()
    limits = Limits(options.limit, options.memory, options.keep)
    with tempfile.TemporaryDirectory() as folder:
        if options.truncate:
            small = min(inputs, key=len)
            run((small[:length] for length in range(0, len(small), options.truncate)), counts, Path(folder), limits)
            print(f"cut off: {counts.inputs:,} inputs: {dict(counts.ends)}", flush=True)
        rng = random.Random(options.seed)
        with contextlib.suppress(KeyboardInterrupt):  # the counts so far are worth having
            run(many(inputs, rng, options.inputs, options.minutes), counts, Path(folder), limits)
    print(f"{counts.inputs:,} inputs from {len(inputs)} seeds: {dict(counts.ends)}")
    used = time.process_time() / 60
    print(f"{used:.1f} minutes of CPU, slowest {counts.slowest_s:.2f} s, peak memory {counts.peak_mb:.0f} MB")
    return 0 if counts.good else 1


if __name__ == "__main__":
    sys.exit(main())
