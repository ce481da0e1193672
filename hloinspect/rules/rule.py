"""Types of a rule and of what it finds."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from inspect import cleandoc
from typing import TYPE_CHECKING, Final, Literal

from hloinspect.kinds import Severity

if TYPE_CHECKING:
    from hloinspect.report.schema import SourceInfo
    from hloinspect.rules.evidence import Evidence

ERROR: Final = "error"
WARNING: Final = "warning"
INFO: Final = "info"
SEVERITIES: tuple[Severity, ...] = (ERROR, WARNING, INFO)

HEADINGS = (
    "What it finds",
    "Why it matters",
    "What to do",
    "When the advice does not hold",
    "Example",
    "References",
)
"""The headings of every rule's docstring, in order."""

# What a rule may need; engine.py says for each whether it is there, and how to get it.
Need = Literal[
    "module", "schedule", "prediction", "memory", "stablehlo", "audit", "target", "measured", "trace"
]  # fmt: skip
MODULE: Final = "module"
SCHEDULE: Final = "schedule"
PREDICTION: Final = "prediction"
MEMORY: Final = "memory"
STABLEHLO: Final = "stablehlo"
AUDIT: Final = "audit"
TARGET: Final = "target"
MEASURED: Final = "measured"
TRACE: Final = "trace"


@dataclass(frozen=True, slots=True)
class Found:
    """One diagnosis before it becomes a finding of the report.

    ``transfers`` are the ids that it is about, the one that costs the most first. ``cost_ms`` is the time that they add
    to the step (the sum of their waits, which are additive). ``gain_ms`` is what the remedy would save as far as the
    prediction can say. Both are per step. ``severity`` replaces the rule's own, ``instruction`` and ``computation``
    those of the first transfer. ``evidence`` has the unit in each key.
    """

    message: str
    remedy: str
    transfers: tuple[int, ...] = ()
    cost_ms: float | None = None
    gain_ms: float | None = None
    severity: Severity | None = None
    instruction: str | None = None
    computation: str | None = None
    source: SourceInfo | None = None
    evidence: dict[str, object] = field(default_factory=dict)


Check = Callable[["Evidence"], Iterable[Found]]


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule. ``code`` is stable (HLO1xx time, 2xx memory, 3xx correctness, 4xx evidence), ``name`` kebab-case.

    ``severity`` is the highest that it gives; a rule with ``by_cost`` gives a lower one where little is lost
    (engine.py). ``needs`` is the evidence without which it cannot run. ``gap`` returns what a rule that runs could
    still not check.
    """

    code: str
    name: str
    severity: Severity
    needs: tuple[Need, ...]
    check: Check
    by_cost: bool = False
    gap: Callable[[Evidence], str] | None = None

    @property
    def summary(self) -> str:
        """Return the first line of the rule's page."""
        return cleandoc(self.check.__doc__ or "").partition("\n")[0]

    def sections(self) -> dict[str, str]:
        """Return the text below each heading of the rule's page.

        Raises ValueError where a heading is missing or out of order.
        """
        found: dict[str, list[str]] = {}
        current: list[str] | None = None
        for line in cleandoc(self.check.__doc__ or "").splitlines()[1:]:
            if line in HEADINGS:
                current = found.setdefault(line, [])
            elif current is not None:
                current.append(line)
        if tuple(found) != HEADINGS:
            raise ValueError(f"{self.code} has the headings {', '.join(found)}; expected {', '.join(HEADINGS)}")
        return {heading: cleandoc("\n" + "\n".join(lines)) for heading, lines in found.items()}
