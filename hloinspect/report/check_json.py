"""The gate's answer as JSON (``hloinspect.check/1``), and that of `diff` (``hloinspect.diff/1``)."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from hloinspect.gate.difference import Difference
from hloinspect.gate.gate import Checked, Unread, overall
from hloinspect.report.explain import explanation
from hloinspect.report.json import rounded

CHECK_SCHEMA = "hloinspect.check/1"
DIFF_SCHEMA = "hloinspect.diff/1"


def render(checks: Sequence[Checked], allow_unknown: bool = False, unread: Sequence[Unread] = ()) -> str:
    """Every budget of every step, the whole status, the difference to the baseline where there is one, and the steps
    that could not be read."""
    found = [
        {
            "input": checked.report.input.path,
            "name": checked.name,
            "target": checked.report.target.name if checked.report.target else None,
            **asdict(result),
        }
        for checked in checks
        for result in checked.results
    ]
    differences = [_difference(checked.difference) for checked in checks if checked.difference]
    document = {
        "schema": CHECK_SCHEMA,
        "status": overall(checks, allow_unknown, unread),
        "checks": rounded(found),
        "differences": differences,
        "errors": [
            {"input": one.source, "name": one.name, "target": one.target, "message": one.message} for one in unread
        ],
    }
    return json.dumps(document, indent=2)


def diff_to_json(found: Difference) -> str:
    """What is different between two inputs."""
    return json.dumps({"schema": DIFF_SCHEMA, **_difference(found)}, indent=2)


def _difference(found: Difference) -> dict[str, Any]:
    data: Any = rounded(asdict(found))
    for side in ("before", "after"):
        data[side] = {key: data[side][key] for key in ("step", "target", "devices", "kind", "made")}
    return {**data, "explanation": explanation(found, show_all=True)}
