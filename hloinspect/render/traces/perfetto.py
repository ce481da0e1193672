"""A step as a Perfetto trace: ``--format perfetto``, to look at in https://ui.perfetto.dev (docs/perfetto.md).

A process for each timeline, one above the other on one clock: the predicted step, and those measured on devices. Each
has a track for every stream, the loops and their iterations, and counters of the link and of memory. Arrows go from the
start of a transfer over its copy to its wait, and from a copy to the host to the one that brings the same tensor back.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from typing import TYPE_CHECKING

from hloinspect.errors import UsageError
from hloinspect.hlo.model import Computation
from hloinspect.kinds import D2H, H2D
from hloinspect.offload.source import read_source
from hloinspect.render.terminal.report_text import tensor_text
from hloinspect.render.traces.trackevents import BYTES, NO_UNIT, Slice, TraceWriter, Value
from hloinspect.report.schema import Report, TransferInfo
from hloinspect.timeline.timeline import START, WAIT, Mark, Timeline, overlap
from hloinspect.timeline.unfold import Iteration, Layout, Window
from hloinspect.units import PS_PER_MS, time_text

if TYPE_CHECKING:
    from hloinspect.analyze.inspect import Inspection
    from hloinspect.analyze.trace import TraceInspection
    from hloinspect.render.page.memory_curve import MemoryCurve

MAX_POINTS = 40_000
"""Values of one counter of memory. Of more, each segment keeps its first and its greatest."""

TRACKS = {
    "main": "main stream",
    D2H: "copies to the host (d2h)",
    H2D: "copies from the host (h2d)",
    "communication": "collectives",
    "side": "side stream",
}
_FROM_MARKS = "where the main stream starts a transfer, and where it waits for it"
_LIFO = "a tensor that is sent several times comes back last in, first out, as the layers of a backward pass take it"


def to_perfetto(answer: Inspection | TraceInspection) -> bytes:
    """Return the trace of an inspection, or of a trace with what was predicted for it: a serialized Perfetto ``Trace``.

    Names are made printable; equal answers give equal bytes. Raise UsageError where there is no timeline.
    """
    from hloinspect.render.page.sides import side_of

    side = side_of(answer)
    if not side.bands:
        raise UsageError(f"no timeline to write: {why_not(answer.report)}")
    executed = answer.offload.program.computations() if answer.offload is not None else ()
    writer, flows = TraceWriter(), count(1)
    for band in side.bands:
        _Band(writer, flows, answer.report, executed, band.timeline, band.memory).write(band.label)
    return writer.bytes()


def why_not(report: Report) -> str:
    """Return why a report has no timeline."""
    for unknown in report.unknown:
        if unknown.affects == "time":
            return f"{unknown.reason}; {unknown.remedy}"
    return "no step was predicted: --target NAME (see `hloinspect targets`)"


@dataclass(slots=True)
class _Executions:
    """One transfer's copies, and the numbers of the marks of its starts and waits, each in the order of time."""

    copies: list[Window] = field(default_factory=list)
    starts: list[int] = field(default_factory=list)
    waits: list[int] = field(default_factory=list)


