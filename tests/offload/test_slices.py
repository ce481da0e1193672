"""The check of slices: is a copied slice where its index says?"""

from __future__ import annotations

import importlib.metadata
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hloinspect.hlo import load_module, parse_text
from hloinspect.offload.program import build_program
from hloinspect.offload.slices import SliceCheck, check_slices
from tests.support.jax_versions import since
from tests.support.offload_samples import (
    DS_BODY,
    DS_START,
    DUS_BODY,
    DUS_START,
    checks_of,
    module_text,
    start,
    with_config,
)

ROW = 64 * 4
"""Bytes of a row of the f32[8,64] stack in host memory that the small modules slice."""


def unchecked(text: str) -> list[tuple[str, str]]:
    """Return the slices of host memory that could not be checked, with the reason. None of them is also checked."""
    found = check_slices(build_program(parse_text(text)))
    assert found.checks == ()
    assert bool(found.gap) == bool(found.unchecked)
    return [(each.instruction, each.why) for each in found.unchecked]


# ---- small loops


def config(offset: object, stride: object, loop_index: object = "0", linear: bool = False) -> str:
    numbers = {"byte_offset": offset, "byte_stride": stride}
    where = {} if loop_index is None else {"loop_index": loop_index}
    fields = {**where, "byte_offset": "0", "byte_stride": "0", "linear": numbers} if linear else {**where, **numbers}
    return f', backend_config={{"dynamic_slice_config":{json.dumps(fields)}}}'


STATE = "(s32[], f32[8,64]{1,0:S(5)}, s32[])"
NAMES = "(state: (s32[], f32[8,64], s32[])) -> (s32[], f32[8,64], s32[])"


def loop(index: str, body: str, *, moves: str = DS_START, iterations: int = 8, call: str = "") -> str:
    """Return a while whose body copies a row of a stack in host memory.

    ``index`` are lines that make %at from the iteration %i and a number %any that the program gets as an argument.
    """
    row = "%row = f32[1,64]{1,0} broadcast(%z), dimensions={}" if moves == DUS_START else ""
    operands = ("%stack", "%row", "%at", "%z") if row else ("%stack", "%at", "%z")
    result = "f32[8,64]{1,0:S(5)}" if row else "f32[1,64]{1,0}"
    copy = call or f"%move = {start(moves, *operands)}\n%moved = {result} fusion-done(%move)"
    lines = f"""
        %state = {STATE} parameter(0)
        %i = s32[] get-tuple-element(%state), index=0
        %stack = f32[8,64]{{1,0:S(5)}} get-tuple-element(%state), index=1
        %any = s32[] get-tuple-element(%state), index=2
        %z = s32[] constant(0)
        %seven = s32[] constant(7)
        {index}
        {row}
        {copy}
        %one = s32[] constant(1)
        %next = s32[] add(%i, %one)
        ROOT %again = {STATE} tuple(%next, %stack, %any)
    """
    inside = "\n".join("  " + line.strip() for line in lines.splitlines() if line.strip())
    entry = f"""
        %kept = f32[8,64]{{1,0:S(5)}} parameter(0)
        %given = s32[] parameter(1)
        %zero = s32[] constant(0)
        %init = {STATE} tuple(%zero, %kept, %given)
        %loop = {STATE} while(%init), condition=%condition, body=%body
        ROOT %count = s32[] get-tuple-element(%loop), index=0
    """
    condition = f"""
%condition {NAMES.partition(" -> ")[0]} -> pred[] {{
  %state.1 = {STATE} parameter(0)
  %i.1 = s32[] get-tuple-element(%state.1), index=0
  %limit = s32[] constant({iterations})
  ROOT %less = pred[] compare(%i.1, %limit), direction=LT
}}
"""
    return module_text(entry.strip(), f"{body}\n%body {NAMES} {{\n{inside}\n}}\n{condition}")


def only_check(text: str) -> SliceCheck:
    (check,) = checks_of(parse_text(text))
    return check


BACKWARD = "%at = s32[] subtract(%seven, %i)"
FORWARD = "%at = s32[] add(%i, %z)"


