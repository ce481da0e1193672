"""The gate of a project, from pyproject.toml::

[tool.hloinspect]
baseline = "hloinspect-baseline.json"
budget = ["stall=2%", "lost=0"]

[[tool.hloinspect.step]]
step = "train.py:step"
targets = ["gb200", "h100"]
devices = 8
budget = ["stall=5%"]
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from hloinspect.analyze.options import JudgeOptions, TraceOptions
from hloinspect.errors import TargetError, UsageError
from hloinspect.gate.budget import Budget, parse_budget
from hloinspect.hardware.link import rates_of
from hloinspect.options import CompileOptions, Production
from hloinspect.rules.config import Project, find_project


@dataclass(frozen=True, slots=True)
class GatedStep:
    """One step on one target. ``source`` is an INPUT as on the command line, ``name`` what the baseline calls it, and
    ``named_after`` the INPUT whose path the name shortens, None where the name was given."""

    source: str
    name: str
    compiling: CompileOptions = field(default_factory=CompileOptions)
    judging: JudgeOptions = field(default_factory=JudgeOptions)
    tracing: TraceOptions = field(default_factory=TraceOptions)
    budgets: tuple[Budget, ...] = ()
    named_after: str | None = None

    @property
    def target(self) -> str | None:
        """Return the target as it is named, None where it is not."""
        target = self.judging.target
        return target if target is None or isinstance(target, str) else target.name


@dataclass(frozen=True, slots=True)
class GateConfig:
    """A project's gate. ``file`` is the pyproject.toml; ``budgets`` hold for every step that has none of its own."""

    file: Path
    baseline: Path | None
    budgets: tuple[Budget, ...]
    steps: tuple[GatedStep, ...]


def load_gate(folder: Path) -> GateConfig | None:
    """Return the gate of the nearest pyproject.toml with a ``[tool.hloinspect]``, from ``folder`` upward, or None.
    Raises UsageError, one line with the file and the key, for a faulty one."""
    found = find_project(folder)
    if found is None:
        return None
    table, file = found.table, found.file
    budgets = _budgets(table.budget, found.where("budget"))
    baseline = None if table.baseline is None else _seen_from(folder, file.parent / table.baseline)
    steps = [one for number in range(len(table.step)) for one in _steps(found, number, folder, budgets)]
    return GateConfig(file, baseline, budgets, tuple(steps))


def _seen_from(folder: Path, path: Path) -> Path:
    """Return a path as the working directory sees it, so that what is printed can be pasted."""
    return path.relative_to(folder) if path.is_relative_to(folder) else path


def _steps(project: Project, number: int, folder: Path, budgets: tuple[Budget, ...]) -> list[GatedStep]:
    table, home, key = project.table.step[number], project.file.parent, f"step[{number}]"
    if table.target is not None and table.targets:
        raise UsageError(f"{project.where(key)} has both target and targets")
    if table.link is not None:
        try:
            rates_of(table.link)
        except TargetError as error:
            raise UsageError(f"{project.where(f'{key}.link')}: {error}") from None
    own = budgets if table.budget is None else _budgets(table.budget, project.where(f"{key}.budget"))
    source = _source(table.step, home, folder)
    files = (table.flags_from, table.autotune_results, table.pgle)
    compiling = CompileOptions(
        devices=table.devices,
        topology=table.topology,
        xla_flags=table.xla_flags,
        production=Production(*(None if file is None else _seen_from(folder, home / file) for file in files)),
        module=table.module,
    )
    return [
        GatedStep(
            source=source,
            name=table.name or table.step,
            named_after=None if table.name else source,
            compiling=compiling,
            judging=JudgeOptions(target=target, link=table.link),
            budgets=own,
        )
        for target in (table.targets or [table.target])
    ]


def _source(step: str, home: Path, folder: Path) -> str:
    """Return a file as the working directory sees it; what names a module of Python stays."""
    file, colon, function = step.rpartition(":")
    if colon and file.endswith(".py"):
        return f"{_seen_from(folder, home / file)}:{function}"
    return step if colon else str(_seen_from(folder, home / step))


def _budgets(texts: str | Sequence[str], where: str) -> tuple[Budget, ...]:
    return tuple(parse_budget(text, where) for text in ([texts] if isinstance(texts, str) else texts))
