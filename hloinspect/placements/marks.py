"""Instructions by which a program places a value: annotations of JAX, and calls that XLA makes of them."""

from __future__ import annotations

from hloinspect.hlo.model import Instruction
from hloinspect.offload.transfer import D2H, H2D

ANNOTATION = "annotate_device_placement"
# xla/service/host_offload_utils.h and memory_annotations.h
TARGETS = {
    "MoveToHost": D2H,
    "PinToHost": D2H,
    "MoveToDevice": H2D,
    "PinToDevice": H2D,
    "PinToDeviceSram": H2D,
}
_PLACEMENT = "_xla_buffer_placement"


def placement_of(instruction: Instruction) -> str:
    """Return the kind of placement that an instruction is, or ""."""
    target = instruction.custom_call_target
    if target == ANNOTATION:
        wanted = instruction.frontend_attributes.get(_PLACEMENT, "")
        return f"annotation_{D2H if 'host' in wanted else H2D}"
    return f"mark_{TARGETS[target]}" if target in TARGETS else ""
