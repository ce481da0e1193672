#!/usr/bin/env python3
"""Times of hloinspect's reading of a trace against jax.profiler.ProfileData, on a synthetic trace, in the same run.

usage: python benchmarks/bench_xplane.py [EVENTS]      (default: 2,000,000 events; jax must be installed for its column)

The trace has eight GPU planes with a compute stream and two copy streams each, and the statistics that JAX writes on an
NVIDIA GPU: eleven for each kernel, seven for each copy. Each reader runs in a separate process, so that its peak memory
is measured, and does the same work: name, start and end of every event, and two statistics of it (hlo_op,
correlation_id).
"""

from __future__ import annotations

import gc
import json
import platform
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
EVENTS = 2_000_000
PLANES = 8
KERNELS = 600
STATS = (
    "correlation_id", "scope_range_id", "context_id", "theoretical_occupancy_pct", "occupancy_min_grid_size",
    "occupancy_suggested_block_size", "kernel_details", "tf_op", "name", "hlo_op", "hlo_module", "program_id",
    "memcpy_details",
)  # fmt: skip


def write_trace(path: Path, events: int) -> None:
    """Write a synthetic XSpace: every tenth event is a copy."""
    from hloinspect.profiles.xplane.schema import xplane_pb2 as schema

    with path.open("wb") as file:
        for device in range(PLANES):
            plane = schema.XPlane(id=device, name=b"/device:GPU:%d" % device)
            lines = [
                plane.lines.add(id=13 + i, name=b"Stream #%d(%s)" % (13 + i, kind), timestamp_ns=236_761)
                for i, kind in enumerate((b"Compute", b"MemcpyD2H", b"MemcpyH2D"))
            ]
            ids = _tables(plane)
            for number in range(events // PLANES):
                copies = number % 10 == 9
                line = lines[0] if not copies else lines[1 + number // 10 % 2]
                _add_event(line.events.add(), number, copies, ids)
            file.write(schema.XSpace(planes=[plane]).SerializeToString())


def _tables(plane: object) -> dict[str, int]:
    ids: dict[str, int] = {}

    def of(name: str) -> int:
        if name not in ids:
            ids[name] = len(ids) + 1
            entry = plane.stat_metadata[ids[name]]  # type: ignore[attr-defined]
            entry.id, entry.name = ids[name], name.encode()
        return ids[name]

    for name in (*STATS, "jit_train_step", "memcpy", "kind_src:device kind_dst:pinned size:536870912 dest:0 async:1"):
        of(name)
    for number in range(KERNELS):
        name = f"loop_multiply_fusion_{number}"
        kind = plane.event_metadata[number + 1]  # type: ignore[attr-defined]
        kind.id, kind.name = number + 1, name.encode()
        of(f"fusion.{number}")
        of(f"regs:32 static_shared:0 dynamic_shared:0 grid:{number},1,1 block:128,1,1 occ_pct:100")
    copy = plane.event_metadata[KERNELS + 1]  # type: ignore[attr-defined]
    copy.id, copy.name = KERNELS + 1, b"MemcpyD2H"
    return ids


def _add_event(event: object, number: int, is_copy: bool, ids: dict[str, int]) -> None:
    kind = KERNELS if is_copy else number % KERNELS
    event.metadata_id, event.offset_ps, event.duration_ps = kind + 1, number * 7_000_000, 5_000_000  # type: ignore[attr-defined]
    add = event.stats.add  # type: ignore[attr-defined]
    add(metadata_id=ids["correlation_id"], uint64_value=1_000_000 + number)
    add(metadata_id=ids["context_id"], str_value=b"$$1")
    if is_copy:
        details = "kind_src:device kind_dst:pinned size:536870912 dest:0 async:1"
        add(metadata_id=ids["memcpy_details"], ref_value=ids[details])
    else:
        details = f"regs:32 static_shared:0 dynamic_shared:0 grid:{kind},1,1 block:128,1,1 occ_pct:100"
        add(metadata_id=ids["scope_range_id"], int64_value=number % 50)
        add(metadata_id=ids["theoretical_occupancy_pct"], double_value=100.0)
        add(metadata_id=ids["occupancy_min_grid_size"], int64_value=264)
        add(metadata_id=ids["occupancy_suggested_block_size"], int64_value=1024)
        add(metadata_id=ids["kernel_details"], ref_value=ids[details])
    for name, text in (("tf_op", "memcpy"), ("hlo_op", f"fusion.{kind % KERNELS}"), ("hlo_module", "jit_train_step")):
        add(metadata_id=ids[name], ref_value=ids[text])
    add(metadata_id=ids["program_id"], int64_value=7)


# ---- the readers; each returns a checksum, so that it cannot leave work out


def read_hloinspect(path: str) -> dict[str, int]:
    """Read the columns of every line."""
    from hloinspect.profiles.xplane import open_xspace

    events = time_ps = correlations = named = 0
    for plane in open_xspace(path).planes:
        names = {number: kind.name for number, kind in plane.events.items()}
        for line in plane.lines:
            columns = line.columns(("hlo_op", "correlation_id"))
            events += len(columns)
            time_ps += int(columns.duration_ps.sum())
            correlations += int(columns.stats["correlation_id"].integers().sum())
            codes, _ = columns.stats["hlo_op"].labels()
            named += int((codes >= 0).sum())
            assert all(number in names for number in set(columns.metadata_id.tolist()))
    return {"events": events, "time_ns": time_ps // 1000, "correlations": correlations, "hlo_ops": named}


def read_profile_data(path: str) -> dict[str, int]:
    """Read with jax.profiler.ProfileData: one object for each event."""
    from jax.profiler import ProfileData

    events = time_ns = correlations = named = 0
    for plane in ProfileData.from_file(path).planes:
        for line in plane.lines:
            for event in line.events:
                events += 1
                _ = event.name, event.start_ns
                time_ns += round(event.duration_ns)
                for key, value in event.stats:
                    if key == "correlation_id":
                        correlations += value
                    elif key == "hlo_op":
                        named += 1
    return {"events": events, "time_ns": time_ns, "correlations": correlations, "hlo_ops": named}


def read_protobuf(path: str) -> dict[str, int]:
    """Read with the protobuf library and the whole schema: the cost of a straightforward reader in Python."""
    from hloinspect.profiles.xplane.schema import xplane_pb2 as schema

    events = time_ps = correlations = named = 0
    for plane in schema.XSpace.FromString(Path(path).read_bytes()).planes:
        ids = {entry.name: number for number, entry in plane.stat_metadata.items()}
        correlation, hlo_op = ids[b"correlation_id"], ids[b"hlo_op"]
        for line in plane.lines:
            for event in line.events:
                events += 1
                time_ps += event.duration_ps
                for stat in event.stats:
                    if stat.metadata_id == correlation:
                        correlations += stat.uint64_value
                    elif stat.metadata_id == hlo_op:
                        named += 1
    return {"events": events, "time_ns": time_ps // 1000, "correlations": correlations, "hlo_ops": named}


READERS: dict[str, Callable[[str], dict[str, int]]] = {
    "hloinspect": read_hloinspect,
    "jax.profiler.ProfileData": read_profile_data,
    "google.protobuf": read_protobuf,
}


def _measure(reader: str, path: str) -> None:
    """Print the best of three and the peak, in a separate process."""
    if reader == "jax.profiler.ProfileData":
        import jax.profiler  # noqa: F401  # not part of the reading
    else:
        import hloinspect.profiles.xplane  # noqa: F401
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    wall, cpu = [], []
    found: dict[str, int] = {}
    for _ in range(3):
        gc.collect()
        begin = time.perf_counter(), time.process_time()
        found = READERS[reader](path)
        wall.append(time.perf_counter() - begin[0])
        cpu.append(time.process_time() - begin[1])
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print(json.dumps({"wall": wall, "cpu": cpu, "peak_mb": peak / 1024, "before_mb": before / 1024, "found": found}))


def main(arguments: list[str]) -> int:
    if arguments[:1] == ["--measure"]:
        _measure(*arguments[1:])
        return 0
    if arguments[:1] == ["--write"]:  # in a separate process: a child's peak memory begins at its parent's
        write_trace(Path(arguments[1]), int(arguments[2]))
        return 0
    events = int(arguments[0]) if arguments else EVENTS
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "synthetic.xplane.pb"
        subprocess.run([sys.executable, __file__, "--write", str(path), str(events)], check=True)
        size = path.stat().st_size / 1e6
        print(f"{events:,} events, {size:.0f} MB, {PLANES} planes; Python {platform.python_version()}\n")
        print("| reader | CPU seconds, best of 3 | seconds of all three | peak memory, MB | of which imports, MB |")
        print("|---|---|---|---|---|")
        answers = []
        for reader in READERS:
            command = [sys.executable, __file__, "--measure", reader, str(path)]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode:
                print(f"| {reader} | did not run: {(done.stderr.strip().splitlines() or ['?'])[-1]} | | | |")
                continue
            got = json.loads(done.stdout)
            answers.append(got["found"])
            each = " ".join(f"{seconds:.2f}" for seconds in got["wall"])
            print(f"| {reader} | {min(got['cpu']):.2f} | {each} | {got['peak_mb']:.0f} | {got['before_mb']:.0f} |")
        if any(answer != answers[0] for answer in answers):
            print(f"\nThe readers disagree: {answers}")
            return 1
        print(f"\nAll found the same: {answers[0]}")
    return 0


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    sys.exit(main(sys.argv[1:]))
