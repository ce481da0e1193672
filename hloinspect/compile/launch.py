"""Runs the child process that compiles, and turns every way in which it can fail into one CompileError."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import IO, Any

from hloinspect.compile.environment import FOR_EVERY_CHILD, FOR_TPUS, LIBTPU_ARGUMENTS
from hloinspect.compile.flags import VARIABLE, aliases_of, compiler_options, flags_in, name_of_flag
from hloinspect.compile.production import request_fields, with_dnn_version
from hloinspect.compile.topology import choose_topology
from hloinspect.errors import CompileError, InputError
from hloinspect.hardware.target import Target
from hloinspect.inputs.manifest import FILES, MANIFEST, NOTE_IN_EFFECT, SCHEMA, CompileResult, load_result
from hloinspect.options import Production

_DETAIL_CHARS = 8000


def compile_step(
    step: str,
    target: Target,
    *,
    out: Path,
    devices: int | None = None,
    topology: str | None = None,
    xla_flags: Sequence[str] = (),
    production: Production | None = None,
    timeout_s: float = 1800,
    cache: Path | None = None,
    on_progress: Callable[[str], None] | None = None,
) -> CompileResult:
    """Compile ``step`` (``file.py:function`` or ``package.module:function``) for ``target`` without its hardware.

    The work is done by a child process of the running Python, so that neither jax nor the user's code is ever loaded
    here. ``out`` is created if need be; an earlier result in it is replaced, but only by a whole one. ``cache`` is a
    folder of earlier compilations (compile/cache.py), that the step is looked for in. ``production`` is what the
    production run had (compile/production.py); ``xla_flags`` win over its flags. ``on_progress`` gets short texts.

    Raises CompileError where the step cannot be compiled (``detail`` has the tail of the traceback or log),
    UsageError for a topology that makes no sense, TargetError for a target without what XLA needs, and InputError
    where ``out`` holds other files of the same names or a file of ``production`` is not what it is given as.
    """
    _check_step(step)
    return compile_request(
        {"step": step},
        target,
        out=out,
        devices=devices,
        topology=topology,
        xla_flags=xla_flags,
        production=production,
        timeout_s=timeout_s,
        cache=cache,
        on_progress=on_progress,
    )


def compile_request(
    wanted: dict[str, Any],
    target: Target,
    *,
    out: Path,
    devices: int | None = None,
    topology: str | None = None,
    xla_flags: Sequence[str] = (),
    production: Production | None = None,
    timeout_s: float = 1800,
    cache: Path | None = None,
    on_progress: Callable[[str], None] | None = None,
) -> CompileResult:
    """What ``compile_step`` does, for anything that the child can make a step of: ``wanted`` has ``step`` (its name),
    and ``maxtext`` (the words of its command line) and ``offloaded`` (``inputs/manifest.py``) where they apply."""
    out = Path(out)
    request = request_of(
        wanted,
        target,
        devices=devices,
        topology=topology,
        xla_flags=xla_flags,
        production=production,
        cache=cache,
    )
    with staging_in(out) as staging:
        _run_child({**request, "out": str(staging)}, timeout_s, on_progress or (lambda text: None))
        publish(staging, out)
    return load_result(out)


def request_of(
    wanted: dict[str, Any],
    target: Target,
    *,
    devices: int | None = None,
    topology: str | None = None,
    xla_flags: Sequence[str] = (),
    production: Production | None = None,
    cache: Path | None = None,
) -> dict[str, Any]:
    """What a child is asked for, but for the directory that it is to write to. Raises UsageError, TargetError and
    CompileError (a flag that is none)."""
    layout = choose_topology(target, devices, topology)
    given = request_fields(production, target.platform, xla_flags)
    outside = _flags_of_environment(target.platform, given["xla_flags"])
    given["xla_flags"] = [*outside, *given["xla_flags"]]
    return {
        **wanted,
        "target": target.name,
        "platform": target.platform,
        "target_config": _target_config(target, given["production"]),
        "devices": layout.devices,
        "topology": layout.name,
        **given,
        "compiler_options": compiler_options(given["xla_flags"]),
        "outside": sorted(compiler_options(outside)),
        "notes": _notes(target, outside),
        "cache": None if cache is None else str(cache.absolute()),
    }


def _check_step(step: str) -> None:
    where, _, name = step.rpartition(":")
    if not where or not re.fullmatch(r"[^\W\d]\w*(\.[^\W\d]\w*)*", name):
        raise CompileError(f"{step!r} is not a step: write file.py:function or package.module:function")
    if where.endswith(".py") and not Path(where).is_file():
        raise CompileError(f"{step!r}: there is no file {where}")


def _target_config(target: Target, production: dict[str, Any] | None) -> str | None:
    if target.platform != "gpu":
        return None
    from hloinspect.hardware import target_config_text

    return with_dnn_version(target_config_text(target), production)


def _flags_of_environment(platform: str, given: Sequence[str]) -> list[str]:
    """Return the flags of the environment's XLA_FLAGS, without those that are given again: they are in effect, as in a
    run. The variable itself does not reach the child, where an unknown flag kills the process."""
    named = {alias for flag in given for alias in aliases_of(name_of_flag(flag))}
    return [flag for flag in flags_in(os.environ.get(VARIABLE, ""), platform) if name_of_flag(flag) not in named]


def _notes(target: Target, outside: Sequence[str]) -> list[str]:
    from hloinspect.hardware import stand_in_note

    notes = [note] if (note := stand_in_note(target)) else []
    if outside:
        notes.append(f"{VARIABLE} {NOTE_IN_EFFECT}: {' '.join(outside)[:400]}")
    if target.platform == "tpu" and (arguments := os.environ.get(LIBTPU_ARGUMENTS)):
        notes.append(f"{LIBTPU_ARGUMENTS} {NOTE_IN_EFFECT}: {arguments[:400]}")
    return notes


# --- the result's directory -----------------------------------------------------------------------


@contextlib.contextmanager
def staging_in(out: Path) -> Iterator[Path]:
    """A directory inside ``out`` to build in. It is gone afterwards, and so is an ``out`` that nothing came of."""
    _refuse_foreign_files(out)
    created = [path for path in (out, *out.parents) if not path.exists()]
    try:
        out.mkdir(parents=True, exist_ok=True)
        staging = Path(tempfile.mkdtemp(prefix=".hloinspect-", dir=out))
    except OSError as error:
        raise InputError(f"{out} cannot be written to: {error.strerror or error}") from None
    try:
        yield staging
    finally:
        shutil.rmtree(staging, ignore_errors=True)
        for path in created:  # innermost first; those that hold anything stay
            with contextlib.suppress(OSError):
                path.rmdir()


def _refuse_foreign_files(out: Path) -> None:
    """``out`` may hold an earlier result of ours, but nothing else that would be overwritten."""
    if out.exists() and not out.is_dir():
        raise InputError(f"{out} is a file: the result needs a directory")
    there = [name for name in FILES if (out / name).exists()]
    if there and not _is_ours(out / MANIFEST):
        raise InputError(
            f"{out} holds {', '.join(there)} that hloinspect did not finish writing: "
            f"remove them or choose another directory"
        )


def _is_ours(manifest: Path) -> bool:
    try:
        data = json.loads(manifest.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(data, dict) and str(data.get("schema", "")).startswith(SCHEMA.partition("/")[0] + "/")


def publish(staging: Path, out: Path) -> None:
    """Move the files into place: the old manifest goes first and the new one comes last: no reader sees a mixture."""
    (out / MANIFEST).unlink(missing_ok=True)
    for name in FILES:
        if (staging / name).exists():
            os.replace(staging / name, out / name)
        else:
            (out / name).unlink(missing_ok=True)


# --- the child ------------------------------------------------------------------------------------


def _run_child(request: dict[str, Any], timeout_s: float, on_progress: Callable[[str], None]) -> None:
    with tempfile.TemporaryFile() as log:
        child = start_child(request["platform"], log)
        try:
            answer = _converse(child, request, timeout_s, on_progress)
            child.wait(timeout=30)
        except subprocess.TimeoutExpired:
            raise CompileError(
                f"compiling took longer than {timeout_s:g} s and was stopped (--timeout)", tail(log)
            ) from None
        finally:
            end_child(child)
        if "error" in answer:
            raise CompileError(answer["error"], answer.get("detail") or tail(log))
        if "done" not in answer:
            raise CompileError(silent_end(child.returncode, tail(log)), tail(log))


def start_child(platform: str, log: IO[bytes]) -> subprocess.Popen[str]:
    """A child that waits for its request; what it and the user's code print goes to ``log``."""
    return subprocess.Popen(
        [sys.executable, "-m", "hloinspect.compile.child.main"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=log,
        text=True,
        encoding="utf-8",
        env=_child_environment(platform),
        start_new_session=True,  # so that what the user's code starts can be ended with it
    )


def _child_environment(platform: str) -> dict[str, str]:
    environment = {name: value for name, value in os.environ.items() if name != VARIABLE}
    environment |= FOR_EVERY_CHILD | (FOR_TPUS if platform == "tpu" else {})
    environment["PYTHONFAULTHANDLER"] = "1"  # an abort in XLA then says which line of Python led there
    root = Path(__file__).resolve().parents[2]
    if root.name not in (
        "site-packages",
        "dist-packages",
    ):  # run from a checkout: the child must find the same package from any directory
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, (str(root), environment.get("PYTHONPATH"))))
    return environment


