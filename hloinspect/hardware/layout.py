"""What the name of a topology says of a target: the devices in one domain of the interconnect, and those of a host.

A GPU's is ``PxHxD``: domains x hosts of a domain x devices of a host (XLA's pjrt_c_api_gpu_internal.cc,
TopologySizes::FromString). A TPU's is the shape of one slice in chips, with or without the chip's name (``v5p:4x4x4``,
``2x2``); a chip of a TPU7x is two devices.
"""

from __future__ import annotations

from math import prod

from hloinspect.hardware.target import Target

TOPOLOGY_FORM = r"([\w.-]+:)?[1-9]\d{0,5}(x[1-9]\d{0,5})*"
"""A regular expression of what the name of a topology looks like."""

_TPU_HOST = 4
"""Chips of a host in a slice of several hosts (MaxText's table has 2x2x1 for v5e, v5p, v6e and TPU7x)."""


def domain_of(target: Target, topology: str | None) -> int:
    """Return the devices in one domain of the interconnect: hosts x devices of a GPU's topology, else the target's own
    figure."""
    sizes = _sizes(topology)
    if target.platform == "gpu" and len(sizes) == 3:
        return sizes[1] * sizes[2]
    return max(1, target.levels[0].devices) if target.levels else 1


def devices_of_host(target: Target, topology: str | None) -> int:
    """Return how many devices share a host: the last figure of a GPU's topology. Of a TPU's slice it is all of it, up
    to a host's four chips. It is 1 where nothing is known."""
    sizes = _sizes(topology)
    if target.platform == "tpu":
        return min(prod(sizes), _TPU_HOST) * (target.devices_per_chip if sizes else 1)
    return sizes[-1] if sizes else 1


def _sizes(topology: str | None) -> list[int]:
    """Return the figures of a topology's name, none where it is not of that form."""
    parts = (topology or "").lower().rpartition(":")[2].split("x")
    known = all(part.isascii() and part.isdecimal() and len(part) < 7 and int(part) for part in parts)
    return [int(part) for part in parts] if known else []
