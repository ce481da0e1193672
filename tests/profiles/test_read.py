"""Reading a trace gives what protobuf itself reads from it, for any order and kind of its fields."""

from __future__ import annotations

import gzip
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hloinspect.profiles.open import open_trace
from hloinspect.profiles.xplane import XSpace, columns, embedded_modules, open_xspace
from hloinspect.profiles.xplane.columns import line_columns
from hloinspect.profiles.xplane.schema import xplane_pb2 as schema
from hloinspect.profiles.xplane.wire import WireError, signed
from tests.support.places import ROOT
from tests.support.thorough import examples
from tests.support.xspace_builder import HOST, Text, TraceBuilder, Unsigned

DETAILS = "kind_src:device kind_dst:pinned size:64 dest:0 async:1"


def gpu_trace() -> TraceBuilder:
    trace = TraceBuilder()
    gpu = trace.plane("/device:GPU:0", id=3, device_vendor="Nvidia", memory_bandwidth=Unsigned(7_928_064_000_000))
    stream = gpu.line("Stream #14(MemcpyD2H)", id=14, timestamp_ns=5)
    stream.event("MemcpyD2H", 7, 2_000, memcpy_details=DETAILS, correlation_id=Unsigned(99), context_id=Text("$$1"))
    stream.event("fusion_1", 3_000, 0, display_name="fusion.1", constant={"flops": 12}, occupancy=0.5, program_id=-4)
    trace.warn("Detected GPU events dropped on synthetic")
    return trace


def read(trace: TraceBuilder, tmp_path: Path) -> XSpace:
    return open_xspace(trace.write(tmp_path / "host.xplane.pb"))


def test_planes_lines_tables_and_warnings_come_out(tmp_path: Path) -> None:
    space = read(gpu_trace(), tmp_path)
    assert (space.hostnames, space.errors, space.base_ns, space.capped) == ((HOST,), (), 0, False)
    assert space.warnings == ("Detected GPU events dropped on synthetic",)
    (plane,) = space.planes_of("/device:GPU:")
    assert (plane.id, plane.stats) == (3, {"device_vendor": "Nvidia", "memory_bandwidth": 7_928_064_000_000})
    (line,) = plane.lines
    assert (line.id, line.name, line.timestamp_ns) == (14, "Stream #14(MemcpyD2H)", 5)
    kinds = [(kind.name, kind.display_name, dict(kind.stats)) for _, kind in sorted(plane.events.items())]
    assert kinds == [("MemcpyD2H", "", {}), ("fusion_1", "fusion.1", {"flops": 12})]


def test_columns_hold_times_in_picoseconds_and_the_requested_statistics(tmp_path: Path) -> None:
    (line,) = read(gpu_trace(), tmp_path).planes[0].lines
    found = line.columns(("correlation_id", "memcpy_details", "context_id", "occupancy", "program_id", "not there"))
    assert found.start_ps.tolist() == [5_007, 8_000]
    assert found.end_ps.tolist() == [7_007, 8_000]
    assert found.usable.all()
    assert found.stats["correlation_id"].integers(-1).tolist() == [99, -1]
    assert found.stats["program_id"].integers().tolist() == [0, -4]
    assert found.stats["occupancy"].numbers(-1).tolist() == [-1, 0.5]
    codes, labels = found.stats["memcpy_details"].labels()
    assert (codes.tolist(), labels) == ([0, -1], (DETAILS,))
    codes, labels = found.stats["context_id"].labels()
    assert (codes.tolist(), labels) == ([0, -1], ("$$1",))
    assert not found.stats["not there"].present.any()


def test_an_event_that_stands_for_many_is_not_usable(tmp_path: Path) -> None:
    trace = gpu_trace()
    trace.proto.planes[0].lines[0].events[0].num_occurrences = 5
    (line,) = read(trace, tmp_path).planes[0].lines
    for stats in ((), ("correlation_id",)):
        found = line.columns(stats)
        assert found.usable.tolist() == [False, True]
        assert found.duration_ps.tolist() == [0, 0]


