"""Memory in the report: the sources of its figures, the peak, and copies that start too late."""

from __future__ import annotations

import gzip
import json
import os
import re
import shutil
from pathlib import Path

import pytest

from hloinspect import inspect
from hloinspect.hlo import load_module, parse_text
from hloinspect.memory.assignment import (
    CONSTANT,
    PARAMETER,
    RESULT,
    TEMPORARY,
    THREAD_LOCAL,
    parse_assignment,
    sum_allocations,
)
from hloinspect.memory.estimate import clock_of, memory_of
from hloinspect.memory.liveness import liveness
from hloinspect.offload.transfers import find_offload
from hloinspect.render.terminal.report_text import to_text
from hloinspect.report.json import to_json
from hloinspect.timeline.timeline import COMPUTE, Interval, Segment, Timeline
from tests.support.json_schemas import faults
from tests.support.places import ROOT

CORPUS = Path(os.environ.get("HLOINSPECT_CORPUS", ROOT.parent / "shared" / "corpus"))
FIXTURES = ROOT / "fixtures"
needs_corpus = pytest.mark.skipif(not (CORPUS / "maxtext").is_dir(), reason="no corpus: set HLOINSPECT_CORPUS")

LATE = """HloModule late, is_scheduled=true

ENTRY %main (x: f32[1024]) -> f32[] {
  %x = f32[1024]{0} parameter(0)
  %a = f32[1024]{0} custom-call(%x), custom_call_target="layer", metadata={op_name="jit(f)/jvp()/dot_general"}
  %b = f32[1024]{0} custom-call(%a), custom_call_target="layer", metadata={op_name="jit(f)/jvp()/dot_general"}
  %sa = (f32[1024]{0:S(5)}, f32[1024]{0}, u32[]) copy-start(%a)
  %da = f32[1024]{0:S(5)} copy-done(%sa)
  %g = f32[1024]{0} custom-call(%b), custom_call_target="back", metadata={op_name="jit(f)/transpose(jvp())/dot_general"}
  %sb = (f32[1024]{0:S(5)}, f32[1024]{0}, u32[]) copy-start(%b)
  %db = f32[1024]{0:S(5)} copy-done(%sb)
  %sb2 = (f32[1024]{0}, f32[1024]{0:S(5)}, u32[]) copy-start(%db)
  %b2 = f32[1024]{0} copy-done(%sb2)
  %h = f32[1024]{0} custom-call(%g, %b2), custom_call_target="back"
  %sa2 = (f32[1024]{0}, f32[1024]{0:S(5)}, u32[]) copy-start(%da)
  %a2 = f32[1024]{0} copy-done(%sa2)
  ROOT %r = f32[] custom-call(%h, %a2), custom_call_target="end"
}
"""


def test_a_copy_that_starts_behind_the_first_backward_product_is_late_and_one_before_it_is_not() -> None:
    found = memory_of(find_offload(parse_text(LATE)))
    assert found is not None
    assert found.backward == "g"
    by_start = {release.made: release for release in found.releases.values()}
    assert (by_start["a"].late, by_start["a"].before_backward, by_start["a"].freed) == (False, True, "da")
    assert (by_start["b"].late, by_start["b"].before_backward, by_start["b"].freed) == (True, False, "db")
    assert [release.bytes for release in found.releases.values()] == [4096, 4096]


def test_a_copy_that_does_not_come_back_is_never_late() -> None:
    text = LATE.replace("copy-start(%da)", "copy-start(%other)").replace("copy-start(%db)", "copy-start(%other)")
    text = text.replace("  %sa =", "  %other = f32[1024]{0:S(5)} parameter(1)\n  %sa =")
    found = memory_of(find_offload(parse_text(text)))
    assert found is not None
    assert found.backward is None
    assert [(r.late, r.before_backward) for r in found.releases.values()] == [(False, None), (False, None)]


def test_what_comes_before_it_is_sent_is_not_a_copy_that_comes_back() -> None:
    text = """HloModule update, is_scheduled=true

%write (h: f32[4,256], big: f32[4096], x: f32[1,256], i: s32[]) -> f32[4,256] {
  %h.1 = f32[4,256]{1,0:S(5)} parameter(0)
  %big.1 = f32[4096]{0} parameter(1)
  %x.1 = f32[1,256]{1,0} parameter(2)
  %i.1 = s32[] parameter(3)
  ROOT %u = f32[4,256]{1,0:S(5)} dynamic-update-slice(%h.1, %x.1, %i.1, %i.1)
}

ENTRY %main (h: f32[4,256]) -> f32[4,256] {
  %h = f32[4,256]{1,0:S(5)} parameter(0)
  %big = f32[4096]{0} parameter(1)
  %i = s32[] constant(0)
  %s = (f32[4,256]{1,0}, f32[4,256]{1,0:S(5)}, u32[]) copy-start(%h)
  %d = f32[4,256]{1,0} copy-done(%s)
  %x = f32[1,256]{1,0} custom-call(%d), custom_call_target="step"
  ROOT %r = f32[4,256]{1,0:S(5)} fusion(%h, %big, %x, %i), kind=kLoop, calls=%write
}
"""
    found = memory_of(find_offload(parse_text(text)))
    assert found is not None
    (release,) = found.releases.values()
    assert (release.late, release.before_backward, found.backward) == (False, None, None)
    assert (release.made, release.bytes) == ("x", 1024)  # and not the larger operand before it


