"""Facts of an export about the machine and the capture: GPUs, host, time of the session, settings, warnings."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hloinspect.profiles.nsys.database import Cell, Database
from hloinspect.profiles.xplane.space import StatValue

META = ("META_DATA_EXPORT", "EXPORT_META_DATA")
"""Where an export describes itself: since 2024, and before."""

PRODUCT = "NVIDIA Nsight Systems"
WARNING, ERROR = 2, 3
"""Values of DIAGNOSTIC_EVENT.severity (ENUM_DIAGNOSTIC_SEVERITY_LEVEL); 4 is verbose."""

_MOST_ROWS = 100_000
_MOST_MESSAGES = 20
_LOST = re.compile(
    r"\b(?:drop|lost|lose|discard|overflow|incomplete|missing|truncat|out of memory|not all)", re.IGNORECASE
)
_FLAGS = re.compile(r"(?:^|;)XLA_FLAGS=\"?([^;\"\r\n]*)")
_GPU_STATS = {
    "gpu_device_name": "name",
    "memory_bandwidth": "memoryBandwidth",
    "memory_size": "totalMemory",
    "core_count": "smCount",
    "compute_cap_major": "computeMajor",
    "compute_cap_minor": "computeMinor",
}
"""Statistics of a device's plane as XLA's profiler names them, and the columns of TARGET_INFO_GPU. Both have bytes and
bytes per second, whatever the schema says of memoryBandwidth."""


def settings(database: Database, tables: Sequence[str]) -> dict[str, list[str]]:
    """Return the values of a table of names and values, by name. Names may come several times."""
    found: dict[str, list[str]] = {}
    for table in tables:
        for name, value in database.rows(table, ("name", "value"), most=_MOST_ROWS):
            if isinstance(name, str) and isinstance(value, str):
                found.setdefault(name, []).append(value)
    return found


@dataclass(frozen=True, slots=True)
class Gpus:
    """The GPUs of an export: by TARGET_INFO_GPU.id, by (pid, device), and by TARGET_INFO_GPU.cuDevice."""

    by_id: Mapping[int, Mapping[str, StatValue]]
    id_of: Mapping[tuple[int, int], int]
    by_number: Mapping[int, int]

    def stats(self, pid: int, device: int) -> Mapping[str, StatValue]:
        """Return the statistics of a process's device, {} where the export does not have them.

        A process numbers the devices that it sees. Where no table says which they are, the number of the driver is
        taken; where all GPUs are of one kind, that does not matter.
        """
        number = self.id_of.get((pid, device), self.by_number.get(device, device))
        if number in self.by_id:
            return self.by_id[number]
        kinds = list(self.by_id.values())
        return kinds[0] if kinds and all(kind == kinds[0] for kind in kinds) else {}


def read_gpus(database: Database) -> Gpus:
    """Return the GPUs of an export."""
    by_id: dict[int, Mapping[str, StatValue]] = {}
    by_number: dict[int, int] = {}
    columns = ("id", "cuDevice", *_GPU_STATS.values())
    for number, cuda, *values in database.rows("TARGET_INFO_GPU", columns, most=_MOST_ROWS):
        if not isinstance(number, int):
            continue
        stats = zip(_GPU_STATS, values, strict=True)
        by_id[number] = {stat: value for stat, value in stats if value is not None and _is_usable(stat, value)}
        if isinstance(cuda, int):
            by_number.setdefault(cuda, number)
    id_of: dict[tuple[int, int], int] = {}
    for gpu, cuda, pid in database.rows("TARGET_INFO_CUDA_DEVICE", ("gpuId", "cudaId", "pid"), most=_MOST_ROWS):
        if isinstance(gpu, int) and isinstance(cuda, int) and isinstance(pid, int):
            id_of[pid, cuda] = gpu
    return Gpus(by_id, id_of, by_number)


def _is_usable(stat: str, value: Cell) -> bool:
    if stat == "gpu_device_name":
        return isinstance(value, str) and bool(value)
    return isinstance(value, int) and 0 < value < 1 << 62


@dataclass(frozen=True, slots=True)
class Host:
    """The host of a capture, the flags of XLA in its environment, and the UNIX time of the session's begin (0 where it
    is unknown)."""

    name: str
    xla_flags: str
    session_utc_ns: int


def read_host(database: Database) -> Host:
    """Return what an export says of its host. Of the environment, which may hold secrets, only XLA_FLAGS is kept."""
    table, wanted = "TARGET_INFO_SYSTEM_ENV", "name = 'Hostname' OR name = 'DeviceEnvironment'"
    name = flags = ""
    if {"name", "value"} <= set(database.columns(table)):
        for key, value in database.rows(table, ("name", "value"), wanted, 100):
            if not isinstance(value, str):
                continue
            if key == "Hostname":
                name = name or value[:255]
            elif found := _FLAGS.search(value):
                flags = flags or found[1]
    for (started,) in database.rows("TARGET_INFO_SESSION_START_TIME", ("utcEpochNs",), most=1):
        if isinstance(started, int) and 0 < started < 1 << 62:
            return Host(name, flags, started)
    return Host(name, flags, 0)


def read_messages(database: Database) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the profiler's messages of lost events, and its other warnings and errors."""
    lost: dict[str, None] = {}
    others: dict[str, None] = {}
    columns = ("severity", "text")
    for severity, text in database.rows("DIAGNOSTIC_EVENT", columns, most=_MOST_ROWS):
        if severity in (WARNING, ERROR) and isinstance(text, str) and text.strip():
            short = " ".join(text.split())[:300]
            (lost if _LOST.search(short) else others)[short] = None
    return tuple(lost)[:_MOST_MESSAGES], tuple(others)[:_MOST_MESSAGES]