@pytest.mark.parametrize(("offset", "duration"), [(1 << 62, 1 << 62), (-(1 << 63), 5), (5, -1), (1 << 62 | 1, 0)])
def test_an_event_whose_time_cannot_be_is_not_usable(tmp_path: Path, offset: int, duration: int) -> None:
    trace = gpu_trace()
    event = trace.proto.planes[0].lines[0].events[0]
    event.offset_ps, event.duration_ps = offset, duration
    (line,) = read(trace, tmp_path).planes[0].lines
    assert line.columns().usable.tolist() == [False, True]


def test_unix_times_are_counted_from_the_earliest_line(tmp_path: Path) -> None:
    trace = gpu_trace()
    plane = trace.proto.planes[0]
    plane.lines[0].timestamp_ns = 1_741_722_099_081_044_125
    plane.lines.add(name=b"later", timestamp_ns=1_741_722_099_081_044_225).events.add(offset_ps=1)
    plane.lines.add(name=b"empty")
    space = read(trace, tmp_path)
    assert space.base_ns == 1_741_722_099_081_044_125
    assert [line.columns().start_ps.tolist() for line in space.planes[0].lines] == [[7, 3_000], [100_001], []]


def test_a_gzipped_trace_is_read_whatever_its_name(tmp_path: Path) -> None:
    plain = read(gpu_trace(), tmp_path)
    packed = tmp_path / "packed.xplane.pb"
    data = gpu_trace().bytes()
    packed.write_bytes(gzip.compress(data[:100]) + gzip.compress(data[100:]) + bytes(7))  # members and padding
    for read_it in (open_xspace, open_trace):
        assert read_it(packed).planes[0].stats == plain.planes[0].stats


@pytest.mark.parametrize("id_is_stat", [False, True])
def test_embedded_modules_are_found_in_both_layouts_by_signed_program_id(tmp_path: Path, id_is_stat: bool) -> None:
    trace = gpu_trace()
    trace.embed("jit_f", 12190760917235803885, b"a module", id_is_stat=id_is_stat)
    trace.embed("jit_g", 7, b"another", id_is_stat=id_is_stat)
    plane = trace.proto.planes[1]
    plane.event_metadata[55].name = b"SYMBOL_MAP:9887984828784582650"  # a TPU's, without a proto
    assert embedded_modules(read(trace, tmp_path)) == {signed(12190760917235803885): b"a module", 7: b"another"}


# ---- against protobuf


names = st.sampled_from(["", "hlo_op", "memcpy_details", "correlation_id", "näme", "s"])
integers = st.one_of(st.integers(-(1 << 63), (1 << 63) - 1), st.integers(-2, 300))
values = st.one_of(
    st.builds(lambda v: {"double_value": v}, st.floats(allow_nan=False)),
    st.builds(lambda v: {"uint64_value": v}, st.integers(0, (1 << 64) - 1)),
    st.builds(lambda v: {"int64_value": v}, integers),
    st.builds(lambda v: {"str_value": v}, st.binary(max_size=200)),
    st.builds(lambda v: {"bytes_value": v}, st.binary(max_size=4)),
    st.builds(lambda v: {"ref_value": v}, st.integers(0, 8)),
    st.just({}),
)
stats = st.builds(
    lambda number, value: schema.XStat(metadata_id=number, **value).SerializeToString(),
    st.one_of(st.integers(0, 8), st.sampled_from([300, 1 << 25, -1])),
    values,
)
small = st.integers(-(1 << 40), 1 << 40)
unknown = st.sampled_from([b"\x98\x06\x05", b"\xa2\x06\x02hi", b"\x9d\x06abcd", b"\x99\x06abcdefgh"])


