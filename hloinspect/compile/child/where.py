"""The user's line of an error of the compiler, which names instructions and not lines (run in the child process).

XLA's texts have at most the ``op_name`` of an instruction or the target of a custom call; the StableHLO that was
compiled has the lines of both. An error about host memory is about what the step requests of it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from hloinspect.kinds import D2H
from hloinspect.placements.flow import Place, Placements, placements_from_json
from hloinspect.placements.stablehlo import Locations

MOST_LINES = 3

_OP_NAME = re.compile(r'op_name="([^"]+)"')
_TARGET = re.compile(r"(?:FFI handler registered for|Custom emitter for|custom call target '?)\s*([\w.$]+)")
_RETURNED = re.compile(r"\bE1200\b|moved to host .*returned from the entry computation", re.DOTALL)
_HOST = re.compile(r"S\(5\)|to host|host memory|host-call|host offload", re.IGNORECASE)
_SLICED = re.compile(r"Expected instruction to have shape equal to .*dynamic-slice", re.DOTALL)


def lines_of(message: str, stablehlo: str, requested: Mapping[str, object]) -> list[str]:
    """Return ``file:line, in function`` of what an error is about, at most three; none where nothing shows it.
    ``requested`` is what the jaxpr requests of host memory (compile/child/audit.py), empty where that is not known."""
    locations = Locations(stablehlo)
    places = [place for name in _OP_NAME.findall(message) for place in locations.of_operation(name)]
    places += [place for target in _TARGET.findall(message) for place in locations.of_custom_call(target)]
    if not places and requested and (_HOST.search(message) or _SLICED.search(message) or _RETURNED.search(message)):
        places = list(_requesting(placements_from_json(requested), returned=bool(_RETURNED.search(message))))
    found = list(dict.fromkeys((place.file, place.line, place.function) for place in places))
    return [f"{file}:{line}, in {function}" if function else f"{file}:{line}" for file, line, function in found][
        :MOST_LINES
    ]


def _requesting(placements: Placements, returned: bool) -> Iterable[Place]:
    """Return the lines that request host memory; of what is returned from there where that is the error."""
    requests = [request for request in placements.requests if request.live]
    if returned and any(request.result is not None for request in requests):
        requests = [request for request in requests if request.direction == D2H and request.result is not None]
    return (place for request in requests if (place := request.place or request.made) is not None)
