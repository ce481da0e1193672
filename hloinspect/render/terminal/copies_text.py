"""What else used the link, for a terminal: copies of a profile that are no transfers of the step."""

from __future__ import annotations

from collections.abc import Sequence

from hloinspect.errors import printable
from hloinspect.render.terminal.report_text import share
from hloinspect.render.terminal.table import Layout, columns_named, table
from hloinspect.render.terminal.wrap import wrapped
from hloinspect.report.schema import OtherCopiesInfo, Report
from hloinspect.units import bytes_text, time_text

COPIES_SHOWN = 8
"""Rows that are shown: of more, those that took the longest."""

PAGEABLE, LEAST_PAGEABLE_BYTES = "pageable", 1 << 20
"""The driver's word for memory that is not pinned, and from how many bytes in a profile on there is advice about it."""

PAGEABLE_ADVICE = (
    "pageable: the driver moves such memory piece by piece through a small pinned buffer of its own, so these copies "
    "are slow, and the thread that starts them waits. Pinned memory avoids that (JAX: arrays of memory kind "
    "pinned_host, PyTorch: pin_memory)"
)
HEAD = ("copies", "memory", "made by", "count", "bytes", "take", "GB/s", "beside ours", "in steps")
_LAYOUT = Layout((("in steps", None), ("made by", 12), ("bytes", None), ("made by", 6)))


def copies_text(report: Report, width: int) -> list[str]:
    """Return a row for each direction, memory and origin of other copies, and what follows for pageable memory."""
    every = report.trace.other_copies if report.trace else ()
    if not every:
        return []
    shown = every[:COPIES_SHOWN]
    has_steps = report.step.measured is not None
    beside = " (beside ours: as a transfer went the same way)" if has_steps else ""
    caption = f" {'other ' if has_steps else ''}copies on the link, sums over the profile{beside}:"
    lines = [*wrapped(caption, width, 0, 3)]
    head = [name for name in HEAD if has_steps or name not in HEAD[-2:]]
    rows = [copies_row(copies)[: len(head)] for copies in shown]
    lines += table(columns_named(head, {"copies", "memory", "made by"}), rows, width, _LAYOUT)
    if len(shown) < len(every):
        lines.append(f" and {len(every) - len(shown)} smaller rows (trace.other_copies of the JSON has them all)")
    if has_slow(every):
        lines += wrapped(f"{PAGEABLE_ADVICE}.", width, 1, 3)
    return lines


def has_slow(rows: Sequence[OtherCopiesInfo]) -> bool:
    """Return whether so much goes through pageable memory that it is worth changing."""
    return sum(copies.bytes for copies in rows if copies.memory == PAGEABLE) >= LEAST_PAGEABLE_BYTES


def copies_row(copies: OtherCopiesInfo) -> list[str]:
    """Return the cells of a row, as ``HEAD`` has them."""
    return [
        copies.direction,
        "not stated" if copies.memory == "unstated" else copies.memory,
        made_by(copies),
        f"{copies.count:,}",
        bytes_text(copies.bytes),
        time_text(copies.device_ms),
        "" if copies.gbps is None else f"{copies.gbps:.3g}",
        share(copies.shared_ms, copies.device_ms),
        "" if copies.in_steps_ms is None else share(copies.in_steps_ms, copies.device_ms),
    ]


def made_by(copies: OtherCopiesInfo) -> str:
    """Return what makes the copies, in words."""
    if copies.origin == "program":
        return printable(copies.program) or "another program"
    return "no instruction" if copies.origin == "eager" else "callbacks"
