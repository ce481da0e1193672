"""Links each transfer to the one that brings the same buffer back, and says what becomes of those that have none.

==============  =============================================================================================
fate            what it means
==============  =============================================================================================
round trip      written by a D2H and fetched by an H2D of the step
argument        fetched from an argument of the step that lives in host memory
result          written to a result of the step
host copy       copied within host memory on the way, so the other end is behind that copy
never read      written, and neither fetched nor returned: the copy is wasted
never written   fetched, and nothing in the step wrote it
==============  =============================================================================================
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from hloinspect.offload.buffers import Node
from hloinspect.offload.transfer import D2H, H2D, Transfer

ROUND_TRIP = "round trip"
ARGUMENT = "argument"
RESULT = "result"
HOST_COPY = "host copy"
NEVER_READ = "never read"
NEVER_WRITTEN = "never written"


@dataclass(frozen=True, slots=True)
class OuterBuffers:
    """Host buffers that are arguments of the step, results of it, or copied within host memory."""

    arguments: frozenset[Node]
    results: frozenset[Node]
    copied: frozenset[Node]


def round_trips(transfers: Sequence[Transfer], outer: OuterBuffers) -> list[Transfer]:
    """The same transfers with ``round_trip`` and ``fate``; an H2D takes its partner's source line and name."""
    partner = _partners(transfers)
    linked = []
    for transfer in transfers:
        other = partner.get(transfer.id)
        source, tensor = transfer.source, transfer.tensor
        if other is not None and transfer.direction == H2D:
            source = other.source or source
            tensor = replace(tensor, name=tensor.name or other.tensor.name)
        linked.append(
            replace(
                transfer,
                round_trip=other.id if other else None,
                source=source,
                tensor=tensor,
                fate=_fate(transfer, other is not None, outer),
            )
        )
    return linked


def _partners(transfers: Sequence[Transfer]) -> dict[int, Transfer]:
    """For each transfer its partner, pairing equal execution counts first (peeled with peeled)."""
    writers: dict[Node, list[Transfer]] = {}
    readers: dict[Node, list[Transfer]] = {}
    for transfer in transfers:
        if transfer.buffer is not None:
            (writers if transfer.direction == D2H else readers).setdefault(transfer.buffer, []).append(transfer)
    partner: dict[int, Transfer] = {}
    for buffer, arriving in readers.items():
        sent = writers.get(buffer, [])
        free = list(sent)
        for transfer in arriving:
            same = [w for w in free or sent if w.executions == transfer.executions] or free or sent
            if same:
                partner[transfer.id] = same[0]
                partner.setdefault(same[0].id, transfer)
                free = [w for w in free if w.id != same[0].id]
    return partner


def _fate(transfer: Transfer, has_partner: bool, outer: OuterBuffers) -> str:
    if has_partner:
        return ROUND_TRIP
    if transfer.direction == H2D:
        if transfer.buffer in outer.arguments:
            return ARGUMENT
        return HOST_COPY if transfer.buffer in outer.copied else NEVER_WRITTEN
    if transfer.buffer in outer.results:
        return RESULT
    return HOST_COPY if transfer.buffer in outer.copied else NEVER_READ
