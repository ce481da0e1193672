"""Modules in an archive of nsys-jax: those that XLA dumped, of programs that ran."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from hloinspect.errors import InputError, printable
from hloinspect.hlo.load import DEFAULT_MAX_BYTES, load_module_bytes
from hloinspect.hlo.model import Computation, Module
from hloinspect.profiles.nsys.archive_members import Members, unpacked
from hloinspect.profiles.nsys.archive_ranges import Program

MAX_TOTAL_BYTES = 1 << 31
"""Most bytes of all modules of an archive together, unpacked."""

_MODULE = re.compile(r"(?:dump/)?module_(\d{1,9})\.(.+)after_optimizations\.(?:hlo\.pb|txt)(?:\.xz|\.gz)?(?:/.*)?")
_TARGET = re.compile(r"(?:dump/)?(.*)target_config\.pbtxt(?:\.xz|\.gz)?(?:/.*)?")
_DEVICE = re.compile(r'^device_description_str: "([^"\n]{1,200})"', re.MULTILINE)
_COLLECTIVE = re.compile(
    r"(?:all-gather|all-reduce|all-to-all|reduce-scatter|ragged-all-to-all|collective-permute|collective-broadcast)\b"
)
_START = re.compile(r".*-start(?:\..*)?")
_SMALL_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class DumpedModule:
    """A module that ran: its content, and what the reader needs of it.

    ``asynchronous`` are the names of all instructions that run beside others: async starts, and what is in the
    computations that they call. ``has_host_memory`` says whether any value of it is in host memory (``S(5)``).
    """

    data: bytes
    asynchronous: frozenset[str]
    has_host_memory: bool


@dataclass(frozen=True, slots=True)
class Modules:
    """The modules of an archive by program, and why others are missing."""

    found: Mapping[Program, DumpedModule]
    notes: tuple[str, ...]


def read_modules(members: Members, programs: Sequence[Program]) -> Modules:
    """Return the modules of these programs. The number in a dump's name is the program's, and its name the module's.

    A module that cannot be read is named in a note. Of files that differ between processes the first one counts.
    """
    by_number: dict[int, list[tuple[str, str]]] = {}
    for name in members.names():
        if match := _MODULE.fullmatch(name):
            by_number.setdefault(int(match[1]), []).append((match[2], name))
    found: dict[Program, DumpedModule] = {}
    notes: list[str] = []
    total = 0
    for program in programs:
        candidates = by_number.get(program.number, [])
        own = [full for rest, full in candidates if rest == f"{program.name}." or rest.startswith(f"{program.name}.")]
        if not own or program.number < 0:
            continue
        shown = f"{members.path}: {printable(own[0])}"
        try:
            data = unpacked(members.read(own[0], DEFAULT_MAX_BYTES), shown, DEFAULT_MAX_BYTES)
            total += len(data)
            if total > MAX_TOTAL_BYTES:
                raise InputError(
                    f"{members.path}: its modules have more than {MAX_TOTAL_BYTES:,} bytes: others are left out"
                )
            found[program] = _described(data, load_module_bytes(data, shown))
        except InputError as error:
            notes.append(str(error))
            if total > MAX_TOTAL_BYTES:
                break
    return Modules(found, tuple(notes))


def device_name(members: Members, program: Program | None) -> str:
    """Return the name of the GPU for which a program was compiled (``*gpu_target_config.pbtxt``), or ""."""
    found = [(match[1], name) for name in members.names() if (match := _TARGET.fullmatch(name))]
    if program is not None:
        found.sort(key=lambda entry: not entry[0].startswith(f"module_{program.number:04d}.{program.name}."))
    for _, name in found[:1]:
        shown = f"{members.path}: {name}"
        try:
            text = unpacked(members.read(name, _SMALL_BYTES), shown, _SMALL_BYTES).decode("utf-8", "replace")
        except InputError:
            return ""
        match = _DEVICE.search(text)
        return match[1] if match else ""
    return ""


def is_asynchronous(op: str, module: DumpedModule | None) -> bool:
    """Return whether an instruction runs beside others: by its module, or else by its name.

    The name of a collective inside of an async start does not say that it is asynchronous, and such ones are the rule.
    """
    if module is not None:
        return op in module.asynchronous
    return bool(_START.fullmatch(op) or _COLLECTIVE.match(op))


def is_collective(op: str) -> bool:
    """Return whether an instruction's name is that of a collective."""
    return bool(_COLLECTIVE.match(op))


def _described(data: bytes, module: Module) -> DumpedModule:
    started: list[str] = []
    names: set[str] = set()
    has_host_memory = False
    for computation in module.computations.values():
        has_host_memory = has_host_memory or bool(computation.may_touch_host())
        for index in computation.ending_in("-start"):
            instruction = computation.instruction(index)
            if instruction.start_of:
                names.add(instruction.name)
                started += instruction.called_names if instruction.is_generic_async_start else ()
    return DumpedModule(data, frozenset(names | _names_in(module.computations, started)), has_host_memory)


def _names_in(computations: Mapping[str, Computation], wanted: Collection[str]) -> set[str]:
    """Return the names of all instructions in these computations, and in those that they call."""
    names: set[str] = set()
    waiting, seen = list(wanted), set(wanted)
    while waiting:
        computation = computations.get(waiting.pop())
        for instruction in computation or ():
            names.add(instruction.name)
            new = set(instruction.called_names) - seen
            seen |= new
            waiting += new
    return names
