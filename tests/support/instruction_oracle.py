"""Times of instructions and skew of collectives, from plain lists: slow, and without any code of hloinspect."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Happened:
    """An event of an instruction (""  for none) in a step (-1 for none), in ps."""

    start_ps: int
    end_ps: int
    instruction: str
    step: int


@dataclass(slots=True)
class Expected:
    """What is to be said of one instruction. ``rows`` has its executions in each step that counts, in order."""

    executions: list[int] = field(default_factory=list)
    events: int = 0
    total_ps: int = 0
    rows: list[list[int]] = field(default_factory=list)


def instructions(events: Sequence[Happened], clean: Sequence[bool], runs: Mapping[str, int]) -> dict[str, Expected]:
    """Return the times of every instruction. ``runs`` is how often each runs in a step by its module, 0 if unknown."""
    steps = [step for step, counts in enumerate(clean) if counts]
    by_cell: dict[tuple[str, int], list[int]] = defaultdict(list)
    for event in sorted(events, key=lambda one: one.start_ps):
        if event.instruction and event.step in steps:
            by_cell[event.instruction, event.step].append(event.end_ps - event.start_ps)
    found: dict[str, Expected] = {}
    for name in {name for name, _ in by_cell}:
        cells = [by_cell.get((name, step), []) for step in steps]
        sizes = {len(cell) for cell in cells}
        each = runs.get(name, 0)
        size = next(iter(sizes)) // each if len(sizes) == 1 and each and next(iter(sizes)) % each == 0 else 1
        rows = [[sum(cell[at : at + size]) for at in range(0, len(cell), size)] for cell in cells]
        times = sorted(time for row in rows for time in row)
        found[name] = Expected(times, sum(map(len, cells)), sum(times), rows)
    return found


def skew(rows: Sequence[Mapping[str, Sequence[int]]]) -> tuple[list[int], list[float]]:
    """Return the least time over devices of every execution, and for each device the mean skew of a step.

    ``rows`` has for each device the executions of a collective in each step, by a name of the step. A step counts if
    all devices have it.
    """
    shared = sorted(set(rows[0]).intersection(*rows[1:]))
    least = [min(device[step][at] for device in rows) for step in shared for at in range(len(rows[0][step]))]
    waits = []
    for device in rows:
        waits.append(
            statistics.fmean(
                sum(device[step][at] - min(other[step][at] for other in rows) for at in range(len(device[step])))
                for step in shared
            )
            if shared
            else 0.0
        )
    return least, waits


def percentile(values: Sequence[int], weights: Sequence[int], share: float) -> float:
    """Return the value below which a share of the weights lies, from a list with each value as often as it weighs."""
    every = sorted(value for value, weight in zip(values, weights, strict=True) for _ in range(weight))
    place = share * len(every)
    whole = round(place)
    if abs(place - whole) < 1e-6:
        return (every[max(whole - 1, 0)] + every[min(whole, len(every) - 1)]) / 2
    return float(every[int(place)])
