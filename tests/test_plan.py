"""Plans without a compiler: what varies, what it means, and how points compare."""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import json
import re
from collections.abc import Callable
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import click
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hloinspect.compile.policies import changed, described
from hloinspect.errors import UsageError
from hloinspect.hardware import load_target
from hloinspect.plan.axes import KNOWN_FLAGS, Names, flags_of, literal, load_names, parse_axes
from hloinspect.plan.front import (
    TELLING,
    best,
    front,
    largest,
    not_told_apart,
    told_apart,
    why_best,
    with_recomputation,
)
from hloinspect.plan.model import MemoryUse, Plan, Point, StepTime
from hloinspect.plan.policy import Policy, parse_policy, read_policies
from hloinspect.plan.run import Room, remaining_text
from hloinspect.plan.verb import Wishes, make_plan
from hloinspect.plan.work import Subject, combinations, parse_point, works_of
from hloinspect.report.plan_csv import plan_csv
from hloinspect.report.plan_html import plan_html
from hloinspect.report.plan_text import plan_text

GIB = 1 << 30


def point(number: int, time_ms: float, device_gib: float, **more: object) -> Point:
    """A point that fits into 100 GiB if it needs less."""
    cases = {"central": time_ms, "fast": 0.9 * time_ms, "slow": 1.2 * time_ms}
    step = StepTime(time_ms, 0.9 * time_ms, 1.2 * time_ms, time_ms, 0.0, time_ms, time_ms, cases)
    memory = MemoryUse(round(device_gib * GIB), 100 * GIB, 80 * GIB, 0, None, 1, "artifacts")
    made = Point(number, {"batch": "1"}, "gb200", 1, fits=device_gib <= 100, step=step, memory=memory, samples=1.0)
    made = replace(made, samples_per_s=1e3 / time_ms, schedule_hash=f"{number:x}", flops=1e12)
    return replace(made, **more)  # type: ignore[arg-type]


# --- what varies ----------------------------------------------------------------------------------


def test_axes_keep_their_order_and_drop_repeats():
    axes = parse_axes(["batch=1,2,2, 4", "policy=remat,offload:a+b"])
    assert axes == {"batch": ("1", "2", "4"), "policy": ("remat", "offload:a+b")}
    assert list(combinations(axes))[:2] == [
        {"batch": "1", "policy": "remat"},
        {"batch": "1", "policy": "offload:a+b"},
    ]
    assert combinations({}) == [{}]


@pytest.mark.parametrize("text", ["batch", "=1", "batch=", "batch=1,,2", "two words=1", "1=2"])
def test_an_axis_that_is_none_is_refused(text: str):
    with pytest.raises(UsageError, match="--vary"):
        parse_axes([text])


def test_an_axis_is_given_once_and_a_plan_has_an_end():
    with pytest.raises(UsageError, match="twice"):
        parse_axes(["batch=1", "batch=2"])
    many = ",".join(map(str, range(200)))
    with pytest.raises(UsageError, match="more than 10,000 points"):
        parse_axes([f"a={many}", f"b={many}"])


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("4", 4),
        ("-3", -3),
        ("0.5", 0.5),
        ("1e3", 1000.0),
        ("true", True),
        ("False", False),
        ("none", None),
        ("v1", "v1"),
    ],
)
def test_a_step_gets_a_value_of_the_type_that_is_written(text: str, value: object):
    assert literal(text) == value
    assert type(literal(text)) is type(value)


def test_a_point_is_settings_with_commas_between():
    assert parse_point("policy=offload:a+b,flags=no-lhs, batch=4") == {
        "policy": "offload:a+b",
        "flags": "no-lhs",
        "batch": "4",
    }
    for text in ("batch", "batch=1,batch=2", "target=h100", "a b=1", "batch="):
        with pytest.raises(UsageError, match="--point"):
            parse_point(text)


def test_sets_of_flags_can_be_added_and_come_after_those_of_all_points():
    assert flags_of("pipelined+cublas", Names(), ["a=1"]) == (
        "a=1",
        "xla_gpu_enable_pipelined_host_offloading=true",
        "xla_gpu_enable_triton_gemm=false",
    )
    with pytest.raises(UsageError, match="'fast' is no set of flags: known are default, pipelined"):
        flags_of("fast", Names())


