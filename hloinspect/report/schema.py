"""``hloinspect.report/1``: what every command says, as data. Text and JSON are made from it alone.

Times are milliseconds a step unless a name says ``each``; ``bytes`` are those of one execution. A field that could
not be determined is None, and ``unknown`` says why and what would settle it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from hloinspect.kinds import (
    Affects,
    Binding,
    ClassifiedBy,
    Direction,
    ExpectedStatus,
    HostEventKind,
    HostValueKind,
    InputKind,
    LiveValueKind,
    Mechanism,
    MemorySource,
    ModulePlatform,
    Outcome,
    PlacementBy,
    PlacementCause,
    PlacementKind,
    PlacementOutcome,
    RequestedFrom,
    SetAsideReason,
    Severity,
    Verdict,
)

if TYPE_CHECKING:  # a report on a module does without the code that compiles
    from hloinspect.inputs.manifest import Configuration

SCHEMA = "hloinspect.report/1"


@dataclass(frozen=True, slots=True)
class InputInfo:
    """What was read; ``kind`` is step, text, proto, dump, trace, or compiled (a directory that ``hloinspect compile``
    wrote)."""

    path: str
    kind: InputKind
    sha256: str | None


@dataclass(frozen=True, slots=True)
class ModuleInfo:
    """The module. ``schedule_hash`` changes with the order of instructions, ``fingerprint`` with their kinds and
    shapes."""

    name: str
    platform: ModulePlatform
    fingerprint: str
    schedule_hash: str
    instructions: int


@dataclass(frozen=True, slots=True)
class AutotuneInfo:
    """Autotuning results that the step was compiled with: ``missing`` of ``of`` kernels have no entry there. ``of`` is
    None where at most one is missing: XLA does not count them then."""

    path: str
    missing: int
    of: int | None


@dataclass(frozen=True, slots=True)
class ProfileInfo:
    """A PGLE profile that the step was compiled with: ``matched`` of the ``of`` costs in it are of instructions of the
    module."""

    path: str
    matched: int
    of: int


@dataclass(frozen=True, slots=True)
class ProgramInfo:
    """How the module was made, where that is known. ``autotuned``: every kernel as the results of a run have it.
    ``flags_from`` is where flags of a production run were read; it, ``autotune_results`` and ``pgle`` are None where
    nothing was given. ``configuration`` is what else decided the compilation, None where that is not known."""

    jax: str | None = None
    jaxlib: str | None = None
    flags: tuple[str, ...] | None = None
    topology: str | None = None
    autotuned: bool | None = None
    flags_from: str | None = None
    autotune_results: AutotuneInfo | None = None
    pgle: ProfileInfo | None = None
    configuration: Configuration | None = None


@dataclass(frozen=True, slots=True)
class DuplexInfo:
    """The share of each direction's rate that is left while both run."""

    d2h: float
    h2d: float


@dataclass(frozen=True, slots=True)
class LinkInfo:
    """The host link's rates in GB/s (1e9 bytes a second), each direction alone, and what is left of them with both
    on: ``duplex`` for each, ``duplex_factor`` their mean."""

    d2h_gbps: float
    h2d_gbps: float
    duplex_factor: float
    duplex: DuplexInfo


@dataclass(frozen=True, slots=True)
class TargetInfo:
    """The hardware that the prediction is for."""

    name: str
    devices: int
    link: LinkInfo | None


@dataclass(frozen=True, slots=True)
class Exposed:
    """Exposed time by direction; the total is a union, so it can be less than the sum."""

    d2h: float
    h2d: float
    total: float


@dataclass(frozen=True, slots=True)
class PredictedStep:
    """The step by the model, with the range over its scenarios."""

    time_ms: float
    low_ms: float
    high_ms: float
    compute_ms: float
    collective_exposed_ms: float
    exposed_ms: Exposed
    stall_ms: float
    stall_low_ms: float
    stall_high_ms: float
    stall_d2h_ms: float
    stall_h2d_ms: float
    without_transfers_ms: float
    ideal_ms: float
    busy_d2h_ms: float
    busy_h2d_ms: float


@dataclass(frozen=True, slots=True)
class Spread:
    """How a time varies over steps, in ms: a mean hides that one step in ten stalls. ``p90`` is the lower
    percentile."""

    mean: float
    median: float
    p90: float
    min: float
    max: float


@dataclass(frozen=True, slots=True)
class SetAside:
    """Steps that do not count, by reason."""

    reason: SetAsideReason
    count: int


