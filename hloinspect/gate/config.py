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

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hloinspect.analyze.options import JudgeOptions
from hloinspect.errors import UsageError
from hloinspect.gate.budget import Budget, parse_budget
from hloinspect.options import CompileOptions, Production
from hloinspect.rules.config import find_table

_STEP_KEYS = (
    *("step", "name", "target", "targets", "devices", "topology", "link", "xla_flags"),
    *("flags_from", "autotune_results", "pgle", "module", "budget"),
)


@dataclass(frozen=True, slots=True)
class GatedStep:
    """One step on one target. ``source`` is an INPUT as on the command line, ``name`` what the baseline calls it, and
    ``named_after`` the INPUT whose path the name shortens, None where the name was given."""

    source: str
    name: str
    compiling: CompileOptions = field(default_factory=CompileOptions)
    judging: JudgeOptions = field(default_factory=JudgeOptions)
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
    """The gate of the nearest pyproject.toml with a ``[tool.hloinspect]``, from ``folder`` upward, or None. Raises
    UsageError, one line with the file, for a faulty one."""
    found = find_table(folder)
    if found is None:
        return None
    table, file = found
    where = f"{file}: [tool.hloinspect]"
    if not isinstance(table, dict):
        raise UsageError(f"{where} is no table")
    budgets = _budgets(table.get("budget", []), f"{where} budget")
    baseline = table.get("baseline")
    if baseline is not None and not (isinstance(baseline, str) and baseline):
        raise UsageError(f"{where} baseline is no file name")
    steps = table.get("step", [])
    if not isinstance(steps, list) or not all(isinstance(step, dict) for step in steps):
        raise UsageError(f"{where} step is no list of tables: write [[tool.hloinspect.step]]")
    gated = [one for number, step in enumerate(steps, 1) for one in _steps(step, number, file, folder, budgets)]
    return GateConfig(
        file, None if baseline is None else _seen_from(folder, file.parent / baseline), budgets, tuple(gated)
    )


def _seen_from(folder: Path, path: Path) -> Path:
    """A path as the working directory sees it, so that what is printed can be pasted."""
    return path.relative_to(folder) if path.is_relative_to(folder) else path


def _steps(
    table: Mapping[str, Any], number: int, file: Path, folder: Path, budgets: tuple[Budget, ...]
) -> list[GatedStep]:
    where = f"{file}: [[tool.hloinspect.step]] {number}"
    for key in table:
        if key not in _STEP_KEYS:
            raise UsageError(f"{where}: unknown key {key!r}; known are {', '.join(_STEP_KEYS)}")
    step = _text(table, "step", where)
    if step is None:
        raise UsageError(f"{where} has no step: name one, such as step = 'train.py:step'")
    targets = table.get("targets", [])
    if not isinstance(targets, list) or not all(isinstance(target, str) for target in targets):
        raise UsageError(f"{where}: targets is no list of names")
    if "target" in table and targets:
        raise UsageError(f"{where} has both target and targets")
    devices = table.get("devices")
    if devices is not None and (isinstance(devices, bool) or not isinstance(devices, int) or devices < 1):
        raise UsageError(f"{where}: devices is no number of devices")
    flags = table.get("xla_flags", [])
    if not isinstance(flags, list) or not all(isinstance(flag, str) for flag in flags):
        raise UsageError(f"{where}: xla_flags is no list of flags")
    own = _budgets(table["budget"], f"{where} budget") if "budget" in table else budgets
    source, name = _source(step, file.parent, folder), _text(table, "name", where)
    files = (_file(table, key, where, file.parent, folder) for key in ("flags_from", "autotune_results", "pgle"))
    compiling = CompileOptions(
        devices=devices,
        topology=_text(table, "topology", where),
        xla_flags=tuple(flags),
        production=Production(*files),
        module=_text(table, "module", where),
    )
    return [
        GatedStep(
            source=source,
            name=name or step,
            named_after=None if name else source,
            compiling=compiling,
            judging=JudgeOptions(target=target, link=_text(table, "link", where)),
            budgets=own,
        )
        for target in (targets or [_text(table, "target", where)])
    ]


def _source(step: str, home: Path, folder: Path) -> str:
    """A file as the working directory sees it; what names a module of Python stays."""
    file, colon, function = step.rpartition(":")
    if colon and file.endswith(".py"):
        return f"{_seen_from(folder, home / file)}:{function}"
    return step if colon else str(_seen_from(folder, home / step))


def _file(table: Mapping[str, Any], key: str, where: str, home: Path, folder: Path) -> Path | None:
    """A path that is written as pyproject.toml sees it."""
    text = _text(table, key, where)
    return None if text is None else _seen_from(folder, home / text)


def _text(table: Mapping[str, Any], key: str, where: str) -> str | None:
    value = table.get(key)
    if value is not None and not (isinstance(value, str) and value):
        raise UsageError(f"{where}: {key} is no text")
    return value


def _budgets(value: object, where: str) -> tuple[Budget, ...]:
    if isinstance(value, str):
        value = [value]
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise UsageError(f"{where} is no list of budgets")
    return tuple(parse_budget(item, where) for item in value)
