"""Answers for programs that are called, not lowered, on devices that are not there (child process only).

An eager operation, a jitted initializer, a ``Compiled`` that is called: JAX lowers and compiles each as always, for the
target. Only its execution is replaced: the results are ``TargetArray``s, with the shardings and memory kinds that JAX
reads off the compiled program, and committed where JAX says so. A small program whose arguments all have values, under
a mesh of the target or its default device, runs on the CPU too, so that its results have values.
"""

from __future__ import annotations

import contextlib
import functools
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental.layout import Layout

from hloinspect.compile.child.jax_types import (
    ArrayLike,
    Aval,
    Call,
    Class,
    Device,
    Jaxpr,
    Mesh,
    Params,
    Placing,
    Sharding,
)
from hloinspect.compile.child.placed import is_typed, places_of_results
from hloinspect.compile.child.private import module, on_target, private, replace_everywhere
from hloinspect.compile.child.target_array import KnownValue, TargetArray
from hloinspect.compile.flags import Option

VALUE_BYTES = 16 << 20
"""A program whose values are larger than this, all its intermediate ones together, is not run on the CPU."""

MOST_PROGRAMS = 32
"""A value for which more programs than this must run, one after another, is not known: what they need is kept."""

LONG_EQUATIONS = 50
"""Compiling a program of more equations than this may take a while."""

ABSTRACT = (jax.ShapeDtypeStruct, TargetArray)

Execution = Callable[..., list[ArrayLike]]
"""A compiled program that can be called."""

CallResult = tuple[list[ArrayLike], None, None, list[object]]
"""What JAX's call of a jitted function returns: results, executable, profiler, constants."""

_QUICK = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}
"""Flags for programs of which only the shardings of the results are read. Code generation does not change them."""


@dataclass(frozen=True, slots=True)
class Compiling:
    """How eager programs are compiled: for the target's ``devices``, with compiler ``options``. ``note`` is called with
    what the manifest should say, ``say`` with what takes long."""

    devices: tuple[Device, ...]
    options: Mapping[str, Option]
    note: Callable[[str], None]
    say: Callable[[str], None]


def answer_calls(compiling: Compiling) -> None:
    """Let a call of a program that is for the target return arrays without values, from here on."""
    _answer_executions()
    _answer_jitted_calls(compiling)


# --- a compiled program ---------------------------------------------------------------------------


def _answer_executions() -> None:
    """Give a compiled program of the target results instead of an execution."""
    executable = private("interpreters.pxla", "UnloadedMeshExecutable")
    build: Callable[..., Execution] = executable.build_unsafe_call

    @functools.wraps(build)
    def build_call(self: Class) -> Execution:
        if not on_target(self.device_list[0]):
            return build(self)
        places = zip(self.output_avals, self.output_shardings, strict=True)
        results = [_array(aval, sharding, self.committed) for aval, sharding in places]
        return lambda *args: list(results)

    executable.build_unsafe_call = build_call


def _array(aval: Aval, sharding: Sharding, committed: bool = True, layout: Placing = None) -> ArrayLike:
    """Return the array that a program gives for one of its results. ``sharding`` may be JAX's "unspecified"."""
    if not hasattr(aval, "dtype"):
        return private("core", "token")
    known = sharding if isinstance(sharding, jax.sharding.Sharding) else None
    if not jnp.issubdtype(aval.dtype, jax.dtypes.extended):
        return TargetArray(
            aval.shape,
            aval.dtype,
            sharding=known,
            weak_type=aval.weak_type,
            committed=committed,
            memory_space=aval.memory_space,
            layout=layout,
        )
    # A key of jax.random is an array of integers, wrapped.
    inner = private("core", "physical_aval")(aval)
    place = private("sharding_impls", "physical_sharding")(aval, known) if known else None
    base = TargetArray(inner.shape, inner.dtype, sharding=place, committed=committed)
    return jax.random.wrap_key_data(base, impl=aval.dtype._impl.name)


# --- a call ---------------------------------------------------------------------------------------


def _answer_jitted_calls(compiling: Compiling) -> None:
    call: Callable[..., CallResult] = private("pjit", "_pjit_call_impl_python")

    @functools.wraps(call)
    def call_or_shapes(*args: ArrayLike, jaxpr: Jaxpr, **params: Any) -> CallResult:
        args = tuple(map(_without_struct, args))
        if not _is_for_target(args, jaxpr, params):
            return call(*args, jaxpr=jaxpr, **params)
        return _without_executable(_results(call, args, jaxpr, params, compiling))

    replace_everywhere(call, call_or_shapes)


