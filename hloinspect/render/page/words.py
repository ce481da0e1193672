"""The words of the page's first screen: the answer in a sentence and a few figures."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from hloinspect.errors import printable
from hloinspect.report.schema import MeasuredStep, MemoryInfo, PredictedStep, Report
from hloinspect.report.unseen import waits_unseen
from hloinspect.thresholds import SMALL_STALL_SHARE
from hloinspect.units import bytes_text, time_text

GOOD, BAD, OPEN, WRONG, NONE, USED = "good", "bad", "open", "wrong", "none", "used"
MOODS = {GOOD: "hidden", BAD: "stalls", OPEN: "not sure", WRONG: "problem", NONE: "no transfers"}
"""A word for each kind of answer. Wrong: nothing stalls, and yet a finding is an error."""


UNSEEN = "not known"
"""What stands for a measured time of zero that says nothing."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """The answer in a sentence; ``mood`` is a key of ``MOODS``."""

    mood: str
    sentence: str
    detail: str


@dataclass(frozen=True, slots=True)
class Figure:
    """One figure of the summary: what it is, the figure, what to know of it, and for a meter its share of a limit."""

    name: str
    value: str
    note: str = ""
    share: float | None = None
    mood: str = USED


def summary_step(report: Report) -> MeasuredStep | PredictedStep | None:
    """Return the step that the summary shows: the measured one where there is one."""
    return report.step.measured or report.step.predicted


def kind_text(report: Report) -> str:
    """Return how the figures were obtained, in words."""
    target, trace = report.target, report.trace
    if trace is not None:
        count, hosts = len(report.devices), f" on {len(trace.hosts)} hosts" if len(trace.hosts) > 1 else ""
        unnamed = f"{count} {'device' if count == 1 else 'devices'} without a name in it"
        what = f"{count} x {printable(trace.device_type)}" if trace.device_type else unnamed
        text = f"Measured: read from a profile of {what}{hosts}."
        if report.step.measured is None:
            text = "Read from a profile, of which no step was measured."
        inferred = ", the target of that device" if target and target.source == "profile" else ""
        beside = f" Predicted beside it for {_target(report)}{inferred}." if report.step.predicted and target else ""
        return f"{text}{beside}"
    if target is None:
        return "Neither predicted nor measured: no target was given."
    if report.step.predicted is None:
        return f"Not predicted for {_target(report)}: see what is not known."
    return f"Predicted for {_target(report)}, from the compiled schedule. Nothing was run."


def _target(report: Report) -> str:
    assert report.target is not None
    return f"{report.target.devices} x {printable(report.target.name)}"


def verdict_of(report: Report) -> Verdict:
    """Return the answer for somebody who reads one sentence."""
    step = summary_step(report)
    missing = any(unknown.affects == "transfers" for unknown in report.unknown)
    doubt = next((printable(unknown.reason) for unknown in report.unknown if unknown.affects == "time"), "")
    counted = _counted(report)
    errors = sorted({finding.code for finding in report.findings if finding.severity == "error"})
    wrong = f"Yet something is wrong: {', '.join(errors)}." if errors else ""
    if step is None:
        why = doubt or "there is neither a prediction nor a measured step"
        return Verdict(OPEN, "Whether host transfers hide behind compute is not known.", f"{why}. {counted}")
    if report.trace is not None and report.step.measured is None:
        predicted = "The figures below are predicted."
        found = "No step of the profile was measured: whether host transfers hide behind compute is not known."
        return Verdict(
            OPEN, found, " ".join(part for part in (f"{doubt}." if doubt else "", counted, predicted) if part)
        )
    share_of_step = step.stall_ms / step.time_ms if step.time_ms > 0 else 0.0
    if not report.transfers and step.stall_ms <= 0:
        if missing or report.host_copies:
            return Verdict(OPEN, "No host transfers were found, but not all of them could be followed.", doubt)
        nothing = "Nothing moves between device and host memory in this step"
        return Verdict(WRONG, f"{nothing}. {wrong}", "") if wrong else Verdict(NONE, f"{nothing}.", "")
    waits = f"{time_text(step.stall_ms)} of {time_text(step.time_ms)} ({share(step.stall_ms, step.time_ms)})"
    if share_of_step >= SMALL_STALL_SHARE:
        sentence = f"Each step waits for host transfers: {waits}."
        return Verdict(BAD, sentence, counted + (f" In doubt: {doubt}." if doubt else ""))
    if doubt or missing:
        sentence = f"As far as is known, host transfers hide behind compute: the step waits {waits}."
        return Verdict(OPEN, sentence, f"{counted} In doubt: {doubt or 'some transfers may be missing'}.")
    hides = f"Host transfers hide behind compute: the step waits {waits} for them"
    if wrong:
        return Verdict(WRONG, f"{hides}. {wrong}", counted)
    return Verdict(GOOD, f"{hides}.", counted)


_ORDER = ("hidden", "partial", "exposed", "synchronous", "unknown")


def _counted(report: Report) -> str:
    counts = Counter[str](transfer.verdict for transfer in report.transfers)
    if not counts:
        return ""
    parts = [f"{counts[word]:,} {word}" for word in _ORDER if counts[word]]
    total = sum(counts.values())
    return f"{total:,} {'transfer' if total == 1 else 'transfers'}: {', '.join(parts)}."


def share(part: float, whole: float) -> str:
    """Return a part of a whole in percent; two digits where it is less than one."""
    percent = 100 * part / whole if whole > 0 else 0.0
    return f"{percent:.0f} %" if percent >= 0.95 or percent <= 0 else f"{percent:.1g} %"


def range_text(low_ms: float, high_ms: float) -> str:
    """Return a range: ``68 to 94 ms``."""
    low, high = time_text(low_ms), time_text(high_ms)
    number, _, unit = low.partition(" ")
    return f"{number} to {high}" if high.endswith(f" {unit}") else f"{low} to {high}"


def summary_figures(report: Report) -> list[Figure]:
    """Return the figures of the summary, in order."""
    step = summary_step(report)
    found: list[Figure] = []
    if isinstance(step, MeasuredStep):
        seen = f"measured, mean of {step.steps_analyzed:,} steps, {range_text(step.step_ms.min, step.step_ms.max)}"
        spread = step.stall_spread_ms
        waits = Figure(
            "Waiting for the host",
            time_text(step.stall_ms),
            f"{share(step.stall_ms, step.time_ms)} of the step, {range_text(spread.min, spread.max)} in a step",
            step.stall_ms / step.time_ms if step.time_ms > 0 else None,
            _mood(step),
        )
        if waits_unseen(report, step):
            waits = Figure("Waiting for the host", UNSEEN, "not all transfers are in the profile")
        found += [Figure("Step", time_text(step.time_ms), seen), waits]
    elif step is not None:
        low, high = step.stall_low_ms, step.stall_high_ms
        found += [
            Figure("Step", time_text(step.time_ms), f"predicted, {range_text(step.low_ms, step.high_ms)}"),
            Figure(
                "Waiting for the host",
                time_text(step.stall_ms),
                f"{share(step.stall_ms, step.time_ms)} of the step, {range_text(low, high)}",
                step.stall_ms / step.time_ms if step.time_ms > 0 else None,
                _mood(step),
            ),
            Figure(
                "With free transfers",
                time_text(step.without_transfers_ms),
                f"{time_text(step.ideal_ms)} with perfect overlap",
            ),
        ]
    if report.transfers:
        found.append(_moved(report, step))
    return found + _memory_figures(report.memory)


def _mood(step: MeasuredStep | PredictedStep) -> str:
    return BAD if step.stall_ms >= SMALL_STALL_SHARE * step.time_ms else GOOD


def _moved(report: Report, step: MeasuredStep | PredictedStep | None) -> Figure:
    sent, back = (
        sum(t.bytes_per_step for t in report.transfers if t.direction == direction) for direction in ("d2h", "h2d")
    )
    note = "to the host and back in a step"
    if step is not None:
        busy = [share(time, step.time_ms) for time in (step.busy_d2h_ms, step.busy_h2d_ms)]
        note += f"; the link is busy {busy[0]} out, {busy[1]} back"
    out, home = bytes_text(sent), bytes_text(back)
    number, _, unit = out.partition(" ")
    return Figure("Moved", f"{number} / {home}" if home.endswith(f" {unit}") else f"{out} / {home}", note)


def _memory_figures(memory: MemoryInfo) -> list[Figure]:
    source = {"artifacts": "as XLA assigned it", "estimated": "estimated from the schedule"}.get(memory.source, "")
    found = []
    for name, used, limit in (
        ("Device memory", memory.device_bytes, memory.device_limit_bytes),
        ("Host memory (pinned)", memory.host_bytes, memory.host_limit_bytes),
    ):
        if used is None:
            continue
        note = f"of {bytes_text(limit)} a device, {source}" if limit else source
        mood = BAD if limit and used > limit else USED
        found.append(Figure(name, bytes_text(used), note, used / limit if limit else None, mood))
    return found


def compared(report: Report) -> list[tuple[str, str, str]]:
    """Return predicted and measured side by side: name, predicted, measured; empty where one is missing."""
    predicted, measured = report.step.predicted, report.step.measured
    if predicted is None or measured is None:
        return []
    programs = report.trace.step_programs if report.trace else ()
    if programs:  # predicted is one of them, and of that only the time is measured by itself
        own = ((one.name, time_text(predicted.time_ms), time_text(one.time_ms)) for one in programs if one.is_module)
        return list(own)
    rows: list[tuple[str, float, float | None]] = [
        ("step", predicted.time_ms, measured.time_ms),
        ("compute", predicted.compute_ms, measured.compute_ms),
        ("collectives alone", predicted.collective_exposed_ms, measured.collective_exposed_ms),
        ("waiting for the host", predicted.stall_ms, measured.stall_ms),
        ("exposed to the host", predicted.exposed_ms.d2h, measured.exposed_ms.d2h),
        ("exposed from the host", predicted.exposed_ms.h2d, measured.exposed_ms.h2d),
    ]
    if waits_unseen(report, measured):
        rows = [(name, one, None if name.endswith("the host") else other) for name, one, other in rows]
    return [(name, time_text(one), UNSEEN if other is None else time_text(other)) for name, one, other in rows]
