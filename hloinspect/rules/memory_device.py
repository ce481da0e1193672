"""Rules HLO201, HLO202, HLO203 and HLO209: offload that does not free device memory, and a step that does not fit."""

from __future__ import annotations

import math
from collections.abc import Iterator

from hloinspect.kinds import D2H, H2D
from hloinspect.offload.roundtrips import ARGUMENT
from hloinspect.offload.transfers import Transfer
from hloinspect.rules.advice import allocator_limit_bytes, fits_with, scanning
from hloinspect.rules.blocking import TOO_LARGE
from hloinspect.rules.causes import EARLY
from hloinspect.rules.evidence import Evidence
from hloinspect.rules.rule import ERROR, MEMORY, MODULE, SCHEDULE, TARGET, WARNING, Found, Rule
from hloinspect.rules.words import transfers_text, verb, waits
from hloinspect.thresholds import ALLOCATOR_SHARE
from hloinspect.units import bytes_text, bytes_texts

LATE_SHARE = 1 / 3
"""The share of the bytes sent that must start late for a finding: the last layers always do."""


def late_d2h(evidence: Evidence) -> Iterator[Found]:
    """Copies to the host start so late that the device buffer stays allocated.

    What it finds
        At least two copies to the host, and a third of the bytes, that start only when the backward pass has begun:
        their sources fill device memory at the moment at which the offload should have freed it.
    Why it matters
        The bytes cross the link both ways and almost nothing is saved: the peak of memory is at the end of the forward
        pass. A step that was planned with its offload runs out of memory, or needs as much as without it.
    What to do
        Scan the layers (`scan_layers=true` in MaxText) instead of unrolling them: an iteration of a loop ends with its
        copies. Not with jax 0.10.2 or 0.11.0, which read wrong slices in a scan (HLO301). If they must stay unrolled,
        the latency-hiding scheduler is what delays the copies: `--xla_gpu_enable_latency_hiding_scheduler=false` with
        `--xla_gpu_enable_analytical_sol_latency_estimator=false` frees the memory, but exposes every copy (HLO111); a
        smaller `--xla_gpu_memory_limit_slop_factor` frees some of it.
    When the advice does not hold
        The step has enough memory: then the late copies cost only their traffic; do not offload. (The finding says so
        only where the step fits with what the copies in time have freed.) For the last layer of a model a late copy is
        right, but there the offload is useless.
    Example
        llama405b_unroll126_cudnn of the corpus: 500 of 504 copies start in the backward pass: 122.8 GiB of device
        memory for temporaries instead of 39.3 scanned.
    References
        openxla/xla pull requests 33240 and 18139; docs/memory.md; failure U4 and finding D of docs/failures.md.
    """
    sent = [info for info in evidence.infos.values() if info.direction == D2H and info.release is not None]
    late = [info for info in sent if info.release is not None and info.release.late]
    returning = sum(info.bytes_per_step for info in sent if info.release and info.release.before_backward is not None)
    late_bytes = sum(info.bytes_per_step for info in late)
    if len(late) < 2 or late_bytes < LATE_SHARE * returning:
        return
    numbers = tuple(info.id for info in sorted(late, key=lambda info: (-info.bytes_per_step, info.id)))
    freed = sum(info.bytes_per_step for info in sent if info.release and info.release.before_backward)
    remedy = scanning(evidence, "scan the layers instead of unrolling them")
    if fits_with(evidence, freed):
        remedy += (
            f"; or do without this offload, which moves {bytes_text(late_bytes)} each way for nothing while the "
            "forward pass fills the memory"
        )
    yield Found(
        message=f"{len(late)} of {len(sent)} copies to the host ({bytes_text(late_bytes)} a step) start only when the "
        f"backward pass has begun: of {bytes_text(returning)} that the step sends and fetches again, "
        f"{bytes_text(freed)} are off the device by then",
        remedy=remedy,
        transfers=numbers,
        cost_ms=None,
        evidence={
            "late": len(late),
            "copies": len(sent),
            "late_bytes": late_bytes,
            "sent_bytes": returning,
            "freed_bytes": freed,
        },
    )


