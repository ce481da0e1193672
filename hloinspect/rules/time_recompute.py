"""Rule HLO114: offload that costs more than computing the values again would."""

from __future__ import annotations

from collections.abc import Iterator

from hloinspect.kinds import D2H
from hloinspect.rules.evidence import Evidence
from hloinspect.rules.rule import MODULE, PREDICTION, SCHEDULE, TARGET, WARNING, Found, Rule
from hloinspect.rules.words import transfers_text
from hloinspect.units import time_text

MUCH = 1.25
"""The least ratio of the waits to the forward pass for a finding: both are predictions."""


def recompute_is_cheaper(evidence: Evidence) -> Iterator[Found]:
    """Waiting for a loop's offload costs more than running the loop's forward pass once more.

    What it finds
        A loop whose values are sent to the host and fetched back, where the device waits longer for both than all
        kernels of the loop that made them take together, by a quarter or more.
    Why it matters
        Rematerialization frees the same memory. It cannot cost more than that forward pass. So it would be faster, and
        it needs no link.
    What to do
        Leave the names out of the policy, so that the values are computed again:
        `jax.checkpoint_policies.nothing_saveable`, or save only the values that are expensive to compute. Or first make
        the offload hide: the other findings on these transfers say how.
    When the advice does not hold
        The loop has collectives: they would run again too, and then this rule reports nothing. After the other findings
        are fixed, the offload may be cheaper.
    Example
        s_off of the corpus: 130 ms of waiting a step, the forward loop takes 52 ms; recomputed (s_remat) the step takes
        185 ms instead of 313 ms, predicted.
    References
        docs/model.md (cost of kernels); jax.checkpoint_policies.
    """
    from hloinspect.predict.scenario import scenarios

    target, report = evidence.target, evidence.report
    if target is None or report.target is None or not evidence.bodies_that_send:
        return
    scenario = scenarios(target, report.target.devices)[0]
    for body, sent in evidence.bodies_that_send.items():
        forward_ms = evidence.forward_ms(body, target, scenario)
        pairs = [*sent, *(t.id for t in evidence.transfers.values() if t.round_trip in sent and t.direction != D2H)]
        waiting_ms = evidence.wait_ms(pairs) or 0.0
        if forward_ms is None or waiting_ms < MUCH * forward_ms:
            continue
        yield Found(
            message=f"the device waits {time_text(waiting_ms)} a step for {transfers_text(evidence, pairs)}, and the "
            f"loop that makes these values takes {time_text(forward_ms)}",
            remedy="compute them again instead (leave the names out of the policy), or make the offload hide first",
            transfers=evidence.costliest_first(pairs),
            gain_ms=waiting_ms - forward_ms,
            evidence={"wait_ms": waiting_ms, "forward_ms": forward_ms},
        )


RULES = (
    Rule("HLO114", "recomputing-is-cheaper", WARNING, (MODULE, SCHEDULE, PREDICTION, TARGET), recompute_is_cheaper),
)
