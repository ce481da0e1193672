"""Take the train step out of an installed, unmodified MaxText (child process only).

MaxText can compile ahead of time (``maxtext.trainers.pre_train.train_compile``), for GPUs only on a machine that has
one: it takes their devices from ``jax.devices()``. Those are the target's here (devices.py), so its own program
runs as it is, and is stopped when it would compile. A TPU's devices, which it would take from libtpu by one of its own
names, are taken from there as well: --topology may then be any that libtpu has. Held to MaxText 0.2.5; where another
version is laid out differently, MaxTextError says what is missing.
"""

from __future__ import annotations

import contextlib
import difflib
import importlib
import importlib.metadata
import os
import re
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn, TypeAlias

from hloinspect.compile.child import kernels
from hloinspect.compile.child.jax_types import Device, Lowered, Module
from hloinspect.compile.flags import Option
from hloinspect.inputs.manifest import MaxTextSettings

PROGRAM = "maxtext.trainers.pre_train.train_compile"
KNOWN_VERSION = "0.2.5"
TOPOLOGY = "hloinspect"
"""What the target is called in MaxText's table of machines."""

OURS = ("compile_topology", "compile_topology_num_slices", "internal_compile", "compiled_trainstep_file")
"""Keys that a user may not give: --target and --topology say these things, and nothing is saved."""

DEFAULTS = {
    "run_name": "hloinspect",
    "enable_checkpointing": "false",
    "dataset_type": "synthetic",
    "jax_cache_dir": "",
}
"""What a run on a cluster gives and a compilation does not need, beside ``hardware`` and ``base_output_directory``; a
user's own value goes before."""


Configuration: TypeAlias = Any
"""A configuration of MaxText's."""


class MaxTextError(Exception):
    """MaxText is missing, is not as it was, or refused its configuration: the one line that the user sees."""


@dataclass(frozen=True, slots=True)
class Step:
    """The lowered train step. ``options`` are MaxText's own XLA flags, ``settings`` what its configuration says."""

    lowered: Lowered
    options: Mapping[str, Option]
    settings: MaxTextSettings
    notes: tuple[str, ...] = ()


class _Reached(BaseException):
    """MaxText has lowered its step and would compile it. No Exception: MaxText's handlers are to let it through."""

    def __init__(self, lowered: Lowered, options: Mapping[str, Option] | None) -> None:
        self.lowered = lowered
        self.options: Mapping[str, Option] = options or {}


def train_step(arguments: Sequence[str], devices: Sequence[Device]) -> Step:
    """Return the train step of MaxText's configuration ``arguments``: a config file's name and ``key=value`` words.

    ``devices`` are the target's, which JAX reports already. Raises MaxTextError; whatever MaxText raises while it
    builds and traces the step goes through.
    """
    os.environ |= {"DECOUPLE_GCLOUD": "TRUE", "HF_HUB_OFFLINE": "1"}  # nothing is fetched
    program = _import()
    _name_target(program, len(devices))
    hardware = "tpu" if devices[0].platform == "tpu" else "gpu"
    with tempfile.TemporaryDirectory(prefix="hloinspect-") as scratch, _noting_configurations(program) as made:
        try:
            with _stopped_before_compiling():
                program.main([PROGRAM, *_command_line(program, arguments, scratch, hardware)])
        except _Reached as reached:
            config = made[-1] if made else None
            without_cub = _options_without_cub(config, hardware)
            return Step(
                lowered=reached.lowered,
                options={**without_cub, **_typed(reached.options)},
                settings=_settings(config) if config is not None else MaxTextSettings(),
                notes=(kernels.NOTE_CUB,) if without_cub else (),
            )
        except SystemExit as error:
            raise MaxTextError(f"MaxText {_version()} called sys.exit({error.code!r})") from error
    raise MaxTextError(_moved(f"{PROGRAM}.main compiled nothing"))


def _version() -> str:
    try:
        return importlib.metadata.version("maxtext")
    except importlib.metadata.PackageNotFoundError:
        return "(unknown version)"


def _moved(what: str) -> str:
    return f"MaxText {_version()} is not laid out as {KNOWN_VERSION}, which hloinspect knows: {what}"


def _import() -> Any:
    try:
        return importlib.import_module(PROGRAM)
    except ModuleNotFoundError as error:
        install = "install it with: pip install 'hloinspect[maxtext]' (Python 3.12 or newer)"
        missing = error.name or ""
        if missing == "maxtext":
            raise MaxTextError(f"MaxText is not installed; {install}") from error
        if missing.startswith("maxtext."):
            raise MaxTextError(_moved(f"there is no module {missing}")) from error
        raise MaxTextError(f"MaxText {_version()} needs the module {missing!r}; {install}") from error


def _attribute(owner: Module, name: str) -> Any:
    try:
        return getattr(owner, name)
    except AttributeError:
        where = getattr(owner, "__name__", type(owner).__name__)
        raise MaxTextError(_moved(f"{where} has no {name}")) from None


def _name_target(program: Module, count: int) -> None:
    """Enter the target into MaxText's table. As a "gpu", TPU or not, it is looked for in ``jax.devices()``."""
    table = _attribute(program, "accelerator_to_spec_map")
    machines = _attribute(table, "UserFacingNameToSystemCharacteristics")
    try:
        machines[TOPOLOGY] = _attribute(table, "SystemCharacteristics")("gpu", None, None, None, count, None)
    except TypeError as error:
        raise MaxTextError(_moved(f"SystemCharacteristics: {error}")) from error


