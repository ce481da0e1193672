"""The work of Pallas kernels on TPUs, compared with what MLIR reads in the kernels themselves: ``expected.json`` has
each one's grid and the products of a block (fixtures/generate.py)."""

from __future__ import annotations

import gzip
import json
from math import prod
from pathlib import Path
from typing import Any

import pytest

from hloinspect.analyze.inspect import inspect
from hloinspect.hlo import Module
from hloinspect.hlo.load import load_module_bytes
from hloinspect.predict.cost import Cost, cost_of
from tests.support.places import FIXTURES

FIXTURE = FIXTURES / "jax0.12.0.1" / "v5p_pallas_kernels"
KERNELS: dict[str, Any] = json.loads((FIXTURE / "expected.json").read_text())["kernels"]
HEADS, LENGTH = 6, 2048
SPLASH = sorted(name for name in KERNELS if name.startswith("splash"))
FLASH = sorted(name for name in KERNELS if "flash" in name)
WINDOWS = {"window": 300, "wide_window": 1000}  # as fixtures/steps.py has them


@pytest.fixture(scope="module")
def compiled() -> Module:
    return load_module_bytes(gzip.decompress((FIXTURE / "module.hlo.txt.gz").read_bytes()))


def cost(module: Module, name: str) -> Cost:
    call = module.entry.find(name)
    assert call is not None
    return cost_of(module, module.entry, call)


def blocks_with_work(scope: str, queries: int, keys: int) -> int:
    """Return the blocks of one head in which some query sees some key, by the corner that sees the most."""
    window = WINDOWS.get(scope, LENGTH)
    count = 0
    for query in range(0, LENGTH, queries):
        for key in range(0, LENGTH, keys):
            too_late, too_early = key > query + queries - 1, key + keys - 1 < query - window
            count += scope == "full" or not (too_late or too_early)
    return count


@pytest.mark.parametrize("name", SPLASH)
def test_splash_attention_makes_its_products_in_each_block_that_its_mask_leaves(compiled: Module, name: str) -> None:
    kernel = KERNELS[name]
    rows, _, columns = kernel["products"][0]  # of the scores: keys by queries in the kernel that gives dK and dV
    queries, keys = (columns, rows) if "dkv" in name else (rows, columns)
    in_a_block = sum(2 * prod(product) for product in kernel["products"])
    found = cost(compiled, name)
    assert found.known
    assert found.matrix_dtype == "bf16"
    assert found.matrix_flops == HEADS * blocks_with_work(kernel["scope"], queries, keys) * in_a_block


def test_the_fixture_has_each_of_the_kernels_and_masks() -> None:
    products = sorted(len(KERNELS[name]["products"]) for name in SPLASH)
    assert products == [2] * 8 + [3] * 7 + [4] * 7 + [5]
    scopes = {"causal", "uneven", "fused", "window", "wide_window", "full", "grouped", "minor_length"}
    assert {KERNELS[name]["scope"] for name in SPLASH} == scopes


@pytest.mark.parametrize("name", FLASH)
def test_flash_attention_is_priced_as_if_it_had_no_mask(compiled: Module, name: str) -> None:
    kernel = KERNELS[name]
    exact = prod(kernel["grid"]) * sum(2 * prod(product) for product in kernel["products"])
    assert cost(compiled, name).matrix_flops == pytest.approx(exact, rel=0.01)  # forward: its author's estimate


def test_a_grouped_product_has_its_authors_estimate(compiled: Module) -> None:
    found = cost(compiled, "gmm.1")
    assert (found.matrix_flops, found.matrix_dtype, found.known) == (2 * 1024 * 512 * 512, "bf16", True)


def test_a_report_names_the_kernels_that_were_priced_by_their_bytes_and_no_others() -> None:
    report = inspect(FIXTURE / "module.hlo.txt.gz", target="v5p", link="32GB/s").report
    assert not [limit for limit in report.limits if "by their bytes" in limit]