@st.composite
def serialized_events(draw: st.DrawFn) -> bytes:
    """Draw an event with its fields in any order, some of them twice, some unknown."""
    parts = [schema.XEvent(metadata_id=draw(integers)).SerializeToString()]
    parts += [schema.XEvent(duration_ps=draw(st.integers(0, 1 << 50))).SerializeToString()] * draw(st.integers(0, 2))
    if draw(st.booleans()):
        parts.append(schema.XEvent(offset_ps=draw(small)).SerializeToString())
    elif draw(st.booleans()):
        parts.append(schema.XEvent(num_occurrences=draw(integers)).SerializeToString())
    for stat in draw(st.lists(stats, max_size=4)):
        parts.append(b"\x22" + bytes(_varint(len(stat))) + stat)
    parts += draw(st.lists(unknown, max_size=2))
    return b"".join(draw(st.permutations(parts)))


def _varint(value: int) -> list[int]:
    found = []
    while value > 127:
        found.append(value & 127 | 128)
        value >>= 7
    return [*found, value]


def _line(events: list[bytes]) -> bytes:
    return b"".join(b"\x22" + bytes(_varint(len(event))) + event for event in events)


@settings(max_examples=examples(100, 2000))
@given(st.lists(serialized_events(), max_size=12), st.lists(names, min_size=1, max_size=3, unique=True))
def test_every_event_is_what_protobuf_reads(events: list[bytes], wanted: list[str]) -> None:
    table = {
        1: "hlo_op",
        2: "memcpy_details",
        3: "correlation_id",
        4: "näme",
        5: "s",
        300: "",
        1 << 25: "far",
        0: "zero",
    }
    data = _line(events)
    found = line_columns(data, 0, len(data), [*wanted, "far"], table, 1_000)
    expected = [schema.XEvent.FromString(event) for event in events]
    assert found.metadata_id.tolist() == [event.metadata_id for event in expected]
    assert found.usable.tolist() == [event.WhichOneof("data") != "num_occurrences" for event in expected]
    for index, event in enumerate(expected):
        if found.usable[index]:
            assert found.start_ps[index] == 1_000 + event.offset_ps
            assert found.duration_ps[index] == event.duration_ps
    ids = {name: number for number, name in table.items()}
    for name in (*wanted, "far"):
        column = found.stats[name]
        for index, event in enumerate(expected):
            own = [s for s in event.stats if s.metadata_id == ids.get(name) and s.WhichOneof("value")]
            assert bool(column.present[index]) == bool(own)
            if not own:
                continue
            which, value = own[-1].WhichOneof("value"), getattr(own[-1], own[-1].WhichOneof("value") or "")
            if which in ("int64_value", "uint64_value"):
                assert column.integers()[index] == signed(value)
                assert column.numbers()[index] == np.float64(value)
            elif which == "double_value":
                assert column.numbers()[index] == value
            else:
                codes, labels = column.labels()
                text = table.get(value, "") if which == "ref_value" else value.decode("utf-8", "replace")
                assert labels[codes[index]] == text


@pytest.mark.parametrize("block", [1, 17, 64, 1 << 20])
def test_the_size_of_a_block_does_not_show(monkeypatch: pytest.MonkeyPatch, block: int) -> None:
    events = [
        schema.XEvent(
            metadata_id=i,
            offset_ps=1 << i,
            duration_ps=i,
            stats=[schema.XStat(metadata_id=1, str_value=b"x" * (i % 7))],
        ).SerializeToString()
        for i in range(60)
    ]
    tail = b"\x48\x05\x5a\x03abc"  # duration_ps and display_name of the line, behind its events
    monkeypatch.setattr(columns, "WINDOW_BYTES", block)
    data = _line(events) + tail
    found = line_columns(data, 0, len(data), ["s"], {1: "s"}, 0)
    assert found.metadata_id.tolist() == list(range(60))
    assert found.start_ps.tolist() == [1 << i for i in range(60)]
    codes, labels = found.stats["s"].labels()
    assert [labels[code] for code in codes.tolist()] == ["x" * (i % 7) for i in range(60)]


