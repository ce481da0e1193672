"""Rules that fire on the fixtures, and on minimal edits of them where no compiler makes the case; each beside a near
miss.

What only a compiled step can show is in test_compiled.py, the modules of the corpus are in test_corpus.py.
"""

from __future__ import annotations

import dataclasses
import gzip
import re
from pathlib import Path

import pytest

from hloinspect.analyze.inspect import inspect
from hloinspect.hardware import load_target
from hloinspect.hlo.load import load_module
from hloinspect.hlo.text import parse_text
from hloinspect.offload.transfers import find_offload
from hloinspect.report.schema import MemoryInfo
from hloinspect.rules.engine import run_rules
from hloinspect.rules.evidence import Evidence
from tests.support.rules_samples import codes, done_after_start, edited, finding, fixture, report_of, synchronous

# Errors and warnings by fixture. A `hid` of 2 MiB is small beside a copy's latency of 10 us, so windows are short.
# HLO114 is left out: kernels so small are mostly launch time, and which costs more changes with a few microseconds.
FIRING: dict[str, set[str]] = {
    "gb200_save": set(),
    "gb200_remat": set(),
    "gb200_offload_gone": set(),  # its StableHLO is not kept: test_compiled.py
    "gb200_offload_scan": {"HLO105"},  # the D2H is started at the end of the iteration, its window 9 of 19 us
    "gb200_offload_scan_double_buffered": {"HLO105"},  # both halves of the iteration
    "gb200_offload_scan_pipelined": set(),
    "gb200_offload_scan_unscheduled": {"HLO103"},  # fusion-start and fusion-done are neighbours
    "gb200_offload_unrolled": {"HLO201"},  # three of four copy-starts stand in transpose(jvp...)
    "gb200_offload_unrolled_unscheduled": {"HLO111", "HLO201"},  # here too, all four: seen in the text
    "gb200_optimizer": {"HLO103", "HLO105", "HLO107", "HLO202"},
    "gb200_host_stack_donated": {"HLO110"},  # an entry-level dynamic-update-slice is a kernel: thunk_sequence.txt
    "gb200_host_stack_not_donated": {"HLO110", "HLO204"},
    "gb200_compute_on_host_memory": {"HLO305"},
    "gb200_compute_on": {"HLO111", "HLO204"},  # HLO307 informs
    "a100_offload_unrolled": {"HLO111"},  # no estimator for Ampere, so no scheduler
    "a100_offload_scan": {"HLO102", "HLO103"},
    "h100_offload_scan": {"HLO102", "HLO105"},
    "h100_offload_unrolled": {"HLO103", "HLO107"},
    "h100_offload_by_xla": {"HLO105", "HLO107"},  # windows of 190 ms for copies of 313
    "v6e_offload_scan": {"HLO102", "HLO105"},
    "v5p_pallas_kernels": set(),
}


@pytest.mark.parametrize("name", FIRING)
def test_these_rules_and_no_others_speak_on_the_fixture(name: str) -> None:
    report = report_of(fixture(name), name.partition("_")[0])
    assert codes(report, "error", "warning") - {"HLO114"} == FIRING[name]


def test_every_fixture_is_in_the_table() -> None:
    assert {path.name for path in fixture("gb200_save").parents[1].iterdir() if path.is_dir()} == set(FIRING)


# ---- time


def test_a_copy_back_that_is_waited_for_at_once_is_at_the_point_of_use(tmp_path: Path) -> None:
    """Move a done of a real module directly after its start; XLA's own offload has no barrier that would explain it."""
    original = fixture("h100_offload_by_xla")
    transfers = find_offload(load_module(original)).transfers
    back = next(t for t in transfers if t.direction == "h2d" and t.bytes > 1 << 32)
    assert back.done is not None
    moved = edited(original, tmp_path / "moved.hlo", done_after_start(back.start, back.done))
    assert "HLO101" not in codes(report_of(original, "h100"))
    reported = finding(report_of(moved, "h100"), "HLO101")
    assert (reported.instruction, reported.severity) == (back.start, "error")
    assert reported.cost_ms is not None
    assert reported.cost_ms > 100


