"""What a baseline keeps of a report, and what two answers are compared by.

It has no name of an instruction and no path outside of the project, and no line number decides anything. Of an input
outside of the project ``origin`` has its folder's name and a digest of its path, and no comparison looks at it. The
types are those that a baseline is checked against when it is read.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePath
from typing import Annotated, Final, Literal, TypeVar, cast

from hloinspect.decoding import Complete, Count, NonNegative, Pattern, Positive
from hloinspect.inputs.manifest import Configuration
from hloinspect.kinds import Basis, Direction, InstructionClass, MemorySource, Severity, Verdict
from hloinspect.report.schema import FindingInfo, MeasuredStep, PredictedStep, Report, SourceInfo, TransferInfo

PREDICTED: Final = "predicted"
MEASURED: Final = "measured"
DIRECTIONS: Final[tuple[Direction, ...]] = ("d2h", "h2d")

Moved = Literal["dma", "kernel", "unknown", "synchronous dma", "synchronous kernel", "synchronous unknown"]
"""What moves the bytes of a transfer, and whether it has no pair to hide in."""

BytesByDirection = Annotated[dict[Direction, Count], Complete(DIRECTIONS)]

RuleCode = Annotated[str, Pattern(r"HLO\d{3}", "the code of a rule, such as HLO110")]

_Word = TypeVar("_Word", bound=str)


@dataclass(frozen=True, slots=True)
class Split:
    """Milliseconds a step by direction. Exposed time's total is a union, so it can be less than the sum."""

    d2h: NonNegative
    """Of transfers to the host."""

    h2d: NonNegative
    """Of transfers from the host."""

    total: NonNegative
    """Of both; of exposed time the union, so it may be less than their sum."""


@dataclass(frozen=True, slots=True)
class Made:
    """How the program was made and what it was judged with; null where that is not known."""

    hloinspect: str
    """Version of hloinspect."""

    jax: str | None
    """Version of jax."""

    jaxlib: str | None
    """Version of jaxlib."""

    flags: tuple[str, ...] | None
    """XLA flags of the compilation."""

    topology: str | None
    """Topology that it was compiled for."""

    d2h_gbps: NonNegative | None
    """Rate of the host link to the host."""

    h2d_gbps: NonNegative | None
    """Rate of the host link from the host."""

    module: str
    """Name of the module."""

    fingerprint: str
    """A hash of the module's kinds of instructions (docs/report.md)."""

    schedule_hash: str
    """A hash of the module's schedule (docs/report.md)."""

    configuration: Configuration | None = None
    """What else decided the compilation (docs/compile.md#what-decides-a-compilation)."""


@dataclass(frozen=True, slots=True)
class MemorySnapshot:
    """Memory of one device and of its host."""

    device_bytes: Count | None
    """Device memory of arguments, results and temporaries."""

    host_bytes: Count | None
    """Pinned host memory of the same."""

    source: MemorySource
    """Where the figures come from (docs/report.md)."""


@dataclass(frozen=True, slots=True)
class TransferGroup:
    """All transfers that send the same tensor of the same function. Times are null where they were neither predicted
    nor measured."""

    direction: Direction
    """To the host or from it."""

    dtype: str
    """Element type of the tensor."""

    shape: tuple[Count, ...]
    """Its dimensions, without leading ones."""

    name: str | None
    """Its checkpoint name or argument, where known."""

    loop_depth: Count
    """Number of loops around the transfers."""

    file: str | None
    """File of the function, as seen from the working directory, else its bare name."""

    function: str | None
    """The function that makes the value."""

    line: Count | None
    """The line of the slowest transfer, for reading: it is never compared."""

    count: Count
    """Number of transfers (instructions)."""

    runs: Count
    """Their executions in a step."""

    bytes: Count
    """Bytes of one execution; the most where they differ."""

    bytes_per_step: Count
    """Bytes of all executions in a step."""

    mechanisms: dict[Moved, Count]
    """Number of transfers by mechanism."""

    verdicts: dict[Verdict, Count]
    """Number of transfers by verdict."""

    duration_ms: NonNegative | None
    """Duration of all executions in a step; null without a prediction and a trace."""

    cover_ms: NonNegative | None
    """Part of it in which compute or a collective runs."""

    wait_ms: NonNegative | None
    """Time for which the device waits for them in a step."""


@dataclass(frozen=True, slots=True)
class Subject:
    """What a finding is about: a tensor and the function that moves it."""

    name: str | None
    """Checkpoint name or argument, where known."""

    array: str | None
    """Its array (``bf16[8,128]``), without leading ones."""

    file: str | None
    """File of the function that moves it."""

    function: str | None
    """The function that moves it."""

    line: Count | None
    """The line that moves it, for reading: it is never compared."""


