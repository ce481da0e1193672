"""Synthetic CUDA traces: what XLA:GPU's profiler would write for a list of things that ran.

    trace = Trace(
        devices=(Device(0, (kernel(0, 5 * US, "fusion.1", program=7), d2h(6 * US, 9 * US, "copy-start.1", 64))),),
        modules=(Program("jit_step", 7, hlo_proto),),
    )
    path = write_trace(trace, tmp_path / "host.xplane.pb")

A trace is data (frozen dataclasses), so a test changes it with ``replace`` and an oracle reads it without the file.
Names, lines, statistics and their types are those of XLA (xla/backends/profiler/gpu/cupti_collector.cc,
cupti_buffer_events.cc; see the facts named in each place). Every trace says by its host's name that it is synthetic:
no public trace of offload on an NVIDIA GPU exists to compare with. What runs when is for ``cuda_runtime.py`` to say.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tests.support.xspace_builder import LineBuilder, PlaneBuilder, Text, TraceBuilder, Unsigned, Value

US = 1_000_000
"""Picoseconds in a microsecond. CUPTI's times are whole nanoseconds."""
MAIN, SIDE, COLLECTIVES, D2H, H2D = 13, 14, 18, 20, 21
"""CUPTI ids of streams. SIDE and the three after it are XLA's additional compute streams."""
KERNEL_DETAILS = "regs:32 static_shared:0 dynamic_shared:0 grid:16,1,1 block:128,1,1 occ_pct:100"
LAUNCH = "cuLaunchKernel"


@dataclass(frozen=True, slots=True)
class Event:
    """An event on a stream. Empty texts and zeros are statistics that the event does not have.

    ``op`` is the hlo_op, ``memcpy`` the memcpy_details, ``memset`` the memset_details. ``launched_ps`` is when the
    driver call that launched it returned. None leaves out that call and keeps the correlation id. ``graph`` is the id
    of the CUDA graph and of its node, whose events all have the ``correlation`` of its launch (0: one of their own).

    The last four are not written to the file. They are for an oracle. ``what`` is compute, collective, d2h, h2d, both
    (a copy from host to host) or other_copy (a copy that is no offload). ``transfer`` is the start instruction of the
    transfer, and ``run`` the number of the run of the program. ``after`` are the places, in the list of all events, of
    the transfers for which the main stream waits just before this event, in their order.
    """

    stream: int
    start_ps: int
    end_ps: int
    name: str
    op: str = ""
    program: int = 0
    memcpy: str = ""
    memset: str = ""
    launched_ps: int | None = None
    launch: str = LAUNCH
    graph: tuple[int, int] | None = None
    graph_exec: int | None = None
    correlation: int = 0
    what: str = "compute"
    transfer: str = ""
    run: int = 0
    after: tuple[int, ...] = ()

    @property
    def duration_ps(self) -> int:
        return self.end_ps - self.start_ps


@dataclass(frozen=True, slots=True)
class Device:
    """A GPU and what ran on it, in any order."""

    ordinal: int
    events: tuple[Event, ...]


@dataclass(frozen=True, slots=True)
class Program:
    """A module in the trace: its HloModuleProto, the id that events name, and the layout of the entry."""

    name: str
    id: int
    module_proto: bytes
    id_is_stat: bool = True


@dataclass(frozen=True, slots=True)
class Annotation:
    """A ``StepTraceAnnotation``: the time of its body on the Python thread, which differs from that on the device."""

    number: int
    start_ps: int
    end_ps: int


@dataclass(frozen=True, slots=True)
class Trace:
    """A whole file. If ``host`` is false, the host's plane is left out: no launches and no annotations.

    ``origin_ns`` is the time of 0 ps. Where it is not 0, each line counts from a time of its own, as CUPTI's do.
    """

    devices: tuple[Device, ...]
    modules: tuple[Program, ...] = ()
    annotations: tuple[Annotation, ...] = ()
    host: bool = True
    warnings: tuple[str, ...] = ()
    origin_ns: int = 0
    device_stats: Mapping[str, Value] = field(default_factory=lambda: dict(H100))


