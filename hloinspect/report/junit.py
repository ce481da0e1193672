"""The gate's answer as JUnit XML, as Jenkins, GitLab and others read it. No times and no dates: the same answer is the
same file."""

from __future__ import annotations

from collections.abc import Sequence
from xml.etree import ElementTree

from hloinspect.errors import printable as clean
from hloinspect.gate.gate import Checked, Unread
from hloinspect.gate.judge import MISSING, OVER, BudgetResult
from hloinspect.report.check_text import details, result_text, title, title_of_unread
from hloinspect.verdict import UNKNOWN


def render(checks: Sequence[Checked], allow_unknown: bool = False, unread: Sequence[Unread] = ()) -> str:
    """A test suite for each step, a test case for each budget: failures for what is over, errors for what nobody can
    say (skipped where that is allowed), and for a step that could not be read."""
    whole = _counts([result for checked in checks for result in checked.results], allow_unknown)
    whole |= {name: str(int(whole[name]) + len(unread)) for name in ("tests", "errors")}
    whole.pop("skipped")  # the schemas of Jenkins and Maven have it on suites only
    root = ElementTree.Element("testsuites", whole)
    for checked in checks:
        counts = _counts(checked.results, allow_unknown)
        suite = ElementTree.SubElement(root, "testsuite", {"name": f"hloinspect {title(checked)}", **counts})
        for result in checked.results:
            case = ElementTree.SubElement(
                suite, "testcase", {"classname": title(checked), "name": clean(result.budget.text)}
            )
            if tag := _tag(result, allow_unknown):
                body = ElementTree.SubElement(case, tag, {"message": clean(result_text(result)), "type": result.status})
                body.text = "\n".join(map(clean, details(checked)))
    for one in unread:
        name = title_of_unread(one)
        counts = {"tests": "1", "failures": "0", "errors": "1", "skipped": "0"}
        suite = ElementTree.SubElement(root, "testsuite", {"name": f"hloinspect {name}", **counts})
        case = ElementTree.SubElement(suite, "testcase", {"classname": name, "name": "input"})
        ElementTree.SubElement(case, "error", {"message": clean(one.message), "type": "unread"})
    ElementTree.indent(root)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ElementTree.tostring(root, encoding="unicode")


def _tag(result: BudgetResult, allow_unknown: bool) -> str:
    if result.status == UNKNOWN:
        return "skipped" if allow_unknown else "error"
    return {OVER: "failure", MISSING: "error"}.get(result.status, "")


def _counts(results: Sequence[BudgetResult], allow_unknown: bool) -> dict[str, str]:
    tags = [_tag(result, allow_unknown) for result in results]
    return {
        "tests": str(len(results)),
        "failures": str(tags.count("failure")),
        "errors": str(tags.count("error")),
        "skipped": str(tags.count("skipped")),
    }
