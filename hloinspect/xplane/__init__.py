"""Reader of profiler traces. numpy is imported here, and so by nobody who does not read a trace."""

from __future__ import annotations

from hloinspect.xplane.embedded import embedded_modules
from hloinspect.xplane.find import find_xplanes, host_of
from hloinspect.xplane.read import open_trace, open_xspace
from hloinspect.xplane.space import Columns, EventMetadata, Line, Plane, StatColumn, XSpace

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
    "open_trace",
    "open_xspace",
]
