"""What a prediction does not explain of a profile, as one sentence: where they differ by more than its range."""

from __future__ import annotations

from dataclasses import dataclass

from hloinspect.kinds import COLLECTIVE_CLASSES, D2H, InstructionClass
from hloinspect.report.schema import InstructionsInfo, MeasuredStep, PredictedStep, Report, StepInfo
from hloinspect.thresholds import UNEXPLAINED_SHARE
from hloinspect.units import time_text

MAX_NAMED = 2
UNEXPLAINED = "the model does not explain this profile"


def unexplained_text(report: Report) -> str:
    """Return what the model does not explain, or "". It is the first limit of such a report."""
    return report.limits[0] if report.limits and report.limits[0].startswith(UNEXPLAINED) else ""


@dataclass(frozen=True, slots=True)
class _Part:
    """A part of the step that is outside its predicted range by ``gap_ms``."""

    gap_ms: float
    text: str
    of_class: bool = False


def unexplained(step: StepInfo, instructions: InstructionsInfo | None, runs: float = 1.0) -> str | None:
    """Return what the model does not explain, and what is responsible, or None where it explains the step.

    It explains it if neither the step, nor the sum of any class, is outside its predicted range by more than 5 % of the
    step. The step is one run of the module, which runs ``runs`` times in what ``instructions`` are sums of.
    """
    measured, predicted = step.measured, step.predicted
    if measured is None or predicted is None:
        return None
    least = UNEXPLAINED_SHARE * max(measured.time_ms, predicted.time_ms)
    parts = sorted(_parts(measured, predicted, instructions, max(runs, 1.0)), key=lambda part: -part.gap_ms)
    parts = [part for part in parts if part.gap_ms > least]
    fits = max(measured.time_ms - predicted.high_ms, predicted.low_ms - measured.time_ms) <= least
    if fits and not any(part.of_class for part in parts):
        return None
    values = f"{time_text(predicted.time_ms)} ({time_text(predicted.low_ms)} to {time_text(predicted.high_ms)})"
    though = ", though the step's time is inside the predicted range" if fits else ""
    text = f"{UNEXPLAINED}{though}: measured {time_text(measured.time_ms)}, predicted {values}"
    if not parts:
        return f"{text}; no class of instructions and no link is responsible alone"
    return f"{text}; {'; '.join(part.text for part in parts[:MAX_NAMED])}"


def _parts(
    measured: MeasuredStep, predicted: PredictedStep, instructions: InstructionsInfo | None, runs: float
) -> list[_Part]:
    found = []
    for one in instructions.classes if instructions is not None else ():
        if one.predicted is None or one.ratio is None:
            continue
        guess, low, high = (ms / runs for ms in (one.predicted.time_ms, one.predicted.low_ms, one.predicted.high_ms))
        took = one.ratio * guess
        gap = max(took - high, low - took)
        text = f"{_what(one.kind)} {time_text(took)} where {time_text(guess)} is predicted"
        found.append(_Part(gap, text, of_class=True))
    if instructions is not None:
        skew = sum(one.skew_ms or 0.0 for one in instructions.classes) / runs
        found.append(_Part(skew, f"collectives wait {time_text(skew)} for the slowest device (not in the model)"))
    outside = not predicted.stall_low_ms <= measured.stall_ms <= predicted.stall_high_ms
    for way, waits, guess in (
        ("to", measured.stall_d2h_ms, predicted.stall_d2h_ms),
        ("from", measured.stall_h2d_ms, predicted.stall_h2d_ms),
    ):
        text = f"the step waits {time_text(waits)} for the link {way} the host where {time_text(guess)} is predicted"
        found.append(_Part(abs(waits - guess) if outside else 0.0, text))
    found.append(_Part(measured.idle_ms, f"the device is idle for {time_text(measured.idle_ms)}"))
    return found


def _what(kind: InstructionClass) -> str:
    if kind in COLLECTIVE_CLASSES:
        return f"{kind} without skew takes"
    if kind in ("d2h", "h2d"):
        return f"copies {'to' if kind == D2H else 'from'} the host take"
    return f"{kind} instructions take"
