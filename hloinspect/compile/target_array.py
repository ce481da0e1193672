"""Arrays on devices that are not there: all that an array has but its values (child process only).

A program that builds its step puts parameters on devices, adds them up, prints their sizes, hands them to a library
that asks whether they are arrays. ``TargetArray`` is a ``jax.Array`` to all of them. An operation on it gives another
one (``compile/devices.py`` answers for jitted calls, and JAX makes one of each eager operation); asking for a value is
an error that says why.
"""

from __future__ import annotations

import importlib
import math
from typing import Any, NoReturn

import jax


class NoValueError(TypeError):
    """The program asked for the value of an array on the target."""


class TargetArray(jax.Array):
    """A shape and a dtype on a sharding of the target's devices, None where nothing has been said of it."""

    __slots__ = ("_struct",)

    def __init__(self, shape: Any, dtype: Any, *, sharding: Any = None) -> None:
        self._struct = jax.ShapeDtypeStruct(shape, dtype, sharding=sharding)

    @property
    def aval(self) -> Any:
        return jax.typeof(self._struct)

    @property
    def shape(self) -> Any:
        return self._struct.shape

    @property
    def dtype(self) -> Any:
        return self._struct.dtype

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def sharding(self) -> Any:
        return self._struct.sharding

    @property
    def format(self) -> Any:
        return self._struct.format

    @property
    def weak_type(self) -> bool:
        return False

    @property
    def committed(self) -> bool:
        return self.sharding is not None

    _committed = committed

    @property
    def device(self) -> Any:
        devices = self.devices()
        return next(iter(devices)) if len(devices) == 1 else self.sharding

    def devices(self) -> set[Any]:
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
        """Nothing is held."""

    def block_until_ready(self) -> TargetArray:
        return self

    def copy_to_host_async(self) -> None:
        """Nothing is copied."""

    @property
    def addressable_shards(self) -> NoReturn:
        _refuse(self)

    global_shards = addressable_data = addressable_shards

    def __repr__(self) -> str:
        return f"TargetArray({self.dtype}{list(self.shape)}, {self.sharding})"

    __str__ = __repr__

    def __format__(self, spec: str) -> str:
        return format(repr(self), spec)


def _refuse(array: TargetArray, *args: Any, **kwargs: Any) -> NoReturn:
    raise NoValueError(
        f"the step's code asks for the value of {array!r}, which is on the target: nothing runs there, "
        f"only shapes are known"
    )


_VALUES = ("array", "bool", "complex", "float", "index", "int", "iter")


def _complete() -> None:
    """What JAX gives its arrays (operators, ``sum``, ``astype``, ``T``, ``at`` ...), but no values; and what JAX must
    know of a type of argument."""
    methods = importlib.import_module("jax._src.numpy.array_methods")
    kept = {*vars(TargetArray), *(f"__{name}__" for name in _VALUES)}
    methods._set_array_base_attributes(TargetArray, exclude=kept)
    for name in (*(f"__{name}__" for name in _VALUES), "item", "tolist", "tobytes"):
        setattr(TargetArray, name, _refuse)
    core, mlir, dtypes = (importlib.import_module(f"jax._src.{m}") for m in ("core", "interpreters.mlir", "dtypes"))
    core.pytype_aval_mappings[TargetArray] = lambda array: array.aval
    if hasattr(dtypes, "register_canonicalize_value_handler"):  # not in jax 0.9
        dtypes.register_canonicalize_value_handler(TargetArray, None)
    mlir.register_constant_handler(TargetArray, lambda array, *args, **kwargs: _refuse(array))


_complete()
