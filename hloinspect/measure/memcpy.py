"""Rates of host copies on a GPU, from the memcpy events of its trace.

CUPTI times each copy on its engine and names the memory at both ends (``memcpy_details``). The HLO instruction of a
copy does not matter here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from hloinspect.kinds import D2H, H2D, Direction, HostMemory
from hloinspect.measure.figures import (
    DUPLEX,
    LATENCY,
    RATES,
    Floats,
    LeftOut,
    MeasuredFigure,
    Measurement,
    weighted_percentiles,
)
from hloinspect.profiles.xplane import Plane
from hloinspect.timeline.intervals import union
from hloinspect.timeline.spans import Ints

LARGE_BYTES = 1 << 23
"""The size from which on copies give a rate: 37 us at 225 GB/s, of which starting up is a twentieth."""

MIN_COPIES = 3
"""The least number of copies for a figure."""

ALONE_SHARE, TOGETHER_SHARE = 0.02, 0.5
"""The shares of a copy's time for which the other direction is busy: at most 2 % if it is alone, half or more if
together."""

FIT_COPIES, FIT_SIZES, FIT_SPAN = 8, 3, 16.0
"""The least evidence for a start-up time: the number of copies, of their sizes, and the ratio of the largest to the
smallest size."""

FIT_POINTS = 400
PINNED: Final = "pinned"
PAGEABLE: Final = "pageable"
MANAGED: Final = "managed"
UNSTATED: Final = "unstated"
ROCM = (
    "a ROCm trace does not show copies between device and host: roctracer (JAX <= 0.7) calls every copy "
    "CopyDeviceToDevice, JAX 0.8 to 0.10 drops the device's copy events, and later ones do not name the memory at both "
    "ends (kind:Unknown)"
)
_DEVICE = frozenset({"device", "device_static"})
_HOST: Mapping[str, HostMemory] = {"pinned": PINNED, "pageable": PAGEABLE}
_EITHER: Mapping[str, HostMemory] = {"managed": MANAGED, "managed_static": MANAGED, "unknown": UNSTATED}
"""Memory that does not show by its kind on which side it is: the name of the copy has the direction then."""

_OLD_NAMES: Mapping[str, Direction] = {"MemcpyH2D": H2D, "MemcpyD2H": D2H}


@dataclass(frozen=True, slots=True)
class CopyKind:
    """The content of ``memcpy_details``: direction, host memory (unstated in old traces), and bytes."""

    direction: Direction
    memory: HostMemory
    bytes: int


def copy_kind(details: str, name: str) -> CopyKind | None:
    """Return what the details of a copy say, or None for a copy that is not (known to be) between host and device.

    They are tokens like ``kind_src:device kind_dst:pinned size:4096 dest:0 async:1``, or before 2021 ``size:N dest:D
    async:B``, where the event's ``name`` has the direction.
    """
    tokens = dict(token.split(":", 1) for token in details.split() if ":" in token)
    size = tokens.get("size", "")
    if not (size.isascii() and size.isdecimal() and len(size) < 16):
        return None
    if "kind_src" not in tokens and "kind" not in tokens:
        direction = _OLD_NAMES.get(name)
        return CopyKind(direction, UNSTATED, int(size)) if direction else None
    source, destination = tokens.get("kind_src", ""), tokens.get("kind_dst", "")
    if source in _DEVICE and destination in _HOST:
        return CopyKind(D2H, _HOST[destination], int(size))
    if source in _HOST and destination in _DEVICE:
        return CopyKind(H2D, _HOST[source], int(size))
    direction = _OLD_NAMES.get(name)
    if direction is not None and (source in _EITHER or destination in _EITHER):
        near, far = (destination, source) if direction == D2H else (source, destination)
        memory = _HOST.get(near) or _EITHER.get(near) or _EITHER.get(far)
        return CopyKind(direction, memory, int(size)) if memory is not None else None
    return None


def is_rocm(plane: Plane) -> bool:
    """Return whether a device plane is AMD's."""
    return plane.stats.get("device_vendor") == "AMD" or any("(Kernel" in line.name for line in plane.lines)


