"""New findings: sets of (rule, tensor, place), so that one which went does not hide another which came."""

from __future__ import annotations

import cProfile
import dataclasses
import json
import pstats
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hloinspect.analyze import inspect as api
from hloinspect.gate import findings
from hloinspect.gate.baseline import Baseline, load_baseline, update_baseline
from hloinspect.gate.budget import parse_budget
from hloinspect.gate.findings import (
    CAME,
    CHANGED,
    WENT,
    FindingChange,
    finding_changes,
    finding_tensors_text,
    new_count,
)
from hloinspect.gate.gate import Checked, check_report
from hloinspect.gate.judge import OVER, WITHIN, check_budget
from hloinspect.gate.snapshot import FindingGroup, Snapshot, Subject, snapshot_of
from hloinspect.gate.words import details
from hloinspect.render.ci.places import Place, budget_place
from hloinspect.report.schema import FindingInfo, Report, SourceInfo
from tests.support.gate_samples import FIXTURES, check

SCAN = FIXTURES / "gb200_offload_scan" / "module.hlo.txt.gz"


@pytest.fixture(scope="module")
def report() -> Report:
    return api.inspect(str(SCAN), target="gb200").report


@pytest.fixture(scope="module")
def snapshot(report: Report) -> Snapshot:
    return snapshot_of(report, "step")


def about(*tensors: str, file: str = "train.py", function: str = "layer") -> tuple[Subject, ...]:
    """Return subjects by ``name``, ``name array``, ``array`` (with a bracket) or "" for no tensor."""
    found = []
    for text in tensors:
        name, _, array = (f" {text}" if "[" in text and " " not in text else text).partition(" ")
        found.append(Subject(name or None, array or None, file, function, 12))
    return tuple(found)


def group(code: str = "HLO102", severity: str = "error", **fields: object) -> FindingGroup:
    plain = FindingGroup(code, "a-name", severity, "train.py", "layer", 12, 1, about("hid"))
    return dataclasses.replace(plain, **fields)  # type: ignore[arg-type]


def kinds(before: FindingGroup | None, after: FindingGroup | None) -> list[str]:
    sides = [[] if side is None else [side] for side in (before, after)]
    return [change.kind for change in finding_changes(*sides)]


# ---- what is the same


@pytest.mark.parametrize(
    "moved",
    [
        {"line": 99},
        {"count": 7},
        {"file": "src/train.py", "subjects": about("hid", file="src/train.py")},
        {"subjects": about("hid bf16[8,128]")},
        {"name": "another-name"},
    ],
)
def test_lines_folders_counts_and_shapes_of_named_tensors_are_no_difference(moved: dict[str, object]) -> None:
    assert kinds(group(), group(**moved)) == []
    assert kinds(group(**moved), group()) == []


@pytest.mark.parametrize(
    "other",
    [
        {"code": "HLO103"},
        {"subjects": about("q")},
        {"subjects": about("hid", function="attention")},
        {"subjects": about("hid", file="model.py")},
    ],
)
def test_another_rule_tensor_or_place_is_another_finding(other: dict[str, object]) -> None:
    assert sorted(kinds(group(), group(**other))) == [CAME, WENT]


def test_a_tensor_without_a_name_is_known_by_its_type_and_shape() -> None:
    named, plain, other = about("hid bf16[8,128]"), about("bf16[8,128]"), about("bf16[16,128]")
    assert kinds(group(subjects=named), group(subjects=plain)) == []
    assert kinds(group(subjects=plain), group(subjects=named)) == []
    assert sorted(kinds(group(subjects=plain), group(subjects=other))) == [CAME, WENT]


def test_a_finding_that_grows_by_a_tensor_is_new_for_that_tensor_alone() -> None:
    (change,) = finding_changes([group()], [group(subjects=about("hid", "q", "bf16[8]"))])
    assert (change.kind, change.group.count, finding_tensors_text(change.group)) == (CAME, 2, "q, bf16[8]")


