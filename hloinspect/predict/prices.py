"""Predicted time of each instruction by itself, to be compared with what a profile shows of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from hloinspect.hardware.target import Target
from hloinspect.kinds import D2H, H2D
from hloinspect.offload.transfers import Offload
from hloinspect.predict.cost import Cost
from hloinspect.predict.link import rates_of
from hloinspect.predict.scenario import Scenario, scenarios
from hloinspect.predict.schedule import (
    BlockingCollective,
    BlockingHostCopy,
    BlockingTransfer,
    Operation,
    StartCollective,
    StartHostCopy,
    StartSide,
    StartTransfer,
    operations_of,
)


@dataclass(frozen=True, slots=True)
class Price:
    """The time of one execution of an instruction that has the device and its link to itself, in ps.

    ``low_ps`` and ``high_ps`` span the scenarios. The low one has no interval between launches, as a profile times a
    kernel without it.
    """

    time_ps: float
    low_ps: float
    high_ps: float


def instruction_prices(offload: Offload, target: Target, devices: int, domain: int) -> Mapping[str, Price]:
    """Return the price of each instruction of a program that takes time, by name.

    Loops, branches and waits have none. On a TPU an async start has none either: a profile shows only the wait.
    """
    is_tpu = offload.program.module.platform == "tpu"
    cases = scenarios(target, devices)
    unlaunched = replace(target, launch_us=replace(target.launch_us, value=0.0))
    found: dict[str, Price] = {}
    known: dict[Cost, Price | None] = {}
    for name, operation in operations_of(offload, devices, domain).items():
        if is_tpu and isinstance(operation, (StartTransfer, StartCollective, StartSide, StartHostCopy)):
            continue
        key = operation.cost if isinstance(operation, StartSide) else operation
        if isinstance(key, Cost):
            if key not in known:
                known[key] = _price(key, target, unlaunched, cases)
            price = known[key]
        else:
            price = _price(key, target, unlaunched, cases)
        if price is not None:
            found[name] = price
    return found


def _price(
    operation: Operation | Cost, target: Target, unlaunched: Target, cases: tuple[Scenario, ...]
) -> Price | None:
    times = [_time_ps(operation, target, case) for case in cases]
    lows = [_time_ps(operation, unlaunched, case) for case in cases]
    central = times[0]
    if central is None:
        return None
    return Price(central, min(t for t in lows if t is not None), max(t for t in times if t is not None))


def _time_ps(operation: Operation | Cost, target: Target, case: Scenario) -> float | None:
    match operation:
        case Cost():
            return operation.time_ps(target, case)
        case StartCollective() | BlockingCollective():
            return operation.collective.time_ps(target, case.collective_efficiency, case.figures)
        case StartTransfer() | BlockingTransfer() | StartHostCopy() | BlockingHostCopy():
            return _moved_ps(operation, target, case)
        case _:
            return None


def _moved_ps(
    operation: StartTransfer | BlockingTransfer | StartHostCopy | BlockingHostCopy, target: Target, case: Scenario
) -> float | None:
    if target.link is None:
        return None
    rates = rates_of(target.link, case)
    if isinstance(operation, (StartTransfer, BlockingTransfer)):
        moved = operation.transfer
        time = rates.latency_ps + moved.bytes / rates.alone[moved.direction]
        work = operation.work if isinstance(operation, BlockingTransfer) else None
        return max([time, *(cost.time_ps(target, case) for cost in (work.costs if work else ()))])
    if isinstance(operation, StartHostCopy):
        return rates.latency_ps + operation.copy.bytes / rates.alone[H2D]
    return operation.copy.bytes / 2 / min(rates.both[D2H], rates.both[H2D])
