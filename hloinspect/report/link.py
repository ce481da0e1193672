"""The faster link that would hide a transfer, where there could be such a link."""

from __future__ import annotations

from hloinspect.report.schema import Report, TransferInfo

MOST_TIMES_FASTER = 10
"""A link that would have to be faster than the target's by more than this is no advice: nobody can buy it."""


def link_that_hides_gbps(report: Report, transfer: TransferInfo) -> float | None:
    """Return the rate of the link at which a transfer would hide, for whoever puts it into words; None where none
    would, none is needed, or it is out of reach of the target's link."""
    needed = transfer.predicted.needed_link_gbps if transfer.predicted else None
    link = report.target.link if report.target else None
    if not needed or link is None:
        return needed
    has = link.d2h_gbps if transfer.direction == "d2h" else link.h2d_gbps
    return needed if needed <= MOST_TIMES_FASTER * has else None