def test_a_place_that_costs_more_comes_first_and_is_no_difference() -> None:
    """Use a finding at several places: its place is that of its costliest transfer, and which that is may change."""
    both = about("hid") + about("q", function="attention")
    before, after = group(subjects=both), group(function="attention", subjects=both)
    assert kinds(before, after) == []


def test_a_finding_that_became_worse_is_new_of_its_severity_and_not_of_its_rule() -> None:
    changes = finding_changes([group(severity="warning")], [group(severity="error")])
    assert [change.kind for change in changes] == [CHANGED]
    assert [
        new_count(changes, code, severity) for code, severity in (("", "error"), ("", "warning"), ("HLO102", ""))
    ] == [
        1,
        0,
        0,
    ]
    better = finding_changes([group(severity="error")], [group(severity="warning")])
    assert ([change.kind for change in better], new_count(better, "", "warning")) == ([CHANGED], 0)


def test_findings_about_no_tensor_are_known_by_their_place() -> None:
    bare = group(subjects=())
    assert kinds(bare, group(subjects=(Subject(None, None, "train.py", "layer", 3),))) == []
    assert kinds(bare, group(subjects=(Subject(None, None, "train.py", "loss", 3),))) == [CAME, WENT]


@pytest.mark.parametrize(
    ("before", "after", "came", "went"),
    [
        (("hid bf16[8]",), ("hid bf16[8]", "bf16[8]"), "bf16[8]", ""),
        (("hid bf16[8]", "bf16[8]"), ("hid bf16[8]",), "", "bf16[8]"),
        (("bf16[8]",), ("hid bf16[8]", "q bf16[8]"), "hid", ""),
        (("hid bf16[8]", "q bf16[8]"), ("bf16[8]",), "", "hid"),
        (("hid bf16[8]", "bf16[8]"), ("bf16[8]", "q bf16[8]"), "q", "hid"),
        (("hid bf16[8]",), ("q bf16[8]",), "q", "hid"),
        (("hid bf16[8]",), ("hid bf16[8]", "hid bf16[9]"), "", ""),
        (("",), ("",), "", ""),
        (("",), ("hid",), "hid", "nothing"),
        (("hid",), ("",), "nothing", "hid"),
        (("",), ("", "hid"), "hid", ""),
        (("",), ("bf16[8]",), "bf16[8]", "nothing"),
    ],
)
def test_a_finding_stands_for_one_other_and_that_of_its_name_first(
    before: tuple[str, ...], after: tuple[str, ...], came: str, went: str
) -> None:
    changes = finding_changes([group(subjects=about(*before))], [group(subjects=about(*after))])
    assert {change.kind: finding_tensors_text(change.group) or "nothing" for change in changes} == {
        kind: text for kind, text in ((CAME, came), (WENT, went)) if text
    }
    assert new_count(changes, "", "error") == (1 if came else 0)


def test_an_array_whose_name_got_known_is_that_of_its_severity() -> None:
    plain = [group(severity="warning", subjects=about("bf16[8]"))]
    named = [
        group(severity="error", subjects=about("hid bf16[8]")),
        group(severity="warning", subjects=about("a bf16[8]")),
    ]
    (change,) = finding_changes(plain, named)
    assert (change.kind, finding_tensors_text(change.group), change.group.severity) == (CAME, "hid", "error")


tensors = st.sampled_from(["hid", "q", "k bf16[8]", "m bf16[8]", "bf16[8]", "bf16[9]", ""])
groups = st.builds(
    lambda code, severity, names, function: group(
        code, severity, function=function, subjects=about(*names, function=function)
    ),
    st.sampled_from(["HLO101", "HLO102"]),
    st.sampled_from(["error", "warning", "info"]),
    st.lists(tensors, min_size=1, max_size=3, unique=True),
    st.sampled_from(["layer", "loss"]),
)


