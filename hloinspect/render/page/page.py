"""The page: one file with everything in it, which loads nothing and runs no script but its own.

Its content security policy allows the one style sheet and the one script by their hashes. The same answers give the
same bytes.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from hloinspect.render.page import copies, instructions, memory, sections, step_programs
from hloinspect.render.page.elements import element, sentence, text
from hloinspect.render.page.island import island
from hloinspect.render.page.sides import Side

if TYPE_CHECKING:
    from hloinspect.gate.difference import Difference

FOLDER = Path(__file__).with_name("assets")
SCRIPTS = ("decode.js", "layout.js", "paint.js", "timeline.js", "tables.js", "panel.js", "main.js")
MARK = '<meta name="generator" content="hloinspect">'
"""The mark by which a page of ours is known."""

_UNNAMED = "no program"
"""What a profile that names no program is called, here as on a terminal."""


def build(sides: Sequence[Side], difference: Difference | None = None) -> str:
    """Return the page of one or two inputs as text."""
    style = (FOLDER / "page.css").read_text(encoding="utf-8")
    parts = "\n".join((FOLDER / name).read_text(encoding="utf-8") for name in SCRIPTS)
    script = f'"use strict";\n(() => {{\n{parts}\n}})();\n'
    policy = (
        f"default-src 'none'; style-src {_hash(style)}; script-src {_hash(script)}; base-uri 'none'; form-action 'none'"
    )
    title = " | ".join(side.report.module.name or _UNNAMED for side in sides)
    head = (
        '<meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        f'{MARK}<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="color-scheme" content="light dark">'
        f"<title>{text(title)} - hloinspect</title><style>{style}</style>"
    )
    data = f'<script type="application/json" id="data">{island(sides)}</script>'
    return (
        f'<!DOCTYPE html>\n<html lang="en">\n<head>{head}</head>\n<body>\n{_body(sides, difference)}\n'
        f"{data}\n<script>{script}</script>\n</body>\n</html>\n"
    )


def _hash(source: str) -> str:
    digest = hashlib.sha256(source.encode("utf-8")).digest()
    return f"'sha256-{base64.b64encode(digest).decode('ascii')}'"


def _body(sides: Sequence[Side], difference: Difference | None) -> str:
    names = [text(side.report.module.name or _UNNAMED) for side in sides]
    title = " and ".join(names) if len(set(names)) > 1 else names[0]
    parts = [
        sections.summary(sides),
        sections.differences(difference) if difference is not None else "",
        _timeline(sides),
        sections.findings(sides),
        _tables(sides),
        step_programs.step_programs(sides),
        memory.memory(sides),
        memory.requested(sides),
        memory.others(sides),
        instructions.instructions(sides),
        copies.copies(sides),
        sections.devices(sides),
        sections.trust(sides),
    ]
    inner = "".join(parts)
    links = "".join(f'<a href="#{place}">{name}</a>' for place, name in _PLACES if f'id="{place}"' in inner)
    header = (
        f'<header><a class="skip" href="#findings">Skip to the findings</a><h1>{title}</h1>'
        f'<nav aria-label="Sections">{links}</nav>'
        '<button type="button" id="theme" title="Change between light and dark">Dark</button></header>'
    )
    return f"{header}<main>{inner}</main>{_FOOTER}"


_PLACES = (
    ("summary", "Summary"),
    ("difference", "Difference"),
    ("timeline", "Timeline"),
    ("findings", "Findings"),
    ("transfers", "Transfers"),
    ("waits", "Waits"),
    ("memory", "Memory"),
    ("requested", "Requested"),
    ("instructions", "Instructions"),
    ("devices", "Devices"),
    ("trust", "Trust"),
)

_FOOTER = "<footer><p>Made by hloinspect. This file holds everything that it shows, and loads nothing.</p></footer>"

_TOOLS = (
    ("zoom-in", "+", "Zoom in (plus key)"),
    ("zoom-out", "\u2212", "Zoom out (minus key)"),
    ("fit", "Fit", "Show the whole step (0)"),
    ("left", "\u25c0", "Earlier (left arrow)"),
    ("right", "\u25b6", "Later (right arrow)"),
    ("previous", "Previous transfer", "Select the transfer before (p)"),
    ("next", "Next transfer", "Select the next transfer (n)"),
)

_HELP = (
    "Drag to move, Ctrl and wheel to zoom (the wheel alone once the timeline has been clicked). Click a transfer to "
    "see why it waits. Keys: arrows move, plus and minus zoom, 0 shows the whole step, n and p go from transfer to "
    "transfer, Escape deselects. The tables of transfers and waits below hold the same as text."
)


def _timeline(sides: Sequence[Side]) -> str:
    notes = "".join(f"<p>{sentence(note)}</p>" for side in sides for note in side.notes)
    if not any(side.bands for side in sides):
        return element("section", f"<h2>Timeline</h2>{notes}", id="timeline")
    tools = "".join(
        element("button", label, type="button", id=f"tool-{name}", title=title, aria_label=title)
        for name, label, title in _TOOLS
    )
    inner = (
        "<h2>The step over time</h2>"
        f'<div class="tools" role="toolbar" aria-label="Timeline">{tools}<span id="devices-choice"></span></div>'
        '<div class="tools" id="loops" role="group" aria-label="Loops"></div>'
        '<div id="stage"><canvas id="canvas" tabindex="0" role="application" aria-roledescription="timeline" '
        'aria-label="The step over time" aria-describedby="timeline-help"></canvas>'
        '<div id="tip" role="presentation" hidden></div></div>'
        '<div id="legend" role="list" aria-label="Legend"></div>'
        f'<p id="timeline-help" class="help">{_HELP}</p>'
        '<p id="shown" class="help"></p><p id="live" class="unseen" aria-live="polite"></p>'
        '<div id="panel" tabindex="-1" hidden></div>'
        f"{notes}<noscript><p>The timeline and the tables below are drawn by the script in this file.</p></noscript>"
    )
    return element("section", inner, id="timeline")


def _tables(sides: Sequence[Side]) -> str:
    if not any(side.report.transfers for side in sides):
        return ""
    filters = (
        '<div class="filters"><label>Direction <select id="filter-direction"><option value="">both</option>'
        '<option value="d2h">d2h, to the host</option><option value="h2d">h2d, to the device</option></select></label>'
        '<label>Verdict <select id="filter-verdict"><option value="">all</option></select></label>'
        '<label>Text <input id="filter-text" type="search" placeholder="tensor, file, instruction"></label>'
        '<output id="filter-count"></output></div>'
    )
    found = (
        f'<section id="transfers"><h2>Transfers</h2>{filters}<div class="scroll"><table id="transfer-table"></table>'
        "</div></section>"
    )
    if not any(side.bands for side in sides):
        return found
    return (
        f'{found}<section id="waits"><h2>Waits</h2><p class="help" id="waits-note"></p>'
        '<div class="scroll"><table id="wait-table"></table></div></section>'
    )
