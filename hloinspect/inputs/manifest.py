"""What a compilation leaves behind: a directory of files, and the manifest that says how they were made.

The manifest is written last. A directory without one, or whose module does not have the manifest's checksum, is
half-written and is never taken for a result. The types here are those that a manifest is checked against when it is
read.
"""

from __future__ import annotations

import hashlib
import json
import shlex
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Final, Literal, TypedDict

from hloinspect.decoding import (
    Complete,
    Count,
    Fault,
    NonNegative,
    Pattern,
    Positive,
    decode,
    newer_version,
    parse_json,
    read_text,
    shown,
)
from hloinspect.errors import InputError, printable
from hloinspect.kinds import Platform

SCHEMA = "hloinspect.manifest/1"

MANIFEST = "manifest.json"
MODULE_TEXT = "module.hlo.txt"
MODULE_PROTO = "module.hlo.pb"
STABLEHLO = "module.stablehlo.mlir"
THUNK_SEQUENCE = "thunk_sequence.txt"
THUNK_METADATA = "thunk_metadata.txt"
FILES = (MODULE_TEXT, MODULE_PROTO, STABLEHLO, THUNK_SEQUENCE, THUNK_METADATA, MANIFEST)

# What becomes of the values that the step's policies offload: as they say, recomputed, or kept on the device.
OFFLOAD: Final = "offload"
REMAT: Final = "remat"
SAVE: Final = "save"

# Beginnings or parts of notes that other rooms look for.
NOTE_NO_AUTOTUNING = "no autotuning without a device: kernels may differ from the deployed ones"
NOTE_OFFLOAD_GONE = "the requested offload is gone from the optimized module"
NOTE_POLICY_UNMATCHED = "no value of these names was offloaded, though a policy names them"
NOTE_HOST_ARGUMENTS_GONE = "arguments or results requested in host memory are in device memory"
NOTE_OTHER_RELEASE = "of another release than jaxlib"
NOTE_UNKNOWN_RELEASE = "its release is unknown"
NOTE_NOT_IN_EFFECT = "that the step's code sets is not in effect"
NOTE_IN_EFFECT = "of the environment is in effect, as in a run"
NOTE_UNKNOWN_SHARDINGS = "have no known sharding"
NOTES_THAT_LIMIT = (NOTE_OTHER_RELEASE, NOTE_UNKNOWN_RELEASE, NOTE_NOT_IN_EFFECT, NOTE_IN_EFFECT)
"""A report on the module repeats these among its limits."""


OLDER_KEYS = frozenset({"asked", "asks", "outers", "apart"})
"""Keys of manifests that older versions wrote."""

_MOST_WORD = 200

_PARTS = ("argument", "temp", "output", "alias")
MemoryStats = Annotated[
    dict[Annotated[str, Pattern(r"\w+_in_bytes", "a name that ends in _in_bytes")], Count],
    Complete(tuple(f"{where}{part}_size_in_bytes" for where in ("", "host_") for part in _PARTS)),
]
"""The fields of ``jax.stages.Compiled.memory_analysis()`` under their own names."""

Phase = Literal["import", "trace_and_lower", "compile"]
Seconds = Annotated[dict[Phase, NonNegative], Complete(("import", "trace_and_lower", "compile"))]

Versions = Annotated[
    dict[Literal["hloinspect", "jax", "jaxlib", "python", "plugin", "ptxas"], str | None],
    Complete(("hloinspect", "jax", "jaxlib", "python", "plugin")),
]
"""Versions by what they are of; None for what is not installed. ``ptxas`` is there only for a GPU."""

Option = bool | int | float | str
"""The value of a compiler option."""


class MaxTextSettings(TypedDict, total=False):
    """What MaxText's configuration says of a step; None for a key that this MaxText does not have."""

    library: Literal["MaxText"]
    version: str | None
    model_name: Option | None
    remat_policy: Option | None
    scan_layers: Option | None
    attention: Option | None
    per_device_batch_size: NonNegative | None
    max_target_length: Count | None
    tensors_on_device: tuple[str, ...]


Settings = Annotated[MaxTextSettings, Complete(tuple(MaxTextSettings.__annotations__), or_empty=True)]


@dataclass(frozen=True, slots=True)
class OffloadName:
    """A ``checkpoint_name`` whose value is moved to host memory.

    ``file``, ``line`` (from 1), ``column`` (from 0, as in XLA's stack frames) and ``function`` are the user's frame
    in which the *value* is computed: the optimized module's transfer has no better one. They are None where the value
    is an argument of the loop or of the step.
    """

    name: str
    dtype: str
    shape: tuple[Count, ...]
    file: str | None
    line: Count | None
    column: Count | None
    function: str | None


@dataclass(frozen=True, slots=True)
class FlagsFrom:
    """Flags of a production run: where they were read, those that were taken, and name and reason of the others."""

    path: str
    flags: tuple[str, ...]
    left_out: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class AutotuneUse:
    """Autotuning results that were given, and what XLA found there: ``missing`` of ``of`` kernels have no entry. ``of``
    is None where at most one is missing: XLA does not count them then."""

    path: str
    sha256: str
    missing: Count
    of: Count | None


@dataclass(frozen=True, slots=True)
class ProfileUse:
    """A PGLE profile that was given: ``matched`` of the ``of`` costs in it are of instructions of the module."""

    path: str
    sha256: str
    matched: Count
    of: Count


@dataclass(frozen=True, slots=True)
class ProductionUse:
    """What the production run had and was given here; None for what was not."""

    flags_from: FlagsFrom | None = None
    autotune_results: AutotuneUse | None = None
    pgle: ProfileUse | None = None


