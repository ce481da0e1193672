"""Chrome traces (``*.trace.json.gz``) in the same model of events, for runs whose XSpace was not kept.

The profiler writes at most a million events into a Chrome trace, and drops the others silently (``kMaxEvents`` in tsl's
trace_events_to_json.cc). It writes neither modules nor the plane's statistics. Such a trace is marked as ``capped``.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from hloinspect.errors import InputError
from hloinspect.profiles.xplane.source import map_file
from hloinspect.profiles.xplane.space import (
    INT64,
    STR,
    Columns,
    EventMetadata,
    Line,
    Plane,
    PlaneMetadata,
    StatColumn,
    XSpace,
)

MAX_EVENTS = 1_000_000
MAX_BYTES = 1 << 29
"""Most bytes of an unpacked trace. A million events take about 250 MB."""

_EXPECTED = "expected a Chrome trace (JSON with traceEvents)"
_WHOLE_DIGITS = 18
_Event = dict[str, Any]


def open_chrome_trace(path: str | Path) -> XSpace:
    """Return the trace in a Chrome JSON file, plain or gzipped. Raises InputError.

    Processes become planes, and threads lines. Arguments become statistics, and whole numbers among them integers. The
    kind of an event has the instruction's text as its name (``long_name``), and the displayed name as its display name.
    """
    name = str(path)
    data = map_file(path, name, MAX_BYTES, is_trace=False)
    if len(data) > MAX_BYTES:
        raise InputError(f"{name}: expected a Chrome trace of at most {MAX_BYTES:,} bytes, found {len(data):,}")
    try:
        document = json.loads(bytes(data))
    except (ValueError, RecursionError) as error:
        reason = "nested too deeply" if isinstance(error, RecursionError) else error
        raise InputError(f"{name}: {_EXPECTED}, found other data: {reason}") from None
    events = document.get("traceEvents") if isinstance(document, dict) else document
    if not isinstance(events, list) or not all(isinstance(event, dict) for event in events):
        raise InputError(f"{name}: {_EXPECTED}, found other JSON")
    try:
        planes = _planes(events)
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise InputError(f"{name}: expected a Chrome trace, found an event that is none: {error!r}") from None
    counted = sum(len(line.columns()) for plane in planes for line in plane.lines)
    full = (f"a Chrome trace ends at {MAX_EVENTS:,} events: later ones are missing",) if counted >= MAX_EVENTS else ()
    return XSpace(name, planes, (), full, (), capped=True, kind="chrome")


@dataclass(slots=True)
class _Process:
    name: str = ""
    threads: dict[int, list[_Event]] = field(default_factory=dict)
    names: dict[int, str] = field(default_factory=dict)
    kinds: dict[tuple[str, str], int] = field(default_factory=dict)


def _planes(events: Sequence[_Event]) -> tuple[Plane, ...]:
    processes: dict[int, _Process] = {}
    for event in events:
        phase = event.get("ph")
        if phase not in ("M", "X"):
            continue
        process = processes.setdefault(int(event["pid"]), _Process())
        if phase == "X":
            process.threads.setdefault(int(event["tid"]), []).append(event)
        elif event.get("name") == "process_name":
            process.name = str(event["args"]["name"])
        elif event.get("name") == "thread_name":
            process.names[int(event["tid"])] = str(event["args"]["name"])
    return tuple(_plane(number, process) for number, process in processes.items())


def _plane(number: int, process: _Process) -> Plane:
    lines = []
    for tid in {**process.names, **process.threads}:
        decode = _decoder(process.threads.get(tid, []), process.kinds)
        lines.append(Line(tid, process.names.get(tid, ""), 0, decode))
    kinds = {kind: EventMetadata(kind, long, short, {}) for (short, long), kind in process.kinds.items()}
    return Plane(number, process.name, tuple(lines), lambda: PlaneMetadata(kinds, {}, {}))


def _decoder(events: Sequence[_Event], kinds: dict[tuple[str, str], int]) -> Callable[[Sequence[str]], Columns]:
    arguments = [_arguments(event) for event in events]
    metadata_id = np.zeros(len(events), np.int64)
    for index, (event, own) in enumerate(zip(events, arguments, strict=True)):
        short = str(event.get("name", ""))
        long = own.get("long_name", short)
        metadata_id[index] = kinds.setdefault((short, str(long)), len(kinds) + 1)
    # Microseconds with six decimals are exact to the picosecond for the first two hours.
    start = np.array([round(float(event["ts"]) * 1e6) for event in events], np.int64)
    duration = np.array([round(float(event.get("dur", 0)) * 1e6) for event in events], np.int64)
    usable = duration >= 0

    def decode(stats: Sequence[str]) -> Columns:
        columns = {name: _column([own.get(name) for own in arguments]) for name in stats}
        return Columns(metadata_id, start, start + np.where(usable, duration, 0), usable, columns)

    return decode


def _arguments(event: _Event) -> Mapping[str, object]:
    found = event.get("args", {})
    if not isinstance(found, dict):
        raise TypeError("args is no object")
    return found


def _column(values: Sequence[object]) -> StatColumn:
    kinds, bits = np.zeros(len(values), np.uint8), np.zeros(len(values), np.int64)
    texts: dict[bytes, int] = {}
    for index, value in enumerate(values):
        if value is None:
            continue
        text = str(value)
        digits = text.removeprefix("-")
        if digits.isdecimal() and digits.isascii() and len(digits) <= _WHOLE_DIGITS and str(int(text)) == text:
            kinds[index], bits[index] = INT64, int(text)
        else:
            kinds[index] = STR
            bits[index] = texts.setdefault(text.encode("utf-8", "replace"), len(texts))
    return StatColumn(kinds, bits, tuple(texts), {})
