"""MaxText's step as JSON: ``hloinspect.maxtext/1`` (docs/maxtext.md)."""

from __future__ import annotations

from hloinspect.maxtext.summary import SCHEMA, MaxTextAnswer
from hloinspect.report.json import document_json


def maxtext_json(answer: MaxTextAnswer) -> str:
    """Return the answer as indented JSON text; each variant's ``report`` is a ``hloinspect.report/1``."""
    return document_json(SCHEMA, answer)
