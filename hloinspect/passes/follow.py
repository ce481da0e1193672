"""A transfer of the last text, followed backwards to the placement that requested it, as far as names and metadata
lead.

Passes rename, wrap and replace instructions and keep no record of it. At least one of these stays the same across a
pass: the name, an array from which the data came, JAX's op_name, the size.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from hloinspect.errors import InputError
from hloinspect.passes.census import Item
from hloinspect.passes.dump import PassText
from hloinspect.passes.ledger import Ledger


@dataclass(frozen=True, slots=True)
class Hop:
    """One form of the item, from ``text`` on.

    ``by`` is what identified it in the text after it, or "" for the last text.
    """

    text: PassText
    item: Item
    by: str


@dataclass(frozen=True, slots=True)
class Trail:
    """The forms of a transfer through the passes. ``hops`` are from the last text backwards.

    ``end`` is the text before which the item is not found, or None where it goes back to the first text. ``lost`` says
    why, or is "" where the trail ends at a placement that existed from the start.
    """

    hops: tuple[Hop, ...]
    end: PassText | None
    lost: str

    @property
    def found(self) -> bool:
        """Return whether the trail ends at a placement or at something that existed from the start."""
        return not self.lost


def item_named(items: Sequence[Item], wanted: str) -> Item:
    """Return the item that has a name, or the one at a number from 1. Raises InputError where there is none."""
    name = wanted.lstrip("%")
    for item in items:
        if name in item.names:
            return item
    if name.isdecimal() and 1 <= int(name[:9]) <= len(items):
        return items[int(name) - 1]
    known = ", ".join(item.name for item in items[:8]) + (", ..." if len(items) > 8 else "")
    raise InputError(
        f"nothing in the last text that moves to or from the host is named {wanted!r}: there are {known or 'none'}"
    )


def follow(ledger: Ledger, wanted: str) -> Trail:
    """Return the trail of a transfer of the last text. Raises InputError where ``wanted`` names none."""
    item = item_named(ledger.last.items, wanted)
    hops: list[Hop] = []
    by = ""
    for change in reversed(ledger.changes):
        at, _ = _same_in(change.after.items, change.after.items, item)
        current = item if at is None else at
        earlier, how = _same_in(change.before.items, change.after.items, current)
        if earlier is None:
            hops.append(Hop(change.text, current, by))
            return Trail(tuple(hops), change.text, how)
        if _differs(current, earlier):
            hops.append(Hop(change.text, current, by))
            by = how
        item = earlier
    hops.append(Hop(ledger.dump.texts[0], item, by))
    return Trail(tuple(hops), None, "")


def _differs(one: Item, other: Item) -> bool:
    """Return whether kind, name or mechanism differ, which a reader of the trail sees."""
    return (one.kind, one.name, one.mechanism) != (other.kind, other.name, other.mechanism)


def _same_in(items: Sequence[Item], peers: Sequence[Item], item: Item) -> tuple[Item | None, str]:
    """Return what ``item``, one of ``peers``, was among ``items``, and what identifies it, or None and the reason."""
    staying = frozenset(peer.name for peer in peers)
    candidates, how = _narrowed(items, item, staying)
    if len(candidates) == 1:
        return candidates[0], how
    if not candidates:
        return None, "nothing there has its name, its values, its metadata or, as the only one, its size"
    fitting = [(peer, _narrowed(items, peer, staying)[0]) for peer in peers if peer.kind == item.kind]
    taken = [found[0] for _, found in fitting if len(found) == 1]
    left = [other for other in candidates if other not in taken]
    if len(left) == 1:
        return left[0], "being the only one left"
    alike = [peer for peer, found in fitting if found == candidates]
    if len(alike) == len(left) and item in alike:
        return left[alike.index(item)], f"the order among {len(alike)} alike"
    return None, f"{len(left)} there are alike, and nothing shows which"


def _narrowed(items: Sequence[Item], item: Item, staying: frozenset[str]) -> tuple[list[Item], str]:
    """Return the items that may be the same, as few as the tests leave, and the test that left only one.

    An item whose name stays in the text is not identified by its size alone.
    """
    candidates = [other for other in items if not item.direction or other.direction in (item.direction, "")]
    passed = False
    for test, how in _TESTS:
        fitting = [other for other in candidates if test(item, other)]
        if test is _same_size:
            fitting = [other for other in fitting if passed or other.name not in staying]
        if test is _values_meet and len(fitting) > 1:
            nearest = min(_distance(item, other) for other in fitting)
            fitting = [other for other in fitting if _distance(item, other) == nearest]
        if len(fitting) == 1:
            return fitting, f"{how} {_common(item, fitting[0])}" if test is _values_meet else how
        if fitting:  # several: the next test selects among them
            candidates, passed = fitting, True
    return (candidates if passed else []), ""


def _same_name(one: Item, other: Item) -> bool:
    return one.name == other.name


def _values_meet(one: Item, other: Item) -> bool:
    return not {*one.names, *one.values}.isdisjoint((*other.names, *other.values))


def _distance(one: Item, other: Item) -> int:
    """Return the number of steps of both from the nearest value that they share."""
    mine, theirs = [*one.names, *one.values], [*other.names, *other.values]
    return min(place + theirs.index(name) for place, name in enumerate(mine) if name in theirs)


def _same_metadata(one: Item, other: Item) -> bool:
    return bool(one.op_name) and (one.op_name, one.place) == (other.op_name, other.place)


def _same_size(one: Item, other: Item) -> bool:
    return one.bytes == other.bytes


_TESTS: tuple[tuple[Callable[[Item, Item], bool], str], ...] = (
    (_same_name, "its name"),
    (_values_meet, "the value"),
    (_same_metadata, "its op_name and line"),
    (_same_size, "its size, no other has it"),
)


def _common(one: Item, other: Item) -> str:
    theirs = {*other.names, *other.values}
    return next(name for name in (*one.names, *one.values) if name in theirs)
