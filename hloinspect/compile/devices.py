"""Makes JAX take a compile-only topology for the machine it runs on (child process only; nothing is ever undone).

JAX can compile for devices that are not there, but a program must ask for that: build its mesh from a topology, never
run anything. Ordinary programs call ``jax.devices()``, initialize parameters, put them on devices. So the pieces of
JAX that such programs reach are replaced here: the target's devices are reported, eager work runs on the CPU, and
whatever would land on the target becomes a ``TargetArray``. Held to jax 0.9 .. 0.12. Private names of JAX are reached
through ``_private`` so that each is easy to find.
"""

from __future__ import annotations

import functools
import importlib
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import numpy as np

from hloinspect.compile.target_array import TargetArray


class UnknownJaxError(Exception):
    """This JAX is not laid out as the versions that hloinspect knows."""


# The device type of jax.experimental.topologies: a client of this class can compile but holds no memory.
_COMPILE_ONLY_CLIENT = "CompileOnlyPyClient"
_ABSTRACT = (jax.ShapeDtypeStruct, TargetArray)


def become_target(devices: Sequence[Any], platform: str) -> None:
    """From here on ``devices`` (of one topology; "gpu" or "tpu") are what this process' JAX reports and lowers for.

    Call it once, before the user's module is imported: a module that has done ``from jax.sharding import
    NamedSharding`` keeps the old class.
    """
    if platform == "gpu":
        for name in ("NamedSharding", "SingleDeviceSharding", "GSPMDSharding"):
            _remember_memory_kind(name)
    _report_devices(list(devices), "tpu" if platform == "tpu" else "cuda")
    _run_eagerly_on_cpu(devices[0])
    _accept_abstract_arguments()
    _make_device_put_abstract()
    _make_jitted_calls_abstract()
    _make_assembled_arrays_abstract()
    _join_no_cluster()
    _clear_caches()


def on_target(place: Any) -> bool:
    """Whether a device or sharding is of a device that is not there. False for abstract meshes and anything else."""
    if isinstance(place, jax.sharding.Sharding):
        try:
            return on_target(place._device_assignment[0])
        except ValueError:  # an AbstractMesh has no devices
            return False
    return type(getattr(place, "client", None)).__name__ == _COMPILE_ONLY_CLIENT


def _module(name: str) -> Any:
    return importlib.import_module(f"jax._src.{name}")


def _private(module: str, name: str) -> Any:
    """An attribute of ``jax._src.<module>``. Raises UnknownJaxError where JAX has lost it."""
    try:
        return getattr(_module(module), name)
    except (AttributeError, ImportError):
        raise UnknownJaxError(
            f"jax {jax.__version__} has no jax._src.{module}.{name}: hloinspect does not know this version"
        ) from None


def _replace_everywhere(old: Any, new: Any) -> None:
    """JAX's modules import each other's functions by name, so each name that holds ``old`` is set to ``new``."""
    for module in list(sys.modules.values()):
        if getattr(module, "__name__", "").partition(".")[0] == "jax":
            for name, value in list(vars(module).items()):
                if value is old:
                    setattr(module, name, new)


# --- which devices there are ----------------------------------------------------------------------


def _report_devices(target_devices: list[Any], platform: str) -> None:
    """``jax.devices()``, ``jax.device_count()``, ``jax.default_backend()`` and what builds on them."""
    xla_bridge = _module("xla_bridge")
    client = target_devices[0].client
    backends = xla_bridge.backends()  # starts the CPU backend; a program may go on to ask for jax.devices("cpu")
    backends[platform] = client  # jax.devices("gpu") and jax.devices("tpu") look here
    _private("xla_bridge", "_default_backend")  # so that setting it means something
    xla_bridge._default_backend = client
    all_devices = xla_bridge.devices

    def devices(backend: Any = None) -> list[Any]:
        # A TPU topology may have more chips than the user asked for: only the first ones exist then.
        return list(target_devices) if xla_bridge.get_backend(backend) is client else all_devices(backend)

    def device_count(backend: Any = None) -> int:
        return len(devices(backend))

    def local_device_count(backend: Any = None) -> int:
        # The compile-only client says 0.
        return len(xla_bridge.local_devices(backend=backend))

    for new in (devices, device_count, local_device_count):
        old = getattr(xla_bridge, new.__name__)
        _replace_everywhere(old, functools.wraps(old)(new))


