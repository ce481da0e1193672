"""Copies on the link that are no transfers of the step: each row against an oracle that looks at every moment.

The traces are synthetic: a module that is played, and copies at random times beside it.
"""

from __future__ import annotations

import lzma
import random
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hloinspect.analyze.trace import trace
from hloinspect.measure.file import measure_file
from hloinspect.measure.memcpy import CopyKind, copy_kind
from hloinspect.render.page import html_page
from hloinspect.render.terminal.copies_text import copies_text
from hloinspect.report.schema import OtherCopiesInfo
from tests.measure.test_oracle import BETWEEN_PS, random_run
from tests.support.cuda_checks import play, trace_of
from tests.support.cuda_runtime import compiled
from tests.support.cuda_traces import US, Device, Event, Trace, memcpy_details, write_trace
from tests.support.thorough import examples

OTHER = 99
MOST = 3_352_320_000_000
"""The rate of the device's own memory: no copy is faster."""
NAMES = {"d2h": "MemcpyD2H", "h2d": "MemcpyH2D"}


def copy(direction: str, memory: str, start_ps: int, duration_ps: int, size: int, *, program: int = 0) -> Event:
    """Return a copy that no module makes, or the instruction ``custom-call.4`` of another program."""
    kinds = ("device", memory) if direction == "d2h" else (memory, "device")
    return Event(
        *(50 + random.Random(start_ps).randrange(3), start_ps, start_ps + duration_ps, NAMES[direction]),
        op="copy-start.4" if program else "",
        program=program,
        memcpy=memcpy_details(*kinds, size),
        what="other_copy",
    )


def alone(event: Event, every: Sequence[Event], directions: Sequence[str]) -> bool:
    """Return whether nothing else went the same way, and the other way was busy for 2 % of the time at most."""
    beside = [
        (other, way) for other, way in zip(every, directions, strict=True) if other is not event and met(event, other)
    ]
    own = next(way for other, way in zip(every, directions, strict=True) if other is event)
    if any(way == own and met(event, other) for other, way in beside):
        return False
    return 50 * covered(event, [other for other, way in beside if way != own]) <= event.duration_ps


def met(one: Event, other: Event) -> bool:
    return one.start_ps < other.end_ps and other.start_ps < one.end_ps


def covered(event: Event, others: Sequence[Event]) -> int:
    inside = {m for e in others for m in (e.start_ps, e.end_ps) if event.start_ps < m < event.end_ps}
    moments = sorted({event.start_ps, event.end_ps} | inside)
    return sum(b - a for a, b in pairwise(moments) if any(e.start_ps <= a and b <= e.end_ps for e in others))


