"""Rates that a machine reaches, from its traces: known ones must come out, and nothing that a trace does not have."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from hypothesis import given, settings
from hypothesis import strategies as st

from hloinspect.calibrate.calibrate import calibrate
from hloinspect.cli import main
from hloinspect.errors import HloInspectError, InputError, TargetError, UsageError
from hloinspect.hardware import load_target
from hloinspect.hlo.schema import hlo_pb2 as hlo
from hloinspect.kinds import D2H, H2D
from hloinspect.measure.figures import D2H_RATE, DUPLEX, H2D_RATE, KEYS, LATENCY, MATMUL
from hloinspect.measure.memcpy import CopyKind, copy_kind
from hloinspect.measure.queue import Event, fit_rates, modelled_waits
from hloinspect.predict import predict
from tests.support.gpu_copies import LARGE, MS, US, Gpu, details, machine
from tests.support.places import ROOT
from tests.support.thorough import examples
from tests.support.xspace_builder import PlaneBuilder, TraceBuilder, Unsigned

# ---- GPU: memcpy events


@pytest.mark.parametrize(
    ("text", "name", "expected"),
    [
        (details(D2H, 64), "MemcpyD2H", CopyKind(D2H, "pinned", 64)),
        (details(H2D, 64, "pageable"), "MemcpyH2D", CopyKind(H2D, "pageable", 64)),
        ("kind_src:device_static kind_dst:pinned size:1 dest:0 async:0", "MemcpyD2D", CopyKind(D2H, "pinned", 1)),
        ("async:1 dest:0 size:7 kind_dst:device kind_src:pinned new:3", "MemcpyD2D", CopyKind(H2D, "pinned", 7)),
        ("size:112 dest:4 async:0", "MemcpyH2D", CopyKind(H2D, "unstated", 112)),
        ("size:112 dest:4 async:0", "MemcpyD2H", CopyKind(D2H, "unstated", 112)),
        ("size:112 dest:4 async:0", "MemcpyP2P", None),
        ("kind_src:device kind_dst:device size:64 dest:0 async:1", "MemcpyD2H", None),
        ("kind_src:managed kind_dst:device size:64 dest:0 async:1", "MemcpyH2D", CopyKind(H2D, "managed", 64)),
        ("kind_src:unknown kind_dst:pinned size:64 dest:0 async:1", "MemcpyD2H", CopyKind(D2H, "pinned", 64)),
        ("kind:Unknown size:64 dest:0 async:1", "MemcpyH2D", None),
        ("size:many", "MemcpyH2D", None),
        ("", "MemcpyH2D", None),
    ],
)
def test_details_of_a_copy_are_read_as_tokens(text: str, name: str, expected: CopyKind | None) -> None:
    assert copy_kind(text, name) == expected


def figures(path: str, base: str | None = "h100") -> dict[str, float]:
    return {figure.key: figure.value for figure in calibrate(path, base).figures}


def test_known_rates_of_a_gpu_come_out_within_two_percent(tmp_path: Path) -> None:
    path = machine(d2h=52.0, h2d=55.0, factor=0.8, latency_us=6.0).write(tmp_path)
    found = figures(path)
    assert found[D2H_RATE] / 1e9 == pytest.approx(52.0, rel=0.02)
    assert found[H2D_RATE] / 1e9 == pytest.approx(55.0, rel=0.02)
    assert found[DUPLEX] == pytest.approx(0.8, rel=0.02)
    assert found[LATENCY] == pytest.approx(6.0, rel=0.1)


@settings(max_examples=examples(15, 750))
@given(st.floats(10, 400), st.floats(10, 400), st.floats(0.5, 1.0), st.floats(1, 20), st.integers(0, 9))
def test_any_machine_comes_out(
    tmp_path_factory: pytest.TempPathFactory, d2h: float, h2d: float, factor: float, latency: float, seed: int
) -> None:
    found = figures(machine(d2h, h2d, factor, latency, seed).write(tmp_path_factory.mktemp("machine")))
    assert found[D2H_RATE] / 1e9 == pytest.approx(d2h, rel=0.03)
    assert found[H2D_RATE] / 1e9 == pytest.approx(h2d, rel=0.03)
    assert found.get(DUPLEX, factor) == pytest.approx(factor, rel=0.05)


def test_the_target_file_gives_the_measured_rates_and_keeps_the_rest(tmp_path: Path) -> None:
    found = calibrate(machine(52.0, 55.0, 0.8, 6.0).write(tmp_path))  # h100, by the device's name
    assert found.base.name == "h100"
    path = tmp_path / "mine.toml"
    path.write_text(found.toml)
    mine, base = load_target(str(path)), load_target("h100")
    assert mine.link is not None
    assert base.link is not None
    values = {figure.key: figure.value for figure in found.figures}
    assert mine.link.d2h_bytes_per_s.value == pytest.approx(values[D2H_RATE], rel=1e-3)
    assert mine.link.h2d_bytes_per_s.value == pytest.approx(values[H2D_RATE], rel=1e-3)
    assert mine.link.duplex_factor.value == pytest.approx(values[DUPLEX], rel=1e-3)
    assert mine.link.efficiency.value == mine.link.efficiency.high == 1.0
    assert 0.9 < mine.link.efficiency.low < 1.0
    assert mine.link.d2h_bytes_per_s.source.startswith(
        "measured: 35 copies of 8,388,608 to 134,217,728 B, pinned memory"
    )
    assert "host.xplane.pb" in mine.link.d2h_bytes_per_s.source
    assert not mine.link.d2h_bytes_per_s.estimate
    assert (mine.peak_flops, mine.levels, mine.link.sharers) == (base.peak_flops, base.levels, base.link.sharers)
    assert mine.matmul_efficiency == base.matmul_efficiency


def test_one_direction_alone_leaves_the_other_and_the_efficiency_to_the_base(tmp_path: Path) -> None:
    gpu = Gpu()
    for index in range(5):
        gpu.copy(D2H, 2_000 * index, LARGE / 40e3, LARGE)
    found = calibrate(gpu.write(tmp_path), "h100")
    assert [figure.key for figure in found.figures] == [D2H_RATE]
    assert {one.key for one in found.left} == set(KEYS) - {D2H_RATE}
    path = tmp_path / "mine.toml"
    path.write_text(found.toml)
    mine, base = load_target(str(path)), load_target("h100")
    assert mine.link is not None
    assert base.link is not None
    assert mine.link.d2h_bytes_per_s.value * mine.link.efficiency.value == pytest.approx(40e9, rel=1e-3)
    assert mine.link.efficiency == base.link.efficiency
    assert mine.link.h2d_bytes_per_s == base.link.h2d_bytes_per_s


def test_pageable_memory_is_separated_and_never_a_figure(tmp_path: Path) -> None:
    gpu = Gpu()
    for index in range(5):
        gpu.copy(D2H, 40_000 * index, LARGE / 40e3, LARGE)
        gpu.copy(D2H, 40_000 * index + 20_000, LARGE / 6e3, LARGE, "pageable")
        gpu.copy(H2D, 40_000 * index + 4_000, LARGE / 6e3, LARGE, "pageable")
    found = calibrate(gpu.write(tmp_path), "gb200")
    assert {figure.key: figure.value / 1e9 for figure in found.figures} == {D2H_RATE: pytest.approx(40.0, rel=1e-3)}
    assert sum("pageable memory: 6 GB/s (median of 5" in note for note in found.notes) == 2


def test_an_old_trace_counts_by_the_names_of_its_copies_and_says_so(tmp_path: Path) -> None:
    gpu = Gpu()
    for index in range(5):
        gpu.copy(H2D, 10_000 * index, LARGE / 11e3, LARGE, memory="")
    (figure,) = calibrate(gpu.write(tmp_path), "a100").figures
    assert figure.value / 1e9 == pytest.approx(11.0, rel=1e-3)
    assert "not known to be pinned" in figure.what


def test_copies_that_share_their_direction_or_are_small_or_few_count_for_nothing(tmp_path: Path) -> None:
    gpu = Gpu()
    for index in range(6):
        gpu.copy(D2H, 10_000 * index, 4_000, LARGE)
        gpu.copy(D2H, 10_000 * index + 1_000, 4_000, LARGE)
        gpu.copy(H2D, 10_000 * index + 7_000, 100, 1 << 20)
    for index in range(2):
        gpu.copy(H2D, 100_000 + 10_000 * index, 1_500, LARGE)
    found = calibrate(gpu.write(tmp_path), "h100")
    assert found.figures == ()
    assert found.toml == ""
    reasons = {one.key: one.reason for one in found.left}
    assert "8 h2d copies, 2 of 8 MiB or more, 2 of those alone" in reasons[H2D_RATE]
    assert set(reasons) == set(KEYS)


def test_copies_between_devices_are_counted_separately(tmp_path: Path) -> None:
    gpu = Gpu()
    line = gpu.plane.line("Stream #16(MemcpyD2D)", id=16)
    for index in range(4):
        text = f"kind_src:device kind_dst:device size:{LARGE} dest:0 async:1"
        line.event("MemcpyD2D", index * MS, MS // 2, memcpy_details=text)
    found = calibrate(gpu.write(tmp_path), "h100")
    assert found.figures == ()
    assert found.notes == ("4 copies are within device memory, or of memory that is not known: not measured",)


def test_copies_faster_than_the_devices_own_memory_are_set_aside_and_counted(tmp_path: Path) -> None:
    gpu = Gpu()
    for index in range(5):
        gpu.copy(D2H, 10_000 * index, LARGE / 40e3, LARGE)
        gpu.copy(D2H, 10_000 * index + 5_000, 1, LARGE)  # the clock jumped: 67 TB/s
    found = calibrate(gpu.write(tmp_path), "gb200")
    (figure,) = found.figures
    assert (figure.count, figure.value / 1e9) == (5, pytest.approx(40.0, rel=1e-3))
    assert "5 copies are faster than the device's own memory and were set aside" in found.notes


def test_the_profilers_warnings_are_passed_on(tmp_path: Path) -> None:
    gpu = machine(52.0, 55.0, 0.8, 6.0)
    gpu.trace.warn("Detected GPU events dropped\non synthetic")
    assert "the profiler says: Detected GPU events dropped on synthetic" in calibrate(gpu.write(tmp_path)).notes


def test_all_hosts_of_a_run_count(tmp_path: Path) -> None:
    run = tmp_path / "plugins" / "profile" / "2026_01_02_03_04_05"
    for number in range(3):
        gpu = Gpu(gpu_device_name="NVIDIA GB200")
        gpu.copy(D2H, 0, LARGE / (40 + number) / 1e3, LARGE)
        gpu.write(run, f"host{number}.xplane.pb")
    found = calibrate(str(tmp_path))
    assert found.base.name == "gb200"
    assert (found.devices, len(found.traces)) == (3, 3)
    (figure,) = found.figures
    assert (figure.count, figure.value / 1e9) == (3, pytest.approx(41.0, rel=1e-3))
    assert "in 2026_01_02_03_04_05 (3 hosts)" in found.toml


# ---- GPU: products


def square_product(size: int, name: str = "dot.1") -> bytes:
    """Return a module that multiplies two matrices of bf16[size,size]."""
    bf16 = hlo.ShapeProto(element_type=16, dimensions=[size, size], layout=hlo.LayoutProto(minor_to_major=[1, 0]))
    module = hlo.HloModuleProto(name="jit_f", entry_computation_name="main", entry_computation_id=1)
    main_ = module.computations.add(name="main", id=1, root_id=3)
    for number in (1, 2):
        parameter = main_.instructions.add(name=f"p{number}", opcode="parameter", shape=bf16, id=number)
        parameter.parameter_number = number - 1
    dot = main_.instructions.add(name=name, opcode="dot", shape=bf16, id=3, operand_ids=[1, 2])
    dot.dot_dimension_numbers.lhs_contracting_dimensions.append(1)
    dot.dot_dimension_numbers.rhs_contracting_dimensions.append(0)
    module.schedule.sequences[1].instruction_ids.extend([1, 2, 3])
    return hlo.HloProto(hlo_module=module).SerializeToString()


def products(share: float, *, split: bool = False, instruction: str = "dot.1", size: int = 8192) -> TraceBuilder:
    """Return ten runs of a product at a share of H100's 989 TFLOP/s, in the module and in the trace."""
    gpu = Gpu(gpu_device_name="NVIDIA H100 80GB HBM3")
    gpu.trace.embed("jit_f", 7, square_product(size))
    line = gpu.plane.line("Stream #13(Compute)", id=13)
    time_ps = round(2 * size**3 / (load_target("h100").peak_flops["bf16"].value * share) * 1e12)
    for index in range(10):
        line.event("gemm", index * 2 * time_ps, time_ps, hlo_op=instruction, program_id=7, hlo_module="jit_f")
        if split:
            line.event("reduce", index * 2 * time_ps + time_ps, 1_000, hlo_op=instruction, program_id=7)
    return gpu.trace


