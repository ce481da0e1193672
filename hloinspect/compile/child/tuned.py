"""Compile with what the production run had, and say what XLA used of it (child process only).

XLA says nothing when it finds no entry of its autotuning results for a kernel, or when a profile is of another module.
It does say so when ``xla_gpu_require_complete_aot_autotune_results`` is on: it refuses, with the number of kernels that
have none. So it compiles once with that flag, and again without it where it has refused.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeVar

from msgspec.structs import replace

from hloinspect.compile.flags import Option, name_of_flag
from hloinspect.compile.production import LEGACY, costs_of
from hloinspect.compile.protocol import AutotuneResults, Compilation, ProductionRun, Profile
from hloinspect.compile.run_flags import EXPECTED
from hloinspect.errors import InputError
from hloinspect.inputs.manifest import AutotuneUse, FlagsFrom, ProductionUse, ProfileUse

Compiled = TypeVar("Compiled")

LOAD, COMPLETE = "xla_gpu_load_autotune_results_from", "xla_gpu_require_complete_aot_autotune_results"
PROFILE = "xla_gpu_pgle_profile_file_or_directory_path"
NEW_FORMAT = "xla_gpu_use_new_autotune_cache_format"

_MISSING = re.compile(r"Failed to get configs for: (\d+) out of (\d+) instructions|No cached config found for HLO")
_UNREADABLE = re.compile(r"autotune results|AutotuneCache|AutotuneResults")
_FINGERPRINT = re.compile(r'fingerprint_before_lhs="([0-9a-f]+)"')
_NAMES = re.compile(r'scheduling_name="([^"]+)"|^\s+(?:ROOT )?%([^\s=]+) = ', re.MULTILINE)


class TunedError(Exception):
    """XLA cannot read what it was given: the one line that the user sees."""


def compile_with(
    given: ProductionRun | None,
    scratch: Path,
    compile: Callable[[Mapping[str, Option]], Compiled],
    keeps_dump: bool = False,
) -> tuple[Compiled, AutotuneUse | None]:
    """Return what ``compile`` returns for the options that ``given`` stands for, and what XLA found of the autotuning
    results.

    ``keeps_dump``: somebody wants what XLA dumps, and that of one compilation only. Raises TunedError, and whatever
    ``compile`` raises.
    """
    options: dict[str, Option] = {}
    if given and given.pgle:
        options[PROFILE] = _profile_for_xla(given.pgle, scratch)
    results = given.autotune_results if given else None
    if not results:
        return compile(options), None
    # XLA goes by the name's ending, and a dump calls its text .pbtxt
    copy = scratch / ("autotune_results.txt" if results.text else "autotune_results.pb")
    copy.write_bytes(Path(results.file).read_bytes())
    options[LOAD] = str(copy)
    elsewhere = {"xla_dump_to": str(scratch / "requested")} if keeps_dump else {}
    try:
        compiled = compile({**options, **elsewhere, COMPLETE: True})
    except Exception as error:
        missing = _MISSING.search(str(error))
        if missing is None:
            if _UNREADABLE.search(str(error)):
                raise TunedError(f"XLA cannot read {results.path}: {str(error).splitlines()[0]}") from error
            raise
        if missing[1] is None:  # of a single one XLA says only which it is
            use = AutotuneUse(results.path, results.sha256, 1, None)
        else:
            use = AutotuneUse(results.path, results.sha256, int(missing[1]), int(missing[2]))
        return compile(options), use
    use = AutotuneUse(results.path, results.sha256, 0, None)
    return (compile(options) if keeps_dump else compiled), use


def _profile_for_xla(profile: Profile, scratch: Path) -> str:
    """Return a directory as it is; a file under a name with the ending that XLA goes by: .pbtxt or .pb, all others it
    leaves unread."""
    if profile.directory:
        return profile.file
    copy = scratch / ("profile.pbtxt" if profile.text else "profile.pb")
    copy.write_bytes(Path(profile.file).read_bytes())
    return str(copy)


def without_flag_of_run(
    compilation: Compilation, options: Mapping[str, Option], error: Exception
) -> tuple[Compilation, dict[str, Option]] | None:
    """Return the compilation and the options without the flag that this XLA refuses, where the flag is one of the
    production run's and not the user's own; None where it is not."""
    given = compilation.production
    refused = re.search(r"(No such compile option: '|While setting option )(\w+)", str(error))
    name = refused[2] if refused else ""
    flag = next((flag for flag in given.flags if name_of_flag(flag) == name), None) if given else None
    if refused is None or given is None or flag is None:
        return None
    reason = "this XLA does not know it" if refused[1].startswith("No such") else "this XLA does not take its value"
    production = replace(
        given,
        flags=tuple(other for other in given.flags if other != flag),
        left_out=(*given.left_out, (name, reason)),
    )
    without = replace(
        compilation,
        xla_flags=tuple(other for other in compilation.xla_flags if other != flag),
        compiler_options={other: value for other, value in compilation.compiler_options.items() if other != name},
        production=production,
    )
    return without, {other: value for other, value in options.items() if other != name}


def profile_use(given: ProductionRun | None, module_text: str) -> ProfileUse | None:
    """Return how many costs of the profile there are, and how many name an instruction of the module; None without a
    profile.

    Of a directory XLA reads the file that has the fingerprint of the module for its name; without it ``of`` is 0.
    """
    profile = given.pgle if given else None
    if not profile:
        return None
    path = Path(profile.file)
    if profile.directory:
        fingerprint = _FINGERPRINT.search(module_text)
        names = [f"{fingerprint[1]}{ending}" for ending in (".pbtxt", ".pb")] if fingerprint else []
        path = next((path / name for name in names if (path / name).is_file()), Path())
    try:
        costs = costs_of(path.read_bytes(), path) if path.is_file() else ()
    except InputError as error:
        raise TunedError(str(error)) from None
    names_of_module = {name for found in _NAMES.findall(module_text) for name in found if name}
    return ProfileUse(profile.path, profile.sha256, len(names_of_module.intersection(costs)), len(costs))


def production_use(
    given: ProductionRun | None, results: AutotuneUse | None, profile: ProfileUse | None
) -> ProductionUse:
    """Return what the manifest says of the production run."""
    if given is None:
        return ProductionUse()
    flags = FlagsFrom(given.flags_from, given.flags, given.left_out) if given.flags_from else None
    return ProductionUse(flags, results, profile)


def notes_of(given: ProductionRun | None, use: ProductionUse) -> list[str]:
    """Return the notes on it for the manifest."""
    if given is None:
        return []
    notes = []
    if left_out := [f"{name} ({reason})" for name, reason in given.left_out if reason not in EXPECTED]:
        notes.append(f"flags of {given.flags_from} that were left out: {', '.join(left_out)}")
    if given.autotune_results and use.autotune_results:
        found = _found(given.autotune_results, use.autotune_results)
        notes.append(f"autotuning results of {given.autotune_results.path}: {found}")
    if use.pgle:
        notes.append(f"PGLE profile {use.pgle.path}: {_matched(use.pgle)}")
    return notes


def _found(results: AutotuneResults, use: AutotuneUse) -> str:
    missing, of = use.missing, use.of
    if not missing:
        return "found for every kernel"
    if of is None:
        said = "found for every kernel but one (or for none, where there is only one)"
    else:
        said = f"found for {of - missing} of {of} kernels"
    if results.message != LEGACY or (of is not None and missing < of):
        return said
    devices = "; ".join(results.devices[:2])
    return (
        f"{said}; they may be of another XLA or for another device ({devices}), and jax 0.12 and newer read "
        f"{LEGACY} only with --{NEW_FORMAT}=false"
    )


def _matched(profile: ProfileUse) -> str:
    if profile.of:
        return f"{profile.matched} of its {profile.of} costs are of instructions of this module"
    return "it has no file with this module's fingerprint, so none was read"
