"""Live ranges and packing, on modules small enough for a calculation by hand and against brute force."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hloinspect.errors import HloParseError
from hloinspect.hlo import parse_text
from hloinspect.hlo.model import Operand
from hloinspect.memory import assign as packing
from hloinspect.memory.assign import SpaceUse, assign_buffers, peak
from hloinspect.memory.assign_columns import best_fit
from hloinspect.memory.live import Liveness
from hloinspect.memory.liveness import liveness
from hloinspect.memory.values import Buffer

MIB = 1 << 20
BIG = "f32[262144]{0}"  # 1 MiB


def lives(body: str, *, before: str = "", header: str = "") -> Liveness:
    """Return the live ranges of a module with these instructions in its entry."""
    text = f"HloModule m, is_scheduled=true{header}\n\n{before}ENTRY %main (p: f32[]) -> f32[] {{\n{body}}}\n"
    return liveness(parse_text(text))


ORIGIN = lives("  ROOT %p = f32[] parameter(0)\n").buffers[0].origin


def device(live: Liveness) -> SpaceUse:
    return assign_buffers(live, [0])


def test_a_temporary_lives_from_where_it_is_made_to_its_last_use() -> None:
    live = lives(f"""  %p = {BIG} parameter(0)
  %a = {BIG} sort(%p), dimensions={{0}}
  %b = {BIG} sort(%a), dimensions={{0}}
  %c = {BIG} sort(%b), dimensions={{0}}
  ROOT %r = {BIG} sort(%c), dimensions={{0}}
""")
    (leaf,) = live.values_of("main", Operand("b"))
    assert (leaf.first, leaf.last) == (2, 3)
    assert leaf.buffer.spans == ((2, 3),)
    use = device(live)
    assert (use.argument_bytes, use.output_bytes, use.alias_bytes) == (MIB, MIB, 0)
    assert use.temp_bytes == 2 * MIB  # a lies where the result will be; b and c live at the same time
    assert use.total_bytes == 4 * MIB


def test_an_elementwise_kernel_writes_over_its_operand_where_that_dies_and_a_copy_does_not() -> None:
    def temporaries(opcode: str) -> int:
        live = lives(f"""  %p = {BIG} parameter(0)
  %a = {BIG} sort(%p), dimensions={{0}}
  %b = {BIG} {opcode}(%a)
  ROOT %r = f32[] custom-call(%b), custom_call_target="sum"
""")
        return device(live).temp_bytes

    assert temporaries("negate") == MIB
    assert temporaries("copy") == 2 * MIB


def test_a_fusion_writes_over_an_operand_only_if_it_reads_it_in_the_order_in_which_it_writes() -> None:
    def temporaries(inside: str) -> int:
        before = f"%f (x: f32[]) -> f32[] {{\n  %x = f32[512,512]{{1,0}} parameter(0)\n{inside}}}\n\n"
        live = lives(
            """  %p = f32[512,512]{1,0} parameter(0)
  %a = f32[512,512]{1,0} sort(%p), dimensions={0}
  %b = f32[512,512]{1,0} fusion(%a), kind=kLoop, calls=%f
  ROOT %r = f32[] custom-call(%b), custom_call_target="sum"
""",
            before=before,
        )
        return device(live).temp_bytes

    assert temporaries("  ROOT %y = f32[512,512]{1,0} exponential(%x)\n") == MIB
    assert temporaries("  ROOT %y = f32[512,512]{1,0} transpose(%x), dimensions={1,0}\n") == 2 * MIB


def test_an_async_copy_keeps_its_source_until_the_done() -> None:
    live = lives(f"""  %p = {BIG} parameter(0)
  %a = {BIG} sort(%p), dimensions={{0}}
  %s = (f32[262144]{{0:S(5)}}, {BIG}, u32[]) copy-start(%a)
  %b = {BIG} sort(%p), dimensions={{0}}
  %c = f32[] custom-call(%b), custom_call_target="sum"
  %d = f32[262144]{{0:S(5)}} copy-done(%s)
  ROOT %r = f32[] custom-call(%c), custom_call_target="end"
""")
    (leaf,) = live.values_of("main", Operand("a"))
    assert live.instruction_at(leaf.last).name == "d"
    assert device(live).temp_bytes == 2 * MIB + 4
    assert assign_buffers(live, [5]).temp_bytes == MIB


CALLED = f"""%work (x: f32[262144]) -> f32[262144] {{
  %x = {BIG} parameter(0)
  %y = {BIG} sort(%x), dimensions={{0}}
  ROOT %z = {BIG} sort(%y), dimensions={{0}}
}}, execution_thread="sparsecore"

