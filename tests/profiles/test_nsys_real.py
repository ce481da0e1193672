"""Real exports of Nsight Systems (PyTorch programs), where the corpus is available."""

from __future__ import annotations

from pathlib import Path

import pytest

from hloinspect import trace
from hloinspect.calibrate.calibrate import calibrate
from hloinspect.profiles.open import open_trace

NAMES = ("h100_2gpu_1s", "mfu_2gpu_before", "mock")


@pytest.mark.parametrize(
    ("name", "devices", "events", "copies"),
    [
        ("h100_2gpu_1s", 2, 4368, {("h2d", "pinned", 446), ("h2d", "pageable", 4), ("d2h", "pinned", 4)}),
        ("mfu_2gpu_before", 2, 5299, {("h2d", "pageable", 34)}),
        ("mock", 1, 3, {("d2h", "pinned", 1)}),
    ],
)
def test_copies_and_kernels_are_there_and_what_is_missing_is_said(
    corpus: Path, name: str, devices: int, events: int, copies: set[tuple[str, str, int]]
) -> None:
    found = trace(str(corpus / "nsys" / f"{name}.sqlite.xz"))
    (file,) = found.files
    assert file.events == events
    assert {(copy.direction, copy.memory, copy.count) for copy in file.other_copies} == copies
    assert file.module is None
    said = " ".join(gap.reason + gap.remedy for gap in found.report.unknown)
    assert "nsys profile --trace=cuda,nvtx" in said
    assert "--hlo" in said
    space = open_trace(corpus / "nsys" / f"{name}.sqlite.xz")
    assert len(space.planes_of("/device:GPU:")) == devices


def test_the_environment_is_not_shown(corpus: Path) -> None:
    """The exports hold whole environments. Two have a variable that is called a secret."""
    for name in NAMES:
        space = open_trace(corpus / "nsys" / f"{name}.sqlite.xz")
        (plane,) = [plane for plane in space.planes if plane.name == "/host:metadata"]
        assert set(plane.stats) <= {"nsys_version", "session_utc_ns", "xla_flags"}
        assert "SECRET" not in " ".join((*space.notes, *space.warnings, *space.hostnames))


def test_the_link_of_an_h100_is_calibrated(corpus: Path) -> None:
    found = calibrate(str(corpus / "nsys" / "h100_2gpu_1s.sqlite.xz"), "h100")
    rates = {figure.key: figure for figure in found.figures}
    assert rates["link.h2d_bytes_per_s"].value == pytest.approx(27.68e9, rel=0.001)
    assert rates["link.h2d_bytes_per_s"].count == 278


def test_a_device_has_its_name_and_memory(corpus: Path) -> None:
    space = open_trace(corpus / "nsys" / "mock.sqlite.xz")
    (plane,) = space.planes_of("/device:GPU:")
    assert plane.stats["gpu_device_name"] == "NVIDIA GeForce RTX 3080"
    assert plane.stats["memory_bandwidth"] == 760_080_000_000
    assert space.hostnames == ("DESKTOP-KBEMEQS",)
    assert not space.warnings  # its one warning is about unified memory, and no event was lost
