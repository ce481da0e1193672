"""The public verb ``inspect``: the static answer for a step or a module.

What only some inputs need is imported where it is used: looking at one small module is to take a fifth of a second.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from hloinspect.errors import CompileError, HloParseError, InputError, UsageError
from hloinspect.hardware import Target, domain_of, load_target, target_limits, target_of_device, with_link
from hloinspect.hlo.load import load_module
from hloinspect.hlo.model import Module
from hloinspect.inputs.classify import COMPILED, DUMP, STEP, Input, classify
from hloinspect.kinds import MemorySource
from hloinspect.memory.estimate import ARTIFACTS, ESTIMATED, Memory, memory_of
from hloinspect.offload.names import OffloadedName, hlo_type_name, with_alternatives, with_names
from hloinspect.offload.transfers import Offload, find_offload
from hloinspect.placements.requested import Requested, count_requested
from hloinspect.predict.prediction import Prediction, predict
from hloinspect.predict.schedule import device_count
from hloinspect.report.build import build_report
from hloinspect.report.placements import RequestedOf, audited
from hloinspect.report.schema import AuditInfo, InputInfo, MemoryInfo, ProgramInfo, Report, RuleLeftOut, Unknown
from hloinspect.units import listed

if TYPE_CHECKING:
    from hloinspect.inputs.manifest import CompileResult
    from hloinspect.options import Production
    from hloinspect.rules.choice import Choice

LIMIT_MODEL = "prediction is a model with a range: the GPU model has not been held against a GPU yet (docs/accuracy.md)"
LIMIT_TPU = (
    "of the TPU model only queueing and links have been held against a trace, compute has not (docs/accuracy.md)"
)
LIMIT_TPU_MEMORY = (
    "memory that is estimated for a TPU is a lower bound: the padding of tiled layouts is not counted (docs/memory.md)"
)
NOT_SCHEDULED = Unknown(
    "the module is not scheduled, so nothing tells what runs beside a transfer",
    "give the module after optimizations (compiled.as_text(), or *after_optimizations.txt of --xla_dump_to)",
    "time",
)
MEMORY_NOT_FOLLOWED = Unknown(
    "a module alone does not say how much memory XLA assigned",
    "compile the step with `hloinspect compile`, or give the directory of --xla_dump_to",
    "memory",
)
MEMORY_NOT_REQUESTED = Unknown(
    "memory was not estimated, since only transfers were asked for",
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
        """The trace of ``--format perfetto`` (docs/perfetto.md). Raises UsageError where there is no timeline."""
        from hloinspect.render.traces.perfetto import to_perfetto

        return to_perfetto(self)

    def to_html(self) -> str:
        """The page of ``hloinspect report`` (docs/report-html.md)."""
        from hloinspect.render.page import html_page

        return html_page(self)

    def _repr_html_(self) -> str:
        return self.report._repr_html_()


@dataclass(frozen=True, slots=True)
class _Loaded:
    """A module and all that came with it. ``target`` names the one it was compiled for, where that is known;
    ``platform`` is what it was compiled for where that is known otherwise than by the module itself."""

    info: InputInfo
    module: Module
    program: ProgramInfo = field(default_factory=ProgramInfo)
    target: str | None = None
    devices: int | None = None
    names: tuple[OffloadedName, ...] = ()
    device_bytes: int | None = None
    host_bytes: int | None = None
    limits: tuple[str, ...] = ()
    unknown: tuple[Unknown, ...] = ()
    thunks: tuple[Path | None, Path | None] = (None, None)
    requested: Requested | None = None
    requested_of: RequestedOf = field(default_factory=RequestedOf)
    platform: str = ""


@dataclass(frozen=True, slots=True)
class Reading:
    """A compiled module that was read, with its transfers and what was asked of them: what is known of an input before
    a target comes into it."""

    loaded: _Loaded
    offload: Offload
    audit: AuditInfo
    limits: Sequence[str]

    @property
    def has_memory(self) -> bool:
        """Whether what came with the module says how much device memory XLA has assigned."""
        return self.loaded.device_bytes is not None


def inspect(
    source: str,
    *,
    target: str | Target | None = None,
    link: str | None = None,
    devices: int | None = None,
    topology: str | None = None,
    xla_flags: Sequence[str] = (),
    module: str | None = None,
    keep: Path | None = None,
    memory: bool | Literal["unassigned"] | None = None,
    rules: Choice | None = None,
    cache: Path | None = None,
    production: Production | None = None,
    on_progress: Callable[[str], None] | None = None,
) -> Inspection:
    """The static answer for a step, a module, a compiled directory or a dump.

    ``source`` is an INPUT as on the command line. A step needs a ``target`` and is compiled first (into ``keep``
    where that is given); other inputs may know their own. ``module`` picks one of a dump. Without a target the
    transfers are listed and their verdicts are unknown. Memory is estimated where there is a target, or as ``memory``
    says (``unassigned``: where there is a target and nothing says what XLA has assigned). ``rules`` says which rules
    run (all by default). ``cache`` keeps what was compiled (compile/cache.py). ``production`` is what the production
    run had, for compiling the step (compile/production.py). Raises
    HloInspectError.
    """
    found = classify(source)
    chosen = load_target(target) if isinstance(target, str) else target
    if found.kind == STEP:
        if chosen is None:
            raise UsageError(f"{source} is a step: say what to compile it for with --target (see `hloinspect targets`)")
        loaded = _compile(found, chosen, devices, topology, xla_flags, production, keep, cache, on_progress)
    else:
        if xla_flags:
            raise UsageError("--xla-flag changes how a step is compiled; this input is compiled already")
        if production:
            raise UsageError(f"{production.option} is for compiling a step; this input is compiled already")
        if keep is not None:
            raise UsageError("--keep keeps what compiling a step writes; this input is compiled already")
        loaded = _load(found, module)
    if chosen is None and loaded.target is not None:
        chosen = load_target(loaded.target)
    if chosen is None and link:
        raise UsageError("--link replaces the host link of a target: name one with --target")
    if chosen is not None and link:
        chosen = with_link(chosen, link)
    _check_topology(chosen, devices, topology)
    with _naming(loaded.info.path):
        if memory == "unassigned":
            with_memory = chosen is not None and loaded.device_bytes is None
        else:
            with_memory = chosen is not None if memory is None else memory
        return _judge(_read(loaded), chosen, devices, topology, rules, with_memory)


def read_input(source: str) -> Reading:
    """A module, a compiled directory or a dump, to be judged more than once without being read again. Raises
    HloInspectError."""
    found = classify(source)
    if found.kind == STEP:
        raise UsageError(f"{source} is a step, and not compiled yet")
    loaded = _load(found, None)
    with _naming(loaded.info.path):
        return _read(loaded)


def judge_reading(
    reading: Reading,
    target: Target,
    *,
    devices: int | None = None,
    topology: str | None = None,
    memory: bool = True,
    rules: Choice | None = None,
) -> Inspection:
    """What ``inspect`` says of what was read. Raises HloInspectError."""
    _check_topology(target, devices, topology)
    with _naming(reading.loaded.info.path):
        return _judge(reading, target, devices, topology, rules, memory)


def predict_reading(
    reading: Reading, target: Target, *, devices: int | None = None, topology: str | None = None
) -> Prediction | None:
    """The prediction alone of what ``judge_reading`` says, for another link or target; None where something stands in
    its way. Raises HloInspectError."""
    _check_topology(target, devices, topology)
    with _naming(reading.loaded.info.path):
        return _predicted(reading, target, devices, topology)[0]


def _check_topology(target: Target | None, devices: int | None, topology: str | None) -> None:
    if target is not None and topology:
        from hloinspect.compile.topology import choose_topology

        choose_topology(target, devices, topology)  # for its complaints


@contextmanager
def _naming(path: str) -> Iterator[None]:
    """Errors with the input's name: a fault inside an instruction shows when that is first asked for."""
    try:
        yield
    except HloParseError as error:
        raise InputError(f"{'standard input' if path == '-' else path}: {error}") from None


