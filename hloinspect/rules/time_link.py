"""Rules HLO106, HLO107 and HLO109 on the link itself: too many bytes, copies in a queue, or the same bytes twice."""

from __future__ import annotations

from collections.abc import Iterator

from hloinspect.kinds import D2H
from hloinspect.offload.transfers import Transfer
from hloinspect.rules.advice import fits_with
from hloinspect.rules.causes import LINK, QUEUE
from hloinspect.rules.evidence import Evidence
from hloinspect.rules.rule import ERROR, MODULE, PREDICTION, SCHEDULE, WARNING, Found, Need, Rule
from hloinspect.rules.words import numbered, transfers_text, verb, waits
from hloinspect.units import bytes_text, time_text

REFETCHED_SHARE = 1.01
"""The least ratio of bytes fetched to bytes written with which a buffer counts as fetched twice. A peeled iteration is
fetched once more."""


def saturated(evidence: Evidence) -> Iterator[Found]:
    """The host link needs longer for a step's bytes than the step would take without transfers.

    What it finds
        A direction of the link whose bytes of one step take longer than the whole step with free transfers: the link
        limits the step, not the device.
    Why it matters
        No schedule can hide these transfers: even with perfect overlap the step takes as long as the link is busy.
    What to do
        Move fewer bytes: offload less (fewer names, fewer layers), recompute the cheap tensors instead, narrow the
        type, or fetch a value once. Or give the step more work for the same bytes: a larger batch hides the transfer of
        weights and optimizer state, since their bytes do not grow with it. A tensor that is no longer offloaded and not
        computed again needs device memory, and so does a larger batch (HLO209).
    When the advice does not hold
        The link's rate is that of the target's published figures: if your machine's is higher, give it with `--link`,
        or measure it with `hloinspect calibrate`. Several devices that share one host memory can be slower still.
    Example
        tpu_v6e_host_offload of the corpus: 15 GiB each way a step over a link of 29 GB/s, 24 ms of compute: 785 ms.
    References
        docs/targets.md; docs/accuracy.md compares this case with its trace.
    """
    numbers = evidence.of_cause(LINK)
    step, target = evidence.step, evidence.report.target
    if not numbers or step is None:
        return
    busy = {"d2h": step.busy_d2h_ms, "h2d": step.busy_h2d_ms}
    ways = sorted(evidence.bound_directions)
    link = target.link if target else None
    rates = "" if link is None else f" at {link.d2h_gbps:.0f} GB/s to the host and {link.h2d_gbps:.0f} back"
    fewer = "move fewer bytes, or do more work for them (batch)"
    if not fits_with(evidence):
        fewer = "move fewer bytes: compute some of the values again, since the device has no room to keep them"
    spent = " and ".join(f"{time_text(busy[way])} {way}" for way in ways)
    yield Found(
        message=f"the link is busy for {spent} a step{rates}, and the step without transfers takes "
        f"{time_text(step.without_transfers_ms)}: no schedule hides this",
        remedy=f"{fewer}; with perfect overlap the step would take "
        f"{time_text(step.ideal_ms)} instead of {time_text(step.time_ms)}",
        transfers=numbers,
        cost_ms=evidence.wait_ms(numbers),
        gain_ms=max(0.0, step.time_ms - step.ideal_ms),
        evidence={
            **{f"busy_{way}_ms": busy[way] for way in ways},
            "without_transfers_ms": step.without_transfers_ms,
            "ideal_ms": step.ideal_ms,
        },
    )


