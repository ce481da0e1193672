"""Matrix products on a GPU: the share of the device that their tiles fill.

A product is cut into tiles, and the tiles go to the multiprocessors in waves. A product with fewer tiles than there are
multiprocessors, or a few more, leaves some of them idle. A narrow product leaves parts of its tiles empty. That is why
small and narrow products reach a fraction of the peak that large ones reach (docs/accuracy.md compares it with
cuBLASLt's).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from math import ceil, inf

from hloinspect.hardware.target import Tiling

SPLITS = (1, 2, 4, 8)
"""The contracted side may be cut into so many pieces, to make more tiles."""

USUAL = Tiling(
    (
        (256, 128, 1.0), (128, 256, 1.0), (128, 128, 0.95), (128, 64, 0.8), (64, 128, 0.8), (64, 64, 0.6),
    ),
    1024,
)  # fmt: skip
"""For targets that name no tiles: what libraries choose from, with the share of a large tile's rate that each reaches
(estimates: a smaller tile loads more operands for each product)."""


@dataclass(frozen=True, slots=True)
class Product:
    """A batch of ``count`` products ``[rows, depth] x [depth, columns]``."""

    count: int
    rows: int
    columns: int
    depth: int

    @property
    def flops(self) -> float:
        """Return the floating-point operations of all of them."""
        return 2.0 * self.count * self.rows * self.columns * self.depth

    def result_bytes(self, dtype: str) -> int:
        """Return the bytes of the results of operands of a type. Those of a byte have results of two."""
        return self.count * self.rows * self.columns * (4 if dtype == "f32" else 2)


@lru_cache(maxsize=4096)
def fill(product: Product, multiprocessors: int, tiling: Tiling = USUAL) -> float:
    """Return the share of a device's multiprocessors that a product keeps at work, 0 to 1, with the best choice of
    tile."""
    if not product.flops:
        return 1.0
    fewest = inf
    for rows, columns, rate in tiling.tiles:
        tiles = product.count * ceil(product.rows / rows) * ceil(product.columns / columns)
        for pieces in SPLITS:
            if pieces > 1 and product.depth < pieces * tiling.split_depth:
                break
            waves = ceil(tiles * pieces / multiprocessors)
            fewest = min(fewest, waves * rows * columns * product.depth / pieces / rate)
    return min(1.0, product.flops / 2 / multiprocessors / fewest)
