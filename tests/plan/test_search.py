"""The search over points whose speed is a formula, so that its path can be compared with all possible points."""

from __future__ import annotations

import itertools
import re
import threading
from collections.abc import Iterable, Sequence
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from hloinspect.compile.many import Compiled
from hloinspect.hardware import load_target
from hloinspect.plan.front import best
from hloinspect.plan.judge import Judge, Yardstick
from hloinspect.plan.model import MemoryUse, Point, StepTime
from hloinspect.plan.policy import OUTCOMES, Policy, read_policies
from hloinspect.plan.run import Outcome, Room
from hloinspect.plan.search import search
from hloinspect.plan.session import Session
from hloinspect.plan.work import Settings, Subject, Work

NAMES = ("a", "b", "c")


class Formula(Session):
    """A session whose points are not compiled: each outcome of each name has a time and a size, and so has a batch."""

    ms: dict[tuple[str, str], float]
    gib: dict[tuple[str, str], float]

    def compile(self, wanted: Iterable[Settings]) -> list[Point]:
        self.names = NAMES
        found = []
        for settings in wanted:
            key = self._key(settings)
            if key not in self._numbers:
                self._numbers[key] = len(self.points) + 1
                self.points.append(self.point_of(self._numbers[key], dict(settings)))
            found.append(self.points[self._numbers[key] - 1])
        return found

    def point_of(self, number: int, settings: dict[str, str]) -> Point:
        policy, batch = self.policy_of(settings), int(settings["batch"])
        outcomes = [(name, policy.outcome_of(name)) for name in NAMES]
        time = 2.0 + batch * (5.0 + sum(self.ms[outcome] for outcome in outcomes))
        if settings.get("flags") == "pipelined":
            time *= 0.9
        size = batch * (2.0 + sum(self.gib[outcome] for outcome in outcomes))
        memory = MemoryUse(int(size * 2**30), 40 * 2**30, 32 * 2**30, 0, None, 1, "artifacts")
        step = StepTime(time, time, time, time, 0.0, time, time, {"central": time})
        rate = batch / time * 1e3
        fits = size <= 40
        return Point(
            number, settings, "gb200", 1, fits=fits, step=step, memory=memory, samples=batch, samples_per_s=rate
        )


FIGURES = st.fixed_dictionaries({key: st.integers(0, 9) for key in itertools.product(NAMES, OUTCOMES)})


def session_of(ms: dict[tuple[str, str], int], gib: dict[tuple[str, str], int]) -> Formula:
    session = Formula(
        subject=Subject("a.py:f"),
        targets={"gb200": load_target("gb200")},
        judge=Judge(Yardstick()),
        folder=Path("nowhere"),
        room=Room(2, None),
        cache=None,
        say=lambda text: None,
        policies=read_policies(["offload:a+b", "save:a+b+c"], {}),
    )
    session.ms = {key: float(value) for key, value in ms.items()}
    session.gib = {key: float(value) for key, value in gib.items()}
    return session


@given(FIGURES, FIGURES)
def test_no_single_change_of_what_a_search_found_is_faster(
    ms: dict[tuple[str, str], int], gib: dict[tuple[str, str], int]
):
    session = session_of(ms, gib)
    axes = {"policy": ("offload:a+b",), "batch": ("1", "2", "4"), "flags": ("default", "pipelined")}
    found = search(session, axes, 60.0)
    assert found is not None
    assert found.ended == "no single change is faster"
    at = session.points[found.point - 1]
    assert (best(session.points) or at).number == at.number  # what the plan names beside it
    policy, batch = session.policy_of(at.settings), at.settings["batch"]
    neighbours = [
        {**at.settings, "policy": session.setting_of(policy.with_outcome(name, outcome))}
        for name in NAMES
        for outcome in OUTCOMES
    ]
    steps = {"1": ("2",), "2": ("1", "4"), "4": ("2",)}[batch]
    neighbours += [{**at.settings, "batch": other} for other in steps]
    neighbours += [{**at.settings, "flags": other} for other in ("default", "pipelined")]
    for other in session.compile(neighbours):
        if at.is_good:
            assert not other.is_good or other.speed <= at.speed * 1.001 + 1e-9
        else:
            assert not other.is_good


