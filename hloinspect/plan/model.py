"""``hloinspect.plan/1``: what ``hloinspect plan`` says, as data.

Times are milliseconds a step of one device, predicted; bytes are those of one device unless a name says ``host``: host
memory is counted for all devices that share a host. What could not be determined is None.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

SCHEMA = "hloinspect.plan/1"


@dataclass(frozen=True, slots=True)
class MemoryUse:
    """What a point needs, and what there is. ``device_limit_bytes`` is the device's memory or the user's share of it.
    ``host_bytes`` are pinned for the ``host_devices`` devices that share a host, whose memory is
    ``host_limit_bytes``. ``source`` is artifacts (XLA's own figures) or estimated (docs/memory.md)."""

    device_bytes: int | None
    device_limit_bytes: int | None
    scheduler_limit_bytes: int | None
    host_bytes: int | None
    host_limit_bytes: int | None
    host_devices: int
    source: str

    @property
    def headroom_bytes(self) -> int | None:
        """What is left of the device's memory; negative where it does not fit."""
        if self.device_bytes is None or self.device_limit_bytes is None:
            return None
        return self.device_limit_bytes - self.device_bytes

    @property
    def is_tight(self) -> bool:
        """Whether more is needed than XLA's scheduler allows itself, though it may fit."""
        used, limit = self.device_bytes, self.scheduler_limit_bytes
        return used is not None and limit is not None and used > limit


@dataclass(frozen=True, slots=True)
class StepTime:
    """The predicted step with its range. ``cases_ms`` is the step in each scenario of the range, by name."""

    time_ms: float
    low_ms: float
    high_ms: float
    compute_ms: float
    stall_ms: float
    without_transfers_ms: float
    ideal_ms: float
    cases_ms: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class TransferLine:
    """One transfer of a point: ``tensor`` is its name and array, ``duration_ms`` and ``wait_ms`` are per step,
    ``needed_link_gbps`` the link at which it would hide, where a faster one would that there could be."""

    id: int
    direction: str
    name: str | None
    tensor: str
    bytes_per_step: int
    duration_ms: float | None
    wait_ms: float | None
    verdict: str
    needed_link_gbps: float | None


@dataclass(frozen=True, slots=True)
class Point:
    """One way to run the step. ``settings`` maps what varies to its value as text.

    ``error`` is why there is no answer: the compiler's or the step's own words. ``offload_lost`` says that an offload
    was asked for and is gone from the optimized module, ``fault`` that XLA has compiled it wrongly (rule HLO301).
    ``fits`` is None where a limit is not known, ``obstacle`` says
    what it does not fit into. ``recompute_flops`` is what the step computes beyond the point that computes the least,
    with everything but policy and flags the same. ``same_as`` is an earlier point with the same schedule and memory.
    ``from_cache``: it was compiled before. ``limits`` are those of its report. ``directory`` has what compiling wrote,
    where that was kept.
    """

    number: int
    settings: Mapping[str, str]
    target: str
    devices: int
    error: str | None = None
    offload_lost: str | None = None
    fault: str | None = None
    fits: bool | None = None
    obstacle: str | None = None
    step: StepTime | None = None
    memory: MemoryUse | None = None
    flops: float | None = None
    recompute_flops: float | None = None
    samples: float | None = None
    samples_per_s: float | None = None
    tokens_per_s: float | None = None
    d2h_bytes: int = 0
    h2d_bytes: int = 0
    transfers: tuple[TransferLine, ...] = ()
    schedule_hash: str | None = None
    same_as: int | None = None
    compile_s: float | None = None
    from_cache: bool = False
    directory: str | None = None
    unknown: tuple[str, ...] = ()
    limits: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def is_good(self) -> bool:
        """Whether it is a way to run the step: it compiled, fits as far as is known, and does what was asked."""
        return self.step is not None and self.fits is not False and not (self.offload_lost or self.fault)

    @property
    def speed(self) -> float:
        """Samples a second, or steps a second where samples are not known: the higher the better."""
        if self.step is None:
            return 0.0
        return self.samples_per_s or 1e3 / self.step.time_ms


@dataclass(frozen=True, slots=True)
class Largest:
    """The largest value of ``axis`` (a batch size) that fits under one policy; None where none does. ``tried`` is the
    largest that was tried."""

    policy: str
    axis: str
    value: str | None
    point: int | None
    tried: str


@dataclass(frozen=True, slots=True)
class Elsewhere:
    """One point judged for another link or another target without being compiled again. ``stand_in`` names the target
    that it was compiled for where that is another one. ``verdicts`` and ``waits_ms`` are by transfer id."""

    point: int
    label: str
    step: StepTime | None
    fits: bool | None
    stand_in: str | None
    verdicts: Mapping[int, str]
    waits_ms: Mapping[int, float]


@dataclass(frozen=True, slots=True)
class TensorLine:
    """One offloaded tensor (a checkpoint name) of one point, from compiling the step without it.

    ``freed_bytes`` of device memory are what offloading it frees against keeping it, ``link_ms`` the time of its
    copies on the link and ``wait_ms`` what the device waits for them, all a step. ``recompute_ms`` and
    ``recompute_flops`` are what computing it again would add, ``gain_ms`` by how much the step would be shorter with
    it recomputed (negative: longer) and ``keep_gain_ms`` with it kept on the device, which needs
    ``kept_device_bytes``. ``advice`` is offload, recompute or keep.
    """

    name: str
    bytes_per_step: int
    freed_bytes: int | None
    link_ms: float | None
    wait_ms: float | None
    recompute_ms: float | None
    recompute_flops: float | None
    gain_ms: float | None
    keep_gain_ms: float | None
    kept_device_bytes: int | None
    kept_fits: bool | None
    advice: str
    why: str


@dataclass(frozen=True, slots=True)
class SearchResult:
    """What ``--search`` found: the point, its policy as code, its flags as one line, and the moves that led there."""

    point: int
    policy_code: str
    flags_line: str
    moves: tuple[str, ...]
    tried: int
    ended: str


@dataclass(frozen=True, slots=True)
class Plan:
    """The whole answer. ``axes`` are the values of what varies, in order. ``front`` are the numbers of the points that
    no other beats in both speed and device memory, ``best`` the fastest that fits; ``not_told_apart`` are the points
    whose range does not tell which of them and the best is the faster. ``policies`` and ``flags`` say what names of
    policies and sets of flags stand for."""

    schema: str
    hloinspect: str
    source: str
    axes: Mapping[str, tuple[str, ...]]
    targets: tuple[str, ...]
    unit: str
    points: tuple[Point, ...]
    front: tuple[int, ...]
    best: int | None
    why: str
    not_told_apart: tuple[int, ...]
    largest: tuple[Largest, ...] = ()
    elsewhere: tuple[Elsewhere, ...] = ()
    tensors: tuple[TensorLine, ...] = ()
    tensors_of: int | None = None
    search: SearchResult | None = None
    policies: Mapping[str, str] = field(default_factory=dict)
    flags: Mapping[str, str] = field(default_factory=dict)
    seconds: float = 0.0
    compiled: int = 0
    limits: tuple[str, ...] = ()

    def point(self, number: int) -> Point:
        """The point of a number (from 1; a search that ran out of time may have left some out)."""
        return next(point for point in self.points if point.number == number)

    def to_json(self) -> str:
        """``hloinspect.plan/1`` as indented JSON text (docs/plan.md)."""
        from hloinspect.report.json import to_json

        return to_json(self)
