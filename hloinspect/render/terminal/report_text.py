"""A report for a terminal: the first screen answers the question. Styled with ANSI codes that the writer takes out
again where no colour is wanted."""

from __future__ import annotations

import os
from collections.abc import Sequence

import click

from hloinspect.errors import printable
from hloinspect.kinds import EXPOSED, HIDDEN, PARTIAL, SYNCHRONOUS, UNKNOWN
from hloinspect.render.terminal.audit_text import audit_line, audit_text
from hloinspect.render.terminal.notes import limit_lines, unknown_lines
from hloinspect.render.terminal.table import Layout, Step, columns_named, cut, table
from hloinspect.render.terminal.wrap import flow, wrapped
from hloinspect.report.link import link_that_hides_gbps
from hloinspect.report.schema import FindingInfo, PredictedStep, ProgramInfo, Report, TransferInfo
from hloinspect.rules.blocking import blocking_findings
from hloinspect.thresholds import SHOWN_FINDINGS, SHOWN_NAMES, SHOWN_REASONS, SHOWN_ROWS, SMALL_STALL_SHARE
from hloinspect.units import bytes_text, bytes_texts, listed, time_text

COLORS = {HIDDEN: "green", PARTIAL: "yellow", EXPOSED: "red", SYNCHRONOUS: "red", UNKNOWN: "magenta"}
_COMPARED_COLORS = {"same": "green", "different": "red"}
SHOWN_DIFFERENCES = 6
"""Differences between two modules that are named; the JSON has all."""

_INDENT = len("predicted step ")
_MARGIN = len(" memory    ")


def to_text(report: Report, width: int = 100, show_all: bool = False, picture: Sequence[str] = ()) -> str:
    """Return the report in at most ``width`` columns; ``picture`` are rows that stand above the table (minimap.py)."""
    named = frozenset(n for finding in _shown_findings(report, show_all) for n in finding.transfers)
    lines = [
        *judged_lines(report, width),
        *_head(report, width),
        *blocking_lines(report, width),
        "",
        *_step(report, width),
        *([""] if picture else []),
        *picture,
    ]
    if report.transfers:
        lines += ["", *_table(report, width, show_all)]
    lines += [
        "",
        *_memory(report, width),
        *audit_line(report),
        *_reasons(report, width, named),
        *_loose_ends(report, width, named),
        *findings_text(report, width, show_all),
        *_notes(report, width),
    ]
    return "\n".join(lines)


def to_audit(report: Report, width: int = 100, show_all: bool = False, picture: Sequence[str] = ()) -> str:
    """Return the same with the whole audit (docs/audit.md) below."""
    return "\n".join([to_text(report, width, show_all, picture), *audit_text(report, width, show_all)])


def judged_lines(report: Report, width: int) -> list[str]:
    """Return the first lines: which module was judged, and how far it is the one that ran or that was expected."""
    lines: list[str] = []
    compared = report.compared
    for text in report.first_texts:
        is_compared = compared is not None and text == compared.text
        color = _COMPARED_COLORS.get(compared.status, "yellow") if compared is not None and is_compared else None
        lines += [click.style(line, fg=color) for line in wrapped(printable(text), width, 0, 3)]
        for difference in compared.differences[:SHOWN_DIFFERENCES] if compared is not None and is_compared else ():
            lines += wrapped(f"- {printable(difference)}", width, 2, 4)
    return lines


def _head(report: Report, width: int) -> list[str]:
    module, program = report.module, report.program
    parts = [click.style(printable(module.name), bold=True)]
    made = f", compiled without a device by jax {program.jax}" if program.jax else ""
    if report.target:
        parts.append(f"for {report.target.devices} x {printable(report.target.name)}{made}")
    elif made:
        parts[0] += made
    parts.append(f"{module.instructions:,} instructions")
    given = _production(program)
    return [*flow(parts, "   ", width, _INDENT), *(wrapped(f"production run: {given}", width, 0, 3) if given else [])]


