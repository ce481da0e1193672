"""Rule HLO209: whether a step fits on its device, and that this comes first where it does not."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import click

from hloinspect.analyze.inspect import inspect
from hloinspect.gate.budget import parse_budget
from hloinspect.gate.gate import check_report
from hloinspect.hardware import load_target
from hloinspect.render.ci import github
from hloinspect.render.page import html_page
from hloinspect.render.terminal.report_text import to_text
from hloinspect.report.schema import Report
from hloinspect.rules.memory_host import POOL_BYTES
from hloinspect.thresholds import ALLOCATOR_SHARE
from tests.support.rules_samples import codes, finding, fixture, judged, report_of

SCAN = fixture("gb200_offload_scan")
WRONG = fixture("gb200_offload_scan", "jax0.10.2")
TPU = fixture("v6e_offload_scan")


def used_by(path: Path, target: str) -> int:
    used = report_of(path, target).memory.device_bytes
    assert used is not None
    return used


def with_device(share: float, path: Path = SCAN, target: str = "gb200", **memory: object) -> Report:
    """Return the report for a device of which the step takes this share."""
    return judged(path, target, device_limit_bytes=int(used_by(path, target) / share), **memory)


def test_a_step_that_needs_more_than_the_device_has_does_not_fit() -> None:
    reported = finding(with_device(2.0, source="artifacts"), "HLO209")
    assert (reported.severity, reported.name) == ("error", "device-memory-exceeded")
    assert reported.message == "the step does not fit: it takes 176 MiB of device memory, and the device has 88 MiB"
    assert reported.evidence["device_bytes"] == used_by(SCAN, "gb200")


def test_what_is_too_much_by_a_byte_does_not_read_like_what_there_is() -> None:
    used = used_by(SCAN, "gb200")
    report = judged(SCAN, "gb200", device_limit_bytes=used - 1, source="artifacts")
    reported = finding(report, "HLO209").message
    assert reported == f"the step does not fit: it takes {used:,} B of device memory, and the device has {used - 1:,} B"
    assert f"device {used:,} B of {used - 1:,} B" in click.unstyle(to_text(report))
    limit = 1000 * 2**20
    allocator = int(ALLOCATOR_SHARE * limit)
    near = judged(SCAN, "gb200", device_limit_bytes=limit, device_bytes=allocator + 1, source="artifacts")
    assert (
        f"takes {allocator + 1:,} B of device memory, more than the {allocator:,} B" in finding(near, "HLO209").message
    )
    pool = judged(SCAN, "gb200", host_bytes=POOL_BYTES + 1, host_limit_bytes=POOL_BYTES)
    for code in ("HLO207", "HLO208"):
        assert f"takes {POOL_BYTES + 1:,} B" in finding(pool, code).message


def test_offloading_is_not_advised_to_a_host_that_is_full_too() -> None:
    assert "computed again or offloaded" in finding(with_device(2.0), "HLO209").remedy
    both = with_device(2.0, host_bytes=3 << 30, host_limit_bytes=2 << 30)
    assert "HLO208" in codes(both, "error")
    assert "offload" not in finding(both, "HLO209").remedy


def test_the_pool_is_not_to_be_raised_on_a_host_that_has_no_more() -> None:
    def pool_remedy(host_limit: int) -> str:
        return finding(with_device(0.5, host_bytes=65 << 30, host_limit_bytes=host_limit), "HLO207").remedy

    assert "XLA_PJRT_GPU_HOST_MEMORY_LIMIT_GB" in pool_remedy(100 << 30)
    assert "XLA_PJRT_GPU_HOST_MEMORY_LIMIT_GB" not in pool_remedy(60 << 30)


def test_a_target_with_less_memory_is_judged_by_its_own() -> None:
    """Use the way of a user: a target file."""
    target = load_target("gb200")

    def of_size(size: int) -> Report:
        small = dataclasses.replace(target, hbm_bytes=dataclasses.replace(target.hbm_bytes, value=size))
        return inspect(str(SCAN), target=small).report

    assert finding(of_size(used_by(SCAN, "gb200") - 1), "HLO209").severity == "error"
    assert finding(of_size(used_by(SCAN, "gb200")), "HLO209").severity == "warning"
    assert "HLO209" not in codes(of_size(2 * used_by(SCAN, "gb200")))


def test_memory_that_is_estimated_says_so() -> None:
    assert report_of(SCAN, "gb200").memory.source == "estimated"
    assert "an estimated 176 MiB of device memory" in finding(with_device(2.0), "HLO209").message
    assert "an estimated 176 MiB" in finding(with_device(0.9), "HLO209").message
    assert "estimated" not in finding(with_device(0.9, source="artifacts"), "HLO209").message


def test_an_estimate_for_a_tpu_is_a_lower_bound_and_above_the_limit_all_the_more_an_error() -> None:
    reported = finding(with_device(1.01, TPU, "v6e"), "HLO209")
    assert reported.severity == "error"
    assert "an estimated" in reported.message
    assert ", or more, of device memory" in reported.message
    assert "HLO209" not in codes(with_device(0.99, TPU, "v6e"))  # no allocator of GPUs


def test_between_what_xlas_allocator_takes_and_the_device_is_a_warning() -> None:
    used = used_by(SCAN, "gb200")

    def of_device(size: int) -> Report:
        return judged(SCAN, "gb200", device_limit_bytes=size)

    edge = int(used / ALLOCATOR_SHARE) + 1
    assert "HLO209" not in codes(of_device(edge))
    reported = finding(of_device(edge - 4), "HLO209")
    assert reported.severity == "warning"
    assert "(75% of the device's" in reported.message
    assert "XLA's allocator takes by default" in reported.message
    assert "XLA_PYTHON_CLIENT_MEM_FRACTION=0.77 " in reported.remedy
    assert finding(of_device(used), "HLO209").severity == "warning"
    assert finding(of_device(used - 1), "HLO209").severity == "error"


def test_a_share_that_leaves_nothing_for_cuda_is_not_advised() -> None:
    assert "XLA_PYTHON_CLIENT_MEM_FRACTION=0.92 " in finding(with_device(0.9), "HLO209").remedy
    assert "MEM_FRACTION" not in finding(with_device(0.97), "HLO209").remedy


def test_what_was_not_checked_is_listed_as_not_run_with_the_reason() -> None:
    def reason(report: Report) -> str:
        assert "HLO209" not in codes(report)
        (found,) = [rule.reason for rule in report.rules_not_run if rule.code == "HLO209"]
        return found

    assert "needs a --target" in reason(report_of(SCAN, None))
    assert "needs the memory of the step" in reason(judged(SCAN, "gb200", device_bytes=None, source="unknown"))


# ---- first of all findings


def test_a_step_that_cannot_run_comes_before_one_whose_gradients_are_wrong() -> None:
    findings = with_device(2.0, WRONG).findings
    assert [each.code for each in findings[:2]] == ["HLO209", "HLO301"]
    assert {each.severity for each in findings[:2]} == {"error"}
    assert with_device(0.9, WRONG).findings[0].code == "HLO301"  # a warning is no error


def test_it_is_the_first_finding_of_text_page_and_annotations() -> None:
    report = with_device(2.0, WRONG)
    lines = click.unstyle(to_text(report)).splitlines()
    first, second, third, *_ = (line for line in lines if line.startswith("HLO"))
    assert first.startswith("HLO209: the step does not fit")
    assert second.startswith("HLO301: XLA copies other bytes")
    assert third.startswith("HLO209 error     device-memory-exceeded")
    assert any(re.match(r" memory    device about [\d.]+ MiB of [\d.]+ MiB", line) for line in lines)
    inspection = dataclasses.replace(inspect(str(WRONG), target="gb200"), report=report)
    assert re.findall(r">(HLO\d{3})</a>", html_page(inspection))[:2] == ["HLO209", "HLO301"]
    checked = check_report(report, "step", [parse_budget("stall=99%")], None)
    reported = [line for line in github.render([checked]).splitlines() if "title=hloinspect HLO" in line]
    assert "title=hloinspect HLO209" in reported[0]


def test_a_step_that_fits_shows_no_memory_in_red() -> None:
    assert "\x1b[31mdevice about" in to_text(with_device(2.0))
    assert "\x1b[31mdevice about" not in to_text(with_device(0.9))
