"""The reader of thunk sequences, and the transfers of fixtures and corpus against theirs. test_matrix.py has more."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hloinspect.errors import HloParseError
from hloinspect.hlo import Module, load_module
from hloinspect.kinds import D2H, H2D
from hloinspect.offload.thunks import Thunk, ThunkSequence, mechanisms_of, parse_thunks, streams_of, transfer_thunks
from hloinspect.offload.transfers import Offload, find_offload
from tests.support.places import FIXTURES

HOME = FIXTURES
FIXTURES = sorted(path.parent for path in HOME.glob("jax*/*/thunk_metadata.txt.gz"))
each_fixture = pytest.mark.parametrize("fixture", FIXTURES, ids=lambda path: f"{path.parent.name}/{path.name}")
both_readers = pytest.mark.parametrize("file", ["module.hlo.txt.gz", "module.hlo.pb.gz"])

# Lines as jax 0.12 writes them: a loop in a loop, whose first heading is not indented.
SEQUENCE = """\
001: kCopy  [source       | next=003 (2)] kCopy
003: kWhile [prev=002 (1) | sink        ] \x20\x20
condition:
    004: kCustomKernel [source | sink] loop_compare_fusion grid: [1, 1, 1] threads: [1, 1, 1]  shared_memory: 0 bytes
  body:
    005: kAsyncStart   [source       | next=011 (4)] stream=memcpy_h2d_stream, async_id=5
        007: kDynamicSliceFusion [source | sink] params=1, results=1
            006: kCopy [source | sink] kCopy
    009: kAsyncDone    [source       | sink        ] async_id=5
    011: kWhile        [prev=008 (3) | sink        ] \x20\x20\x20\x20\x20\x20
condition:
        012: kCustomKernel [source | sink] loop_compare_fusion grid: [1, 1, 1] threads: [1, 1, 1]
      body:
        013: kAsyncStart   [source       | next=018 (3)] stream=communication_stream[0], async_id=13
            014: kAllGather [source | sink] kAllGather
020: kHostExecuteStart [prev=003 (2) | sink] (no description)
"""
METADATA = """\
thunk_metadata {
  thunk_info {
    profile_annotation: "command_buffer_1"
  }
  thunk_kind: "kCommandBuffer"
}
thunk_metadata {
  thunk_info {
    profile_annotation: "dynamic-slice-start.1"
    thunk_id: 5
  }
  thunk_kind: "kAsyncStart"
}
thunk_metadata {
  thunk_info {
    profile_annotation: "a \\"quoted\\" name"
    thunk_id: 20
  }
  thunk_kind: "kHostExecuteStart"
}
"""


@cache
def module_of(path: Path) -> Module:
    return load_module(path)


@cache
def offload_of(path: Path) -> Offload:
    return find_offload(module_of(path))


@cache
def thunks_of(fixture: Path) -> ThunkSequence:
    metadata = gzip.decompress((fixture / "thunk_metadata.txt.gz").read_bytes()).decode()
    return parse_thunks((fixture / "thunk_sequence.txt").read_text(), metadata)


def small_offload(tmp_path: Path) -> Offload:
    """Return an offload of one synchronous copy to the host and one asynchronous copy from it: transfers 1 and 2."""
    path = tmp_path / "module.txt"
    path.write_text("""HloModule m, is_scheduled=true

