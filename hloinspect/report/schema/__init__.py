"""The records of a report, ``hloinspect.report/1``.

The text below a field says what it is. docs/report.md and docs/schemas/report.schema.json are generated from these
texts and the types. ``Report`` in ``report.py`` is the whole.
"""

from __future__ import annotations

from hloinspect.memory.records import LiveValue, Peak, Release
from hloinspect.offload.records import HostCopy, HostEvent, HostValue, SourceInfo, Unknown
from hloinspect.report.schema.audit import AuditEntry, AuditInfo
from hloinspect.report.schema.findings import FindingInfo, RuleLeftOut, RuleNotRun
from hloinspect.report.schema.instructions import (
    ClassTimes,
    DeviceSkew,
    InstructionsInfo,
    InstructionTime,
    PredictedTime,
)
from hloinspect.report.schema.judged import DifferenceCounts, ExpectedInfo, ExplainedInfo, JudgedInfo
from hloinspect.report.schema.memory import MemoryInfo
from hloinspect.report.schema.program import (
    AutotuneInfo,
    DuplexInfo,
    InputInfo,
    LinkInfo,
    ModuleInfo,
    ProfileInfo,
    ProgramInfo,
    TargetInfo,
)
from hloinspect.report.schema.report import SCHEMA, Report, Thresholds
from hloinspect.report.schema.steps import (
    AllSteps,
    DeviceInfo,
    Exposed,
    MeasuredStep,
    PredictedStep,
    SetAside,
    SetAsideStep,
    Spread,
    StepInfo,
)
from hloinspect.report.schema.trace import HostInfo, OtherCopiesInfo, StepProgramInfo, TracedProgram, TraceInfo
from hloinspect.report.schema.transfers import MeasuredTransfer, PredictedTransfer, TensorInfo, TransferInfo

__all__ = [
    "SCHEMA",
    "AllSteps",
    "AuditEntry",
    "AuditInfo",
    "AutotuneInfo",
    "ClassTimes",
    "DeviceInfo",
    "DeviceSkew",
    "DifferenceCounts",
    "DuplexInfo",
    "ExpectedInfo",
    "ExplainedInfo",
    "Exposed",
    "FindingInfo",
    "HostCopy",
    "HostEvent",
    "HostInfo",
    "HostValue",
    "InputInfo",
    "InstructionTime",
    "InstructionsInfo",
    "JudgedInfo",
    "LinkInfo",
    "LiveValue",
    "MeasuredStep",
    "MeasuredTransfer",
    "MemoryInfo",
    "ModuleInfo",
    "OtherCopiesInfo",
    "Peak",
    "PredictedStep",
    "PredictedTime",
    "PredictedTransfer",
    "ProfileInfo",
    "ProgramInfo",
    "Release",
    "Report",
    "RuleLeftOut",
    "RuleNotRun",
    "SetAside",
    "SetAsideStep",
    "SourceInfo",
    "Spread",
    "StepInfo",
    "StepProgramInfo",
    "TargetInfo",
    "TensorInfo",
    "Thresholds",
    "TraceInfo",
    "TracedProgram",
    "TransferInfo",
    "Unknown",
]
