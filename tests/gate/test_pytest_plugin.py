"""The pytest plugin as a project uses it: in a separate pytest process."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from hloinspect.gate.baseline import load_baseline
from tests.support.gate_samples import FIXTURES, ROOT
from tests.support.places import CASES

TESTS = """
import pytest

@pytest.mark.hloinspect(target="gb200")
def test_within(hloinspect):
    checked = hloinspect.check("modules/save.hlo.gz", budget="stall=2%")
    assert checked.report.target.name == "gb200"

@pytest.mark.hloinspect(target="gb200", budget=["stall=99%", "stall=1%"])
def test_over(hloinspect):
    hloinspect.check("modules/optimizer.hlo.gz")

def test_unknown(hloinspect):
    hloinspect.check("modules/optimizer.hlo.gz", budget="stall=99%")

def test_no_such_file(hloinspect):
    hloinspect.check("modules/gone.hlo", target="gb200", budget="stall=99%")

@pytest.mark.hloinspect(target="h100")
class TestMarkers:
    @pytest.mark.hloinspect(target="gb200")
    def test_the_nearest_marker_counts(self, hloinspect):
        report = hloinspect.inspect("modules/optimizer.hlo.gz")
        assert report.target.name == "gb200"
        assert len(list(report)) == len(report.transfers) + len(report.findings)

    @pytest.mark.hloinspect("gb200")
    def test_a_faulty_marker(self, hloinspect):
        pass
"""

BASELINE_TESTS = """
import pytest

@pytest.mark.hloinspect(target="gb200", baseline="baselines/offload.json")
@pytest.mark.parametrize("name", ["optimizer", "save"])
def test_no_worse(hloinspect, name):
    hloinspect.check(f"modules/{name}.hlo.gz")

@pytest.mark.hloinspect(target="gb200")
def test_by_option(hloinspect):
    hloinspect.check("modules/save.hlo.gz", budget="lost=0", name="by option")
"""


WRONG_TESTS = """
import pytest

@pytest.mark.hloinspect(target="gb200", baseline="wrong.json", budget="stall=99%")
def test_wrong(hloinspect):
    hloinspect.check("modules/wrong.hlo.pb.xz")
"""


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("project")
    (home / "modules").mkdir()
    for name in ("optimizer", "save"):
        shutil.copy(FIXTURES / f"gb200_{name}" / "module.hlo.txt.gz", home / "modules" / f"{name}.hlo.gz")
    (home / "pytest.ini").write_text("[pytest]\naddopts = --strict-markers\n", encoding="utf-8")
    (home / "test_steps.py").write_text(TESTS, encoding="utf-8")
    shutil.copy(CASES / "pipelined_wrong_offsets_jax0.10.1.hlo.pb.xz", home / "modules" / "wrong.hlo.pb.xz")
    (home / "test_wrong.py").write_text(WRONG_TESTS, encoding="utf-8")
    (home / "test_baseline.py").write_text(BASELINE_TESTS, encoding="utf-8")
    return home


def run_pytest(
    home: Path, *arguments: str, plugins: tuple[str, ...] = ("hloinspect.pytest_plugin",), **environment: str
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *(f"-p{name}" for name in plugins), *arguments],
        cwd=home,
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", **environment},
        capture_output=True,
        text=True,
        check=False,
    )


def test_a_test_passes_fails_or_stays_undecided_as_the_command_does(project: Path) -> None:
    done = run_pytest(project, "test_steps.py", "-q", "-rA")
    assert done.returncode == 1
    outcomes = {
        line.split("::", 1)[1].partition(" ")[0]: line.split()[0] for line in done.stdout.splitlines() if "::" in line
    }
    assert outcomes == {
        "test_within": "PASSED",
        "test_over": "FAILED",
        "test_unknown": "FAILED",
        "test_no_such_file": "FAILED",
        "TestMarkers::test_the_nearest_marker_counts": "PASSED",
        "TestMarkers::test_a_faulty_marker": "ERROR",
    }
    said = done.stdout
    assert "modules/optimizer.hlo.gz (1 x gb200): stall=1%  predicted" in said
    assert "of at most" in said
    assert "dense.py:" in said
    assert "look closer: hloinspect inspect" in said
    assert "no target was given" in said
    assert "gone.hlo: no such file" in said
    assert "knows target, link, devices" in said
    assert "Traceback" not in said
    assert "internal" not in said.lower()


def test_wrong_values_fail_and_are_neither_within_a_budget_nor_a_baseline(project: Path) -> None:
    done = run_pytest(project, "test_wrong.py", "-q", "--hloinspect-update-baseline")
    assert (done.returncode, (project / "wrong.json").exists()) == (1, False)
    assert "was not changed" in done.stdout
    assert "HLO301 (wrong values): XLA copies other bytes" in done.stdout
    assert "if this is meant" not in done.stdout


def test_a_pass_says_what_was_not_looked_for(project: Path) -> None:
    (project / "test_left_out.py").write_text(
        "from hloinspect.rules.choice import Choice\n"
        "def test_left_out(hloinspect):\n"
        "    without = Choice(ignore=('HLO301',))\n"
        "    hloinspect.check('modules/wrong.hlo.pb.xz', target='gb200', budget='stall=99%', rules=without)\n"
        "def test_nothing_left_out(hloinspect):\n"
        "    hloinspect.check('modules/save.hlo.gz', target='gb200', budget='stall=99%')\n",
        encoding="utf-8",
    )
    note = "HLO301 (wrong values) was not looked for: ignore = HLO301"
    for options in (["-q"], ["-q", "-W", "error"], ["-v"]):
        done = run_pytest(project, "test_left_out.py", *options, "--junitxml=found.xml")
        assert done.returncode == 0, done.stdout
        assert [line for line in done.stdout.splitlines() if "HLO" in line] == [
            f"test_left_out.py::test_left_out: {note}"
        ]
    assert f'<property name="hloinspect" value="{note}"' in (project / "found.xml").read_text(encoding="utf-8")


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("xdist") is None, reason="pytest-xdist is not installed")
def test_the_rules_are_those_of_the_project_unless_the_test_names_others(project: Path) -> None:
    (project / "test_rules.py").write_text(
        "from hloinspect.rules.choice import Choice\n"
        "def test_project(hloinspect):\n"
        "    hloinspect.check('modules/wrong.hlo.pb.xz', target='gb200', budget='stall=99%')\n"
        "    assert not [f for f in hloinspect.inspect('modules/wrong.hlo.pb.xz').findings if f.code == 'HLO301']\n"
        "def test_own(hloinspect):\n"
        "    hloinspect.check('modules/wrong.hlo.pb.xz', target='gb200', budget='stall=99%', rules=Choice())\n",
        encoding="utf-8",
    )
    file = project / "pyproject.toml"
    file.write_text('[tool.hloinspect]\nignore = ["HLO301"]\n', encoding="utf-8")
    done = run_pytest(project, "test_rules.py", "-q", "-rA")
    file.write_text('[tool.hloinspect]\nignore = ["HLO999"]\n', encoding="utf-8")
    faulty = run_pytest(project, "test_rules.py", "-q", "-k", "project")
    file.unlink()
    assert "PASSED test_rules.py::test_project" in done.stdout
    assert "test_project: HLO301 (wrong values) was not looked for: ignore = HLO301" in done.stdout
    assert "FAILED test_rules.py::test_own" in done.stdout
    assert "HLO999" in faulty.stdout
    assert "Traceback" not in faulty.stdout


def test_workers_hand_on_what_was_not_looked_for(project: Path) -> None:
    test_a_pass_says_what_was_not_looked_for(project)
    done = run_pytest(project, "test_left_out.py", "-q", "-n2", plugins=("hloinspect.pytest_plugin", "xdist"))
    assert (done.returncode, done.stdout.count("was not looked for: ignore = HLO301")) == (0, 1)


def test_two_projects_do_not_replace_each_others_entry(tmp_path: Path) -> None:
    """Use names that no user gave: the name is the path from the root directory."""
    test = """
