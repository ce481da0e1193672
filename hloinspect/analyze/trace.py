"""The public verb ``trace``: what a profile says about every transfer, and whether the model said the same."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from hloinspect.analyze.inspect import obstacle_to, prediction_limits
from hloinspect.analyze.instructions import with_instructions
from hloinspect.analyze.load import digest_of
from hloinspect.analyze.options import JudgeOptions, Machine, TraceOptions
from hloinspect.analyze.target import given_target, target_of_profile
from hloinspect.errors import HloInspectError, InputError
from hloinspect.hardware import Target, domain_of, target_limits
from hloinspect.kinds import EXPOSED_SHARE, HIDDEN_SHARE, UNKNOWN, ModulePlatform
from hloinspect.measure.join import ProgramJoin, join_of, module_name
from hloinspect.measure.measured import MeasuredFile
from hloinspect.offload.transfers import Offload
from hloinspect.options import CompileOptions
from hloinspect.predict.prediction import Prediction, predict
from hloinspect.predict.schedule import device_count
from hloinspect.profiles.xplane.embedded import PREDICTION_HOST
from hloinspect.profiles.xplane.find import host_of
from hloinspect.report.build import build_report, target_info
from hloinspect.report.judged import NOTHING_JUDGED, judged_in_profile
from hloinspect.report.measured import device_infos, measured_step, trace_info, with_measured
from hloinspect.report.schema import (
    SCHEMA,
    InputInfo,
    JudgedInfo,
    MemoryInfo,
    ModuleInfo,
    ProgramInfo,
    Report,
    StepInfo,
    StepProgramInfo,
    Thresholds,
    TraceInfo,
    TransferInfo,
    Unknown,
)
from hloinspect.report.step_programs import judged_text, step_programs, time_between_ms
from hloinspect.units import listed

if TYPE_CHECKING:
    from hloinspect.rules.choice import Choice

LIMIT_TPU = "a TPU's trace does not say when a copy moves: durations are windows, from the start to the end of the wait"
LIMIT_PREDICTED = (
    "this profile is a prediction that hloinspect has written (--format xplane): nothing in it was measured"
)
MAX_DIGEST_BYTES = 1 << 26
"""No hash is made of a larger trace: that would take as long as a fifth of the answer."""

MAX_UNREAD = 4
"""Files that cannot be read are named up to here, then counted."""

LINK_SLACK = 1.1
"""A copy may be so much faster than the target's link before the report says so."""


@dataclass(frozen=True, slots=True)
class TraceInspection:
    """A report together with what it was made from, for those who want to go on from there."""

    report: Report
    files: tuple[MeasuredFile, ...]
    offload: Offload | None
    prediction: Prediction | None

    def to_perfetto(self) -> bytes:
        """Return the trace of ``--format perfetto`` (docs/perfetto.md). Raises UsageError where there is no
        timeline."""
        from hloinspect.render.traces.perfetto import to_perfetto

        return to_perfetto(self)

    def to_html(self) -> str:
        """Return the page of ``hloinspect report`` (docs/report-html.md)."""
        from hloinspect.render.page import html_page

        return html_page(self)

    def _repr_html_(self) -> str:
        return self.report._repr_html_()