H100: Mapping[str, Value] = {
    "device_vendor": "Nvidia",
    "gpu_device_name": "NVIDIA H100 80GB HBM3",
    "clock_rate": Unsigned(1_980_000),
    "core_count": Unsigned(132),
    "memory_bandwidth": Unsigned(3_352_320_000_000),
    "memory_size": Unsigned(85_045_280_768),
    "compute_cap_major": Unsigned(9),
    "compute_cap_minor": Unsigned(0),
}


# ---- events


def kernel_name(op: str) -> str:
    """Return XLA's name of the kernel of an instruction. Names in CUDA have no dots and dashes."""
    return op.replace(".", "_").replace("-", "_")


def kernel(start_ps: int, end_ps: int, op: str, *, program: int, stream: int = MAIN, name: str = "") -> Event:
    """Return a kernel of an instruction."""
    return Event(stream, start_ps, end_ps, name or kernel_name(op), op, program)


def copy(
    start_ps: int, end_ps: int, op: str, size: int, kinds: tuple[str, str], *, program: int, stream: int, name: str
) -> Event:
    """Return a memory copy. ``kinds`` are its source and destination memory in CUPTI's words."""
    return Event(
        stream, start_ps, end_ps, name, op, program, memcpy=memcpy_details(*kinds, size), launch="cuMemcpyAsync"
    )


def d2h(start_ps: int, end_ps: int, op: str, size: int, *, program: int, stream: int = D2H) -> Event:
    """Return a copy from the device to pinned memory."""
    kinds = ("device", "pinned")
    return copy(start_ps, end_ps, op, size, kinds, program=program, stream=stream, name="MemcpyD2H")


def h2d(start_ps: int, end_ps: int, op: str, size: int, *, program: int, stream: int = H2D) -> Event:
    """Return a copy from pinned memory to the device."""
    kinds = ("pinned", "device")
    return copy(start_ps, end_ps, op, size, kinds, program=program, stream=stream, name="MemcpyH2D")


def memcpy_details(source: str, destination: str, size: int, *, asynchronous: bool = True) -> str:
    """Return CUPTI's details of a copy, as XLA writes them since 2021."""
    return f"kind_src:{source} kind_dst:{destination} size:{size} dest:0 async:{int(asynchronous)}"


def old_memcpy_details(size: int) -> str:
    """Return CUPTI's details of a copy before 2021, without memories."""
    return f"size:{size} dest:0 async:1"


# ---- the file


def write_trace(trace: Trace, path: Path) -> Path:
    """Write the trace to ``path`` and return it."""
    return build(trace).write(path)


def trace_bytes(trace: Trace) -> bytes:
    """Return the trace as the content of a file."""
    return build(trace).bytes()


def build(trace: Trace) -> TraceBuilder:
    """Return the trace as a message, for tests that change more of it."""
    builder = TraceBuilder()
    names = {program.id: program.name for program in trace.modules}
    launches: dict[tuple[int, int], tuple[int, str]] = {}
    number = 1 << 20 if any(event.correlation for device in trace.devices for event in device.events) else 0
    for device in trace.devices:
        plane = builder.plane(f"/device:GPU:{device.ordinal}", id=device.ordinal, **trace.device_stats)
        for stream, events in _streams(device.events):
            line = plane.line(_line_name(stream, events), id=stream)
            for event in events:
                number += 1
                correlation = event.correlation or number
                line.event(event.name, event.start_ps, event.duration_ps, **_stats(event, correlation, names))
                if event.launched_ps is not None:
                    launches[correlation, device.ordinal] = (event.launched_ps, event.launch)
    if trace.host:
        _host(builder.plane("/host:CPU", id=100), trace.annotations, launches)
    if trace.origin_ns:
        _count_from_own_times(builder, trace.origin_ns)
    for program in trace.modules:
        proto = in_hlo_proto(program.module_proto)
        builder.embed(program.name, program.id, proto, id_is_stat=program.id_is_stat)
    for warning in trace.warnings:
        builder.warn(warning)
    return builder