def test_a_plain_copy_without_a_pair_is_synchronous(tmp_path: Path) -> None:
    original = fixture("h100_offload_by_xla")
    first = next(t for t in find_offload(load_module(original)).transfers if t.direction == "d2h")
    assert first.done is not None
    plain = edited(original, tmp_path / "plain.hlo", synchronous(first.start, first.done))
    assert "HLO104" not in codes(report_of(original, "h100"))
    reported = finding(report_of(plain, "h100"), "HLO104")
    assert reported.instruction == first.done
    assert reported.cost_ms is not None
    assert reported.cost_ms > 300


def test_pipelining_is_advised_for_a_copy_at_the_end_of_an_iteration_and_the_pipelined_program_hides_it() -> None:
    reported = finding(report_of(fixture("gb200_offload_scan"), "gb200"), "HLO105")
    assert "--xla_gpu_enable_pipelined_host_offloading=true" in reported.remedy
    assert "HLO105" not in codes(report_of(fixture("gb200_offload_scan_pipelined"), "gb200"))


def test_prevent_cse_and_the_versions_flag_are_advised_for_a_barrier_under_scan() -> None:
    reported = finding(report_of(fixture("h100_offload_scan"), "h100"), "HLO102")
    assert "prevent_cse=False" in reported.remedy
    assert "--xla_gpu_enable_pipelined_host_offloading=true" in reported.remedy
    assert reported.loop is not None


def test_on_a_tpu_no_flag_of_gpus_is_advised() -> None:
    reported = finding(report_of(fixture("v6e_offload_scan"), "v6e"), "HLO102")
    assert "xla_gpu" not in reported.remedy
    assert reported.gain_ms is None  # no TPU program with the change has been seen


def test_a_slow_link_saturates_and_a_fast_one_does_not() -> None:
    slow = inspect(str(fixture("h100_offload_scan")), target="h100", link="2GB/s").report
    assert codes(slow, "error") == {"HLO106"}
    reported = finding(slow, "HLO106")
    assert reported.evidence["ideal_ms"] > reported.evidence["without_transfers_ms"]  # type: ignore[operator]
    assert "HLO106" not in codes(report_of(fixture("h100_offload_scan"), "h100"))


@pytest.mark.parametrize("name", ["gb200_offload_scan", "a100_offload_unrolled", "gb200_offload_unrolled"])
def test_costs_and_gains_are_no_more_than_the_step_has(name: str) -> None:
    report = report_of(fixture(name), name.partition("_")[0])
    assert report.step.predicted is not None
    for each in report.findings:
        assert (each.cost_ms or 0.0) <= report.step.predicted.stall_ms + 1e-9
        assert (each.gain_ms or 0.0) <= report.step.predicted.time_ms


def test_the_memory_limit_is_reported_only_for_a_step_that_reaches_it() -> None:
    """Use the same evidence with a device just large enough, and with one that has room. Only in the first the limit is
    the cause of copies of a loop without a window."""
    path = fixture("gb200_offload_scan_unscheduled")
    found = inspect(str(path), target="gb200")
    memory = found.report.memory
    assert memory.device_bytes is not None
    tight = dataclasses.replace(memory, device_limit_bytes=int(memory.device_bytes / 0.85))
    reported = run_rules(Evidence(dataclasses.replace(found.report, memory=tight), found.offload, found.prediction))
    assert "HLO113" in codes(reported)
    assert "HLO103" not in codes(reported)
    assert "HLO113" not in codes(found.report)


# ---- memory


def test_copies_that_start_late_are_reported_with_what_is_free_in_time() -> None:
    reported = finding(report_of(fixture("gb200_offload_unrolled"), "gb200"), "HLO201")
    assert (reported.evidence["late"], reported.evidence["copies"]) == (3, 4)
    assert reported.evidence["freed_bytes"] == 0  # the fourth copy is waited for in the backward pass only
    assert "HLO201" not in codes(report_of(fixture("gb200_offload_scan"), "gb200"))


def test_optimizer_state_that_is_waited_for_at_the_start_is_fetched_too_early() -> None:
    reported = finding(report_of(fixture("gb200_optimizer"), "gb200"), "HLO202")
    report = report_of(fixture("gb200_optimizer"), "gb200")
    assert {report.transfers[number - 1].outcome for number in reported.transfers} == {"argument"}
    assert "HLO202" not in codes(report_of(fixture("gb200_offload_unrolled"), "gb200"))


def test_a_whole_stack_in_host_memory_is_copied_unless_it_is_donated() -> None:
    reported = finding(report_of(fixture("gb200_host_stack_not_donated"), "gb200"), "HLO204")
    assert reported.evidence["bytes_per_step"] == 4 * 4 * 512 * 512
    assert "HLO204" not in codes(report_of(fixture("gb200_host_stack_donated"), "gb200"))


