"""Pinned host memory of the devices that share a host, from the report of one of them."""

from __future__ import annotations

import math
from dataclasses import dataclass

from hloinspect.hardware import Target
from hloinspect.report.schema import Report

_TPU_HOST = 4
"""Chips of a host in a slice of several hosts (MaxText's table has 2x2x1 for v5e, v5p and v6e)."""


@dataclass(frozen=True, slots=True)
class HostMemory:
    """Pinned host memory of all devices that share a host (a tray of four GPUs of an NVL72), and what the host has.
    None where that is not known."""

    devices: int
    bytes: int | None
    limit_bytes: int | None


def host_memory_of(report: Report, target: Target) -> HostMemory:
    """What all devices of one host take together: the last figure of a topology ``PxHxD`` says how many those are; of a
    TPU's slice (``v5p:4x4x4``) it does not."""
    topology = report.program.topology or "1x1x1"
    if target.platform == "tpu":
        chips = math.prod(int(size) for size in topology.rpartition(":")[2].split("x"))
        devices = min(chips, _TPU_HOST)
    else:
        devices = int(topology.rpartition("x")[2])
    used = report.memory.host_bytes
    limit = None
    if target.link is not None and target.link.host_memory_bytes is not None:
        limit = int(target.link.host_memory_bytes.value * devices / target.link.sharers)
    return HostMemory(devices, None if used is None else used * devices, limit)
