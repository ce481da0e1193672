"""Plans without a compiler: what varies, what it means, and how points compare."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hloinspect.compile.child.policies import changed, named_policy
from hloinspect.compile.protocol import StepRequest
from hloinspect.errors import UsageError
from hloinspect.hardware import load_target
from hloinspect.plan.axes import KNOWN_FLAGS, Names, flags_of, literal, load_names, parse_axes
from hloinspect.plan.front import (
    TELLING,
    best,
    front,
    is_faster_or_slower,
    largest,
    tied_with_best,
    why_best,
    with_recomputation,
)
from hloinspect.plan.model import MemoryUse, Plan, Point, StepTime
from hloinspect.plan.policy import Policy, parse_policy, read_policies
from hloinspect.plan.run import Room, remaining_text
from hloinspect.plan.work import Subject, combinations, parse_point, works_of
from hloinspect.render.page.plan_html import plan_html

STEP = StepRequest(step="a.py:f")
GIB = 1 << 30


def point(number: int, time_ms: float, device_gib: float, **more: object) -> Point:
    """Return a point that fits into 100 GiB if it needs less."""
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
        ("plan = 3", "plan: expected a table, found 3"),
        ("[tool.hloinspect.plan]\nsearch = 1", "unknown key 'search'"),
        ("[tool.hloinspect.plan.policies]\na = 1", "plan.policies.a: expected one line of text, found 1"),
        ("[tool.hloinspect.plan.flags]\na = 'x=1'", "plan.flags.a: expected a list, found 'x=1'"),
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


OUTCOMES = st.sampled_from(["offload", "save", "remat"])


@given(st.dictionaries(st.sampled_from("abcdef"), OUTCOMES), st.lists(st.tuples(st.sampled_from("abcdef"), OUTCOMES)))
def test_a_policy_is_what_its_changes_made_of_it_however_it_is_written(
    start: dict[str, str], moves: list[tuple[str, str]]
):
    policy = Policy()
    expected = dict.fromkeys("abcdef", "remat")
    for name, outcome in [*start.items(), *moves]:
        policy = policy.with_outcome(name, outcome)
        expected[name] = outcome
    assert {name: policy.outcome_of(name) for name in "abcdef"} == expected
    assert parse_policy(policy.text()) == policy
    saved, offloaded = set(policy.saved), set(policy.offloaded)
    requested = changed(
        {"names_which_can_be_saved": ["z"], "names_which_can_be_offloaded": ["a"]}, policy.of_step(STEP)
    )
    assert (set(requested["names_which_can_be_saved"]), set(requested["names_which_can_be_offloaded"])) == (
        saved,
        offloaded,
    )


@given(st.dictionaries(st.sampled_from("abcdef"), OUTCOMES), st.lists(st.tuples(st.sampled_from("abcdef"), OUTCOMES)))
def test_a_steps_own_policy_changes_in_the_named_tensors_only(own: dict[str, str], moves: list[tuple[str, str]]):
    names = {
        "names_which_can_be_saved": [name for name, outcome in own.items() if outcome == "save"],
        "names_which_can_be_offloaded": [name for name, outcome in own.items() if outcome == "offload"],
        "offload_src": "device",
    }
    policy = Policy(is_own=True)
    expected = dict(own)
    for name, outcome in moves:
        policy = policy.with_outcome(name, outcome)
        expected[name] = outcome
    made = changed(names, policy.of_step(STEP))
    assert made["offload_src"] == "device"
    assert sorted(named_policy(made).saved) == sorted(n for n, outcome in expected.items() if outcome == "save")
    assert sorted(named_policy(made).offloaded) == sorted(n for n, outcome in expected.items() if outcome == "offload")


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
        assert work.request.arguments == {"batch": int(work.cells[0].settings["batch"])}
        assert work.request.policy is not None
        offloaded = work.request.policy.offloaded
        assert offloaded == (() if work.cells[0].settings["policy"] == "remat" else ("a",))


def test_for_maxtext_what_varies_are_its_keys():
    subject = Subject("maxtext base.yml", ("base.yml", "query_proj=offload", "steps=2"))
    (work,) = works_of(subject, [{"query_proj": "remat"}], {"gb200": load_target("gb200")}, {})
    assert work.request.maxtext == ("base.yml", "steps=2", "query_proj=remat")


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
    points = [point(1, 10, 50), point(2, 5, 20, offload_lost="the requested offload is gone"), point(3, 1, 200)]
    assert front(points) == (1,)
    assert best(points) == points[0]
    assert not points[1].is_good
    assert not points[2].is_good


def test_a_point_that_is_compiled_wrongly_is_no_good_point():
    points = [point(1, 10, 50), point(2, 5, 20, fault="XLA copies other bytes than the program says (HLO301)")]
    assert front(points) == (1,)
    assert "1 faster one is compiled wrongly" in why_best(best(points), points)
    assert why_best(None, points[1:]).endswith("0 lose their offload, 1 are compiled wrongly, 0 could not be compiled")


def test_points_are_compared_scenario_by_scenario_and_not_by_the_ends_of_their_ranges():
    slow, fast = point(1, 10, 50), point(2, 9.7, 50)
    assert slow.step is not None
    assert fast.step is not None
    assert fast.step.low_ms < slow.step.low_ms < fast.step.high_ms  # the ranges overlap widely
    assert is_faster_or_slower(slow, fast)
    mixed = replace(fast, step=replace(fast.step, cases_ms={**fast.step.cases_ms, "slow": 13.0}))
    assert not is_faster_or_slower(slow, mixed)
    assert not is_faster_or_slower(slow, point(3, 10 * (1 - TELLING / 2), 50))
    assert tied_with_best([slow, fast, replace(mixed, number=3)], slow) == (3,)


def test_recomputation_is_against_the_point_that_computes_the_least_with_the_same_batch():
    points = [
        point(1, 10, 50, settings={"policy": "save", "batch": "1"}, flops=5.0),
        point(2, 10, 50, settings={"policy": "remat", "batch": "1"}, flops=7.0),
        point(3, 10, 50, settings={"policy": "remat", "batch": "2"}, flops=14.0),
    ]
    assert [one.recompute_flops for one in with_recomputation(points)] == [0.0, 2.0, 0.0]


def test_maxtexts_keys_of_tensors_are_a_policy_and_not_another_problem():
    points = [
        point(1, 10, 50, settings={"query_proj": "offload", "per_device_batch_size": "1"}, flops=5.0),
        point(2, 10, 50, settings={"query_proj": "remat", "per_device_batch_size": "1"}, flops=7.0),
        point(3, 20, 140, settings={"query_proj": "device", "per_device_batch_size": "2"}, flops=10.0),
        point(4, 20, 90, settings={"query_proj": "remat", "per_device_batch_size": "2"}, flops=14.0),
    ]
    assert [one.recompute_flops for one in with_recomputation(points)] == [0.0, 2.0, 0.0, 4.0]
    found = largest(points, {"per_device_batch_size": ("1", "2")}, "per_device_batch_size")
    assert [(one.policy, one.value) for one in found] == [
        ("query_proj=offload", "1"),
        ("query_proj=remat", "2"),
        ("query_proj=device", None),
    ]
    legend = re.findall(r"</svg> (query_proj=\w+)</li>", plan_html(plan_with(points)))
    assert legend == ["query_proj=offload", "query_proj=remat", "query_proj=device"]


def plan_with(points: list[Point]) -> Plan:
    axes = {name: tuple(dict.fromkeys(one.settings[name] for one in points)) for name in points[0].settings}
    return Plan("hloinspect.plan/1", "0", "step", axes, ("gb200",), "samples/s", tuple(points), (1,), 1, "fast", ())


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
    points.append(point(5, 1, 20, settings={"policy": "own", "batch": "8"}))
    found = largest(points, {"batch": ("8", "16")}, "batch")
    assert [(one.policy, one.value, one.point, one.tried) for one in found] == [
        ("save", "8", 1, "16"),
        ("remat", "16", 4, "16"),
        ("own", "8", 5, "8"),
    ]


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
