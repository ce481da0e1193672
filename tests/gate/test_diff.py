"""Differences between two answers, in data and in words."""

from __future__ import annotations

import cProfile
import dataclasses
import json
import pstats
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from hypothesis import given
from hypothesis import strategies as st

from hloinspect.analyze import inspect as api
from hloinspect.cli import main
from hloinspect.gate.difference import snapshot_difference
from hloinspect.gate.explain import MAX_CHANGES, explanation
from hloinspect.gate.findings import CAME, CHANGED, WENT
from hloinspect.gate.snapshot import FindingGroup, Snapshot, TransferGroup, snapshot_of
from tests.support.gate_samples import FIXTURES, OLD_FIXTURES, SMALL
from tests.support.json_schemas import faults

SCAN = FIXTURES / "gb200_offload_scan" / "module.hlo.txt.gz"
UNROLLED = FIXTURES / "gb200_offload_unrolled" / "module.hlo.txt.gz"
PIPELINED = FIXTURES / "gb200_offload_scan_pipelined" / "module.hlo.txt.gz"
SAVE = FIXTURES / "gb200_save" / "module.hlo.txt.gz"
OPTIMIZER = FIXTURES / "gb200_optimizer" / "module.hlo.txt.gz"


def diff(*arguments: str | Path) -> Result:
    return CliRunner().invoke(main, ["diff", *map(str, arguments)])


def snapshot(path: Path, step: str = "step") -> Snapshot:
    return snapshot_of(api.inspect(str(path), target="gb200").report, step)


@pytest.fixture(scope="module")
def optimizer() -> Snapshot:
    return snapshot(OPTIMIZER)


@pytest.fixture(scope="module")
def scan() -> Snapshot:
    return snapshot(SCAN)


def group(**fields: object) -> TransferGroup:
    plain = TransferGroup(
        direction="h2d",
        dtype="bf16",
        shape=(8, 128),
        name=None,
        loop_depth=1,
        file="train.py",
        function="layer",
        line=12,
        count=1,
        runs=4,
        bytes=2048,
        bytes_per_step=8192,
        mechanisms={"dma": 1},
        verdicts={"hidden": 1},
        duration_ms=4.0,
        cover_ms=4.0,
        wait_ms=0.0,
    )
    return dataclasses.replace(plain, **fields)


def holding(base: Snapshot, *groups: TransferGroup) -> Snapshot:
    return dataclasses.replace(base, transfers=groups)


# ---- matching


@given(data=st.data())
def test_nothing_differs_from_itself_in_any_order(optimizer: Snapshot, data: st.DataObject) -> None:
    shuffled = data.draw(st.permutations(optimizer.transfers))
    found = snapshot_difference(optimizer, dataclasses.replace(optimizer, transfers=tuple(shuffled)))
    assert (found.transfers, found.lost_runs, found.made) == ((), 0, ())
    assert found.is_empty
    assert explanation(found) == []


@pytest.mark.parametrize(
    "moved",
    [
        {"line": 99},
        {"file": "src/train.py"},
        {"file": "elsewhere/train.py", "line": 3},
    ],
)
def test_lines_and_folders_are_no_difference(scan: Snapshot, moved: dict[str, object]) -> None:
    found = snapshot_difference(holding(scan, group()), holding(scan, group(**moved)))
    assert found.transfers == ()


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"loop_depth": 0}, "moved out of a loop"),
        ({"runs": 3}, "runs 4 -> 3 times a step"),
        ({"mechanisms": {"kernel": 1}}, "dma -> kernel"),
        ({"mechanisms": {"synchronous dma": 1}, "verdicts": {"synchronous": 1}}, "dma -> synchronous dma"),
        ({"verdicts": {"exposed": 1}}, "lost cover: hidden -> exposed"),
        ({"wait_ms": 3.0}, "waits 0 ms -> 3 ms a step"),
        ({"shape": (16, 128), "bytes": 4096}, "grew: bf16[8,128] -> bf16[16,128]"),
        ({"shape": (4, 128), "bytes": 1024}, "shrank: bf16[8,128] -> bf16[4,128]"),
        ({"dtype": "f32", "bytes": 4096}, "grew: bf16[8,128] -> f32[8,128]"),
        ({"bytes": 4096}, "grew: 2,048 -> 4,096 B each"),
    ],
)
def test_what_changed_of_a_transfer_is_said(scan: Snapshot, changed: dict[str, object], words: str) -> None:
    found = snapshot_difference(holding(scan, group()), holding(scan, group(**changed)))
    (change,) = found.transfers
    assert change.kind == CHANGED
    assert words in change.what
    assert explanation(found)[0].endswith("train.py:12 in layer")


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({"function": "layer"}, {"function": "block"}),
        ({"file": None, "function": None}, {}),
        ({}, {"file": None, "function": None}),
        ({"name": "hid"}, {"name": None}),
        ({"loop_depth": 2}, {"loop_depth": 1}),
    ],
)
def test_a_transfer_is_found_again_with_less_to_go_by(
    scan: Snapshot, before: dict[str, object], after: dict[str, object]
) -> None:
    found = snapshot_difference(holding(scan, group(**before)), holding(scan, group(**after)))
    assert found.lost_runs == 0
    assert not [change for change in found.transfers if change.kind in (WENT, CAME)]