@dataclass(frozen=True, slots=True)
class AllSteps:
    """Sums over all steps of a device, also those that were set aside."""

    steps: int
    time_ms: float
    compute_ms: float
    stall_ms: float


@dataclass(frozen=True, slots=True)
class MeasuredStep:
    """The step from a trace: means over the steps that count, on all devices.

    ``compute + collective_exposed + exposed.total + idle = time`` (docs/trace.md). ``stall`` is the sum of the waits of
    the transfers; ``host_bound`` is idle time of a GPU before an operation that the host had not launched when the
    transfer it waits for had ended. ``step_ms`` and ``stall_spread_ms`` are over steps and devices.
    """

    time_ms: float
    compute_ms: float
    collective_exposed_ms: float
    exposed_ms: Exposed
    stall_ms: float
    stall_d2h_ms: float
    stall_h2d_ms: float
    idle_ms: float
    host_bound_ms: float
    busy_d2h_ms: float
    busy_h2d_ms: float
    step_ms: Spread
    stall_spread_ms: Spread
    steps_analyzed: int
    steps_seen: int
    steps_set_aside: tuple[SetAside, ...] = ()


@dataclass(frozen=True, slots=True)
class SetAsideStep:
    """A step that does not count. ``start_ms`` is its place in the trace."""

    step: int
    start_ms: float
    reason: SetAsideReason
    detail: str


@dataclass(frozen=True, slots=True)
class DeviceInfo:
    """One device in a trace: means over its steps that count, in ms."""

    name: str
    host: str
    steps_analyzed: int
    steps_seen: int
    step_ms: Spread | None
    stall_spread_ms: Spread | None
    compute_ms: float | None
    collective_exposed_ms: float | None
    exposed_ms: Exposed | None
    stall_ms: float | None
    idle_ms: float | None
    host_bound_ms: float | None
    all_steps: AllSteps
    set_aside: tuple[SetAsideStep, ...]


@dataclass(frozen=True, slots=True)
class MeasuredTransfer:
    """One transfer from a trace: means over the steps that count, on all devices, in ms a step.

    ``is_window``: on a TPU ``duration`` is the window from start to the end of its done, which contains the copy and
    what it queued behind. ``gbps`` is bytes over duration (None for windows), ``gbps_alone`` that of copies beside
    which the other direction was off, ``gbps_together`` with it on. ``median_ms`` and ``p90_ms`` are of the wait, like
    ``wait_spread_ms``. ``wait_ratio`` is the measured over the predicted wait, None where either is missing or 0.
    """

    duration_each_ms: float
    duration_ms: float
    is_window: bool
    runs: float
    cover_ms: float
    exposed_ms: float
    wait_ms: float
    median_ms: float
    p90_ms: float
    wait_spread_ms: Spread
    exposed_spread_ms: Spread
    gbps: float | None
    gbps_alone: float | None
    gbps_together: float | None
    wait_ratio: float | None


@dataclass(frozen=True, slots=True)
class TracedProgram:
    """A program in a trace. ``transfers`` is the number of host transfers in its module, None without a module."""

    name: str
    program_id: int
    runs: int
    device_ms: float
    transfers: int | None
    is_step: bool


@dataclass(frozen=True, slots=True)
class OtherCopiesInfo:
    """Copies between host and device that are no transfer of the step: ``device_put``, ``np.asarray``, callbacks."""

    direction: Direction
    count: int
    bytes: int
    device_ms: float


@dataclass(frozen=True, slots=True)
class ExpectedInfo:
    """Whether the profiled program is the one that was expected: ``same``, ``same transfers`` (in another schedule), or
    ``different``; and what differs, a line each."""

    path: str
    status: ExpectedStatus
    schedule_hash: str
    differences: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class HostInfo:
    """One host, which is one file: the step over its own devices (None where no step counts), and the slowest of
    them."""

    host: str
    file: str
    devices: int
    slowest_device: str | None
    step: MeasuredStep | None


@dataclass(frozen=True, slots=True)
class TraceInfo:
    """What was read. ``classified`` are the shares of device time by what told what an event is: hlo, memcpy, name.
    ``hidden_events`` are in command buffers and name no instruction; ``unread`` are files that could not be read.
    ``per_host`` are the hosts that ran the step's program."""

    files: tuple[str, ...]
    hosts: tuple[str, ...]
    device_type: str
    events: int
    classified: dict[ClassifiedBy, float]
    hidden_events: int
    programs: tuple[TracedProgram, ...]
    other_copies: tuple[OtherCopiesInfo, ...]
    unread: tuple[str, ...]
    expected: ExpectedInfo | None
    per_host: tuple[HostInfo, ...] = ()


