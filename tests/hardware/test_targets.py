"""The built-in targets, what is special of some of them, and `hloinspect targets`."""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from pathlib import Path

import pytest
from click.testing import CliRunner

from hloinspect.analyze.inspect import inspect
from hloinspect.cli import main
from hloinspect.compile.launch import compile_step
from hloinspect.compile.topology import choose_topology
from hloinspect.errors import TargetError, UsageError
from hloinspect.hardware import (
    Figure,
    HostLink,
    Range,
    load_target,
    target_config_text,
    target_limits,
    target_names,
    target_of_device,
    with_link,
)
from hloinspect.predict.cost import Cost
from hloinspect.predict.link import rates_of as predicted_rates
from hloinspect.predict.scenario import scenarios
from hloinspect.report.build import target_info
from tests.support.places import FIXTURES, SUPPORT
from tests.support.target_files import SPECS, write

# The rate of a tensor of 512 MiB over a GB200's link, from the published 900 GB/s both ways that two GPUs share.
C2C_BYTES_PER_S = 900e9 / 2 / 2


def figures(value: object) -> Iterator[Figure | Range]:
    if isinstance(value, Figure | Range):
        yield value
    elif is_dataclass(value):
        for field in fields(value):
            yield from figures(getattr(value, field.name))
    elif isinstance(value, dict | tuple):
        for item in value.values() if isinstance(value, dict) else value:
            yield from figures(item)


# --- the built-in targets


def test_the_built_in_targets_are_the_spec_files():
    assert set(target_names()) == {path.stem for path in SPECS.glob("*.toml")} >= {"gb200", "h100", "a100-80g", "v6e"}


@pytest.mark.parametrize("name", target_names())
def test_every_built_in_figure_has_a_source_and_estimates_say_so(name: str):
    found = list(figures(load_target(name)))
    assert len(found) > (15 if load_target(name).link else 10)
    for figure in found:
        assert len(figure.source) > 10
        assert not figure.source.startswith("given in")
        assert figure.estimate == figure.source.startswith("estimate")
        assert isinstance(figure, Range) or figure.announced == figure.source.startswith("announced: ")


CONFIGURED = [name for name in target_names() if load_target(name).xla_target_config]
STAND_INS = {name: stand_in for name in target_names() if (stand_in := load_target(name).stand_in)}
DESCRIBED = [name for name in CONFIGURED if name not in STAND_INS]


AMD = {"mi300x", "mi325x", "mi355x"}
NOT_COMPILED = AMD | {"v4"}


def test_only_for_amds_gpus_nothing_can_be_compiled():
    gpus = {name for name in target_names() if load_target(name).platform == "gpu"}
    assert gpus - set(CONFIGURED) == AMD
    for name in AMD:
        with pytest.raises(TargetError, match="nothing to compile for it with"):
            target_config_text(load_target(name))


def test_a_v4_has_no_topology_to_compile_for():
    with pytest.raises(UsageError, match="target v4 names no TPU topology to compile for"):
        choose_topology(load_target("v4"), 4, None)
    assert "Nothing can be compiled for it here" in load_target("v4").notes[0]


@pytest.mark.parametrize("name", [name for name in target_names() if name not in NOT_COMPILED])
def test_a_built_in_target_can_be_compiled_for(name: str):
    target = load_target(name)
    if target.platform == "gpu":
        text = target_config_text(target)
        own = load_target(STAND_INS.get(name, name))
        assert f"device_memory_size: {int(own.hbm_bytes.value)}" in text
    else:
        assert target.xla_topology_name is not None


@pytest.mark.parametrize("name", DESCRIBED)
def test_bandwidth_and_vector_rate_are_those_of_xlas_description(name: str):
    target = load_target(name)
    values = {}
    for line in target_config_text(target).splitlines():
        key, _, value = line.strip().partition(": ")
        values.setdefault(key, value)
    assert target.hbm_bytes_per_s.value == pytest.approx(float(values["memory_bandwidth"]), rel=1e-3)
    lanes = int(values["core_count"]) * int(values["fpus_per_core"])
    assert target.vector_flops.value == pytest.approx(2 * lanes * float(values["clock_rate_ghz"]) * 1e9, rel=2e-3)
    assert target.multiprocessors == int(values["core_count"])


