"""What a step requests of host memory, read from its jaxpr (run in the child process, where jax is).

The jaxpr has what StableHLO and HLO have lost: checkpoint names, which placement a policy made, and what brings which
value back, through scan, remat, cond and calls. It is walked as it runs, each call of a function by itself, and read
into the graph of ``hloinspect.placements.flow``.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from types import FrameType
from typing import Literal

from hloinspect.compile.child.jax_types import Equation, Jaxpr, Lowered, Placing, Variable
from hloinspect.compile.child.names import inner_jaxprs, is_host, user_frame
from hloinspect.hlo.model import Frame
from hloinspect.kinds import PlacementBy
from hloinspect.offload.source import is_library_frame
from hloinspect.placements import flow
from hloinspect.placements.flow import EntryValue, Flow, Node, Place, Placements, Put

MOST_EQUATIONS = 2_000_000
"""A program is walked as it runs, so what calls twice what calls twice ... grows: beyond this it is left."""

_SAME = frozenset(
    {"sharding_constraint", "reshard", "reshape", "squeeze", "expand_dims", "copy", "copy_p", "mesh_cast", "pvary"}
)
_PARTS = frozenset({"slice", "dynamic_slice", "dynamic_update_slice"})
_UPDATED = {"dynamic_update_slice": 2}  # of its operands the stack and the update are values
_OF_THE_HOST = "host"


class TooLargeError(Exception):
    """The program runs more equations than are looked at."""


@dataclass(frozen=True, slots=True)
class _Where:
    """Where in the program the walk is."""

    runs: int = 1
    conditional: bool = False
    counted: bool = True
    on_host: bool = False  # inside compute_on


def requested_of(jaxpr: Jaxpr, lowered: Lowered, policies: Mapping[str, Place | None]) -> dict[str, object]:
    """Return what a step requests, as the manifest has it, and the names that policies offload.

    ``jaxpr`` is that of the traced step, ``lowered`` what it was lowered to, which says which arguments are left, and
    ``policies`` has each name of a policy with the line that makes it. A step that is too large has a ``gap``.
    """
    body: Jaxpr = getattr(jaxpr, "jaxpr", jaxpr)
    kept = _kept_arguments(lowered, len(body.invars))
    arguments, results = _entry_values(body, lowered, kept)
    walker = _Walker()
    gap = ""
    try:
        walker.run(body, kept, {entry_value.number for entry_value in arguments})
    except TooLargeError as error:
        gap = str(error)
    requests = () if gap else walker.graph.requests()
    placements = Placements("jaxpr", requests, (*arguments, *results), walker.names, tuple(walker.computes), gap)
    offloaded = [{"name": name, "place": place and asdict(place)} for name, place in policies.items()]
    return {**flow.placements_to_json(placements), "policies": offloaded}


def _kept_arguments(lowered: Lowered, count: int) -> Mapping[int, int]:
    """Return the place among the compiled step's arguments of each of the function's: unused ones are left out."""
    compile_args = getattr(getattr(lowered, "_lowering", None), "compile_args", {})
    kept = compile_args.get("kept_var_idx")
    return {number: place for place, number in enumerate(range(count) if kept is None else sorted(kept))}


def _entry_values(body: Jaxpr, lowered: Lowered, kept: Mapping[int, int]) -> tuple[list[EntryValue], list[EntryValue]]:
    """Return arguments and results that are requested in host memory, by the types that the user's shardings gave them,
    or by the shardings themselves."""
    compile_args = getattr(getattr(lowered, "_lowering", None), "compile_args", {})
    given = dict(zip(sorted(kept), compile_args.get("in_shardings", ()), strict=False))
    returned = dict(enumerate(compile_args.get("out_shardings", ())))
    info = getattr(body, "debug_info", None)
    arguments = [
        _entry_value("argument", kept.get(number, -1), getattr(info, "arg_names", None), number, var)
        for number, var in enumerate(body.invars)
        if _on_host(var) or is_host(given.get(number))
    ]
    results = [
        _entry_value("result", number, getattr(info, "result_paths", None), number, var)
        for number, var in enumerate(body.outvars)
        if _on_host(var) or is_host(returned.get(number))
    ]
    return arguments, results


def _entry_value(
    kind: Literal["argument", "result"], number: int, names: Sequence[str] | None, place: int, var: Variable
) -> EntryValue:
    name = names[place] if names is not None and place < len(names) else ""
    return EntryValue(kind, number, str(name or ""), *_type(var))


def _type(var: Variable) -> tuple[str, tuple[int, ...]]:
    aval = var.aval
    try:
        return _hlo_dtype(str(aval.dtype)), tuple(int(size) for size in aval.shape)
    except (AttributeError, TypeError):  # tokens, references; symbolic shapes
        return "", ()


def _hlo_dtype(dtype: str) -> str:
    from hloinspect.offload.names import hlo_type_name

    return hlo_type_name(dtype)


def _on_host(var: Variable) -> bool | None:
    """Return True for a value that is in host memory by its type, None for all others: what follows from an argument
    that a sharding of ``jit`` puts there has the type of a value on the device."""
    return True if getattr(getattr(var.aval, "memory_space", None), "name", "") == "Host" else None


class _Walker:
    """Walks a jaxpr into ``graph``. ``names`` are the checkpoint names that values bear, with where they are given,
    ``computes`` the lines that request computation on the host."""

    def __init__(self) -> None:
        self.graph = Flow()
        self.names: dict[str, Place | None] = {}
        self.computes: list[Place | None] = []
        self._seen = 0

    def run(self, body: Jaxpr, kept: Mapping[int, int], on_host: Collection[int]) -> None:
        given = []
        for number, var in enumerate(body.invars):
            place = kept.get(number, -1)
            given.append(self.graph.add(Node(flow.ARGUMENT, [], *_type(var), place in on_host, number=place)))
        self.graph.results = self._body(body, given, _Where())

    def _body(self, body: Jaxpr, given: Sequence[int], where: _Where) -> list[int]:
        """Walk a jaxpr with its arguments; the nodes of its results."""
        values = dict(zip(body.invars, given, strict=True))
        for var in body.constvars:
            values[var] = self.graph.add(Node(flow.CONSTANT, [], *_type(var), _on_host(var)))
        for equation in body.eqns:
            self._seen += 1
            if self._seen > MOST_EQUATIONS:
                raise TooLargeError(f"the step runs more than {MOST_EQUATIONS:,} equations")
            inputs = [self._value(values, var) for var in equation.invars]
            made = self._equation(equation, inputs, where)
            values.update(zip(equation.outvars, made, strict=True))
            if equation.effects:
                self.graph.effects.extend((*inputs, *made))
        return [self._value(values, var) for var in body.outvars]

    def _value(self, values: Mapping[Variable, int], var: Variable) -> int:
        if hasattr(var, "val"):  # a Literal
            return self.graph.add(Node(flow.CONSTANT, [], *_type(var), False))
        return values[var]

    def _equation(self, equation: Equation, inputs: list[int], where: _Where) -> list[int]:
        primitive = equation.primitive.name
        if primitive == "device_put":
            return self._puts(equation, inputs, where)
        if primitive == "optimization_barrier":
            return [
                self._node(flow.SAME, [given], var, None, barrier=True)
                for given, var in zip(inputs, equation.outvars, strict=True)
            ]
        inner = list(inner_jaxprs(equation))
        if inner:
            return self._call(equation, inner, inputs, where)
        if primitive == "name":
            return [self._named(equation, inputs[0])]
        if primitive in _SAME:
            return [self._node(flow.SAME, inputs[:1], equation.outvars[0], equation)]
        if primitive in _PARTS:
            return [self._node(flow.PART, inputs[: _UPDATED.get(primitive, 1)], equation.outvars[0], equation)]
        if _computes_on_host(equation) and not where.on_host:
            self._note_compute(equation)
        return [self._node(flow.OPERATION, inputs, var, equation) for var in equation.outvars]

    def _node(
        self, kind: flow.NodeKind, inputs: list[int], var: Variable, equation: Equation, barrier: bool = False
    ) -> int:
        place = _place(equation) if equation is not None else None
        return self.graph.add(Node(kind, inputs, *_type(var), _on_host(var), place, barrier=barrier))

    def _named(self, equation: Equation, given: int) -> int:
        name, place = str(equation.params["name"]), _place(equation)
        self.names.setdefault(name, place)
        node = Node(flow.SAME, [given], *_type(equation.outvars[0]), _on_host(equation.outvars[0]), place, name)
        return self.graph.add(node)

    def _puts(self, equation: Equation, inputs: list[int], where: _Where) -> list[int]:
        made = []
        wanted = equation.params.get("devices") or (None,) * len(inputs)
        copies = equation.params.get("copy_semantics") or (None,) * len(inputs)
        for given, var, to, copy in zip(inputs, equation.outvars, wanted, copies, strict=False):
            kind = _kind_of(to).lower()
            to_host = "host" in kind
            if not to_host and kind != "device":  # a device, or a sharding that names no memory
                made.append(self._node(flow.SAME, [given], var, equation))
                continue
            by: PlacementBy = flow.POLICY if _is_policys(to, copy) else flow.DEVICE_PUT
            put = Put(to_host, by, where.runs, where.conditional, where.counted)
            place = _place(equation) if by == flow.DEVICE_PUT else None
            made.append(self.graph.add(Node(flow.PUT, [given], *_type(var), to_host, place, put=put)))
        return made

    # ---- what runs other jaxprs

    def _call(self, equation: Equation, inner: list[Jaxpr], inputs: list[int], where: _Where) -> list[int]:
        primitive, body = equation.primitive.name, inner[0]
        if primitive == "scan":
            return self._scan(equation, body, inputs, where)
        if primitive == "while":
            return self._while(equation, inputs, where)
        if primitive == "cond":
            return self._branches(equation, inner, inputs, where)
        if len(inner) == 1 and len(body.invars) == len(inputs) and len(body.outvars) == len(equation.outvars):
            if primitive == "compute_on" or _computes_on_host(equation):
                if not where.on_host:
                    self._note_compute(equation)
                where = replace(where, on_host=True)
            if _prevents_cse(equation):
                inputs = [self._barrier(given, var) for given, var in zip(inputs, body.invars, strict=True)]
            return self._body(body, inputs, where)
        return self._opaque(equation, inner, inputs, where)

    def _barrier(self, given: int, var: Variable) -> int:
        return self._node(flow.SAME, [given], var, None, barrier=True)

    def _scan(self, equation: Equation, body: Jaxpr, inputs: list[int], where: _Where) -> list[int]:
        carried = len(body.outvars) - _stacked(equation.outvars, body.outvars)
        last = len(inputs) - _stacked(equation.invars, body.invars)
        first = last - carried
        merges = self._merges(inputs[first:last], body.invars[first:last])
        parts = [
            self._node(flow.PART, [given], var, None)
            for given, var in zip(inputs[last:], body.invars[last:], strict=True)
        ]
        inside = replace(where, runs=where.runs * int(equation.params["length"]))
        made = self._body(body, [*inputs[:first], *merges, *parts], inside)
        self._carry(merges, made[:carried])
        stacks = [
            self._node(flow.PART, [given], var, None)
            for given, var in zip(made[carried:], equation.outvars[carried:], strict=True)
        ]
        return [*merges, *stacks]

    def _merges(self, inputs: Sequence[int], variables: Sequence[Variable]) -> list[int]:
        return [self._node(flow.MERGE, [given], var, None) for given, var in zip(inputs, variables, strict=True)]

    def _carry(self, merges: Sequence[int], made: Sequence[int]) -> None:
        for merge, left in zip(merges, made, strict=True):
            self.graph.nodes[merge].inputs.append(left)

    def _while(self, equation: Equation, inputs: list[int], where: _Where) -> list[int]:
        params = equation.params
        test, body = (getattr(params[key], "jaxpr", params[key]) for key in ("cond_jaxpr", "body_jaxpr"))
        tested, used = params["cond_nconsts"], params["body_nconsts"]
        start = tested + used
        merges = self._merges(inputs[start:], body.invars[used:])
        inside = replace(where, counted=False)
        decided = self._body(test, [*inputs[:tested], *merges], inside)
        self._carry(merges, self._body(body, [*inputs[tested:start], *merges], inside))
        # the number of its iterations decides every result
        return [
            self._node(flow.MERGE, [*decided, merge], var, None)
            for merge, var in zip(merges, equation.outvars, strict=True)
        ]

    def _branches(self, equation: Equation, inner: list[Jaxpr], inputs: list[int], where: _Where) -> list[int]:
        inside = replace(where, conditional=True)
        made = [self._body(branch, inputs[1:], inside) for branch in inner]
        return [
            self._node(flow.MERGE, [inputs[0], *(results[place] for results in made)], var, None)
            for place, var in enumerate(equation.outvars)
        ]

    def _opaque(self, equation: Equation, inner: list[Jaxpr], inputs: list[int], where: _Where) -> list[int]:
        """Add what runs other jaxprs in an unknown way: each result may come from each argument."""
        everything = [*inputs]
        for body in inner:
            given = [self._node(flow.OPERATION, inputs, var, equation) for var in body.invars]
            everything += self._body(body, given, replace(where, counted=False))
        return [self._node(flow.OPERATION, everything, var, equation) for var in equation.outvars]

    def _note_compute(self, equation: Equation) -> None:
        self.computes.append(_place(equation))


def _kind_of(place: Placing) -> str:
    """Return the memory kind that a ``device_put`` requests: of a sharding, or a ``jax.memory.Space``; "" of a
    device."""
    kind = getattr(place, "memory_kind", None)
    if kind is None and type(place).__name__ in ("MemorySpace", "Space"):
        kind = getattr(place, "name", None)
    return str(kind or "")


def _is_policys(place: Placing, copy: object) -> bool:
    """Return whether a policy of ``jax.checkpoint`` made a placement: those name a memory space alone and always copy
    (jax/_src/interpreters/partial_eval.py, where residuals are offloaded)."""
    by_space = not hasattr(place, "device_set")
    return by_space and getattr(copy, "name", "ALWAYS_COPY") == "ALWAYS_COPY"


def _stacked(entry_value: Sequence[Variable], inner: Sequence[Variable]) -> int:
    """Return how many of a scan's operands (or results) are cut into slices (or stacked): they have a dimension more
    outside and stand last. Parameters say which of the others are carried: they changed their names in jax 0.12."""
    return sum(len(_type(one)[1]) > len(_type(other)[1]) for one, other in zip(entry_value, inner, strict=True))


def _prevents_cse(equation: Equation) -> bool:
    wanted = equation.params.get("prevent_cse")
    return any(wanted) if isinstance(wanted, tuple | list) else bool(wanted)


def _computes_on_host(equation: Equation) -> bool:
    kind = equation.params.get("compute_type") or getattr(getattr(equation, "ctx", None), "compute_type", None)
    return isinstance(kind, str) and _OF_THE_HOST in kind


def _place(equation: Equation) -> Place | None:
    frame = user_frame(equation)
    if frame is None:
        return None
    return Place(frame.file_name, int(frame.start_line), int(frame.start_column), frame.function_name)


def call_site() -> Place | None:
    """Return the line of the user's code that is running, while one of JAX's functions is replaced by ours."""
    ours = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep  # hloinspect/compile
    for found in _frames(sys._getframe(1)):
        file = found.f_code.co_filename
        if not is_library_frame(Frame(file, 1)) and not file.startswith(ours):
            return Place(file, found.f_lineno, 0, getattr(found.f_code, "co_qualname", found.f_code.co_name))
    return None


def _frames(frame: FrameType | None) -> Iterator[FrameType]:
    while frame is not None:
        yield frame
        frame = frame.f_back
