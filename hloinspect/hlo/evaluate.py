"""Values of scalar integers in a module, and from them the trip counts of loops.

TPU modules carry no ``known_trip_count``; a loop's count follows from its condition, its initial value and its step.
"""

from __future__ import annotations

from collections.abc import Callable

from hloinspect.hlo.model import Computation, Instruction, Module, Operand

Path = tuple[int, ...]
Arguments = Callable[[int, Path], "int | None"]
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


def trip_count(module: Module, computation: Computation, loop: Instruction) -> int | None:
    """How often the body of a while runs, or None where the module does not tell.

    From XLA's own note where there is one, else by running the loop's counters: the condition and what it depends on.
    """
    known = known_trip_count(loop)
    return known if known is not None else _derived_trip_count(module, computation, loop)


def _derived_trip_count(module: Module, computation: Computation, loop: Instruction) -> int | None:
    condition = module.computations.get(next(iter(loop.called.get("condition", ())), ""))
    body = module.computations.get(next(iter(loop.called.get("body", ())), ""))
    if condition is None or body is None or not loop.operands:
        return None
    start = loop.operands[0]
    counters: dict[Path, int] = {}

    def initial(path: Path) -> int | None:
        return evaluate(module, computation, Operand(start.name, start.path + path), no_arguments)

    def now(_number: int, path: Path) -> int | None:
        if path not in counters:
            value = initial(path)
            if value is None:
                return None
            counters[path] = value
        return counters[path]

    def goes_on() -> bool | None:
        value = evaluate(module, condition, Operand(condition.root.name), now)
        return None if value is None else bool(value)

    def advance() -> bool:
        after: dict[Path, int] = {}
        while set(after) != set(counters):  # evaluating one counter may ask for another
            for path in set(counters) - set(after):
                value = evaluate(module, body, Operand(body.root.name, path), now)
                if value is None:
                    return False
                after[path] = value
        counters.update(after)
        return True

    previous: dict[Path, int] = {}
    for trips in range(_MAX_LITERAL_STEPS):
        more = goes_on()
        if more is None:
            return None
        if not more:
            return trips
        previous = dict(counters)
        if not advance():
            return None
    steps = {path: counters[path] - previous.get(path, counters[path]) for path in counters}
    return _extrapolate(dict(counters), steps, counters, goes_on)


def _extrapolate(
    base: dict[Path, int], steps: dict[Path, int], counters: dict[Path, int], goes_on: Callable[[], bool | None]
) -> int | None:
    """Trips of a long loop whose counters move by fixed steps: the first count at which the condition fails."""

    def holds(count: int) -> bool:
        counters.update({path: base[path] + steps[path] * count for path in base})
        return bool(goes_on())

    low, high = 0, 1
    while holds(high):
        low, high = high, high * 2
        if high > _MAX_TRIPS:
            return None
    if not holds(0):
        return _MAX_LITERAL_STEPS
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return _MAX_LITERAL_STEPS + high
