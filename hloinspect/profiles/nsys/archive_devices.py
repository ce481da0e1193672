"""The devices of an nsys-jax archive: the threads that launch on them.

XLA has a launching thread for each device of a process, or launches from the calling thread if there is one device.
Programs of a single device (most of a script's small jits) are launched by the calling thread in any case.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from hloinspect.profiles.distinct import distinct
from hloinspect.profiles.nsys.archive_ranges import Program, Work
from hloinspect.profiles.nsys.archive_tables import DeviceFacts, Ranges
from hloinspect.timeline.spans import Ints

Key = tuple[int, int]
MUCH = 0.1
"""The share of the busiest thread's time with which a thread without a name counts as that of a device."""


@dataclass(frozen=True, slots=True)
class Process:
    """A projected trace: one process, or several that were profiled together.

    ``launchers`` are the numbers of devices by process and thread id, where XLA names its threads. ``facts`` are those
    of its GPUs.
    """

    ranges: Ranges
    work: Work
    launchers: Mapping[Key, int]
    facts: tuple[DeviceFacts, ...]
    host: str


@dataclass(frozen=True, slots=True)
class Device:
    """A device: its number, its events (indices into ``process.work``), and what is known of it.

    ``nameless`` are the rows of single GPU operations that its thread launched outside of any range. ``is_named`` says
    whether the number is XLA's, and not one that was counted here. ``first_launch`` is added to a row's number for the
    number of its launch, which is unique among all processes.
    """

    number: int
    process: Process
    thread: Key
    event: Ints
    nameless: Ints
    facts: DeviceFacts | None
    is_named: bool
    main: Program | None
    first_launch: int = 1


@dataclass(frozen=True, slots=True)
class Devices:
    """The devices of an archive, and the number of events, and their time, that no device has: the thread that
    launched them drives none of its own."""

    devices: tuple[Device, ...]
    other_events: int
    other_ns: int


def devices_of(processes: Sequence[Process]) -> Devices:
    """Return the devices, sorted by number.

    The numbers are those of the whole run where all devices have one, else the devices are counted in the order of
    process and thread ids.
    """
    found: list[Device] = []
    events = time = 0
    first_launch = 1
    for process in processes:
        own, other = _of_process(process)
        found += [replace(device, first_launch=first_launch) for device in own]
        first_launch += len(process.ranges)
        spent = process.ranges.end[process.work.row[other]] - process.ranges.start[process.work.row[other]]
        events, time = events + len(other), time + int(spent.sum())
    numbers = [device.number for device in found]
    if min(numbers, default=-1) < 0 or len(set(numbers)) < len(numbers):
        found = [replace(device, number=number, is_named=False) for number, device in enumerate(found)]
    return Devices(tuple(sorted(found, key=lambda device: device.number)), events, time)


def _of_process(process: Process) -> tuple[list[Device], Ints]:
    """Return the devices of a trace, and the events that belong to none of them."""
    ranges, work = process.ranges, process.work
    row = work.row
    pids, pid_of = distinct(ranges.process[row])
    tids, tid_of = distinct(ranges.thread[row])
    both, thread = distinct(pid_of * len(tids) + tid_of)
    pairs = np.stack((pids[both // max(len(tids), 1)], tids[both % max(len(tids), 1)]))
    time = ranges.end[row] - ranges.start[row]
    devices: list[Device] = []
    other = np.ones(len(row), np.bool_)
    for pid in np.unique(pairs[0]).tolist():
        here = np.flatnonzero(pairs[0] == pid).tolist()
        named = [number for number in here if (pid, int(pairs[1, number])) in process.launchers]
        for number in named or _launching(here, work, thread, time):
            key = (pid, int(pairs[1, number]))
            event = np.flatnonzero(thread == number)
            other[event] = False
            main = _main_program(work, time, thread == number)
            devices.append(_device(process, key, event, None if main is None else work.programs[main]))
    if len(devices) == 1 and not devices[0].is_named and len(process.facts) == 1 and process.facts[0].number >= 0:
        devices = [replace(devices[0], number=process.facts[0].number, is_named=True)]
    return devices, np.flatnonzero(other)


def _launching(threads: Sequence[int], work: Work, thread: Ints, time: Ints) -> list[int]:
    """Return which threads of a process launch on devices of their own, where XLA did not name them.

    They are those that ran the process's main program, or anything that took much time.
    """
    main = _main_program(work, time, np.isin(thread, threads))
    spent = {number: int(time[thread == number].sum()) for number in threads}
    least = MUCH * max(spent.values())
    return [n for n in threads if spent[n] >= least or (main is not None and (work.program[thread == n] == main).any())]


def _main_program(work: Work, time: Ints, chosen: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> int | None:
    """Return the program (an index) with the most time among the chosen events, or None."""
    own = chosen & (work.program >= 0)
    if not own.any():
        return None
    total = np.zeros(len(work.programs), np.int64)
    np.add.at(total, work.program[own], time[own])
    return int(np.argmax(total))


def _device(process: Process, key: Key, event: Ints, main: Program | None) -> Device:
    ranges = process.ranges
    number = process.launchers.get(key, -1)
    facts = next((one for one in process.facts if one.number == number >= 0), None)
    nameless = (ranges.name < 0) & (ranges.gpu_ops == 1) & (ranges.process == key[0]) & (ranges.thread == key[1])
    return Device(
        number,
        process,
        key,
        event,
        np.flatnonzero(nameless),
        facts or (process.facts[0] if process.facts else None),
        number >= 0,
        main,
    )


def uneven_runs(devices: Sequence[Device]) -> bool:
    """Return whether threads ran their main program differently often, by more than a run that was cut at each end.

    Then threads are no devices: a pool of threads launches.
    """
    runs: dict[tuple[int, Program | None], list[int]] = {}
    for device in devices:
        work = device.process.work
        own = device.event[work.run[device.event] >= 0]
        programs = [work.programs[number] if number >= 0 else None for number in range(-1, len(work.programs))]
        is_main = np.array([program == device.main for program in programs], np.bool_)
        count = len(np.unique(work.run[own[is_main[work.program[own] + 1]]]))
        runs.setdefault((device.thread[0], device.main), []).append(count)
    return any(max(counts) - min(counts) > 2 for counts in runs.values())


def overlapping_runs(device: Device) -> bool:
    """Return whether runs of programs overlap much on a device, as they do where a "thread" is several devices."""
    work, ranges = device.process.work, device.process.ranges
    runs = np.unique(work.run[device.event])
    runs = runs[runs >= 0]
    order = np.argsort(ranges.start[runs], kind="stable")
    start, end = ranges.start[runs][order], ranges.end[runs][order]
    reached = np.maximum.accumulate(end)
    shared = np.minimum(reached[:-1], end[1:]) - start[1:]
    return bool((2 * shared > end[1:] - start[1:]).sum() > len(runs) // 4)
