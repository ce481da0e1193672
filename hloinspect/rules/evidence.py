"""Input of the rules: the facts, and the cause of each wait."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from hloinspect.rules.causes import bound_directions, cause_of, why_scheduler_is_off
from hloinspect.rules.facts import Facts


@dataclass(frozen=True)
class Evidence(Facts):
    """The facts with their causes (causes.py), each computed once."""

    @cached_property
    def scheduler_off(self) -> str:
        """Return why XLA's latency-hiding scheduler seems to be off, or ""."""
        return why_scheduler_is_off(self)

    @cached_property
    def bound_directions(self) -> frozenset[str]:
        """Return the directions of the link that limit the step."""
        return bound_directions(self)

    @cached_property
    def causes(self) -> Mapping[int, str]:
        """Return the cause of each transfer that is predicted to stall the step, by id."""
        is_off, bound = bool(self.scheduler_off), self.bound_directions
        causes = {number: cause_of(self, transfer, is_off, bound) for number, transfer in self.transfers.items()}
        return {number: cause for number, cause in causes.items() if cause}

    def of_cause(self, cause: str) -> tuple[int, ...]:
        """Return the transfers with a cause, the one that waits the longest first."""
        return self.costliest_first(number for number, found in self.causes.items() if found == cause)
