"""Say where the results of a program are, for programs in which nothing is left to decide (child process only).

XLA decides the shardings of results that the program does not place, so in general a program must be compiled to know
them (compile/child/eager.py). Two kinds of programs need no compiler, and most eager operations are of these kinds:

- operations element by element on arrays of one shape and one sharding: the results have that sharding;
- programs whose arguments are all replicated, or that have none: nothing is there to be propagated, the results are
  replicated too.

Compile-only GPU executables of jax 0.9 do not give the shardings of their results: there these rules are all there is.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import jax
import numpy as np

from hloinspect.compile.child.jax_types import ArrayLike, Aval, Equation, Jaxpr, Mesh, Params, Sharding
from hloinspect.compile.child.private import private

_ELEMENTWISE = """
    abs acos acosh add and asin asinh atan atan2 atanh cbrt ceil clamp convert_element_type copy copy_p cos cosh
    div eq erf erf_inv erfc exp exp2 expm1 floor ge gt imag integer_pow is_finite le log log1p logistic lt max min
    mul ne neg nextafter not or pow real reduce_precision rem round rsqrt select_n sign sin sinh sqrt square sub
    tan tanh xor
"""
ELEMENTWISE = frozenset(_ELEMENTWISE.split())
"""Primitives of JAX whose results have the shape of their operands and whose elements depend on one place each."""

_PLACING = frozenset({"custom_partitioning", "mesh_cast", "reshard", "shard_map", "sharding_constraint"})
"""Primitives that give their results a place."""

_CALLS = frozenset({"jit", "pjit", "closed_call", "custom_jvp_call", "custom_vjp_call"})


def places_of_results(
    args: Sequence[ArrayLike], jaxpr: Jaxpr, params: Params, inner: Sequence[Sharding]
) -> list[Sharding] | None:
    """Return the sharding of each result of a call that names none, None where a compiler must decide.

    ``inner`` are the shardings that the program names inside. Raises UnknownJaxError.
    """
    unspecified = private("sharding_impls", "UnspecifiedValue")
    if any(not isinstance(place, unspecified) for place in (*params["out_shardings"], *params["in_shardings"], *inner)):
        return None
    if any(is_typed(aval) for aval in jaxpr.out_avals) or any(map(_places, _equations(jaxpr))):
        return None
    sharded = [arg for arg in args if getattr(arg, "_committed", False)]
    places = {arg.sharding for arg in sharded}
    if (
        len(places) == 1
        and all(getattr(arg, "_committed", False) or not np.shape(arg) for arg in args)
        and _is_elementwise(jaxpr, {arg.shape for arg in sharded})
    ):
        return _at(next(iter(places)), jaxpr)
    if all(place.is_fully_replicated for place in places):
        return _at(_replicated(places, params.get("ctx_mesh")), jaxpr)
    return None


def _replicated(places: set[Sharding], mesh: Mesh) -> Sharding:
    """Return the sharding that is replicated over the devices of these ones, or of the mesh that is set. None where
    those do not agree."""
    meshes = {getattr(place, "mesh", None) for place in places} or {mesh}
    if meshes == {None}:
        return next(iter(places)) if len(places) == 1 else None
    found = next(iter(meshes)) if len(meshes) == 1 else None
    return None if found is None or found.empty else jax.sharding.NamedSharding(found, jax.sharding.PartitionSpec())


def _at(sharding: Sharding, jaxpr: Jaxpr) -> list[Sharding] | None:
    """Return the same place for all results, in the memory that JAX gives each (pxla.lower_sharding_computation)."""
    if not isinstance(sharding, (jax.sharding.NamedSharding, jax.sharding.SingleDeviceSharding)):
        return None
    if isinstance(sharding, jax.sharding.NamedSharding) and _is_explicit(sharding.mesh):
        return None  # the avals say it then
    kind = private("core", "mem_space_to_kind")
    return [sharding.with_memory_kind(kind(aval.memory_space)) for aval in jaxpr.out_avals]


def is_typed(aval: Aval) -> bool:
    """Return whether the type of a result says how it is sharded (explicit axes)."""
    mesh = getattr(getattr(aval, "sharding", None), "mesh", None)
    return mesh is not None and not mesh.empty and not mesh._are_all_axes_auto_or_manual


def _is_explicit(mesh: Mesh) -> bool:
    """Return whether a mesh is empty or abstract, or has axes that JAX's types name."""
    if mesh.empty or not isinstance(mesh, jax.sharding.Mesh):
        return True
    return any(kind is not jax.sharding.AxisType.Auto for kind in mesh.axis_types)


def _is_elementwise(jaxpr: Jaxpr, shapes: set[tuple[int, ...]]) -> bool:
    """Return whether a program only works element by element on arrays of one shape, and on scalars."""
    allowed = {*shapes, ()}
    return (
        len(shapes - {()}) == 1
        and all(set(aval.shape) == set() or aval.shape in shapes for aval in jaxpr.in_avals)
        and all(aval.shape in shapes - {()} for aval in jaxpr.out_avals)
        and all(
            (equation.primitive.name in ELEMENTWISE or _only_changes_memory(equation))
            and all(variable.aval.shape in allowed for variable in equation.outvars)
            for equation in _equations(jaxpr)
            if equation.primitive.name not in _CALLS  # what they call is among the equations
        )
    )


def _only_changes_memory(equation: Equation) -> bool:
    spaces = (type(None), private("core", "MemorySpace"))
    return equation.primitive.name == "device_put" and all(isinstance(d, spaces) for d in equation.params["devices"])


def _places(equation: Equation) -> bool:
    """Return whether an equation gives a value a place: by a sharding, also of an abstract mesh, or by itself."""
    if equation.primitive.name in _PLACING:
        return True
    values = (value if isinstance(value, (tuple, list)) else (value,) for value in equation.params.values())
    return any(isinstance(part, jax.sharding.Sharding) for value in values for part in value)


def _equations(jaxpr: Jaxpr) -> Iterator[Equation]:
    """Yield all equations of a program and of the programs inside of it."""
    body: Jaxpr = getattr(jaxpr, "jaxpr", jaxpr)
    for equation in body.eqns:
        yield equation
        for inner in private("core", "jaxprs_in_params")(equation.params):
            yield from _equations(inner)
