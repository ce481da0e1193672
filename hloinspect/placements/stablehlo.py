"""Reader of the placements that a step requests, from the text of its StableHLO.

Only the MLIR that decides where a value goes is read: functions and calls, loops, branches, placements
(``annotate_device_placement``), barriers and slices. Everything else is an operation on its operands. StableHLO has no
checkpoint names, and does not show whether a placement is from a policy or from the program.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from hloinspect.hlo.model import Frame
from hloinspect.offload.source import is_library_frame
from hloinspect.placements import flow
from hloinspect.placements.flow import (
    EntryValue,
    Flow,
    Node,
    NodeKind,
    Place,
    Placements,
    ProgramTooLargeError,
    Put,
    Where,
)

MOST_STATEMENTS = 2_000_000
"""Most statements that are followed, since a function is walked at each of its calls. The rest is left out."""

_MOST_DEPTH = 200
_HEAD = re.compile(r"\s*func\.func (?:public |private )?@([^(\s]+|\"[^\"]*\")\(")
_VALUE = re.compile(r"%[\w$.\-]+(?:#\d+)?")
_RESULT = re.compile(r"(%[\w$.\-]+)(?::(\d+))? = ")
_OPERATION = re.compile(r"\"?([\w.]+)\"?")
_CALLEE = re.compile(r"@([\w$.\-]+|\"[^\"]*\")")
_PLACEMENT = re.compile(r'_xla_buffer_placement = "(\w+)"')
_KIND = re.compile(r'mhlo\.memory_kind = "(\w+)"')
_RESULT_NAME = re.compile(r'jax\.result_info = "([^"]*)"')
_LOCATION = re.compile(r"loc\((#loc\d*)\)\s*$")
_FILE = re.compile(r'loc\("((?:[^"\\]|\\.)*)":(\d+):(\d+)')
_NAME = re.compile(r'loc\("([^"]*)"')
_TENSOR = re.compile(r"tensor<([^<>]*(?:<[^<>]*>)?[^<>]*)>")
_CONSTANT = re.compile(r"dense<(-?\d+)> : tensor<u?i\d+>")
_PARTS = {"slice": 1, "dynamic_slice": 1, "dynamic_update_slice": 2}
_SAME = frozenset({"reshape", "broadcast_in_dim", "sharding_constraint", "reshard"})
_SCALARS = {"i": "s", "ui": "u", "f": "f", "bf": "bf"}


@dataclass(slots=True)
class _Statement:
    """An operation. ``regions`` are those inside its braces."""

    results: list[str]
    operation: str
    operands: list[str]
    callee: str
    text: str
    regions: list[_Region] = field(default_factory=list)


@dataclass(slots=True)
class _Region:
    arguments: list[str]
    statements: list[_Statement]


@dataclass(slots=True)
class _Function:
    arguments: list[str]
    statements: list[_Statement]


def placements_of(text: str) -> Placements:
    """Return the placements that the text of a StableHLO module requests. ``gap`` says what was not understood."""
    try:
        return _Reader(text).placements()
    except (ProgramTooLargeError, RecursionError):
        return Placements("stablehlo", (), (), gap="the step has more calls in StableHLO than are followed")
    except (KeyError, IndexError, ValueError) as error:
        return Placements("stablehlo", (), (), gap=f"the StableHLO is not understood: {type(error).__name__} {error}")


def is_sharding(target: str) -> bool:
    """Return whether a custom call only gives the sharding of its operand."""
    return target in ("Sharding", "SPMDFullToShardShape", "SPMDShardToFullShape") or target.startswith("xla.sdy.")


# ---- text to statements


def _statements(lines: Sequence[str], start: int) -> tuple[_Region, int]:
    """Return the statements from ``start`` to the brace that closes them, and the number of that brace's line."""
    region = _Region([], [])
    number = start
    while number < len(lines):
        line = lines[number].strip()
        if line.startswith("}"):
            return region, number
        if line.startswith("^"):
            region.arguments = [found.group() for found in _VALUE.finditer(line)]
        elif line and not line.startswith(("#", "module", "sdy.mesh")):
            opens = _opens(line)
            if not line.startswith(("cond", "reducer", "do")):
                region.statements.append(_statement(line))
            if opens and region.statements:
                number = _regions(lines, number, region.statements[-1])
        number += 1
    return region, number


