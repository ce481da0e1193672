"""Rules HLO108, HLO115 and HLO407 to HLO411: facts that only a trace of a run shows."""

from __future__ import annotations

from collections.abc import Iterator

from hloinspect.report.unseen import copies_unseen, graphs_unseen
from hloinspect.rules.evidence import Evidence
from hloinspect.rules.rule import ERROR, INFO, MEASURED, TARGET, TRACE, WARNING, Found, Rule
from hloinspect.rules.words import transfers_text
from hloinspect.units import time_text

SLOW_SHARE = 0.7
"""The share of the target's rate below which a copy alone on the link is slow."""

LARGE_BYTES = 16 << 20
"""The size from which on copies reach a link's rate. Smaller ones say nothing of it."""

GRAPHS_OFF = "XLA_FLAGS=--xla_gpu_enable_command_buffer="
LATE_HOST_SHARE = 0.01
SET_ASIDE_SHARE = 0.2


def slow_link(evidence: Evidence) -> Iterator[Found]:
    """Copies run slower than the target's link, though nothing else was on it.

    What it finds
        Copies of 16 MiB or more that reached less than 70 % of the target's rate for their direction, at times when the
        other direction was idle.
    Why it matters
        Every prediction for this target is too hopeful, and the machine is not what it should be.
    What to do
        In this order: is the process bound to the CPUs and memory beside its GPU (`numactl --cpunodebind`,
        `--membind`)? Is the memory pinned (a trace says `pageable` where it is not)? Does the slot have its lanes
        (`nvidia-smi -q`, Link Width)? Do other devices of the host copy at the same time? If all of this is right,
        accept the rate: `hloinspect calibrate` makes a target of its trace.
    When the advice does not hold
        The devices of one host share its memory, and together they reach less than each alone. The target's rate is the
        published one of another machine: see `hloinspect targets NAME`.
    Example
        26 GB/s to the host, alone on the link; h100 has 55
    References
        docs/calibrate.md, docs/targets.md.
    """
    target = evidence.report.target
    if target is None or target.link is None:
        return
    rates = {"d2h": target.link.d2h_gbps, "h2d": target.link.h2d_gbps}
    slow = [
        (alone / rates[info.direction], info)
        for info in evidence.infos.values()
        if info.measured is not None
        and info.bytes >= LARGE_BYTES
        and info.mechanism == "dma"
        and (alone := info.measured.gbps_alone) is not None
        and alone < SLOW_SHARE * rates[info.direction]
    ]
    if not slow:
        return
    slow.sort(key=lambda each: (each[0], each[1].id))
    share, worst = slow[0]
    numbers = tuple(info.id for _, info in slow)
    reached = share * rates[worst.direction]
    way = "to the host" if worst.direction == "d2h" else "from the host"
    yield Found(
        message=f"{transfers_text(evidence, numbers)} reached {reached:.3g} GB/s {way} with nothing else on the link; "
        f"{target.name} has {rates[worst.direction]:.3g}",
        remedy="bind each process to the CPUs and memory beside its device, check pinned memory and the link's "
        "width; then `hloinspect calibrate` for this machine's own figures",
        transfers=numbers,
        evidence={"gbps": reached, "target_gbps": rates[worst.direction], "transfers": len(numbers)},
    )


def host_was_late(evidence: Evidence) -> Iterator[Found]:
    """The device stood still because the host had not launched its next operation.

    What it finds
        On GPU, idle time before operations that the host launched only after the transfer they wait for had ended:
        more than 1 % of the step.
    Why it matters
        This time looks like a stall of the transfer but is none: no change to the offload saves it.
    What to do
        Fewer and larger kernels, command buffers (CUDA graphs), no work of Python between steps, no reading of results
        in every step (`float(loss)` waits).
    When the advice does not hold
        The profiler itself slows the host: compare the step's time with one that is not profiled.
    Example
        host_bound_ms 12.4 of a step of 210 ms
    References
        docs/trace.md.
    """
    measured = evidence.report.step.measured
    if measured is None or measured.host_bound_ms <= LATE_HOST_SHARE * measured.time_ms:
        return
    yield Found(
        message=f"the device waits {time_text(measured.host_bound_ms)} of {time_text(measured.time_ms)} a step for "
        "operations that the host had not launched yet",
        remedy="larger kernels or command buffers, and no reading of results in every step; this is no stall of a "
        "transfer",
        evidence={"host_bound_ms": measured.host_bound_ms, "step_ms": measured.time_ms},
    )


def steps_set_aside(evidence: Evidence) -> Iterator[Found]:
    """Many steps of the trace do not count.

    What it finds
        A fifth or more of the steps set aside: dropped or unpaired events, rates above what the hardware can do, clocks
        that jumped.
    Why it matters
        Figures come from the other steps. If the cause is related to what is measured, they mislead.
    What to do
        Trace again, and fewer steps at a time: profilers drop events when their buffers are full.
    When the advice does not hold
        Many steps are left and they agree: check their spread.
    Example
        tpu_v6e_host_offload of the corpus: of 400 steps of four devices 244 are set aside, and the rest agree to 0.1 %.
    References
        docs/trace.md.
    """
    measured = evidence.report.step.measured
    if measured is None or not measured.steps_seen:
        return
    aside = sum(each.count for each in measured.steps_set_aside)
    if aside < SET_ASIDE_SHARE * measured.steps_seen:
        return
    reasons = ", ".join(f"{each.reason} ({each.count})" for each in measured.steps_set_aside)
    yield Found(
        message=f"{aside} of {measured.steps_seen} steps do not count: {reasons}",
        remedy="trace again, fewer steps at a time",
        evidence={"set_aside": aside, "steps": measured.steps_seen},
    )


