"""Judges points: a compiled module is inspected, and its memory compared with the limits."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from hloinspect.analyze.inspect import Inspection, judge_reading, predict_reading, read_input
from hloinspect.analyze.load import Reading
from hloinspect.analyze.options import Machine
from hloinspect.compile.versions import SLICES_RIGHT_SINCE
from hloinspect.errors import HloInspectError
from hloinspect.hardware import Target, with_link
from hloinspect.inputs.manifest import (
    NOTE_HOST_ARGUMENTS_GONE,
    NOTE_NO_AUTOTUNING,
    NOTE_OFFLOAD_GONE,
    CompileResult,
)
from hloinspect.kinds import UNKNOWN
from hloinspect.offload.mechanism import KERNEL
from hloinspect.offload.transfers import Offload
from hloinspect.plan.model import Elsewhere, MemoryUse, Point, StepTime, TransferLine
from hloinspect.predict.prediction import Prediction
from hloinspect.report.host_memory import host_memory_of
from hloinspect.report.link import link_that_hides_gbps
from hloinspect.report.schema import Report, TransferInfo
from hloinspect.rules.blocking import WRONG_VALUES
from hloinspect.rules.choice import Choice
from hloinspect.rules.evidence import Evidence
from hloinspect.thresholds import SCHEDULER_MEMORY_SHARE
from hloinspect.units import PS_PER_MS, bytes_texts

_GONE = ("HLO302", "HLO304", "HLO309")
_RULES = Choice(select=(WRONG_VALUES, *_GONE))
"""Bytes of another place than the program says, and offload that is requested and is not there."""
_AGAIN = re.compile(r"\.remat\d*(\.|$)")
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


@dataclass(frozen=True, slots=True)
class WhatIf:
    """Another link or another target to judge every point for, from the module that it has. ``target`` is None for the
    point's own, ``link`` for the target's own."""

    label: str
    target: Target | None = None
    link: str | None = None


WritePage = Callable[[int, Inspection], None]
"""Writes the whole report of the point of this number. Raises InputError where it cannot be written."""


@dataclass
class Judge:
    """Judges modules, each of which is read once: as planned, as it would do elsewhere, and for its page.

    What it finds under ``what_ifs`` is in ``elsewhere``, in the order in which points are judged. ``pages``
    writes the whole report of each point.
    """

    yardstick: Yardstick
    what_ifs: tuple[WhatIf, ...] = ()
    pages: WritePage | None = None
    elsewhere: list[Elsewhere] = field(default_factory=list)

    def compiled(self, number: int, settings: Mapping[str, str], result: CompileResult, target: Target) -> Point:
        """Return the point of a compilation. A module that cannot be judged is a point with its error."""
        manifest, yardstick = result.manifest, self.yardstick
        try:
            reading = read_input(str(result.directory))
        except HloInspectError as error:
            return self._without_answer(number, settings, target, error)
        name = " ".join([manifest.step, *(f"{name}={value}" for name, value in settings.items())])
        point = self.module(number, settings, reading, target, name)
        lost = [note for note in manifest.notes if note.startswith(_LOST)]
        samples, tokens = _samples(settings, yardstick), yardstick.tokens
        if manifest.settings.get("library") == "MaxText":
            samples, tokens = _maxtext_samples(manifest.settings, manifest.devices, yardstick)
        return replace(
            _with_samples(point, samples, tokens),
            offload_lost=lost[0] if lost else point.offload_lost,
            compile_s=manifest.seconds.get("compile"),
            from_cache=manifest.cached,
            notes=(*point.notes, *(note for note in manifest.notes if note not in lost and note != NOTE_NO_AUTOTUNING)),
        )

    def module(
        self, number: int, settings: Mapping[str, str], reading: Reading, target: Target, name: str | None = None
    ) -> Point:
        """Return the point of a module that is compiled already: a file, a dump, or a directory of ``hloinspect
        compile``. ``name`` is what its page is called instead of its path. Raises InputError where that cannot be
        written."""
        try:
            found = self._inspection(reading, target)
            point = _point(number, settings, found, target, self.yardstick)
            if point.step is not None:
                self.elsewhere += [self._elsewhere(point, reading, found, target, what) for what in self.what_ifs]
        except HloInspectError as error:
            return self._without_answer(number, settings, target, error)
        if self.pages is not None and point.step is not None:
            named = replace(found.report.input, path=name or found.report.input.path)
            page = replace(found, report=replace(found.report, input=named))
            self.pages(number, page)
        return point

    def _without_answer(
        self, number: int, settings: Mapping[str, str], target: Target, error: HloInspectError
    ) -> Point:
        return Point(number, dict(settings), target.name, self.yardstick.devices or 1, error=str(error))

    def _inspection(self, reading: Reading, target: Target) -> Inspection:
        """Inspect with the rules on what makes a point no good; a page has them all. Memory is estimated where XLA did
        not say it, and for a page, which shows more of it."""
        link = self.yardstick.link
        return judge_reading(
            reading,
            Machine(with_link(target, link) if link else target, self.yardstick.devices, self.yardstick.topology),
            rules=_RULES if self.pages is None else None,
            memory=self.pages is not None or not reading.has_memory,
        )

    def _elsewhere(self, point: Point, reading: Reading, found: Inspection, own: Target, what: WhatIf) -> Elsewhere:
        target = what.target or own
        link = what.link or self.yardstick.link
        stand_in = None if target.name == own.name else own.name
        try:
            own_target = with_link(target, link) if link else target
            prediction = predict_reading(reading, Machine(own_target, self.yardstick.devices, self.yardstick.topology))
        except HloInspectError:  # such as a topology that the other target cannot have
            return Elsewhere(point.number, what.label, None, None, stand_in, {}, {})
        there = prediction.transfers if prediction is not None else {}
        verdicts = {t.id: there[t.id].verdict if t.id in there else UNKNOWN for t in reading.offload.transfers}
        return Elsewhere(
            point=point.number,
            label=what.label,
            step=step_time(prediction),
            fits=_fit(_memory(found.report, target, self.yardstick))[0],
            stand_in=stand_in,
            verdicts=verdicts,
            waits_ms={number: transfer.times.wait_ps / PS_PER_MS for number, transfer in there.items()},
        )


def _point(number: int, settings: Mapping[str, str], found: Inspection, target: Target, yardstick: Yardstick) -> Point:
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
        fault=_finding(report, [WRONG_VALUES]) or pipelined_too_early(report),
        fits=fits,
        obstacle=obstacle,
        step=step_time(found.prediction),
        memory=memory,
        flops=found.prediction.matrix_flops if found.prediction else None,
        d2h_bytes=moved["d2h"],
        h2d_bytes=moved["h2d"],
        transfers=tuple(_line(report, transfer) for transfer in report.transfers),
        schedule_hash=report.module.schedule_hash,
        limits=report.limits,
        unknown=tuple(unknown.reason for unknown in report.unknown),
        directory=report.input.path,
        notes=(*_computed_again(found.offload, fits is not False), *_not_looked_at(report)),
    )
    return _with_samples(point, _samples(settings, yardstick), yardstick.tokens)


def _computed_again(offload: Offload, fits: bool) -> tuple[str, ...]:
    """Return a note where XLA computes anything again by itself: it names such an instruction after the one that it
    repeats (``.remat``; hlo_rematerialization.cc). What keeps XLA from it takes more memory, and is no advice where the
    step does not fit."""
    sizes = {
        instruction.name: instruction.shape.element_count
        for computation in offload.program.computations()
        for instruction in map(computation.instruction, computation.mentioning(".remat"))
        if _AGAIN.search(instruction.name)
    }
    if not sizes:
        return ()
    what = "an instruction" if len(sizes) == 1 else f"{len(sizes)} instructions"
    can_be_kept = fits and offload.program.module.platform != "tpu"
    remedy = "; flags=no-xla-remat keeps it from that" if can_be_kept else ""
    largest = max(sizes, key=lambda name: sizes[name])
    return (f"to save memory XLA computes {what} again by itself, the largest {largest}{remedy}",)


def _not_looked_at(report: Report) -> tuple[str, ...]:
    """Return a note where nobody could see whether the values are right."""
    return tuple(f"{rule.code}: {rule.reason}" for rule in report.rules_not_run if rule.code == WRONG_VALUES)


def _finding(report: Report, codes: Sequence[str]) -> str | None:
    """Return the message of the first of these findings that is an error."""
    found = (f"{finding.message} ({finding.code})" for finding in report.findings if finding.code in codes)
    return next(found, None)


def pipelined_too_early(report: Report) -> str | None:
    """Return why a point is not to be proposed that pipelines its copies with an XLA whose pipelined slices are wrong;
    None for all others. The rule HLO301 finds those that it can work out; what it cannot work out is not to be advised
    either."""
    program = Evidence(report)
    version = program.jax_version
    if version is None or version >= SLICES_RIGHT_SINCE or not program.pipelined_by:
        return None
    if not any(transfer.executions > 1 and transfer.mechanism != KERNEL for transfer in report.transfers):
        return None
    return f"{program.pipelined_by} makes gradients wrong before jax 0.11.1"


def step_time(prediction: Prediction | None) -> StepTime | None:
    """Return the predicted step in milliseconds."""
    if prediction is None:
        return None
    step = prediction.step
    return StepTime(
        time_ms=step.time_ps / PS_PER_MS,
        low_ms=prediction.low_ps / PS_PER_MS,
        high_ms=prediction.high_ps / PS_PER_MS,
        compute_ms=step.compute_ps / PS_PER_MS,
        stall_ms=step.stall_ps / PS_PER_MS,
        without_transfers_ms=prediction.without_transfers_ps / PS_PER_MS,
        ideal_ms=prediction.ideal_ps / PS_PER_MS,
        cases_ms={name: time / PS_PER_MS for name, time in prediction.cases_ps.items()},
    )


def _line(report: Report, transfer: TransferInfo) -> TransferLine:
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
        needed_link_gbps=link_that_hides_gbps(report, transfer),
    )


def _memory(report: Report, target: Target, yardstick: Yardstick) -> MemoryUse:
    """Return what a step needs and what a target has: the report's or another."""
    memory, host = report.memory, host_memory_of(report, target)
    limit = int(target.hbm_bytes.value)
    return MemoryUse(
        device_bytes=memory.device_bytes,
        device_limit_bytes=int(limit * yardstick.memory_share),
        scheduler_limit_bytes=int(limit * SCHEDULER_MEMORY_SHARE),
        host_bytes=host.bytes,
        host_limit_bytes=host.limit_bytes,
        host_devices=host.devices,
        source=memory.source,
    )