def test_half_a_gibibyte_takes_2_4_ms_over_a_gb200s_link():
    link = load_target("gb200").link
    assert link is not None
    assert link.d2h_bytes_per_s.value == link.h2d_bytes_per_s.value == C2C_BYTES_PER_S
    assert 536_870_912 / (link.d2h_bytes_per_s.value * link.efficiency.value) == pytest.approx(2.386e-3, rel=1e-3)
    assert link.sharers == 2


def test_names_and_aliases_are_found_in_any_case():
    assert load_target("a100").name == load_target("A100-80G").name == "a100-80g"
    assert load_target("GB200") == load_target("gb200")


def test_no_alias_is_claimed_twice_or_hides_a_name():
    import tomllib

    claimed = [alias for path in SPECS.glob("*.toml") for alias in tomllib.loads(path.read_text()).get("aliases", [])]
    assert len(set(claimed)) == len(claimed)
    assert not set(claimed) & set(target_names())


def test_an_unknown_name_is_answered_with_the_nearest_and_all_names():
    with pytest.raises(
        TargetError,
        match=r"unknown target 'gb20': did you mean gb200\? known are a100-40g, a100-80g, a100-pcie, b200, b300,",
    ):
        load_target("gb20")
    with pytest.raises(TargetError, match=r"unknown target 'zx81': known are"):
        load_target("zx81")


def test_a_tpu_has_no_gpu_target_config():
    with pytest.raises(TargetError, match="v6e has no xla_target_config"):
        target_config_text(load_target("v6e"))


# --- the command


def targets(*arguments: str) -> str:
    result = CliRunner().invoke(main, ["targets", *arguments])
    assert result.exit_code == 0, result.output
    return result.output


def test_the_table_has_a_line_for_each_target_within_100_columns():
    lines = targets().splitlines()
    for name in target_names():
        assert sum(line.startswith(f"{name} ") for line in lines) == 1
        aliases = load_target(name).aliases
        assert not aliases or [line.split()[1:] for line in lines if line.startswith(f" {name} ")] == [
            ", ".join(aliases).split()
        ]
    assert max(map(len, lines)) <= 100
    gb200 = next(line for line in lines if line.startswith("gb200"))
    assert gb200.split()[1:7] == ["2500", "197.9", "7.93", "225.0", "225.0", "2"]


@pytest.mark.parametrize("name", target_names())
def test_one_target_shows_every_figure_with_its_source_within_100_columns(name: str):
    output = targets(name)
    flowing = " ".join(output.split())
    target = load_target(name)
    for figure in figures(target):
        assert figure.source.split()[0] in flowing
    assert output.count("\n") > 20
    assert max(map(len, output.splitlines())) <= 100
    marked = sum(" ~  " in line for line in output.splitlines())
    assert marked == sum(figure.estimate for figure in figures(target)) > 0


def test_json_has_the_same_figures_as_the_target():
    one = json.loads(targets("gb200", "--format", "json"))
    assert one["schema"] == "hloinspect.target/1"
    assert one["target"]["link"]["d2h_bytes_per_s"]["value"] == C2C_BYTES_PER_S
    assert one["target"]["launch_us"]["estimate"] is True
    every = json.loads(targets("--format", "json"))
    assert every["schema"] == "hloinspect.targets/1"
    assert one["target"] in every["targets"]
    assert [target["name"] for target in every["targets"]] == list(target_names())


def test_targets_shows_a_users_file_and_link(tmp_path: Path):
    path = write(tmp_path, 'base = "gb200"\nlaunch_us = 1.25\n')
    output = targets(path, "--link", "180GB/s")
    assert "given in mine.toml" in output
    assert "given by --link 180GB/s" in output


