"""The compiled modules in a trace: ``/host:metadata`` has the optimized, scheduled HloProto of each."""

from __future__ import annotations

import re
from collections.abc import Mapping

from hloinspect.profiles.xplane.space import EventMetadata, XSpace
from hloinspect.profiles.xplane.wire import signed

PLANE = "/host:metadata"
HLO_PROTO = "Hlo Proto"
HLO_TEXT = "Hlo Text"
"""Name of the statistic that `hloinspect --format xplane` writes for a module read from text: gzipped HLO text."""

PREDICTION_HOST = "hloinspect-prediction"
"""Host name in profiles that `hloinspect --format xplane` writes. Nothing in them was measured."""

PROGRAM_ID = "program_id"
_NUMBERED = re.compile(r"\((\d{1,20})\)$")


def embedded_modules(space: XSpace) -> Mapping[int, bytes]:
    """Return the serialized HloProtos by program id, a signed 64-bit number (as in the column ``program_id`` of
    events).

    A value may be gzipped HLO text instead (``HLO_TEXT``). ``load_module_bytes`` reads both.

    There are two layouts. Since JAX 0.9 ``program_id`` is a statistic beside the proto. Before, the name ends in it
    (``jit_f(12190760917235803885)``: unsigned). The table's own key is a running number in one of them, and is not
    used. Entries without a proto (symbol maps of a TPU) and without an id are skipped.
    """
    found: dict[int, bytes] = {}
    for plane in space.planes:
        if plane.name != PLANE:
            continue
        for kind in plane.events.values():
            proto = kind.stats.get(HLO_PROTO) or kind.stats.get(HLO_TEXT)
            number = program_id_of(kind)
            if isinstance(proto, bytes) and number is not None:
                found[number] = proto
    return found


def program_id_of(kind: EventMetadata) -> int | None:
    """Return the program id of an entry of ``/host:metadata`` or of a kind of event, or None where it has none."""
    stated = kind.stats.get(PROGRAM_ID)
    if isinstance(stated, int):
        return signed(stated)
    numbered = _NUMBERED.search(kind.name)
    return signed(int(numbered[1])) if numbered else None


def program_names(space: XSpace) -> dict[int, str]:
    """Return the names of the programs' modules by program id, as ``/host:metadata`` has them."""
    kinds = (kind for plane in space.planes if plane.name == PLANE for kind in plane.events.values())
    found = ((program_id_of(kind), kind.name.partition("(")[0]) for kind in kinds)
    return {number: name for number, name in found if number is not None}


def versions_of(space: XSpace) -> dict[str, str]:
    """Return ``jax`` and ``jaxlib`` with their versions, which JAX writes since 0.9."""
    found = {}
    for plane in space.planes:
        for package in ("jax", "jaxlib") if plane.name == PLANE else ():
            version = plane.stats.get(f"{package}_version")
            if isinstance(version, str):
                found[package] = version
    return found
