"""``hloinspect rules``: what it looks for, and what each finding means."""

from __future__ import annotations

import json
import sys

import click

from hloinspect.cli.console import emit, width

EPILOG = """\b
Examples:
  hloinspect rules
  hloinspect rules HLO102
  hloinspect rules --format json | jq '.[].code'
"""


@click.command("rules", epilog=EPILOG)
@click.argument("code", required=False)
@click.option("--format", "style", type=click.Choice(["text", "json", "markdown"]), default="text", show_default=True)
@click.option("-o", "--output", metavar="FILE", help="Write to FILE instead of standard output.")
def command(code: str | None, style: str, output: str | None) -> None:
    """List the rules, or show the page of CODE: what it finds, why it matters, what to do, and when not to."""
    from hloinspect.render.data.rule_page import as_markdown, as_record, index_markdown
    from hloinspect.rules.registry import RULES, rule_of

    if code is None:
        if style == "markdown":
            emit(index_markdown(), output)
        else:
            emit(json.dumps([as_record(rule) for rule in RULES], indent=2) if style == "json" else _table(), output)
        return
    rule = rule_of(code)
    if style == "json":
        emit(json.dumps({**as_record(rule), "needs": list(rule.needs), "page": rule.sections()}, indent=2), output)
    elif style == "markdown":
        emit(as_markdown(rule), output)
    else:
        from hloinspect.render.terminal.rule_text import rule_text

        emit(rule_text(rule, width(sys.stdout)), output)


def _table() -> str:
    from hloinspect.render.terminal.table import Layout, columns_named, table
    from hloinspect.rules.registry import RULES

    head = ["code", "severity", "name", "summary"]
    rows = [(rule.code, rule.severity, rule.name, rule.summary) for rule in RULES]
    layout = Layout((("summary", 1),), indent=0, has_head=False)
    lines = table(columns_named(head, head), rows, width(sys.stdout), layout)
    return "\n".join([*lines, "", "The page of a rule: hloinspect rules CODE"])