def test_targets_without_a_link_say_so(tmp_path: Path):
    text = (SPECS / "h100.toml").read_text()
    path = write(tmp_path, text[: text.index("[link]")] + text[text.index("[[levels]]") :])
    assert "not published: give it with --link" in targets(path)


def test_output_goes_to_a_file_without_colour(tmp_path: Path):
    path = tmp_path / "out.txt"
    assert targets("h100", "-o", str(path)) == ""
    assert path.read_text() == targets("h100")
    assert "\x1b" not in path.read_text()


def test_output_to_a_place_that_cannot_be_written_is_one_line(tmp_path: Path):
    result = CliRunner().invoke(main, ["targets", "-o", str(tmp_path / "no" / "out.txt")])
    assert result.exit_code == 2
    assert result.output.startswith("hloinspect: error: cannot write ")
    assert result.output.endswith("No such file or directory\n")


def test_a_link_without_a_name_is_wrong_use():
    result = CliRunner().invoke(main, ["targets", "--link", "1GB/s"])
    assert result.exit_code == 2
    assert "--link needs a NAME" in result.output


# what both directions keep, and efficiencies of single types


def link_of(folder: Path, text: str) -> HostLink:
    link = load_target(write(folder, text)).link
    assert link is not None
    return link


def test_a_duplex_factor_may_be_one_figure_or_one_for_each_direction(tmp_path: Path):
    one = link_of(tmp_path, 'base = "gb200"\n[link]\nduplex_factor = 0.8\n')
    assert (one.d2h_duplex.value, one.h2d_duplex.value, one.duplex_factor.value) == (0.8, 0.8, 0.8)
    two = link_of(tmp_path, 'base = "gb200"\n[link.duplex_factor]\nd2h = 0.6\nh2d = 0.9\n')
    assert (two.d2h_duplex.value, two.h2d_duplex.value) == (0.6, 0.9)
    assert two.duplex_factor.value == pytest.approx(0.75)


def test_one_duplex_factor_replaces_the_two_of_a_built_in_target_and_one_of_two_changes_only_that(tmp_path: Path):
    one = link_of(tmp_path, 'base = "h100"\n[link.duplex_factor]\nvalue = 0.8\nsource = "measured here"\n')
    assert one.d2h_duplex == one.h2d_duplex
    assert one.d2h_duplex.source == "measured here"
    before = load_target("h100").link
    assert before is not None
    half = link_of(tmp_path, 'base = "h100"\n[link.duplex_factor]\nd2h = 0.7\n')
    assert (half.d2h_duplex.value, half.h2d_duplex) == (0.7, before.h2d_duplex)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("[link.duplex_factor]\nd2h = 0.5\n", "link.duplex_factor.h2d is missing"),
        (
            "[link.duplex_factor]\nd2h = 0.5\nh2d = 1.5\n",
            "h2d: expected a number from 0.001 to 1, found 1.5",
        ),
        ("[link.duplex_factor]\nd2h = 0.5\nh2d = 0.5\nup = 1\n", "unknown key 'up'"),
        ("[dtype_efficiency]\nfp8 = 0.5\n", "dtype_efficiency: unknown key 'fp8'; known are bf16, f16"),
        ("[dtype_efficiency]\nf8e4m3fn = 2\n", "dtype_efficiency.f8e4m3fn: expected a number from 0.001 to 1, found 2"),
        ("multiprocessors = 0\n", "multiprocessors: expected a whole number of 1 or more"),
    ],
)
def test_impossible_figures_are_refused_with_their_key(tmp_path: Path, text: str, complaint: str):
    with pytest.raises(TargetError, match=re.escape(complaint)):
        load_target(write(tmp_path, f'base = "gb200"\n{text}'))


