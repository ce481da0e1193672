"""Options of judging: built once by a verb or by the command line, then handed on as objects.

They are here and not beside ``CompileOptions`` because they name a target and a choice of rules: types of rooms that
``hloinspect.options`` may not import. The module itself is light, so that the command line can build them early.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

from hloinspect.kinds import TargetSource

if TYPE_CHECKING:
    from hloinspect.hardware import Target
    from hloinspect.rules.choice import Choice

NO_TARGET: Final = "none"
"""``--target none``: of a profile only what was measured."""

FollowMemory = bool | Literal["unassigned"] | None
"""Whether memory is estimated: None where there is a target, ``unassigned`` where there is one and nothing says what
XLA has assigned."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgeOptions:
    """What an input is judged for, and by which rules (None: all). ``link`` replaces the host link of the target.
    ``against`` is what ran, which the judged module is compared with: a profile, a dump, or a module.

    Without a ``target`` an input is judged for its own: what it was compiled for, or the device of a profile. With
    ``none`` a profile is only measured.
    """

    target: str | Target | None = None
    link: str | None = None
    rules: Choice | None = None
    memory: FollowMemory = None
    against: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceOptions:
    """How a profile is read.

    ``expect`` is what is expected to have run: a compiled directory, its manifest, or a module. ``hlo`` are files or
    dumps with the modules that a profile does not carry. Several files are
    measured by ``jobs`` processes (None: as many as files and processors), or by the Dask cluster of the address
    ``scheduler``. ``allow_broken`` makes a file that cannot be read a limit of the report.
    """

    expect: str | None = None
    hlo: tuple[str, ...] = ()
    jobs: int | None = 1
    scheduler: str | None = None
    allow_broken: bool = False


@dataclass(frozen=True, slots=True)
class Machine:
    """The machine that times and memory are of: a target, how many of its devices, and how they are connected. None is
    what the input itself says. ``source`` is who named the target."""

    target: Target | None
    devices: int | None = None
    topology: str | None = None
    source: TargetSource = "given"