@given(before=st.lists(groups, max_size=4), more=st.lists(groups, max_size=3), data=st.data())
def test_nothing_is_new_in_a_part_or_another_order(
    before: list[FindingGroup], more: list[FindingGroup], data: st.DataObject
) -> None:
    assert finding_changes(before, data.draw(st.permutations(before))) == ()
    every = [*before, *more]
    assert [change for change in finding_changes(every, before) if change.kind == CAME] == []
    came = [change for change in finding_changes(before, every) if change.kind == CAME]
    went = [change for change in finding_changes(every, before) if change.kind == WENT]
    assert [change.after for change in came] == [change.before for change in went]


Tensor = tuple[str, str, str | None, str | None]
"""Rule, function, name and array."""


def tensors_of(groups: Sequence[FindingGroup]) -> set[Tensor]:
    return {(g.code, s.function or "", s.name, s.array) for g in groups for s in g.subjects or ()}


def expected_new(before: set[Tensor], after: set[Tensor]) -> int:
    """Return how many came, one place after the other: by names, and then one for each array that a side has no name
    of."""
    count = 0
    for code, function in {tensor[:2] for tensor in after}:
        had, has = ({t[2:] for t in side if t[:2] == (code, function)} for side in (before, after))
        names = {name for name, _ in had if name} & {name for name, _ in has if name}
        old = {t for t in had - has if t[0] not in names}
        new = {t for t in has - had if t[0] not in names}
        count += len(new)
        for array in {array for _, array in new if array}:
            sides = [[name for name, of in side if of == array] for side in (old, new)]
            count -= bool(sides[0]) and (None in sides[0] or None in sides[1])
    return count


@given(before=st.lists(groups, max_size=4), after=st.lists(groups, max_size=4))
def test_as_many_are_new_as_have_no_counterpart(before: list[FindingGroup], after: list[FindingGroup]) -> None:
    for had, has in ((before, after), (after, before)):
        came = [change.group.count for change in finding_changes(had, has) if change.kind == CAME]
        assert sum(came) == expected_new(tensors_of(had), tensors_of(has))


def calls_for(count: int) -> int:
    """Return how many functions are called to compare ``count`` findings of one place with as many others."""
    sides = [
        [group(subjects=about(*(f"{side}{n} bf16[{n}]" for n in range(count)), *(f"f32[{n}]" for n in range(count))))]
        for side in "ab"
    ]
    profile = cProfile.Profile()
    profile.runcall(finding_changes, *sides)
    return int(pstats.Stats(profile).total_calls)  # type: ignore[attr-defined]


def test_the_work_grows_as_the_findings_do() -> None:
    assert calls_for(400) < 5 * calls_for(100)


# ---- the gate


def test_findings_are_compared_once_for_all_budgets(report: Report, monkeypatch: pytest.MonkeyPatch) -> None:
    from hloinspect.gate import difference

    seen = []

    def counting(before: Sequence[FindingGroup], after: Sequence[FindingGroup]) -> tuple[FindingChange, ...]:
        seen.append(before)
        return finding_changes(before, after)

    monkeypatch.setattr(difference, "finding_changes", counting)
    monkeypatch.setattr(findings, "finding_changes", counting)
    known = Baseline(Path("b.json"), (snapshot_of(report, "step"),))
    budgets = ["lost=0", "findings.error+0", "findings.warning+0", "findings.HLO1+0"]
    checked = check_report(report, "step", [parse_budget(text) for text in budgets], known)
    assert (len(seen), checked.status(), checked.new) == (1, "passed", ())


def judged(report: Report, snapshot: Snapshot, text: str, *findings: FindingGroup) -> tuple[str, float | None]:
    before = dataclasses.replace(snapshot, findings=(group(),))
    now = dataclasses.replace(snapshot, findings=findings)
    result = check_budget(report, parse_budget(text), before, now)
    return result.status, result.value


