"""Blocking rules, which fail a check whatever its budgets are: wrong values, a step that does not fit or compile."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree

import pytest
from click.testing import CliRunner

import hloinspect
from hloinspect.analyze import inspect as api
from hloinspect.cli import main
from hloinspect.cli.check import command
from hloinspect.compile.known_errors import explained
from hloinspect.errors import CompileError, UsageError
from hloinspect.gate.blocking import OVER_REPORT
from hloinspect.gate.budget import parse_budget
from hloinspect.gate.errors import BudgetExceeded, NotEnoughEvidence
from hloinspect.gate.gate import FAILED, PASSED, Unread, check_report, overall
from hloinspect.render.ci import github, junit, markdown, sarif
from hloinspect.render.data import check_json
from hloinspect.render.terminal import check_text
from hloinspect.report.schema import FindingInfo, Report, RuleNotRun
from hloinspect.rules.blocking import BLOCKING, TOO_LARGE, WRONG_VALUES
from hloinspect.rules.choice import Choice
from hloinspect.rules.registry import RULES
from tests.support.gate_samples import SMALL, check
from tests.support.places import CASES, SUPPORT
from tests.support.rules_samples import fixture

WRONG = CASES / "pipelined_wrong_offsets_jax0.10.1.hlo.pb.xz"
LARGER = fixture("gb200_offload_scan")
FORMATS = ("text", "json", "junit", "sarif", "github", "markdown")
STALL = ("--target", "gb200", "--budget", "stall=90%")
RENDERERS = (check_text, check_json, junit, sarif, github, markdown)

needs_jax = pytest.mark.skipif(importlib.util.find_spec("jax") is None, reason="compiling needs hloinspect[cuda]")


@pytest.fixture(scope="module")
def small() -> Report:
    return api.inspect(str(SMALL), target="gb200").report


def test_each_module_of_the_examples_of_the_help_can_pass() -> None:
    (example,) = [line.split() for line in check("--help").stdout.splitlines() if "check step.hlo" in line]
    budgets = [word for word in example if "=" in word]
    assert len(budgets) == 2
    for name in ("gb200_save", "gb200_remat"):
        arguments = [word for budget in budgets for word in ("--budget", budget)]
        assert check(fixture(name), "--target", "h100", *arguments).exit_code == 0


def finding(code: str, severity: str) -> FindingInfo:
    return FindingInfo(code, "a-name", severity, "a message", "a remedy", None, None, None, {})


# ---- wrong values


@pytest.mark.parametrize("style", FORMATS)
def test_wrong_gradients_fail_a_limit_on_time_and_are_named_in_every_format(style: str) -> None:
    result = check(WRONG, *STALL, "--format", style)
    assert result.exit_code == 1
    assert "HLO301" in result.stdout
    assert "gradients are wrong" in result.stdout


@pytest.mark.parametrize("more", [["--allow-unknown"], ["--budget", "count=99"], ["--select", "HLO3"]])
def test_no_other_option_passes_over_wrong_gradients(more: list[str]) -> None:
    result = check(WRONG, *STALL, *more)
    assert (result.exit_code, result.stdout.split()[0]) == (1, "FAILED")
    assert "HLO301" in result.stdout.splitlines()[0]


def test_each_format_says_in_its_own_way_that_the_values_are_wrong() -> None:
    found = json.loads(check(WRONG, *STALL, "--format", "json").stdout)
    assert (found["status"], [one["status"] for one in found["checks"]]) == ("failed", ["within"])
    assert [(one["code"], one["rule"]) for one in found["blocking"]] == [("HLO301", "slice-offsets-walk-against-index")]
    root = ElementTree.fromstring(check(WRONG, *STALL, "--format", "junit").stdout)
    assert (root.get("tests"), root.get("failures")) == ("2", "1")
    assert [failure.get("type") for failure in root.iter("failure")] == ["HLO301"]
    results = json.loads(check(WRONG, *STALL, "--format", "sarif").stdout)["runs"][0]["results"]
    assert [one["level"] for one in results if one["ruleId"] == "HLO301"] == ["error"]
    lines = check(WRONG, *STALL, "--format", "github").stdout.splitlines()
    assert [line.partition(" ")[0] for line in lines if "HLO301" in line] == ["::error"]
    rows = [row for row in check(WRONG, *STALL, "--format", "markdown").stdout.splitlines() if "HLO301" in row]
    assert ["**FAILED**" in row for row in rows] == [True]


def test_wrong_gradients_are_raised_in_python() -> None:
    with pytest.raises(BudgetExceeded, match=r"HLO301 \(wrong values\).*gradients are wrong") as caught:
        hloinspect.check(WRONG, target="gb200", budget="stall=90%", allow_unknown=True)
    assert [one.code for one in caught.value.checked.blocked] == ["HLO301"]
    assert "stall" not in str(caught.value)  # only what failed is in the line


def test_wrong_gradients_are_never_recorded_as_a_baseline(tmp_path: Path) -> None:
    path = tmp_path / "baseline.json"
    result = check(WRONG, SMALL, "--target", "gb200", "--baseline", path, "--update-baseline")
    assert (result.exit_code, path.exists()) == (1, False)
    assert "was not changed" in result.stderr
    assert "HLO301 (wrong values)" in result.stderr
    with pytest.raises(BudgetExceeded, match=r"was not changed.*HLO301"):
        hloinspect.check(WRONG, target="gb200", baseline=path, update_baseline=True)
    assert not path.exists()
    ignored = check(WRONG, "--target", "gb200", "--baseline", path, "--update-baseline", "--ignore", "HLO301")
    assert (ignored.exit_code, path.exists()) == (0, True)
    assert check(WRONG, "--target", "gb200", "--baseline", path).exit_code == 1


# ---- what was left out is said


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    """Return a GB200 with 16 MiB of memory."""
    path = tmp_path / "tiny.toml"
    path.write_text(
        'base = "gb200"\ntitle = "tiny"\n[hbm_bytes]\nvalue = 16777216\nsource = "made for a test"\n',
        encoding="utf-8",
    )
    return path


@pytest.mark.parametrize("style", FORMATS)
def test_a_step_that_does_not_fit_fails_a_limit_on_time_and_is_named_in_every_format(style: str, tiny: Path) -> None:
    result = check(LARGER, "--target", tiny, "--budget", "stall=90%", "--format", style)
    assert result.exit_code == 1
    assert "HLO209" in result.stdout
    assert "does not fit" in result.stdout


def test_a_step_that_does_not_fit_is_named_before_wrong_values_and_before_every_figure(tiny: Path) -> None:
    lines = check(WRONG, "--target", tiny, "--budget", "stall=90%").stdout.splitlines()
    assert [line.split("  ")[2].split()[0] for line in lines[:2]] == ["HLO209", "HLO301"]
    shown = CliRunner().invoke(main, ["inspect", str(WRONG), "--target", str(tiny)]).stdout
    places = [shown.index(text) for text in ("HLO209: the step does not fit", "HLO301: XLA copies", "predicted step")]
    assert places == sorted(places)


def test_a_step_that_fits_says_nothing_before_its_figures() -> None:
    shown = CliRunner().invoke(main, ["inspect", str(SMALL), "--target", "gb200"]).stdout
    assert "HLO" not in shown[: shown.index("predicted step")]


@pytest.mark.parametrize("style", FORMATS)
@pytest.mark.parametrize(
    ("option", "reason"),
    [
        (("--ignore", "HLO301"), "ignore = HLO301"),
        (("--ignore", "HLO3"), "ignore = HLO3"),
        (("--select", "HLO1"), "select = HLO1"),
    ],
)
def test_a_blocking_rule_that_was_left_out_is_said_in_every_format(
    style: str, option: tuple[str, str], reason: str
) -> None:
    result = check(WRONG, *STALL, *option, "--format", style)
    assert result.exit_code == 0
    assert f"HLO301 (wrong values) was not looked for: {reason}" in result.stdout


def test_configuration_takes_a_rule_out_as_an_option_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "pyproject.toml").write_text('[tool.hloinspect]\nignore = ["HLO301"]\n', encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    result = check(WRONG, *STALL)
    assert (result.exit_code, "was not looked for: ignore = HLO301" in result.stdout) == (0, True)
    (tmp_path / "pyproject.toml").write_text('[tool.hloinspect.severity]\nHLO301 = "warning"\n', encoding="utf-8")
    result = check(WRONG, *STALL)
    assert result.exit_code == 0
    assert "HLO301 is a warning here, which fails a check only by a budget that counts it: XLA copies" in result.stdout


def test_a_report_that_was_made_without_the_rules_says_so_too() -> None:
    no_rules = Choice(select=())
    for rules in (no_rules, Choice(ignore=("HLO3",))):
        report = api.inspect(str(WRONG), target="gb200", rules=rules).report
        checked = hloinspect.check(report, budget="stall=90%")
        assert [note.code for note in checked.notes if "was not looked for" in note.text] == sorted(
            code for code in OVER_REPORT if rules is no_rules or code.startswith("HLO3")
        )


def test_what_was_looked_for_and_not_found_is_not_mentioned(small: Report) -> None:
    codes = {rule.code for rule in RULES}
    checked = check_report(small, "step", [parse_budget("stall=99%")])
    assert (checked.status(), checked.blocked) == (PASSED, ())
    assert [note.code for note in checked.notes if note.code in codes] == []


# ---- by code and severity


@pytest.mark.parametrize("code", sorted(OVER_REPORT))
def test_an_error_of_a_blocking_rule_fails_and_a_warning_is_shown(small: Report, code: str) -> None:
    for severity, status in (("error", FAILED), ("warning", PASSED), ("info", PASSED)):
        report = dataclasses.replace(small, findings=(finding(code, severity),))
        checked = check_report(report, "step", [parse_budget("stall=99%")])
        assert checked.status(allow_unknown=True) == status
        for renderer in RENDERERS:
            assert code in renderer.render([checked])
            assert "a message" in renderer.render([checked])
        shown = check_text.render([checked])
        if severity == "error":
            assert f"{code} ({BLOCKING[code]})" in shown
        else:
            word = "a warning" if severity == "warning" else "information"
            assert f"{code} is {word} here, which fails a check only by a budget that counts it: a message" in shown
            assert BLOCKING[code] not in shown  # a warning says that it may happen


def test_a_warning_of_a_blocking_rule_fails_the_budget_that_counts_it_and_says_nothing_else(small: Report) -> None:
    report = dataclasses.replace(small, findings=(finding(TOO_LARGE, "warning"),))
    checked = check_report(report, "step", [parse_budget("findings.warning=0")])
    assert checked.status() == FAILED
    assert "fails no check" not in check_text.render([checked])


@pytest.mark.parametrize("severity", ["warning", "info"])
def test_a_warning_of_a_blocking_rule_is_shown_once_and_was_not_skipped(small: Report, severity: str) -> None:
    others = tuple(finding(f"HLO1{number:02d}", "warning") for number in range(2 * github.MAX_FINDINGS))
    report = dataclasses.replace(small, findings=(*others, finding(TOO_LARGE, severity)))
    checked = check_report(report, "step", [parse_budget("stall=99%")])
    root = ElementTree.fromstring(junit.render([checked]))
    assert (root.get("tests"), list(root.iter("skipped"))) == ("2", [])
    (suite,) = root.iter("testsuite")
    assert (suite.get("skipped"), suite.get("failures")) == ("0", "0")
    assert ["a message" in (text.text or "") for text in root.iter("system-out")] == [True]
    run = json.loads(sarif.render([checked]))["runs"][0]
    assert ([one["ruleId"] for one in run["results"]].count(TOO_LARGE), "invocations" in run) == (1, False)
    lines = github.render([checked]).splitlines()
    assert [line.split()[0] for line in lines if TOO_LARGE in line] == ["::notice"]
    assert len(lines) == github.MAX_FINDINGS


def test_errors_of_other_rules_stay_with_the_budgets(small: Report) -> None:
    for code in ("HLO302", "HLO303", "HLO304", "HLO101"):
        report = dataclasses.replace(small, findings=(finding(code, "error"),))
        assert check_report(report, "step", [parse_budget("stall=99%")]).status() == PASSED
        assert check_report(report, "step", [parse_budget("findings.error=0")]).status() == FAILED


def test_a_rule_that_could_not_look_is_no_pass_in_silence(small: Report) -> None:
    lacking = dataclasses.replace(small, rules_not_run=(RuleNotRun(TOO_LARGE, "x", "needs a --target"),))
    checked = check_report(lacking, "step", [parse_budget("stall=99%")])
    assert checked.status() == PASSED
    said = f"{TOO_LARGE} (does not fit into device memory) could not be looked for: needs a --target"
    assert [note.text for note in checked.notes] == [said]
    for renderer in RENDERERS:
        assert said in renderer.render([checked])


def test_a_step_that_was_profiled_did_fit(corpus: Path) -> None:
    report = hloinspect.trace(str(corpus / "traces" / "tpu_v6e_host_offload.xplane.pb")).report
    lacking = dataclasses.replace(
        report, rules_not_run=(RuleNotRun(TOO_LARGE, "x", "y"), RuleNotRun(WRONG_VALUES, "x", "y"))
    )
    assert [note.code for note in check_report(lacking, "step", [parse_budget("count=99")]).notes] == [WRONG_VALUES]


def test_a_limit_on_time_follows_memory_only_where_xlas_figure_is_missing() -> None:
    for target, source in (("gb200", "estimated"), (None, "unknown")):
        assert api.inspect(str(SMALL), target=target, memory="unassigned").report.memory.source == source


def test_a_budget_on_memory_needs_no_target() -> None:
    result = check(SMALL, "--budget", "memory.device=1GiB")
    assert (result.exit_code, "predicted" in result.stdout) == (0, True)
    assert hloinspect.check(SMALL, budget="memory.device=1GiB").status() == PASSED


def test_no_check_recommends_an_option_that_it_does_not_have() -> None:
    options = {option for parameter in command.params for option in parameter.opts}
    said = check(SMALL, "--budget", "stall=90%").stdout
    assert "memory was not estimated" in said
    for remedy in (line.partition("try: ")[2] for line in said.splitlines() if "try: " in line):
        own = re.sub("`hloinspect [^`]*`", "", remedy)  # those that name another command
        assert set(re.findall(r"--[a-z-]+", own)) <= options, remedy


def test_memory_that_xla_assigned_is_not_estimated_again(tmp_path: Path) -> None:
    from tests.support.gate_samples import compiled_directory

    folder = compiled_directory(tmp_path / "step", "gb200_offload_scan")
    found = api.inspect(str(folder), memory="unassigned")
    assert (found.report.memory.source, found.memory) == ("artifacts", None)


# ---- what the compiler refuses


def test_a_known_refusal_has_its_code() -> None:
    error = explained(CompileError("INTERNAL: Side-effect ops cannot be replicated"))
    assert (error.code, explained(CompileError("nobody knows this")).code) == ("HLO308", "")


def test_the_crash_of_jax_0_9_on_an_operation_in_host_memory_has_a_remedy() -> None:
    # as ``hloinspect compile`` says it of tests/support/matrix_steps.py:gather with jax 0.9.2
    said = (
        "the compiling process was killed by SIGABRT: Check failed: instruction->operand_count() == 1 Expecting "
        "instruction lt.3 to have 1 operand, but it has 2."
    )
    error = explained(CompileError(said))
    assert error.code == "HLO308"
    assert str(error).startswith(said)
    assert "fetch the value first" in str(error)


def test_a_refused_step_is_named_in_every_format() -> None:
    one = Unread("train.py:step", "train.py:step", "gb200", "E1200; HLO308: give out_shardings", "HLO308")
    assert overall([], True, [one]) == "error"
    for renderer in RENDERERS:
        assert "HLO308" in renderer.render([], True, [one])
    assert json.loads(check_json.render([], False, [one]))["errors"][0]["code"] == "HLO308"
    assert [each.get("type") for each in ElementTree.fromstring(junit.render([], False, [one])).iter("error")] == [
        "HLO308"
    ]
    run = json.loads(sarif.render([], False, [one]))["runs"][0]
    assert [(each["ruleId"], each["level"]) for each in run["results"]] == [("HLO308", "error")]
    assert run["invocations"][0]["executionSuccessful"] is False
    assert github.render([], False, [one]).startswith("::error file=train.py,line=1,title=hloinspect HLO308::")
    assert "| HLO308 | **ERROR** |" in markdown.render([], False, [one])


@needs_jax
@pytest.mark.slow
def test_a_refused_compilation_is_never_a_pass(
    tmp_path: Path, hloinspect: Callable[..., subprocess.CompletedProcess[str]]
) -> None:
    step = str(SUPPORT / "audit_steps.py") + ":strided"
    options = ("--target", "gb200", "--budget", "stall=90%", "--allow-unknown", "--ignore", "HLO308")
    done = hloinspect("check", step, *options, "--report", "json=check.json", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (2, "")
    assert done.stdout.startswith("ERROR  audit_steps.py:strided (gb200)")
    assert "HLO308: a slice with strides" in done.stdout
    found = json.loads((tmp_path / "check.json").read_text(encoding="utf-8"))
    assert (found["status"], [one["code"] for one in found["errors"]]) == ("error", ["HLO308"])


def test_help_says_that_no_option_takes_a_refusal_out() -> None:
    assert "It has no effect on HLO308" in " ".join(check("--help").stdout.split())


# ---- choices


def test_a_choice_names_the_entry_that_leaves_a_rule_out() -> None:
    choice = Choice(select=("HLO1", "HLO301"), ignore=("HLO10", "HLO101"))
    assert choice.why_left_out("HLO101") == "ignore = HLO101"
    assert choice.why_left_out("HLO102") == "ignore = HLO10"
    assert choice.why_left_out("HLO201") == "select = HLO1, HLO301"
    assert choice.why_left_out("HLO301") == choice.why_left_out("HLO110") == ""
    assert choice.limited_to(frozenset({"HLO301"})).why_left_out("HLO110") != ""
    assert Choice(select=()).why_left_out("HLO301") == "no rule is selected"


def test_a_time_budget_of_python_is_refused_where_it_counts_what_is_left_out() -> None:
    with pytest.raises(UsageError, match=r"findings\.HLO301=0 means nothing: HLO301 is left out \(ignore = HLO3\)"):
        hloinspect.check("no/such/file", budget="findings.HLO301=0", rules=Choice(ignore=("HLO3",)))


def test_slices_that_could_not_be_checked_are_no_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hloinspect.hlo.evaluate.MAX_STEPS_IN_ALL", 10)
    result = check(WRONG, *STALL)
    assert result.exit_code == 3
    assert result.stdout.splitlines()[0].startswith("UNKNOWN")
    assert "HLO301 (wrong values) could not be looked for" in result.stdout.splitlines()[0]
    assert check(WRONG, *STALL, "--allow-unknown").exit_code == 0
    assert check(WRONG, *STALL, "--ignore", "HLO301").exit_code == 0
    report = api.inspect(str(WRONG), target="gb200").report
    checked = check_report(report, "step", [parse_budget("stall=90%")])
    for render in RENDERERS:
        assert "could not be looked for" in render.render([checked])
    with pytest.raises(NotEnoughEvidence, match="HLO301"):
        hloinspect.check(report, budget="stall=90%")


@pytest.mark.parametrize("budget", ["findings.HLO301=0", "stall=90%"])
def test_slices_whose_text_has_lost_the_configuration_are_no_pass(budget: str) -> None:
    text = WRONG.with_name("pipelined_wrong_offsets_jax0.9.2.hlo.xz")  # as_text(): the proto of this step fails
    result = check(text, "--target", "h100", "--budget", budget)
    assert result.exit_code == 3
    assert "the text does not say from where the copies take their addresses" in result.stdout.splitlines()[0]
    assert "give the proto" in result.stdout.splitlines()[0]


def test_what_could_not_be_checked_is_what_is_said_to_have_no_marker() -> None:
    report = api.inspect(str(WRONG.with_name("pipelined_wrong_offsets_jax0.9.2.hlo.xz")), target="h100").report
    (lost,) = [found for found in report.findings if found.code == "HLO403"]
    (gap,) = [rule for rule in report.rules_not_run if rule.code == WRONG_VALUES]
    assert gap.reason.startswith(f"transfers {', '.join(map(str, lost.transfers))} could not be checked")
