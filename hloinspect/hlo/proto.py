"""Reader of serialized modules: HloModuleProto, and HloProto around it (XLA's dumps ``*.hlo_proto.pb``, traces, executables).

A proto keeps what text loses (the backend_config of an instruction inside a sugared async pair), and is read five times as
fast. Unlike text it lists instructions in post-order: the schedule stands apart and is applied here, except in computations that
have none (fusion bodies and the like, which nothing schedules). References are checked at once; a shape or an attribute is
decoded when somebody asks for it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property, lru_cache
from typing import Any

from google.protobuf.message import DecodeError

from hloinspect.errors import HloParseError
from hloinspect.hlo.groups import NO_GROUPS, AxisPart, DeviceOrder, iota_groups, list_groups, mesh_groups
from hloinspect.hlo.model import (
    NO_METADATA,
    Computation,
    DotDimensions,
    Frame,
    Instruction,
    Metadata,
    Module,
    Operand,
    ReplicaGroups,
)
from hloinspect.hlo.schema import hlo_pb2 as schema
from hloinspect.hlo.shape import MAX_NESTING, Shape

_TUPLE = 13
_DTYPES = {
    1: "pred", 2: "s8", 3: "s16", 4: "s32", 5: "s64", 6: "u8", 7: "u16", 8: "u32", 9: "u64", 10: "f16", 11: "f32", 12: "f64",
    _TUPLE: "tuple", 14: "opaque", 15: "c64", 16: "bf16", 17: "token", 18: "c128", 19: "f8e5m2", 20: "f8e4m3fn", 21: "s4",
    22: "u4", 23: "f8e4m3b11fnuz", 24: "f8e5m2fnuz", 25: "f8e4m3fnuz", 26: "s2", 27: "u2", 28: "f8e4m3", 29: "f8e3m4", 30: "s1",
    31: "u1", 32: "f4e2m1fn", 33: "f8e8m0fnu", 34: "buffer", 35: "f6e3m2fn", 36: "f6e2m3fn",
}  # fmt: skip
"""Names of xla_data.proto, PrimitiveType. A buffer's own type stands in its one tuple element."""

_PACKED_BITS = {"s1": 1, "u1": 1, "s2": 2, "u2": 2, "s4": 4, "u4": 4, "s8": 8, "u8": 8, "s16": 16, "u16": 16}
_WORDS = frozenset({"s32", "s64", "u32", "u64"})
_TO_APPLY = frozenset(
    {"call", "map", "reduce", "reduce-window", "all-reduce", "all-reduce-start", "reduce-scatter", "scatter", "sort", "topk"}
    | {"select-and-scatter"}
)
"""Opcodes whose computations text prints as ``to_apply`` (hlo_instruction.cc, ``PrintExtraAttributes``)."""

MAX_FRAMES = 256
_TILES_8_128 = bytes((0x32, 5, 0x0A, 3, 8, 0x80, 1))
"""A layout's first tile when that is (8,128): LayoutProto field 6 around TileProto field 1."""


def _text(data: bytes) -> str:
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
        # The bound of an unbounded dynamic dimension is INT64_MIN (xla/shape.h, kUnboundedSize); text prints it as "?".
        dims = tuple(1 if dim == -(1 << 63) else dim for dim in dims)
        if any(dim < 0 for dim in dims):
            raise HloParseError(f"a shape has a dimension of {min(dims)}")
    return Shape(dtype, dims, proto.layout.memory_space, tuple(proto.layout.minor_to_major))


@lru_cache(maxsize=65536)
def _shape_from(data: bytes) -> Shape:
    """Shape of a serialized ShapeProto; cached, since a module repeats a few hundred."""
    return _shape_of(schema.ShapeProto.FromString(data))


class _Context:
    """What instructions share: the names of computations, payloads that stand apart, and the stack frames."""

    def __init__(self, proto: schema.HloModuleProto) -> None:
        self.names = {computation.id: computation.name for computation in proto.computations}
        self.payloads = proto.payloads
        self._index = proto.stack_frame_index
        self._stacks: dict[int, tuple[Frame, ...]] = {}

    def frames(self, frame_id: int) -> tuple[Frame, ...]:
        """The stack of a frame id, the innermost first. Ids count from 1; a parent of 0 is none (hlo.proto,
        StackFrameIndexProto), unlike the text's, which is one more."""
        if (known := self._stacks.get(frame_id)) is None:
            known = self._stacks[frame_id] = tuple(self._walk(frame_id))
        return known

    def _walk(self, frame_id: int) -> Iterator[Frame]:
        index = self._index
        for _ in range(MAX_FRAMES):
            if not 0 < frame_id <= len(index.stack_frames):
                return
            frame = index.stack_frames[frame_id - 1]
            if 0 < frame.file_location_id <= len(index.file_locations):
                place = index.file_locations[frame.file_location_id - 1]
                file = _entry(index.file_names, place.file_name_id)
                yield Frame(file, place.line, _entry(index.function_names, place.function_name_id), place.column)
            else:
                yield Frame("", 0)
            frame_id = frame.parent_frame_id


