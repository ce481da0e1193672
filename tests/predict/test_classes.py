"""Classes of instructions, on modules written by hand and on real ones of the corpus."""

from __future__ import annotations

import lzma
from collections import Counter
from pathlib import Path

import pytest

from hloinspect.hlo import load_module, load_module_bytes
from hloinspect.hlo.access import is_free
from hloinspect.hlo.model import Module
from hloinspect.offload.transfers import find_offload
from hloinspect.predict.classes import class_of

HEAD = "HloModule m, is_scheduled=true\n\n"
ADD = """
%add (a: f32[], b: f32[]) -> f32[] {
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  ROOT %s = f32[] add(%a, %b)
}
"""


def classes(module: Module) -> dict[str, str]:
    """Return the class of every instruction that the device executes and that takes time."""
    return {
        instruction.name: class_of(module, computation, instruction)
        for computation in find_offload(module).program.computations()
        for instruction in computation
        if not is_free(instruction)
    }


def entry(body: str, extra: str = "") -> dict[str, str]:
    text = f"{HEAD}{ADD}{extra}\nENTRY %main (x: f32[8,8]) -> f32[8,8] {{\n  %x = f32[8,8] parameter(0)\n{body}\n}}\n"
    return classes(load_module_bytes(text.encode()))


def fusion_of(lines: str, root: str = "f32[8,8]") -> str:
    """Return the class of a fusion with these instructions in its body."""
    body = f"\n%body (p: f32[8,8]) -> {root} {{\n  %p = f32[8,8] parameter(0)\n{lines}\n}}\n"
    found = entry(f"  %f = {root} fusion(%x), kind=kLoop, calls=%body\n  ROOT %r = f32[8,8] copy(%x)", extra=body)
    return found["f"]


@pytest.mark.parametrize(
    ("lines", "root", "expected"),
    [
        ("  ROOT %n = f32[8,8] negate(%p)", "f32[8,8]", "loop"),
        ("  ROOT %n = f32[8,8] copy(%p)", "f32[8,8]", "copy"),
        ("  ROOT %n = f32[4,8] slice(%p), slice={[0:4], [0:8]}", "f32[4,8]", "copy"),
        ("  ROOT %n = f32[8,8]{1,0} transpose(%p), dimensions={1,0}", "f32[8,8]", "transpose"),
        (
            "  %z = f32[] constant(0)\n  %t = f32[8,8] transpose(%p), dimensions={1,0}\n"
            "  ROOT %n = f32[8] reduce(%t, %z), dimensions={1}, to_apply=%add",
            "f32[8]",
            "reduce",
        ),
        ("  ROOT %n = f32[16,8] concatenate(%p, %p), dimensions={0}", "f32[16,8]", "concatenate"),
        (
            "  %i = s32[] constant(0)\n  %u = f32[1,8] slice(%p), slice={[0:1], [0:8]}\n"
            "  ROOT %n = f32[8,8] dynamic-update-slice(%p, %u, %i, %i)",
            "f32[8,8]",
            "dynamic-update-slice",
        ),
        (
            "  %t = f32[8,8] transpose(%p), dimensions={1,0}\n"
            "  ROOT %n = f32[8,8] dot(%p, %t), lhs_contracting_dims={1}, rhs_contracting_dims={0}",
            "f32[8,8]",
            "matmul",
        ),
    ],
)
def test_a_fusion_is_of_the_class_of_its_hero(lines: str, root: str, expected: str) -> None:
    assert fusion_of(lines, root) == expected


@pytest.mark.parametrize(
    ("target", "name", "expected"),
    [
        ("__cublas$gemm", "custom-call.1", "matmul"),
        ("__cublas$lt$matmul$f8", "custom-call.1", "matmul"),
        ("__cudnn$fmhaSoftmax", "custom-call.1", "attention"),
        ("te_fused_attn_backward_ffi", "custom-call.1", "attention"),
        ("tpu_custom_call", "splash_mha_fwd_residuals.2", "attention"),
        ("__cudnn$convForward", "cudnn-conv.1", "convolution"),
        ("__cub$DeviceRadixSort", "custom-call.1", "sort"),
        ("my_kernel", "custom-call.1", "custom call"),
    ],
)
def test_a_library_call_is_of_the_class_of_its_target(target: str, name: str, expected: str) -> None:
    assert entry(f'  ROOT %{name} = f32[8,8] custom-call(%x), custom_call_target="{target}"')[name] == expected


def test_an_async_start_and_its_wait_are_of_the_class_of_what_they_start() -> None:
    extra = """
%wrapped (p: f32[8,8]) -> f32[4,8] {
  %p = f32[8,8] parameter(0)
  ROOT %rs = f32[4,8] reduce-scatter(%p), replica_groups={{0,1}}, dimensions={0}, to_apply=%add
}
"""
    found = entry(
        "  %s = ((f32[8,8]), f32[4,8]) async-start(%x), calls=%wrapped\n"
        "  %g = (f32[8,8], f32[16,8]) all-gather-start(%x), replica_groups={{0,1}}, dimensions={0}\n"
        "  %gd = f32[16,8] all-gather-done(%g)\n"
        "  %d = f32[4,8] async-done(%s)\n  ROOT %r = f32[8,8] copy(%x)",
        extra,
    )
    assert found == {"s": "reduce-scatter", "d": "reduce-scatter", "g": "all-gather", "gd": "all-gather", "r": "copy"}


def test_a_tpu_writes_matrix_products_as_convolutions(corpus: Path) -> None:
    module = load_module(corpus / "hlo" / "tpu_llama_train_no_offload.after_optimizations.hlo.gz")
    counts = Counter(classes(module).values())
    assert "convolution" not in counts
    assert counts["matmul"] == 31
    assert counts["attention"] == 3
    assert counts["all-gather"] == 42  # 21 pairs
    assert counts["scatter"] == 1


def test_fusions_of_a_tpu_that_work_beside_a_collective_are_no_collective(corpus: Path) -> None:
    found = classes(load_module(corpus / "hlo" / "tpu_v5e_act_scan.hlo"))
    gathers = {name for name, kind in found.items() if kind == "all-gather"}
    assert gathers == {
        *("async-collective-start", "async-collective-start.1"),
        *("async-collective-done", "async-collective-done.1"),
    }


def test_the_h100_step_has_as_many_products_as_calls_of_cublas(corpus: Path) -> None:
    path = corpus / "gpu" / "h100_maxtext_fsdp4" / "module_0016.jit_train_step.sm_9.0_gpu_after_optimizations.hlo.pb.xz"
    module = load_module_bytes(lzma.decompress(path.read_bytes()))
    found = classes(module)
    assert Counter(found.values())["matmul"] == 147 + 12  # calls, and fusions around calls that slice
    assert found["input_scatter_fusion"] == "scatter"
    assert found["reduce-scatter-start"] == "reduce-scatter"
