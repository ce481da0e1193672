"""Values of scalar integers, and trip counts of loops, compared with the same loop in Python."""

from __future__ import annotations

import operator
from collections.abc import Callable

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from hloinspect.hlo.evaluate import evaluate, known_trip_count, no_arguments, trip_count
from hloinspect.hlo.load import load_module
from hloinspect.hlo.model import Operand
from tests.support.loop_samples import affine, loop_text, module_of, trips
from tests.support.places import CASES

COMPARE: dict[str, Callable[[int, int], bool]] = {
    "LT": operator.lt,
    "LE": operator.le,
    "GT": operator.gt,
    "GE": operator.ge,
    "EQ": operator.eq,
    "NE": operator.ne,
}


def counted(start: int, step: int, limit: int, direction: str, most: int, *, mirrored: bool = False) -> int | None:
    """Return the trip count of the same loop in Python, or None after ``most`` iterations or outside the range of
    s32."""
    holds = COMPARE[direction]
    value, iterations = start, 0
    while holds(*((limit, value) if mirrored else (value, limit))):
        value, iterations = value + step, iterations + 1
        if iterations > most or not -(1 << 31) <= value < 1 << 31:
            return None
    return iterations


SMALL = st.integers(-300, 300)


@given(
    start=SMALL,
    step=st.integers(-7, 7),
    limit=SMALL,
    direction=st.sampled_from(sorted(COMPARE)),
    mirrored=st.booleans(),
)
@example(start=0, step=1, limit=64, direction="LT", mirrored=False)
@example(start=0, step=1, limit=63, direction="LT", mirrored=False)
@example(start=0, step=1, limit=65, direction="NE", mirrored=False)
@example(start=0, step=3, limit=200, direction="NE", mirrored=False)
@example(start=7, step=0, limit=7, direction="EQ", mirrored=False)
@example(start=300, step=-1, limit=0, direction="GE", mirrored=True)
def test_the_trips_of_a_counted_loop_are_those_of_the_same_loop_in_python(
    start: int, step: int, limit: int, direction: str, mirrored: bool
) -> None:
    expected = counted(start, step, limit, direction, 10_000, mirrored=mirrored)
    assert trips(affine(start, step, limit, direction, mirrored=mirrored)) == expected


@given(
    start=st.integers(-(10**6), 10**6),
    step=st.integers(1, 1000),
    iterations=st.integers(64, 10**6),
    over=st.integers(0, 999),
    direction=st.sampled_from(["LT", "LE", "GT", "GE", "NE"]),
)
def test_long_loops_have_the_iterations_that_their_limit_was_chosen_for(
    start: int, step: int, iterations: int, over: int, direction: str
) -> None:
    """Choose the limit for a number of iterations: on the last value that still passes, or below the next one."""
    over %= step
    sign = -1 if direction in ("GT", "GE") else 1
    limit = start + sign * (
        step * iterations if direction == "NE" else step * (iterations - 1) + over + (direction in ("LT", "GT"))
    )
    if not -(1 << 31) < limit < (1 << 31) - 1000:
        return
    assert trips(affine(start, sign * step, limit, direction)) == iterations


@pytest.mark.parametrize("iterations", [0, 1, 61, 62, 63, 64, 65, 66, 126, 127, 128, 129, 1_000_000, 2_000_000_000])
def test_trips_around_the_end_of_literal_counting_are_exact(iterations: int) -> None:
    assert trips(affine(0, 1, iterations, "LT")) == iterations
    assert trips(affine(iterations, -1, 0, "NE")) == iterations


def test_a_loop_that_would_overflow_its_counter_has_no_known_count() -> None:
    assert trips(affine(0, -1, 10, "LT")) is None
    assert trips(affine(0, 1, 300, "LT", dtype="u8")) is None
    assert trips(affine(5, -1, 0, "GE", dtype="u32")) is None


def test_a_loop_that_never_ends_has_no_known_count() -> None:
    assert trips(affine(0, 0, 10, "LT")) is None
    assert trips(affine(0, 2, 1001, "NE")) is None


