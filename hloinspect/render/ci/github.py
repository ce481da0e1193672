"""The gate's answer as workflow commands of GitHub Actions, which become annotations on the lines of a pull request."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from hloinspect.errors import printable
from hloinspect.gate.gate import Checked, Unread
from hloinspect.gate.words import details, result_text, title, title_of_unread
from hloinspect.kinds import UNKNOWN
from hloinspect.render.ci.places import Place, budget_place, finding_place, input_place, source_place
from hloinspect.report.schema import FindingInfo
from hloinspect.rules.blocking import BLOCKING
from hloinspect.rules.rule import ERROR

MAX_FINDINGS = 10
"""GitHub shows ten annotations of a kind for a step."""

# Most findings do not fail the gate (a budget does), so they are shown one level below their severity.
_COMMANDS = {"error": "warning", "warning": "notice"}


def render(checks: Sequence[Checked], allow_unknown: bool = False, unread: Sequence[Unread] = ()) -> str:
    """Return an error for each budget that does not hold, for each finding that fails whatever the budgets are, and for
    each step that could not be read. The other findings, and what nobody looked for, become warnings and notices."""
    here = Path.cwd()
    lines = []
    for one in unread:
        text = f"{title_of_unread(one)}: {printable(one.message)}"
        lines.append(_command("error", source_place(one.source, here), f"hloinspect {one.code}".rstrip(), text))
    for checked in checks:
        for finding in checked.blocked:
            lines.append(_finding("error", finding, checked, here))
        for note in checked.notes:
            if note.kind == "found":  # the finding itself is shown
                continue
            text = f"{title(checked)}: {printable(note.text)}"
            command = "error" if note.kind == "undecided" and not allow_unknown else "notice"
            lines.append(_command(command, input_place(checked, here), f"hloinspect {note.code}", text))
        for result in checked.broken:
            command = "notice" if result.status == UNKNOWN and allow_unknown else "error"
            text = "\n".join([f"{title(checked)}: {result_text(result)}", *map(printable, details(checked))])
            place = budget_place(result, checked, here)
            lines.append(_command(command, place, f"hloinspect {result.budget.text}", text))
    others = [(finding, checked) for checked in checks for finding in checked.report.findings if _is_shown(finding)]
    others.sort(key=lambda each: each[0].code not in BLOCKING)
    for finding, checked in others[:MAX_FINDINGS]:
        lines.append(_finding(_COMMANDS.get(finding.severity, "notice"), finding, checked, here))
    return "\n".join(lines)


def _is_shown(finding: FindingInfo) -> bool:
    """Return whether a finding that fails nothing is shown: all of the rules whose errors always fail, and of the
    others what is more than information."""
    if finding.code in BLOCKING:
        return finding.severity != ERROR
    return finding.severity in _COMMANDS


def _finding(command: str, finding: FindingInfo, checked: Checked, here: Path) -> str:
    text = f"{printable(finding.message)}\nTry: {printable(finding.remedy)}\n{title(checked)}"
    name = f"hloinspect {finding.code} {finding.name}"
    return _command(command, finding_place(finding, checked, here), name, text)


def _command(command: str, place: Place, name: str, text: str) -> str:
    """Return one command, escaped as the runner's toolkit does (actions/toolkit, command.ts)."""
    properties = {"file": place.file, "line": str(place.line), "title": name}
    written = ",".join(f"{key}={_property(value)}" for key, value in properties.items())
    return f"::{command} {written}::{_data(text)}"


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
