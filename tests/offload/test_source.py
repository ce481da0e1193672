"""The line of the user's program of a transfer, and its checkpoint name."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hloinspect.hlo.model import Frame
from hloinspect.kinds import D2H, H2D
from hloinspect.offload.names import OffloadedName, with_alternatives, with_names
from hloinspect.offload.source import user_frame
from hloinspect.offload.transfers import Offload
from tests.support.offload_samples import GPU, offload_in, only

DEVICE, HOST = "f32[8,64]{1,0}", "f32[8,64]{1,0:S(5)}"
SEND, FETCH = f"({HOST}, {DEVICE}, u32[]) copy-start", f"({DEVICE}, {HOST}, u32[]) copy-start"


def at(line: int, column: int = 0) -> str:
    """Return metadata in the old spelling: line and column of /home/user/train.py."""
    place = f'source_file="/home/user/train.py" source_line={line} source_column={column}'
    return f', metadata={{op_name="jit(step)/line{line}" {place}}}'


def lines(offload: Offload) -> list[tuple[str, int | None]]:
    return [(t.start, t.source.line if t.source else None) for t in offload.transfers]


SENT = f"%s = {SEND}(%VALUE){at(99)}\nROOT %d = {HOST} copy-done(%s)"


@pytest.mark.parametrize(
    "between",
    [
        "",
        f"%b = {DEVICE} bitcast(%made){at(50)}\n",
        f"%c = {DEVICE} copy(%made)\n%b = {DEVICE} transpose(%c), dimensions={{0,1}}\n",
        f"%t = ({DEVICE}, ({DEVICE})) tuple(%i, %u)\n%u = ({DEVICE}) tuple(%made)\n"
        f"%g = ({DEVICE}) get-tuple-element(%t), index=1\n%b = {DEVICE} get-tuple-element(%g), index=0\n",
        f"%cs = ({DEVICE}, {DEVICE}, u32[]) copy-start(%made)\n%b = {DEVICE} copy-done(%cs)\n",
        f"%o = ({DEVICE}) opt-barrier(%u)\n%u = ({DEVICE}) tuple(%made)\n"
        f"%b = {DEVICE} get-tuple-element(%o), index=0\n",
    ],
)
def test_a_transfer_is_at_the_line_that_made_its_value(between: str) -> None:
    value = "b" if between else "made"
    body = f"%i = {DEVICE} parameter(0)\n%made = {DEVICE} dot(%i, %i){at(31)}\n{between}" + SENT.replace("VALUE", value)
    assert lines(offload_in(body)) == [("s", 31)]


def test_a_fusions_value_is_at_the_line_of_its_root_and_not_of_the_fusion() -> None:
    fusion = f"""
%f (x: f32[8,64]) -> f32[8,64] {{
  %x = {DEVICE} parameter(0)
  %inner = {DEVICE} tanh(%x){at(12)}
  ROOT %cast = {DEVICE} bitcast(%inner){at(40)}
}}
"""
    body = f"%i = {DEVICE} parameter(0)\n%made = {DEVICE} fusion(%i), kind=kLoop, calls=%f{at(77)}\n"
    assert lines(offload_in(body + SENT.replace("VALUE", "made"), fusion)) == [("s", 12)]


def test_a_fusion_that_only_hands_a_value_on_is_climbed_through() -> None:
    fusion = f"""
%f (y: f32[8,64], x: f32[8,64]) -> f32[8,64] {{
  %y = {DEVICE} parameter(0)
  %x = {DEVICE} parameter(1)
  %n = {DEVICE} negate(%y){at(55)}
  %c = {DEVICE} copy(%x)
  ROOT %t = ({DEVICE}, {DEVICE}) tuple(%n, %c)
}}
"""
    body = (
        f"%i = {DEVICE} parameter(0)\n%made = {DEVICE} dot(%i, %i){at(31)}\n"
        f"%fused = ({DEVICE}, {DEVICE}) fusion(%i, %made), kind=kLoop, calls=%f{at(77)}\n"
        f"%v = {DEVICE} get-tuple-element(%fused), index=1\n"
    )
    assert lines(offload_in(body + SENT.replace("VALUE", "v"), fusion)) == [("s", 31)]


STATE = f"(s32[], {DEVICE}, {DEVICE})"
LOOP = f"""
%body (p: f32[]) -> f32[] {{
  %p = {STATE} parameter(0)
  %i = s32[] get-tuple-element(%p), index=0
  %carried = {DEVICE} get-tuple-element(%p), index=1
  %constant = {DEVICE} get-tuple-element(%p), index=2
  INSIDE
  %next = {DEVICE} dot(%carried, %constant){at(21)}
  ROOT %r = {STATE} tuple(%i, %next, %constant)
}}

