"""The parts of the page that need no script: summary, what is different, findings, devices, how far to trust it."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

from hloinspect.render.page.elements import element, preformatted, prose, sentence, table, text
from hloinspect.render.page.sides import Side
from hloinspect.render.page.words import MOODS, UNSEEN, Figure, compared, kind_text, summary_figures, verdict_of
from hloinspect.report.schema import DeviceInfo, FindingInfo, ProgramInfo, Report
from hloinspect.report.unexplained import unexplained_text
from hloinspect.report.unseen import waits_unseen
from hloinspect.units import time_text

if TYPE_CHECKING:
    from hloinspect.gate.difference import Difference

_MAX_NAMED = 8
"""Transfers of a finding that are named; the others are counted."""

_WORDS = {"error": "error", "warning": "warning", "info": "note"}


def summary(sides: Sequence[Side]) -> str:
    """Return the first screen: for each input the answer in a sentence, and its figures."""
    cards = "".join(_card(side, name) for side, name in zip(sides, _names(sides), strict=True))
    return element("section", f'<h2 class="unseen">Summary</h2><div class="cards">{cards}</div>', id="summary")


def _names(sides: Sequence[Side]) -> list[str]:
    """Return how the inputs are called: without their folders, where their names still differ."""
    paths = [side.report.input.path for side in sides]
    short = [path.rstrip("/").rpartition("/")[2] for path in paths]
    return short if len(set(short)) == len(short) else paths


def _card(side: Side, name: str) -> str:
    report = side.report
    verdict = verdict_of(report)
    parts = []
    if side.label:
        parts.append(f'<h3 class="side"><b class="letter">{text(side.label)}</b> {text(name)}</h3>')
    if unexplained := unexplained_text(report):
        parts.append(f'<p class="kind"><b>{sentence(unexplained)}</b></p>')
    mood = element("span", MOODS[verdict.mood], class_=f"mood {verdict.mood}")
    parts.append(f'<p class="verdict">{mood} {text(verdict.sentence)}</p>')
    parts.append(f'<p class="kind">{text(" ".join(part for part in (verdict.detail, kind_text(report)) if part))}</p>')
    parts += [f'<p class="kind">{sentence(said)}</p>' for said in report.first_texts]
    if report.compared is not None and report.compared.differences:
        items = "".join(f"<li>{sentence(one)}</li>" for one in report.compared.differences)
        parts.append(f'<ul class="changes">{items}</ul>')
    figures = "".join(map(_figure, summary_figures(report)))
    parts.append(f'<dl class="figures">{figures}</dl>')
    if rows := compared(report):
        parts.append(table(("a step", "predicted", "measured"), rows, "Predicted and measured", (1, 2)))
    worst = [finding for finding in report.findings if finding.severity != "info"][:3]
    if worst:
        items = "".join(_pointer(finding, side) for finding in worst)
        parts.append(f'<h3>What to do</h3><ul class="todo">{items}</ul>')
    unsure = [unknown for unknown in report.unknown if unknown.affects != "memory"]
    if unsure:
        items = "".join(f"<li>{sentence(unknown.reason)}</li>" for unknown in unsure[:3])
        more = '<li><a href="#trust">and more</a></li>' if len(unsure) > 3 else ""
        parts.append(f"<h3>What is not known</h3><ul>{items}{more}</ul>")
    return element("article", "".join(parts), class_="card")


def _figure(figure: Figure) -> str:
    meter = ""
    if figure.share is not None:
        percent = f"{100 * min(1.0, figure.share):.1f}"
        meter = (
            '<svg class="bar" viewBox="0 0 100 4" preserveAspectRatio="none" aria-hidden="true">'
            f'<rect class="{figure.mood}" width="{percent}" height="4"/></svg>'
        )
    note = f"<small>{text(figure.note)}</small>" if figure.note else ""
    return f"<div><dt>{text(figure.name)}</dt><dd><b>{text(figure.value)}</b>{meter}{note}</dd></div>"


def _pointer(finding: FindingInfo, side: Side) -> str:
    link = f'<a href="#{_finding_id(finding, side)}">{text(finding.code)}</a>'
    return f"<li>{link} {sentence(finding.message)} <b>Try:</b> {sentence(finding.remedy)}</li>"


def _finding_id(finding: FindingInfo, side: Side) -> str:
    number = next(place for place, other in enumerate(side.report.findings) if other is finding)
    return f"finding-{side.label or 'x'}-{number}"


# ---- what is different


def differences(found: Difference) -> str:
    """Return what differs between two inputs: figures, and the lines of `hloinspect diff`."""
    from hloinspect.gate.explain import (
        amount_text,
        changed_metrics,
        explanation,
        not_compared,
        percent_text,
        without_module,
    )

    parts = ["<h2>What is different in B</h2>"]
    bare = without_module(found)
    rows = [
        (change.metric, amount_text(change.before, change.unit), amount_text(change.after, change.unit), percent)
        for change in changed_metrics(found)
        for percent in (percent_text(change),)
    ]
    if rows:
        parts.append(table(("figure", "A", "B", "change"), rows, "Figures that differ, a step", (1, 2, 3)))
    lines = [not_compared(bare)] if bare else explanation(found, show_all=True)
    items = "".join(f"<li>{text(' '.join(line.split()))}</li>" for line in lines)
    parts.append(f'<ul class="changes">{items}</ul>' if items else "")
    if not rows and not items and not bare:
        parts.append("<p>No difference was found.</p>")
    return element("section", "".join(parts), id="difference")


# ---- findings


def findings(sides: Sequence[Side]) -> str:
    """Return every finding, and below them the pages of the rules that fired."""
    cards = [_finding(finding, side, place) for place, side in enumerate(sides) for finding in side.report.findings]
    codes = sorted({finding.code for side in sides for finding in side.report.findings})
    if not cards:
        empty = "<h2>Findings</h2><p>No rule found anything to say.</p>"
        return element("section", empty, id="findings")
    pages = "".join(map(_rule_page, codes))
    inner = f"<h2>Findings</h2>{''.join(cards)}<h3>What the codes mean</h3>{pages}"
    return element("section", inner, id="findings")


def _finding(finding: FindingInfo, side: Side, place: int) -> str:
    cost = f'<span class="cost">{text(time_text(finding.cost_ms))} a step</span>' if finding.cost_ms else ""
    letter = f'<b class="letter">{text(side.label)}</b> ' if side.label else ""
    word = _WORDS[finding.severity]
    head = (
        f'<h3>{letter}<span class="badge {finding.severity}">{word}</span> '
        f'<a href="#rule-{text(finding.code)}">{text(finding.code)}</a> {text(finding.name)} {cost}</h3>'
    )
    parts = [head, f"<p>{sentence(finding.message)}</p>"]
    if finding.source is not None:
        where = f"{os.path.basename(finding.source.file)}:{finding.source.line}"
        function = f" in {finding.source.function}" if finding.source.function else ""
        named = element("code", text(where), title=finding.source.file)
        parts.append(f'<p class="where">{named}{text(function)}</p>')
    if finding.source_text:
        parts.append(preformatted(finding.source_text))
    parts.append(f'<p class="remedy"><b>Try</b> {sentence(finding.remedy)}</p>')
    if finding.gain_ms:
        parts.append(f"<p>That would win back at most {text(time_text(finding.gain_ms))} a step, as predicted.</p>")
    if finding.transfers:
        named = "".join(
            element("button", f"transfer {number}", type="button", data_side=str(place), data_transfer=str(number))
            for number in finding.transfers[:_MAX_NAMED]
        )
        more = len(finding.transfers) - _MAX_NAMED
        rest = f" and {more:,} more" if more > 0 else ""
        parts.append(f'<p class="named">{named}{rest}</p>')
    return element("article", "".join(parts), class_=f"finding {finding.severity}", id=_finding_id(finding, side))


def _rule_page(code: str) -> str:
    from hloinspect.rules.registry import rule_of

    rule = rule_of(code)
    parts = []
    for heading, body in rule.sections().items():
        parts.append(f"<h4>{text(heading)}</h4>")
        parts.append(preformatted(body) if heading == "Example" else prose(body))
    head = f"<summary><b>{text(code)}</b> {text(rule.name)}: {text(rule.summary)}</summary>"
    return element("details", head + "".join(parts), id=f"rule-{code}", class_="rule")


# ---- devices


def devices(sides: Sequence[Side]) -> str:
    """Return a row for each measured device; nothing for predictions."""
    tables = []
    for side in sides:
        rows = [
            (
                f"{device.host} {device.name}",
                f"{device.steps_analyzed:,} of {device.steps_seen:,}",
                time_text(device.step_ms.median) if device.step_ms else "?",
                time_text(device.compute_ms) if device.compute_ms is not None else "?",
                *_waits(side.report, device),
                time_text(device.idle_ms) if device.idle_ms is not None else "?",
            )
            for device in side.report.devices
        ]
        head = ("device", "steps that count", "median step", "compute", "waits", "90 % of waits below", "idle")
        if rows:
            tables.append(table(head, rows, f"{side.label} Devices".strip(), range(1, 7)))
    return element("section", "<h2>Devices</h2>" + "".join(tables), id="devices") if tables else ""


def _waits(report: Report, device: DeviceInfo) -> tuple[str, str]:
    """Return the mean and the ninetieth percentile of a device's waits."""
    step, spread = report.step.measured, device.stall_spread_ms
    if device.stall_ms is None or spread is None:
        return "?", "?"
    if spread.max <= 0 and step is not None and waits_unseen(report, step):
        return UNSEEN, UNSEEN
    return time_text(device.stall_ms), time_text(spread.p90)


