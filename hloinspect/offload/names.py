"""Checkpoint names of transfers. XLA drops them, so they come from the compile's manifest and are matched by source
line."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
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


_MOST_DIMENSIONS = 12  # the number of ways to match grows with them, and a manifest may say anything
_MOST_NAMES = 3
_PREFIXES = {"bfloat": "bf", "float": "f", "uint": "u", "int": "s", "complex": "c"}


def hlo_dtype(dtype: str) -> str:
    """HLO's word for one of JAX's: ``bf16`` for ``bfloat16``, ``f8e4m3fn`` for ``float8_e4m3fn``."""
    if dtype == "bool":
        return "pred"
    for long, short in _PREFIXES.items():
        if dtype.startswith(long):
            return short + dtype.removeprefix(long).replace("_", "")
    return dtype


def _trimmed(shape: tuple[int, ...]) -> tuple[int, ...]:
    """A shape without its dimensions of one: a slice of a stack has one in front."""
    return tuple(size for size in shape if size != 1)


def _likeness(shape: tuple[int, ...], whole: tuple[int, ...]) -> int:
    """How many dimensions are whole where ``shape`` is one device's part of ``whole``; -1 where it can be none: its
    dimensions are those of ``whole``, in order, each divided by a sharding."""
    if len(shape) > len(whole) or len(whole) > _MOST_DIMENSIONS:
        return -1
    if not shape:
        return 0
    found = [_likeness(shape, whole[1:])]  # one element of this dimension is here
    if whole[0] % shape[0] == 0:
        rest = _likeness(shape[1:], whole[1:])
        found.append(rest + (shape[0] == whole[0]) if rest >= 0 else -1)
    return max(found)


def _fitting(transfer: Transfer, names: Sequence[OffloadedName]) -> list[OffloadedName]:
    """Names of the transfer's dtype of which it can be one device's part, those that are the most like it."""
    shape = _trimmed(transfer.tensor.shape)
    alike = [name for name in names if name.dtype == transfer.tensor.dtype]
    same = [name for name in alike if _trimmed(name.shape) == shape]
    if same:
        return same
    scores = [(_likeness(shape, _trimmed(name.shape)), name) for name in alike]
    best = max((score for score, _ in scores), default=-1)
    return [name for score, name in scores if score == best >= 0]


def _by_line(transfer: Transfer, names: Sequence[OffloadedName]) -> list[str]:
    """The names that are computed where the transfer's tensor is, of those that fit: a library's line computes many
    things. Where none fits (dimensions may be merged), the names of that line."""
    source = transfer.source
    fitting = _fitting(transfer, names) or names
    here = [n.name for n in fitting if source is not None and (n.line, n.column) == (source.line, source.column)]
    return list(dict.fromkeys(here))


def _only(names: Sequence[OffloadedName]) -> str:
    return names[0].name if len({name.name for name in names}) == 1 else ""


def _by_shape(transfer: Transfer, names: Sequence[OffloadedName], placed: Collection[str]) -> str:
    """The one name that fits, if need be the one of which no other transfer has the line."""
    fitting = _fitting(transfer, names)
    return _only(fitting) or _only([name for name in fitting if name.name not in placed])


def with_names(offload: Offload, names: Sequence[OffloadedName]) -> Offload:
    """The same offload with checkpoint names on the transfers that can be told apart; an H2D takes its round trip's
    name."""
    sent = [transfer for transfer in offload.transfers if transfer.direction == D2H]
    at_line = {t.id: [t.tensor.name] if t.tensor.name else _by_line(t, names) for t in sent}
    single = {number: some[0] for number, some in at_line.items() if len(some) == 1}
    placed = {name for some in at_line.values() for name in some}
    others = {t.id: set(single.values()) if at_line[t.id] else placed for t in sent}
    return _with(offload, {t.id: single.get(t.id) or _by_shape(t, names, others[t.id]) for t in sent})


def with_alternatives(offload: Offload, names: Sequence[OffloadedName]) -> Offload:
    """The same with ``one or other`` on transfers that have no name yet, where two or three that are alike are computed
    on one line: queries and keys of as many heads, rotated by one function."""
    sent = [t for t in offload.transfers if t.direction == D2H and not t.tensor.name]
    at_line = {t.id: _by_line(t, names) for t in sent}
    return _with(offload, {number: " or ".join(some) for number, some in at_line.items() if len(some) <= _MOST_NAMES})


def _with(offload: Offload, found: Mapping[int, str]) -> Offload:
    """With these names, by number of transfer, on transfers that have none, and on what comes back of them."""
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
