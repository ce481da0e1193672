"""A user's own target file, and the host link of --link."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hloinspect.errors import TargetError
from hloinspect.hardware import (
    Figure,
    Range,
    Target,
    load_target,
    target_config_text,
    with_link,
)
from hloinspect.hardware.target import LEAST_RATE
from tests.support.target_files import SPECS, write


def changed(folder: Path, old: str, new: str) -> str:
    """A whole target file, h100's, with one thing changed."""
    text = (SPECS / "h100.toml").read_text()
    assert old in text
    return write(folder, text.replace(old, new, 1))


# --- a user's file


def test_an_overlay_changes_what_it_says_and_keeps_the_rest(tmp_path: Path):
    base = load_target("gb200")
    mine = load_target(
        write(
            tmp_path,
            'base = "gb200"\n[link]\nd2h_bytes_per_s = 170e9\nsharers = 1\n'
            '[link.efficiency]\nlow = 0.9\nvalue = 0.95\nhigh = 1.0\nsource = "our own runs"\n',
        )
    )
    assert base.link is not None
    assert mine.link is not None
    assert mine.name == "mine"
    assert mine.title == f"{base.title}, as changed by mine.toml"
    assert mine.link.d2h_bytes_per_s == Figure(170e9, "given in mine.toml")
    assert mine.link.efficiency == Range(0.9, 0.95, 1.0, "our own runs")
    assert mine.link.sharers == 1
    assert mine.link.h2d_bytes_per_s == base.link.h2d_bytes_per_s
    assert mine.link.host_bytes_per_s == base.link.host_bytes_per_s
    assert mine.peak_flops == base.peak_flops
    assert target_config_text(mine) == target_config_text(base)


def test_an_overlaid_figure_never_keeps_the_source_of_the_old_one(tmp_path: Path):
    with pytest.raises(TargetError, match=r"mine\.toml: hbm_bytes\.source is missing"):
        load_target(write(tmp_path, 'base = "gb200"\n[hbm_bytes]\nvalue = 1e11\n'))


def test_a_bare_number_stands_for_a_range_without_width(tmp_path: Path):
    mine = load_target(write(tmp_path, 'base = "a100"\nname = "my-a100"\nmatmul_efficiency = 0.7\n'))
    assert mine.name == "my-a100"
    assert mine.matmul_efficiency == Range(0.7, 0.7, 0.7, "given in mine.toml")


def test_an_overlay_replaces_the_levels_as_a_whole(tmp_path: Path):
    level = '[[levels]]\nname = "all"\ndevices = 16\nbytes_per_s = 1e9\nlatency_us = 2\n'
    mine = load_target(write(tmp_path, f'base = "gb200"\n{level}'))
    assert [(level.name, level.devices) for level in mine.levels] == [("all", 16)]


def test_a_whole_file_needs_no_base_and_no_link(tmp_path: Path):
    text = (SPECS / "h100.toml").read_text()
    start, end = text.index("[link]"), text.index("[[levels]]")
    mine = load_target(write(tmp_path, text[:start] + text[end:], "nolink.toml"))
    assert mine.link is None
    linked = with_link(mine, "50GB/s").link
    assert linked is not None
    assert (linked.d2h_bytes_per_s.value, linked.sharers, linked.duplex_factor.estimate) == (50e9, 1, True)


def test_a_target_config_beside_the_file_is_found(tmp_path: Path):
    (tmp_path / "own.txtpb").write_text("gpu_device_info { }\n")
    mine = load_target(write(tmp_path, 'base = "h100"\nxla_target_config = "own.txtpb"\n'))
    assert target_config_text(mine) == "gpu_device_info { }\n"
    lost = load_target(write(tmp_path, 'base = "h100"\nxla_target_config = "lost.txtpb"\n'))
    with pytest.raises(TargetError, match=r"lost\.txtpb: cannot read the XLA target config: No such file"):
        target_config_text(lost)


