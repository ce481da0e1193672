"""What fills device memory, and what else has to do with the host: tables that need no script."""

from __future__ import annotations

from collections.abc import Sequence

from hloinspect.render.page.elements import element, sentence, table, text
from hloinspect.render.page.sides import Side
from hloinspect.render.terminal.report_text import share
from hloinspect.report.schema import Report
from hloinspect.units import bytes_text

_KEPT = ("kept", "merged")


def memory(sides: Sequence[Side]) -> str:
    """Return what is held when device memory is fullest, a table for each input that knows it."""
    parts = []
    for side in sides:
        found = _peak(side.report)
        if found:
            letter = f'<h3><b class="letter">{text(side.label)}</b></h3>' if side.label else ""
            parts.append(letter + found)
    return element("section", f"<h2>Memory</h2>{''.join(parts)}", id="memory") if parts else ""


def _peak(report: Report) -> str:
    peak = report.memory.peak
    if peak is None:
        return ""
    rows: list[tuple[str, ...]] = [
        (
            value.name,
            f"{value.dtype}[{','.join(map(str, value.shape))}]",
            bytes_text(value.bytes),
            share(value.bytes, peak.bytes),
            value.kind,
            f"{value.source.file.rpartition('/')[2]}:{value.source.line}" if value.source else value.computation,
        )
        for value in peak.values
    ]
    if peak.others:
        size = bytes_text(peak.other_bytes)
        rows.append((f"{peak.others:,} others", "", size, share(peak.other_bytes, peak.bytes), "", ""))
    where = f"Device memory is fullest at {peak.instruction} in {peak.computation}: {bytes_text(peak.bytes)} are needed"
    gaps = (
        "The curves of the timeline show what is needed at each moment; the figure in the summary also counts the gaps "
        "that XLA leaves between buffers"
    )
    head = ("buffer", "array", "size", "share", "kind", "made in")
    caption = "What fills device memory then, the largest first"
    return f"<p>{sentence(where)} {sentence(gaps)}</p>{table(head, rows, caption, (2, 3))}"


def requested(sides: Sequence[Side]) -> str:
    """Return what the program requests of host memory and what became of it, the lost first; nothing where that is not
    known."""
    rows = []
    for side in sides:
        audit = side.report.audit
        entries = audit.entries if audit is not None and audit.requested_from is not None else ()
        for entry in sorted(entries, key=lambda one: one.outcome in _KEPT):
            array = f"{entry.dtype}[{','.join(map(str, entry.shape))}]"
            why = ". Try ".join(part for part in (entry.reason, entry.remedy) if part)
            rows.append(
                (
                    f"{side.label} {entry.name or entry.kind} {array}".strip(),
                    f"{entry.direction or ''} {entry.by}".strip(),
                    f"{entry.requested:,}",
                    f"{entry.runs:,}",
                    entry.outcome,
                    f"{entry.source.file.rpartition('/')[2]}:{entry.source.line}" if entry.source else "",
                    why,
                )
            )
    if not rows:
        return ""
    head = ("requested", "by", "times", "runs", "became", "where", "why")
    inner = table(head, rows, "What the program requests of host memory, and what became of it", (2, 3))
    return element("section", f"<h2>Requested of host memory</h2>{inner}", id="requested")


def others(sides: Sequence[Side]) -> str:
    """Return what has to do with the host and is no transfer of the offload; nothing where there is none."""
    rows = [row for side in sides for row in _others(side)]
    if not rows:
        return ""
    head = ("what", "name", "in", "a step", "bytes each")
    inner = table(head, rows, "Values, copies and calls that are no transfer of an offload", (3, 4))
    return element("section", f"<h2>Other work with the host</h2>{inner}", id="others")


def _others(side: Side) -> list[tuple[str, ...]]:
    report = side.report
    letter = f"{side.label} " if side.label else ""
    rows: list[tuple[str, ...]] = [
        (f"{letter}{value.kind} in host memory", value.name, "", "", bytes_text(value.bytes))
        for value in report.host_values
    ]
    for copy in report.host_copies:
        what = f"{letter}host memory to host memory ({copy.mechanism})"
        rows.append((what, copy.instruction, copy.computation, f"\u00d7{copy.executions:,}", bytes_text(copy.bytes)))
    for event in report.host_events:
        size = f"{bytes_text(event.to_host_bytes)} out, {bytes_text(event.from_host_bytes)} back"
        what = f"{letter}{event.kind.replace('_', ' ')} {event.detail}".rstrip()
        rows.append((what, event.instruction, event.computation, f"\u00d7{event.executions:,}", size))
    return rows
