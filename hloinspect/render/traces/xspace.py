"""A predicted step as a profile (``--format xplane``), for XProf, TensorBoard and ``hloinspect trace``.

The planes are those that XLA's profiler writes: on a GPU a line for each stream, with the statistics of memory copies,
from which viewers derive steps, modules and operations; on a TPU the lines ``Steps``, ``XLA Modules``, ``XLA Ops`` and
``Async XLA Ops``. The module stands in ``/host:metadata``.
"""

from __future__ import annotations

import gzip
import hashlib
import re
from collections import defaultdict, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from hloinspect.errors import UsageError, printable
from hloinspect.hlo.model import Computation, Instruction, Module
from hloinspect.hlo.print import print_module, print_shape
from hloinspect.hlo.text_computation import TextComputation
from hloinspect.kinds import D2H, H2D
from hloinspect.offload.transfers import Offload, Transfer
from hloinspect.predict.prediction import Prediction
from hloinspect.profiles.protowire import message_field
from hloinspect.profiles.spacebuilder import PlaneBuilder, SpaceBuilder, Value
from hloinspect.profiles.xplane.embedded import HLO_PROTO, HLO_TEXT, PREDICTION_HOST
from hloinspect.profiles.xplane.embedded import PLANE as METADATA
from hloinspect.timeline.timeline import COLLECTIVE, COMPUTE, START, Mark
from hloinspect.timeline.unfold import Layout, Window

HOST = PREDICTION_HOST
STEPS = 3
"""A profile of one step is taken for its warm-up; viewers show the mean of several."""

GAP_PS = 1_000_000
"""Between two steps."""

MAX_EVENTS = 400_000
"""Events of one step, iterations of loops written out: a profile cannot say that something happens many times."""

_MAIN, _TO_HOST, _FROM_HOST, _COMMUNICATION, _SIDE = 13, 14, 15, 16, 17  # small ones are what viewers derive
_STREAMS = {
    _MAIN: "Stream #13(Compute)",
    _TO_HOST: "Stream #14(MemcpyD2H)",
    _FROM_HOST: "Stream #15(MemcpyH2D)",
    _COMMUNICATION: "Stream #16(Compute)",
    _SIDE: "Stream #17(Compute)",
}
_STREAM_OF = {"main": _MAIN, D2H: _TO_HOST, H2D: _FROM_HOST, "communication": _COMMUNICATION, "side": _SIDE}
_NO_DETAILS = "regs:0 static_shared:0 dynamic_shared:0 grid:0,0,0 block:0,0,0 occ_pct:0"
"""How a kernel is launched is not known; viewers list only kernels that say something about it."""


@dataclass(frozen=True, slots=True)
class Step:
    """What happens in one step, in real time from 0: events of streams, and starts and waits."""

    time_ps: int
    windows: Sequence[Window]
    marks: Sequence[Mark]


@dataclass(frozen=True, slots=True)
class Written:
    """A profile that was written. ``has_proto`` is false where the module came from text: XProf's tools for HLO then
    know nothing of it."""

    path: Path
    has_proto: bool


def write_profile(offload: Offload, prediction: Prediction, directory: Path) -> Written:
    """Write a prediction into ``directory/plugins/profile/<run>``, and nothing else.

    The run is named after the module, the target and the content: same predictions are the same run, and what a viewer
    keeps of an earlier one never belongs to another. Raise UsageError where the step is too long or the directory
    cannot be written, and where a run of that name holds something else.
    """
    content = to_xspace(offload, prediction)
    digest = hashlib.sha256(content).hexdigest()[:8]
    module = offload.program.module
    run = "_".join(("predicted", _file_name(module.name), _file_name(prediction.target.name), digest))
    path = directory / "plugins" / "profile" / run / f"{HOST}.xplane.pb"
    try:
        if path.exists():
            if path.read_bytes() != content:
                raise UsageError(f"{path} is there and is not this prediction: give another directory")
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror}") from None
    return Written(path, module.kind == "proto")


def _file_name(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]+", "-", text)[:60].strip("-.") or "x"


