"""The share of a device that a matrix product fills, computed by hand, and its effect on the time."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hloinspect.errors import TargetError
from hloinspect.hardware import Figure, load_target
from hloinspect.hlo.load import load_module_bytes
from hloinspect.predict.cost import Cost, cost_of, peak_flops
from hloinspect.predict.products import Product, fill
from hloinspect.predict.scenario import scenarios

H100 = 132


def test_a_large_product_fills_the_device() -> None:
    # 64 x 128 tiles of 256 x 128 in 63 waves of 132, of which the last holds 8.
    assert fill(Product(1, 16384, 16384, 1000), H100) == pytest.approx(64 * 128 / (63 * 132))


def test_a_small_product_does_best_with_small_tiles() -> None:
    # 1024 x 1024 is 64 tiles of 128 x 128, less than half of a wave; 128 of 128 x 64, at 0.8 of their rate, are
    # nearly a whole one; of 64 x 64 there are 256, in two waves.
    assert fill(Product(1, 1024, 1024, 1000), H100) == pytest.approx(128 / 132 * 0.8)


def test_one_tile_more_than_a_wave_takes_a_wave_more() -> None:
    # On 64 multiprocessors: 64 tiles of 256 x 128 fill it; a row more needs 68, two waves, and smaller tiles do better.
    full = fill(Product(1, 2048, 1024, 1000), 64)
    more = fill(Product(1, 2049, 1024, 1000), 64)
    assert full == pytest.approx(1.0)
    assert more < 0.8


def test_a_narrow_product_leaves_parts_of_its_tiles_empty() -> None:
    # 16 of 64 rows; 448 tiles of 64 x 128 in four waves of 132, of which 3.4 are full.
    assert fill(Product(1, 16, 57344, 1000), H100) == pytest.approx(16 / 64 * 448 / (4 * 132) * 0.8)


def test_a_deep_product_with_few_tiles_is_split_along_its_depth() -> None:
    shallow, deep = (fill(Product(1, 512, 512, depth), H100) for depth in (1000, 16384))
    assert shallow == pytest.approx(64 / 132 * 0.6)  # 64 tiles of 64 x 64
    assert deep == pytest.approx(16 * 8 / 132 * 0.95)  # 16 tiles of 128 x 128, each in eight pieces


def test_many_small_products_fill_the_device_together() -> None:
    assert fill(Product(264, 128, 128, 64), H100) == pytest.approx(0.95)  # two waves of whole tiles


@given(
    st.integers(1, 300),
    st.integers(1, 9000),
    st.integers(1, 9000),
    st.integers(1, 40000),
    st.sampled_from([1, 108, 132, 152]),
)
def test_a_product_fills_a_share_that_does_not_depend_on_which_side_is_which(
    count: int, rows: int, columns: int, depth: int, multiprocessors: int
) -> None:
    share = fill(Product(count, rows, columns, depth), multiprocessors)
    assert 0 < share <= 1
    assert share == fill(Product(count, columns, rows, depth), multiprocessors)


def test_a_product_takes_a_launch_and_its_waves() -> None:
    target = load_target("a100")
    assert not target.products
    central = scenarios(target, 1)[0]
    product = Product(1, 1024, 1024, 1000)
    plain = Cost(product.flops, "bf16", bytes=1)
    shaped = replace(plain, product=product)
    alone = product.flops / (312e12 * 0.75) * 1e12
    # 128 tiles of 128 x 64 are two waves of 108; 64 of 128 x 128 are one.
    assert plain.time_ps(target, central) == pytest.approx(alone)
    assert shaped.time_ps(target, central) == pytest.approx(3e6 + alone / (64 / 108 * 0.95))
    assert shaped.bound(target, central) == "compute"


def test_a_product_takes_its_start_its_tiles_and_its_result_where_the_target_has_figures_for_them() -> None:
    target = load_target("h100")
    figures = target.products["bf16"]
    central = scenarios(target, 1)[0]
    product = Product(
        2, 4096, 4096, 4096
    )  # 1,024 tiles of 256 x 128 in eight waves of 132, of which the last holds 100
    cost = Cost(product.flops, "bf16", bytes=6 * 4096**2 * 2, product=product)
    tiles = product.flops / (989.4e12 * 0.75 * figures.gain.value) * 8 * 132 / 1024
    result = 2 * 4096**2 * 2 / (3.352e12 * figures.output.value)
    assert cost.time_ps(target, central) / 1e12 == pytest.approx(figures.start_us.value * 1e-6 + tiles + result)
    assert cost.bound(target, central) == "compute"


def test_a_small_product_is_limited_by_its_start() -> None:
    target = load_target("b200")
    central, fast, _, slow, _ = scenarios(target, 1)
    product = Product(1, 256, 256, 256)
    cost = Cost(product.flops, "bf16", bytes=3 * 256**2 * 2, product=product)
    assert cost.bound(target, central) == "launch"
    times = [cost.time_ps(target, case) / 1e6 for case in (fast, central, slow)]
    assert times == sorted(times)
    assert times[1] == pytest.approx(4.96, rel=0.15)  # microseconds, measured (XLA's table of products)


def test_a_product_bound_by_its_result_takes_the_time_to_write_it() -> None:
    target = load_target("b200")
    central = scenarios(target, 1)[0]
    product = Product(1, 4096, 4096, 256)
    cost = Cost(product.flops, "bf16", bytes=(4096 * 4096 + 2 * 4096 * 256) * 2, product=product)
    assert cost.time_ps(target, central) / 1e6 == pytest.approx(16.7, rel=0.15)  # microseconds, measured there


@given(
    st.sampled_from(["h100", "h200", "b200", "gb200"]),
    st.sampled_from(["bf16", "f16", "f32", "f8e4m3fn", "s8", "f64"]),
    st.integers(1, 64),
    *(st.integers(1, 20000) for _ in range(3)),
)
def test_a_product_never_takes_less_than_its_bytes_or_its_operations(
    name: str, dtype: str, count: int, rows: int, columns: int, depth: int
) -> None:
    target = load_target(name)
    product = Product(count, rows, columns, depth)
    moved = count * (rows * columns + depth * (rows + columns))
    cost = Cost(product.flops, dtype, bytes=moved, product=product)
    fast, central, slow = (scenarios(target, 1)[place] for place in (1, 0, 3))
    times = [cost.time_ps(target, case) for case in (fast, central, slow)]
    assert times == sorted(times)
    for case, time in zip((fast, central, slow), times, strict=True):
        assert time >= cost.memory_ps(target, case) * (1 - 1e-9)
        assert time / 1e12 >= product.flops / peak_flops(target, dtype, case.figures)


def test_a_target_that_was_not_measured_takes_its_architectures_figures_with_a_wider_range() -> None:
    measured, taken = (load_target(name).products["bf16"] for name in ("h100", "h200"))
    assert taken.start_us.value == measured.start_us.value
    assert taken.tiling is measured.tiling  # a key of what was computed for it
    assert taken.start_us.at("low") < measured.start_us.at("low")
    assert taken.start_us.at("high") > measured.start_us.at("high")
    assert taken.start_us.estimate
    assert taken.start_us.source == "estimate: as the h100's, with a wider range"


def test_a_target_may_replace_what_it_has_from_its_architecture(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(
        'base = "h100"\n[products.bf16]\nstart_us = 2.5\ngain = 1\noutput = 1\nsplit_depth = 512\n'
        'tiles = {"128x64" = 1}\n'
    )
    mine, base = load_target(str(path)), load_target("h100")
    assert mine.products["bf16"].start_us == Figure(2.5, "given in mine.toml")
    assert mine.products["bf16"].tiling.tiles == ((128, 64, 1.0), (64, 128, 1.0))
    assert mine.products["f32"] == base.products["f32"]
    path.write_text(path.read_text().replace('"128x64"', '"100x64"'))
    with pytest.raises(TargetError, match=r"products\.bf16\.tiles"):
        load_target(str(path))


def test_a_target_that_does_not_say_how_many_multiprocessors_it_has_is_taken_as_filled() -> None:
    target = load_target("v5e")
    assert target.multiprocessors is None
    central = scenarios(target, 1)[0]
    product = Product(1, 128, 128, 128)
    cost = Cost(1e12, "bf16", product=product)
    assert cost.time_ps(target, central) == replace(cost, product=None).time_ps(target, central)


def test_f8_on_blackwell_reaches_a_smaller_share_than_bf16() -> None:
    target = load_target("gb200")
    cases = {case.name: case for case in scenarios(target, 1)}
    assert cases["central"].efficiency_of("f8e4m3fn") == 0.58
    assert cases["central"].efficiency_of("bf16") == target.matmul_efficiency.value
    slow, fast = (cases[f"{speed} compute, fast link"] for speed in ("slow", "fast"))
    assert (slow.efficiency_of("f8e4m3fn"), fast.efficiency_of("f8e4m3fn")) == (0.5, 0.66)


DOT = """HloModule m, is_scheduled=true

ENTRY main {
  a = bf16[4,512,64]{2,1,0} parameter(0)
  b = bf16[4,64,256]{2,1,0} parameter(1)
  ROOT d = bf16[4,512,256]{2,1,0} dot(a, b), lhs_batch_dims={0}, rhs_batch_dims={0}, lhs_contracting_dims={2}, rhs_contracting_dims={1}
}
"""  # noqa: E501


def test_the_shape_of_a_batched_dot_is_read() -> None:
    what = load_module_bytes(DOT.encode())
    cost = cost_of(what, what.entry, what.entry.root)
    assert cost.product == Product(4, 512, 256, 64)
    assert cost.matrix_flops == 2 * 4 * 512 * 256 * 64
