"""A profile, or something that is compiled? Answered once, for every command that takes either."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from hloinspect.errors import UsageError
from hloinspect.inputs.classify import is_trace, is_url

if TYPE_CHECKING:
    from hloinspect.analyze.inspect import Inspection
    from hloinspect.analyze.trace import TraceInspection
    from hloinspect.hardware import Target
    from hloinspect.options import Production
    from hloinspect.rules.choice import Choice


def answer(
    source: str,
    *,
    target: str | Target | None = None,
    link: str | None = None,
    devices: int | None = None,
    topology: str | None = None,
    xla_flags: Sequence[str] = (),
    production: Production | None = None,
    cache: Path | None = None,
    module: str | None = None,
    memory: bool | Literal["unassigned"] | None = None,
    expect: str | None = None,
    jobs: int | None = 1,
    allow_broken: bool = False,
    rules: Choice | None = None,
    on_progress: Callable[[str], None] | None = None,
) -> Inspection | TraceInspection:
    """Return the answer on an INPUT: of ``trace`` for a profile, of ``inspect`` for anything else; options as theirs.

    Raises UsageError for options of the other kind, and whatever these raise.
    """
    if is_trace(source) or is_url(source):
        if xla_flags or module:
            raise UsageError(f"{source} is a trace: --xla-flag and --module are for what is compiled")
        if production:
            raise UsageError(f"{source} is a trace: {production.option} is for compiling a step")
        from hloinspect.analyze.trace import trace

        return trace(
            source,
            target=target,
            link=link,
            devices=devices,
            topology=topology,
            expect=expect,
            rules=rules,
            jobs=jobs,
            allow_broken=allow_broken,
            on_progress=on_progress,
        )
    if expect is not None:
        raise UsageError(f"--expect is for a trace; {source} is none")
    from hloinspect.analyze.inspect import inspect

    return inspect(
        source,
        target=target,
        link=link,
        devices=devices,
        topology=topology,
        xla_flags=xla_flags,
        production=production,
        cache=cache,
        module=module,
        memory=memory,
        rules=rules,
        on_progress=on_progress,
    )
