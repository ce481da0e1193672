"""A report on a module, from what was found in it and predicted of it."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Sequence

from hloinspect._version import __version__
from hloinspect.hardware.target import Target
from hloinspect.hlo.model import ASYNC_PAIRS
from hloinspect.kinds import EXPOSED_SHARE, HIDDEN_SHARE, UNKNOWN, TargetSource
from hloinspect.memory.estimate import Memory
from hloinspect.memory.records import Release
from hloinspect.offload.program import Program
from hloinspect.offload.stacks import MAX_PARTNERS
from hloinspect.offload.transfers import Offload, Transfer
from hloinspect.predict.prediction import Prediction, TransferPrediction
from hloinspect.report.schema import (
    SCHEMA,
    DuplexInfo,
    Exposed,
    InputInfo,
    LinkInfo,
    MemoryInfo,
    ModuleInfo,
    PredictedStep,
    PredictedTransfer,
    ProgramInfo,
    Report,
    StepInfo,
    TargetInfo,
    TensorInfo,
    Thresholds,
    TransferInfo,
    Unknown,
)
from hloinspect.units import PS_PER_MS


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
    target_source: TargetSource = "given",
) -> Report:
    """Return the report on one module, without findings, which rules/engine.py adds. ``prediction`` is None without a
    target or a schedule, ``used`` where memory could not be followed. ``target_source`` is who named the target."""
    releases = used.releases if used else {}
    return Report(
        schema=SCHEMA,
        hloinspect=__version__,
        input=source,
        module=module_info(offload.program),
        program=program,
        target=target_info(target, devices, target_source) if target else None,
        thresholds=Thresholds(HIDDEN_SHARE, EXPOSED_SHARE),
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
        host_values=offload.host_values,
        host_copies=offload.host_copies,
        host_events=offload.host_events,
        limits=(*limits, *_cut_partners(offload)),
        unknown=tuple(unknown),
    )


def _cut_partners(offload: Offload) -> tuple[str, ...]:
    """Return a line where not all partners of transfers are listed."""
    cut = [transfer.id for transfer in offload.transfers if transfer.partners_cut]
    if not cut:
        return ()
    first = ", ".join(map(str, cut[:3]))
    return (
        f"{len(cut)} transfers ({first}, ...) have more partners than are listed: their buffers have more than "
        f"{MAX_PARTNERS} writers and as many readers, and nothing shows which of them reads what which has written",
    )


def module_info(program: Program) -> ModuleInfo:
    """Return name, platform and two hashes of a module. The hashes look at what is scheduled. They depend neither on
    names nor on how the module was printed, and an async pair counts the same however it is spelled."""
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
    """Return ``async-start`` for every other spelling of one (``fusion-start``), and any other opcode as it is."""
    for suffix in ("-start", "-done", "-update"):
        if opcode.endswith(suffix) and opcode.removesuffix(suffix) not in ASYNC_PAIRS:
            return f"async{suffix}"
    return opcode


def target_info(target: Target, devices: int, source: TargetSource = "given") -> TargetInfo:
    """Return the target's name and link in the report's units. ``source`` is who named it."""
    link = target.link
    if link is None:
        return TargetInfo(target.name, devices, None, source)
    duplex = DuplexInfo(link.d2h_duplex.value, link.h2d_duplex.value)
    d2h, h2d = link.d2h_bytes_per_s.value / 1e9, link.h2d_bytes_per_s.value / 1e9
    rates = LinkInfo(d2h, h2d, link.duplex_factor.value, duplex)
    return TargetInfo(target.name, devices, rates, source)


def predicted_step(prediction: Prediction) -> PredictedStep:
    """Return the predicted step in milliseconds."""
    step = prediction.step
    return PredictedStep(
        time_ms=step.time_ps / PS_PER_MS,
        low_ms=prediction.low_ps / PS_PER_MS,
        high_ms=prediction.high_ps / PS_PER_MS,
        compute_ms=step.compute_ps / PS_PER_MS,
        collective_exposed_ms=step.collective_exposed_ps / PS_PER_MS,
        exposed_ms=Exposed(
            step.exposed_d2h_ps / PS_PER_MS, step.exposed_h2d_ps / PS_PER_MS, step.exposed_ps / PS_PER_MS
        ),
        stall_ms=step.stall_ps / PS_PER_MS,
        stall_low_ms=prediction.low_stall_ps / PS_PER_MS,
        stall_high_ms=prediction.high_stall_ps / PS_PER_MS,
        stall_d2h_ms=prediction.stall_d2h_ps / PS_PER_MS,
        stall_h2d_ms=prediction.stall_h2d_ps / PS_PER_MS,
        without_transfers_ms=prediction.without_transfers_ps / PS_PER_MS,
        ideal_ms=prediction.ideal_ps / PS_PER_MS,
        busy_d2h_ms=step.busy_d2h_ps / PS_PER_MS,
        busy_h2d_ms=step.busy_h2d_ps / PS_PER_MS,
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
        source=transfer.source.info if transfer.source else None,
        stream=transfer.stream,
        round_trip=transfer.round_trip,
        outcome=transfer.outcome,
        partners=transfer.partners,
        queued_behind=found.queued_behind if found else None,
        verdict=found.verdict if found else UNKNOWN,
        robust=found.robust if found else None,
        reason=found.reason.text if found else "there is no prediction to judge it by",
        predicted=_predicted(transfer, found) if found else None,
        release=release,
    )


def _predicted(transfer: Transfer, found: TransferPrediction) -> PredictedTransfer:
    times = found.times
    reason = found.reason
    gain = found.gain_if_free_ps
    return PredictedTransfer(
        duration_each_ms=times.duration_ps / max(transfer.executions, 1) / PS_PER_MS,
        duration_ms=times.duration_ps / PS_PER_MS,
        cover_ms=times.cover_ps / PS_PER_MS,
        exposed_ms=times.exposed_ps / PS_PER_MS,
        wait_ms=times.wait_ps / PS_PER_MS,
        gain_if_free_ms=None if gain is None else gain / PS_PER_MS,
        low_ms=found.low_wait_ps / PS_PER_MS,
        high_ms=found.high_wait_ps / PS_PER_MS,
        needed_link_gbps=None if reason.needed_bytes_per_s is None else reason.needed_bytes_per_s / 1e9,
        binding=reason.binding or None,
        missing_each_ms=None if reason.missing_ps is None else reason.missing_ps / PS_PER_MS,
        largest_hidden_bytes=reason.largest_hidden_bytes,
    )