def _run_eagerly_on_cpu(first_target_device: Any) -> None:
    """Eager operations (initialization, keys) run on the CPU; what is lowered without a sharding is the target's."""
    jax.config.update("jax_default_device", _module("xla_bridge").backends()["cpu"].local_devices()[0])
    traced = _module("stages").Traced
    lower = traced.lower

    @functools.wraps(lower)
    def lower_on_target(self: Any, *args: Any, **kwargs: Any) -> Any:
        with jax.default_device(first_target_device):
            return lower(self, *args, **kwargs)

    traced.lower = lower_on_target


# --- values that would live on the target ---------------------------------------------------------


def _accept_abstract_arguments() -> None:
    """A jitted function may be called with what an earlier one 'returned': shapes without values."""
    check_arg = _private("dispatch", "check_arg")

    def check_arg_or_shape(arg: Any) -> None:
        if not isinstance(arg, _ABSTRACT):
            check_arg(arg)

    _replace_everywhere(check_arg, check_arg_or_shape)


def _make_device_put_abstract() -> None:
    """``jax.device_put`` onto the target gives shapes with their sharding; inside traced functions nothing changes."""
    device_put = jax.device_put
    trace_state_clean = _private("core", "trace_state_clean")

    @functools.wraps(device_put)
    def put(x: Any, device: Any = None, *args: Any, **kwargs: Any) -> Any:
        if not (trace_state_clean() and any(on_target(place) for place in jax.tree.leaves(device))):
            return device_put(x, device, *args, **kwargs)
        return jax.tree.map(_shape_on, x, jax.tree.broadcast(device, x, is_leaf=lambda place: place is None))

    _replace_everywhere(device_put, put)


def _shape_on(value: Any, place: Any) -> Any:
    if place is None:  # device_put's "leave it where it is"
        return value
    shape = jax.eval_shape(lambda v: v, value)
    sharding = place if isinstance(place, jax.sharding.Sharding) else jax.sharding.SingleDeviceSharding(place)
    return TargetArray(shape.shape, shape.dtype, sharding=sharding)


def _make_jitted_calls_abstract() -> None:
    """Calling (not lowering) a jitted function whose arguments or results live on the target gives shapes."""
    call = _private("pjit", "_pjit_call_impl_python")
    default_device = _private("config", "default_device")

    def call_or_shapes(*args: Any, jaxpr: Any, in_shardings: Any, out_shardings: Any, **kwargs: Any) -> Any:
        places = (*in_shardings, *out_shardings, *(getattr(arg, "sharding", None) for arg in args))
        # jax.set_mesh and jax.default_device, which eager operations obey
        places += (*_devices_of(kwargs.get("ctx_mesh")), default_device.value)
        if any(isinstance(arg, _ABSTRACT) for arg in args) or any(on_target(place) for place in places):
            results = [_shape_of(aval, s) for aval, s in zip(jaxpr.out_avals, out_shardings, strict=True)]
            return (
                results,
                None,
                None,
                [],
            )  # (results, executable, profiler, constants); no executable: no C++ fast path
        return call(*args, jaxpr=jaxpr, in_shardings=in_shardings, out_shardings=out_shardings, **kwargs)

    _replace_everywhere(call, call_or_shapes)


def _shape_of(aval: Any, sharding: Any) -> TargetArray:
    known = sharding if isinstance(sharding, jax.sharding.Sharding) else None  # else it is UNSPECIFIED
    return TargetArray(aval.shape, aval.dtype, sharding=known)


def _devices_of(mesh: Any) -> list[Any]:
    """One device of a mesh, none where it is empty or abstract."""
    try:
        return list(mesh.devices.flat[:1])
    except (AttributeError, ValueError, RuntimeError):
        return []


