"""The flow of values through a program before it is compiled, and the placements in host memory that it requests.

A jaxpr, StableHLO and HLO before its passes differ only in spelling. Each is read into one graph, a ``Flow``. The
requests are computed on the graph: which placements move something, of which value, which one brings which back, and
which of them nothing needs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, Literal

from hloinspect.decoding import MOST_WHOLE, Bounds, Count, Fault, decode, newer_version
from hloinspect.kinds import D2H, H2D, Direction, PlacementBy, RequestedFrom

if TYPE_CHECKING:
    from hloinspect.inputs.manifest import Manifest

Number = Annotated[int, Bounds(-1, MOST_WHOLE, "a whole number of -1 or more")]
"""The place of an argument among those of the compiled step, -1 of one that the step does not use."""

# Kinds of nodes.
NodeKind = Literal["argument", "constant", "same", "part", "merge", "put", "operation"]

ARGUMENT: Final = "argument"
CONSTANT: Final = "constant"
SAME: Final = "same"  # another name or form of its only input
PART: Final = "part"  # a slice of its input, or a stack of which its input is a slice
MERGE: Final = "merge"  # one of its inputs: what a loop carries, the result of a branch
PUT: Final = "put"
OPERATION: Final = "operation"

# Who requests a move.
POLICY: Final = "policy"
DEVICE_PUT: Final = "device_put"
ANNOTATION: Final = "annotation"


class ProgramTooLargeError(Exception):
    """A step with more calls than a reader follows."""


@dataclass(frozen=True, slots=True)
class Where:
    """The context of a reader in the program.

    ``runs`` is how often it runs in a step. ``counted`` is whether the number of iterations of all loops around it is
    known. ``conditional`` is whether it is under a condition, and ``depth`` its depth in calls.
    """

    runs: int = 1
    conditional: bool = False
    counted: bool = True
    depth: int = 0


@dataclass(frozen=True, slots=True)
class Place:
    """A line of the user's program. ``column`` counts from 0, as in XLA's stack frames."""

    file: str
    line: Count
    column: Count
    function: str


@dataclass(frozen=True, slots=True)
class Put:
    """A placement in host memory or on the device.

    ``by`` is its origin. ``runs`` is how often it runs in a step, and ``counted`` is whether the number of iterations
    of all loops around it is known.
    """

    to_host: bool
    by: PlacementBy
    runs: int
    conditional: bool = False
    counted: bool = True


@dataclass(slots=True)
class Node:
    """A value of the program.

    ``on_host`` is None where it follows from the inputs. ``barrier``: no pass moves anything over it. ``name`` is a
    ``checkpoint_name``.
    """

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
    """A placement that moves its value.

    ``dtype`` (HLO's name) and ``shape`` are those of the whole value, also where it is sharded. ``place`` is the line
    of the request. ``made`` is the line that computes the value, which is the best line that the compiled module's
    transfer can have. ``of`` is the index of the request that sent the value that this one brings back. ``argument`` is
    the number of the step's argument that the value is, or is a part of. ``result`` is the number of the step's result.
    ``value`` is equal for two requests that move the same value. ``live`` is whether a result of the step needs it.
    ``constant`` is whether it depends on no argument. ``separated`` is whether a barrier or a loop is between it and
    ``of``. ``computed`` is whether something is computed in host memory between the two.
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
    """An argument or a result of the step that is requested in host memory.

    ``number`` is its index among those of the compiled step, or -1 for an argument that the step does not use.
    """

    kind: Literal["argument", "result"]
    number: Number
    name: str
    dtype: str
    shape: tuple[Count, ...]


@dataclass(frozen=True, slots=True)
class Placements:
    """All that a program requests of host memory: placements, and arguments and results of the step.

    ``source`` is what they were read from. ``names`` are all checkpoint names, offloaded or not, with the lines that
    give them. ``computes`` are the lines that request computation on the host. Both exist only for a jaxpr. ``gap``
    says what was not read, or is "" where nothing is missing.
    """

    source: RequestedFrom
    requests: tuple[Request, ...]
    entry_values: tuple[EntryValue, ...]
    names: Mapping[str, Place | None] = field(default_factory=dict)
    computes: tuple[Place | None, ...] = ()
    gap: str = ""


class Flow:
    """The graph of a program's values, which are named by numbers. Inputs come before their users, except those of
    loops."""

    def __init__(self) -> None:
        self.nodes: list[Node] = []
        self.results: list[int] = []
        self.effects: list[int] = []

    def add(self, node: Node) -> int:
        """Add a node and return its number."""
        self.nodes.append(node)
        return len(self.nodes) - 1

    def requests(self) -> tuple[Request, ...]:
        """Return the requests in the order of the program.

        A placement of a value that is already there requests nothing.
        """
        on_host = self._spaces()
        live = self._live()
        constant = self._constants()
        puts = [
            number
            for number, node in enumerate(self.nodes)
            if node.put is not None and on_host[node.inputs[0]] != node.put.to_host
        ]
        index = {number: place for place, number in enumerate(puts)}
        search = _OriginSearch(self.nodes, on_host, index)
        results = search.returned(self.results)
        found: list[Request] = []
        for number in puts:
            request = self._request(number, search, live, constant, results)
            if request.of is not None:  # the request that sent the value may know more
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
        self, number: int, search: _OriginSearch, live: bytearray, constant: bytearray, results: dict[int, int]
    ) -> Request:
        node = self.nodes[number]
        put = node.put
        assert put is not None
        value = search.same(node.inputs[0])
        name, named_at = search.name(node.inputs[0])
        back = None if put.to_host else node.inputs[0]
        of, argument, separated, computed = (None, None, False, False) if back is None else search.sender(back)
        made = self.nodes[search.whole(node.inputs[0])]
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
        """Return whether each value is in host memory, by its node or by its inputs.

        An operation with a value in host memory runs there.
        """
        found = [bool(node.on_host) for node in self.nodes]
        for _ in range(4):  # a value that a loop carries may become known only at its end, once for each nested loop
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


