"""What the page shows of one input: its report, its timelines, and the memory along them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from hloinspect.errors import HloParseError
from hloinspect.render.page.bands import Band
from hloinspect.render.page.memory_curve import MemoryCurve, memory_curve
from hloinspect.report.schema import Report
from hloinspect.units import PS_PER_MS, time_text

if TYPE_CHECKING:
    from hloinspect.analyze.inspect import Inspection
    from hloinspect.analyze.trace import TraceInspection
    from hloinspect.measure.measured import MeasuredDevice, MeasuredFile
    from hloinspect.memory.estimate import Memory
    from hloinspect.offload.transfers import Offload
    from hloinspect.timeline.timeline import Timeline

    Answer: TypeAlias = Inspection | TraceInspection | Report

MAX_DEVICES = 4
"""Measured devices with a timeline: those that wait the longest, and the one that waits the least."""


@dataclass(frozen=True, slots=True)
class Side:
    """One input. ``label`` is "" or, of two, A and B. ``notes`` say what has no timeline, and why."""

    label: str
    report: Report
    bands: tuple[Band, ...]
    notes: tuple[str, ...] = ()


def side_of(answer: Answer, label: str = "") -> Side:
    """Return the side of an answer: of a trace with a prediction both timelines, of a report alone none."""
    from hloinspect.analyze.inspect import Inspection

    if isinstance(answer, Report):
        return Side(label, answer, (), ("a report alone has no timeline: give the input itself, or an inspection",))
    prefix = f"{label}: " if label else ""
    prediction = answer.prediction
    if isinstance(answer, Inspection):
        if prediction is None:
            return Side(label, answer.report, (), ("there is no timeline without a prediction",))
        band = Band(f"{prefix}predicted", prediction.timeline, _curve(answer.memory, prediction.timeline))
        return Side(label, answer.report, (band,))
    memory = _memory(answer.offload)
    bands, notes = _measured(answer.files, prefix, memory, answer.report)
    if prediction is not None:
        bands.insert(0, Band(f"{prefix}predicted", prediction.timeline, _curve(memory, prediction.timeline)))
    return Side(label, answer.report, tuple(bands), tuple(notes))


def _memory(offload: Offload | None) -> Memory | None:
    from hloinspect.memory.estimate import memory_of

    if offload is None:
        return None
    try:
        return memory_of(offload)
    except HloParseError:  # the report's limits and unknowns say what a module lacks
        return None


def _curve(memory: Memory | None, timeline: Timeline) -> MemoryCurve | None:
    return memory_curve(memory, timeline) if memory is not None else None


def _measured(
    files: Sequence[MeasuredFile], prefix: str, memory: Memory | None, report: Report
) -> tuple[list[Band], list[str]]:
    """Return a typical step of each device that is shown, the one that waits the longest first."""
    own = {device.host: device.host for device in report.devices}
    found = [
        (file, device) for file in files if file.host in own for device in file.devices if device.typical is not None
    ]
    if not found:
        return [], ["no typical step was kept of any device: none counts, or it has too many events"]
    found.sort(key=lambda pair: (-_stall(pair[1]), pair[0].host, pair[1].name))
    shown = found if len(found) <= MAX_DEVICES else [*found[: MAX_DEVICES - 1], found[-1]]
    hosts = len({file.host for file, _ in found}) > 1
    bands = []
    for file, device in shown:
        assert device.typical is not None
        timeline = device.typical.timeline()
        host = f"{file.host} " if hosts else ""
        label = f"{prefix}measured, {host}{device.name}, waits {time_text(_stall(device) / PS_PER_MS)} a step"
        bands.append(Band(label, timeline, _curve(memory, timeline)))
    left = len(found) - len(shown)
    notes = [f"{left} more devices have no timeline here; the table of devices has them all"] if left else []
    return bands, notes


def _stall(device: MeasuredDevice) -> float:
    """Return the mean wait of the steps that count, in ps."""
    waits = device.figures["stall_ps"][device.clean]
    return float(waits.mean()) if len(waits) else 0.0