def test_an_opaque_kernel_is_named_by_its_own_name_once(tmp_path: Path) -> None:
    names = ["my_kernel_v2.1", "my_kernel_v2.7.clone", "custom-call.3", *(f"k{i}" for i in range(9))]
    lines = "\n".join(
        f'  %{name} = bf16[4,256]{{1,0}} custom-call(%t), custom_call_target="tpu_custom_call"' for name in names
    )
    path = tmp_path / "m.hlo"
    path.write_text(
        "HloModule m, is_scheduled=true\n\nENTRY main {\n  %t = f32[8,128]{1,0:T(8,128)} iota(), iota_dimension=0\n"
        f"{lines}\n  ROOT %r = (bf16[4,256]{{1,0}}) tuple(%k0)\n}}\n"
    )
    limits = inspect(path, target="v5p", link="32GB/s").report.limits
    assert [limit for limit in limits if "by their bytes" in limit] == [
        "priced by their bytes alone: tpu_custom_call, tpu_custom_call (k0), tpu_custom_call (k1), "
        "tpu_custom_call (k2), tpu_custom_call (k3), tpu_custom_call (k4) and 5 more"
    ]


def call(name: str, config: str, operands: str, attributes: str = "", result: str = "bf16[4,256,128]{2,1,0}") -> Cost:
    shapes = operands.split("; ")
    lines = [f"  p{i} = {shape} parameter({i})" for i, shape in enumerate(shapes)]
    arguments = ", ".join(f"p{i}" for i in range(len(shapes)))
    text = (
        "HloModule m, is_scheduled=true\n\nENTRY main {\n  t = f32[8,128]{1,0:T(8,128)} iota(), iota_dimension=0\n"
        + "\n".join(lines)
        + f'\n  ROOT {name} = {result} custom-call({arguments}), custom_call_target="tpu_custom_call"'
        + f"{attributes}, backend_config={config}\n}}\n"
    )
    return cost(load_module_bytes(text.encode()), name)


def metadata(settings: str) -> str:
    written = settings.replace('"', '\\"')
    return f', frontend_attributes={{kernel_metadata={{"xprof_metadata":"{written}"}}}}'


def estimate(flops: str) -> str:
    return f'{{"custom_call_config":{{"cost_estimate":{{"flops":{flops}}}}}}}'


GRID, POSITIONS = "s8[1,2,2]{2,1,0}", "s32[256,128]{1,0}"
QKV = "bf16[4,256,128]{2,1,0}; bf16[4,256,128]{2,1,0}; bf16[4,256,128]{2,1,0}"
CAUSAL = f"{GRID}; {GRID}; {QKV}; {POSITIONS}"
BLOCK = 2 * 128 * 128 * 128  # one product of a block of 128 x 128, width 128


@pytest.mark.parametrize(
    ("name", "config", "operands"),
    [
        ("my_kernel.1", "{}", QKV),
        ("splash_mha_fwd.1", "{}", "bf16[4,256,128]{2,1,0}"),
        ("splash_mha_fwdx.1", "{}", QKV),
        ("k.1", estimate('"many"'), QKV),
        ("k.1", estimate('"0"'), QKV),
        ("k.1", estimate("true"), QKV),
        ("k.1", estimate("-5"), QKV),
        ("k.1", '{"custom_call_config":{"cost_estimate":"cheap"}}', QKV),
        ("k.1", estimate('"' + "9" * 400 + '"'), QKV),
        ("k.1", '{"custom_call_config":7}', QKV),
    ],
)
def test_a_kernel_without_any_description_is_reported_as_unknown(name: str, config: str, operands: str) -> None:
    found = call(name, config, operands)
    assert (found.known, found.matrix_flops) == (False, 0.0)


def test_an_estimate_is_of_the_numbers_that_are_multiplied_and_not_of_a_table_beside_them() -> None:
    found = call("k.1", estimate("1000"), f"s32[64,256,256]{{2,1,0}}; {QKV}")
    assert (found.matrix_flops, found.matrix_dtype) == (1000, "bf16")


@pytest.mark.parametrize(
    "attributes",
    [
        "",
        ", frontend_attributes={kernel_metadata={}",
        metadata("["),
        metadata('{"block_q": 0, "block_kv": 128}'),
        metadata('{"block_q": 128, "block_kv": true}'),
        metadata('{"block_q": 4096, "block_kv": 4096}'),
        metadata("[" * 100_000),
    ],
)
def test_blocks_whose_sides_cannot_be_read_are_taken_for_square(attributes: str) -> None:
    if attributes.count("{") != attributes.count("}"):
        attributes += "}"
    assert call("splash_mha_fwd.1", "{}", CAUSAL, attributes).matrix_flops == 4 * 3 * 2 * BLOCK  # three of four blocks


