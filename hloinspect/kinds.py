"""The five verdicts, and their thresholds, which stand in every report."""

from __future__ import annotations

HIDDEN_SHARE = 0.95
"""A transfer of which at least this share of its time is covered by compute or a collective is hidden."""

EXPOSED_SHARE = 0.10
"""One of which less than this is covered is exposed; in between it is partial."""

HIDDEN = "hidden"
PARTIAL = "partial"
EXPOSED = "exposed"
SYNCHRONOUS = "synchronous"
UNKNOWN = "unknown"


def verdict_of(duration_ps: int, cover_ps: int, wait_ps: int = 0, gain_ps: int | None = None) -> str:
    """The verdict on an asynchronous transfer by the covered share of its duration. One that takes no time is hidden.

    A collective can cover a transfer while the main stream stands still at its done. So a covered transfer is only
    hidden if
    it is hardly waited for, or if the step would not be shorter without it (``gain_ps``, None where that is not known).
    """
    if duration_ps <= 0:
        return HIDDEN
    share = cover_ps / duration_ps
    if share >= HIDDEN_SHARE:
        slack = (1 - HIDDEN_SHARE) * duration_ps
        return HIDDEN if wait_ps <= slack or (gain_ps is not None and gain_ps <= slack) else PARTIAL
    return EXPOSED if share < EXPOSED_SHARE else PARTIAL
