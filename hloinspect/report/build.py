"""Puts a report together from what was found and predicted."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict

from hloinspect._version import __version__
from hloinspect.hardware.target import Target
from hloinspect.hlo.model import ASYNC_PAIRS
from hloinspect.kinds import EXPOSED_SHARE, HIDDEN_SHARE, UNKNOWN
from hloinspect.memory.estimate import Memory, Peak, Release
from hloinspect.offload.program import Program
from hloinspect.offload.source import Source
from hloinspect.offload.stacks import MAX_PARTNERS
from hloinspect.offload.transfers import Offload, Transfer
from hloinspect.predict.prediction import Prediction, TransferPrediction
from hloinspect.report.schema import (
    SCHEMA,
    DuplexInfo,
    Exposed,
    HostCopyInfo,
    HostEventInfo,
    HostValueInfo,
    InputInfo,
    LinkInfo,
    LiveValueInfo,
    MemoryInfo,
    ModuleInfo,
    PeakInfo,
    PredictedStep,
    PredictedTransfer,
    ProgramInfo,
    ReleaseInfo,
    Report,
    SourceInfo,
    StepInfo,
    TargetInfo,
    TensorInfo,
    TransferInfo,
    Unknown,
)

_MS = 1e9  # picoseconds


def build_report(  # noqa: PLR0913  (the parts of a report, each made by another room)
    source: InputInfo,
    offload: Offload,
    program: ProgramInfo,
    target: Target | None,
    devices: int,
    prediction: Prediction | None,
    memory: MemoryInfo,
    limits: Sequence[str],
    unknown: Sequence[Unknown],
    used: Memory | None,
) -> Report:
    """The report on one module; ``prediction`` is None where there is no target or no schedule to go by, ``used``
    where memory could not be followed. Findings are added by rules/engine.py."""
    releases = used.releases if used else {}
    return Report(
        schema=SCHEMA,
        hloinspect=__version__,
        input=source,
        module=module_info(offload.program),
        program=program,
        target=target_info(target, devices) if target else None,
        thresholds={"hidden": HIDDEN_SHARE, "exposed": EXPOSED_SHARE},
        step=StepInfo(predicted=predicted_step(prediction) if prediction else None),
        memory=memory,
        transfers=tuple(
            transfer_info(
                transfer,
                prediction.transfers.get(transfer.id) if prediction else None,
                releases.get(transfer.id),
            )
            for transfer in offload.transfers
        ),
        host_values=tuple(HostValueInfo(value.kind, value.name, value.bytes) for value in offload.host_values),
        host_copies=tuple(
            HostCopyInfo(copy.instruction, copy.computation, copy.mechanism, copy.bytes, copy.executions)
            for copy in offload.host_copies
        ),
        host_events=tuple(HostEventInfo(**asdict(event)) for event in offload.host_events),
        limits=(*limits, *_cut_partners(offload)),
        unknown=tuple(unknown),
    )


def _cut_partners(offload: Offload) -> tuple[str, ...]:
    """Return a line where not all transfers are listed that write or read what another one does."""
    cut = [transfer.id for transfer in offload.transfers if transfer.partners_cut]
    if not cut:
        return ()
    first = ", ".join(map(str, cut[:3]))
    return (
        f"{len(cut)} transfers ({first}, ...) have more partners than are listed: their buffers have more than "
        f"{MAX_PARTNERS} writers and as many readers, and nothing shows which of them reads what which has written",
    )


def module_info(program: Program) -> ModuleInfo:
    """Name, platform and two hashes that depend neither on names nor on how the module was printed: they look at what
    is scheduled, and an async pair counts the same by whatever name."""
    module = program.module
    schedule, counts = hashlib.sha256(), Counter[str]()
    for computation in program.computations():
        opcodes = [spelling(opcode) for opcode, _ in computation.outline() if opcode not in BOOKKEEPING]
        counts.update(opcodes)
        schedule.update("\n".join([*opcodes, "}"]).encode("utf-8", "replace"))
    fingerprint = hashlib.sha256(repr(sorted(counts.items())).encode("utf-8", "replace"))
    return ModuleInfo(
        name=module.name,
        platform=module.platform or "unknown",
        fingerprint=fingerprint.hexdigest()[:16],
        schedule_hash=schedule.hexdigest()[:16],
        instructions=sum(len(computation) for computation in program.computations()),
    )


BOOKKEEPING = frozenset({"get-tuple-element", "tuple", "parameter", "bitcast", "constant"})


def spelling(opcode: str) -> str:
    """``async-start`` for every sugared spelling of one (``fusion-start``)."""
    for suffix in ("-start", "-done", "-update"):
        if opcode.endswith(suffix) and opcode.removesuffix(suffix) not in ASYNC_PAIRS:
            return f"async{suffix}"
    return opcode


def target_info(target: Target, devices: int) -> TargetInfo:
    """The target's name and link in the report's units."""
    link = target.link
    if link is None:
        return TargetInfo(target.name, devices, None)
    duplex = DuplexInfo(link.d2h_duplex.value, link.h2d_duplex.value)
    d2h, h2d = link.d2h_bytes_per_s.value / 1e9, link.h2d_bytes_per_s.value / 1e9
    rates = LinkInfo(d2h, h2d, link.duplex_factor.value, duplex)
    return TargetInfo(target.name, devices, rates)


def predicted_step(prediction: Prediction) -> PredictedStep:
    """The predicted step in milliseconds."""
    step = prediction.step
    return PredictedStep(
        time_ms=step.time_ps / _MS,
        low_ms=prediction.low_ps / _MS,
        high_ms=prediction.high_ps / _MS,
        compute_ms=step.compute_ps / _MS,
        collective_exposed_ms=step.collective_exposed_ps / _MS,
        exposed_ms=Exposed(step.exposed_d2h_ps / _MS, step.exposed_h2d_ps / _MS, step.exposed_ps / _MS),
        stall_ms=step.stall_ps / _MS,
        stall_low_ms=prediction.low_stall_ps / _MS,
        stall_high_ms=prediction.high_stall_ps / _MS,
        stall_d2h_ms=prediction.stall_d2h_ps / _MS,
        stall_h2d_ms=prediction.stall_h2d_ps / _MS,
        without_transfers_ms=prediction.without_transfers_ps / _MS,
        ideal_ms=prediction.ideal_ps / _MS,
        busy_d2h_ms=step.busy_d2h_ps / _MS,
        busy_h2d_ms=step.busy_h2d_ps / _MS,
    )


def _source(source: Source | None) -> SourceInfo | None:
    return SourceInfo(source.file, source.line, source.function or None) if source else None


def peak_info(peak: Peak) -> PeakInfo:
    """The fullest moment of device memory."""
    values = tuple(
        LiveValueInfo(v.name, v.computation, v.dtype, v.shape, v.bytes, v.kind, _source(v.source)) for v in peak.values
    )
    return PeakInfo(peak.instruction, peak.computation, peak.bytes, values, peak.others, peak.other_bytes)


def _release(release: Release) -> ReleaseInfo:
    return ReleaseInfo(
        bytes=release.bytes,
        made=release.made,
        freed=release.freed,
        freed_computation=release.freed_computation,
        late=release.late,
        before_backward=release.before_backward,
        held_ms=release.held_ms,
        held_bytes_ms=release.held_bytes_ms,
    )


def transfer_info(transfer: Transfer, found: TransferPrediction | None, release: Release | None = None) -> TransferInfo:
    """Return one transfer; without a prediction its verdict is unknown."""
    assert transfer.outcome, "find_offload gives every transfer its outcome"
    return TransferInfo(
        id=transfer.id,
        direction=transfer.direction,
        mechanism=transfer.mechanism,
        asynchronous=transfer.asynchronous,
        bytes=transfer.bytes,
        executions=transfer.executions,
        bytes_per_step=transfer.bytes_per_step,
        tensor=TensorInfo(transfer.tensor.dtype, transfer.tensor.shape, transfer.tensor.name or None),
        start=transfer.start,
        done=transfer.done,
        computation=transfer.computation,
        loop_depth=transfer.loop_depth,
        source=_source(transfer.source),
        stream=transfer.stream,
        round_trip=transfer.round_trip,
        outcome=transfer.outcome,
        partners=transfer.partners,
        queued_behind=found.queued_behind if found else None,
        verdict=found.verdict if found else UNKNOWN,
        robust=found.robust if found else None,
        reason=found.reason.text if found else "there is no prediction to judge it by",
        predicted=_predicted(transfer, found) if found else None,
        release=_release(release) if release else None,
    )


def _predicted(transfer: Transfer, found: TransferPrediction) -> PredictedTransfer:
    times = found.times
    reason = found.reason
    gain = found.gain_if_free_ps
    return PredictedTransfer(
        duration_each_ms=times.duration_ps / max(transfer.executions, 1) / _MS,
        duration_ms=times.duration_ps / _MS,
        cover_ms=times.cover_ps / _MS,
        exposed_ms=times.exposed_ps / _MS,
        wait_ms=times.wait_ps / _MS,
        gain_if_free_ms=None if gain is None else gain / _MS,
        low_ms=found.low_wait_ps / _MS,
        high_ms=found.high_wait_ps / _MS,
        needed_link_gbps=None if reason.needed_bytes_per_s is None else reason.needed_bytes_per_s / 1e9,
        binding=reason.binding or None,
        missing_each_ms=None if reason.missing_ps is None else reason.missing_ps / _MS,
        largest_hidden_bytes=reason.largest_hidden_bytes,
    )
