"""The reader of protos: order, references, payloads, and errors."""

from __future__ import annotations

import pickle
from collections.abc import Callable

import pytest

from hloinspect.errors import HloParseError
from hloinspect.hlo import Frame, Shape, parse_proto
from hloinspect.hlo.proto import MAX_FRAMES
from hloinspect.hlo.schema import hlo_pb2 as schema
from tests.support.hlo_samples import read_everything, zoo_proto

Change = Callable[[schema.HloModuleProto], None]


def zoo(change: Change | None = None) -> schema.HloModuleProto:
    """Return the zoo as a message, after a change. It contains only fields of the schema, which the reader reads."""
    proto = schema.HloModuleProto.FromString(zoo_proto())
    if change:
        change(proto)
    return proto


def computation(proto: schema.HloModuleProto, name: str) -> schema.HloComputationProto:
    return next(c for c in proto.computations if c.name == name)


def instruction(proto: schema.HloModuleProto, name: str) -> schema.HloInstructionProto:
    return next(i for c in proto.computations for i in c.instructions if i.name == name)


def test_instructions_come_in_the_order_of_the_schedule_not_of_the_file() -> None:
    proto = zoo()
    in_file = [i.name for i in computation(proto, "main").instructions]
    module = parse_proto(zoo_proto())
    scheduled = [i.name for i in module.entry]
    assert sorted(in_file) == sorted(scheduled)
    assert in_file != scheduled
    ids = {i.id: i.name for i in computation(proto, "main").instructions}
    sequence = proto.schedule.sequences[proto.entry_computation_id].instruction_ids
    assert scheduled == [ids[number] for number in sequence]
    assert module.is_scheduled
    assert [i.index for i in module.entry] == list(range(len(scheduled)))


def test_computations_without_a_sequence_keep_their_order() -> None:
    def drop(proto: schema.HloModuleProto) -> None:
        del proto.schedule.sequences[computation(proto, "body").id]

    changed = zoo(drop)
    module = parse_proto(changed.SerializeToString())
    assert [i.name for i in module.computations["body"]] == [i.name for i in computation(changed, "body").instructions]


def test_without_a_schedule_the_module_is_not_scheduled() -> None:
    assert not parse_proto(zoo(lambda proto: proto.ClearField("schedule")).SerializeToString()).is_scheduled


def test_a_bare_module_and_one_inside_a_hlo_proto_are_the_same() -> None:
    bare, wrapped = parse_proto(zoo_proto()), parse_proto(schema.HloProto(hlo_module=zoo()).SerializeToString())
    assert [i.name for i in wrapped.entry] == [i.name for i in bare.entry]
    assert (wrapped.kind, wrapped.name, wrapped.platform) == ("proto", "zoo", "gpu")
    assert read_everything(wrapped) == read_everything(bare) > 1000


def test_a_backend_config_is_found_inline_in_a_payload_or_in_the_modules_table() -> None:
    def move(proto: schema.HloModuleProto) -> None:
        proto.payloads.extend([b'{"where":"table 0"}', b'{"where":"table 1"}'])
        instruction(proto, "arg0").backend_config_payload.id = 0
        instruction(proto, "arg1").backend_config_payload.id = 1
        instruction(proto, "arg2").backend_config_payload.value = b'{"where":"inline"}'
        instruction(proto, "arg3").backend_config = b'{"where":"old field"}'
        instruction(proto, "arg4").backend_config = b"\xff no text"

    entry = parse_proto(zoo(move).SerializeToString()).entry
    places = [parameter.backend_config.get("where") for parameter in entry.parameters[:5]]
    assert places == ["table 0", "table 1", "inline", "old field", None]


def test_a_module_can_be_sent_to_another_process() -> None:
    module = parse_proto(zoo_proto())
    again = pickle.loads(pickle.dumps(module))
    assert read_everything(again) == read_everything(module)


def test_a_missing_payload_is_refused_at_its_first_use() -> None:
    def dangle(proto: schema.HloModuleProto) -> None:
        instruction(proto, "arg0").backend_config_payload.id = 7

    module = parse_proto(zoo(dangle).SerializeToString())
    with pytest.raises(HloParseError, match="arg0 refers to payload 7 of 0"):
        _ = module.entry.parameters[0].backend_config


def test_frames_follow_parents_from_the_innermost_and_end_at_zero() -> None:
    frames = parse_proto(zoo_proto()).computations["add"].root.metadata.frames
    assert [frame.line for frame in frames] == [43, 41, 3]
    assert frames[1] == Frame("/home/user/étude.py", 41, "step.<locals>.layer", 8)


