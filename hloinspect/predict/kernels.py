"""The matrix work of kernels that a compiler did not write: cuDNN's attention, and Pallas kernels on TPUs.

Such a call is opaque; what it computes is told by what its author left beside it: cuDNN's descriptor of the scores, an
estimate (``pl.CostEstimate`` of a Pallas kernel, which JAX writes into ``custom_call_config``), or, for the attention
kernels of ``jax.experimental.pallas.ops.tpu`` and their copies in MaxText and tokamax, the kernel's name.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from math import prod
from typing import Any

from hloinspect.hlo.model import Computation, Instruction, Module
from hloinspect.hlo.shape import Shape

BACKWARD_ATTENTION_FACTOR = 2.5
"""FLOPs of flash attention's backward pass over its forward pass: five GEMMs instead of two (Dao, FlashAttention-2,
2023)."""

_CUDNN_ATTENTION = "__cudnn$fmha"
_PALLAS_ON_TPU = "tpu_custom_call"

_PALLAS_ATTENTION = re.compile(r"(?:splash_m[hq]a|flash_mha_bwd)_(fwd|dq|dkv)(?![a-z])")
"""Names that ``get_kernel_name`` of splash_attention_kernel.py and ``flash_attention.py`` give (jax 0.12)."""

_PRODUCTS = {"fwd": (1, 1), "dq": (2, 1), "dkv": (2, 2), "fused": (3, 2)}
"""How many products over [queries, keys] each kernel makes that contract or yield the width of the keys, and of the
values. Forward: Q K^T; P V. The backward kernels compute the scores again: Q K^T, dS K (dq) and dS^T Q (dkv);
dO V^T and P^T dO (dkv). The fused one (``use_fused_bwd_kernel``) gives all three gradients, of one set of scores."""


def kernel_flops(module: Module, computation: Computation, call: Instruction) -> tuple[float, str]:
    """Matrix FLOPs of a custom call and their operands' type; (0, "") where nothing tells them."""
    if call.custom_call_target.startswith(_CUDNN_ATTENTION):
        return _cudnn_attention(module, computation, call)
    if call.custom_call_target == _PALLAS_ON_TPU:
        return _pallas(module, computation, call)
    return 0.0, ""


def _cudnn_attention(module: Module, computation: Computation, call: Instruction) -> tuple[float, str]:
    """cuDNN flash attention: two GEMMs over [batch, heads, queries, keys] forward, half of it under a causal mask."""
    config = _mapping(call.backend_config.get("cudnn_fmha_backend_config"))
    scores = _mapping(config.get("intermediate_tensor_shape"))
    dims = [int(dim) for dim in scores.get("dimensions", ()) if str(dim).isdecimal()]
    query = module.shape_of(computation, call.operands[0]) if call.operands else None
    if len(dims) != 4 or query is None or not query.dims:
        return 0.0, ""
    flops = 4.0 * prod(dims) * query.dims[-1]
    if "CAUSAL" in str(config.get("mask_type", "")):
        flops /= 2
    if "Backward" in call.custom_call_target:
        flops *= BACKWARD_ATTENTION_FACTOR
    return flops, query.dtype


def _pallas(module: Module, computation: Computation, call: Instruction) -> tuple[float, str]:
    operands = [shape for operand in call.operands if (shape := module.shape_of(computation, operand)) is not None]
    floats = [shape for shape in operands if shape.dtype.startswith(("bf", "f")) and len(shape.dims) > 1]
    config = _mapping(call.backend_config.get("custom_call_config"))
    estimate = str(_mapping(config.get("cost_estimate")).get("flops", ""))
    if estimate.isdecimal() and len(estimate) < 20 and int(estimate) > 0:
        widest = max(operands, key=lambda shape: shape.element_count, default=None)
        return float(estimate), widest.dtype if widest is not None else ""
    named = _PALLAS_ATTENTION.search(call.name) or _PALLAS_ATTENTION.search(call.metadata.op_name)
    if named is None or len(floats) < 3:
        return 0.0, ""
    query, key, value = floats[:3]
    if min(len(query.dims), len(key.dims), len(value.dims)) < 2:
        return 0.0, ""
    kernel = "fused" if named[1] == "dkv" and len(call.shape.leaves) > 2 else named[1]
    of_keys, of_values = _PRODUCTS[kernel]
    queries, keys = (max(shape.dims[-2:]) for shape in (query, key))  # either may be the minor one (QKVLayout)
    rows = prod(query.dims) // max(1, min(query.dims[-2:]))  # of all heads
    width = of_keys * min(query.dims[-2:]) + of_values * min(value.dims[-2:])
    return 2.0 * rows * keys * width * _visited(operands, call, kernel, queries, keys), query.dtype


def _visited(operands: list[Shape], call: Instruction, kernel: str, queries: int, keys: int) -> float:
    """The share of all pairs of queries and keys that splash attention computes: by blocks, of which its first operand
    names those to visit, ``[heads, blocks of queries, blocks of keys]``. Their number is cut to what the mask leaves on
    one side, as a window does; where it is not, the mask is taken for a causal one: half, and the diagonal."""
    grid = operands[0] if operands else None
    if grid is None or len(grid.dims) != 3 or not grid.dtype.startswith("s") or not prod(grid.dims):
        return 1.0  # flash attention, whose mask is not told
    in_queries, in_keys = grid.dims[1:]
    sides = _block_sides(call, kernel)
    if sides is None:  # as most configurations have it: square
        side = max(1, min(queries // in_queries, keys // in_keys))
        sides = side, side
    all_queries, all_keys = max(1, queries // sides[0]), max(1, keys // sides[1])
    if in_queries < all_queries or in_keys < all_keys:
        return min(1.0, in_queries * in_keys / (all_queries * all_keys))
    shorter = min(queries, keys)
    return min(1.0, 0.5 + max(sides) / (2 * shorter))


def _block_sides(call: Instruction, kernel: str) -> tuple[int, int] | None:
    """Queries and keys of a block, from the metadata that the kernel leaves for xprof."""
    try:
        written = json.loads(call.frontend_attributes.get("kernel_metadata", ""))
        sizes = json.loads(_mapping(written).get("xprof_metadata", ""))
    except (ValueError, TypeError, RecursionError):
        return None
    suffix = {"fwd": "", "dq": "_dq"}.get(kernel, "_dkv")
    queries, keys = (_mapping(sizes).get(f"block_{side}{suffix}") for side in ("q", "kv"))
    if not isinstance(queries, int) or not isinstance(keys, int) or not (0 < queries < 1 << 31 and 0 < keys < 1 << 31):
        return None
    return queries, keys


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
