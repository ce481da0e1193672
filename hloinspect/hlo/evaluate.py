"""Values of scalar integers in a module, and the trip counts of loops that follow from them.

TPU modules have no ``known_trip_count``. There a loop's count follows from its condition, its initial value and its
step.

A module may be damaged or hostile, so the work is limited: for each question, for each module and purpose, and in
depth. Where a limit is reached the value is unknown, as it is where the module does not determine it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from hloinspect.hlo.model import Computation, Instruction, Module, Operand
from hloinspect.hlo.shape import Shape, dtype_bits

_Answer = TypeVar("_Answer")
Path = tuple[int, ...]
Arguments = Callable[[int, Path], int | None]
"""A function from parameter number and path to the value of a parameter's element. None means unknown."""

_MAX_DEPTH = 100
_MAX_DEPTH_IN_ALL = 200
"""Deepest nesting of values over all computations and iterations of a question. One value takes two to four of Python's
frames, of which there are 1000."""

MAX_STEPS, MAX_STEPS_IN_ALL = 50_000, 500_000
"""Most values that one question may use, and all questions of one purpose about one module. Those of known modules use
less than 1,300 and about 20,000."""

_MAX_LITERAL_STEPS = 64
_MAX_TRIPS = 1 << 40
_FOLLOWED = frozenset({"select", "negate", "not", "clamp", "compare", "divide"})
_SAME = frozenset({"bitcast", "copy", "convert", "reshape", "broadcast", "opt-barrier", "optimization-barrier"})
_COMPARE: dict[str, Callable[[int, int], bool]] = {
    "EQ": lambda a, b: a == b,
    "NE": lambda a, b: a != b,
    "LT": lambda a, b: a < b,
    "LE": lambda a, b: a <= b,
    "GT": lambda a, b: a > b,
    "GE": lambda a, b: a >= b,
}
_BINARY: dict[str, Callable[[int, int], int]] = {
    "add": lambda a, b: a + b,
    "subtract": lambda a, b: a - b,
    "multiply": lambda a, b: a * b,
    "minimum": min,
    "maximum": max,
    "and": lambda a, b: a & b,
    "or": lambda a, b: a | b,
}


def no_arguments(_number: int, _path: Path) -> int | None:
    """Return None: the arguments of an entry computation are unknown."""
    return None


class _TooMuchError(Exception):
    """A limit of the work for a question was reached."""


class Work:
    """Counter of the work for the questions about one module, and of the depth of the present one.

    ``exhausted`` is True once a question has reached a limit. Values unknown since then may be unknown for that reason.
    """

    def __init__(self) -> None:
        self.steps = 0
        self.exhausted = False
        self._limit = 0
        self._depth = 0
        self._is_running = False

    def answer(self, question: Callable[[], _Answer | None]) -> _Answer | None:
        """Return the answer of a question, or None where it reaches a limit.

        A question inside another one is part of the work of that one.
        """
        if self._is_running:
            return question()
        self._is_running, self._depth = True, 0
        self._limit = min(self.steps + MAX_STEPS, MAX_STEPS_IN_ALL)
        try:
            return question()
        except (_TooMuchError, RecursionError):  # RecursionError: the caller's own stack is deep already
            self.exhausted = True
            return None
        finally:
            self._is_running = False

    def enter(self) -> None:
        """Count one value. The values until ``leave`` are nested in it."""
        self.steps += 1
        self._depth += 1
        if self.steps > self._limit or self._depth > _MAX_DEPTH_IN_ALL:
            raise _TooMuchError

    def leave(self) -> None:
        """Return to the value around it."""
        self._depth -= 1


@contextmanager
def work_for(module: Module, purpose: str) -> Iterator[Work]:
    """Yield the counter of this purpose, which counts the questions inside the context.

    Each purpose has limits of its own, so one purpose cannot use up those of another.
    """
    before = _work_of(module)
    work: Work = module.memo.setdefault(f"evaluation for {purpose}", Work())
    module.memo["evaluation"] = work
    try:
        yield work
    finally:
        module.memo["evaluation"] = before


