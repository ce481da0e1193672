"""Fields that an older jaxlib does not know are taken out of a target configuration."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hloinspect.compile.child.target_config import unknown_field, without_field
from hloinspect.hardware import load_target, target_config_text

LOG = (
    "E1129 18:21:58.640089    6753 text_format.cc:378] Error parsing text-format stream_executor.GpuTargetConfigProto: "
    "11:21: "
    'Message type "stream_executor.GpuDeviceInfoProto" has no field named "thread_dim_limit_x".'
)


def test_the_unknown_field_is_read_from_protobufs_log() -> None:
    assert unknown_field(LOG) == "thread_dim_limit_x"
    assert unknown_field('Expected "{", found "x".') is None


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a: 1\nb: 2\nc: 3", "a: 1\n\nc: 3"),
        ('a: 1 b: "x { } \\" y" c: 3', "a: 1  c: 3"),
        ("a: 1 b { c: 3 d { e: 4 } } f: 5", "a: 1  f: 5"),
        ("a: 1 b: { c: 3 } f: 5", "a: 1  f: 5"),
        ("m { b: -1.5e3 } bb: 2 ab: 3", "m {  } bb: 2 ab: 3"),
        ("b: 1 x { b: 2 } b { b: 3 }", " x {  } "),
        ('name: "b: 1" b: A_B', 'name: "b: 1" '),
        ("a: 1", "a: 1"),
    ],
)
def test_a_field_is_taken_out_with_its_value_wherever_it_is(text: str, expected: str) -> None:
    assert without_field(text, "b") == expected


def test_a_real_configuration_keeps_everything_else() -> None:
    text = target_config_text(load_target("gb200"))
    assert text.count("device_interconnect_info") == 1
    shorter = without_field(without_field(text, "device_interconnect_info"), "scalar_unit_description")
    assert "device_interconnect_info" not in shorter
    assert "scalar_unit_description" not in shorter
    assert shorter.count("{") == shorter.count("}")
    for kept in ("core_count: 152", "matrix_unit_description", 'name: "NVIDIA GB200"', "feature_extension"):
        assert kept in shorter


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 99)), max_size=8))
def test_other_fields_stay_in_order(fields: list[tuple[str, int]]) -> None:
    text = "\n".join(f"{name}: {value}" for name, value in fields)
    kept = without_field(text, "b").split()
    assert kept == [word for name, value in fields if name != "b" for word in (f"{name}:", str(value))]