def _command_line(program: Module, arguments: Sequence[str], scratch: str, hardware: str) -> list[str]:
    """Return the configuration's path, the user's keys, and the keys that the user did not give."""
    if not arguments:
        raise MaxTextError("MaxText needs its configuration: base.yml key=value ...")
    config, *keys = arguments
    wrong = [word for word in keys if not re.match(r"[A-Za-z_][\w.]*=", word)]
    if wrong:
        raise MaxTextError(f"{wrong[0]!r} is not key=value: write hloinspect maxtext ... -- base.yml key=value ...")
    given = {word.partition("=")[0] for word in keys}
    if taken := sorted(given & set(OURS)):
        raise MaxTextError(f"{taken[0]} is not for MaxText to say here: --target and --topology do")
    defaults = {"hardware": hardware, **DEFAULTS, "base_output_directory": scratch}
    ours = [f"{key}={value}" for key, value in defaults.items() if key not in given]
    return [
        _config_file(program, config),
        *keys,
        *ours,
        f"compile_topology={TOPOLOGY}",
        "compile_topology_num_slices=1",
    ]


def _config_file(program: Module, name: str) -> str:
    """Return a file of the user's, or one of those that MaxText installs (``base.yml``,
    ``gpu/models/llama3.1_405b.yml``)."""
    folder = Path(_attribute(_attribute(program, "pyconfig"), "MAXTEXT_CONFIGS_DIR"))
    for path in (Path(name), folder / name):
        if path.is_file():
            return str(path.resolve())
    raise MaxTextError(f"there is no configuration {name}, neither here nor among MaxText's own (try base.yml)")


# --- while MaxText runs ---------------------------------------------------------------------------


@contextlib.contextmanager
def _noting_configurations(program: Module) -> Iterator[list[Configuration]]:
    """Give a list that gets each configuration when MaxText has made it."""
    made: list[Configuration] = []
    pyconfig = _attribute(program, "pyconfig")
    initialize = _attribute(pyconfig, "initialize")

    def initialize_and_note(*args: object, **kwargs: object) -> Configuration:
        made.append(initialize(*args, **kwargs))
        return made[-1]

    def refuse(error: Exception) -> None:
        raise MaxTextError(_config_complaint(error)) from error

    with contextlib.ExitStack() as stack:
        stack.enter_context(_replaced(pyconfig, "initialize", initialize_and_note))
        if hasattr(pyconfig, "_handle_config_exception"):  # logs, writes to /dev/termination-log and exits
            stack.enter_context(_replaced(pyconfig, "_handle_config_exception", refuse))
        yield made


@contextlib.contextmanager
def _stopped_before_compiling() -> Iterator[None]:
    import jax

    def stop(self: Lowered, compiler_options: Mapping[str, Option] | None = None, **kwargs: object) -> NoReturn:
        raise _Reached(self, compiler_options)

    with _replaced(jax.stages.Lowered, "compile", stop):
        yield


@contextlib.contextmanager
def _replaced(owner: object, name: str, new: object) -> Iterator[None]:
    old = getattr(owner, name)
    setattr(owner, name, new)
    try:
        yield
    finally:
        setattr(owner, name, old)


def _settings(config: Configuration) -> MaxTextSettings:
    """Return what a report says of the configuration; None for a key that this MaxText does not have."""
    custom = getattr(config, "remat_policy", None) == "custom"
    kept = [str(name) for name in getattr(config, "tensors_on_device", None) or ()] if custom else []
    batch, length = _option(config, "per_device_batch_size"), _option(config, "max_target_length")
    return MaxTextSettings(
        library="MaxText",
        version=_version(),
        model_name=_option(config, "model_name"),
        remat_policy=_option(config, "remat_policy"),
        scan_layers=_option(config, "scan_layers"),
        attention=_option(config, "attention"),
        per_device_batch_size=batch if isinstance(batch, int | float) else None,
        max_target_length=length if isinstance(length, int) else None,
        tensors_on_device=tuple(kept),
    )


def _option(config: Configuration, key: str) -> Option | None:
    """Return a value of the configuration that is plain; None for all else."""
    value = getattr(config, key, None)
    return value if isinstance(value, bool | int | float | str) else None


def _options_without_cub(config: Configuration, hardware: str) -> Mapping[str, Option]:
    """Return the options without CUB where a model is known to need them: compiling it once in vain takes long."""
    needs_them = getattr(config, "num_experts", 1) > 1 and getattr(config, "sparse_matmul", False)
    return kernels.CUB_OPTIONS if hardware == "gpu" and needs_them else {}


def _typed(options: Mapping[str, Option]) -> dict[str, Option]:
    """Return options with truth values as such: MaxText takes the flags of ``compile_xla_flags`` as text."""
    truths = {"true": True, "false": False}
    return {name: truths.get(value, value) if isinstance(value, str) else value for name, value in options.items()}


def _config_complaint(error: Exception) -> str:
    """Return what is wrong with a configuration, in one line: MaxText lists a thousand keys where it does not know
    one."""
    text = str(error)
    unknown = re.match(r"'(\w+)' not in ('.*)", text, re.DOTALL)
    if unknown is None:
        return f"MaxText {_version()} refuses the configuration: {text}"
    nearest = difflib.get_close_matches(unknown[1], re.findall(r"'(\w+)'", unknown[2]), n=1)
    hint = f"; did you mean {nearest[0]}?" if nearest else ""
    return f"MaxText {_version()} has no key {unknown[1]}{hint}"