def _work_of(module: Module) -> Work:
    found: Work = module.memo.setdefault("evaluation", Work())
    return found


def evaluate(module: Module, computation: Computation, operand: Operand, arguments: Arguments) -> int | None:
    """Return the value of a scalar integer or predicate, or None where the module does not determine it."""
    return _work_of(module).answer(lambda: _Evaluation(module).value(computation, operand, arguments))


def _fits(value: int, shape: Shape | None) -> bool:
    """Return whether the device would have this value too. It counts modulo the width of the type."""
    if shape is None:  # the module names an element that does not exist
        return False
    if shape.dtype == "pred":
        return -1 <= value <= 1
    bits = min(dtype_bits(shape.dtype), 64)
    if bits == 0 or shape.dtype[0] not in "su":  # a token, a tuple, a float that rounds, an unknown type
        return False
    return -(1 << (bits - 1)) <= value < 1 << (bits - 1) if shape.dtype[0] == "s" else 0 <= value < 1 << bits


class _Evaluation:
    """One evaluation, which stores its values so that common subexpressions are evaluated once.

    ``compares`` holds both sides of every comparison that was evaluated, in order.
    """

    def __init__(self, module: Module) -> None:
        self._module = module
        self._work = _work_of(module)
        self._seen: dict[tuple[str, str, Path, Arguments], int | None] = {}
        self._depth = 0
        self.compares: list[tuple[int, int]] = []

    def value(self, computation: Computation, operand: Operand, arguments: Arguments) -> int | None:
        self._work.enter()
        found = self._resolved(computation, operand, arguments) if self._depth < _MAX_DEPTH else None
        self._work.leave()
        return found

    def _resolved(self, computation: Computation, operand: Operand, arguments: Arguments) -> int | None:
        instruction, path = self._module.resolve(computation, operand)
        if instruction is None:
            return None
        key = (computation.name, instruction.name, path, arguments)
        if key not in self._seen:
            self._seen[key] = None  # a cycle has no value
            self._depth += 1
            value = self._instruction(computation, instruction, path, arguments)
            self._depth -= 1
            self._seen[key] = value if value is not None and _fits(value, instruction.shape.at(path)) else None
        return self._seen[key]

    def _instruction(
        self, computation: Computation, instruction: Instruction, path: Path, arguments: Arguments
    ) -> int | None:
        opcode, operands = instruction.opcode, instruction.operands
        if opcode == "constant":
            return instruction.constant_integer
        if opcode == "parameter":
            return arguments(instruction.parameter_number, path)
        if opcode == "tuple" or (opcode in _SAME and operands):
            if opcode == "tuple" and (not path or not 0 <= path[0] < len(operands)):
                return None
            part, rest = (operands[path[0]], path[1:]) if opcode == "tuple" else (operands[0], path)
            return self.value(computation, Operand(part.name, part.path + rest), arguments)
        if opcode in ("fusion", "call"):
            callee = self._module.computations.get(next(iter(instruction.called_names), ""))
            if callee is None or not len(callee):
                return None

            def inner(number: int, inner_path: Path) -> int | None:
                if not 0 <= number < len(operands):
                    return None
                passed = operands[number]
                return self.value(computation, Operand(passed.name, passed.path + inner_path), arguments)

            return self.value(callee, Operand(callee.root.name, path), inner)
        if opcode == "while":
            return self._after_loop(computation, instruction, path, arguments)
        if opcode not in _FOLLOWED and opcode not in _BINARY:
            return None
        values = [self.value(computation, part, arguments) for part in operands]
        if opcode == "compare" and len(values) == 2 and values[0] is not None and values[1] is not None:
            self.compares.append((values[0], values[1]))
        return _apply(instruction, values)

    def _after_loop(self, computation: Computation, loop: Instruction, path: Path, arguments: Arguments) -> int | None:
        """Return an element of a loop's result. A peeled last iteration takes its index from there."""
        if arguments is not no_arguments:
            return _value_after(LoopValues(self._module, computation, loop, arguments), path)
        key = ("after loop", computation.name, loop.name, path)  # every slice after the loop needs it
        if key not in self._module.memo:
            self._module.memo[key] = None
            try:
                self._module.memo[key] = _value_after(LoopValues(self._module, computation, loop), path)
            except (_TooMuchError, RecursionError):
                del self._module.memo[key]  # a question with more work left may find it
                raise
        found: int | None = self._module.memo[key]
        return found


