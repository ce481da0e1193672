"""Rules HLO110 and HLO111: how the compiler executes transfers, as kernels or without its scheduler."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from hloinspect.compile.versions import BUT_NOT
from hloinspect.hlo.shape import Shape
from hloinspect.kinds import D2H
from hloinspect.offload.events import HOST_COMPUTE
from hloinspect.offload.roundtrips import ROUND_TRIP
from hloinspect.offload.transfers import Transfer, wrapped_body
from hloinspect.rules.advice import scanning
from hloinspect.rules.causes import ESTIMATOR_FLAG, SCHEDULER, SCHEDULER_FLAG
from hloinspect.rules.evidence import Evidence
from hloinspect.rules.rule import ERROR, MODULE, PREDICTION, SCHEDULE, WARNING, Found, Rule
from hloinspect.rules.words import transfers_text, verb, waits
from hloinspect.units import time_text

PEELED = "peeled out of a loop whose other iterations are copies"
STRIDED = "since the slice is not one run of memory"
BY_DATA = "since XLA saw no fixed address for the slice"
COMPUTES = "since the instruction also computes"
PASS_OFF = "since the flags turn off the pass that makes copies of slices"

DISABLED_FLAG = "xla_disable_hlo_passes"
_COPYING_PASSES = ("dynamic-slice-annotator", "fusion-dynamic-memcpy-rewriter")

_KERNEL_REMEDIES = {
    PEELED: "this is the price of pipelining: once a step; in a long loop it needs no change",
    STRIDED: "slice along the first dimension (put the sliced dimension first), so that the slice is one run of memory",
    BY_DATA: f"slice with the loop's own counter (scan over the stack itself), with jax 0.8.0 or later{BUT_NOT}; an "
    "index that is data, or one outside of loops, stays a kernel",
    PASS_OFF: f"leave the pass out of --{DISABLED_FLAG}, with jax 0.11.1 or later only: before, it can copy wrong "
    "slices (HLO301)",
    COMPUTES: "send or fetch the value by itself: a jax.device_put before or after the computation",
}


def as_kernel(evidence: Evidence) -> Iterator[Found]:
    """A transfer runs as a kernel instead of a copy.

    What it finds
        On GPU, a transfer that XLA emits as a kernel which reads or writes pinned host memory, not as a copy by a copy
        engine: the address of the slice is not known in advance, so XLA cannot make a memcpy of it.
    Why it matters
        A kernel occupies SMs while it waits for the link, so it slows the compute that should hide it; small ones reach
        less of the link's rate.
    What to do
        There are five known reasons. *jax before 0.6.2* makes kernels of all slices. *Peeled out of a loop* by
        pipelining or double buffering: the price of HLO112's flag, once a step. *An index that is data*, or one at the
        top level: index with the loop's own counter instead (scan over the stack itself). *Not one run of memory* (a
        slice of inner dimensions): put the sliced dimension first. *A pass is off*: `--xla_disable_hlo_passes` with
        dynamic-slice-annotator or fusion-dynamic-memcpy-rewriter, the workaround for HLO301, makes kernels of all
        slices; leave it in until jax 0.11.1. Do not update to jax 0.10.2 or 0.11.0: their copies read wrong slices.
    When the advice does not hold
        A peeled pair of a long loop costs one iteration of many. A gather of rows from a table on the host cannot be a
        copy.
    Example
        llama405b_pipe_cudnn of the corpus: the eight transfers of the peeled layer are kernels, once a step each.
    References
        openxla/xla pull requests 26229 and 44044; docs/ground-truth.md; failure U7 of docs/failures.md.
    """
    if not evidence.is_gpu:
        return
    kernels = [t for t in evidence.transfers.values() if t.mechanism == "kernel"]
    if not kernels:
        return
    numbers = evidence.costliest_first(t.id for t in kernels)
    why = Counter(why_kernel(evidence, transfer) for transfer in kernels)
    (main, _), *_ = sorted(why.items(), key=lambda each: (-each[1], each[0]))
    yield Found(
        message=f"{transfers_text(evidence, numbers)} {verb(numbers, 'runs as a kernel', 'run as kernels')} over the "
        f"link, {main}{waits(evidence, numbers)}",
        remedy=_KERNEL_REMEDIES[main],
        transfers=numbers,
        cost_ms=evidence.wait_ms(numbers),
        gain_ms=None,
        evidence={"kernels": len(kernels), "peeled": why[PEELED], "wait_ms": evidence.wait_ms(numbers)},
    )


def why_kernel(evidence: Evidence, transfer: Transfer) -> str:
    """Return why XLA makes a kernel of a transfer, as far as its slice shows."""
    copied = any(t.mechanism == "dma" for side in evidence.by_buffer.get(transfer.buffer, ()) for t in side)
    if copied and evidence.iterations(transfer.id) == 1:
        return PEELED
    computation = evidence.module.computations[transfer.computation]
    start = computation.instruction(transfer.start_index)
    body = wrapped_body(evidence.module, start)
    slices = [i for i in body or () if i.opcode in ("slice", "dynamic-slice", "dynamic-update-slice")]
    for part in slices:
        whole = evidence.module.shape_of(body, part.operands[0]) if body and part.operands else None
        taken = part.shape
        if part.opcode == "dynamic-update-slice" and body and len(part.operands) > 1:
            taken = evidence.module.shape_of(body, part.operands[1]) or taken
        if whole is not None and not _is_one_run(whole, taken):
            return STRIDED
    if not slices:
        return COMPUTES
    disabled = (evidence.has_flag(DISABLED_FLAG) or "").split(",")
    return PASS_OFF if any(name in disabled for name in _COPYING_PASSES) else BY_DATA


def _is_one_run(whole: Shape, taken: Shape) -> bool:
    """Return whether a slice is one contiguous piece of its array: from its first dimension of two or more places on,
    it takes all."""
    if len(whole.dims) != len(taken.dims):
        return True
    order = whole.minor_to_major or tuple(range(len(whole.dims) - 1, -1, -1))
    inside = False
    for axis in reversed(order):
        if inside and taken.dims[axis] != whole.dims[axis]:
            return False
        inside = inside or taken.dims[axis] > 1
    return True


def scheduler_off(evidence: Evidence) -> Iterator[Found]:
    """XLA compiled the step without its latency-hiding scheduler, and transfers are waited for.

    What it finds
        On GPU, a scheduled module in which every plain copy between device and host has its `-done` directly after its
        `-start`, or one whose flags turn the scheduler off, and some transfer that stalls the step.
    Why it matters
        Without that scheduler nothing puts work between the `-start` and the `-done` of a copy: all copies are exposed.
    What to do
        `--xla_gpu_enable_latency_hiding_scheduler=true`. It is on by default only for Hopper and Blackwell (by
        `xla_gpu_enable_analytical_sol_latency_estimator`, jax 0.7.2 and later), only if all collectives of the step are
        of kinds that the estimator knows, and only without computation on the host. It is therefore off on an A100, in
        a step with `compute_on`, and before 0.7.2.
    When the advice does not hold
        With the scheduler, the copies to the host of unrolled layers start so late that the memory is not freed in time
        (HLO201): without it, memory is freed in time and every copy is exposed. Scan the layers to have both, not with
        jax 0.10.2 or 0.11.0, which read wrong slices in a scan (HLO301).
    Example
        a100_act_unroll of the corpus: eight copies, all exposed, 164 of 430 ms.
    References
        xla/service/gpu/gpu_hlo_schedule.cc (SolLatencyEstimator::IsSupportedForModule); openxla/xla pull request 18139;
        failures U5 and U25 of docs/failures.md.
    """
    numbers = evidence.of_cause(SCHEDULER)
    if not numbers:
        return
    assert evidence.offload is not None
    step = evidence.step
    host = next((event for event in evidence.offload.host_events if event.kind == HOST_COMPUTE), None)
    remedy = f"--{SCHEDULER_FLAG}=true"
    if any(
        t.outcome == ROUND_TRIP and evidence.iterations(t.id) == 1
        for t in evidence.transfers.values()
        if t.direction == D2H
    ):
        remedy = (
            f"{scanning(evidence)}, then {remedy}: it delays the copies to the host of unrolled layers until they free "
            "no memory (HLO201)"
        )
    if host is not None:
        remedy = (
            f"take the computation on the host ({host.instruction}) out of the step: XLA does not use this scheduler "
            "beside it"
        )
    elif evidence.has_flag(SCHEDULER_FLAG) == "false" or evidence.has_flag(ESTIMATOR_FLAG) == "false":
        remedy += f" (the program's flags turn it off: --{SCHEDULER_FLAG}, --{ESTIMATOR_FLAG})"
    if step is not None:
        remedy += f"; at best {time_text(step.ideal_ms)} a step instead of {time_text(step.time_ms)}"
    yield Found(
        message=f"the latency-hiding scheduler is off ({evidence.scheduler_off}): {transfers_text(evidence, numbers)} "
        f"{verb(numbers, 'is', 'are')} not hidden{waits(evidence, numbers)}",
        remedy=remedy,
        transfers=numbers,
        cost_ms=evidence.wait_ms(numbers),
        gain_ms=None if step is None else max(0.0, step.time_ms - step.ideal_ms),
        evidence={"transfers": len(numbers), "wait_ms": evidence.wait_ms(numbers)},
    )


RULES = (
    Rule("HLO110", "transfer-runs-as-kernel", WARNING, (MODULE,), as_kernel, by_cost=True),
    Rule("HLO111", "scheduler-off", ERROR, (MODULE, SCHEDULE, PREDICTION), scheduler_off, by_cost=True),
)