def _compile(
    found: Input,
    target: Target,
    devices: int | None,
    topology: str | None,
    xla_flags: Sequence[str],
    production: Production | None,
    keep: Path | None,
    cache: Path | None,
    on_progress: Callable[[str], None] | None,
) -> _Loaded:
    import tempfile

    from hloinspect.compile.known_errors import explained
    from hloinspect.compile.launch import compile_step

    with tempfile.TemporaryDirectory(prefix="hloinspect-") as scratch:
        try:
            result = compile_step(
                found.text,
                target,
                out=keep or Path(scratch) / "step",
                devices=devices,
                topology=topology,
                xla_flags=xla_flags,
                production=production,
                cache=cache,
                on_progress=on_progress,
            )
        except CompileError as error:
            raise explained(error) from None
        return _compiled(found, result)


def _load(found: Input, wanted: str | None) -> _Loaded:
    if found.kind == COMPILED:
        from hloinspect.inputs.manifest import load_result

        return _compiled(found, load_result(found.path))
    if found.kind == DUMP:
        return _dumped(found, wanted)
    if wanted is not None:
        raise UsageError("--module picks a module of a dump directory; this input is one module")
    module = load_module(found.text)
    digest = None if found.text == "-" else digest_of(found.path)
    beside = _stablehlo_beside(found.path)
    info = InputInfo(found.text, module.kind, digest)
    return _Loaded(info, module, requested=_requested(beside), requested_of=RequestedOf(stablehlo=beside))


