"""Files that are no trace, or a damaged one: one line names the file, and nothing crashes, hangs or fills the
memory."""

from __future__ import annotations

import gzip
import random
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hloinspect.errors import InputError
from hloinspect.hlo.schema import hlo_pb2 as schema
from hloinspect.profiles.open import open_trace
from hloinspect.profiles.xplane import embedded_modules, source
from hloinspect.profiles.xplane.columns import line_columns
from hloinspect.profiles.xplane.wire import WireError
from tests.profiles.test_read import gpu_trace
from tests.support.places import ROOT
from tests.support.thorough import examples
from tests.support.xspace_builder import TraceBuilder

HLO = ROOT / "fixtures" / "jax0.12.0.1" / "gb200_offload_scan" / "module.hlo.pb.gz"
STATS = ("memcpy_details", "correlation_id", "occupancy", "context_id")


def read_all(path: Path) -> int:
    """Read everything and return the number of events."""
    space = open_trace(path)
    embedded_modules(space)
    events = 0
    for plane in space.planes:
        _ = plane.events, plane.stats
        for line in plane.lines:
            found = line.columns(STATS)
            events += len(found)
            for column in found.stats.values():
                column.labels(), column.numbers(), column.integers()
            assert len(line.columns()) == len(found)
    return events


def refusal(path: Path) -> str:
    with pytest.raises(InputError) as raised:
        read_all(path)
    text = str(raised.value)
    assert text.startswith(f"{path}: ")
    assert "\n" not in text
    return text


@pytest.mark.parametrize(
    ("data", "found"),
    [
        (b"", "empty"),
        (b"\0" * 4096, "another kind"),
        (b"HloModule jit_f, is_scheduled=true\n", "HLO text"),
        (random.Random(1).randbytes(5000), "another"),
        (gzip.compress(b"", mtime=0), "empty"),
        (gzip.compress(b"hello, world", mtime=0), "another kind"),
        (gzip.compress(bytes(1000), mtime=0)[:20], "cut off"),
        (b"\x1f\x8b\x08\x00" + b"\xff" * 40, "damaged"),
        (gzip.decompress(HLO.read_bytes()), "another kind"),
        (schema.HloProto(hlo_module=schema.HloModuleProto(name="jit_f")).SerializeToString(), "HLO proto"),
        (schema.HloModuleProto(name="jit_f").SerializeToString(), "another file"),
    ],
)
def test_a_file_that_is_no_trace_is_refused_with_what_it_is(tmp_path: Path, data: bytes, found: str) -> None:
    path = tmp_path / "host.xplane.pb"
    path.write_bytes(data)
    assert found in refusal(path)


def test_a_trace_that_went_through_a_text_encoding_is_named(tmp_path: Path, corpus: Path) -> None:
    assert "text encoding" in refusal(corpus / "traces" / "corrupt.xplane.pb")


def test_a_module_of_the_corpus_is_no_trace(corpus: Path) -> None:
    assert "HLO proto" in refusal(corpus / "hlo" / "tpu_v6e_host_offload.hlo_proto.pb")


def test_missing_files_and_directories_are_named(tmp_path: Path) -> None:
    assert "no such file" in refusal(tmp_path / "nothing.xplane.pb")
    assert "a directory" in refusal(tmp_path)


def test_a_trace_cut_off_anywhere_is_refused_or_ends_between_two_planes(tmp_path: Path) -> None:
    trace = gpu_trace()
    trace.embed("jit_f", 7, b"a module")
    data = trace.bytes()
    ends = set()
    position = 0
    for part in _fields_of(data):
        position += part
        ends.add(position)
    path = tmp_path / "host.xplane.pb"
    for length in range(len(data)):
        path.write_bytes(data[:length])
        if length in ends:
            read_all(path)
        else:
            refusal(path)


def _fields_of(data: bytes) -> list[int]:
    """Return the length of each field at the top of a message with its tag. A length takes at most two bytes here."""
    found, position = [], 0
    while position < len(data):
        low, high = data[position + 1], data[position + 2]
        size = 2 + low if low < 128 else 3 + (low & 127 | high << 7)
        found.append(size)
        position += size
    return found


