"""How many devices become a topology that XLA takes."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hloinspect.compile.topology import Topology, choose_topology
from hloinspect.errors import UsageError
from hloinspect.hardware import load_target


@pytest.mark.parametrize(
    ("target", "devices", "expected"),
    [
        ("gb200", None, "1x1x1"),
        ("gb200", 3, "1x1x3"),
        ("gb200", 4, "1x1x4"),
        ("gb200", 8, "1x2x4"),
        ("gb200", 72, "1x18x4"),
        ("gb200", 128, "2x16x4"),
        ("gb200", 144, "2x18x4"),
        ("h100", 8, "1x1x8"),
        ("h100", 16, "1x2x8"),
        ("h100", 128, "1x16x8"),
        ("a100", 6, "1x1x6"),
    ],
)
def test_gpus_fill_hosts_and_then_nvlink_domains(target: str, devices: int | None, expected: str) -> None:
    assert choose_topology(load_target(target), devices, None) == Topology(expected, devices or 1)


@given(st.integers(1, 5000), st.sampled_from(["gb200", "h100"]))
def test_a_gpu_topology_has_exactly_the_requested_devices_or_is_refused(devices: int, name: str) -> None:
    target = load_target(name)
    host = 4 if name == "gb200" else 8
    try:
        topology = choose_topology(target, devices, None)
    except UsageError:
        assert devices > host
        assert devices % host
        return
    partitions, hosts, per_host = (int(size) for size in topology.name.split("x"))
    assert math.prod((partitions, hosts, per_host)) == devices == topology.devices
    assert name != "gb200" or hosts * per_host <= 72


@pytest.mark.parametrize(
    ("target", "devices", "expected"),
    [
        ("v6e", None, ("v6e:2x2", 1)),
        ("v6e", 4, ("v6e:2x2", 4)),
        ("v6e", 8, ("v6e:2x4", 8)),
        ("v6e", 256, ("v6e:16x16", 256)),
        ("v5e", 128, ("v5e:8x16", 128)),
        ("v5p", None, ("v5p:2x2x1", 1)),
        ("v5p", 128, ("v5p:4x4x8", 128)),
        ("tpu7x", None, ("tpu7x:2x2x1", 1)),  # a chip of it is two devices
        ("tpu7x", 8, ("tpu7x:2x2x1", 8)),
        ("tpu7x", 128, ("tpu7x:4x4x4", 128)),
    ],
)
def test_tpus_come_in_fixed_shapes(target: str, devices: int | None, expected: tuple[str, int]) -> None:
    assert choose_topology(load_target(target), devices, None) == Topology(*expected)


def test_a_topology_may_be_given_outright() -> None:
    assert choose_topology(load_target("gb200"), None, "4x8x4") == Topology("4x8x4", 128)
    assert choose_topology(load_target("gb200"), 128, "128x1x1") == Topology("128x1x1", 128)
    assert choose_topology(load_target("v6e"), None, "4x4") == Topology("v6e:4x4", 16)
    assert choose_topology(load_target("v6e"), 2, "v6e:2x2") == Topology("v6e:2x2", 2)
    assert choose_topology(load_target("ironwood"), None, "2x2x2") == Topology("tpu7x:2x2x2", 16)


@pytest.mark.parametrize(
    ("target", "devices", "topology", "message"),
    [
        ("gb200", 6, None, "6 devices do not fill hosts of 4"),
        ("gb200", 0, None, "at least 1"),
        ("gb200", None, "2x4", "partitions x hosts x devices"),
        ("gb200", None, "0x1x1", "partitions x hosts x devices"),
        ("gb200", None, "1x1x4x", "partitions x hosts x devices"),
        ("gb200", 8, "2x16x4", "has 128 devices"),
        ("v6e", 5, None, "no v6e topology has 5 devices"),
        ("v6e", 5, "2x2", "has 4 devices"),
        ("tpu7x", 9, "2x2x1", "has 8 devices"),
        ("tpu7x", 12, None, "no tpu7x topology has 12 devices: use one of 8, 16,"),
        ("v6e", None, "v5e:2x2", "is not a v6e topology"),
    ],
)
def test_a_topology_that_makes_no_sense_is_refused(
    target: str, devices: int | None, topology: str | None, message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        choose_topology(load_target(target), devices, topology)
