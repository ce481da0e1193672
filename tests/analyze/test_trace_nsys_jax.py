"""``trace`` of archives of nsys-jax, as a user calls it."""

from __future__ import annotations

from pathlib import Path

import hloinspect
from tests.support.commands import run_inside
from tests.support.cuda_checks import play, trace_of
from tests.support.cuda_runtime import Speeds
from tests.support.cuda_traces import US
from tests.support.nsys_jax_archives import archive_of, combined, zipped

NAME = "jax0.10.2/gb200_offload_unrolled"
SHIFT_NS = 250_000_000


def members(devices: int) -> dict[str, dict[str, bytes]]:
    """Return the archives of processes with a device each, which run the same at the same time on other clocks."""
    trace = trace_of(play(NAME, speeds=Speeds(d2h=1200 * US, h2d=1800 * US)), NAME)
    return {
        f"proc{number}": archive_of(trace, first_device=number, shift_ns=number * SHIFT_NS).members()
        for number in range(devices)
    }


def test_a_directory_of_zips_is_a_run_of_many_hosts(tmp_path: Path) -> None:
    for stem, own in members(3).items():
        zipped(own, tmp_path / f"{stem}.zip")
    report = hloinspect.trace(str(tmp_path), target="gb200").report
    assert [device.name for device in report.devices] == ["/device:GPU:0", "/device:GPU:1", "/device:GPU:2"]
    assert report.trace is not None
    assert report.transfers
    assert all(transfer.measured is not None for transfer in report.transfers)
    assert report.step.predicted is not None


def test_one_archive_of_all_processes_gives_the_same_transfers(tmp_path: Path) -> None:
    parts = members(2)
    single = hloinspect.trace(str(zipped(parts["proc0"], tmp_path / "proc0.zip"))).report
    both = hloinspect.trace(str(zipped(combined(parts), tmp_path / "all.zip"))).report
    assert len(both.devices) == 2
    for one, other in zip(single.transfers, both.transfers, strict=True):
        assert one.measured is not None
        assert other.measured is not None
        assert one.measured.wait_ms == other.measured.wait_ms
        assert one.verdict == other.verdict


def test_transfers_of_an_archive_have_the_gap_that_copies_are_not_recorded(tmp_path: Path) -> None:
    path = zipped(members(1)["proc0"], tmp_path / "x.zip")
    done = run_inside("trace", str(path))
    assert done.returncode == 3
    assert "does not record copies" in " ".join(done.stdout.split())


def test_a_module_is_not_looked_for_in_an_archive(tmp_path: Path) -> None:
    path = zipped(members(1)["proc0"], tmp_path / "x.zip")
    done = run_inside("inspect", str(path))
    assert done.returncode == 2
    assert f"use `hloinspect trace {path}`" in done.stderr


def test_a_real_archive_is_predicted_beside_the_measurement(corpus: Path) -> None:
    report = hloinspect.trace(str(corpus / "gpu" / "h100_maxtext_fsdp4"), target="h100").report
    assert len(report.devices) == 4
    assert not report.transfers
    assert not report.unknown
    assert report.step.predicted is not None
    assert report.step.measured is not None
    assert (report.step.measured.steps_analyzed, report.step.measured.steps_seen) == (16, 20)
    assert any("copies that no instruction makes" in limit for limit in report.limits)
