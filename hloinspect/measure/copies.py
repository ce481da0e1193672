"""Copies between host and device that are no transfers of the step, and how they share the link with those that are.

A direction of the link is one queue: what a checkpoint, the input or another program copies while a transfer of the
step runs in the same direction takes bandwidth from it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass

import numpy as np

from hloinspect.kinds import D2H, H2D, CopyOrigin, Direction, HostMemory
from hloinspect.measure import events
from hloinspect.measure.events import DeviceEvents, Op
from hloinspect.measure.figures import Floats, weighted_percentiles
from hloinspect.measure.measured import MeasuredDevice, OtherCopies
from hloinspect.measure.overlap import BOTH, FROM_HOST, TO_HOST, Moves, company
from hloinspect.timeline.spans import Ints, Spans, union

_OURS, _IGNORED = -1, -2
_DIRECTIONS = {
    **dict.fromkeys((events.TO_HOST, events.OTHER_TO_HOST), TO_HOST),
    **dict.fromkeys((events.FROM_HOST, events.OTHER_FROM_HOST), FROM_HOST),
    events.HOST_COPY: BOTH,
}
_NAMES: dict[int, Direction] = {TO_HOST: D2H, FROM_HOST: H2D}


@dataclass(frozen=True, slots=True)
class CopyKey:
    """What the copies of a row have in common. ``program`` is the number of the other program, else 0."""

    direction: Direction
    memory: HostMemory
    origin: CopyOrigin
    program: int = 0


@dataclass(frozen=True, slots=True)
class CopySample:
    """The copies of one row on one device, in ps. ``rates`` in bytes a second and ``sizes`` are of those that ran
    alone."""

    key: CopyKey
    count: int
    bytes: int
    device_ps: int
    shared_ps: int
    in_steps_ps: int | None
    rates: Floats
    sizes: Floats


def copy_samples(
    found: DeviceEvents, programs: Collection[int], device: MeasuredDevice | None, most_bytes_per_s: float
) -> list[CopySample]:
    """Return the other copies of one device.

    ``programs`` are those of the step, ``device`` its steps. A copy faster than ``most_bytes_per_s`` (0: not known)
    cannot be true and gives no rate.
    """
    keys: dict[CopyKey, int] = {}
    row_of_op = np.array([_row(op, programs, keys) for op in found.ops], np.int64)
    if not keys:
        return []
    chosen = found.chosen(row_of_op != _IGNORED)
    op = found.op[chosen]
    start, end, row = found.start_ps[chosen], found.end_ps[chosen], row_of_op[op]
    direction = np.array([_DIRECTIONS.get(one.kind, BOTH) for one in found.ops], np.int64)[op]
    size = found.table("bytes")[op]
    none = np.zeros(len(op), np.int64)
    alone, _ = company(Moves(start, end, none, direction, none, size, none))
    time = end - start
    rate = size.astype(np.float64) * 1e12 / np.maximum(time, 1)
    counted = alone & (time > 0) & (size > 0)
    if most_bytes_per_s:
        counted &= rate <= most_bytes_per_s
    ours = [
        union(start[mine], end[mine])
        for mine in ((row == _OURS) & (direction != other) for other in (FROM_HOST, TO_HOST))
    ]
    steps = union(device.start_ps, device.end_ps) if device is not None else None
    order = np.argsort(row, kind="stable")
    bounds = np.searchsorted(row[order], np.arange(len(keys) + 1))
    samples = []
    for number, key in enumerate(keys):
        these = order[bounds[number] : bounds[number + 1]]
        if not len(these):
            continue
        its = ours[TO_HOST if key.direction == D2H else FROM_HOST]
        measured = these[counted[these]]
        samples.append(
            CopySample(
                key,
                len(these),
                int(size[these].sum()),
                int(time[these].sum()),
                _inside(its, start[these], end[these]),
                _inside(steps, start[these], end[these]) if steps is not None else None,
                rate[measured],
                size[measured].astype(np.float64),
            )
        )
    return samples


def _inside(spans: Spans, start: Ints, end: Ints) -> int:
    return int(spans.within(start, end).sum())


def _row(op: Op, programs: Collection[int], keys: dict[CopyKey, int]) -> int:
    """Return the number of the row of an op's events, which is new if it is the first one."""
    if op.kind not in _DIRECTIONS:
        return _IGNORED
    is_of_step = op.program in programs
    if op.kind in events.MOVES and is_of_step:
        return _OURS
    direction = _NAMES.get(_DIRECTIONS[op.kind])
    if direction is None:  # a copy of another program within host memory
        return _IGNORED
    origin: CopyOrigin = "eager" if not op.program else "callback" if is_of_step else "program"
    key = CopyKey(direction, op.memory, origin, op.program if origin == "program" else 0)
    return keys.setdefault(key, len(keys))


def other_copies(samples: Iterable[CopySample], name_of: Callable[[int], str]) -> tuple[OtherCopies, ...]:
    """Return the rows over all devices, those that took the longest first. ``name_of`` gives the name of a program."""
    rows: dict[CopyKey, list[CopySample]] = {}
    for sample in samples:
        rows.setdefault(sample.key, []).append(sample)
    found = [_summed(key, own, name_of) for key, own in rows.items()]
    return tuple(sorted(found, key=lambda row: (-row.device_ps, row.direction, row.memory, row.origin, row.program)))


def _summed(key: CopyKey, samples: list[CopySample], name_of: Callable[[int], str]) -> OtherCopies:
    rates = np.concatenate([sample.rates for sample in samples])
    sizes = np.concatenate([sample.sizes for sample in samples])
    in_steps = [sample.in_steps_ps for sample in samples if sample.in_steps_ps is not None]
    return OtherCopies(
        direction=key.direction,
        count=sum(sample.count for sample in samples),
        bytes=sum(sample.bytes for sample in samples),
        device_ps=sum(sample.device_ps for sample in samples),
        memory=key.memory,
        origin=key.origin,
        program=name_of(key.program) if key.program else "",
        shared_ps=sum(sample.shared_ps for sample in samples),
        in_steps_ps=sum(in_steps) if in_steps else None,
        bytes_per_s=weighted_percentiles(rates, sizes, (0.5,))[0] if len(rates) else None,
        alone_bytes=int(sizes.sum()),
    )
