"""The compiler options that every GPU step is compiled with, unless the user has set them (child process only)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from hloinspect.compile.child import toolkit, tuned
from hloinspect.compile.flags import Option
from hloinspect.compile.versions import comparable

AUTOTUNE_LEVEL = "xla_gpu_autotune_level"
_SAME_SINCE = (0, 12, 0)


def for_gpu(
    options: Mapping[str, Option], dump: str, xla_version: str, cuda: Path, jaxs_cuda: str | None
) -> dict[str, Option]:
    """Return ``options``, and what is needed beside them: the dump that the thunk sequence comes from, which is what
    really runs and is nowhere else; the folder of the CUDA toolkit; and no autotuning, where that changes nothing.
    ``xla_version`` is that of the package that XLA's compiler comes in."""
    return {
        "xla_dump_to": dump,
        "xla_dump_hlo_as_text": True,
        **toolkit.option(cuda, jaxs_cuda),
        **_without_autotuning(options, xla_version),
        **options,
    }


def _without_autotuning(options: Mapping[str, Option], xla_version: str) -> dict[str, Option]:
    """Return the option that spares XLA from tuning, where that changes nothing.

    Without a device XLA tries the configurations of each kernel until one compiles, and takes that one. At level 0 it
    tries those of matrix products only, in half the time, and the module is the same (``ConfigAssigner``;
    docs/compile.md). It is another one in the XLA of jax 0.10, where products of cuBLAS then have a larger workspace,
    and where results of autotuning are to be loaded."""
    return {} if tuned.LOAD in options or comparable(xla_version) < _SAME_SINCE else {AUTOTUNE_LEVEL: "0"}


def without_refused(
    options: Mapping[str, Option], users: Mapping[str, Option], error: Exception
) -> dict[str, Option] | None:
    """Return ``options`` without the one of ours that this XLA does not know; None where the error is about something
    else."""
    name = AUTOTUNE_LEVEL
    if f"No such compile option: '{name}'" not in str(error) or name in users or name not in options:
        return None
    return {key: value for key, value in options.items() if key != name}