def trace(  # noqa: PLR0913  (a public verb: its keywords are its interface)
    source: str,
    *,
    target: str | Target | None = None,
    link: str | None = None,
    devices: int | None = None,
    topology: str | None = None,
    expect: str | None = None,
    hlo: str | Sequence[str] = (),
    rules: Choice | None = None,
    jobs: int | None = 1,
    scheduler: str | None = None,
    allow_broken: bool = False,
    on_progress: Callable[[str], None] | None = None,
) -> TraceInspection:
    """Return the measured answer for an ``.xplane.pb``, or for the newest run in a profile directory (all of its
    hosts).

    ``source`` may be a URL that fsspec knows (``gs://``, ``s3://``). The module in the trace is judged too, and both
    stand side by side: for ``target``, by default the one whose device the trace names; ``none`` leaves it out.
    ``expect`` is the directory or manifest that ``hloinspect compile`` wrote, or a module: the report says whether that
    is what ran. ``hlo`` is a module's file, a directory of ``--xla_dump_to``, or several, with the modules that the
    profile does not carry. ``rules`` says which rules run.

    The files of several hosts are measured by ``jobs`` processes, a file each (None: as many as files and processors);
    they are spawned, so a script that has several needs ``if __name__ == "__main__":``. ``scheduler`` is the address
    of a Dask cluster that does it instead. A broken file among several is named in the report, as unknown or, if
    ``allow_broken``, as a limit, and the rest goes on. Raises HloInspectError."""
    compiling = CompileOptions(devices=devices, topology=topology)
    judging = JudgeOptions(target=target, link=link, rules=rules)
    modules = (hlo,) if isinstance(hlo, str) else tuple(hlo)
    tracing = TraceOptions(expect=expect, hlo=modules, jobs=jobs, scheduler=scheduler, allow_broken=allow_broken)
    return trace_input(source, compiling, judging, tracing, on_progress)


def trace_input(
    source: str,
    compiling: CompileOptions,
    judging: JudgeOptions,
    tracing: TraceOptions,
    on_progress: Callable[[str], None] | None = None,
) -> TraceInspection:
    """Return what ``trace`` returns, from options that are objects already. Raises HloInspectError."""
    given = given_target(judging, compiling)
    measured = _measured_files(source, tracing, on_progress)
    chosen = target_of_profile(given, judging, compiling, measured.files)
    machine = Machine(chosen.target, compiling.devices, compiling.topology, chosen.source)
    judged = _judge(source, measured, machine, chosen.limits, tracing)
    return replace(judged, report=_with_findings(judged, chosen.target, judging.rules))


@dataclass(frozen=True, slots=True)
class _Measured:
    """The traces that were measured, at least one, and why others could not be read."""

    files: tuple[MeasuredFile, ...]
    unread: tuple[str, ...] = ()
    left_out: str = ""


def _measured_files(source: str, tracing: TraceOptions, on_progress: Callable[[str], None] | None) -> _Measured:
    from hloinspect.inputs.classify import is_url
    from hloinspect.inputs.modules import check_given
    from hloinspect.inputs.remote import find_remote
    from hloinspect.measure.hosts import measure_files
    from hloinspect.measure.outcome import Unread, measure_source
    from hloinspect.profiles.find import find_profiles, left_out

    check_given(tracing.hlo)
    paths = find_remote(source) if is_url(source) else tuple(map(str, find_profiles(source)))
    others = "" if is_url(source) else left_out(source, [Path(path) for path in paths])
    if len(paths) == 1 and tracing.scheduler is None:
        return _Measured((measure_source(paths[0], tracing.hlo, on_progress),), left_out=others)
    found = measure_files(
        paths, hlo=tracing.hlo, jobs=tracing.jobs, scheduler=tracing.scheduler, on_progress=on_progress
    )
    unread = [one.reason for one in found if isinstance(one, Unread)]
    files = [one for one in found if not isinstance(one, Unread)]
    if not files and len(paths) == 1:
        raise InputError(unread[0])
    if not files:
        raise InputError(f"{source}: none of its {len(paths)} traces can be read, such as {unread[0]}")
    return _Measured(_with_unique_hosts(files), tuple(unread), others)


def _digest(files: Sequence[MeasuredFile]) -> str | None:
    path = Path(files[0].path)
    return digest_of(path) if path.is_file() and path.stat().st_size <= MAX_DIGEST_BYTES else None


def _with_unique_hosts(files: Sequence[MeasuredFile]) -> tuple[MeasuredFile, ...]:
    """Return the traces with a host's name each. Several processes of one host may have written a trace each: then a
    host is named as its file is."""
    names = Counter(file.host for file in files)
    return tuple(replace(file, host=host_of(Path(file.path))) if names[file.host] > 1 else file for file in files)


