"""The ledger of passes for a terminal: the ends first, then each pass that changed something."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import click

from hloinspect.kinds import Direction, ItemKind
from hloinspect.passes.census import KINDS, MOVES, PLACED, Census, Count
from hloinspect.passes.difference import TextDifference
from hloinspect.passes.dump import PassText
from hloinspect.passes.follow import Hop, Trail
from hloinspect.passes.ledger import Change, Ledger, change_sentences
from hloinspect.render.terminal.table import Column, Layout, cut, table
from hloinspect.render.terminal.wrap import wrapped
from hloinspect.thresholds import SHOWN_NAMES
from hloinspect.units import bytes_text, listed

_MOST_LINES = 200


def _without_bytes(cell: str) -> str:
    return cell.partition(" ")[0]


_MARGIN = len("requested    ")
_COUNTS = (
    Column("what", is_left=True, least=31),
    Column("before", least=16),
    Column("->"),
    Column("after", is_left=True),
)
"""Of a pass: what is counted, before, an arrow, after. As wide for each pass, so that they stand below each other."""
_HOPS = (Column(is_left=True, least=19), Column(is_left=True))
_BELOW = Layout(indent=9, has_head=False)
_COUNTED = replace(_BELOW, narrowing=(("before", 13), ("before", _without_bytes), ("after", _without_bytes)))
_COLORS = {"-": "red", "+": "green"}
_WARNINGS = ("dropped", "became kernels", "kernels work", "became compute", "became host", "made synchronous")
_ONE = {
    "annotation_d2h": "annotation for the host",
    "annotation_h2d": "annotation for the device",
    "host_copy": "copy within host memory",
    "host_buffer": "buffer in host memory",
}
_ENDS: Mapping[Direction, str] = {"d2h": "to the host", "h2d": "back"}


def ledger_text(ledger: Ledger, head: str, width: int = 100) -> str:
    """Return the table. ``head`` says what was compiled, or where the texts are."""
    dump = ledger.dump
    lines = [
        f"{dump.key}   {len(dump.texts)} texts of passes, {bytes_text(dump.size_bytes)}   {head}",
        "",
        *wrapped(f"requested    {_requested(ledger.first)}", width, 0, _MARGIN),
        *wrapped(f"in the end   {_made(ledger.last)}", width, 0, _MARGIN),
        *(click.style(line, fg="red") for found in _dropped(ledger) for line in wrapped(found, width, 0, _MARGIN)),
    ]
    for change in ledger.shown:
        lines += ["", *_change_lines(change, width)]
    lines += ["", *_foot(ledger, width)]
    return "\n".join(lines)


def _requested(census: Census) -> str:
    """Return the placements of a text, or what moves there already."""
    parts = []
    for direction, where in _ENDS.items():
        counts = [census.of(kind) for kind in PLACED[direction]]
        if count := sum(c.count for c in counts):
            parts.append(f"{count} {where} ({bytes_text(sum(c.bytes for c in counts))})")
    if buffers := census.of("host_buffer").count:
        parts.append(f"{_plural(buffers, 'buffer')} in host memory ({bytes_text(census.of('host_buffer').bytes)})")
    return ", ".join(parts) or "nothing: no placement in the first text"


def _made(census: Census) -> str:
    parts = []
    for direction in _ENDS:
        for kind in MOVES[direction]:
            count = census.of(kind)
            if count.count:
                parts.append(f"{direction} {count.count} {_how(kind.partition('_')[0])} ({bytes_text(count.bytes)})")
    others: tuple[ItemKind, ...] = (
        "annotation_d2h",
        "annotation_h2d",
        "mark_d2h",
        "mark_h2d",
        "host_copy",
        "host_compute",
        "host_buffer",
    )
    for kind in others:
        if (count := census.of(kind)).count:
            label = KINDS[kind] if count.count > 1 else _ONE.get(kind, KINDS[kind])
            parts.append(f"{count.count} {label} ({bytes_text(count.bytes)})")
    return ", ".join(parts) or "nothing: no transfer, nothing in host memory"


def _how(kind: str) -> str:
    return {"async": "asynchronous", "copy": "synchronous", "slice": "synchronous slices", "kernel": "by kernels"}[kind]


def _plural(count: int, word: str) -> str:
    return f"{count} {word}{'' if count == 1 else 's'}"


def _dropped(ledger: Ledger) -> list[str]:
    found = []
    for change in ledger.shown:
        if dropped := change.dropped:
            counts = [(count, change.before.placements(way), _ENDS[way]) for way, count in dropped.items()]
            what = " and ".join(f"{count} of {before} {way}" for count, before, way in counts)
            found.append(f"lost         {what}, by {change.text.label}{_number(change.text)}")
    return found


def _number(text: PassText) -> str:
    return f" (text {text.number})" if text.number >= 0 else ""


def _change_lines(change: Change, width: int) -> list[str]:
    text = change.text
    number = str(text.number) if text.number >= 0 else ""
    where = f"   in {text.pipeline}" if text.pipeline and not text.is_start and not text.inside else ""
    lines = [f"{number:>5}  {click.style(text.label, bold=True)}{where}"]
    for sentence in change_sentences(change):
        color = "red" if any(word in sentence for word in _WARNINGS) else "cyan"
        lines.append(f"       {click.style(sentence, fg=color)}")
    counts = [(kind, change.before.of(kind), change.after.of(kind)) for kind in change.kinds]
    rows = [(KINDS[kind], _count(before), "->", _count(after)) for kind, before, after in counts]
    return [*lines, *(cut(line, width) for line in table(_COUNTS, rows, width, _COUNTED))]


def _count(count: Count) -> str:
    return f"{count.count}   {bytes_text(count.bytes):>8}" if count.count else "0" + " " * 11


def _foot(ledger: Ledger, width: int) -> list[str]:
    dump = ledger.dump
    notes = [f"Nothing of interest changed in {ledger.quiet} other texts."]
    if dump.inside:
        notes.append(f"{dump.inside} from inside passes left out (--steps).")
    if dump.missing:
        notes.append(f"{_plural(dump.missing, 'number')} without a text: the pass of a gap is not seen.")
    if any(change.text.is_start for change in ledger.shown):
        notes.append("What changes before a pipeline was changed by something that left no text.")
    notes.append("Bytes are those of one execution: a loop's are not multiplied.")
    if dump.others:
        notes.append(f"Other modules (--module): {listed(dump.others, SHOWN_NAMES)}.")
    notes.append("More: --pass NAME shows the instructions, --follow NAME where a transfer came from.")
    return wrapped(" ".join(notes), width)


# ---- one pass, instruction by instruction


def differences_text(found: tuple[TextDifference, ...], wanted: str, whole: bool = False) -> str:
    """Return both sides of the texts of a pass as a unified diff; ``whole`` writes however much that is."""
    if not found:
        return f"{wanted}: no text of it changes anything that has to do with the host"
    lines: list[str] = []
    for difference in found:
        lines += ["", *_difference_lines(difference)] if lines else _difference_lines(difference)
    if len(lines) > _MOST_LINES and not whole:
        rest = len(lines) - _MOST_LINES
        lines = [*lines[:_MOST_LINES], f"... {rest} more lines (--verbose, or a text's number instead of {wanted})"]
    return "\n".join(lines)


def _difference_lines(difference: TextDifference) -> list[str]:
    lines = [f"--- {difference.before.path.name}", f"+++ {difference.after.path.name}"]
    for part in difference.parts:
        lines.append(click.style(f"@@ {part.computation} @@", fg="cyan"))
        for line in part.lines:
            text = f"{line.sign} {line.text}"
            lines.append(click.style(text, fg=_COLORS[line.sign]) if line.sign in _COLORS else text)
    if not difference.parts:
        lines.append("no instruction that has to do with the host is different, but for names")
    if difference.left_out:
        lines.append(
            f"({_plural(difference.left_out, 'changed line')} of tuples, parameters and loops left out: --verbose)"
        )
    return lines


# ---- one transfer, backwards


def trail_text(trail: Trail, width: int = 100) -> str:
    """Return what a transfer was in each text, the last text's first."""
    item = trail.hops[0].item
    lines = [
        f"{item.name}   {item.tensor}, {bytes_text(item.bytes)} each time, followed backwards",
        "",
    ]
    known = [f"   known by {hop.by}" if hop.by else "" for hop in trail.hops]
    rows = [
        (_what(hop.item.kind, hop.item.mechanism), hop.item.name + by)
        for hop, by in zip(trail.hops, known, strict=True)
    ]
    for hop, line in zip(trail.hops, table(_HOPS, rows, width, replace(_BELOW, gaps=(1, 1))), strict=True):
        number = str(hop.text.number) if hop.text.number >= 0 else ""
        lines += [f"{number:>5}  {click.style(hop.text.label, bold=True)}", line]
    return "\n".join([*lines, "", *wrapped(_ending(trail), width)])


