"""The audit of a module as a report has it: where requests are read from, and in words what became of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from hloinspect.compile.versions import BUT_NOT, SCAN_NOT_WITH
from hloinspect.errors import HloInspectError, HloParseError, InputError
from hloinspect.kinds import PlacementCause, PlacementOutcome
from hloinspect.report.schema import AuditEntry, AuditInfo, SourceInfo, Unknown

if TYPE_CHECKING:
    from hloinspect.offload.transfers import Offload
    from hloinspect.placements.audit import Entry
    from hloinspect.placements.flow import Place, Placements, RequestedRecord

OWN_OFFLOAD_FLAG = "xla_gpu_enable_host_memory_offloading"
"""A flag with which XLA's rematerialization sends values to the host by itself."""

_BY_FLAG: Final = "flag"
_MOST_TEXT_BYTES = 1 << 30


def keep_apart(scanning: str) -> str:
    """Return what keeps XLA from folding a copy to the host and the copy back into nothing; ``scanning`` is the advice
    to scan, which depends on the version of jax."""
    return (
        f"{scanning}; or keep jax.checkpoint's barrier (prevent_cse=True) on unrolled layers, whose copies may then "
        "start too late to free memory (HLO201)"
    )


_REASONS: Mapping[PlacementCause, str] = {
    "folded": "no barrier stands between the copy to the host and the copy back, and XLA makes one copy of both "
    "(algebraic simplifier)",
    "dead": "nothing that the step returns needs it, so it was taken out with its copy",
    "constant": "it depends on no argument of the step, so XLA makes it where it is needed",
    "lowering": "jax dropped it when it lowered the step: StableHLO has no such placement",
    "memory kind": "the compiled step has it in device memory",
    "unknown name": "no value has this name",
    "not needed": "the backward pass needs no value of this name: it is an output, or what a loop carries",
    "no transfer": "no transfer of the module carries it out, and none of the known reasons fits",
}
_REMEDIES: Mapping[PlacementCause, str] = {
    "folded": keep_apart(f"scan the layers {SCAN_NOT_WITH}"),
    "dead": "return or use what is put there, or take the placement out",
    "constant": "pass it as an argument of the step if it is to be kept on the host",
    "lowering": "give the arrays shardings that name their memory, with a jax later than 0.8.0" + BUT_NOT,
    "memory kind": 'memory_kind="pinned_host" in in_shardings or on the arrays, and in out_shardings',
    "unknown name": "compare the name with those of checkpoint_name",
    "not needed": "name a value that the backward pass needs, inside of what jax.checkpoint wraps",
    "no transfer": "hloinspect passes shows which compiler pass takes it out",
}
_OUTCOMES: Mapping[PlacementOutcome, str] = {
    "merged": "the same value is requested more than once, and one transfer carries out all requests",
    "synchronous": "there, but the device does nothing else while it runs",
    "kernel": "there, but a kernel of the device reads or writes the host's memory over the link",
    "host compute": "nothing is copied: the host's memory is worked on where it is, or by the host",
    "unused": "the step does not use this argument, and jax leaves it out",
}

NO_SOURCE = Unknown(
    "what the program requested of host memory is not in a compiled module",
    "give the step itself or a directory of `hloinspect compile`; put STEM.stablehlo beside STEM.hlo; or give a dump "
    "with *before_optimizations.txt",
    "audit",
)
NO_NAMES = Unknown(
    "checkpoint names, and what policies name, are in no module: a name that matches nothing is not seen here",
    "give the step itself, or a directory of `hloinspect compile`",
    "audit",
)


@dataclass(frozen=True, slots=True)
class RequestedOf:
    """Where to read what a module's program requested. ``manifest`` is what the child found in the jaxpr, ``stablehlo``
    the text beside the module, ``before`` the module's text before all passes, and ``dump`` a folder of XLA's with the
    module's key in it, for the texts of passes. ``flags`` are those of the compilation."""

    manifest: RequestedRecord | None = None
    stablehlo: Path | None = None
    before: Path | None = None
    dump: tuple[Path, str] | None = None
    flags: Sequence[str] = ()


