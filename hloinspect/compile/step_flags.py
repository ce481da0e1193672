"""What a step's own code puts into XLA_FLAGS, as scripts do before they run (child process only)."""

from __future__ import annotations

import os
import shlex

from hloinspect.compile.flags import Option, compiler_options, name_of_flag

_VARIABLE = "XLA_FLAGS"
_NOT_OURS = ("xla_dump_", "xla_force_host_platform_device_count", "xla_gpu_shard_autotuning")
"""Nothing that the module depends on: where a run's dumps go, how many devices a CPU plays, who of its processes tunes
(MaxText sets that)."""
_OTHERS = {"gpu": ("xla_tpu_", "xla_cpu_"), "tpu": ("xla_gpu_", "xla_cpu_")}
"""Flags of the other platforms, which a compiler may refuse."""


def take_over(platform: str) -> tuple[dict[str, Option], str]:
    """The flags as options of the compiler for ``platform``, and a note that names them; ``{}`` and "" without any.

    They leave the environment, so that XLA does not come upon them later: whether it has read the variable already is
    an accident. That of the parent's environment is not here (compile/launch.py). Raises CompileError where a word is
    no flag.
    """
    words = shlex.split(os.environ.pop(_VARIABLE, ""))
    left_out = _NOT_OURS + _OTHERS[platform]
    used = [word for word in words if not name_of_flag(word).startswith(left_out)]
    return compiler_options(used), f"{_VARIABLE} that the step's code sets: {' '.join(used)}" if used else ""
