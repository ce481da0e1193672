"""How values go through a program before it is compiled, and what that asks of host memory.

A jaxpr, StableHLO and HLO before its passes differ in spelling only. Each is read into one graph, a ``Flow``, and what
is asked is worked out on the graph: which placements move something, what they are of, what brings which back, and
which of them nothing needs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, Literal

from hloinspect.decoding import MOST_WHOLE, Bounds, Count, Fault, decode, newer_version
from hloinspect.kinds import Direction, PlacementBy, RequestedFrom
from hloinspect.offload.transfer import D2H, H2D

if TYPE_CHECKING:
    from hloinspect.inputs.manifest import Manifest

Number = Annotated[int, Bounds(-1, MOST_WHOLE, "a whole number of -1 or more")]
"""The place of an argument among those of the compiled step, -1 of one that the step does not use."""

# Kinds of nodes.
NodeKind = Literal["argument", "constant", "same", "part", "merge", "put", "operation"]

ARGUMENT: Final = "argument"
CONSTANT: Final = "constant"
SAME: Final = "same"  # another name or form of its one input
PART: Final = "part"  # a slice of its input, or a stack that its input is a slice of
MERGE: Final = "merge"  # one of its inputs: what a loop carries, the result of a branch
PUT: Final = "put"
OPERATION: Final = "operation"

# Who asks.
POLICY: Final = "policy"
DEVICE_PUT: Final = "device_put"
ANNOTATION: Final = "annotation"


class TooLargeError(Exception):
    """A step calls more than a reader follows."""


@dataclass(frozen=True, slots=True)
class Where:
    """Where a reader is: how often that runs in a step (``counted`` says whether all the loops around it tell), whether
    under a condition, and how deep in calls."""

    runs: int = 1
    conditional: bool = False
    counted: bool = True
    depth: int = 0


@dataclass(frozen=True, slots=True)
class Place:
    """A line of the user's program. ``column`` counts from 0, as XLA's stack frames do."""

    file: str
    line: Count
    column: Count
    function: str


@dataclass(frozen=True, slots=True)
class Put:
    """A placement: to host memory or to the device, by whom, and how often in a step (``counted`` says whether all the
    loops around it tell)."""

    to_host: bool
    by: PlacementBy
    runs: int
    conditional: bool = False
    counted: bool = True


@dataclass(slots=True)
class Node:
    """One value. ``on_host`` is None where it follows from the inputs; ``barrier`` says that no pass moves anything
    over it; ``name`` is a ``checkpoint_name``."""

    kind: NodeKind
    inputs: list[int]
    dtype: str
    shape: tuple[int, ...]
    on_host: bool | None = None
    place: Place | None = None
    name: str = ""
    put: Put | None = None
    barrier: bool = False
    number: int = -1  # of an argument


@dataclass(frozen=True, slots=True)
class Request:
    """A placement that moves its value. ``bytes`` follow from ``dtype`` (HLO's word) and ``shape``, which is the whole
    value's, whatever a sharding makes of it.

    ``place`` is the line that asks, ``made`` the one that computes the value: the compiled module's transfer has no
    better one. ``of`` is the place (in the list of asks) of the ask that sent what this one brings back, ``argument``
    the number of the step's argument that the value is, or is a part of, and ``result`` that of the result. ``value``
    is equal for two asks that move the same value. ``live`` is whether anything that the step returns needs it,
    ``constant`` whether it depends on no argument, ``apart`` whether a barrier or a loop stands between it and ``of``,
    and ``computed`` whether something is computed in host memory on the way.
    """

    direction: Direction
    by: PlacementBy
    name: str
    dtype: str
    shape: tuple[Count, ...]
    runs: Count
    counted: bool
    conditional: bool
    live: bool
    constant: bool
    separated: bool
    computed: bool
    value: Count
    of: Count | None
    argument: Number | None
    result: Count | None
    place: Place | None
    made: Place | None


@dataclass(frozen=True, slots=True)
class EntryValue:
    """An argument or a result of the step that is asked for in host memory. ``number`` is its place among those of the
    compiled step, -1 of an argument that the step does not use."""

    kind: Literal["argument", "result"]
    number: Number
    name: str
    dtype: str
    shape: tuple[Count, ...]


@dataclass(frozen=True, slots=True)
class Placements:
    """All that a program asks of host memory: placements, and arguments and results of the step that it wants there.

    ``source`` is what they were read from. ``names`` are the checkpoint names that values bear, offloaded or not, with
    where they are given, and ``computes`` the lines that ask for computation on the host; both only a jaxpr has.
    ``gap`` says what was not looked at, "" where nothing is missing.
    """

    source: RequestedFrom
    requests: tuple[Request, ...]
    entry_values: tuple[EntryValue, ...]
    names: Mapping[str, Place | None] = field(default_factory=dict)
    computes: tuple[Place | None, ...] = ()
    gap: str = ""


class Flow:
    """The graph. Nodes are named by their numbers; inputs come before what uses them, but for what loops carry."""

    def __init__(self) -> None:
        self.nodes: list[Node] = []
        self.results: list[int] = []
        self.effects: list[int] = []

    def add(self, node: Node) -> int:
        """The number of a new node."""
        self.nodes.append(node)
        return len(self.nodes) - 1

    def requests(self) -> tuple[Request, ...]:
        """What is asked, in the order of the program. A placement of a value that is there already asks nothing."""
        on_host = self._spaces()
        live = self._live()
        constant = self._constants()
        puts = [
            number
            for number, node in enumerate(self.nodes)
            if node.put is not None and on_host[node.inputs[0]] != node.put.to_host
        ]
        index = {number: place for place, number in enumerate(puts)}
        climber = _Climber(self.nodes, on_host, index)
        results = climber.returned(self.results)
        found: list[Request] = []
        for number in puts:
            request = self._request(number, climber, live, constant, results)
            if request.of is not None:  # what is known of the one that sent it
                sender = found[request.of]
                request = replace(
                    request,
                    name=request.name or sender.name,
                    place=request.place or sender.place,
                    made=sender.made,
                    constant=sender.constant,
                )
            found.append(request)
        return tuple(found)

    def _request(
        self, number: int, climber: _Climber, live: bytearray, constant: bytearray, results: dict[int, int]
    ) -> Request:
        node = self.nodes[number]
        put = node.put
        assert put is not None
        value = climber.same(node.inputs[0])
        name, named_at = climber.name(node.inputs[0])
        back = None if put.to_host else node.inputs[0]
        of, argument, separated, computed = (None, None, False, False) if back is None else climber.sender(back)
        made = self.nodes[climber.whole(node.inputs[0])]
        return Request(
            direction=D2H if put.to_host else H2D,
            by=put.by,
            name=name,
            dtype=node.dtype,
            shape=node.shape,
            runs=put.runs,
            counted=put.counted,
            conditional=put.conditional,
            live=bool(live[number]),
            constant=bool(constant[node.inputs[0]]),
            separated=separated,
            computed=computed,
            value=value,
            of=of,
            argument=argument if argument is not None else (made.number if made.kind == ARGUMENT else None),
            result=results.get(number),
            place=named_at or node.place,
            made=made.place if made.kind == OPERATION else None,
        )

    def _spaces(self) -> list[bool]:
        """Whether each value is in host memory: as its node says, else as its inputs are. An operation with a value in
        host memory works there."""
        found = [bool(node.on_host) for node in self.nodes]
        for _ in range(4):  # what is carried around a loop may show only at its end, once for each loop in a loop
            changed = False
            for number, node in enumerate(self.nodes):
                if node.on_host is None and not found[number] and any(found[given] for given in node.inputs):
                    found[number] = changed = True
            if not changed:
                break
        return found

    def _live(self) -> bytearray:
        live = bytearray(len(self.nodes))
        waiting = [*self.results, *self.effects]
        while waiting:
            number = waiting.pop()
            if not live[number]:
                live[number] = 1
                waiting.extend(self.nodes[number].inputs)
        return live

    def _constants(self) -> bytearray:
        found = bytearray(len(self.nodes))
        for number, node in enumerate(self.nodes):
            if node.kind == CONSTANT:
                found[number] = 1
            elif node.kind not in (ARGUMENT, MERGE):
                found[number] = all(found[given] for given in node.inputs)
        return found


class _Climber:
    """Goes from a value back to what it is."""

    def __init__(self, nodes: Sequence[Node], on_host: Sequence[bool], index: dict[int, int]) -> None:
        self._nodes, self._on_host, self._index = nodes, on_host, index

    def same(self, number: int) -> int:
        """The value itself, behind other names and forms of it."""
        return self._end(number, (SAME,))

    def whole(self, number: int) -> int:
        """What computes the value or the array that it is a part of."""
        return self._end(number, (SAME, PART, MERGE, PUT))

    def name(self, number: int) -> tuple[str, Place | None]:
        """The checkpoint name that a value bears, and where it is given."""
        for step in self._walk(number, (SAME, PUT)):
            if name := self._nodes[step].name:
                return name, self._nodes[step].place
        return "", None

    def sender(self, number: int) -> tuple[int | None, int | None, bool, bool]:
        """Of a value in host memory the ask that sent it (its index) or the argument that it is, whether it is kept
        apart from that, and whether something is computed on the way."""
        seen: set[int] = set()
        waiting = [(number, False, False)]
        argument: tuple[int, bool, bool] | None = None
        while waiting:
            number, separated, computed = waiting.pop()
            if number in seen:
                continue
            seen.add(number)
            node = self._nodes[number]
            if number in self._index and node.put is not None and node.put.to_host:
                return self._index[number], None, separated, computed
            if node.kind == ARGUMENT:
                argument = argument or (node.number, separated, computed)
                continue
            separated = separated or node.barrier or node.kind in (PART, MERGE)
            computed = computed or node.kind == OPERATION
            inputs = [given for given in node.inputs if self._on_host[given]]
            waiting.extend((given, separated, computed) for given in inputs)
        if argument is None:
            return None, None, False, False
        return None, *argument

    def returned(self, results: Iterable[int]) -> dict[int, int]:
        """For each placement whose value is a result of the step, behind other names of it, the result's number."""
        found: dict[int, int] = {}
        for place, number in enumerate(results):
            for step in self._walk(number, (SAME, PUT, PART, MERGE)):
                if step in self._index:
                    found.setdefault(step, place)
                    break
        return found

    def _end(self, number: int, kinds: tuple[str, ...]) -> int:
        return next((step for step in self._walk(number, kinds) if self._nodes[step].kind not in kinds), number)

    def _walk(self, number: int, kinds: tuple[str, ...]) -> Iterator[int]:
        """A value and those before it, through nodes of some kinds: of several inputs the last one first, which is what
        a loop's last turn leaves, or what an update puts into a stack."""
        seen: set[int] = set()
        waiting = [number]
        while waiting:
            number = waiting.pop()
            if number not in seen:
                seen.add(number)
                yield number
                if self._nodes[number].kind in kinds:
                    waiting.extend(self._nodes[number].inputs)


# ---- as JSON


@dataclass(frozen=True, slots=True)
class NamedPlace:
    """A name, and the line that gives it."""

    name: str
    place: Place | None


@dataclass(frozen=True, slots=True)
class RequestedRecord:
    """What a manifest has under ``requested``. ``policies`` are the names that policies offload, with the lines that
    make the policies, and ``dead_policies`` names of policies that offload nothing, None where that is not known."""

    source: RequestedFrom
    requests: tuple[Request, ...]
    entry_values: tuple[EntryValue, ...]
    names: tuple[NamedPlace, ...]
    computes: tuple[Place | None, ...]
    gap: str
    policies: tuple[NamedPlace, ...] = ()
    dead_policies: tuple[str, ...] | None = None

    def placements(self) -> Placements:
        """Return the placements without what is said of policies."""
        names = {entry.name: entry.place for entry in self.names}
        return Placements(self.source, self.requests, self.entry_values, names, self.computes, self.gap)


def placements_to_json(placements: Placements) -> dict[str, object]:
    """Return plain data."""
    return {
        "source": placements.source,
        "requests": [asdict(request) for request in placements.requests],
        "entry_values": [asdict(entry_value) for entry_value in placements.entry_values],
        "names": [{"name": name, "place": place and asdict(place)} for name, place in placements.names.items()],
        "computes": [place and asdict(place) for place in placements.computes],
        "gap": placements.gap,
    }


def requested_in(manifest: Manifest, path: Path) -> RequestedRecord | None:
    """Return what a manifest says of requests, None where it says nothing. Raises InputError, which names ``path`` and
    the field."""
    from hloinspect.inputs.manifest import not_whole

    if not manifest.requested:
        return None
    try:
        return read_requested(manifest.requested, newer_version(manifest.versions["hloinspect"]))
    except Fault as fault:
        raise not_whole(path, fault.below("requested"), asdict(manifest)) from None


def read_requested(data: Mapping[str, object], newer: str = "") -> RequestedRecord:
    """Return what ``placements_to_json`` wrote, and what else a manifest has under ``requested``. Raises Fault."""
    from hloinspect.inputs.manifest import OLDER_KEYS

    record = decode(dict(data), RequestedRecord, newer=newer, older=OLDER_KEYS)
    for number, request in enumerate(record.requests):
        if request.of is not None and not 0 <= request.of < len(record.requests):
            raise Fault(f"requests[{number}].of", f": there is no request {request.of}, of {len(record.requests)}")
    return record


def placements_from_json(data: Mapping[str, object]) -> Placements:
    """Return what ``placements_to_json`` wrote. Raises Fault."""
    return read_requested(data).placements()
