"""What a target file may hold: its tables as types, with the bounds of every figure.

A built-in target is held to these types by the tests, a user's file when it is read.
"""

from __future__ import annotations

from typing import Annotated, Literal, NotRequired, TypedDict

from hloinspect.decoding import Complete, Fault, Line, Positive, Rule, shown
from hloinspect.hardware.target import LEAST_RATE, MOST_RATE
from hloinspect.kinds import Platform

_LEAST_US = 1e-6
_MOST_US = 1e9
_LEAST_SHARE = 1e-3
_MOST_GAIN = 10.0


class Between(Rule):
    """A figure from ``least`` to ``most``: a number, or a table with a ``value`` and perhaps a ``low`` and a ``high``
    around it."""

    __slots__ = ("least", "most")

    def __init__(self, least: float, most: float) -> None:
        super().__init__()
        self.least, self.most = least, most

    def fault(self, value: object) -> Fault | None:
        """Return what is wrong with a figure."""
        if not isinstance(value, dict):
            return self._of_number("", value)
        numbers = {key: value[key] for key in ("low", "value", "high") if key in value}
        for key, number in numbers.items():
            if found := self._of_number(key, number):
                return found
        if all(_is_number(number) for number in numbers.values()) and [*numbers.values()] != sorted(numbers.values()):
            texts = ", ".join(f"{number:g}" for number in numbers.values())
            return Fault("", f": expected low <= value <= high, found {texts}")
        return None

    def _of_number(self, path: str, number: object) -> Fault | None:
        if not _is_number(number) or self.least <= number <= self.most:  # type: ignore[operator]
            return None
        return Fault(path, f": expected a number from {self.least:g} to {self.most:g}, found {shown(number)}")


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


class FigureTable(TypedDict):
    """A number with its source."""

    value: float
    source: Line
    estimate: NotRequired[bool]
    announced: NotRequired[bool]


class SpreadTable(FigureTable):
    """A number about which sources differ. A prediction's range covers what they say."""

    low: NotRequired[float]
    high: NotRequired[float]


class RangeTable(TypedDict):
    """A share that is known only roughly."""

    low: float
    value: float
    high: float
    source: Line
    estimate: NotRequired[bool]


Rate = Annotated[float | FigureTable, Between(LEAST_RATE, MOST_RATE)]
SpreadRate = Annotated[float | SpreadTable, Between(LEAST_RATE, MOST_RATE)]
Size = Annotated[float | FigureTable, Between(1.0, MOST_RATE)]
TimeUs = Annotated[float | FigureTable, Between(_LEAST_US, _MOST_US)]
Share = Annotated[float | FigureTable, Between(_LEAST_SHARE, 1.0)]
Roughly = Annotated[float | RangeTable, Between(_LEAST_SHARE, 1.0)]

Dtype = Literal[
    "bf16", "f16", "f32", "f64",
    "s4", "s8", "s16", "s32", "u4", "u8", "u16", "u32",
    "f4e2m1fn", "f8e3m4", "f8e4m3", "f8e4m3b11fnuz", "f8e4m3fn", "f8e4m3fnuz", "f8e5m2", "f8e5m2fnuz", "f8e8m0fnu"
]  # fmt: skip
"""Types of matrix products in XLA's spelling (xla_data.proto, PrimitiveType), so that a dtype that is read from HLO
finds its peak."""


Architecture = Literal["hopper", "blackwell"]
"""GPUs that have figures in common: the files of ``architectures``."""

Fabric = Literal["nvlink4", "nvlink5", "nvl72"]
"""Interconnects that have figures in common: the files of ``fabrics``."""

Kind = Literal["all-gather", "reduce-scatter", "all-reduce", "all-to-all", "collective-permute"]
"""Kinds of collectives."""

Tile = Literal["256x256", "256x128", "128x128", "128x64", "64x64"]
"""Tiles of matrix products. They may lie either way."""

Family = Literal["bf16", "f32", "f8"]
"""Families of types whose products are alike."""


