"""Rules HLO204 to HLO208: host memory that is copied, filled or kept without use."""

from __future__ import annotations

from collections.abc import Iterator

from hloinspect.compile.versions import BUT_NOT
from hloinspect.kinds import D2H
from hloinspect.offload.transfers import HostCopy
from hloinspect.rules.advice import fits_with
from hloinspect.rules.evidence import Evidence
from hloinspect.rules.rule import ERROR, MEMORY, MODULE, TARGET, WARNING, Found, Rule
from hloinspect.rules.words import transfers_text, verb, waits
from hloinspect.units import bytes_text, bytes_texts

POOL_BYTES = 64 << 30
"""The most pinned host memory of one process of XLA:GPU, unless XLA_PJRT_GPU_HOST_MEMORY_LIMIT_GB says otherwise
(openxla/xla pull request 20633)."""


def host_to_host(evidence: Evidence) -> Iterator[Found]:
    """A buffer in host memory is copied as a whole to another place in host memory.

    What it finds
        An instruction of the step that copies host memory to host memory and does nothing else.
    Why it matters
        The copy runs on the device's main stream, over the link and back, and host memory holds the buffer twice. In
        most programs the reason is a stack in host memory that is updated in place but was not donated.
    What to do
        Donate the argument: `jax.jit(step, donate_argnums=...)` for the state that the step replaces, with the same
        memory kind in `out_shardings`. Then the update happens in place.
    When the advice does not hold
        The caller needs the old buffer after the step, for a rollback for example. A copy inside `compute_on` is the
        runtime's.
    Example
        gb200_host_stack_not_donated of the fixtures: copy.3 moves 4 MiB to replace 1 MiB; donated it is gone.
    References
        form F5 and failure U10 of docs/failures.md.
    """
    copies = [copy for copy in (evidence.offload.host_copies if evidence.offload else ()) if copy.mechanism != "kernel"]
    if not copies:
        return
    first = max(copies, key=lambda copy: (copy.bytes * copy.executions, copy.instruction))
    total = sum(copy.bytes * copy.executions for copy in copies)
    yield Found(
        message=f"{_copies(copies)} host memory to host memory, {bytes_text(total)} a step",
        remedy="donate the argument that is updated (jax.jit(..., donate_argnums=...)), with the same memory kind in "
        "out_shardings",
        instruction=first.instruction,
        computation=first.computation,
        evidence={"copies": len(copies), "bytes_per_step": total},
    )


def _copies(copies: list[HostCopy]) -> str:
    return f"{copies[0].instruction} copies" if len(copies) == 1 else f"{len(copies)} instructions copy"


def zeros_sent(evidence: Evidence) -> Iterator[Found]:
    """Zeros, or another constant, are made on the device and copied to the host.

    What it finds
        A copy to the host whose source is the broadcast of a constant.
    Why it matters
        The buffer on the device costs as much memory as the whole stack in host memory that it initializes, and its
        bytes cross the link for nothing.
    What to do
        Update jax: from 0.8.0 (GPU; other cases 0.11.0) XLA allocates the stack on the host without filling it. Do not
        update to 0.10.2 or 0.11.0, which read wrong slices in a scan (HLO301). If the program makes such an array
        itself, make it in host memory: `jnp.zeros(shape, device=host_sharding)` outside of the step.
    When the advice does not hold
        The zeros are a real result, small, and copied once.
    Example
        jax0.7.2_act_scan of the corpus: 4 GiB of zeros are copied to the host before the first layer.
    References
        openxla/xla commit 29c0ee7460; failure U13 of docs/failures.md.
    """
    found = [t for t in evidence.transfers.values() if t.direction == D2H and evidence.sends_constant(t)]
    if not found:
        return
    numbers = evidence.costliest_first(t.id for t in found)
    total = sum(t.bytes_per_step for t in found)
    yield Found(
        message=f"{transfers_text(evidence, numbers)} {verb(numbers, 'sends', 'send')} a constant: {bytes_text(total)} "
        f"a step, made on the device first{waits(evidence, numbers)}",
        remedy=f"update jax (0.8.0 or later allocates the stack on the host{BUT_NOT}), or make the array there outside "
        "of the step",
        transfers=numbers,
        cost_ms=evidence.wait_ms(numbers),
        gain_ms=evidence.wait_ms(numbers),
        evidence={"transfers": len(numbers), "bytes_per_step": total},
    )