def test_one_error_that_went_does_not_make_up_for_another_that_came(report: Report, snapshot: Snapshot) -> None:
    for other in (group("HLO103"), group(subjects=about("q")), group(subjects=about("hid", function="loss"))):
        assert judged(report, snapshot, "findings.error+0", other) == (OVER, 1.0)
        assert judged(report, snapshot, "findings.error+1", other) == (WITHIN, 1.0)
    assert judged(report, snapshot, "findings.error+0") == (WITHIN, 0.0)
    assert judged(report, snapshot, "findings.error+0", group(count=9)) == (WITHIN, 0.0)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("findings+0", 2.0),
        ("findings.error+0", 1.0),
        ("findings.warning+0", 1.0),
        ("findings.info+0", 0.0),
        ("findings.HLO105+0", 1.0),
        ("findings.HLO1+0", 2.0),
        ("findings.HLO2+0", 0.0),
    ],
)
def test_a_tolerance_counts_what_is_new_of_its_rule_or_severity(
    report: Report, snapshot: Snapshot, text: str, value: float
) -> None:
    now = (group(), group(subjects=about("q")), group("HLO105", "warning"))
    assert judged(report, snapshot, text, *now) == (OVER if value else WITHIN, value)


def with_findings(report: Report, *codes: str) -> Report:
    source = SourceInfo("train.py", 21, "layer")
    found = tuple(
        FindingInfo(code, "a-name", "warning", "a message", "a remedy", None, None, source, {}) for code in codes
    )
    return dataclasses.replace(report, findings=found)


def test_a_pass_names_what_is_new_and_what_allows_it(report: Report, tmp_path: Path) -> None:
    from hloinspect.render.ci import markdown
    from hloinspect.render.data import check_json
    from hloinspect.render.terminal import check_text

    path = tmp_path / "baseline.json"
    known = update_baseline(path, [snapshot_of(with_findings(report, "HLO109"), "step")])
    now = with_findings(report, "HLO109", "HLO203")
    for budget, allowed, words in (
        ("findings.warning+1", ["findings.warning+1"], "(allowed by findings.warning+1)"),
        ("lost=0", [], "(no budget counts it)"),
    ):
        checked = check_report(now, "step", [parse_budget(budget)], known)
        lines = check_text.render([checked]).splitlines()
        assert "ok" in lines[0]
        assert [line.split()[:3] for line in lines[1:]] == [["new", "HLO203", "warning"]]
        assert lines[1].endswith(f"train.py:21 in layer  {words}")
        assert lines[1].strip() in markdown.render([checked])
        (new,) = json.loads(check_json.render([checked]))["new_findings"]
        assert (new["code"], new["allowed_by"], new["line"]) == ("HLO203", allowed, 21)
    failed = check_report(now, "step", [parse_budget("findings.warning+0")], known)
    assert failed.status() == "failed"
    assert [new.allowed_by for new in failed.new] == [()]


# ---- what explains a failure


def said(code: str, severity: str, line: int, function: str = "layer") -> FindingInfo:
    """Return a finding whose message is its line."""
    source = SourceInfo("train.py", line, function)
    return FindingInfo(code, "a-name", severity, f"message {line}", "a remedy", None, None, source, {})


def compared(report: Report, before: list[FindingInfo], after: list[FindingInfo], *budgets: str) -> Checked:
    had, has = (dataclasses.replace(report, findings=tuple(found)) for found in (before, after))
    known = Baseline(Path("b.json"), (snapshot_of(had, "step"),))
    return check_report(has, "step", [parse_budget(text) for text in budgets], known)


def explained_lines(checked: Checked) -> list[str]:
    return [line.partition(":")[2].partition(";")[0].strip() for line in details(checked) if "; try: a remedy" in line]


def test_a_failure_is_explained_by_what_is_new_and_not_by_others_of_its_rule(report: Report) -> None:
    old, new = said("HLO102", "error", 11), said("HLO102", "error", 22, "loss")
    checked = compared(report, [old], [old, new], "findings.error+0")
    assert (checked.status(), explained_lines(checked)) == ("failed", ["message 22"])
    (broken,) = checked.broken
    assert budget_place(broken, checked, Path.cwd()) == Place("train.py", 22)


