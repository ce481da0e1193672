"""Synthetic archives of nsys-jax: what ``nsys-jax`` would write for a list of things that ran (``cuda_traces.Trace``).

    write_archive(trace, tmp_path / "synthetic.zip")

Names of members, columns and ranges are those of real archives and of JAX-Toolbox's source (facts of the project on
nsys). Everything is marked as synthetic by the host's name. A range's time is that of its GPU work. A device is a
launching thread: XLA launches from a thread for each device, and the events of a thread are nested in an XlaModule
range for each run of a program. What has no instruction is one row without a name for each thread, as in real archives.
"""

from __future__ import annotations

import io
import lzma
import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import pyarrow
import pyarrow.parquet

from tests.support.cuda_traces import Device, Event, Program, Trace

Form = Literal["2024.4", "2024.5", "2026.1.1"]
"""Versions of Nsight Systems with other columns in ``trace.parquet``."""

FORMS: tuple[Form, ...] = ("2024.4", "2024.5", "2026.1.1")
TRACE = "nvtx_gpu_proj_trace/trace.parquet"
HOST = "synthetic"
MAIN_PROCESS = 4000
FIRST_THREAD = 4100
_NS = 1000


@dataclass(slots=True)
class Range:
    """An NVTX range with GPU work. ``parent`` is its place in the list of all ranges, -1 for none. Times are in ns."""

    name: str | None
    start_ns: int
    end_ns: int
    thread: int
    parent: int = -1
    launched_ns: int | None = None
    domain: str = "TSL"
    process: int = MAIN_PROCESS
    gpu_ops: int = 1


@dataclass(slots=True)
class Archive:
    """The content of an archive before it is written."""

    ranges: list[Range] = field(default_factory=list)
    modules: Mapping[str, bytes] = field(default_factory=dict)
    threads: Mapping[int, str] = field(default_factory=dict)
    devices: Sequence[Mapping[str, object]] = ()
    process: int = MAIN_PROCESS

    def members(self, form: Form = "2024.4") -> dict[str, bytes]:
        """Return the members by name."""
        found = {TRACE: parquet(columns(self.ranges, form))}
        found |= {f"dump/{name}": lzma.compress(data, preset=0) for name, data in self.modules.items()}
        if self.threads:
            found["thread-metadata.parquet"] = parquet(
                {
                    "Name": list(self.threads.values()),
                    "Priority": [20] * len(self.threads),
                    "PID": [self.process] * len(self.threads),
                    "TID": list(self.threads),
                }
            )
            found["system-metadata.parquet"] = parquet({"name": ["Hostname"], "value": [HOST], "nameEnum": [619]})
        if self.devices:
            keys = list(self.devices[0])
            found["device-metadata.parquet"] = parquet({key: [row[key] for row in self.devices] for key in keys})
        return found


def archive_of(
    trace: Trace, *, named: bool = True, first_device: int = 0, process: int = MAIN_PROCESS, shift_ns: int = 0
) -> Archive:
    """Return the archive of a process that drives all devices of a trace.

    ``named``: XLA named its threads. ``shift_ns`` is added to all times: the session began earlier by that.
    """
    ranges: list[Range] = []
    names = {program.id: program.name for program in trace.modules}
    threads = {FIRST_THREAD + device.ordinal: device.ordinal + first_device for device in trace.devices}
    for device in trace.devices:
        _add_device(ranges, device, names, process)
    for one in ranges:
        one.start_ns += shift_ns
        one.end_ns += shift_ns
        one.launched_ns = None if one.launched_ns is None else one.launched_ns + shift_ns
    return Archive(
        ranges,
        {dump_name(program): program.module_proto for program in trace.modules},
        {t: f"XlaLauncher:#global={n},local={n - first_device},process=0,slice=0#" for t, n in threads.items()}
        if named
        else {},
        [gpu_row(number) for number in threads.values()] if named else (),
        process,
    )


def _add_device(ranges: list[Range], device: Device, names: Mapping[int, str], process: int) -> None:
    thread = FIRST_THREAD + device.ordinal
    runs: dict[tuple[int, int], int] = {}
    outside: list[Event] = []
    for event in sorted(device.events, key=lambda event: event.launched_ps or event.start_ps):
        if not event.op or not event.program:
            outside.append(event)
            continue
        key = (event.run, event.program)
        if key not in runs:
            runs[key] = len(ranges)
            title = f"XlaModule:#prefix=jit(f)/jit(main),hlo_module={names[event.program]},program_id={event.program}#"
            ranges.append(Range(title, 1 << 60, 0, thread, process=process, gpu_ops=0))
        module = ranges[runs[key]]
        place = len(ranges)
        name = f"Thunk:#name=a/b[axes=(0,), hlo_op=not_this],hlo_op={event.op}#"
        launched = None if event.launched_ps is None else event.launched_ps // _NS
        start, end = event.start_ps // _NS, event.end_ps // _NS
        ranges.append(Range(name, start, end, thread, runs[key], launched, process=process))
        if event.what == "collective":
            ranges.append(Range("ncclGroupEnd", start, end, thread, place, launched, "NCCL", process=process))
        module.start_ns, module.end_ns = min(module.start_ns, start), max(module.end_ns, end)
        module.launched_ns = max(module.launched_ns or 0, launched or 0)
        module.gpu_ops += 1
    if outside:
        begin, end = min(e.start_ps for e in outside) // _NS, max(e.end_ps for e in outside) // _NS
        ranges.append(Range(None, begin, end, thread, process=process, gpu_ops=len(outside) + 1))


