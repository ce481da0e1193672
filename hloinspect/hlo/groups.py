"""Replica groups of collectives in their three spellings: lists, iota, and axes of a mesh."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from math import prod

from hloinspect.hlo.model import ReplicaGroups

_IOTA = re.compile(r"\[([\d,]+)\]<=\[([\d,]+)\](?:T\(([\d,]+)\))?")
_MESH = re.compile(r"mesh\[([^\[\]]*)\](?:,\s*device_ids=\((\[[\d,]+\](?:T\([\d,]+\))?|[\d,]*)\))?\s*\{([^{}]*)\}")
_MESH_AXIS = re.compile(r"'([^']*)'=(\d{1,9})")
_AXIS_REFERENCE = re.compile(r"'([^']*)'(?::\((\d{1,9})\)(\d{1,9}))?")
_DEVICE_IOTA = re.compile(r"\[([\d,]+)\](?:T\(([\d,]+)\))?")
_LIST = re.compile(r"\{([\d,\s]+)\}")
_MAX_DEVICES = 1 << 20
NO_GROUPS = ReplicaGroups(1, 0, ())


@dataclass(frozen=True, slots=True)
class AxisPart:
    """An axis of a mesh, or the middle part of an axis that is reshaped to ``(before, size, rest)``."""

    axis: int
    before: int
    size: int


@dataclass(frozen=True, slots=True)
class DeviceOrder:
    """The devices of a mesh, row by row.

    They are ``ids`` one by one, or ``iota(prod(dims))`` reshaped to ``dims`` and then transposed by ``order``. With
    neither, device i is at place i.
    """

    ids: tuple[int, ...] = ()
    dims: tuple[int, ...] = ()
    order: tuple[int, ...] = ()

    def is_valid(self, devices: int) -> bool:
        """Return whether this is an order of so many devices."""
        if self.ids:
            return len(self.ids) == devices
        return not self.dims or (
            prod(self.dims) == devices and (not self.order or sorted(self.order) == list(range(len(self.dims))))
        )

    def device(self, place: int) -> int:
        """Return the device at a place. The order must be valid for the mesh."""
        if self.ids:
            return self.ids[place]
        return iota_member(place, self.dims, self.order) if self.order else place


def iota_member(place: int, dims: tuple[int, ...], order: tuple[int, ...]) -> int:
    """Return the number at a place of ``iota(prod(dims))`` reshaped to ``dims`` and transposed by ``order``."""
    member = 0
    for axis in reversed(order):
        place, coordinate = divmod(place, dims[axis])
        member += coordinate * prod(dims[axis + 1 :])
    return member


def iota_groups(groups: int, size: int, dims: tuple[int, ...], order: tuple[int, ...]) -> ReplicaGroups:
    """Return groups in iota notation. Only the members of the first group are computed.

    They are ``iota(prod(dims))`` reshaped to ``dims``, transposed by ``order``, and cut into rows of ``size``
    (xla/hlo/ir/replica_group.h, IotaReplicaGroupList).
    """
    order = order or tuple(range(len(dims)))
    if not 0 < size <= groups * size <= _MAX_DEVICES or groups * size != prod(dims):
        return NO_GROUPS
    if sorted(order) != list(range(len(dims))):
        return NO_GROUPS
    return ReplicaGroups(groups, size, tuple(iota_member(place, dims, order) for place in range(size)))


def mesh_groups(axes: Sequence[int], over: Sequence[AxisPart], devices: DeviceOrder) -> ReplicaGroups:
    """Return groups over some axes, or parts of axes, of a mesh. Only the members of the first group are computed.

    ``axes`` are the sizes of the mesh. In a group the first of ``over`` varies slowest (xla/hlo/ir/replica_group.cc,
    MeshAxesReplicaGroupList).
    """
    total, size = prod(axes), prod(part.size for part in over)
    if not 0 < total <= _MAX_DEVICES or size <= 0 or total % size or not devices.is_valid(total):
        return NO_GROUPS
    ways = []
    for part in over:
        if not 0 <= part.axis < len(axes) or part.before <= 0 or axes[part.axis] % (part.before * part.size):
            return NO_GROUPS
        stride = prod(axes[part.axis + 1 :]) * (axes[part.axis] // (part.before * part.size))
        ways.append(range(0, stride * part.size, stride))
    return ReplicaGroups(total // size, size, tuple(devices.device(sum(place)) for place in product(*ways)))


def list_groups(lists: Sequence[Sequence[int]]) -> ReplicaGroups:
    """Return groups whose members are listed. Lengths may differ, and the size is the largest."""
    lists = [members for members in lists if members]
    if not lists:
        return NO_GROUPS
    longest = max(lists, key=len)
    return ReplicaGroups(len(lists), len(longest), tuple(longest))


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(part.strip()) for part in text.split(",") if part.strip().isdecimal() and len(part) < 10)


def _device_order(text: str) -> DeviceOrder:
    if match := _DEVICE_IOTA.match(text):
        return DeviceOrder(dims=_numbers(match.group(1)), order=_numbers(match.group(2) or ""))
    return DeviceOrder(ids=_numbers(text))


def _mesh(match: re.Match[str]) -> ReplicaGroups:
    axes = [(name, int(size)) for name, size in _MESH_AXIS.findall(match.group(1))]
    places = {name: place for place, (name, _) in enumerate(axes)}
    over = []
    for name, before, size in _AXIS_REFERENCE.findall(match.group(3)):
        if name not in places:
            return NO_GROUPS
        place = places[name]
        over.append(AxisPart(place, int(before), int(size)) if size else AxisPart(place, 1, axes[place][1]))
    return mesh_groups([size for _, size in axes], over, _device_order(match.group(2) or ""))


@lru_cache(maxsize=4096)
def parse_replica_groups(text: str) -> ReplicaGroups:
    """Return the groups that ``text`` names.

    It is ``{{0,1},{2,3}}``, ``[2,2]<=[4]T(1,0)`` or ``mesh['x'=2,'y'=2] {'y'}``. In the last one, ``,
    device_ids=(3,1,2,0)`` or ``, device_ids=([2,2]T(1,0))`` may stand before the axes, and ``'y':(2)2`` may stand for a
    part of an axis.

    Text that cannot be read is the same as no groups: all devices form one.
    """
    if match := _IOTA.search(text):
        head, dims, order = (_numbers(part or "") for part in match.groups())
        return iota_groups(prod(head[:-1]), head[-1], dims, order) if head else NO_GROUPS
    if match := _MESH.search(text):
        return _mesh(match)
    return list_groups([_numbers(members) for members in _LIST.findall(text)])