def _count_from_own_times(builder: TraceBuilder, origin_ns: int) -> None:
    lines = [line for plane in builder.proto.planes for line in plane.lines]
    for line in lines:
        first_ns = min((event.offset_ps for event in line.events), default=0) // 1000
        line.timestamp_ns = origin_ns + first_ns
        for event in line.events:
            event.offset_ps -= first_ns * 1000


def _streams(events: Iterable[Event]) -> Iterable[tuple[int, list[Event]]]:
    streams: dict[int, list[Event]] = {}
    for event in sorted(events, key=lambda event: (event.start_ps, event.end_ps)):
        streams.setdefault(event.stream, []).append(event)
    return sorted(streams.items())


def _line_name(stream: int, events: Iterable[Event]) -> str:
    """Return ``Stream #13(MemcpyD2D,Compute)``. The order of the types has no meaning."""
    kinds = {"Compute" if not (e.memcpy or e.memset) else e.name if e.memcpy else "Memset" for e in events}
    return f"Stream #{stream}({','.join(sorted(kinds, reverse=True))})"


def _stats(event: Event, correlation: int, names: Mapping[int, str]) -> dict[str, Value]:
    """Return the statistics of an event in the order and with the types of cupti_collector.cc."""
    stats: dict[str, Value] = {"correlation_id": Unsigned(correlation)}
    if event.memcpy:
        stats["memcpy_details"] = event.memcpy
    elif event.memset:
        stats["memset_details"] = event.memset
    elif event.graph_exec is None:
        stats["scope_range_id"] = 0
        stats["theoretical_occupancy_pct"] = 100.0
        stats["occupancy_min_grid_size"] = 264
        stats["occupancy_suggested_block_size"] = 1024
        stats["kernel_details"] = KERNEL_DETAILS
    stats["context_id"] = Text("$$1")
    if event.program:
        stats["tf_op"] = "XlaModule:"
    if event.op:
        stats["name"] = event.op
        stats["hlo_op"] = event.op
    if event.program:
        stats["hlo_module"] = names.get(event.program, "jit_unknown")
        stats["program_id"] = event.program
    if event.graph is not None:
        stats["cuda_graph_id"], stats["cuda_graph_node_id"] = map(Unsigned, event.graph)
    if event.graph_exec is not None:
        stats["cuda_graph_exec_id"] = Unsigned(event.graph_exec)
    return stats


def _host(
    plane: PlaneBuilder, annotations: Iterable[Annotation], launches: Mapping[tuple[int, int], tuple[int, str]]
) -> None:
    python = plane.line("python", id=1)
    for step in annotations:
        python.event("train", step.start_ps, step.end_ps - step.start_ps, step_num=step.number, _r=1)
    threads: dict[int, LineBuilder] = {}
    for (correlation, ordinal), (end_ps, name) in sorted(launches.items(), key=lambda one: (one[1][0], one[0])):
        if ordinal not in threads:
            threads[ordinal] = plane.line(f"Host Threads/{4000 + ordinal}", id=4000 + ordinal)
        duration_ps = min(2 * US, max(0, end_ps))
        stats: dict[str, Value] = {"device_id": Unsigned(ordinal), "correlation_id": Unsigned(correlation)}
        threads[ordinal].event(name, end_ps - duration_ps, duration_ps, **stats)


def in_hlo_proto(module_proto: bytes) -> bytes:
    """Return an HloProto, whose first field is the module."""
    size, length = len(module_proto), b""
    while True:
        size, low = size >> 7, size & 127
        length += bytes([low | 128 if size else low])
        if not size:
            return b"\x0a" + length + module_proto
