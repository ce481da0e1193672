"""Replica groups of collectives in their three spellings."""

from __future__ import annotations

import re
from math import prod

from hloinspect.hlo.model import ReplicaGroups

_IOTA = re.compile(r"\[([\d,]+)\]<=\[([\d,]+)\](?:T\(([\d,]+)\))?")
_MESH = re.compile(r"mesh\[([^\]]*)\]\s*\{([^}]*)\}")
_LIST = re.compile(r"\{([\d,\s]+)\}")
_MAX_DEVICES = 1 << 24
NO_GROUPS = ReplicaGroups(1, 0, ())


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(",") if part.strip().isdecimal() and len(part) < 10)


def iota_groups(groups: int, size: int, dims: tuple[int, ...], order: tuple[int, ...]) -> ReplicaGroups:
    """Groups in iota notation: ``iota(prod(dims))`` reshaped to ``dims``, transposed by ``order``, cut into rows of ``size``
    (xla/hlo/ir/replica_group.h, IotaReplicaGroupList). Only the first row is made."""
    order = order or tuple(range(len(dims)))
    if groups * size != prod(dims) or sorted(order) != list(range(len(dims))) or not 0 < groups * size <= _MAX_DEVICES:
        return NO_GROUPS
    strides = [prod(dims[axis + 1 :]) for axis in range(len(dims))]
    sizes = [dims[axis] for axis in order]
    first = []
    for position in range(size):
        member, rest = 0, position
        for axis in range(len(order) - 1, -1, -1):
            rest, coordinate = divmod(rest, sizes[axis])
            member += coordinate * strides[order[axis]]
        first.append(member)
    return ReplicaGroups(groups, size, tuple(first))


def mesh_groups(axes: list[tuple[str, int]], over: set[str]) -> ReplicaGroups:
    """Groups over some axes of a mesh whose devices are numbered row by row."""
    dims = tuple(size for _, size in axes)
    kept = tuple(i for i, (name, _) in enumerate(axes) if name not in over)
    reduced = tuple(i for i, (name, _) in enumerate(axes) if name in over)
    size = prod(dims[i] for i in reduced)
    total = prod(dims)
    return iota_groups(total // size if size else 0, size, dims, kept + reduced)


def parse_replica_groups(text: str) -> ReplicaGroups:
    """The groups that ``text`` names: ``{{0,1},{2,3}}``, ``[2,2]<=[4]T(1,0)`` or ``mesh['x'=2,'y'=2] {'y'}``.

    Lists may be of unequal lengths; the longest counts. What cannot be read is the same as no groups: all devices form one.
    """
    if match := _IOTA.search(text):
        head, dims, order = (_numbers(part or "") for part in match.groups())
        if len(head) == 1:
            head = (1, head[0])
        return iota_groups(prod(head[:-1]), head[-1], dims, order) if head else NO_GROUPS
    if match := _MESH.search(text):
        axes = [(name, int(size)) for name, size in re.findall(r"'([^']*)'=(\d{1,9})", match.group(1))]
        return mesh_groups(axes, set(re.findall(r"'([^']*)'", match.group(2))))
    lists = [members for members in map(_numbers, _LIST.findall(text)) if members]
    if not lists:
        return NO_GROUPS
    return ReplicaGroups(len(lists), max(map(len, lists)), max(lists, key=len))
