"""Overlap in every step of a device at once. GPU and TPU meet here: both give ``Busy`` and ``Moves``.

``timeline.timeline.overlap`` computes the same for one timeline of Python objects; a test compares the two.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hloinspect.measure.columns import TRANSFER_FIGURES
from hloinspect.measure.memcpy import ALONE_SHARE, TOGETHER_SHARE
from hloinspect.timeline.spans import Ints, Spans, gaps, merge, subtract, union

TO_HOST, FROM_HOST, BOTH = 0, 1, 2


@dataclass(frozen=True, slots=True)
class Moves:
    """Transfers as they ran, one element each.

    ``direction`` is TO_HOST, FROM_HOST or BOTH (a copy within host memory); ``transfer`` the program's, 0 for none;
    ``step`` an index of a window, -1 for none; ``wait_ps`` the wait that is charged to it.
    """

    start_ps: Ints
    end_ps: Ints
    transfer: Ints
    direction: Ints
    step: Ints
    bytes: Ints
    wait_ps: Ints

    def __len__(self) -> int:
        return len(self.start_ps)


@dataclass(frozen=True, slots=True)
class Busy:
    """The work of a device besides transfers, as unions over all of its streams."""

    compute: Spans
    collective: Spans
    other_copies: Spans


def figures(begin: Ints, end: Ints, busy: Busy, moves: Moves, host_bound_ps: Ints) -> dict[str, Ints]:
    """Return the columns of ``columns.FIGURES`` for the windows ``[begin, end)``, which are sorted and disjoint."""
    compute, collective = busy.compute, busy.collective
    to_host, from_host = (
        union(moves.start_ps[chosen], moves.end_ps[chosen])
        for chosen in (moves.direction != FROM_HOST, moves.direction != TO_HOST)
    )
    work = merge(compute, collective)
    any_move = merge(to_host, from_host)
    everything = merge(work, any_move)
    first, last = (int(begin[0]), int(end[-1])) if len(begin) else (0, 0)

    def per_step(spans: Spans) -> Ints:
        return spans.within(begin, end)

    return {
        "time_ps": end - begin,
        "compute_ps": per_step(compute),
        "collective_ps": per_step(collective),
        "collective_exposed_ps": per_step(subtract(collective, compute)),
        "exposed_d2h_ps": per_step(subtract(to_host, work)),
        "exposed_h2d_ps": per_step(subtract(from_host, work)),
        "exposed_ps": per_step(subtract(any_move, work)),
        "idle_ps": per_step(gaps(everything, first, last)),
        "stall_ps": _sum(moves.step, moves.wait_ps, len(begin)),
        "stall_d2h_ps": _sum(moves.step, moves.wait_ps * (moves.direction == TO_HOST), len(begin)),
        "stall_h2d_ps": _sum(moves.step, moves.wait_ps * (moves.direction == FROM_HOST), len(begin)),
        "host_bound_ps": host_bound_ps,
        "busy_d2h_ps": per_step(to_host),
        "busy_h2d_ps": per_step(from_host),
        "other_copies_ps": per_step(busy.other_copies),
    }


def transfer_figures(
    steps: int, busy: Busy, moves: Moves, alone: NDArray[np.bool_] | None
) -> dict[int, Mapping[str, Ints]]:
    """Return for each transfer of the program the columns of ``TRANSFER_FIGURES``, one element for each step.

    ``alone`` says which moves ran alone, where that is not known from the times they ran (TPU windows).
    """
    cover = merge(busy.compute, busy.collective).within(moves.start_ps, moves.end_ps)
    if alone is None:
        alone, together = company(moves)
    else:
        together = np.zeros(len(moves), np.bool_)
    duration = moves.end_ps - moves.start_ps
    values = (
        np.ones(len(moves), np.int64),
        *(moves.bytes, duration, cover, moves.wait_ps),
        *(moves.bytes * alone, duration * alone, moves.bytes * together, duration * together),
    )
    counted = (moves.step >= 0) & (moves.transfer > 0)
    numbers, place = np.unique(moves.transfer[counted], return_inverse=True)
    cell = place * steps + moves.step[counted]
    tables = [_sum(cell, value[counted], steps * len(numbers)).reshape(len(numbers), steps) for value in values]
    return {
        number: {name: table[index] for name, table in zip(TRANSFER_FIGURES, tables, strict=True)}
        for index, number in enumerate(numbers.tolist())
    }


def company(moves: Moves) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Return which moves ran with the other direction off (and no other in their own), and which with it on."""
    alone, together = np.zeros(len(moves), np.bool_), np.zeros(len(moves), np.bool_)
    for direction in (TO_HOST, FROM_HOST):
        own = np.flatnonzero(moves.direction == direction)
        if not len(own):
            continue
        start, end = moves.start_ps[own], moves.end_ps[own]
        opposite = moves.direction != direction
        other = union(moves.start_ps[opposite], moves.end_ps[opposite]).within(start, end)
        order = np.argsort(start, kind="stable")
        reached = np.maximum.accumulate(end[order])
        first = np.concatenate(([True], start[order][1:] >= reached[:-1]))
        last = np.concatenate((end[order][:-1] <= start[order][1:], [True]))
        undisturbed = np.zeros(len(own), np.bool_)
        undisturbed[order] = first & last
        time = np.maximum(end - start, 1)
        alone[own] = undisturbed & (other <= ALONE_SHARE * time)
        together[own] = undisturbed & (other >= TOGETHER_SHARE * time)
    return alone, together


def _sum(cell: Ints, value: Ints, size: int) -> Ints:
    """Return the sum of integers by cell. Cells below 0 are left out. It is exact, unlike ``bincount`` with weights."""
    total = np.zeros(size, np.int64)
    chosen = cell >= 0
    np.add.at(total, cell[chosen], value[chosen])
    return total
