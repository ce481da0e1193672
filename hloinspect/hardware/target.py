"""What a step is judged for: the figures of one accelerator, each with its source."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import exp
from typing import Final, Literal

from hloinspect.kinds import Platform

LEAST_RATE: Final = 1e6
MOST_RATE: Final = 1e24
"""Bytes or operations a second of anything that is hardware: what is slower takes longer than can be counted."""

Side = Literal["low", "value", "high"]


@dataclass(frozen=True, slots=True)
class Figure:
    """One number with the place it comes from. ``estimate`` is true where no vendor has published it, ``announced``
    where a vendor has, of hardware that nobody has measured in public. ``low`` and ``high`` are set where public
    sources differ: ``0 < low <= value <= high``."""

    value: float
    source: str
    estimate: bool = False
    announced: bool = False
    low: float | None = None
    high: float | None = None

    def at(self, side: Side) -> float:
        """Return the lowest or highest of what sources say, or the value; all are the same where they agree."""
        if side == "low" and self.low is not None:
            return self.low
        return self.high if side == "high" and self.high is not None else self.value


@dataclass(frozen=True, slots=True)
class Range:
    """A share known only roughly: ``0 < low <= value <= high <= 1``. The rest is as in :class:`Figure`."""

    low: float
    value: float
    high: float
    source: str
    estimate: bool = False


@dataclass(frozen=True, slots=True)
class HostLink:
    """The link between one device and its host, bytes a second for one device.

    Each direction's rate is that of one device alone. ``d2h_duplex`` and ``h2d_duplex`` (0 to 1) are the shares of it
    that are left while both run. ``latency_us`` is spent on every copy before its bytes move. ``sharers`` devices use
    one host memory together: ``host_memory_bytes``, ``host_bytes_per_s`` (reads and writes summed), and where one
    direction alone is held to less than that, ``host_d2h_bytes_per_s`` and ``host_h2d_bytes_per_s``; None: not known or
    not binding.
    """

    d2h_bytes_per_s: Figure
    h2d_bytes_per_s: Figure
    d2h_duplex: Figure
    h2d_duplex: Figure
    latency_us: Figure
    sharers: int
    host_bytes_per_s: Figure | None
    host_memory_bytes: Figure | None
    efficiency: Range  # share of the link's rate that a large copy reaches
    host_d2h_bytes_per_s: Figure | None = None
    host_h2d_bytes_per_s: Figure | None = None

    @property
    def duplex_factor(self) -> Figure:
        """Return the mean of both directions' shares."""
        d2h, h2d = self.d2h_duplex, self.h2d_duplex
        return Figure((d2h.value + h2d.value) / 2, d2h.source, d2h.estimate or h2d.estimate)


@dataclass(frozen=True, slots=True)
class Level:
    """One level of the interconnect: up to ``devices`` devices exchange ``bytes_per_s`` each, in each direction."""

    name: str
    devices: int
    bytes_per_s: Figure
    latency_us: Figure


@dataclass(frozen=True, slots=True, eq=False)
class Tiling:
    """How matrix products are cut: into tiles of (rows, columns, share of the fastest tile's rate), and along their
    depth into pieces of at least ``split_depth``. Each is a key of its own."""

    tiles: tuple[tuple[int, int, float], ...]
    split_depth: int


@dataclass(frozen=True, slots=True)
class Products:
    """What matrix products of one family of types cost on a GPU besides the peak of its matrix units.

    ``start_us`` is spent on each. ``gain`` is what tiles at work reach in a step over what a product reaches as a whole
    (the matrix efficiency), whose last tiles leave a part of the device idle. Writing the result takes its bytes over
    ``output`` times the memory's bandwidth, in addition.
    """

    start_us: Figure
    gain: Figure
    output: Figure
    tiling: Tiling