def test_where_names_do_not_meddle_a_search_finds_the_best_of_all():
    ms = {
        (name, outcome): cost
        for name, costs in zip(NAMES, ((3, 0, 1), (0, 2, 1), (1, 1, 0)), strict=True)
        for outcome, cost in zip(OUTCOMES, costs, strict=True)
    }
    gib = {(name, outcome): 2 * (outcome == "save") for name in NAMES for outcome in OUTCOMES}
    session = session_of(ms, gib)
    found = search(session, {"policy": ("offload:a+b",), "batch": ("1", "2", "4", "8")}, 60.0)
    assert found is not None
    at = session.points[found.point - 1]
    every = [
        session.point_of(0, {"policy": session.setting_of(policy_of(outcomes)), "batch": batch, "flags": flags})
        for outcomes in itertools.product(OUTCOMES, repeat=3)
        for batch in ("1", "2", "4", "8")
        for flags in ("default", "pipelined")
    ]
    assert at.speed == max(point.speed for point in every if point.is_good)
    assert found.tried < len(every) / 2
    assert found.flags_line == "--xla_gpu_enable_pipelined_host_offloading=true"
    assert found.policy_code == session.policy_of(at.settings).code()
    assert all(re.match(r"(keep|recompute|offload) \w|batch=|flags=", move) for move in found.moves)


def test_of_equally_fast_points_a_search_ends_with_the_one_that_the_plan_calls_best():
    ms = dict.fromkeys(itertools.product(NAMES, OUTCOMES), 1)
    gib = {(name, outcome): 1 + (outcome == "save") for name in NAMES for outcome in OUTCOMES}
    session = session_of(ms, gib)
    found = search(session, {"policy": ("save:a+b+c",), "batch": ("1",), "flags": ("default",)}, 60.0)
    assert found is not None
    chosen = best(session.points)
    assert chosen is not None
    assert (found.point, chosen.memory.device_bytes) == (chosen.number, 5 * 2**30)
    assert "as fast, with 7 GiB of device memory instead of 8 GiB" in found.moves[0]


def policy_of(outcomes: tuple[str, ...]) -> Policy:
    policy = Policy()
    for name, outcome in zip(NAMES, outcomes, strict=True):
        policy = policy.with_outcome(name, outcome)
    return policy


def test_a_search_whose_time_is_over_gives_the_best_so_far():
    session = session_of(
        dict.fromkeys(itertools.product(NAMES, OUTCOMES), 1), dict.fromkeys(itertools.product(NAMES, OUTCOMES), 1)
    )
    found = search(session, {"policy": ("offload:a+b",), "batch": ("1", "2")}, 0.0)
    assert found is not None
    assert found.ended == "its time was over"
    assert found.tried == 1


class Refusing(Session):
    """A session whose compiler refuses everything, and counts the requests."""

    requested: list[int]

    def _outcomes(self, works: Sequence[Work], stop: threading.Event) -> Iterable[Outcome]:
        for work in works:
            for number, cell in enumerate(work.cells):
                self.requested.append(cell.number)
                yield Outcome(work, cell, Compiled(number, None, f"no {work.target.name}"))


def test_a_session_compiles_no_point_twice_on_however_many_targets():
    session = Refusing(
        subject=Subject("a.py:f"),
        targets={name: load_target(name) for name in ("gb200", "h100")},
        judge=Judge(Yardstick()),
        folder=Path("nowhere"),
        room=Room(2, None),
        cache=None,
        say=lambda text: None,
    )
    session.requested = []
    one, two = {"batch": "1", "flags": "default"}, {"batch": "1", "flags": "pipelined"}
    first = session.compile([one, one])
    assert [(p.number, p.settings["target"], p.error) for p in first] == [
        (1, "gb200", "no gb200"),
        (2, "h100", "no h100"),
    ] * 2
    assert [p.number for p in session.compile([two, one])] == [3, 4, 1, 2]
    assert session.requested == [1, 2, 3, 4]
    assert [p.number for p in session.points] == [1, 2, 3, 4]
    assert session.compile([]) == []
