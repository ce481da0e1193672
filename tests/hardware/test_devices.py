"""Which target a device is: by the names that devices have, and never that of another machine."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hloinspect.errors import TargetError
from hloinspect.hardware import is_named, load_target, target_config_text, target_names, target_of_device
from tests.support.target_files import SPECS, write

SEEN = {
    "NVIDIA A100-SXM4-40GB": "a100-40g",
    "NVIDIA A100-SXM4-80GB": "a100-80g",
    "A100-SXM4-80GB": "a100-80g",  # drivers of 2020 left the maker out
    "NVIDIA A100 80GB PCIe": "a100-pcie",
    "NVIDIA H100 80GB HBM3": "h100",
    "NVIDIA H100 PCIe": "h100-pcie",
    "NVIDIA H100 NVL": "h100-nvl",
    "NVIDIA H200": "h200",
    "NVIDIA H20": "h20",
    "NVIDIA L40S": "l40s",
    "NVIDIA GH200 480GB": "gh200-480g",
    "NVIDIA GH200 120GB": "gh200-120g",
    "NVIDIA GH200 144G HBM3e": "gh200",
    "NVIDIA B200": "b200",
    "NVIDIA B300 SXM6 AC": "b300",
    "NVIDIA GB200": "gb200",
    "NVIDIA GB300": "gb300",
    "AMD Instinct MI300X": "mi300x",
    "AMD Instinct MI325X": "mi325x",
    "AMD Instinct MI355X": "mi355x",
    "TPU v4": "v4",
    "TPU v5 lite": "v5e",
    "TPU v5e": "v5e",
    "TPU v5": "v5p",
    "TPU v5p": "v5p",
    "TPU v6 lite": "v6e",  # jax.Device.device_kind
    "TPU v6 Lite": "v6e",  # a profile's device_type_string
    "TPU7x": "tpu7x",
}
"""Names as CUDA, JAX, ROCm and profiles give them."""

OTHERS = (
    *("NVIDIA A100-PCIE-40GB", "NVIDIA A100-SXM-64GB", "GRID A100X-40C", "Tesla V100-SXM2-16GB", "NVIDIA L40"),
    *("NVIDIA H100", "NVIDIA H100 96GB HBM3", "NVIDIA H100 80GB HBM3 MIG 1g.10gb", "NVIDIA H800", "NVIDIA H200 NVL"),
    *("NVIDIA H20-3e", "NVIDIA GH200", "AMD Instinct MI300A", "AMD Instinct MI350X"),
    *("TPU v2", "TPU v3", "TPU v4 lite", "TPU", "NVIDIA", "Instinct", "", "  ", "\0"),
    "NVIDIA H200 " * 100_000,
)
"""Names of machines that no target describes, parts of one, and words that name none."""


@pytest.mark.parametrize(("name", "target"), SEEN.items())
def test_a_device_is_known_by_the_name_that_it_has(name: str, target: str):
    assert target_of_device(name) == target
    assert target_of_device(f" {name.upper()}  ") == target
    assert load_target(name).name == target


@pytest.mark.parametrize("name", OTHERS, ids=lambda name: name[:40])
def test_a_name_that_no_target_has_stays_unknown(name: str):
    assert target_of_device(name) is None


@pytest.mark.parametrize("target", target_names())
def test_every_declared_name_is_of_its_own_target_and_of_no_other(target: str):
    own = load_target(target)
    for name in own.device_names:
        assert target_of_device(name) == target
        assert target_of_device(name, own.hbm_bytes.value) == target
        assert [one for one in target_names() if is_named(load_target(one).device_names, name)] == [target]
    assert own.device_names or target == "vr200"  # nobody has one yet


DECLARED = sorted((name, target) for target in target_names() for name in load_target(target).device_names)
MAKERS = {"nvidia", "amd", "instinct", "google"}


def words(name: str) -> list[str]:
    """An independent reading of a name: its words without the maker, sizes without the B of GB."""
    found = re.split(r"[^a-z0-9.]+", name.lower())
    return sorted(word[:-1] if re.fullmatch(r"\d+gb", word) else word for word in found if word and word not in MAKERS)


@given(st.sampled_from(DECLARED), st.data())
def test_other_order_case_and_separators_are_the_same_device(declared: tuple[str, str], data: st.DataObject):
    name, target = declared
    shuffled = data.draw(st.permutations(re.split(r"[ -]+", name)))
    separators = data.draw(
        st.lists(st.sampled_from([" ", "-", "_ ", "  "]), min_size=len(shuffled), max_size=len(shuffled))
    )
    text = "".join(word + separator for word, separator in zip(shuffled, separators, strict=True))
    assert target_of_device(text if data.draw(st.booleans()) else text.upper()) == target


@given(
    st.sampled_from(DECLARED),
    st.lists(
        st.sampled_from(("sxm4", "pcie", "nvl", "40gb", "80gb", "480gb", "hbm3", "mig", "lite", "a100", "v5", "3e")),
        max_size=3,
    ),
    st.integers(0, 3),
)
def test_a_name_is_only_of_the_target_that_declares_the_same_words(
    declared: tuple[str, str], more: list[str], cut: int
):
    kept = declared[0].split()[: len(declared[0].split()) - cut]
    text = " ".join([*kept, *more])
    owners = {target for name, target in DECLARED if words(name) == words(text)} if words(text) else set()
    assert target_of_device(text) == (owners.pop() if owners else None)


def test_memory_tells_apart_what_a_name_does_not():
    assert target_of_device("NVIDIA H20", 102_010_716_160) == "h20"
    assert target_of_device("NVIDIA H20", 150_000_000_000) is None  # the one with 141 GB
    assert target_of_device("NVIDIA A100-SXM4-40GB", 42_297_524_224) == "a100-40g"
    assert target_of_device("NVIDIA A100-SXM4-40GB", 85_000_000_000) is None
    assert target_of_device("NVIDIA H100 80GB HBM3", 10_000_000_000) is None  # a part of one
    assert target_of_device("AMD Instinct MI300X", 206_141_652_992) == "mi300x"


def test_what_xla_calls_a_target_in_a_dump_is_one_of_its_names():
    for target in map(load_target, target_names()):
        if target.xla_target_config and not target.stand_in:
            (name,) = re.findall(r'^device_description_str: "(.*)"$', target_config_text(target), re.MULTILINE)
            assert target_of_device(name) == target.name


def test_a_users_file_keeps_the_names_of_its_base_but_not_the_aliases(tmp_path):
    mine = load_target(write(tmp_path, 'base = "h100"\nlaunch_us = 2.0\n'))
    assert mine.device_names == ("NVIDIA H100 80GB HBM3",)
    assert mine.aliases == ()
    other = load_target(write(tmp_path, 'base = "h100"\ndevice_names = ["NVIDIA H800"]\n'))
    assert other.device_names == ("NVIDIA H800",)


# --- names that people type


@pytest.mark.parametrize(
    ("typed", "target"),
    [
        ("rubin", "vr200"),
        ("gb200-nvl72", "gb200"),
        ("trillium", "v6e"),
        ("Ironwood", "tpu7x"),
        ("h100-sxm", "h100"),
        ("H100_PCIe", "h100-pcie"),
        ("v5litepod", "v5e"),
        ("gh200-480gb", "gh200-480g"),
        ("a100", "a100-80g"),
        ("mi355", "mi355x"),
    ],
)
def test_what_people_type_is_understood(typed: str, target: str):
    assert load_target(typed).name == target


@pytest.mark.parametrize(
    ("typed", "hint"),
    [
        ("v5e-8", r"did you mean v5e\? \(--devices or --topology says how many\) known are"),
        ("v5litepod-16", r"did you mean v5e\? "),
        ("v5", r"did you mean v5e or v5p\? "),
        ("hopper", r"did you mean h100 or h100-pcie or h100-nvl or h200 or h20\? "),
        ("gh200-96g", r"did you mean gh200-480g or gh200-120g\? "),
        ("mi350x", r"did you mean mi355x\? "),
        ("a100-pcie-40gb", r"did you mean a100-pcie-80gb\? "),
        ("NVIDIA H100", r"did you mean h100"),
        ("none", r"unknown target 'none': known are"),
    ],
)
def test_what_could_be_several_targets_or_is_none_is_answered_with_the_nearest(typed: str, hint: str):
    with pytest.raises(TargetError, match=hint):
        load_target(typed)


def test_the_gh200_is_the_machines_that_it_is():
    small, large, new = (load_target(name) for name in ("gh200-120g", "gh200-480g", "gh200"))
    assert small.link
    assert large.link
    memory = [link.host_memory_bytes.value for link in (small.link, large.link) if link.host_memory_bytes]
    assert memory == [120e9, 480e9]
    assert small.link.host_bytes_per_s
    assert large.link.host_bytes_per_s
    assert "512 GB/s" in small.link.host_bytes_per_s.source
    assert large.link.host_bytes_per_s.value == 384e9
    assert small.link.d2h_bytes_per_s.value < large.link.d2h_bytes_per_s.value
    assert small.hbm_bytes == large.hbm_bytes
    assert new.hbm_bytes.value > 1.4 * large.hbm_bytes.value


def test_each_file_of_a_target_is_held_to_the_types_of_a_users(tmp_path):
    for path in SPECS.glob("*.toml"):
        copy = load_target(write(tmp_path, path.read_text()))
        assert copy.peak_flops == load_target(path.stem).peak_flops
