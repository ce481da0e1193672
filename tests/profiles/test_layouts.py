"""The two shortcuts of the reader of events, compared with reading each event and each field by itself."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hloinspect.profiles.xplane import columns
from hloinspect.profiles.xplane import split as splitting
from hloinspect.profiles.xplane.columns import line_columns
from hloinspect.profiles.xplane.layouts import EventLayout, Layouts, layout_of
from hloinspect.profiles.xplane.schema import xplane_pb2 as schema
from hloinspect.profiles.xplane.space import Columns
from hloinspect.profiles.xplane.split import find_events
from hloinspect.profiles.xplane.wire import WireError
from hloinspect.timeline.spans import Ints
from tests.support.thorough import examples

NAMES = {1: "hlo_op", 2: "program_id", 3: "occupancy", 4: "details", 700: "correlation_id"}
VALUES = ("uint64_value", "int64_value", "ref_value", "double_value", "str_value", "bytes_value", "")


def varint(value: int) -> bytes:
    data = b""
    while value > 127:
        data, value = data + bytes([value & 127 | 128]), value >> 7
    return data + bytes([value])


def line_of(events: list[bytes]) -> bytes:
    return b"".join(b"\x22" + varint(len(event)) + event for event in events)


ODD = (b"", b"", b"", b"\x28\x07", b"\x08\x05", b"\x78\x01", b"\x88\x00\x05", b"\x90\x00\x05")
kinds = st.lists(st.tuples(st.sampled_from(sorted(NAMES)), st.sampled_from(VALUES)), max_size=5)


def event_of(kind: list[tuple[int, str]], random: Random, bits: int, shift: int) -> bytes:
    """Return an event with its own numbers of up to so many bits. Ids of statistics are up to ``shift`` greater."""

    def number() -> int:
        return random.getrandbits(random.randint(1, bits))

    event = schema.XEvent(metadata_id=number(), offset_ps=number(), duration_ps=number())
    for name, value in kind:
        stat = event.stats.add(metadata_id=name + random.randint(0, shift))
        if value in ("str_value", "bytes_value"):
            setattr(stat, value, random.choice([b"", b"a", b'""""']))
        elif value == "double_value":
            stat.double_value = random.choice([0.0, -1.5, 1e300])
        elif value:
            setattr(stat, value, number() * (random.choice([-1, 1]) if value == "int64_value" else 1))
    return event.SerializeToString()


@st.composite
def lines(draw: st.DrawFn) -> list[bytes]:
    """Draw events of a few kinds. Those of a kind have the same statistics and unusual parts, and each its own
    numbers."""
    random = Random(draw(st.integers(0, 1 << 32)))
    events = []
    for kind in draw(st.lists(kinds, max_size=3)):
        odd, bits = draw(st.sampled_from(ODD)), draw(st.sampled_from([7, 20, 63]))
        shift = draw(st.sampled_from([0, 0, 2]))
        events += [event_of(kind, random, bits, shift) + odd for _ in range(draw(st.integers(1, 60)))]
    random.shuffle(events)
    return events


@contextmanager
def without_layouts() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Layouts, "read", lambda self, data, begin, length, sink: np.arange(len(begin)))
        yield


def read(data: bytes) -> Columns | str:
    try:
        return line_columns(data, 0, len(data), ["program_id", "hlo_op", "occupancy", "details"], NAMES, 7_000)
    except WireError:
        return "damaged"


def plain(columns: Columns | str) -> object:
    """Return all that is in columns in a comparable form, with texts by themselves and not by their numbers."""
    if isinstance(columns, str):
        return columns
    own = [columns.metadata_id, columns.start_ps, columns.end_ps, columns.usable]
    found = [column.tolist() for column in own]
    for stat in columns.stats.values():
        codes, texts = stat.labels()
        found += [stat.kinds.tolist(), stat.integers(-1).tolist(), stat.numbers(-1).view(np.int64).tolist()]
        found.append([texts[code] if code >= 0 else None for code in codes.tolist()])
    return found


@settings(max_examples=examples(60, 2400))
@given(lines())
def test_events_that_are_laid_out_alike_read_as_each_alone(events: list[bytes]) -> None:
    found = plain(read(line_of(events)))
    with without_layouts():
        assert found == plain(read(line_of(events)))


