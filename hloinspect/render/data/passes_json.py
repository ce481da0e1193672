"""The ledger of passes as JSON: the schema ``hloinspect.passes/1``."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

from hloinspect._version import __version__
from hloinspect.passes.census import KINDS, Census
from hloinspect.passes.difference import TextDifference
from hloinspect.passes.dump import PassText
from hloinspect.passes.follow import Trail
from hloinspect.passes.ledger import Change, Ledger, change_sentences

SCHEMA = "hloinspect.passes/1"


def to_json(
    ledger: Ledger, source: str, differences: tuple[TextDifference, ...] | None = None, trail: Trail | None = None
) -> str:
    """``{schema, hloinspect, input, module, texts, bytes, missing, others, kinds, first, last, changes, quiet,
    differences, trail}``; the last two are null unless they were asked for. Counts are those of one execution of every
    instruction."""
    dump = ledger.dump
    answer = {
        "schema": SCHEMA,
        "hloinspect": __version__,
        "input": source,
        "module": dump.key,
        "texts": len(dump.texts),
        "bytes": dump.size_bytes,
        "missing": dump.missing,
        "inside": dump.inside,
        "others": list(dump.others),
        "kinds": {kind: label.strip() for kind, label in KINDS.items()},
        "first": _census(ledger.first),
        "last": _census(ledger.last),
        "changes": [_change(change) for change in ledger.shown],
        "quiet": ledger.quiet,
        "differences": None if differences is None else [_difference(found) for found in differences],
        "trail": None if trail is None else _trail(trail),
    }
    return json.dumps(answer, indent=2)


def _text(text: PassText) -> dict[str, Any]:
    number = text.number if text.number >= 0 else None
    return {"number": number, "pipeline": text.pipeline, "pass": text.name, "file": text.path.name}


def _census(census: Census) -> dict[str, Any]:
    return {
        "counts": {count.kind: {"count": count.count, "bytes": count.bytes} for count in census.counts},
        "items": [asdict(item) for item in census.items],
    }


def _change(change: Change) -> dict[str, Any]:
    counts = {
        kind: {
            side: {"count": census.of(kind).count, "bytes": census.of(kind).bytes}
            for side, census in (("before", change.before), ("after", change.after))
        }
        for kind in change.kinds
    }
    return {**_text(change.text), "words": change_sentences(change), "dropped": change.dropped, "counts": counts}


def _difference(found: TextDifference) -> dict[str, Any]:
    parts = [{"computation": part.computation, "lines": [asdict(line) for line in part.lines]} for part in found.parts]
    return {"before": _text(found.before), "after": _text(found.after), "parts": parts, "left_out": found.left_out}


def _trail(trail: Trail) -> dict[str, Any]:
    return {
        "hops": [{**_text(hop.text), "item": asdict(hop.item), "by": hop.by} for hop in trail.hops],
        "lost_at": None if trail.end is None else _text(trail.end),
        "lost": trail.lost,
    }
