"""HLO301: slices that are copied from another place than their index says."""

from __future__ import annotations

from collections.abc import Iterator

from hloinspect.rules.evidence import Evidence
from hloinspect.rules.rule import ERROR, MODULE, Found, Rule
from hloinspect.rules.words import numbered


def slice_offsets(evidence: Evidence) -> Iterator[Found]:
    """XLA copies other bytes than the program's index names: gradients are wrong without a word.

    What it finds
        A slice of host memory that runs as a copy, whose byte offsets in the first turns of its loop are not those of
        its index. Both are written in the module: the index as operands, the offsets in the configuration of the copy.
    Why it matters
        The backward pass of one layer gets the residuals of another. Nothing fails: the loss goes down more slowly, or
        not at all.
    What to do
        Use jax 0.11.1 or later, or 0.10.1 or earlier. Until then `--xla_disable_hlo_passes=dynamic-slice-annotator`:
        the slices become kernels, which go by the index (HLO110).
    When the advice does not hold
        A fusion that also computes is a kernel, whatever its configuration says, and is not reported. The workaround
        was compiled, not run on hardware.
    Example
        s_off of the corpus (jax 0.10.2): by its index the backward copy reads 3758096384, 3221225472, ...; it is
        emitted for 0, 536870912, ...
    References
        openxla/xla pull requests 46231, 46308 and 47218, issue 49120; docs/slices.md; failure U0 of docs/failures.md.
    """
    wrong = [check for check in evidence.slices if not check.agrees and check.on_host]
    if not wrong:
        return
    places = {(t.computation, t.start): t.id for t in evidence.transfers.values()}
    numbers = tuple(n for check in wrong if (n := places.get((check.computation, check.instruction))) is not None)
    first = wrong[0]
    what = numbered(numbers) if numbers else first.instruction
    yield Found(
        message=f"XLA copies other bytes than the program's index names in {what}: gradients are wrong without a word",
        remedy="use jax 0.11.1 or later (0.10.1 or earlier), or compile with "
        "--xla_disable_hlo_passes=dynamic-slice-annotator (see docs/slices.md)",
        transfers=numbers,
        instruction=first.instruction,
        computation=first.computation,
        evidence={
            "slices": len(wrong),
            "by_index_bytes": list(first.by_index),
            "emitted_bytes": list(first.emitted),
        },
    )


RULES = (Rule("HLO301", "slice-offsets-walk-against-index", ERROR, (MODULE,), slice_offsets),)
