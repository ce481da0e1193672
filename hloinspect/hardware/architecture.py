"""What GPUs of one architecture, and domains of one interconnect, have in common.

The figures are those of ``architectures/NAME.toml`` and ``fabrics/NAME.toml``. A target's own file may replace some.

They are measured on the target that the file names as ``measured_on``. For another target they are estimates with wider
ranges.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, cast

from hloinspect.decoding import parse_toml, read_text
from hloinspect.hardware.target import Exchange, Figure, Products, Tiling

if TYPE_CHECKING:
    from hloinspect.hardware.document import (
        ExchangeTable,
        FigureTable,
        ProductsTable,
        RangeTable,
        SpreadTable,
        TargetDocument,
    )

_FOLDER = Path(__file__).parent

WIDENING = 1.15
"""The factor by which a figure may differ on a target that nobody has measured (an estimate)."""

_Read = Callable[["float | FigureTable | SpreadTable"], Figure]


@cache
def common(folder: str, name: str) -> Mapping[str, object]:
    """Return the document of an architecture or of an interconnect."""
    return parse_toml(read_text(_FOLDER / folder / f"{name}.toml"))


def products_of(document: TargetDocument, name: str, read: _Read) -> dict[str, Products]:
    """Return the figures of products by family of types: those of a target's document, then those of its
    architecture. ``read`` makes a figure of a table."""
    found: dict[str, Products] = {
        family: _products(table, read, "") for family, table in document.get("products", {}).items()
    }
    if (architecture := document.get("architecture")) is not None:
        below = common("architectures", architecture)
        for family, table in cast("Mapping[str, ProductsTable]", below["products"]).items():
            if family not in found:
                found[family] = _products(table, read, _other(below, name))
    return found


def exchanges_of(document: TargetDocument, name: str, read: _Read) -> dict[str, Exchange]:
    """Return the figures of collectives by kind: those of a target's document, then those of its interconnect."""
    found: dict[str, Exchange] = {
        kind: _exchange(table, read, "") for kind, table in document.get("exchanges", {}).items()
    }
    if (fabric := document.get("fabric")) is not None:
        below = common("fabrics", fabric)
        for kind, table in cast("Mapping[str, ExchangeTable]", below["exchanges"]).items():
            if kind not in found:
                found[kind] = _exchange(table, read, _other(below, name))
    return found


def sustained_of(document: TargetDocument) -> float | RangeTable | None:
    """Return the share of a short run's clock that is kept in a long step: a target's own, or its architecture's."""
    if "sustained" in document or "architecture" not in document:
        return document.get("sustained")
    return cast("RangeTable", common("architectures", document["architecture"])["sustained"])


def _other(below: Mapping[str, object], name: str) -> str:
    """Return the target that a document was measured on, or "" where it is this one."""
    measured = cast("str", below["measured_on"])
    return "" if measured == name else measured


def _products(table: ProductsTable, read: _Read, measured_on: str) -> Products:
    tiles = tuple(
        (rows, columns, float(share))
        for tile, share in table["tiles"].items()
        for rows, columns in dict.fromkeys((_sides(tile), _sides(tile)[::-1]))
    )
    return Products(
        start_us=_taken(read(table["start_us"]), measured_on),
        gain=_taken(read(table["gain"]), measured_on),
        output=_taken(read(table["output"]), measured_on),
        tiling=_tiling(tiles, table["split_depth"]),
    )


def _sides(tile: str) -> tuple[int, int]:
    rows, _, columns = tile.partition("x")
    return int(rows), int(columns)


@cache
def _tiling(tiles: tuple[tuple[int, int, float], ...], split_depth: int) -> Tiling:
    """Return one object for equal tilings: it is a key of what was computed for it."""
    return Tiling(tiles, split_depth)


def _exchange(table: ExchangeTable, read: _Read, measured_on: str) -> Exchange:
    widening = WIDENING if measured_on else 1.0
    return Exchange(
        latency_us=_taken(read(table["latency_us"]), measured_on),
        member_us=float(table["member_us"]),
        rate=_taken(read(table["rate"]), measured_on),
        few=float(table["few"]),
        ramp_us=float(table["ramp_us"]),
        ramp_bytes=float(table["ramp_bytes"]),
        low=table["low"] / widening,
        high=table["high"] * widening,
        switch_members=table.get("switch_members", 0) if "switch_rate" in table else 0,
        switch_rate=table.get("switch_rate", 0.0),
    )


def _taken(figure: Figure, measured_on: str) -> Figure:
    """Return a figure as one that is taken from another target, with a wider range if it has one."""
    if not measured_on:
        return figure
    source = f"estimate: as the {measured_on}'s, with a wider range"
    if figure.low is None or figure.high is None:
        return Figure(figure.value, source, True)
    return Figure(figure.value, source, True, low=figure.low / WIDENING, high=figure.high * WIDENING)
