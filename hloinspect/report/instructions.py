"""The instructions of a report on a trace: measured times of all devices, and predicted ones beside them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from hloinspect.kinds import COLLECTIVE_CLASSES, InstructionClass
from hloinspect.measure.figures import Floats
from hloinspect.measure.instructions import InstructionTimes, percentiles
from hloinspect.measure.measured import MeasuredDevice, MeasuredFile
from hloinspect.measure.skew import Skew, collective_skew
from hloinspect.predict.prices import Price as Predicted
from hloinspect.report.schema import (
    ClassTimes,
    DeviceSkew,
    InstructionsInfo,
    InstructionTime,
    PredictedTime,
    SourceInfo,
)
from hloinspect.units import PS_PER_MS

MAX_LARGEST = 100
"""Instructions in a report."""

_Key = tuple[int, str]


@dataclass(frozen=True, slots=True)
class _Pooled:
    """The instructions of all devices: columns with an element for each, times in ps of one execution or one step."""

    keys: tuple[_Key, ...]
    programs: tuple[int, ...]
    classes: tuple[InstructionClass, ...]
    steps: int
    executions: Floats
    kernels: Floats
    total: Floats
    p10: Floats
    median: Floats
    p90: Floats


def instructions_info(
    files: Sequence[MeasuredFile],
    prices: Mapping[str, Predicted] | None,
    whole_groups: Callable[[str], bool],
    source_of: Callable[[str], SourceInfo | None],
) -> InstructionsInfo | None:
    """Return the times of the instructions of these traces, or None where they name none in a step that counts.

    ``prices`` are predictions by name. ``whole_groups`` says of a collective whether all devices take part in it
    together, ``source_of`` gives the user's line of an instruction. All three are of the step's module: another
    program of the step may have instructions of the same names.
    """
    devices = [(file, device) for file in files for device in file.devices]
    tables = [(device, table) for _, device in devices if (table := device.instructions) is not None]
    if not tables:
        return None
    pooled = _pooled(tables)
    names = [name for (_, name), kind in zip(pooled.keys, pooled.classes, strict=True) if kind in COLLECTIVE_CLASSES]
    skews = collective_skew([file.devices for file in files], frozenset(filter(whole_groups, names)))
    rows = [_row(pooled, place, prices, skews, len(devices)) for place in range(len(pooled.keys))]
    order = sorted(range(len(rows)), key=lambda place: (-rows[place].total_ms, rows[place].name))
    largest = [
        rows[place] if pooled.keys[place][0] else replace(rows[place], source=source_of(rows[place].name))
        for place in order[:MAX_LARGEST]
    ]
    rest = [rows[place] for place in order[MAX_LARGEST:]]
    compared = [row for row in rows if row.predicted is not None]
    inside = [row for row in compared if is_inside(row)]
    spent = sum(map(_own_ms, compared))
    return InstructionsInfo(
        steps=pooled.steps,
        total_ms=sum(row.total_ms for row in rows),
        classes=_classes(rows),
        largest=tuple(largest),
        others=len(rest),
        others_ms=sum(row.total_ms for row in rest),
        skew_by_device=_by_device([(file.host, device.name) for file, device in devices], skews),
        compared=len(compared),
        inside=len(inside),
        inside_share=sum(map(_own_ms, inside)) / spent if spent else None,
    )


def is_inside(row: InstructionTime) -> bool:
    """Return whether the measured time of an instruction is inside the predicted range."""
    found = row.least_ms if row.least_ms is not None else row.median_ms
    return row.predicted is not None and row.predicted.low_ms <= found <= row.predicted.high_ms


def _own_ms(row: InstructionTime) -> float:
    """Return an instruction's time of a step without skew."""
    return row.total_ms - (row.skew_ms or 0.0)


