"""Pinned host memory of the devices that share a host, from the report of one of them."""

from __future__ import annotations

from dataclasses import dataclass

from hloinspect.hardware import Target
from hloinspect.report.schema import Report


@dataclass(frozen=True, slots=True)
class HostMemory:
    """Pinned host memory of all devices that share a host (a tray of four GPUs of an NVL72), and what the host has.
    None where that is not known."""

    devices: int
    bytes: int | None
    limit_bytes: int | None


def host_memory_of(report: Report, target: Target) -> HostMemory:
    """What all devices of one host take together: the last figure of a topology ``PxHxD`` says how many those are."""
    devices = int((report.program.topology or "1x1x1").rpartition("x")[2])
    used = report.memory.host_bytes
    limit = None
    if target.link is not None and target.link.host_memory_bytes is not None:
        limit = int(target.link.host_memory_bytes.value * devices / target.link.sharers)
    return HostMemory(devices, None if used is None else used * devices, limit)
