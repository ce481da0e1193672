"""Matrix work of kernels that no compiler wrote: cuDNN's attention, and Pallas kernels on TPUs.

Such a call is opaque. Its work is derived from what its author wrote beside it. That is cuDNN's descriptor of the
scores, or an estimate (``pl.CostEstimate`` of a Pallas kernel, which JAX writes into ``custom_call_config``). For the
attention kernels of ``jax.experimental.pallas.ops.tpu`` and their copies in MaxText and tokamax it is the kernel's
name.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

from hloinspect.hlo.model import Computation, Instruction, Module
from hloinspect.hlo.shape import Shape

BACKWARD_ATTENTION_FACTOR = 2.5
"""FLOPs of flash attention's backward pass over its forward pass: five GEMMs instead of two (Dao, FlashAttention-2,
2023)."""

_CUDNN_ATTENTION = "__cudnn$fmha"
_PALLAS_ON_TPU = "tpu_custom_call"

_PALLAS_ATTENTION = re.compile(r"(splash_m[hq]a|flash_mha_bwd)_(fwd|dq|dkv)(?![a-z])")
"""Names that ``get_kernel_name`` of splash_attention_kernel.py and ``flash_attention.py`` give (jax 0.12)."""

_SETTING = re.compile(r"(block_(?:q|kv)(?:_dq|_dkv)?|[qkv]_layout)[=_](\d{1,9})(?!\d)")
"""Sizes of blocks and layouts where they stand in the name (MaxText's copy of splash attention)."""

_PRODUCTS = {"fwd": (1, 1), "dq": (2, 1), "dkv": (2, 2), "fused": (3, 2)}
"""The number of products over [queries, keys] of each kernel that contract or yield the width of the keys, and of the
values. Forward: Q K^T; P V. The backward kernels compute the scores again: Q K^T, dS K (dq) and dS^T Q (dkv); dO V^T
and P^T dO (dkv). The fused one (``use_fused_bwd_kernel``) gives all three gradients, of one set of scores."""

_LENGTH_IS_MINOR = 2
"""The layout ``QKVLayout.SEQ_MINOR``: [heads, width, length] instead of [heads, length, width]."""


def kernel_flops(module: Module, computation: Computation, call: Instruction) -> tuple[float, str]:
    """Return the matrix FLOPs of a custom call and the type of their operands, or (0, "") if nothing shows them."""
    if call.custom_call_target.startswith(_CUDNN_ATTENTION):
        return _cudnn_attention(module, computation, call)
    if call.custom_call_target == _PALLAS_ON_TPU:
        return _pallas(module, computation, call)
    return 0.0, ""


def _cudnn_attention(module: Module, computation: Computation, call: Instruction) -> tuple[float, str]:
    """Return the work of cuDNN flash attention: two GEMMs over [batch, heads, queries, keys] forward.

    A causal mask halves it.
    """
    config = _mapping(call.backend_config.get("cudnn_fmha_backend_config"))
    written = _mapping(config.get("intermediate_tensor_shape")).get("dimensions")
    dims = [_number(dim) for dim in written] if isinstance(written, list) else []
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
    """Return the author's estimate or attention's own products, whichever is smaller: tokamax's estimate ignores the
    mask."""
    operands = [shape for operand in call.operands if (shape := module.shape_of(computation, operand)) is not None]
    floats = [shape for shape in operands if shape.dtype.startswith(("bf", "f")) and len(shape.dims) > 1]
    config = _mapping(call.backend_config.get("custom_call_config"))
    estimate = float(_number(_mapping(config.get("cost_estimate")).get("flops")))
    attention = _attention_of(call, operands, floats)
    flops = min((found for found in (estimate, attention.flops if attention else 0.0) if found > 0), default=0.0)
    widest = max(floats or operands, key=lambda shape: shape.element_count, default=None)
    return flops, widest.dtype if flops and widest is not None else ""


@dataclass(frozen=True, slots=True)
class _Attention:
    """One call of an attention kernel.

    ``settings`` are the sizes of its blocks and its layouts, by the kernel's own names. ``masks`` are its leading
    operands of integers, which describe what the mask leaves (none in flash attention).
    """

    kernel: str
    splash: bool
    query: Shape
    key: Shape
    value: Shape
    masks: tuple[Shape, ...]
    rows_of_numbers: int
    settings: Mapping[str, int]

    @property
    def flops(self) -> float:
        of_keys, of_values = _PRODUCTS[self.kernel]
        queries, width = self._sides("q")
        keys, _ = self._sides("k")
        _, values_width = self._sides("v")
        rows = self.query.element_count // max(1, width)  # of all heads
        return 2.0 * rows * keys * (of_keys * width + of_values * values_width) * self._visited(queries, keys)

    def _sides(self, which: str) -> tuple[int, int]:
        """Return the length and width of queries, keys or values."""
        shape = {"q": self.query, "k": self.key, "v": self.value}[which]
        minor = self.settings.get(f"{which}_layout") == _LENGTH_IS_MINOR
        return (shape.dims[-1], shape.dims[-2]) if minor else (shape.dims[-2], shape.dims[-1])

    def _visited(self, queries: int, keys: int) -> float:
        """Return the share of all pairs of queries and keys that are computed, block by block.

        Splash attention's first operand names the blocks to visit, ``[heads, queries, keys]`` in blocks; tokamax's has
        them in a row. Its content is known at run time only, but its shape is cut to the longest part of the mask. An
        operand that is not cut, with a sequence of numbers beside it, is taken for a causal mask. The grid of a fused
        backward pass is never cut: a window counts as causal there.
        """
        if not self.splash or not self.masks or not queries or not keys:
            return 1.0  # flash attention, whose mask is not known
        grid = self.masks[0].dims
        sides = self._block_sides(queries, keys, grid)
        all_queries, all_keys = max(1, queries // sides[0]), max(1, keys // sides[1])
        if len(grid) == 1:
            return min(1.0, grid[0] / (all_queries * all_keys))
        if self.rows_of_numbers in (0, 2) and len(self.masks) < 3:  # no positions and no parts of a mask
            return 1.0
        causal = min(1.0, 0.5 + max(sides) / (2 * max(queries, keys)))
        count, width = max(grid[-2:]), min(grid[-2:])
        if grid[-2] >= all_queries and grid[-1] >= all_keys:
            return causal
        if sides[0] == sides[1] and count * sides[0] == queries == keys:  # the first blocks have less than the longest
            return min(causal, (count * width - width * (width - 1) / 2) / count**2)
        return min(causal, grid[-2] * grid[-1] / (all_queries * all_keys))

    def _block_sides(self, queries: int, keys: int, grid: tuple[int, ...]) -> tuple[int, int]:
        """Return the queries and keys of a block: square, like most configurations, where they are not written."""
        suffix = {"fwd": "", "dq": "_dq"}.get(self.kernel, "_dkv")
        sides = self.settings.get(f"block_q{suffix}", 0), self.settings.get(f"block_kv{suffix}", 0)
        if min(sides) > 0 and sides[0] <= queries and sides[1] <= keys:
            return sides
        side = max(1, min(queries // max(1, grid[-2]), keys // max(1, grid[-1]))) if len(grid) > 1 else 1
        return side, side


def _attention_of(call: Instruction, operands: list[Shape], floats: list[Shape]) -> _Attention | None:
    name = call.name
    named = _PALLAS_ATTENTION.search(name)
    if named is None:  # the part of the operation's name that comes from the kernel
        *_, name, last = ("", "", *call.metadata.op_name.split("/"))
        named = _PALLAS_ATTENTION.search(name) if last == "pallas_call" else None
    if named is None or len(floats) < 3:
        return None
    query, key, value = floats[:3]
    dq = len(query.dims) + 1  # the fused kernel returns dq in as many parts as there are blocks of keys
    fused = named[2] == "dkv" and any(len(leaf.dims) == dq for _, leaf in call.shape.leaves)
    first_float = operands.index(query)
    grids = [shape for shape in operands[:first_float] if _is_grid(shape)]
    return _Attention(
        kernel="fused" if fused else named[2],
        splash=named[1].startswith("splash"),
        query=query,
        key=key,
        value=value,
        masks=tuple(grids),
        rows_of_numbers=sum(len(shape.dims) == 2 and shape.dtype == "s32" for shape in operands),
        settings=_settings(call, name),
    )


def _is_grid(shape: Shape) -> bool:
    return shape.dtype.startswith("s") and len(shape.dims) in (1, 3) and min(shape.dims) > 0


def _settings(call: Instruction, name: str) -> dict[str, int]:
    """Return the blocks and layouts that a kernel writes for xprof, in its metadata or in its name."""
    try:
        written = json.loads(call.frontend_attributes.get("kernel_metadata", ""))
        found = _mapping(json.loads(_mapping(written).get("xprof_metadata", "")))
    except (ValueError, TypeError, RecursionError):
        found = {}
    settings = {key: number for key, value in found.items() if 0 < (number := _number(value)) < 1 << 31}
    return settings or {key: int(value) for key, value in _SETTING.findall(name)}


def _number(value: Any) -> int:
    """Return a whole number of at most 18 digits, written as such or as text. Return 0 for anything else."""
    text = str(value) if isinstance(value, (int, str)) else ""
    return int(text) if text.isdecimal() and text.isascii() and len(text) <= 18 else 0


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
