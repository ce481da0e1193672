"""Comparing points: which are worth having, which is the best, and which of them may be as fast.

Ranges of two points are not compared by their ends: what makes one step slow (a slow link, slow
kernels) does so to the other too. They are compared scenario by scenario.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from hloinspect.plan.axes import TARGET, policy_label, without_policy
from hloinspect.plan.model import Largest, Point
from hloinspect.units import bytes_text, time_text

TELLING = 0.01
"""Points whose speeds differ by less in a scenario are taken to be equally fast in it."""


def front(points: Sequence[Point]) -> tuple[int, ...]:
    """Return numbers of the good points that no other good point beats: none is as fast with less memory, or faster
    with as much. Of points that are equal in both the first stands for all."""
    good = [point for point in points if point.is_good]
    order = sorted(good, key=lambda point: (-point.speed, _device_bytes(point), point.number))
    found, least = [], None
    for point in order:
        size = _device_bytes(point)
        if least is None or size < least:
            found.append(point.number)
            least = size
    return tuple(sorted(found))


def best(points: Sequence[Point]) -> Point | None:
    """Return the fastest good point, of equally fast ones that with the least device memory; None where there is
    none."""
    good = [point for point in points if point.is_good]
    return min(good, key=lambda point: (-point.speed, _device_bytes(point), point.number), default=None)


def _device_bytes(point: Point) -> float:
    if point.memory is None or point.memory.device_bytes is None:
        return float("inf")
    return float(point.memory.device_bytes)


def is_faster_or_slower(one: Point, other: Point) -> bool:
    """Return whether the same one of two points is the faster in every scenario, by more than a hundredth."""
    if one.step is None or other.step is None:
        return True
    ratios = []
    for name, time in one.step.cases_ms.items():
        if name in other.step.cases_ms:
            ratios.append(_speed(one, time) / _speed(other, other.step.cases_ms[name]))
    return bool(ratios) and (min(ratios) > 1 + TELLING or max(ratios) < 1 - TELLING)


def _speed(point: Point, time_ms: float) -> float:
    return (point.samples or 1.0) / max(time_ms, 1e-9)


def tied_with_best(points: Iterable[Point], chosen: Point | None) -> tuple[int, ...]:
    """Return numbers of the good points that may be as fast as the chosen one."""
    if chosen is None:
        return ()
    return tuple(
        point.number
        for point in points
        if point.number != chosen.number and point.is_good and not is_faster_or_slower(point, chosen)
    )


def with_recomputation(points: Sequence[Point]) -> tuple[Point, ...]:
    """Return the points with what each computes beyond the one that computes the least, whatever the policy and flags,
    and with the number of an earlier point of the same schedule."""
    least: dict[tuple[tuple[str, str], ...], float] = {}
    for point in points:
        if point.flops is not None:
            problem = without_policy(point.settings)
            least[problem] = min(point.flops, least.get(problem, point.flops))
    seen: dict[tuple[object, ...], int] = {}
    found = []
    for point in points:
        more = None if point.flops is None else point.flops - least[without_policy(point.settings)]
        memory = point.memory
        twin = None
        if point.schedule_hash and memory is not None and point.step is not None:
            key = (point.target, point.schedule_hash, memory.device_bytes, memory.host_bytes, point.step.time_ms)
            twin = seen.setdefault((*key, point.samples), point.number)
        found.append(replace(point, recompute_flops=more, same_as=None if twin == point.number else twin))
    return tuple(found)


def largest(points: Sequence[Point], axes: Mapping[str, Sequence[str]], axis: str | None) -> tuple[Largest, ...]:
    """Return for each policy (and target) the largest value of an axis of numbers at which some point fits, and the
    largest that was tried with it: a search does not try all with all."""
    if axis is None or axis not in axes or not all(axis in point.settings for point in points):
        return ()
    by_policy: dict[str, list[Point]] = defaultdict(list)
    for point in points:
        label = policy_label(point.settings) or "as it is"
        target = point.settings.get(TARGET)
        by_policy[f"{label} on {target}" if target else label].append(point)
    found = []
    for policy, its in by_policy.items():
        tried = max((point.settings[axis] for point in its), key=float)
        good = [point for point in its if point.is_good and point.fits]
        top = max(good, key=lambda point: (float(point.settings[axis]), point.speed), default=None)
        found.append(Largest(policy, axis, top.settings[axis] if top else None, top.number if top else None, tried))
    return tuple(found)


def why_best(chosen: Point | None, points: Sequence[Point]) -> str:
    """Return a sentence on what the best point is the best of, and at what cost."""
    if chosen is None or chosen.step is None:
        deleted = sum(point.offload_lost is not None for point in points)
        large = sum(point.fits is False for point in points)
        wrong = sum(point.error is not None for point in points)
        faulty = sum(point.fault is not None for point in points)
        return (
            f"no point is good: {large} do not fit, {deleted} lose their offload, {faulty} are compiled wrongly, "
            f"{wrong} could not be compiled"
        )
    parts = [f"the fastest of {sum(point.is_good for point in points)} that fit"]
    faster = [point for point in points if point.step is not None and point.speed > chosen.speed]
    over = [point for point in faster if point.fits is False]
    if over:
        parts.append(f"{len(over)} faster {'one does' if len(over) == 1 else 'ones do'} not fit")
    if lost := [point for point in faster if point.offload_lost is not None]:
        parts.append(f"{len(lost)} faster {'one loses its' if len(lost) == 1 else 'ones lose their'} offload")
    if wrong_ones := [point for point in faster if point.fault is not None]:
        parts.append(f"{len(wrong_ones)} faster {'one is' if len(wrong_ones) == 1 else 'ones are'} compiled wrongly")
    if chosen.step.stall_ms > 0.005 * chosen.step.time_ms:
        share = chosen.step.stall_ms / chosen.step.time_ms
        parts.append(f"it still waits {time_text(chosen.step.stall_ms)} a step for the host ({share:.0%})")
    headroom = chosen.memory.headroom_bytes if chosen.memory else None
    if headroom is not None:
        parts.append(f"{bytes_text(headroom)} of device memory are left")
    return "; ".join(parts)