def _unread_notes(unread: Sequence[str]) -> list[str]:
    """Return the first reasons, and how many there are besides."""
    more = len(unread) - MAX_UNREAD
    if more <= 1:
        return list(unread)
    return [*unread[:MAX_UNREAD], f"{more} more files cannot be read (trace.unread of the JSON has them all)"]


def _judge(
    source: str, measured: _Measured, machine: Machine, about_target: Sequence[str], tracing: TraceOptions
) -> TraceInspection:
    files, unread = measured.files, measured.unread
    program = _main_program(files)
    own, others = _of_program(files, program)
    info = InputInfo(source, "trace", _digest(files) if len(files) + len(unread) == 1 else None)
    unknown = _gaps(files)
    limits = [*_limits(measured, others, tracing.allow_broken), *about_target]
    if not tracing.allow_broken:
        remedy = "copy the file again, or --allow-broken to go without it"
        unknown += [Unknown(reason, remedy, "time") for reason in _unread_notes(unread)]
    joined = _joined(own)
    offload = joined.offload if joined is not None else None
    seen = trace_info(files, own, unread, program)
    versions = next((file.versions for file in files if file.versions), {})
    made = ProgramInfo(jax=versions.get("jax"), jaxlib=versions.get("jaxlib"), topology=machine.topology)
    if offload is None:
        if tracing.expect is not None:
            unknown.append(
                Unknown("--expect has nothing to compare with: the trace has no module", "see above", "time")
            )
        report = _bare_report(info, files, made, limits, unknown)
        if machine.target is not None:
            count = machine.devices or sum(len(file.devices) for file in own) or 1
            report = replace(report, target=target_info(machine.target, count, machine.source))
        report = replace(report, step=StepInfo(None, measured_step(own)), devices=device_infos(own), trace=seen)
        report = replace(report, judged=NOTHING_JUDGED)
        return TraceInspection(with_instructions(report, own, None, machine), files, None, None)
    target, module = machine.target, offload.program.module
    prediction, about_prediction = _predicted(offload, machine)
    limits += about_prediction
    memory = MemoryInfo(None, None, int(target.hbm_bytes.value) if target else None, None, "unknown")
    count = machine.devices or device_count(module)
    report = build_report(info, offload, made, target, count, prediction, memory, limits, unknown, None, machine.source)
    report = _measured(report, own, seen, files)
    report = replace(report, judged=_judged(report, offload, own))
    report = with_instructions(report, own, joined, machine)
    if tracing.expect is not None:
        report = _expected(report, offload, tracing.expect)
    return TraceInspection(report, files, offload, prediction)


def _limits(measured: _Measured, others: Sequence[MeasuredFile], allow_broken: bool) -> list[str]:
    """Return what limits the measurement; ``others`` are the traces of another program."""
    limits = list(dict.fromkeys(limit for file in measured.files for limit in file.limits))
    if any(file.host == PREDICTION_HOST for file in measured.files):
        limits.insert(0, LIMIT_PREDICTED)
    limits += [f"{file.path} is of another program than most and is not in the figures" for file in others]
    limits += [measured.left_out] if measured.left_out else []
    return [*limits, *(f"left out: {reason}" for reason in _unread_notes(measured.unread) if allow_broken)]


def _predicted(offload: Offload, machine: Machine) -> tuple[Prediction | None, list[str]]:
    """Return the prediction beside the measurement, where there is a target, and what limits it or why it is
    missing. Where the user did not name the target, a module that cannot be predicted does not end the measurement."""
    target, module = machine.target, offload.program.module
    if target is None:
        return None, []
    if obstacle := obstacle_to(module, target):
        return None, [f"no prediction: {obstacle.reason}"]
    count = machine.devices or device_count(module)
    try:
        prediction = predict(offload, target, count, domain_of(target, machine.topology))
    except HloInspectError as error:
        if machine.source != "profile":
            raise
        return None, [f"no prediction: {error}"]
    return prediction, [*target_limits(target), *prediction_limits(module, prediction)]