def _apply(instruction: Instruction, values: list[int | None]) -> int | None:
    opcode = instruction.opcode
    if opcode == "select" and len(values) == 3 and values[0] is not None:
        return values[1] if values[0] else values[2]
    if not values or any(value is None for value in values):
        return None
    known = [value for value in values if value is not None]
    if opcode == "negate":
        return -known[0]
    if opcode == "not":
        return int(not known[0]) if instruction.shape.dtype == "pred" else ~known[0]
    if opcode == "clamp" and len(known) == 3:
        return min(max(known[1], known[0]), known[2])
    if len(known) != 2:
        return None
    if opcode == "compare" and instruction.comparison_direction in _COMPARE:
        return int(_COMPARE[instruction.comparison_direction](*known))
    if opcode == "divide" and known[1]:  # HLO rounds towards zero
        quotient = abs(known[0]) // abs(known[1])
        return quotient if (known[0] < 0) == (known[1] < 0) else -quotient
    operation = _BINARY.get(opcode)
    return operation(*known) if operation else None


def known_trip_count(loop: Instruction) -> int | None:
    """Return the count that XLA:GPU wrote into a while's backend_config, or None."""
    known = loop.backend_config.get("known_trip_count")
    count = known.get("n") if isinstance(known, dict) else None
    text = str(count)
    return int(text) if text.isdecimal() and len(text) < 16 else None


class LoopValues:
    """The scalar integers that a while carries, by iteration.

    ``enclosing`` gives the parameters of the computation that contains the loop.
    """

    def __init__(
        self, module: Module, computation: Computation, loop: Instruction, enclosing: Arguments = no_arguments
    ) -> None:
        self._module = module
        self._computation = computation
        self._start = loop.operands[0] if loop.operands else None
        self._enclosing = enclosing
        self._condition = module.computations.get(next(iter(loop.called.get("condition", ())), ""))
        self._body = module.computations.get(next(iter(loop.called.get("body", ())), ""))
        self._known: dict[tuple[int, Path], int | None] = {}
        self._iterations: dict[int, Arguments] = {}
        self._shape = loop.shape
        self.known_trip_count = known_trip_count(loop)
        self.requested: list[Path] = []  # each once, in order
        self._seen: set[Path] = set()

    def arguments(self, iteration: int) -> Arguments:
        """Return the parameter of the body (and of the condition) in an iteration, counted from 0."""
        if iteration not in self._iterations:

            def value(_number: int, path: Path) -> int | None:
                if path not in self._seen:
                    self._seen.add(path)
                    self.requested.append(path)
                return self.value(path, iteration)

            self._iterations[iteration] = value
        return self._iterations[iteration]

    def value(self, path: Path, iteration: int) -> int | None:
        """Return an element of the loop's tuple at the start of an iteration, or None where the module does not
        determine it.

        Iterations must be requested in order, since each is computed from the one before.
        """
        key = (iteration, path)
        if key not in self._known:
            self._known[key] = None
            if self._shape.at(path) is None:  # the body or the condition names an element that does not exist
                return None
            if iteration > 0:
                self._known[key] = self.after(path, self.arguments(iteration - 1))
            elif iteration == 0 and self._start is not None:
                start = Operand(self._start.name, self._start.path + path)
                self._known[key] = evaluate(self._module, self._computation, start, self._enclosing)
        return self._known[key]

    def evaluate_condition(self, arguments: Arguments) -> tuple[bool | None, list[int]]:
        """Return whether the condition holds for these values of the loop's tuple, and the differences of its
        comparisons.

        A difference is that of the two sides of a comparison in the condition.
        """
        if self._condition is None or not len(self._condition):
            return None, []
        evaluation = _Evaluation(self._module)
        value = evaluation.value(self._condition, Operand(self._condition.root.name), arguments)
        return None if value is None else bool(value), [left - right for left, right in evaluation.compares]

    def after(self, path: Path, arguments: Arguments) -> int | None:
        """Return the value of an element of the loop's tuple after the body, for these arguments."""
        if self._body is None or not len(self._body):
            return None
        return evaluate(self._module, self._body, Operand(self._body.root.name, path), arguments)


