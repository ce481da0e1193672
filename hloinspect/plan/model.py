"""``hloinspect.plan/1``: what ``hloinspect plan`` says, as data.

Times are milliseconds a step of one device, predicted; bytes are those of one device unless a name says ``host``: host
memory is counted for all devices that share a host. What could not be found out is None.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

from hloinspect.kinds import Advice, Direction, MemorySource, PlanUnit, SearchEnd, Verdict

SCHEMA: Final = "hloinspect.plan/1"


@dataclass(frozen=True, slots=True)
class MemoryUse:
    """Memory that a point needs, and what there is."""

    device_bytes: int | None
    """Device memory of arguments, results and temporaries."""

    device_limit_bytes: int | None
    """Memory of the device, or the user's share of it (``--memory``)."""

    scheduler_limit_bytes: int | None
    """The part of the device's memory to which XLA's scheduler keeps; beyond it transfers may be serialized."""

    host_bytes: int | None
    """Pinned host memory of all devices that share a host."""

    host_limit_bytes: int | None
    """Memory of that host."""

    host_devices: int
    """Number of devices that share a host."""

    source: MemorySource
    """Where the figures come from: ``artifacts`` (XLA's own) or ``estimated`` (docs/memory.md)."""

    @property
    def headroom_bytes(self) -> int | None:
        """Return what is left of the device's memory; negative where it does not fit."""
        if self.device_bytes is None or self.device_limit_bytes is None:
            return None
        return self.device_limit_bytes - self.device_bytes

    @property
    def is_tight(self) -> bool:
        """Return whether more is needed than XLA's scheduler allows itself, though it may fit."""
        used, limit = self.device_bytes, self.scheduler_limit_bytes
        return used is not None and limit is not None and used > limit


@dataclass(frozen=True, slots=True)
class StepTime:
    """The predicted step with its range."""

    time_ms: float
    """Time of the step."""

    low_ms: float
    """The shortest time over the model's scenarios."""

    high_ms: float
    """The longest time over the model's scenarios."""

    compute_ms: float
    """Time in which compute runs."""

    stall_ms: float
    """Time in which the device waits for the host."""

    without_transfers_ms: float
    """The step if all transfers took no time."""

    ideal_ms: float
    """The step with perfect overlap."""

    cases_ms: Mapping[str, float]
    """Time of the step in each scenario, by the scenario's name."""


@dataclass(frozen=True, slots=True)
class TransferLine:
    """One transfer of a point."""

    id: int
    """Its number in the point's report."""

    direction: Direction
    """To the host or from it."""

    name: str | None
    """A checkpoint name or an argument, where known."""

    tensor: str
    """Its name and array."""

    bytes_per_step: int
    """Bytes of all executions in a step."""

    duration_ms: float | None
    """Duration of all executions in a step; null without a prediction."""

    wait_ms: float | None
    """Time for which the device waits for it; null without a prediction."""

    verdict: Verdict
    """Its verdict (docs/report.md)."""

    needed_link_gbps: float | None
    """The rate of the link at which it would hide; null where no rate would, none is needed, or no such link exists."""


@dataclass(frozen=True, slots=True)
class Point:
    """One way to run the step."""

    number: int
    """Its number in this plan, from 1."""

    settings: Mapping[str, str]
    """What varies, by name, with the point's value as text."""

    target: str
    """Name of the target."""

    devices: int
    """Number of devices that the step runs on."""

    error: str | None = None
    """Why there is no answer, in the words of the compiler or the step; null where there is one."""

    offload_lost: str | None = None
    """How the module shows that requested offload is gone from it; null where it is not."""

    fault: str | None = None
    """How XLA has compiled the step wrongly (rule HLO301); null where it has not."""

    fits: bool | None = None
    """Whether it fits into the memory of device and host; null where a limit is not known."""

    obstacle: str | None = None
    """What it does not fit into."""

    step: StepTime | None = None
    """The predicted step; null where it could not be predicted."""

    memory: MemoryUse | None = None
    """Memory that it needs, and what there is."""

    flops: float | None = None
    """FLOPs of matrix products in a step."""

    recompute_flops: float | None = None
    """FLOPs beyond those of the point that computes the least, with everything but policy and flags the same."""

    samples: float | None = None
    """Samples in a step."""

    samples_per_s: float | None = None
    """Samples a second."""

    tokens_per_s: float | None = None
    """Tokens a second."""

    d2h_bytes: int = 0
    """Bytes that go to the host in a step."""

    h2d_bytes: int = 0
    """Bytes that come from the host in a step."""

    transfers: tuple[TransferLine, ...] = ()
    """The transfers of a step."""

    schedule_hash: str | None = None
    """The schedule's hash of the module (docs/report.md)."""

    same_as: int | None = None
    """``number`` of an earlier point with the same schedule and memory."""

    compile_s: float | None = None
    """Seconds in the compiler."""

    from_cache: bool = False
    """Whether it was compiled before."""

    directory: str | None = None
    """Directory with what compiling wrote, where that was kept."""

    unknown: tuple[str, ...] = ()
    """What could not be found out."""

    limits: tuple[str, ...] = ()
    """What to keep in mind about the figures (``limits`` of its report)."""

    notes: tuple[str, ...] = ()
    """What compiling it showed."""

    @property
    def is_good(self) -> bool:
        """Return whether it is a way to run the step: it compiled, fits as far as is known, and does as requested."""
        return self.step is not None and self.fits is not False and not (self.offload_lost or self.fault)

    @property
    def speed(self) -> float:
        """Return samples a second, or steps a second where samples are not known: the higher the better."""
        if self.step is None:
            return 0.0
        return self.samples_per_s or 1e3 / self.step.time_ms


