"""The numbers that several rooms judge by, each with its reason or its source.

kinds.py has those of the verdicts; a number of which one rule or one model alone depends stands there.
"""

from __future__ import annotations

SMALL_STALL_SHARE = 0.02
"""A step that waits for the host less than this share of its time hides its transfers. Our own choice: it is below what
the predicted step is uncertain by (docs/accuracy.md)."""

UNSEEN_SHARE = 0.001
"""Two times of a step are alike if they differ by less than this share of it: nobody could see the difference."""

SCHEDULER_MEMORY_SHARE = 0.8
"""Share of device memory to which XLA's latency-hiding scheduler keeps (openxla/xla: gpu_hlo_schedule.cc,
GetSchedulerMemoryLimit: 80 % of the device's memory, then the slop factor). Beyond it transfers may be serialized."""

ALLOCATOR_SHARE = 0.75
"""Share of the device's memory that XLA's allocator hands out at most in a process of JAX, with preallocation or
without, unless XLA_PYTHON_CLIENT_MEM_FRACTION says otherwise (openxla/xla: gpu_helpers.cc, CreateBFCAllocator)."""

INFO_COST_SHARE = 0.005
"""A rule on time whose finding costs less than this share of the step only informs."""

WARNING_COST_SHARE = 0.05
"""One that costs less than this share warns at most, and so does one whose verdicts all change within the prediction's
range."""

# ---- how many are shown one by one, where no more are requested

SHOWN_ROWS = 40
"""Transfers, and requested placements, in a table of the terminal."""

SHOWN_FINDINGS = 5
"""Findings in the text of a report."""

SHOWN_REASONS = 3
"""Transfers of which the text of a report says why they are waited for."""

SHOWN_NAMES = 4
"""Transfers, values or modules that a sentence names."""
