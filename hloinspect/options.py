"""Options of a compilation: what the user gives beside the step, as one object that is handed on.

Every command imports this module, so it is light: what is done with the options is in ``compile/``. The options of
judging are in ``analyze/options.py``, because the types of a target and of a choice of rules live in rooms above this.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path

from hloinspect.errors import UsageError

MOST_DEVICES = 10_000_000
"""Devices of one step: more than there are in any one place."""


@dataclass(frozen=True, slots=True)
class Production:
    """Paths of what the production run had; None for what is not given.

    ``flags_from``: a directory of ``--xla_dump_to``, a ``*.debug_options`` file, or what ``hloinspect compile`` wrote.
    ``autotune_results``: what ``--xla_gpu_dump_autotune_results_to`` wrote, or a dump's ``*.autotune_results.pbtxt``.
    ``pgle``: a profile (``ProfiledInstructionsProto``), or a directory of them by the module's fingerprint.
    """

    flags_from: Path | None = None
    autotune_results: Path | None = None
    pgle: Path | None = None

    def __bool__(self) -> bool:
        return bool(self.option)

    @property
    def option(self) -> str:
        """Return the first option that is given, "" where none is."""
        given = {"--flags-from": self.flags_from, "--autotune-results": self.autotune_results, "--pgle": self.pgle}
        return next((option for option, path in given.items() if path is not None), "")


@dataclass(frozen=True, slots=True, kw_only=True)
class CompileOptions:
    """How a step is compiled, or which module of a dump is read.

    ``devices`` and ``topology`` also say what an input that is compiled already is judged for. ``xla_flags`` win over
    the flags of ``production``. ``cache`` is the folder of earlier compilations, None to use none. ``keep`` is the
    folder for what a compilation writes, None where it is not kept. ``module`` picks a module of a dump.
    """

    devices: int | None = None
    topology: str | None = None
    xla_flags: tuple[str, ...] = ()
    production: Production = field(default_factory=Production)
    cache: Path | None = None
    keep: Path | None = None
    module: str | None = None
    timeout_s: float = 1800.0

    def __post_init__(self) -> None:
        """Raise UsageError for a number of devices that the command line refuses too: a baseline would have it."""
        if self.devices is None:
            return
        is_whole = isinstance(self.devices, int) and not isinstance(self.devices, bool)
        if not is_whole or not 1 <= self.devices <= MOST_DEVICES:
            shown = str(self.devices)[:40]
            raise UsageError(f"devices must be a whole number from 1 to {MOST_DEVICES:,}, not {shown}")


def cache_folder() -> Path:
    """Return the folder of compilations: ``HLOINSPECT_CACHE``, else ``hloinspect`` in ``XDG_CACHE_HOME`` or
    ``~/.cache``."""
    if own := os.environ.get("HLOINSPECT_CACHE"):
        return Path(own)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "hloinspect"