def test_the_rate_of_products_comes_out_of_kernels_and_module(tmp_path: Path) -> None:
    found = calibrate(str(products(0.72).write(tmp_path / "x.xplane.pb")))
    (figure,) = found.figures
    assert (figure.key, figure.count) == (MATMUL, 10)
    assert figure.value == pytest.approx(0.72, rel=1e-3)
    assert figure.what == "executions of 1 products in bf16, by FLOPs"
    path = tmp_path / "mine.toml"
    path.write_text(found.toml)
    assert load_target(str(path)).matmul_efficiency.value == pytest.approx(0.72, rel=1e-3)


@pytest.mark.parametrize(
    ("trace", "reason"),
    [
        (lambda: products(1.2), "1.20 times the peak of h100"),
        (lambda: products(0.7, split=True), "no product of 20 us or more"),
        (lambda: products(0.7, instruction="command_buffer_3"), "no product of 20 us or more"),
        (lambda: products(0.7, size=512), "no product of 20 us or more"),
    ],
    ids=["faster than the peak", "several kernels", "hidden in a command buffer", "small"],
)
def test_a_rate_of_products_that_cannot_be_known_is_left_out(
    tmp_path: Path, trace: Callable[[], TraceBuilder], reason: str
) -> None:
    found = calibrate(str(trace().write(tmp_path / "x.xplane.pb")))
    assert found.figures == ()
    assert reason in next(one.reason for one in found.left if one.key == MATMUL)