def fetched_early(evidence: Evidence) -> Iterator[Found]:
    """Tensors are fetched from the host long before they are used.

    What it finds
        A copy back that the device waits for although more work stands between its `-done` and the first use of the
        value than in its window; or an argument in host memory whose copy ends before a whole loop of the step that
        does not use it.
    Why it matters
        The value occupies device memory all that time, which the offload should avoid. And a step that begins with the
        copies waits for bytes that it needs last.
    What to do
        Tie the fetch to what comes before its use. For optimizer state: call `jax.device_put(state, device)` in the
        update, on values that depend on the gradients (`jax.lax.optimization_barrier((state, grads))` on the host side
        keeps XLA from hoisting the copy), and update layer by layer in a scan.
    When the advice does not hold
        The state fits beside everything else at the peak, and nothing waits for the copies: then early is good.
    Example
        gb200_optimizer of the fixtures: four moments are waited for at the start of the step and used after the
        backward pass.
    References
        jax-ml/jax pull request 28988 ("a lot of degradation"); AI-Hypercomputer/maxtext pull request 2513; failure U11
        of docs/failures.md.
    """
    waiting = evidence.of_cause(EARLY)
    idle = [t.id for t in evidence.transfers.values() if t.id not in waiting and _idles_through_a_loop(evidence, t)]
    numbers = (*waiting, *idle)
    if not numbers:
        return
    size = sum(evidence.infos[number].bytes for number in numbers)
    cost = evidence.wait_ms(waiting) if waiting else None
    yield Found(
        message=f"{transfers_text(evidence, numbers)} {verb(numbers, 'is', 'are')} fetched long before the first use "
        f"and {verb(numbers, 'occupies', 'occupy')} {bytes_text(size)} of device memory until then"
        f"{waits(evidence, waiting) if waiting else ''}",
        remedy="fetch where the value is used: call jax.device_put on values that depend on what comes before "
        "(jax.lax.optimization_barrier ties them)",
        transfers=numbers,
        cost_ms=cost,
        gain_ms=cost,
        evidence={"transfers": len(numbers), "waited_for": len(waiting), "held_bytes": size},
    )


def _idles_through_a_loop(evidence: Evidence, transfer: Transfer) -> bool:
    """Return whether a whole loop runs between the done of a fetched argument and its first use."""
    use, done = evidence.first_uses.get(transfer.id), transfer.done_index
    if transfer.direction != H2D or transfer.outcome != ARGUMENT or use is None or done is None:
        return False
    return any(done < place < use for place in evidence.loop_places.get(transfer.done_computation or "", ()))


def whole_stack(evidence: Evidence) -> Iterator[Found]:
    """A whole stack of parameters is fetched at once, and a loop uses one layer of it in each iteration.

    What it finds
        A copy back of an array with a leading dimension of L that is carried into a loop of L iterations. Nothing
        outside of the loop uses it: the loop slices a layer out in every iteration.
    Why it matters
        All layers occupy device memory from the start, so keeping them on the host saves nothing while the step runs;
        and the first layer waits for the last one's bytes.
    What to do
        Fetch one layer in each iteration: pass the stack to `jax.lax.scan` in host memory and call `jax.device_put` on
        the layer inside the body. In flax and MaxText: `parameter_memory_host_offload` with scanned layers. Not with
        jax 0.10.2 or 0.11.0, which read wrong slices in the backward pass of a scan (HLO301).
    When the advice does not hold
        The stack is small, or is used by several loops: then one fetch is cheaper than several.
    Example
        AI-Hypercomputer/maxtext pull request 1484 has the dump of such a step: f32[32,4096,11008] by one copy-start.
    References
        tests/support/matrix_steps.py (parameters_at_once beside parameters_by_layer); failure U12 of docs/failures.md.
    """
    numbers = evidence.costliest_first(t.id for t in evidence.transfers.values() if evidence.feeds_loop_of_layers(t))
    if not numbers:
        return
    size = sum(evidence.infos[number].bytes for number in numbers)
    first = evidence.infos[numbers[0]]
    layer = first.bytes // max(1, first.tensor.shape[0])
    yield Found(
        message=f"{transfers_text(evidence, numbers)} {verb(numbers, 'is a whole stack', 'are whole stacks')} of "
        f"layers, fetched at once: {bytes_text(size)} on the device, of which an iteration needs "
        f"{bytes_text(layer)} of the largest{waits(evidence, numbers)}",
        remedy=scanning(
            evidence, "scan over the stack in host memory, and call jax.device_put on the layer inside the body"
        ),
        transfers=numbers,
        cost_ms=evidence.wait_ms(numbers),
        gain_ms=None,
        evidence={"stacks": len(numbers), "bytes": size, "layer_bytes": layer},
    )