@dataclass(frozen=True, slots=True)
class Configuration:
    """What decided a compilation besides the program, the flags and the target's name, as text by name. Nothing here is
    a path of the machine."""

    compile_options: dict[str, str]
    """Options that JAX hands to XLA and that are not XLA's defaults, less ``xla_flags`` and what hloinspect adds to
    every compilation."""

    compile_options_sha256: str | None
    """A hash of all of these options; null where this JAX does not show them."""

    jax: dict[str, str]
    """JAX's configuration that a variable or the step's code has set, less what is in ``compile_options``."""

    environment: dict[str, str]
    """Variables of XLA, libtpu, Triton and JAX."""

    libraries: dict[str, str]
    """Version and content of the libraries that the compiler is in."""

    target_config_sha256: str | None
    """A hash of the target's description that XLA gets; null for TPUs."""


@dataclass(frozen=True, slots=True)
class Manifest:
    """How a module was made.

    ``settings`` is what the configuration of a library says of the step (MaxText's), else empty. ``compile_notes`` are
    those of ``notes`` that came while compiling. ``cached`` says that it was compiled earlier. ``requested`` is what
    the step's jaxpr requests of host memory, empty where that was not read; placements/flow.py decodes it.
    ``configuration`` is None where an older version kept none.
    """

    schema: str
    step: str
    target: str
    platform: Platform
    devices: Positive
    topology: str  # GPU: partitions x hosts x devices per host; TPU: the topology's name
    module_name: str
    module_sha256: str
    versions: Versions
    xla_flags: tuple[str, ...]
    compiler_options: dict[str, Option]
    memory: MemoryStats
    seconds: Seconds
    peak_rss_bytes: Count
    offload_names: tuple[OffloadName, ...]
    notes: tuple[str, ...]
    settings: Settings = field(default_factory=MaxTextSettings)
    production: ProductionUse = field(default_factory=ProductionUse)
    compile_notes: tuple[str, ...] = ()
    cached: bool = False
    requested: dict[str, object] = field(default_factory=dict)
    configuration: Configuration | None = None

    def to_json(self) -> str:
        """Return the manifest as indented JSON text."""
        return json.dumps(asdict(self), indent=1) + "\n"


@dataclass(frozen=True, slots=True)
class CompileResult:
    """Paths of the files of one compilation, all inside ``directory``. ``thunk_sequence`` is None on TPU."""

    directory: Path
    module_text: Path
    module_proto: Path
    stablehlo: Path
    thunk_sequence: Path | None
    manifest: Manifest


def manifest_from_json(text: str, path: Path) -> Manifest:
    """Return the manifest in ``text``. Raises InputError, which names ``path`` and the field, where it is not a whole
    one of this schema."""
    try:
        data = parse_json(text)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path} is not JSON: {printable(str(error))}") from None
    schema = data.get("schema") if isinstance(data, dict) else None
    if schema != SCHEMA:
        raise InputError(f"{path} has schema {shown(schema)}: this version of hloinspect reads {SCHEMA!r}")
    try:
        return decode(data, Manifest, newer=_newer(data), older=OLDER_KEYS)
    except Fault as fault:
        raise not_whole(path, fault, data) from None


def _newer(data: object) -> str:
    """Return the version that wrote a manifest where it is newer than this one, else ""."""
    versions = data.get("versions") if isinstance(data, dict) else None
    return newer_version(versions.get("hloinspect")) if isinstance(versions, dict) else ""


def not_whole(path: Path, fault: Fault, data: object) -> InputError:
    """Return the error for a manifest with a fault in it. Of a key that is missing or unknown it says how the manifest
    is made anew: an older version may have written it."""
    how = ""
    if fault.key and not _newer(data) and isinstance(data, dict):
        words = [data.get("step"), "--target", data.get("target"), "--devices", data.get("devices")]
        command = " ".join(shlex.quote(printable(str(word))[:_MOST_WORD]) for word in words)
        when = "" if fault.key in OLDER_KEYS else "if an older version wrote it, "
        how = f"; {when}make it anew: `hloinspect compile {command} -o {path.parent}`"
    return InputError(f"{path} is not a whole {SCHEMA}: {fault}{how}")


def load_result(directory: Path) -> CompileResult:
    """Return the result that ``compile_step`` wrote to ``directory``.

    Raises InputError where ``manifest.json`` is missing or of an unknown schema, or where the module is not the one
    it describes.
    """
    directory = Path(directory)
    path = directory / MANIFEST
    try:
        text = read_text(path)
    except FileNotFoundError:
        raise InputError(
            f"{directory} holds no {MANIFEST}: it is not a finished result of `hloinspect compile`"
        ) from None
    except (OSError, ValueError) as error:
        raise InputError(f"{path} cannot be read: {error}") from None
    manifest = manifest_from_json(text, path)
    result = result_in(directory, manifest)
    _check_files(result)
    return result


def result_in(directory: Path, manifest: Manifest) -> CompileResult:
    """Return the paths of a result in ``directory``. All that is looked at is whether a thunk sequence is there."""
    thunks = directory / THUNK_SEQUENCE
    return CompileResult(
        directory=directory,
        module_text=directory / MODULE_TEXT,
        module_proto=directory / MODULE_PROTO,
        stablehlo=directory / STABLEHLO,
        thunk_sequence=thunks if thunks.exists() else None,
        manifest=manifest,
    )


def _check_files(result: CompileResult) -> None:
    for path in (result.module_text, result.module_proto, result.stablehlo):
        if not path.is_file():
            raise InputError(f"{path} is missing: the result in {result.directory} is not whole")
    with result.module_text.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if digest != result.manifest.module_sha256:
        raise InputError(f"{result.module_text} is not the module that {MANIFEST} describes (its checksum differs)")