# ---- TPU: waits


def scanned_step(d2h: float, h2d: float, latency_us: float = 10.0) -> TraceBuilder:
    """Return five steps of fixtures' v6e_offload_scan: four iterations that send 2 MiB and work for 50 us, then four
    that fetch and wait at once. The wait of a done is what is left of the copy: computed here by hand, not by the
    simulator."""
    trace = TraceBuilder()
    module = gzip.decompress((ROOT / "fixtures/jax0.12.0.1/v6e_offload_scan/module.hlo.pb.gz").read_bytes())
    program = 12190760917235803885
    trace.embed("jit_f", program, module, id_is_stat=False)
    plane = trace.plane("/device:TPU:0", device_type_string="TPU v6 Lite")
    modules, ops = plane.line("XLA Modules", id=2), plane.line("XLA Ops", id=3)
    size = 2 << 20
    now = 0
    for step in range(5):
        begin = now
        for _ in range(4):
            now = _pair(plane, "dynamic-update-slice", now, 50 * US, latency_us * US + size / d2h * 1e3, program)
        for _ in range(4):
            now = _pair(plane, "dynamic-slice", now, 0, latency_us * US + size / h2d * 1e3, program)
        now += 20 * US if step == 3 else 0  # one step is not like the others
        modules.event(f"jit_f({program})", begin, now - begin, program_id=Unsigned(program))
        now += 7 * US
    assert ops.proto is plane.proto.lines[1]
    return trace