def test_how_long_a_source_is_held_is_read_off_the_timeline() -> None:
    module = parse_text(LATE)
    ms = 10**9
    kernels = [("a", 0, 2), ("b", 2, 6), ("g", 6, 10), ("h", 12, 14), ("r", 14, 15)]
    intervals = tuple(Interval(begin * ms, end * ms, COMPUTE, "main", 0, name) for name, begin, end in kernels)
    timeline = Timeline("device", "predicted", (Segment(1, 0, 15 * ms, intervals),))
    clock = clock_of(liveness(module), timeline)
    assert clock(0) == 0.0  # before the first kernel
    assert clock(1) == 0.0
    assert clock(2) == 2.0
    found = memory_of(find_offload(module), timeline)
    assert found is not None
    held = {release.made: release.held_ms for release in found.releases.values()}
    # a is made at 0 and needed until its `done`, two thirds through b's run of three; b from 2 to its `done` in g's.
    assert held["a"] == pytest.approx(2 + (6 - 2) * 2 / 3)
    assert held["b"] == pytest.approx(6 + (10 - 6) * 2 / 5 - 2)
    for release in found.releases.values():
        assert release.held_bytes_ms == pytest.approx(4096 * (release.held_ms or 0))


@needs_corpus
@pytest.mark.parametrize(
    ("name", "late", "sent"),
    [
        ("maxtext/llama405b_unroll126_cudnn.hlo.gz", 500, 504),
        ("maxtext/ds671b_unroll6.hlo.gz", 24, 30),
        ("maxtext/llama405b_cudnnjax.hlo.gz", 0, 4),
        ("maxtext/ds671b_scan_mla.hlo.gz", 0, 12),
        ("hlo/u_off.hlo", 7, 8),
        ("hlo/u_off_nolhs.hlo", 0, 8),
        ("hlo/s_off.hlo", 0, 1),
    ],
)
def test_late_copies_are_as_many_as_were_counted_in_the_module(name: str, late: int, sent: int) -> None:
    found = memory_of(find_offload(load_module(CORPUS / name)))
    assert found is not None
    assert (len(found.late), len(found.releases)) == (late, sent)


def test_late_copies_of_a_fixture_are_those_behind_the_loss_in_its_text() -> None:
    path = FIXTURES / "jax0.12.0.1" / "gb200_offload_unrolled" / "module.hlo.txt.gz"
    entry = gzip.decompress(path.read_bytes()).decode().partition("\nENTRY ")[2].splitlines()
    products = [place for place, line in enumerate(entry) if "dot_general" in line]
    backward = [place for place in products if "transpose(jvp" in entry[place]]
    forward = [place for place in products if "transpose(jvp" not in entry[place]]
    behind = [line for line in entry[max(forward) :] if re.search(r"S\(5\)\}, \S+, u32\[\]\S*\) copy-start", line)]
    assert max(forward) < min(backward)
    found = memory_of(find_offload(load_module(path)))
    assert found is not None
    assert 0 < len(found.late) <= len(behind)
    assert len([r for r in found.releases.values() if not r.late]) >= len(found.releases) - len(behind)


# ---- the report


def test_a_module_alone_is_estimated_and_says_so() -> None:
    path = FIXTURES / "jax0.12.0.1" / "gb200_offload_scan"
    report = inspect(str(path / "module.hlo.txt.gz"), target="gb200").report
    sizes = json.loads((path / "manifest.json").read_text())["memory"]
    expected = sizes["argument_size_in_bytes"] + sizes["temp_size_in_bytes"]
    assert report.memory.source == "estimated"
    assert report.memory.device_bytes == pytest.approx(expected, rel=0.1)
    assert report.memory.host_bytes == sizes["host_temp_size_in_bytes"]
    assert not faults(json.loads(to_json(report)), "report")
    assert not [unknown for unknown in report.unknown if unknown.affects == "memory"]
    assert re.search(r"memory    device about \d+ MiB of 184 GiB\s+pinned host about 8 MiB\s", to_text(report))


