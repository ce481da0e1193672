"""The text reader: spellings, quoting, tables."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hloinspect.errors import HloParseError
from hloinspect.hlo import DotDimensions, Frame, Instruction, Operand, parse_text
from hloinspect.hlo.scan import split_attributes
from tests.support.hlo_samples import text_of, zoo_text

HOSTILE_NAME = 'calls=%x, metadata={op_name=\\"y\\"}, } ) ] to_apply=%z'


def only(line: str, *, before: str = "", header: str = "HloModule m, is_scheduled=true") -> Instruction:
    """Return the only instruction of a module."""
    return parse_text(text_of(line, before=before, header=header)).entry.instruction(0)


def test_instructions_come_in_the_order_of_the_text() -> None:
    module = parse_text(zoo_text())
    names = [instruction.name for instruction in module.entry]
    assert names[:3] == ["arg1", "arg0", "arg6"]
    assert names[-1] == module.entry.root.name == "result"
    assert [p.name for p in module.entry.parameters] == [f"arg{number}" for number in range(7)]
    assert module.entry.position("loop") == names.index("loop")
    assert module.entry.find("nobody") is None


def test_the_header_gives_name_schedule_and_attributes() -> None:
    module = parse_text(zoo_text())
    assert (module.name, module.is_scheduled, module.entry_name) == ("zoo", True, "main")
    assert module.attributes["input_output_alias"] == "{ {0}: (0, {}, may-alias), {1,0}: (1, {}, must-alias) }"
    assert module.attributes["replica_count"] == "8"
    assert not parse_text(text_of("ROOT %p = f32[] parameter(0)", header="HloModule m")).is_scheduled


def test_only_marks_of_a_backend_give_its_platform() -> None:
    assert parse_text(zoo_text()).platform == "gpu"
    assert parse_text(text_of("ROOT %p = f32[8,128]{1,0:T(8,128)} parameter(0)")).platform == "tpu"
    assert parse_text(text_of("ROOT %p = f32[] parameter(0)")).platform == ""


# ---- attributes


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", {}),
        (", a=1, b={x, y}, c=[1,2]<=[2]", {"a": "1", "b": "{x, y}", "c": "[1,2]<=[2]"}),
        (', a="x, b={", c=2', {"a": '"x, b={"', "c": "2"}),
        (', a="q\\"}, z=9", c=2', {"a": '"q\\"}, z=9"', "c": "2"}),
        (
            ", control-predecessors={%a, %b}, backend_config={}",
            {"control-predecessors": "{%a, %b}", "backend_config": "{}"},
        ),
        (", replica_groups=mesh['x'=2,'y'=4] {'y'}, c=1", {"replica_groups": "mesh['x'=2,'y'=4] {'y'}", "c": "1"}),
        (", no pair, a=1", {"a": "1"}),
        (', a={"k":"}"}, b=2', {"a": '{"k":"}"}', "b": "2"}),
        (", a=1, b={never closed, c=3", {"a": "1"}),
        (', a=1, b="never closed, c=3', {"a": "1"}),
    ],
)
def test_attributes_are_split_at_commas_outside_brackets_and_strings(text: str, expected: dict[str, str]) -> None:
    assert split_attributes(text) == expected


@given(
    st.dictionaries(st.from_regex(r"[a-z_][a-z_\-.]{0,9}", fullmatch=True), st.text("ab=,{}()[]\"\\ '%\n", max_size=20))
)
def test_quoted_values_come_back_whatever_is_in_them(pairs: dict[str, str]) -> None:
    quoted = {key: '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"' for key, value in pairs.items()}
    text = "".join(f", {key}={value}" for key, value in quoted.items())
    assert split_attributes(text) == quoted


def test_an_op_name_that_looks_like_attributes_calls_nothing() -> None:
    instruction = only(f'%a = f32[] negate(%p), metadata={{op_name="{HOSTILE_NAME}"}}, backend_config={{"k":1}}')
    assert instruction.called == {}
    assert instruction.metadata.op_name == HOSTILE_NAME.replace('\\"', '"')
    assert instruction.backend_config == {"k": 1}


def test_attributes_behind_control_predecessors_are_read() -> None:
    instruction = only(
        '%a = f32[] fusion(%p), kind=kLoop, calls=%f, control-predecessors={%x, %y}, metadata={op_name="n"}, '
        'backend_config={"operation_queue_id":"1"}'
    )
    assert instruction.called == {"calls": ("f",)}
    assert instruction.metadata.op_name == "n"
    assert instruction.backend_config == {"operation_queue_id": "1"}


def test_escapes_of_quoted_strings_are_undone() -> None:
    instruction = only(r'%a = f32[] custom-call(%p), custom_call_target="\303\251\n\t\"q\"\\ \'s\'"')
    assert instruction.custom_call_target == "é\n\t\"q\"\\ 's'"


def test_a_backend_config_is_read_as_json_or_not_at_all() -> None:
    assert only('%a = f32[] negate(%p), backend_config="{\\"k\\":[1]}"').backend_config == {"k": [1]}
    assert only('%a = f32[] negate(%p), backend_config="no json, {"').backend_config == {}
    assert only("%a = f32[] negate(%p), backend_config={bad}").backend_config == {}


def test_frontend_attributes_may_be_quoted_or_json() -> None:
    module = parse_text(zoo_text())
    assert module.computations["called"].root.frontend_attributes == {"_xla_compute_type": "host"}
    line = '%a = f32[] negate(%p), frontend_attributes={a="x, {",b={"k":"}"},c=""}'
    assert only(line).frontend_attributes == {"a": "x, {", "b": '{"k":"}"}', "c": ""}


# ---- operands


@pytest.mark.parametrize(
    ("line", "operands"),
    [
        ("%a = f32[] add(%x, %y.1)", (Operand("x"), Operand("y.1"))),
        ("%a = f32[] add(%t.1#4, %p0#1#0)", (Operand("t.1", (4,)), Operand("p0", (1, 0)))),
        ("a = f32[] add(x, y-2)", (Operand("x"), Operand("y-2"))),
        ("%a = f32[] add(f32[2,3]{1,0:T(8,128)} %x, (f32[], s32[]) %y)", (Operand("x"), Operand("y"))),
        ("%a = f32[] tuple(%x, /*index=1*/%y, /*index=2*/ %z)", (Operand("x"), Operand("y"), Operand("z"))),
        ("%a = () tuple()", ()),
        ("%a = s32[2,2]{1,0} constant({ {1, 2}, {3, 4} })", ()),
        ("%a = (f32[], s32[]) constant((1, 2))", ()),
        ("%a = f32[] parameter(0)", ()),
        ("%a = s32[4]{0} iota(), iota_dimension=0", ()),
    ],
)
def test_operands_are_read_in_every_spelling(line: str, operands: tuple[Operand, ...]) -> None:
    assert only(line).operands == operands


def test_an_operand_that_is_none_is_refused_with_its_line() -> None:
    with pytest.raises(HloParseError, match=r"^line 4, column 1: .*t#x"):
        _ = only("%a = f32[] negate(%t#x)").operands


def test_paths_resolve_through_get_tuple_elements() -> None:
    module = parse_text(
        text_of(
            """%p = ((f32[], s32[]), f32[]) parameter(0)
            %g = (f32[], s32[]) get-tuple-element(%p), index=0
            %h = s32[] get-tuple-element(%g), index=1
            ROOT %n = f32[] negate(%p#0#0)"""
        )
    )
    found, path = module.resolve(module.entry, Operand("h"))
    assert found is module.entry.find("p")
    assert path == (0, 1)
    assert module.resolve(module.entry, Operand("g", (1,)))[1] == (0, 1)


