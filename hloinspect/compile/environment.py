"""The variables of the environment that decide a compilation, and those that a child gets. No jax."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

LIBTPU_ARGUMENTS = "LIBTPU_INIT_ARGS"

FOR_EVERY_CHILD = {
    "JAX_PLATFORMS": "cpu",  # else JAX refuses a topology of a platform that is not there
    "JAX_SKIP_CUDA_CONSTRAINTS_CHECK": "1",  # the plugin would look for NVIDIA's libraries and complain
    "JAX_ENABLE_COMPILATION_CACHE": "false",  # a cached executable leaves no thunk sequence
}
FOR_TPUS = {
    "TPU_SKIP_MDS_QUERY": "1",  # there is no metadata server to query
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",  # else a second compilation at a time is refused
}

_NAMED = ("XLA_", "LIBTPU_", "TPU_", "PJRT_", "JAX_", "MEGASCALE_", "TRITON_", "MOSAIC_")
_NAMED_WHOLE = (
    "ALLOW_LHS_TMEM_LAYOUT_CONVERSION",
    "DISABLE_LLVM_OPT",
    "DISABLE_PTXAS_OPT",
    "ENABLE_MEM_REUSE",
    "NCCL_MAX_NCHANNELS",
    "NCCL_MIN_NCHANNELS",
    "NCCL_NTHREADS",
    "NVIDIA_TF32_OVERRIDE",
)
"""What XLA and its Triton read by these names (the strings of jaxlib's and the plugin's libraries). NCCL's three are of
XLA's cost model of collectives."""
_MORE = ("JAXLIB_", "TF_", "TSL_", "MLIR_", "LLVM_", "NCCL_", "NVSHMEM_", "CUDA_", "CUDNN_", "CUBLAS_")
"""What may decide a compilation and mostly does not: a cache looks at it, and a person need not read it."""
_DECIDES_NOTHING = ("TF_CPP_",)
_OF_THE_MACHINE = (
    "TPU_LIBRARY_PATH",  # its content is among the libraries
    "TPU_NAME",
    "TPU_PROCESS_",
    "TPU_VISIBLE_",
    "TPU_WORKER_",
    "JAX_COORDINATOR_",
    "JAX_PROCESS_",
    "JAX_NUM_PROCESSES",
    "JAX_LOCAL_DEVICE_IDS",
)


def deciding(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that may decide a compilation. Those of ``FOR_TPUS`` do not: every child for a TPU gets the
    same, and JAX sets one of them in any process that imports it."""
    return {
        name: value
        for name, value in sorted(environ.items())
        if (name.startswith(_NAMED + _MORE) or name in _NAMED_WHOLE)
        and not name.startswith(_DECIDES_NOTHING)
        and name not in FOR_TPUS
    }


def named(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that a manifest names with their values: those of XLA, libtpu and JAX, less what every
    child gets and what says only which machine this is."""
    own = FOR_EVERY_CHILD | FOR_TPUS
    return {
        name: value
        for name, value in sorted(environ.items())
        if (name.startswith(_NAMED) or name in _NAMED_WHOLE)
        and name not in own
        and not name.startswith(_OF_THE_MACHINE)
    }


def paths_in(text: str) -> list[Path]:
    """Return the absolute paths that a value names, as of ``--xla_dump_to=/tmp/dump`` or ``name:/lib.so``."""
    return [Path(word) for word in re.split(r"[\s,;:='\"]+", text) if word.startswith("/")]
