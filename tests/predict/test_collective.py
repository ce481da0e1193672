"""Collectives level by level, computed by hand on gb200: 900 GB/s within a domain, 50 GB/s of network a GPU."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hloinspect.errors import TargetError
from hloinspect.hardware import Target, devices_of_host, domain_of, load_target
from hloinspect.hardware.target import Side
from hloinspect.hlo.load import load_module, load_module_bytes
from hloinspect.hlo.model import ReplicaGroups
from hloinspect.offload.transfers import find_offload
from hloinspect.predict.collective import COLLECTIVES as KINDS
from hloinspect.predict.collective import Collective, collective_of, members_in_one_domain
from hloinspect.predict.schedule import Done, Run, StartCollective, schedule_of

TARGET = replace(load_target("gb200"), exchanges={})  # what is measured of it is tested below
MS = 1e9
INSIDE_MS, ACROSS_MS = 0.005, 0.015  # latencies


def milliseconds(opcode: str, size_bytes: float, size: int, near: int) -> float:
    return Collective(opcode, int(size_bytes), size, near).time_ps(TARGET) / MS


def test_an_all_gather_over_two_domains_takes_the_longer_of_inside_and_across() -> None:
    # 6.4 GB over 2 x 16 x 4 = 128 GPUs, 64 in a domain. Inside, each takes in 127/128 of it at 900 GB/s: 7.056 ms.
    # Across, the other domain's half is shared by 64 cards: 50 MB at 50 GB/s = 1 ms, meanwhile.
    assert milliseconds("all-gather", 6.4e9, 128, 64) == pytest.approx(7.0556 + ACROSS_MS, abs=1e-3)


def test_pricing_all_bytes_at_the_slowest_link_would_be_eighteen_times_too_long() -> None:
    assert milliseconds("all-gather", 6.4e9, 128, 64) < 6.4e9 / 50e9 * 1e3 / 15


def test_a_group_across_domains_with_one_member_in_each_uses_the_network_alone() -> None:
    # Two members: half of 1 GB comes from the other one at 50 GB/s: 10 ms.
    assert milliseconds("all-gather", 1e9, 2, 1) == pytest.approx(10 + ACROSS_MS)


def test_a_group_inside_one_domain_uses_no_network() -> None:
    # Eight members: 7/8 of 9 GB at 900 GB/s.
    assert milliseconds("all-gather", 9e9, 8, 8) == pytest.approx(8.75 + INSIDE_MS)
    assert milliseconds("reduce-scatter", 9e9, 8, 8) == pytest.approx(8.75 + INSIDE_MS)


def test_an_all_reduce_is_a_reduce_scatter_and_an_all_gather() -> None:
    assert milliseconds("all-reduce", 9e9, 8, 8) == pytest.approx(2 * 8.75 + INSIDE_MS)
    assert milliseconds("all-reduce", 6.4e9, 128, 64) == pytest.approx(2 * 7.0556 + ACROSS_MS, abs=1e-3)


def test_an_all_to_all_sends_what_leaves_the_domain_over_each_members_own_card() -> None:
    # 1 GB over 128, half of it to the other domain: 0.5 GB at 50 GB/s.
    assert milliseconds("all-to-all", 1e9, 128, 64) == pytest.approx(10 + ACROSS_MS)


def test_a_permute_moves_its_bytes_once() -> None:
    assert milliseconds("collective-permute", 9e9, 8, 8) == pytest.approx(10 + INSIDE_MS)


def test_a_group_of_one_takes_no_time() -> None:
    assert milliseconds("all-gather", 1e9, 1, 1) == 0


def test_members_are_counted_in_the_domain_that_holds_the_most_of_them() -> None:
    strided = ReplicaGroups(groups=2, size=4, first=(0, 2, 64, 66))
    assert members_in_one_domain(strided, 128, 64) == (4, 2)
    uneven = ReplicaGroups(groups=1, size=3, first=(0, 1, 64))
    assert members_in_one_domain(uneven, 128, 64) == (3, 2)


def test_without_groups_all_devices_take_part() -> None:
    assert members_in_one_domain(ReplicaGroups(1, 0, ()), 128, 64) == (128, 64)


COLLECTIVES = """HloModule m, is_scheduled=true, num_partitions=8