def test_it(hloinspect):
    hloinspect.check("step.hlo.gz", target="gb200", baseline="../b.json", budget="stall=99%")
"""
    said = []
    for name in "ab":
        home = tmp_path / name
        home.mkdir()
        shutil.copy(FIXTURES / "gb200_save" / "module.hlo.txt.gz", home / "step.hlo.gz")
        (home / "pytest.ini").write_text("[pytest]\n", encoding="utf-8")
        (home / "test_it.py").write_text(test, encoding="utf-8")
        done = run_pytest(home, "-q", "--hloinspect-update-baseline")
        said.append((done.returncode, "is that of a/step.hlo.gz, and this is b/step.hlo.gz" in done.stdout))
    assert said == [(0, False), (1, True)]
    assert [(entry.step, entry.origin) for entry in load_baseline(tmp_path / "b.json").entries] == [
        ("step.hlo.gz", "a/step.hlo.gz")
    ]


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("xdist") is None, reason="pytest-xdist is not installed")
def test_a_baseline_is_recorded_by_several_workers_and_then_held(project: Path) -> None:
    arguments = ("test_baseline.py", "-q", "--hloinspect-baseline", "own.json")
    parallel = ("hloinspect.pytest_plugin", "xdist")
    done = run_pytest(project, *arguments, "-n2", "--hloinspect-update-baseline", plugins=parallel)
    assert done.returncode == 0, done.stdout
    entries = load_baseline(project / "baselines" / "offload.json").entries
    assert [entry.step for entry in entries] == ["modules/optimizer.hlo.gz", "modules/save.hlo.gz"]
    assert [entry.step for entry in load_baseline(project / "own.json").entries] == ["by option"]
    shutil.copy(project / "modules" / "save.hlo.gz", project / "modules" / "optimizer.hlo.gz")
    lost = run_pytest(project, *arguments)
    assert (lost.returncode, "1 failed, 2 passed" in lost.stdout) == (1, True)
    assert "lost=0" in lost.stdout
    assert "if this is meant: pytest --hloinspect-update-baseline" in lost.stdout


def test_the_plugin_imports_nothing_that_no_test_needs(tmp_path: Path) -> None:
    (tmp_path / "test_other.py").write_text(
        "import sys\n"
        "def test_other():\n"
        "    ours = sorted(name for name in sys.modules if name.partition('.')[0] == 'hloinspect')\n"
        "    assert ours == ['hloinspect', 'hloinspect._version', 'hloinspect.pytest_plugin']\n"
        "    assert not {'jax', 'numpy', 'google.protobuf', 'click'} & sys.modules.keys()\n",
        encoding="utf-8",
    )
    done = run_pytest(tmp_path, "-q")
    assert done.returncode == 0, done.stdout


def test_the_package_names_the_plugin_for_pytest() -> None:
    import tomllib

    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["entry-points"]["pytest11"] == {"hloinspect": "hloinspect.pytest_plugin"}
