"""Pages of rules: what `hloinspect rules CODE` and docs/rules/ show, made from the docstrings of their checks."""

from __future__ import annotations

from hloinspect.rules.registry import RULES
from hloinspect.rules.rule import Rule
from hloinspect.thresholds import INFO_COST_SHARE, WARNING_COST_SHARE

GROUPS = {"1": "time", "2": "memory", "3": "correctness", "4": "evidence"}
CODE_HEADING = "Example"


def rule_subject(rule: Rule) -> str:
    """Return the subject of a rule: time, memory, correctness or evidence."""
    return GROUPS[rule.code[3]]


def as_record(rule: Rule) -> dict[str, str]:
    """Return the rule as `hloinspect rules --format json` lists it."""
    return {"code": rule.code, "name": rule.name, "severity": rule.severity, "summary": rule.summary}


def as_markdown(rule: Rule) -> str:
    """Return the whole page of one rule."""
    lines = [f"# {rule.code} {rule.name}", "", rule.summary, "", facts_text(rule)]
    for heading, text in rule.sections().items():
        lines += ["", f"## {heading}", ""]
        lines += ["```text", text, "```"] if heading == CODE_HEADING else [text]
    return "\n".join(lines) + "\n"


def facts_text(rule: Rule) -> str:
    """Return how severe a rule is, what it is about and what it needs."""
    weight = f"{rule.severity}, less where little is lost" if rule.by_cost else rule.severity
    needs = ", ".join(rule.needs) or "nothing"
    return f"Severity: {weight}. About: {rule_subject(rule)}. Needs: {needs}."


def index_markdown() -> str:
    """Return the table of all rules, docs/rules/index.md."""
    lines = [
        "# Rules",
        "",
        "What `hloinspect inspect` looks for. Each finding names a rule; `hloinspect rules CODE` shows its page.",
        "",
        "| code | name | severity | what it finds |",
        "|---|---|---|---|",
    ]
    lines += [f"| [{r.code}]({r.code}.md) | {r.name} | {r.severity} | {r.summary} |" for r in RULES]
    return "\n".join([*lines, "", *_ABOUT.strip().splitlines(), ""])


_ABOUT = f"""
HLO1xx are about time, HLO2xx about memory, HLO3xx about correctness, HLO4xx about evidence.

**Severity.** The table has the highest severity of each rule. A rule on time gives a lower one where little is lost: a
warning below {100 * WARNING_COST_SHARE:g} % of the step, information below {100 * INFO_COST_SHARE:g} %, \
and at most a warning where the verdicts of all its transfers
change within the range of the prediction. Text shows errors and warnings, five at most; `--all` shows the rest.

**Choosing.** Codes, or beginnings of codes (`HLO2`, `ALL`); the longest one that fits decides.

```toml
[tool.hloinspect]
select = ["ALL"]
ignore = ["HLO207"]

[tool.hloinspect.severity]
HLO110 = "info"
```

This is read from the first `pyproject.toml` upward from the working directory that has a `[tool.hloinspect]`. On the
command line `--select`, `--ignore` (replacing the file's) and `--severity CODE=LEVEL` (on top of the file's).

**Missing evidence is no answer.** A rule without its evidence does not run, and the report says so
(`rules_not_run`): no finding of it means nothing then.

**One cause, one finding.** Each transfer that is waited for gets one cause, and a rule gives one finding with
the count: 500 late copies are one finding.
"""