def test_a_bound_or_a_start_that_is_an_argument_of_the_step_is_unknown() -> None:
    body = "%one = s32[] constant(1)\n  %next = s32[] add(%i, %one)"
    limit = "%limit = s32[] constant(8)\n  ROOT %less = pred[] compare(%c, %limit), direction=LT"
    assert trips(loop_text("%start = s32[] copy(%unknown)", body, limit)) is None
    carried = "%limit = s32[] get-tuple-element(%q), index=2\n  ROOT %less = pred[] compare(%c, %limit), direction=LT"
    text = loop_text("%start = s32[] constant(0)", body, carried, state=", s32[]", carried=", %unknown")
    text = text.replace("tuple(%next, %x, %unknown)", "tuple(%next, %x, %bound)")
    text = text.replace("  ROOT %r", "  %bound = s32[] get-tuple-element(%p), index=2\n  ROOT %r")
    assert trips(text) is None
    assert trips(text.replace("%unknown = s32[] parameter(1)", "%unknown = s32[] constant(77)")) == 77


def test_a_step_that_each_iteration_computes_is_not_taken_for_a_fixed_one() -> None:
    body = "%two = s32[] constant(2)\n  %next = s32[] multiply(%i, %two)"
    limit = "%limit = s32[] constant(1000)\n  ROOT %less = pred[] compare(%c, %limit), direction=LT"
    assert trips(loop_text("%start = s32[] constant(1)", body, limit)) == 10
    slow = loop_text("%start = s32[] constant(0)", "%next = s32[] add(%i, %j)", limit, state=", s32[]", carried=", %j0")
    slow = slow.replace("tuple(%next, %x, %j0)", "tuple(%next, %x, %j1)")
    slow = slow.replace(
        "  %next =",
        "  %j = s32[] get-tuple-element(%p), index=2\n  %o = s32[] constant(1)\n  %j1 = s32[] add(%j, %o)\n  %next =",
    )
    slow = slow.replace("  %start =", "  %j0 = s32[] constant(0)\n  %start =")
    assert trips(slow) == 46  # 0 + 1 + ... + 45 = 1035
    assert trips(slow.replace("constant(1000)", "constant(100000)")) is None


def test_a_counter_that_a_minimum_stops_short_of_the_limit_never_ends_the_loop() -> None:
    body = (
        "%one = s32[] constant(1)\n  %cap = s32[] constant(500)\n  %more = s32[] add(%i, %one)\n"
        "  %next = s32[] minimum(%more, %cap)"
    )
    limit = "%limit = s32[] constant(LIMIT)\n  ROOT %less = pred[] compare(%c, %limit), direction=LT"
    assert trips(loop_text("%start = s32[] constant(0)", body, limit.replace("LIMIT", "500"))) == 500
    assert trips(loop_text("%start = s32[] constant(0)", body, limit.replace("LIMIT", "501"))) is None


@given(holes=st.lists(st.integers(70, 2000), min_size=1, max_size=4))
def test_the_first_of_several_ways_out_of_a_loop_counts(holes: list[int]) -> None:
    """Read ``while i < 1500 and i != a and i != b ...``."""
    lines = ["%n = s32[] constant(1500)", "%k = pred[] compare(%c, %n), direction=LT"]
    last = "k"
    for number, hole in enumerate(holes):
        lines.append(f"%h{number} = s32[] constant({hole})")
        lines.append(f"%d{number} = pred[] compare(%c, %h{number}), direction=NE")
        lines.append(f"%e{number} = pred[] and(%{last}, %d{number})")
        last = f"e{number}"
    lines.append(f"ROOT %root = pred[] copy(%{last})")
    body = "%one = s32[] constant(1)\n  %next = s32[] add(%i, %one)"
    assert trips(loop_text("%start = s32[] constant(0)", body, "\n  ".join(lines))) == min(1500, *holes)


def test_the_count_that_the_compiler_wrote_down_is_believed() -> None:
    config = ', backend_config={"known_trip_count":{"n":"12"}}'
    text = affine(0, 1, 5, "LT").replace("body=%body", f"body=%body{config}")
    assert trips(text) == 12
    for bad in ('"-3"', '"x"', "null", '"1e3"', '"99999999999999999999"', "[]"):
        damaged = module_of(text.replace('"12"', bad))
        assert known_trip_count(damaged.entry.root) is None
        assert trip_count(damaged, damaged.entry, damaged.entry.root) == 5


