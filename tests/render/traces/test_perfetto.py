"""Perfetto traces, read back with Perfetto's own schema (PyPI ``perfetto``), against the reports they are made from."""

from __future__ import annotations

import gzip
import io
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import hloinspect
from hloinspect.analyze.inspect import Inspection
from hloinspect.cli.timelines import emit_timeline
from hloinspect.errors import UsageError
from hloinspect.kinds import D2H, H2D
from hloinspect.render.traces.perfetto import TRACKS, lanes, to_perfetto
from hloinspect.render.traces.trackevents import NO_UNIT, Slice, TraceWriter, nanoseconds
from hloinspect.render.traces.xspace import write_profile
from hloinspect.report.schema import SourceInfo
from hloinspect.rules.choice import Choice
from hloinspect.timeline.intervals import length, union
from hloinspect.timeline.timeline import COMPUTE, WAIT
from hloinspect.timeline.unfold import unfold
from tests.support.places import ROOT
from tests.support.thorough import examples

perfetto_trace_pb2 = pytest.importorskip("perfetto.protos.perfetto.trace.perfetto_trace_pb2")
BEGIN, END, INSTANT, COUNTER = 1, 2, 3, 4
FIXTURES = ROOT / "fixtures" / "jax0.12.0.1"


@dataclass
class Seen:
    """A slice or an instant as a viewer makes it from the packets."""

    track: str
    name: str
    start_ns: int
    end_ns: int
    arguments: dict[str, Any]
    flows: list[int]
    ends: list[int]
    process: str = ""


@dataclass
class Read:
    """A trace as a viewer reads it. ``texts`` are all strings in it."""

    slices: list[Seen] = field(default_factory=list)
    counters: dict[tuple[str, str], list[tuple[int, float]]] = field(default_factory=lambda: defaultdict(list))
    tracks: dict[int, tuple[str, str]] = field(default_factory=dict)
    texts: list[str] = field(default_factory=list)

    def on(self, track: str) -> list[Seen]:
        return [one for one in self.slices if one.track == track]


def read(content: bytes) -> Read:
    """Follow the packets in order, and check what Perfetto requires of them."""
    found, tables = Read(), (defaultdict(str), defaultdict(str), defaultdict(str))
    is_open: dict[int, list[Seen]] = defaultdict(list)
    last: dict[int, int] = defaultdict(int)
    parents: dict[int, str] = {}
    trace = perfetto_trace_pb2.Trace.FromString(content)
    assert trace.packet[0].sequence_flags == 1  # the state is cleared before anything is interned
    for packet in trace.packet:
        assert packet.trusted_packet_sequence_id == 1
        if packet.HasField("track_descriptor"):
            track = packet.track_descriptor
            assert track.uuid not in found.tracks
            if track.HasField("process"):
                parents[track.uuid] = track.process.process_name
            else:
                assert track.parent_uuid in parents
                found.tracks[track.uuid] = (parents[track.parent_uuid], track.name)
            found.texts += [track.name, track.description, track.process.process_name]
        interned = packet.interned_data
        for table, entries in zip(
            tables,
            (interned.event_names, interned.debug_annotation_names, interned.debug_annotation_string_values),
            strict=True,
        ):
            for entry in entries:
                assert entry.iid not in table
                table[entry.iid] = entry.str.decode() if hasattr(entry, "str") else entry.name
                found.texts.append(table[entry.iid])
        if not packet.HasField("track_event"):
            continue
        event, time = packet.track_event, packet.timestamp
        assert packet.sequence_flags == 2
        assert time >= last[event.track_uuid]  # in order, each track for itself
        last[event.track_uuid] = time
        process, name = found.tracks[event.track_uuid]
        if event.type == COUNTER:
            found.counters[process, name].append((time, event.counter_value or event.double_counter_value))
        elif event.type == END:
            is_open[event.track_uuid].pop().end_ns = time  # what was begun last ends first
        else:
            arguments = {
                tables[1][one.name_iid]: (
                    tables[2][one.string_value_iid] if one.string_value_iid else one.double_value or one.int_value
                )
                for one in event.debug_annotations
            }
            seen = Seen(name, tables[0][event.name_iid], time, time, arguments, [], [])
            seen.flows, seen.ends = list(event.flow_ids), list(event.terminating_flow_ids)
            seen.process = process
            found.slices.append(seen)
            if event.type == BEGIN:
                is_open[event.track_uuid].append(seen)
            else:
                assert event.type == INSTANT
    assert not any(is_open.values())
    return found


@pytest.fixture(scope="module")
def scan() -> Inspection:
    return hloinspect.inspect(str(FIXTURES / "gb200_offload_scan" / "module.hlo.pb.gz"), target="gb200")


