"""Tensor by tensor: what offloading each named value buys, from compiling the step with that one made otherwise."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from hloinspect.inputs.manifest import OFFLOAD, REMAT, SAVE
from hloinspect.kinds import Advice
from hloinspect.plan.axes import POLICY
from hloinspect.plan.front import is_faster_or_slower
from hloinspect.plan.model import Point, TensorLine
from hloinspect.plan.session import Session
from hloinspect.units import bytes_text, time_text

_NO_WORK_SAVED = (
    "without it no more products are computed, so it saves none: the backward pass computes it again all the same "
    "where the name is given after a function whose derivative needs what went in (name the argument of gelu instead)"
)

ADVICE: Mapping[str, Advice] = {OFFLOAD: "offload", REMAT: "recompute", SAVE: "keep"}


def offloading_point(points: Sequence[Point]) -> Point | None:
    """Return the fastest point that moves anything, a good one if there is one."""
    moving = [point for point in points if point.step is not None and point.transfers and not point.offload_lost]
    return min(moving, key=lambda point: (not point.is_good, -point.speed), default=None)


def tensor_table(session: Session, base: Point) -> tuple[TensorLine, ...]:
    """Return a line for each checkpoint name that the point offloads: two more compilations each."""
    names = session.offloaded.get(base.number, ())
    policy = session.policy_of(base.settings)
    if policy.everything or not names:
        return ()
    wanted = []
    for name in names:
        for outcome in (REMAT, SAVE):
            setting = session.setting_of(policy.with_outcome(name, outcome))
            wanted.append({**_without_target(session, base), POLICY: setting})
    found = session.compile(wanted)
    by_policy = {
        point.settings[POLICY]: point
        for point in found
        if all(point.settings.get(name) == value for name, value in base.settings.items() if name != POLICY)
    }
    lines = []
    for name in names:
        other = {
            outcome: by_policy.get(session.setting_of(policy.with_outcome(name, outcome))) for outcome in (REMAT, SAVE)
        }
        lines.append(_line(name, base, other[REMAT], other[SAVE]))
    return tuple(lines)


def _without_target(session: Session, point: Point) -> dict[str, str]:
    return {name: value for name, value in point.settings.items() if name != "target" or len(session.targets) < 2}


def _line(name: str, base: Point, remat: Point | None, kept: Point | None) -> TensorLine:
    its = [transfer for transfer in base.transfers if transfer.name == name]
    timed = all(transfer.duration_ms is not None for transfer in its) and bool(its)
    freed = None
    if kept is not None and kept.memory is not None and base.memory is not None:
        one, two = kept.memory.device_bytes, base.memory.device_bytes
        freed = None if one is None or two is None else one - two
    advice, why = _advice(base, remat, kept)
    more_ms: float | None = None
    more_flops: float | None = None
    if remat is not None and remat.step is not None and base.step is not None:
        more_ms = remat.step.compute_ms - base.step.compute_ms
        more_flops = None if remat.flops is None or base.flops is None else remat.flops - base.flops
    if more_flops == 0:
        why += f"; {_NO_WORK_SAVED}"
    return TensorLine(
        name=name,
        bytes_per_step=sum(transfer.bytes_per_step for transfer in its if transfer.direction == "d2h"),
        freed_bytes=freed,
        link_ms=sum(transfer.duration_ms or 0.0 for transfer in its) if timed else None,
        wait_ms=sum(transfer.wait_ms or 0.0 for transfer in its) if timed else None,
        recompute_ms=more_ms,
        recompute_flops=more_flops,
        gain_ms=_gain(base, remat),
        keep_gain_ms=_gain(base, kept),
        kept_device_bytes=kept.memory.device_bytes if kept is not None and kept.memory is not None else None,
        kept_fits=kept.fits if kept is not None else None,
        advice=advice,
        why=why,
    )


def _gain(base: Point, other: Point | None) -> float | None:
    if other is None or other.step is None or base.step is None:
        return None
    return base.step.time_ms - other.step.time_ms


def _advice(base: Point, remat: Point | None, kept: Point | None) -> tuple[Advice, str]:
    """Return the fastest of the three that fits, where it is faster in every scenario; else offloading stays."""
    choices = {REMAT: remat, SAVE: kept}
    errors = [
        f"{ADVICE[outcome]}: {point.error}" for outcome, point in choices.items() if point is not None and point.error
    ]
    better = {
        outcome: gain
        for outcome, point in choices.items()
        if point is not None
        and _is_choice(base, point)
        and (gain := _gain(base, point) or 0.0) > 0
        and is_faster_or_slower(base, point)
    }
    if better:
        outcome = max(better, key=lambda outcome: better[outcome])
        chosen = choices[outcome]
        assert chosen is not None
        return ADVICE[outcome], f"{time_text(better[outcome])} a step less{_memory_words(base, chosen)}"
    if errors:
        return ADVICE[OFFLOAD], f"could not be compared: {errors[0][:120]}"
    if base.fits is False:
        return ADVICE[OFFLOAD], f"the point itself does not fit into {base.obstacle}"
    slower = [
        f"{ADVICE[outcome]} would take {time_text(-gain)} more"
        for outcome, point in choices.items()
        if point is not None and (gain := _gain(base, point) or 0.0) < 0 and is_faster_or_slower(base, point)
    ]
    if kept is not None and kept.fits is False:
        slower.append("kept it does not fit")
    return ADVICE[OFFLOAD], "; ".join(slower) or "nothing else is faster within the range of the prediction"


def _is_choice(base: Point, other: Point) -> bool:
    """Return whether a point may be advised: a good one, or one that has only the fault of the point that is looked
    at."""
    return replace(other, fault=None).is_good if base.fault and other.fault else other.is_good


def _memory_words(base: Point, other: Point) -> str:
    if base.memory is None or other.memory is None:
        return ""
    one, two = base.memory.device_bytes, other.memory.device_bytes
    if one is None or two is None or abs(one - two) < 1 << 20:
        return ", with as much device memory"
    word = "more" if two > one else "less"
    return f", with {bytes_text(abs(two - one))} {word} device memory"
