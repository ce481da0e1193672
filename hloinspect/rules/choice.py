"""Which rules run, and with which severity: from ``[tool.hloinspect]`` and the command line."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from hloinspect.errors import UsageError
from hloinspect.kinds import Severity
from hloinspect.rules.rule import SEVERITIES, Rule

ALL = "ALL"


@dataclass(frozen=True, slots=True)
class Choice:
    """``select`` and ``ignore`` are codes or the beginnings of codes (``HLO1``, ``ALL``); the longest one that fits a
    rule decides, and of two of one length ``ignore``. ``severity`` maps codes or beginnings to a severity that replaces
    what the rule says; again the longest decides. ``only`` are the codes of the rules that are needed, where others
    would run for nothing.
    """

    select: tuple[str, ...] = (ALL,)
    ignore: tuple[str, ...] = ()
    severity: Mapping[str, Severity] = field(default_factory=dict)
    only: frozenset[str] | None = None

    @property
    def is_empty(self) -> bool:
        """Return whether no rule runs."""
        return not self.select

    def runs(self, rule: Rule) -> bool:
        """Return whether a rule is wanted."""
        return not self.why_left_out(rule.code)

    def why_left_out(self, code: str) -> str:
        """Return the entry that leaves the rule of this code out, or ""."""
        wanted, unwanted = _longest(self.select, code), _longest(self.ignore, code)
        if unwanted >= max(wanted, 0):
            return f"ignore = {max((prefix for prefix in self.ignore if _fits(prefix, code)), key=_length)}"
        if wanted < 0:
            return f"select = {', '.join(self.select)}" if self.select else "no rule is selected"
        return "" if self.only is None or code in self.only else "nothing that is requested needs it"

    def limited_to(self, codes: frozenset[str]) -> Choice:
        """Return the same choice among the rules of these codes alone."""
        return replace(self, only=codes if self.only is None else self.only & codes)

    def severity_of(self, rule: Rule) -> Severity | None:
        """Return the severity that was requested for a rule, or None."""
        fitting = [prefix for prefix in self.severity if _fits(prefix, rule.code)]
        return self.severity[max(fitting, key=_length)] if fitting else None


def _fits(prefix: str, code: str) -> bool:
    return prefix == ALL or code.startswith(prefix)


def _length(prefix: str) -> int:
    return 0 if prefix == ALL else len(prefix)


def _longest(prefixes: Iterable[str], code: str) -> int:
    return max((_length(prefix) for prefix in prefixes if _fits(prefix, code)), default=-1)


def checked_codes(codes: Iterable[str], where: str) -> tuple[str, ...]:
    """Return the codes in upper case. Each must be a rule's or the beginning of one. Raises UsageError, which begins
    with ``where`` they stand."""
    codes = tuple(codes)
    if not codes:
        return ()
    from hloinspect.rules.registry import RULES  # with all rules, which only who names one has to wait for

    found: list[str] = []
    for code in codes:
        upper = code.strip().upper()
        if not upper or not (upper == ALL or any(rule.code.startswith(upper) for rule in RULES)):
            raise UsageError(f"{where}: {code!r} is no rule's code or the beginning of one (see `hloinspect rules`)")
        found.append(upper)
    return tuple(found)


def checked_severity(value: str, where: str) -> Severity:
    """Return a severity. Raises UsageError for another word."""
    for severity in SEVERITIES:
        if value == severity:
            return severity
    raise UsageError(f"{where}: {value!r} is no severity; expected {', '.join(SEVERITIES)}")
