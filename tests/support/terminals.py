"""A pseudo terminal of a given width on which a command runs."""

from __future__ import annotations

import os
import struct
import subprocess
import sys
from collections.abc import Mapping

import pytest

from tests.support.places import ROOT


def on_terminal(*arguments: str, columns: int = 80, env: Mapping[str, str] | None = None) -> tuple[int, str]:
    """Return the exit code, and all that a terminal shows of stdout and stderr, with colours.

    Skip the test where there are no pseudo terminals.
    """
    pty = pytest.importorskip("pty")
    import fcntl
    import termios

    main, side = pty.openpty()
    fcntl.ioctl(side, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
    kept = {key: value for key, value in os.environ.items() if key not in ("NO_COLOR", "COLUMNS", "LINES")}
    process = subprocess.Popen(
        [sys.executable, "-m", "hloinspect", *arguments],
        stdin=subprocess.DEVNULL,
        stdout=side,
        stderr=side,
        env={**kept, "PYTHONPATH": str(ROOT), "TERM": "xterm", "PYTHONIOENCODING": "utf-8", **(env or {})},
    )
    os.close(side)
    shown = b""
    while True:
        try:
            part = os.read(main, 1 << 16)
        except OSError:  # Linux says so when the other side is closed
            break
        if not part:
            break
        shown += part
    os.close(main)
    return process.wait(), shown.decode("utf-8", "replace").replace("\r\n", "\n")
