"""How many devices, laid out how: the topology that a step is compiled for.

GPU topologies are ``PxHxD``: partitions (NVLink domains) x hosts in each x devices of a host (XLA's
pjrt_c_api_gpu_internal.cc, TopologySizes::FromString). TPU topologies come in fixed shapes with a name (``v6e:2x2``).
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from hloinspect.errors import UsageError
from hloinspect.hardware.target import Target

_NVL_HOST = 4  # GPUs in one tray of an NVL72 rack: the NVLink domain spans hosts
_HGX_HOST = 8  # GPUs of an HGX or DGX host, which is its own NVLink domain
_TPU_SHAPES = {
    2: {4: "2x2", 8: "2x4", 16: "4x4", 32: "4x8", 64: "8x8", 128: "8x16", 256: "16x16"},  # v5e and v6e
    3: {4: "2x2x1", 8: "2x2x2", 16: "2x2x4", 32: "2x4x4", 64: "4x4x4", 128: "4x4x8", 256: "4x8x8"},  # v5p, 7x
}
"""A slice of so many chips, for a torus of so many dimensions (Google Cloud documentation)."""


@dataclass(frozen=True, slots=True)
class Topology:
    """``name`` as XLA takes it; ``devices`` is how many of its devices the step sees (the first ones)."""

    name: str
    devices: int


def choose_topology(target: Target, devices: int | None, topology: str | None) -> Topology:
    """Return the topology for ``devices`` (default 1) or the one that is requested. Raises UsageError where there is
    none."""
    if devices is not None and devices < 1:
        raise UsageError(f"--devices must be at least 1, not {devices}")
    choose = _choose_tpu if target.platform == "tpu" else _choose_gpu
    return choose(target, devices, topology)


def _choose_gpu(target: Target, devices: int | None, topology: str | None) -> Topology:
    if topology is None:
        return _gpu_layout(target, devices or 1)
    if not re.fullmatch(r"[1-9]\d*x[1-9]\d*x[1-9]\d*", topology):
        raise UsageError(f"--topology {topology!r} is not partitions x hosts x devices per host: write e.g. 2x16x4")
    total = math.prod(int(size) for size in topology.split("x"))
    if devices not in (None, total):
        raise UsageError(f"--topology {topology} has {total} devices, but --devices says {devices}")
    return Topology(topology, total)


def _gpu_layout(target: Target, devices: int) -> Topology:
    domain = target.levels[0].devices if target.levels else _HGX_HOST
    per_host = _NVL_HOST if domain > _HGX_HOST else _HGX_HOST
    if devices <= per_host:
        return Topology(f"1x1x{devices}", devices)
    if devices % per_host:
        raise UsageError(f"{devices} devices do not fill hosts of {per_host} {target.name} each; give --topology PxHxD")
    hosts = devices // per_host
    partitions = _partitions(hosts, domain // per_host) if domain > per_host else 1
    return Topology(f"{partitions}x{hosts // partitions}x{per_host}", devices)


def _partitions(hosts: int, hosts_per_domain: int) -> int:
    """Return the fewest equal NVLink domains that ``hosts`` fit into."""
    return next(count for count in range(1, hosts + 1) if hosts % count == 0 and hosts // count <= hosts_per_domain)


def _choose_tpu(target: Target, devices: int | None, topology: str | None) -> Topology:
    if target.xla_topology_name is None:
        raise UsageError(f"target {target.name} names no TPU topology to compile for")
    family, _, smallest = target.xla_topology_name.partition(":")
    if topology is None:
        return _tpu_layout(family, smallest, devices or 1, target.devices_per_chip)
    shape = topology.removeprefix(f"{family}:")
    if not re.fullmatch(r"[1-9]\d*(x[1-9]\d*){1,2}", shape):
        raise UsageError(f"--topology {topology!r} is not a {family} topology: write e.g. {family}:{smallest}")
    total = _chips(shape) * target.devices_per_chip
    if devices is not None and devices > total:
        raise UsageError(f"--topology {topology} has {total} devices, but --devices says {devices}")
    return Topology(f"{family}:{shape}", devices or total)


def _tpu_layout(family: str, smallest: str, devices: int, of_a_chip: int) -> Topology:
    if devices <= _chips(smallest) * of_a_chip:
        return Topology(f"{family}:{smallest}", devices)
    shapes = {chips * of_a_chip: shape for chips, shape in _TPU_SHAPES[smallest.count("x") + 1].items()}
    if devices not in shapes:
        raise UsageError(f"no {family} topology has {devices} devices: use one of {', '.join(map(str, shapes))}")
    return Topology(f"{family}:{shapes[devices]}", devices)


def _chips(shape: str) -> int:
    return math.prod(int(size) for size in shape.split("x"))
