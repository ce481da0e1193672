"""MaxText's step as JSON: ``hloinspect.maxtext/1`` (docs/maxtext.md)."""

from __future__ import annotations

import json
from dataclasses import asdict

from hloinspect.maxtext.summary import SCHEMA, MaxTextAnswer
from hloinspect.report.json import rounded


def maxtext_json(answer: MaxTextAnswer) -> str:
    """The answer as indented JSON text; each variant's ``report`` is a ``hloinspect.report/1``."""
    return json.dumps({"schema": SCHEMA, **dict_of(answer)}, indent=2)


def dict_of(answer: MaxTextAnswer) -> dict[str, object]:
    found = rounded(asdict(answer))
    assert isinstance(found, dict)
    return found
