"""The command ``hloinspect check``: budgets, exit codes, and that what is unknown never passes."""

from __future__ import annotations

import dataclasses
import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from hloinspect.analyze import inspect as api
from hloinspect.errors import UsageError
from hloinspect.gate.budget import METRICS as ALL_METRICS
from hloinspect.gate.budget import parse_budget
from hloinspect.gate.judge import OVER, WITHIN, check_budget
from hloinspect.kinds import UNKNOWN
from hloinspect.report.schema import Report, StepInfo, Unknown
from tests.support.gate_samples import check
from tests.support.json_schemas import faults
from tests.support.offload_samples import GPU, module_text
from tests.support.places import ROOT

FIXTURES = ROOT / "fixtures" / "jax0.12.0.1"
OPTIMIZER = FIXTURES / "gb200_optimizer" / "module.hlo.txt.gz"
SAVE = FIXTURES / "gb200_save" / "module.hlo.txt.gz"
HOST_COMPUTE = FIXTURES / "gb200_compute_on_host_memory" / "module.hlo.txt.gz"
METRICS = ("stall", "stall.d2h", "stall.h2d", "exposed", "exposed.d2h", "exposed.h2d")
UNITS = {"ps": 1e-9, "ns": 1e-6, "us": 1e-3, "ms": 1.0, "s": 1e3}


@pytest.fixture(scope="module")
def stalled() -> Report:
    """Return a step that waits in both directions."""
    return api.inspect(str(OPTIMIZER), target="gb200").report


def value_ms(report: Report, metric: str) -> float:
    step = report.step.predicted
    assert step is not None
    return {
        "stall": step.stall_ms,
        "stall.d2h": step.stall_d2h_ms,
        "stall.h2d": step.stall_h2d_ms,
        "exposed": step.exposed_ms.total,
        "exposed.d2h": step.exposed_ms.d2h,
        "exposed.h2d": step.exposed_ms.h2d,
    }[metric]


# ---- the grammar


@given(
    metric=st.sampled_from(METRICS),
    number=st.one_of(
        st.integers(0, 10**6).map(str), st.from_regex(r"[0-9]{1,6}\.[0-9]{0,6}|\.[0-9]{1,6}", fullmatch=True)
    ),
    unit=st.sampled_from([*UNITS, "%"]),
    space=st.sampled_from(["", " ", "  "]),
)
def test_every_budget_of_the_grammar_parses(metric: str, number: str, unit: str, space: str) -> None:
    text = f"{space}{metric}{space}={space}{number}{space}{unit}{space}"
    if unit == "%" and float(number) > 100:
        with pytest.raises(UsageError, match="a share of the step is at most 100 %"):
            parse_budget(text)
        return
    budget = parse_budget(text)
    assert (budget.text, budget.metric) == (text.strip(), metric)
    assert budget.unit == ("%" if unit == "%" else "ms")
    assert math.isclose(budget.limit, float(number) * UNITS.get(unit, 1.0))


@given(text=st.one_of(st.text(max_size=30), st.text("stalexpod2h.=%ms0123456789 -+einfaN_", max_size=20)))
@example("")
@example("stall")
@example("stall=")
@example("stall=2")
@example("stall=-1ms")
@example("stall=1e3ms")
@example("stall=infms")
@example("stall=nan%")
@example("stall=2%%")
@example("stall==2%")
@example("Stall=2%")
@example("stall.d2d=2%")
@example("latency=2%")
@example("stall=2 parsecs")
@example("stall=" + "9" * 400 + "ms")
@example("stall=" + "9" * 100_000 + "ms")
@example("stall=1ms\nstall=2ms")
@example("stall=2%\x00")
def test_anything_else_is_a_usage_error_of_one_line_with_an_example(text: str) -> None:
    said = ""
    try:
        budget = parse_budget(text)
    except UsageError as error:
        said = str(error)
    else:
        assert budget.metric in ALL_METRICS or budget.metric.startswith("findings.HLO")
        assert math.isfinite(budget.limit)
        assert budget.limit >= 0
    assert not said or said.startswith("--budget ")
    assert "\n" not in said


def test_a_wrong_budget_is_reported_before_anything_is_read() -> None:
    result = check("no/such/file.hlo", "--target", "gb200", "--budget", "stall=2")
    assert result.exit_code == 2
    assert "stall=2%" in result.stderr
    assert "no such file" not in result.stderr