"""


@pytest.mark.parametrize(
    ("begin", "done_of"),
    [
        (f"  %s = (({BIG}), {BIG}, u32[]) call-start(%a), to_apply=%work\n", "s"),
        # as in libtpu 0.0.50.1: the operands come with an update, and the work begins there
        (f"  %s = ((), (), (s32[1])) call-start(), to_apply=%work\n  %u = (({BIG}), {BIG}) call-update(%s, %a)\n", "u"),
    ],
)
def test_an_async_call_keeps_its_operands_until_the_done_whatever_brings_them(begin: str, done_of: str) -> None:
    body = f"""  %p = {BIG} parameter(0)
  %a = {BIG} sort(%p), dimensions={{0}}
{begin}  %b = {BIG} sort(%p), dimensions={{0}}
  %c = f32[] custom-call(%b), custom_call_target="sum"
  %d = {BIG} call-done(%{done_of})
  ROOT %r = f32[] custom-call(%c, %d), custom_call_target="end"
"""
    live = lives(body, before=CALLED)
    (given,), (inside,) = live.values_of("main", Operand("a")), live.values_of("work", Operand("y"))
    (result,) = live.values_of("main", Operand("d"))
    assert live.instruction_at(given.last).name == "d"
    assert live.instruction_at(inside.last).name == "d"
    assert result.buffer is live.values_of("work", Operand("z"))[0].buffer
    assert device(live).temp_bytes // MIB == 4  # a, b, y and z


def test_an_update_in_place_shares_the_buffer_of_what_it_updates() -> None:
    live = lives("""  %p = f32[1024]{0} parameter(0)
  %i = s32[] constant(0)
  %z = f32[64,1024]{1,0} custom-call(), custom_call_target="AllocateBuffer"
  %b = f32[1,1024]{1,0} bitcast(%p)
  %u = f32[64,1024]{1,0} dynamic-update-slice(%z, %b, %i, %i)
  ROOT %r = f32[] custom-call(%u), custom_call_target="sum"
""")
    (one,), (other,) = live.values_of("main", Operand("z")), live.values_of("main", Operand("u"))
    assert one.buffer is other.buffer
    assert device(live).temp_bytes == 64 * 1024 * 4


LOOP = f"""%body (t: (s32[], f32[])) -> (s32[], f32[]) {{
  %t = (s32[], {BIG}, {BIG}) parameter(0)
  %i = s32[] get-tuple-element(%t), index=0
  %x = {BIG} get-tuple-element(%t), index=1
  %same = {BIG} get-tuple-element(%t), index=2
  %tmp = {BIG} sort(%x), dimensions={{0}}
  %y = {BIG} dot(%tmp, %same)
  ROOT %out = (s32[], {BIG}, {BIG}) tuple(%i, %y, %same)
}}

%cond (t: (s32[], f32[])) -> pred[] {{
  %t.1 = (s32[], {BIG}, {BIG}) parameter(0)
  %i.1 = s32[] get-tuple-element(%t.1), index=0
  %n = s32[] constant(4)
  ROOT %less = pred[] compare(%i.1, %n), direction=LT
}}

"""


def test_what_a_loop_carries_is_one_buffer_and_its_body_adds_what_it_needs_inside() -> None:
    live = lives(
        f"""  %p = {BIG} parameter(0)
  %zero = s32[] constant(0)
  %a = {BIG} sort(%p), dimensions={{0}}
  %k = {BIG} sort(%p), dimensions={{0}}
  %init = (s32[], {BIG}, {BIG}) tuple(%zero, %a, %k)
  %w = (s32[], {BIG}, {BIG}) while(%init), condition=%cond, body=%body
  %end = {BIG} get-tuple-element(%w), index=1
  ROOT %r = f32[] custom-call(%end), custom_call_target="sum"
""",
        before=LOOP,
    )
    names = [live.instruction_at(time).name for time in range(len(live.order))]
    assert names.index("less") < names.index("t") < names.index("out") < names.index("w")
    carried = live.values_of("main", Operand("a"))[0].buffer
    assert live.values_of("body", Operand("y"))[0].buffer is carried
    assert live.values_of("main", Operand("end"))[0].buffer is carried
    handed = live.values_of("body", Operand("same"))[0]
    assert handed.buffer is live.values_of("main", Operand("k"))[0].buffer
    assert names[handed.last] == "w"  # it lives while the loop runs, although it is used once
    # While the body sorts, x is needed. When it multiplies, x is dead, and y takes its place: tmp, same and x or y.
    assert device(live).temp_bytes // MIB == 3


def test_a_donated_argument_is_used_for_temporaries_while_nobody_needs_it() -> None:
    body = f"""  %p = {BIG} parameter(0)
  %small = f32[] custom-call(%p), custom_call_target="sum"
  %q = {BIG} parameter(1)
  %a = {BIG} sort(%q), dimensions={{0}}
  %s = f32[] custom-call(%a), custom_call_target="sum"
  %x = f32[] custom-call(%s, %small), custom_call_target="add"
  ROOT %r = {BIG} broadcast(%x), dimensions={{}}
