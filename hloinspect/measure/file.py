"""Measurement of one trace: a pure function of a file, so that many files can be measured in separate processes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal

import numpy as np

from hloinspect.errors import InputError
from hloinspect.inputs.modules import given_modules, with_given_modules
from hloinspect.kinds import ClassifiedBy, InstructionClass, Platform
from hloinspect.measure import events, gpu, tpu
from hloinspect.measure.copies import CopySample, copy_samples, other_copies
from hloinspect.measure.events import BY, DeviceEvents, Op, gpu_events
from hloinspect.measure.explained import Explained, explained
from hloinspect.measure.host import Launches, step_marks
from hloinspect.measure.join import ProgramJoin, class_in, join_of, module_name
from hloinspect.measure.measured import GRAPHS_AS_BLOCKS, MeasuredDevice, MeasuredFile, ProgramSeen
from hloinspect.measure.memcpy import ROCM, is_rocm
from hloinspect.measure.steps import IMPOSSIBLE
from hloinspect.offload.records import Unknown
from hloinspect.profiles.open import open_trace
from hloinspect.profiles.xplane import Plane, XSpace, embedded_modules, host_of
from hloinspect.profiles.xplane.embedded import program_names, versions_of
from hloinspect.units import listed

GPU, TPU = "/device:GPU:", "/device:TPU:"
_OR_WHOLE = ", and so does a capture by nsys that begins before the graphs are made"
GRAPHS_OFF = "XLA_FLAGS=--xla_gpu_enable_command_buffer="
_NO_DEVICE = Unknown(
    f"the trace has no events of an accelerator (no {GPU}<n> or {TPU}<n> with any)",
    "profile the run on its accelerator, and start the profiler in the process that drives it",
    "time",
)
_NO_PROGRAM = Unknown(
    "no event on the device names the program it is of: there are no steps, and no transfers of a module",
    "profile a jitted JAX step (a trace of TensorFlow, or of plain CUDA, does not name HLO instructions)",
    "time",
)
_NO_MODULE = Unknown(
    "the trace carries no module of its program, so which transfers it has, and the wait for each, is not known",
    "leave jax.profiler.ProfileOptions.enable_hlo_proto on, and read the .xplane.pb and not the .trace.json.gz; or "
    "give the run's dump: --hlo DIR, of XLA_FLAGS=--xla_dump_to=DIR",
    "transfers",
)
_NO_MODULE_NSYS = Unknown(
    "a profile of Nsight Systems carries no module of its program, so which transfers it has, and the wait for each, "
    "is not known",
    "give the dump of the same run: --hlo DIR, of XLA_FLAGS=--xla_dump_to=DIR (or lay it beside the profile)",
    "transfers",
)


_KEPT_BYTES = (1 << 25) - (1 << 16)
"""The bytes that are allocated once, untouched, and freed. From then on glibc keeps twice as much for the next plane.
Otherwise it returns all memory to the system after each plane, and takes page after page again (mallopt(3),
M_MMAP_THRESHOLD: at most 32 MiB)."""


OTHER_MODULE = 0.5
"""The share of instructions that events name, and a module given with --hlo lacks, from which on it is another module.
Some are never in it: a profile also names the bodies of loops, and command buffers."""


class Joins:
    """The modules of a trace. Each is read, and searched for transfers, when it is first needed."""

    def __init__(self, space: XSpace) -> None:
        self._path = space.path
        self.protos = dict(embedded_modules(space))
        self._given = given_modules(space)
        self._known: dict[int, ProgramJoin | None] = {}
        self.failed: list[str] = []

    def source(self, program: int | None) -> str:
        """Return the file that the module of a program was read from, "" where the trace itself has it."""
        given = self._given.get(program) if program is not None and program in self.protos else None
        return given.source if given is not None else ""

    def __call__(self, program: int) -> ProgramJoin | None:
        if program not in self._known:
            self._known[program] = None
            proto = self.protos.get(program)
            if proto is not None:
                try:
                    self._known[program] = self._checked(join_of(proto, module_name(self._path, program)), program)
                except InputError as error:
                    self.failed.append(str(error))
        return self._known[program]

    def _checked(self, joined: ProgramJoin, program: int) -> ProgramJoin | None:
        """Return the join, or None where its module came from elsewhere and is not the one that ran."""
        given = self._given.get(program)
        if given is None:
            return joined
        missing = [op for op in given.ops if joined.find(op) is None]
        if len(missing) <= OTHER_MODULE * len(given.ops):
            return joined
        del self.protos[program]
        self.failed.append(
            f"{given.source} is not the module that ran as program {program}, and is not used: "
            f"{len(missing):,} of {len(given.ops):,} instructions that ran are not in it, such as {missing[0]}"
        )
        return None


def measure_file(
    path: str | Path, *, hlo: Sequence[str] = (), on_progress: Callable[[str], None] | None = None
) -> MeasuredFile:
    """Return the measurement of one trace. Raises InputError for a file that is no trace, or a damaged one.

    ``hlo`` are files or dumps with the modules that the trace does not carry (inputs/modules.py).
    """
    space = open_trace(path, on_progress)
    return measure_space(with_given_modules(space, hlo), on_progress)


def measure_space(space: XSpace, on_progress: Callable[[str], None] | None = None) -> MeasuredFile:
    """Return the measurement of a trace that is open."""
    np.empty(_KEPT_BYTES, np.uint8)
    gpus = space.planes_of(GPU)
    tpus = [plane for plane in space.planes_of(TPU) if plane.name[len(TPU) :].isdecimal()]
    gathered = _Gathered(space, on_progress or (lambda message: None))
    if any(is_rocm(plane) for plane in gpus):
        remedy = "no setting is known: measure on an NVIDIA GPU or a TPU, or use `hloinspect inspect`"
        gathered.unknown.append(Unknown(ROCM, remedy, "transfers"))
    if gpus:
        gathered.add_gpus(gpus)
    elif tpus:
        gathered.add_tpus(tpus)
    return gathered.result("gpu" if gpus else "tpu" if tpus else "")


class _Gathered:
    """The results so far. The events of a plane are freed once it has been measured."""

    def __init__(self, space: XSpace, on_progress: Callable[[str], None]) -> None:
        self.space = space
        self.joins = Joins(space)
        self.unknown: list[Unknown] = []
        self.limits: list[str] = list(space.notes)
        self._progress = on_progress
        self._device_type = ""
        self._device_bytes = 0
        self._devices: list[MeasuredDevice] = []
        self._times: Counter[int] = Counter()
        self._runs: Counter[int] = Counter()
        self._copies: list[CopySample] = []
        self._work: Counter[str] = Counter()
        self._classified: Counter[ClassifiedBy] = Counter()
        self._classes: Counter[InstructionClass] = Counter()
        self._hidden: Counter[str] = Counter()
        self._named: dict[int, Counter[str]] = {}
        self._graphs = 0
        self._unattributed = 0
        self._events = 0
        self._unusable = 0
        self._names = program_names(space)

    def add_gpus(self, planes: Sequence[Plane]) -> None:
        marks, launches = step_marks(self.space), Launches(self.space)
        for plane in planes:
            if not plane.lines:
                continue
            self._progress(f"measuring {plane.name}")
            found = gpu_events(plane, self.joins, correlated=launches.any())
            self._device_type = self._device_type or _text(plane, "gpu_device_name")
            self._device_bytes = self._device_bytes or _memory_of(plane)
            self._events += len(found.start_ps)
            self._unusable += found.unusable
            if not len(found.start_ps):
                continue
            self._count(found)
            self._count_classes(found.ops, found.spent[0].tolist())
            program, device = gpu.main_gpu_program(found, self.joins), None
            stat = plane.stats.get("memory_bandwidth")
            most = float(stat) if isinstance(stat, (int, float)) else 0.0
            if program is not None:
                order = next((one.order for one in self._devices if one.program == program), None)
                device = gpu.measure_gpu(plane.name, found, program, self.joins, marks, launches, most, order)
            if device is not None:
                self._devices.append(device)
            others = [one.program for one in device.programs] if device is not None else []
            programs = {*others, *(() if program is None else (program,))}
            self._copies += copy_samples(found, programs, device, most)

    def _count(self, found: DeviceEvents) -> None:
        """Add up the device's time, by program and by the source that gave an event its kind."""
        by_op, number = found.spent
        rarest: dict[int, int] = {}
        for op, time, count in zip(found.ops, by_op.tolist(), number.tolist(), strict=True):
            self._classified[BY[op.by]] += time
            self._count_name(op, count)
            if op.program:
                self._times[op.program] += time
                rarest[op.program] = min(count, rarest.get(op.program, count))
            if op.is_hidden:
                self._hidden[op.name] += count
                self._graphs += count if op.is_graph else 0
            if op.kind in (events.COMPUTE, events.COLLECTIVE):
                self._work["events"] += count
                self._work["ps"] += time
            if op.kind in (events.TO_HOST, events.FROM_HOST) and not op.transfer:
                self._unattributed += time
        for program, count in rarest.items():
            self._runs[program] = max(self._runs[program], count)

    def _count_classes(self, ops: Sequence[Op], spent_ps: Sequence[int]) -> None:
        """Add up the device's time by class of instruction, over all programs; events that name none are left out."""
        for op, time in zip(ops, spent_ps, strict=True):
            if op.kind != events.IGNORED and not op.is_hidden and (op.program or op.rank >= 0):
                self._classes[class_in(self.joins(op.program), op.name)] += time

    def add_tpus(self, planes: Sequence[Plane]) -> None:
        for plane in planes:
            self._progress(f"measuring {plane.name}")
            trace = tpu.tpu_trace(plane, self.joins)
            self._device_type = self._device_type or _text(plane, "device_type_string")
            if trace is None:
                continue
            self._events += len(trace.start_ps)
            self._unusable += trace.unusable
            time = trace.run_end - trace.run_begin
            for number in np.unique(trace.run_program).tolist():
                own = trace.run_program == number
                self._times[number] += int(time[own].sum())
                self._runs[number] = max(self._runs[number], int(own.sum()))
                self._names.setdefault(number, trace.run_name.get(number, ""))
            by_op = np.zeros(len(trace.ops), np.int64)
            np.add.at(by_op, trace.op, trace.end_ps - trace.start_ps)
            for op, count in zip(trace.ops, np.bincount(trace.op, minlength=len(trace.ops)).tolist(), strict=True):
                self._count_name(op, count)
            self._count_classes(trace.ops, by_op.tolist())
            for op, spent in zip(trace.ops, by_op.tolist(), strict=True):
                self._classified[BY[op.by]] += spent if op.kind != events.IGNORED else 0
                if op.kind in (events.TO_HOST, events.FROM_HOST) and not op.transfer:
                    self._unattributed += spent
            program = tpu.main_tpu_program(trace, self.joins)
            if program is not None:
                device = tpu.measure_tpu(plane.name, trace, program, self.joins(program))
                self._devices += [device] if device is not None else []

    def _count_name(self, op: Op, count: int) -> None:
        """Count the events that name an instruction of a program."""
        if op.program and op.instruction:
            self._named.setdefault(op.program, Counter())[op.instruction] += count

    # ---- the result

    def _explained(self, program: int | None) -> Explained | None:
        """Return how far the module of a program explains its events."""
        joined = self.joins(program) if program is not None else None
        if joined is None or program is None:
            return None
        name = self._names.get(program, "").partition("(")[0]
        return explained(joined, self._named.get(program, {}), joined.module.name, name)

    def result(self, platform: Platform | Literal[""]) -> MeasuredFile:
        program = self._main_program()
        devices = [device for device in self._devices if device.program == program]
        if len(devices) < len(self._devices):
            others = [device.name for device in self._devices if device.program != program]
            self.limits.append(f"{listed(others, 3)} ran another program most of the time and is not in the figures")
        self._judge(platform, program, devices)
        return MeasuredFile(
            path=self.space.path,
            host=self.space.hostnames[0] if self.space.hostnames else host_of(Path(self.space.path)),
            platform=platform,
            device_type=self._device_type,
            program=program,
            module=self.joins.protos.get(program) if program is not None else None,
            devices=tuple(devices),
            programs=self._programs(),
            other_copies=other_copies(self._copies, self._name_of),
            classified_ps=dict(self._classified),
            hidden_events=sum(self._hidden.values()),
            hidden_ops=tuple(sorted(self._hidden)),
            graph_blocks=self._graphs,
            unattributed_ps=self._unattributed,
            class_ps=dict(self._classes),
            versions=versions_of(self.space),
            events=self._events,
            explained=self._explained(program),
            module_path=self.joins.source(program),
            limits=tuple(self.limits),
            unknown=tuple(self.unknown),
            step_modules=self._step_modules(devices),
            work_events=self._work["events"] if platform == "gpu" else None,
            work_ps=self._work["ps"] if platform == "gpu" else None,
            device_bytes=self._device_bytes,
        )

    def _step_modules(self, devices: Sequence[MeasuredDevice]) -> dict[int, bytes]:
        """Return the modules of the step's other programs that have transfers."""
        others = {one.program for device in devices for one in device.programs if one.transfers}
        return {program: self.joins.protos[program] for program in sorted(others) if program in self.joins.protos}

    def _main_program(self) -> int | None:
        counts: Counter[int] = Counter()
        for device in self._devices:
            counts[device.program] += int(device.figures["time_ps"].sum()) + 1
        return max(counts, key=lambda number: (counts[number], -number), default=None)

    def _programs(self) -> tuple[ProgramSeen, ...]:
        found = []
        for number, time in self._times.most_common():
            joined = self.joins(number)
            transfers = len(joined.offload.transfers) if joined else None
            found.append(ProgramSeen(number, self._name_of(number), self._runs[number], time, transfers))
        return tuple(found)

    def _name_of(self, program: int) -> str:
        joined = self.joins(program)
        return joined.module.name if joined else self._names.get(program, "")

    def _judge(self, platform: str, program: int | None, devices: Sequence[MeasuredDevice]) -> None:
        """Note what the trace does not show."""
        self.limits += self.joins.failed
        self.unknown += [Unknown(gap.reason, gap.remedy, gap.affects) for gap in self.space.gaps]
        notes: dict[str, list[str]] = {}
        for device in devices:
            for note in device.notes:
                notes.setdefault(note, []).append(device.name.removeprefix("/device:"))
        self.limits += [f"{listed(names, 3)}: {note}" for note, names in notes.items()]
        if self.space.capped:
            self.limits.append("a Chrome trace holds at most a million events, and no module: read the .xplane.pb")
        if self._unusable:
            self.limits.append(
                f"{self._unusable:,} events have no time of their own (gpu_aggregated_tracing) and are left out"
            )
        said = [" ".join(text.split()) for text in (*self.space.errors, *self.space.warnings)]
        if said:
            reason = f"the profiler says: {said[0]}" + (f" (and {len(said) - 1} more)" if len(said) > 1 else "")
            self.unknown.append(Unknown(reason, "trace fewer steps at a time, so that no events are dropped", "time"))
        if not self._events:
            self.unknown.append(_NO_DEVICE)
        elif program is None or not devices:
            self.unknown.append(_NO_PROGRAM)
        else:
            self._judge_steps(platform, program, devices)

    def _judge_steps(self, platform: str, program: int, devices: Sequence[MeasuredDevice]) -> None:
        joined = self.joins(program)
        seen_copies = not any(gap.reason == ROCM for gap in self.unknown)
        is_said = any(gap.affects == "transfers" for gap in self.space.gaps)  # by the reader, with its own remedy
        if joined is None and (platform == "gpu" or self._unattributed) and seen_copies and not is_said:
            self.unknown.append(_NO_MODULE_NSYS if self.space.kind == "nsys" else _NO_MODULE)
        found = self._explained(program)
        if found is not None and not found.is_trusted:
            reason = f"the module is not the one that ran: {found.text}"
            self.unknown.append(
                Unknown(reason, "give the module of this run (its --xla_dump_to directory)", "transfers")
            )
        if not seen_copies:
            self.limits.append(
                "time in which only copies between device and host run counts as idle: they are not seen"
            )
        if not any(device.clean.any() for device in devices):
            seen = sum(len(device.numbers) for device in devices)
            reasons = Counter(reason for device in devices for reason in device.set_aside)
            why = ", ".join(f"{reason} ({count})" for reason, count in reasons.most_common(3))
            remedy = "trace more steps: ten in a row are good"
            if reasons.keys() == {IMPOSSIBLE}:
                remedy = "profile again: the clock of this profile may be wrong, or its module that of another run"
            self.unknown.append(Unknown(f"no step of {seen} counts: {why}", remedy, "time"))
        if not all(device.launches_known for device in devices) and seen_copies:
            self.limits.append(
                "the trace does not say when operations were launched (no host plane, or dropped events): what "
                "the host was late for counts as waiting for a transfer"
            )
        if self._graphs:
            self.unknown.append(
                Unknown(
                    f"{self._graphs:,} {GRAPHS_AS_BLOCKS}",
                    f"nsys profile --cuda-graph-trace=node, or {GRAPHS_OFF}"
                    if self.space.kind == "nsys"
                    else GRAPHS_OFF,
                    "time",
                )
            )
        elif self._hidden:
            self.limits.append(
                f"{sum(self._hidden.values()):,} events are in command buffers ({listed(sorted(self._hidden), 2)}) "
                f"and do not name their instruction: totals hold, but waits and copies in them cannot be separated; "
                f"{GRAPHS_OFF} shows them{_OR_WHOLE if self.space.kind == 'nsys' else ''}"
            )


def _memory_of(plane: Plane) -> int:
    size = plane.stats.get("memory_size")
    return size if isinstance(size, int) and size > 0 else 0


def _text(plane: Plane, stat: str) -> str:
    value = plane.stats.get(stat)
    return value if isinstance(value, str) else ""
