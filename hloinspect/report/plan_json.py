"""A plan as JSON: ``hloinspect.plan/1`` (docs/plan.md)."""

from __future__ import annotations

import json
from dataclasses import asdict

from hloinspect.plan.model import Plan
from hloinspect.report.json import rounded


def plan_json(plan: Plan) -> str:
    """The plan as indented JSON text."""
    return json.dumps(rounded(asdict(plan)), indent=2)