def test_pyproject_names_policies_and_flags(tmp_path: Path):
    (tmp_path / "pyproject.toml").write_text(
        '[tool.hloinspect.plan.policies]\nmine = "offload:hid/save:qkv"\n'
        '[tool.hloinspect.plan.flags]\ncluster = ["--xla_gpu_enable_triton_gemm=false"]\n'
    )
    names = load_names(tmp_path / "below")
    assert read_policies(["mine", "remat"], names.policies) == {
        "mine": Policy(saved=("qkv",), offloaded=("hid",)),
        "remat": Policy(),
    }
    assert flags_of("cluster", names) == ("--xla_gpu_enable_triton_gemm=false",)
    assert set(KNOWN_FLAGS) < set(names.flags)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("plan = 3", "is no table"),
        ("[tool.hloinspect.plan]\nsearch = 1", "unknown key 'search'"),
        ("[tool.hloinspect.plan.policies]\na = 1", "policies is no table"),
        ("[tool.hloinspect.plan.flags]\na = 'x=1'", "flags.a is no list"),
        ("[tool.hloinspect.plan.flags]\na = ['not a flag']", "flags.a: 'not a flag' is not an XLA flag"),
    ],
)
def test_a_faulty_table_is_one_line_with_its_file(tmp_path: Path, text: str, words: str):
    (tmp_path / "pyproject.toml").write_text(text if text.startswith("[") else f"[tool.hloinspect]\n{text}\n")
    with pytest.raises(UsageError, match=re.escape(words)) as caught:
        load_names(tmp_path)
    assert "pyproject.toml" in str(caught.value)


# --- policies -------------------------------------------------------------------------------------


def test_save_keeps_what_the_other_policies_name():
    found = read_policies(["save", "remat", "offload:hid", "offload:hid+qkv/save:inp"], {})
    assert found["save"] == Policy(saved=("hid", "qkv", "inp"))
    assert read_policies(["save", "remat"], {})["save"] == Policy(everything=True)


@pytest.mark.parametrize("text", ["offload:", "keep:a", "save:a/save:b", "offload:a/save:a", "remat:a", "offload:a b"])
def test_a_policy_that_is_none_is_refused(text: str):
    with pytest.raises(UsageError, match="policy"):
        parse_policy(text)


FATES = st.sampled_from(["offload", "save", "remat"])


@given(st.dictionaries(st.sampled_from("abcdef"), FATES), st.lists(st.tuples(st.sampled_from("abcdef"), FATES)))
def test_a_policy_is_what_its_changes_made_of_it_however_it_is_written(
    start: dict[str, str], moves: list[tuple[str, str]]
):
    policy = Policy()
    expected = dict.fromkeys("abcdef", "remat")
    for name, fate in [*start.items(), *moves]:
        policy = policy.with_fate(name, fate)
        expected[name] = fate
    assert {name: policy.fate_of(name) for name in "abcdef"} == expected
    assert parse_policy(policy.text()) == policy
    saved, offloaded = set(policy.saved), set(policy.offloaded)
    asked = changed({"names_which_can_be_saved": ["z"], "names_which_can_be_offloaded": ["a"]}, policy.request())
    assert (set(asked["names_which_can_be_saved"]), set(asked["names_which_can_be_offloaded"])) == (saved, offloaded)


@given(st.dictionaries(st.sampled_from("abcdef"), FATES), st.lists(st.tuples(st.sampled_from("abcdef"), FATES)))
def test_a_steps_own_policy_changes_in_the_named_tensors_only(own: dict[str, str], moves: list[tuple[str, str]]):
    names = {
        "names_which_can_be_saved": [name for name, fate in own.items() if fate == "save"],
        "names_which_can_be_offloaded": [name for name, fate in own.items() if fate == "offload"],
        "offload_src": "device",
    }
    policy = Policy(is_own=True)
    expected = dict(own)
    for name, fate in moves:
        policy = policy.with_fate(name, fate)
        expected[name] = fate
    made = changed(names, policy.request())
    assert made["offload_src"] == "device"
    assert {k: sorted(v) for k, v in described(made).items()} == {
        "saved": sorted(name for name, fate in expected.items() if fate == "save"),
        "offloaded": sorted(name for name, fate in expected.items() if fate == "offload"),
    }