def _hop(hop: Hop) -> tuple[str, str]:
    known = f"   known by {hop.by}" if hop.by else ""
    return _what(hop.item.kind, hop.item.mechanism), hop.item.name + known


def _what(kind: str, mechanism: str) -> str:
    if kind.startswith("annotation"):
        return "annotation"
    word = {"mark_d2h": "MoveToHost", "mark_h2d": "MoveToDevice"}.get(kind)
    if word:
        return word
    word = kind.replace("_", " ").replace("copy d", "copy, d").replace("copy h2", "copy, h2")
    return f"{word}, {mechanism}" if mechanism and kind.startswith("async") else word


def _ending(trail: Trail) -> str:
    last = trail.hops[-1]
    place = next((hop.item.place for hop in reversed(trail.hops) if hop.item.place), "")
    at = f" ({_short(place)})" if place else ""
    if trail.end is not None:
        return (
            f"The trail is lost at {trail.end.label}{_number(trail.end)}: before it, {trail.lost}. "
            f"The pass made it, or kept no record of what it was{at}."
        )
    if last.item.kind.startswith(("annotation", "mark")):
        return f"It was requested by {last.item.name}, which is there from the beginning{at}."
    return f"It is there from the beginning, as {last.item.name}{at}: no placement made it."


def _short(place: str) -> str:
    file, _, line = place.rpartition(":")
    return f"{Path(file).name}:{line}"
