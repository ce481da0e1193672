"""What JAX hands to XLA beside the program: its ``CompileOptions`` (child process only).

They are JAX's own configuration (optimization level, effort for fitting into memory, passes switched off), the options
of ``jax.jit`` and those given here, in one object. No list of names is kept here: JAX makes the object, and it is taken
at the moment at which JAX would compile with it.
"""

from __future__ import annotations

import hashlib
import importlib
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NoReturn

import numpy

from hloinspect.compile.child.jax_types import Lowered, Module, Options
from hloinspect.compile.flags import Option
from hloinspect.compile.run_flags import fields_of

_COMPILING = ("compile_or_get_cached", "backend_compile_and_load")
"""Functions of jax._src.compiler, from the outermost in: one of their arguments are the options (jax 0.9 to 0.12)."""

_PATHS = ("xla_gpu_cuda_data_dir", "xla_gpu_kernel_cache_file", "xla_gpu_per_fusion_autotune_cache_dir")
"""Options that JAX sets to paths of the machine."""
_NO_CHOICE = ("num_partitions", "num_replicas", "use_spmd_partitioning", "parameter_is_tupled_arguments")
_OUTPUT = ("xla_detailed_logging", "xla_dump_")
_LEVELS = {"9": "O0", "19": "O1", "29": "O2", "39": "O3"}
"""XLA's ExecutionOptions.EffortLevel."""


@dataclass(frozen=True, slots=True)
class HandedOver:
    """``whole`` is a hash of everything, ``comparable`` one without what follows from the program, without paths of
    this machine and without options of hloinspect. ``named`` are options that are not XLA's defaults, as text and
    without paths. ``given`` are those that came as ``compiler_options``, from the request, from the step's ``jax.jit``
    or from hloinspect, and the paths that JAX has set."""

    whole: str
    comparable: str
    named: dict[str, str]
    given: dict[str, object]


class _Reached(BaseException):
    """JAX would compile now. Not an Exception, which JAX might handle."""

    def __init__(self, arguments: tuple[object, ...]) -> None:
        super().__init__()
        self.arguments = arguments


def handed_over(
    lowered: Lowered, options: Mapping[str, Option], flags: Collection[str], own: Collection[str]
) -> HandedOver | None:
    """Return what JAX would compile ``lowered`` with, given ``options``, without compiling.

    ``flags`` are the names of options that are named elsewhere, ``own`` of those that are hloinspect's. None where this
    JAX compiles in another way than those that are known, or refuses the options: compiling then says why.
    """
    found = _options(lowered, options)
    if found is None:
        return None
    try:
        given = {str(name): value for name, value in found.env_option_overrides}
        found.env_option_overrides = []  # a map, whose order in bytes differs from process to process
        whole = _sha256(found, given)
        unnamed = {name: value for name, value in given.items() if name not in {*own, *flags}}
        named = _named(found, unnamed)
        paths = {name: value for name, value in named.items() if value.startswith("/")}
        _clear_what_is_no_choice(found)
        comparable = _sha256(
            found, {k: v for k, v in given.items() if k not in {*own, *_PATHS} and not str(v).startswith("/")}
        )
        return HandedOver(whole, comparable, {k: v for k, v in named.items() if k not in paths}, {**paths, **given})
    except (AttributeError, TypeError, ValueError):  # another class of options than those that are known
        return None


def _options(lowered: Lowered, options: Mapping[str, Option]) -> Options | None:
    with _stopping() as stops:
        if not stops:
            return None
        try:
            lowered.compile(compiler_options=dict(options))
        except _Reached as reached:
            return next((value for value in reached.arguments if hasattr(value, "executable_build_options")), None)
        except Exception:  # such as a value that JAX refuses: compiling will raise it again
            return None
    return None


@contextmanager
def _stopping() -> Iterator[bool]:
    """Make JAX stop where it would compile; False where there is no such place."""
    compiler: Module = importlib.import_module("jax._src.compiler")
    functions = {name: function for name in _COMPILING if (function := getattr(compiler, name, None)) is not None}

    def stop(*args: object, **kwargs: object) -> NoReturn:
        raise _Reached((*args, *kwargs.values()))

    try:
        for name in functions:
            setattr(compiler, name, stop)
        yield bool(functions)
    finally:
        for name, function in functions.items():
            setattr(compiler, name, function)


def _sha256(options: Options, given: Mapping[str, object]) -> str:
    digest = hashlib.sha256(options.SerializeAsString())
    digest.update(repr(sorted((name, type(value).__name__, value) for name, value in given.items())).encode())
    return digest.hexdigest()


def _clear_what_is_no_choice(options: Options) -> None:
    """Give the fields that follow from the program or from the machine the same value everywhere."""
    build = options.executable_build_options
    for one, name, value in (
        (options, "parameter_is_tupled_arguments", False),
        (options, "num_partitions", 1),
        (options, "num_replicas", 1),
        (build, "allow_spmd_sharding_propagation_to_parameters", [False]),
        (build, "allow_spmd_sharding_propagation_to_output", [False]),
        (build.debug_options, "xla_detailed_logging", False),
        *((build.debug_options, path, "") for path in _PATHS),
    ):
        if hasattr(one, name):
            setattr(one, name, value)
    if options.device_assignment is not None:
        options.device_assignment = type(options.device_assignment).create(numpy.array([[0]]))


def _named(options: Options, given: Mapping[str, object]) -> dict[str, str]:
    """Return the options that are not those of a new object of their class, and those of ``given``."""
    defaults = type(options)()
    pairs = [(options, defaults), (options.executable_build_options, defaults.executable_build_options)]
    found = {
        name: _text(name, value)
        for one, default in pairs
        for name, value in _plain(one).items()
        if value != getattr(default, name) and name not in _NO_CHOICE
    }
    if found.get("profile_version") in ("-1", "0"):  # there is none
        del found["profile_version"]
    was = _debug_options(defaults)
    debug = {name: value for name, value in _debug_options(options).items() if was.get(name) != value}
    found |= {name: value for name, value in debug.items() if not name.startswith(_OUTPUT) and name != _PATHS[0]}
    found |= {name: _text(name, value) for name, value in given.items() if not name.startswith(_OUTPUT)}
    return dict(sorted(found.items()))


def _plain(options: Options) -> dict[str, object]:
    values = {name: getattr(options, name, None) for name in dir(options) if not name.startswith("_")}
    return {name: value for name, value in values.items() if isinstance(value, (bool, int, float, str, bytes))}


def _debug_options(options: Options) -> dict[str, str]:
    """Return xla.DebugOptions by name; {} where their text is not what it was: the hash has them all the same."""
    text = str(options.executable_build_options.debug_options)
    first, _, rest = text.partition("\n")
    values: dict[str, list[str]] = {}
    try:
        for name, value in fields_of(text if ":" in first else rest):
            values.setdefault(name, []).append("{...}" if value is None else value)
    except ValueError:
        return {}
    return {name: ",".join(value) for name, value in values.items()}


def _text(name: str, value: object) -> str:
    if isinstance(value, bytes):
        return f"sha256 {hashlib.sha256(value).hexdigest()[:12]}"
    if isinstance(value, bool):
        return str(value).lower()
    return _LEVELS.get(str(value), str(value)) if name.endswith("_level") else str(value)