@pytest.mark.slow
def test_a_policy_is_written_as_code_that_jax_takes():
    jax = pytest.importorskip("jax")
    for policy in (Policy(), Policy(("a",)), Policy(("a",), ("b",)), Policy(everything=True)):
        assert callable(eval(policy.code(), {"jax": jax}))


# --- the grid -------------------------------------------------------------------------------------


def test_points_that_differ_in_flags_alone_are_lowered_together():
    axes = {"flags": ("default", "pipelined"), "batch": ("1", "2"), "policy": ("remat", "offload:a")}
    policies = read_policies(axes["policy"], {})
    targets = {name: load_target(name) for name in ("gb200", "h100")}
    works = works_of(Subject("a.py:f"), combinations(axes), targets, policies)
    assert len(works) == 8
    assert sorted(cell.number for work in works for cell in work.cells) == list(range(1, 17))
    for work in works:
        assert [len(cell.xla_flags) for cell in work.cells] == [0, 1]
        assert {cell.settings["target"] for cell in work.cells} == {work.target.name}
        assert work.wanted["arguments"] == {"batch": int(work.cells[0].settings["batch"])}
        offloaded = work.wanted["policy"]["offloaded"]
        assert offloaded == ([] if work.cells[0].settings["policy"] == "remat" else ["a"])


def test_for_maxtext_what_varies_are_its_keys():
    subject = Subject("maxtext base.yml", ("base.yml", "query_proj=offload", "steps=2"))
    (work,) = works_of(subject, [{"query_proj": "remat"}], {"gb200": load_target("gb200")}, {})
    assert work.wanted["maxtext"] == ["base.yml", "steps=2", "query_proj=remat"]


def test_children_are_as_many_as_memory_holds_and_never_none():
    room = Room(jobs=8, free_bytes=6 * GIB)
    assert room.allowed == 4  # 1.5 GiB each, as long as nothing is known
    room.learn(800 << 20)
    assert room.allowed == 6
    room.learn(10 * GIB)
    assert room.allowed == 1
    assert Room(jobs=3, free_bytes=None).allowed == 3


def test_progress_says_how_long_it_will_take():
    assert remaining_text(0, 18, 0.0) == "0 of 18 points"
    assert remaining_text(3, 18, 30.0) == "3 of 18 points, about 3 min left"
    assert remaining_text(17, 18, 34.0) == "17 of 18 points, about 2 s left"


# --- comparing ------------------------------------------------------------------------------------


def test_the_front_has_what_no_other_point_beats_in_both():
    points = [point(1, 10, 50), point(2, 12, 40), point(3, 12, 60), point(4, 9, 120), point(5, 12, 40)]
    assert front(points) == (1, 2)
    assert best(points) == points[0]


@given(st.lists(st.tuples(st.integers(1, 9), st.integers(1, 9), st.booleans(), st.booleans()), min_size=1, max_size=12))
def test_the_front_is_that_of_the_definition(figures: list[tuple[int, int, bool, bool]]):
    points = [
        point(n, time, size, fits=fits, offload_lost="gone" if lost else None)
        for n, (time, size, fits, lost) in enumerate(figures, 1)
    ]
    good = [(p.number, p.speed, p.memory.device_bytes) for p in points if p.is_good and p.memory]
    expected = {
        number
        for number, speed, size in good
        if not any(
            s >= speed and m <= size and (s > speed or m < size or other < number)
            for other, s, m in good
            if other != number
        )
    }
    assert set(front(points)) == expected
    chosen = best(points)
    assert (chosen is None) == (not good)
    if chosen is not None:
        assert chosen.number in expected
        assert chosen.speed == max(speed for _, speed, _ in good)


def test_a_lost_offload_is_no_good_point_however_fast():
    points = [point(1, 10, 50), point(2, 5, 20, offload_lost="the offload asked for is gone"), point(3, 1, 200)]
    assert front(points) == (1,)
    assert best(points) == points[0]
    assert not points[1].is_good
    assert not points[2].is_good


