"""Synthetic exports of Nsight Systems from the same run that ``cuda_traces.py`` writes as an XSpace.

    run = play("optimizer")
    path = write_nsys(trace_of(run, "optimizer"), tmp_path / "synthetic.sqlite", Writing("2024.4"))

Each operation is launched within a push/pop range of XLA's domain TSL on the thread that drives its device, and its
row has the correlation id of the driver's call. What XLA and NVTX write around that in which version is in the facts
named at each function. Times of calls are the run's: a call returns at ``Event.launched_ps``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from hloinspect.hlo import Instruction, load_module_bytes
from tests.support.cuda_traces import Device, Event, Program, Trace, in_hlo_proto
from tests.support.nsys_builder import START_END, VM, Export, Form, global_id

COPY_KINDS = {"MemcpyH2D": 1, "MemcpyD2H": 2, "MemcpyD2D": 8, "MemcpyP2P": 10, "MemcpyOther": 9}
MEMORY_KINDS = ("pageable", "pinned", "device", "array", "managed", "device_static", "managed_static", "unknown")
NAMED_SINCE_2024 = ("2024.4", "2026.2")
LOADER, WATCHER = 50, 60
"""Threads of a process, counted from its pid, that launch nothing of XLA: one that loads data, one that watches."""
FIRST_CORRELATION = 100
COMMAND_BUFFER = "command_buffer_3"


@dataclass(frozen=True, slots=True)
class Writing:
    """How a run is written.

    ``processes``: each device has a process of its own, in which it is device 0; else one process drives all.
    ``named``: threads and devices have names (the TFRT client gives none). ``shift_ns`` is added to every time.
    ``nodes_made``: the profile has seen how the CUDA graphs were made. ``domains``: it has the rows that name domains.
    ``mixed``: some titles of thunks are written into their rows, as early XLA did, not all registered as strings.
    ``noise``: rows that belong to no step of the program, and defects that real exports have.
    """

    form: Form = "2026.2"
    processes: bool = False
    named: bool = True
    shift_ns: int = 0
    nodes_made: bool = False
    domains: bool = True
    mixed: bool = True
    noise: bool = True


def write_nsys(trace: Trace, path: Path, writing: Writing, *, without: Sequence[str] = ()) -> Path:
    """Write the trace to ``path`` less the tables ``without``, and return the path."""
    return export_of(trace, writing).write(path, without=without)


def write_dump(trace: Trace, folder: Path) -> Path:
    """Write the trace's modules as XLA dumps them, and return the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for program in trace.modules:
        numbered = program.module_proto + b"\x28" + bytes([program.id])  # HloModuleProto.id, which is the program's
        name = f"module_{program.id:04}.{program.name}.sm_9.0_gpu_after_optimizations.hlo.pb"
        (folder / name).write_bytes(in_hlo_proto(numbered))
    return folder


def with_memsets_named(trace: Trace) -> Trace:
    """Return the trace with the instruction and program of each memset: a range shows them, an XSpace leaves them out.

    Only ``partition-id`` runs as one here.
    """
    names = {program.id: _names_of(program.module_proto).memset for program in trace.modules}

    def named(device: Device) -> Device:
        programs = {event.run: event.program for event in device.events if event.program}
        events = (
            replace(e, op=names.get(programs[e.run], ""), program=programs[e.run])
            if e.memset and e.run in programs
            else e
            for e in device.events
        )
        return replace(device, events=tuple(events))

    return replace(trace, devices=tuple(map(named, trace.devices)))


def export_of(trace: Trace, writing: Writing) -> Export:
    """Return the trace as rows, for tests that change some of them."""
    export = Export(writing.form)
    programs = {program.id: program for program in trace.modules}
    for place, device in enumerate(trace.devices):
        pid = 7000 + place * 100 if writing.processes else 7000
        _Writer(export, writing, programs, place, pid, len(trace.devices)).write(device)
    _hardware(export, trace, writing)
    if writing.noise:
        _add_noise(export, writing)
    return export


