"""Where in the user's code an answer belongs, for reporters that point at lines."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath
from urllib.parse import quote

from hloinspect.gate.budget import FINDINGS, LOST, counted_rule
from hloinspect.gate.difference import TransferChange
from hloinspect.gate.findings import WENT, new_count
from hloinspect.gate.gate import Checked
from hloinspect.gate.judge import BudgetResult
from hloinspect.gate.snapshot import FindingGroup, TransferGroup
from hloinspect.report.schema import FindingInfo


@dataclass(frozen=True, slots=True)
class Place:
    """A line of a file; the path is relative to the working directory where the file is below it."""

    file: str
    line: int


def seen_from(path: str, folder: Path) -> str:
    """Return a path relative to the working directory; one from elsewhere stays absolute."""
    pure = PurePath(path)
    return (pure.relative_to(folder) if pure.is_absolute() and pure.is_relative_to(folder) else pure).as_posix()


def uri_of(file: str) -> str:
    """Return a path as a URI; a relative path stays relative."""
    pure = PurePath(file)
    return Path(file).as_uri() if pure.is_absolute() else quote(pure.as_posix())


def input_place(checked: Checked, folder: Path) -> Place:
    """Return the first line of the input's own file: the place of whatever has no line in the user's code."""
    return source_place(checked.report.input.path, folder)


def source_place(source: str, folder: Path) -> Place:
    """Return the first line of the file of an INPUT."""
    file, colon, _ = source.rpartition(":")
    return Place(seen_from(file if colon and file.endswith(".py") else source, folder), 1)


def finding_place(finding: FindingInfo, checked: Checked, folder: Path) -> Place:
    """Return where a finding points."""
    if finding.source is None:
        return input_place(checked, folder)
    return Place(seen_from(finding.source.file, folder), max(1, finding.source.line))


def budget_place(result: BudgetResult, checked: Checked, folder: Path) -> Place:
    """Return where a broken budget points: the transfer that is gone, the finding that is new, the transfer that costs
    more than in the baseline, or the one that the step waits for the longest."""
    changes = checked.difference
    if changes is not None:
        groups = [change.group for change in changes.transfers if change.kind == WENT or _fewer(change)]
        if result.budget.metric != LOST:
            costly = sorted(changes.transfers, key=lambda c: -(c.cost_ms or 0.0))
            groups = [change.group for change in costly if (change.cost_ms or 0.0) > 0]
        where: Sequence[FindingGroup | TransferGroup] = groups
        if result.budget.metric.startswith(FINDINGS):
            where = _new_groups(result, checked)
        for group in where:
            if group.file and group.line:
                return Place(group.file, group.line)
    times = [(t.measured or t.predicted, t) for t in checked.report.transfers]
    for _, transfer in sorted(times, key=lambda pair: -(pair[0].wait_ms if pair[0] else 0.0)):
        if transfer.source is not None:
            return Place(seen_from(transfer.source.file, folder), max(1, transfer.source.line))
    return input_place(checked, folder)


def _new_groups(result: BudgetResult, checked: Checked) -> list[FindingGroup]:
    """Return the new findings that a budget counts."""
    counting = counted_rule(result.budget.metric)
    return [new.change.group for new in checked.new if new_count([new.change], *counting)]


def _fewer(change: TransferChange) -> bool:
    return change.before is not None and change.after is not None and change.after.runs < change.before.runs