def blocking_lines(report: Report, width: int) -> list[str]:
    """Return what comes before every figure: that the step cannot run, or that its values are wrong."""
    lines: list[str] = []
    for finding in blocking_findings(report):
        text = f"{finding.code}: {printable(finding.message)}"
        lines += [click.style(line, fg="red", bold=True) for line in wrapped(text, width, 0, 3)]
    return lines


def _production(program: ProgramInfo) -> str:
    """Return what of the production run was given and what was not, in one line; "" where nothing was."""
    results, profile = program.autotune_results, program.pgle
    if program.flags_from is None and results is None and profile is None:
        return ""
    tuned = "not given"
    if results is not None:
        found = f"{results.of - results.missing} of {results.of} kernels" if results.of else "all kernels but one"
        tuned = f"{printable(results.path)} ({found if results.missing else 'every kernel'})"
    costs = f"{printable(profile.path)} ({profile.matched} of {profile.of} costs)" if profile else "not given"
    return f"flags {printable(program.flags_from or 'not given')}, autotuning {tuned}, PGLE {costs}"


def share(part: float, whole: float) -> str:
    """Return a part of a whole in percent."""
    return f"{100 * part / whole:.0f} %" if whole > 0 else "0 %"


def _nothing(report: Report) -> str:
    """Return what to say of a module without transfers."""
    if report.host_copies:
        return "no host transfers with the device on one side, but host memory is read and written (see below)"
    if any(unknown.affects == "transfers" for unknown in report.unknown):
        return "no host transfers were found, but not all that talks to the host is followed (see below)"
    return "no host transfers: nothing in this module moves between device and host memory"


def _step(report: Report, width: int) -> list[str]:
    step = report.step.predicted
    nothing = [] if report.transfers else wrapped(_nothing(report), width, 0, 3)
    if step is None:
        return [*nothing, click.style("no prediction", fg="magenta") + ": see 'not known' below"]
    if nothing and step.stall_ms <= 0:
        return [*nothing, f"predicted step {time_text(step.time_ms)} ({_range(step)})"]
    stall = f"waiting for the host {time_text(step.stall_ms)} = {share(step.stall_ms, step.time_ms)}"
    color = "green" if step.stall_ms < SMALL_STALL_SHARE * step.time_ms else "red"
    busy = f"the link is busy {share(step.busy_d2h_ms, step.time_ms)} d2h, {share(step.busy_h2d_ms, step.time_ms)} h2d"
    parts = [
        f"predicted step {click.style(time_text(step.time_ms), bold=True)} ({_range(step)})",
        f"compute {time_text(step.compute_ms)}",
        click.style(stall, fg=color),
    ]
    if step.collective_exposed_ms > 0:
        parts.insert(2, f"collectives alone {time_text(step.collective_exposed_ms)}")
    without = f"{' ' * _INDENT}{time_text(step.without_transfers_ms)} with free transfers"
    ideal = f"{time_text(step.ideal_ms)} with perfect overlap"
    return [*nothing, *flow(parts, "   ", width, _INDENT), *flow([f"{without}, {ideal}", busy], "; ", width, _INDENT)]


def _range(step: PredictedStep) -> str:
    low, high = time_text(step.low_ms), time_text(step.high_ms)
    number, _, unit = low.partition(" ")
    return f"{number} to {high}" if high.endswith(f" {unit}") else f"{low} to {high}"


def tensor_text(transfer: TransferInfo) -> str:
    """Return a transfer's tensor: its name and shape, or what brings it back."""
    tensor = transfer.tensor
    dims = list(tensor.shape)
    while len(dims) > 1 and dims[0] == 1:  # a slice of a stack has a dimension of one in front
        dims.pop(0)
    shape = f"{tensor.dtype}[{','.join(map(str, dims))}]"
    name = printable(tensor.name) if tensor.name else ""
    if transfer.direction == "h2d" and transfer.round_trip is not None:
        return f"{name or shape} (back from {_writers_text(transfer)})"
    return f"{name} {shape}" if name else shape


