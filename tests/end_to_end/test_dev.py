"""dev.py: finds a Python that really runs, makes environments once, and says what is wrong."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest

import dev
from tests.support.places import ROOT

OWN = f"{sys.version_info[0]}.{sys.version_info[1]}.{sys.version_info[2]}"


def executable(path: Path, script: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return path


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project of one empty module and no dependencies: its environments are real, quick to make and need no index."""
    (tmp_path / "pyproject.toml").write_text(PYPROJECT)
    (tmp_path / "backend.py").write_text(BACKEND)
    monkeypatch.setattr(dev, "ROOT", tmp_path)
    return tmp_path


PYPROJECT = """
[build-system]
requires = []
build-backend = "backend"
backend-path = ["."]
[project]
name = "tiny"
version = "1"
"""

# The least that pip needs of a build back end for an editable install: a wheel with metadata, and here two extras.
BACKEND = """
import zipfile
def build_editable(folder, config_settings=None, metadata_directory=None):
    name = "tiny-1-py3-none-any.whl"
    with zipfile.ZipFile(folder + "/" + name, "w") as wheel:
        wheel.writestr("tiny.py", "")
        info = "Metadata-Version: 2.1\\nName: tiny\\nVersion: 1\\nProvides-Extra: cuda\\nProvides-Extra: dev\\n"
        wheel.writestr("tiny-1.dist-info/METADATA", info)
        wheel.writestr("tiny-1.dist-info/WHEEL", "Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n")
        wheel.writestr("tiny-1.dist-info/RECORD", "")
    return name
"""


def make(extras: list[str]) -> Path:
    return dev.environment(".venv", sys.executable, OWN, extras)


