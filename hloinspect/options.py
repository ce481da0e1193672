"""What a user gives for compiling a step beside the step: what the production run had, and where compilations are kept.

Imported by every command, and so light: what is done with it is in compile/.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path


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
        """The first option that is given, "" where none is."""
        given = {"--flags-from": self.flags_from, "--autotune-results": self.autotune_results, "--pgle": self.pgle}
        return next((option for option, path in given.items() if path is not None), "")


def cache_folder() -> Path:
    """Where compilations are kept: ``HLOINSPECT_CACHE``, else ``hloinspect`` in ``XDG_CACHE_HOME`` or ``~/.cache``."""
    if own := os.environ.get("HLOINSPECT_CACHE"):
        return Path(own)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "hloinspect"
