"""Rules HLO302 to HLO306: requested placements in host memory and their outcomes."""

from __future__ import annotations

from collections.abc import Iterator

from hloinspect.compile.versions import BUT_NOT
from hloinspect.kinds import D2H
from hloinspect.offload.events import HOST_COMPUTE
from hloinspect.offload.transfers import HostCopy
from hloinspect.report.placements import keep_apart
from hloinspect.report.schema import AuditEntry
from hloinspect.rules.advice import scanning
from hloinspect.rules.correct_audit import deleted_as_a_whole, dropped_values
from hloinspect.rules.evidence import Evidence
from hloinspect.rules.rule import ERROR, INFO, MODULE, STABLEHLO, WARNING, Found, Rule
from hloinspect.units import bytes_text

_REARRANGES = frozenset({"transpose", "reshape", "convert", "copy", "bitcast-convert", "reverse"})
_INDEXING = frozenset({"add", "subtract", "multiply", "compare", "select", "clamp"})
_BOOKKEEPING = frozenset({"parameter", "constant", "bitcast", "tuple", "get-tuple-element"})


def offload_deleted(evidence: Evidence) -> Iterator[Found]:
    """The program requests host memory, and the compiled module has none.

    What it finds
        StableHLO that places values in host memory (`annotate_device_placement`), with an optimized module in which
        nothing is in host memory.
    Why it matters
        XLA has deleted the offload without an error: a copy to the host that feeds its copy back is folded into no copy
        at all. Memory is what it would be without the policy, or more.
    What to do
        Something must stand between the two copies. For unrolled layers leave `prevent_cse=True` (the default) in
        `jax.checkpoint`: its barrier separates them, though their copies may then start too late to free memory
        (HLO201). Or scan the layers, not with jax 0.10.2 or 0.11.0, which read wrong slices in a scan (HLO301).
    When the advice does not hold
        On TPU the placements are kept in the same program. A value that is not needed in the backward pass is gone
        together with its offload, and then nothing is lost.
    Example
        u_off_nocse of the corpus: 4 GiB placed on the host in StableHLO, none in the module; 13.6 GiB of device memory
        instead of 6.9.
    References
        xla/hlo/transforms/simplifiers/algebraic_simplifier.cc (HandleCopy, no check of memory spaces); failure U1 of
        docs/failures.md.
    """
    requested = evidence.requested
    if requested is None or not deleted_as_a_whole(evidence):
        return
    lost = [entry for entry in dropped_values(evidence) if entry.direction == D2H]
    yield Found(
        message=f"the program places {requested.to_host} values in host memory, and the compiled module has none there"
        ": XLA has deleted the offload",
        remedy=keep_apart(scanning(evidence)),
        source=lost[0].source if lost else None,
        evidence={"placements": requested.to_host, "host_bytes": 0},
    )


def policy_matches_nothing(evidence: Evidence) -> Iterator[Found]:
    """A policy names values to offload, and none of them is offloaded.

    What it finds
        Names given to `save_and_offload_only_these_names` while the step was traced, of which no value was placed in
        host memory. A policy without any matching name has no effect, and is an error, whatever else the step offloads;
        where other names of the policy match, it is a warning. A policy that the step makes and does not use is no
        finding. Only `hloinspect compile`, or a step given to `hloinspect inspect`, can see that: names are not in the
        compiled module.
    Why it matters
        The program runs, without an error and without the offload: the values that should be on the host are
        recomputed.
    What to do
        Compare the names letter by letter with those in `checkpoint_name(x, name)`. The name must be on a value that
        the backward pass needs, inside of the function that `jax.checkpoint` wraps: naming a block's output, or the
        carry of a scan, matches nothing, since it is no residual. Name its input, or a value inside.
    When the advice does not hold
        One policy is shared by several models, and this one has no such value.
    Example
        names_which_can_be_offloaded=["hidden"] and checkpoint_name(h, "hid")
    References
        jax issue 23869 = openxla/xla issue 17541; failure U2 of docs/failures.md.
    """
    requested = evidence.requested
    if requested is None or not requested.unmatched:
        return
    names = ", ".join(requested.unmatched[:6]) + (", ..." if len(requested.unmatched) > 6 else "")
    audit = evidence.report.audit
    entries = [entry for entry in (audit.entries if audit else ()) if entry.kind == "name"]
    dead = _dead_policy(evidence)
    yield Found(
        message=f"a policy offloads by name, and no value named {names} was placed in host memory"
        + dead
        + _why(entries),
        remedy="; ".join(dict.fromkeys(entry.remedy for entry in entries[:3] if entry.remedy))
        or "compare the names with those of checkpoint_name; name a value that the backward pass needs, inside of what "
        "jax.checkpoint wraps, and not a block's output",
        source=entries[0].source if entries else None,
        severity=None if dead else WARNING,
        evidence={"names": list(requested.unmatched), "placements": requested.to_host, "dead": bool(dead)},
    )


