"""Join of a trace's events with instructions, by the module in the trace.

An event's ``hlo_op`` may name an instruction inside of fusions and async computations. The join climbs from there to
the instruction that the runtime executes. Names are unique in a module (hlo_instruction.cc, ``UniquifyName``), so a
name is enough. A slice's copy names the hero inside the fusion inside the async computation (docs/trace.md); the result
is the start that all of them belong to.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Final, Literal

from hloinspect.errors import InputError
from hloinspect.hlo.load import load_module_bytes
from hloinspect.hlo.model import Computation, Instruction, Module
from hloinspect.kinds import Direction, InstructionClass
from hloinspect.offload.pairs import Key
from hloinspect.offload.program import CONTROL_FLOW
from hloinspect.offload.transfers import Offload, find_offload
from hloinspect.predict.classes import class_by_name, class_of
from hloinspect.predict.collective import COLLECTIVES, MAX_WRAPPING

COMPUTE, COLLECTIVE, TRANSFER, HOST_COPY, CONTROL, CALLBACK = (
    "compute",
    "collective",
    "transfer",
    "host copy",
    "control",
    "callback",
)
JoinedRole = Literal["start", "done", "whole"]

START: Final = "start"
DONE: Final = "done"
WHOLE: Final = "whole"
MAX_CLIMB = 64
_CLASSES: dict[str, InstructionClass] = {HOST_COPY: "host copy", CALLBACK: "callback", CONTROL: "control flow"}


@dataclass(frozen=True, slots=True)
class Joined:
    """The description of an instruction.

    ``name`` is the one that the runtime executes, ``rank`` its place in the schedule of the whole program (-1 where it
    has none). ``role`` is that of an async pair's half, and ``pair`` the number of the pair: starts that share a
    context around a loop have one number, and 0 is none.
    """

    kind: str
    name: str
    rank: int
    role: JoinedRole = WHOLE
    transfer: int = 0
    direction: Direction | Literal[""] = ""
    bytes: int = 0
    asynchronous: bool = False
    pair: int = 0
    is_custom_call: bool = False


@dataclass(frozen=True, slots=True)
class Loop:
    """A while loop: the ranks of its condition and body, ``[first, last]``, and how often its body runs in a step.

    The number is 0 where the module does not give it.
    """

    first: int
    last: int
    iterations: int


class ProgramJoin:
    """A module with what is needed to join events to it."""

    def __init__(self, offload: Offload) -> None:
        self.offload = offload
        self.module: Module = offload.program.module
        self._executed = offload.program.computations()
        self._transfers = {(t.computation, t.start): t for t in offload.transfers}
        self._copies = {(copy.computation, copy.instruction): copy for copy in offload.host_copies}
        self._events = {(event.computation, event.instruction) for event in offload.host_events}
        self._pairs = offload.pairs
        self._numbers = {key: number for number, key in enumerate(dict.fromkeys(self._pairs.start_keys.values()), 1)}
        self._dones = self._transfers_by_done()
        self._done_ranks: dict[int, tuple[int, ...]] | None = None
        self._known: dict[str, Joined | None] = {}
        self._places: dict[str, tuple[Computation, Instruction]] = {}
        self._homes: dict[str, tuple[Computation, int]] | None = None
        self._callers: dict[str, tuple[Computation, int]] | None = None
        self._first, self._sites, self.loops = _layout(offload)

    def _transfers_by_done(self) -> dict[Key, int]:
        """Return the transfer for which each done waits: of several starts that share a context around a loop, the
        first."""
        first: dict[Key, int] = {}
        for transfer in self.offload.transfers:
            key = self._pairs.start_keys.get((transfer.computation, transfer.start))
            if key is not None:
                first.setdefault(key, transfer.id)
        return {done: first[key] for done, key in self._pairs.done_keys.items() if key in first}

    def rank(self, computation: str, index: int) -> int:
        """Return the place of an instruction in the schedule of the whole program, loops and calls written out once."""
        first = self._first.get(computation)
        if first is None:
            return -1
        places, moved = self._sites[computation]
        return first + index + moved[bisect_left(places, index)]

    @cached_property
    def data_dependent(self) -> tuple[tuple[int, int], ...]:
        """Return the intervals of the schedule, by rank, that do not run equally often in every step.

        They are branches, and loops whose number of iterations is not in the module.
        """
        branches = [
            (self._first[name], self._first[name] + len(self.module.computations[name]) - 1)
            for name in self.offload.program.conditional
            if name in self._first
        ]
        return (*branches, *((loop.first, loop.last) for loop in self.loops if not loop.iterations))

    def done_ranks(self, pair: int) -> tuple[int, ...]:
        """Return the places at which the program waits for a pair, in order; empty for pair 0."""
        if self._done_ranks is None:
            found: dict[int, list[int]] = {}
            for (computation, name), key in self._pairs.done_keys.items():
                index = self.module.computations[computation].position(name)
                if index is not None and key in self._numbers:
                    found.setdefault(self._numbers[key], []).append(self.rank(computation, index))
            self._done_ranks = {number: tuple(sorted(ranks)) for number, ranks in found.items()}
        return self._done_ranks.get(pair, ())

    def __contains__(self, name: object) -> bool:
        """Return whether the module has an instruction of that name."""
        return isinstance(name, str) and self.find(name) is not None

    def find(self, name: str) -> Joined | None:
        """Return the description of the instruction of that name, or None where the module has none."""
        if name not in self._known:
            self._known[name] = self._find(name)
        return self._known[name]

    def _find(self, name: str) -> Joined | None:
        for computation in self._executed:
            index = computation.position(name)
            if index is not None:
                return self._classify(computation, computation.instruction(index))
        home = self._all_homes().get(name)
        for _ in range(MAX_CLIMB):
            if home is None:
                return None
            computation, index = home
            if computation.name in self._first:
                return self._classify(computation, computation.instruction(index))
            home = self._all_callers().get(computation.name)
        return None

    def class_of(self, name: str) -> InstructionClass:
        """Return the class of the instruction that the runtime executes for that name."""
        joined = self.find(name)
        if joined is None:
            return class_by_name(name)
        if joined.kind == TRANSFER:
            return joined.direction or "other"
        return _CLASSES.get(joined.kind) or class_of(self.module, *self._places[joined.name])

    def place_of(self, name: str) -> tuple[Computation, Instruction] | None:
        """Return the instruction that the runtime executes for that name and its computation, or None where the module
        has none."""
        joined = self.find(name)
        return self._places[joined.name] if joined is not None else None

    def executions_of(self, name: str) -> int:
        """Return how often the instruction of that name runs in a step, or 0 where that depends on data."""
        joined = self.find(name)
        if joined is None or any(first <= joined.rank <= last for first, last in self.data_dependent):
            return 0
        return self.offload.program.executions.get(self._places[joined.name][0].name, 0)

    def _all_homes(self) -> Mapping[str, tuple[Computation, int]]:
        if self._homes is None:
            self._homes = {
                instruction.name: (computation, instruction.index)
                for computation in self.module.computations.values()
                if computation.name not in self._first
                for instruction in computation
            }
        return self._homes

    def _all_callers(self) -> Mapping[str, tuple[Computation, int]]:
        if self._callers is None:
            self._callers = {}
            for computation in self.module.computations.values():
                for instruction in computation:
                    for callee in instruction.called_names:
                        self._callers.setdefault(callee, (computation, instruction.index))
        return self._callers

    def _classify(self, computation: Computation, instruction: Instruction) -> Joined:
        self._places[instruction.name] = (computation, instruction)
        key = (computation.name, instruction.name)
        rank = self.rank(computation.name, instruction.index)
        role: JoinedRole = START if instruction.start_of else DONE if instruction.done_of else WHOLE
        halves = self._pairs.done_keys if role == DONE else self._pairs.start_keys
        pair = self._numbers.get(halves.get(key, ("", "")), 0)
        transfer = self._transfers.get(key)
        if transfer is None and key in self._dones:
            transfer = self.offload.transfers[self._dones[key] - 1]
        if transfer is not None:
            role = role if transfer.asynchronous else WHOLE
            return Joined(
                TRANSFER,
                instruction.name,
                rank,
                role,
                transfer=transfer.id,
                direction=transfer.direction,
                bytes=transfer.bytes,
                asynchronous=transfer.asynchronous,
                pair=pair,
            )
        if key in self._copies:
            return Joined(HOST_COPY, instruction.name, rank, role, bytes=self._copies[key].bytes, pair=pair)
        if key in self._events:
            return Joined(CALLBACK, instruction.name, rank, role, pair=pair)
        if instruction.opcode in CONTROL_FLOW:
            return Joined(CONTROL, instruction.name, rank, role)
        kind = COLLECTIVE if _is_collective(self.module, computation, instruction) else COMPUTE
        return Joined(kind, instruction.name, rank, role, pair=pair, is_custom_call=instruction.opcode == "custom-call")


def _is_collective(module: Module, computation: Computation, instruction: Instruction) -> bool:
    """Return whether an instruction is a collective, or a half of one, or an async start or done around one."""
    if instruction.done_of and instruction.operands:
        if instruction.done_of in COLLECTIVES:
            return True
        begun, _ = module.resolve(computation, instruction.operands[0])
        for _ in range(MAX_WRAPPING):
            if begun is None or begun.start_of or not begun.opcode.endswith("-update") or not begun.operands:
                break
            begun, _ = module.resolve(computation, begun.operands[0])
        if begun is None or not begun.start_of:
            return False
        instruction = begun
    opcode, source = instruction.start_of or instruction.opcode, instruction
    for _ in range(MAX_WRAPPING):
        if opcode in COLLECTIVES or opcode not in ("async", "call"):
            break
        body = module.computations.get(next(iter(source.called_names), ""))
        if body is None:
            break
        source, opcode = body.root, body.root.opcode
    return opcode in COLLECTIVES


def _layout(
    offload: Offload,
) -> tuple[dict[str, int], dict[str, tuple[list[int], list[int]]], tuple[Loop, ...]]:
    """Return the layout of the schedule of the whole program.

    It has the rank of each executed computation's first instruction; the places where a computation calls others, with
    the number of ranks that those before each call, and all, add to what follows; and the loops. A computation that is
    called from several places stands at the first.
    """
    program = offload.program
    sites: dict[str, list[tuple[int, str]]] = {name: [] for name in program.order}
    for site in program.call_sites:
        sites[site.caller].append((site.index, site.callee))
    size: dict[str, int] = {}
    for name in reversed(program.order):
        own = dict.fromkeys(sites[name])
        size[name] = len(program.module.computations[name]) + sum(size[callee] for _, callee in own)
    first = {program.order[0]: 0} if program.order else {}
    moved: dict[str, tuple[list[int], list[int]]] = {name: ([], [0]) for name in program.order}
    unknown = frozenset(program.unknown_trip_counts)
    loops = []
    for name in program.order:
        inserted = 0
        computation = program.module.computations[name]
        by_site: dict[int, list[str]] = {}
        for index, callee in dict.fromkeys(sites[name]):
            by_site.setdefault(index, []).append(callee)
        for index in sorted(by_site):
            begin = first[name] + index + inserted + 1
            callees = sorted(by_site[index], key=lambda callee: _body_last(computation.instruction(index), callee))
            for callee in callees:
                first.setdefault(callee, first[name] + index + inserted + 1)
                inserted += size[callee]
                moved[name][0].append(index)
                moved[name][1].append(inserted)
            instruction = computation.instruction(index)
            if instruction.opcode == "while":
                body = next(iter(instruction.called.get("body", ())), "")
                known = instruction.name not in unknown
                iterations = program.executions.get(body, 0) if known else 0
                loops.append(Loop(begin, first[name] + index + inserted, iterations))
    return first, moved, tuple(loops)


def _body_last(instruction: Instruction, callee: str) -> int:
    """Return a key that puts a while's condition before its body."""
    return int(callee in instruction.called.get("body", ()))


def module_name(path: str, program: int) -> str:
    """Return the name of a program's module for errors."""
    return f"{path}: program {program}"


def class_in(joined: ProgramJoin | None, name: str) -> InstructionClass:
    """Return the class of the instruction of that name. Without its module only the name is known."""
    return joined.class_of(name) if joined is not None else class_by_name(name)


@lru_cache(maxsize=2)
def join_of(proto: bytes, name: str) -> ProgramJoin:
    """Return the module to join to. The last ones are kept, as measuring and reporting both need the step's.

    Raises InputError, which begins with ``name``, where the module cannot be read or followed.
    """
    try:
        return ProgramJoin(find_offload(load_module_bytes(proto, name)))
    except RecursionError:
        raise InputError(f"{name}: its module is nested too deeply") from None
