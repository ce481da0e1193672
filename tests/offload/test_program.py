"""Executions of transfers, and round trips, through loops, calls, conditionals and tuples."""

from __future__ import annotations

import pytest

from hloinspect.errors import HloParseError
from hloinspect.hlo.load import load_module_bytes
from hloinspect.offload.transfers import Offload
from tests.support.offload_samples import D2H, GPU, H2D, offload_in, only

DEVICE, HOST = "f32[8,64]{1,0}", "f32[8,64]{1,0:S(5)}"
SEND = f"({HOST}, {DEVICE}, u32[]) copy-start"
FETCH = f"({DEVICE}, {HOST}, u32[]) copy-start"


def sending(name: str, kind: str = DEVICE) -> str:
    """Return a computation that copies its argument to the host and passes it on."""
    return f"""
%{name} (x: f32[8,64]) -> f32[8,64] {{
  %x.{name} = {kind} parameter(0)
  %s.{name} = {SEND}(%x.{name}){GPU}
  %d.{name} = {HOST} copy-done(%s.{name})
  ROOT %k.{name} = {DEVICE} negate(%x.{name})
}}
"""


def always(name: str, kind: str) -> str:
    return f"""
%{name} (q: f32[]) -> pred[] {{
  %q.{name} = {kind} parameter(0)
  ROOT %true.{name} = pred[] constant(true)
}}
"""


def iterations(count: int) -> str:
    return f', backend_config={{"known_trip_count":{{"n":"{count}"}}}}'


# ---- executions


def test_nested_loops_multiply_executions_and_deepen() -> None:
    inner = sending("inner") + always("c", DEVICE)
    middle = f"""
%middle (y: f32[8,64]) -> f32[8,64] {{
  %y = {DEVICE} parameter(0)
  ROOT %w2 = {DEVICE} while(%y), condition=%c, body=%inner{iterations(5)}
}}
"""
    offload = offload_in(
        f"%a = {DEVICE} parameter(0)\nROOT %w1 = {DEVICE} while(%a), condition=%c, body=%middle{iterations(3)}",
        inner + middle,
    )
    transfer = only(offload)
    assert (transfer.executions, transfer.loop_depth, transfer.bytes_per_step) == (15, 2, 15 * 2048)
    assert offload.program.executions["c"] == 4 + 3 * 6  # a condition runs once more than it holds
    assert not transfer.conditional


def test_a_loop_without_iterations_moves_nothing() -> None:
    body = f"%a = {DEVICE} parameter(0)\nROOT %w = {DEVICE} while(%a), condition=%c, body=%b{iterations(0)}"
    offload = offload_in(body, sending("b") + always("c", DEVICE))
    assert (only(offload).executions, offload.bytes_per_step(D2H)) == (0, 0)


def test_a_loop_of_unknown_length_is_counted_once_and_named() -> None:
    offload = offload_in(
        f"%a = {DEVICE} parameter(0)\nROOT %w = {DEVICE} while(%a), condition=%c, body=%b",
        sending("b") + always("c", DEVICE),
    )
    assert only(offload).executions == 1
    assert offload.program.unknown_trip_counts == ("w",)


def test_a_computation_called_from_several_places_runs_the_sum() -> None:
    """Read command buffers of JAX 0.8 and earlier, which are calls."""
    loop = f"""
%loop (y: f32[8,64]) -> f32[8,64] {{
  %y = {DEVICE} parameter(0)
  %one = {DEVICE} call(%y), to_apply=%command_buffer
  ROOT %two = {DEVICE} call(%one), to_apply=%command_buffer
}}
"""
    offload = offload_in(
        f"""%a = {DEVICE} parameter(0)
        %w = {DEVICE} while(%a), condition=%c, body=%loop{iterations(7)}
        ROOT %r = {DEVICE} call(%w), to_apply=%command_buffer""",
        sending("command_buffer") + loop + always("c", DEVICE),
    )
    assert (only(offload).executions, only(offload).loop_depth) == (15, 1)


@pytest.mark.parametrize(
    "spelling", ["branch_computations={%yes, %no}", "true_computation=%yes, false_computation=%no"]
)
def test_a_transfer_in_a_branch_is_counted_as_taken_and_marked(spelling: str) -> None:
    no = f"%no (n: f32[8,64]) -> f32[8,64] {{\n  ROOT %n = {DEVICE} parameter(0)\n}}\n"
    offload = offload_in(
        f"""%a = {DEVICE} parameter(0)
        %p = pred[] parameter(1)
        ROOT %r = {DEVICE} conditional(%p, %a, %a), {spelling}""",
        sending("yes") + no,
    )
    assert (only(offload).executions, only(offload).conditional) == (1, True)
    assert offload.program.conditional == {"yes", "no"}


