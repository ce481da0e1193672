"""Facts on the flags, the configuration and the release that a program was compiled with."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hloinspect.compile.versions import comparable, o1_pipelines

if TYPE_CHECKING:
    from hloinspect.report.schema import ProgramInfo

PIPELINED_FLAG = "xla_gpu_enable_pipelined_host_offloading"
LEVEL = "optimization_level"


def flag_value(program: ProgramInfo, name: str) -> str | None:
    """Return the value of a flag that the program was compiled with.

    Return None where it was not given or flags are not known.
    """
    for flag in program.flags or ():
        key, _, value = flag.lstrip("-").partition("=")
        if key == name:
            return value or "true"
    return None


def compiled_version(program: ProgramInfo) -> tuple[int, ...] | None:
    """Return a version like (0, 12, 0) where the program's jax is known.

    It is the older of jax and jaxlib, since XLA comes with jaxlib.
    """
    return min((found for text in (program.jax, program.jaxlib) if text and (found := comparable(text))), default=None)


def optimization_level(program: ProgramInfo) -> int:
    """Return XLA's optimization level that the program was compiled with: a flag, or JAX's configuration, or 0 if
    unknown."""
    configuration = program.configuration
    given = flag_value(program, LEVEL) or (configuration.compile_options.get(LEVEL) if configuration else None) or ""
    level = given.upper().removeprefix("EFFORT_").removeprefix("O")
    return int(level) if level.isdecimal() else 0


def pipelining_setting(program: ProgramInfo) -> str:
    """Return the setting that makes XLA pipeline the program's host transfers, in words, or "" where none is known.

    O1 does so in some versions only.
    """
    if (flag_value(program, PIPELINED_FLAG) or "").lower() in ("true", "1"):
        return f"--{PIPELINED_FLAG}"
    version, level = compiled_version(program), optimization_level(program)
    if level < 1 or (version is not None and not o1_pipelines(version)):
        return ""
    return f"optimization level O{level}"