wrapped (p: f32[1024]) -> f32[8192] {
  p = f32[1024]{0} parameter(0)
  ROOT g = f32[8192]{0} all-gather(p), replica_groups=[1,8]<=[8], dimensions={0}
}

async (p: f32[1024]) -> f32[8192] {
  p = f32[1024]{0} parameter(0)
  ROOT c = f32[8192]{0} call(p), to_apply=wrapped
}

add (a: f32[], b: f32[]) -> f32[] {
  a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT s = f32[] add(a, b)
}

ENTRY main {
  p = f32[1024]{0} parameter(0)
  q = f32[8192]{0} parameter(1)
  one = (f32[1024]{0}, f32[8192]{0}) all-gather-start(p), replica_groups=[1,8]<=[8], dimensions={0}
  two = ((f32[1024]{0}), f32[8192]{0}) async-start(p), calls=async
  three = ((f32[8192]{0}), f32[1024]{0}, u32[]) reduce-scatter-start(q), replica_groups=[1,8]<=[8], to_apply=add
  four = (f32[8192]{0}, f32[1024]{0}) all-reduce(q, p), replica_groups={{0,1,2,3},{4,5,6,7}}, to_apply=add
  five = f32[8192]{0} call(p), to_apply=wrapped
  ROOT r = f32[1024]{0} negate(p)
}
"""


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("one", Collective("all-gather", 4 * 8192, 8, 8)),
        ("two", Collective("all-gather", 4 * 8192, 8, 8)),  # a TPU wraps it in a call in an async computation
        ("three", Collective("reduce-scatter", 4 * 8192, 8, 8)),
        ("four", Collective("all-reduce", 4 * (8192 + 1024), 4, 4)),
        ("five", None),  # control flow, followed elsewhere
        ("r", None),
    ],
)
def test_a_collective_is_known_in_every_form(name: str, expected: Collective | None) -> None:
    module = load_module_bytes(COLLECTIVES.encode())
    instruction = module.entry.find(name)
    assert instruction is not None
    assert collective_of(module, module.entry, instruction, 8, 72) == expected


# a collective that XLA:TPU has split into fusions

SEMAPHORE = "u32[]{:S(2)}"
GATHERED = "bf16[1024,4096]{1,0:T(8,128)(2,1)S(1)}"
SHARD = "bf16[1024,1024]{1,0:T(8,128)(2,1)S(1)}"
SPLIT = f"""HloModule m, is_scheduled=true, num_partitions=4

begin {{
  p = {SHARD} parameter(0)
  g = {GATHERED} all-gather(p), channel_id=1, replica_groups=[1,4]<=[4], dimensions={{1}}, use_global_device_ids=true
  ROOT c = ({SHARD}, {GATHERED}, {SEMAPHORE}) custom-call(p), custom_call_target="AsyncCollectiveStart"
}}

beside {{
  p = {SHARD} parameter(0)
  q = {GATHERED} parameter(1)
  s = {SEMAPHORE} parameter(2)
  x = f32[64,1024]{{1,0}} parameter(3)
  g = {GATHERED} all-gather(p), channel_id=1, replica_groups=[1,4]<=[4], dimensions={{1}}, use_global_device_ids=true
  n = f32[64,1024]{{1,0}} negate(x)
  ROOT t = (f32[64,1024]{{1,0}}, {SHARD}, {GATHERED}, {SEMAPHORE}) tuple(n, p, q, s)
}}