@pytest.fixture(scope="module")
def found(scan: Inspection) -> Read:
    return read(to_perfetto(scan))


def test_every_stream_has_a_track_under_the_process_of_its_timeline(found: Read) -> None:
    assert {process for process, _ in found.tracks.values()} == {"predicted"}
    names = [name for _, name in found.tracks.values()]
    assert names[:2] == ["step and loops", "starts and waits"]
    assert {TRACKS["main"], TRACKS[D2H], TRACKS[H2D], "link, d2h", "link, h2d", "device memory"} <= set(names)


def test_slices_last_as_long_as_the_report_says(scan: Inspection, found: Read) -> None:
    step = scan.report.step.predicted
    assert step is not None

    def total_ms(slices: Iterable[Seen]) -> float:
        return sum(one.end_ns - one.start_ns for one in slices) / 1e6

    main = found.on(TRACKS["main"])
    near = 1e-6 * len(found.slices)  # each end is rounded to a nanosecond
    assert total_ms(one for one in main if one.name.startswith("waits for")) == pytest.approx(step.stall_ms, abs=near)
    work = [one for one in found.slices if one.arguments.get("what") == COMPUTE]
    assert {one.track for one in work} == {TRACKS["main"], TRACKS["side"]}
    computed = length(union((one.start_ns, one.end_ns) for one in work)) / 1e6
    assert computed == pytest.approx(step.compute_ms, abs=near)
    for transfer in scan.report.transfers:
        own = [one for one in found.on(TRACKS[transfer.direction]) if one.arguments["transfer"] == transfer.id]
        assert transfer.predicted is not None
        assert len(own) == transfer.executions
        assert total_ms(own) == pytest.approx(transfer.predicted.duration_ms, abs=near)
        waits = [one for one in main if one.name == f"waits for {transfer.direction} {transfer.id}"]
        assert total_ms(waits) == pytest.approx(transfer.predicted.wait_ms, abs=near)
    (whole,) = (one for one in found.on("step and loops") if one.name.startswith("step "))
    assert (whole.end_ns - whole.start_ns) / 1e6 == pytest.approx(step.time_ms, abs=near)


def test_a_transfer_says_what_the_report_says_of_it(scan: Inspection, found: Read) -> None:
    transfer = scan.report.transfers[0]
    assert transfer.source is not None
    first = next(one for one in found.on(TRACKS[transfer.direction]) if one.arguments["transfer"] == transfer.id)
    shown = first.arguments
    assert shown["bytes"] == transfer.bytes
    assert shown["start"] == transfer.start
    assert shown["verdict"] == transfer.verdict
    assert shown["reason"] == transfer.reason
    assert shown["source"] == f"{transfer.source.file}:{transfer.source.line}"
    assert shown["iteration"] == "1"


def test_arrows_go_from_each_start_over_its_copy_to_its_done_and_along_round_trips(
    scan: Inspection, found: Read
) -> None:
    through: dict[int, list[Seen]] = defaultdict(list)
    into: dict[int, list[Seen]] = defaultdict(list)
    for one in found.slices:
        for flow in one.flows:
            through[flow].append(one)
        for flow in one.ends:
            into[flow].append(one)
    assert set(through) == set(into)
    kinds: dict[tuple[str, ...], int] = defaultdict(int)
    for flow, slices in through.items():
        (last,) = into[flow]
        path = [*slices, last]
        assert [one.start_ns for one in path] == sorted(one.start_ns for one in path)
        assert len({one.arguments["transfer"] for one in path}) == (1 if len(path) == 3 else 2)
        kinds[tuple(one.track for one in path)] += 1
    marks, iterations = "starts and waits", scan.report.transfers[0].executions
    assert iterations > 2
    assert kinds == {
        (marks, TRACKS[D2H], marks): iterations,
        (marks, TRACKS[H2D], marks): iterations,
        (TRACKS[D2H], TRACKS[H2D]): iterations,
    }


def test_iterations_of_loops_are_slices_that_hold_what_happens_in_them(scan: Inspection, found: Read) -> None:
    iterations = [one for one in found.on("step and loops") if " iteration " in one.name]
    assert len(iterations) == 2 * scan.report.transfers[0].executions
    for copy in found.on("starts and waits"):
        assert any(one.start_ns <= copy.start_ns and copy.end_ns <= one.end_ns for one in iterations)