@pytest.mark.parametrize("linear", [False, True])
@pytest.mark.parametrize(
    ("index", "offset", "stride", "right"),
    [
        (BACKWARD, 7 * ROW, -ROW, True),
        (BACKWARD, 0, ROW, False),
        (BACKWARD, 6 * ROW, -ROW, False),
        (FORWARD, 0, ROW, True),
        (FORWARD, 0, -ROW, False),
        ("%at = s32[] add(%i, %seven)", 7 * ROW, 0, True),  # clamped to the last row
        ("%at = s32[] add(%i, %seven)", 7 * ROW, ROW, False),
        ("%minus = s32[] constant(-1)\n%at = s32[] add(%i, %minus)", 0, 0, True),  # -1 is clamped to 0
        ("%minus = s32[] constant(-1)\n%at = s32[] add(%i, %minus)", -ROW, ROW, False),
        ("%at = s32[] multiply(%i, %seven)", 0, 7 * ROW, True),
    ],
)
def test_a_slice_is_right_where_its_configuration_is_its_index(
    index: str, offset: int, stride: int, right: bool, linear: bool
) -> None:
    body = with_config(DS_BODY, config(str(offset), str(stride), linear=linear))
    check = only_check(loop(index, body))
    assert check.on_host
    assert check.instruction == "move"
    assert check.emitted == (offset, offset + stride)
    assert check.agrees == right


@given(st.integers(-9, 9), st.integers(-9, 9), st.integers(-9, 9), st.integers(-9, 9))
def test_any_fixed_step_is_right_exactly_where_both_iterations_agree(a: int, b: int, offset: int, stride: int) -> None:
    index = f"%a = s32[] constant({a})\n%b = s32[] constant({b})\n%m = s32[] multiply(%i, %b)\n%at = s32[] add(%a, %m)"
    check = only_check(loop(index, with_config(DS_BODY, config(str(offset * ROW), str(stride * ROW)))))
    rows = [min(max(a + b * iteration, 0), 7) for iteration in (0, 1)]
    assert check.by_index == tuple(row * ROW for row in rows)
    assert check.agrees == (rows == [offset, offset + stride])


def test_what_an_iteration_writes_is_checked_like_what_it_reads() -> None:
    body = with_config(DUS_BODY, config(0, ROW))
    assert only_check(loop(FORWARD, body, moves=DUS_START)).agrees
    assert not only_check(loop(BACKWARD, body, moves=DUS_START)).agrees


def test_strides_follow_the_layout() -> None:
    body = with_config(DS_BODY, config(0, 4)).replace("f32[8,64]{1,0:S(5)}", "f32[8,64]{0,1:S(5)}")
    check = only_check(loop(FORWARD, body))
    assert check.by_index == check.emitted == (0, 4)


def test_a_loop_of_one_iteration_has_one_offset() -> None:
    check = only_check(loop(FORWARD, with_config(DS_BODY, config(0, 12345)), iterations=1))
    assert check.by_index == check.emitted == (0,)


def test_an_index_that_is_data_cannot_be_checked() -> None:
    body = with_config(DS_BODY, config(0, ROW))
    assert unchecked(loop("%at = s32[] add(%i, %any)", body)) == [("move", "index")]
    in_device_memory = with_config(DS_BODY, config(0, ROW)).replace(":S(5)", "")
    assert unchecked(loop("%at = s32[] add(%i, %any)", in_device_memory).replace(":S(5)", "")) == []


@pytest.mark.parametrize("loop_index", ["1", 1, "2", "x"])
def test_a_configuration_for_an_outer_loop_is_not_checked_against_the_inner_one(loop_index: object) -> None:
    assert unchecked(loop(FORWARD, with_config(DS_BODY, config(0, 0, loop_index)))) == [("move", "configuration")]


def test_a_loop_that_runs_unknown_times_is_wrong_only_where_its_first_iteration_is() -> None:
    def checked(offset: int, stride: int) -> tuple[list[bool], list[str]]:
        text = loop(BACKWARD, with_config(DS_BODY, config(offset * ROW, stride * ROW)))
        text = text.replace("s32[] constant(8)", 's32[] custom-call(), custom_call_target="roll"')
        found = check_slices(build_program(parse_text(text)))
        return [check.agrees for check in found.checks], [each.why for each in found.unchecked]

    assert checked(7, -1) == ([True], [])
    assert checked(0, 1) == ([False], [])
    assert checked(7, 1) == ([], ["iterations"])


