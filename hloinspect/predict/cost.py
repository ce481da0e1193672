"""What an instruction costs on a target: FLOPs, bytes, and from them a time.

XLA's own ``exec_time_us`` is not used: it is off by an order of magnitude for GEMMs and absent for library calls and
host copies. The time of a kernel is the largest of its matrix work, its vector work, its device-memory traffic, and the
interval between two launches.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from hloinspect.hardware.target import Target
from hloinspect.hlo.access import accesses
from hloinspect.hlo.model import Computation, DotDimensions, Instruction, Module
from hloinspect.hlo.shape import HOST_MEMORY_SPACE, Shape
from hloinspect.predict.convolution import convolution_flops
from hloinspect.predict.scenario import Scenario

TRANSCENDENTAL_OPS = 8
"""Vector operations that one exponential, tanh, logarithm, power or root is taken to cost (an estimate)."""

BACKWARD_ATTENTION_FACTOR = 2.5
"""FLOPs of flash attention's backward pass over its forward pass: five GEMMs instead of two (Dao, FlashAttention-2,
2023)."""

MAX_FUSION_NESTING = 8

VMEM = 1
"""Memory space of a TPU's vector memory, the target of prefetches (xla/layout.h, kGenericFastMemorySpace)."""

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
_ATTENTION_FORWARD = "__cudnn$fmha"


@dataclass(frozen=True, slots=True)
class Cost:
    """Work of one execution. ``matrix_flops`` are counted for ``matrix_dtype``; ``bytes`` move through device memory;
    ``known`` is false where an opaque call was priced by its bytes alone."""

    matrix_flops: float = 0.0
    matrix_dtype: str = ""
    vector_flops: float = 0.0
    bytes: int = 0
    known: bool = True

    def time_ps(self, target: Target, scenario: Scenario) -> float:
        """Time on a target under a scenario, in picoseconds."""
        matrix = 0.0
        if self.matrix_flops:
            matrix = self.matrix_flops / (peak_flops(target, self.matrix_dtype) * scenario.matmul_efficiency)
        vector = self.vector_flops / (target.vector_flops.value * scenario.matmul_efficiency)
        memory = self.bytes / (target.hbm_bytes_per_s.value * scenario.memory_efficiency)
        return max(matrix, vector, memory, target.launch_us.value * 1e-6) * 1e12

    def bound(self, target: Target, scenario: Scenario) -> str:
        """What limits it: ``compute``, ``memory`` or ``launch``."""
        time = self.time_ps(target, scenario) / 1e12
        if self.bytes / (target.hbm_bytes_per_s.value * scenario.memory_efficiency) >= time:
            return "memory"
        return "launch" if target.launch_us.value * 1e-6 >= time else "compute"


def peak_flops(target: Target, dtype: str) -> float:
    """Dense matrix FLOP/s for operands of ``dtype``; a type that the target does not list runs like its next wider
    one."""
    wider = {"f8": "bf16", "s8": "bf16", "f4": "bf16", "f16": "bf16", "bf16": "f32", "s32": "f32", "f64": "f64"}
    for _ in range(4):
        if dtype in target.peak_flops:
            return target.peak_flops[dtype].value
        dtype = wider.get(dtype, wider.get(dtype[:2], "f32"))
    return min(figure.value for figure in target.peak_flops.values())


def in_device_memory(module: Module, memory_space: int) -> bool:
    """Whether a value lies in HBM: not on the host, and on a TPU not in VMEM, whose traffic costs no HBM bandwidth."""
    return memory_space != HOST_MEMORY_SPACE and not (module.platform == "tpu" and memory_space == VMEM)


def cost_of(module: Module, computation: Computation, instruction: Instruction) -> Cost:
    """The cost of one instruction that runs as a kernel: a fusion, a library call, a plain operation."""
    touched = accesses(module, computation, instruction)
    size = sum(access.bytes for access in touched if in_device_memory(module, access.memory_space))
    if instruction.opcode == "fusion":
        body = module.computations.get(next(iter(instruction.called.get("calls", ())), ""))
        return _fusion(module, body, size) if body is not None else Cost(bytes=size, known=False)
    if instruction.opcode == "custom-call":
        return _custom_call(module, computation, instruction, size)
    flops, dtype = matrix_work(module, computation, instruction)
    return Cost(flops, dtype, vector_work(instruction.opcode, instruction.shape.element_count), size)


def _fusion(module: Module, body: Computation, size: int) -> Cost:
    body = module.alike(body)
    work: tuple[float, str, float] | None = module.memo.get(("work", body.name))
    if work is None:
        work = module.memo[("work", body.name)] = _work(module, body, 0)
    return Cost(*work, size)