def _without_executable(results: Sequence[ArrayLike]) -> CallResult:
    """Return what JAX's call returns: results, executable, profiler, constants. Without an executable C++ has no fast
    path."""
    return list(results), None, None, []


def _results(
    call: Call, args: Sequence[ArrayLike], jaxpr: Jaxpr, params: Params, compiling: Compiling
) -> Sequence[ArrayLike]:
    """Return the results of a call of a program that is for the target."""
    places = params["out_shardings"] if _all_placed(params["out_shardings"]) else None
    if places is None and any(_is_unknown(arg) for arg in args):
        return [_array(aval, None) for aval in jaxpr.out_avals]
    inner = _inner_shardings(jaxpr)
    if not _agree_on_devices(args, params, inner):
        places = None  # JAX says what is wrong
    else:
        places = places or places_of_results(args, jaxpr, params, inner)
    if places is not None:
        layouts = [layout if isinstance(layout, Layout) else None for layout in params["out_layouts"]]
        placed = zip(jaxpr.out_avals, places, layouts, strict=True)
        results = [_array(aval, sharding, layout=layout) for aval, sharding, layout in placed]
    else:
        with _default_device(compiling.devices[0]):
            results = list(_compiled_results(call, args, jaxpr, params, compiling))
    values = _values(call, args, jaxpr, params)
    return results if values is None else _with_values(results, values)


def _agree_on_devices(args: Sequence[ArrayLike], params: Params, inner: Sequence[Sharding]) -> bool:
    """Return whether all that names devices names the same ones, in the same order."""
    named = [arg.sharding for arg in args if getattr(arg, "_committed", False)]
    named += [place for place in (*params["in_shardings"], *params["out_shardings"], *inner) if _all_placed([place])]
    devices = set()
    for place in named:
        with contextlib.suppress(ValueError):  # an abstract mesh
            devices.add(tuple(place._device_assignment))
    return len(devices) < 2


def _without_struct(arg: ArrayLike) -> ArrayLike:
    """Return an array for a shape, which a jitted function may be called with: it is taken to be on that sharding."""
    if not isinstance(arg, jax.ShapeDtypeStruct):
        return arg
    space = jax.typeof(arg).memory_space
    return TargetArray(arg.shape, arg.dtype, sharding=arg.sharding, weak_type=arg.weak_type, memory_space=space)


def _is_unknown(arg: ArrayLike) -> bool:
    return isinstance(arg, TargetArray) and arg.sharding is None


def _all_placed(shardings: Sequence[Sharding]) -> bool:
    return all(isinstance(sharding, jax.sharding.Sharding) for sharding in shardings)


def _is_for_target(args: Sequence[ArrayLike], jaxpr: Jaxpr, params: Params) -> bool:
    """Return whether JAX would run a call on the target: because of an argument, a sharding outside or inside of it,
    the mesh or default device that is set, or a memory space (the CPU's are not the target's)."""
    if any(isinstance(arg, TargetArray) for arg in args):
        return True
    places = [*params["in_shardings"], *params["out_shardings"], *_inner_shardings(jaxpr)]
    if any(on_target(place) for place in places) or _has_ambient_target(params):
        return True
    moves = private("interpreters.pxla", "jaxpr_transfer_mem_kinds")(_open(jaxpr))
    return bool(moves) and not any(getattr(arg, "_committed", False) for arg in args)


def _inner_shardings(jaxpr: Jaxpr) -> list[Sharding]:
    return [sharding for sharding, _ in private("dispatch", "get_intermediate_shardings")(_open(jaxpr))]


def _open(jaxpr: Jaxpr) -> Jaxpr:
    """Return the jaxpr inside of a closed one: versions of JAX differ in which they hand around."""
    return getattr(jaxpr, "jaxpr", jaxpr)


def _has_ambient_target(params: Params) -> bool:
    mesh, default = params.get("ctx_mesh"), private("config", "default_device").value
    return any(on_target(device) for device in (*_first_device(mesh), default))


def _first_device(mesh: Mesh) -> list[Device]:
    """Return one device of a mesh, none where it is empty or abstract."""
    try:
        return list(mesh.devices.flat[:1])
    except (AttributeError, ValueError, RuntimeError):
        return []


