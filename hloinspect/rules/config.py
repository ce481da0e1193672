"""``[tool.hloinspect]`` of pyproject.toml: where it is, which rules run, and how loud they are."""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from pathlib import Path

from hloinspect.errors import UsageError
from hloinspect.rules.choice import Choice, checked_codes, checked_severity

GATE_KEYS = ("baseline", "budget", "step")
"""Keys of the gate, which gate/config.py reads."""

_KEYS = ("select", "ignore", "severity", "plan", *GATE_KEYS)  # plan/axes.py reads plan


def load_choice(folder: Path) -> Choice:
    """The choice of the first pyproject.toml with a ``[tool.hloinspect]``, from ``folder`` upward; all rules where
    there is none. Raises UsageError, one line with the file, for a faulty one."""
    found = find_table(folder)
    return _choice(*found) if found else Choice()


def find_table(folder: Path) -> tuple[object, Path] | None:
    """The ``[tool.hloinspect]`` that is nearest, from ``folder`` upward, with its file; None where there is none.
    Raises UsageError for a file that cannot be read."""
    for place in (folder, *folder.parents):
        file = place / "pyproject.toml"
        if file.is_file() and (table := _table(file)) is not None:
            return table, file
    return None


def _table(file: Path) -> object | None:
    try:
        data = tomllib.loads(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise UsageError(f"{file}: {error}") from None
    tool = data.get("tool", {})
    return tool.get("hloinspect") if isinstance(tool, dict) else None


def _choice(table: object, file: Path) -> Choice:
    where = f"{file}: [tool.hloinspect]"
    if not isinstance(table, dict):
        raise UsageError(f"{where} is no table")
    for key in table:
        if key not in _KEYS:
            raise UsageError(f"{where}: unknown key {key!r}; known are {', '.join(_KEYS)}")
    severity = table.get("severity", {})
    if not isinstance(severity, dict):
        raise UsageError(f"{where}: severity is no table of codes and severities")
    levels = {
        checked_codes([code], f"{where} severity")[0]: checked_severity(level, f"{where} severity")
        for code, level in severity.items()
    }
    select = _codes(table["select"], f"{where} select") if "select" in table else Choice().select
    return Choice(select, _codes(table.get("ignore", []), f"{where} ignore"), levels)


def _codes(value: object, where: str) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise UsageError(f"{where} is no list of codes")
    return checked_codes(value, where)


def with_options(choice: Choice, select: Sequence[str], ignore: Sequence[str], severity: Sequence[str]) -> Choice:
    """A choice with the options of a command line: ``--select`` and ``--ignore`` replace, ``--severity CODE=LEVEL`` is
    on top. Each may hold several codes, with commas between. Raises UsageError."""
    levels = dict(choice.severity)
    for item in (part for text in severity for part in text.split(",")):
        code, equals, level = item.partition("=")
        if not equals:
            raise UsageError(f"--severity {item}: expected CODE=LEVEL, such as HLO110=info")
        levels[checked_codes([code], "--severity")[0]] = checked_severity(level.strip().lower(), "--severity")
    chosen, ignored = _split(select, "--select"), _split(ignore, "--ignore")
    return Choice(chosen or choice.select, ignored or choice.ignore, levels)


def _split(texts: Sequence[str], option: str) -> tuple[str, ...]:
    return checked_codes((part for text in texts for part in text.split(",")), option)