@dataclass(frozen=True, slots=True)
class Largest:
    """The largest value of an axis, such as the batch size, that fits under one policy."""

    policy: str
    """The policy."""

    axis: str
    """Name of the axis."""

    value: str | None
    """The largest value that fits; null where none does."""

    point: int | None
    """``number`` of the point with that value."""

    tried: str
    """The largest value that was tried."""


@dataclass(frozen=True, slots=True)
class Elsewhere:
    """One point judged for another link or another target, without being compiled again."""

    point: int
    """``number`` of the point."""

    label: str
    """The other link or target."""

    step: StepTime | None
    """The predicted step there."""

    fits: bool | None
    """Whether it fits there; null where a limit is not known."""

    stand_in: str | None
    """Name of the target that it was compiled for, where that is another one."""

    verdicts: Mapping[int, Verdict]
    """Verdicts of its transfers, by ``id``."""

    waits_ms: Mapping[int, float]
    """Waits for its transfers in a step, by ``id``."""


@dataclass(frozen=True, slots=True)
class TensorLine:
    """One offloaded tensor (a checkpoint name) of one point, from compiling the step without it."""

    name: str
    """The checkpoint name."""

    bytes_per_step: int
    """Bytes that go to the host in a step."""

    freed_bytes: int | None
    """Device memory that offloading it frees, against keeping it."""

    link_ms: float | None
    """Time of its copies on the link in a step."""

    wait_ms: float | None
    """Time for which the device waits for them in a step."""

    recompute_ms: float | None
    """Compute time that recomputing it would add to a step."""

    recompute_flops: float | None
    """FLOPs that recomputing it would add to a step."""

    gain_ms: float | None
    """By how much the step would be shorter with it recomputed; negative: longer."""

    keep_gain_ms: float | None
    """By how much the step would be shorter with it kept on the device; negative: longer."""

    kept_device_bytes: int | None
    """Device memory of the step with it kept on the device."""

    kept_fits: bool | None
    """Whether that fits."""

    advice: Advice
    """What to do with it."""

    why: str
    """Why, in one line."""


@dataclass(frozen=True, slots=True)
class SearchResult:
    """What ``--search`` found."""

    point: int
    """``number`` of the point."""

    policy_code: str
    """Its policy as a line of JAX, or as keys of MaxText."""

    flags_line: str
    """Its flags as one line."""

    moves: tuple[str, ...]
    """The changes that led there, in order."""

    tried: int
    """Number of points that were tried."""

    ended: SearchEnd
    """Why the search ended."""


@dataclass(frozen=True, slots=True)
class Plan:
    """The whole answer of ``hloinspect plan``."""

    schema: Literal["hloinspect.plan/1"]
    """Name and version of this schema."""

    hloinspect: str
    """Version of the tool that wrote it."""

    source: str
    """The step, or the modules that are compared."""

    axes: Mapping[str, tuple[str, ...]]
    """What varies, by name, with its values in order."""

    targets: tuple[str, ...]
    """Names of the targets."""

    unit: PlanUnit
    """Unit of speed: of the points' ``tokens_per_s`` or ``samples_per_s``, else steps a second."""

    points: tuple[Point, ...]
    """The points."""

    front: tuple[int, ...]
    """``number``s of the points that no other beats in both speed and device memory."""

    best: int | None
    """``number`` of the fastest point that fits; null where none does."""

    why: str
    """Why it is the best, in one line."""

    tied: tuple[int, ...]
    """``number``s of points for which the range of the prediction does not show whether the best is faster."""

    largest: tuple[Largest, ...] = ()
    """The largest value of an axis that fits, by policy."""

    elsewhere: tuple[Elsewhere, ...] = ()
    """Points judged for other links and targets."""

    tensors: tuple[TensorLine, ...] = ()
    """The offloaded tensors of one point, each with what to do with it."""

    tensors_of: int | None = None
    """``number`` of that point."""

    search: SearchResult | None = None
    """What ``--search`` found; null without it."""

    policies: Mapping[str, str] = field(default_factory=dict)
    """What names of policies mean."""

    flags: Mapping[str, str] = field(default_factory=dict)
    """What names of sets of flags mean."""

    seconds: float = 0.0
    """Seconds that the plan took."""

    compiled: int = 0
    """Number of points that were compiled for it."""

    limits: tuple[str, ...] = ()
    """What to keep in mind about all figures."""

    def point(self, number: int) -> Point:
        """Return the point of a number (from 1; a search that ran out of time may have left some out)."""
        return next(point for point in self.points if point.number == number)

    def to_json(self) -> str:
        """Return ``hloinspect.plan/1`` as indented JSON text (docs/plan.md)."""
        from hloinspect.report.json import to_json

        return to_json(self)
