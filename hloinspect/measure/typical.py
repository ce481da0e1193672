"""One typical step as a ``Timeline`` of Python objects, like a predicted one, for readers of a single step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hloinspect.kinds import D2H, H2D
from hloinspect.measure.overlap import FROM_HOST, TO_HOST, Moves
from hloinspect.timeline.spans import Ints
from hloinspect.timeline.timeline import (
    KINDS,
    Interval,
    Segment,
    Stream,
    Timeline,
)

MAX_EVENTS = 200_000
"""The number of events up to which a step is kept."""

_COMPUTE, _COLLECTIVE, _D2H, _H2D, _WAIT = range(5)
_STREAMS: tuple[Stream, ...] = ("main", "communication", D2H, H2D, "main")


@dataclass(frozen=True, slots=True)
class Work:
    """The work of a device besides transfers: one element for each event, ``name`` an index into ``names``."""

    start_ps: Ints
    end_ps: Ints
    is_collective: NDArray[np.bool_]
    is_main: NDArray[np.bool_]
    name: Ints
    names: Sequence[str]


@dataclass(frozen=True, slots=True)
class TypicalStep:
    """The events of one step as columns, with times from its begin."""

    device: str
    time_ps: int
    start_ps: Ints
    end_ps: Ints
    kind: NDArray[np.uint8]
    transfer: NDArray[np.int32]
    side: NDArray[np.bool_]
    name: Ints
    names: tuple[str, ...]

    def timeline(self) -> Timeline:
        """Return the step as objects. Intervals that cross its ends are cut there."""
        columns = (self.start_ps, self.end_ps, self.kind, self.transfer, self.side, self.name)
        intervals = tuple(
            Interval(start, end, KINDS[kind], "side" if side else _STREAMS[kind], transfer, self.names[name])
            for start, end, kind, transfer, side, name in zip(*(c.tolist() for c in columns), strict=True)
        )
        return Timeline(self.device, "measured", (Segment(1, 0, self.time_ps, intervals),))


def typical_step(  # noqa: PLR0913  (columns of the same steps, each an array of its own)
    device: str,
    time_ps: Ints,
    clean: NDArray[np.bool_],
    begin: Ints,
    end: Ints,
    work_within: Callable[[int, int], Work],
    moves: Moves,
) -> TypicalStep | None:
    """Return the step that counts and whose time is nearest the median of those, or None without one or if it is too
    large.

    ``work_within`` gives what runs at some time of ``[first_ps, last_ps)``.
    """
    chosen = np.flatnonzero(clean)
    if not len(chosen):
        return None
    step = int(chosen[np.argmin(np.abs(time_ps[chosen] - np.median(time_ps[chosen])))])
    first, last = int(begin[step]), int(end[step])
    work = work_within(first, last)
    size = len(work.start_ps)
    moving = np.flatnonzero((moves.start_ps < last) & (moves.end_ps > first))
    if size + len(moving) > MAX_EVENTS:
        return None
    direction = moves.direction[moving]
    transfer = np.where(moves.step[moving] == step, moves.transfer[moving], 0)
    waiting = moving[(moves.wait_ps[moving] > 0) & (moves.step[moving] == step)]
    parts = [
        (work.start_ps, work.end_ps, np.where(work.is_collective, _COLLECTIVE, _COMPUTE)),
        *(
            (moves.start_ps[moving[mine]], moves.end_ps[moving[mine]], np.full(int(mine.sum()), kind))
            for kind, mine in ((_D2H, direction != FROM_HOST), (_H2D, direction != TO_HOST))
        ),
        (moves.end_ps[waiting] - moves.wait_ps[waiting], moves.end_ps[waiting], np.full(len(waiting), _WAIT)),
    ]
    transfers = [
        np.zeros(size, np.int64),
        *(transfer[direction != other] for other in (FROM_HOST, TO_HOST)),
        moves.transfer[waiting],
    ]
    start, finish, kind = (np.concatenate(column) for column in zip(*parts, strict=True))
    others = len(start) - size
    used, name = np.unique(work.name, return_inverse=True)
    side = ~work.is_main & ~work.is_collective
    order = np.lexsort((finish, start))
    return TypicalStep(
        device=device,
        time_ps=last - first,
        start_ps=np.clip(start - first, 0, last - first)[order],
        end_ps=np.clip(finish - first, 0, last - first)[order],
        kind=kind.astype(np.uint8)[order],
        transfer=np.concatenate(transfers).astype(np.int32)[order],
        side=np.concatenate((side, np.zeros(others, np.bool_)))[order],
        name=np.concatenate((name, np.full(others, len(used), np.int64)))[order],
        names=(*(work.names[number] for number in used.tolist()), ""),
    )
