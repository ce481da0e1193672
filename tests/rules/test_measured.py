"""Rules on traces, each beside a near miss.

The traces are the real ones of the corpus, and runs of fixtures that are played and written as XLA's profiler writes
them (tests/support/cuda_traces.py).
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from hloinspect.analyze.trace import trace
from hloinspect.report.schema import Report
from tests.support.cuda_checks import in_graphs, play, trace_of
from tests.support.cuda_runtime import Speeds
from tests.support.cuda_traces import US, write_trace
from tests.support.rules_samples import ROOT, codes, finding, fixture

CORPUS = Path(os.environ.get("HLOINSPECT_CORPUS", ROOT.parent / "shared" / "corpus"))
needs_corpus = pytest.mark.skipif(not (CORPUS / "traces").is_dir(), reason="no corpus: set HLOINSPECT_CORPUS")
UNROLLED = "jax0.12.0.1/gb200_offload_unrolled"
OPTIMIZER = "jax0.12.0.1/gb200_optimizer"


def played(
    folder: Path, name: str, speeds: Speeds | None = None, *, target: str | None = "gb200", hide: bool = False
) -> Report:
    """Return the report on a trace of a fixture that was played at these speeds; with ``hide`` its kernels are in a
    graph."""
    run = play(name, speeds=speeds)
    if hide:
        run.events = in_graphs(run, lambda event: event.op.startswith("gemm_fusion"))
    return trace(str(write_trace(trace_of(run, name), folder / "host.xplane.pb")), target=target).report


@needs_corpus
def test_the_trace_of_a_saturated_link_is_called_that_with_the_measured_wait() -> None:
    report = trace(str(CORPUS / "traces" / "tpu_v6e_host_offload.xplane.pb"), target="v6e").report
    reported = finding(report, "HLO106")
    assert codes(report, "error", "warning") == {"HLO106"}
    assert report.step.measured is not None
    assert reported.cost_ms == pytest.approx(report.step.measured.stall_ms)
    assert finding(report, "HLO407").evidence["steps"] == 400  # 100 steps on each of four devices


@needs_corpus
@pytest.mark.parametrize("name", ["rocm_mi300x_jax08.xplane.pb", "rocm_mi300x_roctracer.xplane.pb"])
def test_a_rocm_trace_is_reported_once(name: str) -> None:
    report = trace(str(CORPUS / "traces" / name)).report
    assert codes(report) == {"HLO409"}
    assert "HLO106" in {rule.code for rule in report.rules_not_run}


def test_steps_with_rates_that_cannot_be_are_no_reason_to_trace_more_of_them(tmp_path: Path) -> None:
    report = played(tmp_path, "jax0.12.0.1/h100_offload_by_xla")  # 1 GiB in 0.1 ms
    (unknown,) = report.unknown
    assert unknown.reason == "no step of 4 counts: rates that cannot be (4)"
    assert "clock" in unknown.remedy
    assert "trace more" not in unknown.remedy


@needs_corpus
def test_a_trace_without_a_whole_step_says_so() -> None:
    assert codes(trace(str(CORPUS / "traces" / "cuda_v100_tensorflow_2020.xplane.pb")).report) == {"HLO410"}


@needs_corpus
def test_a_trace_without_offload_has_no_error_and_no_warning() -> None:
    report = trace(str(CORPUS / "traces" / "tpu_vllm_no_offload.trace.json.gz")).report
    assert codes(report, "error", "warning") == set()


def test_a_copy_that_is_alone_on_the_link_and_slow_is_reported(tmp_path: Path) -> None:
    """Move 2 MiB by each copy: 2.1 GB/s in 1 ms, 210 in 10 us; gb200 has 225. Only transfers that are 16 MiB in the
    module count: smaller ones say nothing of a link."""
    slow = played(tmp_path, OPTIMIZER, Speeds(h2d=1000 * US, d2h=1000 * US))
    reported = finding(slow, "HLO108")
    assert reported.evidence["gbps"] == pytest.approx(2.1, rel=0.01)
    assert {slow.transfers[number - 1].bytes for number in reported.transfers} == {16 << 20}
    assert "HLO108" not in codes(played(tmp_path, OPTIMIZER, Speeds(h2d=10 * US, d2h=10 * US)))
    assert "HLO108" not in codes(played(tmp_path, UNROLLED, Speeds(h2d=1000 * US, d2h=1000 * US)))


def test_a_host_that_launches_late_is_not_charged_to_a_transfer(tmp_path: Path) -> None:
    """Launch the operation after a done long after the copy has ended, in every step."""
    after_done = Speeds(h2d=1100 * US, late=lambda op, step: 1500 * US if op == "loop_add_subtract_fusion" else 0)
    late, prompt = played(tmp_path, "optimizer", after_done), played(tmp_path, "optimizer", Speeds(h2d=1100 * US))
    reported = finding(late, "HLO115")
    assert reported.transfers == ()
    assert late.step.measured is not None
    assert reported.evidence["host_bound_ms"] == late.step.measured.host_bound_ms > 0.1
    assert "HLO115" not in codes(prompt)


def test_command_buffers_that_hide_operations_are_reported(tmp_path: Path) -> None:
    hidden = finding(played(tmp_path, UNROLLED, hide=True), "HLO408")
    assert "--xla_gpu_enable_command_buffer=" in hidden.remedy
    assert "HLO408" not in codes(played(tmp_path, UNROLLED))


def test_another_program_than_was_checked_is_an_error(tmp_path: Path) -> None:
    run = play(UNROLLED)
    path = str(write_trace(trace_of(run, UNROLLED), tmp_path / "host.xplane.pb"))
    other, same = fixture("gb200_offload_scan"), fixture("gb200_offload_unrolled")
    assert finding(trace(path, expect=str(other)).report, "HLO411").severity == "error"
    assert "HLO411" not in codes(trace(path, expect=str(same)).report)


def test_findings_on_a_trace_rest_on_measured_waits(tmp_path: Path) -> None:
    report = played(tmp_path, "jax0.12.0.1/h100_offload_scan", Speeds(d2h=500 * US, h2d=500 * US), target="h100")
    measured = {t.id: t.measured.wait_ms for t in report.transfers if t.measured is not None}
    held = [each for each in report.findings if each.cost_ms]
    assert held
    for each in held:
        assert each.cost_ms == pytest.approx(sum(measured[number] for number in each.transfers))
        assert "measured" in each.message