@dataclass
class _Writer:
    """Writer of one device."""

    export: Export
    writing: Writing
    programs: Mapping[int, Program]
    place: int
    pid: int
    devices: int
    reached: int = -(1 << 62)
    unused: int = 0

    @property
    def form(self) -> Form:
        return self.writing.form

    @property
    def domain(self) -> int:
        """The number of XLA's domain, which each process chooses for itself."""
        return 1 + (self.pid - 7000) // 100

    @property
    def thread(self) -> int:
        """The thread that launches: one for each device of a process that drives several, else the main thread."""
        alone = self.writing.processes or self.devices == 1
        return global_id(self.pid, self.pid if alone else self.pid + 10 + self.place)

    def ns(self, ps: int) -> int:
        assert ps % 1000 == 0, "CUPTI's times are whole nanoseconds"
        return ps // 1000 + self.writing.shift_ns

    def write(self, device: Device) -> None:
        for number, event in enumerate(device.events):
            self._device_row(number, event)
        launched = [(number, e) for number, e in enumerate(device.events) if e.launched_ps is not None]
        launched.sort(key=lambda one: (one[1].launched_ps or 0, one[0]))
        own = [(n, e) for n, e in launched if e.op or e.memset or e.program]
        for number, event in launched:
            if not (event.op or event.memset or event.program):
                end = self.ns(event.launched_ps or 0)
                self._call(
                    global_id(self.pid, self.pid + LOADER),
                    end - 700,
                    end,
                    event.launch,
                    self._correlation(number, event),
                )
        for run in _runs(own):
            self._run(run, device.events)
        self._names()

    # ---- the device

    def _correlation(self, number: int, event: Event) -> int:
        return self._first + (2 * number if not event.correlation else (1 << 22) + 2 * event.correlation)

    @property
    def _first(self) -> int:
        """The least correlation id: they are numbered by process, so those of two processes are the same."""
        return FIRST_CORRELATION if self.writing.processes else FIRST_CORRELATION + (self.place << 24)

    def _device_row(self, number: int, event: Event) -> None:
        start, end, correlation = self.ns(event.start_ps), self.ns(event.end_ps), self._correlation(number, event)
        own = {
            "deviceId": 0 if self.writing.processes else self.place,
            "contextId": self.place + 1,
            "streamId": event.stream,
            "globalPid": global_id(self.pid),
        }
        graph, node = event.graph or (0, 0)
        node_id = (graph << 32 | node) if event.graph else None
        if event.memcpy:
            tokens = dict(token.split(":") for token in event.memcpy.split())
            self.export.memcpy(
                start, end, correlation=correlation, bytes=int(tokens["size"]), copyKind=COPY_KINDS[event.name],
                srcKind=MEMORY_KINDS.index(tokens["kind_src"]), dstKind=MEMORY_KINDS.index(tokens["kind_dst"]),
                graphNodeId=node_id, **own,
            )  # fmt: skip
        elif event.memset:
            self.export.add(
                "CUPTI_ACTIVITY_KIND_MEMSET", start=start, end=end, correlationId=correlation, bytes=4, memKind=2,
                graphNodeId=node_id, **own,
            )  # fmt: skip
        elif event.graph_exec is not None:
            self.export.add(
                "CUPTI_ACTIVITY_KIND_GRAPH_TRACE", start=start, end=end, correlationId=correlation,
                graphId=event.graph_exec, graphExecId=event.graph_exec + 1, **own,
            )  # fmt: skip
        else:
            self.export.kernel(
                start, end, event.name, correlation=correlation, graphNodeId=node_id,
                graphId=graph if event.graph else None, **own,
            )  # fmt: skip

    # ---- the host

    def _run(self, run: Sequence[tuple[int, Event]], events: Sequence[Event]) -> None:
        """Write the ranges and calls of one run of a program: its module's range, and in it those of its thunks."""
        number = max(event.program for _, event in run)
        program = self.programs.get(number)
        names = _names_of(program.module_proto) if program else _Names({}, {}, "")
        opened: list[tuple[str, int]] = []
        begin = self._made_graphs(run)
        sent: set[int] = set()
        for place, event in run:
            end = self.ns(event.launched_ps or 0)
            if event.correlation in sent:
                continue  # a node of a graph whose launch is written already
            sent |= {event.correlation} - {0}
            low = max(self.reached + 30, end - 950)
            begin = low - 20 if begin is None else begin
            wanted = names.loops(event.transfer or event.op, bodies=self.form == "2026.2")
            while opened and [loop for loop, _ in opened] != wanted[: len(opened)]:
                self._close(opened)
            for loop in wanted[len(opened) :]:
                opened.append((loop, low + len(opened)))
            for step, place_of in enumerate(event.after):
                self._wait(low + 30 + 20 * step, names.dones.get(events[place_of].transfer, ""), event.stream)
            self._launch(place, event, end, names)
            self.reached = end + 40
        while opened:
            self._close(opened)
        title = _module_title(self.form, program.name if program else "jit_unknown", number)
        self.export.push_pop(
            self.thread, begin or 0, self.reached + 5, title, domain=self.domain, registered=True
        )  # fmt: skip

    def _close(self, opened: list[tuple[str, int]]) -> None:
        """Close the range of a loop between the last operation and what comes next."""
        loop, start = opened.pop()
        self._thunk(start, self.reached - 1 - len(opened), loop)

    def _launch(self, number: int, event: Event, end: int, names: _Names) -> None:
        """Write an operation's ranges and its call, which returns at ``end``."""
        op = event.op or (names.memset if event.memset else "")
        correlation = self._correlation(number, event)
        is_copy_start = event.transfer != "" and event.launch.startswith("cuMemcpy")
        if event.graph is not None:
            op = COMMAND_BUFFER
        if op:
            self._thunk(end - 500, end + 30, event.transfer if is_copy_start and self.form == "2026.2" else op)
        if is_copy_start and self.form == "2026.2":
            # AsyncStartThunk: the copy stream waits for an event of the main stream, then a range of the same name
            self._call(self.thread, end - 480, end - 460, "cuEventRecord", self._unused())
            self._call(self.thread, end - 450, end - 430, "cuStreamWaitEvent", self._unused())
            self._thunk(end - 400, end + 10, op)
        if event.what == "collective":
            domain = self.domain + 20
            self.export.push_pop(self.thread, end - 390, end + 8, "ncclGroupEnd", domain=domain, registered=True)
        self._call(self.thread, end - 300, end, event.launch, correlation)
        if is_copy_start:
            self._call(self.thread, end + 12, end + 25, "cuEventRecord", self._unused())

    def _wait(self, start: int, done: str, stream: int) -> None:
        """Write what a ``done`` does: one call that makes the main stream wait for an event."""
        if not done:
            return
        self._thunk(start, start + 15, done)
        correlation = self._unused()
        self._call(self.thread, start + 3, start + 9, "cuStreamWaitEvent", correlation)
        self.export.add(
            "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION", start=start + 4, end=start + 8, correlationId=correlation,
            deviceId=0, contextId=self.place + 1, streamId=stream, globalPid=global_id(self.pid), syncType=2, eventId=5,
            eventSyncId=correlation,
        )  # fmt: skip

    def _made_graphs(self, run: Sequence[tuple[int, Event]]) -> int | None:
        """Write how the graphs of a program's first run were made, and return when that began.

        Each command is recorded within the range of its instruction (CUDA_GRAPH_NODE_EVENTS).
        """
        nodes = [event for _, event in run if event.graph is not None]
        if not nodes or not self.writing.nodes_made or run[0][1].run != 0:
            return None
        first = min(self.ns(event.launched_ps or 0) for _, event in run) - 2000 - 100 * len(nodes)
        for place, event in enumerate(nodes):
            graph, node = event.graph or (0, 0)
            start = first + 100 * place
            self._thunk(start, start + 90, event.op)
            self.export.add(
                "CUDA_GRAPH_NODE_EVENTS", start=start + 10, end=start + 50, eventClass=1, globalTid=self.thread,
                nameId=self.export.text("cuGraphAddKernelNode"), graphNodeId=graph << 32 | node,
            )  # fmt: skip
        self._thunk(first - 10, first + 100 * len(nodes), COMMAND_BUFFER)
        return first - 20

    def _call(self, thread: int, start: int, end: int, name: str, correlation: int) -> None:
        self.export.call(thread, start, end, name, correlation=correlation)

    def _unused(self) -> int:
        """Return a correlation id that no row of a device has."""
        self.unused += 1
        return self._first + 2 * self.unused + 1

    def _thunk(self, start: int, end: int, op: str) -> None:
        title, registered = _thunk_title(self.form, op)
        registered |= not self.writing.mixed
        self.export.push_pop(self.thread, start, end, title, domain=self.domain, registered=registered)

    # ---- names

    def _names(self) -> None:
        export, place = self.export, self.place
        main = global_id(self.pid, self.pid)
        if self.writing.domains and (self.writing.processes or place == 0):
            registered = self.form == "2026.2"
            export.domain(main, self.domain, "TSL", at=self.writing.shift_ns - 5000, registered=registered)
            export.domain(main, self.domain + 20, "NCCL", at=self.writing.shift_ns - 4000, registered=True)
        if self.writing.processes or place == 0:
            export.add("PROCESSES", globalPid=global_id(self.pid), pid=self.pid, name="python3")
            export.add("ThreadNames", nameId=export.text("python3"), priority=0, globalTid=main)
        export.add(
            "TARGET_INFO_CUDA_CONTEXT_INFO", nullStreamId=7, hwId=0, vmId=1, processId=self.pid, contextId=place + 1,
            deviceId=0 if self.writing.processes else place,
        )  # fmt: skip
        if self.writing.named and self.form in NAMED_SINCE_2024:
            part = "slice" if self.form == "2024.4" else "partition"
            local, process = (0, place) if self.writing.processes else (place, 0)
            said = f"#global={place},local={local},process={process},{part}=0#"
            export.add("TARGET_INFO_NVTX_CUDA_DEVICE", name=f"Xla:{said}", hwId=0, vmId=1, deviceId=local)
            if self.thread != main:
                export.add("ThreadNames", nameId=export.text(f"XlaLauncher:{said}"), priority=0, globalTid=self.thread)