def test_frames_that_go_in_circles_or_nowhere_end() -> None:
    def twist(proto: schema.HloModuleProto) -> None:
        index = proto.stack_frame_index
        index.stack_frames[0].parent_frame_id = 2
        index.stack_frames[2].file_location_id = 99
        index.file_locations[1].file_name_id = -4
        instruction(proto, "arg0").metadata.stack_frame_id = 1 << 30

    module = parse_proto(zoo(twist).SerializeToString())
    frames = module.computations["add"].root.metadata.frames
    assert len(frames) == MAX_FRAMES
    assert frames[:2] == (Frame("", 0), Frame("", 41, "step.<locals>.layer", 8))
    assert module.entry.parameters[0].metadata.frames == ()


@pytest.mark.parametrize(
    ("field", "group_count"),
    [("replica_groups", 2), ("collective_device_list.replica_groups", 2), ("collective_device_list.iota", 4)],
)
def test_replica_groups_are_found_in_the_fields_of_older_versions(field: str, group_count: int) -> None:
    def place(proto: schema.HloModuleProto) -> None:
        reduced = instruction(proto, "reduced.1")
        reduced.ClearField("collective_device_list")
        if field == "collective_device_list.iota":
            iota = reduced.collective_device_list.iota_replica_group_list
            iota.num_replica_groups, iota.num_devices_per_group = 4, 2
            iota.iota_reshape_dims[:] = [8]
            return
        owner = reduced.collective_device_list if "." in field else reduced
        for first in (0, 4):
            owner.replica_groups.add(replica_ids=range(first, first + 4))

    reduced = parse_proto(zoo(place).SerializeToString()).entry.find("reduced.1")
    assert reduced is not None
    assert reduced.replica_groups.groups == group_count


def test_attributes_of_the_module_are_spelt_as_in_text() -> None:
    attributes = parse_proto(zoo_proto()).attributes
    assert attributes["input_output_alias"] == "{ {0}: (0, {}, may-alias), {1,0}: (1, {}, must-alias) }"
    assert attributes["is_scheduled"] == "true"
    assert attributes["frontend_attributes"] == '{mesh={"x":[1,2]},note="a \\"quoted\\", {note}"}'


def test_an_unbounded_dimension_counts_as_one() -> None:
    def unbound(proto: schema.HloModuleProto) -> None:
        instruction(proto, "bounded").shape.dimensions[0] = -(1 << 63)

    bounded = parse_proto(zoo(unbound).SerializeToString()).entry.find("bounded")
    assert bounded is not None
    assert bounded.shape == Shape("s32", (1,), 0, (0,))


# ---- what is refused


def _drop_root(proto: schema.HloModuleProto) -> None:
    computation(proto, "main").root_id = 12345


def _dangling_operand(proto: schema.HloModuleProto) -> None:
    instruction(proto, "nested").operand_ids[0] = 999_999


def _cycle(proto: schema.HloModuleProto) -> None:
    first, second = instruction(proto, "reduced.1"), instruction(proto, "reduced.2")
    first.operand_ids[0], second.operand_ids[0] = second.id, first.id


def _self_use(proto: schema.HloModuleProto) -> None:
    reduced = instruction(proto, "reduced.1")
    reduced.operand_ids[0] = reduced.id


def _dangling_call(proto: schema.HloModuleProto) -> None:
    instruction(proto, "loop").called_computation_ids[0] = 999_999


def _call_cycle(proto: schema.HloModuleProto) -> None:
    instruction(proto, "product").called_computation_ids[0] = computation(proto, "body").id


def _short_schedule(proto: schema.HloModuleProto) -> None:
    del proto.schedule.sequences[proto.entry_computation_id].instruction_ids[-1]


def _schedule_twice(proto: schema.HloModuleProto) -> None:
    ids = proto.schedule.sequences[proto.entry_computation_id].instruction_ids
    ids[1] = ids[0]


def _schedule_backwards(proto: schema.HloModuleProto) -> None:
    ids = proto.schedule.sequences[proto.entry_computation_id].instruction_ids
    ids[:] = list(reversed(ids))


def _no_entry(proto: schema.HloModuleProto) -> None:
    proto.entry_computation_id = 999_999


def _other_entry(proto: schema.HloModuleProto) -> None:
    proto.entry_computation_name = "body"


def _same_ids(proto: schema.HloModuleProto) -> None:
    instruction(proto, "reduced.1").id = instruction(proto, "reduced.2").id


def _same_names(proto: schema.HloModuleProto) -> None:
    instruction(proto, "reduced.1").name = "reduced.2"


def _same_computations(proto: schema.HloModuleProto) -> None:
    computation(proto, "yes").name = "no"


def _no_opcode(proto: schema.HloModuleProto) -> None:
    instruction(proto, "reduced.1").opcode = ""