@contextlib.contextmanager
def _default_device(device: Device) -> Iterator[None]:
    """Set JAX's default device, unless the program has set one of the target's itself."""
    if on_target(private("config", "default_device").value):
        yield
    else:
        with jax.default_device(device):
            yield


def _compiled_results(
    call: Call, args: Sequence[ArrayLike], jaxpr: Jaxpr, params: Params, compiling: Compiling
) -> Sequence[ArrayLike]:
    """Return the results of a call that JAX compiles for the target. Where XLA refuses the program, their shardings are
    not known, which is noted."""
    if len(_open(jaxpr).eqns) > LONG_EQUATIONS:
        compiling.say(f"compiling {params.get('name', 'a program')}, which the step's code calls")
    options = {**_QUICK, **compiling.options}
    given = params["compiler_options_kvs"]
    while True:
        own = {"compiler_options_kvs": (*options.items(), *given)}
        try:
            results: Sequence[ArrayLike] = call(*args, jaxpr=jaxpr, **{**params, **own})[0]
        except jax.errors.JaxRuntimeError as error:
            refused = re.search(r"No such compile option: '(\w+)'", str(error))
            if refused and refused[1] in options:
                del options[refused[1]]
                continue
            why = str(error).strip().partition("\n")[0][:200]
            name = params.get("name", "a program")
            compiling.note(f"the shardings of the results of {name} are not known: XLA does not compile it: {why}")
            return [_array(aval, None) for aval in jaxpr.out_avals]
        return results


# --- values ---------------------------------------------------------------------------------------


def _values(call: Call, args: Sequence[ArrayLike], jaxpr: Jaxpr, params: Params) -> KnownValue | None:
    """Return what makes the results of a call on the CPU, as a sequence. None where not all arguments have values,
    where the program names devices or memories inside, or where it or its past is not small."""
    known = [arg.known_value if isinstance(arg, TargetArray) else arg for arg in args]
    if any(value is None for value in known) or not all(map(_is_plain, (*jaxpr.in_avals, *jaxpr.out_avals))):
        return None
    inner = any(on_target(place) for place in _inner_shardings(jaxpr))
    if inner or private("interpreters.pxla", "jaxpr_transfer_mem_kinds")(_open(jaxpr)):
        return None
    depth = 1 + max((value.depth for value in known if isinstance(value, KnownValue)), default=0)
    if depth > MOST_PROGRAMS or _bytes_of(jaxpr.in_avals) + _bytes_within(_open(jaxpr)) > VALUE_BYTES:
        return None

    def run() -> Sequence[ArrayLike]:
        unspecified = private("sharding_impls", "UNSPECIFIED")
        anywhere = {name: (unspecified,) * len(params[name]) for name in ("in_shardings", "out_shardings")}
        values = [value.get() if isinstance(value, KnownValue) else value for value in known]
        cpu = module("xla_bridge").backends()["cpu"].local_devices()[0]
        with jax.default_device(cpu):
            kept = (False,) * len(params["donated_invars"])  # another program may need the value
            empty = {**params, **anywhere, "donated_invars": kept, "ctx_mesh": module("mesh").empty_concrete_mesh}
            results: Sequence[ArrayLike] = call(*values, jaxpr=jaxpr, **empty)[0]
            return results

    return KnownValue(run, depth)


def _is_plain(aval: Aval) -> bool:
    """Return whether one device of this machine can hold such a value: no key, and no type that names a mesh."""
    return hasattr(aval, "dtype") and not jnp.issubdtype(aval.dtype, jax.dtypes.extended) and not is_typed(aval)


def _bytes_within(jaxpr: Jaxpr) -> int:
    """Return the bytes of all values that a program makes, each once, however often a loop makes it."""
    own = sum(_bytes_of(variable.aval for variable in equation.outvars) for equation in jaxpr.eqns)
    return own + sum(_bytes_within(_open(inner)) for inner in module("core").subjaxprs(jaxpr))


def _bytes_of(avals: Iterable[Aval]) -> int:
    sized = [aval for aval in avals if hasattr(getattr(aval, "dtype", None), "itemsize")]
    return sum(math.prod(aval.shape) * int(aval.dtype.itemsize) for aval in sized)


def _with_values(results: Sequence[ArrayLike], values: KnownValue) -> Sequence[ArrayLike]:
    def value(index: int) -> KnownValue:
        return KnownValue(lambda: values.get()[index], values.depth)

    return [
        result.with_value(value(index)) if isinstance(result, TargetArray) else result
        for index, result in enumerate(results)
    ]
