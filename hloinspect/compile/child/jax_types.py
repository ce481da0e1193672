"""Names for the objects of JAX that are handed on in the child process.

JAX types its internals in part only, and otherwise in each version. So these names say to a reader what an object is,
and leave the type checker out of it; what is no object of JAX has a type of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

Jaxpr: TypeAlias = Any
"""A jaxpr, open or closed: versions of JAX differ in which they hand around."""

Equation: TypeAlias = Any
"""An equation of a jaxpr."""

Variable: TypeAlias = Any
"""A variable or a literal of a jaxpr."""

Aval: TypeAlias = Any
"""The abstract value of an array: shape, dtype, sharding and memory space."""

ArrayLike: TypeAlias = Any
"""An array, or what JAX takes for one."""

Lowered: TypeAlias = Any
"""A ``jax.stages.Lowered``, or the like of a library."""

Compiled: TypeAlias = Any
"""A ``jax.stages.Compiled``."""

Device: TypeAlias = Any
"""A device, that of a compile-only client too."""

Sharding: TypeAlias = Any
"""A sharding; None or JAX's own "unspecified" where nothing is said."""

Placing: TypeAlias = Any
"""What says where a value is: a device, a sharding, a format, or a memory space."""

Mesh: TypeAlias = Any
"""A mesh, concrete, abstract or empty."""

Options: TypeAlias = Any
"""An ``xla_client.CompileOptions``, or a part of one."""

Module: TypeAlias = Any
"""A module of JAX or of a library, whose attributes are replaced."""

Class: TypeAlias = Any
"""A class of JAX, whose attributes are replaced."""

Traced: TypeAlias = Any
"""A ``jax.stages.Traced``."""

Topology: TypeAlias = Any
"""A ``TopologyDescription`` of ``jax.experimental.topologies``."""

Shape: TypeAlias = Any
"""The shape of an array, as JAX takes it: a tuple of sizes, which may be symbolic."""

DType: TypeAlias = Any
"""What JAX takes for a dtype; None where nothing is said."""

Tree: TypeAlias = Any
"""A tree of arrays."""

Params: TypeAlias = Mapping[str, Any]
"""The parameters of an equation, or of a call of a jitted function."""

Call: TypeAlias = Callable[..., Any]
"""A function of JAX that executes a program."""

MlirModule: TypeAlias = Any
"""A module of MLIR's Python bindings."""

MlirType: TypeAlias = Any
"""A tensor type of MLIR's Python bindings."""

MlirAttributes: TypeAlias = Any
"""A dictionary of attributes of MLIR's Python bindings."""
