"""Cost of an instruction on a target: FLOPs, bytes, and from them a time.

XLA's own ``exec_time_us`` is not used. It is off by an order of magnitude for GEMMs, and absent for library calls and
host copies. The time of a kernel is the largest of its matrix work, its vector work, its device-memory traffic, and the
interval between two launches. A matrix product takes its start besides its work, only the part of the device that its
tiles fill (products.py), and where the target has figures for it the time to write its result.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

from hloinspect.hardware.target import FAMILIES, Side, Target
from hloinspect.hlo.access import accesses
from hloinspect.hlo.model import Computation, Instruction, Module
from hloinspect.hlo.shape import HOST_MEMORY_SPACE, Shape
from hloinspect.predict.convolution import convolution_flops
from hloinspect.predict.kernels import kernel_flops
from hloinspect.predict.products import Product, fill
from hloinspect.predict.scenario import Scenario

TRANSCENDENTAL_OPS = 8
"""The number of vector operations that one exponential, tanh, logarithm, power or root costs (an estimate)."""

MAX_FUSION_NESTING = 8

VMEM = 1
"""The memory space of a TPU's vector memory, the target of prefetches (xla/layout.h, kGenericFastMemorySpace)."""

_TRANSCENDENTAL = frozenset(
    {
        "exponential", "exponential-minus-one", "tanh", "log", "log-plus-one", "power", "sqrt", "rsqrt", "cbrt", "sine",
        "cosine", "tan", "erf", "logistic", "atan2",
    }
)  # fmt: skip
_ELEMENTWISE = frozenset(
    {
        "add", "subtract", "multiply", "divide", "maximum", "minimum", "negate", "abs", "select", "compare", "and",
        "or", "xor", "not", "clamp", "convert", "floor", "ceil", "sign", "remainder",
    }
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Cost:
    """The work of one execution of an instruction.

    ``matrix_flops`` are counted for ``matrix_dtype``; ``bytes`` move through device memory. ``known`` is false for an
    opaque call that was priced by its bytes alone. ``product`` is the shape of the matrix work (the largest of
    several), and None where tiles cannot be counted.
    """

    matrix_flops: float = 0.0
    matrix_dtype: str = ""
    vector_flops: float = 0.0
    bytes: int = 0
    known: bool = True
    product: Product | None = None

    def time_ps(self, target: Target, scenario: Scenario) -> float:
        """Return the time on a target under a scenario, in picoseconds."""
        vector = self.vector_flops / (target.vector_flops.value * scenario.matmul_efficiency)
        memory = self.bytes / (target.hbm_bytes_per_s.at(scenario.figures) * scenario.memory_efficiency)
        launch = target.launch_us.value * 1e-6
        if not self.matrix_flops:  # most kernels
            return max(vector, memory, launch) * 1e12
        start, matrix, output = self._matrix_s(target, scenario)
        if not output:
            return (start + max(matrix, vector, memory, launch - start)) * 1e12
        assert self.product is not None
        written = self.product.result_bytes(self.matrix_dtype) / max(1, self.bytes)
        operands = memory * max(0.0, 1.0 - written)
        return max(start + max(matrix, vector, operands) + output, memory) * 1e12

    def _matrix_s(self, target: Target, scenario: Scenario) -> tuple[float, float, float]:
        """Return the seconds to start a matrix product, to compute it, and to write its result in addition."""
        if not self.matrix_flops:
            return 0.0, 0.0, 0.0
        peak = peak_flops(target, self.matrix_dtype, scenario.figures)
        seconds = self.matrix_flops / (peak * scenario.efficiency_of(self.matrix_dtype))
        if self.product is None or target.multiprocessors is None:
            return 0.0, seconds, 0.0
        figures = target.products.get(FAMILIES.get(self.matrix_dtype, self.matrix_dtype))
        if figures is None:
            return target.launch_us.value * 1e-6, seconds / fill(self.product, target.multiprocessors), 0.0
        share = fill(self.product, target.multiprocessors, figures.tiling) * figures.gain.value
        bandwidth = target.hbm_bytes_per_s.at(scenario.figures) * figures.output.value
        output = self.product.result_bytes(self.matrix_dtype) / bandwidth
        return figures.start_us.at(SLOWEST[scenario.figures]) * 1e-6, seconds / share, output

    def memory_ps(self, target: Target, scenario: Scenario) -> float:
        """Return the part of the time that device memory alone would take, in picoseconds."""
        return self.bytes / (target.hbm_bytes_per_s.at(scenario.figures) * scenario.memory_efficiency) * 1e12

    def bound(self, target: Target, scenario: Scenario) -> str:
        """Return what limits the time: ``compute``, ``memory`` or ``launch``.

        A product whose start takes longer than its work is limited by its launch.
        """
        launch = target.launch_us.value * 1e-6
        start, matrix, output = self._matrix_s(target, scenario)
        memory = self.memory_ps(target, scenario) / 1e12
        if output and start >= max(matrix, memory):
            return "launch"
        time = self.time_ps(target, scenario) / 1e12 - start - output
        if memory >= time * (1 - 1e-9):
            return "memory"
        return "launch" if launch >= time else "compute"


SLOWEST: Mapping[Side, Side] = {"low": "high", "value": "value", "high": "low"}
"""The side of a time where rates are on the other one."""


def peak_flops(target: Target, dtype: str, side: Side = "value") -> float:
    """Return the dense matrix FLOP/s for operands of ``dtype``.

    A type that the target does not list runs like its next wider one. Where public sources differ, ``side`` picks their
    lowest or highest figure.
    """
    wider = {"f8": "bf16", "s8": "bf16", "f4": "bf16", "f16": "bf16", "bf16": "f32", "s32": "f32", "f64": "f64"}
    for _ in range(4):
        if dtype in target.peak_flops:
            return target.peak_flops[dtype].at(side)
        dtype = wider.get(dtype, wider.get(dtype[:2], "f32"))
    return min(figure.at(side) for figure in target.peak_flops.values())


def in_device_memory(module: Module, memory_space: int) -> bool:
    """Return whether a value lies in HBM: not on the host, and on a TPU not in VMEM, whose traffic costs no HBM
    bandwidth."""
    return memory_space != HOST_MEMORY_SPACE and not (module.platform == "tpu" and memory_space == VMEM)


def cost_of(module: Module, computation: Computation, instruction: Instruction) -> Cost:
    """Return the cost of one instruction that runs as a kernel: a fusion, a library call, a plain operation."""
    touched = accesses(module, computation, instruction)
    size = sum(access.bytes for access in touched if in_device_memory(module, access.memory_space))
    if instruction.opcode == "fusion":
        body = module.computations.get(next(iter(instruction.called.get("calls", ())), ""))
        return _fusion(module, body, size) if body is not None else Cost(bytes=size, known=False)
    if instruction.opcode == "custom-call":
        return _custom_call(module, computation, instruction, size)
    flops, dtype, product = matrix_work(module, computation, instruction)
    vector = vector_work(instruction.opcode, instruction.shape.element_count)
    return Cost(flops, dtype, vector, size, product=product)


def _fusion(module: Module, body: Computation, size: int) -> Cost:
    body = module.alike(body)
    work: _Work | None = module.memo.get(("work", body.name))
    if work is None:
        work = module.memo[("work", body.name)] = _work(module, body, 0)
    matrix, dtype, product, vector = work
    return Cost(matrix, dtype, vector, size, product=product)


_Work = tuple[float, str, Product | None, float]
"""Matrix FLOPs, the type of their operands, the largest of the products, and vector operations."""


def _work(module: Module, body: Computation, depth: int) -> _Work:
    """Return the work of the body of a fusion. Triton GEMMs nest fusions."""
    matrix, dtype = 0.0, ""
    largest: Product | None = None
    vector = sum(vector_work(opcode, elements) for opcode, elements in body.outline())
    for index in body.ending_in("dot", "convolution", "fusion"):
        instruction = body.instruction(index)
        if instruction.opcode == "fusion":
            nested = module.computations.get(next(iter(instruction.called.get("calls", ())), ""))
            if nested is None or depth >= MAX_FUSION_NESTING:
                continue
            flops, kind, product, operations = _work(module, nested, depth + 1)
            vector += operations
        else:
            flops, kind, product = matrix_work(module, body, instruction)
        matrix += flops
        dtype = kind or dtype
        if product is not None and (largest is None or product.flops > largest.flops):
            largest = product
    return matrix, dtype, largest, vector


def vector_work(opcode: str, elements: int) -> float:
    """Return the vector operations of an elementwise instruction with ``elements`` results, or 0 for other
    instructions."""
    if opcode in _ELEMENTWISE:
        return float(elements)
    return float(elements * TRANSCENDENTAL_OPS) if opcode in _TRANSCENDENTAL else 0.0


def matrix_work(
    module: Module, computation: Computation, instruction: Instruction
) -> tuple[float, str, Product | None]:
    """Return the FLOPs on the matrix units, the type of the operands, and the shape of a dot.

    Return (0, "", None) for anything but dots and convolutions.
    """
    if instruction.opcode == "dot":
        dims = instruction.dot_dimensions
        lhs = module.shape_of(computation, instruction.operands[0]) if instruction.operands else None
        if dims is None or lhs is None:
            return 0.0, "", None
        product = product_of(instruction.shape, lhs, dims.lhs_contracting, dims.lhs_batch)
        return product.flops, lhs.dtype, product
    if instruction.opcode == "convolution" and len(instruction.operands) > 1:
        lhs = module.shape_of(computation, instruction.operands[0])
        kernel = module.shape_of(computation, instruction.operands[1])
        if lhs is None or kernel is None:
            return 0.0, "", None
        return convolution_flops(instruction, lhs, kernel), lhs.dtype, None
    return 0.0, "", None


def product_of(result: Shape, lhs: Shape, contracting: Sequence[int], batch: Sequence[int]) -> Product:
    """Return the shape of a dot from its result and its left side. ``contracting`` and ``batch`` are axes of the left
    side."""
    depth = prod(lhs.dims[axis] for axis in contracting if axis < len(lhs.dims))
    count = prod(lhs.dims[axis] for axis in batch if axis < len(lhs.dims))
    rows = prod(size for axis, size in enumerate(lhs.dims) if axis not in contracting and axis not in batch)
    columns = result.element_count // max(1, count * rows)
    if count * rows * columns != result.element_count:  # an unknown form of product: at least its size is right
        count, rows, columns = 1, result.element_count, 1
    return Product(count, rows, columns, depth)


def _custom_call(module: Module, computation: Computation, call: Instruction, size: int) -> Cost:
    target = call.custom_call_target
    if target.startswith("__cublas"):
        dtype, product = _gemm_work(module, computation, call)
        flops = product.flops if product else 0.0
        return Cost(flops, dtype, 0.0, size, known=flops > 0, product=product)
    flops, dtype = kernel_flops(module, computation, call)
    return Cost(flops, dtype, 0.0, size, known=flops > 0)


def _gemm_work(module: Module, computation: Computation, call: Instruction) -> tuple[str, Product | None]:
    """Return the matrix product of a cuBLAS or cuBLASLt call, whose ``gemm_backend_config`` has its dimension
    numbers."""
    config = call.backend_config.get("gemm_backend_config")
    numbers = config.get("dot_dimension_numbers") if isinstance(config, dict) else None
    lhs = module.shape_of(computation, call.operands[0]) if call.operands else None
    result = call.shape.leaves[0][1] if call.shape.leaves else None
    if not isinstance(numbers, dict) or lhs is None or result is None:
        return "", None
    contracting, batch = (
        [int(axis) for axis in numbers.get(f"lhs_{kind}_dimensions", ()) if str(axis).isdecimal()]
        for kind in ("contracting", "batch")
    )
    return lhs.dtype, product_of(result, lhs, contracting, batch)
