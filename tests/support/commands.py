"""The command without a process of its own, for tests of what it says."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Mapping
from pathlib import Path

from click.testing import CliRunner

from hloinspect.cli import main


def run_inside(
    *arguments: str, env: Mapping[str, str] | None = None, cwd: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """Return what the command ends with and says, run in this process. Its start, its signals, its pipes and its
    imports are those of the tests: what is about them needs a process."""
    with contextlib.chdir(cwd or os.getcwd()):
        result = CliRunner().invoke(main, list(arguments), env=dict(env or {}))
    return subprocess.CompletedProcess(["hloinspect", *arguments], result.exit_code, result.stdout, result.stderr)