@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [
        ('platform = "gpu"', 'platform = "npu"', r"mine\.toml: platform: expected gpu or tpu, found 'npu'"),
        ('platform = "gpu"', 'plattform = "gpu"', r"mine\.toml: unknown key 'plattform': did you mean platform\?"),
        ('platform = "gpu"\n', "", r"mine\.toml: platform is missing"),
        ("[peak_flops.bf16]", "[peak_flops.bf17]", r"mine\.toml: peak_flops: unknown key 'bf17': did you mean bf16"),
        ("[peak_flops.bf16]", "[peak_flops.s4]", r"mine\.toml: peak_flops\.bf16 is missing"),
        (
            "value = 84_942_979_072",
            "value = 0",
            r"mine\.toml: hbm_bytes\.value: expected a number from 1 to 1e\+24, found 0",
        ),
        (
            "value = 84_942_979_072",
            "value = -1.5",
            r"hbm_bytes\.value: expected .* 1 to 1e\+24, found -1\.5",
        ),
        ("value = 84_942_979_072", "value = nan", r"hbm_bytes\.value: expected a number, found nan"),
        ("value = 84_942_979_072", "value = inf", r"hbm_bytes\.value: expected a number, found inf"),
        (
            "value = 84_942_979_072",
            "value = 1" + "0" * 400,
            r"hbm_bytes\.value: .* 1 to 1e\+24, found 1000",
        ),
        ("value = 84_942_979_072", "value = true", r"hbm_bytes\.value: expected a number, found true"),
        ("value = 84_942_979_072", 'value = "84 GB"', r"hbm_bytes\.value: expected a number, found '84 GB'"),
        ("sharers = 8", "sharers = 2.5", r"link\.sharers: expected a whole number of 1 or more, found 2\.5"),
        ("sharers = 8", "sharers = 0", r"link\.sharers: expected a whole number of 1 or more, found 0"),
        ("sharers = 8", "sharers = 8\nspeed = 3", r"mine\.toml: link: unknown key 'speed'"),
        ("devices = 8", 'devices = "8"', r"levels\[0\]\.devices: expected a whole number of 1 or more, found '8'"),
        ("value = 0.87", "value = 0.5", r"link\.efficiency: expected low <= value <= high, found 0\.8, 0\.5, 0\.9"),
        (
            "value = 3.352e12",
            "value = 1e-320",
            r"hbm_bytes_per_s\.value: .* 1e\+06 to 1e\+24, found 1e-320",
        ),
        ("high = 0.9", "high = 1.9", r"link\.efficiency\.high: expected a number from 0\.001 to 1, found 1\.9"),
        ('source = "NVIDIA H100', 'source = "" # ', r"peak_flops\.bf16\.source: expected one line of text, found ''"),
        ("estimate = true", 'estimate = "yes"', r"launch_us\.estimate: expected true or false, found 'yes'"),
        ("notes = [", "notes = [ 1,", r"mine\.toml: notes\[0\]: expected one line of text, found 1"),
        ("[link]", "[link", r"mine\.toml: not valid TOML: .* \(at line \d+"),
    ],
)
def test_a_bad_target_file_is_refused_by_file_and_key(tmp_path: Path, old: str, new: str, complaint: str):
    with pytest.raises(TargetError, match=complaint) as caught:
        load_target(changed(tmp_path, old, new))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (b"\xff\xfe\x00", "it is not UTF-8 text"),
        (b"a = " + b"[" * 100_000, "cannot read this target file|not valid TOML"),
        (b"a = 1" + b"0" * 10_000, "cannot read this target file"),
        (b"", "title is missing"),
        (b"base = 3", "base: expected the name of a target, found 3"),
        (b'base = "nope"', "unknown target 'nope'"),
        (b'base = "gb200"\nlink = 3', "mine.toml: link: expected a table, found 3"),
        (b'base = "gb200"\nlevels = 3', "mine.toml: levels: expected a list, found 3"),
        (b'base = "gb200"\npeak_flops = 3', "mine.toml: peak_flops: expected a table, found 3"),
    ],
)
def test_a_hostile_target_file_gives_one_line_and_no_crash(tmp_path: Path, content: bytes, complaint: str):
    path = tmp_path / "mine.toml"
    path.write_bytes(content)
    with pytest.raises(TargetError, match=complaint) as caught:
        load_target(str(path))
    assert "\n" not in str(caught.value)


def test_a_missing_target_file_is_named(tmp_path: Path):
    with pytest.raises(TargetError, match=r"absent\.toml: cannot read this target file: No such file or directory"):
        load_target(str(tmp_path / "absent.toml"))


