"""Loads an input: compiles a step, or reads a module, a compiled directory or a dump, with all that came with it.

What only some inputs need is imported where it is used: looking at one small module is to take a fifth of a second.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from hloinspect.errors import CompileError, HloParseError, InputError, UsageError
from hloinspect.hardware import Target, target_of_device
from hloinspect.hlo.load import load_module
from hloinspect.hlo.model import Module
from hloinspect.inputs.classify import COMPILED, DUMP, STEP, Input
from hloinspect.offload.names import OffloadedName, hlo_type_name, with_alternatives, with_names
from hloinspect.offload.transfers import Offload, find_offload
from hloinspect.options import CompileOptions
from hloinspect.placements.requested import Requested, count_requested
from hloinspect.report.placements import RequestedOf, audited
from hloinspect.report.schema import AuditInfo, InputInfo, ProgramInfo, Unknown
from hloinspect.units import listed

if TYPE_CHECKING:
    from hloinspect.inputs.dumps import DumpedModule
    from hloinspect.inputs.manifest import CompileResult


@dataclass(frozen=True, slots=True)
class Loaded:
    """A module and all that came with it. ``target`` names the target that it was compiled for, where that is known;
    ``platform`` is its platform where something else than the module itself says it."""

    info: InputInfo
    module: Module
    program: ProgramInfo = field(default_factory=ProgramInfo)
    target: str | None = None
    devices: int | None = None
    names: tuple[OffloadedName, ...] = ()
    device_bytes: int | None = None
    host_bytes: int | None = None
    limits: tuple[str, ...] = ()
    unknown: tuple[Unknown, ...] = ()
    thunks: tuple[Path | None, Path | None] = (None, None)
    requested: Requested | None = None
    requested_of: RequestedOf = field(default_factory=RequestedOf)
    platform: str = ""
    dumped: DumpedModule | None = None


@dataclass(frozen=True, slots=True)
class Reading:
    """A compiled module that was read, with its transfers and what was requested: all that is known of an input before
    a target comes into it."""

    loaded: Loaded
    offload: Offload
    audit: AuditInfo
    limits: Sequence[str]

    @property
    def has_memory(self) -> bool:
        """Return whether what came with the module says how much device memory XLA has assigned."""
        return self.loaded.device_bytes is not None


def compile_input(
    found: Input, target: Target, options: CompileOptions, on_progress: Callable[[str], None] | None
) -> Loaded:
    """Compile a step and load the result. Raises HloInspectError."""
    import tempfile

    from hloinspect.compile.known_errors import explained
    from hloinspect.compile.launch import compile_named

    with tempfile.TemporaryDirectory(prefix="hloinspect-") as scratch:
        out = options.keep or Path(scratch) / "step"
        try:
            result = compile_named(found.text, target, options, out=out, on_progress=on_progress)
        except CompileError as error:
            raise explained(error) from None
        return _compiled(found, result)


def load_input(found: Input, wanted: str | None) -> Loaded:
    """Load what is compiled already; ``wanted`` picks a module of a dump. Raises HloInspectError."""
    if found.kind == COMPILED:
        from hloinspect.inputs.manifest import load_result

        return _compiled(found, load_result(found.path))
    if found.kind == DUMP:
        return _dumped(found, wanted)
    if wanted is not None:
        raise UsageError("--module picks a module of a dump directory; this input is one module")
    module = load_module(found.text)
    digest = None if found.text == "-" else digest_of(found.path)
    beside = _stablehlo_beside(found.path)
    info = InputInfo(found.text, module.kind, digest)
    return Loaded(info, module, requested=_requested(beside), requested_of=RequestedOf(stablehlo=beside))


def _stablehlo_beside(path: Path) -> Path:
    """Return ``step.stablehlo`` for ``step.hlo`` or ``step.hlo.gz``."""
    stem = path.with_suffix("") if path.suffix in (".gz", ".xz", ".zst") else path
    return stem.with_suffix(".stablehlo")


def _requested(path: Path, unmatched: tuple[str, ...] = (), dead: tuple[str, ...] | None = None) -> Requested | None:
    if not path.is_file():
        return None
    return replace(count_requested(path.read_text(encoding="utf-8", errors="replace")), unmatched=unmatched, dead=dead)


def _unmatched(notes: Sequence[str]) -> tuple[str, ...]:
    """Return the names of a policy that match nothing, from the notes of a compilation."""
    from hloinspect.inputs.manifest import NOTE_POLICY_UNMATCHED

    found = [note for note in notes if note.startswith(NOTE_POLICY_UNMATCHED)]
    return tuple(name for note in found for name in note.removeprefix(f"{NOTE_POLICY_UNMATCHED}: ").split(", "))


def digest_of(path: Path) -> str | None:
    """Return the SHA-256 of a file; None for what is none."""
    if not path.is_file():  # a pipe can be read once
        return None
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _compiled(found: Input, result: CompileResult) -> Loaded:
    from hloinspect.inputs.manifest import MANIFEST
    from hloinspect.placements.flow import requested_in
    from hloinspect.report.program import assigned_bytes, assigned_on_device, limits_of, program_of, unknown_of

    manifest = result.manifest
    requested = requested_in(manifest, result.directory / MANIFEST)
    dead = requested.dead_policies if requested else None
    device_bytes, about_memory = assigned_on_device(manifest)
    return Loaded(
        info=InputInfo(found.text, STEP if found.kind == STEP else COMPILED, manifest.module_sha256),
        module=load_module(result.module_proto),
        program=program_of(manifest),
        target=manifest.target,
        devices=manifest.devices,
        names=tuple(
            OffloadedName(n.name, hlo_type_name(n.dtype), n.shape, n.line, n.column) for n in manifest.offload_names
        ),
        device_bytes=device_bytes,
        host_bytes=assigned_bytes(manifest.memory, "host_"),
        limits=(*limits_of(manifest), *about_memory),
        unknown=unknown_of(manifest),
        thunks=(result.thunk_sequence, result.directory / "thunk_metadata.txt"),
        requested=_requested(result.stablehlo, _unmatched(manifest.notes), dead),
        requested_of=RequestedOf(manifest=requested, stablehlo=result.stablehlo, flags=manifest.xla_flags),
        platform=manifest.platform,
    )


def _profiles_in(folder: Path) -> list[str]:
    """Return the names of the profiles that lie in a dump's directory: the dump is judged, not what they measured."""
    from hloinspect.profiles.nsys.find import other_reports

    try:
        return sorted([*other_reports(folder), *(path.name for path in folder.glob("*.xplane.pb"))])
    except OSError:
        return []