def to_xspace(offload: Offload, prediction: Prediction) -> bytes:
    """Return the serialized XSpace: ``STEPS`` times the predicted step on one device. Raise UsageError for a step of
    too many events."""
    layout = Layout(prediction.timeline, MAX_EVENTS)
    if layout.is_folded:
        raise UsageError(
            f"written out iteration by iteration, the step has more than {MAX_EVENTS:,} events: too many for a profile"
        )
    step = Step(layout.end_ps - layout.start_ps, list(layout.windows()), list(layout.marks()))
    module = offload.program.module
    space = SpaceBuilder(HOST)
    writer = _Tpu if module.platform == "tpu" else _Gpu
    writer(space, offload, prediction).write(step)
    number = program_id(module)
    key, content = _embedded(module)
    metadata = space.plane(100, METADATA)
    metadata.kind(f"{printable(module.name)}({number})", "", {"program_id": number, key: content})
    host = space.plane(101, "/host:CPU")
    python = host.line(1, "python")
    for group in range(STEPS):
        begin = group * (step.time_ps + GAP_PS)
        stats = {"step_num": group, "_r": 1, "group_id": group}
        host.event(python, "predicted step", begin, begin + step.time_ps, stats)
    return space.bytes()


def program_id(module: Module) -> int:
    """Return a number for the program: from its name and the order of its instructions."""
    digest = hashlib.sha256(module.name.encode("utf-8", "replace"))
    for instruction in module.entry:
        digest.update(instruction.name.encode("utf-8", "replace"))
    return int(digest.hexdigest()[:12], 16) or 1


def _embedded(module: Module) -> tuple[str, bytes]:
    if module.kind == "proto":
        from hloinspect.hlo.proto import serialized

        proto = serialized(module)
        assert proto is not None
        return HLO_PROTO, message_field(1, proto)  # HloProto.hlo_module
    first = next(iter(module.computations.values()), None)
    text = first.module_text if isinstance(first, TextComputation) else print_module(module)
    return HLO_TEXT, gzip.compress(text.encode("utf-8", "replace"), 6, mtime=0)


class _Device:
    """What both kinds of planes need to know of the program."""

    def __init__(self, space: SpaceBuilder, offload: Offload, prediction: Prediction) -> None:
        self._space = space
        self._prediction = prediction
        self._module = offload.program.module
        self._transfers: Mapping[int, Transfer] = {transfer.id: transfer for transfer in offload.transfers}
        self._executed: Sequence[Computation] = offload.program.computations()
        self._host_copies = {copy.instruction: copy.bytes for copy in offload.host_copies}
        self._known: dict[str, Instruction | None] = {}
        self._name, self._program = printable(self._module.name), program_id(self._module)

    def _instruction(self, name: str) -> Instruction | None:
        if name not in self._known:
            found = (computation.find(name) for computation in self._executed)
            self._known[name] = next((one for one in found if one is not None), None)
        return self._known[name]

    def _is_asynchronous(self, move: Window) -> bool:
        """Return whether the main stream goes on while something moves."""
        transfer = self._transfers.get(move.transfer)
        if transfer is not None:
            return transfer.asynchronous
        instruction = self._instruction(move.name)
        return instruction is not None and bool(instruction.start_of)

    def _other_ways(self, windows: Iterable[Window]) -> set[Window]:
        """Return the shorter windows of copies within host memory, which take both directions of the link at once, and
        are one event."""
        found: dict[tuple[str, int], list[Window]] = defaultdict(list)
        for one in windows:
            if one.kind in (D2H, H2D) and not one.transfer:
                found[one.name, one.start_ps].append(one)
        return {one for pair in found.values() for one in sorted(pair, key=lambda one: one.end_ps)[:-1]}

    def _blocking(self, windows: Iterable[Window]) -> Mapping[Window, Window]:
        """Return, by the window of a move, the work of the kernel that makes it while the main stream runs it: the two
        are one event."""
        starts = {t.start: t.id for t in self._transfers.values() if not t.asynchronous and t.mechanism == "kernel"}
        work: dict[int, deque[Window]] = defaultdict(deque)
        moves: dict[int, deque[Window]] = defaultdict(deque)
        for one in windows:
            if one.kind == COMPUTE and one.stream == "main" and one.name in starts:
                work[starts[one.name]].append(one)
            elif one.kind in (D2H, H2D) and one.transfer in starts.values():
                moves[one.transfer].append(one)
        return {
            move: run
            for number, runs in work.items()
            if len(runs) == len(moves[number])
            for run, move in zip(runs, moves[number], strict=True)
        }


