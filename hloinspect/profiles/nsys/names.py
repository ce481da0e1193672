"""What the names of NVTX ranges say: XLA's modules and thunks, and steps that a user has marked.

XLA names its ranges ``XlaModule:#[prefix=..,]hlo_module=NAME[,program_id=N]#`` and
``Thunk:#[name=..,]hlo_op=NAME[,unique_hlo_op_id=N]#`` (xla/backends/gpu/runtime/annotation.cc). ``name`` and ``prefix``
are the user's and may hold commas, signs of equality and more of the kind, so the last ``hlo_op=`` counts. XLA may add
fields behind it, as it did with ``unique_hlo_op_id`` (2026).
"""

from __future__ import annotations

import re
from dataclasses import dataclass

THUNK, MODULE = "Thunk:#", "XlaModule:#"
TSL = "TSL"
"""The NVTX domain of XLA's ranges."""

MAX_NAME = 1 << 16
"""Characters of a name that are read: XLA cuts them at 65,330 bytes."""

_OP, _MODULE = "hlo_op=", "hlo_module="
_WORD = re.compile(r"[^,#]*")
_PROGRAM = re.compile(r"([^,#]+)(?:,program_id=(\d{1,18})(?!\d))?")
_STEP = re.compile(
    r"(?P<name>(?:(?:train|training|global)[ _-]?)?(?:step|iter|iteration|batch)|train|training)?"
    r"[ _:#=-]{0,3}(?P<number>\d{1,12})"
)


@dataclass(frozen=True, slots=True)
class ModuleName:
    """The module that a range ran, and XLA's number of its program, None where the name has none."""

    name: str
    program: int | None


def thunk_op(name: str) -> str:
    """Return the instruction that a thunk's range names, "" where it is no range of a thunk or names none."""
    place = name.rfind(_OP) if name.startswith(THUNK) else -1
    found = _WORD.match(name, place + len(_OP)) if place >= 0 else None
    return found[0] if found else ""


def module_of(name: str) -> ModuleName | None:
    """Return the module that a range ran, or None where it is no range of a module."""
    place = name.rfind(_MODULE) if name.startswith(MODULE) else -1
    found = _PROGRAM.match(name, place + len(_MODULE)) if place >= 0 else None
    if found is None:
        return None
    return ModuleName(found[1], int(found[2]) if found[2] else None)


def step_of(name: str) -> tuple[str, int] | None:
    """Return the kind of a step and its number where a user's range marks one (``step 5``, ``train_step_5``), else
    None."""
    found = _STEP.fullmatch(name.strip().lower())
    return (found["name"] or "", int(found["number"])) if found else None
