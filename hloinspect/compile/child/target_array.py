"""Arrays on devices that are not there: all that an array has but its values (child process only).

A program that builds its step puts parameters on devices, adds them up, prints their sizes, hands them to a library
that checks whether they are arrays. ``TargetArray`` is a ``jax.Array`` to all of them. An operation on it gives another
one (``eager.py`` answers for jitted calls, and JAX makes one of each eager operation). Asking for a value that
nobody knows is an error that says why.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

import jax
import numpy as np
from jax.experimental.layout import Format

from hloinspect.compile.child.jax_types import ArrayLike, Aval, Device, DType, Placing, Shape, Sharding


class NoValueError(TypeError):
    """The program needs the value of an array on the target."""


class KnownValue:
    """A value that is made when it is first needed, and once. ``depth`` is how many programs must run for it."""

    __slots__ = ("_made", "_make", "depth")

    def __init__(self, make: Callable[[], ArrayLike], depth: int) -> None:
        self._make: Callable[[], ArrayLike] | None = make
        self._made: ArrayLike = None
        self.depth = depth

    def get(self) -> ArrayLike:
        """Return the value. Raises what making it raises."""
        if self._make is not None:
            self._made, self._make = self._make(), None
        return self._made


class TargetArray(jax.Array):
    """A shape and a dtype on a sharding of the target's devices.

    ``sharding`` is None where it is not known. ``committed`` says whether the program has put the array there, as JAX
    means it. ``value`` makes the same array on this machine, where a small program has made it from values
    (compile/child/eager.py); None where nobody knows the value.
    """

    __slots__ = ("_committed", "_memory_space", "_struct", "_value")

    def __init__(  # noqa: PLR0913  (what jax.ShapeDtypeStruct takes, and what an array has beside it)
        self,
        shape: Shape,
        dtype: DType,
        *,
        sharding: Sharding = None,
        weak_type: bool = False,
        committed: bool = True,
        value: KnownValue | None = None,
        memory_space: Placing = None,
        layout: Placing = None,
    ) -> None:
        place = sharding if layout is None else Format(layout, sharding)
        self._struct = jax.ShapeDtypeStruct(shape, dtype, sharding=place, weak_type=weak_type)
        self._committed = committed and sharding is not None
        self._value = value
        self._memory_space = memory_space

    @property
    def aval(self) -> Aval:
        aval = jax.typeof(self._struct)
        if self._memory_space is None or isinstance(self.sharding, jax.sharding.NamedSharding):
            return aval  # a NamedSharding says it
        return aval.update(memory_space=self._memory_space)

    @property
    def known_value(self) -> KnownValue | None:
        """Return what makes the same array on this machine, None where nobody knows the value."""
        return self._value

    def with_value(self, value: KnownValue) -> TargetArray:
        """Return the same array with a value that is known."""
        other = TargetArray(self.shape, self.dtype)
        other._struct, other._committed, other._memory_space = self._struct, self._committed, self._memory_space
        other._value = value
        return other

    @property
    def shape(self) -> Shape:
        return self._struct.shape

    @property
    def dtype(self) -> DType:
        return self._struct.dtype

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def sharding(self) -> Sharding:
        return self._struct.sharding

    @property
    def format(self) -> Placing:
        return self._struct.format

    @property
    def weak_type(self) -> bool:
        return bool(self._struct.weak_type)

    @property
    def committed(self) -> bool:
        return self._committed

    @property
    def device(self) -> Placing:
        devices = self.devices()
        return next(iter(devices)) if len(devices) == 1 else self.sharding

    def devices(self) -> set[Device]:
        return set() if self.sharding is None else set(self.sharding.device_set)

    @property
    def is_fully_addressable(self) -> bool:
        return self.sharding is None or bool(self.sharding.is_fully_addressable)

    @property
    def is_fully_replicated(self) -> bool:
        return self.sharding is None or bool(self.sharding.is_fully_replicated)

    @property
    def nbytes(self) -> int:
        return self.size * int(self.dtype.itemsize)

    def is_ready(self) -> bool:
        return True

    def is_deleted(self) -> bool:
        return False

    def delete(self) -> None:
        """Do nothing: no memory is held."""

    def block_until_ready(self) -> TargetArray:
        return self

    def copy_to_host_async(self) -> None:
        """Do nothing: there is no value to copy."""

    @property
    def addressable_shards(self) -> list[Any]:
        """Return the part of each device, with its shape and without a value. Empty where the sharding is not known."""
        if self.sharding is None:
            return []
        shard = importlib.import_module("jax._src.array").Shard
        shape, kind = self.sharding.shard_shape(self.shape), self.sharding.memory_kind
        return [
            shard(
                device,
                self.sharding,
                self.shape,
                TargetArray(shape, self.dtype, sharding=jax.sharding.SingleDeviceSharding(device, memory_kind=kind)),
            )
            for device in self.sharding._device_assignment
        ]

    global_shards = addressable_shards

    def __len__(self) -> int:
        if not self.ndim:
            raise TypeError("len() of unsized object")
        return int(self.shape[0])

    def __reversed__(self) -> Iterator[ArrayLike]:
        yield from reversed(list(self))

    def __iter__(self) -> Iterator[ArrayLike]:
        if not self.ndim:
            raise TypeError("iteration over a 0-d array")
        if self.sharding is None or len(self.devices()) == 1 or self.is_fully_replicated:
            return (self[i] for i in range(self.shape[0]))
        # JAX fetches the values and makes arrays of this machine's of them.
        single = jax.sharding.SingleDeviceSharding(self.sharding._device_assignment[0])
        part = TargetArray(self.shape[1:], self.dtype, sharding=single, weak_type=self.weak_type, committed=False)
        return iter([part] * self.shape[0])

    def addressable_data(self, index: int) -> ArrayLike:
        """Return the part of one device; see ``addressable_shards``."""
        return self.addressable_shards[index].data

    def __repr__(self) -> str:
        return f"TargetArray({self.dtype}{list(self.shape)}, {self.sharding})"

    __str__ = __repr__

    def __format__(self, spec: str) -> str:
        return format(repr(self), spec)


def _refuse(array: TargetArray, *args: object, **kwargs: object) -> NoReturn:
    raise NoValueError(
        f"the step's code needs the value of {array!r}, which is on the target: nothing runs there, "
        f"only shapes are known"
    )


def _by_value(name: str) -> Any:
    """Return the method ``name`` that answers from the value where it is known, and refuses where it is not."""

    def method(self: TargetArray, *args: object, **kwargs: object) -> Any:
        if self.known_value is None:
            _refuse(self)
        return getattr(self.known_value.get(), name)(*args, **kwargs)

    return method


_VALUES = (*(f"__{name}__" for name in ("array", "bool", "complex", "float", "index", "int")),)
_VALUE_METHODS = ("item", "tolist", "tobytes")


def _complete() -> None:
    """Give what JAX gives its arrays (operators, ``sum``, ``astype``, ``T``, ``at`` ...), but no values that nobody
    knows; and register what JAX must know of a type of argument."""
    methods = importlib.import_module("jax._src.numpy.array_methods")
    methods._set_array_base_attributes(TargetArray, exclude={*vars(TargetArray), *_VALUES})
    for name in (*_VALUES, *_VALUE_METHODS):
        setattr(TargetArray, name, _by_value(name))
    core, mlir, dtypes = (importlib.import_module(f"jax._src.{m}") for m in ("core", "interpreters.mlir", "dtypes"))
    indexer = importlib.import_module("jax._src.numpy.indexing").NDIndexer
    if hasattr(indexer, "is_sharded"):
        is_sharded = indexer.is_sharded
        indexer.is_sharded = staticmethod(
            lambda array: (
                is_sharded(array)
                or (isinstance(array, TargetArray) and len(array.devices()) > 1 and not array.is_fully_replicated)
            )
        )
    core.pytype_aval_mappings[TargetArray] = lambda array: array.aval
    if hasattr(dtypes, "register_canonicalize_value_handler"):
        dtypes.register_canonicalize_value_handler(TargetArray, None)
    else:  # jax 0.9: jax.grad outside of a jit needs it
        dtypes.canonicalize_value_handlers[TargetArray] = lambda array: array
    mlir.register_constant_handler(TargetArray, _constant)
    adders = importlib.import_module("jax._src.ad_util").raw_jaxval_adders  # of eager jax.grad
    adders[TargetArray] = adders[importlib.import_module("jax._src.array").ArrayImpl]


def _constant(array: TargetArray, *args: object, **kwargs: object) -> Any:
    """Return the MLIR constant of an array that a program closes over."""
    if array.known_value is None:
        _refuse(array)
    return importlib.import_module("jax._src.interpreters.mlir").ir_constant(np.asarray(array.known_value.get()))


_complete()
