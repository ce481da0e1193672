"""What a prediction does not explain of a profile, as one sentence: where the two are further apart than its range."""

from __future__ import annotations

from dataclasses import dataclass

from hloinspect.kinds import COLLECTIVE_CLASSES, D2H, InstructionClass
from hloinspect.report.schema import InstructionsInfo, MeasuredStep, PredictedStep, StepInfo
from hloinspect.thresholds import UNEXPLAINED_SHARE
from hloinspect.units import time_text

MAX_NAMED = 2


@dataclass(frozen=True, slots=True)
class _Part:
    """A part of the step that is outside its predicted range by ``gap_ms``."""

    gap_ms: float
    text: str


def unexplained(step: StepInfo, instructions: InstructionsInfo | None) -> str | None:
    """Return what the model does not explain, and what is responsible, or None where it explains the step.

    The step must be inside its predicted range, and so must the sum of each class, or be off by less than 5 % of the
    step.
    """
    measured, predicted = step.measured, step.predicted
    if measured is None or predicted is None:
        return None
    least = UNEXPLAINED_SHARE * max(measured.time_ms, predicted.time_ms)
    parts = [part for part in _parts(measured, predicted, instructions) if part.gap_ms > least]
    parts.sort(key=lambda part: -part.gap_ms)
    is_inside = predicted.low_ms <= measured.time_ms <= predicted.high_ms
    of_class = any(part.text for part in parts)
    if is_inside and not of_class:
        return None
    values = f"{predicted.time_ms:.3g} ({predicted.low_ms:.3g} to {predicted.high_ms:.3g})"
    text = f"the model does not explain this profile: measured {time_text(measured.time_ms)}, predicted {values} ms"
    if is_inside:
        text = (
            f"the model does not explain this profile, though the step fits: measured {time_text(measured.time_ms)}, "
            f"predicted {values} ms"
        )
    if parts:
        return f"{text}; {'; '.join(part.text for part in parts[:MAX_NAMED])}"
    return f"{text}; no class of instructions and no link is responsible alone"


def _parts(measured: MeasuredStep, predicted: PredictedStep, instructions: InstructionsInfo | None) -> list[_Part]:
    found = []
    if instructions is not None:
        for one in instructions.classes:
            if one.predicted is None or one.ratio is None:
                continue
            took = one.ratio * one.predicted.time_ms
            gap = max(took - one.predicted.high_ms, one.predicted.low_ms - took)
            where = f"{time_text(took)} where {one.predicted.time_ms:.3g} ms is predicted"
            found.append(_Part(gap, f"{_what(one.kind)} {where}"))
        skew = sum(one.skew_ms or 0.0 for one in instructions.classes)
        found.append(_Part(skew, f"collectives wait {time_text(skew)} for the slowest device, where the model has none"))
    for way, waits, guess in (
        ("to", measured.stall_d2h_ms, predicted.stall_d2h_ms),
        ("from", measured.stall_h2d_ms, predicted.stall_h2d_ms),
    ):
        where = f"{time_text(waits)} for the link {way} the host where {guess:.3g} ms is predicted"
        outside = not predicted.stall_low_ms <= measured.stall_ms <= predicted.stall_high_ms
        found.append(_Part(abs(waits - guess) if outside else 0.0, f"the step waits {where}"))
    idle = measured.idle_ms
    found.append(_Part(idle, f"the device is idle for {time_text(idle)}, where the model has it at work"))
    return found


def _what(kind: InstructionClass) -> str:
    if kind in COLLECTIVE_CLASSES:
        return f"{kind} without skew takes"
    if kind in ("d2h", "h2d"):
        return f"copies {'to' if kind == D2H else 'from'} the host take"
    return f"{kind} instructions take"