def test_the_memory_of_a_host_may_hold_one_direction_to_less(tmp_path: Path):
    link = link_of(tmp_path, 'base = "gb200"\n[link]\nhost_d2h_bytes_per_s = 200e9\n')
    case = scenarios(load_target("gb200"), 2)[0]
    rates = predicted_rates(link, case)
    assert rates.alone == {"d2h": pytest.approx(0.1), "h2d": pytest.approx(0.165)}  # bytes a picosecond, of two GPUs
    assert with_link(load_target("h100"), "50GB/s").link.host_d2h_bytes_per_s is None  # type: ignore[union-attr]


def test_the_report_gives_both_duplex_factors_and_their_mean():
    link = target_info(load_target("h100"), 1).link
    assert link is not None
    assert (link.duplex.d2h, link.duplex.h2d, link.duplex_factor) == (0.63, 0.95, pytest.approx(0.79))


# hardware that is announced, and sources that differ


def test_only_vera_rubin_is_compiled_for_a_stand_in_and_a_dump_is_never_taken_for_its():
    assert STAND_INS == {"vr200": "gb300"}
    assert target_config_text(load_target("vr200")) == target_config_text(load_target("gb300"))
    assert target_of_device("NVIDIA GB300") == "gb300"


def test_only_a_target_with_open_figures_limits_its_reports():
    open_ones = {name for name in target_names() if target_limits(load_target(name))}
    assert open_ones == {"vr200"}
    assert target_limits(None) == ()


def test_the_limits_of_a_target_name_the_stand_in_what_is_announced_and_the_spread():
    stand_in, announced, spread = target_limits(load_target("vr200"))
    assert "XLA has no description of vr200: a step for it is compiled for a stand-in, gb300," in stand_in
    assert "announced, not measured: products of every type, other compute, HBM, HBM bandwidth, link d2h" in announced
    assert "bf16 products 4 to 8.75 PFLOP/s" in spread
    assert "HBM bandwidth 20 to 22 TB/s" in spread
    assert "f32" not in spread
    assert target_limits(load_target("vr200"), "vr200") == (stand_in, announced, spread)
    assert target_limits(load_target("vr200"), "h100")[0].startswith("compiled for a stand-in, h100: ")


def test_a_users_file_may_say_between_what_a_peak_and_the_bandwidth_lie(tmp_path: Path):
    text = (
        'base = "gb200"\n[peak_flops.bf16]\nlow = 2e15\nvalue = 2.5e15\nsource = "two leaks"\nannounced = true\n'
        '[hbm_bytes_per_s]\nvalue = 8e12\nhigh = 9e12\nsource = "two others"\n'
    )
    mine = load_target(write(tmp_path, text))
    bf16, memory = mine.peak_flops["bf16"], mine.hbm_bytes_per_s
    assert (bf16.at("low"), bf16.at("value"), bf16.at("high")) == (2e15, 2.5e15, 2.5e15)
    assert (memory.at("low"), memory.at("value"), memory.at("high")) == (8e12, 8e12, 9e12)
    assert target_limits(mine) == (
        "figures of mine that are announced, not measured: bf16 products",
        "public sources differ about mine, and the range covers them: bf16 products 2 to 2.5 PFLOP/s, "
        "HBM bandwidth 8 to 9 TB/s",
    )
    shown = " ".join(targets(str(tmp_path / "mine.toml")).split())
    assert "2,500 TFLOP/s (2,000 to 2,500)" in shown
    assert "8,000 GB/s (8,000 to 9,000)" in shown


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("[hbm_bytes_per_s]\nlow = 9e12\nvalue = 8e12\n", "hbm_bytes_per_s: expected low <= value <= high"),
        ("[peak_flops.bf16]\nhigh = 1e15\nvalue = 2e15\n", "peak_flops.bf16: expected low <= value <= high"),
        (
            "[peak_flops.bf16]\nlow = 0\nvalue = 2e15\n",
            "peak_flops.bf16.low: expected a number from 1e+06",
        ),
        ("[peak_flops.bf16]\nvalue = 2e15\nannounced = 1\n", "peak_flops.bf16.announced: expected true or false"),
        ("[hbm_bytes]\nlow = 1e11\nvalue = 2e11\n", "hbm_bytes: unknown key 'low'"),  # no range would cover it
        ("[link.latency_us]\nhigh = 30\nvalue = 10\n", "link.latency_us: unknown key 'high'"),
    ],
)
def test_a_spread_that_is_none_or_that_nothing_would_cover_is_refused(tmp_path: Path, text: str, complaint: str):
    with pytest.raises(TargetError, match=re.escape(complaint)):
        load_target(write(tmp_path, f'base = "gb200"\n{text}source = "somewhere"\n'))