def test_a_counter_and_a_condition_inside_fusions_are_followed() -> None:
    text = affine(3, 5, 1000, "LT")
    text = text.replace("%next = s32[] add(%i, %one)", "%next = s32[] fusion(%i, %one), kind=kLoop, calls=%plus")
    text = text.replace(
        "ROOT %less = pred[] compare(%c, %limit), direction=LT",
        "ROOT %less = pred[] fusion(%c, %limit), kind=kLoop, calls=%below",
    )
    helpers = """
%plus (a1: s32[], b1: s32[]) -> s32[] {
  %a1 = s32[] parameter(0)
  %b1 = s32[] parameter(1)
  ROOT %sum = s32[] add(%a1, %b1)
}

%below (a2: s32[], b2: s32[]) -> pred[] {
  %a2 = s32[] parameter(0)
  %b2 = s32[] parameter(1)
  ROOT %lt = pred[] compare(%a2, %b2), direction=LT
}
"""
    assert trips(text.replace("\n%body", helpers + "\n%body", 1)) == 200


# ---- single values


def value_of(lines: str) -> int | None:
    module = module_of(f"HloModule m, is_scheduled=true\n\nENTRY %main () -> s32[] {{\n{lines}\n}}\n")
    return evaluate(module, module.entry, Operand(module.entry.root.name), no_arguments)


BINARY: dict[str, Callable[[int, int], int]] = {
    "add": operator.add,
    "subtract": operator.sub,
    "multiply": operator.mul,
    "minimum": min,
    "maximum": max,
    "and": operator.and_,
    "or": operator.or_,
    "divide": lambda a, b: int(a / b) if b else 0,
}


@given(opcode=st.sampled_from(sorted(BINARY)), left=st.integers(-10000, 10000), right=st.integers(-10000, 10000))
@example(opcode="divide", left=-7, right=2)
@example(opcode="divide", left=7, right=0)
def test_arithmetic_is_that_of_hlo(opcode: str, left: int, right: int) -> None:
    found = value_of(
        f"  %a = s32[] constant({left})\n  %b = s32[] constant({right})\n  ROOT %c = s32[] {opcode}(%a, %b)"
    )
    assert found == (None if opcode == "divide" and right == 0 else BINARY[opcode](left, right))


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        ("%a = s32[] constant(5)\nROOT %b = s32[] negate(%a)", -5),
        ("%a = s32[] constant(5)\nROOT %b = s32[] not(%a)", -6),
        ("%a = pred[] constant(true)\nROOT %b = pred[] not(%a)", 0),
        ("%a = u32[] constant(5)\nROOT %b = u32[] not(%a)", None),
        ("%a = pred[] constant(false)\n%b = s32[] constant(1)\n%c = s32[] constant(2)\n"
         "ROOT %d = s32[] select(%a, %b, %c)", 2),
        ("%a = s32[] constant(9)\n%b = s32[] constant(1)\n%c = s32[] constant(4)\n"
         "ROOT %d = s32[] clamp(%b, %a, %c)", 4),
        ("%a = s8[] constant(100)\nROOT %b = s8[] add(%a, %a)", None),
        ("%a = f32[] constant(1)\nROOT %b = f32[] add(%a, %a)", None),
        ("%a = s32[] constant(3)\n%t = (s32[], s32[]) tuple(%a, %a)\n%u = (s32[], s32[]) opt-barrier(%t)\n"
         "ROOT %g = s32[] get-tuple-element(%u), index=1", 3),
        ("ROOT %a = s32[] parameter(0)", None),
        ("ROOT %a = s32[] add(%a, %a)", None),
        ("%g = s32[] get-tuple-element(%h), index=0\nROOT %h = s32[] get-tuple-element(%g), index=0", None),
        ("ROOT %a = s32[] add(%nowhere, %nowhere)", None),
    ],
)  # fmt: skip
def test_a_value_is_worked_out_or_unknown(lines: str, expected: int | None) -> None:
    assert value_of("\n".join("  " + line for line in lines.split("\n"))) == expected


def test_a_chain_too_long_to_follow_is_unknown_and_no_crash() -> None:
    lines = ["  %v0 = s32[] constant(1)"]
    lines += [f"  %v{n} = s32[] add(%v{n - 1}, %v{n - 1})" for n in range(1, 20)]
    assert value_of("\n".join([*lines, "  ROOT %end = s32[] copy(%v19)"])) == 1 << 19
    long = [f"  %w{n} = s32[] negate(%w{n - 1})" for n in range(1, 5000)]
    assert value_of("\n".join(["  %w0 = s32[] constant(1)", *long, "  ROOT %end = s32[] copy(%w4999)"])) is None


