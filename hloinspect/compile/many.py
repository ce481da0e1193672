"""One step lowered once and compiled under many sets of flags, by a child that may crash on the way.

The child says after each set how it went. Where it ends without a word (XLA aborted), that set is the one that
crashed, and another child goes on with those that are left.
"""

from __future__ import annotations

import contextlib
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from hloinspect.compile import launch, process, protocol
from hloinspect.compile.flags import compiler_options
from hloinspect.compile.protocol import Compilation, CompileMany, FlagSet, StepRequest
from hloinspect.errors import CompileError, HloInspectError
from hloinspect.hardware.target import Target
from hloinspect.inputs.manifest import CompileResult, load_result
from hloinspect.options import CompileOptions

SavedAndOffloaded = tuple[tuple[str, ...], tuple[str, ...]]
"""A policy of names: those that are saved, and those that are offloaded."""


@dataclass(frozen=True, slots=True)
class Variant:
    """A set of XLA flags, and the directory for what compiling with it writes."""

    xla_flags: tuple[str, ...]
    out: Path


@dataclass(frozen=True, slots=True)
class StepNames:
    """What a child says of the step once it is lowered: all of its checkpoint names, and the ``policy`` (names that are
    saved, and offloaded) that it has made of names; None where it has made none, or several."""

    names: tuple[str, ...] = ()
    policy: SavedAndOffloaded | None = None


@dataclass(frozen=True, slots=True)
class Compiled:
    """The outcome of one variant: a result, or why there is none. ``names`` and ``policy`` as in StepNames."""

    number: int
    result: CompileResult | None
    error: str = ""
    names: tuple[str, ...] = ()
    policy: SavedAndOffloaded | None = None


def compile_variants(
    request: StepRequest,
    target: Target,
    variants: Sequence[Variant],
    options: CompileOptions,
    *,
    stop: threading.Event | None = None,
    on_progress: Callable[[str], None] | None = None,
) -> Iterator[Compiled]:
    """Yield each variant as soon as it is compiled. The flags of a variant win over those of ``options``; its
    ``timeout_s`` is for each variant. ``stop``, once set, ends the child.

    Raises only what no child could mend: UsageError, TargetError, InputError for a file of ``production``.
    """
    compilation = launch.compilation_of(request, target, options)
    serving = _Serving(compilation, tuple(variants), options.timeout_s, stop or threading.Event(), on_progress)
    left = list(range(len(variants)))
    while left:
        before = len(left)
        for compiled in serving.serve(tuple(left)):
            left.remove(compiled.number)
            yield compiled
        if len(left) == before:  # stopped
            return


@dataclass(frozen=True, slots=True)
class _Serving:
    """The compilation of all variants, by as many children as it takes."""

    compilation: Compilation
    variants: tuple[Variant, ...]
    timeout_s: float
    stop: threading.Event
    on_progress: Callable[[str], None] | None

    def serve(self, numbers: Sequence[int]) -> Iterator[Compiled]:
        """Yield what one child makes of the variants with these numbers.

        It ends early where the child does: then the variant that the child was at has failed, or all of them where it
        was at none yet.
        """
        with contextlib.ExitStack() as stack, tempfile.TemporaryFile() as log:
            staging: list[Path] = []
            try:
                for number in numbers:
                    staging.append(stack.enter_context(launch.staging_in(self.variants[number].out)))
            except HloInspectError as error:
                yield from (Compiled(number, None, str(error)) for number in numbers)
                return
            child = process.start_child(self.compilation.platform, log)
            about = StepNames()
            at: int | None = None
            failure = ""
            try:
                for message in process.conversation(child, self._request(numbers, staging), self.timeout_s, self.stop):
                    match message:
                        case protocol.Progress(text=text):
                            if self.on_progress is not None:
                                self.on_progress(text)
                        case protocol.Lowered():
                            about = _names_of(message)
                        case protocol.Started(number=at):
                            pass
                        case protocol.Compiled(number=index):
                            yield self._published(numbers[index], staging[index], about)
                            at = None
                        case protocol.Refused(number=index, error=why):
                            yield _failed(numbers[index], _explained(why), about)
                            at = None
                        case protocol.Done():
                            return
                        case protocol.Failed(error=failure):
                            pass
                if not self.stop.is_set():
                    child.wait(timeout=30)
            except subprocess.TimeoutExpired:
                failure = f"compiling took longer than {self.timeout_s:g} s and was stopped"
            finally:
                process.end_child(child)
            if self.stop.is_set():
                return
            failure = failure or process.silent_end(child.returncode, process.tail(log))
            yield from (_failed(n, failure, about) for n in (numbers if at is None else [numbers[at]]))

    def _request(self, numbers: Sequence[int], staging: Sequence[Path]) -> CompileMany:
        sets = (
            FlagSet(
                xla_flags=(*self.compilation.xla_flags, *self.variants[number].xla_flags),
                compiler_options=compiler_options(self.variants[number].xla_flags),
                out=str(folder),
            )
            for number, folder in zip(numbers, staging, strict=True)
        )
        return CompileMany(compilation=self.compilation, flag_sets=tuple(sets))

    def _published(self, number: int, folder: Path, about: StepNames) -> Compiled:
        out = self.variants[number].out
        try:
            launch.publish(folder, out)
            return Compiled(number, load_result(out), "", about.names, about.policy)
        except (HloInspectError, OSError) as problem:
            return _failed(number, str(problem), about)


def _failed(number: int, error: str, about: StepNames) -> Compiled:
    return Compiled(number, None, error, about.names, about.policy)


def _names_of(lowered: protocol.Lowered) -> StepNames:
    made = {(policy.saved, policy.offloaded) for policy in lowered.policies}
    return StepNames(lowered.names, made.pop() if len(made) == 1 else None)


def _explained(error: str) -> str:
    from hloinspect.compile.known_errors import explained

    return str(explained(CompileError(error)))
