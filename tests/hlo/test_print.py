"""Printing: a printed module reads as the model from which it was printed, for both readers."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from hloinspect.errors import HloParseError
from hloinspect.hlo import (
    Computation,
    DotDimensions,
    Frame,
    Instruction,
    Metadata,
    Module,
    Operand,
    ReplicaGroups,
    Shape,
    load_module,
    parse_proto,
    parse_text,
)
from hloinspect.hlo.print import print_module, print_shape
from hloinspect.hlo.schema import hlo_pb2 as schema
from hloinspect.hlo.shape import parse_shape
from hloinspect.offload.program import build_program
from hloinspect.offload.slices import check_slices
from hloinspect.offload.transfers import find_offload
from tests.hlo.test_agreement import TEXTS, converted, differences
from tests.support.hlo_samples import ROOT, text_of, zoo_proto, zoo_text
from tests.support.thorough import examples, is_thorough

MODULES = sorted((ROOT / "fixtures").glob("jax*/*/module.hlo.*.gz"))
each_module = pytest.mark.parametrize(
    "path",
    MODULES,
    ids=lambda path: f"{path.parent.parent.name}/{path.parent.name}/{path.suffixes[1][1:]}",
    scope="module",  # all tests of one module come together, and it is read once
)


def all_differences(one: Module, other: Module, every: int = 1) -> Iterator[str]:
    """Yield the differences between a printed text's model and the original, also where text and proto may differ.

    Where host memory may be touched, text gives only a superset. It must not miss a place.
    """
    yield from (found for found in differences(one, other, every=every) if not found.endswith(": host"))
    for computation in one.computations.values():
        there = other.computations[computation.name]
        touches = {i for i in there.may_touch_host() if there.instruction(i).shape.host_bytes}
        if not touches <= set(computation.may_touch_host()):
            yield f"{computation.name}: host"
        for index in range(0, len(computation), every):
            left, right = computation.instruction(index), there.instruction(index)
            for field in ("is_host_transfer", "source_target_pairs", "called_names", "name"):
                if getattr(left, field) != getattr(right, field):
                    yield f"{left!r} {field}: {getattr(left, field)} {getattr(right, field)}"


def reprinted(module: Module) -> Module:
    """Return the module in its printed text. Assert that printing it again changes nothing."""
    text = print_module(module)
    again = parse_text(text)
    assert print_module(again) == text
    return again


# ---- real modules


@pytest.mark.parametrize("module", [parse_text(zoo_text()), parse_proto(zoo_proto())], ids=["text", "proto"])
def test_the_zoo_reads_back_as_it_was(module: Module) -> None:
    assert list(all_differences(reprinted(module), module)) == []


@functools.lru_cache(maxsize=1)
def both(path: Path) -> tuple[Module, Module]:
    """Return a module, and what its printed text spells."""
    module = load_module(path)
    return module, reprinted(module)


@each_module
def test_a_fixture_reads_back_as_it_was(path: Path) -> None:
    module, again = both(path)
    assert list(all_differences(again, module)) == []


@each_module
def test_a_printed_fixture_has_the_same_transfers_and_slices(path: Path) -> None:
    module, again = both(path)
    one, other = find_offload(module), find_offload(again)
    assert one.transfers == other.transfers
    assert (one.host_copies, one.host_values) == (other.host_copies, other.host_values)
    assert check_slices(build_program(module)) == check_slices(build_program(again))


@pytest.mark.slow
@pytest.mark.parametrize("path", TEXTS, ids=lambda path: path.name)
def test_a_text_of_the_corpus_reads_back_as_it_was(path: Path) -> None:
    module = load_module(path)
    if module.size_bytes > 30e6 and not is_thorough():
        pytest.skip("55 MB are printed in a thorough run only")
    every = 1 if module.size_bytes < 1e6 or is_thorough() else 13
    assert list(all_differences(parse_text(print_module(module)), module, every)) == []


@pytest.mark.slow
@pytest.mark.parametrize("name", ["jax0.12.0.1/gb200_offload_scan", "jax0.10.2/gb200_optimizer"])
def test_xla_reads_a_printed_text_as_the_same_module(name: str) -> None:
    """Use XLA as an independent reader. It needs the scalars that the model leaves out; any value will do."""
    module = load_module(ROOT / "fixtures" / name / "module.hlo.txt.gz")
    text = re.sub(r"(\w+\[\]) constant\(\{\.\.\.\}\)", r"\1 constant(0)", print_module(module))
    assert list(differences(module, parse_proto(converted(text)))) == []


# ---- the spelling


def test_an_instruction_is_spelt_as_xla_spells_it() -> None:
    text = print_module(parse_text(zoo_text()))
    for line in (
        "ROOT %less = pred[] compare(%i.1, %limit), direction=LT",
        "%fetch-start = (f32[4,8,16]{2,1,0}, f32[4,8,16]{2,1,0:S(5)}, u32[]) copy-start(%arg0), "
        'backend_config={"operation_queue_id":"1"}',
        "%loop = (s32[], f32[4,8,16]{2,1,0:S(5)}, f32[8,16]{1,0}) while(%init), condition=%condition, body=%body, "
        'backend_config={"known_trip_count":{"n":"4"}}',
        "%chosen = f32[8,8]{1,0} conditional(%arg4, %scattered, %arg5), true_computation=%yes, false_computation=%no",
        "%minus = s4[] constant(-3)",
        "%truth = pred[] constant(true)",
        "%vector = s32[2]{0} constant({...})",
        "%empty = () tuple()",
    ):
        assert f"  {line}\n" in text
    assert "\n%dus_body (p0: f32[4,8,16], p1: f32[8,16], p2: s32[]) -> f32[4,8,16] {\n" in text
    assert '\n}, execution_thread="host"\n' in text


def test_paths_of_compact_operands_are_kept() -> None:
    module = parse_text(text_of("%p = (f32[], (s32[], f32[])) parameter(0)\nROOT %n = f32[] negate(%p#1#1)"))
    assert "negate(%p#1#1)" in print_module(module)
    assert reprinted(module).entry.root.operands == (Operand("p", (1, 1)),)


def test_what_only_a_text_has_is_kept() -> None:
    line = "ROOT %f = f32[8]{0} fusion(%p), kind=kLoop, output_to_operand_aliasing={{}: (0, {})}, calls=%c"
    module = parse_text(text_of(f"%p = f32[8]{{0}} parameter(0), sharding={{replicated}}\n{line}"))
    text = print_module(module)
    for part in ("kind=kLoop", "output_to_operand_aliasing={{}: (0, {})}", "sharding={replicated}"):
        assert part in text


def test_a_platform_is_kept_although_the_tiles_that_showed_it_are_not() -> None:
    module = parse_text(text_of("ROOT %p = f32[8,128]{1,0:T(8,128)S(5)} parameter(0)"))
    assert module.platform == "tpu"
    again = reprinted(module)
    assert again.platform == "tpu"
    assert again.entry.root.shape == parse_shape("f32[8,128]{1,0:S(5)}")


def test_all_groups_of_a_text_and_of_a_proto_the_first_are_kept() -> None:
    groups = "replica_groups={{0,2},{3,1}}"
    line = f"ROOT %r = f32[] all-reduce(%p), {groups}, to_apply=%add"
    assert groups in print_module(parse_text(text_of(f"%p = f32[] parameter(0)\n{line}")))
    text = print_module(parse_proto(zoo_proto()))
    assert "replica_groups=[2,4]<=[8]" in text
    assert "replica_groups={{3,1,2,0},{4,5,6,7}}" in text


@pytest.mark.parametrize("name", ["a b", "", "a,b", "a%", "a#1", "ä b", "x\ny"])
def test_a_name_that_text_cannot_spell_is_refused(name: str) -> None:
    module = parse_text(text_of("ROOT %p = f32[] parameter(0)"))
    odd = Module(name, module.computations, module.entry_name, True, {}, "", 0, "text")
    with pytest.raises(HloParseError, match="no name that HLO text can spell"):
        print_module(odd)


# ---- models without a source


class Built(Instruction):
    """An instruction made of given answers."""

    opcode = "negate"
    is_root = False
    shape = Shape("f32")
    operands = ()
    called = MappingProxyType({})
    metadata = Metadata()
    backend_config = MappingProxyType({})
    frontend_attributes = MappingProxyType({})
    custom_call_target = ""
    tuple_index = -1
    parameter_number = -1
    constant_integer = None
    comparison_direction = ""
    dot_dimensions = None
    dim_labels = ""
    feature_groups = 1
    replica_groups = ReplicaGroups(1, 0, ())
    window_text = ""
    is_host_transfer = False
    source_target_pairs = ()

    def __init__(self, **answers: Any) -> None:
        vars(self).update(answers)


class BuiltComputation(Computation):
    """A computation made of such instructions."""

    def __init__(self, name: str, is_entry: bool, thread: str, instructions: Sequence[Built]) -> None:
        self.name, self.is_entry, self.execution_thread = name, is_entry, thread
        self._instructions = instructions
        for index, instruction in enumerate(instructions):
            instruction.index, instruction.computation = index, name

    def __len__(self) -> int:
        return len(self._instructions)

    def instruction(self, index: int) -> Instruction:
        return self._instructions[index]

    def position(self, name: str) -> int | None:
        return next((index for index, found in enumerate(self._instructions) if found.name == name), None)

    def may_touch_host(self) -> Sequence[int]:
        return [i for i, found in enumerate(self) if any(leaf.on_host for _, leaf in found.shape.leaves)]


STEMS = st.from_regex(r"[A-Za-z_][A-Za-z0-9_.\-]{0,6}", fullmatch=True)
TEXT = st.text(max_size=12) | st.sampled_from(['calls=%x, metadata={op_name=\\"y\\"}, } ) ]', "\n}\n", "\\303"])
SMALL = st.integers(0, 99)
KEYS = st.from_regex(r"[\w.\-]{1,9}", fullmatch=True)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | TEXT,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(TEXT, inner, max_size=2),
    max_leaves=6,
)


@st.composite
def arrays(draw: st.DrawFn) -> Shape:
    dims = tuple(draw(st.lists(SMALL, max_size=3)))
    order = tuple(draw(st.permutations(range(len(dims))))) if draw(st.booleans()) else ()
    dtype = draw(st.sampled_from(["f32", "bf16", "s32", "u4", "pred", "f8e4m3fn", "token"]))
    return Shape(dtype, dims, draw(st.sampled_from([0, 0, 1, 5, 6])), order)


SHAPES = st.recursive(
    arrays(), lambda part: st.lists(part, max_size=3).map(lambda parts: Shape("tuple", elements=tuple(parts)))
)
FRAMES = st.builds(Frame, TEXT, st.integers(0, 10**9 - 1), TEXT, SMALL)
METADATA = st.builds(Metadata, TEXT, st.lists(FRAMES, max_size=3).map(tuple))


@st.composite
def groups(draw: st.DrawFn) -> ReplicaGroups:
    first = draw(st.lists(st.integers(0, 30), min_size=1, max_size=4, unique=True))
    return ReplicaGroups(draw(st.integers(1, 4)), len(first), tuple(first))


def numbers(size: int = 3) -> st.SearchStrategy[tuple[int, ...]]:
    return st.lists(SMALL, max_size=size).map(tuple)


@st.composite
def particulars(draw: st.DrawFn, callees: Sequence[str]) -> dict[str, Any]:
    """Draw the attributes of one opcode that other opcodes do not have."""
    name = st.sampled_from(callees)
    kinds: dict[str, st.SearchStrategy[dict[str, Any]]] = {
        "negate": st.just({}),
        "parameter": st.fixed_dictionaries({"parameter_number": st.integers(-1, 9), "operands": st.just(())}),
        "constant": st.fixed_dictionaries(
            {
                "constant_integer": st.none() | st.integers(-(2**63), 2**64 - 1),
                "shape": st.just(Shape("s64")),
                "operands": st.just(()),
            }
        ),
        "get-tuple-element": st.fixed_dictionaries({"tuple_index": SMALL}),
        "dot": st.fixed_dictionaries(
            {"dot_dimensions": st.builds(DotDimensions, numbers(), numbers(), numbers(), numbers())}
        ),
        "compare": st.fixed_dictionaries({"comparison_direction": st.sampled_from(["", "EQ", "LT", "GE"])}),
        "convolution": st.fixed_dictionaries(
            {
                "dim_labels": st.sampled_from(["", "b01f_01io->b01f", "bf0_oi0->bf0"]),
                "window_text": st.sampled_from(["", "size=3x3 pad=1_1x1_1", "size=2x2 stride=2x2 rhs_reversal=1x0"]),
                "feature_groups": st.integers(1, 9),
            }
        ),
        "all-reduce-start": st.fixed_dictionaries(
            {
                "replica_groups": groups(),
                "called": st.fixed_dictionaries({"calls": st.tuples(name), "to_apply": st.tuples(name)}),
            }
        ),
        "collective-permute": st.fixed_dictionaries(
            {"source_target_pairs": st.lists(st.tuples(SMALL, SMALL), max_size=3).map(tuple)}
        ),
        "custom-call": st.fixed_dictionaries(
            {
                "custom_call_target": TEXT,
                "called": st.fixed_dictionaries({"calls": st.lists(name, min_size=1, max_size=2).map(tuple)}),
            }
        ),
        "while": st.fixed_dictionaries(
            {"called": st.fixed_dictionaries({"condition": st.tuples(name), "body": st.tuples(name)})}
        ),
        "conditional": st.fixed_dictionaries(
            {"called": st.fixed_dictionaries({"branches": st.lists(name, min_size=1, max_size=3).map(tuple)})}
        ),
        "fusion": st.fixed_dictionaries({"called": st.fixed_dictionaries({"calls": st.tuples(name)})}),
        "select-and-scatter": st.fixed_dictionaries(
            {"called": st.fixed_dictionaries({"to_apply": st.tuples(name, name)})}
        ),
        "send": st.fixed_dictionaries({"is_host_transfer": st.booleans()}),
    }
    opcode = draw(st.sampled_from(sorted(kinds)))
    return {"opcode": opcode, **draw(kinds[opcode])}


@st.composite
def instructions(draw: st.DrawFn, callees: Sequence[str]) -> list[Built]:
    found: list[Built] = []
    for number in range(draw(st.integers(1, 5))):
        known = [instruction.name for instruction in found]
        operand = st.builds(Operand, st.sampled_from(known), numbers(2)) if known else st.nothing()
        answers = {
            "name": f"{draw(STEMS)}.{number}",
            "shape": draw(SHAPES),
            "operands": tuple(draw(st.lists(operand, max_size=3))) if known else (),
            "metadata": draw(METADATA),
            "backend_config": draw(st.dictionaries(TEXT, JSON, max_size=2)),
            "frontend_attributes": draw(st.dictionaries(KEYS, TEXT, max_size=2)),
        }
        found.append(Built(**(answers | draw(particulars(callees)))))
    found[draw(st.integers(0, len(found) - 1))].is_root = True
    return found


@st.composite
def modules(draw: st.DrawFn) -> Module:
    names = [f"{draw(STEMS)}.{number}" for number in range(draw(st.integers(1, 3)))]
    entry = draw(st.sampled_from(names))
    made = {  # each calls those before it, or a missing one: the reader refuses circles
        name: BuiltComputation(
            name, name == entry, draw(st.just("") | TEXT), draw(instructions([*names[:number], "nobody.0"]))
        )
        for number, name in enumerate(names)
    }
    is_scheduled = draw(st.booleans())
    attributes = {"is_scheduled": "true"} if is_scheduled else {}
    attributes |= draw(
        st.sampled_from([{}, {"input_output_alias": "{ {0}: (0, {}, may-alias) }", "replica_count": "8"}])
    )
    platform = draw(st.sampled_from(["", "gpu", "tpu"]))
    return Module(draw(STEMS), made, entry, is_scheduled, attributes, platform, 0, "built")


def says_nothing_of_a_platform(module: Module) -> bool:
    """Return whether no text of the module contains by chance a mark of a platform."""
    marks = ("operation_queue_id", "fusion_backend_config", "__cublas", "T(8,128)", "scoped_memory_configs")
    marks += ("fingerprint_before_lhs", "outer_dimension_partitions", "__ynn_fusion", "__onednn$", "lapack_")
    return not any(mark in print_module(module).partition("%")[2] for mark in marks)


@given(modules())
@settings(max_examples=examples(50, 2000), suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
def test_any_model_reads_back_as_it_was(module: Module) -> None:
    assume(says_nothing_of_a_platform(module))
    assert list(all_differences(reprinted(module), module)) == []


@given(SHAPES)
def test_any_shape_reads_back_as_it_was(shape: Shape) -> None:
    assert parse_shape(print_shape(shape)) == shape


# ---- edits of a proto and of a text


@given(st.data())
@settings(max_examples=examples(60, 2400))
def test_an_edited_proto_reads_back_as_it_was(data: st.DataObject) -> None:
    proto = schema.HloModuleProto.FromString(zoo_proto())
    every = [instruction for computation in proto.computations for instruction in computation.instructions]
    for _ in range(data.draw(st.integers(1, 6))):
        edited = data.draw(st.sampled_from(every))
        what = data.draw(st.sampled_from(["op_name", "frame", "space", "attributes", "target", "config", "file"]))
        if what == "op_name":
            edited.metadata.op_name = data.draw(TEXT).encode()
        elif what == "frame":
            edited.metadata.stack_frame_id = data.draw(st.integers(0, 4))
        elif what == "space":
            edited.shape.layout.memory_space = data.draw(st.sampled_from([0, 1, 5]))
        elif what == "attributes":
            edited.frontend_attributes.map[data.draw(KEYS)] = data.draw(TEXT).encode()
        elif what == "target":
            edited.custom_call_target = data.draw(st.binary(max_size=9))
        elif what == "config":
            edited.backend_config = data.draw(st.binary(max_size=9))
        else:
            edited.metadata.source_file = data.draw(TEXT).encode()
    module = parse_proto(proto.SerializeToString())
    assert list(all_differences(parse_text(print_module(module)), module)) == []


@given(st.data())
@settings(max_examples=examples(150, 3000), suppress_health_check=[HealthCheck.filter_too_much])
def test_a_damaged_text_that_can_be_printed_reads_back_as_it_was(data: st.DataObject) -> None:
    text = zoo_text()
    start = data.draw(st.integers(text.index("%add"), len(text) - 1))
    end = min(len(text), start + data.draw(st.integers(0, 12)))
    inserted = data.draw(st.sampled_from(["", "%", " ", ", ", "x", "{", "}", "(", ")", '"', "\n", "#1", "S(5)", "= "]))
    try:
        module = parse_text(text[:start] + inserted + text[end:])
        printed = print_module(module)
    except HloParseError:
        return
    assert list(all_differences(parse_text(printed), module)) == []
