"""The accuracy scripts: their arithmetic, and those of their claims that need nothing compiled."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from statistics import median
from types import ModuleType, SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hloinspect.hardware import load_target
from hloinspect.hlo.load import load_module
from hloinspect.hlo.text import parse_text
from hloinspect.kinds import D2H, H2D
from hloinspect.offload.transfers import find_offload
from hloinspect.predict import predict
from hloinspect.predict.scenario import scenarios
from tests.support.jax_versions import since
from tests.support.places import ROOT

SCANNED = ROOT / "fixtures" / "jax0.12.0.1" / "gb200_offload_scan" / "module.hlo.pb.gz"
MIB = 1 << 20
sys.path.append(str(ROOT / "benchmarks"))


def script(name: str) -> ModuleType:
    return importlib.import_module(name)


# --- tables


@given(st.lists(st.floats(min_value=1e-6, max_value=1e6), min_size=1))
def test_the_five_numbers_are_in_order_and_span_the_values(values: list[float]):
    five = script("accuracy_tables").five_numbers(values)
    assert list(five) == sorted(five)
    assert (five[0], five[4]) == (min(values), max(values))
    assert five[2] == pytest.approx(median(values))


def test_no_values_have_no_five_numbers():
    with pytest.raises(ValueError, match="no values"):
        script("accuracy_tables").five_numbers([])


def test_a_row_tells_its_ratio_and_whether_the_range_holds_the_measurement():
    row = script("accuracy_tables").Row("copy", "GB/s", measured=50.0, predicted=60.0, low=40.0, high=65.0)
    assert row.ratio == pytest.approx(1.2)
    assert row.inside
    assert not replace(row, measured=66.0).inside
    assert "outside the range" in script("accuracy_tables").comparison([replace(row, measured=66.0)])
    assert "| fitted |" in script("accuracy_tables").comparison([replace(row, measured=66.0, fitted=True)])


# --- published measurements


def test_a_copy_alone_takes_its_start_up_and_its_bytes_at_the_links_rate():
    published = script("accuracy_published")
    target = load_target("h100")
    assert target.link is not None
    case = scenarios(target, 1)[0]
    size = 512 * MIB
    expected = size / (target.link.latency_us.value * 1e-6 + size / (63e9 * case.link_efficiency)) / 1e9
    assert published.copy_rate_gbps(target, case, D2H, both=False) == pytest.approx(expected, rel=1e-6)


def test_both_directions_share_the_hosts_memory_where_that_is_the_narrower():
    published = script("accuracy_published")
    target = load_target("gb200")
    assert target.link is not None
    assert target.link.host_bytes_per_s is not None
    case = scenarios(target, 2)[0]
    share = target.link.host_bytes_per_s.value / 2 / 2 / 1e9
    for direction in (D2H, H2D):
        assert published.copy_rate_gbps(target, case, direction, both=True) == pytest.approx(share, rel=0.01)


def test_host_copies_on_gb200_come_out_within_a_fifth_from_one_fitted_number():
    rows = [row for row in script("accuracy_published").copy_rows() if row.what.startswith("gb200")]
    assert len(rows) == 8
    for row in rows:
        assert row.ratio == pytest.approx(1.0, abs=0.05 if row.fitted else 0.2), row.what
        assert row.fitted or row.range_fitted or row.inside, row.what


def test_two_copies_in_five_were_not_fitted():
    rows = script("accuracy_published").copy_rows()
    assert sum(not row.fitted for row in rows) >= 0.4 * len(rows)


def test_pcie_starves_the_direction_that_was_measured_to_starve():
    rows = {row.what: row for row in script("accuracy_published").copy_rows() if "both" in row.what}
    for name, starved, other in (("h100", "d2h", "h2d"), ("a100-80g", "h2d", "d2h")):
        slow, fast = (rows[f"{name}, {way}, one GPU, both directions"] for way in (starved, other))
        assert slow.predicted < 0.7 * fast.predicted
        assert slow.ratio == pytest.approx(1.0, abs=0.05)
        assert fast.ratio == pytest.approx(1.0, abs=0.05)


def test_products_come_out_within_a_quarter_but_for_a_narrow_one_in_f8_on_hopper():
    rows = {row.what: row for row in script("accuracy_published").product_rows()}
    assert len(rows) == 21
    far = {what for what, row in rows.items() if not 0.75 < row.ratio < 1.25}
    assert far == {"h200, f8e4m3fn, 802816 x 192 x 768"}
    assert sum(row.inside for row in rows.values()) >= 16


def test_large_products_come_out_within_a_seventh():
    rows = {row.what: row for row in script("accuracy_published").product_rows()}
    for size in (4096, 8192, 16384):
        for target in ("a100-80g, f16", "h200, f8e4m3fn", "gb200, f8e4m3fn"):
            row = rows[f"{target}, {size} x {size} x {size}"]
            assert row.ratio == pytest.approx(1.0, abs=0.14)
            assert row.inside


def test_published_collectives_come_out_within_30_percent_and_half_of_them_within_15():
    rows = script("accuracy_published").exchange_rows()
    assert all(0.75 < row.ratio < 1.3 for row in rows)
    assert sum(abs(row.ratio - 1) < 0.15 for row in rows) >= len(rows) / 2
    assert not any(row.fitted for row in rows)


def test_crossing_racks_is_priced_at_the_network_for_all_to_all_and_not_for_all_reduce():
    rows = {row.what: row.predicted for row in script("accuracy_published").exchange_rows()}
    inside, across = (
        {what.split(",")[1].split()[0]: time for what, time in rows.items() if where in what}
        for where in ("8 GiB, 8 GPUs", "128 GPUs in domains of 64")
    )
    assert across["all-to-all"] > 8 * inside["all-to-all"]
    assert across["all-reduce"] < 1.3 * inside["all-reduce"]


def test_the_summary_leaves_out_what_was_fitted():
    published = script("accuracy_published")
    row = script("accuracy_tables").Row("x", "ms", measured=10.0, predicted=20.0, low=5.0, high=30.0)
    text = published.summary([row, replace(row, predicted=1000.0, fitted=True)])
    assert "Not fitted: 1 of 2" in text
    assert "2.00 to 2.00" in text
    assert "for 1 of 1" in text
    assert "for 0 of 0" in published.summary([replace(row, range_fitted=True)])


# --- XLA's own estimates

GEMMS = """HloModule m, is_scheduled=true

