"""``[tool.hloinspect]`` of pyproject.toml: where it is, what it may hold, and the rules that it chooses.

The whole table has one type (rules/table.py) and is decoded as a whole: a fault in it is a fault for every command.
gate/config.py and plan/axes.py go on with their parts of it.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from hloinspect.decoding import Fault, decode, parse_toml, read_text
from hloinspect.errors import UsageError, printable
from hloinspect.rules.choice import Choice, checked_codes, checked_severity

if TYPE_CHECKING:
    from hloinspect.rules.table import ProjectTable


@dataclass(frozen=True, slots=True)
class Project:
    """A table with the file that it is in."""

    table: ProjectTable
    file: Path

    def where(self, key: str) -> str:
        """Return what an error about a key begins with."""
        return f"{self.file}: [tool.hloinspect]: {key}"


def load_choice(folder: Path) -> Choice:
    """Return the choice of the nearest ``[tool.hloinspect]``, from ``folder`` upward, and all rules where there is
    none. Raises UsageError, one line with the file and the key."""
    found = find_project(folder)
    if found is None:
        return Choice()
    table = found.table
    levels = {checked_codes([code], found.where("severity"))[0]: level for code, level in table.severity.items()}
    select = Choice().select if table.select is None else checked_codes(table.select, found.where("select"))
    return Choice(select, checked_codes(table.ignore, found.where("ignore")), levels)


def find_project(folder: Path) -> Project | None:
    """Return the nearest ``[tool.hloinspect]``, from ``folder`` upward, or None. Raises UsageError, one line with the
    file and the key, for a file that cannot be read and for a faulty table."""
    for place in (folder, *folder.parents):
        file = place / "pyproject.toml"
        if file.is_file() and (table := _table(file)) is not None:
            return Project(table, file)
    return None


def _table(file: Path) -> ProjectTable | None:
    try:
        return _decoded(read_text(file))
    except (OSError, ValueError, RecursionError) as error:
        raise UsageError(f"{file}: {printable(str(error))}") from None
    except Fault as fault:
        raise UsageError(f"{file}: [tool.hloinspect]: {fault}") from None


@functools.lru_cache(maxsize=8)
def _decoded(text: str) -> ProjectTable | None:
    tool = parse_toml(text).get("tool")
    if not isinstance(tool, dict) or "hloinspect" not in tool:
        return None
    from hloinspect.rules.table import ProjectTable

    return decode(tool["hloinspect"], ProjectTable, toml=True)


def with_options(choice: Choice, select: Sequence[str], ignore: Sequence[str], severity: Sequence[str]) -> Choice:
    """Return a choice with the options of a command line: ``--select`` and ``--ignore`` replace, ``--severity
    CODE=LEVEL`` is added. Each may hold several codes, with commas between. Raises UsageError."""
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