def _dumped(found: Input, wanted: str | None) -> Loaded:
    from hloinspect.inputs.dumps import (
        choose_module,
        dumped_device,
        dumped_memory,
        dumped_modules,
        other_keys,
        read_side_file,
    )
    from hloinspect.memory.assignment import parse_assignment, sum_allocations

    modules = dumped_modules(found.path)
    chosen = choose_module(found.path, modules, wanted)
    memory = dumped_memory(chosen) or sum_allocations(parse_assignment(read_side_file(chosen.buffer_assignment)))
    others = other_keys(modules, chosen)
    limits: tuple[str, ...] = ()
    if others and wanted is None:
        limits = (f"of the dump, {chosen.key} was looked at; --module picks another: {listed(others, 6)}",)
    if profiles := _profiles_in(found.path):
        limits = (
            *limits,
            f"the dump's directory has profiles, which only `hloinspect trace` reads: {listed(profiles, 3)}",
        )
    return Loaded(
        info=InputInfo(str(chosen.module), DUMP, digest_of(chosen.module)),
        module=load_module(chosen.module),
        target=target_of_device(dumped_device(chosen)),
        device_bytes=memory.device_bytes if memory else None,
        host_bytes=memory.host_bytes if memory else None,
        limits=limits,
        thunks=(chosen.thunk_sequence, chosen.thunk_metadata),
        requested_of=RequestedOf(
            before=found.path / f"{chosen.key}.before_optimizations.txt", dump=(found.path, chosen.key)
        ),
        platform=chosen.platform,
        dumped=chosen,
    )


def read(loaded: Loaded) -> Reading:
    """Find the transfers of what is loaded, and what the program has requested."""
    offload = find_offload(loaded.module)
    if loaded.names:
        offload = with_names(offload, loaded.names)
    offload, audit = audited(offload, loaded.requested_of)
    offload = with_alternatives(offload, loaded.names)
    offload, about_thunks = _with_thunks(offload, loaded)
    return Reading(loaded, offload, audit, about_thunks)


def _with_thunks(offload: Offload, loaded: Loaded) -> tuple[Offload, Sequence[str]]:
    """Return the offload with what the thunk sequence beside the module says, and a limit where that cannot be read."""
    sequence, metadata = loaded.thunks
    if sequence is None:
        return offload, ()
    from hloinspect.inputs.dumps import read_side_file
    from hloinspect.offload.thunks import parse_thunks, with_thunks

    try:
        named = read_side_file(metadata) or None
        return with_thunks(offload, parse_thunks(read_side_file(sequence), named)), ()
    except HloParseError as error:
        return offload, (f"{sequence.name} was not used: {error}",)


@contextmanager
def naming_input(path: str) -> Iterator[None]:
    """Add the input's name to errors of the body: a fault inside an instruction shows only when that is first read."""
    try:
        yield
    except HloParseError as error:
        raise InputError(f"{'standard input' if path == '-' else path}: {error}") from None