def test_deep_chains_inside_nested_fusions_are_unknown_and_no_crash() -> None:
    """Nest fusions whose bodies are chains below the limit. Followed through operands they would exhaust the stack."""
    fusions = []
    for number in range(60):
        chain = [f"  %n{number}_{k} = s32[] negate(%n{number}_{k - 1})" for k in range(1, 95)]
        first = f"  %n{number}_0 = s32[] parameter(0)"
        fusions.append(
            "\n".join([f"%f{number} (a: s32[]) -> s32[] {{", first, *chain[:-1], "  ROOT" + chain[-1][1:], "}"])
        )
    calls = [f"  %v{n} = s32[] fusion(%v{n - 1}), kind=kLoop, calls=%f{n - 1}" for n in range(1, 61)]
    text = "HloModule m, is_scheduled=true\n\n" + "\n\n".join(fusions)
    text += "\n\nENTRY %main () -> s32[] {\n" + "\n".join(["  %v0 = s32[] constant(1)", *calls])
    module = module_of(text + "\n  ROOT %end = s32[] copy(%v60)\n}\n")
    assert evaluate(module, module.entry, Operand("end"), no_arguments) is None


def test_elements_that_hand_each_other_their_values_are_unknown_or_right_and_no_crash() -> None:
    """Shift a loop's tuple by one in each iteration: element n gets the value of element n + 1 through a long chain."""
    width = 80
    kinds = ", ".join(["s32[]"] * width)
    names = [f"  %g{n} = s32[] get-tuple-element(%p), index={n}" for n in range(width)]
    chains = []
    for n in range(width):
        chains += [f"  %k{n}_0 = s32[] negate(%g{(n + 1) % width})"]
        chains += [f"  %k{n}_{k} = s32[] negate(%k{n}_{k - 1})" for k in range(1, 90)]
    root = ", ".join(f"%k{n}_89" for n in range(width))
    zeros = "\n".join(f"  %z{n} = s32[] constant(0)" for n in range(width))
    text = f"""HloModule m, is_scheduled=true

%body (p: s32[]) -> s32[] {{
  %p = ({kinds}) parameter(0)
{chr(10).join(names)}
{chr(10).join(chains)}
  ROOT %r = ({kinds}) tuple({root})
}}

%condition (q: s32[]) -> pred[] {{
  %q = ({kinds}) parameter(0)
  %c = s32[] get-tuple-element(%q), index=0
  %limit = s32[] constant(8)
  ROOT %less = pred[] compare(%c, %limit), direction=LT
}}

ENTRY %main () -> s32[] {{
{zeros}
  %t = ({kinds}) tuple({", ".join(f"%z{n}" for n in range(width))})
  ROOT %loop = ({kinds}) while(%t), condition=%condition, body=%body
}}
"""
    assert trips(text) is None


# ---- loops of every integer type, compared with a machine that counts in that type


INTEGERS = ("s8", "u8", "s16", "u16", "s32", "u32", "s64", "u64")


def wrapped(value: int, dtype: str) -> int:
    """Return the value that a register of this type holds."""
    bits = int(dtype[1:])
    value &= (1 << bits) - 1
    return value - (1 << bits) if dtype[0] == "s" and value >> (bits - 1) else value


def run_loop(
    start: int, stride: int, limit: int, direction: str, operation: str, dtype: str
) -> tuple[int | None, bool]:
    """Run the loop in Python: return its trips (None after 500) and whether the counter has left its type."""
    value, left = start, False
    for iterations in range(500):
        if not COMPARE[direction](value, limit):
            return iterations, left
        exact = value + stride if operation == "add" else value - stride
        value = wrapped(exact, dtype)
        left = left or value != exact
    return None, left


@st.composite
def small_loops(draw: st.DrawFn) -> tuple[int, int, int, str, str, str, bool]:
    """Draw start, stride, limit, direction, operation, type and whether the limit is on the left.

    Start and limit differ by 200 at most: a loop of more iterations leaves its type or never ends.
    """
    dtype = draw(st.sampled_from(INTEGERS))
    bits, signed = int(dtype[1:]), dtype[0] == "s"
    low, high = (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) if signed else (0, (1 << bits) - 1)
    least = draw(st.sampled_from([low, max(low, -100), high - 200]))
    start, limit = (draw(st.integers(least, min(least + 200, high))) for _ in range(2))
    stride = min(max(draw(st.integers(-9, 9)), low), high)
    direction, operation = draw(st.sampled_from(sorted(COMPARE))), draw(st.sampled_from(["add", "subtract"]))
    return start, stride, limit, direction, operation, dtype, draw(st.booleans())


