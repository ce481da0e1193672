"""The public verb ``inspect``: the static answer for a step or a module.

What only some inputs need is imported where it is used: looking at one small module is to take a fifth of a second.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from hloinspect.analyze.load import Loaded, Reading, compile_input, load_input, naming_input, read
from hloinspect.analyze.options import FollowMemory, JudgeOptions, Machine
from hloinspect.errors import HloParseError, UsageError
from hloinspect.hardware import Target, domain_of, load_target, target_limits, with_link
from hloinspect.hlo.model import Module
from hloinspect.inputs.classify import STEP, classify
from hloinspect.kinds import MemorySource
from hloinspect.memory.estimate import ARTIFACTS, ESTIMATED, Memory, memory_of
from hloinspect.offload.transfers import Offload
from hloinspect.options import CompileOptions, Production
from hloinspect.predict.prediction import Prediction, predict
from hloinspect.predict.schedule import device_count
from hloinspect.report.build import build_report
from hloinspect.report.schema import JudgedInfo, MemoryInfo, Report, RuleLeftOut, Unknown
from hloinspect.units import listed

if TYPE_CHECKING:
    from hloinspect.rules.choice import Choice

LIMIT_MODEL = (
    "prediction is a model with a range: products and collectives were compared with GPUs, host copies inside a GPU "
    "program have no public measurement (docs/accuracy.md)"
)
LIMIT_TPU = (
    "of the TPU model only queueing and links have been compared with a trace, compute has not (docs/accuracy.md)"
)
LIMIT_TPU_MEMORY = (
    "memory that is estimated for a TPU is a lower bound: the padding of tiled layouts is not counted (docs/memory.md)"
)
NOT_SCHEDULED = Unknown(
    "the module is not scheduled, so nothing shows what runs beside a transfer",
    "give the module after optimizations (compiled.as_text(), or *after_optimizations.txt of --xla_dump_to)",
    "time",
)
MEMORY_NOT_FOLLOWED = Unknown(
    "a module alone does not say how much memory XLA assigned",
    "compile the step with `hloinspect compile`, or give the directory of --xla_dump_to",
    "memory",
)
MEMORY_NOT_REQUESTED = Unknown(
    "memory was not estimated, since only transfers were requested",
    "`hloinspect inspect --memory` (memory=True in Python), or in a check a budget on memory",
    "memory",
)


@dataclass(frozen=True, slots=True)
class Inspection:
    """A report together with what it was made from, for those who want to go on from there."""

    report: Report
    offload: Offload
    prediction: Prediction | None
    memory: Memory | None = None

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


def inspect(  # noqa: PLR0913  (a public verb: its keywords are its interface)
    source: str,
    *,
    target: str | Target | None = None,
    link: str | None = None,
    devices: int | None = None,
    topology: str | None = None,
    xla_flags: Sequence[str] = (),
    module: str | None = None,
    keep: Path | None = None,
    memory: FollowMemory = None,
    against: str | None = None,
    rules: Choice | None = None,
    cache: Path | None = None,
    production: Production | None = None,
    on_progress: Callable[[str], None] | None = None,
) -> Inspection:
    """Return the static answer for a step, a module, a compiled directory or a dump.

    ``source`` is an INPUT as on the command line. A step needs a ``target`` and is compiled first (into ``keep``
    where that is given); other inputs may know their own. ``module`` picks one of a dump. Without a target the
    transfers are listed and their verdicts are unknown. Memory is estimated where there is a target, or as ``memory``
    says (``unassigned``: where there is a target and nothing says what XLA has assigned). ``against`` is what ran, a
    profile, a dump or a module: the report says how far the module is that one. ``rules`` says which rules run (all by
    default). ``cache`` keeps what was compiled (compile/cache.py). ``production`` is what the production
    run had, for compiling the step (compile/production.py). Raises HloInspectError.
    """
    compiling = CompileOptions(
        devices=devices,
        topology=topology,
        xla_flags=tuple(xla_flags),
        production=production or Production(),
        cache=cache,
        keep=keep,
        module=module,
    )
    judging = JudgeOptions(target=target, link=link, rules=rules, memory=memory, against=against)
    return inspect_input(source, compiling, judging, on_progress)


def inspect_input(
    source: str,
    compiling: CompileOptions,
    judging: JudgeOptions,
    on_progress: Callable[[str], None] | None = None,
) -> Inspection:
    """Return what ``inspect`` returns, from options that are objects already. Raises HloInspectError."""
    found = classify(source)
    target = load_target(judging.target) if isinstance(judging.target, str) else judging.target
    if found.kind == STEP:
        if target is None:
            raise UsageError(f"{source} is a step: say what to compile it for with --target (see `hloinspect targets`)")
        loaded = compile_input(found, target, compiling, on_progress)
    else:
        _refuse_options_of_steps(compiling)
        loaded = load_input(found, compiling.module)
    named_by_input = target is None and loaded.target is not None
    if target is None and loaded.target is not None:
        target = load_target(loaded.target)
    if target is None and judging.link:
        raise UsageError("--link replaces the host link of a target: name one with --target")
    if target is not None and judging.link:
        target = with_link(target, judging.link)
    machine = Machine(target, compiling.devices, compiling.topology, "input" if named_by_input else "given")
    _check_topology(machine)
    with naming_input(loaded.info.path):
        if judging.memory == "unassigned":
            with_memory = target is not None and loaded.device_bytes is None
        else:
            with_memory = target is not None if judging.memory is None else judging.memory
        inspection = _judge(read(loaded), machine, judging.rules, with_memory)
    return inspection if judging.against is None else _against(inspection, loaded, judging.against)


def _against(found: Inspection, loaded: Loaded, against: str) -> Inspection:
    """Say how far the module is the one that ran. Raises HloInspectError where that cannot be read."""
    from hloinspect.report.expect import compare_against, flags_beside, unknown_of_difference

    made = loaded.program
    if loaded.dumped is not None:
        made = replace(made, flags=flags_beside(loaded.dumped))
    compared = compare_against(made, found.offload, against)
    unknown = unknown_of_difference(compared, f"the judged module is not the program that ran ({against})")
    return replace(found, report=replace(found.report, against=compared, unknown=(*found.report.unknown, *unknown)))


def _refuse_options_of_steps(compiling: CompileOptions) -> None:
    if compiling.xla_flags:
        raise UsageError("--xla-flag changes how a step is compiled; this input is compiled already")
    if compiling.production:
        raise UsageError(f"{compiling.production.option} is for compiling a step; this input is compiled already")
    if compiling.keep is not None:
        raise UsageError("--keep keeps what compiling a step writes; this input is compiled already")


def read_input(source: str) -> Reading:
    """Read a module, a compiled directory or a dump, which may then be judged more than once. Raises
    HloInspectError."""
    found = classify(source)
    if found.kind == STEP:
        raise UsageError(f"{source} is a step, and not compiled yet")
    loaded = load_input(found, None)
    with naming_input(loaded.info.path):
        return read(loaded)


def judge_reading(
    reading: Reading, machine: Machine, *, memory: bool = True, rules: Choice | None = None
) -> Inspection:
    """Return what ``inspect`` says of what was read. Raises HloInspectError."""
    _check_topology(machine)
    with naming_input(reading.loaded.info.path):
        return _judge(reading, machine, rules, memory)


def predict_reading(reading: Reading, machine: Machine) -> Prediction | None:
    """Return only the prediction of ``judge_reading``, for another link or target; None where something stands in its
    way. Raises HloInspectError."""
    _check_topology(machine)
    with naming_input(reading.loaded.info.path):
        return _predicted(reading, machine)[0]


def _check_topology(machine: Machine) -> None:
    """Raise UsageError for a topology that the target cannot have."""
    if machine.target is not None and machine.topology:
        from hloinspect.compile.topology import choose_topology

        choose_topology(machine.target, machine.devices, machine.topology)


def _predicted(reading: Reading, machine: Machine) -> tuple[Prediction | None, Unknown | None]:
    """Return the predicted step, or what stands in its way."""
    loaded, offload = reading.loaded, reading.offload
    touches_host = bool(offload.transfers or offload.host_copies or offload.host_values or offload.host_events)
    obstacle = obstacle_to(loaded.module, machine.target, loaded.platform, touches_host)
    if obstacle is not None or machine.target is None:
        return None, obstacle
    domain = domain_of(machine.target, machine.topology or loaded.program.topology)
    return predict(offload, machine.target, _device_count(loaded, machine), domain), None


def _device_count(loaded: Loaded, machine: Machine) -> int:
    return machine.devices or loaded.devices or device_count(loaded.module)


def _judge(reading: Reading, machine: Machine, rules: Choice | None, with_memory: bool) -> Inspection:
    """Predict, report, and look for what is wrong."""
    loaded, offload, target = reading.loaded, reading.offload, machine.target
    prediction, obstacle = _predicted(reading, machine)
    unknown = [*([obstacle] if obstacle else []), *loaded.unknown, *_uncounted(offload)]
    used, about_memory = _used(offload, prediction) if with_memory else (None, ())
    if loaded.device_bytes is None and used is None:
        unknown.append(MEMORY_NOT_FOLLOWED if with_memory else MEMORY_NOT_REQUESTED)
    about_target = target_limits(target, loaded.target)
    predicted_limits = prediction_limits(loaded.module, prediction)
    report = build_report(
        loaded.info,
        offload,
        replace(loaded.program, topology=machine.topology or loaded.program.topology),
        target,
        _device_count(loaded, machine),
        prediction,
        _memory(loaded, target, used),
        [*about_target, *predicted_limits, *loaded.limits, *reading.limits, *about_memory],
        unknown,
        used,
        machine.source,
    )
    report = replace(report, audit=reading.audit, judged=_dumped(loaded, report))
    if rules is not None and rules.is_empty:
        report = replace(report, rules_left_out=(RuleLeftOut("ALL", "all rules", "no rule is selected"),))
        return Inspection(report, offload, prediction, used)
    from hloinspect.offload.slices import check_slices
    from hloinspect.rules.engine import run_rules
    from hloinspect.rules.evidence import Evidence

    evidence = Evidence(report, offload, prediction, target, check_slices(offload.program), loaded.requested)
    return Inspection(run_rules(evidence, rules), offload, prediction, used)


def _dumped(loaded: Loaded, report: Report) -> JudgedInfo | None:
    """Return what is said of a module of a dump, None for any other input."""
    if loaded.dumped is None:
        return None
    from hloinspect.report.expect import flags_beside
    from hloinspect.report.judged import judged_in_dump

    return judged_in_dump(loaded.module, report.module, loaded.dumped.key, flags_beside(loaded.dumped))


def obstacle_to(module: Module, target: Target | None, platform: str = "", touches_host: bool = True) -> Unknown | None:
    """Return what stands in the way of any prediction, or None.

    ``platform`` is what the module was compiled for, where something else than the module says it. A module of an
    unknown platform is not judged, unless it ``touches_host``: no CPU's module has anything in ``S(5)``.
    """
    if target is None:
        reason = "no target was given, so there is no time to compare a transfer with"
        return Unknown(reason, "--target gb200 (see `hloinspect targets`)", "time")
    if target.link is None:
        reason = f"no host link is published for {target.name}"
        return Unknown(reason, "--link 55GB/s, as measured on your machine", "time")
    found = module.platform or platform
    if found and found != target.platform:
        reason = f"the module was compiled for a {found.upper()}; {target.name} is a {target.platform.upper()}"
        return Unknown(reason, "compile the step for this target, or name the module's own", "time")
    if not found and not touches_host:
        reason = f"nothing in the module shows whether it was compiled for a {target.platform.upper()}"
        return Unknown(reason, "give its --xla_dump_to directory, or the step itself", "time")
    return None if module.is_scheduled else NOT_SCHEDULED


def _uncounted(offload: Offload) -> Sequence[Unknown]:
    found = [
        Unknown(
            f"how many iterations the loop {loop} has cannot be read from the module; it was counted as one iteration",
            "make the trip count static, or measure a run",
            "time",
        )
        for loop in offload.program.unknown_trip_counts
    ]
    if names := offload.unfollowed:
        reason = f"{listed(names, 3)} talk to the host in a way that is not followed (callback, infeed, compute)"
        found.append(Unknown(reason, "judge a step without them, or measure a run", "transfers"))
    return found


def prediction_limits(module: Module, prediction: Prediction | None) -> Sequence[str]:
    """Return what limits a prediction, a line each."""
    limits = []
    if prediction is not None:
        limits.append(LIMIT_TPU if module.platform == "tpu" else LIMIT_MODEL)
        if prediction.opaque:
            limits.append(f"priced by their bytes alone: {listed(prediction.opaque, 6)}")
        if prediction.unsettled:
            limits.append("extrapolated before it settled: loop " + ", ".join(prediction.unsettled[:6]))
    return limits


def _used(offload: Offload, prediction: Prediction | None) -> tuple[Memory | None, Sequence[str]]:
    """Return the memory that follows from the schedule, and its limits."""
    limits = (LIMIT_TPU_MEMORY,) if offload.program.module.platform == "tpu" else ()
    try:
        return memory_of(offload, prediction.timeline if prediction else None), limits
    except HloParseError as error:
        return None, (f"what lives when in memory was not followed: {error}",)


def _memory(loaded: Loaded, target: Target | None, used: Memory | None) -> MemoryInfo:
    host_limit = None
    if target is not None and target.link is not None and target.link.host_memory_bytes is not None:
        host_limit = int(target.link.host_memory_bytes.value / target.link.sharers)
    source: MemorySource = ARTIFACTS
    device, host = loaded.device_bytes, loaded.host_bytes
    if device is None:
        device, host, source = None, None, "unknown"
        if used is not None:
            device, host, source = used.device.total_bytes, used.host.total_bytes, ESTIMATED
    return MemoryInfo(
        device_bytes=device,
        host_bytes=host,
        device_limit_bytes=int(target.hbm_bytes.value) if target else None,
        host_limit_bytes=host_limit,
        source=source,
        peak=used.peak if used is not None else None,
        backward=used.backward if used is not None else None,
    )