def test_a_finding_that_became_worse_explains_a_failure(report: Report) -> None:
    before = [said("HLO101", "error", 11), said("HLO102", "warning", 22)]
    checked = compared(report, before, [before[0], said("HLO102", "error", 23)], "findings.error+0")
    assert (checked.status(), explained_lines(checked)) == ("failed", ["message 23"])
    assert budget_place(checked.broken[0], checked, Path.cwd()) == Place("train.py", 23)


def test_a_limit_is_explained_by_what_it_counts_also_where_something_else_is_new(report: Report) -> None:
    old, other, both = said("HLO102", "error", 11), said("HLO105", "warning", 22), said("HLO103", "error", 33)
    checked = compared(report, [old], [old, other], "findings.error=0")
    assert explained_lines(checked) == ["message 22", "message 11"]
    checked = compared(report, [old], [old, other, both], "findings.error=0")
    assert explained_lines(checked) == ["message 33", "message 22", "message 11"]  # what the limit counts comes first


def test_what_is_left_out_of_an_explanation_is_counted(report: Report) -> None:
    old = [said("HLO102", "error", number, f"f{number}") for number in range(5)]
    new = [said("HLO103", "error", number, f"f{number}") for number in range(10, 15)]
    checked = compared(report, old, [*old, *new], "findings.error=0")
    assert explained_lines(checked) == [f"message {number}" for number in (10, 11, 12, 0, 1, 2)]
    assert "and 4 more" in details(checked)


def test_a_broken_tolerance_points_at_what_it_counts(report: Report) -> None:
    new = [said("HLO101", "info", 11), said("HLO102", "warning", 22), said("HLO105", "error", 33)]
    checked = compared(report, [], new, "findings.error+0", "findings.warning+0", "findings.HLO101+0")
    places = [budget_place(broken, checked, Path.cwd()).line for broken in checked.broken]
    assert places == [33, 22, 11]


def test_names_of_what_was_lost_distinguish_findings_without_transfers(report: Report) -> None:
    def lost(*names: str) -> Snapshot:
        found = tuple(
            FindingInfo("HLO309", "a", "error", "m", "r", None, None, None, {"names": [name]}) for name in names
        )
        return snapshot_of(dataclasses.replace(report, findings=found), "step")

    changes = finding_changes(lost("hid", "q").findings, lost("hid", "k").findings)
    assert [(change.kind, finding_tensors_text(change.group)) for change in changes] == [(CAME, "k"), (WENT, "q")]


# ---- baselines that older versions wrote


def test_a_baseline_without_tensors_is_compared_by_rule_and_place(tmp_path: Path) -> None:
    path = tmp_path / "baseline.json"
    options = ("--target", "gb200", "--as", "step", "--baseline", path)
    assert check(SCAN, *options, "--update-baseline").exit_code == 0
    data = json.loads(path.read_text(encoding="utf-8"))
    findings = data["entries"][0]["findings"]
    assert findings
    for finding in findings:
        del finding["subjects"]
    path.write_text(json.dumps(data), encoding="utf-8")
    assert all(finding.subjects is None for finding in load_baseline(path).entries[0].findings)
    result = check(SCAN, *options, "--budget", "findings+0")
    assert (result.exit_code, len(result.stdout.splitlines())) == (0, 1)
    del findings[0]
    path.write_text(json.dumps(data), encoding="utf-8")
    assert check(SCAN, *options, "--budget", "findings+0").exit_code == 1


def test_the_tensors_of_a_finding_are_recorded_by_name_and_shape(snapshot: Snapshot) -> None:
    with_tensors = [finding for finding in snapshot.findings if any(s.array for s in finding.subjects or ())]
    assert with_tensors
    arrays = {f"{g.dtype}[{','.join(map(str, g.shape))}]" for g in snapshot.transfers}
    for finding in with_tensors:
        assert {subject.array for subject in finding.subjects or ()} <= arrays
        assert {subject.file for subject in finding.subjects or ()} <= {g.file for g in snapshot.transfers}