class _Gpu(_Device):
    """A plane as XLA's CUPTI collector writes it (cupti_collector.cc): lines are streams."""

    def write(self, step: Step) -> None:
        target = self._prediction.target
        plane = self._space.plane(
            0,
            "/device:GPU:0",
            device_vendor="Nvidia",
            gpu_device_name=f"{target.title} (predicted)",
            memory_bandwidth=int(target.hbm_bytes_per_s.value),
            memory_size=int(target.hbm_bytes.value),
            **({"core_count": target.multiprocessors} if target.multiprocessors else {}),
        )
        events = self._events(step)
        used = {event[0] for event in events}
        lines = {stream: plane.line(stream, name) for stream, name in _STREAMS.items() if stream in used}
        correlation = 0
        for group in range(STEPS):
            begin = group * (step.time_ps + GAP_PS)
            for stream, start, end, name, stats in events:
                correlation += 1
                own = {"correlation_id": correlation, **stats, "group_id": group}
                plane.event(lines[stream], name, begin + start, begin + end, own)

    def _events(self, step: Step) -> list[tuple[int, int, int, str, Mapping[str, Value]]]:
        """Return (stream, start, end, name, statistics) of each event, waits left out: they are gaps of the main
        stream."""
        joined = self._blocking(step.windows)
        absorbed = set(joined.values()) | self._other_ways(step.windows)
        common: dict[str, Value] = {"tf_op": "XlaModule:", "hlo_module": self._name, "program_id": self._program}
        found: list[tuple[int, int, int, str, Mapping[str, Value]]] = []
        for one in step.windows:
            stream, start, end = _STREAM_OF[one.stream], one.start_ps, one.end_ps
            if one in absorbed:
                continue
            if one.kind in (D2H, H2D):
                if (run := joined.get(one)) is not None:
                    start, end = min(start, run.start_ps), max(end, run.end_ps)
                transfer = self._transfers.get(one.transfer)
                if not self._is_asynchronous(one):
                    stream = _MAIN
                name, stats = self._move(one, transfer)
            elif one.kind in (COMPUTE, COLLECTIVE):
                name, stats = self._kernel(one.name, one.kind)
            else:
                continue
            found.append((stream, start, end, name, {**stats, **common}))
        return sorted(found, key=lambda event: event[:3])

    def _move(self, one: Window, transfer: Transfer | None) -> tuple[str, dict[str, Value]]:
        if transfer is None:
            size = self._host_copies.get(one.name, 0)
            details = f"kind_src:pinned kind_dst:pinned size:{size} dest:0 async:1"
            return "MemcpyOther", {"memcpy_details": details, "name": one.name, "hlo_op": one.name}
        if transfer.mechanism == "kernel":
            return self._kernel(transfer.start, COMPUTE)
        source, destination = ("device", "pinned") if one.kind == D2H else ("pinned", "device")
        how = int(transfer.asynchronous)
        details = f"kind_src:{source} kind_dst:{destination} size:{transfer.bytes} dest:0 async:{how}"
        name = "MemcpyD2H" if one.kind == D2H else "MemcpyH2D"
        return name, {"memcpy_details": details, "name": transfer.start, "hlo_op": transfer.start}

    def _kernel(self, instruction: str, kind: str) -> tuple[str, dict[str, Value]]:
        name = re.sub(r"[^A-Za-z0-9_]", "_", instruction) or kind
        if kind == COLLECTIVE:
            stem = re.split(r"-start|-done|\.", instruction)[0]
            name = "ncclDevKernel_" + "".join(part.capitalize() for part in re.split(r"[^A-Za-z0-9]+", stem))
        return name, {"kernel_details": _NO_DETAILS, "name": instruction, "hlo_op": instruction}


