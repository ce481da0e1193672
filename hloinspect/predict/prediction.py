"""Times, verdicts and reasons of a program's transfers on a target."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from hloinspect.hardware.target import Target
from hloinspect.kinds import D2H, H2D, SYNCHRONOUS, UNKNOWN, Verdict, verdict_of
from hloinspect.offload.transfers import Offload, Transfer
from hloinspect.predict.durations import Durations
from hloinspect.predict.link import rates_of
from hloinspect.predict.reasons import Circumstances, Reason, circumstances, reason_of
from hloinspect.predict.scenario import Scenario, fair_queueing, scenarios
from hloinspect.predict.schedule import matrix_flops, schedule_of
from hloinspect.predict.simulate import Simulation, simulate, step_time_ps
from hloinspect.timeline.timeline import Overlap, StepTimes, Timeline, TransferTimes, overlap

MAX_COUNTERFACTUALS = 64
MANY_COUNTERFACTUALS = 6
"""The number of transfers for which ``gain if free`` is simulated: all of up to 64, otherwise the six longest waits."""


@dataclass(frozen=True, slots=True)
class TransferPrediction:
    """One transfer in a predicted step, in picoseconds per step.

    ``low_wait_ps`` and ``high_wait_ps`` span the scenarios. ``robust`` is false where the verdict differs between them.
    ``gain_if_free_ps`` is None where it was not simulated.
    """

    times: TransferTimes
    low_wait_ps: int
    high_wait_ps: int
    gain_if_free_ps: int | None
    queued_behind: int | None
    verdict: Verdict
    robust: bool
    reason: Reason


@dataclass(frozen=True, slots=True)
class Prediction:
    """A predicted step on one device, in picoseconds.

    ``cases_ps`` is the time of the step in each scenario, by its name. ``matrix_flops`` are those of a step: work on
    the matrix units, with recomputation.
    """

    target: Target
    devices: int
    timeline: Timeline
    step: StepTimes
    low_ps: int
    high_ps: int
    low_stall_ps: int
    high_stall_ps: int
    without_transfers_ps: int
    ideal_ps: int
    stall_d2h_ps: int
    stall_h2d_ps: int
    transfers: Mapping[int, TransferPrediction]
    opaque: tuple[str, ...]
    unsettled: tuple[str, ...]
    cases_ps: Mapping[str, int]
    matrix_flops: float


def predict(offload: Offload, target: Target, devices: int, domain: int) -> Prediction:
    """Predict the step of a program on ``devices`` devices of a target with a host link.

    ``domain`` devices reach each other over the nearest level of the interconnect. Raises ValueError if the target has
    no host link.
    """
    if target.link is None:
        raise ValueError(f"target {target.name} has no host link")
    schedule = schedule_of(offload, devices, domain)
    cases = scenarios(target, devices)
    durations = Durations(target, cases[0])
    runs = [simulate(schedule, target, cases[0], durations=durations)]
    others = [*cases[1:], *([fair_queueing(cases[0])] if runs[0].queued_behind else [])]
    runs += [simulate(schedule, target, case) for case in others]
    intervals = [overlap(run.timeline) for run in runs]
    central = intervals[0]

    def without(transfers: frozenset[int] | None) -> int:
        return round(step_time_ps(schedule, target, cases[0], transfers, durations))

    # Against the same clock: the timeline's is rounded to picoseconds in every segment, and a loop multiplies that.
    whole = without(frozenset())
    free = central.step.time_ps - (whole - without(None))
    around = circumstances(offload, rates_of(target.link, cases[0]), central.step.time_ps)
    gains = _gains(offload, central, whole, without)
    transfers = {
        transfer.id: _transfer(transfer, intervals, runs[0], gains.get(transfer.id), around)
        for transfer in offload.transfers
    }
    waits = {number: times.wait_ps for number, times in central.transfers.items()}
    by_direction = {d: sum(waits.get(t.id, 0) for t in offload.transfers if t.direction == d) for d in (D2H, H2D)}
    return Prediction(
        target=target,
        devices=devices,
        timeline=runs[0].timeline,
        step=central.step,
        low_ps=min(interval.step.time_ps for interval in intervals),
        high_ps=max(interval.step.time_ps for interval in intervals),
        low_stall_ps=min(interval.step.stall_ps for interval in intervals),
        high_stall_ps=max(interval.step.stall_ps for interval in intervals),
        without_transfers_ps=free,
        ideal_ps=_ideal(free, offload, central, target, cases[0]),
        stall_d2h_ps=by_direction[D2H],
        stall_h2d_ps=by_direction[H2D],
        transfers=transfers,
        opaque=schedule.opaque,
        unsettled=runs[0].unsettled,
        cases_ps={
            case.name: interval.step.time_ps for case, interval in zip([cases[0], *others], intervals, strict=True)
        },
        matrix_flops=matrix_flops(schedule, offload.program),
    )


def _ideal(free_ps: int, offload: Offload, central: Overlap, target: Target, scenario: Scenario) -> int:
    """Return the time of a step with perfect overlap, in picoseconds.

    It is the longest of compute, each direction of the link, and the host's memory. Transfers in a branch that the step
    does not take move nothing.
    """
    assert target.link is not None
    rates = rates_of(target.link, scenario)
    ran = [transfer for transfer in offload.transfers if transfer.id in central.transfers]
    moved = {d: sum(transfer.bytes_per_step for transfer in ran if transfer.direction == d) for d in (D2H, H2D)}
    times = [float(free_ps)]
    times += [moved[direction] / rates.alone[direction] for direction in (D2H, H2D)]
    if target.link.host_bytes_per_s is not None:
        times.append(sum(moved.values()) * scenario.sharers / target.link.host_bytes_per_s.value * 1e12)
    return round(max(times))


def _gains(
    offload: Offload, central: Overlap, whole_ps: int, without: Callable[[frozenset[int]], int]
) -> dict[int, int]:
    """Return for each transfer the time by which the step would be shorter if that transfer took none."""
    waits = {number: times.wait_ps for number, times in central.transfers.items()}
    order = sorted((t.id for t in offload.transfers), key=lambda number: -waits.get(number, 0))
    few = order[: MAX_COUNTERFACTUALS if len(order) <= MAX_COUNTERFACTUALS else MANY_COUNTERFACTUALS]
    return {number: max(0, whole_ps - without(frozenset({number}))) for number in few}


def _verdict(transfer: Transfer, times: TransferTimes, gain: int | None) -> Verdict:
    if not transfer.asynchronous:
        return SYNCHRONOUS
    if transfer.done is None or _did_not_run(transfer, times):
        return UNKNOWN
    return verdict_of(times.duration_ps, times.cover_ps, times.wait_ps, gain)


def _did_not_run(transfer: Transfer, times: TransferTimes) -> bool:
    """Return whether a transfer lies in a branch that the scenario does not take. It costs nothing there, and proves
    nothing."""
    return transfer.bytes_per_step > 0 and times.duration_ps == 0


def _transfer(
    transfer: Transfer, intervals: list[Overlap], central: Simulation, gain: int | None, around: Circumstances
) -> TransferPrediction:
    nothing = TransferTimes()
    cases = [interval.transfers.get(transfer.id, nothing) for interval in intervals]
    times = cases[0]
    verdict = _verdict(transfer, times, gain)
    behind = central.queued_behind.get(transfer.id)
    return TransferPrediction(
        times=times,
        low_wait_ps=min(case.wait_ps for case in cases),
        high_wait_ps=max(case.wait_ps for case in cases),
        gain_if_free_ps=gain,
        queued_behind=behind,
        verdict=verdict,
        robust=all(_verdict(transfer, case, gain) == verdict for case in cases),
        reason=reason_of(transfer, verdict, times, central.windows.get(transfer.id), behind, around),
    )