def _dead_policy(evidence: Evidence) -> str:
    """Return what a policy without any effect means, in words, or "" where some name of it matches, or may."""
    requested, audit = evidence.requested, evidence.report.audit
    assert requested is not None
    if not requested.to_host:
        return ": nothing is offloaded at all"
    values = [entry for entry in (audit.entries if audit else ()) if entry.kind == "value" and entry.by == "policy"]
    if any(entry.name is None for entry in values):  # a policy placed it, and the name is unknown (jax_remat3)
        return ""
    dead = bool(requested.dead) if requested.dead is not None else audit is not None and not values
    return ": the policy has no effect, though the step offloads other values" if dead else ""


def _why(entries: list[AuditEntry]) -> str:
    """Return each reason with the names to which it applies."""
    by_reason: dict[str, list[str]] = {}
    for entry in entries[:6]:
        by_reason.setdefault(entry.reason or "", []).append(entry.name or "")
    return "".join(f"; {', '.join(names)}: {reason}" for reason, names in by_reason.items())


def memory_kind_dropped(evidence: Evidence) -> Iterator[Found]:
    """Arguments or results that should be in host memory are in device memory.

    What it finds
        StableHLO in which arguments or results of the step have the memory kind `pinned_host`, with a module that has
        fewer of them in host memory.
    Why it matters
        Parameters or optimizer state that should be offloaded occupy the device, without an error.
    What to do
        Look at the shardings of the arguments that were passed when the step was compiled:
        `NamedSharding(mesh, spec, memory_kind="pinned_host")` in `in_shardings` or on the arrays themselves, and the
        same in `out_shardings` for what is returned.
    When the advice does not hold
        jax up to 0.8.0 drops every placement when it compiles for a device that the machine does not have; compile with
        a later one. `hloinspect compile` keeps the kinds that jax drops on such GPU topologies (docs/compile.md).
    Example
        an optimizer step whose moments are requested in pinned_host, with entry_computation_layout of plain f32
    References
        jaxlib/sharding.cc (CheckAndCanonicalizeMemoryKind); failure U3 of docs/failures.md.
    """
    requested, offload = evidence.requested, evidence.offload
    if requested is None or offload is None:
        return
    wanted = {kind: max(number, _wanted(evidence, kind)) for kind, number in requested.entry_values.items()}
    arguments = _leaves(evidence, "parameter")
    results = _leaves(evidence, "result")
    lost = max(0, wanted["argument"] - arguments) + max(0, wanted["result"] - results)
    if not lost:
        return
    audit = evidence.report.audit
    gone = [e.name for e in (audit.entries if audit else ()) if e.kind in wanted and e.outcome == "dropped" and e.name]
    named = f" (not {', '.join(gone[:4])}{', ...' if len(gone) > 4 else ''})" if gone else ""
    yield Found(
        message=f"{wanted['argument']} arguments and {wanted['result']} results should be in host memory; {arguments} "
        f"and {results} are{named}",
        remedy='memory_kind="pinned_host" in the shardings of the arguments and in out_shardings, with a jax later '
        f"than 0.8.0{BUT_NOT}",
        evidence={
            **({"names": gone} if gone else {}),
            "requested_arguments": wanted["argument"],
            "requested_results": wanted["result"],
            "host_arguments": arguments,
            "host_results": results,
        },
    )