def _writers_text(transfer: TransferInfo) -> str:
    """Return the numbers of the transfers that wrote what comes back; of many the one that wrote the most of it."""
    writers = transfer.partners or (transfer.round_trip,)
    if len(writers) > _MOST_WRITERS:
        return f"{transfer.round_trip} and {len(writers) - 1} more"
    return ", ".join(map(str, sorted(writer for writer in writers if writer is not None)))


def where_text(transfer: TransferInfo) -> str:
    """Return the user's line, or the computation."""
    source = transfer.source
    if source is None:
        return printable(transfer.computation)
    function = printable(source.function or "").rpartition(".")[2]
    place = f"{printable(os.path.basename(source.file))}:{source.line}"
    return f"{place} in {function}" if function and function != "<module>" else place


def verdict_text(transfer: TransferInfo, mark: str) -> str:
    """Return a transfer's verdict in its colour, with the mark of one that is not sure."""
    return click.style(transfer.verdict + mark, fg=COLORS[transfer.verdict])


def _row(transfer: TransferInfo) -> list[str]:
    found = transfer.predicted
    covered = "" if found is None else share(found.cover_ms, found.duration_ms)
    mark = "" if transfer.robust in (True, None) else "?"
    kind = {"dma": "", "kernel": " kernel", "unknown": " copy or kernel"}.get(
        transfer.mechanism, f" {transfer.mechanism}"
    )
    return [
        f"{transfer.direction} {transfer.id:>3}",
        tensor_text(transfer) + kind,
        bytes_text(transfer.bytes),
        f"x{transfer.executions}",
        "" if found is None else time_text(found.duration_each_ms),
        covered,
        "" if found is None else time_text(found.wait_ms),
        verdict_text(transfer, mark),
        where_text(transfer),
    ]


_HEADER = ["transfer", "tensor", "each", "runs", "takes", "covered", "waits", "verdict", "where"]
_TENSOR = 1
_MOST_WRITERS = 3
LEFT = frozenset({"transfer", "tensor", "verdict", "where"})
"""Columns of transfers that are no figures."""


def _without_function(where: str) -> str:
    return where.partition(" in ")[0]


_NARROWING: tuple[Step, ...] = (
    ("where", _without_function),
    *(("tensor", 18), ("where", 18)),
    *(("takes", None), ("window", None)),
    *(("tensor", 12), ("where", 12)),
    *(("each", None), ("p90", None), ("runs", None), ("GB/s", None)),
    *(("tensor", 8), ("where", 8)),
    *(("covered", None), ("ratio", None), ("model", None)),
)
TRANSFERS = Layout(_NARROWING)
"""A table of transfers: it never does without which it is, its wait and its verdict."""


def _table(report: Report, width: int, show_all: bool) -> list[str]:
    shown = report.transfers if show_all else _most_telling(report.transfers)
    rows = [_row(transfer) for transfer in shown]
    longest = max(24, width - 70)
    for row in rows:
        row[_TENSOR] = cut(row[_TENSOR], longest)
    caption = [" times predicted, waits those of a step:"] if report.step.predicted else []
    lines = [*caption, *table(columns_named(_HEADER, LEFT), rows, width, TRANSFERS)]
    if any(transfer.robust is False for transfer in shown):
        lines.append(" ? the verdict changes within the range of the prediction")
    if len(shown) < len(report.transfers):
        lines += wrapped(_rest(report, len(shown)), width, 1, 3)
    return lines