def test_a_point_that_is_compiled_wrongly_is_no_good_point():
    points = [point(1, 10, 50), point(2, 5, 20, fault="XLA copies other bytes than the program says (HLO301)")]
    assert front(points) == (1,)
    assert "1 faster one is compiled wrongly" in why_best(best(points), points)
    assert why_best(None, points[1:]).endswith("0 lose their offload, 1 are compiled wrongly, 0 could not be compiled")


def test_points_are_told_apart_scenario_by_scenario_and_not_by_the_ends_of_their_ranges():
    slow, fast = point(1, 10, 50), point(2, 9.7, 50)
    assert slow.step is not None
    assert fast.step is not None
    assert fast.step.low_ms < slow.step.low_ms < fast.step.high_ms  # the ranges overlap widely
    assert told_apart(slow, fast)
    mixed = replace(fast, step=replace(fast.step, cases_ms={**fast.step.cases_ms, "slow": 13.0}))
    assert not told_apart(slow, mixed)
    assert not told_apart(slow, point(3, 10 * (1 - TELLING / 2), 50))
    assert not_told_apart([slow, fast, replace(mixed, number=3)], slow) == (3,)


def test_recomputation_is_against_the_point_that_computes_the_least_with_the_same_batch():
    points = [
        point(1, 10, 50, settings={"policy": "save", "batch": "1"}, flops=5.0),
        point(2, 10, 50, settings={"policy": "remat", "batch": "1"}, flops=7.0),
        point(3, 10, 50, settings={"policy": "remat", "batch": "2"}, flops=14.0),
    ]
    assert [one.recompute_flops for one in with_recomputation(points)] == [0.0, 2.0, 0.0]


def test_a_point_with_the_schedule_of_an_earlier_one_says_so():
    points = [point(1, 10, 50), point(2, 10, 50, schedule_hash="1"), point(3, 11, 50, schedule_hash="1")]
    assert [one.same_as for one in with_recomputation(points)] == [None, 1, None]


def test_the_largest_batch_is_the_largest_that_fits_under_each_policy():
    points = [
        point(1, 1, 40, settings={"policy": "save", "batch": "8"}),
        point(2, 2, 140, settings={"policy": "save", "batch": "16"}),
        point(3, 1, 30, settings={"policy": "remat", "batch": "8"}),
        point(4, 2, 60, settings={"policy": "remat", "batch": "16"}),
    ]
    found = largest(points, {"batch": ("8", "16")}, "batch")
    assert [(one.policy, one.value, one.point) for one in found] == [("save", "8", 1), ("remat", "16", 4)]


# --- modules that are compiled already ------------------------------------------------------------


def maxtext_plan(corpus: Path, *names: str, **more: object) -> Plan:
    sources = tuple(f"{name}={corpus}/maxtext/llama405b_{file}.hlo.gz" for name, file in (n.split("=") for n in names))
    return make_plan(Wishes(sources=sources, targets=("gb200",), topology="2x16x4", **more))  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def of_405b(corpus: Path) -> Plan:
    return maxtext_plan(
        corpus,
        "offload=cudnnjax",
        "remat=remat_cudnn",
        "save=device_cudnn",
        links=("100GB/s", "d2h=450GB/s,h2d=450GB/s"),
        also=("gb300",),
        samples=128.0,
        tokens=8192.0,
    )


def test_modules_stand_side_by_side_without_compiling(of_405b: Plan):
    offload, remat, save = of_405b.points
    assert [one.settings for one in of_405b.points] == [{"input": "offload"}, {"input": "remat"}, {"input": "save"}]
    assert of_405b.compiled == 0
    assert offload.step is not None
    assert remat.step is not None
    assert offload.memory is not None
    assert save.memory is not None
    # facts: 126 layers of decoder input, q, k and v: 66.9 GiB each way, which is what keeping them takes
    assert offload.d2h_bytes == offload.h2d_bytes == 71_873_593_344
    assert save.d2h_bytes == remat.d2h_bytes == 0
    freed = (save.memory.device_bytes or 0) - (offload.memory.device_bytes or 0)
    assert freed == pytest.approx(71_873_593_344, rel=0.02)
    assert offload.memory.host_devices == 4
    assert offload.memory.host_bytes == pytest.approx(4 * 71_873_593_344, rel=0.01)
    assert (remat.recompute_flops or 0) / (save.flops or 1) == pytest.approx(0.0246, rel=0.02)
    assert of_405b.unit == "tokens/s"
    assert offload.tokens_per_s == pytest.approx(128 * 8192 / offload.step.time_ms * 1e3)


