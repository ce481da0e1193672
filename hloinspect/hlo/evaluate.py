"""Values of scalar integers in a module, and from them the trip counts of loops.

TPU modules carry no ``known_trip_count``; a loop's count follows from its condition, its initial value and its step.
"""

from __future__ import annotations

from collections.abc import Callable

from hloinspect.hlo.model import Computation, Instruction, Module, Operand

Path = tuple[int, ...]
Arguments = Callable[[int, Path], int | None]
"""Value of a parameter's element, by parameter number and path; None where it is unknown."""

_MAX_DEPTH = 120
_MAX_LITERAL_STEPS = 64
_MAX_TRIPS = 1 << 40
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
    """For an entry computation: what its arguments are is not known."""
    return None


def evaluate(module: Module, computation: Computation, operand: Operand, arguments: Arguments) -> int | None:
    """The value of a scalar integer or predicate, or None where the module does not determine it."""
    return _Evaluation(module).value(computation, operand, arguments, 0)


class _Evaluation:
    """One evaluation; remembers what it has seen so that shared subexpressions cost once."""

    def __init__(self, module: Module) -> None:
        self._module = module
        self._seen: dict[tuple[str, str, Path, int], int | None] = {}
        self._kept: list[Arguments] = []  # keys hold their ids, so they must not be collected

    def value(self, computation: Computation, operand: Operand, arguments: Arguments, depth: int) -> int | None:
        if depth > _MAX_DEPTH:
            return None
        instruction, path = self._module.resolve(computation, operand)
        if instruction is None:
            return None
        key = (computation.name, instruction.name, path, id(arguments))
        if key not in self._seen:
            self._seen[key] = None  # a cycle has no value
            self._seen[key] = self._instruction(computation, instruction, path, arguments, depth)
        return self._seen[key]

    def _instruction(
        self, computation: Computation, instruction: Instruction, path: Path, arguments: Arguments, depth: int
    ) -> int | None:
        opcode, operands = instruction.opcode, instruction.operands
        if opcode == "constant":
            return instruction.constant_integer
        if opcode == "parameter":
            return arguments(instruction.parameter_number, path)
        if opcode == "tuple":
            if not path or not 0 <= path[0] < len(operands):
                return None
            part = operands[path[0]]
            return self.value(computation, Operand(part.name, part.path + path[1:]), arguments, depth + 1)
        if opcode in ("fusion", "call"):
            callee = self._module.computations.get(next(iter(instruction.called_names), ""))
            if callee is None:
                return None

            def inner(number: int, inner_path: Path) -> int | None:
                if not 0 <= number < len(operands):
                    return None
                outer = operands[number]
                return self.value(computation, Operand(outer.name, outer.path + inner_path), arguments, depth + 1)

            self._kept.append(inner)
            return self.value(callee, Operand(callee.root.name, path), inner, depth + 1)
        values = [self.value(computation, part, arguments, depth + 1) for part in operands]
        return _apply(instruction, values)


def _apply(instruction: Instruction, values: list[int | None]) -> int | None:
    opcode = instruction.opcode
    if opcode == "select" and len(values) == 3 and values[0] is not None:
        return values[1] if values[0] else values[2]
    if not values or any(value is None for value in values):
        return None
    known = [value for value in values if value is not None]
    if opcode in _SAME:
        return known[0]
    if opcode == "negate":
        return -known[0]
    if opcode == "not":
        return int(not known[0])
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
    """The count that XLA:GPU wrote into a while's backend_config, or None."""
    known = loop.backend_config.get("known_trip_count")
    count = known.get("n") if isinstance(known, dict) else None
    text = str(count)
    return int(text) if text.isdecimal() and len(text) < 16 else None


class LoopValues:
    """The scalar integers that a while carries, by turn. ``outer`` gives the parameters of the computation it stands in."""

    def __init__(
        self, module: Module, computation: Computation, loop: Instruction, outer: Arguments = no_arguments
    ) -> None:
        self._module = module
        self._computation = computation
        self._start = loop.operands[0] if loop.operands else None
        self._outer = outer
        self._condition = module.computations.get(next(iter(loop.called.get("condition", ())), ""))
        self._body = module.computations.get(next(iter(loop.called.get("body", ())), ""))
        self._known: dict[tuple[int, Path], int | None] = {}
        self._turns: dict[int, Arguments] = {}
        self.asked: set[Path] = set()

    def arguments(self, turn: int) -> Arguments:
        """The parameter of the body (and of the condition) in a turn, counted from 0."""
        if turn not in self._turns:

            def value(_number: int, path: Path) -> int | None:
                self.asked.add(path)
                return self.value(path, turn)

            self._turns[turn] = value
        return self._turns[turn]

    def value(self, path: Path, turn: int) -> int | None:
        """An element of the loop's tuple at the beginning of a turn, or None where the module does not determine it.

        Turns are to be asked for in order: each is worked out from the one before.
        """
        key = (turn, path)
        if key not in self._known:
            self._known[key] = None
            if turn > 0 and self._body is not None:
                root = Operand(self._body.root.name, path)
                self._known[key] = evaluate(self._module, self._body, root, self.arguments(turn - 1))
            elif turn == 0 and self._start is not None:
                start = Operand(self._start.name, self._start.path + path)
                self._known[key] = evaluate(self._module, self._computation, start, self._outer)
        return self._known[key]

    def goes_on(self, arguments: Arguments) -> bool | None:
        """Whether the condition holds for some values of the loop's tuple."""
        if self._condition is None:
            return None
        value = evaluate(self._module, self._condition, Operand(self._condition.root.name), arguments)
        return None if value is None else bool(value)


def trip_count(module: Module, computation: Computation, loop: Instruction) -> int | None:
    """How often the body of a while runs, or None where the module does not tell.

    From XLA's own note where there is one, else by running the loop's counters: the condition and what it depends on.
    """
    known = known_trip_count(loop)
    return known if known is not None else _derived_trip_count(LoopValues(module, computation, loop))


def _derived_trip_count(values: LoopValues) -> int | None:
    for turn in range(_MAX_LITERAL_STEPS):
        more = values.goes_on(values.arguments(turn))
        if not more:
            return turn if more is False else None
    return _extrapolate(values)


def _extrapolate(values: LoopValues) -> int | None:
    """Trips of a long loop whose counters move by fixed steps: the first count at which the condition fails."""
    last = _MAX_LITERAL_STEPS - 1
    lines: dict[Path, tuple[int, int]] = {}
    for path in values.asked:
        series = [values.value(path, turn) for turn in (last - 2, last - 1, last)]
        known = [value for value in series if value is not None]
        if len(known) < len(series) or known[2] - known[1] != known[1] - known[0]:
            return None
        lines[path] = (known[2], known[2] - known[1])

    def holds(more: int) -> bool:
        def later(_number: int, path: Path) -> int | None:
            base = lines.get(path)
            return None if base is None else base[0] + base[1] * more

        return bool(values.goes_on(later))

    low, high = 0, 1
    while holds(high):
        low, high = high, high * 2
        if high > _MAX_TRIPS:
            return None
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return last + high