def test_what_a_branch_calls_is_conditional_too() -> None:
    yes = f"%yes (y: f32[8,64]) -> f32[8,64] {{\n  %y = {DEVICE} parameter(0)\n"
    yes += f"  ROOT %call = {DEVICE} call(%y), to_apply=%deep\n}}\n"
    offload = offload_in(
        f"%a = {DEVICE} parameter(0)\n%p = s32[] parameter(1)\n"
        f"ROOT %r = {DEVICE} conditional(%p, %a, %a), branch_computations={{%yes, %yes}}",
        sending("deep") + yes,
    )
    assert only(offload).conditional
    assert only(offload).executions == 2  # two branches, each counted as taken


def test_computations_that_nothing_calls_count_for_nothing() -> None:
    offload = offload_in(f"ROOT %a = {DEVICE} parameter(0)", sending("dead"))
    assert offload.transfers == ()
    assert offload.program.order == ("main",)


def test_callers_come_before_callees() -> None:
    text = sending("b") + always("c", DEVICE)
    program = offload_in(
        f"%a = {DEVICE} parameter(0)\nROOT %w = {DEVICE} while(%a), condition=%c, body=%b", text
    ).program
    assert program.order[0] == "main"
    assert set(program.order) == {"main", "b", "c"}


def test_calls_in_a_circle_are_refused() -> None:
    text = f"""HloModule m, is_scheduled=true

%one (a: f32[8,64]) -> f32[8,64] {{
  %a = {DEVICE} parameter(0)
  ROOT %r1 = {DEVICE} call(%a), to_apply=%two
}}

%two (b: f32[8,64]) -> f32[8,64] {{
  %b = {DEVICE} parameter(0)
  ROOT %r2 = {DEVICE} call(%b), to_apply=%one
}}

ENTRY %main (x: f32[8,64]) -> f32[8,64] {{
  %x = {DEVICE} parameter(0)
  ROOT %r = {DEVICE} call(%x), to_apply=%one
}}
"""
    with pytest.raises(HloParseError, match=r"calls itself|in a circle"):
        load_module_bytes(text.encode())


def test_a_call_of_what_is_not_there_is_refused_with_its_name() -> None:
    with pytest.raises(HloParseError, match=r"r calls gone, which is not in the module"):
        offload_in(f"%x = {DEVICE} parameter(0)\nROOT %r = {DEVICE} call(%x), to_apply=%gone")


def nested(depth: int) -> Offload:
    """Return a transfer inside ``depth`` loops of two iterations each."""
    text = sending(f"b{depth}") + always("c", DEVICE)
    for number, name in enumerate(f"b{n}" for n in range(depth)):
        text += f"%{name} (y: f32[]) -> f32[] {{\n  %y{number} = {DEVICE} parameter(0)\n"
        text += (
            f"  ROOT %w{number} = {DEVICE} while(%y{number}), condition=%c, body=%b{number + 1}{iterations(2)}\n}}\n"
        )
    return offload_in(f"%a = {DEVICE} parameter(0)\nROOT %r = {DEVICE} call(%a), to_apply=%b0", text)


def test_deeply_nested_loops_give_exact_counts_and_absurd_ones_are_refused() -> None:
    assert only(nested(30)).executions == 2**30
    with pytest.raises(HloParseError, match="would run more than"):
        nested(150)


def called_twice(depth: int, spelling: str) -> str:
    """Return computations that each run the next one twice: the last does nothing."""
    text = always("c", DEVICE) + f"%d{depth} (y: f32[]) -> f32[] {{\n  ROOT %y{depth} = {DEVICE} parameter(0)\n}}\n"
    for n in range(depth):
        text += f"%d{n} (y: f32[]) -> f32[] {{\n  %y{n} = {DEVICE} parameter(0)\n  %p{n} = pred[] constant(true)\n"
        first, second = (
            spelling.format(f"%{x}{n}", f"%d{n + 1}", f"%p{n}").replace("ITERATIONS", iterations(1)) for x in "yz"
        )
        text += f"  %z{n} = {DEVICE} {first}\n  ROOT %w{n} = {DEVICE} {second}\n}}\n"
    return text