def trip_count(module: Module, computation: Computation, loop: Instruction) -> int | None:
    """Return how often the body of a while runs, or None where the module does not show it.

    It is XLA's own count where the module has it. Otherwise the condition and the values it depends on are evaluated.
    """
    return _work_of(module).answer(lambda: _trip_count(LoopValues(module, computation, loop)))


def _value_after(values: LoopValues, path: Path) -> int | None:
    """Return an element of a loop's tuple after the last iteration."""
    trips, found = _trip_count(values), None
    for iteration in range(0 if trips is None else trips + 1):
        found = values.value(path, iteration)
        if found is None:
            return None
    return found


def _trip_count(values: LoopValues) -> int | None:
    if values.known_trip_count is not None:
        return values.known_trip_count
    for iterations in range(_MAX_LITERAL_STEPS):
        more, _ = values.evaluate_condition(values.arguments(iterations))
        if not more:
            return None if more is None else iterations
    return _extrapolate(values, _MAX_LITERAL_STEPS - 1)


def _lines(values: LoopValues, last: int) -> dict[Path, tuple[int, int]] | None:
    """Return value and step of each requested element at the iteration ``last``, or None where a step varies."""
    lines: dict[Path, tuple[int, int]] = {}
    while len(lines) < len(values.requested):  # evaluating one may request another
        path = values.requested[len(lines)]
        series = [values.value(path, iteration) for iteration in (last - 2, last - 1, last)]
        known = [value for value in series if value is not None]
        if len(known) < len(series) or known[2] - known[1] != known[1] - known[0]:
            return None
        lines[path] = (known[2], known[2] - known[1])
    return lines


def _extrapolate(values: LoopValues, last: int) -> int | None:
    """Return the trip count of a long loop whose counters change by fixed steps: the first iteration whose condition
    fails.

    The difference of a comparison's sides then changes by a fixed step too, and the comparison can change only around a
    difference of zero. So the condition is evaluated only there.
    """
    lines = _lines(values, last)
    if lines is None:
        return None

    def later(more: int) -> Arguments:
        return lambda _number, path: lines[path][0] + lines[path][1] * more if path in lines else None

    (_, first), (_, second), (_, third) = (values.evaluate_condition(later(more)) for more in range(3))
    iterations: set[int] = set()
    for here, there, beyond in zip(first, second, third, strict=False):
        step = there - here
        if beyond - there != step:
            return None
        if step:
            iterations |= {-here // step, -here // step + 1}
    for iteration in sorted(iteration for iteration in iterations if 0 < iteration < _MAX_TRIPS):
        more, _ = values.evaluate_condition(later(iteration))
        if more is None:
            return None
        if not more:  # unless an operation such as minimum has stopped the counters before
            arrived = all(values.after(path, later(iteration - 1)) == later(iteration)(0, path) for path in lines)
            return last + iteration if arrived else None
    return None
