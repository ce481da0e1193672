"""Budgets over a baseline, of memory, counts and findings: the limit is the limit, and what is missing never passes."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from hypothesis import given
from hypothesis import strategies as st

from hloinspect.analyze import inspect as api
from hloinspect.cli import main
from hloinspect.errors import UsageError
from hloinspect.gate.baseline import Baseline
from hloinspect.gate.budget import DEFAULT_BUDGETS, METRICS, parse_budget
from hloinspect.gate.explain import amount_texts
from hloinspect.gate.gate import check_report
from hloinspect.gate.judge import MISSING, OVER, WITHIN, amount_of, check_budget
from hloinspect.gate.snapshot import MemorySnapshot, Snapshot, Split, snapshot_of
from hloinspect.gate.words import result_text
from hloinspect.kinds import UNKNOWN
from hloinspect.report.schema import MemoryInfo, Report, RuleLeftOut, RuleNotRun, Unknown
from hloinspect.thresholds import UNSEEN_SHARE
from tests.support.gate_samples import FIXTURES

amounts = st.floats(0, 1e6, allow_nan=False)


@pytest.fixture(scope="module")
def report() -> Report:
    return api.inspect(str(FIXTURES / "gb200_optimizer" / "module.hlo.txt.gz"), target="gb200").report


@pytest.fixture(scope="module")
def snapshot(report: Report) -> Snapshot:
    return snapshot_of(report, "optimizer")


def with_stall(snapshot: Snapshot, stall_ms: float, step_ms: float = 100.0) -> Snapshot:
    return dataclasses.replace(snapshot, step_ms=step_ms, stall_ms=Split(0.0, stall_ms, stall_ms))


# ---- grammar


@pytest.mark.parametrize(
    ("text", "metric", "op", "limit", "unit"),
    [
        ("stall+5%", "stall", "+", 5.0, "%"),
        ("step=80ms", "step", "=", 80.0, "ms"),
        ("step+0.5us", "step", "+", 0.0005, "ms"),
        ("memory.device=170GiB", "memory.device", "=", 170.0 * 2**30, "bytes"),
        ("memory.device=90%", "memory.device", "=", 90.0, "%"),
        ("memory.host+1GB", "memory.host", "+", 1e9, "bytes"),
        ("bytes.d2h=1MiB", "bytes.d2h", "=", 2.0**20, "bytes"),
        ("count.exposed=0", "count.exposed", "=", 0.0, "count"),
        ("findings.error+0", "findings.error", "+", 0.0, "count"),
        ("findings.HLO101=0", "findings.HLO101", "=", 0.0, "count"),
        ("lost=0", "lost", "=", 0.0, "count"),
    ],
)
def test_a_budget_means_what_it_says(text: str, metric: str, op: str, limit: float, unit: str) -> None:
    budget = parse_budget(text)
    assert (budget.metric, budget.op, budget.unit) == (metric, op, unit)
    assert math.isclose(budget.limit, limit)
    assert budget.needs_baseline == (op == "+" or metric == "lost")
    assert budget.words


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("memory.device=170", "no unit"),
        ("memory.device=1ms", "unknown unit 'ms'"),
        ("memory=1GiB", "unknown metric"),
        ("stall=1GiB", "unknown unit 'GiB'"),
        ("count.exposed=0ms", "takes no unit"),
        ("count.exposed+5%", "takes no unit"),
        ("step=2%", "nothing that step is a share of"),
        ("bytes=2%", "nothing that bytes is a share of"),
        ("lost+1", "write lost=1"),
        ("findings.hlo101=0", "unknown metric"),
        ("findings.HLO=0", "unknown metric"),
        ("stall-5%", "expected METRIC=LIMIT"),
        ("stall=150%", "a share of the step is at most 100 %"),
        ("exposed.h2d=1000%", "a share of the step is at most 100 %"),
    ],
)
def test_a_budget_that_makes_no_sense_says_why(text: str, word: str) -> None:
    with pytest.raises(UsageError, match="budget in pyproject") as caught:
        parse_budget(text, "budget in pyproject")
    assert word in str(caught.value)


@pytest.mark.parametrize("text", ["stall=100%", "stall+150%", "memory.device=110%", "memory.host=200%"])
def test_a_share_that_can_be_exceeded_is_a_budget(text: str) -> None:
    assert parse_budget(text).unit == "%"


def test_an_amount_that_is_over_its_limit_does_not_read_like_it(report: Report) -> None:
    used = report.memory.device_bytes
    assert used is not None
    result = check_budget(report, parse_budget(f"memory.device={used - 1}B"))
    assert result.status == OVER
    assert f"{used:,} B of at most {used - 1:,} B" in result_text(result)
    assert amount_texts(0.2000001, 0.2, "ms") == ("0.2000001 ms", "0.2 ms")
    assert amount_texts(0.2, 0.2, "ms") == ("0.2 ms", "0.2 ms")


def test_the_budgets_of_a_baseline_alone_are_budgets() -> None:
    assert all(parse_budget(text).needs_baseline for text in DEFAULT_BUDGETS)


# ---- over a baseline


@given(base=amounts, now=amounts, percent=st.integers(0, 200))
def test_a_percentage_over_the_baseline_is_a_limit(
    report: Report, snapshot: Snapshot, base: float, now: float, percent: int
) -> None:
    budget = parse_budget(f"stall+{percent}%")
    result = check_budget(report, budget, with_stall(snapshot, base), with_stall(snapshot, now))
    assert result.limit == pytest.approx(base + max(base * percent / 100, UNSEEN_SHARE * 100), abs=2e-6)
    assert result.status == (OVER if now > result.limit else WITHIN)
    assert (result.baseline, result.value, result.unit) == (base, now, "ms")


@given(base=amounts, now=amounts, tolerance=st.integers(0, 1000))
def test_an_amount_over_the_baseline_is_a_limit(
    report: Report, snapshot: Snapshot, base: float, now: float, tolerance: int
) -> None:
    budget = parse_budget(f"stall+{tolerance}ms")
    result = check_budget(report, budget, with_stall(snapshot, base), with_stall(snapshot, now))
    assert result.status == (OVER if now > base + tolerance + 1e-6 else WITHIN)


@pytest.mark.parametrize("metric", sorted(METRICS.keys() - {"lost"}))
def test_every_metric_is_within_no_tolerance_of_itself_and_over_a_smaller_baseline(
    report: Report, snapshot: Snapshot, metric: str
) -> None:
    unit = {"time": "ms", "size": "B", "count": ""}[METRICS[metric][0]]
    budget = parse_budget(f"{metric}+0{unit}")
    assert check_budget(report, budget, snapshot).status == WITHIN
    value = amount_of(snapshot, metric)
    assert value is not None
    smaller = dataclasses.replace(
        snapshot,
        step_ms=0.0,
        stall_ms=Split(0, 0, 0),
        exposed_ms=Split(0, 0, 0),
        bytes_per_step={"d2h": 0, "h2d": 0},
        verdicts={},
        memory=MemorySnapshot(0, 0, "estimated"),
        transfers=(),
        findings=(),
    )
    assert check_budget(report, budget, smaller).status == (OVER if value else WITHIN)


@pytest.mark.parametrize("text", ["stall+5%", "lost=0", "memory.device+5%", "findings.error+0", "count+0"])
def test_without_an_entry_in_the_baseline_nothing_passes(report: Report, text: str) -> None:
    result = check_budget(report, parse_budget(text), None, missing="no such entry")
    assert (result.status, result.reason, result.value) == (MISSING, "no such entry", None)


def test_a_metric_that_the_baseline_does_not_know_is_missing(report: Report, snapshot: Snapshot) -> None:
    nothing = dataclasses.replace(snapshot, stall_ms=None, memory=MemorySnapshot(None, None, "unknown"))
    for text in ("stall+5%", "memory.device+5%", "memory.host+1GiB"):
        result = check_budget(report, parse_budget(text), nothing)
        assert (result.status, "baseline has no" in result.reason) == (MISSING, True)


# ---- evidence


def test_memory_needs_memory_and_times_need_times(report: Report) -> None:
    unknown = dataclasses.replace(
        report,
        memory=MemoryInfo(None, None, None, None, "unknown"),
        unknown=(Unknown("not checked", "look", "memory"),),
    )
    result = check_budget(unknown, parse_budget("memory.device=1TiB"))
    assert (result.status, result.reason) == (UNKNOWN, "not checked")
    assert check_budget(unknown, parse_budget("stall=100%")).status == WITHIN
    no_limit = dataclasses.replace(report, memory=dataclasses.replace(report.memory, device_limit_bytes=None))
    assert check_budget(no_limit, parse_budget("memory.device=100%")).status == UNKNOWN


def test_memory_that_is_a_lower_bound_is_never_within(report: Report) -> None:
    tpu = dataclasses.replace(report, module=dataclasses.replace(report.module, platform="tpu"))
    assert report.memory.source == "estimated"
    assert check_budget(tpu, parse_budget("memory.device=1TiB")).status == UNKNOWN
    assert check_budget(tpu, parse_budget("memory.device=1B")).status == OVER
    before = snapshot_of(tpu, "step")  # equally too low, for the same reason: the two may be compared
    assert check_budget(tpu, parse_budget("memory.device+5%"), before).status == WITHIN
    exact = dataclasses.replace(before, memory=dataclasses.replace(before.memory, source="artifacts"))
    assert check_budget(tpu, parse_budget("memory.device+5%"), exact).status == UNKNOWN


def test_transfers_that_may_be_missing_are_in_doubt_for_counts_bytes_and_findings(report: Report) -> None:
    unknown = dataclasses.replace(report, unknown=(Unknown("a callback", "x", "transfers"),))
    for text in ("count=99", "bytes=9TiB", "findings.error=99", "count.exposed=99", "stall=100%"):
        assert check_budget(unknown, parse_budget(text)).status == UNKNOWN
    assert check_budget(unknown, parse_budget("count=0")).status == OVER


def test_a_rule_that_could_not_look_is_no_absence_of_findings(report: Report, snapshot: Snapshot) -> None:
    lacking = dataclasses.replace(report, rules_not_run=(RuleNotRun("HLO302", "a-rule", "needs the StableHLO"),))
    result = check_budget(lacking, parse_budget("findings.error=99"))
    assert result.status == UNKNOWN
    assert "--ignore HLO302" in result.reason
    assert check_budget(lacking, parse_budget("findings.HLO3=99")).status == UNKNOWN
    assert check_budget(lacking, parse_budget("findings.HLO1=99")).status == WITHIN
    # It could not run for the baseline either: then the two are equal.
    assert "HLO302" in snapshot.rules_not_run
    assert check_budget(lacking, parse_budget("findings.error+0"), snapshot).status == WITHIN
    knew = dataclasses.replace(snapshot, rules_not_run=())
    assert check_budget(lacking, parse_budget("findings.error+0"), knew).status == UNKNOWN


def test_a_rule_that_needs_a_trace_is_not_required_of_a_prediction_unless_it_is_named(report: Report) -> None:
    lacking = dataclasses.replace(report, rules_not_run=(RuleNotRun("HLO407", "x", "needs a trace with whole steps"),))
    assert check_budget(lacking, parse_budget("findings=99")).status == WITHIN
    assert check_budget(lacking, parse_budget("findings.HLO407=0")).status == UNKNOWN


def test_a_rule_that_is_named_must_have_run_also_where_the_baseline_lacks_it(
    report: Report, snapshot: Snapshot
) -> None:
    """Use a rule that both sides missed. That is equal for all errors, and no evidence for the rule that is named."""
    assert {"HLO302", "HLO303", "HLO407"} <= set(snapshot.rules_not_run)
    for text in ("findings.HLO302+0", "findings.HLO302=0", "findings.HLO407=0", "findings.HLO41=0", "findings.HLO41+9"):
        result = check_budget(report, parse_budget(text), snapshot)
        assert (result.status, "could not run: needs" in result.reason) == (UNKNOWN, True)
    for text in ("findings.error+0", "findings.HLO3+0", "findings.HLO4=9", "findings.HLO4+0"):
        assert check_budget(report, parse_budget(text), snapshot).status == WITHIN


# ---- budgets that can count nothing


def check(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["check", "no/such/file.hlo", "--target", "gb200", *arguments])


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["findings.HLO999=0"], "HLO999 is no rule's code or the beginning of one"),
        (["findings.HLO77=0"], "HLO77 is no rule's code or the beginning of one"),
        (["findings.HLO102=0", "--ignore", "HLO102"], "HLO102 is left out (ignore = HLO102)"),
        (["findings.HLO102=0", "--ignore", "HLO1"], "HLO102 is left out (ignore = HLO1)"),
        (["findings.HLO1=0", "--ignore", "HLO1"], "HLO1 is left out (ignore = HLO1)"),
        (["findings.HLO3=0", "--select", "HLO1"], "HLO3 is left out (select = HLO1)"),
        (["findings=0", "--ignore", "ALL"], "every rule is left out (ignore = ALL)"),
        (["findings.error=0", "--ignore", "ALL"], "every rule is left out (ignore = ALL)"),
        (["findings.error=0", "--select", "HLO404"], "no rule that runs can say an error"),
        (["findings.error=0", "--severity", "ALL=warning"], "no rule that runs can say an error"),
    ],
)
def test_a_budget_that_can_count_nothing_is_refused_before_anything_is_read(arguments: list[str], words: str) -> None:
    result = check("--budget", *arguments)
    assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (2, "", 1)
    assert words in result.stderr
    assert "no such file" not in result.stderr


def test_the_projects_table_is_read_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = '[tool.hloinspect]\nignore = ["HLO302"]\nbudget = ["{}"]\n'
    monkeypatch.chdir(tmp_path)
    for budget, words in (
        ("findings.HLO302=0", "HLO302 is left out (ignore = HLO302); take it back into what --ignore"),
        ("findings.HLO999=0", "pyproject.toml: [tool.hloinspect]: budget 'findings.HLO999=0': HLO999 is no rule"),
    ):
        (tmp_path / "pyproject.toml").write_text(table.format(budget), encoding="utf-8")
        result = check()
        assert (result.exit_code, words in result.stderr) == (2, True), result.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ["findings.HLO1=0", "--ignore", "HLO110"],
        ["findings.error=0", "--ignore", "HLO4"],
        ["findings.warning=0", "--severity", "ALL=warning"],
        ["findings.HLO102=0", "--severity", "ALL=info"],
        ["findings.info=0", "--select", "HLO105"],
    ],
)
def test_a_budget_that_still_counts_something_is_taken(arguments: list[str]) -> None:
    assert "no such file" in check("--budget", *arguments).stderr


def test_a_report_that_was_made_without_a_rule_does_not_hold_a_budget_over_it(report: Report) -> None:
    lacking = dataclasses.replace(report, rules_left_out=(RuleLeftOut("HLO102", "x", "ignore = HLO102"),))
    with pytest.raises(UsageError, match=r"findings\.HLO102=0 means nothing"):
        check_report(lacking, "step", [parse_budget("findings.HLO102=0")])
    assert check_report(lacking, "step", [parse_budget("findings.HLO1=99")]).results[0].status == WITHIN
    nothing = dataclasses.replace(report, rules_left_out=(RuleLeftOut("ALL", "all rules", "no rule is selected"),))
    with pytest.raises(UsageError, match="every rule is left out"):
        check_report(nothing, "step", [parse_budget("findings=99")])
    kept = check_report(nothing, "step", [], Baseline(Path("b.json")).updated([snapshot_of(report, "step")]))
    assert [result.budget.text for result in kept.results] == [
        text for text in DEFAULT_BUDGETS if not text.startswith("findings")
    ]