class _OriginSearch:
    """Search from a value back to its origin."""

    def __init__(self, nodes: Sequence[Node], on_host: Sequence[bool], index: dict[int, int]) -> None:
        self._nodes, self._on_host, self._index = nodes, on_host, index

    def same(self, number: int) -> int:
        """Return the value itself, without other names and forms of it."""
        return self._end(number, (SAME,))

    def whole(self, number: int) -> int:
        """Return what computes the value or the array of which it is a part."""
        return self._end(number, (SAME, PART, MERGE, PUT))

    def name(self, number: int) -> tuple[str, Place | None]:
        """Return the checkpoint name of a value and where it is given, or "" and None."""
        for step in self._walk(number, (SAME, PUT)):
            if name := self._nodes[step].name:
                return name, self._nodes[step].place
        return "", None

    def sender(self, number: int) -> tuple[int | None, int | None, bool, bool]:
        """Return where a value in host memory comes from: the index of the request that sent it, or an argument's
        number.

        The last two are whether it is separated from that, and whether something is computed on the way.
        """
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
        """Return the result's number for each placement whose value is a result of the step, also under other names."""
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
        """Yield a value and those before it, through nodes of some kinds.

        Of several inputs the last one comes first: the value after a loop's last iteration, or the update of a stack.
        """
        seen: set[int] = set()
        waiting = [number]
        while waiting:
            number = waiting.pop()
            if number not in seen:
                seen.add(number)
                yield number
                if self._nodes[number].kind in kinds:
                    waiting.extend(self._nodes[number].inputs)


# ---- JSON


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
        # Not asdict: what stands in ``requested`` is not checked yet, and may be nested too deeply to be copied.
        known = {name: getattr(manifest, name) for name in ("step", "target", "devices", "versions")}
        raise not_whole(path, fault.below("requested"), known) from None


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