def queued(evidence: Evidence) -> Iterator[Found]:
    """A transfer waits for another one in its direction, and would be hidden without it.

    What it finds
        A transfer whose window is long enough for its own bytes, but which starts late because another one in its
        direction is still running, or because the runtime put both on one stream.
    Why it matters
        Copies of one direction share one copy engine. Several that start at once all end late, and the last one is
        waited for although there was time enough in sum.
    What to do
        Spread them: fetch where each is used instead of all at the top of the layer or step. On jax before 0.12 XLA
        distributes copies over four streams in a fixed cycle, so two of them (the first and the fifth, say) can share
        one: `frontend_attributes={_xla_stream_annotation=...}` sets the stream, and jax 0.12 has one stream for each
        direction.
    When the advice does not hold
        If the link is busy for most of the window anyway, spreading does not help: see HLO105 and HLO106.
    Example
        u_off of the corpus: transfer 11 queues behind 10; alone its window of 12.1 ms is long enough for its 9.81 ms.
    References
        xla/service/gpu/execution_stream_assignment.cc; docs/model.md (queueing); failure U26 of docs/failures.md.
    """
    numbers = evidence.of_cause(QUEUE)
    if not numbers:
        return
    first = evidence.infos[numbers[0]]
    ahead = first.queued_behind
    same = ahead is not None and first.stream is not None and evidence.infos[ahead].stream == first.stream
    stream = f" on the same stream ({first.stream})" if same else ""
    behind = f"transfer {ahead}" if ahead is not None else "others"
    yield Found(
        message=f"{transfers_text(evidence, numbers)} {verb(numbers, 'has', 'have')} time enough alone, but "
        f"{verb(numbers, 'queues', 'queue')} behind other copies ({numbered(numbers[:1])} behind {behind}{stream})"
        f"{waits(evidence, numbers)}",
        remedy="start copies of one direction at different times: fetch each where it is used, not all at one place",
        transfers=numbers,
        cost_ms=evidence.wait_ms(numbers),
        gain_ms=evidence.wait_ms(numbers),
        evidence={"transfers": len(numbers), "queued_behind": ahead, "stream": first.stream},
    )


def fetched_twice(evidence: Evidence) -> Iterator[Found]:
    """The same tensors are fetched from the host more than once a step.

    What it finds
        Host buffers that the step writes and then fetches more bytes from than it has written: two copies back, in one
        loop or in several, read the same slices.
    Why it matters
        Each extra fetch costs link time and a device buffer. The policy does not request it: one copy back of each
        residual is enough.
    What to do
        Look at the copies that the finding names: their loop, their slices' indices. Seen only with NVIDIA's published
        flags for collectives: pipelining one consumer of a residual and not the other leaves a fetch for each, at two
        loop indices. The same model compiled without them fetches each once. So compile without
        `xla_gpu_enable_pipelined_all_gather`, `..._reduce_scatter` and `..._all_reduce`, one after the other, and
        compare the bytes that come back with what the collectives lose.
    When the advice does not hold
        A program that means to read a buffer twice: nested rematerialization fetches the input of a block for each
        level.
    Example
        ds671b_nv of the corpus: the backward loop of the experts fetches q, k, v and the layer's input twice, at two
        loop indices: 78.6 GiB back for 48.3 GiB sent.
    References
        openxla/xla pull request 32297 (pipelined host offloading); docs/failures.md.
    """
    extra, numbers, sent = 0, [], 0
    for written, fetched in evidence.by_buffer.values():
        out = sum(transfer.bytes_per_step for transfer in written)
        back = sum(transfer.bytes_per_step for transfer in fetched)
        if out and back > REFETCHED_SHARE * out and _repeated(fetched):
            extra, sent = extra + back - out, sent + out
            numbers += [transfer.id for transfer in _repeated(fetched)]
    if not numbers:
        return
    ordered = evidence.costliest_first(numbers)
    back = sum(t.bytes_per_step for t in evidence.transfers.values() if t.direction != D2H)
    yield Found(
        message=f"{transfers_text(evidence, ordered)} fetch what others of them fetch too: {bytes_text(extra)} a step "
        "more come back than were sent",
        remedy="compile without the flags that pipeline collectives (xla_gpu_enable_pipelined_all_gather and similar): "
        "the second fetch was only seen with them",
        transfers=ordered,
        cost_ms=None,
        gain_ms=None,
        severity=None if extra > 0.05 * back else "info",
        evidence={"extra_bytes": extra, "sent_bytes": sent, "fetched_bytes": sent + extra},
    )


def _repeated(fetched: tuple[Transfer, ...]) -> list[Transfer]:
    """Return the copies back that share buffer, bytes, iterations and computation with another one."""
    places: dict[tuple[str, int, int], list[Transfer]] = {}
    for transfer in fetched:
        places.setdefault((transfer.computation, transfer.bytes, transfer.executions), []).append(transfer)
    return [transfer for group in places.values() if len(group) > 1 for transfer in group]


_NEEDS: tuple[Need, ...] = (MODULE, SCHEDULE, PREDICTION)
RULES = (
    Rule("HLO106", "link-saturated", ERROR, _NEEDS, saturated, by_cost=True),
    Rule("HLO107", "queued-behind-another", ERROR, _NEEDS, queued, by_cost=True),
    Rule("HLO109", "fetched-more-than-once", WARNING, (MODULE,), fetched_twice),
)