def _wanted(evidence: Evidence, kind: str) -> int:
    """Return how many arguments or results the user's shardings request in host memory, by the audit.

    (jax up to 0.8.0 drops them before StableHLO.)
    """
    audit = evidence.report.audit
    return sum(entry.kind == kind and entry.outcome != "unused" for entry in (audit.entries if audit else ()))


def _leaves(evidence: Evidence, kind: str) -> int:
    """Return the number of arrays in host memory among the arguments or results of the step."""
    entry = evidence.module.entry
    if kind == "parameter":
        return sum(leaf.on_host for parameter in entry.parameters for _, leaf in parameter.shape.leaves)
    return sum(leaf.on_host for _, leaf in entry.root.shape.leaves)


def kernel_on_host_memory(evidence: Evidence) -> Iterator[Found]:
    """A kernel of the device computes on host memory, over the link.

    What it finds
        On GPU, an instruction that reads and writes host memory and is no copy: XLA converts operations on values in
        host memory "into host compute", which on GPU is a kernel that works over the link.
    Why it matters
        Each byte crosses the link twice, at the link's rate, on the stream that computes.
    What to do
        Fetch first, then compute: `jax.device_put(x, device)` before the operation, and send the result. Look for
        a convert, a scale or an update that is applied to an array while it is in host memory.
        A kernel that only slices is XLA's own, up to jax 0.7.2: from 0.8.0 it fetches the slice itself (not with 0.10.2
        or 0.11.0, which fetch wrong ones: HLO301).
        `--xla_disable_automatic_host_compute_offload=true` (jax 0.7.2 and later) makes it an error, which is a guard
        for CI.
    When the advice does not hold
        A small update of a large array in host memory (a few rows) can be cheaper over the link than fetching it all.
    Example
        gb200_compute_on_host_memory of the fixtures: stack * 2 + 1 on a stack in pinned_host is loop_add_fusion.
    References
        xla/hlo/transforms/host_offloader.cc (the warning); jax issue 28319, AI-Hypercomputer/maxtext pull request 1824,
        openxla/xla issue 34565; failure U8 of docs/failures.md.
    """
    found = [copy for copy in _kernels(evidence) if not _rearranges(evidence, copy.computation, copy.instruction)]
    if not found:
        return
    first = max(found, key=lambda copy: (copy.bytes * copy.executions, copy.instruction))
    total = sum(copy.bytes * copy.executions for copy in found)
    remedy = "jax.device_put the value to the device before the operation, and send the result"
    if all(_only_slices(evidence, copy) for copy in found):
        remedy = (
            "update jax: 0.8.0 or later fetches the slice itself instead of slicing within host memory first" + BUT_NOT
        )
    yield Found(
        message=f"{_names([copy.instruction for copy in found])} on host memory over the link, {bytes_text(total)} a "
        "step",
        remedy=remedy,
        instruction=first.instruction,
        computation=first.computation,
        evidence={"kernels": len(found), "bytes_per_step": total},
    )


def layout_change_on_host(evidence: Evidence) -> Iterator[Found]:
    """A transpose or conversion runs between two places in host memory.

    What it finds
        On GPU, a kernel that reads and writes host memory and only rearranges or converts: a transpose, a change of
        layout or of type.
    Why it matters
        The whole buffer crosses the link twice, with an access pattern for which the link is slowest.
    What to do
        Do it on the device: before sending (`device_put` of the transposed value), or after fetching.
    When the advice does not hold
        It happens once, outside of the training loop.
    Example
        stack.transpose(0, 2, 1) with the argument and the result in pinned_host
    References
        openxla/xla pull requests 24248, 10495 and 17500; failure U17 of docs/failures.md.
    """
    found = [copy for copy in _kernels(evidence) if _rearranges(evidence, copy.computation, copy.instruction)]
    if not found:
        return
    first = max(found, key=lambda copy: (copy.bytes * copy.executions, copy.instruction))
    total = sum(copy.bytes * copy.executions for copy in found)
    yield Found(
        message=f"{_names([copy.instruction for copy in found], 'rearranges', 'rearrange')} host memory over the link, "
        f"{bytes_text(total)} a step",
        remedy="transpose or convert on the device, before sending or after fetching",
        instruction=first.instruction,
        computation=first.computation,
        evidence={"kernels": len(found), "bytes_per_step": total},
    )


