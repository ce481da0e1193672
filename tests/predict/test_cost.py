"""Costs of instructions, computed by hand: FLOPs of every kind of matrix product, bytes of fusions."""

from __future__ import annotations

import gzip
from pathlib import Path
from textwrap import dedent

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hloinspect.hardware import load_target
from hloinspect.hlo import Module
from hloinspect.hlo.load import load_module_bytes
from hloinspect.predict.convolution import valid_products
from hloinspect.predict.cost import Cost, cost_of, peak_flops
from hloinspect.predict.scenario import scenarios
from hloinspect.predict.schedule import side_cost


def module(entry: str, *, before: str = "", platform: str = "gpu") -> Module:
    """Return a module whose entry has these lines. A TPU is recognised by its tiled layouts."""
    lines = "\n".join("  " + line.strip() for line in entry.strip().splitlines())
    tile = "  tpu.tile = f32[8,128]{1,0:T(8,128)} iota(), iota_dimension=0\n" if platform == "tpu" else ""
    text = f"HloModule m, is_scheduled=true\n\n{dedent(before)}\nENTRY main {{\n{tile}{lines}\n}}\n"
    return load_module_bytes(text.encode())


def cost(what: Module, name: str) -> Cost:
    instruction = what.entry.find(name)
    assert instruction is not None
    return cost_of(what, what.entry, instruction)


# matrix products


def test_a_dot_takes_two_flops_for_each_pair_of_elements_that_meet() -> None:
    # [3, 64, 128] x [3, 128, 32] over 128: 2 x 3 x 64 x 32 x 128.
    what = module(
        """
        a = bf16[3,64,128]{2,1,0} parameter(0)
        b = bf16[3,128,32]{2,1,0} parameter(1)
        ROOT d = bf16[3,64,32]{2,1,0} dot(a, b), DIMENSIONS
        """.replace(
            "DIMENSIONS",
            "lhs_batch_dims={0}, lhs_contracting_dims={2}, rhs_batch_dims={0}, rhs_contracting_dims={1}",
        )
    )
    found = cost(what, "d")
    assert found.matrix_flops == 2 * 3 * 64 * 32 * 128
    assert found.matrix_dtype == "bf16"
    assert found.bytes == 2 * (3 * 64 * 128 + 3 * 128 * 32 + 3 * 64 * 32)


def test_a_dot_that_contracts_two_dimensions_counts_both() -> None:
    what = module(
        """
        a = f32[4,5,6]{2,1,0} parameter(0)
        b = f32[5,6,7]{2,1,0} parameter(1)
        ROOT d = f32[4,7]{1,0} dot(a, b), lhs_contracting_dims={1,2}, rhs_contracting_dims={0,1}
        """
    )
    assert cost(what, "d").matrix_flops == 2 * 4 * 7 * 30


def test_a_dot_inside_nested_fusions_is_found() -> None:
    before = """
    inner (p: bf16[8,16], q: bf16[16,4]) -> bf16[8,4] {
      p = bf16[8,16]{1,0} parameter(0)
      q = bf16[16,4]{1,0} parameter(1)
      ROOT d = bf16[8,4]{1,0} dot(p, q), lhs_contracting_dims={1}, rhs_contracting_dims={0}
    }
    outer (p: bf16[8,16], q: bf16[16,4]) -> bf16[8,4] {
      p = bf16[8,16]{1,0} parameter(0)
      q = bf16[16,4]{1,0} parameter(1)
      ROOT f = bf16[8,4]{1,0} fusion(p, q), kind=kCustom, calls=inner
    }
    """
    what = module(
        """
        a = bf16[8,16]{1,0} parameter(0)
        b = bf16[16,4]{1,0} parameter(1)
        ROOT f = bf16[8,4]{1,0} fusion(a, b), kind=kCustom, calls=outer
        """,
        before=before,
    )
    assert cost(what, "f").matrix_flops == 2 * 8 * 4 * 16


CUBLAS = (
    'custom_call_target="__cublas$lt$matmul", backend_config={"gemm_backend_config":{"dot_dimension_numbers":'
    '{"lhs_contracting_dimensions":["1"],"rhs_contracting_dimensions":["0"],"lhs_batch_dimensions":[],'
    '"rhs_batch_dimensions":[]}}}'
)


