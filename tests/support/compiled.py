"""Many steps compiled by one process, for tests of what comes of the modules and not of compiling."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from hloinspect.compile.process import child_environment
from hloinspect.compile.protocol import CompileOne
from tests.support.matrix_batch import lines_of
from tests.support.places import ROOT, SUPPORT


def compile_together(requests: Sequence[CompileOne], platform: str = "gpu") -> None:
    """Compile what is requested, all for one target and as many devices, each into the folder ``out`` of its own.

    Raises AssertionError with the traceback of a step that does not compile.
    """
    done = subprocess.run(
        [sys.executable, str(SUPPORT / "matrix_batch.py")],
        input=lines_of(requests),
        text=True,
        capture_output=True,
        env={**child_environment(platform), "PYTHONPATH": str(ROOT)},
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    for request in requests:
        error = Path(request.out) / "error.txt"
        assert not error.exists(), error.read_text()[-3000:]