%product (a: bf16[4096,4096], b: bf16[4096,4096]) -> bf16[4096,4096] {
  %a = bf16[4096,4096]{1,0} parameter(0)
  %b = bf16[4096,4096]{1,0} parameter(1)
  ROOT %dot = bf16[4096,4096]{1,0} dot(%a, %b), lhs_contracting_dims={1}, rhs_contracting_dims={0}
}

%sum (c: bf16[4096,4096]) -> bf16[4096,4096] {
  %c = bf16[4096,4096]{1,0} parameter(0)
  ROOT %twice = bf16[4096,4096]{1,0} add(%c, %c)
}

ENTRY %main (x: bf16[4096,4096], y: bf16[4096,4096]) -> bf16[4096,4096] {
  %x = bf16[4096,4096]{1,0} parameter(0)
  %y = bf16[4096,4096]{1,0} parameter(1)
  %gemm = bf16[4096,4096]{1,0} fusion(%x, %y), kind=kCustom, calls=%product, backend_config={"reification_cost":[{"exec_time_us":9999,"name":""},{"exec_time_us":176.16,"name":"sol"}]}
  ROOT %loop = bf16[4096,4096]{1,0} fusion(%gemm), kind=kLoop, calls=%sum, backend_config={"reification_cost":[{"exec_time_us":0.01,"name":"sol"}]}
}
"""  # noqa: E501


def test_only_products_with_an_estimate_named_sol_are_compared():
    (found,) = script("accuracy_sol").products(parse_text(GEMMS), load_target("h100"))
    assert (found.name, found.form, found.sol_us) == ("gemm", "matrices", 176.16)
    # 16 x 32 tiles of 256 x 128 on 132 multiprocessors: four waves, of which the last is nearly full; 5.3 us to start,
    # and 33.6 MB of results.
    tiles = 2 * 4096**3 / (989.4e12 * 0.75 * 1.107 * 512 / (4 * 132)) * 1e6
    assert found.ours_us == pytest.approx(tiles + 5.3 + 2 * 4096**2 / (3.352e12 * 1.56) * 1e6)
    assert found.low_us < found.sol_us < found.high_us
    assert found.inside
    assert found.ratio == pytest.approx(1.05, abs=0.01)


def test_an_instruction_without_the_entry_has_no_estimate():
    module = parse_text(GEMMS.replace('"name":"sol"', '"name":"indexing-cost-model"'))
    assert list(script("accuracy_sol").products(module, load_target("h100"))) == []


# --- GPU time


def test_the_tables_of_gpu_time_in_the_docs_are_those_of_the_script(corpus: Path):
    gpu = script("accuracy_gpu")
    document = (ROOT / "docs" / "accuracy.md").read_text()
    assert gpu.written(document, gpu.sections(corpus / "gpu")) == document


def test_both_halves_of_the_measured_tables_have_every_size_and_every_kind(corpus: Path):
    gpu = script("accuracy_gpu")
    products = [*gpu.product_times(corpus / "gpu" / "matmul.csv")]
    exchanges = [*gpu.exchange_times(corpus / "gpu" / "collectives.csv")]
    assert (len(products), len(exchanges)) == (5 * 375 + 2 * 375, 1807)
    for times in (products, exchanges):
        halves = [gpu.in_order(each for each in times if each.fitted == half) for half in (True, False)]
        assert halves[0].keys() == halves[1].keys()
        fitted = sum(map(len, halves[0].values()))
        assert fitted / len(times) == pytest.approx(0.5, abs=0.02)


def test_every_instruction_of_the_measured_step_is_in_one_class(corpus: Path):
    gpu = script("accuracy_gpu")
    times = [*gpu.step_times(gpu.load_step(corpus / "gpu" / gpu.STEP))]
    assert len(times) == 687
    spent = sum(each.measured_us * each.times for each in times if each.what != (gpu.COLLIDING,))
    assert 55e3 < spent < 75e3  # microseconds: kernels and collectives, some of which run side by side


def test_products_are_near_on_the_half_of_the_table_that_nothing_was_fitted_to(corpus: Path):
    gpu = script("accuracy_gpu")
    judged = [each for each in gpu.product_times(corpus / "gpu" / "matmul.csv") if not each.fitted]
    near = {"B200 bf16": (0.15, 0.9), "H100 bf16": (0.15, 0.9), "B200 f32 (TF32)": (0.15, 0.9), "B200 f8": (0.15, 0.85)}
    near["H100 f32 (TF32)"] = (0.25, 0.8)
    for (kind, _), members in gpu.in_order(judged).items():
        assert gpu.summary(members, 0.15).median == pytest.approx(1.0, abs=0.07), kind
    for kind, (margin, share) in near.items():
        found = gpu.summary([each for each in judged if each.what[0] == kind], margin)
        assert found.within >= share, kind
        assert found.width <= 1.4


def test_collectives_are_near_on_the_half_of_the_table_that_nothing_was_fitted_to(corpus: Path):
    gpu = script("accuracy_gpu")
    small = gpu.EXCHANGE_SIZES[0][2]
    times = [e for e in gpu.exchange_times(corpus / "gpu" / "collectives.csv") if e.what[2] != small]
    for device in ("H100", "B200", "GB200"):
        own = [each for each in times if each.what[0] == device]
        main = [each for each in own if each.what[1] in gpu.MAIN_KINDS]
        assert gpu.summary(main, 0.25).within >= 0.85, device
        assert gpu.summary([each for each in main if not each.fitted], 0.25).within >= 0.8, device
        assert gpu.summary(main, 0.25).width <= 1.8
        for kind, margin in (("all-to-all", 0.25), ("collective-permute", 0.5)):
            assert gpu.summary([each for each in own if each.what[1] == kind], margin).within >= 0.7, (device, kind)
        for (_, kind, _), members in gpu.in_order(replace(e, what=(*e.what[:2], "all")) for e in own).items():
            assert gpu.summary(members, 0.25).inside >= 0.85, (device, kind)


def test_a_summary_counts_what_is_near_and_what_is_inside():
    gpu = script("accuracy_gpu")
    near = gpu.Timed(("x",), 100.0, 110.0, 90.0, 120.0)
    far = gpu.Timed(("x",), 100.0, 50.0, 40.0, 60.0, times=3.0)
    found = gpu.summary([near, far], 0.15)
    assert (found.count, found.within, found.inside) == (2, 0.5, 0.5)
    assert found.total == pytest.approx((110 + 3 * 50) / 400)
    assert found.width == pytest.approx((120 / 90 + 60 / 40) / 2)
    with pytest.raises(ValueError, match="no times"):
        gpu.summary([], 0.15)


def test_a_document_without_the_place_of_a_table_is_refused():
    gpu = script("accuracy_gpu")
    assert gpu.written("<!-- a -->\nold\n<!-- end of a -->\nrest", {"a": "new"}).splitlines()[2] == "new"
    with pytest.raises(ValueError, match="no place for a"):
        gpu.written("<!-- a -->", {"a": "new"})


# --- programs


def test_memory_is_arguments_temporaries_and_results_without_those_that_share_a_place():
    sizes = {"argument": 10, "temp": 20, "output": 5, "alias": 4}
    memory = {f"{name}_size_in_bytes": size for name, size in sizes.items()} | {"host_temp_size_in_bytes": 7}
    found = script("accuracy_programs").memory_of(SimpleNamespace(manifest=SimpleNamespace(memory=memory)))
    assert (found.temporary, found.device, found.host) == (20, 31, 7)


SIDE_COPY = """HloModule side, is_scheduled=true

