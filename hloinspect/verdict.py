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


def verdict_of(duration_ps: int, cover_ps: int) -> str:
    """The verdict on an asynchronous transfer by the covered share of its duration. One that takes no time is
    hidden."""
    if duration_ps <= 0:
        return HIDDEN
    share = cover_ps / duration_ps
    if share >= HIDDEN_SHARE:
        return HIDDEN
    return EXPOSED if share < EXPOSED_SHARE else PARTIAL
