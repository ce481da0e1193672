"""Builders of an XSpace (xplane.proto): planes with their tables of names and kinds, which grow as they are used."""

from __future__ import annotations

from collections.abc import Mapping

from hloinspect.profiles.xplane.schema import xplane_pb2 as schema

Value = int | float | str | bytes
_SIGNED = frozenset({"group_id", "step_num", "_r", "program_id", "scope_range_id"})
"""Statistics that XLA's profiler writes as int64; other whole numbers are uint64."""


class PlaneBuilder:
    """A plane under construction. Kinds of events and names of statistics are numbered in the order of their first
    use."""

    def __init__(self, plane: schema.XPlane, **stats: Value) -> None:
        self._plane = plane
        self._kinds: dict[tuple[str, str], int] = {}
        self._names: dict[str, int] = {}
        self._stats(plane.stats, stats)

    def line(self, number: int, name: str) -> schema.XLine:
        """Return a new line. Its times are picoseconds from 0."""
        return self._plane.lines.add(id=number, name=name.encode())

    def event(
        self, line: schema.XLine, name: str, start_ps: int, end_ps: int, stats: Mapping[str, Value], kind: int = 0
    ) -> None:
        """Add an event to a line. Its kind is the one of that name, or one that ``kind`` has returned."""
        number = kind or self.kind(name)
        event = line.events.add(metadata_id=number, offset_ps=start_ps, duration_ps=end_ps - start_ps)
        self._stats(event.stats, stats)

    def kind(self, name: str, display_name: str = "", stats: Mapping[str, Value] | None = None) -> int:
        """Return the number of a kind of event. ``stats`` are the statistics of the kind itself."""
        key = (name, display_name)
        if key not in self._kinds:
            self._kinds[key] = len(self._kinds) + 1
            entry = self._plane.event_metadata[self._kinds[key]]
            entry.id, entry.name, entry.display_name = self._kinds[key], _bytes(name), _bytes(display_name)
            self._stats(entry.stats, stats or {})
        return self._kinds[key]

    def _name(self, name: str) -> int:
        if name not in self._names:
            self._names[name] = len(self._names) + 1
            entry = self._plane.stat_metadata[self._names[name]]
            entry.id, entry.name = self._names[name], _bytes(name)
        return self._names[name]

    def _stats(self, stats: object, values: Mapping[str, Value]) -> None:
        for name, value in values.items():
            stat = stats.add(metadata_id=self._name(name))  # type: ignore[attr-defined]
            if isinstance(value, bytes):
                stat.bytes_value = value
            elif isinstance(value, str):
                stat.ref_value = self._name(value)
            elif isinstance(value, float):
                stat.double_value = value
            elif name in _SIGNED:
                stat.int64_value = value
            else:
                stat.uint64_value = value


class SpaceBuilder:
    """An XSpace of one host under construction."""

    def __init__(self, host: str) -> None:
        self._space = schema.XSpace(hostnames=[host.encode()])

    def plane(self, number: int, name: str, **stats: Value) -> PlaneBuilder:
        """Return a new plane."""
        return PlaneBuilder(self._space.planes.add(id=number, name=name.encode()), **stats)

    def bytes(self) -> bytes:
        """Return the content of an ``.xplane.pb``. Equal calls give equal bytes."""
        return self._space.SerializeToString(deterministic=True)


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "replace")
