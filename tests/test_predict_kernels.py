"""The work of Pallas kernels on TPUs, held against what MLIR reads in the kernels themselves: ``expected.json`` has
each one's grid and the products of a block (fixtures/generate.py)."""

from __future__ import annotations

import gzip
import json
from math import prod
from pathlib import Path
from typing import Any

import pytest

from hloinspect.api import inspect
from hloinspect.hlo import Module
from hloinspect.hlo.load import load_module_bytes
from hloinspect.predict.cost import Cost, cost_of

FIXTURE = Path(__file__).resolve().parents[1] / "fixtures" / "jax0.12.0.1" / "v5p_pallas_kernels"
KERNELS: dict[str, Any] = json.loads((FIXTURE / "expected.json").read_text())["kernels"]
HEADS, LENGTH, WINDOW = 4, 2048, 512
SPLASH = sorted(name for name in KERNELS if name.startswith("splash"))
FLASH = sorted(name for name in KERNELS if "flash" in name)


@pytest.fixture(scope="module")
def compiled() -> Module:
    return load_module_bytes(gzip.decompress((FIXTURE / "module.hlo.txt.gz").read_bytes()))


def cost(module: Module, name: str) -> Cost:
    call = module.entry.find(name)
    assert call is not None
    return cost_of(module, module.entry, call)


def blocks_with_work(rows: int, columns: int, queries_are_rows: bool, window: int | None) -> int:
    """The blocks of one head in which some query sees some key, counted pair by pair of their corners."""
    queries, keys = (rows, columns) if queries_are_rows else (columns, rows)
    count = 0
    for first_query in range(0, LENGTH, queries):
        for first_key in range(0, LENGTH, keys):
            last_query, last_key = first_query + queries - 1, first_key + keys - 1
            seen_by_none = first_key > last_query or (window is not None and last_key < first_query - window)
            count += not seen_by_none
    return count


@pytest.mark.parametrize("name", SPLASH)
def test_splash_attention_makes_its_products_in_each_block_that_its_mask_leaves(compiled: Module, name: str) -> None:
    kernel = KERNELS[name]
    grid, (rows, _, columns) = kernel["grid"], kernel["products"][0]
    in_a_block = sum(2 * prod(product) for product in kernel["products"])
    whole = (LENGTH // rows) * (LENGTH // columns)
    window = WINDOW if grid[1] * grid[2] < whole and grid[0] == HEADS else None
    exact = HEADS * blocks_with_work(rows, columns, "dkv" not in name, window) * in_a_block
    found = cost(compiled, name)
    assert found.known
    assert found.matrix_dtype == "bf16"
    if window is None:
        assert found.matrix_flops == exact
    else:  # the grid of a window has a place for every row's longest part
        assert found.matrix_flops == grid[0] * grid[1] * grid[2] * in_a_block
        assert exact < found.matrix_flops < 1.2 * exact


def test_the_fixture_has_each_of_the_kernels_and_masks() -> None:
    products = sorted(len(KERNELS[name]["products"]) for name in SPLASH)
    assert products == [2, 2, 2, 3, 3, 3, 4, 4, 4, 5]  # the fused forward pass is the first one's, merged
    assert len({tuple(KERNELS[name]["grid"]) for name in SPLASH}) == 4


@pytest.mark.parametrize("name", FLASH)
def test_flash_attention_is_priced_as_if_it_had_no_mask(compiled: Module, name: str) -> None:
    kernel = KERNELS[name]
    exact = prod(kernel["grid"]) * sum(2 * prod(product) for product in kernel["products"])
    assert cost(compiled, name).matrix_flops == pytest.approx(exact, rel=0.01)  # forward: its author's own estimate


def test_a_grouped_product_has_its_authors_estimate(compiled: Module) -> None:
    found = cost(compiled, "gmm.1")
    assert (found.matrix_flops, found.matrix_dtype, found.known) == (2 * 1024 * 512 * 512, "bf16", True)


def test_a_report_does_not_say_that_any_was_priced_by_its_bytes() -> None:
    limits = inspect(FIXTURE / "module.hlo.txt.gz", target="v5p", link="32GB/s").report.limits
    assert not [limit for limit in limits if "by their bytes" in limit]


def call(name: str, config: str, operands: str, attributes: str = "") -> Cost:
    shapes = operands.split("; ")
    lines = [f"  p{i} = {shape} parameter({i})" for i, shape in enumerate(shapes)]
    arguments = ", ".join(f"p{i}" for i in range(len(shapes)))
    text = (
        "HloModule m, is_scheduled=true\n\nENTRY main {\n  t = f32[8,128]{1,0:T(8,128)} iota(), iota_dimension=0\n"
        + "\n".join(lines)
        + f'\n  ROOT {name} = bf16[4,256,128]{{2,1,0}} custom-call({arguments}), custom_call_target="tpu_custom_call"'
        + f"{attributes}, backend_config={config}\n}}\n"
    )
    return cost(load_module_bytes(text.encode()), name)


GRID, QKV = "s8[1,2,2]{2,1,0}", "bf16[4,256,128]{2,1,0}; bf16[4,256,128]{2,1,0}; bf16[4,256,128]{2,1,0}"


@pytest.mark.parametrize(
    ("name", "config", "operands"),
    [
        ("my_kernel.1", "{}", QKV),
        ("splash_mha_fwd.1", "{}", "bf16[4,256,128]{2,1,0}"),
        ("splash_mha_fwdx.1", "{}", QKV),
        ("k.1", '{"custom_call_config":{"cost_estimate":{"flops":"many"}}}', QKV),
        ("k.1", '{"custom_call_config":{"cost_estimate":{"flops":"0"}}}', QKV),
        ("k.1", '{"custom_call_config":{"cost_estimate":"cheap"}}', QKV),
        ("k.1", '{"custom_call_config":{"cost_estimate":{"flops":"' + "9" * 400 + '"}}}', QKV),
        ("k.1", '{"custom_call_config":7}', QKV),
    ],
)
def test_a_kernel_that_nothing_tells_of_is_said_to_be_unknown(name: str, config: str, operands: str) -> None:
    found = call(name, config, operands)
    assert (found.known, found.matrix_flops) == (False, 0.0)


@pytest.mark.parametrize(
    "written", ["", "{", '{"xprof_metadata":"["}', '{"xprof_metadata":"{\\"block_q\\": 0, \\"block_kv\\": true}"}']
)
def test_blocks_whose_sides_cannot_be_read_are_taken_for_square(written: str) -> None:
    attributes = f", frontend_attributes={{kernel_metadata={written}}}" if written else ""
    found = call("splash_mha_fwd.1", "{}", f"{GRID}; {QKV}", attributes)
    assert found.matrix_flops == 4 * 3 * 2 * (2 * 128 * 128 * 128)  # three of four blocks, two products in each
