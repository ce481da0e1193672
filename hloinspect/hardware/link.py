"""``--link``: the host link as the user measured or knows it, in place of the target's."""

from __future__ import annotations

import math
import re
from dataclasses import replace

from hloinspect.errors import TargetError
from hloinspect.hardware.target import LEAST_RATE, MOST_RATE, Figure, HostLink, Range, Target

_BYTES_PER_S = {
    "B/s": 1.0,
    "KB/s": 1e3,
    "MB/s": 1e6,
    "GB/s": 1e9,
    "TB/s": 1e12,
    "KiB/s": 2.0**10,
    "MiB/s": 2.0**20,
    "GiB/s": 2.0**30,
    "TiB/s": 2.0**40,
}
# Case counts: Gb/s would be bits, and a factor of eight is what this tool is there to find.
_RATE = re.compile(r"(?P<number>\d+(?:\.\d*)?(?:[eE][+-]?\d+)?)\s*(?P<unit>[A-Za-z]+/s)")
_EXPECTED = "expected a rate for both directions, such as 225GB/s, or d2h=170GB/s,h2d=415GB/s"


def with_link(target: Target, spec: str) -> Target:
    """Return ``target`` with its host link's rates replaced by ``spec``: ``225GB/s`` or ``d2h=170GB/s,h2d=415GB/s``.

    Rates are bytes a second of one device, each direction alone. A rate given here is taken as reached, so the link's
    efficiency becomes 1.0, and the host's memory is taken to keep up with it. What ``spec`` does not speak of (duplex
    factor, latency, sharers) stays as it is; where the target has no link at all, it is full duplex, 10 us and not
    shared, and marked as an estimate.

    Raises TargetError for anything else: another unit, one direction only, zero, negative or not finite.
    """
    d2h, h2d = rates_of(spec)
    source = f"given by --link {spec.strip()}"
    link = target.link or _bare_link(source)
    host = link.host_bytes_per_s
    if host is not None and host.value < max(d2h, h2d):
        host = Figure(max(d2h, h2d), source)
    return replace(
        target,
        link=replace(
            link,
            d2h_bytes_per_s=Figure(d2h, source),
            h2d_bytes_per_s=Figure(h2d, source),
            host_bytes_per_s=host,
            host_d2h_bytes_per_s=None,
            host_h2d_bytes_per_s=None,
            efficiency=Range(1.0, 1.0, 1.0, source),
        ),
    )


def rates_of(spec: str) -> tuple[float, float]:
    """Return the rates (d2h, h2d) in bytes a second. Raises TargetError."""
    if "=" not in spec:
        rate = _rate(spec, spec)
        return rate, rate
    rates: dict[str, float] = {}
    for part in spec.split(","):
        direction, _, text = (piece.strip() for piece in part.partition("="))
        if direction not in ("d2h", "h2d"):
            raise TargetError(f"--link {spec!r}: {direction!r} is not a direction; {_EXPECTED}")
        if direction in rates:
            raise TargetError(f"--link {spec!r}: {direction} is given twice; {_EXPECTED}")
        rates[direction] = _rate(text, spec)
    missing = {"d2h", "h2d"} - rates.keys()
    if missing:
        raise TargetError(f"--link {spec!r}: {missing.pop()} is missing; {_EXPECTED}")
    return rates["d2h"], rates["h2d"]


def _rate(text: str, spec: str) -> float:
    match = _RATE.fullmatch(text.strip())
    if match is None:
        raise TargetError(f"--link {spec!r}: {text.strip()!r} is not a rate; {_EXPECTED}")
    scale = _BYTES_PER_S.get(match["unit"])
    if scale is None:
        units = ", ".join(_BYTES_PER_S)
        raise TargetError(f"--link {spec!r}: {match['unit']!r} is not a unit of bytes a second; use one of {units}")
    rate = float(match["number"]) * scale
    if rate <= 0 or not math.isfinite(rate):
        raise TargetError(f"--link {spec!r}: a rate must be above zero and finite")
    if not LEAST_RATE <= rate <= MOST_RATE:
        raise TargetError(f"--link {spec!r}: a rate must be {LEAST_RATE:g} to {MOST_RATE:g} bytes a second")
    return rate


def _bare_link(source: str) -> HostLink:
    """Return a link of which only the rates are known: what prediction needs besides is estimated."""
    duplex = Figure(1.0, "estimate: taken as full duplex, since the target has no published link", True)
    return HostLink(
        d2h_bytes_per_s=Figure(1.0, source),
        h2d_bytes_per_s=Figure(1.0, source),
        d2h_duplex=duplex,
        h2d_duplex=duplex,
        latency_us=Figure(10.0, "estimate: start-up of a host copy", True),
        sharers=1,
        host_bytes_per_s=None,
        host_memory_bytes=None,
        efficiency=Range(1.0, 1.0, 1.0, source),
    )