def test_a_limit_that_nothing_can_exceed_is_refused_before_anything_is_read() -> None:
    result = check("no/such/file.hlo", "--target", "gb200", "--budget", "exposed=1000%")
    assert (result.exit_code, "no such file" in result.stderr) == (2, False)
    assert "a share of the step is at most 100 %" in result.stderr


def test_a_gate_without_a_budget_is_wrong_use() -> None:
    result = check(OPTIMIZER, "--target", "gb200")
    assert (result.exit_code, "--budget" in result.stderr) == (2, True)


# ---- judging


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("unit", ["%", "ms"])
def test_each_metric_is_within_its_own_value_and_over_anything_less(stalled: Report, metric: str, unit: str) -> None:
    step = stalled.step.predicted
    assert step is not None
    value = value_ms(stalled, metric)
    assert value > 0
    limit = value if unit == "ms" else value / step.time_ms * 100
    above, below = (check_budget(stalled, parse_budget(f"{metric}={limit * by:.12f}{unit}")) for by in (1.001, 0.999))
    assert (above.status, below.status) == (WITHIN, OVER)
    assert above.value_ms == below.value_ms == value
    assert above.value == pytest.approx(limit)
    assert above.limit_ms == pytest.approx(value * 1.001)


def test_a_limit_of_zero_allows_nothing_and_passes_nothing() -> None:
    report = api.inspect(str(SAVE), target="gb200").report
    for metric in METRICS:
        assert check_budget(report, parse_budget(f"{metric}=0ms")).status == WITHIN
        assert check_budget(report, parse_budget(f"{metric}=0%")).status == WITHIN


DOUBTS = [
    pytest.param(
        lambda r: dataclasses.replace(r, unknown=(Unknown("a reason", "a remedy", "time"),)), id="time unknown"
    ),
    pytest.param(lambda r: dataclasses.replace(r, unknown=(Unknown("a reason", "x", "transfers"),)), id="some missing"),
    pytest.param(lambda r: dataclasses.replace(r, step=StepInfo()), id="no prediction"),
    pytest.param(
        lambda r: dataclasses.replace(
            r, transfers=(*r.transfers[:-1], dataclasses.replace(r.transfers[-1], verdict=UNKNOWN))
        ),
        id="one verdict unknown",
    ),
    pytest.param(
        lambda r: dataclasses.replace(r, step=StepInfo(predicted=dataclasses.replace(r.step.predicted, time_ms=0.0))),
        id="no time",
    ),
]


@pytest.mark.parametrize("doubtful", DOUBTS)
@pytest.mark.parametrize("metric", METRICS)
def test_what_is_in_doubt_is_never_within_budget(stalled: Report, doubtful: Any, metric: str) -> None:
    result = check_budget(doubtful(stalled), parse_budget(f"{metric}=100%"))
    assert result.status == UNKNOWN
    assert result.reason


def test_what_is_over_stays_over_in_doubt(stalled: Report) -> None:
    doubtful = dataclasses.replace(stalled, unknown=(Unknown("a reason", "a remedy", "time"),))
    assert check_budget(doubtful, parse_budget("stall=0ms")).status == OVER


def test_an_unknown_memory_is_no_doubt_about_time(stalled: Report) -> None:
    report = dataclasses.replace(stalled, unknown=(Unknown("a reason", "a remedy", "memory"),))
    assert check_budget(report, parse_budget("stall=100%")).status == WITHIN


# ---- the command


