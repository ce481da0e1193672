"""One step lowered once and compiled under many sets of flags, by a child that may crash on the way.

The child says after each set how it went. Where it ends without a word (XLA aborted), that set is the one that
crashed, and another child goes on with those that are left.
"""

from __future__ import annotations

import contextlib
import json
import queue
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hloinspect.compile import launch
from hloinspect.compile.flags import compiler_options
from hloinspect.errors import CompileError, HloInspectError
from hloinspect.hardware.target import Target
from hloinspect.inputs.manifest import CompileResult, load_result
from hloinspect.options import Production

TIMEOUT_S = 1800.0
"""For so long a child may compile one set of flags."""


@dataclass(frozen=True, slots=True)
class Variant:
    """A set of XLA flags, and the directory for what compiling with it writes."""

    xla_flags: tuple[str, ...]
    out: Path


@dataclass(frozen=True, slots=True)
class Compiled:
    """How one variant went: a result, or why there is none. ``names`` are all checkpoint names of the step, ``policy``
    the names (saved, offloaded) of the policy that it has made of names; None where it has made none, or several."""

    number: int
    result: CompileResult | None
    error: str = ""
    names: tuple[str, ...] = ()
    policy: tuple[tuple[str, ...], tuple[str, ...]] | None = None


def compile_variants(
    wanted: dict[str, Any],
    target: Target,
    variants: Sequence[Variant],
    *,
    devices: int | None = None,
    topology: str | None = None,
    production: Production | None = None,
    timeout_s: float = TIMEOUT_S,
    cache: Path | None = None,
    stop: threading.Event | None = None,
    on_progress: Callable[[str], None] | None = None,
) -> Iterator[Compiled]:
    """Each variant as soon as it is compiled. ``wanted`` is as for ``launch.compile_request``, and may have
    ``arguments``, ``policy`` and ``fates`` (child/policies.py); ``production`` is what a run had, over which the
    flags of a variant win. ``stop``, once set, ends the child.

    Nothing is raised but what no child could mend: UsageError, TargetError, InputError for a file of ``production``.
    """
    base = launch.request_of(wanted, target, devices=devices, topology=topology, production=production, cache=cache)
    request = {
        **base,
        "variants": [
            {"xla_flags": [*base["xla_flags"], *v.xla_flags], "compiler_options": compiler_options(v.xla_flags)}
            for v in variants
        ],
    }
    left = list(range(len(variants)))
    while left:
        before = len(left)
        for compiled in _serve(request, variants, tuple(left), timeout_s, stop or threading.Event(), on_progress):
            left.remove(compiled.number)
            yield compiled
        if len(left) == before:  # stopped
            return


def _serve(
    request: dict[str, Any],
    variants: Sequence[Variant],
    numbers: Sequence[int],
    timeout_s: float,
    stop: threading.Event,
    on_progress: Callable[[str], None] | None,
) -> Iterator[Compiled]:
    """What one child makes of the variants with these numbers. It ends early where the child does: then the variant
    that it was at has failed, or all of them where it was at none yet."""
    with contextlib.ExitStack() as stack, tempfile.TemporaryFile() as log:
        staging: list[Path] = []
        try:
            for number in numbers:
                staging.append(stack.enter_context(launch.staging_in(variants[number].out)))
        except HloInspectError as error:
            yield from (Compiled(number, None, str(error)) for number in numbers)
            return
        own = [{**request["variants"][n], "out": str(folder)} for n, folder in zip(numbers, staging, strict=True)]
        child = launch.start_child(request["platform"], log)
        about = _About()
        at: int | None = None
        failure = ""
        try:
            for answer in _answers(child, {**request, "variants": own}, timeout_s, stop):
                if "progress" in answer and on_progress is not None:
                    on_progress(answer["progress"])
                about = _about(answer) if "names" in answer else about
                at = answer.get("started", at)
                if "variant" in answer:
                    number, folder = numbers[answer["variant"]], staging[answer["variant"]]
                    yield _published(number, folder, variants[number].out, answer.get("error", ""), about)
                    at = None
                if "done" in answer:
                    return
                if "error" in answer and "variant" not in answer:
                    failure = answer["error"]
            if not stop.is_set():
                child.wait(timeout=30)
        except subprocess.TimeoutExpired:
            failure = f"compiling took longer than {timeout_s:g} s and was stopped"
        finally:
            launch.end_child(child)
        if stop.is_set():
            return
        failure = failure or launch.silent_end(child.returncode, launch.tail(log))
        yield from (
            Compiled(n, None, failure, about.names, about.policy) for n in (numbers if at is None else [numbers[at]])
        )


@dataclass(frozen=True, slots=True)
class _About:
    """What a child tells about the step once it is lowered."""

    names: tuple[str, ...] = ()
    policy: tuple[tuple[str, ...], tuple[str, ...]] | None = None


def _about(answer: dict[str, Any]) -> _About:
    made = {(tuple(policy["saved"]), tuple(policy["offloaded"])) for policy in answer["policies"]}
    return _About(tuple(answer["names"]), made.pop() if len(made) == 1 else None)


def _published(number: int, folder: Path, out: Path, error: str, about: _About) -> Compiled:
    if error:
        return Compiled(number, None, _explained(error), about.names, about.policy)
    try:
        launch.publish(folder, out)
        return Compiled(number, load_result(out), "", about.names, about.policy)
    except (HloInspectError, OSError) as problem:
        return Compiled(number, None, str(problem), about.names, about.policy)


def _explained(error: str) -> str:
    from hloinspect.compile.known_errors import explained

    return str(explained(CompileError(error)))


def _answers(
    child: subprocess.Popen[str], request: dict[str, Any], timeout_s: float, stop: threading.Event
) -> Iterator[dict[str, Any]]:
    """The child's answers until it ends. Raises TimeoutExpired where there is none for too long."""
    lines: queue.Queue[str | None] = queue.Queue()
    threading.Thread(target=launch.read_lines, args=(child.stdout, lines), daemon=True).start()
    assert child.stdin is not None
    with contextlib.suppress(BrokenPipeError):
        child.stdin.write(json.dumps(request) + "\n")
        child.stdin.flush()
    deadline = time.monotonic() + timeout_s
    while not stop.is_set():
        try:
            line = lines.get(timeout=0.2)
        except queue.Empty:
            if time.monotonic() > deadline:
                raise subprocess.TimeoutExpired([sys.executable], timeout_s) from None
            continue
        if line is None:
            return
        if line.startswith("{"):
            answer: dict[str, Any] = json.loads(line)
            if "variant" in answer:
                deadline = time.monotonic() + timeout_s
            yield answer
