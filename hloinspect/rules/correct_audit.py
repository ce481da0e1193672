"""Rules HLO309 and HLO310: requested placements that are missing, and transfers that were not requested."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from hloinspect.kinds import Severity
from hloinspect.report.placements import keep_apart
from hloinspect.report.schema import AuditEntry
from hloinspect.rules.advice import scanning
from hloinspect.rules.evidence import Evidence
from hloinspect.rules.rule import AUDIT, ERROR, INFO, MODULE, WARNING, Found, Rule
from hloinspect.units import listed

_LESS: Mapping[str, Severity] = {"constant": INFO, "dead": WARNING}
"""Causes with a lower severity: no value that the step returns should be in host memory."""

_WAYS = {"d2h": "to the host", "h2d": "back to the device"}


def deleted_as_a_whole(evidence: Evidence) -> bool:
    """Return whether the step requests host memory and has none at all, which HLO302 reports."""
    requested, offload = evidence.requested, evidence.offload
    if requested is None or offload is None or not requested.to_host or not evidence.module.is_scheduled:
        return False
    if offload.transfers or offload.host_values or offload.host_copies or offload.host_events:
        return False
    return not any(entry.cause == "dead" for entry in dropped_values(evidence))


def dropped_values(evidence: Evidence) -> list[AuditEntry]:
    """Return the placements of the audit that the module does not carry out."""
    audit = evidence.report.audit
    return [e for e in (audit.entries if audit else ()) if e.kind in ("value", "compute") and e.outcome == "dropped"]


def placement_lost(evidence: Evidence) -> Iterator[Found]:
    """A placement in host memory is not in the compiled module.

    What it finds
        Placements (`jax.device_put`, a policy's offload, `compute_on`) that the audit finds in the program and that
        match nothing in the compiled module, while other transfers are there (without any, HLO302 reports it).
    Why it matters
        What should be in host memory stays in device memory, or is computed again, without an error.
    What to do
        It depends on the reason, which the message gives. Nothing needs the value: return or use what is put there. A
        copy to the host and the copy back were folded: scan the layers, or keep the barrier of `jax.checkpoint`
        (prevent_cse=True) on unrolled ones, whose copies may then start too late to free memory (HLO201). The value
        depends on no argument: make it one. jax dropped it: give shardings that name their memory.
        `hloinspect inspect --audit` shows all requested placements and their outcomes; `hloinspect passes` shows which
        compiler pass did it.
    When the advice does not hold
        The value was put there for debugging only, or by code that is shared with steps that need it.
    Example
        kept = jax.device_put(y, host)   # and nothing returns or reads kept
    References
        xla/hlo/transforms/simplifiers/algebraic_simplifier.cc (HandleCopy); failures U1 to U3 of docs/failures.md;
        docs/audit.md.
    """
    if deleted_as_a_whole(evidence):
        return
    lost = dropped_values(evidence)
    folded = any(entry.direction == "d2h" and entry.cause == "folded" for entry in lost)
    for entry in lost:
        if not (folded and entry.direction == "h2d" and entry.cause == "folded"):  # reported with the copy to the host
            yield _lost(evidence, entry)


def _lost(evidence: Evidence, entry: AuditEntry) -> Found:
    what = entry.name or (f"{entry.dtype}[{','.join(map(str, entry.shape))}]" if entry.dtype else "a computation")
    way = _WAYS.get(entry.direction or "", "on the host")
    count = f"{entry.requested} placements" if entry.requested > 1 else "the placement"
    are = "are" if entry.requested > 1 else "is"
    by = f" by the pass {entry.pass_name}" if entry.pass_name else ""
    folded = keep_apart(scanning(evidence)) if entry.cause == "folded" else ""
    return Found(
        message=f"{count} of {what} {way} {are} dropped{by}: {entry.reason}",
        remedy=folded or entry.remedy or "hloinspect inspect --audit shows all requested placements",
        source=entry.source,
        severity=_LESS.get(entry.cause or ""),
        evidence={
            "names": [what],
            "requested": entry.requested,
            "cause": entry.cause or "",
            "pass": entry.pass_name or "",
        },
    )


def not_requested(evidence: Evidence) -> Iterator[Found]:
    """A transfer that nothing in the program requests.

    What it finds
        Host transfers, and work in host memory, of the compiled module that belong to no placement, argument or result
        of the program. Only where the audit knows the requested placements.
    Why it matters
        They cost time on the link without a decision of the user. The audit matches transfers with placements by
        buffers, lines and shapes. One that matches none was added by the compiler, or shows that hloinspect has missed
        something.
    What to do
        Look at its line and at `hloinspect passes`, which shows the pass that makes it. XLA's rematerialization
        offloads by itself with `--xla_gpu_enable_host_memory_offloading`.
    When the advice does not hold
        The StableHLO next to the module is that of another program.
    Example
        s_off.hlo with the StableHLO of a step that places nothing on the host
    References
        form F14 of docs/failures.md; docs/audit.md.
    """
    audit = evidence.report.audit
    if audit is None or audit.requested_from is None or not (audit.unexplained or audit.unexplained_host):
        return
    ids = evidence.costliest_first(audit.unexplained)
    names = [evidence.infos[number].start for number in ids] + list(audit.unexplained_host)
    yield Found(
        message=f"nothing in the program requests {listed(names, 3)}",
        remedy="hloinspect passes shows which compiler pass makes it; inspect --audit shows the requested placements",
        transfers=ids,
        cost_ms=evidence.wait_ms(ids),
        instruction=None if ids else audit.unexplained_host[0],
        evidence={"transfers": len(ids), "host_work": len(audit.unexplained_host)},
    )


RULES = (
    Rule("HLO309", "placement-lost", ERROR, (MODULE, AUDIT), placement_lost),
    Rule("HLO310", "not-requested", WARNING, (MODULE, AUDIT), not_requested),
)
