"""The gate's answer as JSON (``hloinspect.check/1``), and that of `diff` (``hloinspect.diff/1``)."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from hloinspect.gate.difference import Difference
from hloinspect.gate.explain import explanation
from hloinspect.gate.gate import Checked, Unread, overall
from hloinspect.gate.snapshot import FindingGroup
from hloinspect.report.json import rounded
from hloinspect.report.schema import FindingInfo

CHECK_SCHEMA = "hloinspect.check/1"
DIFF_SCHEMA = "hloinspect.diff/1"


def render(checks: Sequence[Checked], allow_unknown: bool = False, unread: Sequence[Unread] = ()) -> str:
    """What fails whatever the budgets are, every budget of every step, the whole status, the difference to the baseline
    where there is one, what is new, and the steps that could not be read."""
    found = [{**_step(checked), **asdict(result)} for checked in checks for result in checked.results]
    differences = [_difference(checked.difference) for checked in checks if checked.difference]
    document = {
        "schema": CHECK_SCHEMA,
        "status": overall(checks, allow_unknown, unread),
        "blocking": [{**_step(checked), **_blocking(f)} for checked in checks for f in checked.blocked],
        "notes": [{**_step(checked), **asdict(note)} for checked in checks for note in checked.notes],
        "checks": rounded(found),
        "differences": differences,
        "new_findings": [
            {**_step(checked), **_new(new.change.group), "allowed_by": new.allowed_by}
            for checked in checks
            for new in checked.new
        ],
        "errors": [
            {
                "input": one.source,
                "name": one.name,
                "target": one.target,
                "message": one.message,
                "code": one.code or None,
            }
            for one in unread
        ],
    }
    return json.dumps(document, indent=2)


def _step(checked: Checked) -> dict[str, str | None]:
    target = checked.report.target
    return {"input": checked.report.input.path, "name": checked.name, "target": target.name if target else None}


def _blocking(finding: FindingInfo) -> dict[str, Any]:
    source = finding.source
    return {
        "code": finding.code,
        "rule": finding.name,
        "severity": finding.severity,
        "message": finding.message,
        "remedy": finding.remedy,
        "source": asdict(source) if source else None,
    }


def _new(group: FindingGroup) -> dict[str, Any]:
    data = asdict(group)
    return {"rule": data.pop("name"), **data}


def diff_to_json(found: Difference) -> str:
    """What is different between two inputs."""
    return json.dumps({"schema": DIFF_SCHEMA, **_difference(found)}, indent=2)


def _difference(found: Difference) -> dict[str, Any]:
    data: Any = rounded(asdict(found))
    for side in ("before", "after"):
        data[side] = {key: data[side][key] for key in ("step", "target", "devices", "kind", "made")}
    return {**data, "explanation": explanation(found, show_all=True)}