def test_counters_go_forward_and_the_link_is_at_rest_in_the_end(scan: Inspection, found: Read) -> None:
    for (_, name), values in found.counters.items():
        assert [time for time, _ in values] == sorted(time for time, _ in values)
        assert all(value >= 0 for _, value in values)
        if name.startswith("link"):
            assert values[-1][1] == 0
            transfer = next(t for t in scan.report.transfers if t.direction in name)
            assert transfer.predicted is not None
            rate = transfer.bytes / transfer.predicted.duration_each_ms / 1e6
            assert max(value for _, value in values) == pytest.approx(rate, abs=1e-3)
    peak = max(value for _, value in found.counters["predicted", "device memory"])
    assert scan.memory is not None
    assert 0 < peak <= scan.memory.device.total_bytes


def test_the_same_answer_gives_the_same_bytes(scan: Inspection) -> None:
    assert to_perfetto(scan) == to_perfetto(scan)


def test_hostile_names_are_made_printable(scan: Inspection) -> None:
    bad = "<script>\u202e\x00\n\x1b[31m\ud800</script>"
    transfers = tuple(
        replace(t, reason=bad, start=bad, source=SourceInfo(bad, 1, bad), tensor=replace(t.tensor, name=bad))
        for t in scan.report.transfers
    )
    texts = read(to_perfetto(replace(scan, report=replace(scan.report, transfers=transfers)))).texts
    assert any("<script>" in text for text in texts)
    assert all(text.isprintable() for text in texts)


def test_a_step_of_many_iterations_stays_folded_and_says_how_often(scan: Inspection) -> None:
    assert scan.prediction is not None
    timeline = scan.prediction.timeline
    many = tuple(replace(segment, repeat=segment.repeat * 100_000) for segment in timeline.segments)
    folds = tuple(replace(fold, iterations=fold.iterations * 100_000) for fold in timeline.folds)
    alone = [number for number in range(len(many)) if not any(fold.first <= number < fold.end for fold in folds)]
    whole = tuple(timeline.segments[n] if n in alone else segment for n, segment in enumerate(many))
    prediction = replace(scan.prediction, timeline=replace(timeline, segments=whole, folds=folds))
    seen = read(to_perfetto(replace(scan, prediction=prediction)))
    assert len(seen.slices) < 1000
    assert any("such" in str(one.arguments.get("drawn for")) for one in seen.on(TRACKS[D2H]))
    assert any(one.name.endswith("each like the one before") for one in seen.on("step and loops"))


@settings(max_examples=examples(50, 2000))
@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 12)), max_size=25), st.booleans())
def test_slices_of_a_lane_lie_in_each_other_or_behind_each_other(spans: list[tuple[int, int]], is_flat: bool) -> None:
    slices = [Slice(start, start + size, f"{number}") for number, (start, size) in enumerate(spans)]
    found = lanes(slices, is_flat)
    assert sorted(one.name for lane in found for one in lane) == sorted(one.name for one in slices)
    for lane in found:
        for number, one in enumerate(lane):
            for later in lane[number + 1 :]:
                behind = later.start_ps >= one.end_ps
                inside = one.start_ps <= later.start_ps and later.end_ps <= one.end_ps
                assert behind or (inside and not is_flat)


@settings(max_examples=examples(50, 2000))
@given(st.lists(st.tuples(st.integers(0, 10**7), st.integers(0, 10**5)), max_size=12))
def test_rounding_to_nanoseconds_keeps_slices_in_each_other(spans: list[tuple[int, int]]) -> None:
    writer = TraceWriter()
    process = writer.process("p")
    for lane in lanes([Slice(start, start + size, "x") for start, size in spans]):
        writer.slices(writer.track(process, "t", 0), lane)
    seen = read(writer.bytes())  # which insists on that
    assert sorted((one.start_ns, one.end_ns) for one in seen.slices) == sorted(
        (nanoseconds(start), nanoseconds(start + size)) for start, size in spans
    )


def test_numbers_of_any_size_are_written() -> None:
    writer = TraceWriter()
    process = writer.process("p")
    arguments = writer.arguments({"huge": 3**50, "negative": -5, "share": 0.25, "none": None})
    writer.slices(writer.track(process, "t", 0), [Slice(0, 5000, "x", arguments)])
    writer.values(writer.counter(process, "c", 1, NO_UNIT, "GB/s"), [(0, 7), (1000, 0.5)])
    seen = read(writer.bytes())
    assert seen.slices[0].arguments == {"huge": 2**63 - 1, "negative": -5, "share": 0.25}
    assert seen.counters["p", "c"] == [(0, 7), (1, 0.5)]


def test_without_a_prediction_there_is_no_trace_but_a_reason() -> None:
    bare = hloinspect.inspect(str(FIXTURES / "gb200_offload_scan" / "module.hlo.pb.gz"))
    with pytest.raises(UsageError, match="no target was given"):
        to_perfetto(replace(bare, prediction=None))


