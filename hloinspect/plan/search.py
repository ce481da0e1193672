"""Searches for a faster point: one change at a time, the most promising first, and on from every gain.

A change is another outcome for one checkpoint name (keep, recompute, offload), the next value of an axis up or down, or
another set of flags. A change that makes the step faster, or makes it fit, is taken at once; the search ends when no
single change does, or when its time is over. Of points that are as fast it ends with the one that the plan calls best.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hloinspect.inputs.manifest import OFFLOAD, REMAT, SAVE
from hloinspect.kinds import SearchEnd
from hloinspect.plan.axes import FLAGS, POLICY, TARGET, flags_of
from hloinspect.plan.front import best
from hloinspect.plan.model import Point, SearchResult
from hloinspect.plan.policy import OUTCOMES, OWN, Policy
from hloinspect.plan.session import Session
from hloinspect.plan.tensors import ADVICE
from hloinspect.plan.work import Settings
from hloinspect.thresholds import UNSEEN_SHARE
from hloinspect.units import bytes_text, time_text

SEARCHED_FLAGS = ("default", "pipelined", "double-buffered", "no-lhs")
"""Sets of flags that are tried on GPUs where the user named none."""


@dataclass(frozen=True, slots=True)
class _Move:
    """A change: what it is in words, the settings that it leads to, and what it promises (ms a step; a guess)."""

    words: str
    settings: Settings
    promise: float


def search(session: Session, axes: Mapping[str, Sequence[str]], time_s: float) -> SearchResult | None:
    """Search from the policies of ``axes`` (else the step's own) and the first value of every other axis. The points
    that it tries are the session's, and it ends with that which the plan calls the best of them. None where not even a
    start could be compiled in time."""
    session.deadline = time.monotonic() + time_s
    others = {name: values[0] for name, values in axes.items() if name != POLICY}
    starts: list[dict[str, str]] = [{**others, POLICY: text} for text in axes.get(POLICY, ())] or [others]
    at = _best(session.compile(starts))
    if at is None:
        return None
    moves: list[str] = []
    ended: SearchEnd = "no single change is faster"
    while True:
        taken, out_of_time = _step(session, at, axes)
        if taken is not None:
            moves.append(_move_text(taken[0], at, taken[1]))
            at = taken[1]
            continue
        top = best(session.points)
        is_other = top is not None and top.number != at.number
        if top is not None and is_other:  # as fast within UNSEEN_SHARE, and with less memory, say
            moves.append(_move_as_fast_text(at, top))
            at = top
        if out_of_time:
            ended = "its time was over"
        if out_of_time or not is_other:
            break
    policy = session.policy_of(at.settings)
    return SearchResult(
        point=at.number,
        policy_code=policy_code(session, policy),
        flags_line=" ".join(f"--{flag.lstrip('-')}" for flag in _flags(session, at)),
        moves=tuple(moves),
        tried=len(session.points),
        ended=ended,
    )


def policy_code(session: Session, policy: Policy) -> str:
    """Return the policy as a line of JAX, or as MaxText's keys."""
    if not session.subject.maxtext:
        return policy.code()
    keys = {OFFLOAD: "offload", REMAT: "remat", SAVE: "device"}
    outcomes = dict(policy.outcomes) if policy.is_own else {name: policy.outcome_of(name) for name in session.names}
    return " ".join(["remat_policy=custom", *(f"{name}={keys[outcome]}" for name, outcome in outcomes.items())])


def _flags(session: Session, point: Point) -> tuple[str, ...]:
    return flags_of(point.settings.get(FLAGS, "default"), session.subject.names, session.subject.compiling.xla_flags)


def _step(session: Session, at: Point, axes: Mapping[str, Sequence[str]]) -> tuple[tuple[_Move, Point] | None, bool]:
    """Return the first change that pays, with its point; None where there is none. The other value is whether time was
    over before all had been tried."""
    moves = sorted(_moves(session, at, axes), key=lambda move: -move.promise)
    several = max(1, session.room.allowed)
    for begin in range(0, len(moves), several):
        if session.deadline is not None and time.monotonic() >= session.deadline:
            return None, True
        some = moves[begin : begin + several]
        found = session.compile([move.settings for move in some])
        better = [point for point in found if _is_better(point, at)]
        if better:
            chosen = max(better, key=_worth)
            return (next(move for move in some if _same(move.settings, chosen)), chosen), False
    late = session.deadline is not None and time.monotonic() >= session.deadline
    return None, late


def _moves(session: Session, at: Point, axes: Mapping[str, Sequence[str]]) -> list[_Move]:
    here = {name: value for name, value in at.settings.items() if name != TARGET}
    on_tpu = any(target.platform == "tpu" for target in session.targets.values())
    return [
        *_policy_moves(session, at, here),
        *_axis_moves(at, here, axes),
        *_flag_moves(at, here, axes.get(FLAGS, () if on_tpu else SEARCHED_FLAGS)),
    ]


def _policy_moves(session: Session, at: Point, here: Settings) -> list[_Move]:
    policy = session.policy_of(at.settings)
    if policy.everything:
        return []
    moves = []
    for name in session.names:
        its = [transfer for transfer in at.transfers if transfer.name == name]
        waits = sum(transfer.wait_ms or 0.0 for transfer in its)
        now = dict(policy.outcomes).get(name, "") if policy.is_own else policy.outcome_of(name)
        for outcome in OUTCOMES:
            if outcome != now:
                words = f"{ADVICE[outcome]} {name}"
                setting = session.setting_of(policy.with_outcome(name, outcome))
                moves.append(_Move(words, {**here, POLICY: setting}, _promise(at, now, outcome, waits)))
    return moves


def _promise(at: Point, now: str, outcome: str, waits_ms: float) -> float:
    """Guess what a change is worth: an offload that waits had better stay or be computed again; what is computed
    again could be kept; where memory is short, it is better not kept."""
    fits = at.fits is not False
    if now == OFFLOAD:
        return waits_ms * (1.0 if outcome == REMAT or fits else 0.5)
    if not fits:
        return 1e6 if outcome == REMAT else 1e5 if outcome == OFFLOAD else 0.0
    again_ms = 0.0
    if at.step is not None and at.recompute_flops and at.flops:
        again_ms = at.step.compute_ms * at.recompute_flops / at.flops
    return again_ms * (1.0 if outcome == SAVE else 0.5) if now == REMAT else 0.0


def _axis_moves(at: Point, here: Settings, axes: Mapping[str, Sequence[str]]) -> list[_Move]:
    moves = []
    for name, values in axes.items():
        if name in (POLICY, FLAGS) or here.get(name) not in values:
            continue
        place = values.index(here[name])
        for other in (place + 1, place - 1):
            if 0 <= other < len(values):
                up = other > place
                promise = 0.05 * at.step.time_ms if at.step is not None and up == (at.fits is not False) else 0.0
                moves.append(_Move(f"{name}={values[other]}", {**here, name: values[other]}, promise))
    return moves


def _flag_moves(at: Point, here: Settings, sets: Sequence[str]) -> list[_Move]:
    stall = at.step.stall_ms if at.step is not None else 0.0
    now = here.get(FLAGS, "default")
    return [_Move(f"flags={text}", {**here, FLAGS: text}, 0.9 * stall) for text in sets if text != now]


def _worth(point: Point) -> tuple[float, float]:
    """Rank good points by speed; of the others those that need the least memory."""
    if point.is_good:
        return 1.0, point.speed
    memory = point.memory
    if point.step is None or point.offload_lost or point.fault or memory is None:
        return -1.0, 0.0
    over = max(
        (memory.device_bytes or 0) / (memory.device_limit_bytes or 1),
        (memory.host_bytes or 0) / (memory.host_limit_bytes or 1) if memory.host_bytes else 0.0,
    )
    return 0.0, -over


def _is_better(point: Point, than: Point) -> bool:
    one, two = _worth(point), _worth(than)
    if one[0] != two[0]:
        return one[0] > two[0]
    return one[1] > two[1] + UNSEEN_SHARE * abs(two[1])


def _best(points: Sequence[Point]) -> Point | None:
    return max(points, key=_worth, default=None)


def _same(settings: Settings, point: Point) -> bool:
    return settings == {name: value for name, value in point.settings.items() if name != TARGET}


def _move_text(move: _Move, before: Point, after: Point) -> str:
    def step(point: Point) -> str:
        if point.step is None:
            return "nothing"
        rate = "" if point.samples_per_s is None else f" ({point.samples_per_s:.3g} samples/s)"
        return f"{time_text(point.step.time_ms)}{rate}{'' if point.fits is not False else ', does not fit'}"

    return f"{move.words}: {step(before)} -> {step(after)}"


def _move_as_fast_text(before: Point, after: Point) -> str:
    """Return what leads from where the search has ended to the best of its points, which is hardly faster."""
    changed = [name for name in {**before.settings, **after.settings} if _differs(name, before, after)]
    words = " ".join(f"{name}={after.settings.get(name, 'default' if name == FLAGS else OWN)}" for name in changed)
    sizes = [point.memory.device_bytes if point.memory else None for point in (before, after)]
    if sizes[0] is None or sizes[1] is None or sizes[0] == sizes[1]:
        return f"{words}: as fast"
    return f"{words}: as fast, with {bytes_text(sizes[1])} of device memory instead of {bytes_text(sizes[0])}"


def _differs(name: str, one: Point, other: Point) -> bool:
    return name != TARGET and one.settings.get(name) != other.settings.get(name)
