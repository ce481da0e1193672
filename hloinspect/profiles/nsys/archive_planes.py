"""Planes of an XSpace from the devices and modules of an nsys-jax archive."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from hloinspect.profiles.distinct import distinct
from hloinspect.profiles.nsys.archive_devices import Device
from hloinspect.profiles.nsys.archive_modules import DumpedModule, is_asynchronous, is_collective
from hloinspect.profiles.nsys.archive_ranges import Program
from hloinspect.profiles.xplane.embedded import HLO_PROTO, PLANE, PROGRAM_ID
from hloinspect.profiles.xplane.space import (
    INT64,
    UINT64,
    Columns,
    EventMetadata,
    Line,
    Plane,
    PlaneMetadata,
    StatColumn,
    StatValue,
    held,
    name_column,
    number_column,
)
from hloinspect.timeline.spans import Flags, Ints

Numbers = Mapping[Program, int]
"""The program id of each program."""

NAMELESS = "GPU operation outside of any range"
_PS = 1000
_UNKNOWN = -1
_USABLE_NS = 1 << 52
_LAUNCH = "launch"
_SYNCHRONOUS, _ASYNCHRONOUS = "Stream #1(Synchronous)", "Stream #2(Asynchronous)"
_HLO_OP, _MODULE, _CORRELATION = "hlo_op", "hlo_module", "correlation_id"


def device_plane(device: Device, modules: Mapping[Program, DumpedModule], numbers: Numbers, base_ns: int) -> Plane:
    """Return the plane of a device, with a line for instructions one after another, and one for those beside them.

    These are no streams of CUDA: an archive does not have them.
    """
    work, ranges = device.process.work, device.process.ranges
    beside = _asynchronous(device, modules)
    texts = dict(enumerate((*work.ops, *(program.name for program in work.programs)), 1))
    kinds = {number: EventMetadata(number, op, "", {}) for number, op in enumerate(work.ops, 1)}
    nameless = len(work.ops) + 1
    kinds[nameless] = EventMetadata(nameless, NAMELESS, "", {})
    program_ids = np.array([*(numbers.get(program, 0) for program in work.programs), 0], np.int64)
    has_id = np.array([*(program in numbers for program in work.programs), False], np.bool_)

    def line(number: int, name: str, event: Ints, single: Ints) -> Line:
        row = np.concatenate((work.row[event], single))
        op = np.concatenate((work.op[event] + 1, np.full(len(single), nameless)))
        program = np.concatenate((work.program[event], np.full(len(single), -1)))
        order = np.argsort(ranges.start[row], kind="stable")
        row, op, program = row[order], op[order], program[order]
        named = op != nameless
        columns = {
            _HLO_OP: name_column(op, named, texts),
            _MODULE: name_column(program + 1 + len(work.ops), program >= 0, texts),
            PROGRAM_ID: number_column(program_ids[program], has_id[program], INT64),
            _CORRELATION: number_column(row + device.first_launch, ranges.launched[row] != _UNKNOWN, UINT64),
        }
        start, end = ranges.start[row] - base_ns, ranges.end[row] - base_ns
        return Line(number, name, 0, _decoder(op, start, end, columns))

    none = np.zeros(0, np.int64)
    lines = [line(1, _SYNCHRONOUS, device.event[~beside], device.nameless)]
    if beside.any():
        lines.append(line(2, _ASYNCHRONOUS, device.event[beside], none))
    facts = device.facts
    stats: dict[str, StatValue] = {"device_vendor": "Nvidia"}
    if facts is not None:
        stats |= {"gpu_device_name": facts.name} if facts.name else {}
        for name, value in (
            ("memory_bandwidth", facts.memory_bytes_per_s),
            ("memory_size", facts.memory_bytes),
            ("clock_rate", facts.clock_hz // 1000),
            ("core_count", facts.cores),
        ):
            stats |= {name: value} if value else {}
    return Plane(device.number + 1, f"/device:GPU:{device.number}", tuple(lines), _table(kinds, _HLO_OP, stats))


def host_plane(devices: Sequence[Device], base_ns: int) -> tuple[Plane, ...]:
    """Return a plane with the time at which each event's launch had ended, or none where that is not known.

    The range on the host encloses the driver's call, so its end is a little later. Work on the device cannot begin
    before it is launched, so the launch ended then at the latest.
    """
    lines = []
    for device in devices:
        ranges = device.process.ranges
        row = device.process.work.row[device.event]
        row = row[ranges.launched[row] != _UNKNOWN]
        if len(row):
            end = np.minimum(ranges.launched[row], ranges.start[row]) - base_ns
            columns = {_CORRELATION: number_column(row + device.first_launch, np.ones(len(row), np.bool_), UINT64)}
            decode = _decoder(np.ones(len(row), np.int64), end, end, columns)
            lines.append(Line(device.number + 1, f"Host Threads/{device.thread[1]}", 0, decode))
    if not lines:
        return ()
    kinds = {1: EventMetadata(1, _LAUNCH, "", {})}
    return (Plane(0, "/host:CPU", tuple(lines), _table(kinds, _CORRELATION, {})),)


def module_plane(modules: Mapping[Program, DumpedModule], numbers: Numbers) -> Plane:
    """Return the plane with the names of all programs, and with the modules that are there."""
    kinds: dict[int, EventMetadata] = {}
    for place, (program, number) in enumerate(numbers.items(), 1):
        stats: dict[str, StatValue] = {PROGRAM_ID: number}
        if program in modules:
            stats[HLO_PROTO] = modules[program].data
        kinds[place] = EventMetadata(place, f"{program.name}({number})", "", stats)
    return Plane(0, PLANE, (), _table(kinds, PROGRAM_ID, {}))


def _asynchronous(device: Device, modules: Mapping[Program, DumpedModule]) -> Flags:
    """Return which events of a device ran beside others.

    They are those of asynchronous instructions, except copies that never did in the whole trace: XLA runs a copy on the
    main stream if it has no stream of its own for it.
    """
    work = device.process.work
    count = max(len(work.ops), 1)
    both, which = distinct((work.program[device.event] + 1) * count + work.op[device.event])
    pairs = list(zip((both // count - 1).tolist(), (both % count).tolist(), strict=True))
    known = [modules.get(program) for program in work.programs]
    flags = np.array(
        [is_asynchronous(work.ops[op], known[program] if program >= 0 else None) for program, op in pairs],
        np.bool_,
    )
    may_be_in_order = flags & np.array([not is_collective(work.ops[op]) for _, op in pairs], np.bool_)
    if may_be_in_order.any():
        out_of_order = np.bincount(which[~_in_order(device)], minlength=len(flags)) > 0
        flags &= ~may_be_in_order | out_of_order
    return flags[which]


def _in_order(device: Device) -> Flags:
    """Return which events overlap no other of their device, and ran between those launched before and after them."""
    work, ranges = device.process.work, device.process.ranges
    row = work.row[device.event]
    order = np.argsort(ranges.start[row], kind="stable")
    start, end, launch = ranges.start[row][order], ranges.end[row][order], ranges.range_id[row][order]
    alone = np.ones(len(row), np.bool_)
    follows = (np.maximum.accumulate(end)[:-1] <= start[1:]) & (launch[:-1] < launch[1:])
    alone[1:] &= follows
    alone[:-1] &= follows
    found = np.zeros(len(row), np.bool_)
    found[order] = alone
    return found


def _decoder(
    kind: Ints, start_ns: Ints, end_ns: Ints, columns: Mapping[str, StatColumn]
) -> Callable[[Sequence[str]], Columns]:
    usable = (np.abs(start_ns) < _USABLE_NS) & (np.abs(end_ns) < _USABLE_NS) & (start_ns <= end_ns)
    start, end = (np.where(usable, times, 0) * _PS for times in (start_ns, end_ns))
    return held(Columns(kind, start, end, usable, columns))


def _table(
    kinds: Mapping[int, EventMetadata], stat: str, stats: Mapping[str, StatValue]
) -> Callable[[], PlaneMetadata]:
    return lambda: PlaneMetadata(kinds, {1: stat}, stats)
