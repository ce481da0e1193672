"""What a compilation leaves behind: a directory of files and the manifest that says how they were made.

The manifest is written last. A directory without one, or whose module does not have the manifest's checksum, is
half-written and is never taken for a result.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from hloinspect.errors import InputError

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

# Notes that other parts of the house look for.
NOTE_NO_AUTOTUNING = "no autotuning without a device: kernels may differ from the deployed ones"
NOTE_OFFLOAD_GONE = "the offload asked for is gone from the optimized module"
NOTE_POLICY_UNMATCHED = "no value of these names was offloaded, though a policy names them"
NOTE_HOST_ARGUMENTS_GONE = "arguments or results asked for in host memory are in device memory"
NOTE_OTHER_RELEASE = "of another release than jaxlib"
NOTE_UNKNOWN_RELEASE = "its release is unknown"
NOTE_NOT_IN_EFFECT = "that the step's code sets is not in effect"
NOTE_IN_EFFECT = "of the environment is in effect, as in a run"
NOTE_UNKNOWN_SHARDINGS = "have no known sharding"
NOTES_THAT_LIMIT = (NOTE_OTHER_RELEASE, NOTE_UNKNOWN_RELEASE, NOTE_NOT_IN_EFFECT, NOTE_IN_EFFECT)
"""A report on the module repeats these among its limits."""


@dataclass(frozen=True, slots=True)
class OffloadName:
    """A ``checkpoint_name`` whose value is moved to host memory.

    ``file``, ``line`` (from 1), ``column`` (from 0, as in XLA's stack frames) and ``function`` are the user's frame
    in which the *value* is computed: the optimized module's transfer has no better one. They are None where the value
    is an argument of the loop or of the step.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    file: str | None
    line: int | None
    column: int | None
    function: str | None


@dataclass(frozen=True, slots=True)
class FlagsFrom:
    """Flags of a production run: where they were read, those that were taken, and (name, reason) of the others."""

    path: str
    flags: tuple[str, ...]
    left_out: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class AutotuneUse:
    """Autotuning results that were given, and what XLA found there: ``missing`` of ``of`` kernels have no entry. ``of``
    is None where at most one is missing: XLA does not count them then."""

    path: str
    sha256: str
    missing: int
    of: int | None


@dataclass(frozen=True, slots=True)
class ProfileUse:
    """A PGLE profile that was given: ``matched`` of the ``of`` costs in it are of instructions of the module."""

    path: str
    sha256: str
    matched: int
    of: int


@dataclass(frozen=True, slots=True)
class ProductionUse:
    """What the production run had and was given here; None for what was not."""

    flags_from: FlagsFrom | None = None
    autotune_results: AutotuneUse | None = None
    pgle: ProfileUse | None = None


@dataclass(frozen=True, slots=True)
class Configuration:
    """What decided a compilation besides the program, the flags and the target's name, as text by name.

    ``compile_options`` are the options that JAX handed to XLA and that are not XLA's defaults, less ``xla_flags`` and
    what hloinspect adds to every compilation. ``compile_options_sha256`` is a hash of all of them, None where this JAX
    does not show them. ``jax`` is JAX's configuration that the environment or the step's code has set, less what enters
    the compile options. ``environment`` has the variables of XLA and libtpu, ``libraries`` version and content of the
    libraries that the compiler is in. Nothing here is a path of the machine.
    """

    compile_options: dict[str, str]
    """Options that JAX hands to XLA and that are not XLA's defaults."""

    compile_options_sha256: str | None
    """A hash of all of these options; null where this JAX does not show them."""

    jax: dict[str, str]
    """The rest of JAX's configuration that a variable or the step's code has set."""

    environment: dict[str, str]
    """Variables of XLA, libtpu, Triton and JAX."""

    libraries: dict[str, str]
    """Version and content of the libraries that the compiler is in."""

    target_config_sha256: str | None
    """A hash of the target's description that XLA gets; null for TPUs."""


@dataclass(frozen=True, slots=True)
class Manifest:
    """How a module was made. ``memory`` has the fields of ``jax.stages.Compiled.memory_analysis()`` under their own
    names.

    ``seconds`` is split into ``import``, ``trace_and_lower`` and ``compile``; ``versions`` has None for what is not
    installed. ``settings`` is what the configuration of a library says of the step (MaxText's), else empty.
    ``compile_notes`` are those of ``notes`` that came while compiling; ``cached``: it was compiled earlier. ``asked``
    is what the step's jaxpr asks of host memory (child/audit.py), empty where that was not read. ``configuration`` is
    None in manifests of before it was kept.
    """

    schema: str
    step: str
    target: str
    platform: str  # "gpu" | "tpu"
    devices: int
    topology: str  # GPU: partitions x hosts x devices per host; TPU: the topology's name
    module_name: str
    module_sha256: str
    versions: dict[str, str | None]
    xla_flags: tuple[str, ...]
    compiler_options: dict[str, bool | int | float | str]
    memory: dict[str, int]
    seconds: dict[str, float]
    peak_rss_bytes: int
    offload_names: tuple[OffloadName, ...]
    notes: tuple[str, ...]
    settings: dict[str, Any] = field(default_factory=dict)
    production: ProductionUse = field(default_factory=ProductionUse)
    compile_notes: tuple[str, ...] = ()
    cached: bool = False
    requested: dict[str, Any] = field(default_factory=dict)
    configuration: Configuration | None = None

    def to_json(self) -> str:
        """The manifest as indented JSON text."""
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
    """The manifest in ``text``. Raises InputError, naming ``path``, where it is not a whole one of this schema."""
    try:
        data = json.loads(text)
    except ValueError as error:
        raise InputError(f"{path} is not JSON: {error}") from None
    schema = data.get("schema") if isinstance(data, dict) else None
    if schema != SCHEMA:
        raise InputError(f"{path} has schema {schema!r}: this version of hloinspect reads {SCHEMA!r}")
    try:
        return _build_manifest(data)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise InputError(f"{path} is not a whole {SCHEMA}: {type(error).__name__}: {error}") from None


def _build_manifest(data: dict[str, Any]) -> Manifest:
    names = tuple(
        OffloadName(**{**entry, "shape": tuple(int(n) for n in entry["shape"])}) for entry in data["offload_names"]
    )
    return Manifest(
        schema=str(data["schema"]),
        step=str(data["step"]),
        target=str(data["target"]),
        platform=str(data["platform"]),
        devices=int(data["devices"]),
        topology=str(data["topology"]),
        module_name=str(data["module_name"]),
        module_sha256=str(data["module_sha256"]),
        versions=dict(data["versions"]),
        xla_flags=tuple(str(flag) for flag in data["xla_flags"]),
        compiler_options=dict(data["compiler_options"]),
        memory={str(k): int(v) for k, v in data["memory"].items()},
        seconds={str(k): float(v) for k, v in data["seconds"].items()},
        peak_rss_bytes=int(data["peak_rss_bytes"]),
        offload_names=names,
        notes=tuple(str(note) for note in data["notes"]),
        settings=dict(data.get("settings", {})),
        production=_build_production(data.get("production") or {}),
        compile_notes=tuple(str(note) for note in data.get("compile_notes", ())),
        cached=bool(data.get("cached", False)),
        requested=dict(data.get("requested") or {}),
        configuration=configuration_from(data.get("configuration")),
    )


def configuration_from(data: dict[str, Any] | None) -> Configuration | None:
    """Return the configuration in a manifest, None where it has none. Raises KeyError, TypeError,
    ValueError and AttributeError where it is not whole."""
    if data is None:
        return None
    texts = {
        name: {str(key): str(value) for key, value in data[name].items()}
        for name in ("compile_options", "jax", "environment", "libraries")
    }
    hashes = {
        name: None if data[name] is None else str(data[name])
        for name in ("compile_options_sha256", "target_config_sha256")
    }
    return Configuration(**texts, **hashes)  # type: ignore[arg-type]


def _build_production(data: dict[str, Any]) -> ProductionUse:
    run, results, profile = (data.get(name) for name in ("flags_from", "autotune_results", "pgle"))
    return ProductionUse(
        FlagsFrom(str(run["path"]), tuple(run["flags"]), tuple((str(a), str(b)) for a, b in run["left_out"]))
        if run
        else None,
        AutotuneUse(**results) if results else None,
        ProfileUse(**profile) if profile else None,
    )


def production_of(request: Mapping[str, Any] | None) -> dict[str, Any]:
    """The manifest's ``production`` of a request's (compile/production.py), after compiling."""
    if not request:
        return asdict(ProductionUse())
    results, profile = request["autotune_results"], request["pgle"]
    return {
        "flags_from": {"path": request["flags_from"], "flags": request["flags"], "left_out": request["left_out"]}
        if request["flags_from"]
        else None,
        "autotune_results": {name: results[name] for name in ("path", "sha256", "missing", "of")} if results else None,
        "pgle": {name: profile[name] for name in ("path", "sha256", "matched", "of")} if profile else None,
    }


def load_result(directory: Path) -> CompileResult:
    """The result that ``compile_step`` wrote to ``directory``.

    Raises InputError where ``manifest.json`` is missing or of an unknown schema, or where the module is not the one
    it describes.
    """
    directory = Path(directory)
    path = directory / MANIFEST
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise InputError(
            f"{directory} holds no {MANIFEST}: it is not a finished result of `hloinspect compile`"
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path} cannot be read: {error}") from None
    manifest = manifest_from_json(text, path)
    result = result_in(directory, manifest)
    _check_files(result)
    return result


def result_in(directory: Path, manifest: Manifest) -> CompileResult:
    """The paths of a result in ``directory``; nothing is read but whether a thunk sequence is there."""
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
