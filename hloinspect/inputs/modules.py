"""Modules that a profile does not carry: from files or dumps that the user names (``--hlo``), or a dump beside it.

A dump's files are called ``module_0040.jit_step.sm_9.0_gpu_after_optimizations.hlo.pb``: the number is the program's id
in the profile, and the name that of its module. Whether a module is the one that ran, its instructions say: what
measures compares them with those of the events (``GivenModule.ops``).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from hloinspect.errors import InputError, UsageError
from hloinspect.hlo.load import DEFAULT_MAX_BYTES, load_module
from hloinspect.inputs.dumps import dumped_modules
from hloinspect.profiles.distinct import distinct_rows
from hloinspect.profiles.xplane import EventMetadata, Plane, XSpace, embedded_modules
from hloinspect.profiles.xplane.embedded import HLO_PROTO, PLANE, PROGRAM_ID, program_id_of
from hloinspect.profiles.xplane.space import PlaneMetadata, StatColumn, StatValue
from hloinspect.units import listed

SOURCE, OPS = "hloinspect source", "hloinspect ops"
"""Names of the statistics of a module that was given: its file, and the instructions that events of its program
name."""

_DEVICES = "/device:"
_KEY = re.compile(r"(?:.*[^0-9])?module_(\d{1,18})\.(.+)")
_NUMBERED = re.compile(r"\(\d{1,20}\)$")
_UNSAFE = re.compile(r"[^A-Za-z0-9_.-]")
_MAX_FOLDERS = 100
_STATS = ("hlo_op", PROGRAM_ID, "hlo_module")


@dataclass(frozen=True, slots=True)
class _Program:
    """A program that events of a profile are of: its number and name, and the instructions that events name."""

    number: int
    name: str
    ops: frozenset[str]


@dataclass(frozen=True, slots=True)
class _Candidate:
    """A module's file. ``number`` is the one in a dump's name, None where it has none or the user named the file."""

    path: Path
    number: int | None
    name: str


@dataclass(frozen=True, slots=True)
class GivenModule:
    """A module that the profile itself does not carry: where it is from, and the instructions that must be in it."""

    source: str
    ops: tuple[str, ...]


def check_given(sources: Sequence[str]) -> None:
    """Raise UsageError where a file or directory that the user names is not there."""
    for source in sources:
        try:
            is_there = Path(source).exists()
        except (OSError, ValueError):
            is_there = False
        if not source or not is_there:
            raise UsageError(f"--hlo {source}: no such file or directory")


def given_modules(space: XSpace) -> Mapping[int, GivenModule]:
    """Return by program which modules of a profile come from elsewhere."""
    found: dict[int, GivenModule] = {}
    for plane in space.planes:
        for kind in plane.events.values() if plane.name == PLANE else ():
            source, ops, number = kind.stats.get(SOURCE), kind.stats.get(OPS), program_id_of(kind)
            if isinstance(source, str) and isinstance(ops, str) and number is not None:
                found[number] = GivenModule(source, tuple(filter(None, ops.split("\n"))))
    return found


def with_given_modules(space: XSpace, sources: Sequence[str], *, look_beside: bool = True) -> XSpace:
    """Return the profile with the modules of its programs that it lacks, as far as ``sources`` have them.

    Without sources a dump beside a profile that carries no module is taken (``look_beside``): in its directory, or in a
    directory there that is called ``dump`` or the like. Notes say what was taken, and what was named and is not used.
    Raises InputError where a named file is no module.
    """
    places = [Path(source) for source in sources] or (_beside(Path(space.path)) if look_beside else [])
    known = embedded_modules(space)
    # A profile either carries modules or it does not. To see which programs ran, all its events would have to be read.
    if not places or (known and not sources):
        return space
    lacking = [program for program in _programs(space) if program.number not in known]
    if not lacking:
        said = "the profile carries the modules of its programs: --hlo is not used"
        return replace(space, notes=(*space.notes, said)) if sources else space
    candidates = [candidate for place in places for candidate in _candidates(place)]
    found: dict[int, tuple[_Program, _Candidate]] = {}
    for program in lacking:
        if (chosen := _chosen(program, candidates)) is not None:
            found[program.number] = (program, chosen)
    notes = _notes(lacking, found, candidates, bool(sources))
    return _with_modules(replace(space, notes=(*space.notes, *notes)), found)


# ---- which module


def _beside(profile: Path) -> list[Path]:
    """Return the directories beside a profile that hold a dump."""
    try:
        home = profile.resolve().parent if profile.is_file() else profile.resolve()
        inner = [entry for entry in home.iterdir() if "dump" in entry.name.lower() and entry.is_dir()]
        return [place for place in (home, *sorted(inner)[:_MAX_FOLDERS]) if dumped_modules(place)]
    except (OSError, ValueError):
        return []


def _candidates(place: Path) -> Iterator[_Candidate]:
    """Yield the modules of a file or directory. Raises InputError for a named file that is no module."""
    if not place.is_dir():
        yield _Candidate(place, None, load_module(place).name)
        return
    folder = next((own for own in (place, place / "dump") if own.is_dir() and dumped_modules(own)), place)
    for module in dumped_modules(folder):
        match = _KEY.fullmatch(module.key)
        yield _Candidate(module.module, int(match[1]) if match else None, match[2] if match else module.key)
    compiled = place / "module.hlo.txt"  # of `hloinspect compile`
    if compiled.is_file():
        yield _Candidate(compiled, None, load_module(compiled).name)


def _chosen(program: _Program, candidates: Sequence[_Candidate]) -> _Candidate | None:
    """Return the module of a program: the file of its number and name, or else the only file of its name.

    Where a profile does not name the module of a program, any name will do.
    """
    named = [own for own in candidates if not program.name or _safe(own.name) == _safe(program.name)]
    exact = [candidate for candidate in named if candidate.number == program.number]
    given = [candidate for candidate in named if candidate.number is None]
    if exact:
        return exact[0]
    if given and program.name:
        return given[0]
    return named[0] if len(named) == 1 else None


def _safe(name: str) -> str:
    """Return a name as a dump writes it into a file's name."""
    return _UNSAFE.sub("_", name)