def _entry(table: Sequence[bytes], number: int) -> str:
    return _text(table[number - 1]) if 0 < number <= len(table) else ""


class ProtoInstruction(Instruction):
    """An instruction as its HloInstructionProto."""

    def __init__(self, proto: schema.HloInstructionProto, computation: ProtoComputation, index: int) -> None:
        self.name = proto.name
        self.opcode = proto.opcode
        self.index = index
        self.is_root = proto.id == computation.root_id
        self.computation = computation.name
        self._proto = proto
        self._owner = computation

    @cached_property
    def shape(self) -> Shape:
        try:
            return _shape_from(self._proto.shape.SerializeToString())
        except HloParseError as error:
            raise HloParseError(f"{error} in {self.name}") from None

    @cached_property
    def operands(self) -> tuple[Operand, ...]:
        return tuple(Operand(self._owner.name_of(number)) for number in self._proto.operand_ids)

    @cached_property
    def called(self) -> Mapping[str, tuple[str, ...]]:
        names = tuple(self._owner.context.names[number] for number in self._proto.called_computation_ids)
        if not names:
            return {}
        if self.opcode == "while":
            if len(names) != 2:
                raise HloParseError(f"{self.name} is a while with {len(names)} computations instead of 2")
            return {"condition": names[1:], "body": names[:1]}
        if self.opcode == "conditional":
            return {"branches": names}
        return {"to_apply" if self.opcode in _TO_APPLY else "calls": names}

    @cached_property
    def metadata(self) -> Metadata:
        if not self._proto.HasField("metadata"):
            return NO_METADATA
        proto = self._proto.metadata
        frames = self._owner.context.frames(proto.stack_frame_id)
        if not frames and proto.source_file:
            frames = (Frame(_text(proto.source_file), proto.source_line, "", proto.source_column),)
        if not frames and not proto.op_name:
            return NO_METADATA
        return Metadata(_text(proto.op_name), frames)

    @property
    def backend_config_text(self) -> str:
        """The backend's configuration as it was written, from wherever the proto keeps it. Raises HloParseError for a
        reference to a payload that is not there (hlo_proto_util.cc, ``GetBackendConfigString``)."""
        payload = self._proto.backend_config_payload
        if (source := payload.WhichOneof("source")) is None:
            return _text(self._proto.backend_config)
        if source == "value":
            return _text(payload.value)
        payloads = self._owner.context.payloads
        if not 0 <= payload.id < len(payloads):
            raise HloParseError(f"{self.name} refers to payload {payload.id} of {len(payloads)}")
        return _text(payloads[payload.id])

    @cached_property
    def backend_config(self) -> Mapping[str, Any]:
        try:
            config = json.loads(self.backend_config_text)
        except (ValueError, RecursionError):
            return {}
        return config if isinstance(config, dict) else {}

    @property
    def frontend_attributes(self) -> Mapping[str, str]:
        return {key: _text(value) for key, value in self._proto.frontend_attributes.map.items()}

    @property
    def custom_call_target(self) -> str:
        return _text(self._proto.custom_call_target)

    @property
    def tuple_index(self) -> int:
        return self._proto.tuple_index if self.opcode == "get-tuple-element" else -1

    @property
    def parameter_number(self) -> int:
        return self._proto.parameter_number if self.opcode == "parameter" else -1

    @property
    def constant_integer(self) -> int | None:
        if self.opcode != "constant" or not self._proto.HasField("literal"):
            return None
        return _scalar(self._proto.literal, self.shape)

    @property
    def comparison_direction(self) -> str:
        return self._proto.comparison_direction if self.opcode == "compare" else ""

    @property
    def dot_dimensions(self) -> DotDimensions | None:
        if self.opcode != "dot":
            return None
        numbers = self._proto.dot_dimension_numbers
        return DotDimensions(
            tuple(numbers.lhs_contracting_dimensions),
            tuple(numbers.rhs_contracting_dimensions),
            tuple(numbers.lhs_batch_dimensions),
            tuple(numbers.rhs_batch_dimensions),
        )

    @property
    def dim_labels(self) -> str:
        if not self._proto.HasField("convolution_dimension_numbers"):
            return ""
        return _dim_labels(self._proto.convolution_dimension_numbers)

    @property
    def feature_groups(self) -> int:
        return max(1, self._proto.feature_group_count)

    @property
    def replica_groups(self) -> ReplicaGroups:
        return _replica_groups(self._proto)

    @property
    def window_text(self) -> str:
        return _window_text(self._proto.window.dimensions)


