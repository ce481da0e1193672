"""The measured time of the step's instructions, beside the predicted one."""

from __future__ import annotations

from dataclasses import dataclass

from hloinspect.kinds import InstructionClass
from hloinspect.offload.records import SourceInfo


@dataclass(frozen=True, slots=True)
class PredictedTime:
    """The predicted time of something that has the device and its link to itself."""

    time_ms: float
    """The time by the model."""

    low_ms: float
    """The shortest time over the model's scenarios, without the interval between launches."""

    high_ms: float
    """The longest time over the model's scenarios."""


@dataclass(frozen=True, slots=True)
class ClassTimes:
    """All instructions of one class: sums of a step of one device. Sums of streams that run side by side can be more
    than the step."""

    kind: InstructionClass
    """The class (docs/trace.md)."""

    instructions: int
    """Number of instructions that ran."""

    executions: float
    """Executions in a step."""

    total_ms: float
    """Measured time of a step, skew included."""

    skew_ms: float | None
    """The part of it in which collectives wait for the slowest device; null where devices were not matched."""

    predicted: PredictedTime | None
    """Predicted time of those that have one; null without any."""

    ratio: float | None
    """Measured time without skew, of those with a prediction, over the predicted one."""

    inside: int
    """Number of instructions whose median is inside the predicted range."""

    unpredicted_ms: float
    """Measured time of those without a prediction."""


@dataclass(frozen=True, slots=True)
class InstructionTime:
    """One instruction in the steps that count, on all devices."""

    name: str
    """Name of the instruction that the runtime executes."""

    kind: InstructionClass
    """Its class."""

    program_id: int
    """Its program in the trace."""

    source: SourceInfo | None
    """The user's line."""

    executions: float
    """Executions in a step of one device."""

    kernels: float
    """Events of one execution."""

    median_ms: float
    """Median time of an execution."""

    p10_ms: float
    """10th percentile."""

    p90_ms: float
    """90th percentile."""

    mean_ms: float
    """Mean."""

    total_ms: float
    """Time of a step of one device, skew included."""

    skew_ms: float | None
    """The part of ``total_ms`` in which it waits for the slowest device; null where devices were not matched."""

    least_ms: float | None
    """A collective: the median over executions of the least time over devices; null where devices were not matched."""

    predicted: PredictedTime | None
    """Predicted time of an execution; null without a target, and where the model has none."""

    ratio: float | None
    """``least_ms``, else ``median_ms``, over the predicted time."""


@dataclass(frozen=True, slots=True)
class DeviceSkew:
    """The skew of one device: the slowest has the least."""

    device: str
    """Name of the device in the trace."""

    host: str
    """Host that the trace is of."""

    skew_ms: float
    """Time of a step in which its collectives wait for the slowest device."""


@dataclass(frozen=True, slots=True)
class InstructionsInfo:
    """Measured time by instruction and by class, over the steps that count."""

    steps: int
    """Steps that count, of all devices together."""

    total_ms: float
    """Time of all instructions of a step of one device, added up over streams."""

    classes: tuple[ClassTimes, ...]
    """All classes, the longest first."""

    largest: tuple[InstructionTime, ...]
    """The instructions that take the longest, at most 100."""

    others: int
    """Number of instructions that are not among them."""

    others_ms: float
    """Their time of a step of one device."""

    skew_by_device: tuple[DeviceSkew, ...]
    """Skew of each device, the least first; empty where collectives were not matched."""

    compared: int = 0
    """Number of instructions with a prediction."""

    inside: int = 0
    """Number of those whose median is inside the predicted range."""

    inside_share: float | None = None
    """The share of the compared instructions' time that is of those inside; null where none was compared."""

    unexplained: str | None = None
    """What the model does not explain in this profile; null where it explains it, or there is no prediction."""