@dataclass(frozen=True, slots=True)
class StepInfo:
    """The step by the model and by a trace."""

    predicted: PredictedStep | None = None
    measured: MeasuredStep | None = None


@dataclass(frozen=True, slots=True)
class LiveValueInfo:
    """A buffer at the peak; ``kind`` is argument, result or temporary, ``name`` an argument's path or an
    instruction."""

    name: str
    computation: str
    dtype: str
    shape: tuple[int, ...]
    bytes: int
    kind: LiveValueKind
    source: SourceInfo | None


@dataclass(frozen=True, slots=True)
class PeakInfo:
    """The moment at which device memory is fullest, from the live ranges of the schedule: the instruction that runs
    then, the bytes that are needed (without gaps between buffers), the largest values, and the rest of them."""

    instruction: str
    computation: str
    bytes: int
    values: tuple[LiveValueInfo, ...]
    others: int
    other_bytes: int


@dataclass(frozen=True, slots=True)
class MemoryInfo:
    """Bytes on one device and in its host memory; ``source`` is artifacts (XLA's own figures), estimated (from the
    live ranges of the schedule) or unknown. ``backward`` is the instruction with which the backward pass begins; None
    where nothing that is sent to the host comes back later in the step."""

    device_bytes: int | None
    host_bytes: int | None
    device_limit_bytes: int | None
    host_limit_bytes: int | None
    source: MemorySource
    peak: PeakInfo | None = None
    backward: str | None = None


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """What moves in one execution."""

    dtype: str
    shape: tuple[int, ...]
    name: str | None


@dataclass(frozen=True, slots=True)
class SourceInfo:
    """A place in the user's program."""

    file: str
    line: int
    function: str | None


@dataclass(frozen=True, slots=True)
class PredictedTransfer:
    """One transfer by the model. ``low_ms`` and ``high_ms`` are the range of ``wait_ms``."""

    duration_each_ms: float
    duration_ms: float
    cover_ms: float
    exposed_ms: float
    wait_ms: float
    gain_if_free_ms: float | None
    low_ms: float
    high_ms: float
    needed_link_gbps: float | None
    binding: Binding | None
    missing_each_ms: float | None
    largest_hidden_bytes: int | None


@dataclass(frozen=True, slots=True)
class ReleaseInfo:
    """What a copy to the host frees: its source, of ``bytes``, is needed from ``made`` to ``freed`` (instructions).

    ``late``: it starts only when the backward pass has begun, so nothing is saved while the forward pass fills the
    memory. ``before_backward``: whether the source is free before the backward pass; None where the tensor does not
    come back in the step. ``held_bytes_ms`` is ``bytes`` x ``held_ms`` x executions.
    """

    bytes: int
    made: str
    freed: str
    freed_computation: str
    late: bool
    before_backward: bool | None
    held_ms: float | None
    held_bytes_ms: float | None


@dataclass(frozen=True, slots=True)
class TransferInfo:
    """One host transfer of the module."""

    id: int
    direction: Direction
    mechanism: Mechanism
    asynchronous: bool
    bytes: int
    executions: int
    bytes_per_step: int
    tensor: TensorInfo
    start: str
    done: str | None
    computation: str
    loop_depth: int
    source: SourceInfo | None
    stream: str | None
    round_trip: int | None
    outcome: Outcome
    queued_behind: int | None
    verdict: Verdict
    robust: bool | None
    reason: str
    predicted: PredictedTransfer | None
    measured: MeasuredTransfer | None = None
    release: ReleaseInfo | None = None
    partners: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class HostValueInfo:
    """An argument or a result of the step that lives in host memory."""

    kind: HostValueKind
    name: str
    bytes: int


@dataclass(frozen=True, slots=True)
class HostCopyInfo:
    """An instruction that reads and writes host memory."""

    instruction: str
    computation: str
    mechanism: Mechanism
    bytes: int
    executions: int


@dataclass(frozen=True, slots=True)
class HostEventInfo:
    """An instruction that works with the host and is no transfer: computation there, a callback, a feed, a send or
    receive. Bytes are those of one execution."""

    kind: HostEventKind
    instruction: str
    computation: str
    executions: int
    to_host_bytes: int
    from_host_bytes: int
    detail: str