def _scalar(literal: schema.LiteralProto, shape: Shape) -> int | None:
    """The value of an integer or boolean scalar, None for any other literal (xla_data.proto, LiteralProto)."""
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


def _dim_labels(numbers: schema.ConvolutionDimensionNumbers) -> str:
    """``b01f_01io->b01f`` (hlo_instruction.cc, ``ConvolutionDimensionNumbersToString``)."""
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


def _window_text(dims: Sequence[schema.WindowDimension]) -> str:
    """``size=3x3 stride=2x2 pad=1_1x1_1`` (window_util.cc, ``ToString``): what is as by default in all dimensions is left out."""
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


def _replica_groups(proto: schema.HloInstructionProto) -> ReplicaGroups:
    """Groups from whichever of four fields holds them; newer XLA adds fields rather than changing them."""
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
        dims, turn = tuple(iota_list.iota_reshape_dims), tuple(iota_list.iota_transpose_perm)
        return iota_groups(iota_list.num_replica_groups, iota_list.num_devices_per_group, dims, turn)
    return list_groups([group.replica_ids for group in listed.replica_groups or proto.replica_groups])


class ProtoComputation(Computation):
    """A computation as its HloComputationProto, in the order of ``sequence`` (instruction ids) where there is one.

    Raises HloParseError for references that lead nowhere, a schedule that is none, or an operand that comes after its use.
    """

    def __init__(
        self, proto: schema.HloComputationProto, sequence: Sequence[int] | None, context: _Context, is_entry: bool
    ) -> None:
        self.name = proto.name
        self.is_entry = is_entry
        self.execution_thread = "" if proto.execution_thread == "main" else proto.execution_thread
        self.root_id = proto.root_id
        self.context = context
        by_id = {instruction.id: instruction for instruction in proto.instructions}
        if len(by_id) != len(proto.instructions):
            raise HloParseError(f"computation {self.name} has two instructions of one id")
        if sequence is None:
            self._protos = list(proto.instructions)
        else:
            self._protos = [by_id[number] for number in sequence if number in by_id]
            if not len(self._protos) == len(sequence) == len(set(sequence)) == len(by_id):
                raise HloParseError(f"the schedule of {self.name} does not hold each of its instructions once")
        if proto.instructions and self.root_id not in by_id:
            raise HloParseError(f"the root of {self.name} is not among its instructions")
        self._names: dict[int, str] = {}
        self._check()
        self._cache: dict[int, ProtoInstruction] = {}

    def _check(self) -> None:
        """Fills the table of names in schedule order, so that an operand must stand in it before its user does: no cycles."""
        names, computations = self._names, self.context.names
        for proto in self._protos:
            for number in proto.operand_ids:
                if number not in names:
                    raise HloParseError(f"operand {number} of {proto.name} in {self.name} does not come before it")
            for number in proto.called_computation_ids:
                if number not in computations:
                    raise HloParseError(f"{proto.name} in {self.name} calls computation {number}, which does not exist")
            if not proto.name or not proto.opcode:
                raise HloParseError(f"an instruction in {self.name} has no {'opcode' if proto.name else 'name'}")
            names[proto.id] = proto.name
        if len(set(names.values())) != len(names):
            raise HloParseError(f"computation {self.name} has two instructions of one name")

    def name_of(self, instruction_id: int) -> str:
        """Name of the instruction of that id, which must exist."""
        return self._names[instruction_id]

    def __len__(self) -> int:
        return len(self._protos)

    def instruction(self, index: int) -> ProtoInstruction:
        found = self._cache.get(index)
        if found is None:
            found = ProtoInstruction(self._protos[index], self, index)
            self._cache[index] = found
        return found

    @cached_property
    def _positions(self) -> dict[str, int]:
        return {proto.name: index for index, proto in enumerate(self._protos)}

    def position(self, name: str) -> int | None:
        return self._positions.get(name)

    @cached_property
    def root(self) -> Instruction:
        for index, proto in enumerate(self._protos):
            if proto.id == self.root_id:
                return self.instruction(index)
        return super().root

    @cached_property
    def parameters(self) -> tuple[Instruction, ...]:
        found = [self.instruction(index) for index, proto in enumerate(self._protos) if proto.opcode == "parameter"]
        return tuple(sorted(found, key=lambda instruction: instruction.parameter_number))

    def may_touch_host(self) -> Sequence[int]:
        return [index for index, instruction in enumerate(self) if instruction.shape.host_bytes]

    @property
    def callees(self) -> set[str]:
        """Names of the computations that its instructions call."""
        names = self.context.names
        return {names[number] for proto in self._protos for number in proto.called_computation_ids}