def _pair(plane: PlaneBuilder, name: str, now: int, work_ps: int, copy_ps: float, program: int) -> int:
    """Add a start, some work, and the done; return the time after it."""
    events = plane.proto.lines[1].events
    for part, at, time in (
        (f"{name}-start", now, 0),
        ("fusion.1", now, work_ps),
        (f"{name}-done", now + work_ps, max(0, round(copy_ps - work_ps))),
    ):
        kind = plane.kind(f"%{part} = ...", part, program_id=Unsigned(program))
        events.add(metadata_id=kind, offset_ps=at, duration_ps=time)
    return max(now + work_ps, now + round(copy_ps))


def test_rates_of_a_tpu_come_out_of_its_waits(tmp_path: Path) -> None:
    found = calibrate(str(scanned_step(d2h=21.0, h2d=17.0).write(tmp_path / "x.xplane.pb")))
    values = {figure.key: figure.value / 1e9 for figure in found.figures}
    assert values == {D2H_RATE: pytest.approx(21.0, rel=1e-3), H2D_RATE: pytest.approx(17.0, rel=1e-3)}
    assert {one.key for one in found.left} == {DUPLEX, LATENCY, MATMUL}
    assert {figure.count for figure in found.figures} == {16}
    assert any("4 of 5 steps are clean" in note for note in found.notes)