# ---- how far to trust it


def trust(sides: Sequence[Side]) -> str:
    """Return what is not known, what to keep in mind, and what was read."""
    parts = ["<h2>How far to trust this</h2>"]
    for side in sides:
        report = side.report
        if side.label:
            parts.append(f'<h3><b class="letter">{text(side.label)}</b> {text(report.input.path)}</h3>')
        if report.unknown:
            items = "".join(
                f"<li>{sentence(unknown.reason)} <b>Try</b> {sentence(unknown.remedy)}</li>"
                for unknown in report.unknown
            )
            parts.append(f"<h4>What is not known</h4><ul>{items}</ul>")
        limits = "".join(f"<li>{sentence(limit)}</li>" for limit in (*report.limits, *side.notes))
        parts.append(f"<h4>To keep in mind</h4><ul>{limits}{_thresholds(report)}</ul>")
        if report.rules_not_run:
            by_reason: dict[str, list[str]] = {}
            for rule in report.rules_not_run:
                by_reason.setdefault(rule.reason, []).append(rule.code)
            items = "".join(
                f"<li>{text(', '.join(codes))}: {sentence(reason)}</li>" for reason, codes in by_reason.items()
            )
            parts.append(f"<h4>Rules that lacked evidence</h4><ul>{items}</ul>")
        parts.append(_made(report))
    return element("section", "".join(parts), id="trust")


