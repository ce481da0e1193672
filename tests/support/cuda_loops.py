"""Synthetic traces of a training loop that calls several programs a step: modules of ours, played one after the other.

    loop = play_loop([["optimizer", "callback"]] * 4)
    loop.trace()       # for cuda_traces.write_trace
    loop.oracle()      # the figures of each step

``TINY`` is a program of one kernel without a module, as ``jit_convert_element_type`` is next to a real step.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from tests.support.cuda_runtime import Run, Speeds, compiled
from tests.support.cuda_traces import H100, MAIN, US, Annotation, Device, Event, Program, Trace
from tests.support.trace_oracle import OracleStep, measure_steps

TINY = "tiny"
FIRST_PROGRAM = 20


@dataclass(slots=True)
class Loop:
    """What was played: all events, and the numbers of the runs that each step consists of.

    ``Event.run`` counts the runs of all programs, and ``Event.transfer`` has the name of the module ahead of the start.
    """

    names: tuple[str, ...]
    events: list[Event] = field(default_factory=list)
    annotations: list[Annotation] = field(default_factory=list)
    runs: list[list[int]] = field(default_factory=list)
    ran: list[str] = field(default_factory=list)
    at_end: list[tuple[int, ...]] = field(default_factory=list)
    first: int = FIRST_PROGRAM

    def program(self, name: str) -> int:
        return self.first + self.names.index(name)

    def modules(self) -> tuple[Program, ...]:
        found = {name: compiled(name) for name in self.names if name != TINY}
        return tuple(Program(own.module.name, self.program(name), own.proto) for name, own in found.items())

    def trace(self, *, annotated: bool = False, host: bool = True) -> Trace:
        """Return the trace. Its device does not say how fast its memory is: any module is played at any speed."""
        annotations = tuple(self.annotations) if annotated else ()
        stats = {name: value for name, value in H100.items() if name != "memory_bandwidth"}
        return Trace((Device(0, tuple(self.events)),), self.modules(), annotations, host, device_stats=stats)

    def oracle(self, programs: Sequence[str], *, launches_known: bool = True) -> list[OracleStep]:
        """Return the figures of the steps, if these programs are the step."""
        steps = [[number for number in runs if self.ran[number] in programs] for runs in self.runs]
        return measure_steps(self.events, steps, self.at_end, launches_known=launches_known)


def play_loop(
    plan: Sequence[Sequence[str]],
    *,
    speeds: Speeds | None = None,
    blocking: bool = True,
    between_ps: int = 200 * US,
    within_ps: int = 20 * US,
) -> Loop:
    """Play the modules of each step. The host pauses ``between_ps`` after a step, ``within_ps`` after a program."""
    names = tuple(dict.fromkeys(name for step in plan for name in step))
    loop = Loop(names)
    tails: dict[int, int] = defaultdict(int)
    now = 10 * US
    for number, step in enumerate(plan):
        begin = now
        loop.runs.append([])
        for name in step:
            now = _play(loop, name, now, tails, replace(speeds or Speeds(), between_steps=within_ps), blocking)
        loop.annotations.append(Annotation(number, begin, now))
        now += between_ps
    return loop


def _play(loop: Loop, name: str, now: int, tails: dict[int, int], speeds: Speeds, blocking: bool) -> int:
    """Play one program on streams that are busy until ``tails``, and return when the host goes on."""
    number, offset = len(loop.ran), len(loop.events)
    loop.ran.append(name)
    loop.runs[-1].append(number)
    if name == TINY:
        start = max(now + speeds.launch, tails.get(MAIN, 0))
        end = start + 2 * US
        event = Event(
            MAIN, start, end, "loop_convert", "loop_convert_fusion", loop.program(name), run=number,
            launched_ps=now + speeds.launch,
        )  # fmt: skip
        loop.events.append(event)
        loop.at_end.append(())
        tails[MAIN] = end
        return (end if blocking else now + speeds.launch) + speeds.between_steps
    own = compiled(name)
    run = Run(
        own.module, own.directions, program=loop.program(name), speeds=speeds, start_ps=now, blocking=blocking,
        tails=tails,
    )  # fmt: skip
    run.steps(1)
    loop.events += [
        replace(
            event,
            run=number,
            after=tuple(place + offset for place in event.after),
            transfer=f"{name} {event.transfer}" if event.transfer else "",
        )
        for event in run.events
    ]
    loop.at_end.append(tuple(place + offset for place in run.awaited_at_end[0]))
    tails[MAIN] = max([tails[MAIN], *(run.events[place].end_ps for place in run.awaited_at_end[0])])
    return run.now
