"""List of all rules, written by hand: a rule that is missing here does not run."""

from __future__ import annotations

from hloinspect.errors import UsageError
from hloinspect.rules import (
    compile_errors,
    correct_audit,
    correct_placement,
    correct_slices,
    evidence_static,
    measured,
    memory_device,
    memory_host,
    time_link,
    time_loops,
    time_mechanism,
    time_recompute,
    time_windows,
)
from hloinspect.rules.rule import Rule

RULES: tuple[Rule, ...] = tuple(
    sorted(
        (
            *time_windows.RULES,
            *time_loops.RULES,
            *time_link.RULES,
            *time_mechanism.RULES,
            *time_recompute.RULES,
            *memory_device.RULES,
            *memory_host.RULES,
            *correct_slices.RULES,
            *correct_placement.RULES,
            *correct_audit.RULES,
            *compile_errors.RULES,
            *evidence_static.RULES,
            *measured.RULES,
        ),
        key=lambda rule: rule.code,
    )
)


def rule_of(text: str) -> Rule:
    """Return the rule of a code (in any case) or a name.

    Raises UsageError, with the nearest ones, where there is none.
    """
    for rule in RULES:
        if text.upper() == rule.code or text == rule.name:
            return rule
    import difflib

    known = [word for rule in RULES for word in (rule.code, rule.name)]
    near = difflib.get_close_matches(text.upper(), known, n=1) or difflib.get_close_matches(text, known, n=1)
    hint = f"did you mean {near[0]}?" if near else "`hloinspect rules` lists them"
    raise UsageError(f"no rule {text!r}: {hint}")