"""
    assert device(lives(body)).temp_bytes // MIB == 0  # the result's own memory is free until then
    aliased = lives(body, header=", input_output_alias={ {}: (0, {}, may-alias) }")
    use = device(aliased)
    assert (use.argument_bytes, use.output_bytes, use.alias_bytes) == (2 * MIB, MIB, MIB)
    assert use.temp_bytes // MIB == 0
    kept = lives(body.replace("ROOT %r", "%late = f32[] custom-call(%p), custom_call_target=\"sum\"\n  ROOT %r"),
                 header=", input_output_alias={ {}: (0, {}, may-alias) }")  # fmt: skip
    assert device(kept).temp_bytes // MIB == 1


def test_what_a_loop_is_given_is_needed_until_the_loop_begins() -> None:
    live = lives(
        f"""  %p = {BIG} parameter(0)
  %zero = s32[] constant(0)
  %a = {BIG} sort(%p), dimensions={{0}}
  %init = (s32[], {BIG}, {BIG}) tuple(%zero, %a, %p)
  %q = {BIG} sort(%p), dimensions={{0}}
  %s = f32[] custom-call(%q), custom_call_target="sum"
  %w = (s32[], {BIG}, {BIG}) while(%init), condition=%cond, body=%body
  %end = {BIG} get-tuple-element(%w), index=1
  ROOT %r = f32[] custom-call(%end, %s), custom_call_target="sum"
""",
        before=LOOP,
    )
    (given,) = live.values_of("main", Operand("a"))
    assert live.instruction_at(given.last).name == "t"
    assert len(live.values_of("main", Operand("a"))[0].buffer.spans) == 1


def test_a_root_that_is_not_the_last_instruction_lives_to_the_end() -> None:
    live = lives(f"""  %p = {BIG} parameter(0)
  ROOT %r = {BIG} sort(%p), dimensions={{0}}
  %a = {BIG} sort(%p), dimensions={{0}}
  %s = f32[] custom-call(%a), custom_call_target="sum"
""")
    (result,), (argument,) = live.values_of("main", Operand("r")), live.values_of("main", Operand("p"))
    assert (result.first, result.last) == (1, 4)
    assert argument.last == 4  # it is not donated: nothing else may be written there
    assert device(live).temp_bytes // MIB == 1  # a, beside the result


def test_a_matrix_product_that_adds_is_written_over_what_it_adds_to() -> None:
    def temporaries(beta: int) -> int:
        config = f'{{"gemm_backend_config":{{"beta":{beta}}}}}'
        live = lives(f"""  %p = {BIG} parameter(0)
  %c = {BIG} sort(%p), dimensions={{0}}
  %m = ({BIG}, s8[256]{{0}}) custom-call(%p, %p, %c), custom_call_target="__cublas$lt$matmul", backend_config={config}
  %d = {BIG} get-tuple-element(%m), index=0
  ROOT %r = f32[] custom-call(%d), custom_call_target="sum"
""")
        return device(live).temp_bytes // MIB

    assert (temporaries(1), temporaries(0)) == (1, 2)


def test_what_is_written_over_each_other_lies_at_one_place() -> None:
    """Write the second of three buffers over the first. Without that, best fit would put it elsewhere."""
    first = Buffer(ORIGIN, 1024, 0, ((0, 4),), -1, False, False, chain=7)
    second = Buffer(ORIGIN, 1024, 0, ((5, 9),), -1, False, False, chain=7)
    other = Buffer(ORIGIN, 1024, 0, ((3, 6),), -1, False, False)
    (joined_chunk, alone) = sorted(packing._chunks([first, other, second]), key=lambda chunk: chunk.spans)
    assert (joined_chunk.spans, joined_chunk.first_length, alone.spans) == (((0, 9),), 4, ((3, 6),))
    assert packing._packed([first, other, second], 2048) == 2048


def test_a_chain_of_kernels_that_write_over_their_operands_needs_memory_once() -> None:
    live = lives(f"""  %p = {BIG} parameter(0)
  %a = {BIG} sort(%p), dimensions={{0}}
  %b = {BIG} negate(%a)
  %c = {BIG} exponential(%b)
  ROOT %r = f32[] custom-call(%c), custom_call_target="sum"