def _kernels(evidence: Evidence) -> list[HostCopy]:
    if not evidence.is_gpu or evidence.offload is None:
        return []
    return [copy for copy in evidence.offload.host_copies if copy.mechanism == "kernel"]


def _rearranges(evidence: Evidence, computation: str, name: str) -> bool:
    """Return whether an instruction, or all that a fusion does, is a transpose or conversion."""
    instruction = evidence.module.computations[computation].find(name)
    if instruction is None:
        return False
    if instruction.opcode != "fusion":
        return instruction.opcode in _REARRANGES
    body = evidence.module.computations.get(next(iter(instruction.called.get("calls", ())), ""))
    opcodes = {inner.opcode for inner in body or ()} - _BOOKKEEPING
    return bool(opcodes) and opcodes <= _REARRANGES


def _only_slices(evidence: Evidence, copy: HostCopy) -> bool:
    """Return whether a kernel only cuts a slice out of a buffer in host memory."""
    instruction = evidence.module.computations[copy.computation].find(copy.instruction)
    called = instruction.called.get("calls", ()) if instruction is not None else ()
    body = evidence.module.computations.get(next(iter(called), ""))
    opcodes = {inner.opcode for inner in body or ()} - _BOOKKEEPING - _INDEXING
    return bool(opcodes) and opcodes <= {"dynamic-slice", "slice"}


def _names(names: list[str], one: str = "works", many: str = "work") -> str:
    return f"{names[0]} {one}" if len(names) == 1 else f"{len(names)} kernels ({', '.join(names[:3])}) {many}"


def host_compute(evidence: Evidence) -> Iterator[Found]:
    """A part of the step runs on the host's CPU.

    What it finds
        A computation that the runtime hands to the host (`HostExecute`): the work of `compute_on("device_host")`, and
        on TPU also operations on values in host memory.
    Why it matters
        How long the host takes is in no module and in no prediction. The device waits at its `-done`.
    What to do
        If you requested it, measure it. If not, find the operation on a value in host memory (HLO305 names such kernels
        on GPU) and move it to the device.
    When the advice does not hold
        You requested it, and a measured run shows that nothing waits.
    Example
        gb200_compute_on of the fixtures: a gradient goes to the host, which updates a state there.
    References
        jax.experimental.compute_on; forms F7 and failures U8 and U25 of docs/failures.md.
    """
    events = [e for e in (evidence.offload.host_events if evidence.offload else ()) if e.kind == HOST_COMPUTE]
    if not events:
        return
    runs = sum(event.executions for event in events)
    yield Found(
        message=f"{_names([event.instruction for event in events], 'runs', 'run')} on the host's CPU, {runs} times a "
        "step; how long that takes is not predicted",
        remedy="measure a run; move the operation to the device if compute_on was not meant",
        instruction=events[0].instruction,
        computation=events[0].computation,
        evidence={"computations": len(events), "executions": runs},
    )


RULES = (
    Rule("HLO302", "offload-deleted", ERROR, (MODULE, STABLEHLO), offload_deleted),
    Rule("HLO303", "policy-matches-nothing", ERROR, (MODULE, STABLEHLO), policy_matches_nothing),
    Rule("HLO304", "memory-kind-dropped", ERROR, (MODULE, STABLEHLO), memory_kind_dropped),
    Rule("HLO305", "kernel-on-host-memory", WARNING, (MODULE,), kernel_on_host_memory),
    Rule("HLO306", "layout-change-on-host", WARNING, (MODULE,), layout_change_on_host),
    Rule("HLO307", "computation-on-host", INFO, (MODULE,), host_compute),
)
