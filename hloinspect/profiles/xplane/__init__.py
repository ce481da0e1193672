"""Reader of profiler traces. numpy is imported here, so only commands that read a trace import it."""

from __future__ import annotations

from hloinspect.profiles.xplane.embedded import embedded_modules
from hloinspect.profiles.xplane.find import find_xplanes, host_of
from hloinspect.profiles.xplane.read import open_xspace
from hloinspect.profiles.xplane.space import Columns, EventMetadata, Line, Plane, StatColumn, XSpace

__all__ = [
    "Columns",
    "EventMetadata",
    "Line",
    "Plane",
    "StatColumn",
    "XSpace",
    "embedded_modules",
    "find_xplanes",
    "host_of",
    "open_xspace",
]
