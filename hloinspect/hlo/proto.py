"""Reader of serialized modules: HloModuleProto, and HloProto that contains it (XLA's dumps ``*.hlo_proto.pb``, traces).

A proto keeps what text loses: the backend_config of an instruction inside a sugared async pair. It lists instructions
in post-order, and its schedule is a separate list, which is applied here. Computations without a schedule, such as
fusion bodies, keep their order. References are checked at once. A shape or an attribute is decoded at its first use.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from typing import Any, Literal

from google.protobuf.message import DecodeError

from hloinspect.errors import HloParseError
from hloinspect.hlo import decode
from hloinspect.hlo.calls import check_calls
from hloinspect.hlo.decode import decoded_text
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
from hloinspect.hlo.shape import Shape

_DECODE_ERRORS = (DecodeError, UnicodeDecodeError, RecursionError)
"""Errors of decoding. protobuf in pure Python raises the last two."""

_TO_APPLY = frozenset(
    {
        "call",
        "map",
        "reduce",
        "reduce-window",
        "all-reduce",
        "all-reduce-start",
        "reduce-scatter",
        "scatter",
        "sort",
        "topk",
    }
    | {"select-and-scatter"}
)
"""Opcodes whose computations text prints as ``to_apply`` (hlo_instruction.cc, ``PrintExtraAttributes``)."""

MAX_FRAMES = 256
_GPU_MARKS = (b"operation_queue_id", b"fusion_backend_config", b"__cublas", b"fingerprint_before_lhs")
_CPU_MARKS = (b"outer_dimension_partitions", b"__ynn_fusion", b"__onednn$", b"lapack_")
_TILES_8_128 = bytes((0x32, 5, 0x0A, 3, 8, 0x80, 1))
"""First bytes of a layout whose first tile is (8,128): LayoutProto field 6, which contains TileProto field 1."""


class _Context:
    """Data that instructions share: the names of computations, separate payloads, and the stack frames."""

    def __init__(self, proto: schema.HloModuleProto) -> None:
        self.proto = proto
        self.names = {computation.id: computation.name for computation in proto.computations}
        self.payloads = tuple(proto.payloads)  # what protobuf has in its place cannot be pickled
        self._index = proto.stack_frame_index
        self._stacks: dict[int, tuple[Frame, ...]] = {}

    def frames(self, frame_id: int) -> tuple[Frame, ...]:
        """Return the stack of a frame id, the innermost frame first.

        Ids count from 1, and a parent of 0 means none (hlo.proto, StackFrameIndexProto). In text the parent is one
        more.
        """
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
    return decoded_text(table[number - 1]) if 0 < number <= len(table) else ""


class ProtoInstruction(Instruction):
    """An instruction read from an HloInstructionProto."""

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
            return decode.shape_of_bytes(self._proto.shape.SerializeToString())
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
            frames = (Frame(decoded_text(proto.source_file), proto.source_line, "", proto.source_column),)
        if not frames and not proto.op_name:
            return NO_METADATA
        return Metadata(decoded_text(proto.op_name), frames)

    @property
    def backend_config_text(self) -> str:
        """Return the backend's configuration as it was written, from whichever place of the proto has it.

        Raises HloParseError for a reference to a missing payload (hlo_proto_util.cc, ``GetBackendConfigString``).
        """
        payload = self._proto.backend_config_payload
        if (source := payload.WhichOneof("source")) is None:
            return decoded_text(self._proto.backend_config)
        if source == "value":
            return decoded_text(payload.value)
        payloads = self._owner.context.payloads
        if not 0 <= payload.id < len(payloads):
            raise HloParseError(f"{self.name} refers to payload {payload.id} of {len(payloads)}")
        return decoded_text(payloads[payload.id])

    @cached_property
    def backend_config(self) -> Mapping[str, Any]:
        try:
            config = json.loads(self.backend_config_text)
        except (ValueError, RecursionError):
            return {}
        return config if isinstance(config, dict) else {}

    @property
    def frontend_attributes(self) -> Mapping[str, str]:
        return {key: decoded_text(value) for key, value in self._proto.frontend_attributes.map.items()}

    @property
    def custom_call_target(self) -> str:
        return decoded_text(self._proto.custom_call_target)

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
        return decode.scalar(self._proto.literal, self.shape)

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
        return decode.dim_labels(self._proto.convolution_dimension_numbers)

    @property
    def feature_groups(self) -> int:
        return max(1, self._proto.feature_group_count)

    @property
    def replica_groups(self) -> ReplicaGroups:
        return decode.replica_groups(self._proto)

    @property
    def window_text(self) -> str:
        return decode.window_text(self._proto.window.dimensions)

    @property
    def is_host_transfer(self) -> bool:
        return self._proto.is_host_transfer

    @property
    def source_target_pairs(self) -> tuple[tuple[int, int], ...]:
        return tuple((pair.source, pair.target) for pair in self._proto.source_target_pairs)


class ProtoComputation(Computation):
    """A computation read from an HloComputationProto, in the order of ``sequence`` (instruction ids) if there is one.

    ``callees`` are the names of the computations that it calls. Raises HloParseError for references to nothing, an
    invalid schedule, or an operand after its use.
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
        self.callees: set[str] = set()
        self._check()
        self._cache: dict[int, ProtoInstruction] = {}

    def _check(self) -> None:
        """Fill the table of names in the order of the schedule.

        An operand must be in the table before its user, so there are no cycles. Raises HloParseError.
        """
        names, computations, callees = self._names, self.context.names, self.callees
        for proto in self._protos:
            for number in proto.operand_ids:
                if number not in names:
                    raise HloParseError(f"operand {number} of {proto.name} in {self.name} does not come before it")
            for number in proto.called_computation_ids:
                if number not in computations:
                    raise HloParseError(f"{proto.name} in {self.name} calls computation {number}, which does not exist")
                callees.add(computations[number])
            if not proto.name or not proto.opcode:
                raise HloParseError(f"an instruction in {self.name} has no {'opcode' if proto.name else 'name'}")
            names[proto.id] = proto.name
        if len(set(names.values())) != len(names):
            raise HloParseError(f"computation {self.name} has two instructions of one name")

    def name_of(self, instruction_id: int) -> str:
        """Return the name of the instruction of that id, which must exist."""
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
        return [i for i, instruction in enumerate(self) if any(leaf.on_host for _, leaf in instruction.shape.leaves)]

    def ending_in(self, *suffixes: str) -> Sequence[int]:
        return [index for index, proto in enumerate(self._protos) if proto.opcode.endswith(suffixes)]


