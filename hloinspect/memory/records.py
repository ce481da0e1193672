"""What is said of device memory at its fullest moment, and of what copies to the host free."""

from __future__ import annotations

from dataclasses import dataclass

from hloinspect.kinds import LiveValueKind
from hloinspect.offload.records import SourceInfo


@dataclass(frozen=True, slots=True)
class LiveValue:
    """A buffer at the moment at which device memory is fullest."""

    name: str
    """An argument's path, or the instruction that makes it."""

    computation: str
    """The computation of that instruction."""

    dtype: str
    """Element type."""

    shape: tuple[int, ...]
    """Dimensions."""

    bytes: int
    """Size of the buffer."""

    kind: LiveValueKind
    """Whether it is an argument or a result of the step, or a temporary."""

    source: SourceInfo | None
    """The user's line that makes it."""


@dataclass(frozen=True, slots=True)
class Peak:
    """The moment at which device memory is fullest, from the live ranges of the schedule."""

    instruction: str
    """The instruction that runs then."""

    computation: str
    """The computation of that instruction."""

    bytes: int
    """Bytes of arguments, results and the temporaries of that moment, without gaps between them."""

    values: tuple[LiveValue, ...]
    """The largest buffers."""

    others: int
    """Number of the other buffers."""

    other_bytes: int
    """Bytes of the other buffers."""


@dataclass(frozen=True, slots=True)
class Release:
    """What a copy to the host frees, and when: its source on the device is needed from ``made`` to ``freed``."""

    bytes: int
    """Size of the source; 0 where a kernel computes what it sends, so that nothing on the device is freed."""

    made: str
    """The instruction that makes the source."""

    freed: str
    """The last instruction that needs the source."""

    freed_computation: str
    """The computation of ``freed``."""

    late: bool
    """Whether the tensor comes back later in the step and its copy to the host starts only in the backward pass: then
    nothing is saved while the forward pass fills the memory."""

    before_backward: bool | None
    """Whether the source is free before the backward pass begins; null where the tensor does not come back in the
    step."""

    held_ms: float | None
    """How long the source is held each time; null without a prediction."""

    held_bytes_ms: float | None
    """``held_ms`` times ``bytes`` and executions in a step; null without a prediction."""