@settings(max_examples=examples(40, 1600))
@given(lines(), st.integers(1, 400), st.integers(1, 30))
def test_how_many_events_are_read_together_does_not_show(events: list[bytes], window: int, block: int) -> None:
    found = plain(read(line_of(events)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(columns, "WINDOW_BYTES", window)
        patch.setattr(columns, "BLOCK_EVENTS", block)
        assert found == plain(read(line_of(events)))


@settings(max_examples=examples(60, 2400))
@given(lines(), st.lists(st.tuples(st.integers(0, 1 << 20), st.integers(0, 7)), min_size=1, max_size=4))
def test_damage_reads_the_same_with_layouts_and_without(events: list[bytes], damage: list[tuple[int, int]]) -> None:
    line = bytearray(line_of(events))
    for place, bit in damage if line else ():
        line[place % len(line)] ^= 1 << bit
    found = plain(read(bytes(line)))
    with without_layouts():
        assert found == plain(read(bytes(line)))


def test_most_events_of_a_profiler_are_read_by_few_layouts() -> None:
    rng = np.random.default_rng(0)
    events = []
    for _ in range(2_000):
        event = schema.XEvent(
            metadata_id=int(rng.integers(1, 100)),
            offset_ps=int(rng.integers(1 << 40)),
            duration_ps=int(rng.integers(1 << 30)),
        )
        event.stats.add(metadata_id=1, ref_value=int(rng.integers(1, 200)))
        event.stats.add(metadata_id=2, uint64_value=(1 << 64) - 5)
        events.append(event.SerializeToString())
    data, layouts = line_of(events) + bytes(32), Layouts({1: 0, 2: 1}, {0x18: 3, 0x38: 7})
    tags, _ = find_events(data, len(data) - 32, True)
    begin, length = tags + 2, np.array([len(event) for event in events])
    programs: list[int] = []

    def keep(_: Ints, layout: EventLayout, numbers: Iterable[Ints]) -> None:
        for what, values in zip(layout.fields, numbers, strict=True):
            programs.extend(values if what.slot == 1 else ())

    left = layouts.read(data, begin, length, keep)
    assert len(left) < 100
    assert programs == [-5] * (len(events) - len(left))
    assert sum(map(len, layouts.known.values())) < 60


@pytest.mark.parametrize(
    "event",
    [
        b"\x08\x05\x08\x06",  # a number twice
        b"\x78\x01",  # an unknown field
        b"\x88\x00\x05",  # a tag that is longer than necessary
        b"\x22\x04\x18\x05\x08\x01",  # a value before the statistic's id
        b"\x22\x06\x08\x01\x18\x05\x18\x06",  # two values
        b"\x22\x05\x08\x01\x2a\x01a",  # a text that is requested
        b"\x22\x7f",
        b"\x08",
    ],
)
def test_what_is_not_plain_is_no_layout(event: bytes) -> None:
    assert layout_of(event + bytes(8), len(event), {1: 0}, {0x18: 3, 0x2A: 5}) is None


# ---- where events lie


def walked(data: bytes, size: int, is_last: bool) -> tuple[Ints, int] | str:
    try:
        return find_events(data, size, is_last)
    except WireError as error:
        return str(error)


@pytest.mark.parametrize("is_last", [True, False])
@given(
    st.lists(st.binary(max_size=40) | st.integers(0, 300).map(lambda n: b'"' * n), max_size=80),
    st.lists(st.tuples(st.integers(0, 10_000), st.integers(0, 255)), max_size=3),
)
def test_walks_from_many_places_find_the_same_events_as_one(
    is_last: bool, events: list[bytes], damage: list[tuple[int, int]]
) -> None:
    line = bytearray(line_of(events))
    for place, byte in damage:
        if line:
            line[place % len(line)] = byte
    data, size = bytes(line) + bytes(32), len(line)
    one = walked(data, size, is_last)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(splitting, "LANE_BYTES", 50)
        patch.setattr(splitting, "MIN_LANES", 1)
        patch.setattr(splitting, "_FEW", 1)
        many = walked(data, size, is_last)
    if isinstance(one, str) or isinstance(many, str):
        assert one == many
    else:
        assert (one[0].tolist(), one[1]) == (many[0].tolist(), many[1])


def test_walks_from_many_places_do_the_work() -> None:
    stat = schema.XStat(metadata_id=1, ref_value=5)
    events = [schema.XEvent(metadata_id=3, offset_ps=n << 20, duration_ps=9, stats=[stat] * 6) for n in range(8_000)]
    data = line_of([event.SerializeToString() for event in events])
    calls = []
    with pytest.MonkeyPatch.context() as patch:
        scalar = splitting._next
        patch.setattr(splitting, "_next", lambda *a: calls.append(1) or scalar(*a))
        tags, used = find_events(data + bytes(32), len(data), True)
    assert (len(tags), used) == (len(events), len(data))
    assert len(calls) < len(events) / 4
