"""Results of a measurement: figures with the evidence for them, and what was left out and why."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

D2H_RATE = "link.d2h_bytes_per_s"
H2D_RATE = "link.h2d_bytes_per_s"
DUPLEX = "link.duplex_factor"
LATENCY = "link.latency_us"
MATMUL = "matmul_efficiency"
RATES = {"d2h": D2H_RATE, "h2d": H2D_RATE}
KEYS = (D2H_RATE, H2D_RATE, DUPLEX, LATENCY, MATMUL)
"""The figures of a target that a trace can give, by their keys in the target's TOML (docs/targets.md)."""


@dataclass(frozen=True, slots=True)
class MeasuredFigure:
    """One figure of a target: a median, with the tenth and ninetieth percentile as ``low`` and ``high``.

    It rests on ``count`` copies, or executions of products; ``what`` describes these in words.
    """

    key: str
    value: float
    low: float
    high: float
    count: int
    what: str


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A figure that the trace does not give, and why."""

    key: str
    reason: str


@dataclass(frozen=True, slots=True)
class Measurement:
    """The results of one part of a trace. ``notes`` are worth reading but change no figure."""

    figures: tuple[MeasuredFigure, ...] = ()
    left: tuple[LeftOut, ...] = ()
    notes: tuple[str, ...] = ()


def weighted_percentiles(values: Floats, weights: Floats, shares: tuple[float, ...]) -> tuple[float, ...]:
    """Return the values below which these shares of the weight lie. With equal weights they are the usual lower
    percentiles."""
    order = np.argsort(values, kind="stable")
    reached = np.cumsum(weights[order])
    places = np.searchsorted(reached, np.array(shares) * reached[-1] * (1 - 1e-12))
    return tuple(float(values[order[min(place, len(order) - 1)]]) for place in places)
