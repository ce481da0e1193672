"""Replica groups in their three notations, compared with an oracle that builds every group with numpy."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hloinspect.hlo.groups import NO_GROUPS, parse_replica_groups
from hloinspect.hlo.model import ReplicaGroups

Groups = list[list[int]]


def as_groups(groups: Groups) -> ReplicaGroups:
    return ReplicaGroups(len(groups), len(groups[0]), tuple(groups[0]))


def iota_oracle(groups: int, size: int, dims: list[int], order: list[int]) -> Groups:
    """Build groups as xla/hlo/ir/replica_group.h: reshape(transpose(reshape(iota(N), dims), order), [groups, size])."""
    rows = np.arange(groups * size).reshape(dims).transpose(order).reshape(groups, size)
    return [[int(member) for member in row] for row in rows]


def mesh_oracle(devices: np.ndarray, parts: list[tuple[int, int, int]]) -> Groups:
    """Split each axis into (before, size, rest) where a part of it is used, and collect devices that differ only there.

    The first part varies slowest.
    """
    used = [f"{axis}:{before}:{size}" for axis, before, size in parts]
    dims: list[int] = []
    names: list[str] = []
    for axis, length in enumerate(devices.shape):
        inside = sorted((before, size) for a, before, size in parts if a == axis)
        done = 1
        for before, size in inside:
            dims += [before // done, size]
            names += ["", f"{axis}:{before}:{size}"]
            done = before * size
        dims.append(length // done)
        names.append("")
    kept = [i for i, name in enumerate(names) if name not in used]
    moved = devices.reshape(dims).transpose(kept + [names.index(name) for name in used])
    rows = moved.reshape(-1, int(np.prod([size for _, _, size in parts])))
    return [[int(member) for member in row] for row in rows]


def test_lists_count_their_groups_and_the_longest() -> None:
    assert parse_replica_groups("{{0,1},{2,3}}") == ReplicaGroups(2, 2, (0, 1))
    assert parse_replica_groups("{{0},{1,2,3}}") == ReplicaGroups(2, 3, (1, 2, 3))


@pytest.mark.parametrize(
    "text", ["", "{}", "{{}}", "[2,2]<=[5]", "[0,4]<=[4]", "mesh['x'=4] {'y'}", "mesh['x'=0] {'x'}"]
)
def test_what_names_no_groups_is_all_devices(text: str) -> None:
    assert parse_replica_groups(text) == NO_GROUPS


# The expectations of xla/hlo/ir/replica_group_test.cc, as facts.
@pytest.mark.parametrize(
    ("text", "groups", "first"),
    [
        ("mesh['x'=2,'y'=2] {'x'}", 2, (0, 2)),
        ("mesh['x'=2,'y'=2] {'y'}", 2, (0, 1)),
        ("mesh['a'=6,'b'=6] {'a':(1)2}", 18, (0, 18)),
        ("mesh['a'=6,'b'=6] {'a':(3)2}", 18, (0, 6)),
        ("mesh['a'=6,'b'=6] {'b':(1)3}", 12, (0, 2, 4)),
        ("mesh['a'=6,'b'=6] {'b':(1)3,'a':(1)3}", 4, (0, 12, 24, 2, 14, 26, 4, 16, 28)),
        ("mesh['x'=2,'y'=2], device_ids=(3,1,0,2) {'x'}", 2, (3, 0)),
        ("mesh['x'=2,'y'=2], device_ids=(3,1,0,2) {'y'}", 2, (3, 1)),
        ("mesh['axis_0'=128] {'axis_0'}", 1, tuple(range(128))),
    ],
)
def test_meshes_give_the_groups_that_xla_gives(text: str, groups: int, first: tuple[int, ...]) -> None:
    assert parse_replica_groups(text) == ReplicaGroups(groups, len(first), first)


@st.composite
def iotas(draw: st.DrawFn) -> tuple[int, int, list[int], list[int]]:
    dims = draw(st.lists(st.integers(1, 6), min_size=1, max_size=4))
    total = int(np.prod(dims))
    size = draw(st.sampled_from([n for n in range(1, total + 1) if total % n == 0]))
    return total // size, size, dims, draw(st.permutations(range(len(dims))))


@given(iotas())
def test_iota_groups_are_those_of_the_reshaped_iota(case: tuple[int, int, list[int], list[int]]) -> None:
    groups, size, dims, order = case
    iteration = f"T({','.join(map(str, order))})" if order != sorted(order) else ""
    text = f"[{groups},{size}]<=[{','.join(map(str, dims))}]{iteration}"
    assert parse_replica_groups(text) == as_groups(iota_oracle(groups, size, dims, order))


@st.composite
def meshes(draw: st.DrawFn) -> tuple[list[int], list[tuple[int, int, int]]]:
    sizes = draw(st.lists(st.sampled_from([1, 2, 3, 4, 6, 8]), min_size=1, max_size=3))
    parts = []
    for axis in draw(st.permutations(range(len(sizes))))[: draw(st.integers(1, len(sizes)))]:
        before = draw(st.sampled_from([n for n in range(1, sizes[axis] + 1) if sizes[axis] % n == 0]))
        rest = sizes[axis] // before
        parts.append((axis, before, draw(st.sampled_from([n for n in range(1, rest + 1) if rest % n == 0]))))
    return sizes, parts


@given(meshes(), st.data())
def test_mesh_groups_are_the_devices_that_differ_in_the_named_axes(
    mesh: tuple[list[int], list[tuple[int, int, int]]], data: st.DataObject
) -> None:
    sizes, parts = mesh
    total = int(np.prod(sizes))
    ids = data.draw(st.permutations(range(total)))
    axes = ",".join(f"'a{axis}'={size}" for axis, size in enumerate(sizes))
    over = ",".join(
        f"'a{axis}'" if (before, size) == (1, sizes[axis]) else f"'a{axis}':({before}){size}"
        for axis, before, size in parts
    )
    for order, spelt in (
        (list(range(total)), ""),
        (ids, f", device_ids=({','.join(map(str, ids))})"),
        (list(np.arange(total).reshape(sizes).T.reshape(-1)), _turned(sizes)),
    ):
        expected = mesh_oracle(np.array(order).reshape(sizes), parts)
        assert parse_replica_groups(f"mesh[{axes}]{spelt} {{{over}}}") == as_groups(expected)


def _turned(sizes: list[int]) -> str:
    order = ",".join(str(axis) for axis in reversed(range(len(sizes))))
    return f", device_ids=([{','.join(map(str, sizes))}]T({order}))"


@pytest.mark.parametrize(
    "text",
    [
        "[1,9999999]<=[9999999]",
        f"[{'9' * 9},{'9' * 9}]<=[{'9' * 9}]",
        f"mesh['x'={'9' * 9}] {{'x'}}",
        "mesh['x'=2] {" + "'x'," * 20_000 + "}",
        "mesh[" * 20_000,
        "[1" + ",1" * 50_000,
        "{" * 100_000,
        "[" * 100_000,
        "'" * 100_000,
    ],
)
def test_absurd_groups_are_none_and_cost_neither_time_nor_memory(text: str) -> None:
    assert parse_replica_groups(text) == NO_GROUPS