def test_a_copy_to_the_host_of_a_constant_is_reported(tmp_path: Path) -> None:
    """Replace the source of a real copy by a broadcast; jax 0.7.2 made such copies (corpus)."""
    original = fixture("a100_offload_unrolled")
    first = next(t for t in find_offload(load_module(original)).transfers if t.direction == "d2h")
    shape = f"bf16[{','.join(map(str, first.tensor.shape))}]"

    def from_zeros(text: str) -> str:
        (line,) = re.findall(rf"^ *%{re.escape(first.start)} = .*\n", text, re.MULTILINE)
        zeros = f"  %zero = bf16[] constant(0)\n  %zeros = {shape}{{2,1,0}} broadcast(%zero), dimensions={{}}\n"
        return text.replace(line, zeros + re.sub(r"copy-start\([^)]*\)", "copy-start(%zeros)", line))

    report = report_of(edited(original, tmp_path / "zeros.hlo", from_zeros), "a100")
    assert finding(report, "HLO205").transfers == (first.id,)
    assert "HLO205" not in codes(report_of(original, "a100"))


def test_a_copy_to_the_host_that_nothing_reads_is_reported(tmp_path: Path) -> None:
    """Make two copies back of a real module read the same buffer: nothing reads the other one."""
    original = fixture("a100_offload_unrolled")
    offload = find_offload(load_module(original))
    sent = [t for t in offload.transfers if t.direction == "d2h"]
    assert sent[0].done is not None
    assert sent[1].done is not None
    one, other = sent[0].done, sent[1].done
    crossed = edited(
        original,
        tmp_path / "unread.hlo",
        lambda text: re.sub(rf"copy-start\(%{re.escape(other)}\)", f"copy-start(%{one})", text),
    )
    report = report_of(crossed, "a100")
    assert finding(report, "HLO206").transfers == (sent[1].id,)
    assert "HLO206" not in codes(report_of(original, "a100"))
    # a pipelined loop whose copies go through a peeled one is no such case
    assert "HLO206" not in codes(report_of(fixture("gb200_offload_scan_pipelined"), "gb200"))


def test_more_pinned_memory_than_the_pool_has_is_reported_with_the_variable_to_set() -> None:
    found = inspect(str(fixture("gb200_offload_scan")), target="gb200")

    def with_host_bytes(size: int) -> Evidence:
        memory = dataclasses.replace(found.report.memory, host_bytes=size)
        return Evidence(dataclasses.replace(found.report, memory=memory), found.offload, found.prediction)

    reported = finding(run_rules(with_host_bytes(65 << 30)), "HLO207")
    assert "XLA_PJRT_GPU_HOST_MEMORY_LIMIT_GB=72" in reported.remedy
    assert "HLO207" not in codes(run_rules(with_host_bytes(64 << 30)))


def test_more_host_memory_than_the_devices_of_a_host_have_is_an_error() -> None:
    target = load_target("h100")
    assert target.link is not None
    assert target.link.host_memory_bytes is not None

    def with_host_memory(size: float) -> set[str]:
        assert target.link is not None
        assert target.link.host_memory_bytes is not None
        figure = dataclasses.replace(target.link.host_memory_bytes, value=size)
        small = dataclasses.replace(target, link=dataclasses.replace(target.link, host_memory_bytes=figure))
        return codes(inspect(str(fixture("h100_offload_by_xla")), target=small).report, "error")

    assert "HLO208" in with_host_memory(8 * 30e9)  # the step takes 35 GiB a device, and eight share
    assert "HLO208" not in with_host_memory(8 * 40e9)


# ---- correctness


def test_all_slices_that_walk_the_wrong_way_are_one_finding() -> None:
    wrong = report_of(fixture("gb200_offload_scan_double_buffered", "jax0.10.2"), "gb200")
    reported = finding(wrong, "HLO301")
    assert (reported.severity, reported.evidence["slices"], len(reported.transfers)) == ("error", 4, 4)
    assert "HLO301" not in codes(report_of(fixture("gb200_offload_scan_double_buffered"), "gb200"))