@pytest.mark.parametrize(
    "damaged",
    [
        ', backend_config={"dynamic_slice_config":[1]}',
        ', backend_config={"dynamic_slice_config":"x"}',
        ', backend_config={"dynamic_slice_config":',
    ],
)
def test_a_configuration_that_is_none_is_passed_over(damaged: str) -> None:
    assert unchecked(loop(FORWARD, with_config(DS_BODY, damaged))) == []


@pytest.mark.parametrize("damaged", [config("many", ROW), config(0, None), config([], {}), config("1" * 30, 0)])
def test_a_configuration_that_names_no_offset_leaves_its_slice_unchecked(damaged: str) -> None:
    assert unchecked(loop(FORWARD, with_config(DS_BODY, damaged))) == [("move", "configuration")]


def test_a_fusion_that_also_computes_is_no_copy() -> None:
    body = with_config(DS_BODY, config(0, ROW)).replace("ROOT %ds", "%ds").replace(
        "\n}", "\n  ROOT %negated = f32[1,64]{1,0} negate(%ds)\n}"
    )  # fmt: skip
    assert "negate" in body
    assert unchecked(loop(BACKWARD, body)) == []


def test_the_unsugared_spelling_of_dumps_is_checked_too() -> None:
    wrapper = """
%async_computation (a: f32[8,64], b: s32[], c: s32[]) -> f32[1,64] {
  %a = f32[8,64]{1,0:S(5)} parameter(0)
  %b = s32[] parameter(1)
  %c = s32[] parameter(2)
  ROOT %fused = f32[1,64]{1,0} fusion(%a, %b, %c), kind=kLoop, calls=%wrapped_ds
}
"""
    call = start(DS_START, "%stack", "%at", "%z").replace("fusion-start", "async-start")
    call = "%move = " + call.replace("kind=kLoop, calls=%wrapped_ds", "calls=%async_computation")
    for offset, stride, right in ((7 * ROW, -ROW, True), (0, ROW, False)):
        check = only_check(loop(BACKWARD, with_config(DS_BODY, config(offset, stride)) + wrapper, call=call))
        assert (check.instruction, check.agrees) == ("move", right)


def test_a_slice_in_a_computation_that_the_loop_calls_is_checked() -> None:
    """Cover command buffers, which were computations of their own until jax 0.8."""
    called = f"""
%command_buffer (s: f32[8,64], n: s32[]) -> f32[1,64] {{
  %s = f32[8,64]{{1,0:S(5)}} parameter(0)
  %n = s32[] parameter(1)
  %none = s32[] constant(0)
  %move = {start(DS_START, "%s", "%n", "%none")}
  ROOT %moved = f32[1,64]{{1,0}} fusion-done(%move)
}}
"""
    call = "%buffer = f32[1,64]{1,0} call(%stack, %at), to_apply=%command_buffer"
    check = only_check(loop(BACKWARD, with_config(DS_BODY, config(0, ROW)) + called, call=call))
    assert (check.computation, check.by_index) == ("command_buffer", (7 * ROW, 6 * ROW))
    assert not check.agrees