def test_each_corner_of_a_prediction_takes_its_side_of_what_sources_say():
    target = load_target("vr200")
    product = Cost(matrix_flops=1e15, matrix_dtype="bf16")
    copy = Cost(bytes=10**12)
    times = {case.name: (product.time_ps(target, case), copy.memory_ps(target, case)) for case in scenarios(target, 1)}
    fast, slow = times["fast compute, fast link"], times["slow compute, fast link"]
    assert times["central"] == (pytest.approx(1e12 / (4 * 0.75)), pytest.approx(1e12 / (22 * 0.9)))
    assert fast == (pytest.approx(1e12 / (8.75 * 0.85)), pytest.approx(1e12 / (22 * 0.93)))
    assert slow == (pytest.approx(1e12 / (4 * 0.55)), pytest.approx(1e12 / (20 * 0.8)))


STEPS = SUPPORT / "audit_steps.py"
STORED = FIXTURES / "jax0.12.0.1" / "gb200_offload_scan" / "module.hlo.txt.gz"


def test_a_stored_module_is_judged_for_vera_rubin_and_every_report_says_what_is_not_known():
    found = inspect(str(STORED), target="vr200")
    step = found.report.step
    assert found.prediction is not None
    assert step.predicted is not None
    assert step.predicted.low_ms < step.predicted.time_ms < step.predicted.high_ms
    data = json.loads(found.report.to_json())
    assert set(target_limits(load_target("vr200"))) <= set(data["limits"])
    assert data["target"]["name"] == "vr200"


def test_a_wider_peak_widens_the_range_and_moves_nothing_else(tmp_path: Path):
    def predicted(more: str) -> tuple[float, float, float]:
        text = f'base = "gb200"\n[peak_flops.bf16]\nvalue = 2.5e12\nsource = "slow, so that products count"\n{more}'
        step = inspect(str(STORED), target=write(tmp_path, text)).report.step.predicted
        assert step is not None
        return step.low_ms, step.time_ms, step.high_ms

    settled, open_one = predicted(""), predicted("low = 2e12\nhigh = 5e12\n")
    assert open_one[0] < settled[0] < settled[1] == open_one[1] < settled[2] < open_one[2]


def test_a_compilation_that_is_judged_for_vera_rubin_names_the_target_that_it_was_made_for(tmp_path: Path):
    for packed in STORED.parent.glob("module.hlo.*.gz"):
        (tmp_path / packed.stem).write_bytes(gzip.decompress(packed.read_bytes()))
    (tmp_path / "manifest.json").write_bytes((STORED.parent / "manifest.json").read_bytes())
    (tmp_path / "module.stablehlo.mlir").write_text("")
    report = inspect(str(tmp_path), target="vr200").report
    assert report.limits[0] == "compiled for a stand-in, gb200: kernels and schedule for vr200 may differ"
    assert "public sources differ" not in " ".join(inspect(str(tmp_path)).report.limits)


@pytest.mark.slow
def test_a_step_compiles_for_vera_rubin_and_the_manifest_says_for_what(tmp_path: Path):
    result = compile_step(f"{STEPS}:three_names", load_target("vr200"), out=tmp_path / "out")
    assert result.manifest.target == "vr200"
    assert any("compiled for a stand-in, gb300" in note for note in result.manifest.notes)
    report = inspect(str(tmp_path / "out")).report
    assert report.limits[0] in result.manifest.notes
    assert {transfer.direction for transfer in report.transfers} == {"d2h", "h2d"}