def test_a_cublas_call_has_its_contracted_size_in_its_backend_config() -> None:
    # 16384 x 8192 times 8192 x 53248, with a workspace that takes no part.
    what = module(
        f"""
        a = bf16[16384,8192]{{1,0}} parameter(0)
        b = bf16[8192,53248]{{1,0}} parameter(1)
        ROOT c = (bf16[16384,53248]{{1,0}}, s8[4194304]{{0}}) custom-call(a, b), {CUBLAS}
        """
    )
    found = cost(what, "c")
    assert found.matrix_flops == 2 * 16384 * 53248 * 8192
    assert found.known


def test_a_cublas_call_that_cannot_be_read_is_said_to_be_unknown() -> None:
    what = module(
        """
        a = bf16[16,8]{1,0} parameter(0)
        ROOT c = bf16[16,8]{1,0} custom-call(a), custom_call_target="__cublas$gemm"
        """
    )
    assert not cost(what, "c").known


def attention(target: str, mask: str, result: str) -> Cost:
    """Return the cost of attention over 1 x 128 heads, 8192 queries and keys, head size 128."""
    config = (
        '{"cudnn_fmha_backend_config":{"intermediate_tensor_shape":{"dimensions":["1","128","8192","8192"]},'
        f'"mask_type":"{mask}"}}}}'
    )
    what = module(
        f"""
        q = bf16[1,8192,128,128]{{3,2,1,0}} parameter(0)
        k = bf16[1,8192,8,128]{{3,2,1,0}} parameter(1)
        ROOT c = ({result}, u8[0]{{0}}) custom-call(q, k, k), custom_call_target="{target}", backend_config={config}
        """
    )
    return cost(what, "c")


QUERY = "bf16[1,8192,128,128]{3,2,1,0}"


def test_attention_is_two_products_of_queries_and_keys() -> None:
    # Q K^T and P V, each 2 x 128 heads x 8192 x 8192 x 128.
    found = attention("__cudnn$fmhaSoftmax", "NO_MASK", QUERY)
    assert found.matrix_flops == 2 * (2 * 128 * 8192 * 8192 * 128)


def test_a_causal_mask_halves_attention() -> None:
    assert attention("__cudnn$fmhaSoftmax", "CAUSAL", QUERY).matrix_flops == 2 * 128 * 8192 * 8192 * 128


def test_the_backward_pass_of_attention_is_five_products() -> None:
    found = attention("__cudnn$fmhaSoftmaxBackward", "CAUSAL", f"{QUERY}, {QUERY}")
    assert found.matrix_flops == 5 * (2 * 128 * 8192 * 8192 * 128) / 2


@given(
    st.integers(1, 9),
    st.integers(1, 9),
    st.integers(1, 6),
    st.integers(1, 4),
    st.integers(-3, 5),
    st.integers(1, 5),
    st.integers(1, 3),
)
def test_products_of_a_convolution_are_the_places_where_the_window_meets_an_element(
    inputs: int, outputs: int, size: int, stride: int, pad: int, lhs_dilate: int, rhs_dilate: int
) -> None:
    elements = {place * lhs_dilate for place in range(inputs)}
    met = sum(
        output * stride - pad + position * rhs_dilate in elements
        for output in range(outputs)
        for position in range(size)
    )
    assert valid_products(inputs, outputs, size, stride, pad, lhs_dilate, rhs_dilate) == met


def test_a_tpu_writes_a_batched_product_as_a_convolution_that_mostly_misses() -> None:
    # [2048, 4096] x [4096, 2, 512], as in a TPU step: one input place, two output places, a window of two and padding
    # 1_1 make four pairs, of which two meet the element: 2 x 2 x 2048 x 4096 x 512.
    what = module(
        """
        a = bf16[2048,4096,1]{2,1,0} parameter(0)
        b = bf16[4096,2,512]{2,1,0} parameter(1)
        ROOT c = bf16[2048,2,512]{2,1,0} convolution(a, b), WINDOW, dim_labels=bf0_i0o->b0f
        """.replace("WINDOW", "window={size=2 pad=1_1 rhs_reversal=1}")
    )
    assert cost(what, "c").matrix_flops == 2 * 2 * 2048 * 4096 * 512


