"""Ledger of what each pass did to placements and transfers, from the texts in order, two in memory at a time."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from hloinspect.errors import HloParseError, InputError
from hloinspect.kinds import D2H, H2D, Direction, ItemKind
from hloinspect.passes.census import KINDS, MOVES, PLACED, Census, census_of, signature
from hloinspect.passes.dump import PassDump, PassText, read_text


@dataclass(frozen=True, slots=True)
class Change:
    """A text whose ``Census`` differs from that of the text before. ``place`` is its index among the dump's texts."""

    place: int
    text: PassText
    before: Census
    after: Census

    @property
    def kinds(self) -> tuple[ItemKind, ...]:
        """Return the kinds whose count or bytes changed. It is empty where instructions were only renamed or moved."""
        return tuple(kind for kind in KINDS if self.before.of(kind) != self.after.of(kind))

    @property
    def on_host_now(self) -> bool:
        """Return whether more of the step computes in host memory or on the host than before."""
        return any(self.delta(kind) > 0 for kind in ("host_copy", "host_mark", "host_compute"))

    def delta(self, *kinds: ItemKind) -> int:
        """Return the increase of the count of these kinds."""
        return sum(self.after.of(kind).count - self.before.of(kind).count for kind in kinds)

    def fewer(self, direction: Direction) -> int:
        """Return by how many fewer instructions request a move in a direction, or make one, than before, or 0."""
        return max(0, self.before.placements(direction) - self.after.placements(direction))

    @property
    def dropped(self) -> dict[Direction, int]:
        """Return by direction how many moves are gone without a replacement.

        There are fewer transfers than before, or the last placement is gone without a transfer. Values that are
        computed in host memory instead do not count, nor do placements of values that are already there.
        """
        if self.on_host_now:
            return {}
        gone: dict[Direction, int] = {
            d: self.fewer(d)
            for d in (D2H, H2D)
            if not self.after.placements(d) or self.after.moves(d) < self.before.moves(d)
        }
        return {direction: count for direction, count in gone.items() if count}


@dataclass(frozen=True, slots=True)
class Ledger:
    """The changes of all texts in order, also those without ``kinds``.

    ``quiet`` is the number of texts in which no count changed. ``read`` is the number of texts that the fast search did
    not decide.
    """

    dump: PassDump
    first: Census
    last: Census
    changes: tuple[Change, ...]
    quiet: int
    read: int

    @property
    def shown(self) -> tuple[Change, ...]:
        """Return the changes of some count."""
        return tuple(change for change in self.changes if change.kinds)


class _Texts:
    """The present text. Its census is read only when it is needed, and once."""

    def __init__(self, text: PassText) -> None:
        self.text = text
        self.raw = read_text(text)
        self.signature = signature(self.raw)
        self._census: Census | None = None
        self.was_read = False

    def census(self) -> Census:
        if self._census is None:
            self.was_read = True
            try:
                self._census = census_of(self.raw)
            except HloParseError as error:
                raise InputError(f"{self.text.path}: {error}") from None
        return self._census


def ledger_of(dump: PassDump, on_progress: Callable[[str], None] | None = None) -> Ledger:
    """Return the ledger of a dump's texts. Raises InputError, with the file's name, where one is damaged."""
    say = on_progress or (lambda message: None)
    before = _Texts(dump.texts[0])
    first = before.census()
    changes: list[Change] = []
    read = 1
    for place, text in enumerate(dump.texts[1:], 1):
        if place % 16 == 0:
            say(f"reading text {place} of {len(dump.texts)}")
        after = _Texts(text)
        if after.signature != before.signature:
            read += (not before.was_read) + 1
            if (old := before.census()) != (new := after.census()):
                changes.append(Change(place, text, old, new))
        before = after
    last = before.census()
    quiet = len(dump.texts) - 1 - sum(1 for change in changes if change.kinds)
    return Ledger(dump, first, last, tuple(changes), quiet, read)


def change_sentences(change: Change) -> list[str]:
    """Return sentences about a change for a reader, the worst first. It is empty where only names changed."""
    return [*_lost(change), *_placed(change), *_carried_out(change), *_on_host(change), *_resized(change)]


_WAYS: Mapping[Direction, str] = {D2H: "to the host", H2D: "back"}


def _lost(change: Change) -> list[str]:
    found = []
    for direction, way in _WAYS.items():
        count, before = change.fewer(direction), change.before.placements(direction)
        if direction in change.dropped:
            found.append(f"{count} of {before} moves {way} dropped")
        elif count and change.after.moves(direction) > change.before.moves(direction):
            found.append(f"{count} of {before} placements {way} made no transfer of their own")
        elif count and not change.on_host_now:
            found.append(f"{count} of {before} placements {way} taken out")
    return found


def _placed(change: Change) -> list[str]:
    annotations = change.delta("annotation_d2h", "annotation_h2d")
    marks = change.delta("mark_d2h", "mark_h2d")
    if annotations < 0 < marks:
        return ["annotations became XLA's own marks"]
    if annotations + marks > 0:
        return [f"{annotations + marks} more placements: copies of computations"]
    made = change.delta(*MOVES[D2H], *MOVES[H2D])
    return ["placements became transfers"] if annotations + marks < 0 < made else []


def _carried_out(change: Change) -> list[str]:
    waits = change.delta(*MOVES[D2H], *MOVES[H2D]) - change.delta("async_d2h", "async_h2d")
    starts = change.delta("async_d2h", "async_h2d")
    placed = change.delta(*PLACED[D2H], *PLACED[H2D])
    found = []
    if starts > 0 > waits:
        found.append("made asynchronous")
    elif starts < 0 < waits:
        found.append("made synchronous")
    elif waits + starts > 0 and placed >= 0:
        found.append("more transfers: XLA's own, or copies of computations")
    if change.delta("kernel_d2h", "kernel_h2d") > 0:
        found.append("kernels work on host memory")
    if (without := change.delta("async_kernel")) and not starts:
        found.append(
            "asynchronous memcpy became kernels" if without > 0 else "now memcpy of the copy engine, not kernels"
        )
    return found


def _on_host(change: Change) -> list[str]:
    placed = change.delta(*PLACED[D2H], *PLACED[H2D])
    found = []
    if change.delta("host_compute") > 0:
        found.append("became host compute")
    if placed < 0 and change.delta("host_mark") > 0:
        found.append("became compute in host memory")
    elif change.delta("host_mark") < 0 < change.after.of("host_mark").count:
        found.append("what is marked for the host is one call now")
    elif change.delta("host_copy") > 0:
        found.append("copies within host memory added")
    elif change.delta("host_copy") < 0:
        found.append("copies within host memory taken out")
    return found


def _resized(change: Change) -> list[str]:
    same = [change.before.of(kind).count == change.after.of(kind).count for kind in change.kinds]
    if not same or not all(same):
        return []
    return ["the same number, of other sizes: the program was split over devices, or shapes changed"]
