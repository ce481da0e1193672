"""A report as a small HTML table, for notebooks. No script, no style sheet, nothing from elsewhere."""

from __future__ import annotations

from hloinspect.render.page.elements import text
from hloinspect.render.terminal.report_text import tensor_text, where_text
from hloinspect.report.schema import FindingInfo, Report, TransferInfo
from hloinspect.units import bytes_text, time_text

_MAX_ROWS = 100


def to_html(report: Report) -> str:
    """Return the step's figures, a row for each transfer, and the findings."""
    parts = [f"<p>{_head(report)}</p>"]
    if report.transfers:
        cells = ("transfer", "tensor", "each", "runs", "waits", "verdict", "where")
        rows = ["<tr>" + "".join(f"<th>{cell}</th>" for cell in cells) + "</tr>"]
        rows += [_row(transfer) for transfer in _shown(report)]
        parts.append(f"<table>{''.join(rows)}</table>")
        if len(report.transfers) > _MAX_ROWS:
            parts.append(f"<p>the {_MAX_ROWS} that wait the longest, of {len(report.transfers):,}</p>")
    if report.findings:
        parts.append(f"<ul>{''.join(_finding(finding) for finding in report.findings)}</ul>")
    parts += [f"<p>not known: {text(unknown.reason)}</p>" for unknown in report.unknown]
    return f"<div>{''.join(parts)}</div>"


def _shown(report: Report) -> list[TransferInfo]:
    """Return all transfers; of very many those that wait the longest, in schedule order."""

    def wait_ms(transfer: TransferInfo) -> float:
        times = transfer.measured or transfer.predicted
        return times.wait_ms if times else 0.0

    longest = sorted(report.transfers, key=lambda transfer: -wait_ms(transfer))[:_MAX_ROWS]
    return sorted(longest, key=lambda transfer: transfer.id)


def _head(report: Report) -> str:
    target = f" on {report.target.devices} x {text(report.target.name)}" if report.target else ""
    line = f"<b>{text(report.module.name)}</b>{target}"
    for kind, step in (("measured", report.step.measured), ("predicted", report.step.predicted)):
        if step is not None:
            line += f"; {kind} step {time_text(step.time_ms)}, waiting for the host {time_text(step.stall_ms)}"
    return line


def _row(transfer: TransferInfo) -> str:
    times = transfer.measured or transfer.predicted
    cells = (
        f"{transfer.direction} {transfer.id}",
        tensor_text(transfer),
        bytes_text(transfer.bytes),
        f"x{transfer.executions}",
        "" if times is None else time_text(times.wait_ms),
        transfer.verdict,
        where_text(transfer),
    )
    return "<tr>" + "".join(f"<td>{text(cell)}</td>" for cell in cells) + "</tr>"


def _finding(finding: FindingInfo) -> str:
    return f"<li>{finding.code} {finding.severity}: {text(finding.message)}. Try: {text(finding.remedy)}.</li>"
