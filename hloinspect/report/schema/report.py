"""``hloinspect.report/1``: all that every command says, as data.

Times are milliseconds a step unless a name says ``each``; ``bytes`` are those of one execution. A field that could
not be found out is None, and ``unknown`` says why and what would settle it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Literal

from hloinspect.offload.records import HostCopy, HostEvent, HostValue, Unknown
from hloinspect.report.schema.audit import AuditInfo
from hloinspect.report.schema.findings import FindingInfo, RuleLeftOut, RuleNotRun
from hloinspect.report.schema.instructions import InstructionsInfo
from hloinspect.report.schema.judged import ExpectedInfo, JudgedInfo
from hloinspect.report.schema.memory import MemoryInfo
from hloinspect.report.schema.program import InputInfo, ModuleInfo, ProgramInfo, TargetInfo
from hloinspect.report.schema.steps import DeviceInfo, StepInfo
from hloinspect.report.schema.trace import TraceInfo
from hloinspect.report.schema.transfers import TransferInfo

SCHEMA: Final = "hloinspect.report/1"


@dataclass(frozen=True, slots=True)
class Thresholds:
    """The covered shares of a transfer's time that decide verdicts."""

    hidden: float
    """From this share on a transfer is hidden."""

    exposed: float
    """Below this share it is exposed; in between it is partial."""


@dataclass(frozen=True, slots=True)
class Report:
    """The whole answer for one input. Iterating gives its transfers and then its findings; a notebook shows it as a
    table."""

    schema: Literal["hloinspect.report/1"]
    """Name and version of this schema."""

    hloinspect: str
    """Version of the tool that wrote it."""

    input: InputInfo
    """What was read."""

    module: ModuleInfo
    """The module."""

    program: ProgramInfo
    """How the module was made, as far as that is known."""

    target: TargetInfo | None
    """The hardware that the step is judged for; null without a target."""

    thresholds: Thresholds
    """The covered shares that decide verdicts."""

    step: StepInfo
    """The step by the model and by a trace."""

    memory: MemoryInfo
    """Memory of one device and of its host."""

    transfers: tuple[TransferInfo, ...]
    """The host transfers, in schedule order, callers before callees."""

    host_values: tuple[HostValue, ...]
    """Arguments and results of the step that live in host memory."""

    host_copies: tuple[HostCopy, ...]
    """Instructions with host memory on both sides."""

    host_events: tuple[HostEvent, ...]
    """Instructions that work with the host and are no transfer. How long the host takes is not in the module:
    ``unknown`` says so."""

    findings: tuple[FindingInfo, ...] = ()
    """Diagnoses, the worst first."""

    devices: tuple[DeviceInfo, ...] = ()
    """Devices of a trace; empty for a prediction."""

    limits: tuple[str, ...] = ()
    """What to keep in mind about these figures."""

    unknown: tuple[Unknown, ...] = ()
    """What could not be found out."""

    rules_not_run: tuple[RuleNotRun, ...] = ()
    """Rules that lack evidence. That they found nothing means nothing."""

    rules_left_out: tuple[RuleLeftOut, ...] = ()
    """Rules that were not requested."""

    trace: TraceInfo | None = None
    """What was read of a profile; null for a prediction."""

    audit: AuditInfo | None = None
    """What the program requested of host memory and what became of it; null for a trace."""

    judged: JudgedInfo | None = None
    """Of a profile or a dump: which module was judged, and what shows that it ran; null for other inputs."""

    against: ExpectedInfo | None = None
    """How far the module is the one that ran; null without `--against`."""

    instructions: InstructionsInfo | None = None
    """Measured time by instruction and class; null for a prediction, or where a trace names no instructions."""

    @property
    def first_texts(self) -> tuple[str, ...]:
        """Return what comes first of a report: which module was judged, and how far it is the one that ran or that was
        expected."""
        compared, judged = self.compared, self.judged
        found = [compared.text] if compared is not None else []
        if judged is not None and (compared is None or judged.module_from != "profile"):
            found.append(judged.text)
        return tuple(found)

    @property
    def compared(self) -> ExpectedInfo | None:
        """Return how far the module is another one that the user named, None where none was."""
        return self.against or (self.trace.expected if self.trace is not None else None)

    def __iter__(self) -> Iterator[TransferInfo | FindingInfo]:
        yield from self.transfers
        yield from self.findings

    def to_json(self) -> str:
        """Return ``hloinspect.report/1`` as indented JSON text (docs/report.md)."""
        from hloinspect.report.json import to_json

        return to_json(self)

    def to_html(self) -> str:
        """Return the page of ``hloinspect report`` without a timeline, which only an inspection has."""
        from hloinspect.render.page import html_page

        return html_page(self)

    def _repr_html_(self) -> str:
        from hloinspect.render.page.notebook import to_html

        return to_html(self)
