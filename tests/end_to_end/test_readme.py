"""What README and docs show is what works: every command in them is run."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

import dev
from tests.support.commands import run_inside
from tests.support.places import ROOT

DOCUMENTS = ["README.md", *sorted(str(path.relative_to(ROOT)) for path in (ROOT / "docs").glob("**/*.md"))]
BLOCK = re.compile(r"^```(console|sh)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
# In a `console` block a command stands behind a dollar; `# exit 1` behind it says that it is meant to end so.
EXIT = re.compile(r"\s+# exit (\d)\b.*$")


@dataclass(frozen=True)
class Shown:
    document: str
    command: str
    exit_code: int
    slow: bool


def shown() -> Iterator[Shown]:
    """The commands in all documents, in order. What follows a slow one may use its result, and so is slow too."""
    for document in DOCUMENTS:
        slow = False
        for kind, block in BLOCK.findall((ROOT / document).read_text()):
            for line in block.replace("\\\n", " ").splitlines():
                if kind == "console" and not line.startswith("$ "):
                    continue
                command = line.removeprefix("$ ").strip()
                if not command or command.startswith("#"):
                    continue
                match = EXIT.search(command)
                slow = slow or ".py:" in command or command.startswith("python3 dev.py")
                yield Shown(document, EXIT.sub("", command), int(match[1]) if match else 0, slow)


SHOWN = list(shown())


@pytest.fixture(scope="module")
def workplaces(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """For each document a folder like a clone's root, with ``hloinspect`` on the PATH, to run its commands in."""
    bin_folder = tmp_path_factory.mktemp("bin")
    script = bin_folder / "hloinspect"
    script.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m hloinspect "$@"\n')
    script.chmod(0o755)
    places = {"bin": bin_folder}
    for document in DOCUMENTS:
        place = tmp_path_factory.mktemp("clone")
        for name in ("examples", "fixtures", "docs"):
            (place / name).symlink_to(ROOT / name)
        places[document] = place
    return places


def parameters() -> list[object]:
    """All but ``dev.py test``, which is this very run."""
    return [
        pytest.param(case, id=f"{case.document}: {case.command}", marks=[pytest.mark.slow] if case.slow else [])
        for case in SHOWN
        if case.command != "python3 dev.py test"
    ]


@pytest.mark.parametrize("case", parameters())
def test_every_command_shown_works(case: Shown, workplaces: dict[str, Path]):
    if case.slow and importlib.util.find_spec("jax") is None:
        pytest.skip("compiling needs jax: pip install 'hloinspect[cuda]'")
    # dev.py would make its environments first; the command that it then runs is what counts here.
    demo = case.command == "python3 dev.py demo"
    command = shlex.join(["hloinspect", *dev.MAIN_JOB]) if demo else case.command
    done = run_shown(command, case, workplaces)
    assert done.returncode == case.exit_code, done.stderr
    assert done.stdout
    if demo and f"by jax {importlib.metadata.version('jax')} " in demo_output():
        assert done.stdout.rstrip() == demo_output()


def run_shown(command: str, case: Shown, workplaces: dict[str, Path]) -> subprocess.CompletedProcess[str]:
    """Run a command as a shell does if the README shows it; those of the docs need no process of their own."""
    words = shlex.split(command)
    if case.document != "README.md" and words[0] == "hloinspect" and not set(command) & set("|<>;&$*~"):
        return run_inside(*words[1:], cwd=workplaces[case.document])
    return subprocess.run(
        ["bash", "-c", command],
        cwd=workplaces[case.document],
        env={
            **os.environ,
            "PATH": f"{workplaces['bin']}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT),
        },
        capture_output=True,
        text=True,
        check=False,
    )


def demo_output() -> str:
    """What the README says that the demo prints."""
    shown_there = re.search(r"<!-- demo-output -->\n```text\n(.*?)\n```\n", (ROOT / "README.md").read_text(), re.DOTALL)
    assert shown_there is not None
    return shown_there[1]


def test_the_readme_shows_the_two_set_up_commands_and_the_main_job():
    commands = [case.command for case in SHOWN if case.document == "README.md"]
    assert commands[:2] == ["python3 dev.py demo", "python3 dev.py test"]
    assert shlex.join(["hloinspect", *dev.MAIN_JOB]) in commands


def test_ci_runs_the_readmes_commands_with_a_browser_and_no_other_set_up():
    script = (ROOT / ".ci" / "run").read_text()
    lines = [line for line in script.splitlines() if line and not line.startswith("#")]
    assert lines[0] == "set -euo pipefail"
    assert lines[-4] == "export HLOINSPECT_REQUIRE_BROWSER=1"
    assert lines[-3:] == ["python3 dev.py test", "python3 dev.py lint", "python3 dev.py demo"]
    assert script.count(" install ") == 1
    assert "--no-install-recommends chromium\n" in script
    assert os.access(ROOT / ".ci" / "run", os.X_OK)


def test_the_example_target_files_in_the_docs_are_valid(tmp_path: Path):
    from hloinspect.hardware import load_target

    text = (ROOT / "docs" / "targets.md").read_text()
    fragment, example, differing = re.findall(r"^```toml\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    path = tmp_path / "example.toml"
    path.write_text(f'base = "h100"\n{fragment}')
    link = load_target(str(path)).link
    assert link is not None
    assert (link.d2h_duplex.value, link.h2d_duplex.value) == (0.63, 0.95)
    path.write_text(example)
    target = load_target(str(path))
    assert target.name == "our-gb200"
    assert target.link is not None
    assert target.link.d2h_bytes_per_s.source == "nvbandwidth on our cluster, all GPUs copying"
    path.write_text(f'base = "gb300"\n{differing}')
    peak = load_target(str(path)).peak_flops["bf16"]
    assert (peak.low, peak.value, peak.high, peak.announced) == (4e15, 4e15, 8.75e15, True)