def _runs(launched: Iterable[tuple[int, Event]]) -> Iterator[list[tuple[int, Event]]]:
    """Yield the operations of each run of a program, which are launched one after the other. A memset names none."""
    launched = list(launched)
    programs = {event.run: event.program for _, event in launched if event.program}
    run: list[tuple[int, Event]] = []
    key: tuple[int, int] | None = None
    for place, event in launched:
        own = (event.program or programs.get(event.run, 0), event.run)
        if run and own != key:
            yield run
            run = []
        key = own
        run.append((place, event))
    if run:
        yield run


# ---- titles of ranges


def _module_title(form: Form, name: str, number: int) -> str:
    if form == "2022.2":  # one constructor of early 2024 left out the last sign
        return f"XlaModule:#hlo_module={name},program_id={number}"
    if form == "2024.4":
        return f"XlaModule:#prefix=jit(step)/jit(main),hlo_module={name},program_id={number}#"
    return f"XlaModule:#hlo_module={name},program_id={number}#"


def _thunk_title(form: Form, op: str) -> tuple[str, bool]:
    """Return the title of a thunk's range, and whether it is a registered string: XLA has both."""
    odd = sum(op.encode()) % 3
    if form == "2022.2":
        return f"Thunk:#hlo_op={op}#", odd > 0
    name = ("name=,", "name=transpose(jvp(f))/reduce_sum[axes=(0, 1)],", "")[odd]
    if form == "2024.4":
        return f"Thunk:#{name}hlo_op={op}#", odd > 0
    return f"Thunk:#{name}hlo_op={op},unique_hlo_op_id={sum(op.encode())}#", odd > 0


