"""Chrome traces give the same model, marked as capped."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from hloinspect.errors import InputError
from hloinspect.profiles import chrome
from hloinspect.profiles.open import open_trace

DETAILS = "kind_src:device kind_dst:pinned size:64 dest:0 async:1"
EVENTS = [
    {"ph": "M", "pid": 3, "name": "process_name", "args": {"name": "/device:GPU:0"}},
    {"ph": "M", "pid": 3, "tid": 14, "name": "thread_name", "args": {"name": "Stream #14(MemcpyD2H)"}},
    {"ph": "M", "pid": 3, "tid": 15, "name": "thread_name", "args": {"name": "empty"}},
    {"ph": "X", "pid": 3, "tid": 14, "ts": 1.5, "dur": 2.25, "name": "MemcpyD2H", "args": {"memcpy_details": DETAILS}},
    {
        "ph": "X",
        "pid": 3,
        "tid": 14,
        "ts": 1146308.645759,
        "name": "f.1",
        "args": {"long_name": "%f.1 = x", "n": "-12"},
    },
    {"ph": "X", "pid": 3, "tid": 14, "ts": 5, "dur": -1, "name": "f.1", "args": {"n": "007"}},
    {},
]


def written(tmp_path: Path, document: object) -> Path:
    path = tmp_path / "host.trace.json.gz"
    path.write_bytes(gzip.compress(json.dumps(document).encode()))
    return path


def test_events_come_out_as_columns_to_the_picosecond(tmp_path: Path) -> None:
    space = open_trace(written(tmp_path, {"traceEvents": EVENTS}))
    assert space.capped
    (plane,) = space.planes_of("/device:GPU:")
    assert [(line.id, line.name) for line in plane.lines] == [(14, "Stream #14(MemcpyD2H)"), (15, "empty")]
    found = plane.lines[0].columns(("memcpy_details", "n"))
    assert found.start_ps.tolist() == [1_500_000, 1_146_308_645_759, 5_000_000]
    assert found.duration_ps.tolist() == [2_250_000, 0, 0]
    assert found.usable.tolist() == [True, True, False]
    assert found.stats["n"].integers().tolist() == [0, -12, 0]
    assert found.stats["n"].labels() == (pytest.approx([-1, -1, 0]), ("007",))
    assert found.stats["memcpy_details"].labels()[1] == (DETAILS,)
    kinds = [plane.events[number] for number in found.metadata_id.tolist()]
    assert [(kind.display_name, kind.name) for kind in kinds] == [
        ("MemcpyD2H", "MemcpyD2H"),
        ("f.1", "%f.1 = x"),
        ("f.1", "f.1"),
    ]
    assert len(plane.lines[1].columns()) == 0


def test_a_full_trace_says_that_events_are_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = written(tmp_path, EVENTS)  # a bare list is a Chrome trace too
    assert open_trace(path).warnings == ()
    monkeypatch.setattr(chrome, "MAX_EVENTS", 3)
    assert "later ones are missing" in open_trace(path).warnings[0]


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[" * 100_000,
        b"3",
        b'{"traceEvents": 3}',
        b'{"traceEvents": [3]}',
        b'{"traceEvents": [{"ph": "X"}]}',
        b'{"traceEvents": [{"ph": "X", "pid": 1, "tid": 1, "ts": "soon"}]}',
        b'{"traceEvents": [{"ph": "X", "pid": 1, "tid": 1, "ts": 1e300}]}',
        b'{"traceEvents": [{"ph": "X", "pid": 1, "tid": 1, "ts": 1, "dur": NaN}]}',
        b'{"traceEvents": [{"ph": "X", "pid": 1, "tid": 1, "ts": 1, "args": 3}]}',
        b'{"traceEvents": [{"ph": "M", "pid": 1, "name": "process_name"}]}',
        b"\xff\xfe\x00",
    ],
)
def test_other_data_are_refused_in_one_line(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "x.json"
    path.write_bytes(content)
    with pytest.raises(InputError) as raised:
        open_trace(path)
    assert str(raised.value).startswith(f"{path}: ")
    assert "\n" not in str(raised.value)


def test_a_real_trace_is_read(corpus: Path) -> None:
    space = open_trace(corpus / "traces" / "tpu_vllm_no_offload.trace.json.gz")
    assert [plane.name for plane in space.planes] == ["/device:TPU:0", "/device:TPU:1", "/host:CPU"]
    ops = {line.name: line for line in space.planes[0].lines}["XLA Ops"].columns(("hlo_category",))
    assert len(ops) == 3454
    assert "copy-done" in ops.stats["hlo_category"].labels()[1]