@settings(max_examples=examples(400, 20_000))
@given(st.data())
def test_any_damage_gives_an_answer_or_one_line(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    content = bytearray(gpu_trace().bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        place = data.draw(st.integers(0, len(content) - 1))
        kind = data.draw(st.sampled_from(["byte", "delete", "insert"]))
        if kind == "byte":
            content[place] = data.draw(st.integers(0, 255))
        elif kind == "delete":
            del content[place : place + data.draw(st.integers(1, 8))]
        else:
            content[place:place] = data.draw(st.binary(max_size=12))
    path = tmp_path_factory.mktemp("damage") / "host.xplane.pb"
    path.write_bytes(bytes(content) or b"\0")
    complaint = str(path)
    try:
        read_all(path)
    except InputError as error:
        complaint = str(error)
    assert complaint.startswith(str(path))
    assert "\n" not in complaint


@settings(max_examples=examples(400, 20_000))
@given(st.binary(max_size=300))
def test_any_bytes_as_events_give_columns_or_a_wire_error(data: bytes) -> None:
    for content in (
        data,
        b"".join(b"\x22" + bytes([len(data[i : i + 9])]) + data[i : i + 9] for i in range(0, len(data), 9)),
    ):
        try:
            found = line_columns(content, 0, len(content), ["a", "b"], {1: "a", 2: "b"}, 0)
        except WireError:
            continue
        for column in found.stats.values():
            column.labels(), column.numbers()


def test_a_gzip_bomb_is_refused_before_it_fills_the_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source, "MAX_UNPACKED_BYTES", 1 << 20)
    path = tmp_path / "host.xplane.pb.gz"
    path.write_bytes(gzip.compress(b"\x0a" + bytes(1 << 24)))
    assert "bytes unpacked" in refusal(path)


@pytest.mark.slow
def test_an_endless_line_of_empty_events_is_refused(tmp_path: Path) -> None:
    """Refuse events of two bytes each in the file, but 25 in columns: a gigabyte of them would take 13."""
    path = tmp_path / "host.xplane.pb"
    size = 1 << 27
    line = _field(3, size)
    with path.open("wb") as file:
        file.write(_field(1, len(line) + size) + line)
        for _ in range(size >> 20):
            file.write(b"\x22\x00" * (1 << 19))
    code = (
        "import sys; from hloinspect.profiles.xplane import open_xspace; from hloinspect.errors import InputError\n"
        "space = open_xspace(sys.argv[1])\n"
        "try: space.planes[0].lines[0].columns()\n"
        "except InputError as error: print(error)\n"
        # not ru_maxrss: that begins with the peak of the parent process
        "print(next(line.split()[1] for line in open('/proc/self/status') if line.startswith('VmHWM')))"
    )
    done = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=True, cwd=ROOT)
    complaint, peak = done.stdout.strip().splitlines()
    assert "more than 33,554,432 events" in complaint
    assert int(peak) < 2_500_000  # KiB: the columns of those it did read, and the mapped file


def _field(number: int, size: int) -> bytes:
    """Return tag and length."""
    found = [number << 3 | 2]
    while size > 127:
        found.append(size & 127 | 128)
        size >>= 7
    return bytes([*found, size])


def test_an_event_with_a_million_fields_takes_no_longer_than_a_million_events(tmp_path: Path) -> None:
    """Read them one by one once only a few are left: numpy's overhead would otherwise come a million times."""
    trace = TraceBuilder()
    line = trace.plane("/device:GPU:0").line("Stream #1(Compute)")
    line.event("k", 0, 1)
    event = line.event("k", 1, 1)
    data = event.SerializeToString() + b"\x18\x07" * 200_000
    head = b"\x22" + bytes(_varint_of(len(data)))
    content = b"\x22\x02\x08\x01" + head + data
    found = line_columns(content, 0, len(content), ["a"], {}, 0)
    assert found.duration_ps.tolist() == [0, 7]


def _varint_of(value: int) -> list[int]:
    found = []
    while value > 127:
        found.append(value & 127 | 128)
        value >>= 7
    return [*found, value]
