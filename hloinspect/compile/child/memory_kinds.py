"""Lets shardings of compile-only GPU devices keep their memory kind (child process only; nothing is ever undone).

jaxlib's constructors turn every memory kind into None on devices that report no memories (``sharding.cc``,
``CheckAndCanonicalizeMemoryKind``), and a compile-only GPU device reports none. Without its kind, a parameter or an
optimizer state that the program keeps in pinned host memory would be lowered as device memory, and without an error.

The classes stay JAX's own: JAX's objects, those that were made before and those that C++ makes, are instances of them.
Each object remembers the kind that its constructor was called with.
"""

from __future__ import annotations

import ctypes
import importlib
from collections.abc import Callable

import jax

from hloinspect.compile.child.jax_types import Class, Device, Placing, Sharding

CLASSES = {
    "NamedSharding": "named_sharding",
    "SingleDeviceSharding": "sharding_impls",
    "GSPMDSharding": "sharding_impls",
}
"""The classes of shardings with memory kinds, and the modules of ``jax._src`` that they are in."""

KINDS = ("device", "pinned_host")
"""The memory kinds of a GPU, the default one first."""

_VECTORCALL_FIELDS = 5
"""Words between the header of a ``PyTypeObject`` and its ``tp_vectorcall_offset``: ``ob_size``, ``tp_name``,
``tp_basicsize``, ``tp_itemsize`` and ``tp_dealloc`` (CPython's ``cpython/object.h``, 3.8 to 3.14)."""


def remember_memory_kinds(is_on_target: Callable[[Placing], bool]) -> None:
    """Make the classes of shardings remember memory kinds. ``is_on_target`` says whether a sharding is on devices that
    report no memories: their default kind is ``device``."""
    for name, module in CLASSES.items():
        _remember(getattr(importlib.import_module(f"jax._src.{module}"), name), is_on_target)


def _remember(cls: Class, is_on_target: Callable[[Placing], bool]) -> None:
    construct = cls.__init__

    def __init__(self: Sharding, *args: object, memory_kind: str | None = None, **kwargs: object) -> None:
        construct(self, *args, memory_kind=memory_kind, **kwargs)
        self._requested_memory_kind = memory_kind
        if memory_kind not in (None, *KINDS) and is_on_target(self):
            device = self._device_assignment[0].device_kind
            raise ValueError(
                f"Could not find memory addressable by device {device}. Device {device} can address the following "
                f"memory kinds: {', '.join(KINDS)}. Got memory kind: {memory_kind}"
            )

    def kind(self: Sharding) -> str | None:
        found: str | None = self._memory_kind or self._requested_memory_kind
        return found or ("device" if is_on_target(self) else None)

    cls.__init__ = __init__
    cls._requested_memory_kind = None  # of those that were made before, or by C++
    cls.memory_kind = property(kind)
    cls.__hash__, cls.__eq__ = _hash_with_kind(cls.__hash__), _equal_with_kind(cls.__eq__)
    _call_through_init(cls)


def _call_through_init(cls: Class) -> None:
    """Make calls of a class of nanobind's run its ``__init__``.

    nanobind constructs through ``tp_vectorcall``, which goes past an ``__init__`` that was set later. Without it
    CPython calls ``tp_call`` of the metaclass, which is ``type.__call__``: ``__new__``, then ``__init__``.
    """
    word = ctypes.sizeof(ctypes.c_void_p)
    of_metaclass = id(type(cls)) + object.__basicsize__ + _VECTORCALL_FIELDS * word
    offset = ctypes.c_ssize_t.from_address(of_metaclass).value
    if 0 < offset < type(cls).__basicsize__:
        ctypes.c_void_p.from_address(id(cls) + offset).value = None


def _hash_with_kind(base_hash: Callable[[Sharding], int]) -> Callable[[Sharding], int]:
    """Return a hash that has the remembered kind: JAX's caches are keyed by shardings, and two that differ only in the
    kind must not be mixed up.

    A sharding that lost nothing keeps its hash: JAX has interned types by it (``ShapedArray``, since jax 0.12), and
    compares them by identity.
    """

    def __hash__(self: Sharding) -> int:
        kept, kind = base_hash(self), self.memory_kind
        return kept if kind == self._memory_kind else hash((kept, kind))

    return __hash__


def _equal_with_kind(base_eq: Callable[[Sharding, object], bool]) -> Callable[[Sharding, object], bool]:
    def __eq__(self: Sharding, other: object) -> bool:
        if self is other:
            return True
        return (
            isinstance(other, jax.sharding.Sharding)
            and base_eq(self, other) is True
            and self.memory_kind == other.memory_kind
        )

    return __eq__


def keeps_memory_kinds(device: Device) -> bool:
    """Return whether a sharding on this device keeps the memory kind that it is made with."""
    sharding = jax.sharding.SingleDeviceSharding(device, memory_kind="pinned_host")
    return bool(sharding.memory_kind == "pinned_host")
