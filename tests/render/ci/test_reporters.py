"""Reporters of CI: each against its schema or its reader's rules, and the same bytes for the same answer."""

from __future__ import annotations

import dataclasses
import gzip
import json
import re
from collections import Counter
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from hloinspect.analyze import inspect as api
from hloinspect.gate.baseline import Baseline
from hloinspect.gate.budget import parse_budget
from hloinspect.gate.gate import Checked, Unread, check_report
from hloinspect.gate.snapshot import snapshot_of
from hloinspect.render.ci import github, junit, markdown, sarif
from hloinspect.report.schema import Report, SourceInfo, Unknown
from tests.support.gate_samples import FIXTURES, OLD_FIXTURES, SMALL, check
from tests.support.places import DATA

OPTIMIZER = FIXTURES / "gb200_optimizer" / "module.hlo.txt.gz"
OLD_OPTIMIZER = OLD_FIXTURES / "gb200_optimizer" / "module.hlo.txt.gz"
SAVE = FIXTURES / "gb200_save" / "module.hlo.txt.gz"
FORMATS = ("text", "json", "junit", "sarif", "github", "markdown")
STATUSES = {"within": "", "over": "failure", "unknown": "error", "missing": "error"}
HOSTILE = 'a,b:c%0A::error::|<script>`"&\x1b[31m\u202e.py'
UNREAD = [
    Unread("broken", "src/train.py:broken", "gb200", "NameError: name 'x' is not defined (src/train.py:3, in broken)"),
    Unread(HOSTILE, "no/such.hlo", None, "no such file <b>|`::error::\x1b[31m"),
]


@pytest.fixture(scope="module")
def report() -> Report:
    return api.inspect(str(OPTIMIZER), target="gb200").report


@pytest.fixture(scope="module")
def checks(report: Report) -> list[Checked]:
    """Return all that a gate can say: within, over, missing and unknown, with and without a baseline, with findings."""
    old = api.inspect(str(OLD_OPTIMIZER), target="gb200").report
    save = api.inspect(str(SAVE), target="gb200").report
    baseline = Baseline(Path("baseline.json")).updated([snapshot_of(old, "optimizer"), snapshot_of(report, "save")])
    budgets = [parse_budget(text) for text in ("stall=99%", "stall=1%", "lost=0", "findings.error=0", "count=0")]
    blind = dataclasses.replace(report, unknown=(Unknown("nobody can say", "look", "time"),))
    return [
        check_report(report, "optimizer", budgets, baseline),
        check_report(save, "save", budgets, baseline),
        check_report(blind, "no entry", budgets, baseline),
        check_report(hostile(report), HOSTILE, budgets, None),
    ]


def hostile(report: Report) -> Report:
    """Return a report whose names are all markup, commands or line ends of some format."""
    source = SourceInfo(f"/home/x/{HOSTILE}", 7, HOSTILE)
    transfers = tuple(
        dataclasses.replace(t, source=source, reason=HOSTILE, start=HOSTILE, computation=HOSTILE)
        for t in report.transfers
    )
    findings = tuple(
        dataclasses.replace(f, source=source, message=HOSTILE, remedy=HOSTILE, instruction=HOSTILE)
        for f in report.findings
    )
    target = dataclasses.replace(report.target, name=HOSTILE)  # type: ignore[type-var]
    module = dataclasses.replace(report.module, name=HOSTILE)
    info = dataclasses.replace(report.input, path=HOSTILE)
    return dataclasses.replace(report, transfers=transfers, findings=findings, target=target, module=module, input=info)


def statuses(checks: list[Checked]) -> list[str]:
    return [result.status for checked in checks for result in checked.results]


def test_the_samples_hold_every_status(checks: list[Checked]) -> None:
    assert set(statuses(checks)) == set(STATUSES)
    assert sum(len(checked.report.findings) for checked in checks) > 5


# ---- JUnit


