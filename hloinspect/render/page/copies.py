"""What else used the link: a table of copies that are no transfers of the step."""

from __future__ import annotations

from collections.abc import Sequence

from hloinspect.render.page.elements import element, sentence, table
from hloinspect.render.page.sides import Side
from hloinspect.render.terminal.copies_text import HEAD, PAGEABLE_ADVICE, copies_row, has_slow


def copies(sides: Sequence[Side]) -> str:
    """Return the table; nothing where no profile has such copies."""
    every = [(side, row) for side in sides for row in (side.report.trace.other_copies if side.report.trace else ())]
    if not every:
        return ""
    rows = []
    for side, row in every:
        first, *cells = copies_row(row)
        rows.append((f"{side.label} {first}" if side.label else first, *cells))
    inner = table(
        HEAD,
        rows,
        "Sums over the profile. Beside ours: while a transfer of the step went the same way",
        (3, 4, 5, 6, 7, 8),
    )
    if has_slow([row for _, row in every]):
        inner += element("p", sentence(PAGEABLE_ADVICE))
    return element("section", f"<h2>Other copies on the link</h2>{inner}", id="copies")