def _fit(memory: MemoryUse) -> tuple[bool | None, str | None]:
    """Return whether a point fits into device and host memory, and what it does not fit into."""
    device, limit = memory.device_bytes, memory.device_limit_bytes
    if device is not None and limit is not None and device > limit:
        return False, f"the device: {' of '.join(bytes_texts(device, limit))}"
    host, host_limit = memory.host_bytes, memory.host_limit_bytes
    if host is not None and host_limit is not None and host > host_limit:
        of = f"the {memory.host_devices} devices of " if memory.host_devices > 1 else ""
        return False, f"{of}the host: {' of '.join(bytes_texts(host, host_limit))}"
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
    """Return samples a step and tokens a sample by MaxText's configuration."""
    batch, length = settings.get("per_device_batch_size"), settings.get("max_target_length")
    samples = float(batch) * devices if isinstance(batch, int | float) else None
    tokens = float(length) if isinstance(length, int | float) else None
    return yardstick.samples or samples, yardstick.tokens or tokens


def _with_samples(point: Point, samples: float | None, tokens: float | None) -> Point:
    if samples is None or point.step is None:
        return point
    rate = samples / point.step.time_ms * 1e3
    return replace(point, samples=samples, samples_per_s=rate, tokens_per_s=None if tokens is None else rate * tokens)
