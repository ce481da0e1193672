"""The tables ``[[tool.hloinspect.step]]``: the whole gate of a project from pyproject.toml."""

from __future__ import annotations

import dataclasses
import gzip
import json
import shutil
from pathlib import Path

import pytest

from hloinspect.analyze import inspect as api
from hloinspect.errors import UsageError
from hloinspect.gate.baseline import Baseline, load_baseline, update_baseline
from hloinspect.gate.budget import parse_budget
from hloinspect.gate.config import load_gate
from hloinspect.gate.gate import check_report, name_of
from hloinspect.gate.origin import NAMED, PROGRAM, origin_of
from tests.support.gate_samples import SMALL, check
from tests.support.offload_samples import module_text

GATE = """
[tool.hloinspect]
baseline = "baselines/offload.json"
budget = ["stall=99%"]
ignore = ["HLO4"]

[[tool.hloinspect.step]]
step = "modules/optimizer.hlo.gz"
targets = ["gb200", "h100"]

[[tool.hloinspect.step]]
step = "modules/save.hlo.gz"
name = "save"
target = "gb200"
devices = 4
budget = "stall=0ms"
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    home = tmp_path / "project"
    (home / "modules").mkdir(parents=True)
    shutil.copy(SMALL, home / "modules" / "optimizer.hlo.gz")
    nothing = module_text(
        '%a = f32[8]{0} parameter(0)\nROOT %r = f32[8]{0} negate(%a), backend_config={"operation_queue_id":"0"}'
    )
    (home / "modules" / "save.hlo.gz").write_bytes(gzip.compress(nothing.encode()))
    (home / "pyproject.toml").write_text(GATE, encoding="utf-8")
    monkeypatch.chdir(home)
    return home


def test_a_check_without_arguments_is_the_projects_gate(project: Path) -> None:
    assert check().exit_code == 2  # there is no baseline yet
    assert check("--update-baseline").exit_code == 0
    result = check()
    assert result.exit_code == 0, result.output
    assert [line.split("  ")[:3] for line in result.stdout.splitlines()] == [
        ["ok", "modules/optimizer.hlo.gz (1 x gb200)", "stall=99%"],
        ["ok", "modules/optimizer.hlo.gz (1 x h100)", "stall=99%"],
        ["ok", "save (4 x gb200)", "stall=0ms"],
    ]
    entries = load_baseline(project / "baselines" / "offload.json").entries
    assert [(entry.step, entry.target, entry.devices) for entry in entries] == [
        ("modules/optimizer.hlo.gz", "gb200", 1),
        ("modules/optimizer.hlo.gz", "h100", 1),
        ("save", "gb200", 4),
    ]
    assert not any(finding.code.startswith("HLO4") for entry in entries for finding in entry.findings)


def test_it_is_the_same_from_a_folder_below(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert check("--update-baseline").exit_code == 0
    recorded = (project / "baselines" / "offload.json").read_bytes()
    (project / "src" / "deep").mkdir(parents=True)
    monkeypatch.chdir(project / "src" / "deep")
    assert check().exit_code == 0
    assert check("--update-baseline").exit_code == 0
    assert (project / "baselines" / "offload.json").read_bytes() == recorded


def test_budgets_of_the_command_line_replace_those_of_the_file(project: Path) -> None:
    check("--update-baseline")
    result = check("--budget", "lost=0")
    assert [line.split("  ")[2] for line in result.stdout.splitlines()] == ["lost=0"] * 3
    assert check("--budget", "stall=0ms").exit_code == 1


def test_the_files_budgets_and_baseline_hold_for_an_input_of_the_command_line(project: Path) -> None:
    check("--update-baseline")
    result = check("modules/optimizer.hlo.gz", "--target", "gb200")
    assert (result.exit_code, result.stdout.split("  ")[2]) == (0, "stall=99%")
    assert check("modules/optimizer.hlo.gz", "--target", "gb200", "--budget", "stall+1%").exit_code == 0


def test_options_that_belong_to_a_step_need_one(project: Path) -> None:
    result = check("--target", "h100")
    assert (result.exit_code, "stands in" in result.stderr) == (2, True)


def test_no_input_and_no_steps_is_wrong_use(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    result = check()
    assert (result.exit_code, "no INPUT was given" in result.stderr) == (2, True)


@pytest.mark.parametrize(
    ("table", "word"),
    [
        ("[tool.hloinspect]\nbudgets = []", "unknown key 'budgets'"),
        ("[tool.hloinspect]\nbudget = 3", "budget: expected one line of text or a list, found 3"),
        ('[tool.hloinspect]\nbudget = ["stall"]', "expected METRIC=LIMIT"),
        ("[tool.hloinspect]\nbaseline = 3", "baseline: expected one line of text, found 3"),
        ("[tool.hloinspect]\nstep = 3", "step: expected a list of tables, [[tool.hloinspect.step]], found 3"),
        (
            "[tool.hloinspect.step]\nstep = 'x'",
            "[[tool.hloinspect.step]], found {'step': 'x'}",
        ),
        ("[[tool.hloinspect.step]]\ntarget = 'x'", "step[0].step is missing"),
        ("[[tool.hloinspect.step]]\nstep = 'x'\ntarget = 3", "step[0].target: expected one line of text, found 3"),
        ("[[tool.hloinspect.step]]\nstep = 'x'\ntargets = 'h100'", "step[0].targets: expected a list, found 'h100'"),
        ("[[tool.hloinspect.step]]\nstep = 'x'\ntarget = 'a'\ntargets = ['b']", "both target and targets"),
        (
            "[[tool.hloinspect.step]]\nstep = 'x'\ndevices = 0",
            "devices: expected a whole number from 1 to 10,000,000, found 0",
        ),
        (
            "[[tool.hloinspect.step]]\nstep = 'x'\ndevices = true",
            "devices: expected a whole number from 1 to 10,000,000, found true",
        ),
        ("[[tool.hloinspect.step]]\nstep = 'x'\nxla_flags = 'a'", "step[0].xla_flags: expected a list, found 'a'"),
        ("[[tool.hloinspect.step]]\nstep = 'x'\nlinks = 'a'", "step[0]: unknown key 'links': did you mean link?"),
        ("[[tool.hloinspect.step]]\nstep = 'x'\nbudget = ['stall=2']", "no unit"),
    ],
)
def test_a_faulty_gate_is_one_line_with_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, table: str, word: str
) -> None:
    (tmp_path / "pyproject.toml").write_text(table, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    result = check()
    assert (result.exit_code, result.stderr.count("\n"), result.stdout) == (2, 1, "")
    assert word in result.stderr
    assert "pyproject.toml" in result.stderr


def test_steps_are_found_from_the_file_and_modules_of_python_stay_as_they_are(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text(
        "[[tool.hloinspect.step]]\nstep = 'src/train.py:step'\n[[tool.hloinspect.step]]\nstep = 'train.steps:big'\n",
        encoding="utf-8",
    )
    for folder in ("src", "docs"):
        (tmp_path / folder).mkdir()
    for folder, source in (
        (".", "src/train.py:step"),
        ("src", "train.py:step"),
        ("docs", f"{tmp_path}/src/train.py:step"),
    ):
        config = load_gate(tmp_path / folder)
        assert config is not None
        assert [(step.name, step.source) for step in config.steps] == [
            ("src/train.py:step", source),
            ("train.steps:big", "train.steps:big"),
        ]


def test_a_project_without_a_table_has_no_gate(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text("[project]\nname = 'x'\n", encoding="utf-8")
    assert load_gate(tmp_path) is None
    (tmp_path / "pyproject.toml").write_text("[tool.hloinspect]\nselect = ['HLO1']\n", encoding="utf-8")
    config = load_gate(tmp_path)
    assert config is not None
    assert config.steps == ()
    (tmp_path / "pyproject.toml").write_text("not toml", encoding="utf-8")
    with pytest.raises(UsageError, match=r"pyproject\.toml"):
        load_gate(tmp_path)


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("train.py:step", "train.py:step"),
        ("/home/me/project/src/train.py:step", "src/train.py:step"),
        ("/else/train.py:step", "train.py:step"),
        ("train.steps:big", "train.steps:big"),
        ("dumps/module.hlo", "dumps/module.hlo"),
        ("/else/dumps/module.hlo", "module.hlo"),
    ],
)
def test_the_name_of_an_input_is_the_same_on_every_machine(source: str, name: str) -> None:
    assert name_of(source, Path("/home/me/project")) == name


# ---- two steps of one name


@pytest.mark.parametrize(
    ("one", "other", "words"),
    [
        ("xla_flags = ['a=1']", "xla_flags = ['a=2']", "(xla_flags a=1; xla_flags a=2)"),
        ("topology = '2x4'", "", "(topology 2x4; no topology)"),
        ("link = '50GB/s'", "link = '60GB/s'", "(link 50GB/s; link 60GB/s)"),
        ("module = '1'", "module = '2'", "(module 1; module 2)"),
        ("pgle = 'a'", "", "(--pgle; nothing of the production run)"),
        ("", "budget = 'stall=1%'", "is there twice for h100: give one"),
    ],
)
def test_steps_that_a_baseline_would_call_the_same_are_refused_with_what_differs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, one: str, other: str, words: str
) -> None:
    head = "[[tool.hloinspect.step]]\nstep = 'no/such.hlo'\ntarget = 'h100'\nbudget = 'stall=9%'\n"
    second = head.replace("budget = 'stall=9%'\n", "") if "budget" in other else head
    (tmp_path / "pyproject.toml").write_text(f"{head}{one}\n{second}{other}\n", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    result = check("--report", f"json={tmp_path}/x.json")
    assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (2, "", 1)
    assert words in result.stderr
    assert "name = in pyproject.toml" in result.stderr
    assert "no such file" not in result.stderr


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Return two files of one name in two folders, and a working directory beside them."""
    files = [tmp_path / folder / "step.hlo.gz" for folder in ("a", "b", "deep/a")]
    for file in files:
        file.parent.mkdir(parents=True)
        shutil.copy(SMALL, file)
    (tmp_path / "project").mkdir()
    monkeypatch.chdir(tmp_path / "project")
    return files