def _work(module: Module, body: Computation, depth: int) -> tuple[float, str, float]:
    """Matrix FLOPs, their type and vector operations of a fusion's body; Triton GEMMs nest fusions."""
    matrix, dtype = 0.0, ""
    vector = sum(vector_work(opcode, elements) for opcode, elements in body.outline())
    for index in body.ending_in("dot", "convolution", "fusion"):
        instruction = body.instruction(index)
        if instruction.opcode == "fusion":
            nested = module.computations.get(next(iter(instruction.called.get("calls", ())), ""))
            if nested is None or depth >= MAX_FUSION_NESTING:
                continue
            flops, kind, operations = _work(module, nested, depth + 1)
            vector += operations
        else:
            flops, kind = matrix_work(module, body, instruction)
        matrix += flops
        dtype = kind or dtype
    return matrix, dtype, vector


def vector_work(opcode: str, elements: int) -> float:
    """Vector operations of an elementwise instruction with so many result elements; 0 for the others."""
    if opcode in _ELEMENTWISE:
        return float(elements)
    return float(elements * TRANSCENDENTAL_OPS) if opcode in _TRANSCENDENTAL else 0.0


def matrix_work(module: Module, computation: Computation, instruction: Instruction) -> tuple[float, str]:
    """FLOPs on the matrix units, and the operands' type; (0, "") for anything but dots and convolutions."""
    if instruction.opcode == "dot":
        dims = instruction.dot_dimensions
        lhs = module.shape_of(computation, instruction.operands[0]) if instruction.operands else None
        if dims is None or lhs is None:
            return 0.0, ""
        return dot_flops(instruction.shape, lhs, dims), lhs.dtype
    if instruction.opcode == "convolution" and len(instruction.operands) > 1:
        lhs = module.shape_of(computation, instruction.operands[0])
        kernel = module.shape_of(computation, instruction.operands[1])
        if lhs is None or kernel is None:
            return 0.0, ""
        return convolution_flops(instruction, lhs, kernel), lhs.dtype
    return 0.0, ""


def dot_flops(result: Shape, lhs: Shape, dims: DotDimensions) -> float:
    """2 x result elements x contracted size."""
    return 2.0 * result.element_count * prod(lhs.dims[axis] for axis in dims.lhs_contracting if axis < len(lhs.dims))


def _custom_call(module: Module, computation: Computation, call: Instruction, size: int) -> Cost:
    target = call.custom_call_target
    if target.startswith("__cublas"):
        flops, dtype = _gemm_work(module, computation, call)
        return Cost(flops, dtype, 0.0, size, known=flops > 0)
    if target.startswith(_ATTENTION_FORWARD):
        flops, dtype = _attention_work(module, computation, call)
        return Cost(flops, dtype, 0.0, size, known=flops > 0)
    return Cost(bytes=size, known=False)


def _gemm_work(module: Module, computation: Computation, call: Instruction) -> tuple[float, str]:
    """A cuBLAS or cuBLASLt matrix product: its dimension numbers stand in ``gemm_backend_config``."""
    config = call.backend_config.get("gemm_backend_config")
    numbers = config.get("dot_dimension_numbers") if isinstance(config, dict) else None
    lhs = module.shape_of(computation, call.operands[0]) if call.operands else None
    result = call.shape.leaves[0][1] if call.shape.leaves else None
    if not isinstance(numbers, dict) or lhs is None or result is None:
        return 0.0, ""
    contracting = [int(axis) for axis in numbers.get("lhs_contracting_dimensions", ()) if str(axis).isdecimal()]
    return 2.0 * result.element_count * prod(lhs.dims[axis] for axis in contracting if axis < len(lhs.dims)), lhs.dtype


def _attention_work(module: Module, computation: Computation, call: Instruction) -> tuple[float, str]:
    """cuDNN flash attention: two GEMMs over [batch, heads, queries, keys] forward, half of it under a causal mask."""
    config = call.backend_config.get("cudnn_fmha_backend_config")
    config = config if isinstance(config, dict) else {}
    scores = config.get("intermediate_tensor_shape")
    dims = (
        [int(dim) for dim in scores.get("dimensions", ()) if str(dim).isdecimal()] if isinstance(scores, dict) else []
    )
    query = module.shape_of(computation, call.operands[0]) if call.operands else None
    if len(dims) != 4 or query is None or not query.dims:
        return 0.0, ""
    flops = 4.0 * prod(dims) * query.dims[-1]
    if "CAUSAL" in str(config.get("mask_type", "")):
        flops /= 2
    if "Backward" in call.custom_call_target:
        flops *= BACKWARD_ATTENTION_FACTOR
    return flops, query.dtype