@dataclass(frozen=True, slots=True)
class FindingGroup:
    """All findings of one rule and severity in one function."""

    code: RuleCode
    """Code of the rule."""

    name: str
    """Name of the rule."""

    severity: Severity
    """How bad it is."""

    file: str | None
    """File of the function, as seen from the working directory, else its bare name."""

    function: str | None
    """The function that they are in."""

    line: Count | None
    """A line of the function, for reading: it is never compared."""

    count: Count
    """Number of findings."""

    subjects: tuple[Subject, ...] | None = None
    """The tensors that they are about; null where an older version recorded none."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One step on one target."""

    step: str
    """What the baseline calls the step (docs/ci.md#names)."""

    target: str | None
    """The hardware that it is judged for."""

    devices: Positive
    """Number of devices."""

    kind: Basis
    """Whether figures are predicted or measured."""

    made: Made
    """How the program was made and what it was judged with."""

    step_ms: NonNegative | None
    """Time of the step."""

    stall_ms: Split | None
    """Time in which the device waits for the host."""

    exposed_ms: Split | None
    """Time in which transfers run and neither compute nor a collective does."""

    bytes_per_step: BytesByDirection
    """Bytes that move in a step, by direction."""

    verdicts: dict[Verdict, Count]
    """Number of transfers by verdict."""

    memory: MemorySnapshot
    """Memory of one device and of its host."""

    transfers: tuple[TransferGroup, ...]
    """Groups of transfers."""

    findings: tuple[FindingGroup, ...]
    """Groups of findings."""

    rules_not_run: tuple[RuleCode, ...]
    """Codes of rules that lacked evidence."""

    origin: str | None = None
    """Which input it is of several with one name (docs/ci.md#names); null in what an older version wrote."""

    classes_ms: dict[InstructionClass, NonNegative] = field(default_factory=dict)
    """Measured time of a step by class of instruction (docs/trace.md); empty for predictions."""

    @property
    def key(self) -> tuple[str, str, int, str]:
        """Return what it is filed under."""
        return (self.step, self.target or "", self.devices, self.kind)


def figures_of(report: Report) -> MeasuredStep | PredictedStep | None:
    """Return the step's figures that a gate goes by: measured where there is a trace, else predicted."""
    return report.step.measured if report.trace is not None else report.step.predicted


def kind_of(report: Report) -> Basis:
    """Return whether a report's figures are measured or predicted."""
    return MEASURED if report.trace is not None else PREDICTED


def snapshot_of(report: Report, step: str, folder: Path | None = None, origin: str | None = None) -> Snapshot:
    """Return what to keep of a report on the step of that name. ``folder`` is what paths are relative to, the working
    directory by default. ``origin`` is as gate/origin.py gives it."""
    base = folder or Path.cwd()
    figures, target = figures_of(report), report.target
    link = target.link if target else None
    sent: dict[Direction, int] = {"d2h": 0, "h2d": 0}
    for transfer in report.transfers:
        sent[transfer.direction] += transfer.bytes_per_step
    program, module = report.program, report.module
    return Snapshot(
        step=step,
        target=target.name if target else None,
        devices=target.devices if target else len(report.devices) or 1,
        kind=kind_of(report),
        made=Made(
            hloinspect=report.hloinspect,
            jax=program.jax,
            jaxlib=program.jaxlib,
            flags=program.flags,
            topology=program.topology,
            d2h_gbps=link.d2h_gbps if link else None,
            h2d_gbps=link.h2d_gbps if link else None,
            module=module.name,
            fingerprint=module.fingerprint,
            schedule_hash=module.schedule_hash,
            configuration=program.configuration,
        ),
        step_ms=figures.time_ms if figures else None,
        stall_ms=Split(figures.stall_d2h_ms, figures.stall_h2d_ms, figures.stall_ms) if figures else None,
        exposed_ms=Split(figures.exposed_ms.d2h, figures.exposed_ms.h2d, figures.exposed_ms.total) if figures else None,
        bytes_per_step=sent,
        verdicts=_sorted(Counter(transfer.verdict for transfer in report.transfers)),
        memory=MemorySnapshot(report.memory.device_bytes, report.memory.host_bytes, report.memory.source),
        transfers=_transfers(report.transfers, base),
        findings=_findings(report, base),
        rules_not_run=tuple(sorted(rule.code for rule in report.rules_not_run)),
        origin=origin,
        classes_ms={one.kind: one.total_ms for one in report.instructions.classes} if report.instructions else {},
    )


def seen_from(path: str, folder: Path) -> str:
    """Return a path as the folder sees it. Of one that lies elsewhere it is the bare name: another machine has it in
    another place."""
    pure = PurePath(path)
    if not pure.is_absolute():
        return pure.as_posix()
    return pure.relative_to(folder).as_posix() if pure.is_relative_to(folder) else pure.name


def _sorted(counts: Counter[_Word]) -> dict[_Word, int]:
    return dict(sorted(counts.items()))


_Key = tuple[Direction, str, tuple[int, ...], str, int, str, str]


def _transfers(transfers: Sequence[TransferInfo], base: Path) -> tuple[TransferGroup, ...]:
    groups: dict[_Key, list[TransferInfo]] = {}
    for transfer in transfers:
        groups.setdefault(_key(transfer, base), []).append(transfer)
    return tuple(_group(key, groups[key]) for key in sorted(groups))