def test_a_slice_behind_calls_that_use_their_arguments_twice_is_checked() -> None:
    """Follow calls that each pass on the larger and the smaller of two numbers: without a cache, 2**50 evaluations."""
    chain = f"""
%last (s: f32[8,64], n: s32[], m: s32[]) -> f32[1,64] {{
  %s = f32[8,64]{{1,0:S(5)}} parameter(0)
  %n = s32[] parameter(1)
  %none = s32[] constant(0)
  %move = {start(DS_START, "%s", "%n", "%none")}
  ROOT %moved = f32[1,64]{{1,0}} fusion-done(%move)
}}
"""
    name = "last"
    for level in range(50):
        chain += f"""
%level{level} (s: f32[8,64], n: s32[], m: s32[]) -> f32[1,64] {{
  %s{level} = f32[8,64]{{1,0:S(5)}} parameter(0)
  %n{level} = s32[] parameter(1)
  %m{level} = s32[] parameter(2)
  %larger{level} = s32[] maximum(%n{level}, %m{level})
  %smaller{level} = s32[] minimum(%n{level}, %m{level})
  ROOT %r{level} = f32[1,64]{{1,0}} call(%s{level}, %larger{level}, %smaller{level}), to_apply=%{name}
}}
"""
        name = f"level{level}"
    call = f"%buffer = f32[1,64]{{1,0}} call(%stack, %at, %at), to_apply=%{name}"
    check = only_check(loop(BACKWARD, with_config(DS_BODY, config(0, ROW)) + chain, call=call))
    assert (check.computation, check.by_index) == ("last", (7 * ROW, 6 * ROW))


def test_the_inner_of_nested_loops_runs_within_the_first_iteration_of_the_outer_one() -> None:
    inner = loop("%at = s32[] add(%i, %any)", with_config(DS_BODY, config(2 * ROW, ROW)))
    text = inner.replace("ENTRY %main () -> f32[]", f"%outer_body {NAMES}")
    text = text.replace("%kept = f32[8,64]{1,0:S(5)} parameter(0)", f"%outer = {STATE} parameter(0)\n"
        "  %kept = f32[8,64]{1,0:S(5)} get-tuple-element(%outer), index=1")  # fmt: skip
    text = text.replace("%given = s32[] parameter(1)", "%j = s32[] get-tuple-element(%outer), index=0\n"
        "  %two = s32[] constant(2)\n  %given = s32[] add(%j, %two)")  # fmt: skip
    text = text.replace("ROOT %count = s32[] get-tuple-element(%loop), index=0", "%step = s32[] constant(1)\n"
        f"  %later = s32[] add(%j, %step)\n  ROOT %out = {STATE} tuple(%later, %kept, %given)")  # fmt: skip
    text += f"""
%outer_condition {NAMES.partition(" -> ")[0]} -> pred[] {{
  %state.2 = {STATE} parameter(0)
  %j.2 = s32[] get-tuple-element(%state.2), index=0
  %limit.2 = s32[] constant(3)
  ROOT %less.2 = pred[] compare(%j.2, %limit.2), direction=LT
}}

ENTRY %main () -> f32[] {{
  %memory = f32[8,64]{{1,0:S(5)}} parameter(0)
  %none = s32[] constant(0)
  %first = {STATE} tuple(%none, %memory, %none)
  ROOT %all = {STATE} while(%first), condition=%outer_condition, body=%outer_body
}}
"""
    check = only_check(text)
    assert check.by_index == (2 * ROW, 3 * ROW)
    assert check.agrees


# ---- the tables of 0.6 to 0.10.1


def memcpy(source: list[object], destination: list[object], depends: bool = True) -> str:
    fields = {"depends_on_loop": depends, "src_offset_bytes": source, "dst_offset_bytes": destination}
    found = {"fusion_backend_config": {"kind": "__dynamic_memcpy", "dynamic_memcpy_config": fields}}
    return f", backend_config={json.dumps(found)}"


def with_table(text: str, table: str) -> str:
    return text.replace("calls=%wrapped_ds", f"calls=%wrapped_ds{table}").replace(
        "calls=%wrapped_dus", f"calls=%wrapped_dus{table}"
    )


def test_tables_of_offsets_are_checked_by_direction() -> None:
    forward, backward = (
        [str(iteration * ROW) for iteration in range(8)],
        [str((7 - iteration) * ROW) for iteration in range(8)],
    )
    zeros: list[object] = ["0"] * 8
    read = loop(BACKWARD, with_config(DS_BODY))
    written = loop(BACKWARD, with_config(DUS_BODY), moves=DUS_START)
    assert only_check(with_table(read, memcpy(backward, zeros))).agrees
    assert not only_check(with_table(read, memcpy(forward, zeros))).agrees
    assert only_check(with_table(written, memcpy(zeros, backward))).agrees
    assert not only_check(with_table(written, memcpy(zeros, forward))).agrees


