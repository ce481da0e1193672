"""Memory of a device, and pinned memory of its host."""

from __future__ import annotations

from dataclasses import dataclass

from hloinspect.kinds import MemorySource
from hloinspect.memory.records import Peak


@dataclass(frozen=True, slots=True)
class MemoryInfo:
    """Memory that the step needs on one device and in its host's memory, and what there is."""

    device_bytes: int | None
    """Device memory of arguments, results and temporaries."""

    host_bytes: int | None
    """Pinned host memory of the same."""

    device_limit_bytes: int | None
    """Memory of the target's device."""

    host_limit_bytes: int | None
    """The device's share of its host's memory."""

    source: MemorySource
    """Where the figures come from: ``artifacts`` (XLA's own), ``estimated`` (from the schedule, docs/memory.md), or
    ``unknown``."""

    peak: Peak | None = None
    """The moment at which device memory is fullest; null for a module that is not scheduled."""

    backward: str | None = None
    """The instruction with which the backward pass begins; null where nothing that is sent to the host comes back later
    in the step."""
