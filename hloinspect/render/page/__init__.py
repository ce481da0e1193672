"""``hloinspect report``: one self-contained page with a timeline (docs/report-html.md)."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hloinspect.render.page.sides import Answer


def html_page(*answers: Answer) -> str:
    """Return the page of one answer of ``inspect`` or ``trace``, or of two of them side by side, as text.

    A bare Report gives a page without a timeline. Raise UsageError for none, or more than two.
    """
    from hloinspect.errors import UsageError
    from hloinspect.render.page.page import build
    from hloinspect.render.page.sides import side_of

    if not 1 <= len(answers) <= 2:
        raise UsageError(f"a page shows one input, or two side by side; these are {len(answers)}")
    if len(answers) == 1:
        return build([side_of(answers[0])])
    from hloinspect.gate.difference import snapshot_difference
    from hloinspect.gate.snapshot import snapshot_of

    sides = [side_of(answer, label) for answer, label in zip(answers, "AB", strict=True)]
    snapshots = [snapshot_of(side.report, side.report.input.path) for side in sides]
    return build(sides, snapshot_difference(*snapshots))