def _unwrap(data: bytes) -> schema.HloModuleProto:
    """The module in ``data``: HloProto has it in field 1, where HloModuleProto has its name. Both can decode from the same
    bytes; only one way gives a module with computations."""
    module = None
    try:
        module = schema.HloProto.FromString(data).hlo_module
    except DecodeError:
        pass  # the name of a bare module is no message
    if module is None or not module.computations:
        try:
            module = schema.HloModuleProto.FromString(data)
        except DecodeError:
            raise HloParseError("expected a serialized HloProto or HloModuleProto, found bytes that decode as neither") from None
    if not module.computations:
        raise HloParseError("expected a serialized HloProto or HloModuleProto, found one without computations")
    return module


def _aliases(proto: schema.InputOutputAlias) -> str:
    """``{ {0}: (1, {}, may-alias) }``, as text has it in the module's first line."""
    entries = []
    for entry in proto.entries:
        output, parameter = (",".join(map(str, p)) for p in (entry.output_shape_index, entry.parameter_shape_index))
        kind = "must-alias" if entry.kind == 2 else "may-alias"
        entries.append(f"{{{output}}}: ({entry.parameter_number}, {{{parameter}}}, {kind})")
    return "{ " + ", ".join(entries) + " }"


def _attributes(proto: schema.HloModuleProto, is_scheduled: bool) -> dict[str, str]:
    """The attributes of a text's first line that a proto has too, spelt the same."""
    found = {"is_scheduled": "true"} if is_scheduled else {}
    if proto.input_output_alias.entries:
        found["input_output_alias"] = _aliases(proto.input_output_alias)
    if pairs := {key: _text(value) for key, value in proto.frontend_attributes.map.items()}:
        spelt = (f"{key}={value if value[:1] + value[-1:] == '{}' else json.dumps(value)}" for key, value in sorted(pairs.items()))
        found["frontend_attributes"] = "{" + ",".join(spelt) + "}"
    return found


def _platform(data: bytes) -> str:
    """What compiled the module, by the same marks as in text."""
    if b'"scoped_memory_configs"' in data or _TILES_8_128 in data:
        return "tpu"
    return "gpu" if b"operation_queue_id" in data or b"fusion_backend_config" in data or b"__cublas" in data else ""


def parse_proto(data: bytes) -> Module:
    """The module that a serialized HloProto or HloModuleProto holds; which of the two is decided by the content.

    Raises HloParseError for bytes that are neither, and for a module that contradicts itself: references to nothing, a schedule
    that leaves instructions out, operands after their use, computations that call themselves. A fault inside one
    instruction (an unknown element type, say) is raised when that is asked for.
    """
    proto = _unwrap(data)
    context = _Context(proto)
    if len(context.names) != len(proto.computations) or len(set(context.names.values())) != len(proto.computations):
        raise HloParseError("two computations share a name or an id")
    if not all(context.names.values()):
        raise HloParseError("a computation has no name")
    entry_name = context.names.get(proto.entry_computation_id)
    if entry_name is None or (proto.entry_computation_name and proto.entry_computation_name != entry_name):
        raise HloParseError(f"the entry computation {proto.entry_computation_name!r} is not among the computations")
    sequences = proto.schedule.sequences
    computations: dict[str, Computation] = {}
    for item in proto.computations:
        sequence = sequences[item.id].instruction_ids if item.id in sequences else None
        computations[item.name] = ProtoComputation(item, sequence, context, item.id == proto.entry_computation_id)
    is_scheduled = proto.entry_computation_id in sequences
    return Module(
        name=proto.name,
        computations=computations,
        entry_name=entry_name,
        is_scheduled=is_scheduled,
        attributes=_attributes(proto, is_scheduled),
        platform=_platform(data),
        size_bytes=len(data),
        kind="proto",
    )