def test_an_image_convolution_counts_its_window_without_the_padding() -> None:
    # 8 x 8, window 3 x 3, padding 1: 64 x 9 pairs less those in the padding: (3 x 8 - 2) squared = 484.
    what = module(
        """
        a = f32[2,8,8,3]{3,2,1,0} parameter(0)
        b = f32[3,3,3,16]{3,2,1,0} parameter(1)
        ROOT c = f32[2,8,8,16]{3,2,1,0} convolution(a, b), window={size=3x3 pad=1_1x1_1}, dim_labels=b01f_01io->b01f
        """
    )
    assert cost(what, "c").matrix_flops == 2 * 484 * 2 * 3 * 16


def test_a_grouped_convolution_counts_the_features_of_one_group() -> None:
    # 4 groups of 2 input features; the kernel already has 2.
    what = module(
        """
        a = f32[1,5,8]{2,1,0} parameter(0)
        b = f32[1,2,8]{2,1,0} parameter(1)
        ROOT c = f32[1,5,8]{2,1,0} convolution(a, b), window={size=1}, dim_labels=b0f_0io->b0f, feature_group_count=4
        """
    )
    assert cost(what, "c").matrix_flops == 2 * 5 * 2 * 8


def test_a_convolution_with_batch_groups_counts_the_batch_of_one_group() -> None:
    # The gradient of a grouped convolution's kernel: 4 groups of 3 images, each with its own 2 output features.
    what = module(
        """
        a = f32[12,5,6]{2,1,0} parameter(0)
        b = f32[5,6,8]{2,1,0} parameter(1)
        ROOT c = f32[3,1,8]{2,1,0} convolution(a, b), window={size=5}, dim_labels=b0f_0io->b0f, batch_group_count=4
        """
    )
    assert cost(what, "c").matrix_flops == 2 * 5 * 3 * 6 * 8


# bytes


def fused(body: str, entry: str) -> Cost:
    return cost(module(entry, before=f"\nfused {{\n{body}\n}}\n"), "f")


def test_a_fusion_that_takes_a_slice_reads_the_slice() -> None:
    # One row of 1000 floats of [100, 1000] in, the index (4 bytes) and the row out.
    found = fused(
        """
        p = f32[100,1000]{1,0} parameter(0)
        i = s32[] parameter(1)
        z = s32[] constant(0)
        ROOT s = f32[1,1000]{1,0} dynamic-slice(p, i, z), dynamic_slice_sizes={1,1000}
        """,
        """
        a = f32[100,1000]{1,0} parameter(0)
        i = s32[] parameter(1)
        ROOT f = f32[1,1000]{1,0} fusion(a, i), kind=kLoop, calls=fused
        """,
    )
    assert found.bytes == 4000 + 4000 + 4


def test_a_fusion_that_updates_in_place_writes_the_update() -> None:
    found = fused(
        """
        p = f32[100,1000]{1,0} parameter(0)
        u = f32[1,1000]{1,0} parameter(1)
        i = s32[] parameter(2)
        z = s32[] constant(0)
        n = f32[1,1000]{1,0} negate(u)
        ROOT s = f32[100,1000]{1,0} dynamic-update-slice(p, n, i, z)
        """,
        """
        a = f32[100,1000]{1,0} parameter(0)
        u = f32[1,1000]{1,0} parameter(1)
        i = s32[] parameter(2)
        ROOT f = f32[100,1000]{1,0} fusion(a, u, i), kind=kLoop, calls=fused
        """,
    )
    assert found.bytes == 4000 + 4000 + 4
    assert found.vector_flops == 1000


def test_a_fusion_of_several_results_writes_each_of_them() -> None:
    found = fused(
        """
        p = f32[1000]{0} parameter(0)
        n = f32[1000]{0} negate(p)
        h = bf16[1000]{0} convert(p)
        ROOT t = (f32[1000]{0}, bf16[1000]{0}) tuple(n, h)
        """,
        """
        a = f32[1000]{0} parameter(0)
        ROOT f = (f32[1000]{0}, bf16[1000]{0}) fusion(a), kind=kLoop, calls=fused
        """,
    )
    assert found.bytes == 4000 + 4000 + 2000