def test_another_name_is_another_tensor(scan: Snapshot) -> None:
    found = snapshot_difference(holding(scan, group(name="hid")), holding(scan, group(name="attn")))
    assert [(change.kind, change.group.name) for change in found.transfers] == [(WENT, "hid"), (CAME, "attn")]
    assert (found.lost_runs, found.lost) == (4, ("h2d hid bf16[8,128] train.py:12 in layer",))


def test_the_other_direction_is_another_transfer(scan: Snapshot) -> None:
    found = snapshot_difference(holding(scan, group()), holding(scan, group(direction="d2h")))
    assert [change.kind for change in found.transfers] == [WENT, CAME]


def test_an_iteration_that_is_peeled_off_a_loop_is_neither_lost_nor_new(scan: Snapshot) -> None:
    peeled = [group(runs=3, bytes_per_step=6144), group(runs=1, bytes_per_step=2048, loop_depth=0)]
    for before, after in (([group()], peeled), (peeled, [group()])):
        found = snapshot_difference(holding(scan, *before), holding(scan, *after))
        assert (found.transfers, found.lost_runs) == ((), 0)


def test_the_worst_comes_first_and_a_long_list_is_cut(scan: Snapshot) -> None:
    before = [group(name=f"t{n}") for n in range(30)]
    after = [group(name=f"t{n}", wait_ms=float(n)) for n in range(30)]
    found = snapshot_difference(holding(scan, *before), holding(scan, *after))
    costs = [change.cost_ms for change in found.transfers]
    assert costs == sorted(costs, key=lambda cost: -(cost or 0.0))
    lines = explanation(found)
    assert len(lines) == MAX_CHANGES + 1
    assert "17 more transfers" in lines[-1]
    assert len(explanation(found, show_all=True)) == 29


def test_findings_come_go_and_change_by_rule_and_function(scan: Snapshot) -> None:
    def finding(code: str, severity: str = "error", **fields: object) -> FindingGroup:
        plain = FindingGroup(code, "a-name", severity, "train.py", "layer", 12, 1)
        return dataclasses.replace(plain, **fields)

    before = dataclasses.replace(scan, findings=(finding("HLO101"), finding("HLO102"), finding("HLO105")))
    after = dataclasses.replace(
        scan, findings=(finding("HLO101", line=40, count=2), finding("HLO103"), finding("HLO105", "warning"))
    )
    found = snapshot_difference(before, after)
    assert [(change.kind, (change.after or change.before).code) for change in found.findings] == [  # type: ignore[union-attr]
        (CAME, "HLO103"),
        (WENT, "HLO102"),
        (CHANGED, "HLO105"),
    ]
    assert "changed  HLO105 warning a-name (was error)   train.py:12 in layer" in explanation(found)


def test_the_work_grows_as_the_transfers_do(scan: Snapshot) -> None:
    def calls_for(count: int) -> int:
        once = [group(function=f"layer{number}") for number in range(count)]
        peeled = [group(function=f"layer{number}", loop_depth=0) for number in range(count)]
        profile = cProfile.Profile()
        profile.runcall(snapshot_difference, holding(scan, *once, *peeled), holding(scan, *once))
        return int(pstats.Stats(profile).total_calls)  # type: ignore[attr-defined]

    assert calls_for(400) < 5 * calls_for(100)


