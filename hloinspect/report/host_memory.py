"""Pinned host memory of the devices that share a host, from the report of one of them."""

from __future__ import annotations

from dataclasses import dataclass

from hloinspect.hardware import Target, devices_of_host
from hloinspect.report.schema import Report


@dataclass(frozen=True, slots=True)
class HostMemory:
    """Pinned host memory of all devices that share a host, such as the four GPUs of a tray of an NVL72."""

    devices: int
    """Number of devices that share a host."""

    bytes: int | None
    """Bytes that they take together; null where that is not known."""

    limit_bytes: int | None
    """Memory of the host; null where that is not known."""


def host_memory_of(report: Report, target: Target) -> HostMemory:
    """Return what all devices of one host take together."""
    devices = devices_of_host(target, report.program.topology)
    used = report.memory.host_bytes
    limit = None
    if target.link is not None and target.link.host_memory_bytes is not None:
        limit = int(target.link.host_memory_bytes.value * devices / target.link.sharers)
    return HostMemory(devices, None if used is None else used * devices, limit)
