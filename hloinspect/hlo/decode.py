"""Parts of XLA's protos in the form of the model: shapes, scalars, windows, dimension labels, replica groups."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from hloinspect.errors import HloParseError
from hloinspect.hlo.groups import NO_GROUPS, AxisPart, DeviceOrder, iota_groups, list_groups, mesh_groups
from hloinspect.hlo.model import ReplicaGroups
from hloinspect.hlo.schema import hlo_pb2 as schema
from hloinspect.hlo.shape import MAX_NESTING, Shape, check_size

_DTYPES = {
    1: "pred", 2: "s8", 3: "s16", 4: "s32", 5: "s64", 6: "u8", 7: "u16", 8: "u32", 9: "u64", 10: "f16", 11: "f32",
    12: "f64", 13: "tuple", 14: "opaque", 15: "c64", 16: "bf16", 17: "token", 18: "c128", 19: "f8e5m2", 20: "f8e4m3fn",
    21: "s4", 22: "u4", 23: "f8e4m3b11fnuz", 24: "f8e5m2fnuz", 25: "f8e4m3fnuz", 26: "s2", 27: "u2", 28: "f8e4m3",
    29: "f8e3m4", 30: "s1", 31: "u1", 32: "f4e2m1fn", 33: "f8e8m0fnu", 34: "buffer", 35: "f6e3m2fn", 36: "f6e2m3fn",
}  # fmt: skip
"""Names of xla_data.proto, PrimitiveType. The type of a buffer is in its only tuple element."""

_PACKED_BITS = {"s1": 1, "u1": 1, "s2": 2, "u2": 2, "s4": 4, "u4": 4, "s8": 8, "u8": 8, "s16": 16, "u16": 16}
_WORDS = frozenset({"s32", "s64", "u32", "u64"})


def decoded_text(data: bytes) -> str:
    """Return bytes as text, with a replacement character for each invalid byte."""
    return data.decode("utf-8", "replace")


def _shape_of(proto: schema.ShapeProto, depth: int = 0) -> Shape:
    if depth > MAX_NESTING:
        raise HloParseError(f"a shape is nested deeper than {MAX_NESTING} tuples")
    dtype = _DTYPES.get(proto.element_type)
    if dtype is None:
        raise HloParseError(f"unknown element type {proto.element_type} in a shape")
    if dtype == "tuple":
        return Shape("tuple", elements=tuple(_shape_of(part, depth + 1) for part in proto.tuple_shapes))
    if dtype == "buffer" and len(proto.tuple_shapes) == 1:
        return _shape_of(proto.tuple_shapes[0], depth + 1)
    dims = tuple(proto.dimensions)
    if any(dim < 0 for dim in dims):
        # The bound of an unbounded dynamic dimension is INT64_MIN (xla/shape.h, kUnboundedSize). Text prints it as "?".
        dims = tuple(1 if dim == -(1 << 63) else dim for dim in dims)
        if any(dim < 0 for dim in dims):
            raise HloParseError(f"a shape has a dimension of {min(dims)}")
    check_size(dims)
    return Shape(dtype, dims, proto.layout.memory_space, tuple(proto.layout.minor_to_major))


@lru_cache(maxsize=65536)
def shape_of_bytes(data: bytes) -> Shape:
    """Return the shape in a serialized ShapeProto. Results are cached, since a module repeats a few hundred."""
    return _shape_of(schema.ShapeProto.FromString(data))


def scalar(literal: schema.LiteralProto, shape: Shape) -> int | None:
    """Return the value of an integer or boolean scalar, or None for any other literal (xla_data.proto,
    LiteralProto)."""
    if shape.dims or shape.is_tuple:
        return None
    if shape.dtype == "pred":
        return int(literal.preds[0]) if literal.preds else None
    if shape.dtype in _WORDS:
        values: Sequence[int] = getattr(literal, shape.dtype + "s")
        return values[0] if values else None
    if (bits := _PACKED_BITS.get(shape.dtype)) is None:
        return None
    data: bytes = getattr(literal, shape.dtype + "s")
    if len(data) * 8 < bits:
        return None
    value = int.from_bytes(data[: (bits + 7) // 8], "little") & ((1 << bits) - 1)
    return value - (1 << bits) if shape.dtype[0] == "s" and value >> (bits - 1) else value


def dim_labels(numbers: schema.ConvolutionDimensionNumbers) -> str:
    """Return dimension labels as ``b01f_01io->b01f`` (hlo_instruction.cc, ``ConvolutionDimensionNumbersToString``)."""
    parts = []
    for first, second, spatial, letters in (
        (numbers.input_batch_dimension, numbers.input_feature_dimension, numbers.input_spatial_dimensions, "bf"),
        (
            numbers.kernel_input_feature_dimension,
            numbers.kernel_output_feature_dimension,
            numbers.kernel_spatial_dimensions,
            "io",
        ),
        (numbers.output_batch_dimension, numbers.output_feature_dimension, numbers.output_spatial_dimensions, "bf"),
    ):
        places = {first: letters[0], second: letters[1]} | {place: str(i) for i, place in enumerate(spatial)}
        parts.append("".join(label for _, label in sorted(places.items())))
    return f"{parts[0]}_{parts[1]}->{parts[2]}"


def window_text(dims: Sequence[schema.WindowDimension]) -> str:
    """Return a window as ``size=3x3 stride=2x2 pad=1_1x1_1``, without defaults (window_util.cc, ``ToString``)."""
    if not dims:
        return ""
    parts = ["size=" + "x".join(str(dim.size) for dim in dims)]
    if any(dim.stride != 1 for dim in dims):
        parts.append("stride=" + "x".join(str(dim.stride) for dim in dims))
    if any(dim.padding_low or dim.padding_high for dim in dims):
        parts.append("pad=" + "x".join(f"{dim.padding_low}_{dim.padding_high}" for dim in dims))
    if any(dim.base_dilation != 1 for dim in dims):
        parts.append("lhs_dilate=" + "x".join(str(dim.base_dilation) for dim in dims))
    if any(dim.window_dilation != 1 for dim in dims):
        parts.append("rhs_dilate=" + "x".join(str(dim.window_dilation) for dim in dims))
    if any(dim.window_reversal for dim in dims):
        parts.append("rhs_reversal=" + "x".join(str(int(dim.window_reversal)) for dim in dims))
    return " ".join(parts)


def replica_groups(proto: schema.HloInstructionProto) -> ReplicaGroups:
    """Return the groups from whichever of four fields holds them. Newer XLA adds fields and leaves the older ones."""
    if proto.HasField("mesh_axes_replica_group_list"):
        mesh = proto.mesh_axes_replica_group_list.mesh
        sizes = [axis.size for axis in mesh.axes]
        over = []
        for axis in proto.mesh_axes_replica_group_list.axes:
            place = axis.mesh_axis_index
            if not 0 <= place < len(sizes):
                return NO_GROUPS
            part = axis.sub_axis_info if axis.HasField("sub_axis_info") else None
            over.append(AxisPart(place, part.pre_size, part.size) if part else AxisPart(place, 1, sizes[place]))
        iota = mesh.iota_transform
        order = DeviceOrder(tuple(mesh.device_ids), tuple(iota.reshape_dims), tuple(iota.transpose_perm))
        return mesh_groups(sizes, over, order)
    listed = proto.collective_device_list
    if proto.HasField("iota_collective_device_list") or listed.HasField("iota_replica_group_list"):
        newer = proto.HasField("iota_collective_device_list")
        iota_list = proto.iota_collective_device_list if newer else listed.iota_replica_group_list
        dims, iteration = tuple(iota_list.iota_reshape_dims), tuple(iota_list.iota_transpose_perm)
        return iota_groups(iota_list.num_replica_groups, iota_list.num_devices_per_group, dims, iteration)
    return list_groups([group.replica_ids for group in listed.replica_groups or proto.replica_groups])
