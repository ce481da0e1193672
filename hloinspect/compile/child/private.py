"""Names of JAX that are not public, each reached through here so that it is easy to find (child process only)."""

from __future__ import annotations

import importlib
import sys
from typing import Any

import jax
from jax.experimental.layout import Format

from hloinspect.compile.child.jax_types import Module, Placing


class UnknownJaxError(Exception):
    """This JAX is not laid out as the versions that hloinspect knows."""


# The device type of jax.experimental.topologies: a client of this class can compile but holds no memory.
_COMPILE_ONLY_CLIENT = "CompileOnlyPyClient"


def module(name: str) -> Module:
    """Return the module ``jax._src.<name>``."""
    return importlib.import_module(f"jax._src.{name}")


def private(module_name: str, name: str) -> Any:
    """Return an attribute of ``jax._src.<module_name>``. Raises UnknownJaxError where JAX has lost it."""
    try:
        return getattr(module(module_name), name)
    except (AttributeError, ImportError):
        raise UnknownJaxError(
            f"jax {jax.__version__} has no jax._src.{module_name}.{name}: hloinspect does not know this version"
        ) from None


def replace_everywhere(old: object, new: object) -> None:
    """Set each name of JAX's modules that holds ``old`` to ``new``: they import each other's functions by name."""
    for found in list(sys.modules.values()):
        if getattr(found, "__name__", "").partition(".")[0] == "jax":
            for name, value in list(vars(found).items()):
                if value is old:
                    setattr(found, name, new)


def on_target(place: Placing) -> bool:
    """Return whether a device, sharding or format is of a device that is not there. False for abstract meshes and all
    else."""
    if isinstance(place, jax.sharding.Sharding):
        try:
            return on_target(place._device_assignment[0])
        except ValueError:  # an AbstractMesh has no devices
            return False
    if isinstance(place, Format):
        return on_target(place.sharding)
    return type(getattr(place, "client", None)).__name__ == _COMPILE_ONLY_CLIENT