def test_two_files_of_one_name_are_refused_with_both(elsewhere: list[Path]) -> None:
    result = check(*elsewhere[:2], "--target", "gb200", "--baseline", "b.json", "--update-baseline")
    assert (result.exit_code, result.stderr.count("\n"), Path("b.json").exists()) == (2, 1, False)
    assert f"({elsewhere[0]}; {elsewhere[1]})" in result.stderr
    assert "--as NAME" in result.stderr


def test_a_number_of_devices_that_is_the_default_is_the_same_step(elsewhere: list[Path]) -> None:
    table = f"[[tool.hloinspect.step]]\nstep = '{elsewhere[0]}'\ntarget = 'gb200'\n"
    Path("pyproject.toml").write_text(f"[tool.hloinspect]\nbaseline = 'b.json'\n{table}{table}devices = 1\n")
    result = check("--update-baseline")
    assert (result.exit_code, Path("b.json").exists()) == (2, False)
    assert "is there twice for gb200" in result.stderr


@pytest.mark.parametrize("other", [1, 2])
def test_an_update_does_not_replace_the_entry_of_another_folder(elsewhere: list[Path], other: int) -> None:
    options = ("--target", "gb200", "--baseline", "b.json")
    assert check(elsewhere[0], *options, "--update-baseline").exit_code == 0
    recorded = Path("b.json").read_bytes()
    assert str(elsewhere[0].parent.parent).encode() not in recorded
    assert check(elsewhere[0], *options, "--update-baseline").exit_code == 0
    assert Path("b.json").read_bytes() == recorded
    refused = check(elsewhere[other], *options, "--update-baseline")
    assert (refused.exit_code, refused.stderr.count("\n"), refused.stdout) == (2, 1, "")
    assert "is that of a/step.hlo.gz (folder " in refused.stderr
    assert f"this is {elsewhere[other].parent.name}/step.hlo.gz (folder " in refused.stderr
    assert "--as step.hlo.gz" in refused.stderr
    assert Path("b.json").read_bytes() == recorded
    # Another machine has the file elsewhere: the name decides what is compared.
    assert check(elsewhere[other], *options).exit_code == 0
    # Whoever gives the name says which step it is.
    assert check(elsewhere[other], *options, "--as", "other", "--update-baseline").exit_code == 0
    assert check(elsewhere[other], *options, "--as", "step.hlo.gz", "--update-baseline").exit_code == 0
    assert [entry.step for entry in load_baseline(Path("b.json")).entries] == ["other", "step.hlo.gz"]