end {{
  p = {SHARD} parameter(0)
  q = {GATHERED} parameter(1)
  s = {SEMAPHORE} parameter(2)
  g = {GATHERED} all-gather(p), channel_id=1, replica_groups=[1,4]<=[4], dimensions={{1}}, use_global_device_ids=true
  ROOT c = {GATHERED} custom-call(p, q, s), custom_call_target="AsyncCollectiveDone"
}}

ENTRY main {{
  p = {SHARD} parameter(0)
  x = f32[64,1024]{{1,0}} parameter(1)
  a = ({SHARD}, {GATHERED}, {SEMAPHORE}) fusion(p), kind=kCustom, calls=begin
  a0 = {SHARD} get-tuple-element(a), index=0
  a1 = {GATHERED} get-tuple-element(a), index=1
  a2 = {SEMAPHORE} get-tuple-element(a), index=2
  b = (f32[64,1024]{{1,0}}, {SHARD}, {GATHERED}, {SEMAPHORE}) fusion(a0, a1, a2, x), kind=kOutput, calls=beside
  b1 = {SHARD} get-tuple-element(b), index=1
  b2 = {GATHERED} get-tuple-element(b), index=2
  b3 = {SEMAPHORE} get-tuple-element(b), index=3
  ROOT e = {GATHERED} fusion(b1, b2, b3), kind=kCustom, calls=end
}}
"""


def test_a_collective_that_a_tpu_splits_into_fusions_runs_beside_the_compute_between() -> None:
    what = load_module_bytes(SPLIT.encode())
    assert what.platform == "tpu"
    begin, beside, end = schedule_of(find_offload(what), 4, 4).operations["main"]
    assert isinstance(begin, StartCollective)
    assert begin.collective == Collective("all-gather", 2 * 1024 * 4096, 4, 4)
    assert isinstance(beside, Run)
    assert end == Done(begin.key)


def test_the_split_collectives_of_a_real_tpu_step_are_waited_for(corpus: Path) -> None:
    offload = find_offload(load_module(corpus / "hlo" / "tpu_v5e_act_scan.hlo"))
    schedule = schedule_of(offload, 4, 4)
    begun = {
        operation.key
        for operations in schedule.operations.values()
        for operation in operations
        if isinstance(operation, StartCollective) and "async-collective-start" in operation.key[1]
    }
    ended = {o.key for operations in schedule.operations.values() for o in operations if isinstance(o, Done)}
    assert len(begun) == 2
    assert begun <= ended


@pytest.mark.parametrize("topology", ["4x4x4", "v5p:4x4x4", None])
def test_a_tpus_topology_is_the_shape_of_one_slice_and_no_count_of_domains(topology: str | None) -> None:
    assert domain_of(load_target("v5p"), topology) == 8960
    assert domain_of(load_target("gb200"), "4x4x4") == 16


@pytest.mark.parametrize(
    ("target", "topology", "devices"),
    [
        ("gb200", "2x16x4", 4),
        ("h100", "1x1x8", 8),
        ("gb200", None, 1),
        ("v5p", "v5p:4x4x4", 4),
        ("v5e", "2x2", 4),
        ("v5e", "1x1", 1),
        ("v5e", None, 1),
        ("tpu7x", "tpu7x:4x4x4", 8),
        ("tpu7x", "1x1x1", 2),
        ("tpu7x", None, 1),
        ("gb200", "axbxc", 1),
        ("gb200", "2x16x", 1),
        ("v5e", "0x4", 1),
    ],
)
def test_the_name_of_a_topology_says_how_many_devices_share_a_host(
    target: str, topology: str | None, devices: int
) -> None:
    assert devices_of_host(load_target(target), topology) == devices


# --- kinds with measured figures


def microseconds(target: Target, opcode: str, size_bytes: int, size: int, near: int, side: Side = "value") -> float:
    return Collective(opcode, size_bytes, size, near).time_ps(target, 1.0, side) / 1e6


def test_a_collective_inside_a_domain_takes_its_start_its_ramp_and_its_bytes() -> None:
    target = load_target("gb200")
    kind = target.exchanges["all-gather"]
    moved = (1 << 30) * 7 / 8
    rate = 900e9 * kind.rate.value * (1 - kind.few / 8)
    start = kind.latency_us.value + 8 * kind.member_us
    ramp = kind.ramp_us * (1 - math.exp(-moved / kind.ramp_bytes))
    expected = start + ramp + moved / rate * 1e6
    assert microseconds(target, "all-gather", 1 << 30, 8, 8) == pytest.approx(expected)
    assert microseconds(target, "all-gather", 1 << 30, 8, 8, "high") == pytest.approx(expected * kind.low)
    assert microseconds(target, "all-gather", 1 << 30, 8, 8, "low") == pytest.approx(expected * kind.high)
    assert microseconds(target, "collective-broadcast", 1 << 30, 8, 8) == pytest.approx(expected)


def test_the_switches_of_eight_h100_add_for_them() -> None:
    """XLA's table: 2 GiB take 10.7 ms over four and 9.3 ms over eight, although eight move a sixth more."""
    target = load_target("h100")
    four, eight = (microseconds(target, "all-reduce", 1 << 31, size, size) for size in (4, 8))
    assert four == pytest.approx(10650, rel=0.05)
    assert eight == pytest.approx(9338, rel=0.05)


