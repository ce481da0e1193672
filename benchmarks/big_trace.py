#!/usr/bin/env python3
"""Writer of a large synthetic CUDA trace: a step of one of our own compiled modules, many times on eight GPUs.

usage: python benchmarks/big_trace.py OUT EVENTS [--host]

One step is played by tests/support/cuda_runtime.py (a start waits for the main stream, the main stream for a done) and
written once by the protobuf library with the statistics that XLA's profiler gives each event: twelve for each kernel,
eight for each copy. Every further step is a copy of those bytes in which times and correlation ids are replaced. To let
numpy do that, both are kept in ranges in which their varints have one length: offsets from 2**42 ps (4.4 s), ids from
2**21.

EVENTS counts those of the devices. ``--host`` adds what the host did: a launching call for each of them, so twice as
many in all. The Python thread's step annotations are always there.
"""

from __future__ import annotations

import gzip
import json
import sys
import zlib
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from hloinspect.hlo import load_module
from hloinspect.profiles.xplane.schema import xplane_pb2 as schema
from tests.support.cuda_runtime import Run, Speeds
from tests.support.cuda_traces import US, Device, Event, Program, Trace, build

ROOT = Path(__file__).resolve().parents[1]
FIXTURE = ROOT / "fixtures" / "jax0.12.0.1" / "gb200_offload_unrolled"
DEVICES = 8
PROGRAM_ID = 7
FIRST_OFFSET_PS, LAST_OFFSET_PS = 1 << 42, 1 << 49
FIRST_CORRELATION, LAST_CORRELATION = 1 << 21, 1 << 28
Ints = NDArray[np.int64]
Bytes = NDArray[np.uint8]


def one_step() -> tuple[list[Event], int]:
    """Return the events of a steady step, times from its beginning, and the time from one step to the next.

    Kernels take between 3 and 200 us, the same one the same time in each step.
    """
    expected = json.loads((FIXTURE / "expected.json").read_text())["transfers"]
    directions = {name: (way, own["bytes_each"][0]) for way, own in expected.items() for name in own["names"]}
    speeds = Speeds(kernel=lambda op: (3 + zlib.crc32(op.encode()) % 198) * US, d2h=400 * US, h2d=900 * US)
    run = Run(load_module(FIXTURE / "module.hlo.pb.gz"), directions, program=PROGRAM_ID, speeds=speeds)
    run.steps(3)
    begin, after = run.annotations[1].start_ps, run.annotations[2].start_ps
    chosen = [place for place, event in enumerate(run.events) if begin <= event.start_ps < after]
    places = {place: number for number, place in enumerate(chosen)}
    events = [_shifted(run.events[place], begin) for place in chosen]
    awaited = [tuple(places[place] for place in event.after if place in places) for event in events]
    return [replace(event, after=own) for event, own in zip(events, awaited, strict=True)], after - begin


def _shifted(event: Event, by_ps: int) -> Event:
    assert event.launched_ps is not None
    return replace(
        event,
        start_ps=event.start_ps - by_ps,
        end_ps=event.end_ps - by_ps,
        launched_ps=event.launched_ps - by_ps,
    )