def test_a_parameter_that_a_fusion_hands_through_is_not_written() -> None:
    found = fused(
        """
        p = f32[1000]{0} parameter(0)
        n = f32[1000]{0} negate(p)
        ROOT t = (f32[1000]{0}, f32[1000]{0}) tuple(n, p)
        """,
        """
        a = f32[1000]{0} parameter(0)
        ROOT f = (f32[1000]{0}, f32[1000]{0}) fusion(a), kind=kLoop, calls=fused
        """,
    )
    assert found.bytes == 4000 + 4000


def test_transcendentals_cost_more_than_additions() -> None:
    what = module(
        """
        a = f32[1000]{0} parameter(0)
        e = f32[1000]{0} exponential(a)
        ROOT s = f32[1000]{0} add(e, a)
        """
    )
    assert cost(what, "s").vector_flops == 1000
    assert cost(what, "e").vector_flops == 8000


def test_what_lies_in_a_tpus_vector_memory_costs_no_hbm_bandwidth() -> None:
    # The operand has been prefetched into VMEM, S(1); the result goes to HBM.
    what = module(
        """
        a = f32[1024]{0:T(1024)S(1)} parameter(0)
        ROOT n = f32[1024]{0:T(1024)} negate(a)
        """,
        platform="tpu",
    )
    assert what.platform == "tpu"
    assert cost(what, "n").bytes == 4096


def test_a_prefetch_only_reads_hbm_and_a_copy_reads_and_writes_it() -> None:
    what = module(
        """
        a = f32[1024]{0:T(1024)} parameter(0)
        p = (f32[1024]{0:T(1024)S(1)}, f32[1024]{0:T(1024)}, u32[]{:S(2)}) copy-start(a)
        c = (f32[1024]{0:T(1024)}, f32[1024]{0:T(1024)}, u32[]{:S(2)}) copy-start(a)
        ROOT n = f32[1024]{0:T(1024)} negate(a)
        """,
        platform="tpu",
    )
    prefetch, copy = what.entry.find("p"), what.entry.find("c")
    assert prefetch is not None
    assert copy is not None
    assert side_cost(what, prefetch).bytes == 4096
    assert side_cost(what, copy).bytes == 8192


# times


def test_a_kernel_takes_as_long_as_its_narrowest_resource() -> None:
    # gb200: 2.5e15 x 0.75 bf16 FLOP/s, 7.928e12 x 0.9 B/s, 3 us between launches.
    target = load_target("gb200")
    central = scenarios(target, 1)[0]
    compute = Cost(matrix_flops=1.875e12, matrix_dtype="bf16", bytes=7)
    memory = Cost(matrix_flops=1.0, matrix_dtype="bf16", bytes=71_352_000_000)
    launch = Cost(bytes=8)
    assert compute.time_ps(target, central) == pytest.approx(1e9)
    assert memory.time_ps(target, central) == pytest.approx(1e10)
    assert launch.time_ps(target, central) == pytest.approx(3e6)
    assert [c.bound(target, central) for c in (compute, memory, launch)] == ["compute", "memory", "launch"]


def test_a_type_that_a_target_does_not_list_runs_like_the_next_wider_one() -> None:
    target = load_target("gb200")
    assert peak_flops(target, "f8e3m4") == 2.5e15
    assert peak_flops(target, "s32") == peak_flops(target, "f32")


# real lines


def test_a_cublas_call_of_a_real_step_is_priced_by_its_dimensions(corpus: Path) -> None:
    # llama 405B: the layer's down projection, [8192, 53248] x [53248, 16384], stands in the step among others; each
    # call's FLOPs must follow from the sizes of its operands: sqrt(lhs x rhs x result) = m n k for a plain product.
    with gzip.open(corpus / "maxtext" / "llama405b_nv.hlo.gz") as file:
        what = load_module_bytes(file.read())
    seen = 0
    for computation in what.computations.values():
        for instruction in computation:
            if instruction.custom_call_target == "__cublas$lt$matmul":
                shapes = [what.shape_of(computation, operand) for operand in instruction.operands[:2]]
                elements = [shape.element_count for shape in shapes if shape is not None]
                elements.append(instruction.shape.leaves[0][1].element_count)
                product = (elements[0] * elements[1] * elements[2]) ** 0.5
                assert cost_of(what, computation, instruction).matrix_flops == pytest.approx(2 * product)
                seen += 1
    assert seen > 10
