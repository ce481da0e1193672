"""Instructions by which a program places a value: annotations of JAX, and calls that XLA makes of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from hloinspect.hlo.model import Instruction
from hloinspect.kinds import D2H, H2D, Direction

ANNOTATION = "annotate_device_placement"
PlacementMark = Literal["annotation_d2h", "annotation_h2d", "mark_d2h", "mark_h2d"]

# xla/service/host_offload_utils.h and memory_annotations.h
TARGETS: Mapping[str, Direction] = {
    "MoveToHost": D2H,
    "PinToHost": D2H,
    "MoveToDevice": H2D,
    "PinToDevice": H2D,
    "PinToDeviceSram": H2D,
}
_PLACEMENT = "_xla_buffer_placement"


def placement_of(instruction: Instruction) -> PlacementMark | Literal[""]:
    """Return the kind of placement that an instruction is, or ""."""
    target = instruction.custom_call_target
    if target == ANNOTATION:
        wanted = instruction.frontend_attributes.get(_PLACEMENT, "")
        return "annotation_d2h" if "host" in wanted else "annotation_h2d"
    if target not in TARGETS:
        return ""
    return "mark_d2h" if TARGETS[target] == D2H else "mark_h2d"