MIRRORED = {"LT": "GT", "GT": "LT", "LE": "GE", "GE": "LE", "EQ": "EQ", "NE": "NE"}


@given(loop=small_loops())
@example(loop=(0, 1, 127, "LE", "add", "s8", False))
@example(loop=(0, 1, 127, "LT", "add", "s8", False))
@example(loop=(255, 1, 0, "GE", "subtract", "u8", False))
@example(loop=(0, -3, 200, "LT", "subtract", "s16", True))
@example(loop=((1 << 63) - 100, 1, (1 << 63) - 1, "LT", "add", "s64", False))
@example(loop=((1 << 64) - 100, 1, (1 << 64) - 1, "NE", "add", "u64", True))
def test_a_loop_counts_as_a_machine_of_its_type_does_or_is_unknown(
    loop: tuple[int, int, int, str, str, str, bool],
) -> None:
    start, stride, limit, direction, operation, dtype, mirrored = loop
    sides = "%limit, %c" if mirrored else "%c, %limit"
    spelt = MIRRORED[direction] if mirrored else direction
    found = trips(
        loop_text(
            f"%start = {dtype}[] constant({start})",
            f"%one = {dtype}[] constant({stride})\n  %next = {dtype}[] {operation}(%i, %one)",
            f"%limit = {dtype}[] constant({limit})\n  ROOT %less = pred[] compare({sides}), direction={spelt}",
            dtype,
        )
    )
    expected, left = run_loop(start, stride, limit, direction, operation, dtype)
    assert found == expected or (left and found is None)


def test_a_counter_in_floating_point_is_not_followed() -> None:
    """Compare with floating point, where five halves are more than two and large numbers are rounded."""
    body = "%one = s32[] constant(1)\n  %next = s32[] add(%i, %one)"
    halves = (
        "%two = s32[] constant(2)\n  %f = f32[] convert(%c)\n  %t = f32[] convert(%two)\n  %h = f32[] divide(%f, %t)\n"
        "  ROOT %less = pred[] compare(%h, %t), direction=LE"
    )
    assert trips(loop_text("%start = s32[] constant(0)", body, halves)) is None


# ---- work has a limit


def test_a_body_whose_root_is_not_the_state_of_its_loop_has_an_unknown_count() -> None:
    """Read a text that has lost the tuple at the end of the body: each iteration needs an element nested in the one
    before."""
    module = load_module(CASES / "trip_count_hang.hlo")
    (loop,) = (instruction for instruction in module.entry if instruction.opcode == "while")
    assert trip_count(module, module.entry, loop) is None


def tree_of_fusions(depth: int) -> str:
    """Return a loop over 100 whose counter goes through ``depth`` levels of fusions that call the next one twice."""
    lines = ["%f0 (a: s32[]) -> s32[] {\n  ROOT %a0 = s32[] parameter(0)\n}\n"]
    for level in range(1, depth):
        lines.append(
            f"%f{level} (a: s32[]) -> s32[] {{\n  %a{level} = s32[] parameter(0)\n"
            f"  %b{level} = s32[] fusion(%a{level}), kind=kLoop, calls=%f{level - 1}\n"
            f"  ROOT %d{level} = s32[] fusion(%b{level}), kind=kLoop, calls=%f{level - 1}\n}}\n"
        )
    step = f"%one = s32[] constant(1)\n  %same = s32[] fusion(%i), kind=kLoop, calls=%f{depth - 1}\n"
    text = loop_text(
        "%start = s32[] constant(0)",
        step + "  %next = s32[] add(%same, %one)",
        "%limit = s32[] constant(100)\n  ROOT %less = pred[] compare(%c, %limit), direction=LT",
    )
    return text.replace("\n%body", "\n" + "\n".join(lines) + "\n%body", 1)


def test_fusions_that_call_each_other_twice_are_followed_as_far_as_the_work_goes() -> None:
    assert trips(tree_of_fusions(5)) == 100
    assert trips(tree_of_fusions(25)) is None


