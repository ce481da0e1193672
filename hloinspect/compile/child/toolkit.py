"""The parts of NVIDIA's CUDA toolkit that XLA needs to compile for a GPU, with or without one: ptxas and libdevice.

XLA runs ptxas on every kernel, also while it picks the configurations of matrix products, and links its mathematical
functions from libdevice. Where they are missing it ends after half a minute, in a crash or with an error about
configurations, so they are looked for before.
"""

from __future__ import annotations

import functools
import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

OPTION = "xla_gpu_cuda_data_dir"
_PTXAS, _LIBDEVICE = Path("bin/ptxas"), Path("nvvm/libdevice/libdevice.10.bc")
_XLA_LOOKS_IN = (Path("/usr/local/cuda"),)  # tsl/platform/default/cuda_root_path.cc, CandidateCudaRoots
_VARIABLES = ("CUDA_ROOT", "CUDA_HOME", "CUDA_PATH")
_RELEASE = re.compile(r"\bV(\d+(?:\.\d+)+)")


class ToolkitError(Exception):
    """There is no toolkit: its text is the one line that the user sees."""


def jaxs_folder() -> str | None:
    """Return the folder that JAX gives XLA: of NVIDIA's packages from PyPI, or ``CUDA_ROOT``; None where it knows
    none."""
    import jax._src.lib

    return getattr(jax._src.lib, "cuda_path", None)


def find(given: str | None, jaxs: str | None, environ: Mapping[str, str] = os.environ) -> Path:
    """Return the folder whose ``bin/ptxas`` and ``nvvm/libdevice`` XLA is to use.

    ``given`` is the user's own ``xla_gpu_cuda_data_dir``, ``jaxs`` is ``jaxs_folder()``. Then come the folder that XLA
    looks in by itself, the variables that CUDA's users set, and the folder that the ``ptxas`` of the ``PATH`` is from.
    Raises ToolkitError.
    """
    if given is not None:
        return Path(given)  # the user's word: XLA says what it misses there
    on_path = shutil.which("ptxas", path=environ.get("PATH", ""))
    candidates = [
        *([Path(jaxs)] if jaxs else []),
        *_XLA_LOOKS_IN,
        *(Path(environ[name]) for name in _VARIABLES if environ.get(name)),
        *([Path(on_path).resolve().parents[1]] if on_path else []),
    ]
    for folder in candidates:
        if os.access(folder / _PTXAS, os.X_OK) and (folder / _LIBDEVICE).is_file():
            return folder
    raise ToolkitError(
        "XLA needs NVIDIA's assembler (ptxas) and libdevice to compile for NVIDIA GPUs, and no package and no CUDA "
        "toolkit with both was found; install them with: pip install nvidia-cuda-nvcc nvidia-nvvm "
        "(hloinspect[cuda] brings them; no GPU is needed), or set CUDA_HOME"
    )


def option(folder: Path, jaxs: str | None) -> dict[str, str]:
    """Return the compiler option that XLA needs to find ``folder``: none for what JAX gives it or what it finds by
    itself."""
    known = {Path(jaxs)} if jaxs else set(_XLA_LOOKS_IN)
    return {} if folder in known else {OPTION: str(folder)}


def parts(folder: Path) -> list[Path]:
    """Return the files of the toolkit that take part in a compilation."""
    return [folder / _PTXAS, folder / _LIBDEVICE, folder / "bin/nvlink"]


@functools.cache
def release(folder: Path) -> str | None:
    """Return the release of the toolkit's ptxas ("13.0.88"), None where it does not say."""
    with suppress(OSError, subprocess.SubprocessError):
        done = subprocess.run([folder / _PTXAS, "--version"], capture_output=True, text=True, timeout=30, check=False)
        if found := _RELEASE.search(done.stdout):
            return found[1]
    return None