def test_a_prediction_and_a_measurement_stand_one_above_the_other(corpus: Path) -> None:
    found = hloinspect.trace(str(corpus / "traces" / "tpu_v6e_host_offload.xplane.pb"), target="v6e")
    seen = read(to_perfetto(found))
    processes = list(dict.fromkeys(process for process, _ in seen.tracks.values()))
    assert processes[0] == "predicted"
    assert all(process.startswith("measured, /device:TPU:") for process in processes[1:])
    assert len(processes) > 1
    assert not any(name.startswith("link") for process, name in seen.counters if process != "predicted")
    assert max(one.end_ns for one in seen.slices) < 1e9  # every step begins at 0


@pytest.mark.slow
def test_a_405b_step_of_a_thousand_transfers_is_a_small_file(corpus: Path) -> None:
    path = corpus / "maxtext" / "llama405b_unroll126_cudnn.hlo.gz"
    big = hloinspect.inspect(str(path), target="gb200", memory=False, rules=Choice(select=()))
    content = to_perfetto(big)
    assert len(content) < 2_000_000
    assert len(gzip.compress(content, mtime=0)) < 500_000
    seen = read(content)
    copies = [one for one in seen.slices if one.track in (TRACKS[D2H], TRACKS[H2D])]
    assert len(copies) == sum(transfer.executions for transfer in big.report.transfers) == 1008


# ---- the command


def test_the_command_writes_a_trace_and_gzips_it_if_the_name_says_so(
    hloinspect: Callable[..., CompletedProcess[str]], tmp_path: Path, scan: Inspection
) -> None:
    module, file = str(FIXTURES / "gb200_offload_scan" / "module.hlo.pb.gz"), tmp_path / "step.perfetto-trace.gz"
    done = hloinspect("inspect", module, "--target", "gb200", "--format", "perfetto", "-o", str(file))
    assert (done.returncode, done.stderr) == (0, "")
    assert file.name in done.stdout
    assert len(done.stdout.splitlines()) == 1
    assert gzip.decompress(file.read_bytes()) == to_perfetto(scan)
    emit_timeline(scan, "perfetto", str(file.with_suffix("")))
    assert file.with_suffix("").read_bytes() == to_perfetto(scan)


def test_a_terminal_gets_no_binary_and_a_pipe_does(scan: Inspection, monkeypatch: pytest.MonkeyPatch) -> None:
    shown = io.TextIOWrapper(io.BytesIO())
    monkeypatch.setattr(sys, "stdout", shown)
    emit_timeline(scan, "perfetto", None)
    assert shown.buffer.getvalue() == to_perfetto(scan)  # type: ignore[attr-defined]
    monkeypatch.setattr(shown, "isatty", lambda: True)
    with pytest.raises(UsageError, match="binary, and standard output is a terminal"):
        emit_timeline(scan, "perfetto", "-")


def test_folded_stretches_and_waits_are_those_of_the_timeline(scan: Inspection, found: Read) -> None:
    assert scan.prediction is not None
    waits = [one for one in unfold(scan.prediction.timeline) if one.kind == WAIT]
    assert len([one for one in found.slices if one.name.startswith("waits for")]) == len(waits)


@pytest.mark.parametrize(("name", "target"), [("gb200_offload_scan", "gb200"), ("h100_offload_by_xla", "h100")])
def test_a_prediction_and_the_profile_written_from_it_have_the_same_copies_and_work(
    name: str, target: str, tmp_path: Path
) -> None:
    found = hloinspect.inspect(str(FIXTURES / name / "module.hlo.pb.gz"), target=target)
    assert found.prediction is not None
    write_profile(found.offload, found.prediction, tmp_path)
    traced = hloinspect.trace(str(tmp_path), target=target)
    (predicted, measured) = by_process(read(to_perfetto(traced)))
    for track in (TRACKS["main"], TRACKS[D2H], TRACKS[H2D]):
        ours, theirs = (
            [(one.start_ns, one.end_ns) for one in slices if one.track == track and "waits" not in one.name]
            for slices in (predicted, measured)
        )
        assert len(ours) == len(theirs) > 0
        assert all(
            abs(a - b) <= 1 for one, other in zip(ours, theirs, strict=True) for a, b in zip(one, other, strict=True)
        )
    waited = [
        sum(one.end_ns - one.start_ns for one in slices if "waits" in one.name) for slices in (predicted, measured)
    ]
    assert waited[0] == pytest.approx(waited[1], abs=len(predicted))


def by_process(seen: Read) -> list[list[Seen]]:
    """Return the slices of each process, in the order of the processes."""
    found: dict[str, list[Seen]] = {}
    for one in seen.slices:
        found.setdefault(one.process, []).append(one)
    return list(found.values())
