"""``hloinspect report``: one self-contained page with a timeline (docs/report-html.md)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hloinspect.api import Inspection
    from hloinspect.given import Production
    from hloinspect.report.html.sides import Answer
    from hloinspect.rules.choice import Choice
    from hloinspect.tracing import TraceInspection


def html_page(*answers: Answer) -> str:
    """The page of one answer of ``inspect`` or ``trace``, or of two of them side by side, as text.

    A bare Report gives a page without a timeline. Raises UsageError for none, or more than two.
    """
    from hloinspect.errors import UsageError
    from hloinspect.report.html.page import build
    from hloinspect.report.html.sides import side_of

    if not 1 <= len(answers) <= 2:
        raise UsageError(f"a page shows one input, or two side by side; these are {len(answers)}")
    if len(answers) == 1:
        return build([side_of(answers[0])])
    from hloinspect.gate.difference import difference
    from hloinspect.gate.snapshot import snapshot_of

    sides = [side_of(answer, label) for answer, label in zip(answers, "AB", strict=True)]
    snapshots = [snapshot_of(side.report, side.report.input.path) for side in sides]
    return build(sides, difference(*snapshots))


def read_answer(
    source: str,
    *,
    target: str | None = None,
    link: str | None = None,
    devices: int | None = None,
    topology: str | None = None,
    xla_flags: Sequence[str] = (),
    production: Production | None = None,
    cache: Path | None = None,
    module: str | None = None,
    expect: str | None = None,
    jobs: int | None = 1,
    allow_broken: bool = False,
    rules: Choice | None = None,
    on_progress: Callable[[str], None] | None = None,
) -> Inspection | TraceInspection:
    """The answer on an INPUT: of ``trace`` for a profile, of ``inspect`` for anything else; options as theirs.

    Raises UsageError for options of the other kind, and whatever these raise.
    """
    from hloinspect.errors import UsageError
    from hloinspect.inputs import is_trace
    from hloinspect.xplane.remote import is_url

    if is_trace(source) or is_url(source):
        if xla_flags or module:
            raise UsageError(f"{source} is a trace: --xla-flag and --module are for what is compiled")
        if production:
            raise UsageError(f"{production.option} is for compiling a step; {source} is a trace")
        from hloinspect.tracing import trace

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
    from hloinspect.api import inspect

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
        rules=rules,
        on_progress=on_progress,
    )
