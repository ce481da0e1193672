"""What all tests share: the corpus where it is, and the command as a user runs it."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import hypothesis
import pytest

from tests.support.places import ROOT

# Wall time is no property of the code: the machine may be busy.
hypothesis.settings.register_profile("hloinspect", deadline=None)
hypothesis.settings.load_profile("hloinspect")


def pytest_configure(config: pytest.Config) -> None:
    """Commands keep what they compile in a folder of this run, so that a step that several documents show is compiled
    once. Workers inherit it. Tests that test compiling call ``compile_step``, which keeps nothing unless it is told
    to."""
    if not hasattr(config, "workerinput"):
        folder = tempfile.TemporaryDirectory(prefix="hloinspect-tests-")
        config.add_cleanup(folder.cleanup)
        os.environ["HLOINSPECT_CACHE"] = folder.name


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
    """Run the command in a process of its own: ``hloinspect("targets", "gb200")`` returns code, stdout and stderr."""

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
