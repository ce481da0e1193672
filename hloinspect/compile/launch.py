"""Compile one step in a child process; every way in which that can fail becomes one CompileError."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from hloinspect.compile.environment import LIBTPU_ARGUMENTS
from hloinspect.compile.flags import VARIABLE, aliases_of, compiler_options, flags_in, name_of_flag
from hloinspect.compile.process import conversation, end_child, silent_end, start_child, tail
from hloinspect.compile.production import production_run, with_dnn_version
from hloinspect.compile.protocol import Compilation, CompileOne, Done, Failed, ProductionRun, Progress, StepRequest
from hloinspect.compile.topology import choose_topology
from hloinspect.decoding import read_text
from hloinspect.errors import CompileError, InputError
from hloinspect.hardware.target import Target
from hloinspect.inputs.manifest import FILES, MANIFEST, NOTE_IN_EFFECT, SCHEMA, CompileResult, load_result
from hloinspect.options import CompileOptions, Production


def compile_step(  # noqa: PLR0913  (a public verb: its keywords are its interface)
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
    folder of earlier compilations (compile/cache.py), in which the step is looked for. ``production`` is what the
    production run had (compile/production.py); ``xla_flags`` win over its flags. ``on_progress`` gets short texts.

    Raises CompileError where the step cannot be compiled (``detail`` has the end of the traceback or log),
    UsageError for a topology that makes no sense, TargetError for a target without what XLA needs, and InputError
    where ``out`` holds other files of the same names or a file of ``production`` is not what it is given as.
    """
    options = CompileOptions(
        devices=devices,
        topology=topology,
        xla_flags=tuple(xla_flags),
        production=production or Production(),
        cache=cache,
        timeout_s=timeout_s,
    )
    return compile_named(step, target, options, out=out, on_progress=on_progress)


def compile_named(
    step: str,
    target: Target,
    options: CompileOptions,
    *,
    out: Path,
    on_progress: Callable[[str], None] | None = None,
) -> CompileResult:
    """Compile the step of this name into ``out``. Raises as ``compile_step`` does."""
    _check_step(step)
    return compile_request(StepRequest(step=step), target, options, out=out, on_progress=on_progress)


def compile_request(
    request: StepRequest,
    target: Target,
    options: CompileOptions,
    *,
    out: Path,
    on_progress: Callable[[str], None] | None = None,
) -> CompileResult:
    """Compile whatever the child can make a step of into ``out``. Raises as ``compile_step`` does."""
    out = Path(out)
    compilation = compilation_of(request, target, options)
    with staging_in(out) as staging:
        _run_child(
            CompileOne(compilation=compilation, out=str(staging)), options.timeout_s, on_progress or (lambda text: None)
        )
        publish(staging, out)
    return load_result(out)


def compilation_of(request: StepRequest, target: Target, options: CompileOptions) -> Compilation:
    """Return what a child is to compile. Raises UsageError, TargetError and CompileError (a flag that is none)."""
    layout = choose_topology(target, options.devices, options.topology)
    production = production_run(options.production, target.platform, options.xla_flags)
    given = (*(production.flags if production else ()), *options.xla_flags)
    outside = _flags_of_environment(target.platform, given)
    flags = (*outside, *given)
    return Compilation(
        step=request,
        target=target.name,
        platform=target.platform,
        target_config=_target_config(target, production),
        devices=layout.devices,
        topology=layout.name,
        xla_flags=flags,
        compiler_options=compiler_options(flags),
        outside=tuple(sorted(compiler_options(outside))),
        notes=_notes(target, outside),
        cache=None if options.cache is None else str(options.cache.absolute()),
        production=production,
    )


def _check_step(step: str) -> None:
    where, _, name = step.rpartition(":")
    if not where or not re.fullmatch(r"[^\W\d]\w*(\.[^\W\d]\w*)*", name):
        raise CompileError(f"{step!r} is not a step: write file.py:function or package.module:function")
    if where.endswith(".py") and not Path(where).is_file():
        raise CompileError(f"{step!r}: there is no file {where}")


def _target_config(target: Target, production: ProductionRun | None) -> str | None:
    if target.platform != "gpu":
        return None
    from hloinspect.hardware import target_config_text

    return with_dnn_version(target_config_text(target), production)


def _flags_of_environment(platform: str, given: Sequence[str]) -> list[str]:
    """Return the flags of the environment's XLA_FLAGS, without those that are given again: they are in effect, as in a
    run. The variable itself does not reach the child, where an unknown flag kills the process."""
    named = {alias for flag in given for alias in aliases_of(name_of_flag(flag))}
    return [flag for flag in flags_in(os.environ.get(VARIABLE, ""), platform) if name_of_flag(flag) not in named]


def _notes(target: Target, outside: Sequence[str]) -> tuple[str, ...]:
    from hloinspect.hardware import stand_in_note

    notes = [note] if (note := stand_in_note(target)) else []
    if outside:
        notes.append(f"{VARIABLE} {NOTE_IN_EFFECT}: {' '.join(outside)[:400]}")
    if target.platform == "tpu" and (arguments := os.environ.get(LIBTPU_ARGUMENTS)):
        notes.append(f"{LIBTPU_ARGUMENTS} {NOTE_IN_EFFECT}: {arguments[:400]}")
    return tuple(notes)


def _run_child(request: CompileOne, timeout_s: float, on_progress: Callable[[str], None]) -> None:
    """Let a child compile. Raises CompileError where it does not say that it is done."""
    last: Done | Failed | None = None
    with tempfile.TemporaryFile() as log:
        child = start_child(request.compilation.platform, log)
        try:
            for message in conversation(child, request, timeout_s):
                if isinstance(message, Progress):
                    on_progress(message.text)
                elif isinstance(message, Done | Failed):
                    last = message
            child.wait(timeout=30)
        except subprocess.TimeoutExpired:
            raise CompileError(
                f"compiling took longer than {timeout_s:g} s and was stopped (--timeout)", tail(log)
            ) from None
        finally:
            end_child(child)
        if isinstance(last, Failed):
            raise CompileError(last.error, last.detail or tail(log))
        if last is None:
            raise CompileError(silent_end(child.returncode, tail(log)), tail(log))


# --- the result's directory -----------------------------------------------------------------------


@contextlib.contextmanager
def staging_in(out: Path) -> Iterator[Path]:
    """Make a directory inside ``out`` to build in. It is gone afterwards, and so is an ``out`` that stayed empty."""
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
    """Raise InputError where ``out`` holds anything that would be overwritten, but for an earlier result."""
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
        data = json.loads(read_text(manifest))
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(data, dict) and str(data.get("schema", "")).startswith(SCHEMA.partition("/")[0] + "/")


def publish(staging: Path, out: Path) -> None:
    """Move the files into place. The old manifest goes first and the new one comes last: no reader sees a mixture."""
    (out / MANIFEST).unlink(missing_ok=True)
    for name in FILES:
        if (staging / name).exists():
            os.replace(staging / name, out / name)
        else:
            (out / name).unlink(missing_ok=True)
