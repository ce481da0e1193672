"""Shapes as XLA prints them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hloinspect.errors import HloParseError
from hloinspect.hlo.shape import MAX_NESTING, Shape, dtype_bits, parse_shape


def test_a_tpu_layout_gives_its_memory_space_whatever_stands_around_it() -> None:
    shape = parse_shape("bf16[8,4096]{1,0:T(8,128)(2,1)L(1024)E(4)S(5)}")
    assert shape == Shape("bf16", (8, 4096), 5, (1, 0))
    assert shape.on_host
    assert shape.size_bytes == 8 * 4096 * 2


@pytest.mark.parametrize(
    ("text", "space"),
    [
        ("f32[2]{0:S(5)}", 5),
        ("f32[2]{0:T(256)S(1)}", 1),
        ("u32[]{:S(2)}", 2),
        ("s32[]{:T(128)S(6)}", 6),
        ("f32[2]{0}", 0),
    ],
)
def test_the_memory_space_is_the_number_in_s(text: str, space: int) -> None:
    assert parse_shape(text).memory_space == space


def test_only_space_five_is_the_host() -> None:
    assert not parse_shape("f32[2]{0:S(6)}").on_host
    assert not parse_shape("f32[2]{0:SC(1)(5)}").on_host


def test_tuples_nest_and_sum_their_bytes() -> None:
    shape = parse_shape("((f32[4,8]{1,0:S(5)}, /*index=1*/s32[]), bf16[3]{0}, u32[]{:S(2)})")
    assert [path for path, _ in shape.leaves] == [(0, 0), (0, 1), (1,), (2,)]
    assert shape.size_bytes == 128 + 4 + 6 + 4
    assert shape.host_bytes == 128
    assert shape.at((0, 0)) == Shape("f32", (4, 8), 5, (1, 0))
    assert shape.at((0, 2)) is None
    assert shape.at((1, 0)) is None


def test_the_empty_tuple_is_a_tuple_without_leaves() -> None:
    shape = parse_shape("()")
    assert shape.is_tuple
    assert shape.leaves == ()
    assert shape.size_bytes == 0


def test_a_dynamic_dimension_counts_as_its_bound() -> None:
    assert parse_shape("s32[<=8,4]{1,0}").size_bytes == 8 * 4 * 4
    assert parse_shape("f32[?,4]").dims == (1, 4)


def test_tokens_and_opaques_take_no_bytes() -> None:
    assert parse_shape("(token[], opaque[])").size_bytes == 0


def test_a_buffer_has_the_shape_of_what_it_holds() -> None:
    assert parse_shape("b(f32[8]{0:S(5)})") == parse_shape("f32[8]{0:S(5)}")


@pytest.mark.parametrize(
    ("dtype", "bits"),
    [("pred", 8), ("s4", 4), ("u1", 1), ("bf16", 16), ("f8e4m3fn", 8), ("f4e2m1fn", 4), ("c128", 128), ("token", 0)],
)
def test_types_have_the_bits_of_xla_data_proto(dtype: str, bits: int) -> None:
    assert dtype_bits(dtype) == bits


def test_packed_types_round_up_to_whole_bytes() -> None:
    assert parse_shape("s4[3]{0:E(4)}").size_bytes == 2


@pytest.mark.parametrize(
    "text",
    [
        "",
        "f32",
        "f32[",
        "f32[2",
        "f32[x]",
        "f32[-2]",
        "(f32[2]",
        "(f32[2] s32[])",
        "f32[2]{0} f32[2]",
        "b(f32[2]",
        "%x",
    ],
)
def test_what_is_no_shape_is_refused(text: str) -> None:
    with pytest.raises(HloParseError):
        parse_shape(text)


@pytest.mark.parametrize("opening", ["(", "b("])
def test_shapes_nested_without_end_are_refused_not_recursed_into(opening: str) -> None:
    with pytest.raises(HloParseError, match="nested"):
        parse_shape(opening * 100_000)
    deep = opening * (MAX_NESTING - 1) + "f32[]" + ")" * (MAX_NESTING - 1)
    assert parse_shape(deep).size_bytes == 4


@pytest.mark.parametrize("text", [f"f32[{'9' * 5000}]", f"f32[2]{{{'1' * 5000}}}", f"f32[2]{{0:S({'1' * 5000})}}"])
def test_numbers_of_absurd_length_do_not_crash(text: str) -> None:
    try:
        shape = parse_shape(text)
    except HloParseError:
        return
    assert shape.memory_space == 0


@pytest.mark.parametrize("dims", ["9" * 18 + ",11", "2," * 64 + "2", "999999999999999999," * 50_000 + "1"])
def test_arrays_that_no_machine_could_count_are_refused(dims: str) -> None:
    with pytest.raises(HloParseError, match="more elements"):
        parse_shape(f"f32[{dims}]{{0:S(5)}}")
    assert parse_shape("f32[0,999999999999999999]").size_bytes == 0


arrays = st.builds(
    lambda dtype, dims, space: Shape(dtype, tuple(dims), space, tuple(reversed(range(len(dims))))),
    st.sampled_from(["f32", "bf16", "pred", "s4", "u8"]),
    st.lists(st.integers(0, 9999), max_size=4),
    st.sampled_from([0, 1, 5]),
)
shapes = st.recursive(
    arrays, lambda parts: st.builds(lambda p: Shape("tuple", elements=tuple(p)), st.lists(parts, max_size=4))
)


def spell(shape: Shape) -> str:
    if shape.is_tuple:
        return "(" + ", ".join(map(spell, shape.elements)) + ")"
    order = ",".join(map(str, shape.minor_to_major))
    space = f":S({shape.memory_space})" if shape.memory_space else ""
    return f"{shape.dtype}[{','.join(map(str, shape.dims))}]{{{order}{space}}}"


@given(shapes)
def test_every_shape_is_read_back_as_it_was_spelt(shape: Shape) -> None:
    read = parse_shape(spell(shape))
    assert read == shape
    assert read.size_bytes == sum(leaf.size_bytes for _, leaf in read.leaves)


def test_a_control_character_beside_a_number_in_a_layout_is_passed_over_like_other_white_space() -> None:
    # Found by fuzzing: str.strip takes U+001F for white space, and int() does not.
    assert parse_shape("f32[2,3]{1\x1f,0}").minor_to_major == (1, 0)
