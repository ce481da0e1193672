"""The numbers that several rooms judge by. Each has its source; those without one are our own choice.

kinds.py has those of the verdicts. A number on which one rule or one model alone depends stands there.
"""

from __future__ import annotations

SMALL_STALL_SHARE = 0.02
"""The share of a step's time below which its waits for the host count as hidden."""

UNSEEN_SHARE = 0.001
"""The share of a step's time below which a difference of two times does not count."""

SCHEDULER_MEMORY_SHARE = 0.8
"""The share of device memory that XLA's latency-hiding scheduler uses at most (openxla/xla: gpu_hlo_schedule.cc,
GetSchedulerMemoryLimit: 80 % of the device's memory, then the slop factor). Beyond it transfers may be serialized."""

ALLOCATOR_SHARE = 0.75
"""The largest share of the device's memory that XLA's allocator uses in a process of JAX, with preallocation or
without, unless XLA_PYTHON_CLIENT_MEM_FRACTION says otherwise (openxla/xla: gpu_helpers.cc, CreateBFCAllocator)."""

INFO_COST_SHARE = 0.005
"""The share of the step below which a finding of a rule on time is information only."""

WARNING_COST_SHARE = 0.05
"""The share of the step below which it is at most a warning. So is one whose verdicts all change within the
prediction's range."""

UNEXPLAINED_SHARE = 0.05
"""The share of the step from which on the distance of a class of instructions from its predicted range counts: the
model does not explain the profile then."""

# ---- how many are shown one by one, where no more are requested

SHOWN_ROWS = 40
"""Transfers, and requested placements, in a table of the terminal."""

SHOWN_INSTRUCTIONS = 5
"""Instructions of a trace that a terminal shows below their classes."""

SHOWN_FINDINGS = 5
"""Findings in the text of a report."""

SHOWN_REASONS = 3
"""Transfers of which the text of a report says why they are waited for."""

SHOWN_NAMES = 4
"""Transfers, values or modules that a sentence names."""