def _opens(line: str) -> bool:
    return _without_location(line).rstrip().endswith("{")


def _regions(lines: Sequence[str], number: int, statement: _Statement) -> int:
    """Read the regions that the line at ``number`` opens. Return the number of the line that closes the last one."""
    while True:
        inner, end = _statements(lines, number + 1)
        statement.regions.append(inner)
        line = lines[end] if end < len(lines) else ""
        if not _opens(line):
            statement.text += line
            following = lines[end + 1].strip() if end + 1 < len(lines) else ""
            if following.startswith(("reducer", "cond {")):
                number = end + 1
                continue
            return end
        number = end


def _without_location(line: str) -> str:
    return re.sub(r"\s*loc\([^()]*(?:\([^()]*\))?[^()]*\)\s*$", "", line)


def _statement(line: str) -> _Statement:
    found = _RESULT.match(line)
    rest = line[found.end() :] if found else line
    results: list[str] = []
    if found:
        count = int(found[2] or 0)
        results = [f"{found[1]}#{place}" for place in range(count)] if found[2] else [found[1]]
    operation = _OPERATION.match(rest)
    name = operation[1] if operation else ""
    arguments = rest.partition(" : ")[0] if "{" not in rest.partition(" : ")[0] else rest.partition("{")[0]
    callee = _CALLEE.search(arguments) or _CALLEE.search(rest.partition("decomposition = ")[2])
    operands = [value.group() for value in _VALUE.finditer(arguments)]
    return _Statement(results, name.rpartition(".")[2], operands, callee[1].strip('"') if callee else "", line)


def _tensor(text: str) -> tuple[str, tuple[int, ...]]:
    """Return HLO's name of the element type, and the shape, of the last tensor type in a text."""
    found = _TENSOR.findall(text)
    if not found:
        return "", ()
    *sizes, element = found[-1].partition(",")[0].split("x")
    kind = re.fullmatch(r"(i|ui|f|bf)(\d+)", element)
    dtype = "pred" if element == "i1" else _SCALARS[kind[1]] + kind[2] if kind else element.lower()
    return dtype, tuple(int(size) for size in sizes if size.isdecimal())


# ---- statements to the graph