def test_python_does_not_replace_the_entry_of_another_folder_either(elsewhere: list[Path]) -> None:
    import hloinspect

    hloinspect.check(elsewhere[0], target="gb200", baseline="b.json", update_baseline=True)
    for what in (elsewhere[1], hloinspect.inspect(str(elsewhere[1]), target="gb200")):
        with pytest.raises(UsageError, match=r"is that of a/step\.hlo\.gz .* this is b/step\.hlo\.gz"):
            hloinspect.check(what, target="gb200", baseline="b.json", update_baseline=True)
    hloinspect.check(elsewhere[1], target="gb200", baseline="b.json", update_baseline=True, name="b")
    assert [entry.step for entry in load_baseline(Path("b.json")).entries] == ["b", "step.hlo.gz"]


@pytest.mark.parametrize("name", ["", "step.hlo.gz"])
def test_files_of_one_relative_path_do_not_replace_each_other(
    elsewhere: list[Path], monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    path = elsewhere[0].parent.parent / "base.json"
    options = ("step.hlo.gz", "--target", "gb200", "--baseline", "../base.json", "--update-baseline")
    monkeypatch.chdir(elsewhere[0].parent)
    assert check(*options, *(("--as", name) if name else ())).exit_code == 0
    recorded = path.read_bytes()
    assert [entry.origin for entry in load_baseline(path).entries] == ["a/step.hlo.gz"]
    monkeypatch.chdir(elsewhere[1].parent)
    refused = check(*options)
    assert (refused.exit_code, refused.stderr.count("\n"), path.read_bytes()) == (2, 1, recorded)
    assert "is that of a/step.hlo.gz, and this is b/step.hlo.gz" in refused.stderr
    assert "this is deep/a/step.hlo.gz" in check(elsewhere[2], *options[1:]).stderr
    assert check(*options, "--as", "step.hlo.gz").exit_code == 0
    assert [entry.origin for entry in load_baseline(path).entries] == ["b/step.hlo.gz"]


def test_a_file_from_elsewhere_does_not_replace_a_relative_path_nor_a_name(elsewhere: list[Path]) -> None:
    options = ("--target", "gb200", "--baseline", "b.json", "--update-baseline")
    shutil.copy(SMALL, "step.hlo.gz")
    assert check("step.hlo.gz", *options).exit_code == 0
    refused = check(elsewhere[0], *options)
    assert refused.exit_code == 2
    assert "is that of step.hlo.gz, and this is a/step.hlo.gz (folder " in refused.stderr
    assert check(elsewhere[0], *options, "--as", "step.hlo.gz").exit_code == 0
    assert [entry.origin for entry in load_baseline(Path("b.json")).entries] == [NAMED]
    for other in ("step.hlo.gz", elsewhere[0]):
        refused = check(other, *options)
        assert (refused.exit_code, f"is that of {NAMED}, and this is " in refused.stderr) == (2, True)


def test_an_entry_without_an_origin_is_updated_and_has_one_then(elsewhere: list[Path]) -> None:
    options = ("--target", "gb200", "--baseline", "b.json", "--update-baseline")
    assert check(elsewhere[0], *options).exit_code == 0
    for change in ({"origin": None}, {}):
        data = json.loads(Path("b.json").read_text(encoding="utf-8"))
        del data["entries"][0]["origin"]
        data["entries"][0].update(change)
        Path("b.json").write_text(json.dumps(data), encoding="utf-8")
        assert check(elsewhere[1], *options).exit_code == 0
        (entry,) = load_baseline(Path("b.json")).entries
        assert (entry.origin or "").startswith("b/step.hlo.gz (folder ")


def test_steps_of_two_projects_do_not_replace_each_other(
    elsewhere: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    step = "[[tool.hloinspect.step]]\nstep = 'step.hlo.gz'\ntarget = 'gb200'\n"
    table = f"[tool.hloinspect]\nbaseline = '../b.json'\n{step}"
    codes = []
    for file in elsewhere[:2]:
        (file.parent / "pyproject.toml").write_text(table, encoding="utf-8")
        monkeypatch.chdir(file.parent)
        codes.append(check("--update-baseline").exit_code)
    assert codes == [0, 2]
    assert check("step.hlo.gz", "--target", "gb200", "--as", "other", "--update-baseline").exit_code == 0
    monkeypatch.chdir(elsewhere[0].parent)
    assert check("step.hlo.gz", "--target", "gb200", "--update-baseline").exit_code == 0  # the same step, by its name


@pytest.mark.parametrize(
    ("source", "baseline", "origin"),
    [
        ("modules/step.hlo", "b.json", "modules/step.hlo"),
        ("{home}/modules/step.hlo", "b.json", "modules/step.hlo"),
        ("train.py:step", "ci/b.json", "../train.py:step"),
        ("{home}/train.py:step", "ci/b.json", "../train.py:step"),
        ("../project/train.py:step", "./ci/../b.json", "train.py:step"),
        ("train.steps:big", "b.json", "train.steps:big"),
        ("gs://bucket/run", "b.json", "gs://bucket/run"),
    ],
)
def test_the_origin_within_a_project_is_the_same_on_every_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str, baseline: str, origin: str
) -> None:
    for machine in ("one", "two"):
        home = tmp_path / machine / "project"
        home.mkdir(parents=True)
        monkeypatch.chdir(home)
        for is_named in (False, True):
            assert origin_of(source.format(home=home), Path(baseline), is_named) == origin


@pytest.mark.parametrize("mark", [".git", "pyproject.toml"])
def test_the_project_is_the_repository_or_what_pyproject_is_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mark: str
) -> None:
    (tmp_path / "project" / "sub").mkdir(parents=True)
    (tmp_path / "project" / "ci").mkdir()
    monkeypatch.chdir(tmp_path / "project" / "sub")
    assert "(folder " in origin_of("../train.py:step", Path("../ci/b.json"))
    (tmp_path / "project" / mark).touch()
    assert origin_of("../train.py:step", Path("../ci/b.json")) == "../train.py:step"
    assert "(folder " in origin_of("../../train.py:step", Path("../ci/b.json"))