@pytest.mark.parametrize("allow_unknown", [False, True])
def test_junit_is_valid_and_has_a_case_for_each_budget(checks: list[Checked], allow_unknown: bool) -> None:
    xmlschema = pytest.importorskip("xmlschema")
    text = junit.render(checks, allow_unknown)
    xmlschema.XMLSchema(str(DATA / "junit.xsd")).validate(text)
    root = ElementTree.fromstring(text)
    outcomes = [child.tag for case in root.iter("testcase") for child in case]
    expected = [STATUSES[status] for status in statuses(checks)]
    if allow_unknown:
        expected = ["skipped" if s == "unknown" else STATUSES[s] for s in statuses(checks)]
    assert outcomes == [tag for tag in expected if tag]
    counts = Counter(outcomes)
    assert (root.get("tests"), root.get("failures")) == (str(len(expected)), str(counts["failure"]))
    assert root.get("errors") == str(counts["error"])
    for suite in root:
        cases = list(suite)
        assert suite.get("tests") == str(len(cases))
        tags = Counter(child.tag for case in cases for child in case)
        assert [suite.get(key) for key in ("failures", "errors", "skipped")] == [
            str(tags[tag]) for tag in ("failure", "error", "skipped")
        ]


def test_the_schema_for_junit_refuses_what_is_wrong() -> None:
    xmlschema = pytest.importorskip("xmlschema")
    schema = xmlschema.XMLSchema(str(DATA / "junit.xsd"))
    suite = '<testsuite name="s" tests="1" failures="0" errors="0">{}</testsuite>'
    for inside in ("<testcase/>", '<testcase name="n" classname="c"><oops/></testcase>', "<testsuite/>"):
        assert not schema.is_valid(f"<testsuites>{suite.format(inside)}</testsuites>")
    assert not schema.is_valid('<testsuites tests="many"/>')


def test_a_failure_in_junit_tells_what_changed_and_where(checks: list[Checked]) -> None:
    root = ElementTree.fromstring(junit.render(checks))
    failure = root.find("testsuite/testcase[@name='stall=1%']/failure")
    assert failure is not None
    assert failure.text is not None
    assert "of at most" in failure.get("message", "")
    assert "dense.py:" in failure.text
    assert "look closer: hloinspect inspect" in failure.text


# ---- SARIF


@pytest.mark.parametrize("allow_unknown", [False, True])
def test_sarif_is_valid_by_the_official_schema(checks: list[Checked], allow_unknown: bool) -> None:
    jsonschema = pytest.importorskip("jsonschema")
    schema = json.loads(gzip.decompress((DATA / "sarif-2.1.0.json.gz").read_bytes()))
    validator = jsonschema.validators.validator_for(schema)(schema, format_checker=jsonschema.FormatChecker())
    document = json.loads(sarif.render(checks, allow_unknown))
    assert [error.message for error in validator.iter_errors(document)] == []
    document["runs"][0]["results"][0]["level"] = "loud"
    assert not validator.is_valid(document)


def test_sarif_has_all_findings_and_broken_budgets_with_their_lines_and_rules(checks: list[Checked]) -> None:
    (run,) = json.loads(sarif.render(checks))["runs"]
    rules = run["tool"]["driver"]["rules"]
    ids = [result["ruleId"] for result in run["results"]]
    assert [rules[result["ruleIndex"]]["id"] for result in run["results"]] == ids
    expected = Counter(finding.code for checked in checks for finding in checked.report.findings)
    assert {code: ids.count(code) for code in expected} == dict(expected)
    found = Counter(statuses(checks))
    assert ids.count("budget-exceeded") == found["over"]
    assert ids.count("budget-unknown") == found["unknown"] + found["missing"]
    assert all(rule["shortDescription"]["text"] for rule in rules)
    for result in run["results"]:
        place = result["locations"][0]["physicalLocation"]
        assert place["region"]["startLine"] >= 1
        assert re.fullmatch(r"(file:///)?[A-Za-z0-9._~%/\-]+", place["artifactLocation"]["uri"])


def test_fingerprints_of_sarif_stay_when_lines_move(checks: list[Checked]) -> None:
    def prints(checked: Checked) -> list[str]:
        results = json.loads(sarif.render([checked]))["runs"][0]["results"]
        return [result["partialFingerprints"]["hloinspect/1"] for result in results]

    first = checks[0]
    moved = tuple(
        dataclasses.replace(f, source=dataclasses.replace(f.source, line=f.source.line + 9)) if f.source else f
        for f in first.report.findings
    )
    later = dataclasses.replace(first, report=dataclasses.replace(first.report, findings=moved))
    assert prints(first) == prints(later)
    assert len(set(prints(first))) == len(prints(first))


