"""The programs of a step of several: what part of it each takes, and the transfers of those that are not the report's
module."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

import numpy as np

from hloinspect.kinds import D2H, H2D
from hloinspect.measure.measured import MeasuredDevice, MeasuredFile, StepProgram
from hloinspect.offload.transfers import Offload
from hloinspect.report.build import transfer_info
from hloinspect.report.measured import with_measured
from hloinspect.report.program_names import program_names
from hloinspect.report.schema import Report, StepInfo, StepProgramInfo, TraceInfo, TransferInfo
from hloinspect.units import PS_PER_MS, listed

Key = tuple[str, int]
"""A program on every host: its name, and its place among those of one name, since each host numbers them for itself."""


def step_programs(
    files: Sequence[MeasuredFile], offload_of: Callable[[MeasuredFile, int], Offload | None], *, doubtful: bool
) -> tuple[StepProgramInfo, ...]:
    """Return the programs of the step in the order in which they run, empty where the step is one program.

    ``offload_of`` gives what the module of a program in a file has of transfers, or None.
    """
    keys: list[Key] = []
    for file in files:
        known = _keys(file)
        for device in file.devices:
            keys += [key for key in (known[one] for one in dict.fromkeys(device.order)) if key not in keys]
    found = (_program(key, files, offload_of, doubtful) for key in keys)
    return tuple(one for one in found if one is not None)


def _keys(file: MeasuredFile) -> dict[int, Key]:
    names = {seen.program: seen.name for seen in file.programs}
    of_step = sorted({one.program for device in file.devices for one in device.programs})
    seen: dict[str, int] = {}
    found = {}
    for program in of_step:
        name = names.get(program, "")
        found[program] = (name, seen.setdefault(name, 0))
        seen[name] += 1
    return found


def _program(
    key: Key, files: Sequence[MeasuredFile], offload_of: Callable[[MeasuredFile, int], Offload | None], doubtful: bool
) -> StepProgramInfo | None:
    own: list[tuple[MeasuredFile, MeasuredDevice, StepProgram]] = []
    for file in files:
        known = _keys(file)
        own += [
            (file, device, one)
            for device in file.devices
            for one in device.programs
            if known[one.program] == key and device.clean.any()
        ]
    if not own:
        return None
    first, _, program = own[0]
    is_main = program.program == first.program
    offload = None if is_main else offload_of(first, program.program)
    return StepProgramInfo(
        name=key[0],
        program_id=program.program,
        is_module=is_main,
        runs=_mean(one.runs[device.clean] for _, device, one in own),
        time_ms=_mean(one.time_ps[device.clean] for _, device, one in own) / PS_PER_MS,
        transfers=_transfers(offload, own, doubtful) if offload is not None else (),
    )


def _mean(columns: Iterable[np.typing.NDArray[np.int64]]) -> float:
    return float(np.mean(np.concatenate(list(columns))))


def _transfers(
    offload: Offload, own: Sequence[tuple[MeasuredFile, MeasuredDevice, StepProgram]], doubtful: bool
) -> tuple[TransferInfo, ...]:
    """Return the transfers of a program, as measured in the steps that count."""
    files = [replace(file, devices=(replace(device, transfers=one.transfers),)) for file, device, one in own]
    infos = (transfer_info(transfer, None) for transfer in offload.transfers)
    return tuple(with_measured(info, files, doubtful=doubtful) for info in infos)


def time_between_ms(files: Sequence[MeasuredFile], programs: Sequence[StepProgramInfo]) -> float | None:
    """Return the time of a step in which none of its programs runs, None where the step is one program."""
    if not programs:
        return None
    own = [device for file in files for device in file.devices if device.programs and device.clean.any()]
    return _mean(device.between_ps[device.clean] for device in own) / PS_PER_MS


def judged_text(trace: TraceInfo, has_prediction: bool) -> str:
    """Return what of a step of several programs is judged, or "" where that is all."""
    programs, names = trace.step_programs, program_names(trace)
    main = next((names[one.program_id] for one in programs if one.is_module), "")
    others = [names[one.program_id] for one in programs if one.transfers]
    if not others and not has_prediction:
        return ""
    text = f"the step is {len(programs)} programs, and its measured figures are those of all"
    if has_prediction:
        text += f"; predicted is {main} alone"
    if others:
        text += f"; rules and gates look at the transfers of {main}, not at those of {listed(others, 3)}"
    return text


def step_of_module(report: Report) -> StepInfo:
    """Return the step as far as it is one run of the report's module, for whoever compares it with the prediction.

    That is the step itself where it is one program. Of several, only the module's time and the waits for its transfers
    are known, so the other measured times are still those of the whole step, and idle time is 0.
    """
    step = report.step
    main = next((one for one in report.trace.step_programs if one.is_module), None) if report.trace else None
    if step.measured is None or main is None or main.runs <= 0:
        return step
    d2h, h2d = (
        sum(one.measured.wait_ms for one in report.transfers if one.measured and one.direction == way) / main.runs
        for way in (D2H, H2D)
    )
    measured = replace(
        step.measured,
        time_ms=main.time_ms / main.runs,
        stall_ms=d2h + h2d,
        stall_d2h_ms=d2h,
        stall_h2d_ms=h2d,
        idle_ms=0.0,
    )
    return replace(step, measured=measured)