def _joined(files: Sequence[MeasuredFile]) -> ProgramJoin | None:
    """Return the step's module, which measuring has read already."""
    for file in files:
        if file.module is not None and file.program is not None:
            try:
                return join_of(file.module, module_name(file.path, file.program))
            except InputError:  # the file's own limits say what is wrong with it
                continue
    return None


def _main_program(files: Sequence[MeasuredFile]) -> int | None:
    """Return the program of most devices."""
    counts: Counter[int] = Counter()
    for file in files:
        if file.program is not None:
            counts[file.program] += len(file.devices)
    return max(counts, key=lambda number: (counts[number], number), default=None)


def _of_program(
    files: Sequence[MeasuredFile], program: int | None
) -> tuple[tuple[MeasuredFile, ...], tuple[MeasuredFile, ...]]:
    """Return the traces of that program, and those of others. Each host numbers its programs for itself: one of the
    same name with as many transfers counts too, and one of the same number and another name does not."""
    main = max((file for file in files if file.program == program), key=lambda file: len(file.devices), default=None)
    kinds = _kinds(main) if main is not None else set()
    names = {name for name, _ in kinds if name}

    def is_own(file: MeasuredFile) -> bool:
        chosen = _kinds(file)
        own = {name for name, _ in chosen if name}
        is_named_so = not names or not own or bool(own & names)
        return file.program is not None and ((file.program == program and is_named_so) or bool(chosen & kinds))

    others = (file for file in files if file.program is not None and not is_own(file))
    return tuple(file for file in files if is_own(file)), tuple(others)


def _kinds(file: MeasuredFile) -> set[tuple[str, int | None]]:
    """Return the name of the program that a trace was measured for, and the number of its transfers."""
    return {(seen.name, seen.transfers) for seen in file.programs if seen.program == file.program}


def _gaps(files: Sequence[MeasuredFile]) -> list[Unknown]:
    """Return what the traces do not show; what several hosts say is there once."""
    found: dict[tuple[str, str], list[MeasuredFile]] = {}
    gaps: dict[tuple[str, str], Unknown] = {}
    for file in files:
        for gap in file.unknown:
            found.setdefault((gap.reason, gap.remedy), []).append(file)
            gaps[gap.reason, gap.remedy] = gap
    return [
        gap if len(files) == 1 else replace(gap, reason=f"{_hosts(found[key])}: {gap.reason}")
        for key, gap in gaps.items()
    ]


def _hosts(files: Sequence[MeasuredFile]) -> str:
    return listed([file.host for file in files], 2)


def _measured(report: Report, own: Sequence[MeasuredFile], seen: TraceInfo, files: Sequence[MeasuredFile]) -> Report:
    """Return the report with the measured parts. ``own`` are the traces of the step's program."""
    if any(file.graph_blocks for file in own):
        return replace(report, transfers=tuple(map(_blocked, report.transfers)), trace=seen)
    doubtful = any(gap.affects == "time" for file in files for gap in file.unknown)
    transfers = tuple(with_measured(transfer, own, doubtful=doubtful) for transfer in report.transfers)
    is_tpu = any(device.platform == "tpu" for file in own for device in file.devices)
    limits = (*report.limits, LIMIT_TPU) if is_tpu and transfers else report.limits
    limits = (*limits, *_too_fast(report, transfers))
    step = StepInfo(report.step.predicted, measured_step(own))
    programs = step_programs(own, _offload_of, doubtful=doubtful)
    seen = replace(seen, step_programs=programs, between_programs_ms=time_between_ms(own, programs))
    transfers = tuple(_of_one_run(transfer, programs) for transfer in transfers)
    if programs and (judged := judged_text(seen, step.predicted is not None)):
        limits = (*limits, judged)
    return replace(report, step=step, transfers=transfers, devices=device_infos(own), trace=seen, limits=limits)


def _of_one_run(transfer: TransferInfo, programs: Sequence[StepProgramInfo]) -> TransferInfo:
    """Return a transfer of which the ratio of waits is that of one run of its program, as the predicted wait is."""
    found, runs = transfer.measured, next((one.runs for one in programs if one.is_module), 1.0)
    if found is None or found.wait_ratio is None or runs <= 0:
        return transfer
    return replace(transfer, measured=replace(found, wait_ratio=found.wait_ratio / runs))


