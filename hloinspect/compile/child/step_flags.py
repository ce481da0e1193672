"""What a step's own code puts into XLA_FLAGS, as scripts do before they run (child process only)."""

from __future__ import annotations

import os

from hloinspect.compile.flags import VARIABLE, Option, compiler_options, flags_in


def take_over(platform: str) -> tuple[dict[str, Option], str]:
    """Return the flags as options of the compiler for ``platform``, and a note that names them; ``{}`` and "" without
    any.

    They leave the environment, so that XLA does not come upon them later: whether it has read the variable already is
    an accident. That of the parent's environment is not here (compile/launch.py). Raises CompileError where a word is
    no flag.
    """
    used = flags_in(os.environ.pop(VARIABLE, ""), platform)
    return compiler_options(used), f"{VARIABLE} that the step's code sets: {' '.join(used)}" if used else ""
