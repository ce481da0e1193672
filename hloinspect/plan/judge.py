"""What one point is worth: its compiled module inspected, its memory held against the limits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from hloinspect.api import Inspection, inspect
from hloinspect.compile.result import (
    NOTE_HOST_ARGUMENTS_GONE,
    NOTE_NO_AUTOTUNING,
    NOTE_OFFLOAD_GONE,
    CompileResult,
)
from hloinspect.errors import HloInspectError
from hloinspect.hardware.target import Target
from hloinspect.plan.model import SCHEDULER_SHARE, Elsewhere, MemoryUse, Point, StepTime, TransferLine
from hloinspect.predict.prediction import Prediction
from hloinspect.report.host_memory import host_memory_of
from hloinspect.report.schema import Report, TransferInfo
from hloinspect.rules.choice import Choice
from hloinspect.units import bytes_text

_MS = 1e9  # picoseconds
_WRONG, *_GONE = "HLO301", "HLO302", "HLO304", "HLO309"
_RULES = Choice(select=(_WRONG, *_GONE))
"""Bytes of another place than the program says, and offload that is asked for and is not there."""
_LOST = (NOTE_OFFLOAD_GONE, NOTE_HOST_ARGUMENTS_GONE)


@dataclass(frozen=True, slots=True)
class Yardstick:
    """What all points are judged by. ``memory_share`` is the part of the device's memory that the step may use;
    ``samples`` a step has, where no axis says so; ``tokens`` a sample has."""

    link: str | None = None
    devices: int | None = None
    topology: str | None = None
    memory_share: float = 1.0
    samples: float | None = None
    samples_axis: str | None = None
    tokens: float | None = None


def judge_compiled(
    number: int, settings: Mapping[str, str], result: CompileResult, target: Target, yardstick: Yardstick
) -> Point:
    """The point of a compilation. A module that cannot be judged is a point with its error."""
    manifest = result.manifest
    point = judge_module(number, settings, str(result.directory), target, yardstick)
    lost = [note for note in manifest.notes if note.startswith(_LOST)]
    samples, tokens = _samples(settings, yardstick), yardstick.tokens
    if manifest.settings.get("library") == "MaxText":
        samples, tokens = _maxtext_samples(manifest.settings, manifest.devices, yardstick)
    return replace(
        _with_samples(point, samples, tokens),
        offload_lost=lost[0] if lost else point.offload_lost,
        compile_s=manifest.seconds.get("compile"),
        from_cache=manifest.cached,
        notes=tuple(note for note in manifest.notes if note not in lost and note != NOTE_NO_AUTOTUNING),
    )


def judge_module(number: int, settings: Mapping[str, str], source: str, target: Target, yardstick: Yardstick) -> Point:
    """The point of a module that is compiled already: a file, a dump, or a directory of ``hloinspect compile``."""
    try:
        found = inspect_source(source, target, yardstick)
    except HloInspectError as error:
        return Point(number, dict(settings), target.name, yardstick.devices or 1, error=str(error))
    report = found.report
    memory = _memory(report, target, yardstick)
    fits, obstacle = _fit(memory)
    moved = {
        direction: sum(t.bytes_per_step for t in report.transfers if t.direction == direction)
        for direction in ("d2h", "h2d")
    }
    point = Point(
        number=number,
        settings=dict(settings),
        target=target.name,
        devices=report.target.devices if report.target else 1,
        offload_lost=_finding(report, _GONE),
        fault=_finding(report, [_WRONG]),
        fits=fits,
        obstacle=obstacle,
        step=step_time(found.prediction),
        memory=memory,
        flops=found.prediction.matrix_flops if found.prediction else None,
        d2h_bytes=moved["d2h"],
        h2d_bytes=moved["h2d"],
        transfers=tuple(map(_line, report.transfers)),
        schedule_hash=report.module.schedule_hash,
        limits=report.limits,
        unknown=tuple(unknown.reason for unknown in report.unknown),
        directory=source,
    )
    return _with_samples(point, _samples(settings, yardstick), yardstick.tokens)


def _finding(report: Report, codes: Sequence[str]) -> str | None:
    """The message of the first of these findings that is an error."""
    found = (f"{finding.message} ({finding.code})" for finding in report.findings if finding.code in codes)
    return next(found, None)


def inspect_source(source: str, target: Target, yardstick: Yardstick, link: str | None = None) -> Inspection:
    """The inspection of a module for a target, with the rules on what makes a point no good; memory is estimated
    where XLA did not say it."""
    return inspect(
        source,
        target=target,
        link=link or yardstick.link,
        devices=yardstick.devices,
        topology=yardstick.topology,
        rules=_RULES,
        memory=not Path(source).is_dir(),
    )


def judge_elsewhere(
    point: Point, source: str, target: Target, yardstick: Yardstick, label: str, link: str | None
) -> Elsewhere:
    """A point under another link or on another target, from the module that it has."""
    stand_in = None if target.name == point.target else point.target
    try:
        found = inspect_source(source, target, yardstick, link)
    except HloInspectError:
        return Elsewhere(point.number, label, None, None, stand_in, {}, {})
    transfers = found.report.transfers
    return Elsewhere(
        point=point.number,
        label=label,
        step=step_time(found.prediction),
        fits=_fit(_memory(found.report, target, yardstick))[0],
        stand_in=stand_in,
        verdicts={transfer.id: transfer.verdict for transfer in transfers},
        waits_ms={transfer.id: transfer.predicted.wait_ms for transfer in transfers if transfer.predicted},
    )


def step_time(prediction: Prediction | None) -> StepTime | None:
    """The predicted step in milliseconds."""
    if prediction is None:
        return None
    step = prediction.step
    return StepTime(
        time_ms=step.time_ps / _MS,
        low_ms=prediction.low_ps / _MS,
        high_ms=prediction.high_ps / _MS,
        compute_ms=step.compute_ps / _MS,
        stall_ms=step.stall_ps / _MS,
        without_transfers_ms=prediction.without_transfers_ps / _MS,
        ideal_ms=prediction.ideal_ps / _MS,
        cases_ms={name: time / _MS for name, time in prediction.cases_ps.items()},
    )


def _line(transfer: TransferInfo) -> TransferLine:
    predicted = transfer.predicted
    shape = ",".join(map(str, transfer.tensor.shape))
    return TransferLine(
        id=transfer.id,
        direction=transfer.direction,
        name=transfer.tensor.name,
        tensor=f"{transfer.tensor.dtype}[{shape}]",
        bytes_per_step=transfer.bytes_per_step,
        duration_ms=predicted.duration_ms if predicted else None,
        wait_ms=predicted.wait_ms if predicted else None,
        verdict=transfer.verdict,
        needed_link_gbps=predicted.needed_link_gbps if predicted else None,
    )


def _memory(report: Report, target: Target, yardstick: Yardstick) -> MemoryUse:
    memory, host = report.memory, host_memory_of(report, target)
    limit = memory.device_limit_bytes
    return MemoryUse(
        device_bytes=memory.device_bytes,
        device_limit_bytes=None if limit is None else int(limit * yardstick.memory_share),
        scheduler_limit_bytes=None if limit is None else int(limit * SCHEDULER_SHARE),
        host_bytes=host.bytes,
        host_limit_bytes=host.limit_bytes,
        host_devices=host.devices,
        source=memory.source,
    )


def _fit(memory: MemoryUse) -> tuple[bool | None, str | None]:
    """Whether a point fits into device and host memory, and what it does not fit into."""
    device, limit = memory.device_bytes, memory.device_limit_bytes
    if device is not None and limit is not None and device > limit:
        return False, f"the device: {bytes_text(device)} of {bytes_text(limit)}"
    host, host_limit = memory.host_bytes, memory.host_limit_bytes
    if host is not None and host_limit is not None and host > host_limit:
        of = f"the {memory.host_devices} devices of " if memory.host_devices > 1 else ""
        return False, f"{of}the host: {bytes_text(host)} of {bytes_text(host_limit)}"
    known = device is not None and limit is not None and (not host or host_limit is not None)
    return (True, None) if known else (None, None)


def _samples(settings: Mapping[str, str], yardstick: Yardstick) -> float | None:
    if yardstick.samples is not None:
        return yardstick.samples
    try:
        return float(settings[yardstick.samples_axis or "batch"])
    except (KeyError, ValueError):
        return None


def _maxtext_samples(
    settings: Mapping[str, object], devices: int, yardstick: Yardstick
) -> tuple[float | None, float | None]:
    """Samples a step and tokens a sample by MaxText's configuration."""
    batch, length = settings.get("per_device_batch_size"), settings.get("max_target_length")
    samples = float(batch) * devices if isinstance(batch, int | float) else None
    tokens = float(length) if isinstance(length, int | float) else None
    return yardstick.samples or samples, yardstick.tokens or tokens


def _with_samples(point: Point, samples: float | None, tokens: float | None) -> Point:
    if samples is None or point.step is None:
        return point
    rate = samples / point.step.time_ms * 1e3
    return replace(point, samples=samples, samples_per_s=rate, tokens_per_s=None if tokens is None else rate * tokens)
