"""The child process of a compilation: how it is started, what is read from it, and what to say when it dies."""

from __future__ import annotations

import contextlib
import os
import queue
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from hloinspect.compile.environment import FOR_EVERY_CHILD, FOR_TPUS, LIBTPU_ARGUMENTS
from hloinspect.compile.flags import VARIABLE
from hloinspect.compile.protocol import Compiled, Done, Failed, Message, Refused, Request, read_message, send

_DETAIL_CHARS = 8000
_POLL_S = 0.2


def start_child(platform: str, log: IO[bytes]) -> subprocess.Popen[str]:
    """Start a child, which waits for its request; what it and the user's code print goes to ``log``."""
    return start_python(["-m", "hloinspect.compile.child.main"], child_environment(platform), log)


def start_python(arguments: list[str], environment: dict[str, str], log: IO[bytes]) -> subprocess.Popen[str]:
    """Start this Python with pipes for a conversation. What it prints to standard error goes to ``log``."""
    return subprocess.Popen(
        [sys.executable, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=log,
        text=True,
        encoding="utf-8",
        errors="replace",  # what a library prints before the child has taken its output over may be any bytes
        env=environment,
        start_new_session=True,  # so that what the user's code starts can be ended with it
    )


def child_environment(platform: str) -> dict[str, str]:
    """Return the environment of a child that compiles for ``platform``."""
    environment = {name: value for name, value in os.environ.items() if name != VARIABLE}
    environment |= FOR_EVERY_CHILD | (FOR_TPUS if platform == "tpu" else {})
    environment["PYTHONFAULTHANDLER"] = "1"  # an abort in XLA then says which line of Python led there
    root = Path(__file__).resolve().parents[2]
    if root.name not in ("site-packages", "dist-packages"):
        # Run from a checkout: the child must find the same package from any directory.
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, (str(root), environment.get("PYTHONPATH"))))
    return environment


def conversation(
    child: subprocess.Popen[str], request: Request, timeout_s: float, stop: threading.Event | None = None
) -> Iterator[Message]:
    """Send the request and yield the messages of the child until its last one, until it ends, or until ``stop`` is set.

    Raises TimeoutExpired where one compilation takes longer than ``timeout_s``. The pipe to the child stays open: when
    it closes, because this process has died, the child ends too.
    """
    lines: queue.Queue[str | None] = queue.Queue()
    threading.Thread(target=_read_lines, args=(child.stdout, lines), daemon=True).start()
    assert child.stdin is not None
    with contextlib.suppress(BrokenPipeError):  # it ended at once: its log says why
        send(request, child.stdin)
    deadline = time.monotonic() + timeout_s
    while stop is None or not stop.is_set():
        try:
            line = lines.get(timeout=max(0.0, min(_POLL_S, deadline - time.monotonic())))
        except queue.Empty:
            if time.monotonic() >= deadline:
                raise subprocess.TimeoutExpired(child.args, timeout_s) from None
            continue
        if line is None:
            return
        message = read_message(line)
        if message is None:
            continue
        if isinstance(message, Compiled | Refused):
            deadline = time.monotonic() + timeout_s
        yield message
        if isinstance(message, Done | Failed):
            return


def _read_lines(stream: IO[str], lines: queue.Queue[str | None]) -> None:
    for line in stream:
        lines.put(line)
    lines.put(None)


def end_child(child: subprocess.Popen[str]) -> None:
    """End the child and whatever its code has started, and close the pipes."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(child.pid, signal.SIGKILL)
    child.wait()
    for stream in (child.stdin, child.stdout):
        if stream is not None:
            with contextlib.suppress(BrokenPipeError):
                stream.close()


def tail(log: IO[bytes]) -> str:
    """Return the end of what the child has printed."""
    size = log.seek(0, os.SEEK_END)
    log.seek(max(0, size - _DETAIL_CHARS))
    return log.read().decode(errors="replace")


def silent_end(returncode: int, log: str) -> str:
    """Return what to say of a child that ended without its last message."""
    if returncode < 0:
        name = signal.Signals(-returncode).name
        how = f"the compiling process was killed by {name}" + (" (out of memory?)" if name == "SIGKILL" else "")
    else:
        how = f"the compiling process ended with code {returncode} and no result"
    return (
        how + "".join(f": {words}" for words in _last_words(log)) + "".join(f" ({where})" for where in _aborted_in(log))
    )


def _last_words(log: str) -> list[str]:
    """Return the most important line of a log, if any: XLA's fatal error (``F0822 ...] Check failed``), else a Python
    error, else libtpu's about a flag of LIBTPU_INIT_ARGS."""
    lines = [line.strip() for line in log.splitlines()]
    fatal = [line.partition("] ")[2] for line in lines if re.match(r"F\d{4} ", line)]
    errors = [line for line in lines if re.match(r"(\w+\.)*\w*(Error|Exception)\b", line)]
    of_libtpu = [f"{line[7:]} (of {LIBTPU_ARGUMENTS}?)" for line in lines if line.startswith("ERROR: ")]
    return [words[:400] for words in (fatal or errors or of_libtpu)[-1:]]


def _aborted_in(log: str) -> list[str]:
    """Return the innermost line of the user's code in the stack that Python's faulthandler printed, if it did."""
    stack = log.partition("Current thread")[2] or log.partition("most recent call first")[2]
    for file, line, function in re.findall(
        r'^  File "(.+)", line (\d+) in (.+)$', stack.partition("\n\n")[0], re.MULTILINE
    ):
        if "site-packages" not in file and not file.startswith(
            (str(Path(__file__).parent), os.path.dirname(os.__file__), "<")
        ):
            return [f"{file}:{line}, in {function}"]
    return []
