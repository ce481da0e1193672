"""The gate's answer as JUnit XML, as Jenkins, GitLab and others read it. No times and no dates: the same answer is the
same file."""

from __future__ import annotations

from collections.abc import Sequence
from xml.etree import ElementTree

from hloinspect.errors import printable
from hloinspect.gate.blocking import Note
from hloinspect.gate.gate import Checked, Unread
from hloinspect.gate.judge import MISSING, OVER, BudgetResult
from hloinspect.gate.words import details, finding_text, result_text, title, title_of_unread
from hloinspect.kinds import UNKNOWN


def render(checks: Sequence[Checked], allow_unknown: bool = False, unread: Sequence[Unread] = ()) -> str:
    """Return a test suite for each step.

    A suite has a test case for each budget: a failure where it is exceeded, an error where nobody can say (skipped
    where that is allowed). It has one for each finding that fails whatever the budgets are, one that passes for what
    these rules found that is no error, and a skipped one for what nobody looked for. A step that could not be read is
    an error.
    """
    whole = _counts([tag for checked in checks for tag in _tags(checked, allow_unknown)] + ["error"] * len(unread))
    whole.pop("skipped")  # the schemas of Jenkins and Maven have it on suites only
    root = ElementTree.Element("testsuites", whole)
    for checked in checks:
        counts = _counts(_tags(checked, allow_unknown))
        suite = ElementTree.SubElement(root, "testsuite", {"name": f"hloinspect {title(checked)}", **counts})
        for finding in checked.blocked:
            text = finding_text(finding)
            _case(suite, checked, f"{finding.code} {finding.name}", "failure", text, finding.code)
        for note in checked.notes:
            _case(suite, checked, note.code, _note_tag(note, allow_unknown), printable(note.text), note.code)
        for result in checked.results:
            case = ElementTree.SubElement(
                suite, "testcase", {"classname": title(checked), "name": printable(result.budget.text)}
            )
            if tag := _tag(result, allow_unknown):
                body = ElementTree.SubElement(
                    case, tag, {"message": printable(result_text(result)), "type": result.status}
                )
                body.text = "\n".join(map(printable, details(checked)))
    for one in unread:
        name = title_of_unread(one)
        counts = {"tests": "1", "failures": "0", "errors": "1", "skipped": "0"}
        suite = ElementTree.SubElement(root, "testsuite", {"name": f"hloinspect {name}", **counts})
        case = ElementTree.SubElement(suite, "testcase", {"classname": name, "name": "input"})
        ElementTree.SubElement(case, "error", {"message": printable(one.message), "type": one.code or "unread"})
    ElementTree.indent(root)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ElementTree.tostring(root, encoding="unicode")


def _tag(result: BudgetResult, allow_unknown: bool) -> str:
    if result.status == UNKNOWN:
        return "skipped" if allow_unknown else "error"
    return {OVER: "failure", MISSING: "error"}.get(result.status, "")


def _note_tag(note: Note, allow_unknown: bool) -> str:
    if note.kind == "undecided" and not allow_unknown:
        return "error"
    return "" if note.kind == "found" else "skipped"


def _tags(checked: Checked, allow_unknown: bool) -> list[str]:
    """Return what is inside each case of a step, "" for nothing."""
    fixed = ["failure"] * len(checked.blocked) + [_note_tag(note, allow_unknown) for note in checked.notes]
    return fixed + [_tag(result, allow_unknown) for result in checked.results]


def _case(suite: ElementTree.Element, checked: Checked, name: str, tag: str, message: str, kind: str) -> None:
    case = ElementTree.SubElement(suite, "testcase", {"classname": title(checked), "name": printable(name)})
    if tag:
        ElementTree.SubElement(case, tag, {"message": message, "type": kind})
    else:
        ElementTree.SubElement(case, "system-out").text = message


def _counts(tags: Sequence[str]) -> dict[str, str]:
    return {
        "tests": str(len(tags)),
        "failures": str(tags.count("failure")),
        "errors": str(tags.count("error")),
        "skipped": str(tags.count("skipped")),
    }
