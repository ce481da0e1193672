"""The parts of a plan's text that not every plan has: other links and targets, tensors one by one, the search."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import click

from hloinspect.errors import printable
from hloinspect.plan.model import Elsewhere, Plan, TensorLine, TransferLine
from hloinspect.render.terminal.table import NARROW, Column, Layout, columns_named, table
from hloinspect.render.terminal.wrap import wrapped
from hloinspect.units import bytes_text, time_text

_BAR = 24
_BARS = (Column(is_left=True), Column(is_left=True, least=_BAR), Column(is_left=True))
_LAYOUT = replace(NARROW, narrowing=(("hides at", None), ("transfer", None)))
_MOST_TRANSFERS = 12


def elsewhere_lines(plan: Plan, width: int) -> list[str]:
    """Return each point's step under each other link and target, and what becomes of the transfers of one of them."""
    if not plan.elsewhere:
        return []
    labels = list(dict.fromkeys(one.label for one in plan.elsewhere))
    found = {(one.point, one.label): one for one in plan.elsewhere}
    names = {one.label: _heading(one) for one in plan.elsewhere}
    rows = []
    for point in plan.points:
        if point.step is None:
            continue
        cells = [found.get((point.number, label)) for label in labels]
        rows.append(
            [
                str(point.number),
                printable(" ".join(point.settings.values())) or "as it is",
                time_text(point.step.time_ms),
                *(_time(cell) for cell in cells),
            ]
        )
    header = ["", "what if", "as planned", *(names[label] for label in labels)]
    return [*table(columns_named(header, header[:2]), rows, width, NARROW), *_transfers(plan, labels, found, width)]


def _heading(one: Elsewhere) -> str:
    return f"{_label(one.label)} (compiled for {printable(one.stand_in)})" if one.stand_in else _label(one.label)


def _label(text: str) -> str:
    """Return the short name of a link: ``170/415GB/s`` for ``d2h=170GB/s,h2d=415GB/s``."""
    rates = dict(part.partition("=")[::2] for part in text.split(","))
    if set(rates) == {"d2h", "h2d"} and rates["d2h"].endswith("GB/s"):
        return f"{printable(rates['d2h'].removesuffix('GB/s'))}/{printable(rates['h2d'])}"
    return printable(text)


def _time(one: Elsewhere | None) -> str:
    if one is None or one.step is None:
        return "unknown"
    text = time_text(one.step.time_ms)
    return f"{text}, does not fit" if one.fits is False else text


def _transfers(plan: Plan, labels: Sequence[str], found: dict[tuple[int, str], Elsewhere], width: int) -> list[str]:
    """Return at which link each transfer of the best point that has any hides, and a bar of what the step waits
    there."""
    moving = [point for point in plan.points if point.transfers and point.step is not None and not point.offload_lost]
    if not moving:
        return []
    chosen = min(moving, key=lambda point: (not point.is_good, -point.speed))
    assert chosen.step is not None
    rows = []
    for transfer in chosen.transfers[:_MOST_TRANSFERS]:
        cells = [found.get((chosen.number, label)) for label in labels]
        needed = transfer.needed_link_gbps
        rows.append(
            [
                f"{transfer.direction} {transfer.id}",
                printable(_name(transfer)),
                _wait(transfer.verdict, transfer.wait_ms),
                *(_wait(c.verdicts.get(transfer.id, ""), c.waits_ms.get(transfer.id)) if c else "" for c in cells),
                f"{needed:.0f} GB/s" if needed else "-",
            ]
        )
    header = ["transfer", "tensor", "as planned", *(_label(label) for label in labels), "hides at"]
    lines = ["", f" transfers of point {chosen.number}: how much the device waits for each, a step"]
    lines += table(columns_named(header, header[:2]), rows, width, _LAYOUT)
    if len(chosen.transfers) > _MOST_TRANSFERS:
        lines.append(f" and {len(chosen.transfers) - _MOST_TRANSFERS} more (--format json)")
    stalls = [("as planned", chosen.step.stall_ms)]
    for label in labels:
        there = found.get((chosen.number, label))
        if there is not None and there.step is not None:
            stalls.append((_label(label), there.step.stall_ms))
    longest = max(stall for _, stall in stalls) or 1.0
    lines += ["", f" waiting of point {chosen.number}, a step"]
    bars = [(label, "#" * round(_BAR * stall / longest), time_text(stall)) for label, stall in stalls]
    return [*lines, *table(_BARS, bars, width, Layout(has_head=False))]


def _name(transfer: TransferLine) -> str:
    return f"{transfer.name} {transfer.tensor}" if transfer.name else transfer.tensor


def _wait(verdict: str, wait_ms: float | None) -> str:
    if wait_ms is None:
        return "unknown"
    return time_text(wait_ms) if wait_ms else "hidden" if verdict == "hidden" else "0"


# --- tensors --------------------------------------------------------------------------------------


def tensor_lines(plan: Plan, width: int) -> list[str]:
    """Return for each offloaded tensor what it frees, what it costs, and what would be without it."""
    if not plan.tensors:
        return []
    header = ["tensor", "frees", "on the link", "waits", "recomputed", "kept", "advice"]
    rows = [
        [
            printable(line.name),
            _size(line.freed_bytes),
            "" if line.link_ms is None else time_text(line.link_ms),
            "" if line.wait_ms is None else time_text(line.wait_ms),
            _change(line.gain_ms),
            _kept(line),
            click.style(line.advice, bold=True),
        ]
        for line in plan.tensors
    ]
    lines = [
        f" tensors that point {plan.tensors_of} offloads, each alone made otherwise; step longer (+) or shorter (-)"
    ]
    lines += table(columns_named(header, {"tensor", "advice"}), rows, width, NARROW)
    for line in plan.tensors:
        lines += wrapped(f"{printable(line.name)}: {printable(line.why)}", width, 1, 4)
    return lines


def _size(value: int | None) -> str:
    if value is None:
        return "unknown"
    return bytes_text(value) if value >= 0 else f"-{bytes_text(-value)}"


def _change(gain_ms: float | None) -> str:
    if gain_ms is None:
        return "unknown"
    if abs(gain_ms) < 1e-3:
        return "the same"
    return f"-{time_text(gain_ms)}" if gain_ms > 0 else f"+{time_text(-gain_ms)}"


def _kept(line: TensorLine) -> str:
    text = _change(line.keep_gain_ms)
    return f"{text}, does not fit" if line.kept_fits is False else text


# --- the search -----------------------------------------------------------------------------------


def search_lines(plan: Plan, width: int) -> list[str]:
    """Return the moves of the search, and what to write into the program."""
    found = plan.search
    if found is None:
        return []
    lines = [
        click.style(f" search: point {found.point} after {found.tried} points; {printable(found.ended)}", bold=True)
    ]
    lines += [f"   {printable(move)}" for move in found.moves]
    lines += wrapped(f"policy: {printable(found.policy_code)}", width, 1, 4)
    lines.append(f" flags: {printable(found.flags_line) or 'none'}")
    return lines