def _stablehlo_beside(path: Path) -> Path:
    """``step.stablehlo`` for ``step.hlo`` or ``step.hlo.gz``."""
    stem = path.with_suffix("") if path.suffix in (".gz", ".xz", ".zst") else path
    return stem.with_suffix(".stablehlo")


def _requested(path: Path, unmatched: tuple[str, ...] = (), dead: tuple[str, ...] | None = None) -> Requested | None:
    if not path.is_file():
        return None
    return replace(count_requested(path.read_text(encoding="utf-8", errors="replace")), unmatched=unmatched, dead=dead)


def _unmatched(notes: Sequence[str]) -> tuple[str, ...]:
    """The names of a policy that match nothing, from the notes of a compilation."""
    from hloinspect.inputs.manifest import NOTE_POLICY_UNMATCHED

    found = [note for note in notes if note.startswith(NOTE_POLICY_UNMATCHED)]
    return tuple(name for note in found for name in note.removeprefix(f"{NOTE_POLICY_UNMATCHED}: ").split(", "))


def digest_of(path: Path) -> str | None:
    """The SHA-256 of a file; None for what is none."""
    if not path.is_file():  # a pipe can be read once
        return None
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _compiled(found: Input, result: CompileResult) -> _Loaded:
    from hloinspect.inputs.manifest import MANIFEST
    from hloinspect.placements.flow import requested_in
    from hloinspect.report.program import assigned_bytes, assigned_on_device, limits_of, program_of, unknown_of

    manifest = result.manifest
    requested = requested_in(manifest, result.directory / MANIFEST)
    dead = requested.dead_policies if requested else None
    device_bytes, about_memory = assigned_on_device(manifest)
    return _Loaded(
        info=InputInfo(found.text, STEP if found.kind == STEP else COMPILED, manifest.module_sha256),
        module=load_module(result.module_proto),
        program=program_of(manifest),
        target=manifest.target,
        devices=manifest.devices,
        names=tuple(
            OffloadedName(n.name, hlo_type_name(n.dtype), n.shape, n.line, n.column) for n in manifest.offload_names
        ),
        device_bytes=device_bytes,
        host_bytes=assigned_bytes(manifest.memory, "host_"),
        limits=(*limits_of(manifest), *about_memory),
        unknown=unknown_of(manifest),
        thunks=(result.thunk_sequence, result.directory / "thunk_metadata.txt"),
        requested=_requested(result.stablehlo, _unmatched(manifest.notes), dead),
        requested_of=RequestedOf(manifest=requested, stablehlo=result.stablehlo, flags=manifest.xla_flags),
        platform=manifest.platform,
    )


def _dumped(found: Input, wanted: str | None) -> _Loaded:
    from hloinspect.inputs.dumps import (
        choose_module,
        dumped_device,
        dumped_memory,
        dumped_modules,
        other_keys,
        read_side_file,
    )
    from hloinspect.memory.assignment import parse_assignment, sum_allocations

    modules = dumped_modules(found.path)
    chosen = choose_module(found.path, modules, wanted)
    memory = dumped_memory(chosen) or sum_allocations(parse_assignment(read_side_file(chosen.buffer_assignment)))
    others = other_keys(modules, chosen)
    limits: tuple[str, ...] = ()
    if others and wanted is None:
        limits = (f"of the dump, {chosen.key} was looked at; --module picks another: {listed(others, 6)}",)
    return _Loaded(
        info=InputInfo(str(chosen.module), DUMP, digest_of(chosen.module)),
        module=load_module(chosen.module),
        target=target_of_device(dumped_device(chosen)),
        device_bytes=memory.device_bytes if memory else None,
        host_bytes=memory.host_bytes if memory else None,
        limits=limits,
        thunks=(chosen.thunk_sequence, chosen.thunk_metadata),
        requested_of=RequestedOf(
            before=found.path / f"{chosen.key}.before_optimizations.txt", dump=(found.path, chosen.key)
        ),
        platform=chosen.platform,
    )


def _read(loaded: _Loaded) -> Reading:
    """Finds the transfers, and what the program asked for."""
    offload = find_offload(loaded.module)
    if loaded.names:
        offload = with_names(offload, loaded.names)
    offload, audit = audited(offload, loaded.requested_of)
    offload = with_alternatives(offload, loaded.names)
    offload, about_thunks = _with_thunks(offload, loaded)
    return Reading(loaded, offload, audit, about_thunks)


