"""Archives of nsys-jax in the same model of events as an XSpace (JAX-Toolbox: ``nsys-jax``, ``nsys-jax-combine``).

An archive has the NVTX ranges of each launching thread with the time of the GPU work that was launched in them, and the
modules that XLA dumped. It has neither streams nor kernels nor copies. What follows from that:

* A thread is a device. Its events are the deepest ranges of instructions (``archive_ranges``).
* Asynchronous instructions run beside the others, on streams of their own, so they are on another line than those.
  Measuring finds the runs of a program by the order of its schedule on a line. On one line with the others, an
  operation that overlaps them would stand at a later place than the schedule has it, and seem to begin a new run. The
  module says which instructions are asynchronous; where it is missing, the name decides.
* A transfer's time is that of its range, and its bytes and direction are the module's. Copies that no instruction makes
  are not there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from hloinspect.errors import InputError, printable
from hloinspect.profiles.nsys.archive_clocks import SAME, Ends, Offset, clock_offsets
from hloinspect.profiles.nsys.archive_devices import Device, Devices, Process, devices_of, overlapping_runs, uneven_runs
from hloinspect.profiles.nsys.archive_members import TRACE, Members, open_members, ranks_of
from hloinspect.profiles.nsys.archive_modules import (
    Modules,
    device_name,
    is_collective,
    read_modules,
)
from hloinspect.profiles.nsys.archive_planes import Numbers, device_plane, host_plane, module_plane
from hloinspect.profiles.nsys.archive_ranges import Program, work_of
from hloinspect.profiles.nsys.archive_tables import (
    DeviceFacts,
    read_devices,
    read_host,
    read_launchers,
    read_ranges,
)
from hloinspect.profiles.xplane.space import Gap, XSpace
from hloinspect.units import listed

MAX_RANKS = 4096
_FAR_NS = 1 << 52
EXPORT = "nsys export --type sqlite"
_NO_TIMES = (
    "the archive does not say when operations were launched (Nsight Systems 2024.5 and later leave the host's times "
    "out of it), so a wait for the host cannot be distinguished from one for a transfer"
)


def open_nsys_jax(path: str | Path) -> XSpace:
    """Return the trace in an archive of nsys-jax or nsys-jax-combine.

    ``path`` is the zip, its unpacked directory, a ``trace.parquet``, or a directory with one and dumped modules beside
    it. Raises InputError, and UsageError without pyarrow.
    """
    members = open_members(path)
    ranks = ranks_of(members, TRACE)
    if not 0 < len(ranks) <= MAX_RANKS:
        raise InputError(f"{members.path}: expected {TRACE} in it, as nsys-jax writes, found {len(ranks) or 'none'}")
    processes = [_read(members, rank, name) for rank, name in ranks.items()]
    programs = Counter(program for process in processes for program in process.work.programs)
    modules = read_modules(members, list(programs))
    numbers = _numbers(programs)
    offsets = clock_offsets([_ends(process) for process in processes]) if len(processes) > 1 else (SAME,)
    processes = [_moved(process, offset) for process, offset in zip(processes, offsets, strict=True)]
    found = devices_of(processes)
    devices = [_with_name(members, device) for device in found.devices]
    base_ns = _base_ns(processes)
    planes = [device_plane(device, modules.found, numbers, base_ns) for device in devices]
    notes = [*modules.notes, *_clock_notes(list(ranks), offsets), *_device_notes(processes, found)]
    gaps, about_host = _transfers(members, devices, modules)
    host = next((process.host for process in processes if process.host), "")
    return XSpace(
        members.path,
        (*planes, *host_plane(devices, base_ns), module_plane(modules.found, numbers)),
        (),
        (),
        (host,) if host else (),
        base_ns=base_ns,
        kind="nsys-jax",
        gaps=(*_thread_gaps(devices), *gaps),
        notes=(*notes, *about_host),
    )


def _read(members: Members, rank: str, name: str) -> Process:
    ranges = read_ranges(members.read(name), f"{members.path}: {name}")
    work = work_of(ranges, f"{members.path}: {name}")

    def about(file: str) -> tuple[bytes, str] | None:
        found = ranks_of(members, file)
        own = found.get(rank) or found.get("")
        return (members.read(own), f"{members.path}: {own}") if own else None

    threads, gpus, system = (about(f"{kind}-metadata.parquet") for kind in ("thread", "device", "system"))
    return Process(
        ranges,
        work,
        read_launchers(*threads) if threads else {},
        read_devices(*gpus) if gpus else (),
        read_host(*system) if system else "",
    )


def _numbers(programs: Mapping[Program, int]) -> Numbers:
    """Return a number for each program. Processes that run different programs may give one number to two of them."""
    numbers: dict[Program, int] = {}
    taken = {-1}
    for program in sorted(programs, key=lambda program: (-programs[program], program.number, program.name)):
        number = program.number if program.number not in taken else max(taken) + (1 << 20)
        numbers[program] = number
        taken.add(number)
    return {program: number for program, number in numbers.items() if program.number >= 0}


# ---- clocks


def _ends(process: Process) -> Ends:
    """Return when each collective of the process ended, on the last of its devices."""
    work, ranges = process.work, process.ranges
    chosen_ops = np.array([is_collective(op) for op in work.ops], np.bool_)
    chosen = np.flatnonzero(chosen_ops[work.op] & (work.program >= 0)) if len(work.ops) else np.zeros(0, np.int64)
    number = _run_numbers(process)
    ends: dict[tuple[str, int, str, int], int] = {}
    repeated: Counter[tuple[int, int]] = Counter()
    finish = ranges.end[work.row]
    for place in chosen.tolist():
        run, op = int(work.run[place]), int(work.op[place])
        key = (work.programs[int(work.program[place])].name, number[run], work.ops[op], repeated[run, op])
        repeated[run, op] += 1
        ends[key] = max(int(finish[place]), ends.get(key, int(finish[place])))
    return ends


def _run_numbers(process: Process) -> dict[int, int]:
    """Return the number of each run (the row of its range) among those of its program on its thread, from 0."""
    work, ranges = process.work, process.ranges
    runs, first = np.unique(work.run, return_index=True)
    number: dict[int, int] = {}
    counted: Counter[tuple[int, int, int]] = Counter()
    for place in np.argsort(ranges.start[runs], kind="stable").tolist():
        row = int(runs[place])
        if row >= 0:
            key = (int(work.program[first[place]]), int(ranges.process[row]), int(ranges.thread[row]))
            number[row] = counted[key]
            counted[key] += 1
    return number


def _moved(process: Process, offset: Offset) -> Process:
    if not offset.is_known or not offset.ns:
        return process
    ranges = process.ranges
    launched = np.where(ranges.launched >= 0, ranges.launched - offset.ns, np.int64(-1))
    return replace(
        process,
        ranges=replace(ranges, start=ranges.start - offset.ns, end=ranges.end - offset.ns, launched=launched),
    )


def _base_ns(processes: Sequence[Process]) -> int:
    """Return the time from which the trace counts: 0, or one in its middle where picoseconds from 0 do not fit into 64
    bits. An event that is far from all others is not usable."""
    starts = [process.ranges.start[process.work.row] for process in processes if len(process.work.row)]
    if not starts or max(int(np.abs(start).max()) for start in starts) < _FAR_NS:
        return 0
    times = np.sort(np.concatenate(starts))
    return int(times[len(times) // 2])


# ---- what the archive shows, and what it does not


def _with_name(members: Members, device: Device) -> Device:
    """Return a device with the name of the GPU for which its program was compiled, if the archive has no other."""
    if device.facts is not None and device.facts.name:
        return device
    name = device_name(members, device.main)
    return replace(device, facts=replace(device.facts or DeviceFacts(-1, "", 0, 0, 0, 0), name=name))


def _clock_notes(ranks: Sequence[str], offsets: Sequence[Offset]) -> list[str]:
    if len(offsets) < 2:
        return []
    ranks = [printable(rank) for rank in ranks]
    known = [(rank, offset) for rank, offset in zip(ranks, offsets, strict=True) if offset.is_known][1:]
    unknown = [rank for rank, offset in zip(ranks[1:], offsets[1:], strict=True) if not offset.is_known]
    notes = []
    if known:
        texts = [f"{rank} {offset.ns / 1e6:+.2f} ms" for rank, offset in known]
        spread = max(offset.spread_ns for _, offset in known) / 1e3
        notes.append(
            f"clocks were aligned by the ends of common collectives: {listed(texts, 4)} from that of {ranks[0]}, "
            f"with a spread of {spread:.0f} us"
        )
    if unknown:
        notes.append(
            f"the clocks of {listed(unknown, 4)} could not be aligned with that of {ranks[0]} (too few common "
            "collectives, or their ends differ too much): times compare within a process only"
        )
    return notes


def _device_notes(processes: Sequence[Process], found: Devices) -> list[str]:
    devices = found.devices
    notes = ["an archive of nsys-jax has no streams: operations beside others are known from the module"]
    if any(not device.is_named for device in devices) and len(devices) > 1:
        notes.append(
            "which thread drives which GPU is not in the archive (XLA did not name its threads, or there is no "
            "thread-metadata.parquet): devices are counted in the order of their threads"
        )
    if found.other_events:
        notes.append(
            f"{found.other_events:,} operations of {found.other_ns / 1e6:.3g} ms ran on one of the devices (which one "
            "is not in the archive): they are not in the figures"
        )
    rows = [(process.ranges, np.flatnonzero(process.ranges.name < 0)) for process in processes]
    outside = sum(int(ranges.gpu_ops[row].sum()) for ranges, row in rows)
    outside -= sum(len(device.nameless) for device in devices)
    if outside:
        notes.append(
            f"{outside:,} GPU operations outside of any range (of libraries, and copies that no instruction makes) are "
            "in the archive without their times: they are not in the figures"
        )
    lost = sum(process.work.lost_ops for process in processes)
    if lost:
        notes.append(
            f"{lost:,} GPU operations of programs are in no range of an instruction (such as those of a loop itself), "
            "and in the archive without their times: they are not in the figures"
        )
    return notes


def _thread_gaps(devices: Sequence[Device]) -> list[Gap]:
    if any(overlapping_runs(device) for device in devices):
        return [
            Gap(
                "runs of programs overlap on what should be one device: the archive does not say which thread launched "
                "them (Nsight Systems 2024.5 and 2024.6)",
                "profile with another version of Nsight Systems, or one process for each GPU",
                "time",
            )
        ]
    if uneven_runs(devices):
        return [
            Gap(
                "threads ran the program differently often, so a thread is no device: a pool of threads launched",
                f"unpack the .nsys-rep in the archive, `{EXPORT}` it and read that: it has the device of everything",
                "time",
            )
        ]
    return []


def _transfers(
    members: Members, devices: Sequence[Device], modules: Modules
) -> tuple[tuple[Gap, ...], tuple[str, ...]]:
    """Return what is not known of transfers, and what to say of copies."""
    programs = list(dict.fromkeys(device.main for device in devices if device.main is not None))
    report = next((printable(name) for name in members.names() if name.endswith(".nsys-rep")), "the .nsys-rep")
    missing = [printable(program.name) for program in programs if program not in modules.found]
    if missing:
        return (
            Gap(
                f"the archive has no module of {listed(missing, 2)} that can be read, so transfers and waits cannot be "
                "separated from other work",
                "read the archive as nsys-jax wrote it, with dump/, or put the module of --xla_dump_to "
                "(module_<n>.<name>...after_optimizations.hlo.pb) beside trace.parquet",
                "transfers",
            ),
        ), ()
    if any(modules.found[program].has_host_memory for program in programs):
        return (
            Gap(
                "an archive of nsys-jax does not record copies: the time of a transfer is that of the GPU work in its "
                "range, its bytes and direction are the module's, and other copies on the link are not seen",
                f"unpack {report} and dump/, `{EXPORT}` it, and `hloinspect trace` the .sqlite with --hlo dump",
                "transfers",
            ),
        ), () if any((device.process.ranges.launched >= 0).any() for device in devices) else (_NO_TIMES,)
    if not programs:
        return (), ()
    return (), ("copies that no instruction makes (device_put, device_get) are not recorded in an archive of nsys-jax",)