@dataclass(frozen=True)
class _Names:
    """What the ranges of a module's thunks are called: its loops by what runs in them, and dones by their starts."""

    around: Mapping[str, tuple[str, str]]
    dones: Mapping[str, str]
    memset: str

    def loops(self, op: str, *, bodies: bool) -> list[str]:
        """Return the ranges of the loops around an instruction, the outermost first, and with ``bodies`` of these."""
        found: list[str] = []
        while op in self.around:
            op, body = self.around[op]
            found[:0] = [op, body] if bodies else [op]
        return found


@cache
def _names_of(proto: bytes) -> _Names:
    module = load_module_bytes(proto)
    callers: dict[str, Instruction] = {}
    homes: dict[str, str] = {}
    dones: dict[str, str] = {}
    memset = ""
    for computation in module.computations.values():
        for instruction in computation:
            homes[instruction.name] = computation.name
            callers |= {called: instruction for names in instruction.called.values() for called in names}
            if instruction.opcode.endswith("-done"):
                dones[instruction.operands[0].name] = instruction.name
            if instruction.opcode == "partition-id":
                memset = instruction.name
    around = {name: loop for name in homes if (loop := _loop_around(name, homes, callers)) is not None}
    return _Names(around, dones, memset)


def _loop_around(name: str, homes: Mapping[str, str], callers: Mapping[str, Instruction]) -> tuple[str, str] | None:
    while homes[name] in callers:
        caller, body = callers[homes[name]], homes[name]
        name = caller.name
        if caller.opcode == "while":
            return name, body
    return None


# ---- the machine, and what is no part of a step


