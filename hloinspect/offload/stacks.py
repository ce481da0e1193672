"""Readers and writers of host buffers: which transfer reads what which other transfer has written.

A scan keeps the values of all its layers in one buffer, a stack. Pipelining peels its first or last iteration, double
buffering and unrolling copy its body, and two loops may read what one has written. Then several transfers write and
read one stack. Where the place of each slice is known (from constants and loop counters), the transfers of the step are
followed in order, and each read gets what was written there last. Where a place is unknown, any reader of a buffer may
read what any of its writers has written.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import product

from hloinspect.hlo.evaluate import Arguments, LoopValues, no_arguments, work_for
from hloinspect.hlo.model import Computation, Instruction, Module, Operand
from hloinspect.hlo.shape import Shape, dtype_bits
from hloinspect.kinds import D2H, Direction
from hloinspect.offload.buffers import Node
from hloinspect.offload.program import Program
from hloinspect.offload.slices import byte_strides, offset_bytes, passed_on
from hloinspect.offload.transfer import Transfer

MAX_EXECUTIONS = 10_000
"""Most executions of transfers that are followed in a step. More would take too long."""

_MAX_CELLS = 1_000_000
"""Most parts of buffers that all of these executions may touch together."""

MAX_PARTNERS = 128
"""Most pairs for each transfer of a buffer with an unknown place that has more writers than this, and more readers. All
pairs would be writers times readers."""

_SLICES = ("dynamic-slice", "dynamic-update-slice")
_BEFORE = 0  # the writer of a buffer's content when the step begins; ids of transfers count from 1


@dataclass(frozen=True, slots=True)
class Reads:
    """Number of reads of each writer's bytes by each reader: ``times`` by (writer, reader), ids of transfers.

    ``placed`` are the buffers whose every access has a known place. For them ``times`` is complete, and ``kept`` are
    the writers of their content at the end of the step. In other buffers any reader may read what any writer has
    written. ``cut`` are those of them for which ``times`` has only some of these pairs.
    """

    times: Counter[tuple[int, int]]
    placed: frozenset[Node]
    kept: frozenset[int]
    cut: frozenset[Node]


@dataclass(frozen=True, slots=True)
class _Slice:
    """The part of a buffer that a transfer moves.

    ``indices`` are operands in ``body``, which is reached through ``calls``. They are empty for the whole buffer.
    """

    body: Computation
    indices: tuple[Operand, ...] | None
    taken: Shape
    whole: Shape
    calls: tuple[tuple[Computation, Instruction], ...]


@dataclass(frozen=True, slots=True)
class _Access:
    """One execution of a transfer: the bytes from ``first`` up to ``end`` of its buffer.

    ``sure``: it touches all of them, in every step.
    """

    transfer: Transfer
    first: int
    end: int
    sure: bool


def reads_of(program: Program, transfers: Sequence[Transfer], mixed: Collection[Node]) -> Reads:
    """Return which transfers read what which others have written.

    Buffers in ``mixed`` are used in other ways too, so their accesses have no known place.
    """
    by_buffer: dict[Node, list[Transfer]] = defaultdict(list)
    for transfer in transfers:
        if transfer.buffer is not None:
            by_buffer[transfer.buffer].append(transfer)
    shared = {buffer: some for buffer, some in by_buffer.items() if len({t.direction for t in some}) > 1}
    slices = _slices(program, [shared[buffer] for buffer in shared if buffer not in mixed])
    walk = _Walk(program, slices)
    with work_for(program.module, "stacks"):
        walk.run(transfers)
    times: Counter[tuple[int, int]] = Counter()
    placed, kept, cut = set(), set(), set()
    for buffer, some in shared.items():
        accesses = walk.accesses.get(buffer, [])
        content = _Content.of(accesses) if walk.is_placed(some) else None
        if content is None:
            writers = [t.id for t in some if t.direction == D2H]
            readers = [t.id for t in some if t.direction != D2H]
            times.update(_pairs(writers, readers))
            if min(len(writers), len(readers)) > MAX_PARTNERS:
                cut.add(buffer)
            continue
        for access in accesses:
            content.apply(access, times)
        placed.add(buffer)
        kept |= content.writers()
    return Reads(times, frozenset(placed), frozenset(kept), frozenset(cut))


def _pairs(writers: Sequence[int], readers: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Yield each writer with each reader.

    Where both are many, the first writers are paired with the first readers and so on. So there are at most
    ``MAX_PARTNERS`` times as many pairs as transfers.
    """
    blocks = -(-min(len(writers), len(readers)) // MAX_PARTNERS)
    for block in range(blocks):
        some, others = (
            each[block * len(each) // blocks : (block + 1) * len(each) // blocks] for each in (writers, readers)
        )
        yield from product(some, others)


# ---- which part of its buffer a transfer moves


def _slices(program: Program, groups: Sequence[Sequence[Transfer]]) -> dict[int, _Slice]:
    """Return the slices of the buffers whose every slice is known, of one size and type, by the transfer's id."""
    found: dict[int, _Slice] = {}
    left = MAX_EXECUTIONS
    for transfers in sorted(groups, key=lambda some: sum(t.executions for t in some)):
        left -= sum(t.executions for t in transfers)
        if left < 0:
            break
        own = {transfer.id: _slice(program.module, transfer) for transfer in transfers}
        known = {number: part for number, part in own.items() if part is not None}
        like = {(part.whole.dtype, tuple(dim for dim in part.whole.dims if dim != 1)) for part in known.values()}
        if len(known) == len(own) and len(like) == 1:
            found |= known
    return found


def _slice(module: Module, transfer: Transfer) -> _Slice | None:
    computation = module.computations[transfer.computation]
    start = computation.instruction(transfer.start_index)
    kind = start.start_of or start.opcode
    if not start.operands:
        return None
    if kind == "copy":
        whole = start.shape.at((0,)) if start.start_of else start.shape
        return None if whole is None else _Slice(computation, None, whole, whole, ())
    if kind in _SLICES:
        result = start.shape.at((1,)) if start.start_of else start.shape
        return _sliced(module, computation, start, kind, result, ())
    calls: tuple[tuple[Computation, Instruction], ...] = ((computation, start),)
    hosts = {n for n, operand in enumerate(start.operands) if _on_host(module.shape_of(computation, operand))}
    body = _callee(module, start)
    if body is not None and kind == "async" and body.root.opcode == "fusion":
        inner = body.root
        made = [module.resolve(body, operand)[0] for operand in inner.operands]
        hosts = {n for n, each in enumerate(made) if each is not None and each.parameter_number in hosts}
        calls, body = (*calls, (body, inner)), _callee(module, inner)
    part = _only_slice(body, hosts, transfer.direction) if body is not None else None
    if part is None or body is None:
        return None
    return _sliced(module, body, part, part.opcode, part.shape, calls)


def _on_host(shape: Shape | None) -> bool:
    return shape is not None and shape.on_host


def _callee(module: Module, instruction: Instruction) -> Computation | None:
    return module.computations.get(next(iter(instruction.called.get("calls", ())), ""))


def _only_slice(body: Computation, hosts: Collection[int], direction: Direction) -> Instruction | None:
    """Return the only slice or update by which a fusion's body uses its only parameter in host memory, or None."""
    names = {p.name for p in body.parameters if p.parameter_number in hosts}
    if len(names) != 1:
        return None
    users = [user for name in names for user, _ in body.users.get(name, ())]
    wanted = "dynamic-update-slice" if direction == D2H else "dynamic-slice"
    if len(users) != 1 or users[0].opcode != wanted or users[0].operands[0].name not in names:
        return None
    return users[0]


def _sliced(
    module: Module,
    body: Computation,
    part: Instruction,
    kind: str,
    result: Shape | None,
    calls: tuple[tuple[Computation, Instruction], ...],
) -> _Slice | None:
    """Return the part of operand 0 that a dynamic-slice or dynamic-update-slice uses."""
    first = 1 if kind == "dynamic-slice" else 2
    whole = module.shape_of(body, part.operands[0])
    taken = result if kind == "dynamic-slice" or len(part.operands) < first else module.shape_of(body, part.operands[1])
    if whole is None or taken is None or not taken.dims or dtype_bits(whole.dtype) % 8 or taken.dtype != whole.dtype:
        return None
    return _Slice(body, part.operands[first:], taken, whole, calls)


# ---- the step in order


@dataclass
class _Walk:
    """Goes through the transfers of a step in the order in which they run, once for each execution."""

    program: Program
    slices: dict[int, _Slice]
    accesses: dict[Node, list[_Access]] = field(default_factory=lambda: defaultdict(list))
    _items: dict[str, dict[int, list[Transfer] | Instruction]] = field(default_factory=lambda: defaultdict(dict))
    _lost: set[Node | None] = field(default_factory=set)
    _left: int = 2 * MAX_EXECUTIONS

    def is_placed(self, transfers: Sequence[Transfer]) -> bool:
        """Return whether every access of these transfers, all of one buffer, has a known place."""
        known = all(t.id in self.slices and t.executions and t.buffer not in self._lost for t in transfers)
        return known and self._left >= 0

    def run(self, transfers: Sequence[Transfer]) -> None:
        """Follow the accesses of the whole step."""
        inside = {t.computation for t in transfers if t.id in self.slices and t.executions}
        for transfer in transfers:
            if transfer.computation in inside and transfer.id in self.slices:
                here = self._items[transfer.computation].setdefault(transfer.start_index, [])
                if isinstance(here, list):
                    here.append(transfer)
        for site in reversed(self.program.call_sites):  # callers come before callees
            if site.callee in inside:
                inside.add(site.caller)
                caller = self.program.module.computations[site.caller]
                self._items[site.caller][site.index] = caller.instruction(site.index)
        self._computation(self.program.module.entry, no_arguments, counted=True)

    def _computation(self, computation: Computation, arguments: Arguments, counted: bool) -> None:
        """Follow one run of a computation. If not ``counted``, its number of runs and its arguments are unknown."""
        self._left -= 1
        for _, item in sorted(self._items.get(computation.name, {}).items()):
            if self._left < 0:
                return
            if isinstance(item, list):
                for transfer in item:
                    self._place(transfer, arguments, counted)
            elif item.opcode == "while":
                self._loop(computation, item, arguments, counted)
            else:
                self._call(computation, item, arguments, counted)

    def _loop(self, computation: Computation, loop: Instruction, arguments: Arguments, counted: bool) -> None:
        module = self.program.module
        body, condition = (module.computations[loop.called[role][0]] for role in ("body", "condition"))
        if condition.name in self._items or loop.name in self.program.unknown_trip_counts or not counted:
            for callee in (condition, body):
                self._computation(callee, no_arguments, counted=False)
            return
        values = LoopValues(module, computation, loop, arguments)
        for iteration in range(self._trips[computation.name, loop.index]):
            if self._left < 0:
                return
            self._computation(body, values.arguments(iteration), counted)

    @cached_property
    def _trips(self) -> dict[tuple[str, int], int]:
        """Return how often the body of each loop runs. Its condition runs once more."""
        trips: dict[tuple[str, int], int] = {}
        for site in self.program.call_sites:
            key = (site.caller, site.index)
            trips[key] = min(trips.get(key, site.times), site.times)
        return trips

    def _call(self, computation: Computation, call: Instruction, arguments: Arguments, counted: bool) -> None:
        module = self.program.module
        for position, name in enumerate(call.called_names):
            # operand 0 of a conditional is the choice; branch n takes operand n + 1
            first = position + 1 if call.opcode == "conditional" else 0
            self._computation(
                module.computations[name], passed_on(module, computation, call, arguments, first), counted
            )

    def _place(self, transfer: Transfer, arguments: Arguments, counted: bool) -> None:
        part = self.slices[transfer.id]
        if transfer.buffer is None or transfer.buffer in self._lost:
            return
        first: int | None = 0
        if part.indices is not None:
            for caller, call in part.calls:
                arguments = passed_on(self.program.module, caller, call, arguments)
            first = offset_bytes(self.program.module, part.body, part.indices, part.taken, part.whole, arguments)
        if first is None or not counted:
            self._lost.add(transfer.buffer)
            return
        strides = byte_strides(part.whole)
        last = sum((size - 1) * stride for size, stride in zip(part.taken.dims, strides, strict=True))
        end = first + last + dtype_bits(part.taken.dtype) // 8
        sure = end - first == part.taken.size_bytes and not transfer.conditional
        self.accesses[transfer.buffer].append(_Access(transfer, first, end, sure))


@dataclass
class _Content:
    """The last writer of each part of a buffer. ``bounds`` are the first bytes of the parts.

    Where a write is not certain to happen, the earlier writers stay.
    """

    bounds: list[int]
    cells: list[frozenset[int]]

    @classmethod
    def of(cls, accesses: Sequence[_Access]) -> _Content | None:
        """Return the buffer at the start of the step, in parts that each access touches completely or not at all.

        It is None where there would be too many parts.
        """
        bounds = sorted({bound for access in accesses for bound in (access.first, access.end)})
        content = cls(bounds, [frozenset({_BEFORE})] * len(bounds))
        touched = sum(len(content.parts(access)) for access in accesses)
        return content if touched <= _MAX_CELLS else None

    def parts(self, access: _Access) -> range:
        """Return the parts that an access touches."""
        return range(bisect_left(self.bounds, access.first), bisect_left(self.bounds, access.end))

    def apply(self, access: _Access, times: Counter[tuple[int, int]]) -> None:
        """Record a write. For a read, count one read for every writer of its parts."""
        number = access.transfer.id
        if access.transfer.direction != D2H:
            found = frozenset[int]().union(*(self.cells[part] for part in self.parts(access)))
            times.update((writer, number) for writer in found if writer != _BEFORE)
            return
        for part in self.parts(access):
            self.cells[part] = frozenset({number}) if access.sure else self.cells[part] | {number}

    def writers(self) -> set[int]:
        """Return the writers of the buffer's content."""
        return {writer for cell in self.cells for writer in cell if writer != _BEFORE}
