"""Make JAX take a compile-only topology for the machine it runs on (child process only; nothing is ever undone).

JAX can compile for devices that are not there, but a program must be written for that: build its mesh from a topology,
never run anything. Ordinary programs call ``jax.devices()``, initialize parameters, put them on devices. So the pieces
of JAX that such programs reach are replaced here: the target's devices are reported, what has nothing to do with them
runs on the CPU, and whatever would land on the target becomes a ``TargetArray`` (eager.py says where and how). Held to
jax 0.9 .. 0.12. Private names of JAX are reached through private.py."""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from hloinspect.compile.child import eager, memory_kinds
from hloinspect.compile.child.jax_types import (
    ArrayLike,
    Aval,
    Class,
    Device,
    DType,
    Lowered,
    Mesh,
    Module,
    Placing,
    Shape,
    Sharding,
    Traced,
    Tree,
)
from hloinspect.compile.child.private import UnknownJaxError, module, on_target, private, replace_everywhere
from hloinspect.compile.child.target_array import NoValueError, TargetArray
from hloinspect.compile.flags import Option
from hloinspect.inputs.manifest import NOTE_UNKNOWN_SHARDINGS


def become_target(
    devices: Sequence[Device],
    platform: str,
    note: Callable[[str], None] = lambda text: None,
    options: Mapping[str, Option] | None = None,
    say: Callable[[str], None] = lambda text: None,
) -> None:
    """Make ``devices`` (of one topology; "gpu" or "tpu") what this process' JAX reports and lowers for.

    ``options`` are the compiler options that a small program of the target is compiled with (compile/child/eager.py);
    ``note`` is called with what the manifest should say, ``say`` with what takes long. Call it once, before the
    user's module is imported: a module that has done ``from jax import devices`` keeps the old function.
    """
    if platform == "gpu":
        memory_kinds.remember_memory_kinds(on_target)
        if not memory_kinds.keeps_memory_kinds(devices[0]):
            raise UnknownJaxError(f"jax {jax.__version__} on this Python drops the memory kinds of shardings")
    _report_devices(list(devices), "tpu" if platform == "tpu" else "cuda")
    _run_eagerly_on_cpu(devices[0], note)
    _accept_abstract_arguments()
    _make_device_put_abstract()
    eager.answer_calls(eager.Compiling(tuple(devices), dict(options or {}), note, say))
    _make_assembled_arrays_abstract()
    _answer_for_devices(devices[0])
    _join_no_cluster()
    _agree_with_nobody()
    _clear_caches()


# --- which devices there are ----------------------------------------------------------------------


def _report_devices(target_devices: list[Device], platform: str) -> None:
    """Replace ``jax.devices()``, ``jax.device_count()``, ``jax.default_backend()`` and what builds on them."""
    xla_bridge = module("xla_bridge")
    client = target_devices[0].client
    backends = xla_bridge.backends()  # starts the CPU backend; a program may use jax.devices("cpu") too
    with contextlib.suppress(TypeError, AttributeError):  # jax.export reads it of every client
        type(client).serialize_with_sdy = True
    backends[platform] = client  # jax.devices("gpu") and jax.devices("tpu") look here
    private("xla_bridge", "_default_backend")  # so that setting it means something
    xla_bridge._default_backend = client
    all_devices = xla_bridge.devices

    def devices(backend: object = None) -> list[Device]:
        # A TPU topology may have more chips than the user requested: only the first ones exist then.
        return list(target_devices) if xla_bridge.get_backend(backend) is client else all_devices(backend)

    def device_count(backend: object = None) -> int:
        return len(devices(backend))

    def local_device_count(backend: object = None) -> int:
        # The compile-only client says 0.
        return len(xla_bridge.local_devices(backend=backend))

    for new in (devices, device_count, local_device_count):
        old = getattr(xla_bridge, new.__name__)
        replace_everywhere(old, functools.wraps(old)(new))


def _run_eagerly_on_cpu(first_target_device: Device, note: Callable[[str], None]) -> None:
    """Let eager operations (initialization, keys) run on the CPU, and lower for the target what has no sharding."""
    jax.config.update("jax_default_device", module("xla_bridge").backends()["cpu"].local_devices()[0])
    traced = module("stages").Traced
    lower = traced.lower

    @functools.wraps(lower)
    def lower_on_target(self: Traced, *args: object, **kwargs: object) -> Lowered:
        # A shape that the program itself gives without a sharding counts as committed; an array of the target does not.
        unknown = sum(found.sharding is None and not found.committed for found in self._meta_tys_flat)
        if unknown:
            name = self._params.get("name", "the step")
            note(f"{unknown} arguments of {name} {NOTE_UNKNOWN_SHARDINGS}: XLA chooses one, which may not be the run's")
        with jax.default_device(first_target_device):
            return lower(self, *args, **kwargs)

    traced.lower = lower_on_target