def _offload_of(file: MeasuredFile, program: int) -> Offload | None:
    """Return what the module of another program of the step has of transfers, or None where it is not known."""
    proto = file.step_modules.get(program)
    try:
        return join_of(proto, module_name(file.path, program)).offload if proto is not None else None
    except InputError:  # the file's own limits say what is wrong with it
        return None


def _blocked(transfer: TransferInfo) -> TransferInfo:
    """Return a transfer of a CUDA graph that was traced as one block: nothing shows what it hid."""
    reason = "a CUDA graph was traced as one block: what ran beside the transfer, and what waited for it, is not seen"
    return replace(transfer, verdict=UNKNOWN, robust=None, reason=reason)


def _too_fast(report: Report, transfers: Sequence[TransferInfo]) -> Sequence[str]:
    """Return a limit for copies that are faster than the target's link: then the target is another machine than the one
    profiled."""
    if report.target is None or report.target.link is None:
        return ()
    found = []
    for direction, most in (("d2h", report.target.link.d2h_gbps), ("h2d", report.target.link.h2d_gbps)):
        rates = [t.measured.gbps_alone or 0.0 for t in transfers if t.measured and t.direction == direction]
        if rates and max(rates) > LINK_SLACK * most:
            found.append(
                f"{direction} copies reach {max(rates):.3g} GB/s, more than the {most:.3g} of {report.target.name}: is "
                "it another machine? --link gives its rates"
            )
    return found


def _bare_report(
    info: InputInfo,
    files: Sequence[MeasuredFile],
    program: ProgramInfo,
    limits: Sequence[str],
    unknown: Sequence[Unknown],
) -> Report:
    """Return the report on traces that hold no module that can be read."""
    from hloinspect._version import __version__

    platform: ModulePlatform = next((file.platform for file in files if file.platform), "unknown")
    names = {p.program: p.name for file in files for p in file.programs}
    name = names.get(_main_program(files) or 0, "")
    return Report(
        schema=SCHEMA,
        hloinspect=__version__,
        input=info,
        module=ModuleInfo(name, platform, "", "", 0),
        program=program,
        target=None,
        thresholds=Thresholds(HIDDEN_SHARE, EXPOSED_SHARE),
        step=StepInfo(),
        memory=MemoryInfo(None, None, None, None, "unknown"),
        transfers=(),
        host_values=(),
        host_copies=(),
        host_events=(),
        limits=tuple(limits),
        unknown=tuple(unknown),
    )


def _judged(report: Report, offload: Offload, own: Sequence[MeasuredFile]) -> JudgedInfo:
    """Return which module was judged. Of several hosts the evidence is that of the file which shows it least."""
    known = [file.explained for file in own if file.explained is not None]
    worst = min(known, key=lambda found: (found.is_trusted, found.found / found.events), default=None)
    given = next((file.module_path for file in own if file.module_path), "")
    is_prediction = any(file.host == PREDICTION_HOST for file in own)
    return judged_in_profile(offload.program.module, report.module, worst, given, is_prediction=is_prediction)


def _expected(report: Report, offload: Offload, expect: str) -> Report:
    from hloinspect.report.expect import compare_expected, unknown_of_difference

    found = compare_expected(report.program, offload, expect)
    assert report.trace is not None
    unknown = unknown_of_difference(found, f"the profiled program is not that of {expect}")
    return replace(report, trace=replace(report.trace, expected=found), unknown=(*report.unknown, *unknown))


def _with_findings(judged: TraceInspection, target: Target | None, rules: Choice | None) -> Report:
    from hloinspect.offload.slices import Slices, check_slices
    from hloinspect.rules.engine import run_rules
    from hloinspect.rules.evidence import Evidence

    slices = check_slices(judged.offload.program) if judged.offload is not None else Slices()
    return run_rules(Evidence(judged.report, judged.offload, judged.prediction, target, slices), rules)
