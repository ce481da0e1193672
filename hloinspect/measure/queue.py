"""Rates of the host link of a TPU, fitted to the waits of its trace.

A TPU's trace has no event for a copy: ``Async XLA Ops`` is the window from start to done, with the time in the queue.
But the device's own line shows when each copy was started and how long each wait took. So the model that predicts waits
(``predict/link.py``: one queue for each direction, both slower while both run) is run over the events of a step. Its
rates are fitted until its waits are the measured ones.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray

from hloinspect.errors import InputError
from hloinspect.hlo.load import load_module_bytes
from hloinspect.kinds import D2H, H2D, Direction
from hloinspect.measure.figures import DUPLEX, LATENCY, RATES, Floats, LeftOut, MeasuredFigure, Measurement
from hloinspect.offload.transfers import Offload, find_offload
from hloinspect.predict.link import Link, Rates
from hloinspect.profiles.xplane import Columns, Line, Plane
from hloinspect.profiles.xplane.embedded import program_id_of
from hloinspect.units import PS_PER_MS

CLEAN_SHARE = 5 / 784
"""The largest difference from the median step, as a share of it, of a clean step: 5 ms of 784 ms. The others of that
public trace, alternately long and short, show jumps of the clock."""

MIN_STEPS = 3
MAX_MISFIT = 0.02
"""The largest sum of differences between fitted and measured waits, as a share of the waits, with which a fit is
valid."""

MAX_UNCERTAINTY = 0.02
"""The largest standard deviation of a rate, as a share of it, with which the waits determine it."""

MODULES, OPS = "XLA Modules", "XLA Ops"
EventRole = Literal["start", "done", "synchronous"]

_START: Final = "start"
_DONE: Final = "done"
_BOTH: Final = "synchronous"
_NAMES = (H2D, D2H, DUPLEX)


@dataclass(frozen=True, slots=True)
class Event:
    """A start or a wait on the device's line in a step.

    It has the work before it (from the end of the one before) and its own duration, medians over the clean steps, in
    ps. ``key`` is the pair; a synchronous transfer is both.
    """

    role: EventRole
    key: str
    transfer: int
    direction: Direction
    bytes: int
    before_ps: float
    duration_ps: float


@dataclass(frozen=True, slots=True)
class Steps:
    """The typical step of one module on one device. ``clean`` of ``steps`` runs are like it, in time and sequence."""

    device: str
    module: str
    events: tuple[Event, ...]
    steps: int
    clean: int


@dataclass(frozen=True, slots=True)
class Fit:
    """Rates in bytes a second, and the factor: only those that the waits determine.

    ``misfit`` is the sum of the absolute differences, as a share of the sum of the waits.
    """

    figures: Mapping[str, float]
    misfit: float


def offloads_of(modules: Mapping[int, bytes], name: str) -> tuple[dict[int, Offload], tuple[str, ...]]:
    """Return those embedded modules, by program id, that have host transfers, and a text for each that could not be
    read."""
    found: dict[int, Offload] = {}
    failed: list[str] = []
    for number, proto in modules.items():
        try:
            offload = find_offload(load_module_bytes(proto, f"{name}: program {number}"))
        except InputError as error:
            failed.append(str(error))
            continue
        if offload.transfers:
            found[number] = offload
    return found, tuple(failed)


# ---- the typical step


def steps_of(plane: Plane, offloads: Mapping[int, Offload]) -> list[Steps]:
    """Return the typical step of each module with host transfers on one TPU. Those without three clean steps are left
    out."""
    lines = {line.name: line for line in plane.lines}
    if MODULES not in lines or OPS not in lines:
        return []
    names = {number: kind.display_name or kind.name for number, kind in plane.events.items()}
    ops = lines[OPS].columns()
    order = np.argsort(ops.start_ps, kind="stable")
    found = []
    for number, offload in offloads.items():
        runs = _runs(plane, lines[MODULES], number)
        roles = _roles(offload)
        codes = {kind: roles[name] for kind, name in names.items() if name in roles}
        steps = [step for run in runs if (step := _events_in(ops, order, codes, run))]
        found.append(_typical(plane.name, offload.program.module.name, steps))
    return [steps for steps in found if steps.clean >= MIN_STEPS]


def _runs(plane: Plane, line: Line, program: int) -> list[tuple[int, int]]:
    own = [number for number, kind in plane.events.items() if program_id_of(kind) == program]
    columns = line.columns()
    chosen = np.isin(columns.metadata_id, own) & columns.usable
    return list(zip(columns.start_ps[chosen].tolist(), columns.end_ps[chosen].tolist(), strict=True))


_Role = tuple[EventRole, str, int, Direction, int]


def _roles(offload: Offload) -> dict[str, _Role]:
    """Return for each instruction what its events do: role, pair, transfer, direction, bytes. Names are unique in a
    module."""
    roles: dict[str, _Role] = {}
    for transfer in offload.transfers:
        size = (transfer.id, transfer.direction, transfer.bytes)
        if not transfer.asynchronous:
            roles[transfer.start] = (_BOTH, transfer.start, *size)
            continue
        key = offload.pairs.start_keys.get((transfer.computation, transfer.start))
        if key is None:
            continue
        roles[transfer.start] = (_START, key[1], *size)
        for done, own in offload.pairs.done_keys.items():
            if own == key:
                roles[done[1]] = (_DONE, key[1], *size)
    return roles


_Step = tuple[int, tuple[tuple[_Role, ...], Floats, Floats]]


def _events_in(
    ops: Columns, order: NDArray[np.int64], codes: Mapping[int, _Role], run: tuple[int, int]
) -> _Step | None:
    """Return the time of one run, and of its starts and waits the role, the work before, and the duration."""
    begin, end = run
    first, last = np.searchsorted(ops.start_ps[order], (begin, end))
    inside = order[first:last]
    inside = inside[np.isin(ops.metadata_id[inside], list(codes)) & (ops.end_ps[inside] <= end)]
    if not len(inside):
        return None
    roles = tuple(codes[number] for number in ops.metadata_id[inside].tolist())
    start, stop = ops.start_ps[inside], ops.end_ps[inside]
    before = start - np.concatenate(([begin], stop[:-1]))
    return end - begin, (roles, np.maximum(before, 0).astype(np.float64), (stop - start).astype(np.float64))


def _typical(device: str, module: str, steps: Sequence[_Step]) -> Steps:
    if not steps:
        return Steps(device, module, (), 0, 0)
    median = float(np.median([time for time, _ in steps]))
    clean = [parts for time, parts in steps if abs(time - median) <= CLEAN_SHARE * median]
    sequence = Counter(roles for roles, _, _ in clean).most_common(1)[0][0] if clean else ()
    clean = [parts for parts in clean if parts[0] == sequence]
    if not clean:
        return Steps(device, module, (), len(steps), 0)
    before = np.median([parts[1] for parts in clean], axis=0)
    duration = np.median([parts[2] for parts in clean], axis=0)
    events = [Event(*role, float(b), float(d)) for role, b, d in zip(sequence, before, duration, strict=True)]
    return Steps(device, module, tuple(events), len(steps), len(clean))


# ---- the fit


def modelled_waits(events: Sequence[Event], h2d: float, d2h: float, factor: float, latency_ps: float) -> Floats:
    """Return the time in ms that the queue model makes each event of a step last. Rates are in bytes a second."""
    alone = {H2D: h2d / 1e12, D2H: d2h / 1e12}
    both = {direction: rate * factor for direction, rate in alone.items()}
    link = Link(Rates(alone, both, latency_ps), lambda served: None)
    tickets: dict[str, int] = {}
    waits = np.zeros(len(events))
    now = 0.0
    for index, event in enumerate(events):
        now += event.before_ps
        if event.role != _DONE:
            tickets[event.key] = link.submit(event.direction, event.transfer, event.bytes, now, None)
        if event.role == _START:
            now += event.duration_ps
        elif event.key in tickets:
            link.advance(now)
            end = max(now, link.finish(tickets.pop(event.key)))
            waits[index] = (end - now) / PS_PER_MS
            now = end
    return waits


def fit_rates(events: Sequence[Event], latency_ps: float) -> Fit:
    """Return the rates and duplex factor with which the model's waits come nearest to the measured ones (least
    squares).

    What the waits do not determine is left out: a direction without a wait, or the factor where the directions never
    ran at once.
    """
    waiting = np.array([event.role != _START for event in events])
    measured = np.array([event.duration_ps for event in events])[waiting] / PS_PER_MS
    total = float(measured.sum())
    moved = {
        d: sum(event.bytes for event in events if event.role != _DONE and event.direction == d) for d in (H2D, D2H)
    }
    if not total:
        return Fit({}, 0.0)

    def residual(logs: Floats) -> Floats:
        h2d, d2h, factor = np.exp(logs).tolist()
        waits: Floats = modelled_waits(events, h2d, d2h, factor, latency_ps)[waiting] - measured
        return waits

    used = [0] * bool(moved[H2D]) + [1] * bool(moved[D2H]) + [2] * all(moved.values())
    begin = np.log([max(1.0, moved[d]) / total * 1e3 for d in (H2D, D2H)] + [1.0])
    logs, rest = begin, residual(begin)
    for scale, factor in _BEGINNINGS:
        found = _least_squares(residual, begin + np.log([scale, scale, factor]), used)
        left = residual(found)
        if np.square(left).sum() < np.square(rest).sum():
            logs, rest = found, left
        if np.abs(rest).sum() < _GOOD_MISFIT * total:
            break
    deviations = _deviations(_slopes_both_ways(residual, logs, rest, used), rest, total)
    determined = {
        _NAMES[index]: float(np.exp(logs[index]))
        for index, deviation in zip(used, deviations, strict=True)
        if deviation <= MAX_UNCERTAINTY
    }
    return Fit(determined, float(np.abs(rest).sum()) / total)


_BEGINNINGS = tuple((scale, factor) for scale in (0.7, 1.2, 2.0) for factor in (1.0, 0.7))
_GOOD_MISFIT = 1e-3
_MAX_ROUNDS = 30


def _least_squares(residual: Callable[[Floats], Floats], logs: Floats, used: Sequence[int]) -> Floats:
    """Return the logarithms of the parameters ``used`` at the minimum, by the method of Levenberg and Marquardt.

    The duplex factor stays at or below 1.
    """
    damping, now = 1e-3, residual(logs)
    slopes = _slopes(residual, logs, now, used)
    for _ in range(_MAX_ROUNDS):
        square = slopes.T @ slopes
        try:
            step = np.linalg.solve(
                square + damping * (np.diag(np.diag(square)) + 1e-9 * np.eye(len(used))), slopes.T @ now
            )
        except np.linalg.LinAlgError:
            break
        tried = logs.copy()
        tried[used] -= np.clip(step, -0.5, 0.5)
        tried[2] = min(tried[2], 0.0)
        then = residual(tried)
        if np.square(then).sum() < np.square(now).sum():
            is_settled = bool(np.abs(tried - logs).max() < 1e-9)
            logs, now, damping = tried, then, damping / 5
            slopes = _slopes(residual, logs, now, used)
            if is_settled:
                break
        else:
            damping *= 5
            if damping > 1e9:
                break
    return logs


def _slopes(
    residual: Callable[[Floats], Floats], logs: Floats, now: Floats, used: Sequence[int], step: float = -1e-5
) -> NDArray[np.float64]:
    """Return the derivatives of the residuals, taken downwards as the factor may be at its bound."""
    columns = []
    for index in used:
        moved = logs.copy()
        moved[index] += step
        columns.append((residual(moved) - now) / step)
    return np.stack(columns, axis=1)


def _slopes_both_ways(
    residual: Callable[[Floats], Floats], logs: Floats, now: Floats, used: Sequence[int]
) -> NDArray[np.float64]:
    """Return the smaller of the derivatives to both sides.

    Where a faster link changes no wait but a slower one would, the wait gives only a lower bound of the rate.
    """
    down, up = (_slopes(residual, logs, now, used, step) for step in (-1e-3, 1e-3))
    return np.where(np.abs(down) < np.abs(up), down, up)


def _deviations(slopes: NDArray[np.float64], rest: Floats, total_ms: float) -> Floats:
    """Return the standard deviation of each parameter, as a share of it.

    It is infinite for one whose change others can compensate. The residuals' own spread counts, and at least a
    thousandth of the mean wait: waits are not known better than that.
    """
    size, count = slopes.shape
    spread = max(float(np.sqrt(np.square(rest).sum() / max(1, size - count))), 1e-3 * total_ms / size)
    _, values, directions = np.linalg.svd(slopes, full_matrices=False)
    deviations = np.zeros(count)
    for value, direction in zip(values, directions, strict=True):
        if value < 1e-6 * total_ms:
            deviations[np.abs(direction) > 1e-2] = np.inf
        else:
            deviations += np.square(direction * spread / value)
    return np.where(np.isinf(deviations), np.inf, np.sqrt(deviations)) if size >= count else np.full(count, np.inf)


# ---- all devices


def measure_waits(devices: Iterable[Steps], latency_us: float) -> Measurement:
    """Measure the rates of a TPU's host link from typical steps of its devices: medians over devices and modules.

    ``latency_us`` of a copy is taken as given: next to copies of gigabytes it does not show.
    """
    values: dict[str, list[float]] = {name: [] for name in _NAMES}
    copies = dict.fromkeys(_NAMES, 0)
    sizes: set[int] = set()
    notes: list[str] = []
    every = list(devices)
    for steps in every:
        fit = fit_rates(steps.events, latency_us * 1e6)
        notes.append(f"{steps.device}, {steps.module}: {steps.clean} of {steps.steps} steps are clean")
        if fit.misfit > MAX_MISFIT:
            notes[-1] += f"; left out, as the queue model misses their waits by {100 * fit.misfit:.1f} %"
            continue
        moved = Counter[str](event.direction for event in steps.events if event.role != _DONE)
        for name, value in fit.figures.items():
            values[name].append(value)
            copies[name] += steps.clean * (moved[name] if name in moved else moved.total())
        sizes.update(event.bytes for event in steps.events)
    figures = [_figure(name, values[name], copies[name], sizes) for name in (D2H, H2D, DUPLEX) if values[name]]
    left = [LeftOut(RATES.get(name, name), _why(every)) for name in (D2H, H2D, DUPLEX) if not values[name]]
    left.append(LeftOut(LATENCY, "waits for large copies do not show it"))
    return Measurement(tuple(figures), tuple(left), tuple(notes))


def _figure(name: str, values: Sequence[float], count: int, sizes: set[int]) -> MeasuredFigure:
    low, value, high = (float(np.percentile(values, share)) for share in (10, 50, 90))
    span = f"{min(sizes):,} B" if len(sizes) == 1 else f"{min(sizes):,} to {max(sizes):,} B"
    kind = "d2h and h2d" if name == DUPLEX else name
    what = f"{kind} copies of {span}, fitted to the waits of {len(values)} typical step{'s' * (len(values) > 1)}"
    return MeasuredFigure(RATES.get(name, name), value, low, high, count, what)


def _why(devices: Sequence[Steps]) -> str:
    if not devices:
        return f"no module with host transfers and {MIN_STEPS} clean steps"
    return "the waits do not show it: nothing waits for such copies, or the directions never run at once"
