"""Transfers, predicted and measured."""

from __future__ import annotations

from dataclasses import dataclass

from hloinspect.kinds import Binding, Direction, Mechanism, Outcome, Verdict
from hloinspect.memory.records import Release
from hloinspect.offload.records import SourceInfo
from hloinspect.report.schema.steps import Spread


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """What moves in one execution."""

    dtype: str
    """Element type, as HLO writes it."""

    shape: tuple[int, ...]
    """Dimensions."""

    name: str | None
    """A checkpoint name or an argument, where known; ``one or other`` where two fit."""


@dataclass(frozen=True, slots=True)
class PredictedTransfer:
    """One transfer by the model."""

    duration_each_ms: float
    """Duration of one execution."""

    duration_ms: float
    """Duration of all executions in a step."""

    cover_ms: float
    """Part of ``duration_ms`` in which compute or a collective runs."""

    exposed_ms: float
    """The rest of ``duration_ms``."""

    wait_ms: float
    """Time for which the device waits for it."""

    gain_if_free_ms: float | None
    """By how much the step would be shorter if this transfer took no time; these do not add up. Null where it was not
    simulated."""

    low_ms: float
    """The shortest wait over the model's scenarios."""

    high_ms: float
    """The longest wait over the model's scenarios."""

    needed_link_gbps: float | None
    """The rate at which its window would hide it; null where no rate would, or none is needed."""

    binding: Binding | None
    """What keeps it from being hidden (docs/model.md); null where it is hidden, or where nothing shows it."""

    missing_each_ms: float | None
    """How much longer its window would have to be for each execution; where ``binding`` is ``collective`` or
    ``elsewhere``, how much more work would have to run in it."""

    largest_hidden_bytes: int | None
    """The largest transfer that its window would hide."""


@dataclass(frozen=True, slots=True)
class MeasuredTransfer:
    """One transfer by a trace: means over the steps that count, on all devices."""

    duration_each_ms: float
    """Duration of one execution."""

    duration_ms: float
    """Duration of all executions in a step."""

    is_window: bool
    """Whether durations are windows, from the start to the end of the wait: a TPU's trace does not show when a copy
    moves. They contain what the copy queued behind."""

    runs: float
    """Executions in a step."""

    cover_ms: float
    """Part of ``duration_ms`` in which compute or a collective runs."""

    exposed_ms: float
    """The rest of ``duration_ms``."""

    wait_ms: float
    """Time for which the device waits for it."""

    median_ms: float
    """Median of the wait."""

    p90_ms: float
    """90th percentile of the wait."""

    wait_spread_ms: Spread
    """The wait over steps and devices."""

    exposed_spread_ms: Spread
    """``exposed_ms`` over steps and devices."""

    gbps: float | None
    """Bytes over duration; null for windows."""

    gbps_alone: float | None
    """The same of copies with the other direction off; null where a trace does not show it."""

    gbps_together: float | None
    """The same of copies with the other direction on; null where a trace does not show it."""

    wait_ratio: float | None
    """The measured over the predicted wait; null where either is missing or 0."""


@dataclass(frozen=True, slots=True)
class TransferInfo:
    """One host transfer of the module."""

    id: int
    """Its number in this report, from 1."""

    direction: Direction
    """To the host or from it."""

    mechanism: Mechanism
    """What moves the bytes: a copy engine (``dma``), or a ``kernel`` that reads or writes host memory. ``unknown``
    where the text has lost the mark: give the dump or the proto."""

    asynchronous: bool
    """Whether it has a start and a wait of its own."""

    bytes: int
    """Bytes of one execution."""

    executions: int
    """How often it runs in a step."""

    bytes_per_step: int
    """Bytes of all executions in a step."""

    tensor: TensorInfo
    """What moves in one execution."""

    start: str
    """The instruction that starts it."""

    done: str | None
    """The instruction that waits for it; null where there is none (it is synchronous) or none was found."""

    computation: str
    """The computation of ``start``."""

    loop_depth: int
    """Number of loops around ``start``."""

    source: SourceInfo | None
    """The user's line that computes the value."""

    stream: str | None
    """The runtime's stream, where a thunk sequence lies beside the module (``memcpy_d2h_stream[0]``)."""

    round_trip: int | None
    """``id`` of the transfer that brings the tensor back, or that sent it; of several the one that moves most of it."""

    outcome: Outcome
    """The other end of the host buffer: a ``round trip``; an ``argument`` or ``result`` of the step; a ``host copy``;
    ``never read`` (sent, and neither fetched nor returned, as far as slices of a stack can be placed: the copy is
    wasted); ``never written`` (fetched, and nothing in the step wrote it)."""

    queued_behind: int | None
    """``id`` of a transfer that it has to wait for in the queue of its direction."""

    verdict: Verdict
    """``hidden``, ``partial`` or ``exposed`` by the covered share of its time (``thresholds``); ``synchronous`` without
    a start and a wait of its own; or ``unknown``. By the trace where the transfer is measured."""

    robust: bool | None
    """False where the verdict changes within the range of the prediction, or where a profiler dropped events."""

    reason: str
    """Why the verdict is what it is, in one line."""

    predicted: PredictedTransfer | None
    """By the model; null without a prediction."""

    measured: MeasuredTransfer | None = None
    """By a trace; null for a prediction, and for a transfer that no step shows."""

    release: Release | None = None
    """What a copy to the host frees, and when; null for other transfers and where the module is not scheduled."""

    partners: tuple[int, ...] = ()
    """``id``s of all transfers that bring the tensor back, or that sent it, ``round_trip`` first: a stack may have
    several writers and readers. Of more than 128 writers and as many readers only a part, and ``limits`` says so."""