def _no_name(proto: schema.HloModuleProto) -> None:
    instruction(proto, "reduced.1").name = ""


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (_drop_root, "the root of main"),
        (_dangling_operand, "operand 999999 of nested in main does not come before it"),
        (_cycle, "does not come before it"),
        (_self_use, "does not come before it"),
        (_dangling_call, "loop in main calls computation 999999"),
        (_call_cycle, "calls itself"),
        (_short_schedule, "the schedule of main"),
        (_schedule_twice, "the schedule of main"),
        (_schedule_backwards, "does not come before it"),
        (_no_entry, "the entry computation"),
        (_other_entry, "the entry computation"),
        (_same_ids, "two instructions of one id"),
        (_same_names, "two instructions of one name"),
        (_same_computations, "two computations share"),
        (_no_opcode, "has no opcode"),
        (_no_name, "has no name"),
        (lambda proto: proto.ClearField("computations"), "without computations"),
    ],
)
def test_a_module_that_contradicts_itself_is_refused(change: Change, message: str) -> None:
    with pytest.raises(HloParseError, match=message):
        parse_proto(zoo(change).SerializeToString())


@pytest.mark.parametrize("element_type", [0, 77, -1])
def test_an_unknown_element_type_is_refused_when_the_shape_is_read(element_type: int) -> None:
    def set_type(proto: schema.HloModuleProto) -> None:
        instruction(proto, "reduced.1").shape.element_type = element_type

    module = parse_proto(zoo(set_type).SerializeToString())
    reduced = module.entry.find("reduced.1")
    assert reduced is not None
    with pytest.raises(HloParseError, match=f"unknown element type {element_type} in a shape in reduced.1"):
        _ = reduced.shape


def test_an_array_that_no_machine_could_count_is_refused() -> None:
    def set_dimensions(proto: schema.HloModuleProto) -> None:
        instruction(proto, "reduced.1").shape.dimensions[:] = [1 << 40, 1 << 40]

    reduced = parse_proto(zoo(set_dimensions).SerializeToString()).entry.find("reduced.1")
    assert reduced is not None
    with pytest.raises(HloParseError, match="more elements"):
        _ = reduced.shape


def test_a_negative_dimension_is_refused_when_the_shape_is_read() -> None:
    def set_dimension(proto: schema.HloModuleProto) -> None:
        instruction(proto, "reduced.1").shape.dimensions[0] = -5

    reduced = parse_proto(zoo(set_dimension).SerializeToString()).entry.find("reduced.1")
    assert reduced is not None
    with pytest.raises(HloParseError, match="dimension of -5"):
        _ = reduced.shape


@pytest.mark.parametrize("depth", [80, 5000])
def test_shapes_nested_without_end_are_refused(depth: int) -> None:
    shape = schema.ShapeProto(element_type=11).SerializeToString()
    for _ in range(depth):
        shape = schema.ShapeProto(element_type=13).SerializeToString() + b"\x22" + _varint(len(shape)) + shape
    proto = zoo(lambda module: instruction(module, "reduced.1").ClearField("shape"))
    target = instruction(proto, "reduced.1").SerializeToString()
    nested = target + b"\x1a" + _varint(len(shape)) + shape
    data = _replace(proto, "reduced.1", nested)
    with pytest.raises(HloParseError, match=r"nested|neither"):
        read_everything(parse_proto(data))


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes((*out, value))


def _replace(proto: schema.HloModuleProto, name: str, data: bytes) -> bytes:
    """Return the module with the bytes of one instruction replaced, nested deeper than Python's encoder allows."""
    owner = next(c for c in proto.computations if any(i.name == name for i in c.instructions))
    kept = [i for i in owner.instructions if i.name != name]
    del owner.instructions[:]
    owner.instructions.extend(kept)
    body = owner.SerializeToString() + b"\x12" + _varint(len(data)) + data
    proto.computations.remove(owner)
    return proto.SerializeToString() + b"\x1a" + _varint(len(body)) + body


def test_a_while_needs_two_computations() -> None:
    def cut(proto: schema.HloModuleProto) -> None:
        del instruction(proto, "loop").called_computation_ids[1]

    loop = parse_proto(zoo(cut).SerializeToString()).entry.find("loop")
    assert loop is not None
    with pytest.raises(HloParseError, match="while with 1 computations"):
        _ = loop.called


def test_calls_nested_deeper_than_any_program_are_refused() -> None:
    proto = schema.HloModuleProto(name="deep", entry_computation_id=0, entry_computation_name="c0")
    for number in range(3000):
        leaf = number == 2999
        called = [] if leaf else [number + 1]
        item = proto.computations.add(name=f"c{number}", id=number, root_id=0)
        item.instructions.add(name=f"i{number}", opcode="call", id=0, called_computation_ids=called)
    with pytest.raises(HloParseError, match="nested deeper"):
        parse_proto(proto.SerializeToString())
