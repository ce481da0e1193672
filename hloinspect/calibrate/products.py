"""Rate that matrix products reach on a device: kernels of a trace joined to the dots of the module in it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hloinspect.errors import InputError
from hloinspect.hardware.target import Target
from hloinspect.hlo.load import load_module_bytes
from hloinspect.hlo.model import Computation, Module
from hloinspect.measure.figures import MATMUL, LeftOut, MeasuredFigure, Measurement, weighted_percentiles
from hloinspect.predict.cost import Cost, cost_of, peak_flops
from hloinspect.predict.scenario import scenarios
from hloinspect.profiles.xplane import Plane
from hloinspect.profiles.xplane.embedded import PROGRAM_ID, program_id_of

MIN_PEAK_US = 20.0
"""The time at the peak rate from which on a product is used. Shorter ones measure launches."""

_OPS = "XLA Ops"


@dataclass(frozen=True, slots=True)
class Kernel:
    """All executions of one kernel of one instruction on one device, durations in ps."""

    program: int
    instruction: str
    name: str
    durations_ps: NDArray[np.int64]


def gpu_kernels(plane: Plane) -> Iterator[Kernel]:
    """Yield the kernels of a GPU that name their instruction (statistics program_id and hlo_op).

    Those in a command buffer may name that buffer instead, and then join to nothing.
    """
    for line in plane.lines:
        columns = line.columns(("hlo_op", PROGRAM_ID, "memcpy_details"))
        codes, labels = columns.stats["hlo_op"].labels()
        program = columns.stats[PROGRAM_ID]
        chosen = columns.usable & (codes >= 0) & program.present & ~columns.stats["memcpy_details"].present
        events = np.flatnonzero(chosen)
        duration = columns.duration_ps[events]
        keys = (program.integers()[events], codes[events], columns.metadata_id[events])
        for (number, code, kind), which in _grouped(keys):
            known = plane.events.get(kind)
            yield Kernel(number, labels[code], known.name if known else "", duration[which])


def tpu_operations(plane: Plane) -> Iterator[Kernel]:
    """Yield the operations of a TPU's own line. The instruction's name is the event's display name."""
    for line in plane.lines:
        if line.name != _OPS:
            continue
        columns = line.columns()
        events = np.flatnonzero(columns.usable)
        duration = columns.duration_ps[events]
        for (kind,), which in _grouped((columns.metadata_id[events],)):
            known = plane.events.get(kind)
            number = program_id_of(known) if known and PROGRAM_ID in known.stats else None
            if known and number is not None:
                yield Kernel(number, known.display_name, known.name, duration[which])


def _grouped(keys: Sequence[NDArray[np.int64]]) -> Iterator[tuple[tuple[int, ...], NDArray[np.int64]]]:
    """Yield each different row of the columns ``keys``, and the places where it stands."""
    if not len(keys[0]):
        return
    code = np.zeros(len(keys[0]), np.int64)
    for key in keys:
        values, place = np.unique(key, return_inverse=True)
        _, code = np.unique(
            code * len(values) + place, return_inverse=True
        )  # numbered anew, so that it cannot overflow
    order = np.argsort(code, kind="stable")
    for which in np.split(order, np.cumsum(np.bincount(code))[:-1]):
        yield tuple(int(key[which[0]]) for key in keys), which


def measure_products(kernels: Iterable[Kernel], modules: Mapping[int, bytes], target: Target) -> Measurement:
    """Measure the share of the target's peak that products reach: the median over executions, weighted by their FLOPs.

    Only products count that compute and not memory bounds, on the target, and that run as one kernel. With several
    kernels it is not known which execution each belongs to.
    """
    by_instruction: dict[tuple[int, str], list[Kernel]] = defaultdict(list)
    for kernel in kernels:
        by_instruction[kernel.program, kernel.instruction].append(kernel)
    shares: list[NDArray[np.float64]] = []
    weights: list[NDArray[np.float64]] = []
    dtypes: set[str] = set()
    several = 0
    costs = {
        program: _costs(proto) for program, proto in modules.items() if any(p == program for p, _ in by_instruction)
    }
    for (program, instruction), runs in by_instruction.items():
        cost = costs.get(program, {}).get(instruction)
        if cost is None or not _is_bound_by_compute(cost, target):
            continue
        if len({run.name for run in runs}) > 1:
            several += 1
            continue
        durations = np.concatenate([run.durations_ps for run in runs])
        durations = durations[durations > 0]
        shares.append(cost.matrix_flops / peak_flops(target, cost.matrix_dtype) / (durations / 1e12))
        weights.append(np.full(len(durations), cost.matrix_flops))
        dtypes.add(cost.matrix_dtype)
    notes = (f"{several:,} products run as several kernels and were left out",) if several else ()
    if not sum(map(len, shares)):
        return Measurement((), (LeftOut(MATMUL, _why(modules, by_instruction)),), notes)
    low, value, high = weighted_percentiles(np.concatenate(shares), np.concatenate(weights), (0.1, 0.5, 0.9))
    if value > 1:
        reason = f"products reach {value:.2f} times the peak of {target.name}: is it another device?"
        return Measurement((), (LeftOut(MATMUL, reason),), notes)
    count = sum(map(len, shares))
    what = f"executions of {len(shares):,} products in {' and '.join(sorted(dtypes))}, by FLOPs"
    return Measurement((MeasuredFigure(MATMUL, value, low, min(1.0, high), count, what),), (), notes)


def _why(modules: Mapping[int, bytes], joined: Mapping[tuple[int, str], object]) -> str:
    if not modules:
        return "the trace carries no module, so no kernel is known to be a product"
    if not joined:
        return "no kernel names the instruction that it runs"
    return f"no product of {MIN_PEAK_US:.0f} us or more runs in it, or none that joins to a dot of the module"


def _is_bound_by_compute(cost: Cost, target: Target) -> bool:
    if not cost.matrix_flops or cost.matrix_flops / peak_flops(target, cost.matrix_dtype) < MIN_PEAK_US * 1e-6:
        return False
    return cost.bound(target, scenarios(target, 1)[0]) == "compute"


def _costs(proto: bytes) -> dict[str, Cost]:
    """Return the cost of each instruction of a module that multiplies matrices, by name; empty where it cannot be
    read."""
    try:
        module = load_module_bytes(proto)
        return {
            instruction.name: cost
            for computation in _on_device(module)
            for instruction in computation
            if instruction.opcode in ("dot", "convolution", "fusion", "custom-call")
            and (cost := cost_of(module, computation, instruction)).matrix_flops
        }
    except InputError:
        return {}


def _on_device(module: Module) -> Iterator[Computation]:
    """Yield the computations that run as such, not the bodies of fusions."""
    bodies = {
        name
        for computation in module.computations.values()
        for instruction in computation
        if instruction.opcode == "fusion"
        for name in instruction.called_names
    }
    return (computation for name, computation in module.computations.items() if name not in bodies)
