"""Builder of traces for tests from a readable description. Every trace is marked as synthetic by its host's name.

    space = TraceBuilder()
    gpu = space.plane("/device:GPU:0", device_vendor="Nvidia")
    stream = gpu.line("Stream #14(MemcpyD2H)", id=14)
    stream.event("MemcpyD2H", 1_000, 2_000_000, memcpy_details="kind_src:device kind_dst:pinned size:64 dest:0 async:1")
    space.write(tmp_path / "host.xplane.pb")

A text is written as a reference into the table of names, as the profiler does for most. ``Text`` writes it in place.
"""

from __future__ import annotations

from pathlib import Path

from hloinspect.profiles.xplane.schema import xplane_pb2 as schema

HOST = "synthetic"


class Text(str):
    """A text that is written in place (str_value) and not as a reference."""


class Unsigned(int):
    """A number that is written as uint64."""


Value = int | float | str | bytes


class LineBuilder:
    """A line. Times of events are picoseconds from the line's timestamp."""

    def __init__(self, plane: PlaneBuilder, line: schema.XLine) -> None:
        self._plane = plane
        self.proto = line

    def event(
        self,
        name: str,
        offset_ps: int,
        duration_ps: int,
        /,
        *,
        display_name: str = "",
        constant: dict[str, Value] | None = None,
        **stats: Value,
    ) -> schema.XEvent:
        """Add an event. ``constant`` are statistics of its kind, which is made at the first event of that name."""
        number = self._plane.kind(name, display_name, **(constant or {}))
        event = self.proto.events.add(metadata_id=number, offset_ps=offset_ps, duration_ps=duration_ps)
        self._plane.add_stats(event.stats, stats)
        return event

    def aggregated(self, name: str, occurrences: int, duration_ps: int) -> None:
        """Add an event that stands for many and has no time of its own."""
        self.proto.events.add(metadata_id=self._plane.kind(name), num_occurrences=occurrences, duration_ps=duration_ps)


class PlaneBuilder:
    """A plane with its tables, which grow as names are used."""

    def __init__(self, plane: schema.XPlane) -> None:
        self.proto = plane
        self._kinds: dict[tuple[str, str], int] = {}
        self._names: dict[str, int] = {}

    def name_id(self, name: str) -> int:
        if name not in self._names:
            self._names[name] = len(self._names) + 1
            entry = self.proto.stat_metadata[self._names[name]]
            entry.id, entry.name = self._names[name], name.encode()
        return self._names[name]

    def kind(self, name: str, display_name: str = "", **constant: Value) -> int:
        key = (name, display_name)
        if key not in self._kinds:
            self._kinds[key] = len(self._kinds) + 1
            entry = self.proto.event_metadata[self._kinds[key]]
            entry.id, entry.name, entry.display_name = self._kinds[key], name.encode(), display_name.encode()
            self.add_stats(entry.stats, constant)
        return self._kinds[key]

    def add_stats(self, stats: object, values: dict[str, Value]) -> None:
        for name, value in values.items():
            stat = stats.add(metadata_id=self.name_id(name))  # type: ignore[attr-defined]
            if isinstance(value, bytes):
                stat.bytes_value = value
            elif isinstance(value, Text):
                stat.str_value = value.encode()
            elif isinstance(value, str):
                stat.ref_value = self.name_id(value)
            elif isinstance(value, float):
                stat.double_value = value
            elif isinstance(value, Unsigned):
                stat.uint64_value = value
            else:
                stat.int64_value = value

    def line(self, name: str, *, id: int = 0, timestamp_ns: int = 0) -> LineBuilder:
        return LineBuilder(self, self.proto.lines.add(name=name.encode(), id=id, timestamp_ns=timestamp_ns))


class TraceBuilder:
    """A whole trace."""

    def __init__(self) -> None:
        self.proto = schema.XSpace(hostnames=[HOST.encode()])

    def plane(self, name: str, *, id: int = 0, **stats: Value) -> PlaneBuilder:
        plane = PlaneBuilder(self.proto.planes.add(name=name.encode(), id=id))
        plane.add_stats(plane.proto.stats, stats)
        return plane

    def warn(self, text: str) -> None:
        self.proto.warnings.append(text.encode())

    def embed(self, name: str, program_id: int, hlo_proto: bytes, *, id_is_stat: bool = True) -> None:
        """Add a module as JAX >= 0.9 does, with its id as a statistic, or as older versions do, in its name and key."""
        plane = next((p for p in self.proto.planes if p.name == b"/host:metadata"), None)
        builder = PlaneBuilder(plane) if plane is not None else self.plane("/host:metadata")
        if id_is_stat:
            key = len(builder.proto.event_metadata) + 1
            stats: dict[str, Value] = {"program_id": Unsigned(program_id), "Hlo Proto": hlo_proto}
            text = name
        else:
            key = program_id - (1 << 64) if program_id >> 63 else program_id
            stats, text = {"Hlo Proto": hlo_proto}, f"{name}({program_id})"
        entry = builder.proto.event_metadata[key]
        entry.id, entry.name = key, text.encode()
        builder.add_stats(entry.stats, stats)

    def bytes(self) -> bytes:
        return self.proto.SerializeToString(deterministic=True)

    def write(self, path: Path) -> Path:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(self.bytes())
        return path
