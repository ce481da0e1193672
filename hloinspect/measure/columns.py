"""Figures of a step and of a transfer in it: columns with one element for each step."""

from __future__ import annotations

FIGURES = (
    *("time_ps", "compute_ps", "collective_ps", "collective_exposed_ps", "exposed_d2h_ps", "exposed_h2d_ps"),
    *("exposed_ps", "idle_ps", "stall_ps", "stall_d2h_ps", "stall_h2d_ps", "host_bound_ps"),
    *("busy_d2h_ps", "busy_h2d_ps", "other_copies_ps"),
)
"""The columns of a device: one figure for each step, in ps. ``busy`` are unions by direction, ``other_copies`` copies
that are no offload."""

TRANSFER_FIGURES = (
    *("events", "bytes", "duration_ps", "cover_ps", "wait_ps"),
    *("alone_bytes", "alone_ps", "together_bytes", "together_ps"),
)
"""The columns of a transfer: one figure for each step, over all its executions in the step. ``alone`` are the
executions beside which the other direction was off (for at most 2 % of their time), ``together`` those where it was on
for half or more. On a TPU only executions whose window no other transfer shares count as alone, and none as
together."""
