"""Reasons why a transfer is not hidden: what limits it, by how much, and what would fit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from hloinspect.hlo.model import Computation
from hloinspect.kinds import D2H, H2D, HIDDEN, HIDDEN_SHARE, SYNCHRONOUS, UNKNOWN, Binding, Direction, Verdict
from hloinspect.offload.transfers import Offload, Transfer
from hloinspect.predict.link import Rates
from hloinspect.predict.simulate import Window
from hloinspect.timeline.timeline import TransferTimes
from hloinspect.units import PS_PER_MS

WINDOW: Final = "window"
QUEUE: Final = "queue"
LINK: Final = "link"
BARRIER: Final = "barrier"
COLLECTIVE: Final = "collective"
ELSEWHERE: Final = "elsewhere"

SATURATED_SHARE = 0.95
"""The share of the step from which on no schedule can hide a direction of the link that is busy for it."""


@dataclass(frozen=True, slots=True)
class Reason:
    """The reason of a transfer's verdict.

    ``binding`` is the limit: window (too little between start and done), queue (it waits for others), link (its
    direction is busy for the whole step), barrier (a rematerialization barrier holds the layer until all its residuals
    are back), collective (only a collective covers it), elsewhere (the device waits for something else meanwhile),
    synchronous. It is "" for a hidden transfer or where nothing can be said. ``missing_ps`` is how much longer its
    window would have to be, each time, or how much more work would have to run in it (collective, elsewhere).
    ``largest_hidden_bytes`` is what its window could hide; ``needed_bytes_per_s`` the link that would hide it.
    """

    text: str
    binding: Binding | Literal[""] = ""
    missing_ps: float | None = None
    largest_hidden_bytes: int | None = None
    needed_bytes_per_s: float | None = None


def has_remat_barrier(computation: Computation) -> bool:
    """Return whether a computation comes from ``jax.checkpoint`` with its barrier.

    The sign is an instruction whose op_name ends in ``remat2`` (jax.ad_checkpoint's primitive; with prevent_cse=False
    none is left).
    """
    return any(
        computation.instruction(index).metadata.op_name.endswith("/remat2")
        for index in computation.mentioning('remat2"')
    )


def saturated_directions(offload: Offload, rates: Rates, step_ps: float) -> frozenset[Direction]:
    """Return the directions whose bytes alone take (nearly) the whole step."""
    busy: dict[Direction, float] = {d: offload.bytes_per_step(d) / rates.alone[d] for d in (D2H, H2D)}
    return frozenset(direction for direction, time in busy.items() if time >= SATURATED_SHARE * step_ps)


@dataclass(frozen=True, slots=True)
class Circumstances:
    """Facts of a step from which the reasons of all its transfers follow."""

    rates: Rates
    saturated: frozenset[Direction]
    barriers: frozenset[str]  # computations


def circumstances(offload: Offload, rates: Rates, step_ps: float) -> Circumstances:
    """Return the circumstances of a step."""
    module = offload.program.module
    waiting = {t.done_computation for t in offload.transfers if t.direction == H2D and t.done_computation}
    barriers = {name for name in waiting if has_remat_barrier(module.computations[name])}
    return Circumstances(rates, saturated_directions(offload, rates, step_ps), frozenset(barriers))


def reason_of(
    transfer: Transfer,
    verdict: Verdict,
    times: TransferTimes,
    window: Window | None,
    behind: int | None,
    around: Circumstances,
) -> Reason:
    """Return the reason of one verdict."""
    if transfer.executions == 0:
        return Reason("its loop has no iterations")
    if transfer.bytes_per_step > 0 and times.duration_ps == 0:
        return Reason("it lies in a branch of a conditional that the prediction does not take")
    takes_ms = times.duration_ps / transfer.executions / PS_PER_MS
    if verdict == UNKNOWN:
        return Reason("no done was found for its start, so it is not known when it is waited for")
    if verdict == SYNCHRONOUS:
        text = f"it has no start and done: the main stream does nothing else for {takes_ms:.3g} ms each time"
        return Reason(text, SYNCHRONOUS)
    if verdict == HIDDEN:
        return Reason("compute or collectives cover it")
    if times.cover_ps >= HIDDEN_SHARE * times.duration_ps:
        wait_ps = times.wait_ps / transfer.executions
        text = f"only a collective covers it while the main stream waits {wait_ps / PS_PER_MS:.3g} ms for it each time"
        return _sized(text, COLLECTIVE, transfer, window, around.rates, wait_ps)
    if times.wait_ps == 0:
        bare_ps = times.exposed_ps / transfer.executions
        text = "it runs while the main stream waits for something else, and nothing computes"
        return _sized(text, ELSEWHERE, transfer, window, around.rates, bare_ps)
    return _short_window(transfer, takes_ms, window, behind, around)


def _short_window(
    transfer: Transfer, takes_ms: float, window: Window | None, behind: int | None, around: Circumstances
) -> Reason:
    length_ms = window.length_ps / PS_PER_MS if window is not None else 0.0
    if length_ms < 0.005 * takes_ms:
        text = f"it is waited for as soon as it is started, and takes {takes_ms:.3g} ms"
    else:
        text = f"its window of {length_ms:.3g} ms is too short for a copy of {takes_ms:.3g} ms"
    binding: Binding = WINDOW
    alone_ps = around.rates.latency_ps + transfer.bytes / around.rates.alone[transfer.direction]
    if transfer.direction in around.saturated:
        binding = LINK
        text += "; its direction of the link is busy for the whole step"
    elif behind is not None and window is not None and window.ahead_bytes > 0 and alone_ps <= window.length_ps:
        binding = QUEUE
        text = f"it queues behind transfer {behind}: alone its window of {length_ms:.3g} ms would be long enough"
    elif transfer.direction == H2D and transfer.done_computation in around.barriers:
        binding = BARRIER
        text += "; a rematerialization barrier holds its layer until all residuals are back"
    elif behind is not None:
        text += f", and it queues behind transfer {behind}"
    return _sized(text, binding, transfer, window, around.rates)


def _sized(
    text: str, binding: Binding, transfer: Transfer, window: Window | None, rates: Rates, least_ps: float = 0.0
) -> Reason:
    """Return a reason with its sizes: what is missing (at least ``least_ps``), what would fit, and which link would
    suffice."""
    if window is None:
        return Reason(text, binding, least_ps or None)
    rate = rates.alone[transfer.direction]
    usable_ps = window.length_ps - rates.latency_ps
    needed_ps = rates.latency_ps + (transfer.bytes + window.ahead_bytes) / rate
    return Reason(
        text=text,
        binding=binding,
        missing_ps=max(least_ps, needed_ps - window.length_ps),
        largest_hidden_bytes=max(0, int(usable_ps * rate - window.ahead_bytes)),
        needed_bytes_per_s=(transfer.bytes + window.ahead_bytes) / (usable_ps / 1e12) if usable_ps > 0 else None,
    )
