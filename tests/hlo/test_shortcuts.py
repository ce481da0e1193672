"""Shortcuts of the text reader, compared with parsing every line."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import pytest

from hloinspect.errors import HloParseError
from hloinspect.hlo import Computation, Module, load_module, parse_text
from hloinspect.hlo.access import accesses
from hloinspect.memory.inplace import in_place
from hloinspect.predict.cost import cost_of
from tests.support.hlo_samples import CORPUS, ROOT, text_of

TEXTS = sorted(
    path
    for folder in (CORPUS / "hlo", CORPUS / "hlo" / "versions", CORPUS / "maxtext", ROOT / "fixtures")
    for path in folder.rglob("*")
    if path.name.endswith((".hlo", ".hlo.gz", "optimizations.txt")) and path.stat().st_size < 400_000
)

PAIR = """
%one (param_0: f32[8], param_1: s32[]) -> f32[2] {
  %param_0 = f32[8]{0} parameter(0), metadata={op_name="a{b}\\"c" stack_frame_id=1}
  %param_1 = s32[] parameter(1)
  ROOT %sliced.1 = f32[2]{0} dynamic-slice(%param_0, %param_1), dynamic_slice_sizes={2}
}

%other (param_0.7: f32[8], param_1.7: s32[]) -> f32[2] {
  %param_0.7 = f32[8]{0} parameter(0)
  %param_1.7 = s32[] parameter(1), metadata={op_name="else"}
  ROOT %sliced.2 = f32[2]{0} dynamic-slice(%param_0.7, %param_1.7), dynamic_slice_sizes={2}
}
"""


@pytest.mark.parametrize("path", TEXTS, ids=lambda path: path.name)
def test_places_of_names_opcodes_and_uses_are_those_of_the_instructions(path: Path) -> None:
    module = load_module(path)
    for computation in module.computations.values():
        instructions = list(computation)
        assert [computation.position(i.name) for i in instructions] == list(range(len(computation)))
        by_opcode = defaultdict(list)
        for instruction in instructions:
            by_opcode[instruction.opcode].append(instruction.index)
        for opcode, places in by_opcode.items():
            assert set(places) <= set(computation.ending_in(opcode))
        assert [opcode for opcode, _ in computation.outline()] == [i.opcode for i in instructions]
        assert computation.root is Computation.root.func(computation)  # type: ignore[attr-defined]
        some = [i.name for i in instructions[:: max(1, len(instructions) // 12)]]
        for wanted in (some[:2], some):
            found = set(computation.users_of(wanted))
            assert found >= set(Computation.users_of(computation, wanted))
    marked = {(c.name, i) for c in module.computations.values() for i in c.may_touch_host()}
    on_host = {(c.name, i.index) for c in module.computations.values() for i in c if i.shape.host_bytes}
    assert marked >= on_host


@pytest.mark.parametrize("path", TEXTS, ids=lambda path: path.name)
def test_computations_that_are_alike_cost_the_same_and_write_in_place_alike(path: Path) -> None:
    """Compare each fusion with its own body in a module that shares nothing."""
    module, alone = load_module(path), load_module(path)
    for computation in module.computations.values():
        for instruction in computation:
            if instruction.opcode == "fusion":
                alone.memo.clear()
                own = alone.computations[computation.name]
                twin = own.instruction(instruction.index)
                assert accesses(module, computation, instruction) == accesses(alone, own, twin)
                assert cost_of(module, computation, instruction) == cost_of(alone, own, twin)
                assert in_place(module, instruction) == in_place(alone, twin)


def alike(one: str, other: str, module: Module) -> bool:
    return module.alike(module.computations[one]) is module.alike(module.computations[other])


def test_names_metadata_and_offsets_of_slices_make_no_difference() -> None:
    text = text_of("ROOT %p = f32[] parameter(0)", before=PAIR)
    assert alike("one", "other", parse_text(text))
    sliced = PAIR.replace(
        "dynamic-slice(%param_0, %param_1), dynamic_slice_sizes={2}", "slice(%param_0), slice={[0:2]}"
    )
    both = sliced.replace(
        "dynamic-slice(%param_0.7, %param_1.7), dynamic_slice_sizes={2}", "slice(%param_0.7), slice={[4:6]}"
    )
    assert alike("one", "other", parse_text(text_of("ROOT %p = f32[] parameter(0)", before=both)))
    assert not alike("one", "other", parse_text(text_of("ROOT %p = f32[] parameter(0)", before=sliced)))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("f32[2]{0} dynamic-slice(%param_0.7", "f32[4]{0} dynamic-slice(%param_0.7"),
        ("dynamic-slice(%param_0.7, %param_1.7)", "dynamic-slice(%param_1.7, %param_0.7)"),
        ("dynamic-slice(%param_0.7", "dynamic-slice-like(%param_0.7"),
        ("s32[] parameter(1), metadata", "s32[] parameter(2), metadata"),
        ("dynamic_slice_sizes={2}\n}\n\n%other", "dynamic_slice_sizes={3}\n}\n\n%other"),
    ],
)
def test_shapes_wiring_opcodes_and_attributes_do(old: str, new: str) -> None:
    assert old in PAIR
    module = parse_text(text_of("ROOT %p = f32[] parameter(0)", before=PAIR.replace(old, new)))
    assert not alike("one", "other", module)


def test_what_they_call_counts_by_what_it_does() -> None:
    calling = """
%sum (a: f32[], b: f32[]) -> f32[] {
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  ROOT %s = f32[] add(%a, %b)
}

%sum.2 (a.2: f32[], b.2: f32[]) -> f32[] {
  %a.2 = f32[] parameter(0)
  %b.2 = f32[] parameter(1)
  ROOT %s.2 = f32[] OPCODE(%a.2, %b.2)
}

%one (p: f32[4], z: f32[]) -> f32[] {
  %p = f32[4]{0} parameter(0)
  %z = f32[] parameter(1)
  ROOT %r = f32[] reduce(%p, %z), dimensions={0}, to_apply=%sum
}

%other (q: f32[4], y: f32[]) -> f32[] {
  %q = f32[4]{0} parameter(0)
  %y = f32[] parameter(1)
  ROOT %t = f32[] reduce(%q, %y), dimensions={0}, to_apply=%sum.2
}
"""
    end = "ROOT %x = f32[] parameter(0)"
    assert alike("one", "other", parse_text(text_of(end, before=calling.replace("OPCODE", "add"))))
    assert not alike("one", "other", parse_text(text_of(end, before=calling.replace("OPCODE", "maximum"))))


def test_a_callee_without_its_percent_sign_is_refused_where_names_have_one() -> None:
    """Refuse such a callee, since the check for circles searches only for percent signs."""
    text = text_of("ROOT %f = f32[] fusion(), kind=kLoop, calls=one", before=PAIR)
    with pytest.raises(HloParseError, match="names no computation"):
        _ = parse_text(text).entry.instruction(0).called


def test_an_entry_that_calls_itself_is_refused() -> None:
    """Refuse a circle found by fuzzing: no other computation calls the entry, so the check did not see it."""
    with pytest.raises(HloParseError, match="calls itself"):
        parse_text(text_of("ROOT %f = f32[] fusion(), kind=kLoop, calls=%main"))
