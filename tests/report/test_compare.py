"""Two modules with a known difference: what is said of them, and how much."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hloinspect.hlo import load_module, load_module_bytes
from hloinspect.offload.program import CONTROL_FLOW
from hloinspect.offload.transfers import find_offload
from hloinspect.report.compare import Comparison, _moved, compare_forms
from hloinspect.report.form import Form, form_of
from tests.support.modules_changed import RENAMED, line_of, renamed, source_of, swapped
from tests.support.places import FIXTURES
from tests.support.thorough import examples

SCAN, UNROLLED = "jax0.12.0.1/gb200_offload_scan", "jax0.12.0.1/gb200_offload_unrolled"
WORDS = ("compiled", "ran")

PRODUCTS = """HloModule m, is_scheduled=true

g {
  p = bf16[64,32]{1,0} parameter(0)
  q = bf16[32,16]{1,0} parameter(1)
  ROOT d = bf16[64,16]{1,0} dot(p, q), lhs_contracting_dims={1}, rhs_contracting_dims={0}
}

ENTRY main {
  a = bf16[64,32]{1,0} parameter(0)
  b = bf16[32,16]{1,0} parameter(1)
  c = PRODUCT
  ROOT e = bf16[64,16]{1,0} negate(c)
}
"""
TRITON = (
    'bf16[64,16]{1,0} fusion(a, b), kind=kCustom, calls=g, backend_config={"fusion_backend_config":'
    '{"kind":"__triton_gemm","triton_gemm_config":{"block_m":"64","block_n":"16","block_k":"32","num_warps":"4"}}}'
)
CUBLAS = (
    '(bf16[64,16]{1,0}, s8[4096]{0}) custom-call(a, b), custom_call_target="__cublas$gemm", '
    'backend_config={"gemm_backend_config":{"selected_algorithm":"13","epilogue":"DEFAULT","beta":0}}'
)


def form(text: str) -> Form:
    return form_of(find_offload(load_module_bytes(text.encode())))


@cache
def of_fixture(name: str) -> Form:
    return form(source_of(name))


def compared(ours: Form, theirs: Form) -> Comparison:
    return compare_forms(ours, theirs, WORDS)


def product(text: str) -> str:
    if not text.startswith("("):
        return PRODUCTS.replace("PRODUCT", text)
    taken = "  x = bf16[64,16]{1,0} get-tuple-element(c), index=0\n  ROOT e = bf16[64,16]{1,0} negate(x)"
    return PRODUCTS.replace("PRODUCT", text).replace("  ROOT e = bf16[64,16]{1,0} negate(c)", taken)


@given(st.sampled_from(RENAMED), st.integers(0, 1 << 32))
@settings(max_examples=examples(6, 60))
def test_a_renamed_module_is_the_same(name: str, seed: int) -> None:
    found = compared(of_fixture(name), form(renamed(source_of(name), random.Random(seed))))
    assert (found.status, found.differences) == ("same", ())
    counts = found.counts
    assert (counts.instructions, counts.transfers, counts.pairs, counts.order, counts.kernels) == (0, 0, 0, 0, 0)


@cache
def neighbours(name: str) -> Sequence[tuple[str, str, int]]:
    """Return pairs of names of instructions of which the second comes right after the first and does not need it, and
    the number of transfers that have one of both between start and done, but not the other."""
    own = of_fixture(name)
    text, found = source_of(name), []
    transfers = own.offload.transfers
    for computation in own.offload.program.computations():
        steps = own.steps[computation.name]
        for place in range(len(computation) - 1):
            one, other = computation.instruction(place), computation.instruction(place + 1)
            if place not in steps or place + 1 not in steps or steps[place].value == steps[place + 1].value:
                continue
            if one.opcode in CONTROL_FLOW and other.opcode in CONTROL_FLOW:
                continue
            lines = line_of(text, one.name), line_of(text, other.name)
            needed = re.search(rf"%{re.escape(one.name)}(?![\w.\-])", lines[1].partition(" = ")[2])
            if needed or "control-predecessors" in lines[1] or "ROOT" in lines[0] + lines[1]:
                continue
            ends = {(t.computation, t.start) for t in transfers} | {(t.done_computation, t.done) for t in transfers}
            crossed = sum((computation.name, i.name) in ends for i in (one, other))
            found.append((one.name, other.name, crossed))
    return found


@given(st.sampled_from([SCAN, UNROLLED]), st.data())
@settings(max_examples=examples(10, 150))
def test_two_independent_neighbours_swapped_are_one_instruction_at_another_place(
    name: str, data: st.DataObject
) -> None:
    first, second, crossed = data.draw(st.sampled_from(neighbours(name)))
    found = compared(of_fixture(name), form(swapped(source_of(name), first, second)))
    assert found.status == "other order"
    assert (found.counts.instructions, found.counts.transfers, found.counts.kernels) == (0, 0, 0)
    assert found.counts.order == 1
    assert bool(found.counts.pairs) == bool(crossed)
    assert any(line.startswith("order: 1 of ") for line in found.differences)
    assert found.differences[-1].startswith("before scheduling both were the same")


def test_a_fixture_has_neighbours_beside_a_transfer_and_others() -> None:
    assert {bool(crossed) for name in (SCAN, UNROLLED) for _, _, crossed in neighbours(name)} == {True, False}


@given(st.lists(st.integers(0, 7), max_size=9, unique=True), st.randoms())
def test_moved_instructions_are_those_outside_the_longest_common_order(names: list[int], chance: random.Random) -> None:
    ours, theirs = list(map(str, names)), list(map(str, names))
    chance.shuffle(theirs)
    rows = [[0] * (len(theirs) + 1) for _ in range(len(ours) + 1)]  # longest common subsequence, by the textbook
    for i, one in enumerate(ours):
        for j, other in enumerate(theirs):
            rows[i + 1][j + 1] = rows[i][j] + 1 if one == other else max(rows[i][j + 1], rows[i + 1][j])
    assert _moved(ours, theirs) == len(ours) - rows[-1][-1]


@pytest.mark.parametrize(("name", "of"), [(SCAN, 31), (UNROLLED, 115)])
def test_another_setting_of_a_kernel_is_another_kernel_in_the_same_schedule(name: str, of: int) -> None:
    text = source_of(name)
    assert text.count('"num_warps":"4"') > 1
    found = compared(of_fixture(name), form(text.replace('"num_warps":"4"', '"num_warps":"8"', 1)))
    assert (found.status, found.counts.kernels, found.counts.order) == ("other kernels", 1, 0)
    (line,) = found.differences
    assert re.fullmatch(
        rf"kernels: 1 of {of} are other ones: 1 x Triton [\dx]+, 4 warps -> Triton [\dx]+, 8 warps", line
    )


def test_a_product_by_a_library_or_by_triton_is_the_same_schedule_with_another_kernel() -> None:
    found = compared(form(product(TRITON)), form(product(CUBLAS)))
    assert found.status == "other kernels"
    assert found.differences == ("kernels: 1 of 1 are other ones: 1 x Triton 64x16x32, 4 warps -> cuBLAS algorithm 13",)
    other = product(CUBLAS.replace('"13"', '"7"').replace("s8[4096]", "s8[1024]"))
    found = compared(form(product(CUBLAS)), form(other))
    assert found.differences == ("kernels: 1 of 1 are other ones: 1 x cuBLAS algorithm 13 -> cuBLAS algorithm 7",)
    assert compared(form(product(CUBLAS)), form(product(CUBLAS))).status == "same"


@pytest.mark.parametrize(
    ("old", "new"), [('"DEFAULT"', '"BIAS"'), ('"beta":0', '"beta":1'), ("__cublas$gemm", "other_library")]
)
def test_a_product_that_does_more_is_another_instruction(old: str, new: str) -> None:
    found = compared(form(product(CUBLAS)), form(product(CUBLAS.replace(old, new))))
    assert found.status == "different"  # nothing moves in either
    assert found.counts.instructions == 1


def test_a_fusion_with_more_than_a_product_is_another_instruction() -> None:
    more = PRODUCTS.replace("ROOT d = bf16[64,16]{1,0} dot", "d = bf16[64,16]{1,0} dot")
    more = more.replace("rhs_contracting_dims={0}\n", "rhs_contracting_dims={0}\n  ROOT n = bf16[64,16]{1,0} tanh(d)\n")
    found = compared(form(PRODUCTS.replace("PRODUCT", TRITON)), form(more.replace("PRODUCT", TRITON)))
    assert found.counts.instructions == 1


@pytest.mark.parametrize("version", ["jax0.10.2", "jax0.12.0.1"])
def test_offloading_less_is_another_program(version: str) -> None:
    ours, theirs = (of_fixture(f"{version}/gb200_{name}") for name in ("offload_scan", "save"))
    for one, other, count in ((ours, theirs, len(ours.offload.transfers)), (theirs, ours, len(ours.offload.transfers))):
        found = compared(one, other)
        assert (found.status, found.counts.transfers) == ("different", count)
        assert found.differences[0].startswith("transfers ")


@pytest.mark.parametrize("name", [SCAN, UNROLLED])
def test_without_the_latency_hiding_scheduler_the_same_moves_in_another_order(name: str) -> None:
    found = compared(of_fixture(name), of_fixture(f"{name}_unscheduled"))
    assert found.status in ("other order", "same transfers")
    assert found.counts.pairs
    assert found.counts.order
    assert found.differences[-1].startswith("before scheduling both were the same")


def test_every_fixture_is_the_same_as_itself_and_no_other_one() -> None:
    folders = sorted((FIXTURES / "jax0.12.0.1").iterdir())
    forms = {folder.name: form_of(find_offload(load_module(folder / "module.hlo.pb.gz"))) for folder in folders}
    for name, own in forms.items():
        assert [other for other, one in forms.items() if compared(own, one).status == "same"] == [name]


def test_the_latency_hiding_scheduler_changes_nothing_but_the_order(corpus: Path) -> None:
    ours, theirs = (form_of(find_offload(load_module(corpus / "hlo" / f"u_off{end}.hlo"))) for end in ("", "_nolhs"))
    found = compared(ours, theirs)
    assert (found.status, found.counts.pairs, found.counts.order) == ("other order", 16, 47)


def test_two_versions_of_jax_with_other_kernels(corpus: Path) -> None:
    names = ("jax0.9.2_act_scan.hlo", "jax0.9.0_act_scan_dump.hlo")
    found = compared(*(form_of(find_offload(load_module(corpus / "hlo" / "versions" / name))) for name in names))
    assert (found.status, found.counts.kernels, found.counts.kernels_of) == ("other kernels", 7, 7)


@pytest.mark.parametrize("name", ["ds671b_scan_mla", "ds671b_nv"])
def test_another_policy_of_one_maxtext_model_is_another_program(corpus: Path, name: str) -> None:
    dump = next((corpus / "dump_maxtext_gb200").glob("*after_optimizations.txt"))
    ours, theirs = (form_of(find_offload(load_module(p))) for p in (corpus / "maxtext" / f"{name}.hlo.gz", dump))
    found = compared(ours, theirs)
    assert found.status == "different"
    assert len(found.differences) <= 4
    assert all(len(line) < 400 for line in found.differences)
