"""Mechanism of an asynchronous slice, a copy engine or a kernel. XLA:GPU decides it for each fusion.

================== ========================================================================================== JAX marker
of a copy (facts: dynamic_slice_fusion, fusion-dynamic-memcpy-rewriter) ==================
========================================================================================== 0.6.2 to 0.10.1
``"kind":"__dynamic_memcpy"`` on the wrapped fusion; as_text() loses it 0.10.2 custom fusion ``dynamic_slice_fusion``;
``dynamic_slice_config`` on the slice inside 0.11 and later ``dynamic_slice_config`` on the slice inside (0.12: with a
nested ``linear``) none of these a kernel that reads or writes pinned memory ==================
==========================================================================================
"""

from __future__ import annotations

from typing import Final

from hloinspect.hlo.model import Computation, Instruction, Module
from hloinspect.kinds import Mechanism

_MOVES = frozenset(
    {"parameter", "constant", "bitcast", "copy", "dynamic-slice", "dynamic-update-slice", "tuple", "get-tuple-element"}
)

DMA: Final = "dma"
KERNEL: Final = "kernel"
UNKNOWN: Final = "unknown"

_KEEPS_MARKERS = "keeps slice markers"


def slice_mechanism(module: Module, start: Instruction) -> Mechanism:
    """Return ``dma`` or ``kernel`` for an async start around a slice, or ``unknown`` where the text has lost the
    marker."""
    if module.platform == "tpu" or start.start_of in ("dynamic-slice", "dynamic-update-slice", "copy", "slice"):
        return DMA
    body = module.computations.get(next(iter(start.called.get("calls", ())), ""))
    fusion: Instruction | None = None
    if body is not None and start.start_of == "async":
        fusion = body.root
        if fusion.opcode in ("copy", "dynamic-slice", "dynamic-update-slice"):
            return DMA if fusion.opcode == "copy" or _has_slice_config(body) else KERNEL
        body = module.computations.get(next(iter(fusion.called.get("calls", ())), ""))
    if fusion is not None and _is_copy_fusion(fusion):
        return DMA
    if _is_copy_fusion(start) or (body is not None and _has_slice_config(body) and is_pure_copy(body)):
        return DMA
    if fusion is None and not _keeps_markers(module):
        return UNKNOWN
    return KERNEL


def _is_copy_fusion(fusion: Instruction) -> bool:
    config = fusion.backend_config.get("fusion_backend_config")
    if not isinstance(config, dict):
        return False
    custom = config.get("custom_fusion_config")
    name = custom.get("name") if isinstance(custom, dict) else ""
    return config.get("kind") == "__dynamic_memcpy" or name in ("dynamic_slice_fusion", "address_computation")


def slice_config(instruction: Instruction) -> dict[str, object] | None:
    """Return the ``dynamic_slice_config`` of a dynamic-slice or dynamic-update-slice, or None."""
    config = instruction.backend_config.get("dynamic_slice_config")
    return config if isinstance(config, dict) else None


def _has_slice_config(body: Computation) -> bool:
    return any(
        slice_config(body.instruction(index)) is not None
        for index in body.ending_in("dynamic-slice", "dynamic-update-slice")
    )


def is_pure_copy(body: Computation) -> bool:
    """Return whether a fusion's body only moves bytes.

    A fusion that also computes runs as a kernel. A kernel takes its addresses from the index operands, whatever its
    configuration says.
    """
    return all(instruction.opcode in _MOVES for instruction in body)


def _keeps_markers(module: Module) -> bool:
    """Return whether this text would show the marker. It is computed once for each module.

    Either a slice of the module has the marker, or a fusion shows that the text is of JAX 0.10.2 or later. Texts of
    earlier versions lose the marker of every slice.
    """
    found: bool | None = module.memo.get(_KEEPS_MARKERS)
    if found is None:
        found = module.memo[_KEEPS_MARKERS] = any(
            _has_slice_config(computation) or _has_emitter_config(computation)
            for computation in module.computations.values()
        )
    return found


def _has_emitter_config(computation: Computation) -> bool:
    """Return whether a fusion has the ``native_emitter_backend_config`` of the XLA that has its marker on the slice.

    The as_text() of every known program of JAX 0.10.2 to 0.12.0 has it, and none of an earlier one.
    """
    return any(
        "native_emitter_backend_config" in computation.instruction(index).backend_config
        for index in computation.ending_in("fusion")
    )
