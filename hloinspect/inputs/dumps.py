"""Directories that XLA wrote with --xla_dump_to: which module to read, and the files that belong to it.

A dump names its files ``module_0001.jit_train_step.sm_10.0a_gpu_after_optimizations.txt``. All files of one module
share the part before the backend's name. A run compiles many modules (initialisation, evaluation, small helpers). The
one to read is the module that the user names, or else the largest that touches host memory.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from hloinspect.errors import InputError

_OPTIMIZED = re.compile(
    r"(?P<key>.+?)\.(?:(?:(?:sm_[\d.]+[a-z]?|gfx\w+)_)?(?P<platform>gpu|tpu|cpu)_)?after_optimizations"
    r"(?P<ending>\.txt|\.hlo|\.hlo_proto\.pb|\.hlo\.pb)(?P<packed>\.gz|\.xz|\.zst)?"
)
_TOTAL = re.compile(r"^Memory Space: .*\(color=(\d{1,4})\)\s*\nTotal bytes: (\d{1,18})", re.MULTILINE)
_DESCRIPTION = re.compile(r'device_description_str:\s*"([^"]*)"')
_HOST_COLOR = 5
_MAX_SIDE_FILE_BYTES = 64 << 20
_CHUNK_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class DumpedModule:
    """One module of a dump: its optimized text or proto, and the files that belong to it.

    The text is preferred to the proto, and an unpacked file to a packed one. ``key`` is what its files share, such as
    ``module_0001.jit_train_step``. ``platform`` is gpu, tpu, cpu, or "" where the module's name does not show it.
    """

    key: str
    module: Path
    thunk_sequence: Path | None
    thunk_metadata: Path | None
    memory_report: Path | None
    buffer_assignment: Path | None
    target_config: Path | None
    size_bytes: int
    platform: str = ""


@dataclass(frozen=True, slots=True)
class DumpedMemory:
    """Bytes that XLA assigned, from the memory report: device memory with arguments and results, and pinned host
    memory."""

    device_bytes: int
    host_bytes: int


def dumped_modules(directory: Path) -> tuple[DumpedModule, ...]:
    """Return the optimized modules of a directory, by key. It is empty where there are none."""
    files = sorted(path for path in directory.iterdir() if path.is_file())
    names = {path.name: path for path in files}
    chosen: dict[str, tuple[bool, bool, Path]] = {}
    for path in files:
        if match := _OPTIMIZED.fullmatch(path.name):
            # Text comes before a proto. A file that can be searched for host memory comes before a packed one.
            candidate = (match["ending"] not in (".txt", ".hlo"), match["packed"] is not None, path)
            chosen[match["key"]] = min(chosen.get(match["key"], candidate), candidate)
    return tuple(_with_side_files(key, path, names) for key, (_, _, path) in sorted(chosen.items()))


def _with_side_files(key: str, module: Path, names: dict[str, Path]) -> DumpedModule:
    stem = module.name.partition("after_optimizations")[0] + "after_optimizations"
    return DumpedModule(
        key=key,
        module=module,
        thunk_sequence=names.get(f"{key}.thunk_sequence.txt"),
        thunk_metadata=names.get(f"{key}.thunk_metadata.txt"),
        memory_report=names.get(f"{stem}-memory-usage-report.txt"),
        buffer_assignment=names.get(f"{stem}-buffer-assignment.txt"),
        target_config=names.get(f"{key}.gpu_target_config.pbtxt"),
        size_bytes=module.stat().st_size,
        platform=(match["platform"] or "") if (match := _OPTIMIZED.fullmatch(module.name)) else "",
    )


def touches_host(path: Path) -> bool:
    """Return whether a module's file can contain host memory. It is True for protos and packed files, which are not
    read."""
    if path.suffix not in (".txt", ".hlo"):
        return True
    tail = b""
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            if b"S(5)" in tail + chunk:
                return True
            tail = chunk[-3:]
    return False


def choose_module(directory: Path, modules: Sequence[DumpedModule], wanted: str | None) -> DumpedModule:
    """Return the module that ``wanted`` names by its key, its name or its number.

    Without ``wanted`` it is the largest module that touches host memory, or the largest of all. Raises InputError where
    ``wanted`` names no module or more than one.
    """
    if wanted is None:
        with_host = [module for module in modules if touches_host(module.module)]
        return max(with_host or modules, key=lambda module: module.size_bytes)
    found = [module for module in modules if _answers_to(module, wanted)]
    if len(found) == 1:
        return found[0]
    known = ", ".join(module.key for module in (found or modules)[:8])
    what = "more than one module is" if found else "no module is"
    raise InputError(f"{directory}: {what} named {wanted!r}; there are {known}")


def _answers_to(module: DumpedModule, wanted: str) -> bool:
    number, _, name = module.key.partition(".")
    digits = number.rpartition("_")[2]
    return wanted in (module.key, name or module.key, number) or (
        wanted.isdecimal() and digits.isdecimal() and int(digits) == int(wanted)
    )


def read_side_file(path: Path | None) -> str:
    """Return the text of a file that belongs to a module: "" where it is missing, the beginning of a very large one."""
    if path is None:
        return ""
    try:
        with path.open("rb") as file:
            return file.read(_MAX_SIDE_FILE_BYTES).decode("utf-8", "replace")
    except OSError:
        return ""


def dumped_memory(module: DumpedModule) -> DumpedMemory | None:
    """Return the bytes of device memory (colour 0) and pinned host memory (colour 5) in the memory report, if it
    exists."""
    totals = {int(color): int(size) for color, size in _TOTAL.findall(read_side_file(module.memory_report))}
    if 0 not in totals:
        return None
    device = sum(size for color, size in totals.items() if color != _HOST_COLOR)
    return DumpedMemory(device, totals.get(_HOST_COLOR, 0))


def dumped_device(module: DumpedModule) -> str:
    """Return XLA's name of the device, such as ``NVIDIA GB200``, or ""."""
    match = _DESCRIPTION.search(read_side_file(module.target_config))
    return match.group(1) if match else ""


def other_keys(modules: Iterable[DumpedModule], chosen: DumpedModule) -> tuple[str, ...]:
    """Return the keys of the modules that were not chosen."""
    return tuple(module.key for module in modules if module.key != chosen.key)
