"""The programs of a step of several, and the transfers of those that are not the report's module: tables."""

from __future__ import annotations

from collections.abc import Sequence

from hloinspect.render.page.elements import element, sentence, table
from hloinspect.render.page.sides import Side
from hloinspect.render.terminal.report_text import share, tensor_text
from hloinspect.report.program_names import program_names
from hloinspect.report.schema import Report, StepProgramInfo, TransferInfo
from hloinspect.units import bytes_text, time_text

_HEAD = ("transfer", "tensor", "each", "runs", "takes", "covered", "waits", "GB/s", "verdict")


def step_programs(sides: Sequence[Side]) -> str:
    """Return the programs of each step of several; nothing where each step is one program."""
    parts = [part for side in sides for part in _of_side(side.report, side.label)]
    return element("section", f"<h2>Programs of the step</h2>{''.join(parts)}", id="programs") if parts else ""


def _of_side(report: Report, label: str) -> list[str]:
    trace, step = report.trace, report.step.measured
    if trace is None or step is None or not trace.step_programs:
        return []
    names = program_names(trace)
    rows = [
        (
            names[one.program_id],
            f"\u00d7{one.runs:.3g}",
            time_text(one.time_ms),
            share(one.time_ms, step.time_ms),
            _role(one),
        )
        for one in trace.step_programs
    ]
    between = trace.between_programs_ms or 0.0
    rows.append(("between them", "", time_text(between), share(between, step.time_ms), ""))
    head = ("program", "runs", "takes", "of the step", "")
    parts = [table(head, rows, f"{label} Programs, means of a step".strip(), (1, 2, 3))]
    for program in trace.step_programs:
        if program.transfers:
            caption = f"{label} Transfers of {names[program.program_id]}, times measured".strip()
            parts.append(table(_HEAD, [_row(one) for one in program.transfers], caption, range(2, 8)))
    if any(program.transfers for program in trace.step_programs):
        parts.append(element("p", sentence("measured, but neither predicted nor judged by a rule")))
    return parts


def _role(program: StepProgramInfo) -> str:
    return "the module of this report" if program.is_module else ""


def _row(transfer: TransferInfo) -> tuple[str, ...]:
    found = transfer.measured
    rate = (found.gbps or found.gbps_alone) if found else None
    times = (
        *(f"\u00d7{found.runs:.4g}", time_text(found.duration_each_ms)),
        *(share(found.cover_ms, found.duration_ms), time_text(found.wait_ms)),
    ) if found else ("", "", "", "")  # fmt: skip
    return (
        *(f"{transfer.direction} {transfer.id}", tensor_text(transfer), bytes_text(transfer.bytes)),
        *times,
        "" if rate is None else f"{rate:.3g}",
        transfer.verdict,
    )
