"""The public verbs: inspect a step or a module, and check it against budgets."""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from hloinspect.errors import UsageError
from hloinspect.gate.budget import BudgetResult, check_budget, parse_budget
from hloinspect.hardware import Target, load_target, with_link
from hloinspect.hlo.load import load_module
from hloinspect.hlo.model import Module
from hloinspect.inputs import COMPILED, STEP, Input, classify
from hloinspect.offload.names import OffloadedName, with_names
from hloinspect.offload.transfers import Offload, find_offload
from hloinspect.predict.prediction import Prediction, predict
from hloinspect.predict.schedule import device_count
from hloinspect.report.build import build_report
from hloinspect.report.schema import InputInfo, MemoryInfo, ProgramInfo, Report, Unknown

if TYPE_CHECKING:
    from hloinspect.compile import CompileResult, Manifest

LIMIT_MODEL = "prediction is a model with a range: the GPU model has not been held against a GPU yet (docs/accuracy.md)"
LIMIT_TPU = (
    "of the TPU model only queueing and links have been held against a trace, compute has not (docs/accuracy.md)"
)
LIMIT_AUTOTUNING = "compiled without a device, so without autotuning: deployed kernels may differ"
NOT_SCHEDULED = Unknown(
    "the module is not scheduled, so nothing tells what runs beside a transfer",
    "give the module after optimizations (compiled.as_text(), or *after_optimizations.txt of --xla_dump_to)",
    "time",
)


@dataclass(frozen=True, slots=True)
class Inspection:
    """A report together with what it was made from, for those who want to go on from there."""

    report: Report
    offload: Offload
    prediction: Prediction | None


def inspect(
    source: str,
    *,
    target: str | Target | None = None,
    link: str | None = None,
    devices: int | None = None,
    topology: str | None = None,
    xla_flags: Sequence[str] = (),
    keep: Path | None = None,
    on_progress: Callable[[str], None] | None = None,
) -> Inspection:
    """The static answer for a step, a module or a compiled directory.

    ``source`` is an INPUT as on the command line. A step needs a ``target`` and is compiled first (into ``keep``
    where that
    is given). Without a target the transfers are listed and their verdicts are unknown. Raises HloInspectError.
    """
    found = classify(source)
    chosen = _target(target, link)
    if found.kind == STEP:
        if chosen is None:
            raise UsageError(f"{source} is a step: say what to compile it for with --target (see `hloinspect targets`)")
        return _inspect_step(found, chosen, devices, topology, xla_flags, keep, on_progress)
    if xla_flags:
        raise UsageError("--xla-flag changes how a step is compiled; this input is compiled already")
    if found.kind == COMPILED:
        from hloinspect.compile import load_result

        return _inspect_compiled(found, load_result(found.path), chosen, link, topology)
    module = load_module(found.text)
    info = InputInfo(found.text, module.kind, _digest(found))
    return _inspect_module(info, module, ProgramInfo(topology=topology), chosen, devices, topology, None)


def _digest(found: Input) -> str | None:
    if found.text == "-":
        return None
    with found.path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _target(target: str | Target | None, link: str | None) -> Target | None:
    if target is None:
        return None
    chosen = load_target(target) if isinstance(target, str) else target
    return with_link(chosen, link) if link else chosen


def _inspect_step(
    found: Input,
    target: Target,
    devices: int | None,
    topology: str | None,
    xla_flags: Sequence[str],
    keep: Path | None,
    on_progress: Callable[[str], None] | None,
) -> Inspection:
    from hloinspect.compile import compile_step

    with tempfile.TemporaryDirectory(prefix="hloinspect-") as scratch:
        result = compile_step(
            found.text,
            target,
            out=keep or Path(scratch) / "step",
            devices=devices,
            topology=topology,
            xla_flags=xla_flags,
            on_progress=on_progress,
        )
        return _inspect_compiled(found, result, target, None, topology)


def _inspect_compiled(
    found: Input, result: CompileResult, target: Target | None, link: str | None, topology: str | None
) -> Inspection:
    manifest = result.manifest
    if target is None:
        target = _target(manifest.target, link)
    info = InputInfo(found.text, found.kind, manifest.module_sha256)
    program = ProgramInfo(
        jax=manifest.versions.get("jax"),
        jaxlib=manifest.versions.get("jaxlib"),
        flags=manifest.xla_flags,
        topology=manifest.topology,
        autotuned=False,
    )
    module = load_module(result.module_proto)
    shape = topology or manifest.topology
    return _inspect_module(info, module, program, target, manifest.devices, shape, manifest)


