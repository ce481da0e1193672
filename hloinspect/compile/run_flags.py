"""The XLA flags of a production run, read from what it left behind.

``--xla_dump_to`` writes ``module_0001.jit_step.debug_options`` beside each module: a text proto of xla.DebugOptions
with the flags that are not XLA's defaults (of older versions with all of them). A flag of a run on a device is not
always one for a compilation without it: ``_LEFT_OUT`` says which are not.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from hloinspect.decoding import read_text
from hloinspect.errors import InputError
from hloinspect.inputs.dumps import choose_module, dumped_modules
from hloinspect.inputs.manifest import MANIFEST, manifest_from_json

ENDING = ".debug_options"
_MAX_BYTES = 1 << 20

_LEFT_OUT = tuple(
    (re.compile(pattern), reason)
    for pattern, reason in (
        (
            r"xla_(gpu_|cpu_|tpu_)?(enable_)?dump.*|xla_.*(logging|verbosity|log_level|profile_hlo|hlo_profile).*",
            "output",
        ),
        (r"xla_cpu_.*|xla_force_host_platform_device_count", "for CPUs"),
        (r"xla_pjrt_.*", "set by JAX"),
        (r"xla_gpu_load_autotune_results_from", "a file of the run: give it with --autotune-results"),
        (r"xla_gpu_pgle_profile_.*", "a file of the run: give it with --pgle"),
        (r"xla_gpu_(require_complete_aot|shard)_autotun.*|xla_.*autotun.*cache.*", "for tuning on a device"),
        (r"xla_.*_(dir|directory|file|filename|path)", "a path of the run's machine"),
        (r"(?!xla_).*", "no flag of XLA"),
    )
)
EXPECTED = frozenset({"output", "for CPUs", "set by JAX"})
"""Reasons that a note does not name."""

_FIELD = re.compile(r'(?P<name>\w+)\s*:\s*(?P<value>"(?:[^"\\\n]|\\.)*"|\'(?:[^\'\\\n]|\\.)*\'|[^\s{}"\'#]+)')
_MESSAGE = re.compile(r"(?P<name>\w+)\s*:?\s*\{")
_BLANK = re.compile(r"(?:\s|#[^\n]*|[;,])+")
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r"}


@dataclass(frozen=True, slots=True)
class RunFlags:
    """``flags`` are ``name=value``; ``left_out`` has a name and a reason each."""

    origin: str
    flags: tuple[str, ...]
    left_out: tuple[tuple[str, str], ...]


def read_run_flags(path: Path) -> RunFlags:
    """Return the flags of the run that ``path`` comes from: a file ``*.debug_options``, a directory of
    ``--xla_dump_to``, or what ``hloinspect compile`` wrote (its directory or its manifest). Raises InputError for
    anything else."""
    if path.is_dir():
        if (path / MANIFEST).is_file():
            return _of_manifest(path / MANIFEST, str(path))
        return _of_debug_options(_debug_options_in(path), str(path))
    if path.name == MANIFEST:
        return _of_manifest(path, str(path))
    return _of_debug_options(path, str(path))


def _debug_options_in(directory: Path) -> Path:
    """Return the file of the module that ``inspect`` would look at; of a directory without modules, the only one."""
    try:
        modules = dumped_modules(directory)
        found = sorted(directory.glob(f"*{ENDING}"))
    except OSError as error:
        raise InputError(f"{directory} cannot be read: {error.strerror or error}") from None
    if modules:
        own = directory / f"{choose_module(directory, modules, None).key}{ENDING}"
        if own.is_file():
            return own
    if len(found) == 1:
        return found[0]
    if not found:
        raise InputError(
            f"{directory} holds no *{ENDING}: expected a directory of --xla_dump_to or `hloinspect compile`"
        )
    raise InputError(f"{directory} holds {len(found)} files *{ENDING}, such as {found[0].name}: name one of them")


def _of_debug_options(path: Path, origin: str) -> RunFlags:
    try:
        with path.open("rb") as file:
            data = file.read(_MAX_BYTES + 1)
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror or error}") from None
    expected = f"expected the text of XLA's debug options (*{ENDING} of --xla_dump_to)"
    if len(data) > _MAX_BYTES:
        raise InputError(f"{path} is too large: {expected}")
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError:
        raise InputError(f"{path} is no text: {expected}") from None
    try:
        values = list(fields_of(text))
    except ValueError as error:
        raise InputError(f"{path}: {error}: {expected}") from None
    return _sorted_out(origin, values)


def fields_of(text: str) -> Iterator[tuple[str, str | None]]:
    """Yield (name, value) of each field at the top of a text proto; None for a message. Raises ValueError at what is no
    field."""
    position = 0
    while True:
        blank = _BLANK.match(text, position)
        position = blank.end() if blank else position
        if position >= len(text):
            return
        if field := _FIELD.match(text, position):
            yield field["name"], _plain(field["value"])
            position = field.end()
        elif message := _MESSAGE.match(text, position):
            yield message["name"], None
            position = _end_of_message(text, message.end())
        else:
            raise ValueError(f"line {text.count(chr(10), 0, position) + 1} is no field of a text proto")


def _end_of_message(text: str, position: int) -> int:
    depth = 1
    for token in re.compile(r'"(?:[^"\\\n]|\\.)*"|[{}]').finditer(text, position):
        depth += {"{": 1, "}": -1}.get(token[0], 0)
        if depth == 0:
            return token.end()
    raise ValueError("a message does not end")


def _plain(value: str) -> str:
    if value[0] not in "\"'":
        return value
    return re.sub(r"\\(.)", lambda found: _ESCAPES.get(found[1], found[1]), value[1:-1])


def _of_manifest(path: Path, origin: str) -> RunFlags:
    try:
        manifest = manifest_from_json(read_text(path), path)
    except (OSError, ValueError) as error:
        raise InputError(f"{path} cannot be read: {error}") from None
    words = {True: "true", False: "false"}
    options = manifest.compiler_options.items()
    return _sorted_out(origin, [(name, words[v] if isinstance(v, bool) else str(v)) for name, v in options])


def _sorted_out(origin: str, values: Sequence[tuple[str, str | None]]) -> RunFlags:
    """Return the flags to take and those to leave out. Repeated fields become one flag, with commas, as in
    XLA_FLAGS."""
    taken: dict[str, list[str]] = {}
    left_out: dict[str, str] = {}
    for name, value in values:
        if reason := why_left_out(name, value):
            left_out[name] = reason
        elif value is not None:
            taken.setdefault(name, []).append(value)
    flags = tuple(f"{name}={','.join(value)}" for name, value in taken.items())
    return RunFlags(origin, flags, tuple(left_out.items()))


def why_left_out(name: str, value: str | None) -> str:
    """Return why a flag of a run is not one for this compilation, or ""."""
    for pattern, reason in _LEFT_OUT:
        if pattern.fullmatch(name):
            return reason
    if value is None:
        return "a message, which no flag can give"
    return "a path of the run's machine" if value.startswith("/") else ""