@pytest.mark.parametrize(
    "spelling",
    [
        "call({0}), to_apply={1}",
        "conditional({2}, {0}, {0}), branch_computations={{{1}, {1}}}",
        "while({0}), condition=%c, body={1}ITERATIONS",
    ],
)
def test_calls_that_multiply_are_refused_where_a_walk_through_them_would_not_end(spelling: str) -> None:
    entry = f"%a = {DEVICE} parameter(0)\nROOT %r = {DEVICE} call(%a), to_apply=%d0"
    branches = 2 if "conditional" in spelling else 1
    assert offload_in(entry, called_twice(6, spelling)).program.executions["d6"] == (2 * branches) ** 6
    with pytest.raises(HloParseError, match="nested calls run more than"):
        offload_in(entry, called_twice(36 // branches, spelling))


# ---- round trips


def pairs(offload: Offload) -> list[tuple[str, str | None]]:
    """Return each transfer's start and that of its round trip."""
    names = {t.id: t.start for t in offload.transfers}
    return [(t.start, names.get(t.round_trip or 0)) for t in offload.transfers]


def test_a_copy_out_and_the_copy_back_are_a_round_trip() -> None:
    offload = offload_in(f"""
        %a = {DEVICE} parameter(0)
        %b = {DEVICE} parameter(1)
        %s1 = {SEND}(%a){GPU}
        %s2 = {SEND}(%b){GPU}
        %h1 = {HOST} copy-done(%s1)
        %h2 = {HOST} copy-done(%s2)
        %t = ({HOST}, ({HOST})) tuple(%h2, %nested)
        %nested = ({HOST}) tuple(%h1)
        %g = ({HOST}) get-tuple-element(%t), index=1
        %x1 = {HOST} get-tuple-element(%g), index=0
        %x2 = {HOST} get-tuple-element(%t), index=0
        %cast = {HOST} bitcast(%x1)
        %f2 = {FETCH}(%x2){GPU}
        %f1 = {FETCH}(%cast){GPU}
        %d2 = {DEVICE} copy-done(%f2)
        ROOT %d1 = {DEVICE} copy-done(%f1)
    """)
    assert pairs(offload) == [("s1", "f1"), ("s2", "f2"), ("f2", "s2"), ("f1", "s1")]


def test_a_tuple_may_be_unpacked_in_compact_spelling() -> None:
    offload = offload_in(f"""
        %a = {DEVICE} parameter(0)
        %s = {SEND}(%a){GPU}
        %h = {HOST} copy-done(%s)
        %t = (s32[], ({HOST}, s32[])) tuple(%a, %u)
        %u = ({HOST}, s32[]) tuple(%h, %a)
        %f = {FETCH}(%t#1#0){GPU}
        ROOT %d = {DEVICE} copy-done(%f)
    """)
    assert pairs(offload) == [("s", "f"), ("f", "s")]


STACK = "f32[8,64]{1,0:S(5)}"
ROW = "f32[1,64]{1,0}"
STATE = f"(s32[], {STACK}, {ROW})"
SCAN = f"""
%forward (p: f32[]) -> f32[] {{
  %p = {STATE} parameter(0)
  %i = s32[] get-tuple-element(%p), index=0
  %stack = {STACK} get-tuple-element(%p), index=1
  %row = {ROW} get-tuple-element(%p), index=2
  %new = {ROW} negate(%row)
  %us = (({STACK}, {ROW}, s32[], s32[]), {STACK}, u32[]) dynamic-update-slice-start(%stack, %new, %i, %i)
  %ud = {STACK} dynamic-update-slice-done(%us)
  ROOT %r = {STATE} tuple(%i, %ud, %new)
}}

%backward (q: f32[]) -> f32[] {{
  %q = {STATE} parameter(0)
  %j = s32[] get-tuple-element(%q), index=0
  %saved = {STACK} get-tuple-element(%q), index=1
  %ss = (({STACK}, s32[], s32[]), {ROW}, u32[]) dynamic-slice-start(%saved, %j, %j), dynamic_slice_sizes={{1,64}}
  %sd = {ROW} dynamic-slice-done(%ss)
  ROOT %r2 = {STATE} tuple(%j, %saved, %sd)
}}
"""
SCANNED = f"""
%buffer = {STACK} custom-call(), custom_call_target="AllocateBuffer"
%zero = s32[] constant(0)
%x = {ROW} parameter(0)
%t = {STATE} tuple(%zero, %buffer, %x)
%w1 = {STATE} while(%t), condition=%c, body=%forward{iterations(8)}
%kept = {STACK} get-tuple-element(%w1), index=1
%last = {ROW} get-tuple-element(%w1), index=2
%t2 = {STATE} tuple(%zero, %kept, %last)
ROOT %w2 = {STATE} while(%t2), condition=%c, body=%backward{iterations(8)}
"""


def test_a_stack_that_one_loop_writes_and_another_reads_is_a_round_trip() -> None:
    offload = offload_in(SCANNED, SCAN + always("c", STATE))
    assert pairs(offload) == [("us", "ss"), ("ss", "us")]
    assert [t.executions for t in offload.transfers] == [8, 8]


def test_a_stack_handed_through_a_call_is_still_the_same() -> None:
    through = f"%call (z: f32[8,64]) -> f32[8,64] {{\n  ROOT %z = {STACK} parameter(0)\n}}\n"
    body = SCANNED.replace("%t2 =", f"%passed = {STACK} call(%kept), to_apply=%call\n%t2 =")
    offload = offload_in(body.replace("(%zero, %kept", "(%zero, %passed"), SCAN + through + always("c", STATE))
    assert pairs(offload) == [("us", "ss"), ("ss", "us")]


@pytest.mark.parametrize("branch", [0, 1])
def test_a_stack_chosen_by_a_conditional_is_each_of_its_branches(branch: int) -> None:
    same = f"%same (z: f32[8,64]) -> f32[8,64] {{\n  ROOT %z = {STACK} parameter(0)\n}}\n"
    other = f"%other (y: f32[8,64]) -> f32[8,64] {{\n  ROOT %y = {STACK} parameter(0)\n}}\n"
    operands = "%kept, %buffer2" if branch == 0 else "%buffer2, %kept"
    chosen = f"%passed = {STACK} conditional(%zero, {operands}), branch_computations={{%same, %other}}\n"
    chosen = f'%buffer2 = {STACK} custom-call(), custom_call_target="AllocateBuffer"\n{chosen}%t2 ='
    body = SCANNED.replace("%t2 =", chosen).replace("(%zero, %kept, %last", "(%zero, %passed, %last")
    offload = offload_in(body, SCAN + same + other + always("c", STATE))
    assert pairs(offload) == [("us", "ss"), ("ss", "us")]


def test_two_stacks_of_one_shape_are_not_mixed_up() -> None:
    two = f"({STACK}, {STACK}, {ROW})"
    forward = f"""
%both (p: f32[]) -> f32[] {{
  %p = {two} parameter(0)
  %one = {STACK} get-tuple-element(%p), index=0
  %two = {STACK} get-tuple-element(%p), index=1
  %row = {ROW} get-tuple-element(%p), index=2
  %z = s32[] constant(0)
  %s1 = (({STACK}, {ROW}, s32[], s32[]), {STACK}, u32[]) dynamic-update-slice-start(%one, %row, %z, %z)
  %s2 = (({STACK}, {ROW}, s32[], s32[]), {STACK}, u32[]) dynamic-update-slice-start(%two, %row, %z, %z)
  %d1 = {STACK} dynamic-update-slice-done(%s1)
  %d2 = {STACK} dynamic-update-slice-done(%s2)
  ROOT %r = {two} tuple(%d1, %d2, %row)
}}
"""
    offload = offload_in(
        f"""%a = {STACK} custom-call(), custom_call_target="AllocateBuffer"
        %b = {STACK} custom-call(), custom_call_target="AllocateBuffer"
        %x = {ROW} parameter(0)
        %z = s32[] constant(0)
        %t = {two} tuple(%a, %b, %x)
        %w = {two} while(%t), condition=%c, body=%both{iterations(4)}
        %one = {STACK} get-tuple-element(%w), index=0
        %two = {STACK} get-tuple-element(%w), index=1
        %f2 = (({STACK}, s32[], s32[]), {ROW}, u32[]) dynamic-slice-start(%two, %z, %z), dynamic_slice_sizes={{1,64}}
        %f1 = (({STACK}, s32[], s32[]), {ROW}, u32[]) dynamic-slice-start(%one, %z, %z), dynamic_slice_sizes={{1,64}}
        %e2 = {ROW} dynamic-slice-done(%f2)
        ROOT %e1 = {ROW} dynamic-slice-done(%f1)""",
        forward + always("c", two),
    )
    partner = dict(pairs(offload))
    assert (partner["f1"], partner["f2"], partner["s1"], partner["s2"]) == ("s1", "s2", "f1", "f2")


def test_peeled_transfers_pair_with_peeled_ones() -> None:
    """Pair the peeled copies of a pipelined loop, before or after it on the same stack, with each other.

    Where the places of slices are unknown (their index is an argument of the step), equal numbers of executions pair.
    """
    peeled_out = (
        f"%us0 = (({STACK}, {ROW}, s32[], s32[]), {STACK}, u32[]) "
        f"dynamic-update-slice-start(%kept, %last, %zero, %zero)\n"
        f"%ud0 = {STACK} dynamic-update-slice-done(%us0)\n"
        f"%ss0 = (({STACK}, s32[], s32[]), {ROW}, u32[]) "
        f"dynamic-slice-start(%ud0, %zero, %zero), dynamic_slice_sizes={{1,64}}\n"
        f"%sd0 = {ROW} dynamic-slice-done(%ss0)\n"
    )
    body = SCANNED.replace("%t2 =", peeled_out + "%t2 =").replace("(%zero, %kept, %last)", "(%zero, %ud0, %sd0)")
    body = body.replace("%zero = s32[] constant(0)", "%zero = s32[] parameter(1)")
    offload = offload_in(body.replace('"n":"8"', '"n":"7"'), SCAN + always("c", STATE))
    partner = dict(pairs(offload))
    assert partner == {"us": "ss", "ss": "us", "us0": "ss0", "ss0": "us0"}


def test_an_argument_in_host_memory_that_is_only_fetched_has_no_round_trip() -> None:
    offload = offload_in(f"""
        %a = {HOST} parameter(0), metadata={{op_name="state.mu"}}
        %f = {FETCH}(%a){GPU}
        ROOT %d = {DEVICE} copy-done(%f)
    """)
    transfer = only(offload)
    assert (transfer.direction, transfer.round_trip, transfer.tensor.name) == (H2D, None, "state.mu")


def test_loops_on_one_stack_pair_by_their_iterations_and_not_by_their_order() -> None:
    """Write parts of one stack in two loops, and read them in two loops in the reverse order, with unknown places."""

    def copies(name: str, template: str) -> str:
        body = template.strip()
        for word in (
            "%p",
            "%q",
            "%i",
            "%j",
            "%stack",
            "%saved",
            "%row",
            "%new",
            "%us",
            "%ud",
            "%ss",
            "%sd",
            "%r2",
            "%r",
        ):
            body = body.replace(f"{word} ", f"{word}.{name} ").replace(f"{word},", f"{word}.{name},")
            body = body.replace(f"{word})", f"{word}.{name})")
        return body.replace("%forward", f"%{name}").replace("%backward", f"%{name}")

    forward, backward = SCAN.strip().split("\n\n")
    bodies = [copies("f3", forward), copies("f5", forward), copies("b5", backward), copies("b3", backward)]
    offload = offload_in(
        f"""%buffer = {STACK} custom-call(), custom_call_target="AllocateBuffer"
        %zero = s32[] parameter(1)
        %x = {ROW} parameter(0)
        %t = {STATE} tuple(%zero, %buffer, %x)
        %w1 = {STATE} while(%t), condition=%c, body=%f3{iterations(3)}
        %w2 = {STATE} while(%w1), condition=%c, body=%f5{iterations(5)}
        %w3 = {STATE} while(%w2), condition=%c, body=%b5{iterations(5)}
        ROOT %w4 = {STATE} while(%w3), condition=%c, body=%b3{iterations(3)}""",
        "\n\n".join([*bodies, always("c", STATE)]),
    )
    by_id = {t.id: t for t in offload.transfers}
    assert sorted((t.direction, t.executions) for t in offload.transfers) == [(D2H, 3), (D2H, 5), (H2D, 3), (H2D, 5)]
    assert [by_id[t.round_trip or 0].executions for t in offload.transfers] == [t.executions for t in offload.transfers]


def test_what_a_kernel_updates_in_host_memory_is_the_operand_of_the_same_shape() -> None:
    offload = offload_in(f"""
        %a = {DEVICE} parameter(0)
        %small = f32[4]{{0:S(5)}} parameter(1)
        %s = {SEND}(%a){GPU}
        %h = {HOST} copy-done(%s)
        %k = {HOST} fusion(%small, %h), kind=kLoop, calls=%f{GPU}
        %f = {FETCH}(%k){GPU}
        ROOT %d = {DEVICE} copy-done(%f)
    """)
    assert pairs(offload) == [("s", "f"), ("f", "s")]
    assert [copy.instruction for copy in offload.host_copies] == ["k"]