def test_a_memory_kind_that_was_dropped_is_found_by_the_stablehlo_next_to_the_module(tmp_path: Path) -> None:
    """Use the module without its S(5), as jax 0.8.0 made it, with StableHLO in the form that jax writes."""
    stack = 'tensor<4x512x512xf32> {mhlo.memory_kind = "pinned_host"}'
    requested = f"  func.func public @main(%arg0: {stack}, %arg1: tensor<512x512xf32>) -> ({stack}) {{\n"
    path = edited(fixture("gb200_host_stack_donated"), tmp_path / "dropped.hlo", lambda t: t.replace(":S(5)", ""))
    path.with_suffix(".stablehlo").write_text(requested)
    reported = finding(report_of(path, "gb200"), "HLO304")
    assert reported.evidence == {
        "requested_arguments": 1,
        "requested_results": 1,
        "host_arguments": 0,
        "host_results": 0,
    }
    kept = edited(fixture("gb200_host_stack_donated"), tmp_path / "kept.hlo", lambda t: t + "\n")
    kept.with_suffix(".stablehlo").write_text(requested)
    assert "HLO304" not in codes(report_of(kept, "gb200"))


def test_a_kernel_that_computes_on_host_memory_is_named_with_its_line() -> None:
    reported = finding(report_of(fixture("gb200_compute_on_host_memory"), "gb200"), "HLO305")
    assert reported.instruction == "loop_add_fusion"
    assert reported.source is not None
    assert reported.source.file.endswith("fixtures/steps.py")
    assert "HLO306" not in codes(report_of(fixture("gb200_compute_on_host_memory"), "gb200"))


def test_computation_on_the_host_informs() -> None:
    reported = finding(report_of(fixture("gb200_compute_on"), "gb200"), "HLO307")
    assert reported.severity == "info"
    assert "HLO307" not in codes(report_of(fixture("gb200_optimizer"), "gb200"))


# ---- evidence


def test_a_module_that_is_not_scheduled_is_an_error_and_rules_on_time_do_not_run() -> None:
    """Use an embedded module: files without a schedule are refused when they are read, but a trace may embed one."""
    text = gzip.decompress(fixture("gb200_offload_scan").read_bytes()).decode()
    offload = find_offload(parse_text(text.replace(", is_scheduled=true", "", 1)))
    report = dataclasses.replace(
        report_of(fixture("gb200_offload_scan"), None), memory=MemoryInfo(None, None, None, None, "unknown")
    )
    found = run_rules(Evidence(report, offload))
    assert "HLO401" in codes(found, "error")
    assert {"HLO102", "HLO105", "HLO201"} <= {rule.code for rule in found.rules_not_run}
    assert "HLO401" not in codes(report_of(fixture("gb200_offload_scan"), "gb200"))


def test_placements_that_no_pass_has_carried_out_are_an_error(tmp_path: Path) -> None:
    """Put the annotation as XLA writes it before HostOffloader into a real module."""

    def annotated(text: str) -> str:
        root = re.search(r"^ENTRY .*\n", text, re.MULTILINE)
        assert root is not None
        head = '  %one = f32[] constant(1)\n  %moved = f32[] custom-call(%one), custom_call_target="MoveToHost"\n'
        return text.replace(root[0], root[0] + head)

    report = report_of(edited(fixture("gb200_save"), tmp_path / "early.hlo", annotated), "gb200")
    assert finding(report, "HLO402").severity == "error"


def test_without_a_target_the_report_says_what_is_missing() -> None:
    assert "HLO404" in codes(report_of(fixture("gb200_offload_scan"), None), "info")
    assert "HLO404" not in codes(report_of(fixture("gb200_offload_scan"), "gb200"))
    assert "HLO404" not in codes(report_of(fixture("gb200_save"), None))  # nothing moves there


def test_a_loop_of_unknown_iterations_around_a_transfer_is_reported(tmp_path: Path) -> None:
    """Make the condition of a real loop data, and take out XLA's note of its iterations."""
    original = fixture("gb200_offload_scan")

    def without_bounds(text: str) -> str:
        text = re.sub(r'"known_trip_count":\{"n":"\d+"\},?', "", text)
        decide = r'ROOT %\1 = pred[] custom-call(\2), custom_call_target="decide"'
        return re.sub(r"ROOT %(loop_compare_fusion[.\d]*) = pred\[\] fusion\(([^)]*)\).*", decide, text)

    report = report_of(edited(original, tmp_path / "unbound.hlo", without_bounds), "gb200")
    assert len(finding(report, "HLO406").transfers) == 2
    assert "HLO406" not in codes(report_of(original, "gb200"))