def _key(transfer: TransferInfo, base: Path) -> _Key:
    source = transfer.source
    return (
        transfer.direction,
        transfer.tensor.dtype,
        _shape(transfer),
        transfer.tensor.name or "",
        transfer.loop_depth,
        seen_from(source.file, base) if source else "",
        (source.function or "") if source else "",
    )


def _shape(transfer: TransferInfo) -> tuple[int, ...]:
    shape = transfer.tensor.shape
    while len(shape) > 1 and shape[0] == 1:  # the slice of a stack that a scan makes has a dimension of one in front
        shape = shape[1:]
    return shape


def _group(key: _Key, members: Sequence[TransferInfo]) -> TransferGroup:
    direction, dtype, shape, name, depth, file, function = key
    times = [member.measured or member.predicted for member in members]
    waits = [time.wait_ms if time else 0.0 for time in times]
    slowest = members[waits.index(max(waits))]

    def total(attribute: str) -> float | None:
        if any(time is None for time in times):
            return None
        return sum(float(getattr(time, attribute)) for time in times)

    return TransferGroup(
        direction=direction,
        dtype=dtype,
        shape=shape,
        name=name or None,
        loop_depth=depth,
        file=file or None,
        function=function or None,
        line=slowest.source.line if slowest.source else None,
        count=len(members),
        runs=sum(member.executions for member in members),
        bytes=max(member.bytes for member in members),
        bytes_per_step=sum(member.bytes_per_step for member in members),
        mechanisms=_sorted(Counter(mechanism_of(member) for member in members)),
        verdicts=_sorted(Counter(member.verdict for member in members)),
        duration_ms=total("duration_ms"),
        cover_ms=total("cover_ms"),
        wait_ms=total("wait_ms"),
    )


def mechanism_of(transfer: TransferInfo) -> Moved:
    """Return what moves a transfer's bytes, and whether it has no pair to hide in."""
    if transfer.asynchronous:
        return transfer.mechanism
    return cast(Moved, f"synchronous {transfer.mechanism}")


def _findings(report: Report, base: Path) -> tuple[FindingGroup, ...]:
    transfers = {transfer.id: transfer for transfer in report.transfers}
    groups: dict[tuple[str, Severity, str, str], list[FindingInfo]] = {}
    for finding in report.findings:
        file, function, _ = _place_of(finding.source, base)
        groups.setdefault((finding.code, finding.severity, file or "", function or ""), []).append(finding)
    return tuple(
        FindingGroup(
            code=code,
            name=members[0].name,
            severity=severity,
            file=file or None,
            function=function or None,
            line=members[0].source.line if members[0].source else None,
            count=len(members),
            subjects=_distinct(subject for member in members for subject in _subjects(member, transfers, base)),
        )
        for (code, severity, file, function), members in sorted(groups.items())
    )


def _place_of(source: SourceInfo | None, base: Path) -> tuple[str | None, str | None, int | None]:
    """Return file, function and line of a place."""
    if source is None:
        return None, None, None
    return seen_from(source.file, base), source.function or None, source.line


def _subjects(finding: FindingInfo, transfers: Mapping[int, TransferInfo], base: Path) -> Iterator[Subject]:
    """Yield what a finding is about: its transfers, else the names in its evidence, else its place alone."""
    found = [transfers[number] for number in finding.transfers if number in transfers]
    for transfer in found:
        array = f"{transfer.tensor.dtype}[{','.join(map(str, _shape(transfer)))}]"
        yield Subject(transfer.tensor.name, array, *_place_of(transfer.source, base))
    if found:
        return
    names = finding.evidence.get("names")
    for name in names if isinstance(names, (list, tuple)) and names else [None]:
        yield Subject(None if name is None else str(name), None, *_place_of(finding.source, base))


def findings_of(report: Report, groups: Sequence[FindingGroup], folder: Path | None = None) -> list[FindingInfo]:
    """Return the findings that these groups of the report's own snapshot stand for, in the report's order."""
    base = folder or Path.cwd()
    transfers = {transfer.id: transfer for transfer in report.transfers}
    wanted = {(g.code, g.severity, *_identity(subject)) for g in groups for subject in g.subjects or ()}
    return [
        f
        for f in report.findings
        if any((f.code, f.severity, *_identity(subject)) in wanted for subject in _subjects(f, transfers, base))
    ]


def _identity(subject: Subject) -> tuple[str, ...]:
    """Return all of a subject but its line, in the order to sort by."""
    return tuple(part or "" for part in (subject.file, subject.function, subject.name, subject.array))


def _distinct(subjects: Iterable[Subject]) -> tuple[Subject, ...]:
    """Return subjects that differ in more than their line, sorted, each with its lowest line."""
    found = {_identity(subject): subject for subject in sorted(subjects, key=lambda s: -(s.line or 0))}
    return tuple(found[each] for each in sorted(found))
