"""The page of a rule for a terminal."""

from __future__ import annotations

from hloinspect.render.data.rule_page import CODE_HEADING, facts_text
from hloinspect.render.terminal.wrap import wrapped
from hloinspect.rules.rule import Rule


def rule_text(rule: Rule, width: int) -> str:
    """Return the page; an example stands as it is, however long its lines are."""
    lines = [f"{rule.code}  {rule.name}", "", *wrapped(rule.summary, width), *wrapped(facts_text(rule), width)]
    for heading, text in rule.sections().items():
        lines += ["", heading]
        if heading == CODE_HEADING:
            lines += [f"  {line}" if line.strip() else line for line in text.splitlines()]
        else:
            lines += wrapped(text.replace("`", "").replace("**", ""), width, 2, 2)
    return "\n".join(lines)
