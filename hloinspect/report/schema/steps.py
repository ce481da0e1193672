"""The step as a whole, by the model and by a trace, and each device of a trace."""

from __future__ import annotations

from dataclasses import dataclass

from hloinspect.kinds import SetAsideReason


@dataclass(frozen=True, slots=True)
class Exposed:
    """Time in which transfers run and neither compute nor a collective does."""

    d2h: float
    """Of transfers to the host."""

    h2d: float
    """Of transfers from the host."""

    total: float
    """The union of both, so it may be less than their sum."""


@dataclass(frozen=True, slots=True)
class PredictedStep:
    """The step by the model (docs/model.md)."""

    time_ms: float
    """Time of the step."""

    low_ms: float
    """The shortest time over the model's scenarios."""

    high_ms: float
    """The longest time over the model's scenarios."""

    compute_ms: float
    """Time in which compute runs."""

    collective_exposed_ms: float
    """Time in which a collective runs and no compute does."""

    exposed_ms: Exposed
    """Time in which transfers run and neither compute nor a collective does."""

    stall_ms: float
    """Time in which the device waits for the host: the sum of all waits for transfers and host copies."""

    stall_low_ms: float
    """The shortest such time over the model's scenarios."""

    stall_high_ms: float
    """The longest such time over the model's scenarios."""

    stall_d2h_ms: float
    """Waits for transfers to the host."""

    stall_h2d_ms: float
    """Waits for transfers from the host."""

    without_transfers_ms: float
    """The step if all transfers took no time."""

    ideal_ms: float
    """The step with perfect overlap: the longest of compute, each direction of the link, and the host's memory."""

    busy_d2h_ms: float
    """Time in which the link to the host is busy."""

    busy_h2d_ms: float
    """Time in which the link from the host is busy."""


@dataclass(frozen=True, slots=True)
class Spread:
    """How a time varies over steps and devices, in ms: a mean does not show that one step in ten waits."""

    mean: float
    """Arithmetic mean."""

    median: float
    """Median."""

    p90: float
    """90th percentile, the lower one where it lies between two values."""

    min: float
    """Smallest value."""

    max: float
    """Largest value."""


@dataclass(frozen=True, slots=True)
class SetAside:
    """Steps that do not count for one reason."""

    reason: SetAsideReason
    """Why they do not count (docs/trace.md)."""

    count: int
    """Number of steps."""


@dataclass(frozen=True, slots=True)
class MeasuredStep:
    """The step by a trace: means over the steps that count, on all devices (docs/trace.md).

    ``compute_ms + collective_exposed_ms + exposed_ms.total + idle_ms = time_ms``.
    """

    time_ms: float
    """Time of the step."""

    compute_ms: float
    """Time in which compute runs."""

    collective_exposed_ms: float
    """Time in which a collective runs and no compute does."""

    exposed_ms: Exposed
    """Time in which transfers run and neither compute nor a collective does."""

    stall_ms: float
    """Sum of the waits for transfers."""

    stall_d2h_ms: float
    """Waits for transfers to the host."""

    stall_h2d_ms: float
    """Waits for transfers from the host."""

    idle_ms: float
    """Time in which neither compute, nor a collective, nor a transfer of the step runs."""

    host_bound_ms: float
    """GPU: idle time before operations that the host had not launched when the transfer they wait for had ended."""

    busy_d2h_ms: float
    """Time in which transfers to the host run (TPU: their windows)."""

    busy_h2d_ms: float
    """Time in which transfers from the host run (TPU: their windows)."""

    step_ms: Spread
    """Time of the step over steps and devices."""

    stall_spread_ms: Spread
    """Sum of the waits over steps and devices."""

    steps_analyzed: int
    """Number of steps that count."""

    steps_seen: int
    """Number of steps in the trace."""

    steps_set_aside: tuple[SetAside, ...] = ()
    """The steps that do not count, by reason."""


@dataclass(frozen=True, slots=True)
class StepInfo:
    """The step by the model and by a trace."""

    predicted: PredictedStep | None = None
    """By the model; null without a target, or where the module is not scheduled."""

    measured: MeasuredStep | None = None
    """By a trace; null for a prediction, or where no step counts."""


@dataclass(frozen=True, slots=True)
class AllSteps:
    """Sums over all steps of a device, also those that do not count."""

    steps: int
    """Number of steps."""

    time_ms: float
    """Their time."""

    compute_ms: float
    """Time in which compute runs."""

    stall_ms: float
    """Sum of the waits for transfers."""


@dataclass(frozen=True, slots=True)
class SetAsideStep:
    """A step that does not count."""

    step: int
    """Its number in the trace, from 0, or that of its step annotation."""

    start_ms: float
    """When it begins in the trace."""

    reason: SetAsideReason
    """Why it does not count (docs/trace.md)."""

    detail: str
    """What shows that, such as the events that are missing."""


@dataclass(frozen=True, slots=True)
class DeviceInfo:
    """One device in a trace: means over its steps that count; null where none does."""

    name: str
    """Name of the device in the trace."""

    host: str
    """Host that the trace is of."""

    steps_analyzed: int
    """Number of steps that count."""

    steps_seen: int
    """Number of steps in the trace."""

    step_ms: Spread | None
    """Time of the step over steps."""

    stall_spread_ms: Spread | None
    """Sum of the waits over steps."""

    compute_ms: float | None
    """Time in which compute runs."""

    collective_exposed_ms: float | None
    """Time in which a collective runs and no compute does."""

    exposed_ms: Exposed | None
    """Time in which transfers run and neither compute nor a collective does."""

    stall_ms: float | None
    """Sum of the waits for transfers."""

    idle_ms: float | None
    """Time in which neither compute, nor a collective, nor a transfer of the step runs."""

    host_bound_ms: float | None
    """GPU: idle time before operations that the host launched too late."""

    all_steps: AllSteps
    """Sums over all steps, also those that do not count."""

    set_aside: tuple[SetAsideStep, ...]
    """The steps that do not count."""