@dataclass(frozen=True, slots=True)
class Exchange:
    """What a kind of collective takes inside one domain of the interconnect.

    Its bytes move after ``latency_us``, and ``member_us`` for each member. Their rate is ``rate``, a share of the
    nearest level's. ``few`` over the number of members is lost of that. From ``switch_members`` on the switches add for
    the members, and the bytes move at ``switch_rate``; 0: they do not, or it shows in ``rate``. Up to ``ramp_us`` more
    is spent while the first bytes move: all but 1/e of it on ``ramp_bytes``. Measured times lie between ``low`` and
    ``high`` times the result.
    """

    latency_us: Figure
    member_us: float
    rate: Figure
    few: float
    ramp_us: float
    ramp_bytes: float
    low: float
    high: float
    switch_members: int = 0
    switch_rate: float = 0.0

    def seconds(self, moved: float, members: int, link_bytes_per_s: float, side: Side = "value") -> float:
        """Return the time for the bytes that each member moves. ``side`` is that of the rate: ``low`` is the longest
        time."""
        share = self.rate.value * (1.0 - self.few / members)
        if 0 < self.switch_members <= members:
            share = self.switch_rate
        start = (self.latency_us.value + self.member_us * members) * 1e-6
        ramp = self.ramp_us * 1e-6 * (1.0 - exp(-moved / self.ramp_bytes))
        factor = self.low if side == "high" else self.high if side == "low" else 1.0
        return (start + moved / (link_bytes_per_s * share) + ramp) * factor


FAMILIES: Final[Mapping[str, str]] = {
    "f16": "bf16", "s8": "f8", "f8e4m3fn": "f8", "f8e5m2": "f8", "f8e4m3": "f8", "f8e3m4": "f8", "f4e2m1fn": "f8",
}  # fmt: skip
"""Families of types whose products are alike, where a type is not its own: the key of :attr:`Target.products`."""


@dataclass(frozen=True, slots=True)
class Target:
    """The hardware that a step is compiled and judged for; every figure is of one device.

    ``link`` is None where nobody has published one: predictions then need ``--link``. ``peak_flops`` maps an XLA dtype
    (``bf16``) to dense FLOP/s of the matrix units; ``vector_flops`` is f32 FLOP/s of everything else. ``launch_us`` is
    spent between two kernels. ``levels`` goes from the nearest (NVLink domain, ICI) to the farthest (network).
    ``multiprocessors`` run the tiles of a matrix product side by side; None: its tiles are not counted.
    ``dtype_efficiency`` holds the matrix efficiency of types that differ from ``matmul_efficiency``. ``stand_in`` names
    the device that ``xla_target_config`` describes where it is not this one, of which XLA has no description.
    ``products`` has what products cost in detail, by family of types (:data:`FAMILIES`); none: they take a launch.
    ``exchanges`` has what collectives take inside the nearest level by kind; none: they take its latency, and their
    bytes the share ``collective_efficiency`` of its rate. ``sustained`` is the share of the clock of short runs that
    products keep in a long step.
    ``devices_per_chip`` is 2 where JAX has a device for each core of a TPU's chip, whose topologies count chips.
    ``aliases`` are other names of the target, ``device_names`` what drivers and profilers call the device.
    """

    name: str
    title: str
    platform: Platform
    peak_flops: dict[str, Figure]
    vector_flops: Figure
    hbm_bytes: Figure
    hbm_bytes_per_s: Figure
    launch_us: Figure
    link: HostLink | None
    levels: tuple[Level, ...]
    matmul_efficiency: Range
    memory_efficiency: Range
    collective_efficiency: Range
    xla_target_config: str | None  # file in hardware/target_configs, or an absolute path; GPU only
    xla_topology_name: str | None  # e.g. "v6e:2x2" (smallest topology that compiles), TPU only
    notes: tuple[str, ...]
    multiprocessors: int | None = None
    dtype_efficiency: Mapping[str, Range] = field(default_factory=dict)
    stand_in: str | None = None
    devices_per_chip: int = 1
    products: Mapping[str, Products] = field(default_factory=dict)
    sustained: Range | None = None
    exchanges: Mapping[str, Exchange] = field(default_factory=dict)
    aliases: tuple[str, ...] = ()
    device_names: tuple[str, ...] = ()
