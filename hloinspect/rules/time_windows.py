"""Rules HLO101 to HLO105: a transfer's window, from its start to its done, holds too little work."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from hloinspect.kinds import D2H, H2D
from hloinspect.report.link import link_that_hides_gbps
from hloinspect.rules.advice import fits_with, pipelining
from hloinspect.rules.causes import BLOCKING, POINT_OF_USE, SHORT
from hloinspect.rules.evidence import Evidence
from hloinspect.rules.rule import ERROR, MODULE, PREDICTION, SCHEDULE, Found, Need, Rule
from hloinspect.rules.words import numbered, transfers_text, verb, waits
from hloinspect.units import bytes_text, time_text


def _sizes(evidence: Evidence, numbers: Sequence[int]) -> dict[str, object]:
    found = evidence.predicted(numbers[0])
    assert found is not None
    return {
        "transfers": len(numbers),
        "wait_ms": evidence.wait_ms(numbers),
        "takes_each_ms": found.duration_each_ms,
        "missing_each_ms": found.missing_each_ms,
        "largest_hidden_bytes": found.largest_hidden_bytes,
    }


def _way(evidence: Evidence, cause: str, direction: str) -> tuple[int, ...]:
    return tuple(n for n in evidence.of_cause(cause) if evidence.infos[n].direction == direction)


def point_of_use(evidence: Evidence) -> Iterator[Found]:
    """A copy back from the host is waited for as soon as it is started.

    What it finds
        A host-to-device transfer whose `-start` and `-done` stand next to each other in the schedule, or with almost
        nothing in between: its window could hide less than a tenth of its bytes.
    Why it matters
        A copy that is waited for at once hides behind nothing: the device stands still for all of it, in every
        iteration of a loop.
    What to do
        Use the fetched value later, or fetch it earlier: do other work of the step (gradients of the layer before, the
        optimizer's update of other parameters) between `jax.device_put` and the first use. Where the copies are those
        of a loop, HLO112 says how XLA prefetches them; HLO102 and HLO111 are the two common reasons for copies at the
        point of use, and have separate rules.
    When the advice does not hold
        Nothing independent is left to do: the first layer of the backward pass needs its residual at once. Then the
        copy costs its time once a step. Keeping that one layer on the device avoids this, if it fits: what is fetched
        earlier, or kept, occupies device memory for longer.
    Example
        %copy-start.3 = (f32[4096,4096], f32[4096,4096]{1,0:S(5)}, u32[]) copy-start(%state)
        %copy-done.3 = f32[4096,4096] copy-done(%copy-start.3)
        %fusion.9 = f32[4096,4096] fusion(%copy-done.3, ...)
    References
        openxla/xla pull request 18139 (pictures of a training step before and after); failure U5 of docs/failures.md.
    """
    if numbers := _way(evidence, POINT_OF_USE, H2D):
        remedy = (
            "start the copy earlier: put work that does not need the value between jax.device_put and its use, "
            "or keep this one tensor on the device"
        )
        if not fits_with(evidence, max(evidence.infos[number].bytes for number in numbers)):
            remedy = (
                "free device memory first (batch, remat, sharding): a value that is fetched earlier is longer on the "
                "device, and it does not fit"
            )
        yield Found(
            message=f"{transfers_text(evidence, numbers)} {verb(numbers, 'is', 'are')} waited for as soon as "
            f"{verb(numbers, 'it is', 'they are')} started{waits(evidence, numbers)}",
            remedy=remedy,
            transfers=numbers,
            cost_ms=evidence.wait_ms(numbers),
            gain_ms=evidence.wait_ms(numbers),
            evidence=_sizes(evidence, numbers),
        )


def done_too_early(evidence: Evidence) -> Iterator[Found]:
    """A copy to the host is waited for as soon as it is started.

    What it finds
        A device-to-host transfer whose `-done` stands directly after its `-start`, or with almost nothing in between.
    Why it matters
        Nothing needs the bytes on the host for a long time, so the only reason for the wait is the place of the
        `-done`: the end of a loop's iteration, or the schedule's order.
    What to do
        Let the copy start earlier in the iteration: name a value that is produced early in the layer (its input, a
        projection) instead of the last one. XLA:GPU ends every copy of a loop within its iteration, so a value that is
        produced at the end of the layer has no time left. `--xla_gpu_enable_pipelined_host_offloading=true` moves the
        copy into the next iteration, with jax 0.11.1 or later only: before that version it makes gradients wrong
        (HLO301).
    When the advice does not hold
        Pipelining keeps one more layer's values on the device, and is not advised where they would not fit (HLO209).
        The value may be the result of the whole step, such as a copy of the new state. Then the copy cannot start
        earlier. It can hide behind the work of the next step if it is a result in host memory that nothing waits for.
    Example
        %start = (...) fusion-start(%stack, %hid, %i)    the last instruction of the layer makes %hid
        %done = bf16[8,4,4096,16384]{3,2,1,0:S(5)} fusion-done(%start)
    References
        openxla/xla pull requests 27718, 32297 and 33240; facts on the schedule in docs/model.md.
    """
    if numbers := _way(evidence, POINT_OF_USE, D2H):
        looping = evidence.iterations(numbers[0]) > 1
        remedy = "offload a value that the layer makes earlier"
        if looping and evidence.is_gpu and not evidence.is_pipelined:
            if flag := pipelining(evidence, numbers):
                remedy += f", or let the copy run into the next iteration: {flag}"
        elif not looping:
            remedy = "start the copy earlier, or let it end later: nothing in the step needs it on the host yet"
        yield Found(
            message=f"{transfers_text(evidence, numbers)} {verb(numbers, 'is', 'are')} waited for as soon as "
            f"{verb(numbers, 'it is', 'they are')} started{waits(evidence, numbers)}",
            remedy=remedy,
            transfers=numbers,
            cost_ms=evidence.wait_ms(numbers),
            gain_ms=None,
            evidence=_sizes(evidence, numbers),
        )


def synchronous(evidence: Evidence) -> Iterator[Found]:
    """A copy between device and host memory runs on the main stream, with nothing beside it.

    What it finds
        A plain `copy` with host memory on one side and without `-start` and `-done`: XLA emits it on the stream that
        computes (thunk_emitter.cc, EmitCopy).
    Why it matters
        It cannot overlap with anything, whatever the schedule.
    What to do
        XLA makes such copies asynchronous by itself (HostMemoryTransferAsyncifier) unless a later pass makes a plain
        one. Look for an operation between the placement and the copy: a reshape, transpose or convert of the value
        right after `jax.device_put` is the usual reason. Do it before sending, or after fetching, in a separate
        instruction.
    When the advice does not hold
        The copy is small, or at the end of the step, where there is nothing to hide behind.
    Example
        %copy.2 = f32[1024,1024]{1,0} copy(%p)    and %p is f32[1024,1024]{1,0:S(5)}
    References
        xla/service/host_memory_transfer_asyncifier.cc; openxla/xla pull requests 10450 and 10782; form F4.
    """
    found = [n for n, info in evidence.infos.items() if not info.asynchronous and info.mechanism == "dma"]
    if not found:
        return
    numbers = evidence.costliest_first(found)
    waiting = evidence.of_cause(BLOCKING)
    yield Found(
        message=f"{transfers_text(evidence, numbers)} {verb(numbers, 'runs', 'run')} on the main stream: the device "
        f"does nothing else meanwhile{waits(evidence, numbers)}",
        remedy="do layout changes and conversions of the value separately from jax.device_put, so that XLA can make "
        "the copy asynchronous",
        transfers=numbers,
        cost_ms=evidence.wait_ms(numbers),
        gain_ms=evidence.wait_ms(numbers),
        evidence={"transfers": len(numbers), "waiting": len(waiting), "wait_ms": evidence.wait_ms(numbers)},
    )


def window_too_small(evidence: Evidence) -> Iterator[Found]:
    """A transfer's window holds too little work for its bytes.

    What it finds
        A transfer with some work between its `-start` and its `-done`, but less than the copy takes: the finding says
        how much is missing, what size the window would hide, and which link would be fast enough.
    Why it matters
        The rest of the copy is waited for, every time.
    What to do
        Offload fewer bytes there: fewer names in the policy, a narrower type (bf16 instead of f32), or another tensor
        of the layer that is made earlier. More work for the same bytes helps too: a larger batch where parameters or
        optimizer state move, and the device has room; not where activations do, since their bytes grow with it. A copy
        to the host at the end of a loop's iteration can run into the next one with
        `--xla_gpu_enable_pipelined_host_offloading=true`, with jax 0.11.1 or later only: before that version it makes
        gradients wrong (HLO301). gb200_offload_scan_pipelined of the fixtures hides what gb200_offload_scan waits for.
        It did not help s_off_pipe_nocse of the corpus.
    When the advice does not hold
        `robust` is false for a transfer whose verdict changes within the prediction's range: measure before changing
        anything.
    Example
        transfer 1 takes 9.81 ms, its window is 3.14 ms: it would hide 173 MB, and has 537 MB
    References
        docs/model.md (how windows are predicted), docs/targets.md (rates of the links).
    """
    numbers = evidence.of_cause(SHORT)
    if not numbers:
        return
    found = evidence.predicted(numbers[0])
    assert found is not None
    first = evidence.infos[numbers[0]]
    takes = "is predicted to take" if evidence.report.trace is not None else "takes"
    detail = f"{numbered(numbers[:1])} {takes} {time_text(found.duration_each_ms)} each time"
    if found.missing_each_ms:
        detail += f", {time_text(found.missing_each_ms)} more than its window"
    fits = found.largest_hidden_bytes
    fewer = "" if fits_with(evidence) else " (recompute them: the device has no room for more)"
    hint = f"offload fewer bytes there{fewer}, or a tensor that the layer makes earlier"
    if fits:
        hint += f"; the window would hide {bytes_text(fits)} instead of {bytes_text(first.bytes)}"
    if link_gbps := link_that_hides_gbps(evidence.report, first):
        hint += f", or a link of {link_gbps:.0f} GB/s all of it"
    looping = evidence.is_gpu and first.direction == D2H and evidence.iterations(first.id) > 1
    if looping and not evidence.is_pipelined and (flag := pipelining(evidence, numbers)):
        hint += f". {flag[:1].upper()}{flag[1:]} can move it into the next iteration of its loop"
    yield Found(
        message=f"{transfers_text(evidence, numbers)} {verb(numbers, 'has', 'have')} too little work between start and "
        f"done: {detail}{waits(evidence, numbers)}",
        remedy=hint,
        transfers=numbers,
        cost_ms=evidence.wait_ms(numbers),
        gain_ms=None,
        evidence=_sizes(evidence, numbers) | {"needed_link_gbps": found.needed_link_gbps},
    )


_NEEDS: tuple[Need, ...] = (MODULE, SCHEDULE, PREDICTION)
RULES = (
    Rule("HLO101", "h2d-at-point-of-use", ERROR, _NEEDS, point_of_use, by_cost=True),
    Rule("HLO103", "d2h-done-too-early", ERROR, _NEEDS, done_too_early, by_cost=True),
    Rule("HLO104", "synchronous-copy", ERROR, (MODULE,), synchronous, by_cost=True),
    Rule("HLO105", "window-too-small", ERROR, _NEEDS, window_too_small, by_cost=True),
)
