"""What a profile does not record, so that zeros in its report are no measurement."""

from __future__ import annotations

from hloinspect.report.schema import MeasuredStep, Report


def copies_unseen(report: Report) -> bool:
    """Return whether the profile does not record copies between device and host: one of ROCm."""
    if report.trace is None or not report.unknown:
        return False
    from hloinspect.measure.memcpy import ROCM  # imports numpy, which a report on a module does without

    return any(unknown.reason.endswith(ROCM) for unknown in report.unknown)


def graphs_unseen(report: Report) -> bool:
    """Return whether whole CUDA graphs are one event each, so that no step is measured."""
    if report.trace is None or not report.unknown:
        return False
    from hloinspect.measure.measured import GRAPHS_AS_BLOCKS

    return any(unknown.reason.endswith(GRAPHS_AS_BLOCKS) for unknown in report.unknown)


def waits_unseen(report: Report, step: MeasuredStep) -> bool:
    """Return whether waits of zero say nothing, since the report does not know all transfers, or the profile has no
    events of some."""
    if step.stall_ms > 0:
        return False
    unknown = any(unknown.affects == "transfers" for unknown in report.unknown)
    return unknown or any(transfer.measured is None for transfer in report.transfers)
