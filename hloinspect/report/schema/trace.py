"""What was read of a profile."""

from __future__ import annotations

from dataclasses import dataclass, field

from hloinspect.kinds import ClassifiedBy, CopyOrigin, Direction, HostMemory, InstructionClass
from hloinspect.report.schema.judged import ExpectedInfo
from hloinspect.report.schema.steps import MeasuredStep
from hloinspect.report.schema.transfers import TransferInfo


@dataclass(frozen=True, slots=True)
class TracedProgram:
    """A program in a trace."""

    name: str
    """Name of its module."""

    program_id: int
    """Its number in the trace."""

    runs: int
    """How often it runs, on the device that runs it most."""

    device_ms: float
    """Device time that it takes, on all devices."""

    transfers: int | None
    """Number of host transfers in its module; null without a module."""

    is_step: bool
    """Whether it is the step."""


@dataclass(frozen=True, slots=True)
class OtherCopiesInfo:
    """Copies between host and device that are no transfer of the step, of one direction, host memory and origin."""

    direction: Direction
    """To the host or from it."""

    count: int
    """Number of copies."""

    bytes: int
    """Bytes of all of them."""

    device_ms: float
    """Device time of all of them."""

    memory: HostMemory = "unstated"
    """The host's memory, by the profiler: ``pinned``, ``pageable`` (the driver copies it piece by piece through a
    buffer of its own), ``managed``, or ``unstated``."""

    origin: CopyOrigin = "eager"
    """What makes them: ``eager`` no instruction (``device_put``, ``np.asarray``, input, checkpoints), ``callback`` an
    instruction of the step that is no offload (callbacks, the condition of a loop), ``program`` another program."""

    program: str = ""
    """Name of the other program."""

    gbps: float | None = None
    """Their rate in GB/s: the median, by bytes, of those that had the link for themselves; null where none had."""

    alone_bytes: int = 0
    """Bytes of the copies that the rate rests on."""

    shared_ms: float = 0.0
    """The part of ``device_ms`` in which a transfer of the step in the same direction ran too: they share the link."""

    in_steps_ms: float | None = None
    """The part of ``device_ms`` that is within steps; null where there are no steps."""


@dataclass(frozen=True, slots=True)
class StepProgramInfo:
    """One of several programs that run in every step: means over the steps that count."""

    name: str
    """Name of its module."""

    program_id: int
    """Its number in the trace, on the first host."""

    is_module: bool
    """Whether it is the module of this report, which is predicted, and whose transfers are ``transfers``."""

    runs: float
    """How often it runs in a step."""

    time_ms: float
    """Its part of the step: from the first to the last event of each of its runs."""

    transfers: tuple[TransferInfo, ...] = ()
    """Host transfers of a program that is not the module of this report, with its own ids: measured, and judged by no
    rule."""


@dataclass(frozen=True, slots=True)
class HostInfo:
    """One host, which is one file."""

    host: str
    """Name of the host."""

    file: str
    """Its file."""

    devices: int
    """Number of its devices."""

    slowest_device: str | None
    """The device with the longest step; null where no step counts."""

    step: MeasuredStep | None
    """The step over the host's own devices; null where no step counts."""


@dataclass(frozen=True, slots=True)
class TraceInfo:
    """What was read of a profile."""

    files: tuple[str, ...]
    """Files that were read."""

    hosts: tuple[str, ...]
    """The host of each file."""

    device_type: str
    """The devices as the profiler names them."""

    events: int
    """Number of events on devices."""

    classified: dict[ClassifiedBy, float]
    """Shares of device time by what shows what an event is: the module (``hlo``), the memory at both ends of a copy
    (``memcpy``), or the event's name alone (``name``)."""

    hidden_events: int
    """Number of events in command buffers that name no instruction."""

    programs: tuple[TracedProgram, ...]
    """The programs that ran, the step first."""

    other_copies: tuple[OtherCopiesInfo, ...]
    """Copies between host and device that are no transfer of the step."""

    unread: tuple[str, ...]
    """Files that could not be read, with the reason."""

    expected: ExpectedInfo | None
    """Whether the program is the expected one; null without ``--expect``."""

    per_host: tuple[HostInfo, ...] = ()
    """The hosts that ran the step's program."""

    classes_ms: dict[InstructionClass, float] = field(default_factory=dict)
    """Device time of all programs and steps by class of instruction, the longest first (docs/trace.md)."""

    work_events: int | None = None
    """Number of kernels, memsets and copies within a GPU's memory, of any program; null where they were not counted."""

    work_ms: float | None = None
    """Device time of these, on all devices."""

    step_programs: tuple[StepProgramInfo, ...] = ()
    """The programs of the step in their order, where it is more than one (docs/trace.md)."""

    between_programs_ms: float | None = None
    """The time of such a step in which none of its programs runs; null for a step of one program."""
