"""Archives of nsys-jax give the figures of what ran: a synthetic archive and a synthetic xplane are made of one run."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from hloinspect.measure.file import measure_file
from hloinspect.measure.measured import MeasuredFile
from hloinspect.profiles.open import open_trace
from tests.support.cuda_checks import assert_is_as_played, one, play, trace_of, waits
from tests.support.cuda_runtime import Form, Run, Speeds
from tests.support.cuda_traces import US, write_trace
from tests.support.nsys_jax_archives import FORMS, archive_of, zipped
from tests.support.nsys_jax_archives import Form as Version

CASES = {
    "jax0.10.2/gb200_offload_unrolled": Speeds(d2h=1200 * US, h2d=1800 * US),
    "jax0.12.0.1/gb200_offload_unrolled": Speeds(d2h=100 * US, h2d=150 * US),
    "jax0.10.2/gb200_offload_scan": Speeds(d2h=300 * US, h2d=400 * US),
    "jax0.12.0.1/gb200_host_stack_donated": Speeds(d2h=300 * US),
}
WHERE = "h100_maxtext_fsdp4"
COUNTED_TWICE = frozenset(f"custom-call.{number}" for number in (220, 223, 225, 227, 228, 229, 230, 231))
"""Instructions with a range in a range of their own name. ``instructions.json`` has the median of both."""


def archive(run: Run, name: str, path: Path, version: Version = "2024.4") -> MeasuredFile:
    return measure_file(zipped(archive_of(trace_of(run, name)).members(version), path / "synthetic.zip"))


@pytest.mark.parametrize("name", CASES)
def test_waits_of_an_archive_are_those_of_the_run(tmp_path: Path, name: str) -> None:
    run = play(name, speeds=CASES[name])
    file = archive(run, name, tmp_path)
    assert_is_as_played(one(file), run, name)
    assert sum(sum(truth.waits.values()) for truth in run.truth) > 0
    assert one(file).launches_known
    assert any("does not record copies" in gap.reason and gap.affects == "transfers" for gap in file.unknown)


@pytest.mark.parametrize("version", FORMS)
def test_every_set_of_columns_gives_the_same_figures(tmp_path: Path, version: Version) -> None:
    name = "jax0.10.2/gb200_offload_unrolled"
    run = play(name, speeds=CASES[name])
    file = archive(run, name, tmp_path, version)
    assert waits(one(file), name) == [dict(truth.waits) for truth in run.truth]
    first = one(measure_file(write_trace(trace_of(run, name), tmp_path / "host.xplane.pb")))
    for figure, values in first.figures.items():
        assert one(file).figures[figure].tolist() == values.tolist(), figure
    assert one(file).launches_known == (version == "2024.4")
    assert any("when operations were launched" in limit for limit in file.limits) == (version != "2024.4")


def test_copies_on_the_main_stream_are_waited_for_as_long_as_they_last(tmp_path: Path) -> None:
    name = "jax0.10.2/gb200_offload_unrolled"
    run = play(name, speeds=CASES[name], form=Form(synchronous=True))
    assert_is_as_played(one(archive(run, name, tmp_path)), run, name)


def test_the_host_that_launches_late_is_not_charged_to_a_transfer(tmp_path: Path) -> None:
    late = "loop_add_subtract_fusion"
    speeds = Speeds(h2d=1100 * US, late=lambda op, step: 1500 * US if op == late and step == 2 else 0)
    run = play("optimizer", speeds=speeds)
    device = one(archive(run, "optimizer", tmp_path))
    assert waits(device, "optimizer") == [dict(truth.waits) for truth in run.truth]
    assert "copy-start.2" not in waits(device, "optimizer")[2]
    assert [int(time) > 0 for time in device.figures["host_bound_ps"]] == [False, False, True, False]


def test_an_archive_without_its_module_says_what_to_do(tmp_path: Path) -> None:
    name = "jax0.10.2/gb200_offload_unrolled"
    whole = archive_of(trace_of(play(name), name)).members()
    members = {member: data for member, data in whole.items() if not member.startswith("dump/")}
    file = measure_file(zipped(members, tmp_path / "synthetic.zip"))
    (gap,) = [gap for gap in file.unknown if "no module" in gap.reason]
    assert "dump/" in gap.remedy
    assert len(one(file).numbers) == 4


# ---- a real one


@pytest.fixture(scope="module")
def real(corpus: Path) -> MeasuredFile:
    return measure_file(corpus / "gpu" / WHERE)


def test_a_real_trace_has_its_devices_and_steps(real: MeasuredFile) -> None:
    assert [device.name for device in real.devices] == [f"/device:GPU:{number}" for number in range(4)]
    assert real.device_type == "NVIDIA H100 80GB HBM3"
    assert {device.set_aside for device in real.devices} == {("warm-up", "", "", "", "")}
    times = np.array([device.figures["time_ps"][1:] for device in real.devices]) / 1e9
    assert np.sort(times.max(axis=0)) == pytest.approx([120.1, 122.7, 125.4, 130.1], abs=0.11)
    assert not real.unknown
    assert any("copies that no instruction makes" in limit for limit in real.limits)
    assert any("which thread drives which GPU is not in the archive" in limit for limit in real.limits)
    assert real.programs[0].name == "jit_train_step"
    assert {program.name for program in real.programs} >= {"jit_raw_generate_synthetic_data"}


def test_a_real_trace_has_the_time_of_every_instruction(real: MeasuredFile, corpus: Path) -> None:
    expected = json.loads((corpus / "gpu" / WHERE / "instructions.json").read_text())["instructions"]
    found = durations(real, lines_of(corpus))
    assert len(expected) == len(found) == 687
    for own in expected:
        name, times = own["instruction"], found[own["instruction"]]
        if name in COUNTED_TWICE:
            assert len(times) / 16 == own["runs_per_device_step"] / 2
            assert np.median(times) > own["median_us"]
        else:
            assert len(times) / 16 == own["runs_per_device_step"]
            assert np.median(times) == pytest.approx(own["median_us"], rel=0.01)


def test_the_directory_the_table_and_the_zip_are_one_trace(real: MeasuredFile, corpus: Path, tmp_path: Path) -> None:
    folder = corpus / "gpu" / WHERE
    members = {f"dump/{path.name}": path.read_bytes() for path in folder.glob("*.xz")}
    members["nvtx_gpu_proj_trace/trace.parquet"] = (folder / "trace.parquet").read_bytes()
    packed = measure_file(zipped(members, tmp_path / "x.zip"))
    for other in (measure_file(folder / "trace.parquet"), packed):
        for mine, its in zip(real.devices, other.devices, strict=True):
            assert mine.figures["time_ps"].tolist() == its.figures["time_ps"].tolist()
            assert mine.figures["collective_exposed_ps"].tolist() == its.figures["collective_exposed_ps"].tolist()


Lines = Sequence[tuple[np.ndarray, np.ndarray, np.ndarray, tuple[str, ...]]]


def lines_of(corpus: Path) -> list[Lines]:
    """Return for each device the events of its lines: start, duration, and name as an index into names."""
    found = []
    for plane in open_trace(corpus / "gpu" / WHERE).planes_of("/device:GPU:"):
        columns = [line.columns(("hlo_op",)) for line in plane.lines]
        found.append([(own.start_ps, own.duration_ps, *own.stats["hlo_op"].labels()) for own in columns])
    return found


def durations(file: MeasuredFile, planes: Sequence[Lines]) -> dict[str, list[float]]:
    """Return the times in us of each instruction in the steady steps of all devices."""
    found: dict[str, list[float]] = defaultdict(list)
    for device, lines in zip(file.devices, planes, strict=True):
        for start, duration, code, names in lines:
            for begin, end in list(zip(device.start_ps.tolist(), device.end_ps.tolist(), strict=True))[1:]:
                for place in np.flatnonzero((start >= begin) & (start < end)).tolist():
                    if code[place] >= 0:
                        found[names[code[place]]].append(duration[place] / 1e6)
    return {name: times for name, times in found.items() if len(times) >= 16}