@given(st.integers(0, 2**32))
@settings(max_examples=examples(20, 800))
def test_each_row_of_other_copies_is_what_the_oracle_sees(tmp_path_factory: pytest.TempPathFactory, seed: int) -> None:
    rng = random.Random(seed)
    run = random_run("optimizer", rng, 3)
    first, last = run.truth[0].start_ps - BETWEEN_PS // 2, run.truth[-1].end_ps + BETWEEN_PS
    first = max(first, 0)
    extra = {}
    for _ in range(rng.randrange(1, 30)):
        way, memory = rng.choice(("d2h", "h2d")), rng.choice(("pinned", "pageable", "managed"))
        start = rng.randrange(first // 1000, last // 1000) * 1000
        program = OTHER if memory == "pinned" and rng.random() < 0.3 else 0
        event = copy(way, memory, start, rng.randrange(1, 400) * US, rng.randrange(1, 1 << 26), program=program)
        extra[event] = (way, memory, "program" if program else "eager")
    events = [*run.events, *extra]
    path = write_trace(
        Trace((Device(0, tuple(events)),), (compiled("optimizer").program,)),
        tmp_path_factory.mktemp("trace") / "host.xplane.pb",
    )
    file = measure_file(path)
    ours = [event for event in run.events if event.what in NAMES]
    every = [*ours, *extra]
    ways = [event.what for event in ours] + [key[0] for key in extra.values()]
    steps = [Event(0, step.start_ps, step.end_ps, "") for step in file.devices[0].steps]
    expected = {}
    for key in set(extra.values()):
        own = [event for event in extra if extra[event] == key]
        same = [event for event in ours if event.what == key[0]]
        sizes = {event: int(event.memcpy.split("size:")[1].split()[0]) for event in own}
        rates = sorted((sizes[e] / e.duration_ps * 1e12, sizes[e]) for e in own if alone(e, every, ways))
        rates = [(rate, size) for rate, size in rates if rate <= MOST]
        expected[key] = (
            len(own),
            sum(sizes.values()),
            sum(event.duration_ps for event in own),
            sum(covered(event, same) for event in own),
            sum(covered(event, steps) for event in own),
            median_by_size(rates),
        )
    seen = {
        (c.direction, c.memory, c.origin): (
            *(c.count, c.bytes, c.device_ps, c.shared_ps, c.in_steps_ps),
            None if c.bytes_per_s is None else pytest.approx(c.bytes_per_s),
        )
        for c in file.other_copies
    }
    assert seen == expected


def median_by_size(rates: Sequence[tuple[float, int]]) -> float | None:
    """Return the least rate at or below which half of the bytes moved."""
    total, reached = sum(size for _, size in rates), 0
    for rate, size in rates:
        reached += size
        if 2 * reached >= total:
            return rate
    return None


def test_copies_beside_a_transfer_share_its_link(tmp_path: Path) -> None:
    run = play("optimizer")
    fetch = next(event for event in run.events if event.what == "h2d" and event.run == 1)
    beside = copy("h2d", "pinned", fetch.start_ps + 10 * US, 30 * US, 1 << 20)
    opposite = copy("d2h", "pinned", fetch.start_ps + 10 * US, 30 * US, 1 << 20)
    later = copy("h2d", "pinned", run.truth[-1].end_ps + US, 100 * US, 1 << 24)
    run.events += [beside, opposite, later]
    rows = {row.direction: row for row in measure_file(written(run.events, tmp_path)).other_copies}
    assert (rows["h2d"].shared_ps, rows["d2h"].shared_ps) == (30 * US, 0)
    assert rows["h2d"].in_steps_ps == 30 * US
    assert rows["h2d"].bytes_per_s == pytest.approx((1 << 24) / 100e-6)
    assert rows["d2h"].bytes_per_s is None  # the other direction was busy
    assert rows["h2d"].alone_bytes == 1 << 24


def test_a_copy_faster_than_the_devices_memory_gives_no_rate(tmp_path: Path) -> None:
    run = play("optimizer")
    run.events.append(copy("h2d", "pinned", run.truth[-1].end_ps + US, 1000, 1 << 24))
    (row,) = measure_file(written(run.events, tmp_path)).other_copies
    assert row.count == 1
    assert row.bytes_per_s is None


def test_rows_show_memory_origin_rate_and_what_to_do_about_pageable_memory(tmp_path: Path) -> None:
    run = play("optimizer")
    late = run.truth[-1].end_ps
    run.events += [
        copy("d2h", "pageable", late + US, 10_000 * US, 30_000_000),
        copy("h2d", "pinned", late + 20_000 * US, 1000 * US, 25_000_000),
        copy("d2h", "pinned", late + 30_000 * US, 100 * US, 5_000_000, program=OTHER),
    ]
    found = trace(str(written(run.events, tmp_path)))
    assert found.report.trace is not None
    rows = found.report.trace.other_copies
    assert [(r.direction, r.memory, r.origin, round(r.gbps or 0)) for r in rows] == [
        ("d2h", "pageable", "eager", 3),
        ("h2d", "pinned", "eager", 25),
        ("d2h", "pinned", "program", 50),
    ]
    text = "\n".join(copies_text(found.report, 100))
    assert "d2h     pageable  no instruction" in text
    assert "Pinned memory avoids that" in text
    page = html_page(found.report)
    assert "Other copies on the link" in page
    assert "piece by piece" in page


def test_pinned_copies_alone_get_no_advice(tmp_path: Path) -> None:
    run = play("optimizer")
    run.events.append(copy("h2d", "pinned", run.truth[-1].end_ps, 1000 * US, 1 << 24))
    text = copies_text(trace(str(written(run.events, tmp_path))).report, 100)
    assert len(text) == 3
    assert not any("piece by piece" in line for line in text)


def test_a_profile_without_programs_gives_its_copies_and_the_time_of_its_kernels(tmp_path: Path) -> None:
    """Play plain CUDA: the same events name no instruction and no program."""
    run = play("optimizer")
    events = [replace(event, op="", program=0) for event in run.events]
    report = trace(str(written(events, tmp_path))).report
    assert report.trace is not None
    moved = [event for event in events if event.what in NAMES]
    rows = {row.direction: row for row in report.trace.other_copies}
    assert set(rows) == {"d2h", "h2d"}
    for direction, row in rows.items():
        own = [event for event in moved if event.what == direction]
        assert (row.memory, row.origin, row.count, row.in_steps_ms) == ("pinned", "eager", len(own), None)
        assert row.gbps == pytest.approx(65536 / 100e-6 / 1e9)
    work = [event for event in events if event.what in ("compute", "collective")]
    assert report.trace.work_events == len(work)
    assert report.trace.work_ms == pytest.approx(sum(event.duration_ps for event in work) / 1e9)
    (unknown,) = (one for one in report.unknown if "names the program" in one.reason)
    assert "jitted JAX step" in unknown.remedy


def test_rows_of_several_hosts_are_added(tmp_path: Path) -> None:
    run = play("optimizer")
    late = run.truth[-1].end_ps + US
    for name, rate in (("a", 10), ("b", 20), ("c", 30)):
        events = [*run.events, copy("h2d", "pinned", late, 1000 * US, rate * 1_000_000)]
        write_trace(
            Trace((Device(0, tuple(events)),), (compiled("optimizer").program,)), tmp_path / f"{name}.xplane.pb"
        )
    report = trace(str(tmp_path)).report
    assert report.trace is not None
    (row,) = report.trace.other_copies
    assert row == OtherCopiesInfo(
        *("h2d", 3, 60_000_000, pytest.approx(3.0), "pinned", "eager", ""),
        gbps=pytest.approx(20.0),  # half of the bytes moved at 20 GB/s or less
        alone_bytes=60_000_000,
        shared_ms=0.0,
        in_steps_ms=0.0,
    )


@pytest.mark.parametrize(
    ("kinds", "name", "expected"),
    [
        (("managed", "device"), "MemcpyH2D", ("h2d", "managed")),
        (("managed", "managed"), "MemcpyD2H", ("d2h", "managed")),
        (("pinned", "managed"), "MemcpyH2D", ("h2d", "pinned")),
        (("managed", "pageable"), "MemcpyD2H", ("d2h", "pageable")),
        (("unknown", "unknown"), "MemcpyH2D", ("h2d", "unstated")),
        (("managed", "managed"), "MemcpyD2D", None),
        (("device", "device"), "MemcpyH2D", None),
        (("unknown", "device"), "MemcpyOther", None),
    ],
)
def test_memory_that_may_be_on_either_side_goes_where_the_copys_name_says(
    kinds: tuple[str, str], name: str, expected: tuple[str, str] | None
) -> None:
    found = copy_kind(memcpy_details(*kinds, 64), name)
    assert found == (None if expected is None else CopyKind(expected[0], expected[1], 64))  # type: ignore[arg-type]


def written(events: Sequence[Event], folder: Path) -> Path:
    run = play("optimizer")
    run.events = list(events)
    return write_trace(trace_of(run, "optimizer"), folder / "host.xplane.pb")


# ---- real profiles without any program (Nsight Systems of PyTorch)


@pytest.mark.parametrize("name", ["h100_2gpu_1s", "mfu_2gpu_before", "mock"])
def test_real_exports_give_their_copies_by_kind_and_what_the_device_did_besides(
    corpus: Path, tmp_path: Path, name: str
) -> None:
    """Compare with plain queries on the file: kinds 1 and 2 are to and from the device, 0 and 1 pageable and pinned."""
    path = corpus / "nsys" / f"{name}.sqlite.xz"
    (tmp_path / "plain.sqlite").write_bytes(lzma.decompress(path.read_bytes()))
    with closing(sqlite3.connect(tmp_path / "plain.sqlite")) as database:
        rows = database.execute(
            "select copyKind, min(srcKind, dstKind), count(*), sum(bytes), sum(end - start) * 1000 "
            "from CUPTI_ACTIVITY_KIND_MEMCPY where copyKind in (1, 2) group by 1, 2"
        ).fetchall()
        inside = "select count(*), coalesce(sum(end - start), 0) * 1000 from "
        tables = {row[0] for row in database.execute("select name from sqlite_master where type = 'table'")}
        work = [
            database.execute(inside + table + where).fetchone()
            for table, where in (
                ("CUPTI_ACTIVITY_KIND_KERNEL", ""),
                ("CUPTI_ACTIVITY_KIND_MEMSET", ""),
                ("CUPTI_ACTIVITY_KIND_MEMCPY", " where copyKind not in (1, 2, 11, 12)"),
            )
            if table in tables
        ]
    file = measure_file(path)
    expected = {
        ({1: "h2d", 2: "d2h"}[way], ("pageable", "pinned")[kind]): (count, size, time)
        for way, kind, count, size, time in rows
    }
    found = {(row.direction, row.memory): (row.count, row.bytes, row.device_ps) for row in file.other_copies}
    assert found == expected
    assert {row.origin for row in file.other_copies} == {"eager"}
    assert (file.work_events, file.work_ps) == tuple(map(sum, zip(*work, strict=True)))
    assert file.devices == ()
    assert any("names the program" in unknown.reason for unknown in file.unknown)


def test_the_rate_of_a_real_link_is_that_of_its_large_pinned_copies(corpus: Path) -> None:
    rows = measure_file(corpus / "nsys" / "h100_2gpu_1s.sqlite.xz").other_copies
    (row,) = [row for row in rows if (row.direction, row.memory) == ("h2d", "pinned")]
    assert row.bytes_per_s == pytest.approx(27.7e9, rel=0.005)
    assert row.alone_bytes > 0.9 * row.bytes