ENTRY %main (p0: f32[8], p1: f32[8]) -> (f32[8], f32[8]) {
  %p0 = f32[8]{0} parameter(0)
  %p1 = f32[8]{0:S(5)} parameter(1)
  %copy.1 = f32[8]{0:S(5)} copy(%p0)
  %copy-start.2 = (f32[8]{0}, f32[8]{0:S(5)}, u32[]) copy-start(%p1)
  %copy-done.2 = f32[8]{0} copy-done(%copy-start.2)
  ROOT %t = (f32[8]{0:S(5)}, f32[8]{0}) tuple(%copy.1, %copy-done.2)
}
""")
    return find_offload(load_module(path))


def named(*thunks: tuple[int, str, str]) -> str:
    """Return metadata for (id, kind, name)."""
    record = 'thunk_metadata {{\n thunk_info {{\n profile_annotation: "{}"\n thunk_id: {}\n }}\n thunk_kind: "{}"\n}}\n'
    return "".join(record.format(name, number, kind) for number, kind, name in thunks)


def read_or_refused(sequence: str, metadata: str | None) -> tuple[Thunk, ...]:
    """Return the thunks, or none where the texts are refused. Any other exception fails the test."""
    try:
        return parse_thunks(sequence, metadata).thunks
    except HloParseError:
        return ()


# --- reading ---------------------------------------------------------------------------------------------------------


def test_thunks_are_read_in_order_and_know_what_they_run_inside_of() -> None:
    thunks = parse_thunks(SEQUENCE, None).thunks
    assert [(t.id, t.parent) for t in thunks] == [
        (1, None), (3, None), (4, 3), (5, 3), (7, 5), (6, 7), (9, 3), (11, 3), (12, 11), (13, 11), (14, 13), (20, None),
    ]  # fmt: skip


def test_a_start_has_its_stream_and_shares_its_async_id_with_its_done() -> None:
    thunks = {t.id: t for t in parse_thunks(SEQUENCE, None).thunks}
    assert (thunks[5].stream, thunks[5].async_id) == ("memcpy_h2d_stream", 5)
    assert (thunks[9].kind, thunks[9].async_id) == ("kAsyncDone", 5)
    assert thunks[13].stream == "communication_stream[0]"
    assert (thunks[1].stream, thunks[1].async_id) == ("", None)


def test_the_metadata_name_the_thunks_by_id_and_command_buffers_have_none() -> None:
    thunks = {t.id: t.name for t in parse_thunks(SEQUENCE, METADATA).thunks}
    assert thunks[5] == "dynamic-slice-start.1"
    assert thunks[20] == 'a "quoted" name'
    assert set(thunks.values()) == {"", "dynamic-slice-start.1", 'a "quoted" name'}


def test_a_sequence_may_have_no_thunks_and_blank_lines() -> None:
    assert parse_thunks("", "").thunks == ()
    assert parse_thunks("No thunks.\n\n", None).thunks == ()


def test_sequences_of_jax_0_9_are_read_though_they_name_no_stream() -> None:
    text = (
        "001: kCopy   [source       | next=002 (1)] \n"
        "004: kKernel [source       | next=017 (1)] , kernel = wrapped_tanh, profile_annotation = wrapped_tanh\n"
        "009: kWaitForStreams [source       | sink        ] \n\n"
    )
    assert [(t.id, t.kind, t.stream) for t in parse_thunks(text, None).thunks] == [
        (1, "kCopy", ""), (4, "kKernel", ""), (9, "kWaitForStreams", ""),
    ]  # fmt: skip


def test_a_description_over_several_lines_is_read_over() -> None:
    text = "001: kCustomCall [source | sink] a call\n   with more to say\n002: kCopy [source | sink] kCopy\n"
    assert [t.id for t in parse_thunks(text, None).thunks] == [1, 2]


@pytest.mark.parametrize(
    ("sequence", "metadata", "line", "words"),
    [
        ("HloModule m\n", None, 1, "not a thunk sequence"),
        ("001: kCopy kCopy\nnonsense here\n", None, 2, "not a thunk sequence"),
        ("body:\n", None, 1, "not a thunk sequence"),
        ("001: kCopy kCopy\n\n001: kCopy kCopy\n", None, 3, "twice"),
        ("9" * 5000 + ": kCopy kCopy\n", None, 1, "not a thunk sequence"),
        ("001: kCopy kCopy\n", "thunk_metadata {\n thunk_info {\n }\n", 1, "truncated"),
        ("001: kCopy kCopy\n", "}\n", 1, "too many"),
        ("001: kCopy kCopy\n", "\x00\x01binary\n", 1, "not thunk metadata"),
        ("001: kCopy kCopy\n", named((1, "kGemm", "dot.1")), 1, "not of one module"),
    ],
)
def test_what_is_no_thunk_sequence_is_refused_with_its_line(
    sequence: str, metadata: str | None, line: int, words: str
) -> None:
    with pytest.raises(HloParseError, match=words) as caught:
        parse_thunks(sequence, metadata)
    assert caught.value.line == line


@given(st.text(), st.none() | st.text())
def test_any_text_is_read_or_refused_but_never_crashes_the_reader(sequence: str, metadata: str | None) -> None:
    read_or_refused(sequence, metadata)


@given(st.data())
def test_a_damaged_sequence_is_read_or_refused_but_never_crashes_the_reader(data: st.DataObject) -> None:
    texts = []
    for text in (SEQUENCE, METADATA):
        start = data.draw(st.integers(0, len(text)))
        texts.append(text[:start] + data.draw(st.text(max_size=8)) + text[start + data.draw(st.integers(0, 80)) :])
    thunks = read_or_refused(texts[0], texts[1])
    ids = [thunk.id for thunk in thunks]
    assert len(set(ids)) == len(ids)
    assert all(thunk.parent is None or thunk.parent in ids[:place] for place, thunk in enumerate(thunks))


def test_thunks_may_be_nested_deeper_than_python_recurses(tmp_path: Path) -> None:
    depth = 3000
    text = "".join(f"{' ' * n}{n + 1}: kAsyncStart stream=s, async_id=1\n" for n in range(depth))
    metadata = named((1, "kAsyncStart", "copy-start.2"))
    thunks = parse_thunks(text + " " * depth + "999999: kCopy kCopy\n", metadata)
    assert thunks.thunks[-1].parent == depth
    assert mechanisms_of(small_offload(tmp_path), thunks) == {2: "dma"}


# --- streams and mechanisms ------------------------------------------------------------------------------------------


def test_a_synchronous_transfer_runs_on_the_main_stream(tmp_path: Path) -> None:
    text = "1: kCopy kCopy\n2: kAsyncStart stream=memcpy_h2d_stream, async_id=2\n    3: kCopy (no description)\n"
    thunks = parse_thunks(text, named((1, "kCopy", "copy.1"), (2, "kAsyncStart", "copy-start.2")))
    assert streams_of(small_offload(tmp_path), thunks) == {1: "main", 2: "memcpy_h2d_stream"}


def test_without_names_no_stream_and_no_mechanism_is_known(tmp_path: Path) -> None:
    thunks = parse_thunks("2: kAsyncStart stream=memcpy_h2d_stream, async_id=2\n    3: kCopy (no description)\n", None)
    assert streams_of(small_offload(tmp_path), thunks) == {}
    assert mechanisms_of(small_offload(tmp_path), thunks) == {}


def test_a_computation_called_twice_on_two_streams_has_no_one_stream(tmp_path: Path) -> None:
    names = named((1, "kAsyncStart", "copy-start.2"), (2, "kAsyncStart", "copy-start.2"))
    work = "    {}: kCopy kCopy\n"
    text = (
        "1: kAsyncStart stream={}, async_id=1\n"
        + work.format(3)
        + "2: kAsyncStart stream={}, async_id=2\n"
        + work.format(4)
    )
    offload = small_offload(tmp_path)
    assert streams_of(offload, parse_thunks(text.format("a", "b"), names)) == {}
    assert streams_of(offload, parse_thunks(text.format("a", "a"), names)) == {2: "a"}
    assert mechanisms_of(offload, parse_thunks(text.format("a", "b"), names)) == {2: "dma"}


@pytest.mark.parametrize(
    ("work", "mechanism"),
    [
        (["    2: kCopy"], "dma"),
        (["    2: kDynamicSliceFusion", "        3: kCopy"], "dma"),
        (["    2: kCustomKernel"], "kernel"),
        (["    2: kDynamicSliceFusion", "        3: kCustomKernel"], "kernel"),
        (["    2: kCopy", "    3: kCustomKernel"], None),
        (["    2: kSomethingNew"], None),
        ([], None),
    ],
)
def test_what_moves_the_bytes_is_what_a_start_has_inside(
    tmp_path: Path, work: list[str], mechanism: str | None
) -> None:
    text = "\n".join(["1: kAsyncStart stream=s, async_id=1", *work])
    thunks = parse_thunks(text, named((1, "kAsyncStart", "copy-start.2")))
    assert mechanisms_of(small_offload(tmp_path), thunks).get(2) == mechanism


# --- real modules ----------------------------------------------------------------------------------------------------


def test_fixtures_of_both_generations_have_named_thunks() -> None:
    assert {path.parent.name for path in FIXTURES} >= {"jax0.10.2", "jax0.12.0.1"}


@each_fixture
@both_readers
def test_the_transfers_of_a_fixture_are_those_that_its_thunks_execute(fixture: Path, file: str) -> None:
    offload = offload_of(fixture / file)
    said = {(t.start, t.computation, t.direction, t.mechanism, t.asynchronous) for t in offload.transfers}
    executed = transfer_thunks(module_of(fixture / file), thunks_of(fixture))
    assert said == {(t.instruction, t.computation, t.direction, t.mechanism, t.asynchronous) for t in executed}


@each_fixture
def test_the_transfers_of_a_fixture_come_to_the_counts_that_were_searched_in_its_thunks(fixture: Path) -> None:
    expected: dict[str, Any] = json.loads((fixture / "expected.json").read_text())
    offload = offload_of(fixture / "module.hlo.txt.gz")
    kinds = Counter(t.mechanism for t in offload.transfers)
    assert kinds["dma"] == expected["thunks"]["by_copy_engine"]
    assert kinds["kernel"] == expected["thunks"]["by_kernel"]
    assert mechanisms_of(offload, thunks_of(fixture)) == {t.id: t.mechanism for t in offload.transfers}


@each_fixture
def test_each_transfer_of_a_fixture_has_a_stream_of_its_direction(fixture: Path) -> None:
    offload = offload_of(fixture / "module.hlo.txt.gz")
    streams = streams_of(offload, thunks_of(fixture))
    assert set(streams) == {t.id for t in offload.transfers}
    for transfer in offload.transfers:
        stream = streams[transfer.id]
        if fixture.parent.name == "jax0.10.2":  # round robin over four streams, whatever the direction
            assert stream in {f"computation_stream[{k}]" for k in range(4)}
        else:
            assert stream == f"memcpy_{transfer.direction}_stream"


def test_the_dump_of_a_671b_step_has_ten_transfers_on_each_copy_stream(corpus: Path) -> None:
    folder = corpus / "dump_maxtext_gb200"
    sequence, metadata = (next(folder.glob(f"*thunk_{part}.txt")).read_text() for part in ("sequence", "metadata"))
    module = load_module(next(folder.glob("*after_optimizations.txt")))
    thunks, offload = parse_thunks(sequence, metadata), find_offload(module)
    executed = transfer_thunks(module, thunks)
    assert Counter((t.direction, t.stream, t.mechanism) for t in executed) == {
        (D2H, "memcpy_d2h_stream", "dma"): 10,
        (H2D, "memcpy_h2d_stream", "dma"): 10,
    }
    assert {t.instruction: t.direction for t in executed} == {t.start: t.direction for t in offload.transfers}
    assert Counter(streams_of(offload, thunks).values()) == {"memcpy_d2h_stream": 10, "memcpy_h2d_stream": 10}


def test_the_thunks_of_a_step_of_jax_0_10_2_give_each_transfer_a_stream_of_the_round_robin(corpus: Path) -> None:
    folder = corpus / "thunks"
    text = (folder / "act_scan_L4.thunk_sequence.txt").read_text()
    thunks = parse_thunks(text, (folder / "act_scan_L4.thunk_metadata.txt").read_text())
    assert {t.name: t.stream for t in thunks.thunks if t.kind == "kAsyncStart"} == {
        "dynamic-update-slice-start.1": "computation_stream[0]",
        "dynamic-slice-start.1": "computation_stream[1]",
    }