def _make_assembled_arrays_abstract() -> None:
    """Data loaders build global batches of callbacks or of shards: only the shape and the dtype matter."""
    from_callback, from_shards = jax.make_array_from_callback, jax.make_array_from_single_device_arrays

    @functools.wraps(from_callback)
    def make(shape: Any, sharding: Any, data_callback: Any = None, dtype: Any = None, **kwargs: Any) -> Any:
        if not on_target(sharding):
            return from_callback(shape, sharding, data_callback, dtype, **kwargs)
        if dtype is None:
            dtype = np.asarray(data_callback(tuple(slice(0, 0) for _ in shape))).dtype
        return TargetArray(shape, dtype, sharding=sharding)

    @functools.wraps(from_shards)
    def assemble(shape: Any, sharding: Any, arrays: Any, *, dtype: Any = None) -> Any:
        if not on_target(sharding):
            return from_shards(shape, sharding, arrays, dtype=dtype)
        return TargetArray(shape, arrays[0].dtype if dtype is None else dtype, sharding=sharding)

    _replace_everywhere(from_callback, make)
    _replace_everywhere(from_shards, assemble)


def _join_no_cluster() -> None:
    """``jax.distributed.initialize()`` waits for processes that are not there; the target's are reported anyway."""
    jax.distributed.initialize = lambda *args, **kwargs: None
    jax.distributed.is_initialized = lambda: True
    jax.distributed.shutdown = lambda: None


# --- memory kinds ---------------------------------------------------------------------------------


def _remember_memory_kind(class_name: str) -> None:
    """Shardings of compile-only GPU devices lose ``memory_kind``; this puts in their place subclasses that remember it.

    jaxlib's constructor turns every kind into None on devices that report no memories (sharding.cc,
    CheckAndCanonicalizeMemoryKind), and it goes past a patched ``__init__`` of the class itself, but not of a
    subclass. Without a kind, parameters and optimizer state that the program keeps in pinned host memory would be
    lowered as device memory, and without an error.
    """
    base = getattr(_module("named_sharding" if class_name == "NamedSharding" else "sharding_impls"), class_name)
    base._asked_memory_kind = None  # of those that jaxlib makes itself
    base_init = base.__init__

    def __init__(self: Any, *args: Any, memory_kind: str | None = None, **kwargs: Any) -> None:
        base_init(self, *args, memory_kind=memory_kind, **kwargs)
        self._asked_memory_kind = memory_kind

    remembering = type(base)(class_name, (base,), {"__init__": __init__, "__module__": base.__module__})
    base.memory_kind = property(_memory_kind)
    for cls in (base, remembering):
        cls.__hash__, cls.__eq__ = _hash_with_kind(base.__hash__), _equal_with_kind(base.__eq__)
    _replace_everywhere(base, remembering)


def _memory_kind(sharding: Any) -> str | None:
    kind: str | None = sharding._memory_kind or sharding._asked_memory_kind
    return kind or ("device" if on_target(sharding) else None)


def _hash_with_kind(base_hash: Callable[[Any], int]) -> Callable[[Any], int]:
    """JAX's caches are keyed by shardings: two that differ only in the remembered kind must not be mixed up."""
    return lambda self: hash((base_hash(self), self.memory_kind))


def _equal_with_kind(base_eq: Callable[[Any, Any], bool]) -> Callable[[Any, Any], bool]:
    def __eq__(self: Any, other: Any) -> bool:
        if self is other:
            return True
        return (
            isinstance(other, jax.sharding.Sharding)
            and base_eq(self, other) is True
            and self.memory_kind == other.memory_kind
        )

    return __eq__


def _clear_caches() -> None:
    """Caches filled while jax was imported hold the CPU as backend and shardings hashed the old way."""
    jax.clear_caches()
    for function in _cached_functions():
        function.cache_clear()


def _cached_functions() -> Iterator[Any]:
    for module in list(sys.modules.values()):
        if getattr(module, "__name__", "").partition(".")[0] == "jax":
            for value in list(vars(module).values()):
                if not isinstance(value, type) and callable(getattr(value, "cache_clear", None)):
                    yield value
