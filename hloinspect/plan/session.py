"""A plan under way: its targets and policies, the points that it has, and how more of them are compiled."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from hloinspect.compile.topology import choose_topology
from hloinspect.hardware.target import Target
from hloinspect.plan.axes import POLICY, TARGET
from hloinspect.plan.judge import Judge
from hloinspect.plan.model import Point
from hloinspect.plan.policy import OWN, Policy
from hloinspect.plan.run import Outcome, Room, remaining_text, run
from hloinspect.plan.work import Settings, Subject, Work, works_of

Progress = Callable[[str], None]


@dataclass
class Session:
    """A plan under way. ``points`` are numbered from 1 in the order in which they were requested. ``policies`` maps
    what stands in a setting to what it means. ``names`` are the checkpoint names of the step, ``offloaded`` those whose
    values each point sends to the host, ``own`` the policy of the step itself where it is one of names. ``made`` are
    the policies that a step has made of names where it was given none, by what stands in a setting; None where points
    differ."""

    subject: Subject
    targets: Mapping[str, Target]
    judge: Judge
    folder: Path
    room: Room
    cache: Path | None
    say: Progress
    policies: dict[str, Policy] = field(default_factory=dict)
    points: list[Point] = field(default_factory=list)
    names: tuple[str, ...] = ()
    offloaded: dict[int, tuple[str, ...]] = field(default_factory=dict)
    own: Policy | None = None
    made: dict[str, Policy | None] = field(default_factory=dict)
    deadline: float | None = None
    scheduler: str | None = None
    _numbers: dict[tuple[tuple[str, str], ...], int] = field(default_factory=dict)

    def compile(self, wanted: Iterable[Settings]) -> list[Point]:
        """Return the points of these settings on every target, in their order; a point that is there already is not
        compiled again. With a ``deadline`` (monotonic), what was not ready by then is missing."""
        wanted = [dict(settings) for settings in wanted]
        label = self._of_targets()[0]
        new = [settings for settings in wanted if self._key({**settings, **label}) not in self._numbers]
        new = list({self._key(settings): settings for settings in new}.values())
        works = works_of(self.subject, new, self.targets, self.policies, first=self._next)
        for work in works:
            for cell in work.cells:
                self._numbers[self._key(cell.settings)] = cell.number
        if new:
            total = len(new) * len(self.targets)
            self.points += self._run(works, total)
            self.points.sort(key=lambda point: point.number)
        there = {point.number: point for point in self.points}
        requested = [
            self._numbers.get(self._key({**settings, **own})) for settings in wanted for own in self._of_targets()
        ]
        return [there[number] for number in requested if number is not None and number in there]

    @property
    def _next(self) -> int:
        return 1 + max((number for number in self._numbers.values()), default=0)

    def _of_targets(self) -> list[dict[str, str]]:
        return [{TARGET: label} for label in self.targets] if len(self.targets) > 1 else [{}]

    @staticmethod
    def _key(settings: Settings) -> tuple[tuple[str, str], ...]:
        return tuple(sorted(settings.items()))

    def _run(self, works: Sequence[Work], total: int) -> list[Point]:
        started = time.monotonic()
        stop = threading.Event()
        timer = None
        if self.deadline is not None:
            timer = threading.Timer(max(0.0, self.deadline - time.monotonic()), stop.set)
            timer.daemon = True
            timer.start()
        found: list[Point] = []
        self.say(remaining_text(0, total, 0.0))
        try:
            for outcome in self._outcomes(works, stop):
                found.append(self._point(outcome))
                self.say(remaining_text(len(found), total, time.monotonic() - started))
        finally:
            stop.set()
            if timer is not None:
                timer.cancel()
        return found

    def _outcomes(self, works: Sequence[Work], stop: threading.Event) -> Iterable[Outcome]:
        if self.scheduler is None:
            return run(works, self.folder, room=self.room, cache=self.cache, stop=stop)
        from hloinspect.plan.cluster import run_on_cluster

        return run_on_cluster(works, self.folder, self.scheduler, self.cache is not None, stop)

    def _point(self, outcome: Outcome) -> Point:
        """Return a compilation as a point; one that failed is a point with its error."""
        work, cell, compiled = outcome.work, outcome.cell, outcome.compiled
        self.names = self.names or compiled.names
        if compiled.policy is not None:
            made, text = Policy(*compiled.policy), cell.settings.get(POLICY, OWN)
            if self.made.setdefault(text, made) != made:
                self.made[text] = None
            if self.own is None and self.policy_of(cell.settings).is_own:
                self.own = made
        if compiled.result is None:
            layout = choose_topology(work.target, work.compiling.devices, work.compiling.topology)
            return Point(cell.number, dict(cell.settings), work.target.name, layout.devices, error=compiled.error)
        names = dict.fromkeys(name.name for name in compiled.result.manifest.offload_names)
        self.offloaded[cell.number] = tuple(names)
        return self.judge.compiled(cell.number, cell.settings, compiled.result, work.target)

    def setting_of(self, policy: Policy) -> str:
        """Return the text for a policy in a setting, and note the policy."""
        for text, known in self.policies.items():
            if known == policy:
                return text
        self.policies[policy.text()] = policy
        return policy.text()

    def code_of(self, text: str) -> str:
        """Return the policy of a setting as code: by its names where the step has made it of names."""
        policy, made = self.policies[text], self.made.get(text)
        if made is None:
            return policy.code()
        return f"{policy.code()}, which is {made.code()}" if policy.is_own else made.code()

    def policy_of(self, settings: Settings) -> Policy:
        """Return the policy of a point, by its names where they are known: the step's own where nothing was said."""
        text = settings.get(POLICY, "")
        found = self.policies.get(text, Policy(is_own=True))
        if found.everything:
            return self.made.get(text) or found
        return self.own if found == Policy(is_own=True) and self.own is not None else found
