"""A comparison of what a program requests of host memory with what its optimized module does.

Requests are placements, arguments and results in host memory, names of a policy, and computations on the host. The
audit finds the outcome of each, and the transfers that were not requested. A transfer belongs to a placement by its
host buffer (an argument, a result, the buffer that a copy brings back), by the line that computes the value, and by its
shape. An optimized module has neither checkpoint names nor placements.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Final, Literal

from hloinspect.hlo.model import Instruction
from hloinspect.kinds import D2H, H2D, Direction, PlacementBy, PlacementCause, PlacementKind, PlacementOutcome
from hloinspect.offload.buffers import HostBuffers, Node
from hloinspect.offload.events import HOST_COMPUTE as HOST_COMPUTE_EVENT
from hloinspect.offload.names import likeness, trimmed
from hloinspect.offload.source import Source
from hloinspect.offload.transfers import Offload, Transfer
from hloinspect.placements.assign_requests import assign_transfers
from hloinspect.placements.flow import POLICY, EntryValue, Place, Placements, Request

# Outcomes of a request.
KEPT: Final = "kept"
SYNCHRONOUS: Final = "synchronous"
KERNEL: Final = "kernel"
MERGED: Final = "merged"
HOST_COMPUTE: Final = "host compute"
DROPPED: Final = "dropped"
UNUSED: Final = "unused"
UNMATCHED: Final = "never matched"
LOST = (DROPPED, UNMATCHED)
"""The outcomes in which the module does not do what was requested. (For host compute it does, in another form.)"""

# Why a request was dropped.
FOLDED: Final = "folded"
DEAD: Final = "dead"
IS_CONSTANT: Final = "constant"
LOWERING: Final = "lowering"
MEMORY_KIND: Final = "memory kind"
NOT_NAMED: Final = "unknown name"
NOT_NEEDED: Final = "not needed"
NO_TRANSFER: Final = "no transfer"

# Kinds of entries.
VALUE: Final = "value"
ARGUMENT: Final = "argument"
RESULT: Final = "result"
COMPUTE: Final = "compute"
NAME: Final = "name"

_Became = tuple[PlacementOutcome, PlacementCause | Literal[""]]

_SAME_BUFFER, _SAME_PLACE, _SAME_LINE, _REQUEST_LINE, _SHAPE = 50, 40, 30, 20, 10
_EXACT = 2  # a tie between equal shapes is stronger than one to a part
_AS_OFTEN = 1


@dataclass(frozen=True, slots=True)
class PolicyName:
    """A name that a policy offloads, and the line that makes the policy."""

    name: str
    place: Place | None


@dataclass(frozen=True, slots=True)
class Entry:
    """Similar requests with the same outcome.

    ``count`` is their number. ``runs`` is how often they run in a step together. ``transfers`` are the ids of their
    transfers. ``cause`` is one of the words above, or "" where nothing is lost. ``pass_name`` is the compiler pass that
    dropped them, where a ledger shows it.
    """

    kind: PlacementKind
    direction: Direction | Literal[""]
    by: PlacementBy
    name: str
    dtype: str
    shape: tuple[int, ...]
    count: int
    runs: int
    outcome: PlacementOutcome
    cause: PlacementCause | Literal[""]
    near: str
    transfers: tuple[int, ...]
    place: Place | None
    pass_name: str = ""


@dataclass(frozen=True, slots=True)
class Audit:
    """The outcomes of all requests of a program.

    ``entries`` are in the order of the program. ``unexplained`` are the ids of transfers that were not requested, and
    ``unexplained_host`` the instructions that compute in host memory or on the host and were not requested. ``names``
    are checkpoint names of transfers that belong to only one name, by more than a shape.
    """

    entries: tuple[Entry, ...]
    unexplained: tuple[int, ...]
    unexplained_host: tuple[str, ...]
    names: Mapping[int, str]

    @property
    def lost(self) -> tuple[Entry, ...]:
        """Return the entries whose outcome is a loss."""
        return tuple(entry for entry in self.entries if entry.outcome in LOST)


def audit(
    offload: Offload,
    placements: Placements,
    lowered: Placements | None = None,
    policies: Sequence[PolicyName] = (),
    dropped_by: Mapping[str, str] | None = None,
) -> Audit:
    """Return the outcomes of ``placements`` in a module.

    If ``placements`` are those of a jaxpr, ``lowered`` are those of the StableHLO made from it. JAX dropped what is
    only in the first. ``dropped_by`` names, for a direction, the pass after which there are fewer transfers.
    """
    return _Join(offload, placements, lowered, policies, dropped_by or {}).audit()


class _Join:
    def __init__(
        self,
        offload: Offload,
        placements: Placements,
        lowered: Placements | None,
        policies: Sequence[PolicyName],
        dropped_by: Mapping[str, str],
    ) -> None:
        self._offload, self._placements, self._policies, self._dropped_by = offload, placements, policies, dropped_by
        self._requests = placements.requests
        self._missing = _dropped_in_lowering(placements, lowered) if lowered is not None and not lowered.gap else set()
        module = offload.program.module
        buffers = HostBuffers(offload.program)
        entry = module.entry
        self._arguments = {
            parameter.parameter_number: buffers.value(entry.name, parameter.name, path)
            for parameter in entry.parameters
            for path, leaf in parameter.shape.leaves
            if leaf.on_host
        }
        self._results = {
            (path[0] if path else 0): buffers.value(entry.name, entry.root.name, path)
            for path, leaf in entry.root.shape.leaves
            if leaf.on_host
        }
        self._names = {parameter.parameter_number: _name_of(parameter) for parameter in entry.parameters}
        self._transfers: dict[int, tuple[int, ...]] = {}  # ids by request
        self._sent_and_separated = {
            request.of for request in self._requests if request.of is not None and request.separated
        }

    def audit(self) -> Audit:
        for direction in (D2H, H2D):  # a copy back is recognized by the transfer that sent its value
            self._match(direction)
        entries = [*self._values(), *self._entry_values(), *self._computes(), *self._unmatched_names()]
        explained = {number for entry in entries for number in entry.transfers}
        unexplained = tuple(t.id for t in self._offload.transfers if t.id not in explained)
        return Audit(tuple(entries), unexplained, tuple(self._unexplained_host()), self._checkpoint_names())

    def _checkpoint_names(self) -> dict[int, str]:
        names: dict[int, set[str]] = {}
        by_id = {transfer.id: transfer for transfer in self._offload.transfers}
        for number, request in enumerate(self._requests):
            for identity in self._transfers[number]:
                sure = self._tie(request, by_id[identity]) >= _SAME_LINE
                names.setdefault(identity, set()).add(request.name if sure and request.by == POLICY else "")
        return {identity: name for identity, (name, *more) in names.items() if name and not more}

    # ---- ties

    def _match(self, direction: Direction) -> None:
        numbers = [number for number, request in enumerate(self._requests) if request.direction == direction]
        numbers.sort(key=self._likelihood)
        transfers = [transfer for transfer in self._offload.transfers if transfer.direction == direction]
        known: dict[object, dict[int, int]] = {}
        ties = []
        for number in numbers:
            request = self._requests[number]
            # most requests of many layers are equal in everything that determines their ties
            key = (
                request.dtype,
                request.shape,
                request.runs,
                request.of,
                request.argument,
                request.result,
                request.made,
                request.place,
            )
            if key not in known:
                known[key] = {
                    place: tie for place, transfer in enumerate(transfers) if (tie := self._tie(request, transfer))
                }
            ties.append(known[key])
        found = assign_transfers(ties, [self._requests[n].runs for n in numbers], [t.executions for t in transfers])
        alike: dict[frozenset[tuple[int, int]], list[int]] = {}
        for number, own, places in zip(numbers, ties, found, strict=True):
            self._transfers[number] = tuple(transfers[place].id for place in places)
            if places:
                alike.setdefault(frozenset(own.items()), []).append(number)
        for members in alike.values():
            # values of one line and shape with different names: the module does not show which transfer is which
            if len({self._requests[number].name for number in members}) > 1:
                shared = {identity for number in members for identity in self._transfers[number]}
                self._transfers.update(dict.fromkeys(members, tuple(sorted(shared))))

    def _likelihood(self, number: int) -> tuple[bool, bool, bool, int]:
        """Return a sort key for similar requests, first those that XLA is the least likely to drop."""
        request = self._requests[number]
        separated = request.separated if request.of is not None else number in self._sent_and_separated
        return (not request.live, request.constant, not separated, number)

    def _tie(self, request: Request, transfer: Transfer) -> int:
        """Return the strength of the tie between a request and a transfer, or 0 where it cannot be its transfer."""
        if request.dtype and request.dtype != transfer.tensor.dtype:
            return 0
        fits, same = _fit(transfer.tensor.shape, request.shape)
        level = self._level(request, transfer, fits)
        return level and level + _EXACT * same + _AS_OFTEN * (transfer.executions == request.runs)

    def _level(self, request: Request, transfer: Transfer, fits: bool) -> int:
        if self._shares_buffer(request, transfer):
            return _SAME_BUFFER
        if not fits:
            return 0
        if request.direction == D2H and request.argument is not None and transfer.tensor.name:
            return _SAME_PLACE if transfer.tensor.name == self._names.get(request.argument) else 0
        if _same_line(transfer.source, request.made):
            same = (
                transfer.source is not None
                and request.made is not None
                and transfer.source.column == request.made.column
            )
            return _SAME_PLACE if same else _SAME_LINE
        return _REQUEST_LINE if _same_line(transfer.source, request.place) else _SHAPE

    def _shares_buffer(self, request: Request, transfer: Transfer) -> bool:
        """Return whether both use one buffer in host memory: of a value sent and brought back, an argument, or a
        result."""
        if request.direction == H2D and request.of is not None and not request.computed:
            sent = set(self._transfers[request.of])
            if transfer.partners_cut:
                return any(t.buffer == transfer.buffer for t in self._offload.transfers if t.id in sent)
            return not sent.isdisjoint(transfer.partners)
        if transfer.buffer is None:
            return False
        buffer: Node | None = None
        if request.direction == H2D and request.argument is not None:
            buffer = self._arguments.get(request.argument)
        elif request.direction == D2H and request.result is not None:
            buffer = self._results.get(request.result)
        return buffer is not None and buffer == transfer.buffer

    # ---- the outcome of each request

    def _values(self) -> list[Entry]:
        groups: dict[tuple[object, ...], list[tuple[int, Entry]]] = {}
        for number, request in enumerate(self._requests):
            entry = self._entry(number, request)
            line = entry.place and (entry.place.file, entry.place.line)
            key = (entry.direction, entry.by, entry.name, entry.dtype, entry.shape, line, entry.outcome, entry.cause)
            groups.setdefault(key, []).append((number, entry))
        found = []
        for members in groups.values():
            first = members[0][1]
            transfers = sorted({t for _, entry in members for t in entry.transfers})
            runs = sum(entry.runs for _, entry in members)
            found.append(replace(first, count=len(members), runs=runs, transfers=tuple(transfers)))
        return found

    def _entry(self, number: int, request: Request) -> Entry:
        transfers = self._transfers[number]
        outcome, cause = self._outcome(number, request)
        if outcome == MERGED:
            transfers = self._transfers[self._equal_request(number, request) or 0]
        return Entry(
            kind=VALUE,
            direction=request.direction,
            by=request.by,
            name=request.name or self._names.get(-1 if request.argument is None else request.argument, ""),
            dtype=request.dtype,
            shape=request.shape,
            count=1,
            runs=request.runs,
            outcome=outcome,
            cause=cause,
            near="",
            transfers=transfers,
            place=request.place or request.made,
            pass_name=self._dropped_by.get(request.direction, "") if outcome == DROPPED and cause != LOWERING else "",
        )

    def _outcome(self, number: int, request: Request) -> _Became:
        by_id = {transfer.id: transfer for transfer in self._offload.transfers}
        found = [by_id[identity] for identity in self._transfers[number]]
        if any(transfer.mechanism == "kernel" for transfer in found):
            return KERNEL, ""
        if found:
            return (KEPT if all(transfer.asynchronous for transfer in found) else SYNCHRONOUS), ""
        if self._equal_request(number, request) is not None:
            return MERGED, ""
        if self._works_on_host(number, request):
            return HOST_COMPUTE, ""
        return DROPPED, self._cause(number, request)

    def _equal_request(self, number: int, request: Request) -> int | None:
        """Return another request for the same value in the same direction that has transfers, or None."""
        for other, twin in enumerate(self._requests):
            if other == number or twin.direction != request.direction or not self._transfers[other]:
                continue
            if twin.value == request.value or (request.of is not None and twin.of == request.of):
                return other
        return None

    def _works_on_host(self, number: int, request: Request) -> bool:
        """Return whether the module works on the value in host memory instead.

        It does if there is such work, and nothing shows that the value is not part of it.
        """
        if not self._offload.host_copies and not any(e.kind == HOST_COMPUTE_EVENT for e in self._offload.host_events):
            return False
        if request.direction == H2D:
            return request.computed
        return request.live and not any(other.of == number and not other.computed for other in self._requests)

    def _cause(self, number: int, request: Request) -> PlacementCause:
        if not request.live:
            return DEAD
        if number in self._missing:
            return LOWERING
        if request.constant:
            return IS_CONSTANT
        if request.direction == H2D:
            if request.argument is not None and request.of is None and request.argument not in self._arguments:
                return MEMORY_KIND
            sent = request.of is not None and not self._transfers[request.of]
            return FOLDED if sent and not request.separated else NO_TRANSFER
        back = [other for other in self._requests if other.of == number]
        if request.result is not None and request.result not in self._results:
            return MEMORY_KIND
        if back and not any(other.separated for other in back):
            return FOLDED
        return NO_TRANSFER if back or request.result is not None else NOT_NEEDED

    # ---- arguments, results, computations and names

    def _entry_values(self) -> Iterator[Entry]:
        explained = {number for numbers in self._transfers.values() for number in numbers}
        for entry_value in self._placements.entry_values:
            held = self._arguments if entry_value.kind == ARGUMENT else self._results
            buffer = held.get(entry_value.number)
            own = () if buffer is None else [t for t in self._offload.transfers if t.buffer == buffer]
            # transfers that a placement requested belong to it; the others can only belong to this entry value
            transfers = tuple(transfer.id for transfer in own if transfer.id not in explained)
            became: _Became = self._lost_entry_value(entry_value) if buffer is None else (KEPT, "")
            yield self._entry_value(entry_value, *became, transfers)

    def _lost_entry_value(self, entry_value: EntryValue) -> _Became:
        return (UNUSED, DEAD) if entry_value.kind == ARGUMENT and entry_value.number < 0 else (DROPPED, MEMORY_KIND)

    def _entry_value(
        self,
        entry_value: EntryValue,
        outcome: PlacementOutcome,
        cause: PlacementCause | Literal[""],
        transfers: tuple[int, ...],
    ) -> Entry:
        return Entry(
            entry_value.kind,
            "",
            "sharding",
            entry_value.name,
            entry_value.dtype,
            entry_value.shape,
            1,
            1,
            outcome,
            cause,
            "",
            transfers,
            None,
        )

    def _computes(self) -> Iterator[Entry]:
        events = [event for event in self._offload.host_events if event.kind == HOST_COMPUTE_EVENT]
        for place in self._placements.computes:
            if events:
                became: _Became = (KEPT, "")
            else:
                in_kernels = any(copy.mechanism == "kernel" for copy in self._offload.host_copies)
                became = (KERNEL, "") if in_kernels else (DROPPED, NO_TRANSFER)
            yield Entry(COMPUTE, "", "compute_on", "", "", (), 1, 1, *became, "", (), place)

    def _unmatched_names(self) -> Iterator[Entry]:
        """Yield an entry for each name of a policy that is not the name of an offloaded value."""
        offloaded = {request.name for request in self._requests if request.direction == D2H}
        seen: set[str] = set()
        for policy in self._policies:
            if policy.name in offloaded or policy.name in seen:
                continue
            seen.add(policy.name)
            is_known = policy.name in self._placements.names
            near = "" if is_known else _nearest(policy.name, self._placements.names)
            place = self._placements.names.get(policy.name) if is_known else policy.place
            cause: PlacementCause = NOT_NEEDED if is_known else NOT_NAMED
            yield Entry(NAME, D2H, "policy", policy.name, "", (), 1, 0, UNMATCHED, cause, near, (), place)

    def _unexplained_host(self) -> Iterator[str]:
        """Yield the instructions that work in host memory or on the host, where nothing was requested that could cause
        it."""
        requested = bool(self._placements.entry_values or self._placements.computes) or any(
            a.direction == D2H for a in self._requests
        )
        if requested:
            return
        for copy in self._offload.host_copies:
            yield copy.instruction
        for event in self._offload.host_events:
            if event.kind == HOST_COMPUTE_EVENT:
                yield event.instruction


@lru_cache(maxsize=4096)  # most values of many layers have one of a few shapes
def _fit(shape: tuple[int, ...], whole: tuple[int, ...]) -> tuple[bool, bool]:
    """Return whether a transfer's array can be one device's part of a value, and whether their shapes are equal.

    Dimensions of one do not count for equality.
    """
    one, other = trimmed(shape), trimmed(whole)
    return likeness(one, other) >= 0, one == other


def _name_of(parameter: Instruction) -> str:
    return parameter.metadata.op_name or parameter.name


def _same_line(source: Source | None, place: Place | None) -> bool:
    """Return whether both are on one line. Only the name of the file counts, without its directory.

    A module that was compiled elsewhere has other directories.
    """
    if source is None or place is None or source.line != place.line:
        return False
    return source.file == place.file or os.path.basename(source.file) == os.path.basename(place.file)


def _nearest(name: str, known: Iterable[str]) -> str:
    import difflib

    return next(iter(difflib.get_close_matches(name, sorted(known), n=1)), "")


def _dropped_in_lowering(placements: Placements, lowered: Placements) -> set[int]:
    """Return the requests of a jaxpr that are missing in the StableHLO made from it.

    Of similar requests the last ones count as missing. Requests that nothing needs may be missing and are left out.
    """
    there: dict[tuple[object, ...], int] = {}
    for request in lowered.requests:
        there[_likes(request)] = there.get(_likes(request), 0) + 1
    missing = set()
    for number, request in enumerate(placements.requests):
        key = _likes(request)
        if there.get(key, 0) > 0:
            there[key] -= 1
        elif request.live:
            missing.add(number)
    return missing


def _likes(request: Request) -> tuple[object, ...]:
    return (request.direction, request.dtype, request.shape)