def hidden_in_command_buffers(evidence: Evidence) -> Iterator[Found]:
    """Command buffers (CUDA graphs) hide which operation an event belongs to.

    What it finds
        Events of the trace that name a command buffer instead of an instruction.
    Why it matters
        Totals hold, but waits and copies inside cannot be assigned to a transfer or a line.
    What to do
        Profile with `XLA_FLAGS=--xla_gpu_enable_command_buffer=` (nothing after the last `=`), which turns them off.
    When the advice does not hold
        Without command buffers the host launches every kernel, and small steps get slower: compare totals only with
        them on.
    Example
        hlo_op=command_buffer_3
    References
        openxla/xprof issues 2544 and 3070; docs/trace.md.
    """
    trace = evidence.report.trace
    if trace is not None and trace.hidden_events:
        yield Found(
            message=f"{trace.hidden_events:,} of {trace.events:,} events are in command buffers and do not name their "
            "instruction",
            remedy=f"profile with {GRAPHS_OFF}",
            evidence={"hidden_events": trace.hidden_events, "events": trace.events},
        )


def rocm_without_copies(evidence: Evidence) -> Iterator[Found]:
    """A ROCm trace does not show which copies ran when.

    What it finds
        A trace of an AMD GPU. Its profilers give every copy the same name (jax up to 0.7) or leave the device's copies
        out (0.8 to 0.10).
    Why it matters
        No transfer has a measured time, and no verdict is possible.
    What to do
        Inspect the module instead (`hloinspect inspect`), or measure on another platform.
    When the advice does not hold
        A later ROCm plugin that records copies; traces of one are welcome.
    Example
        rocm_mi300x_jax08 of the corpus: hipMemcpy calls on the host, no copy on the device
    References
        ROCm/roctracer issue 45; pytorch/kineto pull request 1398; docs/trace.md.
    """
    if copies_unseen(evidence.report):
        yield Found(
            message="the trace is one of ROCm, which does not show copies between device and host",
            remedy="`hloinspect inspect` on the module, or a trace of another platform",
        )


def no_whole_step(evidence: Evidence) -> Iterator[Found]:
    """The trace holds no complete step that could be measured.

    What it finds
        A trace from which no step time follows: shorter than one step, without events of the device, or without the
        program's name on them.
    Why it matters
        Nothing is measured, so nothing is known to be right.
    What to do
        Trace ten steps in a row, after the warm-up, on the accelerator, in the process that drives it.
    When the advice does not hold
        The trace does not contain a training step.
    Example
        jax.profiler.trace around a single call, the compilation included
    References
        docs/trace.md.
    """
    report = evidence.report
    if report.trace is None or report.step.measured is not None or copies_unseen(report):
        return
    if report.trace.events and not report.trace.programs:
        yield Found(
            message="no event in the trace names the program it is of, so there are no steps: only its copies and the "
            "time of its kernels are measured",
            remedy="profile a jitted JAX step; of an nsys profile, with --trace=cuda,nvtx and the module",
        )
    elif graphs_unseen(report):
        yield Found(
            message="whole CUDA graphs are one event each in the trace, so no step of the program is measured",
            remedy=f"profile with {GRAPHS_OFF}; of nsys, --cuda-graph-trace=node shows what is in them",
        )
    else:
        yield Found(
            message="no step of the program in the trace counts, so nothing is measured",
            remedy="profile ten steps in a row, after the warm-up (docs/record.md)",
        )


def other_program(evidence: Evidence) -> Iterator[Found]:
    """The program that was profiled is not the one that was checked.

    What it finds
        A trace whose module has other transfers than that of `--expect`.
    Why it matters
        What was checked before the run says nothing about this run.
    What to do
        Compile and check what is run: the same jax, the same flags (`XLA_FLAGS` of the job), the same shapes and mesh.
    When the advice does not hold
        Only the order or the kernels differ: then the transfers are the same, and the first line of the report says so.
    Example
        hloinspect trace run/ --expect step-gb200/
    References
        docs/against.md.
    """
    trace = evidence.report.trace
    expected = trace.expected if trace is not None else None
    if expected is not None and expected.status == "different":
        yield Found(
            message=f"the profiled program is not the one that was checked: {'; '.join(expected.differences[:2])}",
            remedy="compile and check what is run: its jax, its flags, its shapes and its mesh",
            evidence={"differences": len(expected.differences)},
        )


RULES = (
    Rule("HLO108", "link-slower-than-target", WARNING, (MEASURED, TARGET), slow_link),
    Rule("HLO115", "host-was-late", WARNING, (MEASURED,), host_was_late),
    Rule("HLO407", "steps-set-aside", INFO, (MEASURED,), steps_set_aside),
    Rule("HLO408", "hidden-in-command-buffers", WARNING, (TRACE,), hidden_in_command_buffers),
    Rule("HLO409", "rocm-without-copies", WARNING, (TRACE,), rocm_without_copies),
    Rule("HLO410", "no-whole-step", WARNING, (TRACE,), no_whole_step),
    Rule("HLO411", "other-program-ran", ERROR, (TRACE,), other_program),
)