@dataclass(frozen=True, slots=True)
class Copies:
    """The host copies of one device, sorted by start.

    ``direction`` is 0 for d2h and 1 for h2d; ``memory`` is an index into (pinned, pageable, managed, unstated).
    ``other`` counts memory copies that are not between host and device, ``impossible`` those that were set aside.
    """

    start_ps: Ints
    end_ps: Ints
    bytes: Ints
    direction: Ints
    memory: Ints
    other: int
    impossible: int = 0


_DIRECTIONS: tuple[Direction, ...] = (D2H, H2D)
_MEMORIES: tuple[HostMemory, ...] = (PINNED, PAGEABLE, MANAGED, UNSTATED)


def host_copies(plane: Plane) -> Copies:
    """Return the host copies in the trace of one GPU. Raises InputError where its events are damaged."""
    parts: list[tuple[Ints, ...]] = []
    other = 0
    for line in plane.lines:
        columns = line.columns(("memcpy_details",))
        codes, labels = columns.stats["memcpy_details"].labels()
        chosen = np.flatnonzero((codes >= 0) & columns.usable)
        kinds: dict[tuple[int, int], CopyKind | None] = {}
        rows: list[tuple[int, int, int, int]] = []
        for event, code, number in zip(
            chosen.tolist(), codes[chosen].tolist(), columns.metadata_id[chosen].tolist(), strict=True
        ):
            if (code, number) not in kinds:
                known = plane.events.get(number)
                kinds[code, number] = copy_kind(labels[code], known.name if known else "")
            kind = kinds[code, number]
            if kind is None:
                other += 1
            elif kind.bytes > 0:
                rows.append((event, kind.bytes, _DIRECTIONS.index(kind.direction), _MEMORIES.index(kind.memory)))
        table = np.array(rows, np.int64).reshape(-1, 4)
        events = table[:, 0]
        parts.append((columns.start_ps[events], columns.end_ps[events], table[:, 1], table[:, 2], table[:, 3]))
    empty = tuple(np.zeros(0, np.int64) for _ in range(5))
    start, end, size, direction, memory = (np.concatenate(column) for column in zip(empty, *parts, strict=True))
    order = np.lexsort((end, start))
    order = order[end[order] > start[order]]
    return Copies(start[order], end[order], size[order], direction[order], memory[order], other)


@dataclass(frozen=True, slots=True)
class _Sample:
    """Copies of one direction and memory. ``other`` is the share of a copy's time in which the other direction ran.

    It has no copies that shared their direction with another one.
    """

    time_ps: Floats
    bytes: Floats
    other: Floats


def measure_copies(devices: Iterable[Copies], most_bytes_per_s: float) -> Measurement:
    """Measure the rates of host copies: each direction alone, the factor with both on, and the start-up time of a copy.

    Each is a median over large copies of all devices, from pinned memory where there are such, else from memory that an
    old trace does not name. Pageable memory, which no offload uses, is only in the notes. Copies faster than
    ``most_bytes_per_s``, the rate of the device's own memory, cannot be true and are set aside.
    """
    every = [_possible(device, most_bytes_per_s) for device in devices]
    samples = {(d, m): _sample(every, d, m) for d in _DIRECTIONS for m in _MEMORIES}
    notes = [note for d in _DIRECTIONS if (note := _pageable_note(d, samples[d, PAGEABLE]))]
    if other := sum(device.other for device in every):
        notes.append(f"{other:,} copies are within device memory, or of memory that is not known: not measured")
    if impossible := sum(device.impossible for device in every):
        notes.append(f"{impossible:,} copies are faster than the device's own memory and were set aside")
    if not any(len(device.bytes) for device in every):
        reason = "the trace has no copy between host and device"
        return Measurement(
            left=tuple(LeftOut(key, reason) for key in (*RATES.values(), DUPLEX, LATENCY)), notes=tuple(notes)
        )
    memories = {d: _best(samples, d) for d in _DIRECTIONS}
    chosen = {d: samples[d, memory] for d, memory in memories.items()}
    latencies = {d: _latency(sample) for d, sample in chosen.items()}
    found: list[MeasuredFigure | LeftOut] = [_rate(d, memories[d], chosen[d], latencies[d]) for d in _DIRECTIONS]
    rates = {d: one.value for d, one in zip(_DIRECTIONS, found, strict=True) if isinstance(one, MeasuredFigure)}
    found += [_duplex(chosen, rates, latencies), _start_up(latencies)]
    return Measurement(
        tuple(one for one in found if isinstance(one, MeasuredFigure)),
        tuple(one for one in found if isinstance(one, LeftOut)),
        tuple(notes),
    )