class _Reader:
    def __init__(self, text: str) -> None:
        self._lines = text.splitlines()
        self._locations = Locations(text)
        self._functions: dict[str, _Function] = {}
        self._main = ""
        self._head = ""
        self._graph = Flow()
        self._walked = 0
        number = 0
        while number < len(self._lines):
            found = _HEAD.match(self._lines[number])
            if found:
                number = self._function(number, found[1].strip('"'))
            number += 1

    def _function(self, number: int, name: str) -> int:
        head = self._lines[number]
        if not self._main or name == "main":
            self._main, self._head = name, head
        body, end = _statements(self._lines, number + 1)
        arguments = head.partition(") -> ")[0]
        names = [found[0] for found in re.finditer(r"%arg\d+(?=: )", arguments)]
        self._functions[name] = _Function(names, body.statements)
        return end

    def placements(self) -> Placements:
        if not self._main:
            return Placements("stablehlo", (), (), gap="the StableHLO has no function")
        function = self._functions[self._main]
        arguments, _, results = self._head.partition(") -> ")
        entry_values = [*_entry_values("argument", arguments), *_entry_values("result", results)]
        on_host = {entry_value.number for entry_value in entry_values if entry_value.kind == "argument"}
        given = [
            self._graph.add(Node(flow.ARGUMENT, [], "", (), number in on_host, number=number))
            for number in range(len(function.arguments))
        ]
        values = dict(zip(function.arguments, given, strict=True))
        self._graph.results = self._body(function.statements, values, Where())
        return Placements("stablehlo", self._graph.requests(), tuple(entry_values))

    def _body(self, statements: Sequence[_Statement], values: dict[str, int], where: Where) -> list[int]:
        """Walk statements and return the nodes of their results."""
        if where.depth > _MOST_DEPTH:
            raise ProgramTooLargeError
        for statement in statements:
            self._walked += 1
            if self._walked > MOST_STATEMENTS:
                raise ProgramTooLargeError
            if statement.operation == "return":
                return [values[operand] for operand in statement.operands]
            made = self._made(statement, values, where)
            if len(made) == len(statement.results):
                values.update(zip(statement.results, made, strict=True))
        return []

    def _made(self, statement: _Statement, values: dict[str, int], where: Where) -> list[int]:
        operation = statement.operation
        if operation == "while":
            return self._loop(statement, values, where)
        inputs = [values[operand] for operand in statement.operands if operand in values]
        if operation == "custom_call" and statement.callee == "annotate_device_placement":
            return [self._put(statement, inputs, where)]
        function = self._functions.get(statement.callee)
        if function is not None and operation in ("call", "composite"):
            inside = replace(where, depth=where.depth + 1)
            return self._body(function.statements, dict(zip(function.arguments, inputs, strict=False)), inside)
        if operation == "manual_computation" and statement.regions:
            return self._manual(statement, values, where)
        if operation in ("case", "if"):
            return self._branches(statement, inputs, values, where)
        if operation == "optimization_barrier":
            return [self._graph.add(Node(flow.SAME, [given], "", (), barrier=True)) for given in inputs]
        if operation == "constant":
            return [self._graph.add(Node(flow.CONSTANT, [], "", (), False))]
        same = operation in _SAME or (operation == "custom_call" and is_sharding(statement.callee))
        kind: NodeKind = flow.SAME if same else flow.PART if operation in _PARTS else flow.OPERATION
        inputs = inputs[: 1 if kind == flow.SAME else _PARTS.get(operation, len(inputs))]
        place = self._place(statement.text)
        return [self._graph.add(Node(kind, inputs, "", (), None, place)) for _ in statement.results]

    def _put(self, statement: _Statement, inputs: list[int], where: Where) -> int:
        found = _PLACEMENT.search(statement.text)
        if found is None:
            return self._graph.add(Node(flow.SAME, inputs, "", ()))
        to_host = "host" in found[1]
        put = Put(to_host, flow.ANNOTATION, where.runs, where.conditional, where.counted)
        dtype, shape = _tensor(_without_location(statement.text))
        return self._graph.add(Node(flow.PUT, inputs, dtype, shape, to_host, self._place(statement.text), put=put))

    def _loop(self, statement: _Statement, values: dict[str, int], where: Where) -> list[int]:
        names, given = statement.operands[::2], [values[operand] for operand in statement.operands[1::2]]
        test, body = statement.regions[0], statement.regions[-1]
        iterations = self._iterations(statement, names, values)
        merges = [self._graph.add(Node(flow.MERGE, [value], "", ())) for value in given]
        inside = replace(where, runs=where.runs * (iterations or 1), counted=where.counted and iterations is not None)
        scope = {**values, **dict(zip(names, merges, strict=True))}
        decided = self._body(test.statements, dict(scope), inside)
        for merge, left in zip(merges, self._body(body.statements, dict(scope), inside), strict=True):
            self._graph.nodes[merge].inputs.append(left)
        if iterations is not None:
            return merges
        return [self._graph.add(Node(flow.MERGE, [*decided, merge], "", ())) for merge in merges]

    def _iterations(self, loop: _Statement, names: Sequence[str], values: Mapping[str, int]) -> int | None:
        """Return the number of iterations of a scan's loop, or None for other loops.

        It counts from zero by one and compares with a constant.
        """
        numbers: dict[str, int] = {}
        for statement in loop.regions[0].statements:
            if statement.operation == "constant" and (found := _CONSTANT.search(statement.text)):
                numbers[statement.results[0]] = int(found[1])
            if statement.operation == "compare" and len(statement.operands) == 2:
                counter, limit = statement.operands
                if " LT," in statement.text and counter in names and limit in numbers:
                    start = self._graph.nodes[values[loop.operands[2 * names.index(counter) + 1]]]
                    return numbers[limit] if start.kind == flow.CONSTANT else None
        return None

    def _branches(self, statement: _Statement, inputs: list[int], values: dict[str, int], where: Where) -> list[int]:
        inside = replace(where, conditional=True, depth=where.depth + 1)
        made = [self._body(region.statements, dict(values), inside) for region in statement.regions]
        return [
            self._graph.add(Node(flow.MERGE, [*inputs[:1], *(branch[place] for branch in made)], "", ()))
            for place in range(len(statement.results))
        ]

    def _manual(self, statement: _Statement, values: dict[str, int], where: Where) -> list[int]:
        """Walk a ``shard_map``: the values in parentheses behind its shardings are the arguments of its region."""
        head, _, tail = statement.text.partition(" in_shardings")
        given = [values[value.group()] for value in _VALUE.finditer(head.partition(" = ")[2] or head)]
        region = statement.regions[0]
        named = region.arguments or [found[0] for found in re.finditer(r"%arg\d+(?=: )", tail)]
        scope = {**values, **dict(zip(named, given, strict=False))}
        return self._body(region.statements, scope, replace(where, depth=where.depth + 1))

    def _place(self, text: str) -> Place | None:
        found = _LOCATION.search(text)
        return self._locations.place(found[1]) if found else None


