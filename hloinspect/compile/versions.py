"""Versions of JAX: how they compare, and which of them copy slices of host memory wrong."""

from __future__ import annotations

import re

SLICES_RIGHT_SINCE = (0, 11, 1)
"""The first jax that copies every slice of a pipelined loop from and to its own place. From 0.8.2 to 0.10.1 each
iteration's copy has the place of the next one; in 0.10.2 and 0.11.0 the copies back of every scan go through the layers
in the wrong order (HLO301)."""

RESULTS_PLACED_SINCE = (0, 10)
"""From here on XLA's compile-only GPU executables say where their results are (``get_output_shardings``)."""

SCANS_WRONG_SINCE = (0, 10, 2)
"""From here until ``SLICES_RIGHT_SINCE`` scans are wrong without pipelining too."""

_WRONG_SCANS = "0.10.2 or 0.11.0"

BUT_NOT = f", but not {_WRONG_SCANS}, which read wrong slices (HLO301)"
"""What follows "a later jax" wherever that is advised for a step with slices of host memory."""

SCAN_NOT_WITH = f"(not with jax {_WRONG_SCANS}, which read wrong slices: HLO301)"
"""What follows "scan the layers" where nothing shows which jax it is."""

_NUMBERS = re.compile(r"\d+(?:\.\d+)*")
_BEFORE_RELEASE = re.compile(r"\.?(?:dev|a|b|rc)\d")


def release_of(version: str, count: int | None = None) -> tuple[int, ...]:
    """Return the numbers of the release that a version is of, or leads to: 0, 12, 0 of ``0.12.0.dev20261130``. With a
    ``count`` that many of them; empty where the text is no version."""
    found = _NUMBERS.match(version)
    numbers = tuple(int(number) for number in found[0].split(".")) if found else ()
    return numbers if count is None or not numbers else (numbers + (0,) * count)[:count]


def comparable(version: str) -> tuple[int, ...]:
    """Return three numbers by which versions are older or newer; empty where the text is no version. A version in
    front of a release (``dev``, ``a``, ``b``, ``rc``) is older than it: nothing shows that it has all of that."""
    numbers, found = release_of(version, 3), _NUMBERS.match(version)
    if found is None or not _BEFORE_RELEASE.match(version, found.end()):
        return numbers
    return (*numbers[:-1], numbers[-1] - 1)


def o1_pipelines(version: tuple[int, ...]) -> bool:
    """Return whether optimization level O1 has XLA pipeline host transfers in this version of jax."""
    return (0, 8, 2) <= version <= (0, 9, 0) or version >= (0, 11, 0)
