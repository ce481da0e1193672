"""The measured part of a report: figures of the traces of one run, over steps, devices and hosts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from hloinspect.kinds import SYNCHRONOUS, UNKNOWN, ClassifiedBy, InstructionClass, verdict_of
from hloinspect.measure.figures import Floats, weighted_percentiles
from hloinspect.measure.measured import MeasuredDevice, MeasuredFile, OtherCopies
from hloinspect.report.schema import (
    AllSteps,
    DeviceInfo,
    Exposed,
    HostInfo,
    MeasuredStep,
    MeasuredTransfer,
    OtherCopiesInfo,
    SetAside,
    SetAsideStep,
    Spread,
    TracedProgram,
    TraceInfo,
    TransferInfo,
)
from hloinspect.units import PS_PER_MS, time_text

_RATE = 1e3  # bytes a picosecond in GB/s


@dataclass(frozen=True, slots=True)
class _Own:
    """A device with the host that its trace is of."""

    host: str
    device: MeasuredDevice


def _devices(files: Sequence[MeasuredFile]) -> Iterator[_Own]:
    return (_Own(file.host, device) for file in files for device in file.devices)


def spread(values: Floats) -> Spread:
    """Return how values, at least one, are spread."""
    p90 = float(np.percentile(values, 90, method="lower"))
    mean, median = float(np.mean(values)), float(np.median(values))
    return Spread(mean, median, p90, float(np.min(values)), float(np.max(values)))


def measured_step(files: Sequence[MeasuredFile]) -> MeasuredStep | None:
    """Return the step over all devices, or None where no step counts."""
    devices = [own.device for own in _devices(files)]
    clean = [device.clean for device in devices]
    count = sum(int(chosen.sum()) for chosen in clean)
    if not count:
        return None

    def every(name: str) -> Floats:
        parts = [device.figures[name][chosen] for device, chosen in zip(devices, clean, strict=True)]
        return np.concatenate(parts) / PS_PER_MS

    def mean(name: str) -> float:
        return float(np.mean(every(name)))

    reasons = Counter(reason for device in devices for reason in device.set_aside if reason)
    return MeasuredStep(
        time_ms=mean("time_ps"),
        compute_ms=mean("compute_ps"),
        collective_exposed_ms=mean("collective_exposed_ps"),
        exposed_ms=Exposed(mean("exposed_d2h_ps"), mean("exposed_h2d_ps"), mean("exposed_ps")),
        stall_ms=mean("stall_ps"),
        stall_d2h_ms=mean("stall_d2h_ps"),
        stall_h2d_ms=mean("stall_h2d_ps"),
        idle_ms=mean("idle_ps"),
        host_bound_ms=mean("host_bound_ps"),
        busy_d2h_ms=mean("busy_d2h_ps"),
        busy_h2d_ms=mean("busy_h2d_ps"),
        step_ms=spread(every("time_ps")),
        stall_spread_ms=spread(every("stall_ps")),
        steps_analyzed=count,
        steps_seen=sum(len(device.numbers) for device in devices),
        steps_set_aside=tuple(SetAside(reason, number) for reason, number in reasons.most_common()),
    )


def device_infos(files: Sequence[MeasuredFile]) -> tuple[DeviceInfo, ...]:
    """Return one entry for each device of each host."""
    return tuple(_device(own) for own in _devices(files))


def _device(own: _Own) -> DeviceInfo:
    device, clean = own.device, own.device.clean
    figures = {name: values[clean] / PS_PER_MS for name, values in device.figures.items()}

    def mean(name: str) -> float | None:
        return float(np.mean(figures[name])) if clean.any() else None

    exposed = [mean(f"exposed_{part}ps") for part in ("d2h_", "h2d_", "")]
    return DeviceInfo(
        name=device.name,
        host=own.host,
        steps_analyzed=int(clean.sum()),
        steps_seen=len(clean),
        step_ms=spread(figures["time_ps"]) if clean.any() else None,
        stall_spread_ms=spread(figures["stall_ps"]) if clean.any() else None,
        compute_ms=mean("compute_ps"),
        collective_exposed_ms=mean("collective_exposed_ps"),
        exposed_ms=Exposed(*(value or 0.0 for value in exposed)) if clean.any() else None,
        stall_ms=mean("stall_ps"),
        idle_ms=mean("idle_ps"),
        host_bound_ms=mean("host_bound_ps"),
        all_steps=AllSteps(
            len(clean),
            *(float(device.figures[name].sum()) / PS_PER_MS for name in ("time_ps", "compute_ps", "stall_ps")),
        ),
        set_aside=tuple(
            SetAsideStep(int(device.numbers[i]), float(device.start_ps[i]) / PS_PER_MS, reason, device.details[i])
            for i, reason in enumerate(device.set_aside)
            if reason
        ),
    )


# ---- transfers


def with_measured(transfer: TransferInfo, files: Sequence[MeasuredFile], *, doubtful: bool) -> TransferInfo:
    """Return the transfer with what was measured of it, and the verdict that follows. ``doubtful``: the profiler
    dropped events."""
    devices = [own.device for own in _devices(files)]
    columns = _columns(transfer.id, devices)
    if columns is None or not columns["events"].sum():
        reason = "no event of it is in a step that counts"
        return replace(transfer, verdict=UNKNOWN, robust=None, reason=reason, measured=None)
    is_window = bool(devices) and devices[0].platform == "tpu" and transfer.asynchronous
    found = _transfer(transfer, columns, is_window)
    duration, cover, wait = (int(columns[name].sum()) for name in ("duration_ps", "cover_ps", "wait_ps"))
    verdict = verdict_of(duration, cover, wait) if transfer.asynchronous else SYNCHRONOUS
    return replace(
        transfer,
        verdict=verdict,
        robust=not doubtful,
        reason=_reason(found),
        measured=found,
    )


def _columns(number: int, devices: Sequence[MeasuredDevice]) -> Mapping[str, NDArray[np.int64]] | None:
    """Return the figures of a transfer in every step that counts, on all devices: zeros on a device that did not run
    it."""
    own = [device for device in devices if device.clean.any()]
    names = next((list(device.transfers[number]) for device in own if number in device.transfers), None)
    if names is None:
        return None
    found = {}
    for name in names:
        parts = [
            device.transfers[number][name][device.clean]
            if number in device.transfers
            else np.zeros(int(device.clean.sum()), np.int64)
            for device in own
        ]
        found[name] = np.concatenate(parts)
    return found


def _transfer(transfer: TransferInfo, columns: Mapping[str, NDArray[np.int64]], is_window: bool) -> MeasuredTransfer:
    events = int(columns["events"].sum())
    duration, cover, wait = (columns[name] / PS_PER_MS for name in ("duration_ps", "cover_ps", "wait_ps"))
    waits = spread(wait)
    predicted = transfer.predicted.wait_ms if transfer.predicted else 0.0
    return MeasuredTransfer(
        duration_each_ms=float(duration.sum()) / events,
        duration_ms=float(np.mean(duration)),
        is_window=is_window,
        runs=events / len(duration),
        cover_ms=float(np.mean(cover)),
        exposed_ms=float(np.mean(duration - cover)),
        wait_ms=waits.mean,
        median_ms=waits.median,
        p90_ms=waits.p90,
        wait_spread_ms=waits,
        exposed_spread_ms=spread(duration - cover),
        gbps=None if is_window else _gbps(columns["bytes"], columns["duration_ps"]),
        gbps_alone=_gbps(columns["alone_bytes"], columns["alone_ps"]),
        gbps_together=_gbps(columns["together_bytes"], columns["together_ps"]),
        wait_ratio=waits.mean / predicted if predicted > 0 and waits.mean > 0 else None,
    )


def _gbps(size: NDArray[np.int64], time_ps: NDArray[np.int64]) -> float | None:
    total = int(time_ps.sum())
    return int(size.sum()) / total * _RATE if total else None


def _reason(found: MeasuredTransfer) -> str:
    what = "of its window" if found.is_window else "of the time it takes"
    share = 100 * found.cover_ms / found.duration_ms if found.duration_ms else 100.0
    each = time_text(found.wait_ms / found.runs) if found.runs else "0 ms"
    text = f"compute or collectives run in {share:.0f} % {what}; the device waits {each} for each run of it"
    spread_ms = found.wait_spread_ms
    if spread_ms.max > 2 * max(spread_ms.median, 0.05 * found.duration_ms):
        text += f" (a step: median {time_text(spread_ms.median)}, up to {time_text(spread_ms.max)})"
    return text


# ---- what was read


def host_infos(files: Sequence[MeasuredFile]) -> tuple[HostInfo, ...]:
    """Return one entry for each host."""
    return tuple(_host(file) for file in files)


def _host(file: MeasuredFile) -> HostInfo:
    times = {device.name: device.figures["time_ps"][device.clean] for device in file.devices if device.clean.any()}
    slowest = max(times, key=lambda name: (float(np.mean(times[name])), name), default=None)
    return HostInfo(file.host, file.path, len(file.devices), slowest, measured_step((file,)))


def trace_info(
    files: Sequence[MeasuredFile], own: Sequence[MeasuredFile], unread: Sequence[str], program: int | None
) -> TraceInfo:
    """Return what was read of the traces. ``own`` are those of the step's program. What is expected of it is left
    open."""
    classified: Counter[ClassifiedBy] = Counter()
    classes: Counter[InstructionClass] = Counter()
    programs: dict[int, TracedProgram] = {}
    for file in files:
        classified.update(dict(file.classified_ps))
        classes.update(dict(file.class_ps))
        for seen in file.programs:
            old = programs.get(seen.program)
            programs[seen.program] = TracedProgram(
                name=seen.name or (old.name if old else ""),
                program_id=seen.program,
                runs=max(seen.runs, old.runs if old else 0),
                device_ms=seen.device_ps / PS_PER_MS + (old.device_ms if old else 0.0),
                transfers=seen.transfers if seen.transfers is not None else (old.transfers if old else None),
                is_step=seen.program == program,
            )
    total = sum(classified.values())
    return TraceInfo(
        files=tuple(file.path for file in files),
        hosts=tuple(file.host for file in files),
        device_type=next((file.device_type for file in files if file.device_type), ""),
        events=sum(file.events for file in files),
        classified={by: time / total for by, time in sorted(classified.items()) if total},
        hidden_events=sum(file.hidden_events for file in files),
        programs=tuple(sorted(programs.values(), key=lambda one: (not one.is_step, -one.device_ms))),
        other_copies=_other_copies(files),
        unread=tuple(unread),
        expected=None,
        per_host=host_infos(own),
        classes_ms={kind: time / PS_PER_MS for kind, time in classes.most_common()},
        work_events=_total([file.work_events for file in files]),
        work_ms=None if (work := _total([file.work_ps for file in files])) is None else work / PS_PER_MS,
    )


def _total(counts: Sequence[int | None]) -> int | None:
    known = [count for count in counts if count is not None]
    return sum(known) if known else None


def _other_copies(files: Sequence[MeasuredFile]) -> tuple[OtherCopiesInfo, ...]:
    """Return a row for each direction, host memory and origin over all files, those that took the longest first."""
    rows: dict[tuple[str, ...], list[OtherCopies]] = {}
    for copies in (copies for file in files for copies in file.other_copies):
        rows.setdefault((copies.direction, copies.memory, copies.origin, copies.program), []).append(copies)
    found = sorted(rows.items(), key=lambda item: (-sum(copies.device_ps for copies in item[1]), item[0]))
    return tuple(_summed_copies(several) for _, several in found)


def _summed_copies(several: Sequence[OtherCopies]) -> OtherCopiesInfo:
    """Return the sum of rows of several hosts; the rate is the median of theirs."""
    first = several[0]
    in_steps = _total([copies.in_steps_ps for copies in several])
    rates = [(copies.bytes_per_s, copies.alone_bytes) for copies in several if copies.bytes_per_s is not None]
    values, weights = np.array(rates, np.float64).reshape(-1, 2).T
    gbps = weighted_percentiles(values, weights, (0.5,))[0] / 1e9 if rates else None
    return OtherCopiesInfo(
        direction=first.direction,
        count=sum(copies.count for copies in several),
        bytes=sum(copies.bytes for copies in several),
        device_ms=sum(copies.device_ps for copies in several) / PS_PER_MS,
        memory=first.memory,
        origin=first.origin,
        program=first.program,
        gbps=gbps,
        alone_bytes=sum(copies.alone_bytes for copies in several),
        shared_ms=sum(copies.shared_ps for copies in several) / PS_PER_MS,
        in_steps_ms=None if in_steps is None else in_steps / PS_PER_MS,
    )