def test_a_plan_has_the_limits_of_all_its_points_once_each(of_405b: Plan):
    assert all(point.limits for point in of_405b.points)
    assert set(of_405b.limits) == {limit for point in of_405b.points for limit in point.limits}
    assert len(of_405b.limits) == len(set(of_405b.limits))


def test_a_faster_link_and_another_target_are_judged_from_the_same_modules(of_405b: Plan):
    there = {(one.point, one.label): one for one in of_405b.elsewhere}
    assert len(there) == 9
    slow, fast = there[1, "100GB/s"], there[1, "d2h=450GB/s,h2d=450GB/s"]
    planned = of_405b.points[0].step
    assert slow.step is not None
    assert fast.step is not None
    assert planned is not None
    assert fast.step.stall_ms < planned.stall_ms < slow.step.stall_ms
    assert there[3, "100GB/s"].step == of_405b.points[2].step  # nothing moves: the link does not matter
    assert there[1, "gb300"].stand_in == "gb200"
    assert set(fast.verdicts) == {transfer.id for transfer in of_405b.points[0].transfers}


@pytest.mark.parametrize("width", [80, 100])
def test_the_text_keeps_to_its_width_and_says_what_the_json_says(of_405b: Plan, width: int):
    text = plan_text(of_405b, width)
    table = text.split("\n\n")[1]
    assert max(len(click.unstyle(line)) for line in text.splitlines()) <= width
    assert re.search(r"1 +offload +16\.\d\d s", table)
    assert "(compiled for gb200)" in text
    data = json.loads(of_405b.to_json())
    assert data["schema"] == "hloinspect.plan/1"
    assert data["best"] == of_405b.best
    assert [one["step"]["time_ms"] for one in data["points"]] == [
        pytest.approx(one.step.time_ms) for one in of_405b.points if one.step
    ]


def test_the_csv_has_a_line_for_each_point(of_405b: Plan):
    rows = list(csv.DictReader(io.StringIO(plan_csv(of_405b))))
    assert [row["input"] for row in rows] == ["offload", "remat", "save"]
    assert float(rows[0]["stall_ms"]) == pytest.approx(of_405b.points[0].step.stall_ms, abs=1e-6)  # type: ignore[union-attr]
    assert [row["best"] for row in rows].count("true") == 1


def test_a_cell_that_a_spreadsheet_would_run_is_text(of_405b: Plan):
    evil = replace(of_405b.points[0], settings={"input": "=cmd()"}, error="@SUM(1)")
    rows = list(csv.DictReader(io.StringIO(plan_csv(replace(of_405b, points=(evil,))))))
    assert rows[0]["input"] == "'=cmd()"
    assert rows[0]["error"] == "'@SUM(1)"


def test_names_from_outside_reach_the_terminal_as_printable_text(of_405b: Plan):
    evil = replace(of_405b.points[0], settings={"input": "a\x1b[31m\u202eb"}, error="bad\x07\nthing")
    text = plan_text(replace(of_405b, points=(evil,), best=None, front=(), elsewhere=()))
    assert all(char.isprintable() or char == "\n" for char in re.sub(r"\x1b\[\d*m", "", text))


# --- the page -------------------------------------------------------------------------------------