""")
    chains = {live.values_of("main", Operand(name))[0].buffer.chain for name in "abc"}
    assert len(chains) == 1
    assert chains != {-1}
    assert device(live).temp_bytes == MIB


def test_the_smallest_hole_that_fits_is_filled() -> None:
    def at(*bounds: tuple[int, int], size: int) -> int:
        offsets, ends = (np.array([pair[side] for pair in bounds], dtype=np.int64) for side in (0, 1))
        return best_fit(offsets, ends, size)

    assert at((1000, 1100), (1300, 1400), (2000, 2100), size=150) == 1100  # holes of 1000, 200 and 600
    assert at((1000, 1100), (1300, 1400), (2000, 2100), size=300) == 1400
    assert at((1000, 1100), (1300, 1400), (2000, 2100), size=1001) == 2100
    assert at((0, 2000), (1000, 1100), (2500, 2600), size=300) == 2000  # one that lies inside another makes no hole


def test_branches_do_not_need_their_memory_at_once() -> None:
    branch = '%{n} (x: f32[]) -> f32[] {{\n  %x{n} = {big} parameter(0)\n  %y{n} = {big} sort(%x{n}), dimensions={{0}}\n  ROOT %z{n} = f32[] custom-call(%y{n}), custom_call_target="sum"\n}}\n\n'  # noqa: E501
    live = lives(
        f"""  %p = {BIG} parameter(0)
  %which = s32[] constant(1)
  ROOT %r = f32[] conditional(%which, %p, %p), branch_computations={{%one, %two}}
""",
        before=branch.format(n="one", big=BIG) + branch.format(n="two", big=BIG),
    )
    assert device(live).temp_bytes // MIB == 1


@pytest.mark.parametrize(
    ("body", "complaint"),
    [
        ("  ROOT %r = f32[] negate(%nothing)\n", "nothing in main is not defined before its use"),
        ("  %p = f32[] parameter(0)\n  ROOT %r = f32[] get-tuple-element(%p), index=3\n", "no element 3"),
        ("  ROOT %r = f32[] call(), to_apply=%main\n", "calls itself"),
        ("  ROOT %r = f32[] call(), to_apply=%gone\n", "not in the module"),
    ],
)
def test_a_module_that_cannot_be_followed_is_refused(body: str, complaint: str) -> None:
    with pytest.raises(HloParseError, match=complaint):
        lives(body)


# ---- packing, against brute force

SPANS = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 8)), min_size=1, max_size=3)


def joined(spans: Sequence[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    times = sorted({time for first, length in spans for time in range(first, first + length + 1)})
    found: list[tuple[int, int]] = []
    for time in times:
        if found and found[-1][1] == time - 1:
            found[-1] = (found[-1][0], time)
        else:
            found.append((time, time))
    return tuple(found)


@st.composite
def buffers(draw: st.DrawFn) -> list[Buffer]:
    found = []
    for spans, units, kind in draw(st.lists(st.tuples(SPANS, st.integers(1, 40), st.integers(0, 5)), max_size=25)):
        parameter, donated, result = {0: (0, True, True), 1: (1, False, False), 2: (-1, False, True)}.get(
            kind, (-1, False, False)
        )
        found.append(Buffer(ORIGIN, units * 256, 0, joined(spans), parameter, donated, result))
    return found


@given(buffers())
def test_the_peak_is_the_most_that_lives_at_one_time(some: list[Buffer]) -> None:
    held = [sum(b.bytes for b in some if any(f <= time <= e for f, e in b.spans)) for time in range(45)]
    assert peak(some)[0] == max(held)
    assert held[peak(some)[1]] == max(held)


@given(buffers())
def test_a_packing_is_no_smaller_than_the_peak_and_no_larger_than_everything_side_by_side(some: list[Buffer]) -> None:
    size = packing._packed(some, peak(some)[0])
    assert peak(some)[0] <= size <= sum(b.bytes for b in some)


@given(buffers())
def test_what_is_put_beside_arguments_is_never_there_together(some: list[Buffer]) -> None:
    """Compare with a plain search: each buffer goes into the newest allocation that is free at all its times."""
    taken: list[set[int]] = []
    left = []
    for buffer in sorted(some, key=lambda b: (-b.bytes, not b.is_result)):
        moments = {time for first, last in buffer.spans for time in range(first, last + 1)}
        if buffer.parameter >= 0 and not buffer.is_donated:
            continue
        if buffer.parameter >= 0 or buffer.is_result:
            taken.append(moments)
            continue
        free = [place for place in taken if not place & moments]
        if free:
            free[-1].update(moments)
        else:
            left.append(buffer)
    assert packing._beside_arguments(some) == left