def test_a_path_through_a_link_is_the_same_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "project" / "run1").mkdir(parents=True)
    (tmp_path / "link").symlink_to("project")
    (tmp_path / "project" / "latest").symlink_to("run1")
    monkeypatch.chdir(tmp_path / "project")
    assert origin_of(f"{tmp_path}/link/run1/step.hlo", Path("b.json")) == "run1/step.hlo"
    assert origin_of("latest/step.hlo", Path("b.json")) == "latest/step.hlo"


def test_a_file_outside_of_the_project_is_known_by_a_digest_or_its_name(tmp_path: Path) -> None:
    baseline = tmp_path / "b.json"
    one, other = (origin_of(f"/{home}/train.py:step", baseline) for home in ("else/a", "other/a"))
    assert one.startswith("a/train.py:step (folder ")
    assert one != other
    assert {origin_of(f"/{home}/train.py:step", baseline, is_named=True) for home in ("else/a", "other/a")} == {NAMED}
    assert (origin_of(None, baseline), origin_of(None, baseline, is_named=True)) == (PROGRAM, NAMED)


def test_standard_input_is_recorded_under_a_name_or_not_at_all(tmp_path: Path) -> None:
    options = ("--target", "gb200", "--baseline", tmp_path / "b.json", "--update-baseline")
    result = check("-", *options)
    assert (result.exit_code, "--as NAME" in result.stderr) == (2, True)


def test_modules_of_one_dump_do_not_replace_each_other(tmp_path: Path) -> None:
    path = tmp_path / "b.json"
    report = api.inspect(str(SMALL), target="gb200").report
    report = dataclasses.replace(report, input=dataclasses.replace(report.input, kind="dump"))
    other = dataclasses.replace(report, module=dataclasses.replace(report.module, name="jit_other"))
    budgets = [parse_budget("count=99")]
    one, two = (check_report(each, "dump", budgets, Baseline(path), source="dump").now for each in (report, other))
    update_baseline(path, [one])
    with pytest.raises(UsageError, match=r"is that of .*, module jit_replace_one, and this is .*, module jit_other"):
        update_baseline(path, [two])
    with pytest.raises(UsageError, match=r", module jit_replace_one and .*, module jit_other would both be"):
        update_baseline(tmp_path / "new.json", [one, two])
