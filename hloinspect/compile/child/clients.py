"""The devices of a target that is not there, from XLA's compile-only clients (child process only)."""

from __future__ import annotations

import importlib.metadata
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from hloinspect.compile.child import target_config
from hloinspect.compile.child.jax_types import Device, Topology
from hloinspect.compile.protocol import Compilation

EXTRA = {"gpu": "cuda", "tpu": "tpu"}
"""The extra of hloinspect that brings what each platform needs."""

_PLUGINS = {"gpu": ("jax-cuda13-plugin", "jax-cuda12-plugin"), "tpu": ("libtpu",)}


class ClientError(Exception):
    """There are no such devices: its text is the one line that the user sees."""


def target_devices(compilation: Compilation, note: Callable[[str], None]) -> list[Device]:
    """Return the compile-only devices that are requested, as many as the step is to see.

    ``note`` is called with what a reader of the manifest should know. Raises ClientError.
    """
    platform = compilation.platform
    if plugin_version(platform) is None:
        names = " or ".join(_PLUGINS[platform])
        install = f"pip install 'hloinspect[{EXTRA[platform]}]'"
        raise ClientError(f"compiling for {compilation.target} needs {names}; install it with: {install}")
    topology = _tpu_topology(compilation) if platform == "tpu" else _gpu_topology(compilation, note)
    return list(topology.devices)[: compilation.devices]


def _tpu_topology(compilation: Compilation) -> Topology:
    from jax.experimental.topologies import get_topology_desc

    return get_topology_desc(compilation.topology, platform="tpu")


def _gpu_topology(compilation: Compilation, note: Callable[[str], None]) -> Topology:
    """Return the topology, without the target-config fields that this jaxlib does not know (its parser names each)."""
    from jax.experimental.topologies import get_topology_desc

    text = compilation.target_config or ""
    dropped: list[str] = []
    while True:
        try:
            with _captured_stderr() as log:
                topology = get_topology_desc(platform="cuda", target_config=text, topology=compilation.topology)
        except Exception as error:
            name = target_config.unknown_field(log()) or ""
            shorter = target_config.without_field(text, name) if name else text
            if shorter == text:
                first_line = str(error).strip().partition("\n")[0]
                raise ClientError(
                    f"XLA cannot make the topology of {compilation.target}: {first_line} {log()}"
                ) from error
            text = shorter
            dropped.append(name)
            continue
        if dropped:
            note(f"target configuration without the fields that this jaxlib does not know: {', '.join(dropped)}")
        return topology


@contextmanager
def _captured_stderr() -> Iterator[Callable[[], str]]:
    """Collect what C++ writes to standard error: protobuf's text parser names an unknown field only there."""
    sys.stderr.flush()
    with tempfile.TemporaryFile() as log:
        saved = os.dup(2)
        os.dup2(log.fileno(), 2)
        text = ""
        try:
            yield lambda: text
        finally:
            os.dup2(saved, 2)
            os.close(saved)
            log.seek(0)
            text = log.read().decode(errors="replace")


def plugin_version(platform: str) -> str | None:
    """Return name and version of the package that brings XLA's compiler for ``platform``, None where there is none."""
    for name in _PLUGINS[platform]:
        found = version(name)
        if found is not None:
            return f"{name} {found}"
    return None


def version(distribution: str) -> str | None:
    """Return the installed version of a package, None where it is not installed."""
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None