@dataclass(frozen=True, slots=True)
class FindingInfo:
    """One diagnosis: what is wrong, where, on what evidence, and what to do.

    ``transfers`` are all that it is about, ``transfer`` the one that costs the most; ``loop`` is the while around it.
    ``cost_ms`` is what they make the step longer by, ``gain_ms`` what the remedy would win back at most, both by the
    prediction and None where that does not tell. ``source_text`` is the line of ``source``, where its file is there.
    """

    code: str
    name: str
    severity: Severity
    message: str
    remedy: str
    transfer: int | None
    instruction: str | None
    source: SourceInfo | None
    evidence: dict[str, object]
    transfers: tuple[int, ...] = ()
    computation: str | None = None
    loop: str | None = None
    cost_ms: float | None = None
    gain_ms: float | None = None
    source_text: str | None = None


@dataclass(frozen=True, slots=True)
class RuleNotRun:
    """A rule that could not look, for want of evidence, at anything or at some of it: what it would have found is not
    known to be absent. One that found something elsewhere has findings too."""

    code: str
    name: str
    reason: str


@dataclass(frozen=True, slots=True)
class RuleLeftOut:
    """A rule that was not looked with, since nobody asked for it: ``reason`` is the entry that decided (``ignore =
    HLO3``). The code is ``ALL`` where no rule was asked for."""

    code: str
    name: str
    reason: str


@dataclass(frozen=True, slots=True)
class Unknown:
    """What could not be told: why, and what would tell. ``affects`` is time, memory, transfers (some may be missing) or
    audit."""

    reason: str
    remedy: str
    affects: Affects


@dataclass(frozen=True, slots=True)
class AuditEntry:
    """Asks of host memory that are alike and of which the same became (docs/audit.md). ``kind`` is value, argument,
    result, compute or name; ``asked`` how many asks these are, ``runs`` how often they ask in a step. ``dtype`` and
    ``shape`` are of the whole value, before sharding. ``outcome`` is kept, synchronous, kernel, merged, host compute,
    dropped, unused or never matched; ``transfers`` are those that answer; ``pass_name`` is the compiler pass that
    dropped it, where the texts of passes tell."""

    kind: PlacementKind
    direction: Direction | None
    by: PlacementBy
    name: str | None
    dtype: str | None
    shape: tuple[int, ...]
    requested: int
    runs: int
    outcome: PlacementOutcome
    cause: PlacementCause | None
    reason: str | None
    remedy: str | None
    transfers: tuple[int, ...]
    pass_name: str | None
    source: SourceInfo | None


@dataclass(frozen=True, slots=True)
class AuditInfo:
    """What the program asked of host memory against what the module does. ``asked_from`` is jaxpr, stablehlo or hlo
    (before its passes), None where nothing tells what was asked. ``unexplained`` are transfers that nothing asked for,
    ``unexplained_host`` instructions that work in host memory or on the host likewise. ``unknown`` says what was not
    looked at."""

    requested_from: RequestedFrom | None
    entries: tuple[AuditEntry, ...] = ()
    unexplained: tuple[int, ...] = ()
    unexplained_host: tuple[str, ...] = ()
    unknown: tuple[Unknown, ...] = ()


@dataclass(frozen=True, slots=True)
class Report:
    """The whole answer for one input. Iterating gives its transfers and then its findings; a notebook shows it as a
    table."""

    schema: str
    hloinspect: str
    input: InputInfo
    module: ModuleInfo
    program: ProgramInfo
    target: TargetInfo | None
    thresholds: dict[str, float]
    step: StepInfo
    memory: MemoryInfo
    transfers: tuple[TransferInfo, ...]
    host_values: tuple[HostValueInfo, ...]
    host_copies: tuple[HostCopyInfo, ...]
    host_events: tuple[HostEventInfo, ...]
    findings: tuple[FindingInfo, ...] = ()
    devices: tuple[DeviceInfo, ...] = ()
    limits: tuple[str, ...] = ()
    unknown: tuple[Unknown, ...] = field(default=())
    rules_not_run: tuple[RuleNotRun, ...] = ()
    rules_left_out: tuple[RuleLeftOut, ...] = ()
    trace: TraceInfo | None = None
    audit: AuditInfo | None = None

    def __iter__(self) -> Iterator[TransferInfo | FindingInfo]:
        yield from self.transfers
        yield from self.findings

    def to_json(self) -> str:
        """``hloinspect.report/1`` as indented JSON text (docs/report.md)."""
        from hloinspect.report.json import to_json

        return to_json(self)

    def to_html(self) -> str:
        """The page of ``hloinspect report`` without a timeline, which only an inspection has."""
        from hloinspect.render.page import html_page

        return html_page(self)

    def _repr_html_(self) -> str:
        from hloinspect.render.page.notebook import to_html

        return to_html(self)
