"""Checkpoint names of transfers. XLA drops them, so they come from the compile's manifest and are matched by source
line."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from hloinspect.offload.transfers import D2H, Offload, Transfer


@dataclass(frozen=True, slots=True)
class OffloadedName:
    """A ``checkpoint_name`` whose value was offloaded; where that value is computed (None: it is an argument)."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    line: int | None
    column: int | None


def _trimmed(shape: tuple[int, ...]) -> tuple[int, ...]:
    """A shape without its dimensions of one: a slice of a stack has one in front."""
    return tuple(size for size in shape if size != 1)


def _name_of(transfer: Transfer, names: Sequence[OffloadedName]) -> str:
    """The one name that fits: by the producer's line and column, else by a dtype and shape that only one name has."""
    source, tensor = transfer.source, transfer.tensor
    if source is not None:
        here = [name for name in names if name.line == source.line and name.column == source.column]
        if len({name.name for name in here}) == 1:
            return here[0].name
    alike = [name for name in names if name.dtype == tensor.dtype and _trimmed(name.shape) == _trimmed(tensor.shape)]
    return alike[0].name if len({name.name for name in alike}) == 1 else ""


def with_names(offload: Offload, names: Sequence[OffloadedName]) -> Offload:
    """The same offload with checkpoint names on the transfers that can be told apart; an H2D takes its round trip's
    name."""
    found = {t.id: t.tensor.name or _name_of(t, names) for t in offload.transfers if t.direction == D2H}
    named = [
        replace(
            transfer,
            tensor=replace(
                transfer.tensor,
                name=transfer.tensor.name or found.get(transfer.id) or found.get(transfer.round_trip or 0) or "",
            ),
        )
        for transfer in offload.transfers
    ]
    return replace(offload, transfers=tuple(named))