def _most_telling(transfers: tuple[TransferInfo, ...]) -> tuple[TransferInfo, ...]:
    """Return all, in schedule order; of a long list those that wait the longest."""
    if len(transfers) <= SHOWN_ROWS:
        return transfers
    ordered = sorted(transfers, key=lambda t: (-(t.predicted.wait_ms if t.predicted else 0.0), t.id))
    return tuple(sorted(ordered[: SHOWN_ROWS // 2], key=lambda t: t.id))


def _rest(report: Report, shown: int) -> str:
    counts: dict[str, int] = {}
    for transfer in report.transfers:
        counts[transfer.verdict] = counts.get(transfer.verdict, 0) + 1
    summary = ", ".join(f"{count} {verdict}" for verdict, count in sorted(counts.items()))
    return f"the {shown} that wait the longest, of {len(report.transfers)} ({summary}); --all shows them all"


def _memory(report: Report, width: int) -> list[str]:
    memory = report.memory
    sent = sum(t.bytes_per_step for t in report.transfers if t.direction == "d2h")
    back = sum(t.bytes_per_step for t in report.transfers if t.direction == "h2d")
    parts = []
    about = "about " if memory.source == "estimated" else ""
    if memory.device_bytes is not None:
        limit = memory.device_limit_bytes
        too_much = limit is not None and memory.device_bytes > limit
        used, there = bytes_text(memory.device_bytes), bytes_text(limit or 0)
        if limit is not None and too_much:
            used, there = bytes_texts(memory.device_bytes, limit)
        device = f"device {about}{used}{f' of {there}' if limit else ''}"
        parts.append(click.style(device, fg="red") if too_much else device)
    if memory.host_bytes is not None:
        parts.append(f"pinned host {about}{bytes_text(memory.host_bytes)}")
    parts.append(f"moves {bytes_text(sent)} to the host and {bytes_text(back)} back a step")
    lines = flow([f" memory    {parts[0]}", *parts[1:]], "   ", width, _MARGIN)
    late = [transfer for transfer in report.transfers if transfer.release is not None and transfer.release.late]
    if late:
        copies = sum(transfer.direction == "d2h" for transfer in report.transfers)
        kept = bytes_text(sum(transfer.bytes_per_step for transfer in late))
        text = f"{len(late)} of {copies} copies to the host ({kept}) start only when the backward pass has begun"
        lines += wrapped(text, width, _MARGIN, _MARGIN)
    for kind in ("parameter", "result"):
        values = [value for value in report.host_values if value.kind == kind]
        if values:
            total = bytes_text(sum(value.bytes for value in values))
            live = f"{kind} lives" if len(values) == 1 else f"{kind}s live"
            lines += wrapped(f"{len(values)} {live} in host memory ({total})", width, _MARGIN, _MARGIN)
    for copy in report.host_copies[:SHOWN_NAMES]:
        how = f"{copy.mechanism}, {bytes_text(copy.bytes)} x{copy.executions}"
        lines += wrapped(f"{printable(copy.instruction)} reads and writes host memory ({how})", width, _MARGIN, _MARGIN)
    if len(report.host_copies) > SHOWN_NAMES:
        lines.append(f"{' ' * _MARGIN}and {len(report.host_copies) - SHOWN_NAMES} more do")
    return lines


def _reasons(report: Report, width: int, named: frozenset[int]) -> list[str]:
    """Return why transfers are waited for: those that cost the most and that no finding names."""
    waiting = [t for t in report.transfers if t.verdict not in (HIDDEN, UNKNOWN) and t.predicted and t.id not in named]
    waiting.sort(key=lambda t: -(t.predicted.wait_ms if t.predicted else 0.0))
    lines: list[str] = []
    for transfer in waiting[:SHOWN_REASONS]:
        found = transfer.predicted
        assert found is not None
        link_gbps = link_that_hides_gbps(report, transfer)
        needed = f"; a link of {link_gbps:.0f} GB/s would hide it" if link_gbps else ""
        text = f"{transfer.direction} {transfer.id} is {transfer.verdict}: {printable(transfer.reason)}{needed}."
        lines += wrapped(text, width, 1, 3)
    return ["", *lines] if lines else []


_SEVERITY_COLORS = {"error": "red", "warning": "yellow", "info": "cyan"}


def _shown_findings(report: Report, show_all: bool) -> tuple[FindingInfo, ...]:
    if show_all:
        return report.findings
    return tuple(finding for finding in report.findings if finding.severity != "info")[:SHOWN_FINDINGS]


def findings_text(report: Report, width: int, show_all: bool) -> list[str]:
    lines: list[str] = []
    for finding in _shown_findings(report, show_all):
        lines += _finding_head(finding, width)
        lines += wrapped(_sentence(finding.message), width, 3, 3)
        if finding.source_text and finding.source:
            lines += [f"   {finding.source.line} | {printable(finding.source_text)}"[:width]]
        lines += wrapped(f"Try  {printable(finding.remedy)}.", width, 3, 8)
    if show_all:
        lines += _not_run(report, width)
    counted = _finding_count(report, show_all)
    return ["", *lines, *flow(counted, "   ", width, 3)] if counted else ["", *lines] if lines else []


def _finding_head(finding: FindingInfo, width: int) -> list[str]:
    place = ""
    if finding.source is not None:
        place = f"{printable(os.path.basename(finding.source.file))}:{finding.source.line}"
    elif finding.instruction:
        place = printable(finding.instruction)
    cost = f"{time_text(finding.cost_ms)} a step" if finding.cost_ms else ""
    left = f"{finding.code} {finding.severity:<7}"
    middle = "   ".join(part for part in (f"{finding.name:<27}", cost) if part)
    color = _SEVERITY_COLORS[finding.severity]
    if len(left) + len(middle) + len(place) + 6 > width:
        middle = "  ".join(part for part in (finding.name, cost) if part)
    if len(left) + len(middle) + len(place) + 6 > width:
        return [f"{click.style(left, fg=color, bold=True)}   {middle}", *wrapped(place, width, 3, 3)]
    space = max(3, width - len(left) - 3 - len(middle) - len(place))
    return [f"{click.style(left, fg=color, bold=True)}   {middle}{' ' * space}{place}".rstrip()]


def _sentence(text: str) -> str:
    return f"{printable(text[:1]).upper()}{printable(text[1:])}."


def _not_run(report: Report, width: int) -> list[str]:
    """Return the rules that did not run, by what they lack."""
    by_reason: dict[str, list[str]] = {}
    for rule in report.rules_not_run:
        by_reason.setdefault(rule.reason, []).append(rule.code)
    lines: list[str] = []
    for reason, codes in by_reason.items():
        lines += wrapped(f"not run: {', '.join(codes)}: {reason}", width, 0, 3)
    return lines


def _finding_count(report: Report, show_all: bool) -> list[str]:
    """Return ``1 error, 2 warnings, 1 note.``, and how to see more."""
    words = {"error": "error", "warning": "warning", "info": "note"}
    parts = []
    for severity, word in words.items():
        count = sum(finding.severity == severity for finding in report.findings)
        if count:
            parts.append(f"{count} {word}{'s' if count > 1 else ''}")
    if not parts:
        return []
    line = ", ".join(parts)
    hidden = len(report.findings) - len(_shown_findings(report, show_all))
    if hidden:
        line += f" ({hidden} more with --all)"
    return [f"{line}.", f"What a code means: hloinspect rules {report.findings[0].code}"]


def _loose_ends(report: Report, width: int, named: frozenset[int]) -> list[str]:
    """Return transfers without another end: sent and never read, fetched and never written."""
    lines: list[str] = []
    for outcome, text in (
        ("never read", "sent and neither fetched nor returned"),
        ("never written", "fetched, and written by nothing in this step"),
    ):
        found = [f"{t.direction} {t.id}" for t in report.transfers if t.outcome == outcome and t.id not in named]
        if found:
            lines += wrapped(f"{listed(found, SHOWN_NAMES)}: {text}", width, 1, 3)
    return lines


def _notes(report: Report, width: int) -> list[str]:
    is_counted = report.step.predicted is not None
    unknown = [one for one in report.unknown if not (one.affects == "memory" and is_counted)]
    lines = [*unknown_lines(unknown, width), *limit_lines(report.limits, width)]
    return ["", *lines] if lines else []
