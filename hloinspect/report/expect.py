"""Whether a module is the one that ran: the module of a report, and another one that the user names.

The other one is read from what ``hloinspect compile`` wrote, a directory of ``--xla_dump_to``, a profile, or a file.
form.py says what is compared, and compare.py compares it. XLA's flags and the versions of JAX are compared here, where
both sides show them.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from hloinspect.errors import CompileError, HloParseError, InputError, printable
from hloinspect.hlo.load import load_module, load_module_bytes
from hloinspect.hlo.model import Module
from hloinspect.inputs.classify import COMPILED, DUMP, MODULE, classify, is_trace, is_url
from hloinspect.kinds import ComparedKind
from hloinspect.offload.transfers import Offload, find_offload
from hloinspect.report.build import module_info
from hloinspect.report.compare import (
    DIFFERENT,
    OTHER_KERNELS,
    OTHER_ORDER,
    SAME,
    SAME_TRANSFERS,
    Comparison,
    compare_forms,
)
from hloinspect.report.form import Form, form_of
from hloinspect.report.schema import ExpectedInfo, ProgramInfo, Unknown
from hloinspect.units import listed

if TYPE_CHECKING:
    from hloinspect.inputs.dumps import DumpedModule

__all__ = ["DIFFERENT", "compare_against", "compare_expected", "flags_beside", "unknown_of_difference"]

_MANY_FLAGS = 200
"""Older versions of XLA dump all flags (about 400), also those that nobody has set; newer ones a few."""

_SHOWN_FLAGS = 4
_OFF = frozenset({"false", "off", "default", "0"})
_ON = frozenset({"true", "on", "1"})
_DUMPED: Final = "after_optimizations"


@dataclass(frozen=True, slots=True)
class _Other:
    """A module that the user names, and what is known of how it was made."""

    kind: ComparedKind
    module: Module
    made: ProgramInfo = field(default_factory=ProgramInfo)


def compare_expected(made: ProgramInfo, offload: Offload, expect: str) -> ExpectedInfo:
    """Return how far the module of a profile, which ran, is that of ``expect``. ``made`` is what the profile shows of
    how it was made. Raises HloInspectError where ``expect`` cannot be read."""
    other = _read(expect, offload.program.module.name, "--expect")
    words = ("expected", "ran")
    wanted, ran = _forms(expect, find_offload(other.module), offload)
    about = _about((other.made, made), words)
    result = _info(expect, other, wanted, compare_forms(wanted, ran, words), about, f"of {printable(expect)}")
    if result.status != SAME and made.flags is None and other.made.flags:
        flags = " ".join(other.made.flags)
        return replace(result, differences=(*result.differences, f"a profile holds no XLA flags; expected: {flags}"))
    return result


def compare_against(made: ProgramInfo, offload: Offload, against: str) -> ExpectedInfo:
    """Return how far a module that was compiled is that of ``against``, which ran. ``made`` is how it was compiled.
    Raises HloInspectError where ``against`` cannot be read."""
    other = _read(against, offload.program.module.name, "--against")
    words = ("compiled", "ran")
    compiled, ran = _forms(against, offload, find_offload(other.module))
    about = _about((made, other.made), words)
    return _info(against, other, ran, compare_forms(compiled, ran, words), about, f"that ran ({printable(against)})")


def unknown_of_difference(found: ExpectedInfo, what: str) -> tuple[Unknown, ...]:
    """Return what follows for the figures of a report: nothing where the transfers are the same. ``what`` names the
    module of the report."""
    if found.status != DIFFERENT:
        return ()
    why = f"{what}: {'; '.join(found.differences[:2])}"
    return (Unknown(why, "compile and check the program that is run, with its flags", "transfers"),)


def _forms(path: str, *sides: Offload) -> list[Form]:
    try:
        return [form_of(side) for side in sides]
    except HloParseError as error:
        raise InputError(f"comparing with {path}: {error}") from None


@dataclass(frozen=True, slots=True)
class _About:
    """What differs in how two modules were made: lines, and the number of flags, None where a side does not show its
    flags."""

    lines: tuple[str, ...]
    flags: int | None


def _info(path: str, other: _Other, form: Form, found: Comparison, about: _About, of: str) -> ExpectedInfo:
    """Return the result. ``form`` is that of the other module, and ``of`` what a sentence calls it."""
    return ExpectedInfo(
        path=path,
        status=found.status,
        schedule_hash=module_info(form.offload.program).schedule_hash,
        differences=(*found.differences, *about.lines),
        kind=other.kind,
        text=_sentence(found, of, len(form.schedule)),
        fingerprint=form.fingerprint,
        counts=replace(found.counts, flags=about.flags),
    )


def _sentence(found: Comparison, of: str, instructions: int) -> str:
    """Return the result in a sentence; ``of`` names the other module."""
    counts = found.counts
    if found.status == SAME:
        return f"this is the schedule {of}, kernels included"
    if found.status == OTHER_KERNELS:
        return f"this is the schedule {of}, with other kernels ({counts.kernels:,} of {counts.kernels_of:,})"
    if found.status == OTHER_ORDER:
        return f"these are the instructions {of}, in another order ({counts.order:,} of {instructions:,} moved)"
    if found.status == SAME_TRANSFERS:
        return f"these are the transfers {of}, but not the instructions"
    return f"this is NOT the program {of}"


# ---- how both were made


def _about(made: tuple[ProgramInfo, ProgramInfo], words: tuple[str, str]) -> _About:
    """Return what differs in versions and flags, where both sides show them."""
    lines = []
    for name in ("jax", "jaxlib"):
        had, has = (getattr(one, name) for one in made)
        if had and has and had != has:
            lines.append(f"{name}: {had} {words[0]}, {has} {words[1]}")
    if made[0].flags is None or made[1].flags is None:
        return _About(tuple(lines), None)
    had, has = (_values(one.flags or ()) for one in made)
    found = [
        f"{name}={value} {words[0]}, {has[name]} {words[1]}"
        for name, value in had.items()
        if has.get(name, value) != value
    ]
    for values, others, word in ((had, has, words[0]), (has, had, words[1])):
        if len(values) <= _MANY_FLAGS:
            found += [f"only {word} with {name}={value}" for name, value in values.items() if name not in others]
    if found:
        lines.append(f"flags: {len(found):,} differ: {listed(found, _SHOWN_FLAGS)}")
    return _About(tuple(lines), len(found))


def _values(flags: Sequence[str]) -> Mapping[str, str]:
    """Return the values of those flags that a module depends on, one name and one spelling for each."""
    from hloinspect.compile.flags import aliases_of, compiler_options
    from hloinspect.compile.run_flags import why_left_out

    try:
        options = compiler_options(flags)
    except CompileError:  # a dump's flags are not always flags
        return {}
    found = {}
    for name, value in options.items():
        text = str(value).removeprefix("COLLECTIVE_PIPELINING_MODE_")
        if not why_left_out(name, text):
            word = text.lower()
            found[min(aliases_of(name))] = "false" if word in _OFF else "true" if word in _ON else text
    return found


# ---- reading the other module


def _read(text: str, name: str, option: str) -> _Other:
    """Read a module that the user names. Of several, it is the one of that ``name``, else the one that ran most."""
    if is_url(text):
        from hloinspect.inputs.remote import copied, find_remote

        with copied(find_remote(text)[0]) as path:
            return _in_profile(path, text, name)
    if is_trace(text):
        from hloinspect.profiles.find import find_profiles

        return _in_profile(find_profiles(text)[0], text, name)
    path = Path(text)
    expected = "expected a profile, HLO, or a directory of `hloinspect compile` or of --xla_dump_to"
    if text and ":" not in text and not os.path.exists(text):  # False for a name that is too long, too
        raise InputError(f"{option} {text[:200]}: no such file or directory; {expected}")
    found = classify(str(path.parent) if path.name == "manifest.json" and path.is_file() else text)
    if found.kind == COMPILED:
        return _compiled(found.path)
    if found.kind == DUMP:
        return _in_dump(found.path, name)
    if found.kind != MODULE:
        raise InputError(f"{option} {text}: {expected}")
    if _DUMPED in path.name:
        from hloinspect.inputs.dumps import dumped_modules

        for dumped in dumped_modules(path.parent):
            if dumped.module == path:
                return _Other("dump", load_module(path), ProgramInfo(flags=flags_beside(dumped)))
    return _Other("module", load_module(text))


def _compiled(directory: Path) -> _Other:
    from hloinspect.inputs.manifest import load_result

    result = load_result(directory)
    versions = result.manifest.versions
    made = ProgramInfo(versions.get("jax"), versions.get("jaxlib"), result.manifest.xla_flags)
    return _Other("compiled", load_module(result.module_proto), made)


def _in_dump(directory: Path, name: str) -> _Other:
    from hloinspect.inputs.dumps import choose_module, dumped_modules

    modules = dumped_modules(directory)
    named = [one for one in modules if one.key.partition(".")[2] == name]
    chosen = choose_module(directory, named or modules, None)
    return _Other("dump", load_module(chosen.module), ProgramInfo(flags=flags_beside(chosen)))


def flags_beside(dumped: DumpedModule) -> tuple[str, ...] | None:
    """Return the XLA flags that a dump has of one of its modules, None where it has none that can be read."""
    from hloinspect.compile.run_flags import ENDING, read_run_flags

    path = dumped.module.parent / f"{dumped.key}{ENDING}"
    try:
        return read_run_flags(path).flags if path.is_file() else None
    except InputError:
        return None


def _in_profile(path: Path, text: str, name: str) -> _Other:
    """Read the module of a profile: the one of that name if there is one, else that of the step."""
    from hloinspect.inputs.modules import with_given_modules
    from hloinspect.measure.file import measure_space
    from hloinspect.profiles.open import open_trace
    from hloinspect.profiles.xplane.embedded import embedded_modules, program_names, versions_of

    space = with_given_modules(open_trace(path), ())
    protos, names, versions = embedded_modules(space), program_names(space), versions_of(space)
    named = [number for number in protos if names.get(number) == name]
    proto = protos[named[0]] if len(named) == 1 else None
    if proto is None and protos:
        proto = measure_space(space).module or (next(iter(protos.values())) if len(protos) == 1 else None)
    if proto is None:
        raise InputError(
            f"{text} holds no module of the program that ran, so there is nothing to compare with: give the run's "
            "--xla_dump_to directory, or a profile of JAX with enable_hlo_proto"
        )
    made = ProgramInfo(versions.get("jax"), versions.get("jaxlib"))
    return _Other("profile", load_module_bytes(proto, f"{text}: its module"), made)
