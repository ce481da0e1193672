"""The audit for a terminal: what was requested of host memory, and what became of each."""

from __future__ import annotations

import os
from collections import Counter

import click

from hloinspect.errors import printable
from hloinspect.render.terminal.notes import unknown_lines
from hloinspect.render.terminal.table import Layout, columns_named, table
from hloinspect.render.terminal.wrap import wrapped
from hloinspect.report.schema import AuditEntry, AuditInfo, Report
from hloinspect.thresholds import SHOWN_NAMES, SHOWN_ROWS
from hloinspect.units import listed

_COLORS = {"kept": "green", "dropped": "red", "never matched": "red", "synchronous": "yellow", "kernel": "yellow"}
_FROM = {"jaxpr": "the jaxpr", "stablehlo": "StableHLO", "hlo": "the HLO before all passes"}
_LOST = ("dropped", "never matched")
_HEADER = ["requested", "by", "times", "runs", "became", "transfers", "where"]
_LEFT = {"requested", "by", "became", "transfers", "where"}
_LAYOUT = Layout((("requested", 20),))


def audit_line(report: Report) -> list[str]:
    """Return one line below the memory's, where something requested is missing or something is there unrequested."""
    audit = report.audit
    if audit is None or not (
        audit.unexplained or audit.unexplained_host or any(e.outcome in _LOST for e in audit.entries)
    ):
        return []
    return [f" requested {_summary(audit)}   (--audit shows each)"]


def audit_text(report: Report, width: int, show_all: bool) -> list[str]:
    """Return the whole table."""
    audit = report.audit
    if audit is None:
        return []
    if audit.requested_from is None:
        return ["", click.style("requested of host memory: not known", bold=True), *unknown_lines(audit.unknown, width)]
    head = f"requested of host memory, from {_FROM[audit.requested_from]}: {_summary(audit)}"
    lines = ["", *wrapped(head, width, 0, 3)]
    lines[1] = click.style(lines[1], bold=True)
    if audit.entries:
        lines += _table(audit, width, show_all)
    return [*lines, *_reasons(audit, width), *_unexplained(report, audit, width), *unknown_lines(audit.unknown, width)]


def _summary(audit: AuditInfo) -> str:
    """Return how many requests had which outcome, and how much is there unrequested: ``6 kept, 2 dropped``."""
    counts = Counter[str]()
    for entry in audit.entries:
        counts[entry.outcome] += entry.requested
    ordered = sorted(counts.items(), key=lambda item: (item[0] != "kept", item))
    parts = [f"{count} {outcome}" for outcome, count in ordered]
    if count := len(audit.unexplained) + len(audit.unexplained_host):
        parts.append(f"{count} there that nothing requests")
    return ", ".join(parts) or "nothing"


def _table(audit: AuditInfo, width: int, show_all: bool) -> list[str]:
    ordered = sorted(audit.entries, key=lambda entry: entry.outcome not in _LOST)
    shown = ordered if show_all else ordered[:SHOWN_ROWS]
    lines = table(columns_named(_HEADER, _LEFT), [_row(entry) for entry in shown], width, _LAYOUT)
    if len(shown) < len(ordered):
        lines.append(f" and {len(ordered) - len(shown)} more; --all shows them all")
    return lines


def _row(entry: AuditEntry) -> list[str]:
    ids = [str(number) for number in entry.transfers[:SHOWN_NAMES]]
    more = ", ..." if len(entry.transfers) > SHOWN_NAMES else ""
    return [
        _what(entry),
        printable(entry.by),
        f"{entry.requested}",
        f"{entry.runs}" if entry.runs else "",
        click.style(entry.outcome, fg=_COLORS.get(entry.outcome)),
        ", ".join(ids) + more,
        _where(entry),
    ]


def _what(entry: AuditEntry) -> str:
    """Return what is requested: ``d2h hid bf16[4,128]``, ``argument state['mean'] f32[256,256]``."""
    parts = [entry.direction if entry.kind == "value" and entry.direction else entry.kind, printable(entry.name or "")]
    if entry.dtype:
        parts.append(f"{printable(entry.dtype)}[{','.join(map(str, entry.shape))}]")
    return " ".join(part for part in parts if part)


def _where(entry: AuditEntry) -> str:
    return f"{printable(os.path.basename(entry.source.file))}:{entry.source.line}" if entry.source else ""


def _reasons(audit: AuditInfo, width: int) -> list[str]:
    """Return why, and what to do, once for each outcome and cause that is not simply kept."""
    lines: list[str] = []
    shown: set[str] = set()
    for entry in audit.entries:
        by = f" by the pass {printable(entry.pass_name)}" if entry.pass_name else ""
        text = f"{entry.outcome}{by}: {printable(entry.reason or '')}"
        if entry.reason is None or entry.outcome == "kept" or text in shown:
            continue
        shown.add(text)
        remedy = f". Try: {printable(entry.remedy)}" if entry.remedy else ""
        lines += wrapped(text + remedy, width, 1, 3)
    return lines


def _unexplained(report: Report, audit: AuditInfo, width: int) -> list[str]:
    by_id = {transfer.id: transfer for transfer in report.transfers}
    names = [f"{by_id[number].direction} {number} ({printable(by_id[number].start)})" for number in audit.unexplained]
    names += [printable(name) for name in audit.unexplained_host]
    if not names:
        return []
    return wrapped(f"nothing requests {listed(names, 6)}", width, 1, 3)