def _entry_values(kind: Literal["argument", "result"], text: str) -> Iterator[EntryValue]:
    """Yield the arguments or results of the step that are requested in host memory, from their half of its
    signature."""
    pieces = re.split(r"%arg\d+: (?=tensor)" if kind == "argument" else r"(?<=[(,]) ?(?=tensor<)", text)[1:]
    for number, piece in enumerate(pieces):
        found = _KIND.search(piece)
        if found is not None and "host" in found[1]:
            name = (_NAME if kind == "argument" else _RESULT_NAME).search(piece)
            yield EntryValue(kind, number, name[1] if name else "", *_tensor(piece.partition(" {")[0]))


# ---- lines


class Locations:
    """The lines of the user's program in a StableHLO text (``as_text(debug_info=True)``)."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._known = dict(re.findall(r"^(#loc\d*) = (.*)$", text, re.MULTILINE))

    def place(self, name: str) -> Place | None:
        """Return the user's innermost frame of a location (``#loc7``), or a library's frame where there is no
        user's."""
        frames = list(self._frames(name, 0))
        own = (frame for frame in frames if not is_library_frame(Frame(frame.file, frame.line)))
        return next(own, frames[0] if frames else None)

    def of_operation(self, op_name: str) -> list[Place]:
        """Return the lines of the operations with a name of JAX's (``jit(step)/dot_general``)."""
        start = f'loc("{op_name}"('
        return self._places(name for name, text in self._known.items() if text.startswith(start))

    def of_custom_call(self, target: str) -> list[Place]:
        """Return the lines of the custom calls with a target."""
        found = re.findall(rf"custom_call @{re.escape(target)}\(.*loc\((#loc\d*)\)\s*$", self._text, re.MULTILINE)
        return self._places(found)

    def _places(self, names: Iterable[str]) -> list[Place]:
        return list(dict.fromkeys(place for name in names if (place := self.place(name)) is not None))

    def _frames(self, name: str, depth: int) -> Iterator[Place]:
        """Yield the frames of a location, the innermost first: of ``callsite(A at B)`` those of A and then those of
        B."""
        text = self._known.get(name, "")
        if depth > _MOST_DEPTH or not text:
            return
        if found := _FILE.match(text):
            yield Place(found[1], int(found[2]), int(found[3]), "")
            return
        inner = re.findall(r"#loc\d*", text)
        named = _NAME.match(text)
        plain = len(inner) == 1 and _FILE.match(self._known.get(inner[0], ""))
        for part in inner:
            for frame in self._frames(part, depth + 1):
                yield replace(frame, function=named[1]) if named and plain else frame