class _Tpu(_Device):
    """A plane as a TPU's profiler writes it: operations one after the other, waits as the durations of `copy-done`."""

    def write(self, step: Step) -> None:
        plane = self._space.plane(0, "/device:TPU:0", device_type_string=f"{self._prediction.target.title} (predicted)")
        steps, modules = plane.line(1, "Steps"), plane.line(2, "XLA Modules")
        operations, background = plane.line(3, "XLA Ops"), plane.line(4, "Async XLA Ops")
        module = plane.kind(f"{self._name}({self._program})")
        on_main, beside = self._on_main(plane, step), self._beside(plane, step)
        flow = 0
        for group in range(STEPS):
            begin = group * (step.time_ps + GAP_PS)
            stats: dict[str, Value] = {"group_id": group, "run_id": group}
            plane.event(steps, str(group), begin, begin + step.time_ps, {"group_id": group})
            plane.event(modules, "", begin, begin + step.time_ps, {**stats, "program_id": self._program}, module)
            for start, end, kind in on_main:
                plane.event(operations, "", begin + start, begin + end, stats, kind)
            for start, end, kind, done in beside:
                flow += 1
                plane.event(background, "", begin + start, begin + end, {"hlo_op": done, "flow": flow}, kind)

    def _on_main(self, plane: PlaneBuilder, step: Step) -> list[tuple[int, int, int]]:
        """Return (start, end, kind) of the main stream's operations."""
        joined = self._blocking(step.windows)
        absorbed = set(joined.values()) | self._other_ways(step.windows)
        found: list[tuple[int, int, int]] = []
        for one in step.windows:
            if one in absorbed:
                continue
            if one.stream == "main" and one.kind in (COMPUTE, COLLECTIVE):
                found.append((one.start_ps, one.end_ps, self._kind(plane, one.name)))
            elif one.kind in (D2H, H2D) and not self._is_asynchronous(one):
                run, transfer = joined.get(one, one), self._transfers.get(one.transfer)
                start, end = min(one.start_ps, run.start_ps), max(one.end_ps, run.end_ps)
                found.append((start, end, self._kind(plane, transfer.start if transfer is not None else one.name)))
        for mark in step.marks:
            transfer = self._transfers[mark.transfer]
            name = transfer.start if mark.role == START else transfer.done or transfer.start
            found.append((mark.start_ps, mark.end_ps, self._kind(plane, name)))
        return sorted(found, key=lambda event: event[:2])

    def _beside(self, plane: PlaneBuilder, step: Step) -> list[tuple[int, int, int, str]]:
        """Return (start, end, kind, done) of what is under way beside the main stream: windows of transfers, from their
        start to the end of their `copy-done`, and collectives and copies on the device while they run."""
        found: list[tuple[int, int, int, str]] = []
        begun: dict[int, deque[int]] = defaultdict(deque)
        for mark in step.marks:
            transfer = self._transfers[mark.transfer]
            if mark.role == START:
                begun[mark.transfer].append(mark.start_ps)
            elif begun[mark.transfer]:
                start = begun[mark.transfer].popleft()
                done = transfer.done or transfer.start
                found.append((start, mark.end_ps, self._kind(plane, transfer.start, "async-copy"), done))
        for one in step.windows:
            if one.stream in ("communication", "side"):
                found.append((one.start_ps, one.end_ps, self._kind(plane, one.name, "async"), one.name))
        return sorted(found)

    def _kind(self, plane: PlaneBuilder, name: str, display_name: str = "") -> int:
        """Return the kind of an instruction's events: named by its text, as XProf looks for ``S(5)`` in it."""
        found = self._instruction(name)
        if found is None:
            return plane.kind(f"%{name}", display_name or name, {"program_id": self._program})
        operands = ", ".join(f"%{operand.name}" for operand in found.operands)
        text = f"%{found.name} = {print_shape(found.shape)} {found.opcode}({operands})"
        stats: dict[str, Value] = {"hlo_category": found.opcode, "program_id": self._program}
        if found.metadata.op_name:
            stats["tf_op"] = printable(found.metadata.op_name)
        return plane.kind(printable(text), display_name or name, stats)
