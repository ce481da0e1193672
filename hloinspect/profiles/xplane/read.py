"""Opening a trace: an XSpace (``*.xplane.pb``, also gzipped), read in place.

The file is mapped, not read. Opening it goes over its planes, lines and tables without decoding them. That takes
milliseconds, and finds a file that is truncated or of another kind.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from google.protobuf.message import DecodeError

from hloinspect.errors import InputError
from hloinspect.profiles.xplane.columns import line_columns
from hloinspect.profiles.xplane.schema import xplane_pb2 as schema
from hloinspect.profiles.xplane.source import EXPECTED, map_file, refuse
from hloinspect.profiles.xplane.space import Columns, EventMetadata, Line, Plane, PlaneMetadata, StatValue, XSpace
from hloinspect.profiles.xplane.wire import BYTES, VARINT, Buffer, WireError, fields, signed

_ABSOLUTE_NS = 1 << 51  # 26 days: longer than any session, and earlier than any UNIX time
_MOJIBAKE = b"\xef\xbf\xbd"


def open_xspace(path: str | Path) -> XSpace:
    """Return the trace in a file. A gzipped file is found by its content, not its name, and unpacked.

    Raises InputError, in one line that begins with the file's name, for a file that is missing, truncated or no trace.
    Damage inside a line or a table is found when that is read, and raises InputError too.
    """
    name = str(path)
    data = map_file(path, name)
    with _named(name, data):
        return _space(data, name)


@contextmanager
def _named(name: str, data: Buffer) -> Iterator[None]:
    """Raise damage as an InputError with the name of the file, and what the file is if its beginning shows that."""
    try:
        yield
    except (WireError, DecodeError) as error:
        head = data[: 1 << 16]
        if head.count(_MOJIBAKE) > len(head) // 100:
            refuse(name, "bytes that went through a text encoding (U+FFFD all over): copy it again as binary")
        reason = str(error) if isinstance(error, WireError) else "a table of it is damaged"
        raise InputError(f"{name}: {EXPECTED}, but {reason}: an incomplete download or copy, or another file") from None


# ---- planes and lines


@dataclass(slots=True)
class _PlaneParts:
    """Places of a plane's parts in the file, as pairs of start and end."""

    id: int = 0
    name: str = ""
    lines: list[tuple[int, int]] = field(default_factory=list)
    events: list[tuple[int, int]] = field(default_factory=list)
    stat_names: list[tuple[int, int]] = field(default_factory=list)
    stats: list[tuple[int, int]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _LineHead:
    """The fields of a line before its first event, which begins at ``first``."""

    id: int
    name: str
    timestamp_ns: int
    first: int
    end: int


def _space(data: Buffer, name: str) -> XSpace:
    planes: list[_PlaneParts] = []
    texts: dict[int, list[str]] = {2: [], 3: [], 4: []}
    for number, wire, _, start, end in fields(data, 0, len(data)):
        if number > 4:  # a field of a later version
            continue
        if wire != BYTES:
            raise WireError("it has no planes where a trace has them")
        if number == 1:
            planes.append(_plane_parts(data, start, end))
        else:
            texts[number].append(_text(data[start:end]))
    heads = [[_line_head(data, *place) for place in plane.lines] for plane in planes]
    absolute = [head.timestamp_ns for line in heads for head in line if head.timestamp_ns > _ABSOLUTE_NS]
    base_ns = min(absolute, default=0)
    return XSpace(
        path=name,
        planes=tuple(_plane(data, name, plane, own, base_ns) for plane, own in zip(planes, heads, strict=True)),
        errors=tuple(texts[2]),
        warnings=tuple(texts[3]),
        hostnames=tuple(texts[4]),
        base_ns=base_ns,
    )


def _plane_parts(data: Buffer, start: int, end: int) -> _PlaneParts:
    plane = _PlaneParts()
    homes = {3: plane.lines, 4: plane.events, 5: plane.stat_names, 6: plane.stats}
    for number, wire, value, begin, finish in fields(data, start, end):
        if number > 6:
            continue
        if wire != (VARINT if number == 1 else BYTES):
            raise WireError("it has no planes where a trace has them (an HLO proto?)")
        if number == 1:
            plane.id = signed(value)
        elif number == 2:
            plane.name = _text(data[begin:finish])
        else:
            homes[number].append((begin, finish))
    return plane


def _line_head(data: Buffer, start: int, end: int) -> _LineHead:
    """Return the fields of a line before its events. Fields are written in the order of their numbers."""
    number_of, name, timestamp = 0, "", 0
    position = start
    for number, wire, value, begin, finish in fields(data, start, end):
        if number == 4:
            break
        if wire != (BYTES if number in (2, 11) else VARINT):
            raise WireError("a line of it is damaged")
        if number == 1:
            number_of = signed(value)
        elif number == 2:
            name = _text(data[begin:finish])
        elif number == 3:
            timestamp = signed(value)
        position = finish
    return _LineHead(number_of, name, timestamp, position, end)


def _plane(data: Buffer, file: str, parts: _PlaneParts, heads: Sequence[_LineHead], base_ns: int) -> Plane:
    def read_metadata() -> PlaneMetadata:
        with _named(file, data):
            return _metadata(data, parts)

    def decoder(head: _LineHead) -> Callable[[Sequence[str]], Columns]:
        def decode(stats: Sequence[str]) -> Columns:
            names = plane.metadata.stat_names if stats else {}
            since = head.timestamp_ns - (base_ns if head.timestamp_ns > _ABSOLUTE_NS else 0)
            with _named(file, data):
                if abs(since) > _ABSOLUTE_NS:
                    raise WireError(f"line {head.name!r} begins at an impossible time")
                return line_columns(data, head.first, head.end, stats, names, since * 1000)

        return decode

    lines = tuple(Line(head.id, head.name, head.timestamp_ns, decoder(head)) for head in heads)
    plane = Plane(parts.id, parts.name, lines, read_metadata)
    return plane


# ---- tables


def _metadata(data: Buffer, parts: _PlaneParts) -> PlaneMetadata:
    names: dict[int, str] = {}
    for start, end in parts.stat_names:
        entry = schema.XPlane.StatMetadataEntry.FromString(data[start:end])
        names[entry.key] = _text(entry.value.name)
    events: dict[int, EventMetadata] = {}
    for start, end in parts.events:
        kind = schema.XPlane.EventMetadataEntry.FromString(data[start:end])
        value = kind.value
        stats = _stats(value.stats, names)
        events[kind.key] = EventMetadata(kind.key, _text(value.name), _text(value.display_name), stats)
    own = [schema.XStat.FromString(data[start:end]) for start, end in parts.stats]
    return PlaneMetadata(events, names, _stats(own, names))


def _stats(stats: Sequence[schema.XStat], names: dict[int, str]) -> dict[str, StatValue]:
    found: dict[str, StatValue] = {}
    for stat in stats:
        which = stat.WhichOneof("value")
        if which is None:
            continue
        value: StatValue = getattr(stat, which)
        if which == "ref_value":
            value = names.get(stat.ref_value, "")
        elif which == "str_value":
            value = _text(stat.str_value)
        found[names.get(stat.metadata_id, str(stat.metadata_id))] = value
    return found


def _text(data: bytes) -> str:
    return data.decode("utf-8", "replace")