def _predicted(
    reading: Reading, target: Target | None, devices: int | None, topology: str | None
) -> tuple[Prediction | None, Unknown | None]:
    """The predicted step, or what stands in its way."""
    loaded, offload = reading.loaded, reading.offload
    touches_host = bool(offload.transfers or offload.host_copies or offload.host_values or offload.host_events)
    obstacle = obstacle_to(loaded.module, target, loaded.platform, touches_host)
    if obstacle is not None or target is None:
        return None, obstacle
    domain = domain_of(target, topology or loaded.program.topology)
    return predict(offload, target, _device_count(loaded, devices), domain), None


def _device_count(loaded: _Loaded, devices: int | None) -> int:
    return devices or loaded.devices or device_count(loaded.module)


def _judge(
    reading: Reading,
    target: Target | None,
    devices: int | None,
    topology: str | None,
    rules: Choice | None,
    with_memory: bool,
) -> Inspection:
    """Predicts, reports, and looks for what is wrong."""
    loaded, offload = reading.loaded, reading.offload
    module, count = loaded.module, _device_count(loaded, devices)
    prediction, obstacle = _predicted(reading, target, devices, topology)
    unknown = [*([obstacle] if obstacle else []), *loaded.unknown, *_uncounted(offload)]
    used, about_memory = _used(offload, prediction) if with_memory else (None, ())
    if loaded.device_bytes is None and used is None:
        unknown.append(MEMORY_NOT_FOLLOWED if with_memory else MEMORY_NOT_REQUESTED)
    about_target = target_limits(target, loaded.target)
    limits = [*about_target, *prediction_limits(module, prediction), *loaded.limits, *reading.limits, *about_memory]
    program = replace(loaded.program, topology=topology or loaded.program.topology)
    memory = _memory(loaded, target, used)
    report = build_report(loaded.info, offload, program, target, count, prediction, memory, limits, unknown, used)
    report = replace(report, audit=reading.audit)
    if rules is not None and rules.is_empty:
        report = replace(report, rules_left_out=(RuleLeftOut("ALL", "all rules", "no rule is selected"),))
        return Inspection(report, offload, prediction, used)
    from hloinspect.offload.slices import check_slices
    from hloinspect.rules.engine import run_rules
    from hloinspect.rules.evidence import Evidence

    evidence = Evidence(report, offload, prediction, target, check_slices(offload.program), loaded.requested)
    return Inspection(run_rules(evidence, rules), offload, prediction, used)


def _with_thunks(offload: Offload, loaded: _Loaded) -> tuple[Offload, Sequence[str]]:
    """The offload with what the thunk sequence beside the module says, and a word where that cannot be read."""
    sequence, metadata = loaded.thunks
    if sequence is None:
        return offload, ()
    from hloinspect.inputs.dumps import read_side_file
    from hloinspect.offload.thunks import parse_thunks, with_thunks

    try:
        named = read_side_file(metadata) or None
        return with_thunks(offload, parse_thunks(read_side_file(sequence), named)), ()
    except HloParseError as error:
        return offload, (f"{sequence.name} was not used: {error}",)


def obstacle_to(module: Module, target: Target | None, platform: str = "", touches_host: bool = True) -> Unknown | None:
    """What stands in the way of any prediction, or None.

    ``platform`` is what the module was compiled for, where that is known otherwise than by the module. A module of
    which nothing tells that is not judged, unless it ``touches_host``: no CPU's module has anything in ``S(5)``.
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
        reason = f"nothing in the module tells whether it was compiled for a {target.platform.upper()}"
        return Unknown(reason, "give its --xla_dump_to directory, or the step itself", "time")
    return None if module.is_scheduled else NOT_SCHEDULED


def _uncounted(offload: Offload) -> Sequence[Unknown]:
    found = [
        Unknown(
            f"how often the loop {loop} turns cannot be read from the module; it was counted as one turn",
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
    """What limits a prediction, a line each."""
    limits = []
    if prediction is not None:
        limits.append(LIMIT_TPU if module.platform == "tpu" else LIMIT_MODEL)
        if prediction.opaque:
            limits.append(f"priced by their bytes alone: {listed(prediction.opaque, 6)}")
        if prediction.unsettled:
            limits.append("extrapolated before it settled: loop " + ", ".join(prediction.unsettled[:6]))
    return limits


def _used(offload: Offload, prediction: Prediction | None) -> tuple[Memory | None, Sequence[str]]:
    """The memory that follows from the schedule, and a word where it does not."""
    limits = (LIMIT_TPU_MEMORY,) if offload.program.module.platform == "tpu" else ()
    try:
        return memory_of(offload, prediction.timeline if prediction else None), limits
    except HloParseError as error:
        return None, (f"what lives when in memory was not followed: {error}",)


def _memory(loaded: _Loaded, target: Target | None, used: Memory | None) -> MemoryInfo:
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
