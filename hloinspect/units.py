"""Text of sizes and times, for people."""

from __future__ import annotations

from collections.abc import Sequence

PS_PER_MS = 1e9

_BYTE_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


def bytes_text(size: int) -> str:
    """Return a size in bytes as text with three digits and a binary unit, such as ``512 MiB``."""
    value, unit = float(size), 0
    while value >= 1024 and unit < len(_BYTE_UNITS) - 1:
        value, unit = value / 1024, unit + 1
    return f"{value:.0f} {_BYTE_UNITS[unit]}" if value >= 100 or unit == 0 else f"{value:.3g} {_BYTE_UNITS[unit]}"


def bytes_texts(one: int, other: int) -> tuple[str, str]:
    """Return the texts of two sizes that are compared, in bytes if the sizes differ but their short texts are equal."""
    texts = bytes_text(one), bytes_text(other)
    return (f"{one:,} B", f"{other:,} B") if one != other and texts[0] == texts[1] else texts


def listed(items: Sequence[object], most: int) -> str:
    """Return ``a, b and 3 more``: the first of them, and how many there are besides."""
    shown = ", ".join(map(str, items[:most]))
    return shown if len(items) <= most else f"{shown} and {len(items) - most} more"


def time_text(milliseconds: float) -> str:
    """Return a time in milliseconds as text with about three digits: ``2.4 ms``, ``1.4 us``, ``3 ns`` or ``14.83
    s``."""
    if milliseconds >= 10_000:
        return f"{milliseconds / 1e3:.2f} s"
    if milliseconds >= 100:
        return f"{milliseconds:.0f} ms"
    if milliseconds >= 0.1:
        return f"{milliseconds:.3g} ms"
    if milliseconds >= 1e-3:
        return f"{milliseconds * 1e3:.3g} us"
    return f"{milliseconds * 1e6:.3g} ns" if milliseconds > 0 else "0 ms"