@pytest.mark.parametrize(
    ("arguments", "code", "labels"),
    [
        ([OPTIMIZER, "--target", "gb200", "--budget", "stall=99%"], 0, ["ok"]),
        ([OPTIMIZER, "--target", "gb200", "--budget", "stall=1%"], 1, ["FAILED"]),
        ([OPTIMIZER, "--target", "gb200", "--budget", "stall=99%", "--budget", "stall.d2h=1us"], 1, ["ok", "FAILED"]),
        ([SAVE, OPTIMIZER, "--target", "gb200", "--budget", "exposed=1us"], 1, ["ok", "FAILED"]),
        ([OPTIMIZER, "--budget", "stall=99%"], 3, ["UNKNOWN"]),
        ([OPTIMIZER, "--budget", "stall=99%", "--allow-unknown"], 0, ["UNKNOWN"]),
        ([OPTIMIZER, "--target", "v6e", "--budget", "stall=99%"], 3, ["UNKNOWN"]),
        ([OPTIMIZER, "--target", "gb200", "--budget", "stall=1%", "--allow-unknown"], 1, ["FAILED"]),
        ([HOST_COMPUTE, "--target", "gb200", "--budget", "stall=50%"], 1, ["FAILED"]),
        ([HOST_COMPUTE, "--target", "gb200", "--budget", "stall.d2h=99%"], 3, ["UNKNOWN"]),
        ([SAVE, "no/such/file", "--target", "gb200", "--budget", "stall=1%"], 2, ["ok", "ERROR"]),
        (["no/such/file", "--target", "gb200", "--budget", "stall=1%"], 2, []),
    ],
)
def test_exit_codes_follow_the_worst_of_all_inputs_and_budgets(
    arguments: list[str | Path], code: int, labels: list[str]
) -> None:
    result = check(*arguments)
    assert result.exit_code == code, result.output
    lines = [line for line in result.stdout.splitlines() if not line.startswith(" ")]
    assert [line.split()[0] for line in lines] == labels


def test_a_failure_beside_an_unknown_is_a_failure(tmp_path: Path) -> None:
    path = tmp_path / "callback.hlo"
    callback = 'custom-call(%a), custom_call_target="xla_python_gpu_callback"'
    body = f"%a = f32[8]{{0}} parameter(0)\nROOT %r = () {callback}{GPU}"
    path.write_text(module_text(body), encoding="utf-8")
    assert check(path, "--target", "gb200", "--budget", "stall=1%").exit_code == 3
    assert check(path, OPTIMIZER, "--target", "gb200", "--budget", "stall=1%").exit_code == 1


def test_a_failure_names_the_costliest_transfers_and_the_way_to_see_more() -> None:
    result = check(OPTIMIZER, "--target", "gb200", "--budget", "stall=1%")
    assert "look closer: hloinspect inspect" in result.stdout
    waits = [line for line in result.stdout.splitlines() if " waits " in line]
    assert len(waits) == 3


def test_a_failure_over_findings_names_them_and_no_transfer() -> None:
    result = check(OPTIMIZER, "--target", "gb200", "--budget", "findings=0")
    assert result.exit_code == 1
    named = [line.split(":")[0].strip() for line in result.stdout.splitlines()[1:]]
    assert named[0].startswith("HLO")
    assert not any(line.lstrip().startswith(("d2h", "h2d")) for line in result.stdout.splitlines())


def test_json_of_a_check_keeps_its_contract() -> None:
    arguments = (
        SAVE,
        OPTIMIZER,
        "--target",
        "gb200",
        "--budget",
        "stall=1%",
        "--budget",
        "exposed=1ms",
        "--format",
        "json",
    )
    result = check(*arguments)
    found = json.loads(result.stdout)
    assert result.exit_code == 1
    assert faults(found, "check") == []
    assert [(c["input"], c["budget"]["text"]) for c in found["checks"]] == [
        (str(path), budget) for path in (SAVE, OPTIMIZER) for budget in ("stall=1%", "exposed=1ms")
    ]
    unknown = json.loads(check(OPTIMIZER, "--budget", "stall=1%", "--format", "json").stdout)
    assert faults(unknown, "check") == []
    assert (unknown["checks"][0]["status"], unknown["checks"][0]["value"]) == ("unknown", None)


def test_a_check_can_write_its_answer_to_a_file(tmp_path: Path) -> None:
    target = tmp_path / "check.txt"
    result = check(OPTIMIZER, "--target", "gb200", "--budget", "stall=1%", "-o", target)
    assert (result.exit_code, result.stdout) == (1, "")
    assert target.read_text(encoding="utf-8").startswith("FAILED")


def test_a_limit_on_time_waits_for_neither_numpy_nor_baselines() -> None:
    code = (
        "import sys\nfrom hloinspect.cli import main\n"
        f"try: main(['check', {str(SAVE)!r}, '--target', 'gb200', '--budget', 'stall=2%', '-o', '/dev/null'])\n"
        "except SystemExit: pass\nprint(*sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    loaded = set(done.stdout.split())
    unwanted = {"numpy", "jax", "hloinspect.gate.difference", "hloinspect.gate.baseline", "hloinspect.gate.findings"}
    assert "hloinspect.predict.simulate" in loaded
    assert not unwanted & loaded
