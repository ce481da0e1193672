"""The figures of a step and of a transfer in it, which are columns with one element a step."""

from __future__ import annotations

FIGURES = (
    *("time_ps", "compute_ps", "collective_ps", "collective_exposed_ps", "exposed_d2h_ps", "exposed_h2d_ps"),
    *("exposed_ps", "idle_ps", "stall_ps", "stall_d2h_ps", "stall_h2d_ps", "host_bound_ps"),
    *("busy_d2h_ps", "busy_h2d_ps", "other_copies_ps"),
)
"""The columns of a device: one figure a step, in ps. ``busy`` are unions by direction, ``apart`` copies that are no
offload."""

TRANSFER_FIGURES = (
    *("events", "bytes", "duration_ps", "cover_ps", "wait_ps"),
    *("alone_bytes", "alone_ps", "together_bytes", "together_ps"),
)
"""The columns of a transfer: one figure a step, all runs of it in the step together. ``alone`` are the runs beside
which the other direction was off (for at most 2 % of their time), ``together`` those where it was on for half or more;
on a TPU only runs whose window no other transfer shares count as alone, and none as together."""