def _unwrap(data: bytes) -> schema.HloModuleProto:
    """Return the module in ``data``: HloProto has it in field 1, where HloModuleProto has its name.

    Both types can decode from the same bytes. Only one of them gives a module with computations.
    """
    module: schema.HloModuleProto | None = None
    with suppress(*_DECODE_ERRORS):  # the name of a module without HloProto is no message
        module = schema.HloProto.FromString(data).hlo_module
    if module is None or not module.computations:
        try:
            module = schema.HloModuleProto.FromString(data)
        except _DECODE_ERRORS:
            raise HloParseError(
                "expected a serialized HloProto or HloModuleProto, found bytes that decode as neither"
            ) from None
    if not module.computations:
        raise HloParseError("expected a serialized HloProto or HloModuleProto, found one without computations")
    return module


def _aliases(proto: schema.InputOutputAlias) -> str:
    """Return aliases as ``{ {0}: (1, {}, may-alias) }``, as text has them in the module's first line."""
    entries = []
    for entry in proto.entries:
        output, parameter = (",".join(map(str, p)) for p in (entry.output_shape_index, entry.parameter_shape_index))
        kind = "must-alias" if entry.kind == 2 else "may-alias"
        entries.append(f"{{{output}}}: ({entry.parameter_number}, {{{parameter}}}, {kind})")
    return "{ " + ", ".join(entries) + " }"


def _attributes(proto: schema.HloModuleProto, is_scheduled: bool) -> dict[str, str]:
    """Return the attributes of a text's first line that a proto has too, in the same spelling."""
    found = {"is_scheduled": "true"} if is_scheduled else {}
    if proto.input_output_alias.entries:
        found["input_output_alias"] = _aliases(proto.input_output_alias)
    if pairs := {key: decoded_text(value) for key, value in proto.frontend_attributes.map.items()}:
        spelt = (
            f"{key}={value if value[:1] + value[-1:] == '{}' else json.dumps(value)}"
            for key, value in sorted(pairs.items())
        )
        found["frontend_attributes"] = "{" + ",".join(spelt) + "}"
    return found


def _platform(data: bytes) -> Literal["gpu", "tpu", "cpu", ""]:
    """Return the platform that compiled the module, by the same marks as in text."""
    if b'"scoped_memory_configs"' in data or _TILES_8_128 in data:
        return "tpu"
    if any(mark in data for mark in _GPU_MARKS):
        return "gpu"
    return "cpu" if any(mark in data for mark in _CPU_MARKS) else ""


def serialized(module: Module) -> bytes | None:
    """Return the HloModuleProto that a module was read from, with all fields, or None for text."""
    first = next(iter(module.computations.values()), None)
    if not isinstance(first, ProtoComputation):
        return None
    return first.context.proto.SerializeToString(deterministic=True)


def parse_proto(data: bytes) -> Module:
    """Return the module that a serialized HloProto or HloModuleProto holds. The content decides which of the two it is.

    Raises HloParseError for bytes that are neither, and for a module that contradicts itself: references to nothing, a
    schedule without some instructions, operands after their use, computations that call themselves. A fault inside one
    instruction (such as an unknown element type) is raised at its first use.
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
    computations: dict[str, ProtoComputation] = {}
    for item in proto.computations:
        sequence = sequences[item.id].instruction_ids if item.id in sequences else None
        computations[item.name] = ProtoComputation(item, sequence, context, item.id == proto.entry_computation_id)
    check_calls({name: computation.callees for name, computation in computations.items()})
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
