"""Waits of the main stream of a GPU, and the transfer that each was for.

CUPTI does not record that a stream waits for an event: it shows only as a gap of the main stream. A gap belongs to the
dones that the schedule has between the operations around it, in their order (async_execution.cc: a done makes the main
stream wait for its event, one after the other).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hloinspect.measure import events
from hloinspect.measure.events import DeviceEvents
from hloinspect.measure.join import Loop, ProgramJoin
from hloinspect.measure.steps import innermost_bounds
from hloinspect.profiles.distinct import distinct
from hloinspect.timeline.spans import Flags, Ints

FAR = np.int64(1) << np.int64(60)
_NEVER = np.int64(-2)

LaunchTimes = Callable[[Ints], Ints]
"""A function that gives for correlation ids the times at which their driver calls returned, -1 where that is not
known."""


@dataclass(frozen=True, slots=True)
class Stream:
    """The main stream: all its events (indices, times), the time that its work had reached, and its index among the
    lines.

    It also has the events with a place in the schedule of the step's program, that place, and their ops.
    """

    event: Ints
    start_ps: Ints
    end_ps: Ints
    reached_ps: Ints
    ranked: Flags
    rank: Ints
    op: NDArray[np.int32]
    line: int


@dataclass(frozen=True, slots=True)
class Waits:
    """The wait charged to each event of the device, the host-bound time of each run, and whether all needed launches
    are known."""

    wait_ps: Ints
    host_bound_ps: Ints
    launches_known: bool


@dataclass(frozen=True, slots=True)
class _Awaited:
    """Events beside the main stream that ended in a gap of it and have their dones there, one element each.

    They have the place ``after`` of the gap's end on the main stream, the begin of the gap, and the order of the dones.
    """

    event: Ints
    after: Ints
    idle_from: Ints
    order: Ints

    def where(self, chosen: Flags | Ints) -> _Awaited:
        return _Awaited(self.event[chosen], self.after[chosen], self.idle_from[chosen], self.order[chosen])


def charge_waits(
    found: DeviceEvents,
    main: Stream,
    run: Ints,
    windows: tuple[Ints, Ints],
    joined: ProgramJoin | None,
    launched: LaunchTimes,
) -> Waits:
    """Charge each gap of the main stream to the events that it waited for.

    ``run`` is that of every event, -1 for none; ``windows`` are begin and end of each run.
    """
    begin, end = windows
    wait = np.zeros(len(found.start_ps), np.int64)
    host_bound = np.zeros(len(begin), np.int64)
    moving = np.isin(found.table("kind"), events.MOVES)
    here = main.event[moving.take(main.op)]
    here = here[run[here] >= 0]
    wait[here] = found.end_ps[here] - found.start_ps[here]
    awaited = _awaited(found, main, run, begin, joined)
    group, awaited = _grouped(awaited, run)
    if not len(group):
        return Waits(wait, host_bound, True)
    is_move = moving[found.op[awaited.event]]
    counts = np.bincount(group[is_move], minlength=int(group[-1]) + 1) > 0
    awaited, group, is_move = awaited.where(counts[group]), group[counts[group]], is_move[counts[group]]
    if not len(group):
        return Waits(wait, host_bound, True)
    finish = found.end_ps[awaited.event]
    first = np.flatnonzero(np.concatenate(([True], group[1:] != group[:-1])))
    number = np.cumsum(np.concatenate(([True], group[1:] != group[:-1]))) - 1
    reached = np.maximum(_before(finish, number), awaited.idle_from)
    last = np.maximum.reduceat(finish, first)
    after = np.minimum(awaited.after[first], len(main.event) - 1)
    own = run[awaited.event[first]]
    has_next = (awaited.after[first] < len(main.event)) & (main.start_ps[after] < end[own])
    times = np.where(has_next, launched(np.where(has_next, found.correlation[main.event[after]], 0)), np.int64(-1))
    late = has_next & (times > last)
    charged = np.where(late[number] | ~is_move, 0, np.maximum(finish - reached, 0))
    wait[awaited.event] += charged
    np.add.at(host_bound, own[late], (main.start_ps[after] - awaited.idle_from[first])[late])
    return Waits(wait, host_bound, bool((times[has_next] >= 0).all()))


def _grouped(awaited: _Awaited, run: Ints) -> tuple[Ints, _Awaited]:
    """Return what was awaited, sorted by gap, run and order of the dones, and the number of the group of each.

    A gap between two runs has two groups: dones after the last operation of one, and before the first of the other.
    """
    own = run[awaited.event]
    order = np.lexsort((awaited.event, awaited.order, own, awaited.after))
    awaited, own = awaited.where(order), own[order]
    if not len(own):
        return own, awaited
    new = (awaited.after[1:] != awaited.after[:-1]) | (own[1:] != own[:-1])
    return np.cumsum(np.concatenate(([True], new))) - 1, awaited


def _before(finish: Ints, group: Ints) -> Ints:
    """Return for each element the greatest value before it in its group, a very small one where there is none."""
    values, place = np.unique(finish, return_inverse=True)
    size = len(values) + 1
    highest = np.maximum.accumulate(group * size + place + 1)
    ahead = np.concatenate(([0], highest[:-1])) - group * size
    return np.where(ahead > 0, values[np.maximum(ahead - 1, 0)], -FAR)


def _awaited(found: DeviceEvents, main: Stream, run: Ints, begin: Ints, joined: ProgramJoin | None) -> _Awaited:
    """Return the events beside the main stream that it may have waited for."""
    kind, pair = found.table("kind"), found.table("pair")
    nameless = np.isin(kind, events.MOVES) & (found.table("transfer") == 0)
    candidate = (pair > 0) | nameless
    event = found.chosen(candidate)
    event = event[(found.line[event] != main.line) & (run[event] >= 0)]
    finish = found.end_ps[event]
    after = np.searchsorted(main.start_ps, finish, side="left")
    idle_from = np.where(after > 0, main.reached_ps[np.maximum(after - 1, 0)], -FAR)
    idle_from = np.maximum(idle_from, begin[run[event]])
    pending = finish > idle_from
    awaited = _Awaited(event[pending], after[pending], idle_from[pending], np.zeros(int(pending.sum()), np.int64))
    order = _done_order(found, main, awaited, run, joined, joined.loops if joined else ())
    order = np.where(nameless[found.op[awaited.event]], FAR, order)
    chosen = order != _NEVER
    return _Awaited(awaited.event[chosen], awaited.after[chosen], awaited.idle_from[chosen], order[chosen])


def _done_order(
    found: DeviceEvents,
    main: Stream,
    awaited: _Awaited,
    run: Ints,
    joined: ProgramJoin | None,
    loops: Sequence[Loop],
) -> Ints:
    """Return the place of the done that the schedule has between the operations around the gap in which an event ended.

    It is far later for a done in a loop's next iteration, and _NEVER where there is none.
    """
    low, high = _around(main, awaited, run)
    dones = done_table(joined, found.table("pair")[found.op[awaited.event]])
    low, high = low[:, None], high[:, None]
    forward = (dones > low) & (dones < high)
    first, last = innermost_bounds(loops, np.minimum(low, high)[:, 0], np.maximum(low, high)[:, 0])
    comes_again = last >= first
    if comes_again.any():
        comes_again &= (low != high)[:, 0] | _only_one(found, main, first, last)
    again = comes_again[:, None] & (low >= high)
    places = np.where(forward | (again & (dones > low) & (dones <= last[:, None])), dones, FAR)
    places = np.where(again & (dones >= first[:, None]) & (dones < high), dones + FAR // 2, places)
    order = places.min(axis=1, initial=int(FAR))
    return np.where(order < FAR, order, _NEVER)


def _around(main: Stream, awaited: _Awaited, run: Ints) -> tuple[Ints, Ints]:
    """Return the places in the schedule of the nearest operations of the same run before and after each gap.

    They are -1 and FAR where there is none.
    """
    size = len(main.event)
    if not size:
        return np.full(len(awaited.event), -1, np.int64), np.full(len(awaited.event), FAR, np.int64)
    ranked = np.concatenate(([-1], np.flatnonzero(main.ranked), [size]))
    place = np.searchsorted(ranked[1:-1], awaited.after)
    before, behind = ranked[place], ranked[place + 1]
    own = run[awaited.event]
    has_before = (before >= 0) & (run[main.event[np.maximum(before, 0)]] == own)
    has_behind = (behind < size) & (run[main.event[np.minimum(behind, size - 1)]] == own)
    low = np.where(has_before, main.rank[np.maximum(before, 0)], -1)
    return low, np.where(has_behind, main.rank[np.minimum(behind, size - 1)], FAR)


def _only_one(found: DeviceEvents, main: Stream, first: Ints, last: Ints) -> Flags:
    """Return whether a loop has a single operation on the main stream, which then comes again in its next iteration."""
    seen = np.flatnonzero(np.bincount(main.op[main.ranked]))
    ranks = np.array(sorted(set(found.table("rank")[seen].tolist())), np.int64)
    inside = np.searchsorted(ranks, last, side="right") - np.searchsorted(ranks, first, side="left")
    return np.asarray(inside == 1, np.bool_)


def done_table(joined: ProgramJoin | None, pair: Ints) -> Ints:
    """Return the places at which each pair is waited for, in rows; _NEVER where there is none."""
    numbers, which = distinct(pair)
    rows = [joined.done_ranks(number) if joined is not None else () for number in numbers.tolist()]
    table = np.full((len(rows), max((len(row) for row in rows), default=0) or 1), _NEVER, np.int64)
    for place, row in enumerate(rows):
        table[place, : len(row)] = row
    return table[which]