@pytest.mark.parametrize(
    "table",
    [
        memcpy(["0"], ["0"]),
        memcpy([], []),
        memcpy(["a", "b"], ["0", "0"]),
        memcpy(["0"] * 8, ["0"] * 8, depends=False),
    ],
    ids=["too short", "empty", "no numbers", "not of the loop"],
)
def test_a_table_that_does_not_say_leaves_its_slice_unchecked(table: str) -> None:
    text = loop(BACKWARD, with_config(DS_BODY))
    assert unchecked(with_table(text, table)) == [("move", "configuration")]
    assert unchecked(text) == []


def test_a_table_outside_of_loops_leaves_its_slice_unchecked() -> None:
    lines = f"""%stack = f32[8,64]{{1,0:S(5)}} parameter(0)
        %z = s32[] constant(0)
        %move = {start(DS_START, "%stack", "%z", "%z")}
        ROOT %moved = f32[1,64]{{1,0}} fusion-done(%move)"""
    text = module_text(lines, with_config(DS_BODY))
    assert unchecked(with_table(text, memcpy(["0"], ["0"]))) == [("move", "configuration")]


# ---- outside of loops


def outside(index: str, configuration: str) -> str:
    lines = f"""%stack = f32[8,64]{{1,0:S(5)}} parameter(0)
        %given = s32[] parameter(1)
        %z = s32[] constant(0)
        {index}
        %move = {start(DS_START, "%stack", "%at", "%z")}
        ROOT %moved = f32[1,64]{{1,0}} fusion-done(%move)"""
    return module_text(lines, with_config(DS_BODY, configuration))


def test_a_fixed_slice_outside_of_loops_is_checked_for_clamping() -> None:
    """Cover openxla/xla issue 49120: the offset of an index that is out of bounds was written without clamping."""
    right = only_check(outside("%at = s32[] constant(9)", config(7 * ROW, 0, None)))
    beyond = only_check(outside("%at = s32[] constant(9)", config(9 * ROW, 0, None)))
    assert right.agrees
    assert (beyond.by_index, beyond.emitted, beyond.agrees) == ((7 * ROW,), (9 * ROW,), False)


def test_outside_of_loops_only_what_is_fixed_is_checked() -> None:
    assert unchecked(outside("%at = s32[] add(%given, %z)", config(0, 0, None))) == [("move", "index")]
    left_behind = outside("%at = s32[] constant(0)", config(0, ROW, "0"))  # by a loop that is gone
    assert unchecked(left_behind) == [("move", "configuration")]


def test_a_loop_without_iterations_has_nothing_to_check() -> None:
    assert unchecked(loop(BACKWARD, with_config(DS_BODY, config(0, ROW)), iterations=0)) == []


@pytest.mark.slow
@since(10, "XLA notes no offsets at a slice")
def test_the_update_out_of_bounds_of_issue_49120_is_found_where_this_jax_has_it(
    tmp_path: Path, hloinspect: Any
) -> None:
    pytest.importorskip("jax_cuda13_plugin")
    step = tmp_path / "step.py"
    step.write_text(
        "import jax, jax.numpy as jnp\n"
        "def update(x):\n"
        "    rows = x[:, 94]\n"
        "    new = jax.lax.dynamic_slice(rows, [0, 0, 0], (1, 1, 8)) * 3 - 1\n"
        "    return jax.lax.dynamic_update_slice(rows, new, [1, 1, 31])\n"
        "def step():\n"
        "    return jax.jit(update).lower(jax.ShapeDtypeStruct((3, 127, 1, 33), jnp.int32))\n"
    )
    done = hloinspect("compile", f"{step}:step", "--target", "h100", "-o", str(tmp_path / "out"))
    assert done.returncode == 0, done.stderr
    (check,) = checks_of(load_module(tmp_path / "out" / "module.hlo.pb"))
    assert check.by_index == ((33 + 25) * 4,)  # row 1, column 31 clamped to 25
    assert check.emitted in {((33 + 25) * 4,), ((33 + 31) * 4,)}
    known = {"0.10.2": False, "0.12.0.1": True}
    assert check.agrees == known.get(importlib.metadata.version("jax"), check.agrees)
