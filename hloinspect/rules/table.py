"""What ``[tool.hloinspect]`` of pyproject.toml may hold, as types. They are made where there is such a table."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated

from hloinspect.decoding import Bounds, Line, Pattern, Rule
from hloinspect.hardware.layout import TOPOLOGY_FORM
from hloinspect.kinds import Severity
from hloinspect.options import MOST_DEVICES

Devices = Annotated[int, Bounds(1, MOST_DEVICES, f"a whole number from 1 to {MOST_DEVICES:,}")]
Topology = Annotated[str, Pattern(TOPOLOGY_FORM, "a topology such as 2x16x4")]


@dataclass(frozen=True, slots=True)
class StepTable:
    """``[[tool.hloinspect.step]]``: a step that the gate checks. Without a ``budget`` the project's holds."""

    step: Line
    name: Line | None = None
    target: Line | None = None
    targets: tuple[Line, ...] = ()
    devices: Devices | None = None
    topology: Topology | None = None
    link: Line | None = None
    xla_flags: tuple[Line, ...] = ()
    flags_from: Line | None = None
    autotune_results: Line | None = None
    pgle: Line | None = None
    module: Line | None = None
    budget: Line | tuple[Line, ...] | None = None


@dataclass(frozen=True, slots=True)
class PlanTable:
    """``[tool.hloinspect.plan]``: names of policies and of sets of flags."""

    policies: dict[str, Line] = field(default_factory=dict)
    flags: dict[str, tuple[Line, ...]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ProjectTable:
    """``[tool.hloinspect]``. ``select`` is None where all rules may run."""

    select: tuple[str, ...] | None = None
    ignore: tuple[str, ...] = ()
    severity: dict[str, Severity] = field(default_factory=dict)
    plan: PlanTable = field(default_factory=PlanTable)
    baseline: Line | None = None
    budget: Line | tuple[Line, ...] = ()
    step: Annotated[tuple[StepTable, ...], Rule("a list of tables, [[tool.hloinspect.step]]")] = ()