def _thresholds(report: Report) -> str:
    hidden, exposed = 100 * report.thresholds.hidden, 100 * report.thresholds.exposed
    return (
        f"<li>A transfer is hidden if at least {hidden:g} % of its time is covered by compute or collectives, exposed "
        f"below {exposed:g} %, partial in between, and synchronous without a start and a wait of its own.</li>"
    )


def _made(report: Report) -> str:
    program, module, target = report.program, report.module, report.target
    link = target.link if target else None
    rows = [
        ("input", report.input.path),
        ("sha256", report.input.sha256 or ""),
        ("module", f"{module.name}, {module.instructions:,} instructions, {module.platform}"),
        ("target", f"{target.devices} x {target.name}" if target else ""),
        ("host link", f"{link.d2h_gbps:g} GB/s to the host, {link.h2d_gbps:g} GB/s back" if link else ""),
        ("jax", program.jax or ""),
        ("jaxlib", program.jaxlib or ""),
        ("XLA flags", " ".join(program.flags) if program.flags else ""),
        ("topology", program.topology or ""),
        *_configured(program),
        ("hloinspect", report.hloinspect),
    ]
    body = "".join(f"<div><dt>{text(name)}</dt><dd>{text(value)}</dd></div>" for name, value in rows if value)
    return f'<dl class="made">{body}</dl>'


def _configured(program: ProgramInfo) -> list[tuple[str, str]]:
    found = program.configuration
    if found is None:
        return []
    return [
        (title, ", ".join(f"{name}={value}" for name, value in values.items()))
        for title, values in (
            ("compile options", found.compile_options),
            ("JAX's configuration", found.jax),
            ("environment", found.environment),
            ("compiler", found.libraries),
        )
    ]