# --- --link


UNITS = {"B/s": 1, "KB/s": 1e3, "MB/s": 1e6, "GB/s": 1e9, "TB/s": 1e12, "GiB/s": 2**30}
NUMBERS = st.tuples(st.floats(1e-3, 1e6).map(lambda x: float(f"{x:.6g}")), st.sampled_from(sorted(UNITS)))
RATES = NUMBERS.filter(lambda rate: rate[0] * UNITS[rate[1]] >= LEAST_RATE)


def rates_of(target: Target) -> tuple[float, float]:
    assert target.link is not None
    return target.link.d2h_bytes_per_s.value, target.link.h2d_bytes_per_s.value


@given(RATES, st.sampled_from(["", " "]))
def test_one_rate_is_taken_for_both_directions(rate: tuple[float, str], space: str):
    number, unit = rate
    expected = pytest.approx(number * UNITS[unit])
    assert rates_of(with_link(load_target("gb200"), f"{number}{space}{unit}")) == (expected, expected)


@given(RATES, RATES, st.booleans())
def test_each_direction_gets_its_own_rate_in_either_order(
    d2h: tuple[float, str], h2d: tuple[float, str], iteration: bool
):
    parts = [f"d2h={d2h[0]}{d2h[1]}", f"h2d={h2d[0]}{h2d[1]}"]
    found = rates_of(with_link(load_target("h100"), ",".join(parts[::-1] if iteration else parts)))
    assert found == (pytest.approx(d2h[0] * UNITS[d2h[1]]), pytest.approx(h2d[0] * UNITS[h2d[1]]))


@given(st.text(max_size=30))
def test_any_text_is_a_rate_or_one_clear_line(text: str):
    try:
        d2h, h2d = rates_of(with_link(load_target("gb200"), text))
    except TargetError as error:
        complaint = str(error)
    else:
        assert 0 < d2h < float("inf")
        assert 0 < h2d < float("inf")
        return
    assert "--link" in complaint
    assert complaint.isprintable()


def test_a_link_that_is_given_is_taken_as_reached_and_says_where_it_is_from():
    before = load_target("gb200")
    after = with_link(before, "d2h=170GB/s,h2d=415GB/s")
    assert before.link is not None
    assert after.link is not None
    source = "given by --link d2h=170GB/s,h2d=415GB/s"
    assert after.link.d2h_bytes_per_s == Figure(170e9, source)
    assert after.link.efficiency == Range(1.0, 1.0, 1.0, source)
    assert after.link.sharers == before.link.sharers
    assert after.link.duplex_factor == before.link.duplex_factor


@pytest.mark.parametrize(
    ("spec", "complaint"),
    [
        ("fast", "'fast' is not a rate; expected a rate for both directions, such as 225GB/s"),
        ("225", "'225' is not a rate"),
        ("225Gb/s", "'Gb/s' is not a unit of bytes a second"),
        ("225gb/s", "'gb/s' is not a unit of bytes a second"),
        ("0GB/s", "must be above zero and finite"),
        ("1e400GB/s", "must be above zero and finite"),
        ("1e-300GB/s", r"a rate must be 1e\+06 to 1e\+24 bytes a second"),
        ("d2h=1e-9GB/s,h2d=5GB/s", r"a rate must be 1e\+06 to 1e\+24 bytes a second"),
        ("1e290GB/s", r"a rate must be 1e\+06 to 1e\+24 bytes a second"),
        ("-5GB/s", "'-5GB/s' is not a rate"),
        ("nanGB/s", "is not a rate"),
        ("infGB/s", "is not a rate"),
        ("d2h=5GB/s", "h2d is missing"),
        ("d2h=5GB/s,d2h=6GB/s", "d2h is given twice"),
        ("up=5GB/s,h2d=6GB/s", "'up' is not a direction"),
        ("d2h=5GB/s,", "'' is not a direction"),
        ("", "'' is not a rate"),
    ],
)
def test_a_link_that_makes_no_sense_is_refused(spec: str, complaint: str):
    with pytest.raises(TargetError, match=complaint):
        with_link(load_target("gb200"), spec)
