"""The estimate against XLA's own figures: fixtures, the corpus, and the live ranges and allocations of a whole dump."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest

from hloinspect.hlo import load_module
from hloinspect.inputs.dumps import choose_module, dumped_memory, dumped_modules
from hloinspect.memory.assignment import THREAD_LOCAL, parse_assignment, sum_allocations
from hloinspect.memory.estimate import Memory, memory_of
from hloinspect.memory.liveness import Liveness, liveness
from hloinspect.offload.transfers import find_offload
from tests.support.places import ROOT

CORPUS = Path(os.environ.get("HLOINSPECT_CORPUS", ROOT.parent / "shared" / "corpus"))
FIXTURES = sorted((ROOT / "fixtures").glob("jax*/*/manifest.json"))
MAXTEXT = sorted((CORPUS / "maxtext").glob("*.json"))
needs_corpus = pytest.mark.skipif(not MAXTEXT, reason="no corpus: set HLOINSPECT_CORPUS to its folder")

TOLERANCE = 0.05
"""Largest error. The goal is 10 % on nine of ten; the largest now is 4.4 %, and a change that makes it worse must
show."""

SMALL_BYTES = 16384
"""Size below which XLA's pointers to tuples and other small buffers matter."""


def memory(path: Path) -> Memory:
    found = memory_of(find_offload(load_module(path)))
    assert found is not None
    return found


def total(sizes: dict[str, int], prefix: str = "") -> int:
    parts = [sizes[f"{prefix}{part}_size_in_bytes"] for part in ("argument", "temp", "output")]
    return sum(parts) - sizes[f"{prefix}alias_size_in_bytes"]


def assert_near(estimate: int, expected: int) -> None:
    assert abs(estimate - expected) <= max(TOLERANCE * expected, SMALL_BYTES), f"{estimate:,} instead of {expected:,}"


def fixture_name(path: Path) -> str:
    return f"{path.parent.parent.name}/{path.parent.name}"


@pytest.mark.parametrize("manifest", FIXTURES, ids=fixture_name)
@pytest.mark.parametrize("module", ["module.hlo.txt.gz", "module.hlo.pb.gz"])
def test_a_fixture_needs_what_xla_assigned(manifest: Path, module: str) -> None:
    sizes = json.loads(manifest.read_text())["memory"]
    found = memory(manifest.with_name(module))
    assert found.host.total_bytes == pytest.approx(total(sizes, "host_"), abs=SMALL_BYTES)
    if manifest.parent.name == "v5p_pallas_kernels":  # padding of small grids is an eighth of it
        assert 0.85 * total(sizes) < found.device.total_bytes <= total(sizes)
        return
    assert_near(found.device.total_bytes, total(sizes))
    if manifest.parent.name.partition("_")[0] == "v6e":  # padding counts there, and temporaries fit on the chip
        assert found.device.total_bytes <= total(sizes)
    else:
        assert found.device.argument_bytes == sizes["argument_size_in_bytes"]
        assert_near(found.device.temp_bytes, sizes["temp_size_in_bytes"])


@needs_corpus
@pytest.mark.parametrize("figures", MAXTEXT, ids=lambda path: path.stem)
def test_a_maxtext_step_needs_what_xla_assigned(figures: Path) -> None:
    sizes = json.loads(figures.read_text())["memory"]
    found = memory(figures.with_suffix(".hlo.gz"))
    assert_near(found.device.temp_bytes, sizes["temp_size_in_bytes"])
    assert_near(found.device.total_bytes, total(sizes))
    assert found.host.total_bytes == pytest.approx(total(sizes, "host_"), rel=1e-3)


@needs_corpus
def test_the_steps_of_golden_json_need_what_is_written_there() -> None:
    golden = json.loads((CORPUS / "golden.json").read_text())
    checked = {name: value for name, value in golden.items() if "device_temp_gib" in value}
    assert len(checked) == 7
    for name, value in checked.items():
        found = memory(CORPUS / name)
        assert found.device.temp_bytes / 2**30 == pytest.approx(value["device_temp_gib"], rel=TOLERANCE), name
        assert found.host.temp_bytes / 2**30 == pytest.approx(value["host_temp_gib"], rel=1e-3), name


# ---- a whole dump


@needs_corpus
def test_the_buffer_assignment_of_a_dump_adds_up_to_its_memory_report() -> None:
    (dumped,) = dumped_modules(CORPUS / "dump_maxtext_gb200")
    assert dumped.buffer_assignment is not None
    allocations = parse_assignment(dumped.buffer_assignment.read_text())
    assert [allocation.index for allocation in allocations] == list(range(len(allocations)))
    bytes_ = sum_allocations(allocations)
    report = dumped_memory(dumped)
    assert bytes_ is not None
    assert report is not None
    local = sum(allocation.bytes for allocation in allocations if allocation.kind == THREAD_LOCAL)
    assert bytes_.device_bytes + local == report.device_bytes
    assert bytes_.host_bytes == report.host_bytes
    for allocation in allocations:
        for value in allocation.values:
            assert value.offset_bytes + value.bytes <= allocation.bytes


@needs_corpus
def test_the_module_of_a_dump_needs_what_its_buffer_assignment_says() -> None:
    directory = CORPUS / "dump_maxtext_gb200"
    dumped = choose_module(directory, dumped_modules(directory), None)
    assert dumped.buffer_assignment is not None
    expected = sum_allocations(parse_assignment(dumped.buffer_assignment.read_text()))
    assert expected is not None
    found = memory(dumped.module)
    assert_near(found.device.temp_bytes, expected.device_temp_bytes)
    assert found.host.temp_bytes == expected.host_temp_bytes


def spans_by_xla(live: Liveness, dump: str) -> dict[tuple[str, tuple[int, ...]], tuple[int, int]]:
    """Return XLA's live ranges in our times.

    XLA also counts the instructions inside async computations. Such a time is that of the next instruction that we
    count.
    """
    ours = {live.instruction_at(time).name: time for time in range(len(live.order))}
    sequence = re.findall(r"^    \d+:(\S+)$", dump, re.MULTILINE)
    times = [len(live.order)] * (len(sequence) + 1)
    for place in range(len(sequence) - 1, -1, -1):
        times[place] = ours.get(sequence[place], times[place + 1])
    found = {}
    for name, path, first, last in re.findall(r"^    (\S+?)\{([\d,]*)\}:(\d+)-(\d+)$", dump, re.MULTILINE):
        key = (name, tuple(int(part) for part in path.split(",") if part))
        found[key] = (times[int(first)], times[min(int(last), len(sequence))])
    return found


@needs_corpus
def test_large_values_live_when_xla_says_they_do() -> None:
    (module,) = (CORPUS / "dump_maxtext_gb200").glob("*gpu_after_optimizations.txt")
    live = liveness(load_module(module))
    expected = spans_by_xla(live, module.with_name(module.stem + "-live-range.txt").read_text())
    compared = differing = 0
    for buffer in live.buffers:
        origin = buffer.origin
        if buffer.bytes < 1 << 20 or len(buffer.spans) != 1 or buffer.memory_space == 5 or buffer.parameter >= 0:
            continue
        if (span := expected.get((origin.instruction.name, origin.path))) is None:
            continue
        compared += 1
        (first, last), (begin, end) = buffer.spans[0], span
        # A buffer that a loop carries lives longer than its first value. A kernel's operand may end one earlier.
        differing += first != begin or last < end - 1
    assert compared > 250
    assert differing <= compared // 50
