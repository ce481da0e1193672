"""What was read of a profile."""

from __future__ import annotations

from dataclasses import dataclass, field

from hloinspect.kinds import ClassifiedBy, Direction, InstructionClass
from hloinspect.report.schema.judged import ExpectedInfo
from hloinspect.report.schema.steps import MeasuredStep


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
    """Copies between host and device that are no transfer of the step: ``device_put``, ``np.asarray``, callbacks."""

    direction: Direction
    """To the host or from it."""

    count: int
    """Number of copies."""

    bytes: int
    """Bytes of all of them."""

    device_ms: float
    """Device time of all of them."""


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