def test_the_name_of_the_operation_serves_where_the_instruction_has_another() -> None:
    named = ', metadata={op_name="jit(step)/splash_mqa_dq_no_residuals/pallas_call"}'
    assert call("custom-call.1", "{}", CAUSAL, named).matrix_flops == 4 * 3 * 3 * BLOCK
    for other in ("jit(splash_mha_dq)/my_kernel/pallas_call", "splash_mha_dq/mul"):
        attributes = f', metadata={{op_name="jit(step)/{other}"}}'
        assert not call("custom-call.1", "{}", CAUSAL, attributes).known


def test_maxtexts_copy_has_its_blocks_in_its_name_and_scratch_among_its_results() -> None:
    """Use libtpu 0.0.50.1 on maxtext/kernels/attention/splash_attention_kernel.py, blocks of 64 queries and 128
    keys."""
    scratch = "f32[128,128]{1,0}"
    results = f"({scratch}, {scratch}, bf16[4,256,128]{{2,1,0}}, bf16[4,256,128]{{2,1,0}})"
    grid = "s8[1,4,2]{2,1,0}"
    operands = f"{grid}; {grid}; {QKV}; {POSITIONS}"
    found = call("splash_mha_dkv_block_kv_dkv_128_block_q_dkv_64_k_layout_1.1", "{}", operands, result=results)
    assert found.matrix_flops == 4 * (6 / 8) * 4 * 4 * BLOCK  # six of eight blocks, each a half; four products


def test_tokamaxs_copy_lists_the_blocks_to_visit_and_its_own_estimate_leaves_out_the_mask() -> None:
    sizes = metadata('{"block_q": 128, "block_kv": 128}')
    listed = "s32[]; s8[3]{0}; s8[3]{0}; s32[3]{0}; s8[3]{0}"
    found = call("splash_mha_fwd_residuals.1", estimate(str(4 * 4 * 2 * BLOCK)), f"{listed}; {QKV}; {POSITIONS}", sizes)
    assert found.matrix_flops == 4 * 3 * 2 * BLOCK


def test_queries_of_one_of_several_devices_that_share_a_sequence_see_the_average() -> None:
    """Take four devices with 256 of 1024 positions each, whose blocks are 128: 36 of 64 blocks in all."""
    operands = (
        "s8[1,2,8]{2,1,0}; s8[1,2,8]{2,1,0}; bf16[4,256,128]{2,1,0}; bf16[4,1024,128]{2,1,0}; bf16[4,1024,128]{2,1,0};"
        " s32[256,128]{1,0}"
    )
    sizes = metadata('{"block_q": 128, "block_kv": 128}')
    assert call("splash_mha_fwd_residuals.1", "{}", operands, sizes).matrix_flops == 4 * 2 * 8 * (36 / 64) * 2 * BLOCK


def test_all_heads_share_keys_and_values_in_the_kernel_for_one_head_of_them() -> None:
    operands = f"{GRID}; {GRID}; bf16[4,256,128]{{2,1,0}}; bf16[256,128]{{1,0}}; bf16[256,128]{{1,0}}; {POSITIONS}"
    assert call("splash_mqa_fwd_residuals.1", "{}", operands).matrix_flops == 4 * 3 * 2 * BLOCK


@pytest.mark.parametrize(
    "dimensions", ["5", "null", '"4444"', '["4","4","256"]', '["4","4","256","' + "9" * 5000 + '"]', "[true,4,4,4]"]
)
def test_a_descriptor_of_cudnn_that_makes_no_sense_is_said_to_be_unknown(dimensions: str) -> None:
    text = f"""HloModule m, is_scheduled=true

ENTRY main {{
  q = bf16[1,256,4,128]{{3,2,1,0}} parameter(0)
  ROOT c = (bf16[1,256,4,128]{{3,2,1,0}}, u8[0]{{0}}) custom-call(q, q, q), custom_call_target="__cudnn$fmhaSoftmax", \
backend_config={{"cudnn_fmha_backend_config":{{"intermediate_tensor_shape":{{"dimensions":{dimensions}}}}}}}
}}
"""
    found = cost(load_module_bytes(text.encode()), "c")
    assert (found.known, found.matrix_flops) == (False, 0.0)