def _converse(
    child: subprocess.Popen[str], request: dict[str, Any], timeout_s: float, on_progress: Callable[[str], None]
) -> dict[str, Any]:
    """Send the request and read lines until the last one; ``{}`` where the child ends without one. Raises
    TimeoutExpired.

    The pipe to the child stays open: when it closes, because this process has died, the child ends too.
    """
    deadline = time.monotonic() + timeout_s
    lines: queue.Queue[str | None] = queue.Queue()
    threading.Thread(target=read_lines, args=(child.stdout, lines), daemon=True).start()
    assert child.stdin is not None
    with contextlib.suppress(BrokenPipeError):  # it ended at once: its log says why
        child.stdin.write(json.dumps(request) + "\n")
        child.stdin.flush()
    while True:
        try:
            line = lines.get(timeout=max(0.0, deadline - time.monotonic()))
        except queue.Empty:
            raise subprocess.TimeoutExpired(child.args, timeout_s) from None
        if line is None:
            return {}
        if not line.startswith("{"):  # printed while Python started, before the child took its standard output over
            continue
        answer: dict[str, Any] = json.loads(line)
        if "progress" not in answer:
            return answer
        on_progress(answer["progress"])


def read_lines(stream: IO[str], lines: queue.Queue[str | None]) -> None:
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
    size = log.seek(0, os.SEEK_END)
    log.seek(max(0, size - _DETAIL_CHARS))
    return log.read().decode(errors="replace")