def _notes(
    lacking: Sequence[_Program],
    found: Mapping[int, tuple[_Program, _Candidate]],
    candidates: Sequence[_Candidate],
    is_named: bool,
) -> list[str]:
    notes = []
    if found and not is_named:
        folders = sorted({str(candidate.path.parent) for _, candidate in found.values()})
        notes.append(f"modules are of the dump beside the profile: {listed(folders, 2)}")
    for program, candidate in found.values():
        if candidate.number is not None and candidate.number != program.number:
            notes.append(f"the module of program {program.number} was found by its name only: {candidate.path.name}")
    if is_named and not found:
        ran = listed(sorted({program.name or "?" for program in lacking}), 3)
        given = listed(sorted({candidate.name for candidate in candidates}) or ["no module"], 3)
        notes.append(f"--hlo has no module of a program in the profile: it ran {ran}, and there is {given}")
    return notes


# ---- programs of a profile


def _programs(space: XSpace) -> list[_Program]:
    """Return the programs that a profile's events are of."""
    names: dict[int, str] = {}
    ops: dict[int, set[str]] = {}
    for plane in space.planes:
        if plane.name == PLANE:
            for kind in plane.events.values():
                number = program_id_of(kind)
                if number is not None:
                    names[number] = _NUMBERED.sub("", kind.name)
        elif plane.name.startswith(_DEVICES):
            _add_kinds(plane, names, ops)
            _add_events(plane, names, ops)
    return [_Program(number, names.get(number, ""), frozenset(ops.get(number, ()))) for number in {**names, **ops}]


def _add_kinds(plane: Plane, names: dict[int, str], ops: dict[int, set[str]]) -> None:
    """Add what kinds of events say: a TPU's operations have their program there, and its runs their module's name."""
    for kind in plane.events.values():
        number = program_id_of(kind)
        if number is not None and PROGRAM_ID in kind.stats:
            ops.setdefault(number, set()).add(kind.display_name or kind.name)
        elif number is not None:
            names.setdefault(number, _NUMBERED.sub("", kind.name))


def _add_events(plane: Plane, names: dict[int, str], ops: dict[int, set[str]]) -> None:
    for line in plane.lines:
        columns = line.columns(_STATS)
        program = columns.stats[PROGRAM_ID]
        if not program.present.any():
            continue
        for stat, home in (("hlo_op", ops), ("hlo_module", None)):
            column = columns.stats[stat]
            _, (numbers, kinds, bits) = distinct_rows((program.integers(), column.kinds.astype(np.int64), column.bits))
            few = StatColumn(kinds.astype(np.uint8), bits, column.texts, column.names)
            for number, code in zip(numbers.tolist(), (labels := few.labels())[0].tolist(), strict=True):
                text = labels[1][code] if code >= 0 else ""
                if text and home is None:
                    names.setdefault(number, text)
                elif text and home is not None:
                    home.setdefault(number, set()).add(text)


# ---- putting modules into the profile


def _with_modules(space: XSpace, found: Mapping[int, tuple[_Program, _Candidate]]) -> XSpace:
    if not found:
        return space
    old = next((plane for plane in space.planes if plane.name == PLANE), None)
    kinds = dict(old.events) if old else {}
    kept = {number: kind for number, kind in kinds.items() if program_id_of(kind) not in found}
    first = max(kinds, default=0) + 1
    for place, (program, candidate) in enumerate(found.values(), first):
        stats: dict[str, StatValue] = {
            PROGRAM_ID: program.number,
            HLO_PROTO: _content(candidate.path),
            SOURCE: str(candidate.path),
            OPS: "\n".join(sorted(program.ops)),
        }
        kept[place] = EventMetadata(place, f"{program.name}({program.number % (1 << 64)})", program.name, stats)
    metadata = PlaneMetadata(kept, old.metadata.stat_names if old else {}, old.stats if old else {})
    plane = Plane(old.id if old else len(space.planes) + 1, PLANE, old.lines if old else (), lambda: metadata)
    others = tuple(other for other in space.planes if other is not old)
    return replace(space, planes=(*others, plane))


def _content(path: Path) -> bytes:
    """Return a module's file as it is, packed or not. Raises InputError."""
    try:
        size = path.stat().st_size
        if size > DEFAULT_MAX_BYTES:
            raise InputError(f"{path}: expected a module of at most {DEFAULT_MAX_BYTES:,} bytes, found {size:,}")
        return path.read_bytes()
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror or error}") from None