%c (q: f32[]) -> pred[] {{
  %q = {STATE} parameter(0)
  ROOT %true = pred[] constant(true)
}}
"""
AROUND = (
    f"%a = {DEVICE} parameter(0)\n%first = {DEVICE} dot(%a, %a){at(5)}\n%w = {DEVICE} negate(%a){at(6)}\n"
    f"%zero = s32[] constant(0)\n%t = {STATE} tuple(%zero, %first, %w)\n"
    f"%loop = {STATE} while(%t), condition=%c, body=%body{at(9)}\n"
)


def test_a_value_that_a_loop_carries_is_at_the_line_that_makes_it_in_the_loop() -> None:
    inside = f"%s = {SEND}(%carried){at(9)}\n  %d = {HOST} copy-done(%s)"
    body = AROUND + f"ROOT %r2 = {DEVICE} get-tuple-element(%loop), index=1"
    assert lines(offload_in(body, LOOP.replace("INSIDE", inside))) == [("s", 21)]


def test_a_value_that_a_loop_only_hands_through_is_at_the_line_before_the_loop() -> None:
    inside = f"%s = {SEND}(%constant){at(9)}\n  %d = {HOST} copy-done(%s)"
    body = AROUND + f"ROOT %r2 = {DEVICE} get-tuple-element(%loop), index=1"
    assert lines(offload_in(body, LOOP.replace("INSIDE", inside))) == [("s", 6)]


@pytest.mark.parametrize(("index", "line"), [(1, 21), (2, 6)])
def test_the_result_of_a_loop_is_at_the_line_in_its_body(index: int, line: int) -> None:
    body = AROUND + f"%v = {DEVICE} get-tuple-element(%loop), index={index}\n" + SENT.replace("VALUE", "v")
    assert lines(offload_in(body, LOOP.replace("INSIDE", ""))) == [("s", line)]


def test_an_argument_is_named_after_itself() -> None:
    body = f"%a = {DEVICE} parameter(0), metadata={{op_name=\"params['w']\"}}\n" + SENT.replace("VALUE", "a")
    transfer = only(offload_in(body))
    assert transfer.tensor.name == "params['w']"


def test_a_fetch_is_at_the_line_of_what_was_sent() -> None:
    offload = offload_in(
        f"%i = {DEVICE} parameter(0)\n%made = {DEVICE} dot(%i, %i){at(31)}\n%s = {SEND}(%made){at(99)}\n"
        f"%h = {HOST} copy-done(%s)\n%f = {FETCH}(%h){at(98)}\nROOT %d = {DEVICE} copy-done(%f)"
    )
    assert lines(offload) == [("s", 31), ("f", 31)]


def test_without_any_frame_there_is_no_source() -> None:
    body = f"%i = {DEVICE} parameter(0)\n%made = {DEVICE} dot(%i, %i)\n" + SENT.replace("VALUE", "made")
    body = body.replace(at(99), GPU)
    assert only(offload_in(body)).source is None


@pytest.mark.parametrize(
    "body",
    [
        f"%made = {DEVICE} bitcast(%made)\n",
        f"%made = {DEVICE} get-tuple-element(%made), index=0\n",
        f"%other = {DEVICE} copy(%made)\n%made = {DEVICE} copy(%other)\n",
        f"%made = {DEVICE} fusion(%made), kind=kLoop, calls=%f\n",
    ],
)
def test_values_that_depend_on_themselves_end_the_climb(body: str) -> None:
    fusion = f"%f (x: f32[8,64]) -> f32[8,64] {{\n  ROOT %x = {DEVICE} parameter(0)\n}}\n"
    assert [line for _, line in lines(offload_in(body + SENT.replace("VALUE", "made"), fusion))] == [99]


def test_the_innermost_frame_of_the_users_own_code_counts() -> None:
    library = Frame("/venv/lib/python3.13/site-packages/flax/linear.py", 7)
    own, entry_value = Frame("/home/user/model.py", 3), Frame("/home/user/train.py", 9)
    assert user_frame((library, own, entry_value)) == own
    assert user_frame((library,)) == library
    assert user_frame((Frame("", 0), own)) == own
    assert user_frame(()) is None


# ---- checkpoint names


def two_sent() -> Offload:
    """Return an offload of two values of one shape, made at 31:8 and 32:8, and one of another shape.

    All go to the host, and the first comes back.
    """
    return offload_in(f"""
        %i = {DEVICE} parameter(0)
        %j = f32[1,128]{{1,0}} parameter(1)
        %m1 = {DEVICE} dot(%i, %i){at(31, 8)}
        %m2 = {DEVICE} dot(%m1, %i){at(32, 8)}
        %m3 = f32[1,128]{{1,0}} negate(%j){at(33, 8)}
        %s1 = {SEND}(%m1){GPU}
        %s2 = {SEND}(%m2){GPU}
        %s3 = (f32[1,128]{{1,0:S(5)}}, f32[1,128]{{1,0}}, u32[]) copy-start(%m3)
        %h1 = {HOST} copy-done(%s1)
        %h2 = {HOST} copy-done(%s2)
        %h3 = f32[1,128]{{1,0:S(5)}} copy-done(%s3)
        %f1 = {FETCH}(%h1)
        ROOT %d1 = {DEVICE} copy-done(%f1)
    """)


HID = OffloadedName("hid", "f32", (8, 64), 31, 8)
OUT = OffloadedName("out", "f32", (8, 64), 32, 8)
ROW = OffloadedName("row", "f32", (128,), None, None)


def names(offload: Offload) -> dict[str, str]:
    return {t.start: t.tensor.name for t in offload.transfers}


def test_names_go_by_the_producers_line_and_column() -> None:
    named = names(with_names(two_sent(), [OUT, HID, ROW]))
    assert named == {"s1": "hid", "s2": "out", "s3": "row", "f1": "hid"}


def test_two_values_of_one_line_are_distinguished_by_their_columns() -> None:
    assert names(with_names(two_sent(), [replace(OUT, line=31, column=20), HID]))["s1"] == "hid"


def test_names_go_by_shape_where_only_one_has_it_whatever_the_ones_in_front() -> None:
    assert names(with_names(two_sent(), [replace(ROW, shape=(1, 1, 128))]))["s3"] == "row"
    assert names(with_names(two_sent(), [replace(ROW, dtype="bf16")]))["s3"] == ""


def test_two_names_of_one_shape_in_unknown_places_name_nothing() -> None:
    unplaced = [replace(HID, line=None, column=None), replace(OUT, line=None, column=None)]
    assert names(with_names(two_sent(), unplaced)) == {"s1": "", "s2": "", "s3": "", "f1": ""}


def test_a_transfer_from_a_place_of_two_alike_names_is_of_one_or_the_other() -> None:
    same_place = [HID, replace(OUT, line=31)]
    assert names(with_names(two_sent(), same_place))["s1"] == ""
    named = names(with_alternatives(with_names(two_sent(), same_place), same_place))
    assert named == {"s1": "hid or out", "s2": "", "s3": "", "f1": "hid or out"}


def test_a_name_without_a_matching_place_is_not_one_of_another_place() -> None:
    same_place = [HID, replace(OUT, line=31), replace(OUT, name="more", line=None, column=None)]
    named = names(with_names(two_sent(), same_place))
    assert (named["s1"], named["s2"]) == ("", "more")


def test_a_name_that_is_known_already_is_preferred_to_alternatives() -> None:
    same_place = [HID, replace(OUT, line=31)]
    named = with_names(two_sent(), [HID])
    assert names(named)["s1"] == "hid"
    assert names(with_alternatives(named, same_place))["s1"] == "hid"


def test_four_names_on_one_place_name_nothing() -> None:
    same_place = [HID, *(replace(OUT, name=f"out{number}", line=31) for number in range(3))]
    assert names(with_alternatives(with_names(two_sent(), same_place), same_place))["s1"] == ""


def test_values_of_one_line_of_a_library_are_distinguished_by_shape() -> None:
    same_place = [HID, replace(ROW, line=31, column=8)]
    assert names(with_names(two_sent(), same_place))["s1"] == "hid"


def test_a_devices_part_of_a_sharded_value_has_its_name() -> None:
    whole = replace(HID, shape=(4, 32, 64), line=None, column=None)
    wrong = replace(OUT, shape=(4, 12, 48), line=None, column=None)
    assert names(with_names(two_sent(), [whole, wrong]))["s1"] == "hid"
    nearer = replace(OUT, shape=(4, 8, 64), line=None, column=None)
    assert names(with_names(two_sent(), [whole, nearer]))["s1"] == "out"


def test_a_transfer_whose_line_is_lost_is_not_what_another_one_is() -> None:
    placed, lost = replace(HID, shape=(4, 8, 64)), replace(OUT, shape=(4, 8, 64), line=None, column=None)
    named = names(with_names(two_sent(), [placed, lost]))
    assert (named["s1"], named["s2"], named["f1"]) == ("hid", "out", "hid")


def test_an_arguments_own_name_is_kept() -> None:
    offload = offload_in(
        f'%a = {DEVICE} parameter(0), metadata={{op_name="x"}}\n' + SENT.replace("VALUE", "a").replace(at(99), GPU)
    )
    assert names(with_names(offload, [replace(HID, line=None)])) == {"s": "x"}


def test_names_change_nothing_but_names() -> None:
    before = two_sent()
    after = with_names(before, [HID, OUT, ROW])
    assert [replace(t, tensor=replace(t.tensor, name="")) for t in after.transfers] == list(before.transfers)
    assert {t.direction for t in after.transfers} == {D2H, H2D}