def _inspect_module(
    info: InputInfo,
    module: Module,
    program: ProgramInfo,
    target: Target | None,
    devices: int | None,
    topology: str | None,
    manifest: Manifest | None,
) -> Inspection:
    offload = find_offload(module)
    if manifest is not None:
        names = [OffloadedName(n.name, n.dtype, n.shape, n.line, n.column) for n in manifest.offload_names]
        offload = with_names(offload, names)
    count = devices or device_count(module)
    unknown = list(_uncounted(offload))
    prediction = None
    if obstacle := _obstacle(module, target):
        unknown.insert(0, obstacle)
    elif target is not None:
        prediction = predict(offload, target, count, _domain(target, topology))
    memory, about_memory = _memory(manifest, target)
    limits = _limits(module, manifest, prediction)
    report = build_report(info, offload, program, target, count, prediction, memory, limits, [*unknown, *about_memory])
    return Inspection(report, offload, prediction)


def _domain(target: Target, topology: str | None) -> int:
    """Devices in one domain of the interconnect: hosts x devices of a topology ``PxHxD``, else the target's own
    figure."""
    parts = (topology or "").lower().split("x")
    if len(parts) == 3 and all(part.isdecimal() and 0 < len(part) < 7 for part in parts):
        return max(1, int(parts[1]) * int(parts[2]))
    return max(1, target.levels[0].devices) if target.levels else 1


def _obstacle(module: Module, target: Target | None) -> Unknown | None:
    """What stands in the way of any prediction, or None."""
    if target is None:
        reason = "no target was given, so there is no time to compare a transfer with"
        return Unknown(reason, "--target gb200 (see `hloinspect targets`)", "time")
    if target.link is None:
        reason = f"no host link is published for {target.name}"
        return Unknown(reason, "--link 55GB/s, as measured on your machine", "time")
    if module.platform and module.platform != target.platform:
        reason = (
            f"the module was compiled for a {module.platform.upper()}; {target.name} is a {target.platform.upper()}"
        )
        return Unknown(reason, "compile the step for this target, or name the module's own", "time")
    return None if module.is_scheduled else NOT_SCHEDULED


def _uncounted(offload: Offload) -> Sequence[Unknown]:
    return [
        Unknown(
            f"how often the loop {loop} turns cannot be read from the module; it was counted as one turn",
            "make the trip count static, or measure a run",
            "time",
        )
        for loop in offload.program.unknown_trip_counts
    ]


def _limits(module: Module, manifest: Manifest | None, prediction: Prediction | None) -> Sequence[str]:
    limits = []
    if prediction is not None:
        limits.append(LIMIT_TPU if module.platform == "tpu" else LIMIT_MODEL)
        if prediction.opaque:
            limits.append("priced by their bytes alone: " + ", ".join(prediction.opaque[:6]))
        if prediction.unsettled:
            limits.append("extrapolated before it settled: loop " + ", ".join(prediction.unsettled[:6]))
    if manifest is not None and module.platform != "tpu":
        limits.append(LIMIT_AUTOTUNING)
    return limits


def _memory(manifest: Manifest | None, target: Target | None) -> tuple[MemoryInfo, Sequence[Unknown]]:
    """Device memory = arguments + temporaries + results that are not arguments (facts of memory_analysis; its peak
    counts host memory and is not used)."""
    limit = int(target.hbm_bytes.value) if target else None
    host_limit = None
    if target is not None and target.link is not None and target.link.host_memory_bytes is not None:
        host_limit = int(target.link.host_memory_bytes.value / target.link.sharers)
    if manifest is None:
        remedy = "compile the step with `hloinspect compile`, or give the directory that it wrote"
        missing = Unknown("a module alone does not say how much memory XLA assigned", remedy, "memory")
        return MemoryInfo(None, None, limit, host_limit, "unknown"), [missing]
    kept = manifest.memory

    def total(prefix: str) -> int:
        parts = ("argument", "temp", "output")
        sizes = [kept.get(f"{prefix}{part}_size_in_bytes", 0) for part in parts]
        return sum(sizes) - kept.get(f"{prefix}alias_size_in_bytes", 0)

    return MemoryInfo(total(""), total("host_"), limit, host_limit, "artifacts"), []


def check(report: Report, budgets: Sequence[str]) -> tuple[BudgetResult, ...]:
    """Holds a report against budgets such as ``stall=2%`` or ``stall.h2d=0.5ms``; one result each, in order.

    Raises UsageError for a budget that cannot be read.
    """
    return tuple(check_budget(report, parse_budget(text)) for text in budgets)