class Reader(HTMLParser):
    """The tags of a page with their attributes, and its text."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.words.append(data)

    def with_tag(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.tags if name == tag]


def read_page(page: str) -> Reader:
    reader = Reader()
    reader.feed(page)
    return reader


def test_the_page_has_a_panel_for_each_point_and_every_mark_leads_to_one(of_405b: Plan):
    page = plan_html(of_405b, {1: "plan-points/point1.html"})
    assert page == plan_html(of_405b, {1: "plan-points/point1.html"})
    found = read_page(page)
    panels = {one["id"] for one in found.with_tag("section")}
    assert panels == {"point-1", "point-2", "point-3"}
    marks = [one["href"] for one in found.with_tag("a") if "mark" in (one.get("class") or "")]
    assert sorted(marks) == ["#point-1", "#point-2", "#point-3"]
    assert "plan-points/point1.html" in [one["href"] for one in found.with_tag("a")]
    style = re.search(r"<style>(.*?)</style>", page, re.DOTALL)
    assert style is not None
    digest = base64.b64encode(hashlib.sha256(style[1].encode()).digest()).decode()
    (policy,) = [one["content"] for one in found.with_tag("meta") if one.get("http-equiv")]
    assert policy == f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"
    assert not found.with_tag("script")
    assert "http" not in page.replace("http-equiv", "")


def test_a_mark_stands_where_its_figures_are(of_405b: Plan):
    page = plan_html(of_405b)
    places = dict(
        re.findall(r'<a href="#point-(\d)" class="mark[^>]*>.*?<(?:circle cx|polygon points)="([\d.]+)', page)
    )
    sizes = {str(one.number): one.memory.device_bytes for one in of_405b.points if one.memory}
    in_order = sorted(sizes, key=lambda number: sizes[number] or 0)
    assert sorted(places, key=lambda number: float(places[number])) == in_order


def test_names_from_outside_are_text_on_the_page(of_405b: Plan):
    evil = '<script>alert(1)</script>\u202e</svg>"onload=x'
    points = (replace(of_405b.points[0], settings={"input": evil}, error=evil, notes=(evil,), directory=evil),)
    page = plan_html(
        replace(of_405b, source=evil, points=points, best=1, front=(1,), elsewhere=(), policies={evil: evil})
    )
    found = read_page(page)
    assert not found.with_tag("script")
    assert "<script>alert(1)</script>" in "".join(found.words)
    assert not any("onload" in attributes for _, attributes in found.tags)
    assert "\u202e" not in page


def test_the_page_and_the_reports_of_its_points_are_written(
    hloinspect: Callable[..., object], root: Path, tmp_path: Path
):
    fixtures = root / "fixtures" / "jax0.12.0.1"
    inputs = [f"{name}={fixtures}/gb200_{name}/module.hlo.txt.gz" for name in ("save", "offload_scan")]
    done = hloinspect("plan", *inputs, "--target", "gb200", "--format", "html", "-o", str(tmp_path / "plan.html"))
    assert done.returncode == 0  # type: ignore[attr-defined]
    links = [one["href"] or "" for one in read_page((tmp_path / "plan.html").read_text()).with_tag("a")]
    reports = sorted({link for link in links if not link.startswith("#")})
    assert reports == ["plan-points/point1.html", "plan-points/point2.html"]
    assert all("<title>" in (tmp_path / link).read_text() for link in reports)


# --- the command ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["a.hlo"], "--target"),
        (["examples/dense.py:train", "--target", "gb200", "--vary", "batch"], "--vary batch: write NAME=VALUE"),
        (["examples/dense.py:train", "--target", "gb200", "--vary", "policy=lose"], "policy 'lose'"),
        (["examples/dense.py:train", "--target", "gb200", "--vary", "flags=fast"], "'fast' is no set of flags"),
        (["examples/dense.py:train", "--target", "gb200", "--vary", "target=h100"], "--target gb200,h100"),
        (["examples/dense.py:train", "--target", "gb200", "--samples", "rows"], "nothing of that name varies"),
        (["examples/dense.py:train", "--target", "gb200", "--memory", "120%"], "--memory 120%"),
        (["examples/dense.py:train", "--target", "gb200", "--search", "--time", "soon"], "--time soon"),
        (["examples/dense.py:train", "--target", "gb200", "--link", "5GB"], "is not a rate"),
        (["examples/dense.py:train", "--target", "gb200", "--topology", "5"], "--topology"),
        (["docs/index.md=x", "examples/dense.py:train", "--target", "gb200"], ""),
        (["nowhere.hlo", "--target", "gb200"], "nowhere.hlo"),
    ],
)
def test_wrong_use_is_one_line_and_exit_code_2(
    hloinspect: Callable[..., object], root: Path, arguments: list[str], words: str
):
    done = hloinspect("plan", *arguments, cwd=root)
    assert done.returncode == 2  # type: ignore[attr-defined]
    errors = done.stderr.splitlines()  # type: ignore[attr-defined]
    assert errors[0].startswith("hloinspect: error: ")
    assert len(errors) <= 2
    assert words in errors[0]
