"""The ledger of compiler passes as JSON: ``hloinspect.passes/1``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from hloinspect._version import __version__
from hloinspect.kinds import Direction, ItemKind
from hloinspect.passes.census import KINDS, Census, Item
from hloinspect.passes.difference import Part, TextDifference
from hloinspect.passes.dump import PassText
from hloinspect.passes.follow import Trail
from hloinspect.passes.ledger import Change, Ledger, change_sentences
from hloinspect.report.json import document_json

SCHEMA = "hloinspect.passes/1"


@dataclass(frozen=True, slots=True)
class CountInfo:
    """How many there are of a kind, each instruction counted once."""

    count: int
    """Number of instructions or buffers."""

    bytes: int
    """Bytes of one execution of each."""


@dataclass(frozen=True, slots=True)
class CensusInfo:
    """What a text has to do with the host."""

    counts: dict[ItemKind, CountInfo]
    """By kind, those of which there are any."""

    items: tuple[Item, ...]
    """Placements and moves that can be followed (``--follow``)."""


@dataclass(frozen=True, slots=True)
class CountChange:
    """The count of one kind on both sides of a change."""

    before: CountInfo
    """In the text before."""

    after: CountInfo
    """In the text itself."""


@dataclass(frozen=True, slots=True)
class PassInfo:
    """The text that a compiler pass has left."""

    number: int | None
    """XLA's number of the text; null of the texts before and after all passes."""

    pipeline: str
    """Pipeline of the pass."""

    pass_name: str
    """The pass; ``pipeline-start`` where a pipeline begins, ``before_optimizations`` and ``after_optimizations`` at the
    two ends."""

    file: str
    """Name of the file."""


@dataclass(frozen=True, slots=True)
class ChangeInfo:
    """A text in which some count is another than in the text before."""

    number: int | None
    """XLA's number of the text; null of the texts before and after all passes."""

    pipeline: str
    """Pipeline of the pass."""

    pass_name: str
    """The pass."""

    file: str
    """Name of the file."""

    words: list[str]
    """What it amounts to, the worst first."""

    dropped: dict[Direction, int]
    """By direction, how many moves are gone with nothing in their place."""

    counts: dict[ItemKind, CountChange]
    """The kinds whose count or bytes changed."""


@dataclass(frozen=True, slots=True)
class TextDifferenceInfo:
    """What one pass did to instructions that have to do with the host (``--diff``)."""

    before: PassInfo
    """The text before."""

    after: PassInfo
    """The text after."""

    parts: tuple[Part, ...]
    """The difference by computation."""

    left_out: int
    """Number of changed lines that only hand values on: parameters, tuples and their parts, loops."""


@dataclass(frozen=True, slots=True)
class HopInfo:
    """One station of a trail: what the item is from this text on."""

    number: int | None
    """XLA's number of the text; null of the texts before and after all passes."""

    pipeline: str
    """Pipeline of the pass."""

    pass_name: str
    """The pass."""

    file: str
    """Name of the file."""

    item: Item
    """The item as it stands there."""

    by: str
    """How it was recognized in the text after it; empty for the last text."""


@dataclass(frozen=True, slots=True)
class TrailInfo:
    """One item of the last text, followed backwards (``--follow``)."""

    hops: tuple[HopInfo, ...]
    """The stations, from the last text backwards."""

    lost_at: PassInfo | None
    """The text before which nothing is recognized as the item; null where it goes back to the first text."""

    lost: str
    """Why it was lost; empty where the trail ends at the beginning."""


@dataclass(frozen=True, slots=True)
class PassesAnswer:
    """The answer of ``hloinspect passes``. Counts are those of one execution of every instruction."""

    hloinspect: str
    """Version of the tool that wrote it."""

    input: str
    """The directory, as it was given."""

    module: str
    """Key of the module in the dump."""

    texts: int
    """Number of texts."""

    bytes: int
    """Size of the texts."""

    missing: int
    """Number of XLA's numbers that have no text."""

    inside: int
    """Number of texts that passes wrote before they had ended, and that are left out."""

    others: list[str]
    """Keys of the directory's other modules."""

    kinds: Mapping[ItemKind, str]
    """Every kind in words."""

    first: CensusInfo
    """The first text."""

    last: CensusInfo
    """The last text."""

    changes: tuple[ChangeInfo, ...]
    """The texts in which some count changed, in order."""

    quiet: int
    """Number of texts in which none did."""

    differences: tuple[TextDifferenceInfo, ...] | None
    """What the requested passes did, line by line; null where none was requested."""

    trail: TrailInfo | None
    """The requested item, followed backwards; null where none was requested."""


def to_json(
    ledger: Ledger, source: str, differences: tuple[TextDifference, ...] | None = None, trail: Trail | None = None
) -> str:
    """Return a ledger as JSON text, with the differences and the trail that were requested."""
    dump = ledger.dump
    answer = PassesAnswer(
        hloinspect=__version__,
        input=source,
        module=dump.key,
        texts=len(dump.texts),
        bytes=dump.size_bytes,
        missing=dump.missing,
        inside=dump.inside,
        others=list(dump.others),
        kinds={kind: label.strip() for kind, label in KINDS.items()},
        first=_census(ledger.first),
        last=_census(ledger.last),
        changes=tuple(_change(change) for change in ledger.shown),
        quiet=ledger.quiet,
        differences=None if differences is None else tuple(_difference(found) for found in differences),
        trail=None if trail is None else _trail(trail),
    )
    return document_json(SCHEMA, answer)


def _pass(text: PassText) -> PassInfo:
    return PassInfo(*_place(text))


def _place(text: PassText) -> tuple[int | None, str, str, str]:
    return text.number if text.number >= 0 else None, text.pipeline, text.name, text.path.name


def _count(census: Census, kind: ItemKind) -> CountInfo:
    found = census.of(kind)
    return CountInfo(found.count, found.bytes)


def _census(census: Census) -> CensusInfo:
    return CensusInfo({count.kind: CountInfo(count.count, count.bytes) for count in census.counts}, census.items)


def _change(change: Change) -> ChangeInfo:
    counts = {kind: CountChange(_count(change.before, kind), _count(change.after, kind)) for kind in change.kinds}
    return ChangeInfo(*_place(change.text), change_sentences(change), change.dropped, counts)


def _difference(found: TextDifference) -> TextDifferenceInfo:
    return TextDifferenceInfo(_pass(found.before), _pass(found.after), found.parts, found.left_out)


def _trail(trail: Trail) -> TrailInfo:
    hops = tuple(HopInfo(*_place(hop.text), hop.item, hop.by) for hop in trail.hops)
    return TrailInfo(hops, None if trail.end is None else _pass(trail.end), trail.lost)