def test_one_event_with_very_many_statistics_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(columns, "MANY_ROUNDS", 3)
    long = schema.XEvent(metadata_id=5, duration_ps=3)
    for number in range(2_000):
        long.stats.add(metadata_id=2, int64_value=number)
    long.stats.add(metadata_id=1, int64_value=-8)
    short = schema.XEvent(metadata_id=6, offset_ps=4, stats=[schema.XStat(metadata_id=1, int64_value=9)])
    data = _line([short.SerializeToString(), long.SerializeToString()])
    found = line_columns(data, 0, len(data), ["s"], {1: "s"}, 0)
    assert found.stats["s"].integers().tolist() == [9, -8]
    assert (found.metadata_id.tolist(), found.duration_ps.tolist()) == ([6, 5], [0, 3])


def test_a_line_whose_name_comes_after_its_events_is_refused() -> None:
    data = _line([b"\x08\x01"]) + b"\x12\x04name"
    with pytest.raises(WireError, match="after its events"):
        line_columns(data, 0, len(data), [], {}, 0)


# ---- its cost


def test_importing_hloinspect_imports_no_numpy() -> None:
    code = (
        "import sys, hloinspect, hloinspect.cli; sys.exit('numpy' in sys.modules or 'google.protobuf' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False, cwd=ROOT).returncode == 0


# ---- the corpus


@pytest.mark.parametrize(
    ("name", "planes", "events", "modules"),
    [
        ("cuda_gtx1080ti_xla", 6, 0, 3),
        ("cuda_v100_tensorflow_2020", 9, 0, 0),
        ("rocm_mi300x_jax08", 12, 0, 16),
        ("rocm_mi300x_roctracer", 11, 0, None),
        ("tpu_v6e_host_offload", 7, 0, 4),
    ],
)
def test_real_traces_give_what_protobuf_reads(
    corpus: Path, name: str, planes: int, events: int, modules: int | None
) -> None:
    path = corpus / "traces" / f"{name}.xplane.pb"
    space, proto = open_xspace(path), schema.XSpace.FromString(path.read_bytes())
    if modules is not None:
        assert len(embedded_modules(space)) == modules
    assert [plane.name.encode() for plane in space.planes] == [plane.name for plane in proto.planes]
    for plane, expected in zip(space.planes, proto.planes, strict=True):
        assert len(plane.events) == len(expected.event_metadata)
        for line, own in zip(plane.lines, expected.lines, strict=True):
            found = line.columns()
            assert found.metadata_id.tolist() == [event.metadata_id for event in own.events]
            starts = [own.timestamp_ns * 1000 + event.offset_ps for event in own.events]
            assert found.start_ps.tolist() == starts
            assert found.duration_ps.tolist() == [event.duration_ps for event in own.events]


def test_the_golden_trace_has_its_waits(corpus: Path) -> None:
    """Compare with golden.json: 76.048367 s of waits and 78.415441 s of steps on TPU:0."""
    space = open_xspace(corpus / "traces" / "tpu_v6e_host_offload.xplane.pb")
    plane = space.planes_of("/device:TPU:0")[0]
    lines = {line.name: line for line in plane.lines}
    steps = lines["XLA Modules"].columns()
    own = [number for number, kind in plane.events.items() if kind.name.startswith("jit_f(")]
    assert int(steps.duration_ps[np.isin(steps.metadata_id, own)].sum()) / 1e12 == pytest.approx(78.415441, abs=1e-6)
    ops = lines["XLA Ops"].columns()
    dones = [number for number, kind in plane.events.items() if kind.display_name.startswith("copy-done")]
    assert int(ops.duration_ps[np.isin(ops.metadata_id, dones)].sum()) / 1e12 == pytest.approx(76.048367, abs=1e-6)
