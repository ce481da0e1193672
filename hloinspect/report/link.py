"""The faster link that would hide a transfer, where such a link could exist."""

from __future__ import annotations

from hloinspect.report.schema import Report, TransferInfo

MOST_TIMES_FASTER = 10
"""A link that would have to be faster than the target's by more than this is no advice: it cannot be bought."""


def link_that_hides_gbps(report: Report, transfer: TransferInfo) -> float | None:
    """Return the rate of the link at which a transfer would hide, or None where no rate would, none is needed, or it is
    too far above the rate of the target's link."""
    needed = transfer.predicted.needed_link_gbps if transfer.predicted else None
    link = report.target.link if report.target else None
    if not needed or link is None:
        return needed
    has = link.d2h_gbps if transfer.direction == "d2h" else link.h2d_gbps
    return needed if needed <= MOST_TIMES_FASTER * has else None
