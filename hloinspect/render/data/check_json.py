"""A gate's answer as JSON (``hloinspect.check/1``), and that of ``diff`` (``hloinspect.diff/1``)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from hloinspect.gate.budget import Budget
from hloinspect.gate.difference import Difference, MetricChange, TransferChange
from hloinspect.gate.explain import explanation
from hloinspect.gate.findings import FindingChange
from hloinspect.gate.gate import Checked, Unread, overall
from hloinspect.gate.judge import BudgetResult
from hloinspect.gate.snapshot import FindingGroup, Made, Snapshot, Subject
from hloinspect.kinds import Basis, BudgetStatus, BudgetUnit, GateStatus, NoteKind, Severity
from hloinspect.report.json import document_json
from hloinspect.report.schema import FindingInfo, SourceInfo
from hloinspect.rules.rule import ERROR

CHECK_SCHEMA = "hloinspect.check/1"
DIFF_SCHEMA = "hloinspect.diff/1"


@dataclass(frozen=True, slots=True)
class BlockingFinding:
    """A finding that fails the check whatever its budgets are (docs/ci.md#what-always-fails)."""

    input: str
    """What was checked."""

    name: str
    """What a baseline calls it."""

    target: str | None
    """The hardware that it is judged for."""

    code: str
    """Code of the rule."""

    rule: str
    """Name of the rule."""

    severity: Literal["error"]
    """Always ``error``."""

    message: str
    """What is wrong."""

    remedy: str
    """What to do."""

    source: SourceInfo | None
    """The user's line."""


@dataclass(frozen=True, slots=True)
class StepNote:
    """A line on a rule behind ``blocking`` that fails nothing."""

    input: str
    """What was checked."""

    name: str
    """What a baseline calls it."""

    target: str | None
    """The hardware that it is judged for."""

    code: str
    """Code of the rule."""

    kind: NoteKind
    """What there is to say: the rule ``found`` less than an error, was ``left out``, ``could not look`` for want of
    evidence, or could not look at all of the module that was checked (``undecided``, which is no pass)."""

    text: str
    """The same in words."""


@dataclass(frozen=True, slots=True)
class BudgetCheck:
    """One budget held against one input. Values are in ``unit``, and null where they are not known."""

    input: str
    """What was checked."""

    name: str
    """What a baseline calls it."""

    target: str | None
    """The hardware that it is judged for."""

    budget: Budget
    """The budget (docs/ci.md#budgets)."""

    status: BudgetStatus
    """``within``, ``over``, ``unknown`` (not enough evidence), or ``missing`` (nothing in the baseline to compare
    with)."""

    value: float | None
    """What there is. Of a tolerance over findings the number of new ones."""

    limit: float | None
    """What is allowed, also where the budget is a tolerance."""

    baseline: float | None
    """What the baseline has; null of a tolerance over findings."""

    unit: BudgetUnit
    """Unit of these values."""

    value_ms: float | None
    """``value`` of a time, in ms a step; null for other metrics."""

    limit_ms: float | None
    """``limit`` of a time, in ms a step; null for other metrics."""

    kind: Basis
    """Whether figures are predicted or measured."""

    reason: str
    """What the metric is, or why it is not known."""


@dataclass(frozen=True, slots=True)
class DiffSide:
    """One side of a comparison."""

    step: str
    """What a baseline calls the step."""

    target: str | None
    """The hardware that it is judged for."""

    devices: int
    """Number of devices."""

    kind: Basis
    """Whether figures are predicted or measured."""

    made: Made
    """How the program was made and what it was judged with."""


@dataclass(frozen=True, slots=True)
class StepDifference:
    """What is different between two answers on a step."""

    before: DiffSide
    """The first side; in a check the baseline."""

    after: DiffSide
    """The second side; in a check the input."""

    made: tuple[str, ...]
    """What differs in versions, flags, target and program, a line each."""

    metrics: tuple[MetricChange, ...]
    """The figures of both sides."""

    transfers: tuple[TransferChange, ...]
    """Groups of transfers that came, went or changed."""

    findings: tuple[FindingChange, ...]
    """Groups of findings that came, went or changed."""

    lost: tuple[str, ...]
    """Transfers that are gone."""

    lost_runs: int
    """How many of their executions in a step are gone."""

    explanation: list[str]
    """All of it as lines of text."""


@dataclass(frozen=True, slots=True)
class NewFindingGroup:
    """A group of findings that the baseline does not have, also of a check that passes."""

    input: str
    """What was checked."""

    name: str
    """What a baseline calls it."""

    target: str | None
    """The hardware that it is judged for."""

    rule: str
    """Name of the rule."""

    code: str
    """Code of the rule."""

    severity: Severity
    """How bad it is."""

    file: str | None
    """File of the function, as seen from the working directory, else its bare name."""

    function: str | None
    """The function that they are in."""

    line: int | None
    """A line of the function, for reading: it is never compared."""

    count: int
    """Number of findings."""

    subjects: tuple[Subject, ...] | None
    """The tensors that they are about."""

    allowed_by: tuple[str, ...]
    """The budgets that count them and hold all the same."""


@dataclass(frozen=True, slots=True)
class StepError:
    """An input that could not be compiled or read, so that nothing was held against it."""

    input: str
    """What was to be checked."""

    name: str
    """What a baseline calls it."""

    target: str | None
    """The hardware that it was to be judged for."""

    message: str
    """What is wrong, in one line."""

    code: str | None
    """``HLO308`` where the compiler's error is a known one."""


@dataclass(frozen=True, slots=True)
class CheckAnswer:
    """The answer of ``hloinspect check`` on all inputs. (A single input that cannot be read is a line on standard
    error alone.)"""

    status: GateStatus
    """``passed``, ``failed``, ``unknown``, or ``error`` where an input could not be compiled or read."""

    blocking: tuple[BlockingFinding, ...]
    """Findings that fail the check whatever its budgets are."""

    notes: tuple[StepNote, ...]
    """What else there is to say of the rules behind ``blocking``."""

    checks: tuple[BudgetCheck, ...]
    """Each budget of each input."""

    differences: tuple[StepDifference, ...]
    """For each input with an entry in the baseline, what is different."""

    new_findings: tuple[NewFindingGroup, ...]
    """Findings that the baseline does not have."""

    errors: tuple[StepError, ...]
    """Inputs that could not be compiled or read."""


def render(checks: Sequence[Checked], allow_unknown: bool = False, unread: Sequence[Unread] = ()) -> str:
    """Return the answer on all steps as JSON text, those that could not be read among them."""
    return document_json(CHECK_SCHEMA, _answer(checks, allow_unknown, unread))


def diff_to_json(found: Difference) -> str:
    """Return what is different between two inputs as JSON text."""
    return document_json(DIFF_SCHEMA, _difference(found))


def _answer(checks: Sequence[Checked], allow_unknown: bool, unread: Sequence[Unread]) -> CheckAnswer:
    return CheckAnswer(
        status=overall(checks, allow_unknown, unread),
        blocking=tuple(_blocking(checked, finding) for checked in checks for finding in checked.blocked),
        notes=tuple(
            StepNote(*_step(checked), note.code, note.kind, note.text) for checked in checks for note in checked.notes
        ),
        checks=tuple(_check(checked, result) for checked in checks for result in checked.results),
        differences=tuple(_difference(checked.difference) for checked in checks if checked.difference),
        new_findings=tuple(
            _new(checked, new.change.group, new.allowed_by) for checked in checks for new in checked.new
        ),
        errors=tuple(StepError(one.source, one.name, one.target, one.message, one.code or None) for one in unread),
    )


def _step(checked: Checked) -> tuple[str, str, str | None]:
    target = checked.report.target
    return checked.report.input.path, checked.name, target.name if target else None


def _blocking(checked: Checked, finding: FindingInfo) -> BlockingFinding:
    what = (finding.code, finding.name)
    return BlockingFinding(*_step(checked), *what, ERROR, finding.message, finding.remedy, finding.source)


def _check(checked: Checked, result: BudgetResult) -> BudgetCheck:
    path, name, target = _step(checked)
    return BudgetCheck(
        input=path,
        name=name,
        target=target,
        budget=result.budget,
        status=result.status,
        value=result.value,
        limit=result.limit,
        baseline=result.baseline,
        unit=result.unit,
        value_ms=result.value_ms,
        limit_ms=result.limit_ms,
        kind=result.kind,
        reason=result.reason,
    )


def _new(checked: Checked, group: FindingGroup, allowed_by: tuple[str, ...]) -> NewFindingGroup:
    path, name, target = _step(checked)
    return NewFindingGroup(
        input=path,
        name=name,
        target=target,
        rule=group.name,
        code=group.code,
        severity=group.severity,
        file=group.file,
        function=group.function,
        line=group.line,
        count=group.count,
        subjects=group.subjects,
        allowed_by=allowed_by,
    )


def _difference(found: Difference) -> StepDifference:
    return StepDifference(
        before=_side(found.before),
        after=_side(found.after),
        made=found.made,
        metrics=found.metrics,
        transfers=found.transfers,
        findings=found.findings,
        lost=found.lost,
        lost_runs=found.lost_runs,
        explanation=explanation(found, show_all=True),
    )


def _side(snapshot: Snapshot) -> DiffSide:
    return DiffSide(snapshot.step, snapshot.target, snapshot.devices, snapshot.kind, snapshot.made)