def audited(offload: Offload, sources: RequestedOf) -> tuple[Offload, AuditInfo]:
    """Return the offload and its audit: what was requested and the outcome, without any source only ``unknown``.

    Transfers without a name get the checkpoint name that the audit finds. Raises InputError where a file cannot be read
    or is not what it should be.
    """
    placements = _placements(sources)
    if placements is None:
        return offload, AuditInfo(None, unknown=(NO_SOURCE,))
    # Imported only where there is something to read: most modules come without any source.
    from hloinspect.placements.audit import PolicyName, audit

    policies = [PolicyName(p.name, p.place) for p in sources.manifest.policies] if sources.manifest is not None else ()
    if placements.gap:
        remedy = "report it, with the step, if it can be shared"
        return offload, AuditInfo(placements.source, unknown=(Unknown(placements.gap, remedy, "audit"),))
    found = audit(offload, placements, policies=policies)
    if found.lost:  # only then it is worth looking where each was lost
        lowered = _stablehlo(sources.stablehlo) if placements.source == "jaxpr" else None
        found = audit(offload, placements, lowered, policies, _dropped_by(sources))
    entries = [_entry(entry) for entry in found.entries]
    unexplained = found.unexplained
    if unexplained and _has_flag(sources.flags, OWN_OFFLOAD_FLAG):
        entries.append(_by_flag(unexplained))
        unexplained = ()
    unknown = () if placements.source == "jaxpr" else (NO_NAMES,)
    info = AuditInfo(placements.source, tuple(entries), unexplained, found.unexplained_host, unknown)
    return _named(offload, found.names), info


def _named(offload: Offload, names: Mapping[int, str]) -> Offload:
    transfers = tuple(
        replace(transfer, tensor=replace(transfer.tensor, name=names[transfer.id]))
        if transfer.id in names and not transfer.tensor.name
        else transfer
        for transfer in offload.transfers
    )
    return replace(offload, transfers=transfers)


def _placements(sources: RequestedOf) -> Placements | None:
    if sources.manifest is not None:
        return sources.manifest.placements()
    return _stablehlo(sources.stablehlo) or _before(sources.before)


def _stablehlo(path: Path | None) -> Placements | None:
    if path is None or not path.is_file():
        return None
    from hloinspect.placements.stablehlo import placements_of

    return placements_of(_text(path))


def _before(path: Path | None) -> Placements | None:
    if path is None or not path.is_file():
        return None
    from hloinspect.hlo.text import parse_text
    from hloinspect.placements.before import placements_before_passes

    try:
        return placements_before_passes(parse_text(_text(path)))
    except HloParseError as error:
        raise InputError(f"{path}: {error}") from None


def _text(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return file.read(_MOST_TEXT_BYTES).decode("utf-8", "replace")
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error}") from None


def _dropped_by(sources: RequestedOf) -> dict[str, str]:
    """Return, for each direction, the pass after which placements or transfers are fewer with nothing in their place,
    from the texts of passes in a dump; empty where there are none."""
    if sources.dump is None:
        return {}
    from hloinspect.passes.dump import find_passes
    from hloinspect.passes.ledger import ledger_of

    directory, key = sources.dump
    try:
        ledger = ledger_of(find_passes(directory, key))
    except HloInspectError:  # a dump without texts of passes, or with damaged ones: then it is not known
        return {}
    found: dict[str, str] = {}
    for change in ledger.changes:
        for direction in change.dropped:
            found.setdefault(direction, change.text.label)
    return found


def _has_flag(flags: Sequence[str], name: str) -> bool:
    values = [flag.lstrip("-").partition("=") for flag in flags]
    return any(key == name and value.lower() not in ("false", "0") for key, _, value in values)


# ---- words


def _entry(entry: Entry) -> AuditEntry:
    reason = _REASONS.get(entry.cause) if entry.cause else _OUTCOMES.get(entry.outcome)
    if entry.outcome == "unused":
        reason = _OUTCOMES["unused"]
    remedy = _REMEDIES.get(entry.cause) if entry.cause and entry.outcome in ("dropped", "never matched") else None
    if entry.cause == "unknown name" and entry.near:
        remedy = f"did you mean {entry.near!r}? {remedy}"
    return AuditEntry(
        kind=entry.kind,
        direction=entry.direction or None,
        by=entry.by,
        name=entry.name or None,
        dtype=entry.dtype or None,
        shape=entry.shape,
        requested=entry.count,
        runs=entry.runs,
        outcome=entry.outcome,
        cause=entry.cause or None,
        reason=reason,
        remedy=remedy,
        transfers=entry.transfers,
        pass_name=entry.pass_name or None,
        source=_source(entry.place),
    )


def _source(place: Place | None) -> SourceInfo | None:
    return SourceInfo(place.file, place.line, place.function or None) if place else None


def _by_flag(transfers: tuple[int, ...]) -> AuditEntry:
    return AuditEntry(
        kind="value",
        direction=None,
        by=_BY_FLAG,
        name=OWN_OFFLOAD_FLAG,
        dtype=None,
        shape=(),
        requested=1,
        runs=len(transfers),
        outcome="kept",
        cause=None,
        reason="XLA's rematerialization sends values to the host by itself with this flag",
        remedy=None,
        transfers=transfers,
        pass_name=None,
        source=None,
    )