def write_big_trace(path: Path, events: int, *, host: bool = False) -> int:
    """Write the trace, and return the number of all its events. Steps are whole, as many as fit."""
    step, step_ps = one_step()
    steps = max(1, events // DEVICES // len(step))
    module = gzip.decompress((FIXTURE / "module.hlo.pb.gz").read_bytes())
    shifted = [_shifted(event, -FIRST_OFFSET_PS) for event in step]
    devices = tuple(Device(n, tuple(shifted)) for n in range(DEVICES))
    template = build(Trace(devices, (Program("jit_train_step", PROGRAM_ID, module),))).proto
    begins = _step_begins(steps, step_ps)
    assert begins[-1] + 2 * step_ps < LAST_OFFSET_PS - FIRST_OFFSET_PS, (
        "more steps than fit into a varint of one length"
    )
    assert steps * DEVICES * len(step) < LAST_CORRELATION - FIRST_CORRELATION
    total = 0
    with path.open("wb") as file:
        for plane in template.planes:
            name = plane.name.decode()
            if name == "/host:CPU":
                _annotate(plane, begins, step_ps)
                total += steps
                if not host:
                    del plane.lines[1:]
            if name.startswith("/device") or (host and name == "/host:CPU"):
                data, own = _repeated(plane, begins, steps * len(step), len(step))
                total += own
            else:
                data = plane.SerializeToString()
            file.write(b"\x0a" + _varint(len(data)) + data)
        file.write(schema.XSpace(hostnames=template.hostnames).SerializeToString())
    return total


def _step_begins(steps: int, step_ps: int) -> Ints:
    """Return the begins of steps that are up to 1 % longer than the typical one, in whole nanoseconds."""
    extra = np.random.default_rng(0).integers(0, step_ps // 100_000, steps) * 1000
    return np.concatenate(([0], np.cumsum(step_ps + extra)[:-1])).astype(np.int64)


def _annotate(plane: schema.XPlane, begins: Ints, step_ps: int) -> None:
    names = {b"step_num": 9001, b"_r": 9002}
    for name, number in names.items():
        plane.stat_metadata[number].id, plane.stat_metadata[number].name = number, name
    plane.event_metadata[9001].id, plane.event_metadata[9001].name = 9001, b"train"
    for number, begin in enumerate(begins.tolist()):
        event = plane.lines[0].events.add(
            metadata_id=9001, offset_ps=FIRST_OFFSET_PS + begin, duration_ps=step_ps - 50 * US
        )
        event.stats.add(metadata_id=9001, int64_value=number)
        event.stats.add(metadata_id=9002, int64_value=1)


def _repeated(plane: schema.XPlane, begins: Ints, per_device: int, per_step: int) -> tuple[bytes, int]:
    """Return the plane with the events of each line (those that have a correlation id) once a step, and their
    number."""
    correlation = next(n for n, entry in plane.stat_metadata.items() if entry.name == b"correlation_id")
    parts = [schema.XPlane(id=plane.id, name=plane.name).SerializeToString()]
    count = 0
    for line in plane.lines:
        head = schema.XLine(id=line.id, name=line.name, timestamp_ns=line.timestamp_ns).SerializeToString()
        if line.events and line.events[0].stats[-1].metadata_id != 9002:
            body = _repeated_line(line, correlation, begins, per_device, per_step)
            count += len(line.events) * len(begins)
        else:
            head, body = line.SerializeToString(), b""
        size = len(head) + len(body)
        parts += [b"\x1a" + _varint(size), head, body]
    rest = schema.XPlane()
    rest.CopyFrom(plane)
    rest.ClearField("id")
    rest.ClearField("name")
    rest.ClearField("lines")
    parts.append(rest.SerializeToString())
    return b"".join(parts), count


def _repeated_line(line: schema.XLine, correlation: int, begins: Ints, per_device: int, per_step: int) -> bytes:
    blocks: list[bytes] = []
    offset_places, correlation_places = [], []
    position = 0
    for event in line.events:
        stat = next(stat for stat in event.stats if stat.metadata_id == correlation)
        own = stat.uint64_value - 1  # 0 to the number of events of all devices in a step
        stat.uint64_value = FIRST_CORRELATION + own // per_step * per_device + own % per_step
        data = event.SerializeToString()
        offset = b"\x10" + _varint(event.offset_ps)
        number = _varint(stat.uint64_value)
        at_offset, at_number = data.index(offset), data.index(b"\x18" + number, data.index(b"\x22"))
        assert (len(offset), len(number)) == (8, 4), "a varint of another length than the others"
        prefix = b"\x22" + _varint(len(data))
        offset_places.append(position + len(prefix) + at_offset + 1)
        correlation_places.append(position + len(prefix) + at_number + 1)
        blocks.append(prefix + data)
        position += len(prefix) + len(data)
    table = np.tile(np.frombuffer(b"".join(blocks), np.uint8), (len(begins), 1))
    offsets = np.array([event.offset_ps for event in line.events], np.int64)
    numbers = [next(s.uint64_value for s in event.stats if s.metadata_id == correlation) for event in line.events]
    steps = np.arange(len(begins), dtype=np.int64)
    _put_varints(table, np.array(offset_places), begins[:, None] + offsets, 7)
    _put_varints(table, np.array(correlation_places), steps[:, None] * per_step + np.array(numbers, np.int64), 4)
    return table.tobytes()


def _put_varints(table: Bytes, places: Ints, values: Ints, length: int) -> None:
    for index in range(length):
        more = 128 if index < length - 1 else 0
        table[:, places + index] = (values >> (7 * index) & 127 | more).astype(np.uint8)


def _varint(value: int) -> bytes:
    data = b""
    while value > 127:
        data += bytes([value & 127 | 128])
        value >>= 7
    return data + bytes([value])


def main(arguments: list[str]) -> int:
    path, events = Path(arguments[0]), int(arguments[1])
    total = write_big_trace(path, events, host="--host" in arguments)
    print(total)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