def silent_end(returncode: int, log: str) -> str:
    """What to say of a child that ended without an answer."""
    if returncode < 0:
        name = signal.Signals(-returncode).name
        how = f"the compiling process was killed by {name}" + (" (out of memory?)" if name == "SIGKILL" else "")
    else:
        how = f"the compiling process ended with code {returncode} and no result"
    return (
        how + "".join(f": {words}" for words in _last_words(log)) + "".join(f" ({where})" for where in _aborted_in(log))
    )


def _last_words(log: str) -> list[str]:
    """The line of a log that says most, if any: XLA's fatal one (``F0822 ...] Check failed``), else a Python error,
    else libtpu's about a flag of LIBTPU_INIT_ARGS."""
    lines = [line.strip() for line in log.splitlines()]
    fatal = [line.partition("] ")[2] for line in lines if re.match(r"F\d{4} ", line)]
    errors = [line for line in lines if re.match(r"(\w+\.)*\w*(Error|Exception)\b", line)]
    of_libtpu = [f"{line[7:]} (of {LIBTPU_ARGUMENTS}?)" for line in lines if line.startswith("ERROR: ")]
    return [words[:400] for words in (fatal or errors or of_libtpu)[-1:]]


def _aborted_in(log: str) -> list[str]:
    """The innermost line of the user's code in the stack that Python's faulthandler printed, if it printed one."""
    stack = log.partition("Current thread")[2] or log.partition("most recent call first")[2]
    for file, line, function in re.findall(
        r'^  File "(.+)", line (\d+) in (.+)$', stack.partition("\n\n")[0], re.MULTILINE
    ):
        if "site-packages" not in file and not file.startswith(
            (str(Path(__file__).parent), os.path.dirname(os.__file__), "<")
        ):
            return [f"{file}:{line}, in {function}"]
    return []
