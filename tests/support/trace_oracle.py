"""The correct figures of a trace, from every moment of it: slow, plain, and without any code of hloinspect.

``Event.what`` and other fields that are not in the file say what each event is. The oracle cuts the time of a step at
every start and end of any event, and checks for each piece what runs in it. docs/trace.md says what the figures mean:

* a step's window is from the first to the last event of one run of the program, but ends where the next one begins;
* compute is everything on the device except collectives, transfers and copies that are no offload;
* compute + collective_exposed + exposed + idle = the window;
* in each gap of the main stream the device reaches one `done` after the other, in the order that the program has before
  the operation that ends the gap. It waits for each transfer from then until the transfer ends. But if that operation
  had not been launched when the last of them ended, the gap is the host's. After the last operation the gap lasts until
  the step's end, and needs no launch. The wait for a transfer on the main stream is its duration.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from tests.support.cuda_traces import MAIN, Event

TRANSFERS = ("d2h", "h2d")


@dataclass(slots=True)
class OracleTransfer:
    """A transfer in one step, all its runs together, in ps."""

    events: int = 0
    duration_ps: int = 0
    cover_ps: int = 0
    wait_ps: int = 0
    alone_ps: int = 0
    together_ps: int = 0


@dataclass(slots=True)
class OracleStep:
    """The figures of a step, named as those of ``hloinspect.measure.measured.StepFigures``. Transfers are by start."""

    start_ps: int
    end_ps: int
    time_ps: int = 0
    compute_ps: int = 0
    collective_ps: int = 0
    collective_exposed_ps: int = 0
    exposed_d2h_ps: int = 0
    exposed_h2d_ps: int = 0
    exposed_ps: int = 0
    idle_ps: int = 0
    stall_ps: int = 0
    stall_d2h_ps: int = 0
    stall_h2d_ps: int = 0
    host_bound_ps: int = 0
    busy_d2h_ps: int = 0
    busy_h2d_ps: int = 0
    other_copies_ps: int = 0
    transfers: dict[str, OracleTransfer] = field(default_factory=lambda: defaultdict(OracleTransfer))


TRANSFER_FIGURES = ("events", "duration_ps", "cover_ps", "wait_ps", "alone_ps", "together_ps")
FIGURES = tuple(name for name in OracleStep.__slots__ if name.endswith("_ps"))


def measure(
    events: Sequence[Event], awaited_at_end: Sequence[Sequence[int]], *, launches_known: bool = True
) -> list[OracleStep]:
    """Return the steps of one device in order.

    ``awaited_at_end`` are, for each run, the places of the transfers for which the main stream waits after its last
    operation.
    """
    runs: dict[int, list[Event]] = defaultdict(list)
    for event in events:
        runs[event.run].append(event)
    windows = _windows([run for _, run in sorted(runs.items())])
    return [
        _step(run, events, OracleStep(*window), awaited_at_end[number], launches_known)
        for (number, run), window in zip(sorted(runs.items()), windows, strict=True)
    ]


def measure_steps(
    events: Sequence[Event],
    steps: Sequence[Sequence[int]],
    awaited_at_end: Sequence[Sequence[int]],
    *,
    launches_known: bool = True,
) -> list[OracleStep]:
    """Return the steps of one device, each of several runs, of any programs.

    A step is from the first to the last event of its runs. The waits are those of each run by itself.
    """
    found = []
    every = [[event for event in events if event.run in numbers] for numbers in steps]
    for numbers, own, window in zip(steps, every, _windows(every), strict=True):
        whole = _step(own, events, OracleStep(*window), (), launches_known, with_waits=False)
        for number in numbers:
            run = [event for event in own if event.run == number]
            (around,) = _windows([run])
            one = _step(run, events, OracleStep(*around), awaited_at_end[number], launches_known)
            for figure in ("stall_ps", "stall_d2h_ps", "stall_h2d_ps", "host_bound_ps"):
                setattr(whole, figure, getattr(whole, figure) + getattr(one, figure))
            for transfer, figures in one.transfers.items():
                whole.transfers[transfer].wait_ps += figures.wait_ps
        found.append(whole)
    return found


def _windows(runs: Sequence[Sequence[Event]]) -> list[tuple[int, int]]:
    """Return where each step begins and ends."""
    begins = [min(event.start_ps for event in run if event.program) for run in runs]
    ends = [max(event.end_ps for event in run if event.program) for run in runs]
    behind = [*begins[1:], max(ends)]
    return [(begin, min(end, following)) for begin, end, following in zip(begins, ends, behind, strict=True)]


def _step(
    run: list[Event],
    every: Sequence[Event],
    step: OracleStep,
    at_end: Sequence[int],
    launches_known: bool,
    *,
    with_waits: bool = True,
) -> OracleStep:
    step.time_ps = step.end_ps - step.start_ps
    near = [event for event in every if event.end_ps >= step.start_ps and event.start_ps <= step.end_ps]
    moments = sorted({m for e in near for m in (e.start_ps, e.end_ps)} | {step.start_ps, step.end_ps})
    moments = [moment for moment in moments if step.start_ps <= moment <= step.end_ps]
    for begin, end in pairwise(moments):
        _add_piece(step, {e.what for e in near if e.start_ps <= begin and end <= e.end_ps}, end - begin)
    for event in run:
        if event.what in TRANSFERS:
            _add_transfer(step.transfers[event.transfer], event, near)
    if with_waits:
        _add_waits(step, run, every, at_end, launches_known)
    return step


def _add_piece(step: OracleStep, running: set[str], length: int) -> None:
    """Add a piece of the step in which exactly these events run."""
    if "both" in running:
        running = running | set(TRANSFERS)
    compute, collective = "compute" in running, "collective" in running
    moving = [direction for direction in TRANSFERS if direction in running]
    step.compute_ps += length * compute
    step.collective_ps += length * collective
    step.collective_exposed_ps += length * (collective and not compute)
    step.busy_d2h_ps += length * ("d2h" in running)
    step.busy_h2d_ps += length * ("h2d" in running)
    step.other_copies_ps += length * ("other_copy" in running)
    if not compute and not collective:
        step.exposed_d2h_ps += length * ("d2h" in running)
        step.exposed_h2d_ps += length * ("h2d" in running)
        step.exposed_ps += length * bool(moving)
        step.idle_ps += length * (not moving)


def _add_transfer(entry: OracleTransfer, event: Event, every: Sequence[Event]) -> None:
    entry.events += 1
    entry.duration_ps += event.duration_ps
    entry.cover_ps += _covered(event, [e for e in every if e.what in ("compute", "collective")])
    own = [e for e in every if e.what in (event.what, "both") and e is not event]
    if any(e.start_ps < event.end_ps and event.start_ps < e.end_ps for e in own):
        return  # it shared its own direction
    other = _covered(event, [e for e in every if e.what in (*TRANSFERS, "both") and e.what != event.what])
    if other * 50 <= event.duration_ps:  # the other direction was idle, except for 2 % of the time at most
        entry.alone_ps += event.duration_ps
    if other * 2 >= event.duration_ps:
        entry.together_ps += event.duration_ps


def _covered(event: Event, others: Sequence[Event]) -> int:
    """Return for how long at least one of the other events ran while the event did."""
    inside = {m for e in others for m in (e.start_ps, e.end_ps) if event.start_ps < m < event.end_ps}
    moments = sorted({event.start_ps, event.end_ps} | inside)
    pieces = (
        end - begin for begin, end in pairwise(moments) if any(e.start_ps <= begin and end <= e.end_ps for e in others)
    )
    return sum(pieces)


def _add_waits(
    step: OracleStep, run: Iterable[Event], every: Sequence[Event], at_end: Sequence[int], launches_known: bool
) -> None:
    main = sorted((event for event in run if event.stream == MAIN), key=lambda event: event.start_ps)
    for event in main:
        if event.what in (*TRANSFERS, "both"):
            _charge(step, event, event.duration_ps)
    reached = step.start_ps
    for event in main:
        _meet_dones(
            step, [every[place] for place in event.after], reached, event.start_ps, event if launches_known else None
        )
        reached = max(reached, event.end_ps)
    _meet_dones(step, [every[place] for place in at_end], reached, step.end_ps, None)


def _meet_dones(step: OracleStep, awaited: list[Event], begin: int, end: int, then: Event | None) -> None:
    """Add a gap, the waits in it, and the operation after it where the time of its launch matters."""
    awaited = [event for event in awaited if begin < event.end_ps <= end]
    if not any(event.what in TRANSFERS for event in awaited):
        return
    last = max(event.end_ps for event in awaited)
    if then is not None and then.launched_ps is not None and then.launched_ps > last:
        step.host_bound_ps += end - begin
        return
    for event in awaited:
        if event.what in TRANSFERS and event.end_ps > begin:
            _charge(step, event, event.end_ps - begin)
        begin = max(begin, event.end_ps)


def _charge(step: OracleStep, transfer: Event, length: int) -> None:
    step.stall_ps += length
    step.stall_d2h_ps += length * (transfer.what == "d2h")
    step.stall_h2d_ps += length * (transfer.what == "h2d")
    if transfer.transfer:
        step.transfers[transfer.transfer].wait_ps += length
