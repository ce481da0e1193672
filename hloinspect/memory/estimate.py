"""Memory that a step needs, what fills it at its peak, and what copies to the host free.

XLA's own figures are used where they exist (``hloinspect compile``, a dump). All others follow from the live ranges of
the schedule (`liveness`, `assign`), and are called estimated.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from hloinspect.hlo.model import Instruction
from hloinspect.hlo.shape import HOST_MEMORY_SPACE
from hloinspect.kinds import D2H, H2D, LiveValueKind
from hloinspect.memory.assign import SpaceUse, assign_buffers, spaces_of
from hloinspect.memory.live import LiveLeaf, Liveness
from hloinspect.memory.liveness import liveness
from hloinspect.memory.records import LiveValue, Peak, Release
from hloinspect.memory.values import Buffer
from hloinspect.offload.buffers import Node
from hloinspect.offload.source import read_source
from hloinspect.offload.transfers import Offload, Transfer
from hloinspect.timeline.timeline import Timeline
from hloinspect.units import PS_PER_MS

ARTIFACTS: Final = "artifacts"
ESTIMATED: Final = "estimated"
MAX_VALUES = 12
"""Most values at the peak that are named. The smaller ones are only counted."""

_BACKWARD = "transpose(jvp"
_FORWARD = "jvp("
_PRODUCTS = ("dot_general", "conv_general_dilated")
_WORK = frozenset({"fusion", "dot", "convolution", "custom-call"})

Clock = Callable[[int], float | None]
"""A function from a time of the flat schedule to milliseconds of the step."""


@dataclass(frozen=True, slots=True)
class Memory:
    """The memory of a step. ``device`` and ``host`` are the estimate for each memory. ``releases`` are by transfer id.

    ``backward`` names the instruction with which the backward pass begins, as far as transfers show it. It is None
    where nothing that is sent to the host comes back later. ``live`` is the liveness from which all of it is computed.
    """

    device: SpaceUse
    host: SpaceUse
    peak: Peak | None
    backward: str | None
    releases: dict[int, Release]
    live: Liveness = field(repr=False, compare=False)

    @property
    def late(self) -> tuple[int, ...]:
        """Return the ids of the transfers that start late."""
        return tuple(transfer for transfer, release in self.releases.items() if release.late)


def memory_of(offload: Offload, timeline: Timeline | None = None) -> Memory | None:
    """Return the memory of a scheduled module, estimated from its live ranges, or None for a module without a schedule.

    With a timeline of the step it contains also how long the sources of transfers are held. Raises HloParseError where
    the module cannot be followed.
    """
    module = offload.program.module
    if not module.is_scheduled:
        return None
    live = liveness(module)
    device = assign_buffers(live, device_spaces(live))
    host = assign_buffers(live, [HOST_MEMORY_SPACE])
    back = comes_back(live, offload)
    backward = backward_begin(live, back)
    clock = clock_of(live, timeline) if timeline is not None else None
    releases = {}
    for transfer in offload.transfers:
        if transfer.direction == D2H and (release := _release(live, transfer, back, backward, clock)):
            releases[transfer.id] = release
    name = None if backward is None else live.instruction_at(backward).name
    return Memory(device, host, _peak(live, device), name, releases, live)


def device_spaces(live: Liveness) -> tuple[int, ...]:
    """Return the memory spaces of device memory: all except the host's. On a TPU it is only HBM, as others are on the
    chip."""
    spaces = spaces_of(live)
    if live.module.platform == "tpu":
        return tuple(space for space in spaces if space == 0)
    return tuple(space for space in spaces if space != HOST_MEMORY_SPACE)


# the peak


def _peak(live: Liveness, device: SpaceUse) -> Peak | None:
    spaces = set(device_spaces(live))
    standing = [
        buffer
        for buffer in live.buffers
        if buffer.memory_space in spaces and (buffer.parameter >= 0 or buffer.is_result)
    ]
    when = device.peak_time
    there = [buffer for buffer in device.temporaries if _lives_at(buffer, when)]
    held = sorted(standing + there, key=lambda buffer: -buffer.bytes)
    if not held or not live.order:
        return None
    at = live.instruction_at(when)
    rest = held[MAX_VALUES:]
    return Peak(
        instruction=at.name,
        computation=at.computation,
        bytes=sum(buffer.bytes for buffer in held),
        values=tuple(_live_value(buffer) for buffer in held[:MAX_VALUES]),
        others=len(rest),
        other_bytes=sum(buffer.bytes for buffer in rest),
    )


def _lives_at(buffer: Buffer, time: int) -> bool:
    return any(first <= time <= last for first, last in buffer.spans)


def _live_value(buffer: Buffer) -> LiveValue:
    source = read_source(buffer.origin.instruction.metadata)
    maker, shape = buffer.origin.instruction, buffer.origin.shape
    kind: LiveValueKind = "argument" if buffer.parameter >= 0 else "result" if buffer.is_result else "temporary"
    named = maker.metadata.op_name if kind == "argument" else ""
    place = "".join(f"{{{index}}}" for index in buffer.origin.path)
    return LiveValue(
        name=named or maker.name + place,
        computation=maker.computation,
        dtype=shape.dtype,
        shape=shape.dims,
        bytes=buffer.bytes,
        kind=kind,
        source=source.info if source else None,
    )


# copies to the host


def comes_back(live: Liveness, offload: Offload) -> dict[int, int]:
    """Return, for each copy to the host that is copied back later in the flat schedule, when the first copy back
    starts."""
    starts = {t.id: live.time_of(t.computation, t.start_index) for t in offload.transfers}
    copies: dict[Node, list[int]] = {}
    for transfer in offload.transfers:
        start = starts[transfer.id]
        if transfer.direction == H2D and transfer.buffer is not None and start is not None:
            copies.setdefault(transfer.buffer, []).append(start)
    found: dict[int, int] = {}
    for transfer in offload.transfers:
        sent = starts[transfer.id]
        if transfer.direction != D2H or transfer.buffer is None or sent is None:
            continue
        later = [back for back in copies.get(transfer.buffer, ()) if back > sent]
        if later:
            found[transfer.id] = min(later)
    return found


def backward_begin(live: Liveness, back: Mapping[int, int]) -> int | None:
    """Return when the backward pass begins in the flat schedule, or None where no copy to the host comes back later.

    ``back`` is the result of `comes_back`. The backward pass has begun at the first copy back of a value that was sent
    before. Work before that copy belongs to it where JAX names it ``transpose(jvp...)``: the search goes back from the
    copy to the first matrix product or library call that JAX names as forward. (Cheap forward kernels, such as slices
    of weights, may be scheduled far after their place, and zeros for gradients far before theirs.)
    """
    if not back:
        return None
    first = begin = min(back.values())
    for time in range(first - 1, -1, -1):
        instruction = live.instruction_at(time)
        if instruction.opcode not in _WORK:
            continue
        name = instruction.metadata.op_name
        if _BACKWARD in name:
            begin = time
        elif _FORWARD in name and (instruction.opcode != "fusion" or name.endswith(_PRODUCTS)):
            break
    return begin


def _release(
    live: Liveness, transfer: Transfer, back: Mapping[int, int], backward: int | None, clock: Clock | None
) -> Release | None:
    start = live.time_of(transfer.computation, transfer.start_index)
    if start is None:
        return None
    instruction = live.instruction_at(start)
    returns = transfer.id in back
    late = returns and backward is not None and start >= backward
    leaf = _sent(live, instruction, transfer)
    if leaf is None:  # a kernel that computes what it sends: no device memory is freed
        before = None if backward is None or not returns else not late
        return Release(0, transfer.start, transfer.start, transfer.computation, late, before, None, None)
    last = live.instruction_at(leaf.last)
    size = leaf.buffer.bytes
    held = _held_ms(clock, leaf.first, leaf.last) if clock is not None else None
    return Release(
        bytes=size,
        made=live.instruction_at(leaf.first).name,
        freed=last.name,
        freed_computation=last.computation,
        late=late,
        before_backward=None if backward is None or not returns else leaf.last < backward,
        held_ms=held,
        held_bytes_ms=None if held is None else held * size * transfer.executions,
    )


def _sent(live: Liveness, start: Instruction, transfer: Transfer) -> LiveLeaf | None:
    """Return the array on the device that a copy to the host reads: an operand's, of the sent size if one has it."""
    found: LiveLeaf | None = None
    for operand in start.operands:
        for leaf in live.values_of(start.computation, operand):
            size = leaf.shape.size_bytes
            if leaf.shape.on_host or size < transfer.bytes:
                continue
            if size == transfer.bytes:
                return leaf
            if found is None or size > found.shape.size_bytes:
                found = leaf
    return found