# ---- attributes by kind


def test_the_zoo_gives_each_kind_of_attribute() -> None:
    module = parse_text(zoo_text())

    def at(name: str, computation: str = "main") -> Instruction:
        found = module.computations[computation].find(name)
        assert found is not None
        return found

    assert at("loop").called == {"condition": ("condition",), "body": ("body",)}
    assert at("chosen").called == {"branches": ("yes", "no")}
    assert at("indexed").called == {"branches": ("no", "yes")}
    assert at("scattered").called == {"to_apply": ("gt", "add")}
    assert at("reduced.1").called == {"to_apply": ("add",)}
    assert at("outside-start").called == {"calls": ("called",)}
    assert at("save-start", "body").called == {"calls": ("async_computation",)}
    assert at("dot", "gemm").dot_dimensions == DotDimensions((1,), (1,))
    assert at("convolved").dim_labels == "b01f_01io->b01f"
    assert at("convolved").window_text == "size=3x3 pad=1_1x1_1 rhs_reversal=1x0"
    assert (at("convolved").feature_groups, at("loop").feature_groups) == (2, 1)
    assert at("less", "condition").comparison_direction == "LT"
    assert at("kept").tuple_index == 1
    assert (at("arg6").parameter_number, at("kept").parameter_number) == (6, -1)
    assert at("bounded").custom_call_target == 'Bound"ed'
    assert module.computations["called"].execution_thread == "host"
    assert at("save-start", "body").is_generic_async_start
    assert not at("fetch-start").is_generic_async_start
    assert at("outside-start").is_generic_async_start
    assert at("fetch-done").done_of == "copy"


