"""Lets attention kernels be lowered for a GPU that is not there (child process only).

JAX and tokamax ask the machine what its GPU and its cuDNN can do before they lower such a kernel. The target answers
instead. Each function changes that for this process and returns a note for the manifest.
"""

from __future__ import annotations

import contextlib
import importlib
from typing import Any

CUDNN_VERSION = 91200
"""cuDNN 9.12: what an attention kernel is lowered for where cuDNN is not installed. JAX asks for 9.1 to 9.11."""

NOTE_CUDNN = "cuDNN attention was lowered for cuDNN 9.12, which was not asked"
NOTE_TOKAMAX = "tokamax kernels were lowered with its cross_compile option"
NOTE_CUB = "scratch sizes of CUB are not known without a device: --xla_gpu_deviceless_cub_mode=DEVICELESS_CUB_DISABLED"
CUB_OPTIONS = {"xla_gpu_deviceless_cub_mode": "DEVICELESS_CUB_DISABLED"}
"""Sorting and ragged products ask CUB for the size of their scratch memory, and CUB asks a device."""

_FOR_GOOD = contextlib.ExitStack()  # contexts that are never left: the process compiles one step


def lower_cudnn_attention(device: Any) -> str:
    """``jax.nn.dot_product_attention(implementation="cudnn")`` for the compute capability of ``device``.

    Raises AttributeError where JAX has no such checks any more (jax/_src/cudnn/fused_attention_stablehlo.py).
    """
    attention = importlib.import_module("jax._src.cudnn.fused_attention_stablehlo")
    ours = _capability(device.compute_capability)
    answers = {
        "check_cudnn_version": lambda: CUDNN_VERSION,
        "check_compute_capability": lambda least: ours >= _capability(least),
        "is_cuda_compute_capability_equal": lambda wanted: ours == _capability(wanted),
    }
    for name, answer in answers.items():
        getattr(attention, name)  # so that setting it means something
        setattr(attention, name, answer)
    return NOTE_CUDNN


def _capability(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split("."))


def lower_tokamax() -> str:
    """tokamax's Pallas kernels. Raises ImportError or AttributeError where tokamax is not as it was in 0.2."""
    _FOR_GOOD.enter_context(importlib.import_module("tokamax.config").cross_compile(True))
    return NOTE_TOKAMAX