# time


def clock_of(live: Liveness, timeline: Timeline) -> Clock:
    """Return a function that reads the time at a place of the schedule from a timeline whose intervals name
    instructions.

    Between two named intervals time is divided by the number of instructions. Kernels are recorded as runs, so the
    result is as coarse as these runs. Of a loop it is the first recorded iteration.
    """
    names = {live.instruction_at(time).name: time for time in range(len(live.order))}
    marks: dict[int, tuple[float, float]] = {}
    for segment in timeline.segments:
        for interval in segment.intervals:
            time = names.get(interval.name) if interval.name else None
            if time is not None and time not in marks:
                marks[time] = (interval.start_ps, interval.end_ps)
    times = sorted(marks)
    end_ps = max((segment.end_ps for segment in timeline.segments), default=0)

    def clock(time: int) -> float | None:
        if not times:
            return None
        place = bisect_right(times, time) - 1
        if place < 0:
            return 0.0
        begin, end = marks[times[place]]
        following = times[place + 1] if place + 1 < len(times) else len(live.order)
        share = (time - times[place]) / max(1, following - times[place])
        return min(begin + share * (end - begin), end_ps) / PS_PER_MS

    return clock


def _held_ms(clock: Clock, made: int, freed: int) -> float | None:
    first, last = clock(made), clock(freed)
    return None if first is None or last is None else max(0.0, last - first)
