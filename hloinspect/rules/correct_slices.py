"""Rule HLO301: slices that are copied from another place than their index says."""

from __future__ import annotations

from collections.abc import Iterator

from hloinspect.offload.slices import MEMCPY_CONFIG
from hloinspect.rules.advice import WITH_MARKER, is_right_release
from hloinspect.rules.blocking import WRONG_VALUES
from hloinspect.rules.evidence import Evidence
from hloinspect.rules.facts_flags import PIPELINED_FLAG
from hloinspect.rules.rule import ERROR, MODULE, Found, Rule
from hloinspect.rules.words import numbered, verb


def slice_offsets(evidence: Evidence) -> Iterator[Found]:
    """XLA copies other bytes than the program's index names: gradients are wrong, without an error.

    What it finds
        A slice of host memory that runs as a copy, whose byte offsets in the first iterations of its loop are not
        those of its index. Both are written in the module: the index as operands, the offsets in the configuration of
        the copy.
    Why it matters
        The backward pass of one layer gets the residuals of another. Nothing fails: the loss goes down more slowly, or
        not at all.
    What to do
        Use jax 0.11.1 or later. Until then it depends on the configuration of the copy, which the finding names.
        `dynamic_memcpy_config` is that of jax up to 0.10.1, where pipelined loops are wrong: leave
        `--xla_gpu_enable_pipelined_host_offloading=true` and O1 out, or compile with
        `--xla_disable_hlo_passes=fusion-dynamic-memcpy-rewriter`. `dynamic_slice_config` is that of 0.10.2 and later,
        where 0.10.2 and 0.11.0 are wrong in every scan: use 0.8.0 to 0.10.1 without pipelining, or compile with
        `--xla_disable_hlo_passes=dynamic-slice-annotator`. Without either pass the slices become kernels, which follow
        the index and slow the compute of the step (HLO110).
    When the advice does not hold
        A fusion that also computes is a kernel, whatever its configuration says, and is not reported. A slice whose
        index or configuration cannot be worked out, or whose configuration a text has lost (HLO403), is not reported
        either: the rule is then listed among those that could not run, with the reason, even where it has found other
        slices. The workarounds were compiled with 0.9.2 to 0.11.1, not run on hardware.
    Example
        s_off of the corpus (jax 0.10.2): by its index the backward copy reads 3758096384, 3221225472, ...; it is
        emitted for 0, 536870912, ...
    References
        openxla/xla pull requests 46231, 46308 and 47218, issue 49120; docs/slices.md; failures U0 and U28 of
        docs/failures.md.
    """
    wrong = evidence.slices.wrong
    if not wrong:
        return
    places = {(t.computation, t.start): t.id for t in evidence.transfers.values()}
    numbers = tuple(n for check in wrong if (n := places.get((check.computation, check.instruction))) is not None)
    first = wrong[0]
    what = numbered(numbers) if numbers else first.instruction
    yield Found(
        message=f"XLA copies other bytes than the program's index names in {what}: gradients are wrong, "
        "without an error",
        remedy=_remedy(evidence, {check.config for check in wrong}),
        transfers=numbers,
        instruction=first.instruction,
        computation=first.computation,
        evidence={
            "slices": len(wrong),
            "by_index_bytes": list(first.by_index),
            "emitted_bytes": list(first.emitted),
            "configuration": first.config,
        },
    )


def _remedy(evidence: Evidence, configs: set[str]) -> str:
    """Return the remedy for the pass that wrote the wrong configuration."""
    no_pipelining = f"leave out --{PIPELINED_FLAG}=true and O1"
    if MEMCPY_CONFIG in configs:
        ways, name = f"do not pipeline ({no_pipelining})", "fusion-dynamic-memcpy-rewriter"
    else:
        ways, name = "use jax 0.8.0 to 0.10.1", "dynamic-slice-annotator"
        if evidence.is_pipelined or evidence.optimization_level:
            ways += f" without pipelining ({no_pipelining})"
    kernels = f"compile with --xla_disable_hlo_passes={name}, which makes the slices kernels (HLO110; docs/slices.md)"
    if is_right_release(evidence):
        return f"{kernels}, and report it to XLA (openxla/xla): no version is known to be right"
    return f"use jax 0.11.1 or later; or {ways}; or {kernels}"


def _gap(evidence: Evidence) -> str:
    """Return which slices could not be checked, and why, or "" if all were."""
    lost = evidence.without_marker
    if not lost:
        return evidence.slices.gap
    takes = verb(lost, "the copy takes its address", "the copies take their addresses")
    text = f"{numbered(lost)} could not be checked: the text does not say from where {takes} (as of jax before 0.10.2)"
    return "; ".join([f"{text}: {WITH_MARKER}", *filter(None, [evidence.slices.gap])])


RULES = (Rule(WRONG_VALUES, "slice-offsets-walk-against-index", ERROR, (MODULE,), slice_offsets, gap=_gap),)
