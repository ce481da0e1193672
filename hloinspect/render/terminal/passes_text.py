"""The ledger of passes for a terminal: the ends first, then each pass that changed something."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from pathlib import Path

import click

from hloinspect.kinds import Direction, ItemKind
from hloinspect.passes.census import KINDS, MOVES, PLACED, Census, Count
from hloinspect.passes.difference import TextDifference
from hloinspect.passes.dump import PassText
from hloinspect.passes.follow import Trail
from hloinspect.passes.ledger import Change, Ledger, change_sentences
from hloinspect.units import bytes_text

_MOST_LINES = 200
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
    """The table. ``head`` says what was compiled, or where the texts are."""
    dump = ledger.dump
    lines = [
        f"{dump.key}   {len(dump.texts)} texts of passes, {bytes_text(dump.size_bytes)}   {head}",
        "",
        *_wrapped(f"asked for    {_requested(ledger.first)}", width),
        *_wrapped(f"in the end   {_made(ledger.last)}", width),
        *(click.style(line, fg="red") for found in _dropped(ledger) for line in _wrapped(found, width)),
    ]
    for change in ledger.shown:
        lines += ["", *_change_lines(change, width)]
    lines += ["", *_foot(ledger, width)]
    return "\n".join(lines)


def _wrapped(text: str, width: int) -> list[str]:
    return textwrap.wrap(text, width, subsequent_indent=" " * 13, break_long_words=False, break_on_hyphens=False)


def _requested(census: Census) -> str:
    """The placements of a text, or what moves there already."""
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
    for kind in change.kinds:
        before, after = change.before.of(kind), change.after.of(kind)
        lines.append(f"         {KINDS[kind]:<32} {_count(before):>16}  ->  {_count(after)}".rstrip()[:width])
    return lines


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
        more = f" and {len(dump.others) - 4} more" if len(dump.others) > 4 else ""
        notes.append(f"Other modules (--module): {', '.join(dump.others[:4])}{more}.")
    notes.append("More: --pass NAME shows the instructions, --follow NAME where a transfer came from.")
    return textwrap.wrap(" ".join(notes), width, break_long_words=False, break_on_hyphens=False)


# ---- one pass, instruction by instruction


def differences_text(found: tuple[TextDifference, ...], wanted: str, whole: bool = False) -> str:
    """Both sides of the texts of a pass as a unified diff; ``whole`` writes however much that is."""
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
    """The stations of a transfer, the last text's first."""
    item = trail.hops[0].item
    lines = [
        f"{item.name}   {item.tensor}, {bytes_text(item.bytes)} each time, followed backwards",
        "",
    ]
    for hop in trail.hops:
        number = str(hop.text.number) if hop.text.number >= 0 else ""
        lines.append(f"{number:>5}  {click.style(hop.text.label, bold=True)}")
        known = f"   known by {hop.by}" if hop.by else ""
        lines.append(f"         {_what(hop.item.kind, hop.item.mechanism):<19} {hop.item.name}{known}")
    return "\n".join([*lines, "", *textwrap.wrap(_ending(trail), width, break_long_words=False)])


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
        return f"It was asked for by {last.item.name}, which is there from the beginning{at}."
    return f"It is there from the beginning, as {last.item.name}{at}: no placement made it."


def _short(place: str) -> str:
    file, _, line = place.rpartition(":")
    return f"{Path(file).name}:{line}"