def _pooled(tables: Sequence[tuple[MeasuredDevice, InstructionTimes]]) -> _Pooled:
    numbers: dict[_Key, int] = {}
    programs: list[int] = []
    classes: list[InstructionClass] = []
    values, weights, groups = [], [], []
    sums: list[tuple[np.ndarray[tuple[int], np.dtype[np.int64]], InstructionTimes]] = []
    for device, table in tables:
        own = np.zeros(len(table.names), np.int64)
        for place, (name, program) in enumerate(zip(table.names, table.programs, strict=True)):
            key = (0 if program == device.program else program, name)
            if key not in numbers:
                programs.append(program)
                classes.append(table.classes[place])
            own[place] = numbers.setdefault(key, len(numbers))
        kept = np.diff(table.first)
        values.append(table.sample_ps)
        weights.append(np.repeat(table.executions / np.maximum(kept, 1), kept))
        groups.append(np.repeat(own, kept))
        sums.append((own, table))
    executions, events, total = (np.zeros(len(numbers)) for _ in range(3))
    for own, table in sums:
        np.add.at(executions, own, table.executions)
        np.add.at(events, own, table.events)
        np.add.at(total, own, table.total_ps)
    steps = sum(table.steps for _, table in tables)
    low, median, high = percentiles(
        np.concatenate(values), np.concatenate(weights), np.concatenate(groups), len(numbers), (0.1, 0.5, 0.9)
    )
    return _Pooled(
        keys=tuple(numbers),
        programs=tuple(programs),
        classes=tuple(classes),
        steps=steps,
        executions=executions / steps,
        kernels=events / np.maximum(executions, 1),
        total=total / steps,
        p10=low,
        median=median,
        p90=high,
    )


def _row(
    pooled: _Pooled, place: int, prices: Mapping[str, Predicted] | None, skews: Mapping[str, Skew], devices: int
) -> InstructionTime:
    other, name = pooled.keys[place]
    skew = skews.get(name) if not other else None
    price = prices.get(name) if prices is not None and not other else None
    executions, total = float(pooled.executions[place]), float(pooled.total[place]) / PS_PER_MS
    median = float(pooled.median[place]) / PS_PER_MS
    least = float(np.median(skew.least_ps)) / PS_PER_MS if skew is not None else None
    predicted = (
        PredictedTime(price.time_ps / PS_PER_MS, price.low_ps / PS_PER_MS, price.high_ps / PS_PER_MS) if price else None
    )
    waits = min(total, sum(skew.skew_ps.values()) / devices / PS_PER_MS) if skew is not None else None
    found = least if least is not None else median
    return InstructionTime(
        name=name,
        kind=pooled.classes[place],
        program_id=pooled.programs[place],
        source=None,
        executions=executions,
        kernels=float(pooled.kernels[place]),
        median_ms=median,
        p10_ms=float(pooled.p10[place]) / PS_PER_MS,
        p90_ms=float(pooled.p90[place]) / PS_PER_MS,
        mean_ms=total / executions if executions else 0.0,
        total_ms=total,
        skew_ms=waits,
        least_ms=least,
        predicted=predicted,
        ratio=found / predicted.time_ms if predicted and predicted.time_ms > 0 else None,
    )


def _classes(rows: Sequence[InstructionTime]) -> tuple[ClassTimes, ...]:
    found: dict[InstructionClass, list[InstructionTime]] = {}
    for row in rows:
        found.setdefault(row.kind, []).append(row)
    classes = [_class(kind, own) for kind, own in found.items()]
    return tuple(sorted(classes, key=lambda one: (-one.total_ms, one.kind)))


def _class(kind: InstructionClass, rows: Sequence[InstructionTime]) -> ClassTimes:
    priced = [(row, row.predicted) for row in rows if row.predicted is not None]
    sums = [
        sum(getattr(price, side) * row.executions for row, price in priced) for side in ("time_ms", "low_ms", "high_ms")
    ]
    skews = [row.skew_ms for row in rows if row.skew_ms is not None]
    own = sum(_own_ms(row) for row, _ in priced)
    return ClassTimes(
        kind=kind,
        instructions=len(rows),
        executions=sum(row.executions for row in rows),
        total_ms=sum(row.total_ms for row in rows),
        skew_ms=sum(skews) if skews else None,
        predicted=PredictedTime(*sums) if priced else None,
        ratio=own / sums[0] if priced and sums[0] > 0 else None,
        inside=sum(is_inside(row) for row, _ in priced),
        unpredicted_ms=sum(row.total_ms for row in rows if row.predicted is None),
    )


def _by_device(devices: Sequence[tuple[str, str]], skews: Mapping[str, Skew]) -> tuple[DeviceSkew, ...]:
    total: dict[int, float] = {}
    for skew in skews.values():
        for place, time in skew.skew_ps.items():
            total[place] = total.get(place, 0.0) + time
    found = [DeviceSkew(devices[place][1], devices[place][0], time / PS_PER_MS) for place, time in total.items()]
    return tuple(sorted(found, key=lambda one: (one.skew_ms, one.host, one.device)))
