"""Rules HLO401 to HLO406: facts that the input does not have, and the effect on the answer."""

from __future__ import annotations

from collections.abc import Iterator

from hloinspect.offload.events import ANNOTATION
from hloinspect.rules.advice import WITH_MARKER
from hloinspect.rules.evidence import Evidence
from hloinspect.rules.rule import ERROR, INFO, MODULE, WARNING, Found, Rule
from hloinspect.rules.words import transfers_text, verb


def not_scheduled(evidence: Evidence) -> Iterator[Found]:
    """The module is not scheduled, so it is not known what runs beside a transfer.

    What it finds
        A module without `is_scheduled=true`: a dump of an earlier pass, or the text of `lowered.compile()` before the
        scheduler.
    Why it matters
        The order decides overlap. No verdict, no memory and no stall can be derived from an unordered module.
    What to do
        Give the module after optimizations: `compiled.as_text()`, or `*after_optimizations.txt` of `--xla_dump_to`.
    When the advice does not hold
        You only want to know what moves, not when: the table of transfers is right.
    Example
        HloModule jit_step, entry_computation_layout=...    (no is_scheduled)
    References
        docs/reading.md.
    """
    if not evidence.module.is_scheduled:
        yield Found(
            message="the module is not scheduled, so it is not known what runs beside a transfer",
            remedy="give compiled.as_text(), or *after_optimizations.txt of --xla_dump_to",
        )


def not_optimized(evidence: Evidence) -> Iterator[Found]:
    """Placements are still there as custom calls: no compiler pass has carried them out.

    What it finds
        `annotate_device_placement`, `MoveToHost` or `MoveToDevice` among the instructions.
    Why it matters
        The transfers do not exist yet, so a report on this module finds none of them.
    What to do
        Give the module after optimizations.
    When the advice does not hold
        A backend that leaves a placement in is not known; if yours does, its offload did not happen.
    Example
        custom-call(%x), custom_call_target="MoveToHost"
    References
        xla/service/memory_annotations.h; form F13 of docs/failures.md.
    """
    events = [e for e in (evidence.offload.host_events if evidence.offload else ()) if e.kind == ANNOTATION]
    if events:
        yield Found(
            message=f"{len(events)} placements are not carried out yet ({events[0].detail}): the module is not "
            "optimized, and its transfers are not in it",
            remedy="give compiled.as_text(), or *after_optimizations.txt of --xla_dump_to",
            instruction=events[0].instruction,
            computation=events[0].computation,
            evidence={"placements": len(events)},
        )


def mechanism_lost(evidence: Evidence) -> Iterator[Found]:
    """The text does not say whether slices run as copies or as kernels.

    What it finds
        Transfers whose mechanism is unknown: `as_text()` of jax 0.8 to 0.10.1 leaves out the marker that makes a slice
        a memcpy.
    Why it matters
        A copy leaves the device's compute alone, a kernel does not, and slices of these versions cannot be checked for
        wrong offsets: HLO301 is then among the rules that could not run, and no check passes.
    What to do
        Give the proto or the dump of the same program; both keep the marker.
    When the advice does not hold
        It always holds.
    Example
        jax0.9.2_act_scan of the corpus beside its dump
    References
        docs/ground-truth.md.
    """
    numbers = evidence.without_marker
    if numbers:
        yield Found(
            message=f"{transfers_text(evidence, numbers)} {verb(numbers, 'is', 'are')} a copy or a kernel: this text "
            "has lost the marker",
            remedy=WITH_MARKER,
            transfers=numbers,
            evidence={"transfers": len(numbers)},
        )


def no_target(evidence: Evidence) -> Iterator[Found]:
    """No target is given, so there is no time to compare a transfer with.

    What it finds
        A report without a target, or with one whose host link is not published, on a module with transfers.
    Why it matters
        Whether a copy hides depends on how fast the link and the device are: without them verdicts are unknown and the
        rules on time cannot run.
    What to do
        `--target gb200` (`hloinspect targets` lists them), or your own TOML file; `--link 55GB/s` where the link is not
        published.
    When the advice does not hold
        You only want to know what moves.
    Example
        hloinspect inspect step.hlo
    References
        docs/targets.md.
    """
    target = evidence.report.target
    if evidence.report.transfers and not evidence.is_measured and (target is None or target.link is None):
        what = "no target was given" if target is None else f"no host link is published for {target.name}"
        yield Found(
            message=f"{what}, so no transfer has a verdict",
            remedy="--target NAME (see `hloinspect targets`)" if target is None else "--link 55GB/s, as measured",
        )


def no_autotuning(evidence: Evidence) -> Iterator[Found]:
    """The step was compiled without a device, so without autotuning.

    What it finds
        A module that `hloinspect compile` made without the GPU.
    Why it matters
        XLA selects kernels by running them. Without a device it uses defaults: matrix products may run as other kernels
        in the deployed program, and then windows differ.
    What to do
        `--autotune-results FILE` compiles with what a run on the device found. Without one
        `--xla_gpu_enable_triton_gemm=false` (as NVIDIA's scripts set) makes matrix products library calls, which are
        the most like the deployed ones. Confirm with a dump of a real run.
    When the advice does not hold
        On TPU nothing is tuned by running.
    Example
        every `hloinspect compile --target gb200`
    References
        docs/compile.md.
    """
    if evidence.report.program.autotuned is False and evidence.is_gpu and evidence.report.transfers:
        yield Found(
            message="compiled without a device, so without autotuning: deployed kernels may differ",
            remedy="--autotune-results FILE, or --xla-flag xla_gpu_enable_triton_gemm=false and a dump of a real run",
        )


def unknown_trips(evidence: Evidence) -> Iterator[Found]:
    """The number of iterations of a loop cannot be read from the module.

    What it finds
        A loop on the way to a transfer whose trip count is data, or whose counter is not followed. It is counted as one
        iteration.
    Why it matters
        Bytes and times of what is inside are too low by the number of iterations.
    What to do
        Make the trip count static (`lax.scan` or `fori_loop` with Python integers), or measure a run.
    When the advice does not hold
        The loop has one iteration.
    Example
        jax.lax.while_loop with a condition on data
    References
        docs/model.md.
    """
    loops = set(evidence.program.unknown_trip_counts)
    inside = [
        t for t in evidence.transfers.values() if (loop := evidence.loops.get(t.computation)) and loop.name in loops
    ]
    if inside:
        numbers = tuple(t.id for t in inside)
        yield Found(
            message=f"{transfers_text(evidence, numbers)} {verb(numbers, 'is', 'are')} counted once, though in a loop "
            "with an unknown number of iterations",
            remedy="make the trip count static, or measure a run",
            transfers=numbers,
            evidence={"loops": len(loops), "transfers": len(numbers)},
        )


RULES = (
    Rule("HLO401", "not-scheduled", ERROR, (MODULE,), not_scheduled),
    Rule("HLO402", "not-optimized", ERROR, (MODULE,), not_optimized),
    Rule("HLO403", "mechanism-unknown", WARNING, (MODULE,), mechanism_lost),
    Rule("HLO404", "target-unknown", INFO, (), no_target),
    Rule("HLO405", "not-autotuned", INFO, (), no_autotuning),
    Rule("HLO406", "trip-count-unknown", WARNING, (MODULE,), unknown_trips),
)