def test_an_old_python_can_parse_it_and_is_told_what_is_missing():
    source = (ROOT / "dev.py").read_text()
    tree = ast.parse(source, feature_version=(3, 6))
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module == "__future__"]
    assert not imports
    # Run its head as the oldest Python would: nothing but imports stands before the check.
    head = source[: source.index("ROOT =")].replace("sys.version_info < (3, 11)", "(3, 6) < (3, 11)")
    done = subprocess.run([sys.executable, "-c", head], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.startswith("dev.py: needs Python 3.11 or newer; this is Python ")


def test_only_the_standard_library_is_imported():
    tree = ast.parse((ROOT / "dev.py").read_text())
    names = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    names |= {str(node.module) for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert {name.partition(".")[0] for name in names} <= sys.stdlib_module_names


def test_a_python_that_refuses_to_run_is_passed_over(tmp_path: Path):
    assert dev.version_of(sys.executable) == OWN
    assert dev.version_of(str(executable(tmp_path / "shim", "echo 'pyenv: command not found' >&2; exit 127"))) == ""
    assert dev.version_of(str(tmp_path / "absent")) == ""
    plain = tmp_path / "plain"
    plain.write_text("not a program")
    assert dev.version_of(str(plain)) == ""


def test_the_newest_python_that_works_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    executable(tmp_path / "path1" / "python3.14", "exit 127")
    executable(tmp_path / "path1" / "python3.13", "exit 127")
    good = executable(tmp_path / "path2" / "python3.13", "echo 3.13.9")
    executable(tmp_path / "home" / ".pyenv" / "versions" / "3.12.4" / "bin" / "python3.12", "echo 3.12.4")
    monkeypatch.setenv("PATH", f"{tmp_path / 'path1'}:{tmp_path / 'path2'}")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setattr(sys, "executable", str(tmp_path / "none"))
    assert dev.newest_python() == (str(good), "3.13.9")
    good.unlink()
    assert dev.newest_python()[1] == "3.12.4"


def test_without_any_python_it_says_what_it_looked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(sys, "executable", str(tmp_path / "none"))
    with pytest.raises(SystemExit, match=r"no Python from 3\.11 to 3\.14 found"):
        dev.newest_python()


@pytest.mark.slow
def test_an_environment_is_made_once_completed_and_made_anew(project: Path, capfd: pytest.CaptureFixture[str]):
    inside = make(["cuda"])
    assert inside == project / ".venv" / "bin" / "python"
    assert subprocess.run([inside, "-c", "import tiny"], check=False).returncode == 0
    assert "making .venv with Python" in capfd.readouterr().err

    make(["cuda"])
    assert capfd.readouterr().err == f"dev.py: using .venv (Python {OWN})\n"

    mine = project / ".venv" / "mine"
    mine.touch()
    make(["dev"])
    assert capfd.readouterr().err == "dev.py: installing hloinspect[cuda,dev] into .venv\n"
    make(["cuda"])
    assert capfd.readouterr().err == f"dev.py: using .venv (Python {OWN})\n"
    assert mine.exists()

    (project / "pyproject.toml").write_text(PYPROJECT + "# changed\n")
    make(["cuda"])
    assert "making .venv with Python" in capfd.readouterr().err
    assert not mine.exists()


@pytest.mark.slow
def test_a_failed_installation_shows_pips_error_and_is_not_taken_for_done(
    project: Path, capfd: pytest.CaptureFixture[str]
):
    (project / "backend.py").write_text("raise SystemExit('the back end is broken')\n")
    with pytest.raises(SystemExit, match=r"dev\.py: failed \(exit code 1\): .* -m pip install"):
        make(["cuda"])
    assert "the back end is broken" in capfd.readouterr().err
    (project / "backend.py").write_text(BACKEND)
    make(["cuda"])
    assert "installing hloinspect[cuda] into .venv" in capfd.readouterr().err


def test_an_environment_of_the_users_own_is_left_alone(project: Path):
    (project / ".venv").mkdir()
    (project / ".venv" / "precious").touch()
    with pytest.raises(SystemExit, match=r"\.venv exists and was not made by dev\.py"):
        make(["cuda"])
    assert (project / ".venv" / "precious").exists()


def fake_environment(project: Path, folder: str, python: str, version: str) -> Path:
    """An environment that is finished as far as dev.py knows, whose programs write down how they are called."""
    import hashlib
    import os

    home = project / folder
    note = f'[ "$2" = compileall ] && exit; echo "{folder} $@" >> {project}/calls; exit $(cat {home}/code)'
    inside = executable(home / "bin" / "python", note)
    executable(home / "bin" / "hloinspect", f'echo "hloinspect $@" >> {project}/calls')
    (home / "code").write_text("0")
    pyproject = hashlib.sha256((project / "pyproject.toml").read_bytes()).hexdigest()
    made = {"python": version, "from": os.path.realpath(python), "pyproject": pyproject}
    (home / dev.STAMP).write_text(json.dumps({"made": made, "extras": ["cuda", "dev", "maxtext"]}))
    return inside


@pytest.fixture
def two_pythons(project: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A newest Python beside the one that runs this; both environments are made already."""
    newer = executable(project / "bin" / "python3.14", "echo 3.14.1")
    monkeypatch.setattr(dev, "newest_python", lambda: (str(newer), "3.14.1"))
    fake_environment(project, ".venv", str(newer), "3.14.1")
    fake_environment(project, f".venv-py3.{sys.version_info[1]}", sys.executable, OWN)
    return project


@pytest.mark.skipif(sys.version_info[1] == 14, reason="needs another Python than the newest")
@pytest.mark.parametrize("broken", [None, "first", "second"])
def test_tests_run_on_both_pythons_and_one_failure_is_enough(two_pythons: Path, broken: str | None):
    second = f".venv-py3.{sys.version_info[1]}"
    if broken is not None:
        (two_pythons / (".venv" if broken == "first" else second) / "code").write_text("1")
    assert dev.main(["test", "-k", "x"]) == (0 if broken is None else 1)
    together = " ".join(dev.SHARED_OUT)
    expected = f".venv -m pytest {together} -k x\n{second} -m pytest {together} -m not slow or smoke -k x\n"
    assert (two_pythons / "calls").read_text() == expected


def test_a_thorough_run_takes_every_environment_and_writes_down_its_counts(
    two_pythons: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(dev, "THOROUGH", two_pythons / "thorough.md")
    monkeypatch.setattr(dev, "OTHER_JAX", ["0.9.2"])
    fake_environment(two_pythons, ".venv-jax0.9.2", str(two_pythons / "bin" / "python3.14"), "3.14.1")
    (two_pythons / "results.xml").write_text(RESULTS)
    every = [".venv", f".venv-py3.{sys.version_info[1]}", ".venv-jax0.9.2"][:: 2 if sys.version_info[1] == 14 else 1]
    for folder in every:
        script = f"""case "$*" in
            *compileall*) ;;
            *"m.version('jax')"*) echo 0.9.2;;
            *pytest*) echo "{folder} $HLOINSPECT_THOROUGH" >> calls; cp results.xml {folder}/thorough.xml;;
        esac"""
        executable(two_pythons / folder / "bin" / "python", script)
    assert dev.main(["test", "--thorough"]) == 0
    many = [f"{folder} {number}" for folder, number in zip(every, "100", strict=False)]
    assert (two_pythons / "calls").read_text().splitlines() == many
    written = (two_pythons / "thorough.md").read_text()
    assert written.count("| 0.9.2 | 7 | 2 | 1 | 21,000 | 0 min | unknown |\n") == len(every)


RESULTS = """<?xml version="1.0"?>
<testsuites><testsuite name="pytest" errors="0" failures="1" skipped="2" tests="10">
<testcase name="a"><properties><property name="hypothesis_examples" value="20000"/></properties></testcase>
<testcase name="b"><properties><property name="hypothesis_examples" value="1000"/></properties></testcase>
</testsuite></testsuites>
"""


def test_demo_runs_the_main_job_and_passes_options_on(two_pythons: Path):
    assert dev.main(["demo", "--link", "100GB/s"]) == 0
    job = "inspect examples/dense.py:offload_scan --target gb200 --link 100GB/s"
    assert (two_pythons / "calls").read_text() == f"hloinspect {job}\n"


def test_lint_runs_all_checks_even_if_the_first_fails(two_pythons: Path):
    (two_pythons / ".venv" / "code").write_text("1")
    assert dev.main(["lint"]) == 1
    calls = (two_pythons / "calls").read_text().splitlines()
    assert calls == [".venv -m ruff check .", ".venv -m ruff format --check .", ".venv -m mypy", calls[3]]
    assert "importlinter" in calls[3]


def test_wrong_use_shows_the_usage(capsys: pytest.CaptureFixture[str]):
    assert dev.main([]) == 2
    assert dev.main(["nonsense"]) == 2
    assert "usage: python3 dev.py demo" in capsys.readouterr().err
    assert dev.main(["--help"]) == 0
    assert "usage: python3 dev.py demo" in capsys.readouterr().out
