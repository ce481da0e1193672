"""The gate's answer as SARIF 2.1.0 (OASIS): findings and broken budgets on the lines of the user's code. Nothing in it
depends on the time or the machine."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hloinspect._version import __version__
from hloinspect.errors import printable
from hloinspect.gate.blocking import Note
from hloinspect.gate.gate import Checked, Unread
from hloinspect.gate.judge import OVER, BudgetResult
from hloinspect.gate.words import details, result_text, title, title_of_unread
from hloinspect.kinds import UNKNOWN
from hloinspect.render.ci.places import Place, budget_place, finding_place, input_place, source_place, uri_of
from hloinspect.report.schema import FindingInfo

SCHEMA_URI = "https://json.schemastore.org/sarif-2.1.0.json"
EXCEEDED, UNDECIDED = "budget-exceeded", "budget-unknown"
_LEVELS = {"error": "error", "warning": "warning", "info": "note"}
_BUDGET_RULES = {
    EXCEEDED: "A step costs more than its budget.",
    UNDECIDED: "There is not enough evidence to say whether a step is within its budget.",
}


def render(checks: Sequence[Checked], allow_unknown: bool = False, unread: Sequence[Unread] = ()) -> str:
    """Return one run with a result for each finding and each budget that does not hold.

    A step that its compiler refused is a result too. A step that could not be read, and what nobody looked for, are
    notifications.
    """
    here = Path.cwd()
    results = []
    for checked in checks:
        for broken in checked.broken:
            level = "note" if broken.status == UNKNOWN and allow_unknown else "error"
            results.append(_budget_result(broken, checked, level, here))
        results += [_finding_result(finding, checked, here) for finding in checked.report.findings]
    results += [_refusal(one, here) for one in unread if one.code]
    rules = _rules(results)
    index = {rule["id"]: number for number, rule in enumerate(rules)}
    for result in results:
        if result["ruleId"] in index:  # a report of another version may have a rule that is not known here
            result["ruleIndex"] = index[result["ruleId"]]
    driver = {"name": "hloinspect", "version": __version__, "rules": rules}
    run: dict[str, Any] = {"tool": {"driver": driver}, "columnKind": "unicodeCodePoints", "results": results}
    errors = [_notification(one, here) for one in unread]
    noted = [_note(note, checked, here) for checked in checks for note in checked.notes if note.kind != "found"]
    if errors or noted:
        invocation: dict[str, Any] = {"executionSuccessful": not unread}
        invocation |= {"toolExecutionNotifications": errors} if errors else {}
        invocation |= {"toolConfigurationNotifications": noted} if noted else {}
        run["invocations"] = [invocation]
    return json.dumps({"$schema": SCHEMA_URI, "version": "2.1.0", "runs": [run]}, indent=2)


def _notification(unread: Unread, here: Path) -> dict[str, Any]:
    place = _location(source_place(unread.source, here))
    return {
        "level": "error",
        "message": {"text": f"{title_of_unread(unread)}: {printable(unread.message)}"},
        "locations": [place],
    }


def _note(note: Note, checked: Checked, here: Path) -> dict[str, Any]:
    place = _location(input_place(checked, here))
    text = f"{title(checked)}: {printable(note.text)}"
    return {"level": "warning", "message": {"text": text}, "locations": [place]}


def _refusal(unread: Unread, here: Path) -> dict[str, Any]:
    text = f"{title_of_unread(unread)}: {printable(unread.message)}"
    return _result(unread.code, "error", text, source_place(unread.source, here), unread.name, unread.target or "")


def _rules(results: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the rules that the results name, with their pages."""
    from hloinspect.rules.registry import RULES

    named = {result["ruleId"] for result in results}
    found: list[dict[str, Any]] = [
        {"id": code, "name": code, "shortDescription": {"text": text}}
        for code, text in _BUDGET_RULES.items()
        if code in named
    ]
    for rule in RULES:
        if rule.code in named:
            sections = rule.sections()
            found.append(
                {
                    "id": rule.code,
                    "name": rule.name,
                    "shortDescription": {"text": rule.summary},
                    "fullDescription": {"text": sections["What it finds"] or rule.summary},
                    "help": {"text": sections["What to do"] or rule.summary},
                    "defaultConfiguration": {"level": _LEVELS[rule.severity]},
                }
            )
    return found


def _result(code: str, level: str, text: str, place: Place, name: str, identity: str) -> dict[str, Any]:
    digest = hashlib.sha256("\0".join([code, name, identity]).encode("utf-8", "replace")).hexdigest()
    return {
        "ruleId": code,
        "level": level,
        "message": {"text": text},
        "locations": [_location(place)],
        "partialFingerprints": {"hloinspect/1": digest[:32]},
    }


def _location(place: Place) -> dict[str, Any]:
    artifact = {"uri": uri_of(place.file)}
    if not place.file.startswith("/"):
        artifact["uriBaseId"] = "%SRCROOT%"
    return {"physicalLocation": {"artifactLocation": artifact, "region": {"startLine": place.line}}}


def _finding_result(finding: FindingInfo, checked: Checked, here: Path) -> dict[str, Any]:
    place = finding_place(finding, checked, here)
    text = f"{printable(finding.message)}. Try: {printable(finding.remedy)}. ({title(checked)})"
    function = (finding.source.function or "") if finding.source else ""
    level = _LEVELS[finding.severity]
    return _result(finding.code, level, text, place, checked.name, f"{place.file}\0{function}\0{finding.instruction}")


def _budget_result(result: BudgetResult, checked: Checked, level: str, here: Path) -> dict[str, Any]:
    code = EXCEEDED if result.status == OVER else UNDECIDED
    text = "\n".join([f"{title(checked)}: {result_text(result)}", *map(printable, details(checked))])
    return _result(code, level, text, budget_place(result, checked, here), checked.name, result.budget.text)
