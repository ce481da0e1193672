"""What the program requested of host memory, and what became of it."""

from __future__ import annotations

from dataclasses import dataclass

from hloinspect.kinds import Direction, PlacementBy, PlacementCause, PlacementKind, PlacementOutcome, RequestedFrom
from hloinspect.offload.records import SourceInfo, Unknown


@dataclass(frozen=True, slots=True)
class AuditEntry:
    """Requests for host memory that are alike and have the same outcome (docs/audit.md)."""

    kind: PlacementKind
    """What is placed: a ``value``; an ``argument`` or ``result`` of the step; ``compute`` that is meant for the host;
    or a ``name`` of a policy that no offloaded value has."""

    direction: Direction | None
    """To the host or from it; null where that does not apply."""

    by: PlacementBy
    """What requests it: a ``policy`` of ``jax.checkpoint``, ``device_put``, a ``sharding``, ``compute_on``, an
    ``annotation`` (StableHLO and HLO do not show who), or a ``flag`` (XLA's own offload)."""

    name: str | None
    """The checkpoint name, or the argument's."""

    dtype: str | None
    """Element type of the value."""

    shape: tuple[int, ...]
    """Dimensions of the whole value, before sharding."""

    requested: int
    """Number of requests."""

    runs: int
    """How often they run in a step together."""

    outcome: PlacementOutcome
    """What became of it (docs/audit.md)."""

    cause: PlacementCause | None
    """Why it is not there; null where it is."""

    reason: str | None
    """The same in words."""

    remedy: str | None
    """What to do; null where there is nothing to do."""

    transfers: tuple[int, ...]
    """``id``s of the transfers that carry it out; of an argument or result those that no placement requested."""

    pass_name: str | None
    """The compiler pass that dropped it, where the dump has the texts of passes."""

    source: SourceInfo | None
    """The line that requests it; of a named value that of ``checkpoint_name``."""


@dataclass(frozen=True, slots=True)
class AuditInfo:
    """What the program requested of host memory against what the module does (docs/audit.md)."""

    requested_from: RequestedFrom | None
    """Where the requests were read: the ``jaxpr`` (of the step itself, or in a directory of ``hloinspect compile``),
    ``stablehlo``, or the ``hlo`` before all passes in a dump; null where nothing shows what was requested."""

    entries: tuple[AuditEntry, ...] = ()
    """What was requested, and what became of it."""

    unexplained: tuple[int, ...] = ()
    """``id``s of transfers that nothing requested."""

    unexplained_host: tuple[str, ...] = ()
    """Instructions that work in host memory or on the host and that nothing requested."""

    unknown: tuple[Unknown, ...] = ()
    """What was not looked at."""