def test_a_file_of_the_project_is_named_from_its_root(report: Report, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Path, "cwd", classmethod(lambda cls: Path("/home/user/hloinspect")))
    checked = check_report(report, "optimizer", [parse_budget("stall=1%")])
    results = json.loads(sarif.render([checked]))["runs"][0]["results"]
    places = [result["locations"][0]["physicalLocation"]["artifactLocation"] for result in results]
    assert {"uri": "examples/dense.py", "uriBaseId": "%SRCROOT%"} in places
    assert "file=examples/dense.py,line=" in github.render([checked])


# ---- GitHub


def commands(text: str) -> list[dict[str, str]]:
    """Return the commands in a log, read by the rules of GitHub's runner (ActionCommand.cs): properties and data are
    unescaped after the line is split."""
    found = []
    for line in text.splitlines():
        match = re.fullmatch(r"::([a-z-]+)(?: ([^:]*(?::(?!:)[^:]*)*))?::(.*)", line)
        assert match is not None, line
        properties = dict(item.split("=", 1) for item in match[2].split(","))
        for escape, char in (("%0D", "\r"), ("%0A", "\n"), ("%3A", ":"), ("%2C", ","), ("%25", "%")):
            properties = {key: value.replace(escape, char) for key, value in properties.items()}
        data = match[3]
        for escape, char in (("%0D", "\r"), ("%0A", "\n"), ("%25", "%")):
            data = data.replace(escape, char)
        found.append({"command": match[1], "data": data, **properties})
    return found


def test_annotations_are_read_back_whole(checks: list[Checked]) -> None:
    found = commands(github.render(checks))
    assert all(set(each) == {"command", "data", "file", "line", "title"} for each in found)
    assert all(each["line"].isdecimal() for each in found)
    errors = [each for each in found if each["command"] == "error"]
    broken = [result for checked in checks for result in checked.broken]
    assert [each["title"] for each in errors] == [f"hloinspect {result.budget.text}" for result in broken]
    assert {each["command"] for each in found} == {"error", "warning", "notice"}
    assert any(each["file"].endswith("dense.py") for each in errors)
    assert not [each for each in found if "\x1b" in each["data"]]


def test_what_may_be_unknown_is_a_notice(checks: list[Checked]) -> None:
    blind = checks[2]
    allowed = commands(github.render([blind], allow_unknown=True))
    unknown = [result.budget.text for result in blind.results if result.status == "unknown"]
    notices = [each["title"] for each in allowed if each["command"] == "notice"]
    assert [f"hloinspect {text}" for text in unknown] == notices[: len(unknown)]


# ---- Markdown and HTML