@pytest.mark.parametrize(
    ("side", "field", "value", "line"),
    [
        ("made", "jax", "9.9", "jax: 0.1 -> 9.9"),
        ("made", "flags", ("--a=1", "--c=3"), "flags: ---b=2 +--c=3"),
        ("made", "d2h_gbps", 50.0, "host link: 225 and 225 GB/s -> 50 and 225 GB/s"),
        ("made", "fingerprint", "f", "program: other instructions"),
        ("made", "schedule_hash", "f", "program: the same instructions in another order"),
        (None, "devices", 8, "target: 1 x gb200 -> 8 x gb200"),
        (None, "kind", "measured", "predicted is compared with measured"),
    ],
)
def test_what_made_the_program_is_compared(
    scan: Snapshot, side: str | None, field: str, value: object, line: str
) -> None:
    before = dataclasses.replace(scan, made=dataclasses.replace(scan.made, jax="0.1", flags=("--a=1", "--b=2")))
    if side:
        after = dataclasses.replace(before, made=dataclasses.replace(before.made, **{field: value}))
    else:
        after = dataclasses.replace(before, **{field: value})
    assert snapshot_difference(before, after).made == (line,)


# ---- the command


def test_two_ways_to_write_one_step_are_compared_in_figures_and_words() -> None:
    result = diff(SCAN, UNROLLED, "--target", "gb200")
    assert result.exit_code == 0
    lines = result.stdout.splitlines()
    assert lines[0].startswith("A  ")
    assert lines[0].endswith("on 1 x gb200, predicted")
    assert any(line.split()[:1] == ["stall"] for line in lines)
    assert any(line.startswith("changed  h2d") for line in lines)
    assert not [line for line in lines if line.startswith("gone     ") and "HLO" not in line]
    assert "program: other instructions" in lines
    assert max(map(len, lines)) <= 100


def test_an_offload_that_is_gone_is_named_with_its_line() -> None:
    result = diff(SCAN, SAVE, "--target", "gb200")
    gone = [line for line in result.stdout.splitlines() if line.startswith("gone     ") and " x4 (" in line]
    assert len(gone) == 2
    assert all("dense.py:" in line for line in gone)


def test_the_same_module_is_no_difference() -> None:
    result = diff(SMALL, SMALL, "--target", "gb200")
    assert (result.exit_code, "no difference" in result.stdout) == (0, True)


def test_two_targets_of_one_module_differ_in_time_alone() -> None:
    result = diff(SMALL, SMALL, "--target", "gb200", "--target-b", "h100")
    assert result.exit_code == 0
    assert "target: 1 x gb200 -> 1 x h100" in result.stdout
    assert "gone     " not in result.stdout.replace("gone     HLO", "")


def test_a_side_without_evidence_is_reported_and_is_exit_code_3() -> None:
    result = diff(SMALL, SMALL)
    assert result.exit_code == 3
    assert "not known of A: no target was given" in result.stdout
    assert diff(SMALL, "no/such/file", "--target", "gb200").exit_code == 2


def test_json_of_a_difference_keeps_its_contract() -> None:
    old = OLD_FIXTURES / "gb200_host_stack_donated" / "module.hlo.txt.gz"
    for pair in ((SCAN, PIPELINED), (old, SMALL), (SMALL, SCAN)):
        result = diff(*pair, "--target", "gb200", "--format", "json")
        assert faults(json.loads(result.stdout), "diff") == []
    assert result.stdout == diff(*pair, "--target", "gb200", "--format", "json").stdout


def test_a_trace_is_compared_with_a_prediction_and_both_are_labelled(corpus: Path) -> None:
    module = corpus / "hlo" / "tpu_v6e_host_offload.after_optimizations.txt"
    trace = corpus / "traces" / "tpu_v6e_host_offload.xplane.pb"
    result = diff(module, trace, "--target", "v6e", "--link", "50GB/s")
    assert "predicted" in result.stdout.splitlines()[0]
    assert "measured" in result.stdout.splitlines()[1]
    assert "predicted is compared with measured" in result.stdout
    assert "gone     " not in result.stdout.replace("gone     HLO", "")