def device_full(evidence: Evidence) -> Iterator[Found]:
    """The step needs more device memory than there is.

    What it finds
        Device memory of the step (arguments, temporaries and results) above what the target's device has: an error. On
        GPU, above what XLA's allocator hands out by default, and below that: a warning.
    Why it matters
        The step cannot run: it ends with RESOURCE_EXHAUSTED at the first call, and other findings on it do not matter
        before this one is fixed. The allocator of a JAX process takes three quarters of the device's memory, with
        preallocation or without, unless it is configured otherwise.
    What to do
        A smaller batch, more devices or sharding, or more values computed again or offloaded; `hloinspect plan` tries
        them. `memory.peak` of the report names what fills the memory. For the warning:
        `XLA_PYTHON_CLIENT_MEM_FRACTION=0.9` in the environment of the run gives XLA more of the device.
    When the advice does not hold
        The run has `XLA_PYTHON_CLIENT_MEM_FRACTION` set already, or your device has more memory than the target says:
        give its figures in a TOML file (docs/targets.md). Memory that is estimated can be a few percent off on a GPU;
        on a TPU it is a lower bound, and its compiler keeps a part of the memory for itself.
    Example
        a batch of 512 a device for an H100: 225 GiB of 79.1 GiB
    References
        openxla/xla: xla/pjrt/gpu/gpu_helpers.cc (CreateBFCAllocator); JAX's page on GPU memory allocation;
        docs/memory.md.
    """
    memory = evidence.report.memory
    used, there = memory.device_bytes, memory.device_limit_bytes
    if used is None or there is None:
        return
    limit = allocator_limit_bytes(evidence)
    about = "an estimated " if memory.source == "estimated" else ""
    host, host_limit = memory.host_bytes, memory.host_limit_bytes
    host_is_full = host is not None and host_limit is not None and host > host_limit
    offloaded = "" if host_is_full else " or offloaded"  # HLO208
    at_least = ", or more," if about and not evidence.is_gpu else ""
    figures: dict[str, object] = {"device_bytes": used, "device_limit_bytes": there, "source": memory.source}
    if used > there:
        takes, has = bytes_texts(used, there)
        yield Found(
            message=f"the step does not fit: it takes {about}{takes}{at_least} of device memory, and the device has "
            f"{has}",
            remedy=f"a smaller batch, more devices or sharding, or more values computed again{offloaded} "
            "(`hloinspect plan` tries them)",
            evidence=figures,
        )
    elif limit is not None and used > limit:
        takes, hands_out = bytes_texts(used, limit)
        yield Found(
            message=f"the step takes {about}{takes} of device memory, more than the {hands_out} "
            f"({ALLOCATOR_SHARE:.0%} of the device's {bytes_text(there)}) that XLA's allocator takes by default in a "
            "process of JAX",
            remedy=_more_for_xla(used, there),
            severity=WARNING,
            evidence=figures | {"allocator_limit_bytes": limit},
        )


_MOST_FRACTION = 0.95
"""The largest share of the device's memory for XLA: CUDA's context and libraries need the rest."""


def _more_for_xla(used: int, there: int) -> str:
    """Return the share of the device's memory to give to XLA, where that leaves enough for CUDA."""
    share = math.ceil(100 * 1.02 * used / there) / 100
    if share > _MOST_FRACTION:
        return "a smaller batch, more devices or sharding: almost nothing of the device is left for CUDA and NCCL"
    return f"set XLA_PYTHON_CLIENT_MEM_FRACTION={share:.2f} (or more) for the run, or free device memory"


RULES = (
    Rule("HLO201", "d2h-too-late-to-free-memory", ERROR, (MODULE, SCHEDULE, MEMORY), late_d2h),
    Rule("HLO202", "fetched-long-before-use", WARNING, (MODULE, SCHEDULE), fetched_early, by_cost=False),
    Rule("HLO203", "whole-stack-fetched", WARNING, (MODULE, SCHEDULE), whole_stack),
    Rule(TOO_LARGE, "device-memory-exceeded", ERROR, (TARGET, MEMORY), device_full),
)