class OneOrEach(Rule):
    """Either one figure for both directions, or a table with one for each."""

    __slots__ = ()

    def fault(self, value: object) -> Fault | None:
        """Return which key is missing, or is one too many."""
        if not isinstance(value, dict):
            return Between(_LEAST_SHARE, 1.0).fault(value)
        each = "value" not in value and bool(value.keys() & {"d2h", "h2d"})
        known = ("d2h", "h2d") if each else tuple(FigureTable.__annotations__)
        for key in value:
            if key not in known:
                return Fault("", f": unknown key {shown(key)}; known are {', '.join(known)}", key)
        return Complete(known if each else ("value", "source")).fault(value) or Between(_LEAST_SHARE, 1.0).fault(value)


class DuplexTable(TypedDict, total=False):
    """``value`` and ``source``, or ``d2h`` and ``h2d``."""

    value: float
    source: Line
    estimate: bool
    announced: bool
    d2h: Share
    h2d: Share


class LinkTable(TypedDict):
    """``[link]``: the link between one device and its host."""

    d2h_bytes_per_s: Rate
    h2d_bytes_per_s: Rate
    duplex_factor: Annotated[float | DuplexTable, OneOrEach()]
    latency_us: TimeUs
    sharers: Positive
    efficiency: Roughly
    host_bytes_per_s: NotRequired[Rate]
    host_memory_bytes: NotRequired[Rate]
    host_d2h_bytes_per_s: NotRequired[Rate]
    host_h2d_bytes_per_s: NotRequired[Rate]


class LevelTable(TypedDict):
    """``[[levels]]``: one level of the interconnect."""

    name: Line
    devices: Positive
    bytes_per_s: Rate
    latency_us: TimeUs


class ProductsTable(TypedDict):
    """``[products.<family>]``: what matrix products of a family of types cost."""

    start_us: Annotated[float | SpreadTable, Between(_LEAST_US, _MOST_US)]
    gain: Annotated[float | SpreadTable, Between(_LEAST_SHARE, _MOST_GAIN)]
    output: Annotated[float | FigureTable, Between(_LEAST_SHARE, _MOST_GAIN)]
    split_depth: Positive
    tiles: dict[Tile, Annotated[float, Between(_LEAST_SHARE, 1.0)]]


class ExchangeTable(TypedDict):
    """``[exchanges.<kind>]``: what a kind of collective takes inside one domain."""

    latency_us: TimeUs
    member_us: Annotated[float, Between(0.0, _MOST_US)]
    rate: Share
    few: Annotated[float, Between(0.0, 0.99)]
    ramp_us: Annotated[float, Between(0.0, _MOST_US)]
    ramp_bytes: Annotated[float, Between(1.0, MOST_RATE)]
    low: Annotated[float, Between(_LEAST_SHARE, 1.0)]
    high: Annotated[float, Between(1.0, _MOST_GAIN)]
    switch_members: NotRequired[Positive]
    switch_rate: NotRequired[Annotated[float, Between(_LEAST_SHARE, 1.0)]]


class TargetDocument(TypedDict):
    """A whole target file."""

    title: Line
    platform: Platform
    peak_flops: Annotated[dict[Dtype, SpreadRate], Complete(("bf16",))]
    levels: list[LevelTable]
    vector_flops: Rate
    hbm_bytes: Size
    hbm_bytes_per_s: SpreadRate
    launch_us: TimeUs
    matmul_efficiency: Roughly
    memory_efficiency: Roughly
    name: NotRequired[Line]
    aliases: NotRequired[list[Line]]
    device_names: NotRequired[list[Line]]
    base: NotRequired[Line]
    link: NotRequired[LinkTable]
    xla_target_config: NotRequired[Line]
    xla_topology_name: NotRequired[Line]
    notes: NotRequired[list[Line]]
    collective_efficiency: NotRequired[Roughly]
    multiprocessors: NotRequired[Positive]
    dtype_efficiency: NotRequired[dict[Dtype, Roughly]]
    stand_in: NotRequired[Line]
    devices_per_chip: NotRequired[Positive]
    architecture: NotRequired[Architecture]
    products: NotRequired[dict[Family, ProductsTable]]
    sustained: NotRequired[Roughly]
    fabric: NotRequired[Fabric]
    exchanges: NotRequired[dict[Kind, ExchangeTable]]