def test_elements_that_hand_on_their_values_without_end_are_unknown() -> None:
    """Build a shift register as wide as a tuple can be: each requested line requests the next."""
    width = 2000
    kinds = ", ".join(["s32[]"] * width)
    names = "\n".join(f"  %g{n} = s32[] get-tuple-element(%p), index={n}" for n in range(width))
    zeros = ", ".join(["%z"] * width)
    text = f"""HloModule m, is_scheduled=true

%body (p: s32[]) -> s32[] {{
  %p = ({kinds}) parameter(0)
{names}
  ROOT %r = ({kinds}) tuple({", ".join(f"%g{(n + 1) % width}" for n in range(width))})
}}

%condition (q: s32[]) -> pred[] {{
  %q = ({kinds}) parameter(0)
  %c = s32[] get-tuple-element(%q), index=0
  %limit = s32[] constant(8)
  ROOT %less = pred[] compare(%c, %limit), direction=LT
}}

ENTRY %main () -> s32[] {{
  %z = s32[] constant(0)
  %t = ({kinds}) tuple({zeros})
  ROOT %loop = ({kinds}) while(%t), condition=%condition, body=%body
}}
"""
    assert trips(text) is None


def test_get_tuple_elements_deeper_than_any_shape_have_no_value() -> None:
    chain = "\n".join(f"  %g{n} = s32[] get-tuple-element(%g{n - 1}), index=0" for n in range(1, 20_000))
    module = module_of(
        "HloModule m, is_scheduled=true\n\nENTRY %main () -> s32[] {\n  %c = s32[] constant(3)\n"
        f"  %t = (s32[]) tuple(%c)\n  %g0 = s32[] get-tuple-element(%t), index=0\n{chain}\n"
        "  ROOT %end = s32[] copy(%g19999)\n}\n"
    )
    assert evaluate(module, module.entry, Operand("g0"), no_arguments) == 3
    assert evaluate(module, module.entry, Operand("end"), no_arguments) is None


def test_an_element_that_is_not_there_has_no_value() -> None:
    lines = "  %c = s32[] constant(1)\n  %t = (s32[]) tuple(%c)\n  ROOT %g = s32[] get-tuple-element(%t), index=INDEX"
    assert value_of(lines.replace("INDEX", "0")) == 1
    assert value_of(lines.replace("INDEX", "1")) is None
    assert value_of("  %c = s32[] constant(1)\n  ROOT %g = s32[] get-tuple-element(%c), index=0") is None


def test_a_module_that_has_used_up_its_work_has_unknown_counts_and_no_wrong_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    module = module_of(affine(0, 1, 1000, "LT"))
    counts = [trip_count(module, module.entry, module.entry.root) for _ in range(3)]
    assert counts == [1000, 1000, 1000]
    monkeypatch.setattr("hloinspect.hlo.evaluate.MAX_STEPS_IN_ALL", 2000)
    module = module_of(affine(0, 1, 1000, "LT"))
    counts = [trip_count(module, module.entry, module.entry.root) for _ in range(20)]
    assert counts[0] == 1000
    assert counts[-1] is None
    assert counts == sorted(counts, key=lambda count: count is None)
    assert set(counts) == {1000, None}


@pytest.mark.parametrize("iterations", [0, 1, 7, 100])
def test_what_a_loop_leaves_is_followed(iterations: int) -> None:
    """Take the index of a peeled last iteration from the counter of the loop before it."""
    text = affine(3, 2, 3 + 2 * iterations, "LT").replace("ROOT %loop", "%loop")
    text = text.replace("body=%body\n", "body=%body\n  ROOT %end = s32[] get-tuple-element(%loop), index=0\n")
    module = module_of(text)
    assert evaluate(module, module.entry, Operand("end"), no_arguments) == 3 + 2 * iterations
    assert evaluate(module, module.entry, Operand("end"), no_arguments) == 3 + 2 * iterations


def test_what_an_endless_or_a_very_long_loop_leaves_is_unknown() -> None:
    for direction, limit in (("NE", 1001), ("LT", 1_000_000)):
        text = affine(0, 2, limit, direction).replace("ROOT %loop", "%loop")
        text = text.replace("body=%body\n", "body=%body\n  ROOT %end = s32[] get-tuple-element(%loop), index=0\n")
        module = module_of(text)
        assert evaluate(module, module.entry, Operand("end"), no_arguments) is None