# --- values that would live on the target ---------------------------------------------------------


def _accept_abstract_arguments() -> None:
    """Let a jitted function be called with what an earlier one 'returned': shapes without values."""
    check_arg = private("dispatch", "check_arg")

    def check_arg_or_shape(arg: ArrayLike) -> None:
        if not isinstance(arg, eager.ABSTRACT):
            check_arg(arg)

    replace_everywhere(check_arg, check_arg_or_shape)


def _make_device_put_abstract() -> None:
    """Let an array that is put on the target be its shape with that sharding. Inside traced functions nothing
    changes."""
    put = private("dispatch", "_device_put_sharding_impl")

    @functools.wraps(put)
    def put_or_shape(x: ArrayLike, aval: Aval, device: Device, *args: object, **kwargs: object) -> ArrayLike:
        if on_target(device):
            return _shape_on(aval, device, x)
        if not isinstance(x, TargetArray):
            return put(x, aval, device, *args, **kwargs)
        if device is None:  # device_put's "leave it where it is"
            return x
        if x.known_value is None:
            raise NoValueError(
                f"the step's code moves {x!r} to {device}: nothing runs on the target, only shapes are known"
            )
        return put(x.known_value.get(), aval, device, *args, **kwargs)

    source = private("api", "_infer_src_sharding")

    @functools.wraps(source)
    def source_of(src: Placing, x: ArrayLike, x_aval: Aval) -> Placing:
        concrete = private("core", "to_concrete_value")(x)
        return concrete.sharding if src is None and isinstance(concrete, TargetArray) else source(src, x, x_aval)

    replace_everywhere(put, put_or_shape)
    replace_everywhere(source, source_of)


def _shape_on(aval: Aval, place: Placing, x: ArrayLike) -> TargetArray:
    sharding = place if isinstance(place, jax.sharding.Sharding) else jax.sharding.SingleDeviceSharding(place)
    value = x.known_value if isinstance(x, TargetArray) else None
    return TargetArray(
        aval.shape,
        aval.dtype,
        sharding=sharding,
        weak_type=aval.weak_type,
        value=value,
        memory_space=aval.memory_space if sharding is place else None,  # a device says none
    )


def _make_assembled_arrays_abstract() -> None:
    """Let global batches, which data loaders build of callbacks or of shards, be their shape and dtype."""
    from_callback, from_shards = jax.make_array_from_callback, jax.make_array_from_single_device_arrays

    @functools.wraps(from_callback)
    def make(
        shape: Shape, sharding: Sharding, data_callback: Any = None, dtype: DType = None, **kwargs: object
    ) -> ArrayLike:
        if not on_target(sharding):
            return from_callback(shape, sharding, data_callback, dtype, **kwargs)
        if dtype is None:
            dtype = np.asarray(data_callback(tuple(slice(0, 0) for _ in shape))).dtype
        return TargetArray(shape, jax.dtypes.canonicalize_dtype(dtype), sharding=sharding)

    @functools.wraps(from_shards)
    def assemble(shape: Shape, sharding: Sharding, arrays: Sequence[ArrayLike], *, dtype: DType = None) -> ArrayLike:
        if not on_target(sharding):
            return from_shards(shape, sharding, arrays, dtype=dtype)
        return TargetArray(shape, arrays[0].dtype if dtype is None else dtype, sharding=sharding)

    full = private("lax.lax", "full")

    @functools.wraps(full)
    def full_on(shape: Shape, fill_value: ArrayLike, dtype: DType = None, *, sharding: Sharding = None) -> ArrayLike:
        # JAX puts its own arrays there, and an element that is a TargetArray (under a mesh that is set) is none.
        made = full(shape, fill_value, dtype, sharding=sharding)
        if not isinstance(made, TargetArray) or not on_target(sharding):
            return made
        return TargetArray(made.shape, made.dtype, sharding=sharding)

    replace_everywhere(from_callback, make)
    replace_everywhere(from_shards, assemble)
    replace_everywhere(full, full_on)