def _hardware(export: Export, trace: Trace, writing: Writing) -> None:
    own = trace.device_stats
    for place in reversed(range(len(trace.devices))):  # they are not in the order of their ids
        pid = 7000 + place * 100 if writing.processes else 7000
        export.add(
            "TARGET_INFO_GPU", vmId=VM, id=place, name=str(own["gpu_device_name"]),
            busLocation=f"0000:{place + 7:02x}:00.0",
            isDiscrete=1, totalMemory=int(own["memory_size"]), memoryBandwidth=int(own["memory_bandwidth"]),
            clockRate=int(own["clock_rate"]) * 1000, smCount=int(own["core_count"]), chipName="GH100",
            uuid=f"00000000-0000-0000-0000-{place:012}", computeMajor=int(own["compute_cap_major"]),
            computeMinor=int(own["compute_cap_minor"]), cuDevice=0 if writing.processes else place,
        )  # fmt: skip
        export.add(
            "TARGET_INFO_CUDA_DEVICE", gpuId=place, cudaId=0 if writing.processes else place, pid=pid,
            uuid=f"00000000-0000-0000-0000-{place:012}", numMultiprocessors=int(own["core_count"]),
        )  # fmt: skip
    epoch = 1_700_000_000_000_000_000
    export.add(
        "TARGET_INFO_SESSION_START_TIME", utcEpochNs=epoch, utcTime="synthetic", systemClockNs=515_396_806_359_142
    )
    export.add(
        "ANALYSIS_DETAILS", globalVid=VM, duration=10**9, startTime=515_396_806_359_142, stopTime=515_397_806_359_142
    )
    for name, value in (("Hostname", "synthetic"), ("NvDriverVersion", "550.54.15"), ("CudaDriverVersion", "12040")):
        export.add("TARGET_INFO_SYSTEM_ENV", globalVid=VM, devStateName="System", name=name, nameEnum=1, value=value)
    export.add("META_DATA_CAPTURE", name="CAPTURE_EVENT_TYPE", value="NvtxEvents")
    export.add("META_DATA_CAPTURE", name="CAPTURE_EVENT_TYPE", value="Cuda")
    in_graphs = "CUPTI_ACTIVITY_KIND_GRAPH_TRACE" in export.rows
    option = f"{'PROCESS_0:' if writing.form == '2024.4' else ''}CUDA_GRAPH_TRACE_OPTIONS:MODE"
    export.add("META_DATA_CAPTURE", name=option, value="Graph" if in_graphs else "Node")
    if writing.shift_ns > 10**18:
        export.describe("EXPORT_PARAM_TIME_NORMALIZE", "true")


def _add_noise(export: Export, writing: Writing) -> None:
    """Add what a real export has besides: ranges of others, marks, ranges that never end, texts that are no text."""
    zero, main = writing.shift_ns, global_id(7000, 7000)
    watcher, loader = global_id(7000, 7000 + WATCHER), global_id(7000, 7000 + LOADER)
    last = max((int(row["end"] or 0) for row in export.rows["CUPTI_ACTIVITY_KIND_RUNTIME"]), default=zero)  # type: ignore[arg-type]
    export.push_pop(main, zero - 30_000_000, last + 30_000_000, "training", domain=0)
    export.push_pop(watcher, zero - 20_000_000, last + 20_000_000, b"caf\xe9 \xff", domain=0)
    export.push_pop(loader, zero - 10_000_000, None, "XlaCompile:#module=jit_f,program_id=3#", domain=1)
    export.push_pop(main, last + 1000, None, "Thunk:#hlo_op=copy.99#", domain=1)
    export.add("NVTX_EVENTS", start=zero + 5, eventType=34, globalTid=watcher, domainId=0, text="a mark")
    export.add("NVTX_EVENTS", start=zero + 6, eventType=34, globalTid=watcher, domainId=0, textId=5)  # no such text
    export.add(
        "NVTX_EVENTS", start=zero - 9_000_000, end=last + 9000, eventType=START_END, globalTid=main,
        endGlobalTid=watcher,
        rangeId=3, domainId=0, text="an epoch that another thread ends",
    )  # fmt: skip
    for title in ("XlaPass", "XlaCompileBackend", "XlaAutotunerMeasurement:#hlo_op=gemm.7#"):
        export.push_pop(main, zero - 29_000_000 + len(title), zero - 28_000_000 - len(title), title, domain=1)
    export.add(
        "TARGET_INFO_SYSTEM_ENV",
        globalVid=VM,
        devStateName="X",
        name="DeviceEnvironment",
        nameEnum=9,
        value=b"A=\xff\xfe;B=1",
    )
    export.call(watcher, zero + 100, last + 100, "cudaStreamSynchronize_v3020", correlation=99, driver=False)
    for kernel in export.rows.get("CUPTI_ACTIVITY_KIND_KERNEL", [])[:1]:
        assert isinstance(kernel, dict)
        kernel["mangledName"] = 7  # no such text
    export.add(
        "DIAGNOSTIC_EVENT", timestamp=zero, timestampType=1, source=1, severity=1, text="CUPTI events produced: 43"
    )