@dataclass(slots=True)
class _Arrows:
    """Flows by what they go through, a window or the number of a mark: those that go on, and those that end there."""

    through: dict[Window | int, list[int]] = field(default_factory=lambda: defaultdict(list))
    into: dict[Window | int, list[int]] = field(default_factory=lambda: defaultdict(list))

    def of(self, one: Window | int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        return tuple(self.through.get(one, ())), tuple(self.into.get(one, ()))


class _Band:
    """One timeline being written."""

    def __init__(
        self,
        writer: TraceWriter,
        flows: Iterable[int],
        report: Report,
        executed: Sequence[Computation],
        timeline: Timeline,
        memory: MemoryCurve | None,
    ) -> None:
        self._writer = writer
        self._flows = iter(flows)
        self._report = report
        self._executed = executed
        self._timeline = timeline
        self._memory = memory
        self._layout = Layout(timeline)
        self._transfers = {transfer.id: transfer for transfer in report.transfers}
        self._places: dict[str, Mapping[str, Value | None]] = {}
        self._rank = 0

    def write(self, label: str) -> None:
        """Write the tracks, from the top."""
        process = self._writer.process(label)
        windows, marks = list(self._layout.windows()), list(self._layout.marks())
        arrows = self._arrows(windows, marks)
        self._track(process, "step and loops", self._step_and_loops())
        if marks:
            self._track(process, "starts and waits", self._marks(marks, arrows), description=_FROM_MARKS)
        by_stream: dict[str, list[Slice]] = {stream: [] for stream in TRACKS}
        for one in windows:
            by_stream.setdefault(one.stream, []).append(self._slice(one, arrows))
        for stream, slices in by_stream.items():
            description = _LIFO if stream in (D2H, H2D) else ""
            self._track(process, TRACKS.get(stream, stream), slices, stream in (D2H, H2D), description)
        self._link(process, windows)
        if self._memory is not None:
            self._memory_counters(process, self._memory)

    def _track(
        self, process: int, name: str, slices: Sequence[Slice], is_flat: bool = False, description: str = ""
    ) -> None:
        for lane in lanes(slices, is_flat):
            self._writer.slices(self._writer.track(process, name, self._next_rank(), description), lane)

    def _next_rank(self) -> int:
        self._rank += 1
        return self._rank

    # slices

    def _step_and_loops(self) -> list[Slice]:
        step = overlap(self._timeline).step
        arguments = self._writer.arguments(
            {
                "what": self._timeline.kind,
                "compute (ms)": step.compute_ps / PS_PER_MS,
                "waiting for the host (ms)": step.stall_ps / PS_PER_MS,
                "transfers alone (ms)": step.exposed_ps / PS_PER_MS,
            }
        )
        begin, end = self._layout.start_ps, self._layout.end_ps
        found = [Slice(begin, end, f"step {time_text(step.time_ps / PS_PER_MS)}", arguments)]
        for iteration in self._layout.iterations():
            found += self._iteration(iteration)
        return found

    def _iteration(self, iteration: Iteration) -> list[Slice]:
        arguments = self._writer.arguments(
            {"loop": iteration.name or None, "iterations": iteration.of, "drawn for": _times(iteration.times)}
        )
        name = iteration.name or "loop"
        shown = Slice(
            iteration.start_ps, iteration.shown_ps, f"{name} iteration {iteration.first} of {iteration.of}", arguments
        )
        if iteration.last == iteration.first:
            return [shown]
        rest = (
            f"iterations {iteration.first + 1} to {iteration.last}, each like the one before"
            if iteration.last > iteration.first + 1
            else ""
        )
        folded = replace(
            shown,
            start_ps=iteration.shown_ps,
            end_ps=iteration.end_ps,
            name=rest or f"iteration {iteration.last}, the same",
        )
        return [shown, folded]

    def _slice(self, one: Window, arrows: _Arrows) -> Slice:
        flows, ends = arrows.of(one)
        transfer = self._transfers.get(one.transfer)
        iteration = " in ".join(map(str, reversed(one.iterations))) or None
        more = {"iteration": iteration, "drawn for": _times(one.times)}
        if one.kind == WAIT:
            name = f"waits for {_short(transfer)}" if transfer else "waits for the host"
        elif one.kind in (D2H, H2D):
            name = f"{_short(transfer)} {tensor_text(transfer)}" if transfer else f"{one.kind} copy of host memory"
        else:
            name = one.name or one.kind
        about = _about(transfer) if one.transfer else self._about_instruction(one)
        return Slice(one.start_ps, one.end_ps, name, self._writer.arguments({**about, **more}), flows, ends)

    def _about_instruction(self, one: Window) -> Mapping[str, Value | None]:
        if one.name not in self._places:
            metadata = None
            for computation in self._executed if one.name else ():
                found = computation.find(one.name)
                if found is not None:
                    metadata = found.metadata
                    break
            source = read_source(metadata) if metadata is not None else None
            self._places[one.name] = {
                "first instruction" if self._timeline.kind == "predicted" else "instruction": one.name or None,
                "op": (metadata.op_name or None) if metadata is not None else None,
                "source": f"{source.file}:{source.line}" if source is not None else None,
            }
        return {"what": one.kind, **self._places[one.name]}

    def _marks(self, marks: Sequence[Mark], arrows: _Arrows) -> list[Slice]:
        found = []
        for number, mark in enumerate(marks):
            transfer = self._transfers.get(mark.transfer)
            flows, ends = arrows.of(number)
            at = (transfer.start if mark.role == START else transfer.done) if transfer is not None else None
            arguments = self._writer.arguments({"instruction": at, "transfer": mark.transfer})
            word = "start of" if mark.role == START else "wait for"
            name = f"{word} {_short(transfer)}" if transfer is not None else word
            found.append(Slice(mark.start_ps, mark.end_ps, name, arguments, flows, ends))
        return found

    # arrows

    def _arrows(self, windows: Iterable[Window], marks: Iterable[Mark]) -> _Arrows:
        """Return the arrows from start to copy to wait, and from a copy to the host to the one that brings it back."""
        by_transfer: dict[int, _Executions] = defaultdict(_Executions)
        for one in windows:
            if one.kind in (D2H, H2D) and one.transfer:
                by_transfer[one.transfer].copies.append(one)
        for number, mark in enumerate(marks):
            executions = by_transfer[mark.transfer]
            (executions.starts if mark.role == START else executions.waits).append(number)
        arrows = _Arrows()
        for executions in by_transfer.values():
            self._start_to_done(executions, arrows)
        for transfer in self._report.transfers:
            if transfer.direction == D2H and transfer.round_trip is not None:
                back = by_transfer.get(transfer.round_trip, _Executions()).copies
                self._there_and_back(by_transfer.get(transfer.id, _Executions()).copies, back, arrows)
        return arrows

    def _start_to_done(self, of: _Executions, arrows: _Arrows) -> None:
        if len(of.copies) != len(of.starts):  # some of them are in loops that stay folded
            return
        waits = of.waits if len(of.waits) == len(of.starts) else [None] * len(of.starts)
        for start, copy, wait in zip(of.starts, of.copies, waits, strict=True):
            flow = next(self._flows)
            arrows.through[start].append(flow)
            (arrows.through if wait is not None else arrows.into)[copy].append(flow)
            if wait is not None:
                arrows.into[wait].append(flow)

    def _there_and_back(self, there: Sequence[Window], back: Sequence[Window], arrows: _Arrows) -> None:
        if len(there) != len(back):
            return
        for sent, fetched in zip(there, reversed(back), strict=True):
            if sent.end_ps <= fetched.start_ps and sent.times == fetched.times == 1:
                flow = next(self._flows)
                arrows.through[sent].append(flow)
                arrows.into[fetched].append(flow)

    # counters

    def _link(self, process: int, windows: Iterable[Window]) -> None:
        """Write the rate of each direction: that of each copy is the mean over its time."""
        changes: dict[str, dict[int, float]] = {D2H: defaultdict(float), H2D: defaultdict(float)}
        for one in windows:
            transfer = self._transfers.get(one.transfer)
            rate = _gbps(transfer, self._timeline.kind) if transfer is not None else None
            if one.kind in changes and rate is not None:
                changes[one.kind][one.start_ps] += rate
                changes[one.kind][one.end_ps] -= rate
        for direction, at in changes.items():
            if at:
                values, now = [], 0.0
                for time in sorted(at):
                    now += at[time]
                    values.append((time, round(now, 3) + 0.0))
                name = f"link, {direction}"
                track = self._writer.counter(
                    process, name, self._next_rank(), NO_UNIT, "GB/s", "each copy at its mean rate"
                )
                self._writer.values(track, [(0, 0.0), *values] if values[0][0] > 0 else values)

    def _memory_counters(self, process: int, memory: MemoryCurve) -> None:
        for name, peak, column in (
            ("device memory", memory.device_peak_bytes, [curve.device_bytes for curve in memory.segments]),
            ("pinned host memory", memory.host_peak_bytes, [curve.host_bytes for curve in memory.segments]),
        ):
            if peak:
                values = self._held([curve.times_ps for curve in memory.segments], column)
                track = self._writer.counter(process, name, self._next_rank(), BYTES, "", "needed, by the schedule")
                self._writer.values(track, values)

    def _held(self, times: Sequence[Sequence[int]], column: Sequence[Sequence[int]]) -> list[tuple[int, Value]]:
        total = sum(len(column[number]) for _, number in self._layout.segments())
        found: list[tuple[int, Value]] = []
        for begin, number in self._layout.segments():
            points = list(zip(times[number], column[number], strict=True))
            if total > MAX_POINTS and len(points) > 2:
                points = sorted({points[0], max(points, key=lambda point: point[1])})
            for time, value in points:
                if not found or found[-1][1] != value:
                    found.append((begin + time, value))
        return found


def lanes(slices: Sequence[Slice], is_flat: bool = False) -> list[list[Slice]]:
    """Return slices dealt to as few tracks as possible, so that on each a slice lies inside another or behind it; only
    behind it where ``is_flat``. Each lane is sorted, an outer slice before those in it."""
    found: list[list[Slice]] = []
    is_open: list[list[int]] = []  # for each lane the ends of what is open, the innermost last
    for one in sorted(slices, key=lambda one: (one.start_ps, -one.end_ps)):
        number = 0
        for ends in is_open:
            while ends and ends[-1] <= one.start_ps:
                ends.pop()
            if not ends or (not is_flat and one.end_ps <= ends[-1]):
                break
            number += 1
        else:
            found.append([])
            is_open.append([])
        found[number].append(one)
        is_open[number].append(one.end_ps)
    return found


def _short(transfer: TransferInfo) -> str:
    return f"{transfer.direction} {transfer.id}"


def _times(times: int) -> str | None:
    return f"{times:,} such" if times > 1 else None


def _about(transfer: TransferInfo | None) -> Mapping[str, Value | None]:
    """Return what a report says about a transfer, for a slice."""
    if transfer is None:
        return {}
    source, predicted, measured = transfer.source, transfer.predicted, transfer.measured
    return {
        "transfer": transfer.id,
        "verdict": transfer.verdict,
        "reason": transfer.reason or None,
        "tensor": tensor_text(transfer),
        "bytes": transfer.bytes,
        "executions": transfer.executions,
        "mechanism": transfer.mechanism,
        "start": transfer.start,
        "done": transfer.done,
        "source": f"{source.file}:{source.line}" if source is not None else None,
        "function": source.function if source is not None else None,
        "brought back by" if transfer.direction == D2H else "sent by": transfer.round_trip,
        "queued behind": transfer.queued_behind,
        "predicted wait a step (ms)": predicted.wait_ms if predicted is not None else None,
        "predicted exposed a step (ms)": predicted.exposed_ms if predicted is not None else None,
        "measured wait a step (ms)": measured.wait_ms if measured is not None else None,
        "measured exposed a step (ms)": measured.exposed_ms if measured is not None else None,
    }


def _gbps(transfer: TransferInfo, kind: str) -> float | None:
    """Return the mean rate of a transfer's copies; None where only windows are known, in which a copy moves some
    time."""
    if kind == "predicted":
        each = transfer.predicted.duration_each_ms if transfer.predicted is not None else 0.0
        return transfer.bytes / each / 1e6 if each > 0 else None
    return transfer.measured.gbps if transfer.measured is not None else None
