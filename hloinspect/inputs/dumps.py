"""Directories that XLA wrote with --xla_dump_to: which module to look at, and what lies beside it.

A dump names its files ``module_0001.jit_train_step.sm_10.0a_gpu_after_optimizations.txt``; everything about one
module shares
the part in front of the backend's name. A run compiles many modules (initialisation, evaluation, tiny helpers), so
the one to look at is the largest that touches host memory, or the one that the user names.
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
    """One module of a dump: its optimized text or proto (the text where both are there, and unpacked if it is there so)
    and the files beside it.

    ``key`` is what its files share, such as ``module_0001.jit_train_step``; ``platform`` is gpu, tpu, cpu, or "" where
    the module's name does not say.
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
    """The optimized modules of a directory, by key. Empty where there are none."""
    files = sorted(path for path in directory.iterdir() if path.is_file())
    names = {path.name: path for path in files}
    chosen: dict[str, tuple[bool, bool, Path]] = {}
    for path in files:
        if match := _OPTIMIZED.fullmatch(path.name):
            # text before proto, and what can be looked into for host memory before what is packed
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
    """Whether a module's file can have host memory in it. Protos and packed files are not looked into and may have."""
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
    """The module that ``wanted`` names (its key, its name, or its number), else the largest that touches host memory,
    else the largest. Raises InputError where nothing or more than one thing is meant."""
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


def side_text(path: Path | None) -> str:
    """The text of a file beside a module, "" where it is missing; of a very large one only the beginning."""
    if path is None:
        return ""
    try:
        with path.open("rb") as file:
            return file.read(_MAX_SIDE_FILE_BYTES).decode("utf-8", "replace")
    except OSError:
        return ""


def dumped_memory(module: DumpedModule) -> DumpedMemory | None:
    """The totals of the memory report by colour (0 is device memory, 5 pinned host memory), or None without one."""
    totals = {int(color): int(size) for color, size in _TOTAL.findall(side_text(module.memory_report))}
    if 0 not in totals:
        return None
    device = sum(size for color, size in totals.items() if color != _HOST_COLOR)
    return DumpedMemory(device, totals.get(_HOST_COLOR, 0))


def dumped_device(module: DumpedModule) -> str:
    """What XLA called the device, such as ``NVIDIA GB200``, or ""."""
    match = _DESCRIPTION.search(side_text(module.target_config))
    return match.group(1) if match else ""


def other_keys(modules: Iterable[DumpedModule], chosen: DumpedModule) -> tuple[str, ...]:
    """Keys of the modules that were not chosen."""
    return tuple(module.key for module in modules if module.key != chosen.key)
