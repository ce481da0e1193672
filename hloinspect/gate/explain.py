"""Text of a difference: the same lines for `diff`, for the gate's failures and for every reporter of CI."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import TYPE_CHECKING

from hloinspect.errors import printable
from hloinspect.gate.snapshot import MEASURED, Snapshot
from hloinspect.units import bytes_text, time_text

if TYPE_CHECKING:  # a check without a baseline has no difference to explain, and does not import the code for it
    from hloinspect.gate.difference import Difference, MetricChange, TransferChange
    from hloinspect.gate.findings import FindingChange

MAX_CHANGES = 12
"""The number of transfers that are listed. Of more, those that cost the most."""

_SAME_SHARE = 5e-4
_LABELS = {"went": "gone", "came": "new", "changed": "changed"}


def explanation(found: Difference, show_all: bool = False) -> list[str]:
    """Return what came, went and changed, a line each, without colour. It is empty where nothing did."""
    shown = found.transfers if show_all else found.transfers[:MAX_CHANGES]
    lines = [transfer_line(change) for change in shown]
    if len(shown) < len(found.transfers):
        lines.append(f"and {len(found.transfers) - len(shown)} more transfers (--all shows them)")
    lines += [finding_line(change) for change in found.findings]
    return lines + [printable(line) for line in found.made]


def transfer_line(change: TransferChange) -> str:
    """Return a line like ``gone     d2h hid bf16[4,4096,16384] x8 (4 GiB a step)   train.py:41 in layer``."""
    from hloinspect.gate.difference import counts_text, place, tensor_group_text
    from hloinspect.gate.findings import CAME, CHANGED

    group = change.group
    line = f"{_LABELS[change.kind]:<8} {printable(tensor_group_text(group))}"
    if change.kind == CHANGED:
        line += f": {'; '.join(map(printable, change.what))}"
    else:
        line += f" x{group.runs} ({bytes_text(group.bytes_per_step)} a step"
        if change.kind == CAME:
            line += f", {printable(counts_text(group.verdicts))}"
            line += f", waits {time_text(group.wait_ms)}" if group.wait_ms else ""
        line += ")"
    where = printable(place(group))
    return f"{line}   {where}".rstrip()


def finding_line(change: FindingChange) -> str:
    """Return a line like ``new      HLO101 error h2d-at-point-of-use: hid   train.py:41``."""
    from hloinspect.gate.difference import place
    from hloinspect.gate.findings import CHANGED, finding_tensors_text

    finding = change.after or change.before
    assert finding is not None
    line = f"{_LABELS[change.kind]:<8} {finding.code} {finding.severity} {finding.name}"
    if change.kind == CHANGED and change.before is not None:
        line += f" (was {change.before.severity})"
    tensors = printable(finding_tensors_text(finding))
    line += f": {tensors}" if tensors else f" x{finding.count}" if finding.count > 1 else ""
    return f"{line}   {printable(place(finding))}".rstrip()


def amount_text(value: float | None, unit: str) -> str:
    """Return an amount for people, ``?`` where it is not known."""
    if value is None:
        return "?"
    if unit == "ms":
        return time_text(value)
    if unit == "bytes":
        return bytes_text(round(value))
    return f"{value:.2f} %" if unit == "%" else f"{value:g}"


def amount_texts(value: float, limit: float, unit: str) -> tuple[str, str]:
    """Return an amount and its limit, with more digits where the amount is over the limit and both would look the
    same."""
    texts = amount_text(value, unit), amount_text(limit, unit)
    if value <= limit or texts[0] != texts[1]:
        return texts
    if unit == "bytes":
        return f"{value:,.0f} B", f"{limit:,.0f} B"
    return f"{value:.9g} {unit}", f"{limit:.9g} {unit}"


def changed_metrics(found: Difference) -> list[MetricChange]:
    """Return the figures that differ visibly, or that only one side knows.

    What only a module shows is left out where a side is a profile without one.
    """
    bare = bool(without_module(found))
    return [
        change
        for change in found.metrics
        if _differs(change) and not (bare and change.metric.startswith(("bytes.", "count.", "time of ")))
    ]


def without_module(found: Difference) -> tuple[str, ...]:
    """Return which sides, A or B, are a profile without its module: it lists no transfers, so none came or went."""
    sides = (("A", found.before), ("B", found.after))
    return tuple(side for side, one in sides if one.kind == MEASURED and not one.made.fingerprint)


def not_compared(sides: Sequence[str]) -> str:
    """Return what is not compared, since these sides have no module."""
    verb = "has" if len(sides) == 1 else "have"
    return f"transfers, findings and classes are not compared: {' and '.join(sides)} {verb} no module"


def _differs(change: MetricChange) -> bool:
    if change.before is None or change.after is None:
        return change.before != change.after
    return abs(change.after - change.before) > _SAME_SHARE * max(abs(change.before), abs(change.after))


def percent_text(change: MetricChange) -> str:
    """Return a text like ``+12 %``, or "" where there is nothing to divide by."""
    if not change.before or change.after is None:
        return ""
    share = 100 * (change.after / change.before - 1)
    return f"{share:+.0f} %" if abs(share) >= 10 else f"{share:+.1f} %"


def snapshot_title(snapshot: Snapshot) -> str:
    """Return a text like ``train.py:step on 8 x gb200, predicted``."""
    target = f" on {snapshot.devices} x {printable(snapshot.target)}" if snapshot.target else ""
    return f"{printable(snapshot.step)}{target}, {snapshot.kind}"


def look_closer(source: str, target: str | None, devices: int | None = None, is_trace: bool = False) -> str:
    """Return the command that shows more of an input."""
    words = ["hloinspect", "trace" if is_trace else "inspect", printable(source)]
    words += ["--target", printable(target)] if target else []
    words += ["--devices", str(devices)] if target and devices and devices > 1 else []
    return shlex.join(words)


def joined(lines: Sequence[str], indent: str) -> list[str]:
    """Return lines with an indent."""
    return [f"{indent}{line}" for line in lines]