def _possible(device: Copies, most_bytes_per_s: float) -> Copies:
    time = device.end_ps - device.start_ps
    keep = device.bytes * 1e12 <= most_bytes_per_s * time
    start, end, size, direction, memory = (
        column[keep] for column in (device.start_ps, device.end_ps, device.bytes, device.direction, device.memory)
    )
    return Copies(start, end, size, direction, memory, device.other, int((~keep).sum()))


def _sample(devices: Sequence[Copies], direction: Direction, memory: HostMemory) -> _Sample:
    index, kind = _DIRECTIONS.index(direction), _MEMORIES.index(memory)
    parts = [(np.zeros(0, np.float64),) * 3]
    for device in devices:
        own = device.direction == index
        start, end = device.start_ps[own], device.end_ps[own]
        if not len(start):
            continue
        opposite = device.direction == 1 - index
        busy = union(zip(device.start_ps[opposite].tolist(), device.end_ps[opposite].tolist(), strict=True))
        these = _undisturbed(start, end) & (device.memory[own] == kind)
        time = (end - start).astype(np.float64)
        share = _covered(start, end, busy) / time
        parts.append((time[these], device.bytes[own][these].astype(np.float64), share[these]))
    return _Sample(*(np.concatenate(column) for column in zip(*parts, strict=True)))


def _covered(start: Ints, end: Ints, busy: Sequence[tuple[int, int]]) -> Floats:
    """Return how much of each ``[start, end)`` a union covers."""
    if not busy:
        return np.zeros(len(start), np.float64)
    begins, ends = (np.array(column, np.int64) for column in zip(*busy, strict=True))
    before = np.concatenate(([0], np.cumsum(ends - begins)))

    def until(moment: Ints) -> Ints:
        index = np.searchsorted(begins, moment, side="right")
        last = np.maximum(index - 1, 0)
        inside = np.where(index > 0, np.minimum(moment, ends[last]) - begins[last], 0)
        return np.asarray(before[last] * (index > 0) + inside, np.int64)

    return (until(end) - until(start)).astype(np.float64)


def _undisturbed(start: Ints, end: Ints) -> NDArray[np.bool_]:
    """Return which of the copies, sorted by start, overlap no other of the same direction."""
    reached = np.maximum.accumulate(end)
    first = np.concatenate(([True], start[1:] >= reached[:-1]))
    return first & np.concatenate((end[:-1] <= start[1:], [True]))


def _best(samples: Mapping[tuple[Direction, HostMemory], _Sample], direction: Direction) -> HostMemory:
    pinned, old = samples[direction, PINNED].bytes, samples[direction, UNSTATED].bytes
    is_old = not len(pinned) or (pinned >= LARGE_BYTES).sum() < MIN_COPIES <= (old >= LARGE_BYTES).sum()
    return UNSTATED if is_old and len(old) else PINNED


def _latency(sample: _Sample) -> tuple[float, int] | None:
    """Return the start-up time in ps and the number of copies that it rests on.

    Return None where sizes do not vary enough, or where the time vanishes. The slope of time over size is the median of
    the slopes of all pairs (Theil and Sen), each weighted by the difference of their sizes. The start-up time is then
    the median rest of the smaller half.
    """
    alone = sample.other <= ALONE_SHARE
    time, size = sample.time_ps[alone], sample.bytes[alone]
    if len(size) < FIT_COPIES or len(np.unique(size)) < FIT_SIZES:
        return None
    if np.max(size) < max(LARGE_BYTES, FIT_SPAN * np.min(size)):
        return None
    order = np.argsort(size, kind="stable")
    picked = order[np.unique(np.linspace(0, len(order) - 1, min(len(order), FIT_POINTS)).astype(np.int64))]
    one, another = np.triu_indices(len(picked), 1)
    difference = size[picked[another]] - size[picked[one]]
    rise = time[picked[another]] - time[picked[one]]
    slope = weighted_percentiles(rise[difference > 0] / difference[difference > 0], difference[difference > 0], (0.5,))[
        0
    ]
    small = size <= np.median(size)
    rest = float(np.median(time[small] - slope * size[small]))
    if not 0 < rest < np.min(time[size >= LARGE_BYTES]) / 2:
        return None
    return rest, len(size)


