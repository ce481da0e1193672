"""What GPUs of one architecture have in common: the figures of ``architectures/NAME.toml``. A target's own file may
replace some of them.

They are measured on the target that the file names as ``measured_on``. For another target of the architecture they are
estimates with wider ranges.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, cast

from hloinspect.decoding import parse_toml, read_text
from hloinspect.hardware.target import Figure, Products, Tiling

if TYPE_CHECKING:
    from hloinspect.hardware.document import ProductsTable, TargetDocument

_FOLDER = Path(__file__).parent / "architectures"

WIDENING = 1.15
"""The factor by which a figure may differ on a target of the architecture that nobody has measured (an estimate)."""


@cache
def common(architecture: str) -> Mapping[str, object]:
    """Return the document of an architecture."""
    return parse_toml(read_text(_FOLDER / f"{architecture}.toml"))


def with_architecture(document: TargetDocument, name: str) -> tuple[TargetDocument, str]:
    """Return a target's document with the tables of its architecture that it does not have itself, and the target that
    those were measured on, or "" where it is this one."""
    architecture = document.get("architecture")
    if architecture is None:
        return document, ""
    below = common(architecture)
    measured = cast("str", below["measured_on"])
    shared = {key: value for key, value in below.items() if key != "measured_on"}
    merged = shared | cast("dict[str, object]", document)
    if "products" in document:
        merged["products"] = cast("dict[str, object]", below.get("products", {})) | document["products"]
    return cast("TargetDocument", merged), "" if name == measured else measured


def products_of(table: ProductsTable, figures: Mapping[str, Figure], measured_on: str) -> Products:
    """Return the figures of a family of types from its table. ``measured_on`` names another target that they are of, or
    is ""."""
    tiles = tuple(
        (rows, columns, float(share))
        for tile, share in table["tiles"].items()
        for rows, columns in dict.fromkeys((_sides(tile), _sides(tile)[::-1]))
    )
    return Products(
        start_us=_taken(figures["start_us"], measured_on),
        gain=_taken(figures["gain"], measured_on),
        output=_taken(figures["output"], measured_on),
        tiling=_tiling(tiles, table["split_depth"]),
    )


def _sides(tile: str) -> tuple[int, int]:
    rows, _, columns = tile.partition("x")
    return int(rows), int(columns)


@cache
def _tiling(tiles: tuple[tuple[int, int, float], ...], split_depth: int) -> Tiling:
    """Return one object for equal tilings: it is a key of what was computed for it."""
    return Tiling(tiles, split_depth)


def _taken(figure: Figure, measured_on: str) -> Figure:
    """Return a figure as one that is taken from another target, with a wider range."""
    if not measured_on:
        return figure
    low, high = figure.at("low") / WIDENING, figure.at("high") * WIDENING
    return Figure(figure.value, f"estimate: as the {measured_on}'s, with a wider range", True, low=low, high=high)
