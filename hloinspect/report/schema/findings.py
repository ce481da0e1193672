"""What rules found, and what they could not look at."""

from __future__ import annotations

from dataclasses import dataclass

from hloinspect.kinds import Severity
from hloinspect.offload.records import SourceInfo


@dataclass(frozen=True, slots=True)
class FindingInfo:
    """One diagnosis: what is wrong, where, on what evidence, and what to do (docs/rules/index.md)."""

    code: str
    """Code of the rule, such as ``HLO101``."""

    name: str
    """Name of the rule."""

    severity: Severity
    """How bad it is."""

    message: str
    """What is wrong."""

    remedy: str
    """What to do."""

    transfer: int | None
    """``id`` of the transfer that costs the most of those it is about."""

    instruction: str | None
    """The instruction that it is about."""

    source: SourceInfo | None
    """The user's line."""

    evidence: dict[str, object]
    """Figures that it rests on, with the unit in each key. Other rules have other keys."""

    transfers: tuple[int, ...] = ()
    """``id``s of all transfers that it is about."""

    computation: str | None = None
    """The computation of ``instruction``."""

    loop: str | None = None
    """The while instruction around ``computation``."""

    cost_ms: float | None = None
    """By how much the transfers make the step longer, predicted; null where the prediction does not show it."""

    gain_ms: float | None = None
    """By how much the remedy would make the step shorter at most, predicted; null where the prediction does not show
    it."""

    source_text: str | None = None
    """The line of ``source`` itself, where the file is there."""


@dataclass(frozen=True, slots=True)
class RuleNotRun:
    """A rule that lacks evidence on the whole step or on a part of it: what it would have found there is not known. It
    may have findings on the rest."""

    code: str
    """Code of the rule."""

    name: str
    """Name of the rule."""

    reason: str
    """What is missing, and how to get it."""


@dataclass(frozen=True, slots=True)
class RuleLeftOut:
    """A rule that did not run because it was not requested."""

    code: str
    """Code of the rule; ``ALL`` where no rule was requested."""

    name: str
    """Name of the rule."""

    reason: str
    """The entry that decided, such as ``ignore = HLO3``."""
