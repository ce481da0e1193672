"""The instructions of a trace for a terminal: a row for each class, and below them the largest ones."""

from __future__ import annotations

import os
from collections.abc import Mapping

from hloinspect.errors import printable
from hloinspect.render.terminal.report_text import share
from hloinspect.render.terminal.table import Layout, columns_named, cut, table
from hloinspect.render.terminal.wrap import wrapped
from hloinspect.report.program_names import program_names
from hloinspect.report.schema import ClassTimes, InstructionTime, Report
from hloinspect.thresholds import SHOWN_INSTRUCTIONS
from hloinspect.units import time_text

_LEAST_SHARE = 0.001
"""Classes with less of the time than this have no row, unless all are requested."""

_LEFT = frozenset({"class", "instruction", "program", "where"})
_CLASSES = Layout((*((name, None) for name in ("runs", "inside", "share", "instructions", "predicted")), ("class", 12)))
_LARGEST = Layout(
    (("where", None), ("p90", None), ("class", None), ("program", 12), ("instruction", 16), ("predicted", None))
)


def instruction_lines(report: Report, width: int, show_all: bool) -> list[str]:
    """Return the tables of a report's instructions, or no lines where it has none."""
    found = report.instructions
    if found is None:
        return []
    both, skewed = found.compared > 0, any(one.skew_ms for one in found.classes)
    shown = [one for one in found.classes if show_all or one.total_ms >= _LEAST_SHARE * found.total_ms]
    head = ["class", "instructions", "runs", "measured", "share", *(["skew"] if skewed else [])]
    head += ["predicted", "ratio", "inside"] if both else []
    rows = [_class_row(one, found.total_ms, both, skewed) for one in shown]
    notes = ["skew: collectives wait for the slowest device"] if skewed else []
    notes += ["ratio: measured without skew / predicted" if skewed else "ratio: measured / predicted"] if both else []
    trace = report.trace
    programs = trace.step_programs if trace is not None else ()
    names = program_names(trace) if trace is not None and programs else {}
    if both and (main := next((names[one.program_id] for one in programs if one.is_module), "")):
        notes.append(f"predicted, ratio and inside: of {printable(main)} alone, not of the step's other programs")
    caption = "; ".join(["a step's time by class of instruction, added up over streams", *notes])
    lines = [*wrapped(f" {caption}:", width, 0, 3), *table(columns_named(head, _LEFT), rows, width, _CLASSES)]
    if both and found.inside_share is not None:
        part = f"{100 * found.inside_share:.0f} % of their time"
        text = f"{found.inside:,} of {found.compared:,} instructions, with {part}, are inside the predicted range"
        lines += wrapped(text, width, 1, 3)
    if trace is not None and trace.hidden_events:
        text = f"without the {trace.hidden_events:,} events in command buffers, which do not name their instruction"
        lines += wrapped(text, width, 1, 3)
    largest = found.largest if show_all else found.largest[:SHOWN_INSTRUCTIONS]
    head = ["instruction", *(["program"] if names else []), "class", "runs", "each", "p90", "a step"]
    head += ["skew"] if skewed else []
    head += ["predicted", "ratio"] if both else []
    rows = [_row(one, names, both, skewed) for one in largest]
    lines += ["", *table(columns_named([*head, "where"], _LEFT), rows, width, _LARGEST)]
    rest = len(found.largest) + found.others - len(largest)
    if rest:
        spent = found.others_ms + sum(one.total_ms for one in found.largest[len(largest) :])
        more = "" if show_all else "; --all shows more"
        lines += wrapped(f"and {rest:,} more instructions, {time_text(spent)} a step together{more}", width, 1, 3)
    return lines


def _class_row(one: ClassTimes, total_ms: float, both: bool, skewed: bool) -> list[str]:
    row = [one.kind, f"{one.instructions:,}", f"x{one.executions:.4g}", time_text(one.total_ms)]
    row += [share(one.total_ms, total_ms), *([_skew(one.skew_ms)] if skewed else [])]
    if both:
        inside = f"{one.inside:,}" if one.predicted else ""
        row += [time_text(one.predicted.time_ms) if one.predicted else "", _ratio(one.ratio), inside]
    return row


def _row(one: InstructionTime, names: Mapping[int, str], both: bool, skewed: bool) -> list[str]:
    """Return the row of an instruction; ``names`` are those of the step's programs where it is several."""
    program = [cut(printable(names.get(one.program_id, f"program {one.program_id}")), 24)] if names else []
    row = [cut(printable(one.name), 40), *program, one.kind, f"x{one.executions:.4g}"]
    row += [time_text(one.median_ms), time_text(one.p90_ms), time_text(one.total_ms)]
    row += [_skew(one.skew_ms)] if skewed else []
    row += [time_text(one.predicted.time_ms) if one.predicted else "", _ratio(one.ratio)] if both else []
    source = one.source
    return [*row, f"{printable(os.path.basename(source.file))}:{source.line}" if source else ""]


def _skew(skew_ms: float | None) -> str:
    return "" if skew_ms is None else time_text(skew_ms)


def _ratio(ratio: float | None) -> str:
    return "" if ratio is None else f"{ratio:.2f}" if ratio < 100 else f"{ratio:,.0f}"
