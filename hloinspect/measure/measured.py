"""Measurement of one trace: for each device its steps, and in each step every transfer. It is small, and picklable.

The words, on every platform (docs/trace.md has them for users):

* **Window of a step.** TPU: the event on ``XLA Modules``. GPU: from the first to the last event of one run of the
  program, or of the runs in one step annotation. The time between steps belongs to none.
* **Compute** is all that the device does within its own memory: kernels, memsets, copies within device memory, a TPU's
  prefetches. Of any program. **Collectives** and **transfers** (of the step's program) are identified by the module
  first.
* **compute + collective_exposed + exposed + idle = time**, to the picosecond. Each is a union over all streams:
  compute; collectives without compute; transfers without either; and the complement of all three. Copies that no
  instruction of the program makes (``device_put``, callbacks) are in none of them: where nothing else runs, that time
  is idle.
* **Stall, TPU**: duration of the transfers' ``-done`` operations on ``XLA Ops``. A transfer's **duration** is then its
  *window*, from start to the end of its wait: a TPU's trace does not say when a copy moves.
* **Stall, GPU**: a gap ``[g0, g1)`` of the main stream (the stream with the most work of the program) belongs to what
  ended within it and has its wait between the operations around it. In the order of the waits each is charged the time
  from ``g0``, or the end of those before it, to its own end. Only transfers are charged: the part of a collective or a
  slice is no transfer's wait. They are charged only if the host had launched the operation at ``g1`` (the end of its
  launch event, by correlation id) by the time that the last of them ended; else the whole gap is **host_bound**. After
  the last operation of a run there is nothing to launch. A transfer on the main stream is waited for as it lasts.
* **Cover** of a transfer: the part of its duration in which compute or collectives run, on any stream.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import NDArray

from hloinspect.kinds import (
    ClassifiedBy,
    CopyOrigin,
    Direction,
    HostMemory,
    InstructionClass,
    Platform,
    SetAsideReason,
)
from hloinspect.measure.columns import FIGURES, TRANSFER_FIGURES
from hloinspect.measure.explained import Explained
from hloinspect.offload.records import Unknown
from hloinspect.timeline.spans import Ints

if TYPE_CHECKING:
    from hloinspect.measure.instructions import InstructionTimes
    from hloinspect.measure.typical import TypicalStep


GRAPHS_AS_BLOCKS = "CUDA graphs were traced as one block each: nothing in them can be seen"
"""The end of the reason why steps with such graphs are not measured."""


@dataclass(frozen=True, slots=True)
class TransferFigures:
    """One transfer in one step: all its executions together, times in ps."""

    events: int
    bytes: int
    duration_ps: int
    cover_ps: int
    wait_ps: int

    @property
    def exposed_ps(self) -> int:
        """Return the time in which it ran while neither compute nor a collective did."""
        return self.duration_ps - self.cover_ps


@dataclass(frozen=True, slots=True)
class StepFigures:
    """One step on one device, times in ps. ``set_aside`` is why it does not count, "" if it does.

    ``number`` counts the steps seen on the device from 0, or is the annotation's ``step_num``.
    """

    number: int
    start_ps: int
    end_ps: int
    set_aside: SetAsideReason | Literal[""]
    time_ps: int
    compute_ps: int
    collective_ps: int
    collective_exposed_ps: int
    exposed_d2h_ps: int
    exposed_h2d_ps: int
    exposed_ps: int
    idle_ps: int
    stall_ps: int
    stall_d2h_ps: int
    stall_h2d_ps: int
    host_bound_ps: int
    busy_d2h_ps: int
    busy_h2d_ps: int
    other_copies_ps: int
    transfers: Mapping[int, TransferFigures]


@dataclass(frozen=True)
class StepProgram:
    """One of several programs of a step: columns with one element for each step.

    ``runs`` is how often it runs, ``time_ps`` the sum of its runs' windows. ``transfers`` by id, of its own module, are
    those of a program that is not the main one.
    """

    program: int
    runs: Ints
    time_ps: Ints
    transfers: Mapping[int, Mapping[str, Ints]]


@dataclass(frozen=True)
class MeasuredDevice:
    """The steps of one program on one device, as columns with one element for each step, in order of time.

    ``figures`` has the columns of ``FIGURES``, ``transfers`` by transfer id (of the program's module) those of
    ``TRANSFER_FIGURES``. ``set_aside`` is "" for a step that counts, else the reason; ``details`` names what was seen.
    ``typical`` is the step that counts and is nearest the median. ``instructions`` are the times of instructions in the
    steps that count. ``programs`` are those of a step of several, the main one first, ``order`` how they run in it, and
    ``between_ps`` the time in each step in which none of them runs. All are empty for a step of one program.
    """

    name: str
    platform: Platform
    program: int
    numbers: Ints
    start_ps: Ints
    end_ps: Ints
    figures: Mapping[str, Ints]
    transfers: Mapping[int, Mapping[str, Ints]]
    set_aside: tuple[SetAsideReason | Literal[""], ...]
    details: tuple[str, ...]
    notes: tuple[str, ...] = ()
    launches_known: bool = True
    typical: TypicalStep | None = None
    instructions: InstructionTimes | None = None
    programs: tuple[StepProgram, ...] = ()
    order: tuple[int, ...] = ()
    between_ps: Ints = field(default_factory=lambda: np.zeros(0, np.int64))

    @cached_property
    def clean(self) -> NDArray[np.bool_]:
        """Return which steps count."""
        return np.array([not reason for reason in self.set_aside], np.bool_)

    @property
    def steps(self) -> Iterator[StepFigures]:
        """Yield the steps one by one."""
        for index in range(len(self.numbers)):
            yield StepFigures(
                number=int(self.numbers[index]),
                start_ps=int(self.start_ps[index]),
                end_ps=int(self.end_ps[index]),
                set_aside=self.set_aside[index],
                transfers={
                    number: TransferFigures(**{name: int(own[name][index]) for name in TRANSFER_FIGURES[:5]})
                    for number, own in self.transfers.items()
                },
                **{name: int(self.figures[name][index]) for name in FIGURES},
            )


@dataclass(frozen=True, slots=True)
class ProgramSeen:
    """A program that ran. ``runs`` are counted on the device that ran it most, ``device_ps`` is summed over all
    devices.

    ``transfers`` is the number of host transfers in its module, None where the trace has no module of it.
    """

    program: int
    name: str
    runs: int
    device_ps: int
    transfers: int | None


@dataclass(frozen=True, slots=True)
class OtherCopies:
    """Copies between host and device that are no transfer of the step, of one direction, host memory and origin.

    ``program`` is the name of the other program that makes them. ``shared_ps`` is the part of ``device_ps`` in which a
    transfer of the step in the same direction ran too, ``in_steps_ps`` the part within steps (None without steps).
    ``bytes_per_s`` is the median rate of those that had the link for themselves, weighted by their bytes, which are
    ``alone_bytes``; None where there are none.
    """

    direction: Direction
    count: int
    bytes: int
    device_ps: int
    memory: HostMemory
    origin: CopyOrigin
    program: str = ""
    shared_ps: int = 0
    in_steps_ps: int | None = None
    bytes_per_s: float | None = None
    alone_bytes: int = 0


@dataclass(frozen=True, slots=True)
class MeasuredFile:
    """One trace, measured.

    ``module`` is the serialized HloProto of the step's ``program``, None where the trace has none. ``classified_ps`` is
    device time by the source of an event's kind: ``hlo``, ``memcpy`` or ``name``. ``hidden_events`` are those in
    command buffers that name no instruction, ``hidden_ops`` what they name instead, ``graph_blocks`` whole graphs as
    one event. ``device_type`` and ``device_bytes`` are name and memory of a device as the trace has them, "" and 0
    where it has none. ``class_ps`` is device time of all programs by the class of the instruction that an event names.
    ``explained`` says how far the module has the instructions that events name, None where that is not known.
    ``module_path`` is where the module was read, "" for the trace itself. ``work_events`` and ``work_ps`` are all
    kernels, memsets and copies within a GPU's memory (None where they were not counted). ``step_modules`` are the
    serialized modules of the other programs of the step that have transfers.
    """

    path: str
    host: str
    platform: Platform | Literal[""]
    device_type: str
    program: int | None
    module: bytes | None
    devices: tuple[MeasuredDevice, ...]
    programs: tuple[ProgramSeen, ...] = ()
    other_copies: tuple[OtherCopies, ...] = ()
    classified_ps: Mapping[ClassifiedBy, int] = field(default_factory=dict)
    hidden_events: int = 0
    graph_blocks: int = 0
    hidden_ops: tuple[str, ...] = ()
    unattributed_ps: int = 0
    class_ps: Mapping[InstructionClass, int] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)
    events: int = 0
    limits: tuple[str, ...] = ()
    unknown: tuple[Unknown, ...] = ()
    explained: Explained | None = None
    module_path: str = ""
    work_events: int | None = None
    work_ps: int | None = None
    step_modules: Mapping[int, bytes] = field(default_factory=dict)
    device_bytes: int = 0