def test_a_transfer_without_a_wait_gives_no_rate(tmp_path: Path) -> None:
    found = calibrate(str(scanned_step(d2h=90.0, h2d=17.0).write(tmp_path / "x.xplane.pb")))  # hidden behind 50 us
    assert [figure.key for figure in found.figures] == [H2D_RATE]
    assert "waits do not show" in next(one.reason for one in found.left if one.key == D2H_RATE)


@settings(max_examples=examples(40, 1600))
@given(st.floats(5, 300), st.floats(5, 300), st.floats(0.5, 1.0))
def test_the_fit_finds_the_rates_that_made_the_waits(h2d: float, d2h: float, factor: float) -> None:
    """Fetch three at once, and send each back as soon as it is there, as in the public TPU trace."""
    size, events = 1 << 30, []
    for number in range(3):
        events.append(Event("start", f"h{number}", number, H2D, size, 0.0, 0.0))
    for number in range(3):
        events.append(Event("done", f"h{number}", number, H2D, size, 0.0, 0.0))
        events.append(Event("start", f"d{number}", 3 + number, D2H, size, 1.0 * MS, 0.0))
    events += [Event("done", f"d{number}", 3 + number, D2H, size, 0.0, 0.0) for number in range(3)]
    waits = modelled_waits(events, h2d * 1e9, d2h * 1e9, factor, 10 * US)
    assert waits[3] == pytest.approx(size / h2d / 1e6 + 0.01, rel=1e-6)  # the first is alone
    measured = [
        Event(e.role, e.key, e.transfer, e.direction, e.bytes, e.before_ps, float(wait) * MS)
        for e, wait in zip(events, waits, strict=True)
    ]
    fit = fit_rates(measured, 10 * US)
    assert fit.misfit < 1e-3
    expected = {H2D: h2d * 1e9, D2H: d2h * 1e9, DUPLEX: factor}
    assert {key: fit.figures[key] / expected[key] for key in fit.figures} == {
        key: pytest.approx(1.0, rel=0.01) for key in fit.figures
    }
    assert H2D in fit.figures


# ---- the golden trace


def test_the_golden_trace_gives_its_rates_and_predicts_its_waits(corpus: Path, tmp_path: Path) -> None:
    from hloinspect.hlo.load import load_module
    from hloinspect.offload.transfers import find_offload

    golden = json.loads((corpus / "golden.json").read_text())["traces/tpu_v6e_host_offload.xplane.pb"][
        "tpu0_clean_steps"
    ]
    found = calibrate(str(corpus / "traces" / "tpu_v6e_host_offload.xplane.pb"))
    values = {figure.key: figure.value for figure in found.figures}
    rates = golden["rates_gbps"]
    assert values[H2D_RATE] / 1e9 == pytest.approx(rates["h2d_alone"], rel=0.02)
    assert values[D2H_RATE] / 1e9 == pytest.approx(rates["d2h_alone"], rel=0.02)
    assert values[DUPLEX] == pytest.approx(rates["duplex_factor"], rel=0.02)
    path = tmp_path / "mine.toml"
    path.write_text(found.toml)
    for name in ("hlo_proto.pb", "after_optimizations.txt"):
        offload = find_offload(load_module(corpus / "hlo" / f"tpu_v6e_host_offload.{name}"))
        prediction = predict(offload, load_target(str(path)), 1, 1)
        waits = {t.done: prediction.transfers[t.id].times.wait_ps / MS for t in offload.transfers}
        measured = golden["wait_each_ms"]
        assert {done: waits[done] for done in measured} == pytest.approx(measured, rel=0.02)


@pytest.mark.parametrize(
    ("name", "base", "figures"),
    [("cuda_gtx1080ti_xla", "a100", 0), ("cuda_v100_tensorflow_2020", "a100", 0)],
)
def test_traces_without_large_host_copies_give_no_figure(corpus: Path, name: str, base: str, figures: int) -> None:
    found = calibrate(str(corpus / "traces" / f"{name}.xplane.pb"), base)
    assert len(found.figures) == figures
    assert {one.key for one in found.left} == set(KEYS)


