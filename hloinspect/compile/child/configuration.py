"""What decides a compilation beside the program, the flags and the target (child process only).

The cache's key has all of it, the manifest what a person can read.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from hloinspect.compile import environment
from hloinspect.compile.child import libraries, toolkit
from hloinspect.compile.child.handed_over import HandedOver, handed_over
from hloinspect.compile.child.jax_types import Lowered
from hloinspect.compile.flags import Option, name_of_flag
from hloinspect.compile.protocol import Compilation
from hloinspect.inputs.manifest import NOTE_NOT_IN_EFFECT, Configuration

NOTE_UNKNOWN = (
    "what this JAX hands to XLA could not be read, so nothing was looked for in the cache or kept there, and the "
    "manifest does not name JAX's own configuration"
)
_NOT_KEPT = "nothing was looked for in the cache or kept there"

_IN_THE_OPTIONS = frozenset(
    f"jax_{name}"
    for name in (
        "compiler_enable_remat_pass",
        "disable_most_optimizations",
        "exec_time_optimization_effort",
        "memory_fitting_effort",
        "memory_fitting_level",
        "optimization_level",
        "use_shardy_partitioner",
        "xla_profile_version",
    )
)
"""JAX's configuration that a manifest names among the compile options."""
_NOT_OF_THE_MODULE = re.compile(
    r"cache|_dir$|_path$|_to$|log|trac|profil|platform|visible_devices|distributed|^jax_cpu_"
)
"""JAX's configuration of caches, output, errors and devices that are there."""
_CALLBACK_IN_XLA = "@CustomSPMDPartitioning"
"""A function of Python's that XLA calls while it compiles; StableHLO has its address only."""


@dataclass(frozen=True, slots=True)
class Before:
    """What was set before the step's code ran: the environment as the child got it, the same after JAX and the
    compiler were loaded (they add to it), and JAX's configuration then."""

    environ: dict[str, str]
    loaded_environ: dict[str, str]
    jax: dict[str, object]


@dataclass(frozen=True, slots=True)
class Decided:
    """What decides a compilation. ``of_key`` is what the cache's key is made of, beside the program, the flags and the
    target; None where nothing can be kept, and then ``why_not_kept`` is a note on it."""

    configuration: Configuration
    of_key: dict[str, object] | None
    why_not_kept: str


def decided(
    compilation: Compilation,
    before: Before,
    lowered: Lowered,
    options: Mapping[str, Option],
    stablehlo: str,
    cuda: Path | None,
) -> Decided:
    """Return what decides the compilation of ``lowered`` with ``options``, which are those of the compilation
    and hloinspect's own."""
    own = frozenset(options.keys() - compilation.compiler_options.keys())
    named_as_flags = {name_of_flag(flag) for flag in compilation.xla_flags}
    handed = handed_over(lowered, options, named_as_flags, own)
    manifest = _configuration(compilation, before, handed)
    if handed is None:
        return Decided(manifest, None, NOTE_UNKNOWN)
    if reason := _why_not_kept(handed, before, stablehlo, own):
        return Decided(manifest, None, f"{_NOT_KEPT}: {reason}")
    return Decided(manifest, _of_key(compilation, before, handed, cuda), "")


def _configuration(compilation: Compilation, before: Before, handed: HandedOver | None) -> Configuration:
    import jax

    values, target_config = jax.config.values, compilation.target_config
    variables = environment.named(_environment(before))
    return Configuration(
        compile_options=handed.named if handed else {},
        compile_options_sha256=handed.comparable if handed else None,
        jax=_set_in_jax(before, values),
        environment={name: value for name, value in variables.items() if name.lower() not in values},
        libraries=libraries.compilers(compilation.platform, before.loaded_environ),
        target_config_sha256=None if target_config is None else hashlib.sha256(target_config.encode()).hexdigest(),
    )


def _of_key(compilation: Compilation, before: Before, handed: HandedOver, cuda: Path | None) -> dict[str, object]:
    now = environment.deciding(os.environ)
    paths = [path for text in now.values() for path in environment.paths_in(text)]
    paths += [path for value in handed.given.values() if (path := _path(value)) is not None]
    return {
        "compile_options": handed.whole,
        "environment": environment.deciding(before.environ),
        "environment_now": now,
        "libraries": libraries.states(compilation.platform, before.loaded_environ),
        "files": [libraries.state_of(path) for path in paths if path.is_file()],
        "toolkit": [libraries.state_of(path) for path in toolkit.parts(cuda)] if cuda else [],
    }


def _why_not_kept(handed: HandedOver, before: Before, stablehlo: str, own: frozenset[str]) -> str:
    if _CALLBACK_IN_XLA in stablehlo:
        return "the step has custom_partitioning, a function that XLA calls while it compiles"
    for name, value in handed.given.items():
        path = None if name in own or name == toolkit.OPTION else _path(value)
        folder = path is not None and ("/" in str(value) or name.endswith("_dir")) and path.is_dir()
        if folder or (path is not None and name.endswith("_to")):
            return f"what {name}={value} names is read or written by the compilation"
    arguments = before.environ.get(environment.LIBTPU_ARGUMENTS, "")
    if "xla_dump_to" in arguments or any(path.is_dir() for path in environment.paths_in(arguments)):
        return f"{environment.LIBTPU_ARGUMENTS} names a folder that is read or written by the compilation"
    return ""


def set_too_late(before: Before) -> str:
    """Return a note where the step's code sets libtpu's arguments, which libtpu had read before; "" where not."""
    name = environment.LIBTPU_ARGUMENTS
    now = os.environ.get(name)
    if now == before.loaded_environ.get(name):
        return ""
    return (
        f"{name} {NOTE_NOT_IN_EFFECT}: libtpu is loaded before; set it in the environment of "
        f"this command, or give the flags with --xla-flag: {(now or '')[:400]}"
    )


def _environment(before: Before) -> dict[str, str]:
    """Return the environment as the child got it and as the step's code has changed it."""
    changed = {
        name: value
        for name, value in os.environ.items()
        if before.loaded_environ.get(name) != value and not name.startswith("LIBTPU_")
    }
    return before.environ | changed


def _set_in_jax(before: Before, values: Mapping[str, object]) -> dict[str, str]:
    """Return JAX's configuration that a variable or the step's code has set, as text."""
    return {
        name: str(value)
        for name, value in sorted(values.items())
        if (name.upper() in before.environ or before.jax.get(name) != value)
        and name.upper() not in environment.FOR_EVERY_CHILD
        and name not in _IN_THE_OPTIONS
        and not _NOT_OF_THE_MODULE.search(name)
        and isinstance(value, (bool, int, float, str, type(None)))
    }


def _path(value: object) -> Path | None:
    """Return the path that the value of an option may be, None for what names nothing."""
    if not isinstance(value, str) or not value or len(value) > 4096 or "\0" in value:
        return None
    return Path(value)
