"""The verb ``maxtext``: the train step of an installed, unmodified MaxText, compiled for a target and inspected.

MaxText itself is imported by the child process only (compile/child/maxtext.py).
"""

from __future__ import annotations

import shlex
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hloinspect.analyze.options import JudgeOptions
from hloinspect.compile.protocol import StepRequest
from hloinspect.errors import CompileError, UsageError
from hloinspect.hardware import Target, load_target
from hloinspect.inputs.manifest import NOTE_POLICY_UNMATCHED, OFFLOAD, REMAT, SAVE, CompileResult
from hloinspect.kinds import Tensors
from hloinspect.options import CompileOptions
from hloinspect.report.host_memory import HostMemory, host_memory_of
from hloinspect.report.schema import Report

SCHEMA = "hloinspect.maxtext/1"
INSTEAD: tuple[Tensors, ...] = (REMAT, SAVE)
"""What may become of the offloaded tensors in a comparison: recomputed, or kept on the device."""

_INSTALL = "install it with: pip install 'hloinspect[maxtext]' (Python 3.12 or newer)"


@dataclass(frozen=True, slots=True)
class Variant:
    """The step with its offloaded tensors as ``tensors`` says: offload, remat or save.

    ``compile_s`` is the time in the compiler, ``process_s`` that of the whole child, ``peak_rss_bytes`` its memory.
    """

    tensors: Tensors
    """What becomes of the offloaded tensors: offloaded as configured, computed again (``remat``), or kept on the device
    (``save``)."""

    report: Report
    """The report on the step (docs/report.md)."""

    host: HostMemory
    """Pinned memory of all devices that share a host."""

    compile_s: float
    """Seconds in the compiler."""

    process_s: float
    """Seconds of the process that compiled it."""

    peak_rss_bytes: int
    """Most memory of that process."""


@dataclass(frozen=True, slots=True)
class MaxTextAnswer:
    """``settings`` are keys of MaxText's configuration; ``offloaded`` the names whose values go to the host,
    ``unmatched`` those that the policy offloads and no value of the model has, ``on_device`` those it keeps (of
    ``remat_policy=custom``). ``variants`` begins with the step as configured."""

    settings: dict[str, Any]
    """Keys of MaxText's configuration."""

    offloaded: tuple[str, ...]
    """Names whose values go to the host."""

    unmatched: tuple[str, ...]
    """Names that the policy offloads and that no value of the model has."""

    on_device: tuple[str, ...]
    """Names that ``remat_policy=custom`` keeps on the device."""

    notes: tuple[str, ...]
    """What compiling it showed."""

    variants: tuple[Variant, ...]
    """The step as configured, and those of ``--compare``."""


def inspect_maxtext(
    arguments: Sequence[str],
    compiling: CompileOptions,
    judging: JudgeOptions,
    *,
    compare: Sequence[str] = (),
    on_progress: Callable[[str], None] | None = None,
) -> MaxTextAnswer:
    """Return the static answer for MaxText's train step: ``arguments`` are a configuration's file (``base.yml`` is
    MaxText's own) and its ``key=value`` words.

    ``compare`` names what else to compile: ``remat`` with the offloaded tensors recomputed, ``save`` with them kept on
    the device. What compiling writes is kept in ``compiling.keep``, that of a comparison in folders of these names.
    Raises HloInspectError.
    """
    target = target_for_maxtext(judging.target)
    others = [tensors for word in dict.fromkeys(compare) for tensors in INSTEAD if tensors == word]
    if strange := [word for word in compare if word not in INSTEAD]:
        raise UsageError(f"--compare {strange[0]}: it is remat, save, or both with a comma between them")
    check_installed()
    say = on_progress or (lambda text: None)
    with tempfile.TemporaryDirectory(prefix="hloinspect-") as scratch:
        out = compiling.keep or Path(scratch) / "step"
        results: list[CompileResult] = []
        variants: list[Variant] = []
        for tensors in (OFFLOAD, *others):
            folder = out if tensors == OFFLOAD else out / tensors
            request = StepRequest(step=shlex.join(["maxtext", *arguments]), maxtext=tuple(arguments), offloaded=tensors)
            results.append(_compile(request, target, compiling, folder, _prefixed(say, tensors if compare else "")))
            variants.append(_variant(results[-1], tensors, replace(judging, target=target)))
    return _answer(results[0], tuple(variants))


def target_for_maxtext(target: str | Target | None) -> Target:
    """Return the target, which must be named. Raises UsageError and TargetError."""
    chosen = load_target(target) if isinstance(target, str) else target
    if chosen is None:
        raise UsageError("say what to compile MaxText for with --target (see `hloinspect targets`)")
    return chosen


def check_installed() -> None:
    """Raise CompileError where MaxText is not installed."""
    from importlib.util import find_spec

    if find_spec("maxtext") is None:
        raise CompileError(f"MaxText is not installed; {_INSTALL}")


def _prefixed(say: Callable[[str], None], tensors: str) -> Callable[[str], None]:
    return lambda text: say(f"{tensors}: {text}" if tensors else text)


def _compile(
    request: StepRequest,
    target: Target,
    compiling: CompileOptions,
    out: Path,
    on_progress: Callable[[str], None],
) -> CompileResult:
    from hloinspect.compile.known_errors import explained
    from hloinspect.compile.launch import compile_request

    try:
        return compile_request(request, target, compiling, out=out, on_progress=on_progress)
    except CompileError as error:
        raise explained(error) from None


def _variant(result: CompileResult, tensors: Tensors, judging: JudgeOptions) -> Variant:
    from hloinspect.analyze.inspect import inspect_input

    report = inspect_input(str(result.directory), CompileOptions(), judging).report
    assert isinstance(judging.target, Target)
    manifest = result.manifest
    return Variant(
        tensors=tensors,
        report=replace(report, input=replace(report.input, path=manifest.step, kind="step")),
        host=host_memory_of(report, judging.target),
        compile_s=manifest.seconds["compile"],
        process_s=sum(manifest.seconds.values()),
        peak_rss_bytes=manifest.peak_rss_bytes,
    )


def _answer(result: CompileResult, variants: tuple[Variant, ...]) -> MaxTextAnswer:
    manifest = result.manifest
    settings = {key: value for key, value in manifest.settings.items() if key != "tensors_on_device"}
    on_device = manifest.settings.get("tensors_on_device", ())
    unmatched = [note for note in manifest.notes if note.startswith(NOTE_POLICY_UNMATCHED)]
    return MaxTextAnswer(
        settings=settings,
        offloaded=tuple(dict.fromkeys(name.name for name in manifest.offload_names)),
        unmatched=tuple(name for note in unmatched for name in note.partition(": ")[2].split(", ")),
        on_device=on_device,
        notes=tuple(note for note in manifest.notes if note not in unmatched),
        variants=variants,
    )