def test_the_values_at_the_peak_are_the_largest_and_add_up_with_the_rest() -> None:
    path = FIXTURES / "jax0.12.0.1" / "gb200_optimizer"
    shown = inspect(str(path / "module.hlo.txt.gz"), target="gb200").report
    assert shown.memory.peak is not None
    peak = shown.memory.peak
    assert peak.bytes == sum(value.bytes for value in peak.values) + peak.other_bytes
    sizes = [value.bytes for value in peak.values]
    assert sizes == sorted(sizes, reverse=True)
    assert len(peak.values) == 12
    assert {value.kind for value in peak.values} <= {"argument", "result", "temporary"}


def test_the_largest_values_at_the_peak_have_names_and_lines_that_a_user_knows() -> None:
    report = inspect(str(FIXTURES / "jax0.12.0.1" / "gb200_save" / "module.hlo.txt.gz"), target="gb200").report
    assert report.memory.peak is not None
    arguments = [value.name for value in report.memory.peak.values if value.kind == "argument"]
    assert "state['mean']['layers']['up']" in arguments
    module = load_module(FIXTURES / "jax0.12.0.1" / "gb200_save" / "module.hlo.txt.gz")
    assert module.computations[report.memory.peak.computation].find(report.memory.peak.instruction) is not None


def test_late_copies_stand_under_the_memory_of_the_text() -> None:
    report = inspect(
        str(FIXTURES / "jax0.12.0.1" / "gb200_offload_unrolled" / "module.hlo.txt.gz"), target="gb200"
    ).report
    late = [transfer for transfer in report.transfers if transfer.release and transfer.release.late]
    assert late
    assert (
        f"{len(late)} of 4 copies to the host ({2 * len(late)} MiB) start only when the backward pass has begun"
        in to_text(report)
    )


# ---- buffer assignments

ASSIGNMENT = """BufferAssignment:
allocation 0: size 1024, page 0, parameter 3, shape |f32[256]| at ShapeIndex {}, maybe-live-out:
 value: <1 param.3 @0> (size=1024,offset=0): f32[256]{0}
allocation 1: size 16, page 0, output shape is |(f32[256], constant[2])|, maybe-live-out:
 value: <9 tuple.1{} @0> (size=16,offset=0): (f32[256]{0}, f32[])
allocation 2: size 4, page 0, constant:
 value: <2 constant.1 @0> (size=4,offset=0): f32[]
allocation 3: size 8, page 0, thread-local:
 value: <3 add.1 @0> (size=8,offset=0): f32[2]{0}
allocation 4: size 4096, color 5, page 0, preallocated-temp:
 value: <4 while.2{1,0} (phi) @0> (size=2048,offset=2048): f32[512]{0:S(5)}
allocation 5: size 512, page 0, preallocated-temp:

Total bytes used: 5644
 value: <5 not.a.value @0> (size=1,offset=0): f32[]
"""


def test_allocations_are_read_with_their_colours_kinds_and_values() -> None:
    found = parse_assignment(ASSIGNMENT)
    kinds = [PARAMETER, RESULT, CONSTANT, THREAD_LOCAL, TEMPORARY, TEMPORARY]
    assert [allocation.kind for allocation in found] == kinds
    assert [allocation.color for allocation in found] == [0, 0, 0, 0, 5, 0]
    assert (found[0].parameter, found[0].lives_out, found[5].lives_out) == (3, True, False)
    (value,) = found[4].values
    assert (value.instruction, value.path, value.offset_bytes, value.bytes) == ("while.2", (1, 0), 2048, 2048)
    assert found[1].values[0].path == ()
    assert found[5].values == ()
    sums = sum_allocations(found)
    assert sums is not None
    assert (sums.device_bytes, sums.host_bytes) == (1024 + 16 + 4 + 512, 4096)
    assert (sums.device_temp_bytes, sums.host_temp_bytes) == (512, 4096)


@pytest.mark.parametrize("text", ["", "nothing\nof the kind\n", "allocation x: size 3\n"])
def test_a_text_that_is_no_assignment_has_no_allocations(text: str) -> None:
    assert parse_assignment(text) == ()
    assert sum_allocations(()) is None


@needs_corpus
def test_a_dump_without_its_memory_report_still_gives_what_xla_assigned(tmp_path: Path) -> None:
    for path in (CORPUS / "dump_maxtext_gb200").iterdir():
        if "memory-usage" not in path.name:
            shutil.copyfile(path, tmp_path / path.name)
    memory = inspect(str(tmp_path)).report.memory
    whole = inspect(str(CORPUS / "dump_maxtext_gb200")).report.memory
    assert memory.source == whole.source == "artifacts"
    assert memory.device_bytes == pytest.approx(whole.device_bytes, abs=1 << 20)
    assert memory.host_bytes == whole.host_bytes
