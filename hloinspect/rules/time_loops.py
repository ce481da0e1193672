"""Rules HLO102, HLO112 and HLO113: obstacles that keep the copies of a loop from starting an iteration ahead."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from hloinspect.rules.advice import fits_with, is_right_release, pipelining, scanning
from hloinspect.rules.causes import BARRIER, LIMIT, NOT_PIPELINED
from hloinspect.rules.evidence import Evidence
from hloinspect.rules.rule import ERROR, MODULE, PREDICTION, SCHEDULE, Found, Need, Rule
from hloinspect.rules.words import transfers_text, verb, waits
from hloinspect.thresholds import SCHEDULER_MEMORY_SHARE
from hloinspect.units import bytes_text, time_text


def prefetched_gain_ms(evidence: Evidence, numbers: Sequence[int]) -> float | None:
    """Return what the step would gain in ms if these copies back were issued one iteration ahead.

    It is their waits in all iterations but the first, less what does not fit behind the step's compute. Return None
    without a prediction.
    """
    step = evidence.step
    if step is None:
        return None
    gain, takes = 0.0, 0.0
    for number in numbers:
        found, iterations = evidence.predicted(number), evidence.iterations(number)
        if found is not None and iterations > 1:
            gain += evidence.wait_of(number) * (iterations - 1) / iterations
            takes += found.duration_ms
    return max(0.0, gain - max(0.0, takes - step.compute_ms))


def _would_gain(evidence: Evidence, gain_ms: float | None) -> str:
    step = evidence.step
    if step is None or gain_ms is None:
        return ""
    return f": about {time_text(step.time_ms - gain_ms)} a step instead of {time_text(step.time_ms)}, predicted"


def held_by_barrier(evidence: Evidence) -> Iterator[Found]:
    """A rematerialization barrier holds a layer's backward pass until all its residuals are back.

    What it finds
        A copy back from the host that is waited for in a computation with the barrier of `jax.checkpoint`
        (instructions whose op_name ends in `/remat2`): with `prevent_cse=True`, the default, JAX ties all residuals of
        a layer together, so none of its backward work can start before the last copy has arrived.
    Why it matters
        The window of the copy ends at the barrier, at the top of the layer: there is nothing in it to hide behind.
    What to do
        Under `jax.lax.scan`, and only there: `jax.checkpoint(..., prevent_cse=False)`. JAX's documentation says that a
        scanned function does not need it. In flax: `nn.remat(..., prevent_cse=False)`. With jax 0.11.1 or later add
        `--xla_gpu_enable_pipelined_host_offloading=true` so that each iteration's copies start one iteration ahead;
        before that version it makes gradients wrong (HLO301).
    When the advice does not hold
        **Unrolled layers.** There `prevent_cse=False` lets XLA fold each copy to the host and its copy back into
        nothing: the offload is deleted without an error (HLO302, on GPU), and memory goes up instead of down. Scan the
        layers first, and not with jax 0.10.2 or 0.11.0, which read wrong slices in a scan (HLO301). Pipelining peels
        one layer out of the loop, whose transfers run as kernels with nothing beside them (HLO110), and keeps one more
        layer's residuals on the device: it is not advised where they would not fit (HLO209).
    Example
        s_off of the corpus (8 scanned layers, H100): 313 ms a step predicted; with both changes 247 ms.
    References
        jax/_src/ad_checkpoint.py (prevent_cse); openxla/xla pull request 32297; failures U1 and U6 of
        docs/failures.md.
    """
    numbers = evidence.of_cause(BARRIER)
    if not numbers:
        return
    scanned = tuple(n for n in numbers if evidence.iterations(n) > 1)
    remedy, gain = _without_barrier(evidence, scanned)
    yield Found(
        message=f"{transfers_text(evidence, numbers)} {verb(numbers, 'is', 'are')} held by a rematerialization "
        f"barrier: the backward layer begins when all its residuals are back{waits(evidence, numbers)}",
        remedy=remedy,
        transfers=numbers,
        cost_ms=evidence.wait_ms(numbers),
        gain_ms=gain,
        evidence={"transfers": len(numbers), "scanned": len(scanned), "wait_ms": evidence.wait_ms(numbers)},
    )


def _without_barrier(evidence: Evidence, scanned: Sequence[int]) -> tuple[str, float | None]:
    """Return how to do without the barrier, and what that gains with the copies an iteration ahead."""
    if not scanned:
        scan = scanning(evidence, "scan the layers (jax.lax.scan)")
        return (
            f"{scan}; then prevent_cse=False on the scanned layer; not on unrolled layers, where XLA then deletes the "
            "offload",
            None,
        )
    remedy = "jax.checkpoint(..., prevent_cse=False) on the scanned layer"
    if not evidence.is_gpu:
        return remedy, None  # no gain was seen on a TPU
    gain = prefetched_gain_ms(evidence, scanned)
    if not evidence.is_pipelined:
        flag = pipelining(evidence, scanned)
        remedy += f", with {flag}" if flag.startswith("--") else f"; {flag}" if flag else ""
        gain = gain if flag else None
    return f"{remedy}{_would_gain(evidence, gain)}. Only under scan: on unrolled layers it deletes the offload", gain


def not_pipelined(evidence: Evidence) -> Iterator[Found]:
    """A loop fetches each iteration's tensors in that iteration.

    What it finds
        On GPU, a loop in which a copy back from the host starts and is waited for in the same iteration, with too
        little work in between.
    Why it matters
        What an iteration needs first cannot be hidden behind that iteration. The iteration before has enough time for
        it.
    What to do
        `--xla_gpu_enable_pipelined_host_offloading=true` (in `XLA_FLAGS` or as a compiler option) makes each iteration
        fetch for the next one. **Only with jax 0.11.1 or later**: the flag exists since 0.8.2. But until 0.10.1 each
        copy has the place of the next iteration, in 0.10.2 and 0.11.0 another wrong one, and gradients are wrong
        without an error (HLO301). `JAX_OPTIMIZATION_LEVEL=O1` turns it on too, in 0.8.2 to 0.9.0 and from 0.11.0,
        together with other changes: the same holds for it. A barrier of `jax.checkpoint` would still delay the copies
        (HLO102): the dumps of jax 0.11 and later do not show it, so check whether the scanned layer has
        `prevent_cse=False`.
    When the advice does not hold
        It peels a layer out of the loop: its transfers run as kernels (HLO110), and one more layer's tensors live on
        the device: it is not advised where they would not fit (HLO209). Short loops gain little. TPU compilers pipeline
        by themselves.
    Example
        llama405b_cudnnjax of the corpus (126 layers, 128 GB200): 152 ms of waiting a step, with the flag 3.6 ms.
    References
        openxla/xla pull requests 32297 (the flag), 45393 (on at O1), issue 37979 (a convergence failure at O1 in 0.8.2
        to 0.9.0); finding B of docs/failures.md; docs/slices.md.
    """
    numbers = evidence.of_cause(NOT_PIPELINED)
    if not numbers:
        return
    gain = prefetched_gain_ms(evidence, numbers)
    loop = evidence.loops[evidence.transfers[numbers[0]].computation]
    if evidence.pipelined_by:
        remedy = (
            f"XLA did not pipeline these copies although {evidence.pipelined_by} is on: check whether the slice's "
            "index depends on data, or whether something else in the iteration reads the same host buffer"
        )
        gain = None
    elif evidence.slices.wrong and is_right_release(evidence):
        remedy = "XLA copies wrong slices, though in this version they are known to be right (HLO301): fix that first"
        gain = None
    elif not (flag := pipelining(evidence, numbers)):
        remedy = (
            "free device memory first (batch, remat, sharding): fetching an iteration ahead keeps one more layer's "
            "tensors there, which do not fit"
        )
        gain = None
    else:
        remedy = f"{flag}{_would_gain(evidence, gain)}"
        if evidence.is_checkpointed(evidence.transfers[numbers[0]].computation):
            remedy += ". If the scanned layer's jax.checkpoint has no prevent_cse=False, give it that first"
    yield Found(
        message=f"{transfers_text(evidence, numbers)} {verb(numbers, 'is', 'are')} fetched in the iteration of "
        f"{loop.name} that needs {verb(numbers, 'it', 'them')}{waits(evidence, numbers)}",
        remedy=remedy,
        transfers=numbers,
        cost_ms=evidence.wait_ms(numbers),
        gain_ms=gain,
        evidence={"transfers": len(numbers), "iterations": loop.trips, "wait_ms": evidence.wait_ms(numbers)},
    )


def serialized_at_limit(evidence: Evidence) -> Iterator[Found]:
    """Copies of a loop have their `-start` next to their `-done`, and the step is at the scheduler's memory limit.

    What it finds
        On GPU, copies in a loop with nothing at all between `-start` and `-done`, while the step needs 80 % of the
        device's memory or more.
    Why it matters
        XLA's latency-hiding scheduler keeps to a memory limit of 80 % of the device. A step that reaches the limit gets
        no early copies, since these would keep their buffers longer, and every copy is waited for.
    What to do
        Free device memory: a smaller batch, more remat, more sharding, or fewer tensors kept. Where the step fits, the
        limit can be raised: `--xla_gpu_memory_limit_slop_factor` is a percentage (95 by default); the step then needs
        more memory, and a process of JAX must be given it (`XLA_PYTHON_CLIENT_MEM_FRACTION`; HLO209). Pipelined host
        offloading (HLO112) does not help at the limit: the same step compiled with it has its ten copies serialized
        too.
    When the advice does not hold
        That memory is the reason is inferred from the schedules of one program at the limit, not from XLA's log: if
        freeing memory changes nothing, it was something else. Raising the limit can run out of memory.
    Example
        ds671b_nv of the corpus: 154 of 184 GiB; in the backward loop all ten copies back are waited for where they
        start, 501 ms of 7.8 s.
    References
        xla/service/gpu/gpu_hlo_schedule.cc; finding E of docs/failures.md.
    """
    numbers = evidence.of_cause(LIMIT)
    if not numbers:
        return
    memory = evidence.report.memory
    assert memory.device_bytes is not None
    assert memory.device_limit_bytes is not None
    remedy = "free device memory (batch, remat, sharding)"
    if fits_with(evidence):
        left = bytes_text(memory.device_limit_bytes - memory.device_bytes)
        remedy += (
            ", or raise --xla_gpu_memory_limit_slop_factor above 95: the step then needs more memory, of which "
            f"{left} are left if XLA's allocator may have all (HLO209)"
        )
    yield Found(
        message=f"{transfers_text(evidence, numbers)} {verb(numbers, 'is', 'are')} waited for where "
        f"{verb(numbers, 'it starts', 'they start')}, and the step takes {bytes_text(memory.device_bytes)} of "
        f"{bytes_text(memory.device_limit_bytes)}: XLA's scheduler keeps to {100 * SCHEDULER_MEMORY_SHARE:.0f} %"
        f"{waits(evidence, numbers)}",
        remedy=remedy,
        transfers=numbers,
        cost_ms=evidence.wait_ms(numbers),
        gain_ms=prefetched_gain_ms(evidence, numbers),
        evidence={
            "transfers": len(numbers),
            "device_bytes": memory.device_bytes,
            "device_limit_bytes": memory.device_limit_bytes,
            "wait_ms": evidence.wait_ms(numbers),
        },
    )


_NEEDS: tuple[Need, ...] = (MODULE, SCHEDULE, PREDICTION)
RULES = (
    Rule("HLO102", "h2d-held-by-remat-barrier", ERROR, _NEEDS, held_by_barrier, by_cost=True),
    Rule("HLO112", "loop-not-pipelined", ERROR, _NEEDS, not_pipelined, by_cost=True),
    Rule("HLO113", "serialized-at-memory-limit", ERROR, _NEEDS, serialized_at_limit, by_cost=True),
)
