"""Causes of waits: each waiting transfer gets one, so that no two rules report the same wait.

The causes that explain the most are tried first. A step whose scheduler is off has no windows at all, so nothing is
said of each window.
"""

from __future__ import annotations

from typing import Final, Literal

from hloinspect.kinds import D2H, H2D, HIDDEN, SYNCHRONOUS, UNKNOWN
from hloinspect.offload.events import HOST_COMPUTE
from hloinspect.offload.roundtrips import ARGUMENT
from hloinspect.offload.transfers import Transfer
from hloinspect.rules.facts import Facts

SCHEDULER_FLAG = "xla_gpu_enable_latency_hiding_scheduler"
ESTIMATOR_FLAG = "xla_gpu_enable_analytical_sol_latency_estimator"

Cause = Literal[
    "useless", "whole stack", "blocking", "scheduler", "link", "kernel", "limit", "early", "queue", "barrier",
    "not pipelined", "point of use", "short",
]  # fmt: skip
USELESS: Final = "useless"
WHOLE_STACK: Final = "whole stack"
BLOCKING: Final = "blocking"
SCHEDULER: Final = "scheduler"
LINK: Final = "link"
KERNEL: Final = "kernel"
LIMIT: Final = "limit"
EARLY: Final = "early"
QUEUE: Final = "queue"
BARRIER: Final = "barrier"
NOT_PIPELINED: Final = "not pipelined"
POINT_OF_USE: Final = "point of use"
SHORT: Final = "short"

TINY_SHARE = 0.10
"""The share of a transfer's bytes below which a window counts as none: it could hide less than this."""

LINK_SHARE = 1.05
"""The least ratio of the link's time to that of the step without transfers with which the link limits the step."""


def cause_of(facts: Facts, transfer: Transfer, scheduler_off: bool, bound: frozenset[str]) -> Cause | Literal[""]:
    """Return the cause of one transfer's wait, or "" where it does not wait.

    ``scheduler_off`` says whether XLA's latency-hiding scheduler is off, ``bound`` the directions of the link that
    limit the step.
    """
    info = facts.infos[transfer.id]
    found = info.predicted
    if found is None or info.verdict in (HIDDEN, UNKNOWN) or facts.wait_of(transfer.id) <= 0:
        return ""
    if facts.sends_constant(transfer) or facts.is_never_read(transfer):
        return USELESS
    if facts.feeds_loop_of_layers(transfer):
        return WHOLE_STACK
    if info.verdict == SYNCHRONOUS:
        return KERNEL if transfer.mechanism == "kernel" else BLOCKING
    if scheduler_off:
        return SCHEDULER
    if transfer.direction in bound:
        return LINK
    if transfer.mechanism == "kernel":
        return KERNEL
    work = facts.window_work(transfer.id)
    looping = facts.iterations(transfer.id) > 1
    if work == 0 and looping and facts.is_gpu and facts.at_memory_limit:
        return LIMIT
    if transfer.direction == H2D:
        if waits_before_use(facts, transfer):
            return EARLY
        barrier = transfer.done_computation in facts.remat_barriers
        if barrier and (looping or found.binding != "queue"):
            return BARRIER
        if looping and facts.is_gpu and not facts.is_carried(transfer.id):
            return NOT_PIPELINED
    if found.binding == "queue":
        return QUEUE
    hides = found.largest_hidden_bytes
    if hides is not None and hides < TINY_SHARE * transfer.bytes and (work or 0) <= 1:
        return POINT_OF_USE
    return SHORT


def waits_before_use(facts: Facts, transfer: Transfer) -> bool:
    """Return whether the device waits for an argument in host memory earlier than necessary.

    There is then more work before the argument's first use than in its window: the wait could come later.
    """
    if transfer.outcome != ARGUMENT:
        return False
    use, done = facts.first_uses.get(transfer.id), transfer.done_index
    window = facts.window_work(transfer.id)
    if use is None or done is None or window is None or transfer.done_computation is None:
        return False
    return facts.work_between(transfer.done_computation, done, use) > max(3, window)


def bound_directions(facts: Facts) -> frozenset[str]:
    """Return the directions of the link that need longer for a step's bytes than the step would take without
    transfers."""
    step = facts.step
    if step is None or step.ideal_ms <= LINK_SHARE * step.without_transfers_ms:
        return frozenset()
    busy = {D2H: step.busy_d2h_ms, H2D: step.busy_h2d_ms}
    return frozenset(way for way, time in busy.items() if time > LINK_SHARE * step.without_transfers_ms)


def why_scheduler_is_off(facts: Facts) -> str:
    """Return why XLA:GPU's latency-hiding scheduler seems to have been off, or "" (rule HLO111)."""
    if not facts.is_gpu or not facts.module.is_scheduled:
        return ""
    if facts.has_flag(SCHEDULER_FLAG) == "true":
        return ""
    if facts.has_flag(SCHEDULER_FLAG) == "false" and facts.has_flag(ESTIMATOR_FLAG) == "false":
        return "the flags turn it off"
    pairs = [t for t in facts.transfers.values() if t.asynchronous and _is_plain_copy(facts, t)]
    if not pairs or any(facts.window_work(t.id) != 0 for t in pairs):
        return ""
    if facts.offload and any(event.kind == HOST_COMPUTE for event in facts.offload.host_events):
        return "computation on the host (compute_on) turns it off"
    return "every copy is waited for where it is started" if len(pairs) > 1 else ""


def _is_plain_copy(facts: Facts, transfer: Transfer) -> bool:
    """Return whether a transfer is a copy-start and not a slice.

    No other pass separates the start of such a copy from its done (gpu_hlo_schedule.cc,
    ShouldScheduleAsEarlyAsPossible).
    """
    start = facts.module.computations[transfer.computation].instruction(transfer.start_index)
    return start.opcode == "copy-start"