@pytest.mark.parametrize(
    ("line", "value"),
    [
        ("%a = s32[] constant(-7)", -7),
        ("%a = u64[]{:T(128)} constant(18446744073709551615)", (1 << 64) - 1),
        ("%a = pred[] constant(true)", 1),
        ("%a = f32[] constant(1)", None),
        ("%a = s32[1]{0} constant({1})", None),
        ("%a = s32[] constant({...})", None),
        ("%a = s32[] negate(%p)", None),
    ],
)
def test_only_integer_scalars_have_an_integer_value(line: str, value: int | None) -> None:
    assert only(line).constant_integer == value


# ---- where it comes from


def test_frames_come_from_the_tables_with_the_innermost_first() -> None:
    root = parse_text(zoo_text()).computations["add"].root
    assert root.metadata.op_name == "calls=%x, {to_apply=%y}"
    assert root.metadata.frames == (
        Frame("/home/user/zoo.py", 43, "step.<locals>.layer", 0),
        Frame("/home/user/étude.py", 41, "step.<locals>.layer", 8),
        Frame("/home/user/zoo.py", 3, "<module>", 2),
    )


def test_a_table_whose_outermost_parent_is_zero_holds_plain_ids() -> None:
    tables = (
        'FileNames\n1 "a.py"\n\nFunctionNames\n1 "f"\n\nFileLocations\n'
        "1 {file_name_id=1 function_name_id=1 line=1 end_line=0 column=0 end_column=0}\n"
        "2 {file_name_id=1 function_name_id=1 line=2 end_line=0 column=0 end_column=0}\n\n"
        "StackFrames\n1 {file_location_id=1 parent_frame_id=0}\n2 {file_location_id=2 parent_frame_id=1}\n\n"
    )
    instruction = only('%a = f32[] negate(%p), metadata={op_name="n" stack_frame_id=2}', before=tables)
    assert [frame.line for frame in instruction.metadata.frames] == [2, 1]


def test_frames_that_go_in_circles_end() -> None:
    tables = "StackFrames\n1 {file_location_id=1 parent_frame_id=3}\n2 {file_location_id=1 parent_frame_id=2}\n\n"
    instruction = only("%a = f32[] negate(%p), metadata={stack_frame_id=1}", before=tables)
    assert 0 < len(instruction.metadata.frames) <= 256


def test_inline_places_are_read_where_there_are_no_tables() -> None:
    line = '%a = f32[] negate(%p), metadata={op_type="neg" op_name="jit(f)/neg" source_file="/h/a b.py" source_line=29'
    assert only(line + " source_column=4}").metadata.frames == (Frame("/h/a b.py", 29, "", 4),)
    assert only(line + "}").metadata.frames == (Frame("/h/a b.py", 29),)


# ---- damage


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "empty"),
        ("\n \n", "empty"),
        ("module @jit_f {", "line 1, column 1: expected 'HloModule NAME'"),
        ("HloModule m\n", "no ENTRY"),
        ("HloModule m\n\nENTRY %e () -> f32[] {\n  ROOT %a = f32[] constant(1)\n", "not closed"),
        ("HloModule m\n\n{\n", "line 3, column 1: expected a computation"),
    ],
)
def test_text_that_is_no_module_is_refused_with_its_place(text: str, message: str) -> None:
    with pytest.raises(HloParseError, match=message):
        parse_text(text)


@pytest.mark.parametrize(
    "line",
    ["%a = f32[]", "%a = (f32[], negate(%p)", "%a = f32[] negate(%p", '%a = f32[] custom-call("x', "%a = f32[] 1(%p)"],
)
def test_a_damaged_instruction_is_refused_with_its_line_at_its_first_use(line: str) -> None:
    module = parse_text(text_of(line))
    with pytest.raises(HloParseError) as error:
        module.entry.instruction(0)
    assert error.value.line == 4


def test_a_damaged_shape_names_the_instruction() -> None:
    with pytest.raises(HloParseError, match=r"line 4.*in a$"):
        _ = only("%a = f32[x]{0} negate(%p)").shape


def test_windows_line_ends_make_no_difference() -> None:
    with_cr = parse_text(zoo_text().replace("\n", "\r\n"))
    assert [i.name for i in with_cr.entry] == [i.name for i in parse_text(zoo_text()).entry]
    assert with_cr.entry.root.operands == parse_text(zoo_text()).entry.root.operands