@pytest.mark.parametrize("name", ["rocm_mi300x_jax08", "rocm_mi300x_roctracer"])
def test_rocm_is_refused_with_the_reason(corpus: Path, name: str) -> None:
    with pytest.raises(InputError, match="ROCm"):
        calibrate(str(corpus / "traces" / f"{name}.xplane.pb"))


# ---- wrong use, and the command


def test_rocm_is_refused_by_its_vendor(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="CopyDeviceToDevice"):
        calibrate(Gpu(device_vendor="AMD").write(tmp_path), "h100")


@pytest.mark.parametrize(
    ("device", "base", "error", "words"),
    [
        ("NVIDIA GeForce GTX 1080 Ti", None, UsageError, "--base"),
        ("", None, UsageError, "does not name its device"),
        ("NVIDIA GB200", "v6e", UsageError, "is a TPU"),
        ("NVIDIA GB200", "gb20", TargetError, "did you mean gb200"),
        ("NVIDIA GB200", "mine.toml", UsageError, "built-in"),
    ],
)
def test_a_base_that_is_missing_or_wrong_is_reported(
    tmp_path: Path, device: str, base: str | None, error: type[HloInspectError], words: str
) -> None:
    path = Gpu(**({"gpu_device_name": device} if device else {})).write(tmp_path)
    with pytest.raises(error, match=words):
        calibrate(path, base)


def test_a_trace_without_a_device_is_refused(tmp_path: Path) -> None:
    trace = TraceBuilder()
    trace.plane("/host:CPU")
    with pytest.raises(InputError, match="no device"):
        calibrate(str(trace.write(tmp_path / "x.xplane.pb")), "h100")


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["calibrate", *arguments])


def test_the_command_writes_the_target_and_says_what_it_rests_on(tmp_path: Path) -> None:
    path, target = machine(52.0, 55.0, 0.8, 6.0).write(tmp_path), tmp_path / "mine.toml"
    done = run(path, "-o", str(target))
    assert done.exit_code == 0, done.output
    assert "measured: 35 copies of 8,388,608 to 134,217,728 B" in " ".join(done.stdout.split())
    assert "left to h100" in done.stdout
    assert f"--target {target}" in done.stdout
    assert load_target(str(target)).name == "mine"
    assert all(len(line) <= 100 for line in done.stdout.splitlines() if str(tmp_path) not in line)
    shown = CliRunner().invoke(main, ["targets", str(target)])
    assert shown.exit_code == 0
    assert "host.xplane.pb" in shown.output


def test_json_has_a_schema_and_the_same_target(tmp_path: Path) -> None:
    path = machine(52.0, 55.0, 0.8, 6.0).write(tmp_path)
    done = run(path, "--format", "json")
    document = json.loads(done.stdout)
    assert document["schema"] == "hloinspect.calibration/1"
    assert [figure["key"] for figure in document["figures"]] == [D2H_RATE, H2D_RATE, DUPLEX, LATENCY]
    assert [one["key"] for one in document["left"]] == [MATMUL]
    assert document["toml"] == calibrate(path).toml
    assert run(path, "-o", "-").stdout == document["toml"]


def test_a_trace_without_figures_exits_with_3_and_writes_no_target(tmp_path: Path) -> None:
    target = tmp_path / "mine.toml"
    done = run(Gpu().write(tmp_path), "--base", "h100", "-o", str(target))
    assert done.exit_code == 3
    assert "nothing was measured" in done.stdout
    assert not target.exists()


def test_hostile_names_reach_neither_the_terminal_nor_the_target_file(tmp_path: Path) -> None:
    gpu = machine(52.0, 55.0, 0.8, 6.0)
    gpu.trace.warn("\x1b[2Jgone")
    path = gpu.write(tmp_path, 'a"\n\x1b[31m.xplane.pb')
    done = run(path)
    assert "\x1b" not in done.output
    target = tmp_path / "mine.toml"
    assert run(path, "-o", str(target)).exit_code == 0
    assert "\x1b" not in target.read_text()
    assert load_target(str(target)).link is not None


def test_bad_input_is_one_line_and_exit_code_2(tmp_path: Path) -> None:
    bad = tmp_path / "x.xplane.pb"
    bad.write_bytes(b"\0" * 100)
    for arguments in ([str(bad)], [str(tmp_path / "none")], [str(tmp_path)]):
        done = run(*arguments)
        assert done.exit_code == 2
        assert done.stderr.count("\n") == 1
        assert done.stderr.startswith("hloinspect: error: ")
