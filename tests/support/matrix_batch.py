"""Compilation of many steps in one process by the code of hloinspect's child, which saves an import of jax for each.

    python tests/support/matrix_batch.py < requests.json

Standard input has requests as ``compile_step`` sends them (compile/protocol.py), a line each, all for the same target
and devices. Each leaves its files in the directory that it names, which must not exist. ``compile_step`` itself is
tested in tests/compile/test_step.py.
"""

from __future__ import annotations

import io
import os
import sys
import traceback
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from hloinspect.compile.child import main as child
from hloinspect.compile.child import message
from hloinspect.compile.protocol import CompileOne, read_request, send


def lines_of(requests: Iterable[CompileOne]) -> str:
    """Return the standard input of this program for these requests."""
    stream = io.StringIO()
    for request in requests:
        send(request, stream)
    return stream.getvalue()


def main() -> None:
    requests = [read_request(line) for line in sys.stdin]
    _prepare_once()
    for request in requests:
        assert isinstance(request, CompileOne)
        out = Path(request.out)
        out.mkdir(parents=True)
        try:
            child.serve(request, child.Job(request.compilation))
        except Exception as error:
            (out / "error.txt").write_text(traceback.format_exc())
            (out / "message.txt").write_text(message.one_line(error.with_traceback(None)))
    sys.stdout.flush()
    os._exit(0)  # as the child does: compile-only clients have crashed while the interpreter shuts down


def _prepare_once() -> None:
    """Prepare one topology for all requests. This process becomes the target once, which is never undone."""
    make_devices = child._target_devices
    made: list[list[Any]] = []

    def devices_made_once(job: child.Job) -> list[Any]:
        if not made:
            made.append(make_devices(job))
            from hloinspect.compile.child import devices  # imports jax

            become_target, became = devices.become_target, list[bool]()

            def become_target_once(*arguments: Any) -> None:
                if not became:
                    became.append(True)
                    become_target(*arguments)

            devices.become_target = become_target_once  # type: ignore[assignment]
        return made[0]

    child._target_devices = devices_made_once


if __name__ == "__main__":
    main()
