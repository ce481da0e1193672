"""Model of an optimized HLO module, and its readers. protobuf is imported only when a proto is read."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hloinspect.hlo.load import load_module, load_module_bytes
from hloinspect.hlo.model import (
    Computation,
    DotDimensions,
    Frame,
    Instruction,
    Metadata,
    Module,
    Operand,
    ReplicaGroups,
)
from hloinspect.hlo.shape import HOST_MEMORY_SPACE, Shape, parse_shape
from hloinspect.hlo.text import parse_text

if TYPE_CHECKING:
    from hloinspect.hlo.proto import parse_proto

__all__ = [
    "HOST_MEMORY_SPACE",
    "Computation",
    "DotDimensions",
    "Frame",
    "Instruction",
    "Metadata",
    "Module",
    "Operand",
    "ReplicaGroups",
    "Shape",
    "load_module",
    "load_module_bytes",
    "parse_proto",
    "parse_shape",
    "parse_text",
]


def __getattr__(name: str) -> object:
    if name == "parse_proto":
        from hloinspect.hlo.proto import parse_proto

        return parse_proto
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
