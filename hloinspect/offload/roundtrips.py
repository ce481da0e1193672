"""Linking each transfer to the one that brings the same buffer back, and the outcome of those without one.

============== ============================================================================================= outcome
what it means ==============
============================================================================================= round trip written by a
D2H and fetched by an H2D of the step argument fetched from an argument of the step that is in host memory result
written to a result of the step host copy copied within host memory on the way, so the other end is that of the copy
never read written, and neither fetched nor returned: the copy is useless never written fetched, and nothing in the step
wrote it ============== =============================================================================================

If a buffer has several writers and readers (stacks.py) each has its own outcome: a part that no transfer reads is never
read, although the rest of its stack is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from hloinspect.kinds import H2D, Outcome
from hloinspect.offload.buffers import Node
from hloinspect.offload.program import Program
from hloinspect.offload.stacks import Reads, reads_of
from hloinspect.offload.transfer import Transfer

ROUND_TRIP: Final = "round trip"
ARGUMENT: Final = "argument"
RESULT: Final = "result"
HOST_COPY: Final = "host copy"
NEVER_READ: Final = "never read"
NEVER_WRITTEN: Final = "never written"


@dataclass(frozen=True, slots=True)
class EntryBuffers:
    """Host buffers that are arguments of the step, results of it, or copied within host memory."""

    arguments: frozenset[Node]
    results: frozenset[Node]
    copied: frozenset[Node]


def round_trips(program: Program, transfers: Sequence[Transfer], entry_value: EntryBuffers) -> list[Transfer]:
    """Return the transfers with ``round_trip``, ``partners`` and ``outcome``.

    An H2D takes the source line and the name of its partner.
    """
    reads = reads_of(program, transfers, entry_value.copied)
    partners = _partners(transfers, reads)
    by_id = {transfer.id: transfer for transfer in transfers}
    linked = []
    for transfer in transfers:
        own = partners.get(transfer.id, ())
        other = by_id[own[0]] if own else None
        source, tensor = transfer.source, transfer.tensor
        if other is not None and transfer.direction == H2D:
            source = other.source or source
            tensor = replace(tensor, name=tensor.name or other.tensor.name)
        linked.append(
            replace(
                transfer,
                round_trip=other.id if other else None,
                partners=own,
                partners_cut=transfer.buffer in reads.cut,
                source=source,
                tensor=tensor,
                outcome=_outcome(transfer, other is not None, entry_value, reads),
            )
        )
    return linked


def _partners(transfers: Sequence[Transfer], reads: Reads) -> dict[int, tuple[int, ...]]:
    """Return, for each transfer, those that read what it writes, or write what it reads, the most frequent first.

    Among equally frequent partners one with as many executions comes first (peeled with peeled), and among these one
    that has no other partner.
    """
    by_id = {transfer.id: transfer for transfer in transfers}
    found: dict[int, list[int]] = {}
    for writer, reader in sorted(reads.times):
        found.setdefault(writer, []).append(reader)
        found.setdefault(reader, []).append(writer)
    first: dict[int, int] = {}
    taken: set[int] = set()
    for own in sorted(found, key=lambda number: by_id[number].direction != H2D):  # as many writers as readers: 1 to 1

        def strength(other: int, own: int = own) -> tuple[int, bool, bool, int]:
            times = reads.times[(other, own) if by_id[own].direction == H2D else (own, other)]
            alike = by_id[other].executions == by_id[own].executions
            return times, first.get(other) == own, alike and other not in taken, alike

        best = max(found[own], key=strength)
        first[own] = best
        taken.add(best)
    return {own: (first[own], *(each for each in some if each != first[own])) for own, some in found.items()}


def _outcome(transfer: Transfer, has_partner: bool, entry_value: EntryBuffers, reads: Reads) -> Outcome:
    if has_partner:
        return ROUND_TRIP
    if transfer.direction == H2D:
        if transfer.buffer in entry_value.arguments:
            return ARGUMENT
        return HOST_COPY if transfer.buffer in entry_value.copied else NEVER_WRITTEN
    if transfer.buffer in entry_value.results and (transfer.buffer not in reads.placed or transfer.id in reads.kept):
        return RESULT
    return HOST_COPY if transfer.buffer in entry_value.copied else NEVER_READ
