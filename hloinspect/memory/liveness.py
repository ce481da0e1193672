"""Live ranges of the buffers of a scheduled module, by XLA's rules, from the module alone.

The schedule is made flat: the computations of a loop, a call and a branch come once, before the instruction that calls
them (openxla/xla, hlo/utils/hlo_live_range.cc, ``FlattenSchedule``). A *value* is a leaf of a result. It lives from its
definition to its last use or mention. A *buffer* is all values that must share memory: what a loop carries, and updates
in place. Its life is the union of theirs, so a loop's buffer can be free in between.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from hloinspect.errors import HloParseError
from hloinspect.hlo.model import Computation, Instruction, Module, Operand
from hloinspect.hlo.shape import Shape
from hloinspect.memory.inplace import Path, in_place, may_reuse, read_aliases
from hloinspect.memory.values import Buffer, Origin, ValueTable, join_spans

MIN_REUSE_BYTES = 4096
"""Least size for which it is checked whether a result may overwrite an operand."""

_SAME = frozenset({"bitcast", "opt-barrier", "optimization-barrier", "domain", "async-update", "add-dependency"})
_FRESH = frozenset({"constant", "iota", "parameter"})

Values = list[int]


@dataclass(frozen=True, slots=True)
class LiveLeaf:
    """An array, the buffer in which it lies, and the first and last time at which this value of it is needed."""

    shape: Shape
    buffer: Buffer
    first: int
    last: int


@dataclass(frozen=True)
class Liveness:
    """The buffers of a module. ``order`` is the flat schedule, as (computation, place) by time."""

    module: Module
    buffers: tuple[Buffer, ...]
    order: tuple[tuple[str, int], ...]
    _values: dict[tuple[str, str], Values]
    _table: ValueTable
    _places: dict[int, int]

    def instruction_at(self, time: int) -> Instruction:
        """Return the instruction at a time."""
        computation, index = self.order[min(time, len(self.order) - 1)]
        return self.module.computations[computation].instruction(index)

    @cached_property
    def _times(self) -> dict[tuple[str, int], int]:
        return {place: time for time, place in enumerate(self.order)}

    def time_of(self, computation: str, index: int) -> int | None:
        """Return the time of an instruction by its place, or None where the device does not run it."""
        return self._times.get((computation, index))

    def values_of(self, computation: str, operand: Operand) -> tuple[LiveLeaf, ...]:
        """Return the leaves of an operand's value, without constants. It is empty where the value is unknown."""
        values = self._values.get((computation, operand.name), [])
        instruction = self.module.computations[computation].find(operand.name)
        if instruction is None or len(values) != len(instruction.shape.leaves):
            return ()
        depth = len(operand.path)
        return tuple(
            LiveLeaf(leaf, self.buffers[place], self._table.start(value), self._table.end(value))
            for (path, leaf), value in zip(instruction.shape.leaves, values, strict=True)
            if path[:depth] == operand.path and (place := self._places.get(self._table.buffer(value))) is not None
        )


def liveness(module: Module) -> Liveness:
    """Return the live ranges of a scheduled module.

    Raises HloParseError where the module cannot be followed. The time is linear in instructions and leaves of their
    results.
    """
    return _Walk(module).run()


@dataclass(slots=True)
class _Frame:
    """A computation that is being walked, and its caller."""

    computation: Computation
    arguments: list[Values] | None  # None: parameters are values of their own (entry, loops)
    first_time: int
    index: int = 0
    entered: bool = False
    callees: list[str] | None = None