def test_the_summary_has_a_row_for_each_budget_and_no_tag_of_a_name(checks: list[Checked]) -> None:
    text = markdown.render(checks)
    assert text.startswith("### hloinspect: failed")
    fenced = re.sub(r"^```text\n.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)
    assert "<script" not in fenced
    tables = re.findall(r"(?:^\|.*\|$\n?)+", fenced, re.MULTILINE)
    rows = tables[0].splitlines()[2:]
    assert len(rows) == len(statuses(checks))
    assert {len(re.split(r"(?<!\\)\|", row)) for row in rows} == {8}
    assert text.count("```") % 2 == 0
    assert markdown.render([checks[1]], True).startswith("### hloinspect: failed")


class Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: Counter[str] = Counter()

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.open.append(tag)
        self.seen[tag] += 1
        assert attrs == []

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_a_notebook_gets_a_whole_table_and_no_tag_of_a_name(report: Report) -> None:
    for each in (report, hostile(report)):
        parser = Tags()
        parser.feed(each._repr_html_())
        assert parser.open == []
        assert parser.seen["tr"] == len(report.transfers) + 1
        assert parser.seen["script"] == 0


def test_a_report_iterates_its_transfers_and_findings_and_is_json(report: Report) -> None:
    assert list(report) == [*report.transfers, *report.findings]
    assert json.loads(report.to_json())["schema"] == "hloinspect.report/1"


# ---- all of them


@pytest.mark.parametrize("style", FORMATS)
def test_every_format_gives_the_same_bytes_and_the_same_exit_code(style: str) -> None:
    arguments = (SMALL, "--target", "gb200", "--budget", "stall=1%", "--budget", "count=99", "--format", style)
    first, second = check(*arguments), check(*arguments)
    assert (first.exit_code, first.stdout) == (1, second.stdout)
    assert first.stdout.strip()


def test_several_reports_are_written_in_one_run(tmp_path: Path) -> None:
    files = {style: tmp_path / f"out.{style}" for style in FORMATS}
    reports = [part for style, file in files.items() for part in ("--report", f"{style}={file}")]
    result = check(SMALL, "--target", "gb200", "--budget", "stall=1%", *reports)
    assert result.exit_code == 1
    for style, file in files.items():
        alone = check(SMALL, "--target", "gb200", "--budget", "stall=1%", "--format", style)
        assert file.read_text(encoding="utf-8") == alone.stdout
    ElementTree.parse(files["junit"])
    json.loads(files["sarif"].read_text(encoding="utf-8"))


@pytest.mark.parametrize("text", ["sarif", "xml=a", "=a", "sarif="])
def test_a_report_that_makes_no_sense_is_refused_before_anything_is_read(text: str) -> None:
    result = check("no/such/file", "--budget", "stall=1%", "--report", text)
    assert (result.exit_code, "expected FORMAT=FILE" in result.stderr) == (2, True)


def test_a_report_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    result = check(SAVE, "--target", "gb200", "--budget", "stall=1%", "--report", f"junit={tmp_path}/no/such/x.xml")
    assert (result.exit_code, "cannot write" in result.stderr) == (2, True)


# --- inputs that could not be read ----------------------------------------------------------------


def test_an_input_that_cannot_be_read_is_an_error_for_every_reader(checks: list[Checked]) -> None:
    root = ElementTree.fromstring(junit.render(checks[1:2], unread=UNREAD))
    before = ElementTree.fromstring(junit.render(checks[1:2]))
    assert [int(root.attrib[name]) - int(before.attrib[name]) for name in ("tests", "errors", "failures")] == [2, 2, 0]
    suite = root.findall("testsuite")[-2]
    assert [case.attrib["message"] for case in suite.iter("error")] == [UNREAD[0].message]

    document = json.loads(sarif.render(checks[1:2], unread=UNREAD))
    (invocation,) = document["runs"][0]["invocations"]
    assert invocation["executionSuccessful"] is False
    errors = invocation["toolExecutionNotifications"]
    assert UNREAD[0].message in errors[0]["message"]["text"]
    assert errors[0]["locations"][0]["physicalLocation"]["artifactLocation"]["uri"] == "src/train.py"
    assert "invocations" not in json.loads(sarif.render(checks[1:2]))["runs"][0]

    rows = [line for line in markdown.render(checks[1:2], unread=UNREAD).splitlines() if "**ERROR**" in line]
    assert len(rows) == 2
    assert all(row.count("|") == 7 + row.count("\\|") and "<b>" not in row for row in rows)
    lines = github.render([], unread=UNREAD).splitlines()
    assert [line.partition(" ")[0] for line in lines] == ["::error", "::error"]
    assert "file=src/train.py,line=1" in lines[0]


def test_the_schemas_hold_with_inputs_that_could_not_be_read(checks: list[Checked]) -> None:
    xmlschema, jsonschema = pytest.importorskip("xmlschema"), pytest.importorskip("jsonschema")
    xmlschema.XMLSchema(str(DATA / "junit.xsd")).validate(junit.render(checks, unread=UNREAD))
    schema = json.loads(gzip.decompress((DATA / "sarif-2.1.0.json.gz").read_bytes()))
    validator = jsonschema.validators.validator_for(schema)(schema, format_checker=jsonschema.FormatChecker())
    assert [error.message for error in validator.iter_errors(json.loads(sarif.render(checks, unread=UNREAD)))] == []


@pytest.mark.parametrize("where", [0, 1])
def test_the_others_are_judged_where_one_input_cannot_be_read(where: int, tmp_path: Path) -> None:
    inputs: list[str | Path] = [SAVE, OPTIMIZER]
    inputs.insert(where, "no/such/file")
    baseline = tmp_path / "baseline.json"
    result = check(*inputs, "--target", "gb200", "--budget", "stall=1%", "--format", "json")
    found = json.loads(result.stdout)
    assert (result.exit_code, found["status"]) == (2, "error")
    assert [one["status"] for one in found["checks"]] == ["within", "over"]
    assert [(one["input"], one["target"]) for one in found["errors"]] == [("no/such/file", "gb200")]
    assert "no such file" in found["errors"][0]["message"]
    recorded = check(*inputs, "--target", "gb200", "--baseline", baseline, "--update-baseline")
    assert (recorded.exit_code, baseline.exists()) == (2, False)
    assert "was not changed" in recorded.stderr