def test_a_collective_across_domains_has_the_start_inside_and_the_networks_latency() -> None:
    target = load_target("gb200")
    inside = microseconds(target, "all-gather", 1 << 10, 64, 64)
    assert microseconds(target, "all-gather", 1 << 10, 128, 64) == pytest.approx(inside + 15, rel=1e-3)
    assert microseconds(target, "all-gather", 1 << 10, 2, 1) == pytest.approx(15, rel=1e-2)


@given(
    st.sampled_from(["h100", "h200", "b200", "gb200", "gb300"]),
    st.sampled_from(sorted(KINDS)),
    st.integers(2, 72),
    st.lists(st.integers(1, 1 << 36), min_size=2, max_size=5, unique=True),
)
def test_more_bytes_take_longer_and_never_less_than_at_the_links_rate(
    name: str, opcode: str, size: int, sizes: list[int]
) -> None:
    target = load_target(name)
    for side in ("high", "value", "low"):
        times = [microseconds(target, opcode, each, size, size, side) for each in sorted(sizes)]
        assert times == sorted(times)
    moved = max(sizes) * (1 if opcode == "collective-permute" else (size - 1) / size)
    least = moved / target.levels[0].bytes_per_s.value * 1e6 * target.exchanges["all-gather"].low
    assert microseconds(target, opcode, max(sizes), size, size) >= least


def test_a_target_may_replace_one_kind_and_keeps_the_others(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    figures = "latency_us = 5\nmember_us = 1\nrate = 0.5\nfew = 0\nramp_us = 0\nramp_bytes = 1\nlow = 1\nhigh = 1\n"
    path.write_text(f'base = "h100"\n[exchanges.all-gather]\n{figures}')
    mine, base = load_target(str(path)), load_target("h100")
    assert microseconds(mine, "all-gather", 450_000_000, 2, 2) == pytest.approx(5 + 2 + 1000)
    assert mine.exchanges["all-reduce"].member_us == base.exchanges["all-reduce"].member_us
    path.write_text(f'base = "h100"\n[exchanges.all-gather]\n{figures.replace("0.5", "2")}')
    with pytest.raises(TargetError, match=r"exchanges\.all-gather\.rate"):
        load_target(str(path))


def test_a_target_without_an_interconnect_of_the_tables_keeps_the_levels_latency_and_rate() -> None:
    target = load_target("a100")
    assert not target.exchanges
    assert microseconds(target, "all-gather", 300_000_000, 2, 2) == pytest.approx(5 + 500)
