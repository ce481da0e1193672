"""A profile, or something that is compiled? Answered once, for every command that takes either."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from hloinspect.analyze.options import JudgeOptions, TraceOptions
from hloinspect.errors import UsageError
from hloinspect.inputs.classify import is_trace, is_url
from hloinspect.options import CompileOptions

if TYPE_CHECKING:
    from hloinspect.analyze.inspect import Inspection
    from hloinspect.analyze.trace import TraceInspection


def answer(
    source: str,
    compiling: CompileOptions,
    judging: JudgeOptions,
    tracing: TraceOptions | None = None,
    on_progress: Callable[[str], None] | None = None,
) -> Inspection | TraceInspection:
    """Return the answer on an INPUT: of ``trace`` for a profile, of ``inspect`` for anything else.

    Raises UsageError for options of the other kind, and whatever these raise.
    """
    tracing = tracing or TraceOptions()
    if is_trace(source) or is_url(source):
        if compiling.xla_flags or compiling.module:
            raise UsageError(f"{source} is a trace: --xla-flag and --module are for what is compiled")
        if compiling.production:
            raise UsageError(f"{source} is a trace: {compiling.production.option} is for compiling a step")
        if judging.against is not None:
            raise UsageError(f"{source} is a trace: --expect says how far what ran is what was compiled")
        from hloinspect.analyze.trace import trace_input

        return trace_input(source, compiling, judging, tracing, on_progress)
    if tracing.expect is not None:
        raise UsageError(f"--expect is for a trace; {source} is none")
    from hloinspect.analyze.inspect import inspect_input

    return inspect_input(source, compiling, judging, on_progress)