class _Walk:
    def __init__(self, module: Module) -> None:
        self._module = module
        self._time = 0
        self._order: list[tuple[str, int]] = []
        self._spans: dict[str, tuple[int, int]] = {}
        self._table = ValueTable()
        self._env: dict[tuple[str, str], Values] = {}
        self._shapes: dict[tuple[str, str], Shape] = {}
        self._offsets: dict[tuple[str, str], list[int]] = {}
        self._roots: dict[str, Values] = {}
        self._inside: dict[tuple[str, str], tuple[int, int]] = {}
        self._constants: set[int] = set()
        self._reuses: list[tuple[int, int, int]] = []
        self._entry_parameters: dict[tuple[int, Path], int] = {}
        self._active: set[str] = set()
        self._called: set[str] = set()

    # values

    def _new(self, instruction: Instruction, path: Path, shape: Shape, start: int) -> int:
        return self._table.add(Origin(instruction, path, shape), start, max(start, self._time))

    def _fresh(self, instruction: Instruction, start: int | None = None) -> Values:
        begin = self._time if start is None else start
        return [self._new(instruction, path, leaf, begin) for path, leaf in instruction.shape.leaves]

    def _operand(self, computation: str, operand: Operand) -> Values:
        key = (computation, operand.name)
        values = self._env.get(key)
        if values is None:
            raise HloParseError(f"{operand.name} in {computation} is not defined before its use")
        return self._part(key, values, operand.path) if operand.path else values

    def _part(self, key: tuple[str, str], values: Values, path: Path) -> Values:
        shape = self._shapes[key]
        offsets = self._offsets.get(key)
        if offsets is None:
            offsets = [0]
            for element in shape.elements:
                offsets.append(offsets[-1] + len(element.leaves))
            self._offsets[key] = offsets
        if not 0 <= path[0] < len(shape.elements):
            raise HloParseError(f"{key[1]} in {key[0]} has no element {path[0]}")
        begin, end = offsets[path[0]], offsets[path[0] + 1]
        shape = shape.elements[path[0]]
        for index in path[1:]:
            if not 0 <= index < len(shape.elements):
                raise HloParseError(f"{key[1]} in {key[0]} has no element {path}")
            begin += sum(len(element.leaves) for element in shape.elements[:index])
            shape = shape.elements[index]
            end = begin + len(shape.leaves)
        return values[begin:end]

    # the walk

    def run(self) -> Liveness:
        entry = self._module.entry
        stack = [_Frame(entry, None, 0)]
        self._active.add(entry.name)
        while stack:
            frame = stack[-1]
            if frame.index >= len(frame.computation):
                self._leave(frame)
                stack.pop()
                continue
            instruction = frame.computation.instruction(frame.index)
            if frame.callees is None:
                frame.callees = self._callees(instruction)
                frame.callees.reverse()
            if frame.callees:
                callee = frame.callees.pop()
                if callee not in self._roots:
                    stack.append(self._enter(frame, instruction, callee))
                continue
            frame.callees = None
            self._order.append((frame.computation.name, frame.index))
            key = (frame.computation.name, instruction.name)
            self._shapes[key] = instruction.shape
            values = self._visit(frame, instruction)
            if len(values) != len(instruction.shape.leaves):
                values = self._fresh(instruction)
            self._env[key] = values
            self._time += 1
            frame.index += 1
        return self._result()

    def _callees(self, instruction: Instruction) -> list[str]:
        """Return the computations that come before an instruction in the flat schedule, in order."""
        opcode = instruction.opcode
        if opcode == "while":
            return [*instruction.called.get("condition", ()), *instruction.called.get("body", ())]
        if opcode in ("call", "conditional"):
            return list(instruction.called_names)
        start = self._begun_by(instruction) or instruction
        if start.start_of in ("async", "call") and (start is not instruction or not self._begins_later(start)):
            body = self._module.computations.get(next(iter(start.called_names), ""))
            if body is not None and len(body) > 1 + len(body.parameters):
                return [body.name]
        return []

    def _begins_later(self, start: Instruction) -> bool:
        """Return whether a start has no operands although its computation has parameters.

        An update then has the operands (libtpu's calls of a sparse core).
        """
        body = self._module.computations.get(next(iter(start.called_names), ""))
        return not start.operands and body is not None and bool(body.parameters)

    def _begun_by(self, update: Instruction) -> Instruction | None:
        """Return the start whose work this update begins with its operands, or None for other instructions."""
        if update.opcode not in ("async-update", "call-update") or len(update.operands) < 2:
            return None
        start = self._module.computations[update.computation].find(update.operands[0].name)
        return start if start is not None and self._begins_later(start) else None

    def _enter(self, frame: _Frame, call: Instruction, callee: str) -> _Frame:
        computation = self._module.computations.get(callee)
        if computation is None or not len(computation):
            raise HloParseError(f"{call.name} calls {callee}, which is not in the module (a truncated file?)")
        if callee in self._active:
            raise HloParseError(f"computation {callee} calls itself")
        self._active.add(callee)
        begun = self._begun_by(call)
        arguments: list[Values] | None = None
        if call.opcode != "while":
            passed = call.operands[1:] if begun is not None else call.operands
            arguments = [self._operand(frame.computation.name, operand) for operand in passed]
            if call.opcode == "conditional":  # operand 0 is the choice; branch n takes operand n + 1
                place = call.called_names.index(callee) + 1
                arguments = arguments[place : place + 1]
        if call.start_of or begun is not None:
            self._inside[(frame.computation.name, call.name)] = (len(self._table), 0)
        return _Frame(computation, arguments, self._time)

    def _leave(self, frame: _Frame) -> None:
        name = frame.computation.name
        self._active.discard(name)
        root = self._env.get((name, frame.computation.root.name), []) if len(frame.computation) else []
        self._table.touch(root, self._time)  # results are needed to the end
        self._spans[name] = (frame.first_time, self._time)
        self._roots[name] = root

    def _visit(self, frame: _Frame, instruction: Instruction) -> Values:
        name, opcode, time = frame.computation.name, instruction.opcode, self._time
        if opcode == "parameter":
            return self._parameter(frame, instruction)
        if opcode in _FRESH:
            values = self._fresh(instruction)
            if opcode == "constant":
                self._constants.update(values)
            return values
        operands = [self._operand(name, operand) for operand in instruction.operands]
        if opcode == "while":
            return self._loop(instruction, operands)
        if opcode == "call":
            return self._call(instruction, operands)
        if opcode == "conditional":
            return self._branches(instruction, operands)
        if opcode == "get-tuple-element" and operands:
            operand = instruction.operands[0]
            found = self._operand(name, Operand(operand.name, (*operand.path, instruction.tuple_index)))
            self._table.touch(found, time)
            return found
        for values in operands:
            self._table.touch(values, time)
        if opcode == "tuple":
            return [value for values in operands for value in values]
        if (start := self._begun_by(instruction)) is not None:
            return self._start(instruction, operands[1:], start)
        if (opcode in _SAME or opcode.endswith("-update")) and operands:
            return operands[0]
        if instruction.start_of:
            return self._start(instruction, operands, instruction)
        if instruction.done_of and operands:
            return self._done(frame, instruction, operands[0])
        return self._compute(instruction, operands)

    def _parameter(self, frame: _Frame, parameter: Instruction) -> Values:
        number = parameter.parameter_number
        if frame.arguments is not None:
            if not 0 <= number < len(frame.arguments):
                raise HloParseError(f"no call passes parameter {number} of {frame.computation.name}")
            self._table.touch(frame.arguments[number], self._time)
            return frame.arguments[number]
        values = self._fresh(parameter, frame.first_time)
        if frame.computation.is_entry:
            for value, (path, _) in zip(values, parameter.shape.leaves, strict=True):
                self._entry_parameters[(number, path)] = value
        return values

    def _loop(self, loop: Instruction, operands: list[Values]) -> Values:
        body, condition = (loop.called.get(role, ("",))[0] for role in ("body", "condition"))
        if body not in self._roots or not operands:
            raise HloParseError(f"the while {loop.name} names no body (a truncated file?)")
        initial, root = operands[0], self._roots[body]
        inside = self._first_parameter(body)
        self._table.touch(initial, self._order_time(body))
        checked = self._first_parameter(condition)
        results: Values = []
        for place, (path, leaf) in enumerate(loop.shape.leaves):
            if place >= min(len(initial), len(root), len(inside)):
                return []
            start = initial[place]
            again = [values[place] for values in (inside, checked) if place < len(values)]
            if self._table.value(root[place]) == self._table.value(
                inside[place]
            ):  # passed on unchanged: one value for the whole loop
                for value in again:
                    self._table.merge(value, start)
                self._table.touch([start], self._time)
                results.append(start)
                continue
            result = self._new(loop, path, leaf, self._time)
            for value in (*again, root[place], result):
                self._table.share(value, start)
            results.append(result)
        return results

    def _first_parameter(self, computation: str) -> Values:
        found = self._module.computations.get(computation)
        if found is None or not found.parameters:
            return []
        return self._env.get((computation, found.parameters[0].name), [])

    def _order_time(self, body: str) -> int:
        """Return the time at which a loop's body takes over the loop's initial values: that of its parameter."""
        parameters = self._module.computations[body].parameters
        first = self._spans[body][0]
        if not parameters:
            return first
        for time in range(first, self._spans[body][1]):
            if self._order[time] == (body, parameters[0].index):
                return time
        return first

    def _call(self, call: Instruction, operands: list[Values]) -> Values:
        callee = next(iter(call.called_names), "")
        found = self._roots.get(callee, [])
        self._table.touch(found, self._time)
        if callee in self._called:  # the flat schedule has a computation at its first call
            for values in operands:
                self._table.touch(values, self._time)
        self._called.add(callee)
        return list(found)

    def _branches(self, conditional: Instruction, operands: list[Values]) -> Values:
        for values in operands:
            self._table.touch(values, self._time)
        results = self._fresh(conditional)
        for callee in conditional.called_names:
            for value, result in zip(self._roots.get(callee, ()), results, strict=False):
                self._table.share(value, result)
        return results

    def _start(self, start: Instruction, operands: list[Values], caller: Instruction) -> Values:
        given = [value for values in operands for value in values]
        leaves = start.shape.leaves
        if start.opcode == "copy-start":
            place = {(1,): given[0]} if given else {}
            return [place[path] if path in place else self._new(start, path, leaf, self._time) for path, leaf in leaves]
        elements = start.shape.elements
        generic = bool(elements) and (elements[0].is_tuple or start.opcode != "all-reduce-start")
        if not generic or len(elements) < 2 or start.opcode in ("send-start", "recv-start"):
            return self._written(start, operands, leaves, ())
        count = len(elements[0].leaves)
        if count != len(given):
            return self._fresh(start)
        result = [(path, leaf) for path, leaf in leaves[count:] if path[0] == 1]
        values = [*given, *self._written(start, operands, result, (1,))]
        self._close_inside(start, caller, values[count:])
        values += [self._new(start, path, leaf, self._time) for path, leaf in leaves[len(values) :]]
        return values

    def _close_inside(self, start: Instruction, caller: Instruction, results: Values) -> None:
        """Keep the values inside an async computation alive until its `done`, and make its root the result."""
        key = (start.computation, start.name)
        if key in self._inside:
            self._inside[key] = (self._inside[key][0], len(self._table))
            for value, result in zip(self._roots.get(next(iter(caller.called_names)), ()), results, strict=False):
                self._table.share(value, result)

    def _written(
        self,
        instruction: Instruction,
        operands: list[Values],
        leaves: Sequence[tuple[Path, Shape]],
        prefix: Path,
    ) -> Values:
        """Return new values for leaves of a result, in the buffers of operands where they are written in place."""
        pairs = in_place(self._module, instruction)
        values = []
        for path, leaf in leaves:
            value = self._new(instruction, path, leaf, self._time)
            source = pairs.get(path[len(prefix) :])
            if source is not None and source[0] < len(operands):
                target = self._target(instruction, operands, *source)
                if target is not None:
                    self._table.share(value, target)
            values.append(value)
        return values

    def _target(self, instruction: Instruction, operands: list[Values], number: int, path: Path) -> int | None:
        values = operands[number]
        if path:
            operand = instruction.operands[number]
            values = self._operand(instruction.computation, Operand(operand.name, (*operand.path, *path)))
        return values[0] if len(values) == 1 else None

    def _done(self, frame: _Frame, done: Instruction, started: Values) -> Values:
        operand = done.operands[0]
        if (inside := self._inside.get((frame.computation.name, operand.name))) is not None:
            self._table.touch(range(*inside), self._time)
        wanted = len(done.shape.leaves)
        if len(started) == wanted:
            return started
        key = (frame.computation.name, operand.name)
        part = (0,) if done.done_of == "copy" else (1,)
        shape = self._shapes[key].at(operand.path)
        if shape is None or len(shape.elements) <= part[0]:
            return []
        return self._part(key, self._env[key], (*operand.path, *part))

    def _compute(self, instruction: Instruction, operands: list[Values]) -> Values:
        values = self._written(instruction, operands, instruction.shape.leaves, ())
        self._note_reuse(instruction, operands, values)
        return values

    def _note_reuse(self, instruction: Instruction, operands: list[Values], values: Values) -> None:
        """Record which operands a result could overwrite. Whether they die there is known only at the end."""
        for value in values:
            size = self._table.origins[value].shape.size_bytes
            if size < MIN_REUSE_BYTES:
                continue
            for number, given in enumerate(operands):
                # An operand that is taken from a tuple or bitcast is not overwritten (heap_simulator.cc).
                if (
                    len(given) != 1
                    or self._table.origins[given[0]].instruction.name != instruction.operands[number].name
                ):
                    continue
                if not instruction.operands[number].path and self._table.origins[given[0]].shape.size_bytes == size:
                    self._reuses.append((value, given[0], number))

    # the result

    def _result(self) -> Liveness:
        donated = self._place_results()
        groups = self._table.groups(self._constants)
        buffers = self._buffers(groups, donated)
        places = {group: place for place, group in enumerate(groups)}
        return Liveness(
            module=self._module,
            buffers=buffers,
            order=tuple(self._order),
            _values=self._env,
            _table=self._table,
            _places=places,
        )

    def _place_results(self) -> set[tuple[int, Path]]:
        """Let results share the buffers of donated arguments, and keep the other arguments to the end.

        Return the donated arguments as (number, path).
        """
        aliases = donations(self._module)
        donated = set(aliases.values())
        for key, value in self._entry_parameters.items():
            if key not in donated:
                self._table.touch([value], self._time)  # nothing else may be written there (hlo_live_range.cc)
        results = self._roots[self._module.entry_name]
        for result, (path, _) in zip(results, self._module.entry.root.shape.leaves, strict=False):
            parameter = self._entry_parameters.get(aliases[path]) if path in aliases else None
            if parameter is not None:
                self._table.share(result, parameter)
        return donated

    def _buffers(self, groups: dict[int, Values], donated: set[tuple[int, Path]]) -> tuple[Buffer, ...]:
        table = self._table
        heirs = self._overwritten(groups)
        chains: dict[int, int] = {}
        for given, result in heirs.items():  # in schedule order
            chains[result] = chains.setdefault(given, given)
        arguments = {table.buffer(value): key for key, value in self._entry_parameters.items()}
        results = {table.buffer(value) for value in self._roots[self._module.entry_name]}
        buffers = []
        for group, members in groups.items():
            argument = arguments.get(group)
            spans = sorted((table.start(n), table.end(n) - (n in heirs)) for n in members)
            origin = table.origins[max(members, key=lambda n: table.origins[n].shape.size_bytes)]
            buffer = Buffer(
                origin=origin,
                bytes=origin.shape.size_bytes,
                memory_space=origin.shape.memory_space,
                spans=join_spans(spans),
                parameter=-1 if argument is None else argument[0],
                is_donated=argument in donated,
                is_result=group in results,
                chain=chains.get(members[0], -1),
            )
            buffers.append(buffer)
        return tuple(buffers)

    def _overwritten(self, groups: dict[int, Values]) -> dict[int, int]:
        """Return the values that give their memory to a result at their last use, each with that result.

        The two are never in memory together. Only buffers of one value can do that (heap_simulator.cc,
        ``may_reuse_operand_buffers``), and each only once.
        """
        table = self._table
        alone = {members[0] for members in groups.values() if len(members) == 1}
        heirs: dict[int, int] = {}
        served: set[int] = set()
        for made, operand, number in self._reuses:
            result, given = table.value(made), table.value(operand)
            if result in served or given in heirs or result not in alone or given not in alone:
                continue
            if table.end(given) != table.start(result) or table.start(given) >= table.end(given):
                continue
            one, other = table.origins[result], table.origins[given]
            if one.shape.memory_space == other.shape.memory_space and may_reuse(
                self._module, one.instruction, one.path, number, other.shape
            ):
                heirs[given] = result
                served.add(result)
        return heirs


def donations(module: Module) -> dict[Path, tuple[int, Path]]:
    """Return, for each result of the step that is written over an argument, the parameter's number and the path into
    it."""
    return read_aliases(module.attributes.get("input_output_alias", ""))
