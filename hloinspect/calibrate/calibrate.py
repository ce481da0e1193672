"""Calibration of a target by a trace: the rates that a machine reaches, in place of the nominal ones.

Only figures that the trace holds are replaced. All others stay those of the base target, and the result says so.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from hloinspect.calibrate.overlay import overlay_toml
from hloinspect.calibrate.products import Kernel, gpu_kernels, measure_products, tpu_operations
from hloinspect.errors import InputError, UsageError
from hloinspect.hardware import Target, load_target, target_of_device
from hloinspect.inputs.modules import check_given, given_modules, with_given_modules
from hloinspect.measure.figures import KEYS, LeftOut, MeasuredFigure, Measurement
from hloinspect.measure.file import Joins
from hloinspect.measure.memcpy import ROCM, Copies, host_copies, is_rocm, measure_copies
from hloinspect.measure.queue import Steps, measure_waits, offloads_of, steps_of
from hloinspect.profiles.find import find_profiles
from hloinspect.profiles.open import open_trace
from hloinspect.profiles.xplane import Plane, XSpace, embedded_modules

GPU, TPU = "/device:GPU:", "/device:TPU:"


@dataclass(frozen=True, slots=True)
class Calibration:
    """The result of a calibration.

    ``figures`` are measured; ``left`` are those of the base, each with the reason. ``toml`` is the target file, empty
    if nothing was measured. ``device`` is the trace's own name of it, "" where it has none.
    """

    traces: tuple[str, ...]
    platform: str
    device: str
    devices: int
    base: Target
    figures: tuple[MeasuredFigure, ...]
    left: tuple[LeftOut, ...]
    notes: tuple[str, ...]
    toml: str


def calibrate(path: str, base: str | None = None, hlo: Sequence[str] = ()) -> Calibration:
    """Measure the rates of the machine on which a trace, or the newest run in a profile directory, was taken.

    ``base`` is a built-in target (or alias) for all figures that the trace does not have; by default the one whose name
    the trace has. ``hlo`` are files or dumps with the modules that a trace does not carry. Raises InputError for a file
    that is no trace, UsageError where the base is missing or of another platform, and TargetError where it is unknown.
    """
    check_given(hlo)
    files = [str(file) for file in find_profiles(path)]
    gathered = _Gathered()
    for file in files:
        gathered.add(with_given_modules(open_trace(file), hlo))
    if not gathered.platform:
        raise InputError(f"{path}: expected a trace with {GPU}<n> or {TPU}<n> planes, found no device in it")
    target = _base(base, gathered, path)
    measurement = gathered.measure(target)
    measured, left = _without_link(target, measurement)
    trace = Path(files[0]).name if len(files) == 1 else f"{Path(files[0]).parent.name} ({len(files)} hosts)"
    order = {key: place for place, key in enumerate(KEYS)}
    figures = tuple(sorted(measured, key=lambda one: order[one.key]))
    rest = tuple(sorted(left, key=lambda one: order[one.key]))
    return Calibration(
        traces=tuple(files),
        platform=gathered.platform,
        device=gathered.device,
        devices=gathered.devices,
        base=target,
        figures=figures,
        left=rest,
        notes=(*gathered.notes, *measurement.notes),
        toml=overlay_toml(target, figures, rest, trace) if figures else "",
    )


class _Gathered:
    """The needed content of the traces of all hosts. A trace is freed once it has been read."""

    def __init__(self) -> None:
        self.platform = ""
        self.device = ""
        self.device_bytes: int | None = None
        self.devices = 0
        self.notes: list[str] = []
        self._copies: list[Copies] = []
        self._steps: list[Steps] = []
        self._kernels: list[Kernel] = []
        self._modules: dict[int, bytes] = {}

    def add(self, space: XSpace) -> None:
        """Take the content of a trace. Raises InputError where it is damaged, or of another platform than those
        before."""
        self.notes += [f"the profiler says: {' '.join(text.split())}" for text in (*space.errors, *space.warnings)]
        if space.capped:
            self.notes.append(f"{space.path} is a Chrome trace: it holds at most a million events, and no module")
        gpus, tpus = space.planes_of(GPU), [p for p in space.planes_of(TPU) if p.name[len(TPU) :].isdecimal()]
        platform = "gpu" if gpus else "tpu" if tpus else ""
        if self.platform and platform and platform != self.platform:
            raise InputError(f"{space.path}: expected a trace of {self.platform.upper()}s like the others of this run")
        self.platform = self.platform or platform
        modules = dict(embedded_modules(space))
        if given_modules(space):
            joins = Joins(space)
            modules = {program: proto for program, proto in modules.items() if joins(program) is not None}
            self.notes += [*space.notes, *joins.failed]
        offloads, failed = offloads_of(modules, space.path) if tpus else ({}, ())
        self.notes += failed
        self._modules |= modules
        for plane in (*gpus, *tpus):
            self.devices += any(True for _ in plane.lines)
            self.device = self.device or _device_name(plane)
            self.device_bytes = self.device_bytes or _memory_of(plane)
            if plane in tpus:
                self._steps += steps_of(plane, offloads)
                self._kernels += tpu_operations(plane) if modules else ()
            elif is_rocm(plane):
                raise InputError(f"{space.path}: {ROCM}")
            else:
                self._copies.append(host_copies(plane))
                self._kernels += gpu_kernels(plane) if modules else ()

    def measure(self, target: Target) -> Measurement:
        if self.platform == "gpu":
            link = measure_copies(self._copies, target.hbm_bytes_per_s.value)
        else:
            link = measure_waits(self._steps, target.link.latency_us.value if target.link else 0.0)
        products = measure_products(self._kernels, self._modules, target)
        return Measurement(link.figures + products.figures, link.left + products.left, link.notes + products.notes)


def _device_name(plane: Plane) -> str:
    name = plane.stats.get("gpu_device_name") or plane.stats.get("device_type_string") or ""
    return name if isinstance(name, str) else ""


def _memory_of(plane: Plane) -> int | None:
    size = plane.stats.get("memory_size")
    return size if isinstance(size, int) and size > 0 else None


def _base(name: str | None, gathered: _Gathered, path: str) -> Target:
    device, platform = gathered.device, gathered.platform
    if name is None:
        name = target_of_device(device, gathered.device_bytes)
        if name is None:
            seen = f"is of {device!r}, which no target has as its name" if device else "does not name its device"
            raise UsageError(f"{path} {seen}: name the nearest target with --base (see `hloinspect targets`)")
    if name.endswith(".toml"):
        raise UsageError(
            f"--base {name}: expected a built-in target (see `hloinspect targets`): a target file has one base"
        )
    target = load_target(name)
    if target.platform != platform:
        raise UsageError(f"--base {name} is a {target.platform.upper()}; {path} is a trace of {platform.upper()}s")
    return target


def _without_link(target: Target, measurement: Measurement) -> tuple[Sequence[MeasuredFigure], Sequence[LeftOut]]:
    """Return the figures and the left-out ones, without figures of the link where the base has none.

    A target file needs a whole link, and a trace has only part of one.
    """
    if target.link is not None:
        return measurement.figures, measurement.left
    reason = f"{target.name} has no host link to replace figures of: take another base"
    links = [one for one in measurement.figures if one.key.startswith("link.")]
    figures = [one for one in measurement.figures if one not in links]
    return figures, [*measurement.left, *(LeftOut(one.key, reason) for one in links)]
