"""Checkpoint names of offloaded values, read from the jaxpr (run in the child process, where jax is).

HLO keeps no ``checkpoint_name``. In the jaxpr an offloaded named value is a ``name`` equation whose result goes into a
``device_put`` to host memory; the frame of the value's producer is what the optimized module's transfer can be
matched by.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from typing import Any

from hloinspect.compile.child.jax_types import Equation, Jaxpr, Placing, Variable
from hloinspect.inputs.manifest import OffloadName

_HOST_KINDS = ("pinned_host", "unpinned_host", "Host")
# Equations that leave nothing in the optimized module, or nothing but a bitcast: a value's line is what they are given.
_TRANSPARENT = ("sharding_constraint", "reshard", "reshape", "squeeze", "name", "copy", "mesh_cast")
_CALLS = ("jit", "pjit", "closed_call", "core_call", "custom_jvp_call", "custom_vjp_call", "custom_vjp_call_jaxpr")


def offload_names(jaxpr: Jaxpr) -> tuple[OffloadName, ...]:
    """Return each named value that is put into host memory, without repeats."""
    bodies = list(_all_jaxprs(jaxpr))
    producers = {var: eqn for body in bodies for eqn in body.eqns for var in eqn.outvars}
    given = _given(bodies)
    found: dict[OffloadName, None] = {}
    for body in bodies:
        for put in body.eqns:
            for var in put.invars if _puts_on_host(put) else ():
                named = _producer(var, producers)
                if named is not None and named.primitive.name == "name":
                    found.setdefault(_entry(named, producers, given))
    return tuple(found)


def checkpoint_names(jaxpr: Jaxpr) -> list[str]:
    """Return every ``checkpoint_name`` that the program gives to a value, in the order of the program."""
    found = (eqn.params["name"] for body in _all_jaxprs(jaxpr) for eqn in body.eqns if eqn.primitive.name == "name")
    return list(dict.fromkeys(map(str, found)))


def _all_jaxprs(jaxpr: Jaxpr) -> Iterator[Jaxpr]:
    """Yield ``jaxpr`` and every jaxpr inside its equations (scan, remat, pjit, custom_vjp, cond ...), each once."""
    pending: list[Jaxpr] = [getattr(jaxpr, "jaxpr", jaxpr)]
    seen = set()
    while pending:
        body = pending.pop(0)
        if id(body) in seen:
            continue
        seen.add(id(body))
        yield body
        pending += [inner for eqn in body.eqns for inner in inner_jaxprs(eqn)]


def inner_jaxprs(eqn: Equation) -> Iterator[Jaxpr]:
    for param in eqn.params.values():
        for value in param if isinstance(param, tuple | list) else (param,):
            inner = getattr(value, "jaxpr", value)  # ClosedJaxpr holds a Jaxpr; newer versions pass the Jaxpr itself
            if hasattr(inner, "eqns"):
                yield inner


def _called(eqn: Equation) -> Jaxpr | None:
    """Return the one jaxpr that a plain call runs: its arguments and results are the equation's. None for all else."""
    inner = list(inner_jaxprs(eqn)) if eqn.primitive.name in _CALLS else []
    fits = len(inner) == 1 and len(inner[0].invars) == len(eqn.invars) and len(inner[0].outvars) == len(eqn.outvars)
    return inner[0] if fits else None


def _given(bodies: list[Jaxpr]) -> dict[Variable, Variable]:
    """Return the argument of a call for each of its jaxpr's parameters; nothing for one that is called from two
    places."""
    given: dict[Variable, Variable] = {}
    for body in bodies:
        for eqn in body.eqns:
            called = _called(eqn)
            for inner, entry_value in zip(called.invars, eqn.invars, strict=True) if called is not None else ():
                given[inner] = None if inner in given else entry_value
    return given


def _producer(var: Variable, producers: dict[Variable, Equation]) -> Equation | None:
    return None if hasattr(var, "val") else producers.get(var)  # a Literal has no producer


def _computed_by(
    var: Variable, producers: dict[Variable, Equation], given: dict[Variable, Variable]
) -> Equation | None:
    """Return the equation that computes a value, behind calls and what changes no number; None for an argument."""
    for _ in range(1000):  # there are no circles; this is for what should not be
        eqn = _producer(var, producers)
        if eqn is None:
            var = None if hasattr(var, "val") else given.get(var)
            if var is None:
                return None
            continue
        called = _called(eqn)
        if called is not None:
            var = called.outvars[eqn.outvars.index(var)]
        elif eqn.primitive.name in _TRANSPARENT:
            var = eqn.invars[0]
        else:
            return eqn
    return None


def _puts_on_host(eqn: Equation) -> bool:
    if eqn.primitive.name != "device_put":
        return False
    return any(is_host(place) for place in eqn.params.get("devices", ()))


def is_host(place: Placing) -> bool:
    kind = getattr(place, "memory_kind", None) or getattr(place, "name", None)  # a sharding, or jax.memory.Space
    return kind in _HOST_KINDS


def _entry(named: Equation, producers: dict[Variable, Equation], given: dict[Variable, Variable]) -> OffloadName:
    source = named.invars[0]
    producer = _computed_by(source, producers, given)
    frame = user_frame(producer) if producer is not None else None
    return OffloadName(
        name=str(named.params["name"]),
        dtype=str(source.aval.dtype),
        shape=tuple(int(size) for size in source.aval.shape),
        file=frame.file_name if frame else None,
        line=frame.start_line if frame else None,
        column=frame.start_column if frame else None,
        function=frame.function_name if frame else None,
    )


def user_frame(eqn: Equation) -> Any:
    """Return the user's innermost frame of an equation, or None. (JAX's own function once took the SourceInfo.)"""
    source_info_util = importlib.import_module("jax._src.source_info_util")
    try:
        return source_info_util.user_frame(eqn.source_info.traceback)
    except (AttributeError, TypeError):
        return source_info_util.user_frame(eqn.source_info)