def never_read(evidence: Evidence) -> Iterator[Found]:
    """Tensors are sent to the host, and nothing fetches or returns them.

    What it finds
        A copy to the host into a buffer that no instruction of the step reads and that is no result.
    Why it matters
        The traffic, the host memory and the waits for the copy are wasted.
    What to do
        Take the name out of the policy. Where several layers share a policy, one of them may not need the value in its
        backward pass (the last one, or one without gradients).
    When the advice does not hold
        What reads the buffer is not followed: a callback, or an operation on the host (the report lists what it cannot
        know).
    Example
        a name that the policy offloads although its layer's backward pass does not use it
    References
        docs/report.md (outcome).
    """
    unread = [t for t in evidence.transfers.values() if evidence.is_never_read(t)]
    if not unread:
        return
    numbers = evidence.costliest_first(t.id for t in unread)
    total = sum(t.bytes_per_step for t in unread)
    yield Found(
        message=f"{transfers_text(evidence, numbers)} {verb(numbers, 'is', 'are')} sent to the host, and nothing in "
        f"the step reads or returns {verb(numbers, 'it', 'them')}{waits(evidence, numbers)}",
        remedy="take the name out of the offload policy",
        transfers=numbers,
        cost_ms=evidence.wait_ms(numbers),
        gain_ms=evidence.wait_ms(numbers),
        evidence={"transfers": len(numbers), "bytes_per_step": total},
    )


def pool_too_small(evidence: Evidence) -> Iterator[Found]:
    """The step needs more pinned host memory than XLA's pool has.

    What it finds
        On GPU, more host memory than the 64 GiB that XLA's allocator of pinned memory (`xla_gpu_host_bfc`) hands out in
        one process by default.
    Why it matters
        The run ends with an out-of-memory error of the host allocator, though the machine has memory.
    What to do
        `XLA_PJRT_GPU_HOST_MEMORY_LIMIT_GB` in the environment of every process, above what is needed. It is a limit of
        one process: with several GPUs in a process multiply by their number. Where the host has no more memory
        (HLO208), offload less instead.
    When the advice does not hold
        The limit was raised already: the module does not show it. Or host memory itself is too small (HLO208).
    Example
        llama405b_nv of the corpus: 66.9 GiB for each GPU; with four GPUs a process 268 GiB.
    References
        openxla/xla pull request 20633; failure U19 of docs/failures.md.
    """
    size = evidence.report.memory.host_bytes
    if not evidence.is_gpu or size is None or size <= POOL_BYTES:
        return
    there = evidence.report.memory.host_limit_bytes
    remedy = (
        f"set XLA_PJRT_GPU_HOST_MEMORY_LIMIT_GB={_gib_above(size)} for one GPU a process, times their number for more"
    )
    if there is not None and size > there:
        remedy = "make it need less first (HLO208): the host has no memory for a larger pool"
    takes, has = bytes_texts(size, POOL_BYTES)
    yield Found(
        message=f"the step takes {takes} of pinned host memory for each device, and XLA's pool has {has} for each "
        "process by default",
        remedy=remedy,
        evidence={"host_bytes": size, "pool_bytes": POOL_BYTES},
    )


def _gib_above(size: int) -> int:
    """Return a limit in GiB that is a tenth above a size in bytes."""
    return -(-int(size * 1.1) // (1 << 30))


def host_full(evidence: Evidence) -> Iterator[Found]:
    """The devices of one host need more of its memory than it has.

    What it finds
        Host memory for one device above its share: what the host has, divided by the devices on it.
    Why it matters
        Pinned memory cannot be swapped out: the run fails, or the machine does.
    What to do
        Offload less, or recompute a part of it: first the names that are large and cheap to recompute. More devices
        with the same global batch make each one's part smaller. What is no longer offloaded and kept instead needs
        device memory (HLO209).
    When the advice does not hold
        Your machine has more memory than the target says: give its figures in a TOML file (docs/targets.md).
    Example
        405B with mlpwi_0 and mlpwi_1 offloaded too: 271.7 GiB for each GPU of a GB200 host that has 480 GB for two.
    References
        docs/targets.md; docs/memory.md.
    """
    memory = evidence.report.memory
    if memory.host_bytes is None or memory.host_limit_bytes is None or memory.host_bytes <= memory.host_limit_bytes:
        return
    takes, has = bytes_texts(memory.host_bytes, memory.host_limit_bytes)
    yield Found(
        message=f"the step takes {takes} of host memory for each device, and the host has {has} for each",
        remedy=("offload less, " if fits_with(evidence) else "") + "recompute a part, or use more devices for the same "
        "batch",
        evidence={"host_bytes": memory.host_bytes, "host_limit_bytes": memory.host_limit_bytes},
    )


RULES = (
    Rule("HLO204", "host-to-host-copy", WARNING, (MODULE,), host_to_host),
    Rule("HLO205", "constant-sent-to-host", WARNING, (MODULE,), zeros_sent),
    Rule("HLO206", "sent-and-never-read", WARNING, (MODULE,), never_read),
    Rule("HLO207", "pinned-pool-too-small", WARNING, (MEMORY,), pool_too_small),
    Rule("HLO208", "host-memory-exceeded", ERROR, (MEMORY, TARGET), host_full),
)