ENTRY %main (x: f32[8192,8192], y: f32[8192,8192]) -> (f32[8192,8192], f32[8192,8192]) {
  %x = f32[8192,8192]{1,0} parameter(0)
  %y = f32[8192,8192]{1,0} parameter(1)
  %start = (f32[8192,8192]{1,0}, f32[8192,8192]{1,0}, u32[]) copy-start(%x)
  %turned = f32[8192,8192]{1,0} transpose(%y), dimensions={1,0}
  %done = f32[8192,8192]{1,0} copy-done(%start)
  ROOT %all = (f32[8192,8192]{1,0}, f32[8192,8192]{1,0}) tuple(%turned, %done)
}
"""


def test_a_device_side_copy_is_seen_with_the_memory_bound_work_beside_it():
    programs = script("accuracy_programs")
    offload = find_offload(parse_text(SIDE_COPY))
    target = load_target("h100")
    found = SimpleNamespace(prediction=predict(offload, target, 1, 8))
    schedule = script("hloinspect.predict.schedule").schedule_of(offload, 1, 8)
    (copy,) = programs.side_copies(found, schedule)
    once = 2 * 4 * 8192**2 / (target.hbm_bytes_per_s.value * target.memory_efficiency.value) * 1e6
    assert copy.takes_us == pytest.approx(once)
    assert copy.memory_bound_us == pytest.approx(once)
    assert copy.compute_bound_us == 0
    assert programs.exposed_share(target, schedule) == pytest.approx(1.0)  # openxla/xla pull request 46150: 99 %


def test_a_device_side_copy_beside_a_product_is_hidden():
    text = SIDE_COPY.replace(
        "transpose(%y), dimensions={1,0}", "dot(%y, %y), lhs_contracting_dims={1}, rhs_contracting_dims={0}"
    )
    schedule = script("hloinspect.predict.schedule").schedule_of(find_offload(parse_text(text)), 1, 8)
    assert script("accuracy_programs").exposed_share(load_target("h100"), schedule) == pytest.approx(0.0, abs=1e-9)


# --- MaxText's modules


def test_a_module_becomes_a_row_with_its_flops_and_times():
    maxtext = script("accuracy_maxtext")
    target = load_target("gb200")
    step = maxtext.step_of(SCANNED, target)
    assert step.name == "module"
    assert step.flops > 0
    assert 0 < step.utilization(target) < 1
    row = maxtext.row_of(step, target)
    assert row[6] == str(len(step.offload.transfers)) != "0"


def test_every_maxtext_step_is_below_the_peak_in_every_scenario(corpus: Path):
    maxtext = script("accuracy_maxtext")
    target = load_target("gb200")
    for name in ("llama405b_nv", "llama405b_nv_pipe", "ds671b_nv"):
        step = maxtext.step_of(corpus / "maxtext" / f"{name}.hlo.gz", target)
        assert step.flops / (step.prediction.low_ps / 1e12) < target.peak_flops["bf16"].value
        assert step.prediction.low_ps < step.prediction.step.time_ps < step.prediction.high_ps


def test_the_golden_trace_comes_out_within_two_percent(corpus: Path):
    rows = script("accuracy_golden").golden_rows(corpus / "hlo" / "tpu_v6e_host_offload.after_optimizations.txt")
    assert len(rows) == 5
    for what, measured, predicted in rows:
        assert predicted == pytest.approx(measured, rel=0.02), what


# --- calibration on a GPU: what needs none


def test_a_copy_as_fast_as_the_target_says_has_a_ratio_of_one():
    calibrate = script("calibrate_gpu")
    target = load_target("h200")
    published = script("accuracy_published")
    size = 64 * MIB
    both = published.copy_rate_gbps(target, scenarios(target, 1)[0], H2D, True, size)
    starved, kept = calibrate.compare_copies([calibrate.CopyTime("both", size, size / both / 1e3)], target)
    assert [ratio.what.split()[0] for ratio in (starved, kept)] == [D2H, H2D]
    assert kept.ratio == pytest.approx(1.0, rel=1e-6)
    assert kept.inside
    assert starved.ratio == pytest.approx(0.63 / 0.95, rel=0.02)  # of its rate, the host's memory gives less that way
    assert not starved.inside
    (slow,) = calibrate.compare_copies([calibrate.CopyTime(H2D, size, 3 * size / both / 1e3)], target)
    assert slow.ratio is not None
    assert slow.ratio > 3
    assert slow.inside is False


def test_a_step_is_compared_by_its_median():
    calibrate = script("calibrate_gpu")
    prediction = predict(find_offload(load_module(SCANNED)), load_target("gb200"), 1, 1)
    central = prediction.step.time_ps / 1e9
    found = calibrate.compare_step("save", [central, 100 * central, central], prediction)
    assert found.ratio == pytest.approx(1.0)
    assert found.inside


def test_memory_that_the_device_does_not_tell_is_not_compared():
    found = script("calibrate_gpu").compare_memory("save", None, 3 << 30)
    assert (found.measured, found.ratio, found.inside) == (None, None, None)
    assert found.predicted == 3.0


def test_copies_of_a_trace_are_joined_to_transfers_by_the_names_inside_their_start():
    calibrate = script("calibrate_gpu")
    offload = find_offload(load_module(SCANNED))
    prediction = predict(offload, load_target("gb200"), 1, 1)
    first, second = offload.transfers
    inner = calibrate.names_of(offload.program.module, first) - {first.start}
    assert inner
    assert not calibrate.names_of(offload.program.module, first) & calibrate.names_of(
        offload.program.module, second
    )  # else a copy would count twice
    steps = 3
    traced = [calibrate.TracedCopy(sorted(inner)[0], 5.0)] * int(first.executions * steps)
    traced.append(calibrate.TracedCopy("some_kernel", 1e6))
    rows = {ratio.what: ratio for ratio in calibrate.compare_transfers("scan", offload, prediction, traced, steps)}
    label = f"scan: {first.direction} {first.id} `{first.start}`"
    assert rows[f"{label}, each"].measured == 5.0
    assert rows[f"{label}, a step"].ratio == 1.0
    missing = f"scan: {second.direction} {second.id} `{second.start}`"
    assert rows[f"{missing}, each"].measured is None
    assert rows[f"{missing}, a step"].measured == 0
    each = prediction.transfers[first.id].times.duration_ps / first.executions / 1e6
    assert rows[f"{label}, each"].predicted == pytest.approx(each)


def test_the_result_is_written_as_json_and_as_a_table(tmp_path: Path):
    calibrate = script("calibrate_gpu")
    result = calibrate.Result("h200", "NVIDIA H200", "jax 0.0")
    result.copies.append(calibrate.Ratio("d2h of 64 MiB", "GB/s", 50.0, 60.0, 40.0, 62.0))
    result.transfers.append(calibrate.Ratio("lost", "us", None, 60.0, 40.0, 62.0))
    result.left_out.append("remat: no time was left")
    calibrate.write(result, tmp_path)
    data = json.loads((tmp_path / "calibration.json").read_text())
    assert data["schema"] == "hloinspect.gpu-calibration/1"
    assert data["copies"][0]["ratio"] == pytest.approx(1.2)
    assert data["transfers"][0]["measured"] is None
    table = (tmp_path / "calibration.md").read_text()
    assert "| d2h of 64 MiB | 50 GB/s | 60 | 40 to 62 | 1.20 |  |" in table
    assert "| lost | none | 60 | 40 to 62 |  |  |" in table
    assert "Left out: remat: no time was left" in table
    assert sorted(path.name for path in tmp_path.iterdir()) == ["calibration.json", "calibration.md"]


def cpu_environment(**more: str) -> dict[str, str]:
    return {**os.environ, "JAX_PLATFORMS": "cpu", "PYTHONPATH": str(ROOT), **more}


@pytest.mark.slow
def test_without_a_gpu_calibration_says_so_in_one_line_and_exits_with_3(tmp_path: Path):
    command = [sys.executable, str(ROOT / "benchmarks" / "calibrate_gpu.py")]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=cpu_environment(), check=False)
    assert done.returncode == 3, done.stderr
    assert done.stdout == ""
    assert len(done.stderr.strip().splitlines()) == 1
    assert "no CUDA GPU" in done.stderr
    assert list(tmp_path.iterdir()) == []


MEASURED_ON_THE_CPU = """
import json, sys
from pathlib import Path
sys.path[:0] = sys.argv[2:]
import jax
import calibrate_gpu
from hloinspect.hardware import load_target
calibrate_gpu.COPY_SIZES = (1 << 16,)
calibrate_gpu.OPTIONS = {}  # the flag is the GPU's
device, target, out = jax.devices()[0], load_target("h200"), Path(sys.argv[1])
result = calibrate_gpu.Result("h200", device.device_kind, "test")
result.copies = calibrate_gpu.compare_copies(calibrate_gpu.measure_copies(device), target)
calibrate_gpu.measure_step("offload_scan", device, target, out, result)
calibrate_gpu.write(result, out)
"""


@pytest.mark.slow
@since(10, "XLA for CPUs cannot put a result of jax.jit in host memory")
def test_the_measuring_runs_from_end_to_end_on_a_cpu(tmp_path: Path):
    """The figures mean nothing there: what is tested is that steps compile, run, are traced and compared."""
    pytest.importorskip("jax")
    shapes = {"LAYERS": "2", "BATCH": "2", "SEQ": "32", "DIM": "64", "HIDDEN": "128", "HEADS": "4", "VOCAB": "128"}
    command = [
        sys.executable,
        "-c",
        MEASURED_ON_THE_CPU,
        str(tmp_path),
        str(ROOT / "benchmarks"),
        str(ROOT / "examples"),
    ]
    done = subprocess.run(command, capture_output=True, text=True, env=cpu_environment(**shapes), check=False)
    assert done.returncode == 0, done.stderr
    data = json.loads((tmp_path / "calibration.json").read_text())
    assert [entry["what"].partition(":")[0] for entry in data["steps"]] == ["offload_scan"] * 2
    assert all(entry["measured"] > 0 for entry in data["steps"] if entry["unit"] == "ms")
    assert len(data["copies"]) == 4
    assert (tmp_path / "offload_scan.hlo.pb").stat().st_size > 0
    assert list((tmp_path / "offload_scan.trace").rglob("*.xplane.pb"))