def _answer_for_devices(device: Device) -> None:
    """Give a device what a program reads of it: its memories, which a compile-only GPU does not report, and how full
    they are, which nobody knows (JAX's CPU devices return None for that too)."""
    kinds: Class = type(device)
    stats = kinds.memory_stats
    kinds.memory_stats = lambda self: None if on_target(self) else stats(self)
    if _reports_memories(device):
        return
    memories, default = kinds.addressable_memories, kinds.default_memory

    def memory(self: Device, kind: str) -> TargetMemory:
        memories: list[TargetMemory] = self.addressable_memories()
        return next(found for found in memories if found.kind == kind)

    kinds.addressable_memories = lambda self: _memories_of(self) if on_target(self) else memories(self)
    kinds.default_memory = lambda self: _memories_of(self)[0] if on_target(self) else default(self)
    kinds.memory = memory


def _reports_memories(device: Device) -> bool:
    try:
        return bool(device.addressable_memories())
    except Exception:  # JaxRuntimeError, of a class that differs between versions
        return False


@dataclass(frozen=True, slots=True)
class TargetMemory:
    """A memory of a device that is not there; ``kind`` is JAX's memory kind."""

    kind: str
    device: Device

    @property
    def platform(self) -> str:
        return str(self.device.platform)

    def addressable_by_devices(self) -> list[Device]:
        """Return the devices that reach the memory."""
        return [self.device]


def _memories_of(device: Device) -> list[TargetMemory]:
    """Return the memories of a GPU as JAX reports them, the default one first."""
    return [TargetMemory(kind, device) for kind in memory_kinds.KINDS]


def _agree_with_nobody() -> None:
    """Replace ``jax.experimental.multihost_utils``, which passes values between the processes of a run: there is one
    here, and it has the values that all of them start from."""
    from jax.experimental import multihost_utils

    def process_allgather(in_tree: Tree, tiled: bool = False) -> Tree:
        if any(isinstance(leaf, TargetArray) and leaf.known_value is None for leaf in jax.tree.leaves(in_tree)):
            raise NoValueError("the step's code gathers values of the target (process_allgather): nothing runs there")
        join = np.concatenate if tiled else np.stack
        return jax.tree.map(lambda leaf: join([np.asarray(leaf)] * jax.process_count()), in_tree)

    _make_global_arrays_abstract(multihost_utils)
    multihost_utils.sync_global_devices = lambda name: None
    multihost_utils.assert_equal = lambda in_tree, fail_message="": None
    multihost_utils.broadcast_one_to_all = lambda in_tree, is_source=None: jax.tree.map(np.asarray, in_tree)
    multihost_utils.process_allgather = process_allgather


def _make_global_arrays_abstract(multihost_utils: Module) -> None:
    """Make the whole of a batch out of what a process has of it, and the other way round, by shape."""
    to_global, to_local = (
        multihost_utils.host_local_array_to_global_array_p,
        multihost_utils.global_array_to_host_local_array_p,
    )
    make_global, make_local = to_global.impl, to_local.impl

    def global_of(arr: ArrayLike, *, global_mesh: Mesh, pspec: jax.sharding.PartitionSpec) -> ArrayLike:
        if not on_target(jax.sharding.NamedSharding(global_mesh, pspec)):
            return make_global(arr, global_mesh=global_mesh, pspec=pspec)
        aval = multihost_utils._local_to_global_aval(jax.typeof(arr), global_mesh, pspec)
        return TargetArray(aval.shape, aval.dtype, sharding=jax.sharding.NamedSharding(global_mesh, pspec))

    def local_of(arr: ArrayLike, *, global_mesh: Mesh, pspec: jax.sharding.PartitionSpec) -> ArrayLike:
        if not isinstance(arr, TargetArray):
            return make_local(arr, global_mesh=global_mesh, pspec=pspec)
        aval = multihost_utils._global_to_local_aval(arr.aval, global_mesh, pspec)
        return TargetArray(aval.shape, aval.dtype, sharding=jax.sharding.NamedSharding(global_mesh.local_mesh, pspec))

    to_global.def_impl(global_of)
    to_local.def_impl(local_of)


def _join_no_cluster() -> None:
    """Replace ``jax.distributed.initialize()``, which waits for processes that are not there."""
    jax.distributed.initialize = lambda *args, **kwargs: None
    jax.distributed.is_initialized = lambda: True
    jax.distributed.shutdown = lambda: None


# --- caches --------------------------------------------------------------------------------------


def _clear_caches() -> None:
    """Clear the caches that were filled while jax was imported: they hold the CPU as backend, and old hashes."""
    jax.clear_caches()
    for function in _cached_functions():
        function.cache_clear()


def _cached_functions() -> Iterator[Class]:
    for found in list(sys.modules.values()):
        if getattr(found, "__name__", "").partition(".")[0] == "jax":
            for value in list(vars(found).values()):
                if not isinstance(value, type) and callable(getattr(value, "cache_clear", None)):
                    yield value
