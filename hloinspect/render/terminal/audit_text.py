"""The audit for a terminal: what was asked of host memory, and what became of each."""

from __future__ import annotations

import os
import textwrap
from collections import Counter

import click

from hloinspect.errors import printable as clean
from hloinspect.report.schema import AuditEntry, AuditInfo, Report

_COLORS = {"kept": "green", "dropped": "red", "never matched": "red", "synchronous": "yellow", "kernel": "yellow"}
_FROM = {"jaxpr": "the jaxpr", "stablehlo": "StableHLO", "hlo": "the HLO before all passes"}
_LOST = ("dropped", "never matched")
_MOST_IDS = 4
_HEADER = ["requested", "by", "times", "runs", "became", "transfers", "where"]
_RIGHT = {2, 3}
MAX_ENTRIES = 40
"""Entries shown one by one; ``--all`` shows them all."""


def audit_line(report: Report) -> list[str]:
    """One line below the memory's, where something that was asked for is not there or the other way round."""
    audit = report.audit
    if audit is None or not (
        audit.unexplained or audit.unexplained_host or any(e.outcome in _LOST for e in audit.entries)
    ):
        return []
    return [f" asked     {_summary(audit)}   (--audit shows each)"]


def audit_text(report: Report, width: int, show_all: bool) -> list[str]:
    """The whole table."""
    audit = report.audit
    if audit is None:
        return []
    if audit.requested_from is None:
        return ["", click.style("asked of host memory: not known", bold=True), *_unknown(audit, width)]
    head = f"asked of host memory, from {_FROM[audit.requested_from]}: {_summary(audit)}"
    lines = ["", *textwrap.wrap(head, width, subsequent_indent="   ")]
    lines[1] = click.style(lines[1], bold=True)
    if audit.entries:
        lines += _table(audit, width, show_all)
    return [*lines, *_reasons(audit, width), *_unexplained(report, audit, width), *_unknown(audit, width)]


def _summary(audit: AuditInfo) -> str:
    """``6 kept, 2 dropped`` and what nobody asked for."""
    counts = Counter[str]()
    for entry in audit.entries:
        counts[entry.outcome] += entry.requested
    ordered = sorted(counts.items(), key=lambda item: (item[0] != "kept", item))
    parts = [f"{count} {outcome}" for outcome, count in ordered]
    if count := len(audit.unexplained) + len(audit.unexplained_host):
        parts.append(f"{count} there that nothing asks for")
    return ", ".join(parts) or "nothing"


def _table(audit: AuditInfo, width: int, show_all: bool) -> list[str]:
    ordered = sorted(audit.entries, key=lambda entry: entry.outcome not in _LOST)
    shown = ordered if show_all else ordered[:MAX_ENTRIES]
    rows = [_HEADER, *(_row(entry) for entry in shown)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(_HEADER))]
    over = 1 + sum(widths) + 2 * (len(widths) - 1) - width
    widths[0] = max(20, widths[0] - max(0, over))
    lines = []
    for number, row in enumerate(rows):
        row[0] = row[0] if len(row[0]) <= widths[0] else row[0][: widths[0] - 1] + "\u2026"
        cells = [
            cell.rjust(widths[column]) if column in _RIGHT else cell.ljust(widths[column])
            for column, cell in enumerate(row)
        ]
        if number == 0:
            lines.append(click.style(" " + "  ".join(cells).rstrip(), bold=True))
            continue
        cells[4] = click.style(cells[4], fg=_COLORS.get(row[4]))
        lines.append(" " + "  ".join(cells).rstrip())
    if len(shown) < len(ordered):
        lines.append(f" and {len(ordered) - len(shown)} more; --all shows them all")
    return lines


def _row(entry: AuditEntry) -> list[str]:
    ids = [str(number) for number in entry.transfers[:_MOST_IDS]]
    more = ", ..." if len(entry.transfers) > _MOST_IDS else ""
    return [
        _what(entry),
        clean(entry.by),
        f"{entry.requested}",
        f"{entry.runs}" if entry.runs else "",
        entry.outcome,
        ", ".join(ids) + more,
        _where(entry),
    ]


def _what(entry: AuditEntry) -> str:
    """``d2h hid bf16[4,128]``, ``argument state['mean'] f32[256,256]``."""
    parts = [entry.direction if entry.kind == "value" and entry.direction else entry.kind, clean(entry.name or "")]
    if entry.dtype:
        parts.append(f"{clean(entry.dtype)}[{','.join(map(str, entry.shape))}]")
    return " ".join(part for part in parts if part)


def _where(entry: AuditEntry) -> str:
    return f"{clean(os.path.basename(entry.source.file))}:{entry.source.line}" if entry.source else ""


def _reasons(audit: AuditInfo, width: int) -> list[str]:
    """Why, and what to do, once for each outcome and cause that is not simply kept."""
    lines: list[str] = []
    told: set[str] = set()
    for entry in audit.entries:
        by = f" by the pass {clean(entry.pass_name)}" if entry.pass_name else ""
        text = f"{entry.outcome}{by}: {clean(entry.reason or '')}"
        if entry.reason is None or entry.outcome == "kept" or text in told:
            continue
        told.add(text)
        remedy = f". Try: {clean(entry.remedy)}" if entry.remedy else ""
        lines += textwrap.wrap(text + remedy, width, initial_indent=" ", subsequent_indent="   ")
    return lines


def _unexplained(report: Report, audit: AuditInfo, width: int) -> list[str]:
    by_id = {transfer.id: transfer for transfer in report.transfers}
    names = [f"{by_id[number].direction} {number} ({clean(by_id[number].start)})" for number in audit.unexplained]
    names += [clean(name) for name in audit.unexplained_host]
    if not names:
        return []
    more = f" and {len(names) - 6} more" if len(names) > 6 else ""
    text = f"nothing asks for {', '.join(names[:6])}{more}"
    return textwrap.wrap(text, width, initial_indent=" ", subsequent_indent="   ")


def _unknown(audit: AuditInfo, width: int) -> list[str]:
    lines: list[str] = []
    for unknown in audit.unknown:
        text = f"cannot tell: {clean(unknown.reason)}. Try: {clean(unknown.remedy)}"
        lines += [click.style(line, fg="magenta") for line in textwrap.wrap(text, width, subsequent_indent="   ")]
    return lines
