"""Hostile input: the readers refuse any bytes in one line, or return a model whose every attribute can be read.

``survives`` checks that only HloParseError (or InputError before it) is raised.
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hloinspect.errors import HloParseError, InputError
from hloinspect.hlo import Module, load_module_bytes, parse_proto, parse_text
from hloinspect.hlo.groups import parse_replica_groups
from hloinspect.hlo.scan import split_attributes
from hloinspect.hlo.shape import parse_shape
from tests.support.hlo_samples import ROOT, read_attributes, text_of, zoo_proto, zoo_text
from tests.support.thorough import examples

REAL = sorted(path for path in (ROOT / "fixtures").rglob("module.hlo.*.gz") if "offload_scan" in path.parent.name)[:2]
LONG = 100_000


def check_line(error: InputError) -> None:
    """Assert that a refusal is one line with a text."""
    assert str(error)
    assert "\n" not in str(error)


def read_all(module: Module) -> None:
    """Read every attribute of every instruction. Each may raise an error."""
    for computation in module.computations.values():
        for question in (computation.may_touch_host, lambda c=computation: (c.parameters, c.root)):
            try:
                question()
            except HloParseError as error:
                check_line(error)
        for index in range(len(computation)):
            try:
                read_attributes(module, computation, computation.instruction(index))
            except HloParseError as error:
                check_line(error)


def survives(data: bytes) -> bool:
    """Return whether the bytes gave a module."""
    try:
        module = load_module_bytes(data, "NAME")
    except InputError as error:
        check_line(error)
        return False
    read_all(module)
    return True


def text_survives(text: str) -> bool:
    try:
        module = parse_text(text)
    except HloParseError as error:
        check_line(error)
        return False
    read_all(module)
    return True


def proto_survives(data: bytes) -> bool:
    try:
        module = parse_proto(data)
    except HloParseError as error:
        check_line(error)
        return False
    read_all(module)
    return True


# ---- truncation and flips


@pytest.mark.parametrize("data", [zoo_text().encode(), zoo_proto()], ids=["text", "proto"])
def test_a_module_cut_off_anywhere_is_refused_or_readable(data: bytes) -> None:
    assert survives(data)
    for size in range(0, len(data), 97):
        survives(data[:size])


@pytest.mark.parametrize("size", [10, 1000, 4000, 7000])
def test_text_cut_off_in_a_computation_is_refused(size: int) -> None:
    assert not survives(zoo_text()[:size].encode())


@pytest.mark.skipif(not REAL, reason="no fixtures")
@pytest.mark.parametrize("path", REAL, ids=lambda path: f"{path.parent.name}-{path.name}")
def test_a_real_module_cut_off_at_every_997th_byte_is_refused_or_readable(path: Path) -> None:
    import gzip

    data = gzip.decompress(path.read_bytes())
    for size in range(0, len(data), 997):
        survives(data[:size])


@pytest.mark.parametrize("data", [zoo_text().encode(), zoo_proto()], ids=["text", "proto"])
def test_flipped_bytes_are_refused_or_readable(data: bytes) -> None:
    chance = random.Random(0)
    for _ in range(150):
        damaged = bytearray(data)
        for _ in range(chance.choice([1, 1, 1, 2, 8])):
            damaged[chance.randrange(len(damaged))] = chance.randrange(256)
        survives(bytes(damaged))


def test_compressed_modules_cut_off_anywhere_are_refused() -> None:
    import gzip

    packed = gzip.compress(zoo_text().encode())
    assert survives(packed)
    assert not any(survives(packed[:size]) for size in range(2, len(packed), 23))


# ---- text that grows without sense


@pytest.mark.parametrize(
    "line",
    [
        "%a = " + "(" * LONG,
        "%a = f32[] negate(" + "(" * LONG,
        "%a = f32[] negate(" + "(" * LONG + ")" * LONG + ")",
        "%a = f32[] negate(%p), x=" + "{" * LONG,
        "%a = f32[] negate(%p), x=" + "{" * LONG + "}" * LONG,
        "%a = f32[] negate(%p), x=" + "[{(" * LONG,
        '%a = f32[] negate(%p), x="' + "\\" * LONG,
        '%a = f32[] negate(%p), x="' + '\\"' * LONG,
        '%a = f32[] negate(%p), x="' + '\\"' * LONG + '"',
        "%a = f32[] negate(%p), x=" + '"' * LONG,
        "%a = f32[] negate(%p), x=" + '""' * LONG + '"',
        "%a = f32[] negate(%p), metadata={" + "w" * LONG + "}",
        "%a = f32[] negate(%p), metadata={" + "w=" * LONG + "}",
        "%a = f32[] negate(%p), metadata={" + 'w="' * LONG + "}",
        '%a = f32[] negate(%p), metadata={op_name="' + "\\" * (LONG - 1) + "}",
        "%a = f32[] negate(%p), metadata={stack_frame_id=" + "9" * LONG + "}",
        "%a = f32[] negate(%p), backend_config=" + "[" * LONG + "]" * LONG,
        '%a = f32[] negate(%p), backend_config={"a":' * 20_000 + "}",
        "%a = f32[] negate(%p), backend_config={" + '"a":' + "1" * LONG + "}",
        "%a = f32[] negate(%p), frontend_attributes={" + "a=" * LONG + "}",
        "%a = f32[] negate(%p), replica_groups=" + "mesh[" * LONG,
        "%a = f32[] negate(%p), replica_groups=" + "{1" * LONG,
        "%a = f32[] negate(%p), replica_groups=[" + "1," * LONG + "1]<=[1]",
        "%a = f32[] negate(%p), feature_group_count=" + "9" * LONG,
        "%a = f32[] dot(%p), lhs_contracting_dims={" + "9" * LONG + "}",
        "%a = s32[] constant(" + "9" * LONG + ")",
        "%a = s32[] parameter(" + "9" * LONG + ")",
        "%a = f32[] get-tuple-element(%p), index=" + "9" * LONG,
        "%a = f32[" + "9" * LONG + "] negate(%p)",
        "%a = f32[" + "1," * LONG + "] negate(%p)",
        "%a = (" + "f32[], " * LONG + "f32[]) negate(%p)",
        "%a = (" + "/*" * LONG + ") negate(%p)",
        "%a = f32[] negate(" + "/*" * LONG + ")",
        "%a = f32[] negate(%p" + "#1" * LONG + ")",
        "%a = f32[] negate(" + "%p, " * LONG + "%p)",
        "%" + "a" * LONG,
        "%a" + " " * LONG + "= f32[] negate(%p)",
        "%a = f32[]" + " " * LONG + "negate(%p)",
        "%a = f32[] " + "n" * LONG,
        "%a = f32[] negate(%p)" + ", " * LONG,
        "%a = f32[] negate(%p), " + "k" * LONG,
        "%a = f32[] fusion(%p), calls={" + "%c, " * LONG + "}",
    ],
    ids=lambda line: repr(line[:48]),
)
def test_absurd_lines_end_in_an_answer_or_a_refusal(line: str) -> None:
    text_survives(text_of(line))


@pytest.mark.parametrize("character", list("(){}[]<>,=%\"'\\/*# \t#:;.-_0a\x00\x85é９²"))
def test_lines_of_one_character_end_in_an_answer_or_a_refusal(character: str) -> None:
    run = character * LONG
    text_survives(text_of(run))
    text_survives(text_of("%a = f32[] negate(%p), x=" + run))
    text_survives("HloModule " + run)
    text_survives(run)
    split_attributes(run)
    parse_replica_groups(run)
    with pytest.raises(HloParseError):
        parse_shape(run)


def test_many_absurd_tables_and_computations_end() -> None:
    text_survives("HloModule m\n\n" + "FileNames\n" * LONG)
    text_survives("HloModule m\n\nStackFrames\n" + "1 {parent_frame_id=2}\n" * LONG)
    text_survives("HloModule m\n" + "{\n" * LONG)
    text_survives("HloModule m\n" + "%c {\n}\n" * LONG)
    text_survives("HloModule m\n\nENTRY %m {\n" + "\n" * LONG)
    text_survives("HloModule m\n\nENTRY %m {\n  %a = f32[] negate(%p)\n" + "more\n" * LONG + "}\n")


# ---- references to themselves


def test_text_whose_computations_call_each_other_in_circles_is_refused() -> None:
    text = (
        "HloModule m, is_scheduled=true\n\n"
        "%a (p: f32[]) -> f32[] {\n  ROOT %x = f32[] call(%p), to_apply=%b\n}\n\n"
        "%b (p: f32[]) -> f32[] {\n  ROOT %y = f32[] fusion(%p), kind=kLoop, calls=%a\n}\n\n"
        "ENTRY %e (p: f32[]) -> f32[] {\n  ROOT %z = f32[] call(%p), to_apply=%a\n}\n"
    )
    with pytest.raises(HloParseError, match=r"NAME: computation [ab] calls itself"):
        load_module_bytes(text.encode(), "NAME")
    harmless = text.replace("calls=%a", 'metadata={op_name="calls=%a"}')
    assert load_module_bytes(harmless.encode()).entry_name == "e"


def test_text_with_calls_nested_without_end_is_refused() -> None:
    chain = "".join(
        f"%c{number} (p: f32[]) -> f32[] {{\n  ROOT %x{number} = f32[] call(%p), to_apply=%c{number + 1}\n}}\n\n"
        for number in range(3000)
    )
    with pytest.raises(HloParseError, match="nested deeper"):
        load_module_bytes(text_of("ROOT %z = f32[] call(%p), to_apply=%c0", before=chain).encode())


def test_operands_that_go_in_circles_do_not_trap_resolve() -> None:
    module = parse_text(
        text_of(
            """%a = f32[] get-tuple-element(%b), index=0
            %b = f32[] get-tuple-element(%a), index=0
            ROOT %c = f32[] negate(%a)"""
        )
    )
    assert module.resolve(module.entry, module.entry.root.operands[0])[0] is None
    read_all(module)


# ---- fuzz

# fmt: off
PIECES = st.sampled_from([
    "HloModule m, is_scheduled=true", "\n", "ENTRY ", "%a", "%b.1", " = ", "f32[2]{0:S(5)}", "(f32[], s32[])",
    "b(", "(", ")", "{", "}", "[", "]", ",", ", ", "=", "\"", "\\", "#1", "#", "constant(", "parameter(0)",
    "negate(", "fusion-start(", "calls=%a", "to_apply=", "body=%b", "backend_config={", "metadata={op_name=",
    "replica_groups=[1,2]<=[2]", "T(1,0)", "mesh['x'=2] {'x'}", "index=", "/*", "*/", " {", "}\n", "ROOT ", "  ",
    "<=", "?", "-1", "9999999999", "StackFrames\n", "1 {file_location_id=1 parent_frame_id=1}\n",
    "stack_frame_id=1", "direction=", "window={", "frontend_attributes={", "é", "\x00",
])
# fmt: on


@settings(max_examples=examples(200, 20_000), suppress_health_check=list(HealthCheck))
@given(st.lists(PIECES, max_size=40))
def test_text_made_of_pieces_never_crashes_the_reader(pieces: list[str]) -> None:
    text = "".join(pieces)
    text_survives(text)
    text_survives(text_of("%a = f32[] negate(%p)" + text.replace("\n", " ")))
    text_survives(text_of(text.replace("\n", " ")))


@settings(max_examples=examples(150, 20_000), suppress_health_check=list(HealthCheck))
@given(st.data())
def test_text_with_a_part_exchanged_never_crashes_the_reader(data: st.DataObject) -> None:
    text = zoo_text()
    start = data.draw(st.integers(0, len(text)))
    end = data.draw(st.integers(start, min(len(text), start + 40)))
    text_survives(text[:start] + "".join(data.draw(st.lists(PIECES, max_size=4))) + text[end:])


@settings(max_examples=examples(200, 20_000), suppress_health_check=list(HealthCheck))
@given(st.data())
def test_protos_with_a_part_exchanged_never_crash_the_reader(data: st.DataObject) -> None:
    proto = zoo_proto()
    start = data.draw(st.integers(0, len(proto)))
    end = data.draw(st.integers(start, min(len(proto), start + 8)))
    proto_survives(proto[:start] + data.draw(st.binary(max_size=8)) + proto[end:])


@settings(max_examples=examples(200, 20_000))
@given(st.binary(max_size=300))
def test_bytes_of_any_kind_never_crash_the_proto_reader(data: bytes) -> None:
    proto_survives(data)


@settings(max_examples=examples(200, 20_000))
@given(st.text(max_size=200))
def test_text_of_any_kind_never_crashes_the_parts_of_the_reader(text: str) -> None:
    split_attributes(text)
    parse_replica_groups(text)
    try:
        parse_shape(text)
    except HloParseError:
        return