def _rate(
    direction: Direction, memory: HostMemory, sample: _Sample, latency: tuple[float, int] | None
) -> MeasuredFigure | LeftOut:
    large = sample.bytes >= LARGE_BYTES
    chosen = large & (sample.other <= ALONE_SHARE)
    count = int(chosen.sum())
    if count < MIN_COPIES:
        seen = f"{len(large):,} {direction} copies, {int(large.sum()):,} of {LARGE_BYTES >> 20} MiB or more"
        reason = f"too few large copies with the other direction off: {seen}, {count:,} of those alone"
        return LeftOut(RATES[direction], reason)
    size, time = sample.bytes[chosen], sample.time_ps[chosen]
    rate = size / (time - (latency[0] if latency else 0.0)) * 1e12
    low, value, high = (float(np.percentile(rate, share)) for share in (10, 50, 90))
    return MeasuredFigure(RATES[direction], value, low, high, count, f"{_sizes(size)}, {_of(memory)}, alone")


def _duplex(
    samples: Mapping[Direction, _Sample],
    rates: Mapping[Direction, float],
    latencies: Mapping[Direction, tuple[float, int] | None],
) -> MeasuredFigure | LeftOut:
    """Return the factor by which a direction is slower while the other runs, or why it is unknown.

    It comes from copies that ran alone for one part of their time and beside the other direction for the rest: bytes =
    rate x (alone + factor x together).
    """
    factors, sizes = [np.zeros(0, np.float64)], [np.zeros(0, np.float64)]
    for direction, rate in rates.items():
        sample, start_up = samples[direction], latencies[direction]
        these = (sample.bytes >= LARGE_BYTES) & (sample.other >= TOGETHER_SHARE)
        size = sample.bytes[these]
        moving = (sample.time_ps[these] - (start_up[0] if start_up else 0.0)) / 1e12
        together = sample.other[these] * moving
        factors.append((size / rate - (moving - together)) / together)
        sizes.append(size)
    factor, size = np.concatenate(factors), np.concatenate(sizes)
    if len(factor) < MIN_COPIES:
        seen = f"{len(factor):,} large copies beside the other direction" if rates else "no rate alone to compare with"
        return LeftOut(DUPLEX, f"too little of both directions at once: {seen}")
    low, value, high = (min(1.0, float(np.percentile(factor, share))) for share in (10, 50, 90))
    if value <= 0:
        return LeftOut(DUPLEX, "copies beside the other direction take longer than any factor explains")
    what = f"{_sizes(size)}, {' and '.join(rates)}, with the other direction on"
    return MeasuredFigure(DUPLEX, value, low, high, len(factor), what)


def _start_up(latencies: Mapping[Direction, tuple[float, int] | None]) -> MeasuredFigure | LeftOut:
    found = {direction: latency for direction, latency in latencies.items() if latency}
    if not found:
        wanted = f"{FIT_COPIES} copies of {FIT_SIZES} sizes, the largest {FIT_SPAN:.0f} times the smallest"
        return LeftOut(LATENCY, f"sizes of copies vary too little for a fit ({wanted}), or no start-up time shows")
    each = np.array([latency / 1e6 for latency, _ in found.values()])
    count = sum(copies for _, copies in found.values())
    what = f"{' and '.join(found)} copies of many sizes, alone (fit of time over size, on the copy engine)"
    return MeasuredFigure(LATENCY, float(np.median(each)), float(np.min(each)), float(np.max(each)), count, what)


def _pageable_note(direction: Direction, sample: _Sample) -> str:
    chosen = (sample.bytes >= LARGE_BYTES) & (sample.other <= ALONE_SHARE)
    if not chosen.any():
        return ""
    rate = float(np.median(sample.bytes[chosen] / sample.time_ps[chosen])) * 1e3
    seen = f"{rate:.3g} GB/s (median of {int(chosen.sum()):,} large copies, alone)"
    return f"{direction} with pageable memory: {seen}; left out, since offload goes through pinned memory"


def _sizes(size: Floats) -> str:
    least, most = int(np.min(size)), int(np.max(size))
    return f"copies of {least:,} B" if least == most else f"copies of {least:,} to {most:,} B"


def _of(memory: HostMemory) -> str:
    return "host memory not known to be pinned" if memory == UNSTATED else f"{memory} memory"
