"""The part of the page that has the measured time of instructions, by class and one by one."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from hloinspect.render.page.elements import element, sentence, table
from hloinspect.render.page.sides import Side
from hloinspect.render.page.words import share
from hloinspect.report.program_names import program_names
from hloinspect.report.schema import ClassTimes, InstructionsInfo, InstructionTime
from hloinspect.units import time_text

_SHOWN = 25

_CLASS_HEAD = (
    *("class", "instructions", "runs", "measured", "share", "skew", "predicted", "range", "ratio", "inside the range"),
)
_HEAD = ("instruction", "class", "runs", "median", "p90", "a step", "skew", "predicted", "ratio", "where")


def instructions(sides: Sequence[Side]) -> str:
    """Return the tables of classes and of the largest instructions; nothing for predictions."""
    parts = []
    for side in sides:
        found = side.report.instructions
        if found is None:
            continue
        label = f"{side.label} " if side.label else ""
        rows = [_class_row(one, found) for one in found.classes]
        parts.append(table(_CLASS_HEAD, rows, f"{label}A step's time by class, added up over streams", range(1, 10)))
        trace = side.report.trace
        names = program_names(trace) if trace is not None and trace.step_programs else {}
        largest = [_row(one, names) for one in found.largest[:_SHOWN]]
        head = (_HEAD[0], "program", *_HEAD[1:]) if names else _HEAD
        numbers = range(3, 10) if names else range(2, 9)
        parts.append(table(head, largest, f"{label}The instructions that take the longest", numbers))
    if not parts:
        return ""
    note = (
        "Skew is the time for which a collective waits for the slowest device. The ratio is measured time without skew "
        "over predicted time. Of a step of several programs, predicted times are those of the module of this report."
    )
    return element("section", f"<h2>Instructions</h2><p>{sentence(note)}</p>{''.join(parts)}", id="instructions")


def _class_row(one: ClassTimes, found: InstructionsInfo) -> tuple[str, ...]:
    predicted = one.predicted
    return (
        one.kind,
        f"{one.instructions:,}",
        f"{one.executions:.4g}",
        time_text(one.total_ms),
        share(one.total_ms, found.total_ms),
        "" if one.skew_ms is None else time_text(one.skew_ms),
        time_text(predicted.time_ms) if predicted else "",
        f"{time_text(predicted.low_ms)} to {time_text(predicted.high_ms)}" if predicted else "",
        "" if one.ratio is None else f"{one.ratio:.2f}",
        f"{one.inside:,}" if predicted else "",
    )


def _row(one: InstructionTime, names: Mapping[int, str]) -> tuple[str, ...]:
    """Return the row of an instruction; ``names`` are those of the step's programs where it is several."""
    return (
        one.name,
        *((names.get(one.program_id, f"program {one.program_id}"),) if names else ()),
        one.kind,
        f"{one.executions:.4g}",
        time_text(one.median_ms),
        time_text(one.p90_ms),
        time_text(one.total_ms),
        "" if one.skew_ms is None else time_text(one.skew_ms),
        time_text(one.predicted.time_ms) if one.predicted else "",
        "" if one.ratio is None else f"{one.ratio:.2f}",
        f"{os.path.basename(one.source.file)}:{one.source.line}" if one.source else "",
    )