def dump_name(program: Program) -> str:
    """Return the name of a dumped module, before packing is added to it."""
    return f"module_{program.id:04d}.{program.name}.sm_9.0_gpu_after_optimizations.hlo.pb.xz"


def gpu_row(number: int) -> dict[str, object]:
    """Return a row of ``device-metadata.parquet``, whose columns have two levels."""
    return {
        "('TARGET_INFO_GPU', 'name')": "NVIDIA H100 80GB HBM3",
        "('TARGET_INFO_GPU', 'totalMemory')": 85_045_280_768,
        "('TARGET_INFO_GPU', 'memoryBandwidth')": 3_352_320_000_000,
        "('TARGET_INFO_GPU', 'clockRate')": 1_980_000_000,
        "('TARGET_INFO_GPU', 'smCount')": 132,
        "('TARGET_INFO_NVTX_CUDA_DEVICE', 'name')": f"Xla:#global={number},local={number},process=0,slice=0#",
        "cuDevice": 0,
    }


def columns(ranges: Sequence[Range], form: Form = "2024.4") -> dict[str, list[object]]:
    """Return the columns of a projected trace as that version of Nsight Systems writes them."""
    ids = [5000 + 3 * place if one.name is not None else None for place, one in enumerate(ranges)]
    parents = [None if one.parent < 0 else ids[one.parent] for one in ranges]
    rank: list[object] = [0] * len(ranges)
    if form == "2024.4":
        return {
            "Name": [None if one.name is None else f"{one.domain}:{one.name}" for one in ranges],
            "Projected Start": [one.start_ns for one in ranges],
            "Projected Duration": [one.end_ns - one.start_ns for one in ranges],
            "Orig Start": [None if one.launched_ns is None else float(one.launched_ns - 1500) for one in ranges],
            "Orig Duration": [None if one.launched_ns is None else 1500.0 for one in ranges],
            "Style": [None if one.name is None else "PushPop" for one in ranges],
            "PID": [one.process for one in ranges],
            "TID": [one.thread for one in ranges],
            "NumGPUOps": [one.gpu_ops for one in ranges],
            "RangeId": [None if number is None else float(number) for number in ids],
            "ParentId": [None if number is None else float(number) for number in parents],
            "Rank": rank,
        }
    named = [(one, number, parent) for one, number, parent in zip(ranges, ids, parents, strict=True) if one.name]
    found: dict[str, list[object]] = {
        "Text": [one.name for one, _, _ in named],
        "Start": [one.start_ns for one, _, _ in named],
        "End": [one.end_ns for one, _, _ in named],
        "PID": [one.process for one, _, _ in named],
        "TID": [one.thread for one, _, _ in named],
        "Stack Level": [0 for _ in named],
        "Children Count": [0 for _ in named],
        "Range ID": [number for _, number, _ in named],
        "Parent ID": [parent for _, _, parent in named],
        "Range Stack": [[number] for _, number, _ in named],
        "Rank": rank[: len(named)],
    }
    return found | ({"Domain": [one.domain for one, _, _ in named]} if form == "2026.1.1" else {})


def parquet(table: Mapping[str, Sequence[object]], **options: object) -> bytes:
    """Return a table as the content of a Parquet file."""
    out = io.BytesIO()
    pyarrow.parquet.write_table(pyarrow.table({name: list(values) for name, values in table.items()}), out, **options)
    return out.getvalue()


def zipped(members: Mapping[str, bytes], path: Path, compression: int = zipfile.ZIP_DEFLATED) -> Path:
    """Write members as a zip, and return its path."""
    with zipfile.ZipFile(path, "w", compression) as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return path


def combined(parts: Mapping[str, Mapping[str, bytes]]) -> dict[str, bytes]:
    """Return the members of nsys-jax-combine: one that differs between processes becomes a folder of them."""
    found: dict[str, bytes] = {}
    for stem, members in parts.items():
        for name, data in members.items():
            differs = len({other.get(name, data) for other in parts.values()}) > 1
            found.setdefault(f"{name}/{stem}" if differs else name, data)
    return found


def write_directory(
    members: Mapping[str, bytes], folder: Path, rename: Callable[[str], str] = lambda name: name
) -> Path:
    """Write members as files of a directory, and return it."""
    for name, data in members.items():
        path = folder / rename(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return folder
