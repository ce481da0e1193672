"""Facts for the rules: the report, its sources, and properties of the program that several rules share.

Facts are computed when they are first needed, and kept. They take one pass over a computation, never one for each
transfer: a step of 126 unrolled layers has a thousand transfers in one computation of a hundred thousand instructions.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

from hloinspect.kinds import D2H, H2D
from hloinspect.offload.mechanism import UNKNOWN
from hloinspect.offload.program import Program
from hloinspect.offload.roundtrips import NEVER_READ
from hloinspect.offload.slices import Slices
from hloinspect.offload.transfers import Offload, Transfer
from hloinspect.report.schema import PredictedStep, PredictedTransfer, Report, SourceInfo, TransferInfo
from hloinspect.rules.facts_buffers import sends_constant, transfers_by_buffer
from hloinspect.rules.facts_flags import compiled_version, flag_value, optimization_level, pipelining_setting
from hloinspect.rules.facts_loops import (
    LoopInfo,
    innermost_loops,
    is_peeled,
    loop_kernels_ms,
    places_of_loops,
    work_counts,
)
from hloinspect.rules.facts_uses import first_uses, is_stack_of_loop
from hloinspect.thresholds import SCHEDULER_MEMORY_SHARE

if TYPE_CHECKING:
    from hloinspect.hardware.target import Target
    from hloinspect.hlo.model import Module
    from hloinspect.placements.requested import Requested
    from hloinspect.predict.prediction import Prediction
    from hloinspect.predict.scenario import Scenario


@dataclass(frozen=True)
class Facts:
    """One report with its sources. ``offload`` and the fields after it are None where the input does not give them."""

    report: Report
    offload: Offload | None = None
    prediction: Prediction | None = None
    target: Target | None = None
    slices: Slices = field(default_factory=Slices)
    requested: Requested | None = None

    # --- the report by id

    @cached_property
    def infos(self) -> Mapping[int, TransferInfo]:
        """Return the report's transfers by id."""
        return {transfer.id: transfer for transfer in self.report.transfers}

    @cached_property
    def transfers(self) -> Mapping[int, Transfer]:
        """Return the program's transfers by id."""
        return {transfer.id: transfer for transfer in (self.offload.transfers if self.offload else ())}

    @property
    def step(self) -> PredictedStep | None:
        """Return the predicted step."""
        return self.report.step.predicted

    @property
    def is_gpu(self) -> bool:
        """Return whether the module is one of XLA:GPU."""
        return self.report.module.platform == "gpu"

    def predicted(self, number: int) -> PredictedTransfer | None:
        """Return the prediction for one transfer."""
        return self.infos[number].predicted

    @property
    def is_measured(self) -> bool:
        """Return whether waits are those of a trace."""
        return self.report.step.measured is not None

    @property
    def step_ms(self) -> float | None:
        """Return the step's time in ms, measured if it was, else predicted."""
        found = self.report.step.measured or self.step
        return found.time_ms if found is not None else None

    def wait_of(self, number: int) -> float:
        """Return the wait of the device for one transfer, in ms a step: measured if it was, else predicted, else 0."""
        info = self.infos[number]
        found = info.measured or info.predicted
        return found.wait_ms if found is not None else 0.0

    def wait_ms(self, numbers: Iterable[int]) -> float | None:
        """Return the wait of the device for these transfers, in ms a step, or None without a prediction and a
        measurement."""
        return None if self.step_ms is None else sum(self.wait_of(number) for number in numbers)

    def costliest_first(self, numbers: Iterable[int]) -> tuple[int, ...]:
        """Return the ids, first those that wait the longest, then those that move the most."""

        def key(number: int) -> tuple[float, int, int]:
            return (-self.wait_of(number), -self.infos[number].bytes_per_step, number)

        return tuple(sorted(numbers, key=key))

    def source_of(self, number: int) -> SourceInfo | None:
        """Return the user's line of a transfer."""
        return self.infos[number].source

    def has_flag(self, name: str) -> str | None:
        """Return the value that the program was compiled with, or None where it was not given or flags are not
        known."""
        return flag_value(self.report.program, name)

    @cached_property
    def jax_version(self) -> tuple[int, ...] | None:
        """Return a version like (0, 12, 0) where the program's jax is known.

        It is the older of jax and jaxlib, since XLA comes with jaxlib.
        """
        return compiled_version(self.report.program)

    # --- the program

    @property
    def program(self) -> Program:
        """Return the program. Only rules that need the module may use it."""
        assert self.offload is not None
        return self.offload.program

    @property
    def module(self) -> Module:
        """Return the module. Only rules that need it may use it."""
        return self.program.module

    @cached_property
    def loops(self) -> Mapping[str, LoopInfo]:
        """Return the innermost loop of each computation inside a loop, through calls."""
        return innermost_loops(self.program)

    def iterations(self, number: int) -> int:
        """Return the iterations of the innermost loop around a transfer, 1 outside of loops."""
        loop = self.loops.get(self.transfers[number].computation)
        return loop.trips if loop else 1

    @cached_property
    def without_marker(self) -> tuple[int, ...]:
        """Return the transfers for which the text does not say whether they are copies or kernels.

        Then it does not say either where a copy takes its address: ``as_text()`` of jax 0.8 to 0.10.1.
        """
        return tuple(t.id for t in self.transfers.values() if t.mechanism == UNKNOWN)

    @cached_property
    def remat_barriers(self) -> frozenset[str]:
        """Return the computations with a rematerialization barrier, of those in which a copy back is waited for."""
        from hloinspect.predict.reasons import has_remat_barrier

        waiting = {t.done_computation for t in self.transfers.values() if t.direction == H2D and t.done_computation}
        return frozenset(name for name in waiting if has_remat_barrier(self.module.computations[name]))

    def is_checkpointed(self, computation: str) -> bool:
        """Return whether a computation has work of ``jax.checkpoint``, by JAX's names."""
        body = self.module.computations[computation]
        return any("checkpoint" in body.instruction(place).metadata.op_name for place in body.mentioning("checkpoint"))

    def work_between(self, computation: str, start: int, end: int) -> int:
        """Count the kernels, library calls and loops that are scheduled strictly between two places of a
        computation."""
        counts = self._work.get(computation)
        if counts is None:
            counts = self._work[computation] = work_counts(self.module.computations[computation])
        return counts[end] - counts[start + 1] if end > start else 0

    @cached_property
    def _work(self) -> dict[str, list[int]]:
        return {}

    def window_work(self, number: int) -> int | None:
        """Count the work between a transfer's start and its done, or return None where they are not in one
        computation."""
        transfer = self.transfers[number]
        if transfer.done_index is None or transfer.done_computation != transfer.computation:
            return None
        return self.work_between(transfer.computation, transfer.start_index, transfer.done_index)

    @cached_property
    def first_uses(self) -> Mapping[int, int | None]:
        """Return the place of the first instruction that works with each copy back whose done is known.

        The place is one in the computation of the done, found through bitcasts and tuples. It is None where nothing
        there uses the value and the root hands it on.
        """
        return first_uses(self.module, self.transfers.values())

    @cached_property
    def loop_places(self) -> Mapping[str, tuple[int, ...]]:
        """Return the places of the whiles of each computation with loops."""
        return places_of_loops(self.program)

    def feeds_loop_of_layers(self, transfer: Transfer) -> bool:
        """Return whether a copy back outside of loops is a stack of as many layers as its first loop has iterations.

        The layers are its leading dimension, and that loop is the first to use it.
        """
        use = self.first_uses.get(transfer.id)
        return self.iterations(transfer.id) <= 1 and is_stack_of_loop(self.program, transfer, use)

    @cached_property
    def bodies_that_send(self) -> Mapping[str, tuple[int, ...]]:
        """Return the loop bodies with copies to the host that come back in the step, and those copies."""
        found: dict[str, list[int]] = {}
        for transfer in self.transfers.values():
            if transfer.direction == D2H and transfer.round_trip is not None and self.iterations(transfer.id) > 1:
                found.setdefault(transfer.computation, []).append(transfer.id)
        return {name: tuple(numbers) for name, numbers in found.items()}

    def forward_ms(self, body: str, target: Target, scenario: Scenario) -> float | None:
        """Return the time of the kernels of a loop's body in all its iterations, in ms.

        Return None where the body has more than kernels in it (collectives, loops, calls).
        """
        return loop_kernels_ms(self.program, body, target, scenario)

    def is_never_read(self, transfer: Transfer) -> bool:
        """Return whether nothing in the step reads what a copy to the host has sent.

        It is false where the offload could not be followed completely. (A slot that nothing reads, of a stack with
        other readers, comes from the compiler: it keeps the values of a peeled iteration on the device, and no policy
        changes that.)
        """
        if transfer.outcome != NEVER_READ or (self.offload is not None and self.offload.unfollowed):
            return False
        return transfer.buffer is None or not self.by_buffer[transfer.buffer][1]

    def sends_constant(self, transfer: Transfer) -> bool:
        """Return whether a copy to the host sends the broadcast of a constant, made outside of loops."""
        return sends_constant(self.module, transfer)

    def is_carried(self, number: int) -> bool:
        """Return whether a copy back inside a loop is only handed on to the next iteration: it was issued one iteration
        ahead."""
        return (
            number in self.first_uses
            and self.first_uses[number] is None
            and self.transfers[number].computation in self.loops
        )

    @property
    def optimization_level(self) -> int:
        """Return XLA's optimization level that the program was compiled with: a flag, or JAX's configuration, or 0 if
        unknown."""
        return optimization_level(self.report.program)

    @property
    def pipelined_by(self) -> str:
        """Return the setting that makes XLA pipeline the program's host transfers, in words, or "" where none is known.

        O1 does so in some versions only.
        """
        return pipelining_setting(self.report.program)

    @cached_property
    def is_pipelined(self) -> bool:
        """Return whether XLA carries some host transfer from one iteration of a loop to the next, or was configured
        to."""
        if self.pipelined_by:
            return True
        if any(self.is_carried(t.id) for t in self.transfers.values() if t.direction == H2D):
            return True
        return any(is_peeled(self.program, self.loops, written) for written, _ in self.by_buffer.values())

    @cached_property
    def at_memory_limit(self) -> bool:
        """Return whether the step needs all the device memory that XLA's scheduler allows it, or nearly."""
        memory = self.report.memory
        if memory.device_bytes is None or memory.device_limit_bytes is None:
            return False
        return memory.device_bytes >= SCHEDULER_MEMORY_SHARE * memory.device_limit_bytes

    @cached_property
    def by_buffer(self) -> Mapping[object, tuple[tuple[Transfer, ...], tuple[Transfer, ...]]]:
        """Return for each host buffer the transfers that write it and those that fetch from it."""
        return transfers_by_buffer(self.transfers.values())
