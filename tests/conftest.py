"""What all tests share: the corpus where it is, and the command as a user runs it."""

from __future__ import annotations

import gc
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Generator, Iterator, Mapping
from pathlib import Path
from typing import Any

import hypothesis
import pytest

from tests.support.places import ROOT
from tests.support.thorough import is_thorough

# Wall time is no property of the code: the machine may be busy.
hypothesis.settings.register_profile("hloinspect", deadline=None)
hypothesis.settings.register_profile("thorough", deadline=None, max_examples=1000)
hypothesis.settings.load_profile("thorough" if is_thorough() else "hloinspect")

# Models of large modules are millions of objects and hold no circles: looking for some as often as Python does takes a
# sixth of the time. The command does not look at all (cli).
gc.set_threshold(50_000, 20, 50)


LONGEST_FIRST = (
    "maxtext/test_maxtext.py",
    "end_to_end/test_examples.py",
    "compile/test_programs.py",
    "plan/test_compiled.py",
    "compile/test_places.py",
    "rules/test_compiled.py",
    "end_to_end/test_readme.py",
    "compile/test_step.py",
    "end_to_end/test_matrix.py",
    "hlo/test_agreement.py",
    "compile/test_configuration.py",
    "hlo/test_print.py",
)
"""By measured time (--durations). The order of all others matters less than that they come later."""

EXAMPLES = "hypothesis_examples"
"""The property of a test's report that has the number of its examples."""


def pytest_configure(config: pytest.Config) -> None:
    """Commands keep what they compile in a folder of this run, so that a step that several documents show is compiled
    once. Workers inherit it. Tests that test compiling call ``compile_step``, which keeps nothing unless a test
    names a cache."""
    if not hasattr(config, "workerinput"):
        folder = tempfile.TemporaryDirectory(prefix="hloinspect-tests-")
        config.add_cleanup(folder.cleanup)
        os.environ["HLOINSPECT_CACHE"] = folder.name


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the files with the longest tests first, so that no worker is left alone with one of them at the end."""
    heavy = {name: rank for rank, name in enumerate(LONGEST_FIRST)}
    slow = {item.path for item in items if item.get_closest_marker("slow")}

    def rank(item: pytest.Item) -> tuple[int, bool]:
        name = item.path.relative_to(ROOT / "tests").as_posix() if item.path.is_relative_to(ROOT / "tests") else ""
        return heavy.get(name, len(heavy)), item.path not in slow

    items.sort(key=rank)


def pytest_runtest_teardown() -> None:
    """Let Python look for circles again: a command that ran in this process has stopped it, as it would soon end."""
    gc.enable()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Note in the report on how many examples a property was tried; dev.py adds them up."""
    report = yield
    statistics = getattr(item, "hypothesis_statistics", None)
    if report.when == "call" and statistics is not None:
        passed = sum(int(count) for count in re.findall(r"(\d+) passing", statistics))
        item.user_properties.append((EXAMPLES, passed))  # JUnit files have those of the report on the teardown
    return report


@pytest.fixture(scope="session")
def root() -> Path:
    """The project's root."""
    return ROOT


@pytest.fixture(scope="session")
def corpus() -> Path:
    """The folder of real modules and traces; tests that need it are skipped where it is not."""
    folder = Path(os.environ.get("HLOINSPECT_CORPUS", ROOT.parent / "shared" / "corpus"))
    if not (folder / "golden.json").is_file():
        pytest.skip("no corpus: set HLOINSPECT_CORPUS to its folder")
    return folder


@pytest.fixture(scope="session")
def hloinspect() -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run the command: ``hloinspect("targets", "gb200")`` returns code, stdout and stderr."""
    from tests.support.commands import run_inside

    return run_inside


@pytest.fixture(scope="session")
def hloinspect_process() -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run the command in a process of its own, where its start, its imports or its environment are what is tested."""

    def run(
        *arguments: str, env: Mapping[str, str] | None = None, cwd: Path | None = None
    ) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "hloinspect", *arguments],
            env={**os.environ, "PYTHONPATH": str(ROOT), **(env or {})},
            cwd=cwd,
            capture_output=True,
            text=True,
            check=False,
        )

    return run


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    """The one browser of all tests that look at pages."""
    from tests.support.browser_pages import running_browser

    with running_browser() as running:
        yield running
