"""Checkpoint names of transfers, from the manifest, matched by source line, since XLA drops them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from hloinspect.kinds import D2H
from hloinspect.offload.transfers import Offload, Transfer


@dataclass(frozen=True, slots=True)
class OffloadedName:
    """A ``checkpoint_name`` whose value was offloaded, and where that value is computed (None: it is an argument)."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    line: int | None
    column: int | None


_MOST_DIMENSIONS = 12  # the number of possible matches grows with them, and a manifest may have any
_MOST_NAMES = 3
_PREFIXES = {"bfloat": "bf", "float": "f", "uint": "u", "int": "s", "complex": "c"}


def hlo_type_name(dtype: str) -> str:
    """Return HLO's name of a JAX type: ``bf16`` for ``bfloat16``, ``f8e4m3fn`` for ``float8_e4m3fn``."""
    if dtype == "bool":
        return "pred"
    for long, short in _PREFIXES.items():
        if dtype.startswith(long):
            return short + dtype.removeprefix(long).replace("_", "")
    return dtype


def trimmed(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return a shape without its dimensions of one, such as the first dimension of a slice of a stack."""
    return tuple(size for size in shape if size != 1)


def likeness(shape: tuple[int, ...], whole: tuple[int, ...]) -> int:
    """Return how many dimensions are not divided where ``shape`` is one device's part of ``whole``.

    It is -1 where ``shape`` is no such part: then its dimensions are not those of ``whole``, in order, each divided by
    a sharding.
    """
    if len(shape) > len(whole) or len(whole) > _MOST_DIMENSIONS:
        return -1
    if not shape:
        return 0
    found = [likeness(shape, whole[1:])]  # one element of this dimension is here
    if whole[0] % shape[0] == 0:
        rest = likeness(shape[1:], whole[1:])
        found.append(rest + (shape[0] == whole[0]) if rest >= 0 else -1)
    return max(found)


def _fitting(transfer: Transfer, names: Sequence[OffloadedName]) -> list[OffloadedName]:
    """Return the names of the transfer's type whose value it can be one device's part of, only the most similar
    ones."""
    shape = trimmed(transfer.tensor.shape)
    alike = [name for name in names if name.dtype == transfer.tensor.dtype]
    same = [name for name in alike if trimmed(name.shape) == shape]
    if same:
        return same
    scores = [(likeness(shape, trimmed(name.shape)), name) for name in alike]
    best = max((score for score, _ in scores), default=-1)
    return [name for score, name in scores if score == best >= 0]


def _by_line(transfer: Transfer, names: Sequence[OffloadedName]) -> list[str]:
    """Return the names that fit and are computed on the line of the transfer's tensor.

    One line of a library computes many values. Where no name fits (dimensions may be merged), it is all names of the
    line.
    """
    source = transfer.source
    fitting = _fitting(transfer, names) or names
    here = [n.name for n in fitting if source is not None and (n.line, n.column) == (source.line, source.column)]
    return list(dict.fromkeys(here))


def _only(names: Sequence[OffloadedName]) -> str:
    return names[0].name if len({name.name for name in names}) == 1 else ""


def _by_shape(transfer: Transfer, names: Sequence[OffloadedName], placed: Collection[str]) -> str:
    """Return the only name that fits. Where several fit, return the one whose line no other transfer has."""
    fitting = _fitting(transfer, names)
    return _only(fitting) or _only([name for name in fitting if name.name not in placed])


def with_names(offload: Offload, names: Sequence[OffloadedName]) -> Offload:
    """Return the offload with checkpoint names on the transfers that can be identified.

    An H2D takes the name of its round trip.
    """
    sent = [transfer for transfer in offload.transfers if transfer.direction == D2H]
    at_line = {t.id: [t.tensor.name] if t.tensor.name else _by_line(t, names) for t in sent}
    single = {number: some[0] for number, some in at_line.items() if len(some) == 1}
    placed = {name for some in at_line.values() for name in some}
    others = {t.id: set(single.values()) if at_line[t.id] else placed for t in sent}
    return _with(offload, {t.id: single.get(t.id) or _by_shape(t, names, others[t.id]) for t in sent})


def with_alternatives(offload: Offload, names: Sequence[OffloadedName]) -> Offload:
    """Return the offload with ``one or other`` on transfers without a name where two or three similar values share a
    line.

    An example is queries and keys of as many heads, rotated by one function.
    """
    sent = [t for t in offload.transfers if t.direction == D2H and not t.tensor.name]
    at_line = {t.id: _by_line(t, names) for t in sent}
    return _with(offload, {number: " or ".join(some) for number, some in at_line.items() if len(some) <= _MOST_NAMES})


def _with(offload: Offload, found: Mapping[int, str]) -> Offload:
    """Return the offload with these names by number of transfer, also on the transfers that copy these back.

    Names that are known already are kept.
    """
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
