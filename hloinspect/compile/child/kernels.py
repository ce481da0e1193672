"""Lets kernels be lowered and compiled for a GPU that is not there (child process only).

JAX, tokamax and XLA query the machine for what its GPU, its cuDNN and its CUB can do. Here the answer is that of the
target, or there is no query. Everything is in place for every GPU step, and noted in the manifest when it was needed: a
step without such kernels is compiled exactly as JAX and XLA would.
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import sys
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType

from hloinspect.compile.child.jax_types import Device, Lowered, Module
from hloinspect.compile.flags import Option

CUDNN_VERSION = 91200
"""cuDNN 9.12: what an attention kernel is lowered for where cuDNN is not installed. JAX wants 9.1 to 9.13."""

NOTE_CUDNN = "cuDNN attention was lowered for cuDNN 9.12, which was not queried"
NOTE_TOKAMAX = "tokamax kernels were lowered with its cross_compile option"
NOTE_CUB = "scratch sizes of CUB are not known without a device: --xla_gpu_deviceless_cub_mode=DEVICELESS_CUB_DISABLED"
NOTE_CALLBACKS = (
    "callbacks into Python (jax.debug.print, jax.pure_callback and kin) were compiled without their functions: "
    "what they move is not counted"
)
CUB_OPTIONS = {"xla_gpu_deviceless_cub_mode": "DEVICELESS_CUB_DISABLED"}
"""Sorting and ragged products take the size of their scratch memory from CUB, and CUB queries a device."""

_CUB_REQUESTED = "cudaErrorInvalidDevice"
_TOKAMAX_CONFIG = "tokamax._src.config"

Note = Callable[[str], None]


def lower_for(device: Device, note: Note) -> None:
    """Lower attention kernels and callbacks for the target's ``device``, from here on. ``note`` is called with the
    words for the manifest, each time that a query is answered.

    Where JAX is not laid out as the versions that hloinspect knows (0.9 to 0.12) a query goes to the machine, and a
    step that depends on the answer fails with JAX's own words."""
    _answer_for_cudnn(device, note)
    _after_import(_TOKAMAX_CONFIG, lambda config: _cross_compile_tokamax(config, note))
    _leave_out_callbacks()


def has_callbacks(lowered: Lowered) -> bool:
    """Return whether a ``jax.stages.Lowered`` calls back into Python."""
    return bool(lowered._lowering.compile_args.get("host_callbacks"))


def without_cub(error: Exception, options: Mapping[str, Option]) -> dict[str, Option] | None:
    """Return the compiler ``options`` to try again with where CUB has queried a device, or None where that is not
    it."""
    requested = _CUB_REQUESTED in str(error) and not set(CUB_OPTIONS) & set(options)
    return {**options, **CUB_OPTIONS} if requested else None


# --- cuDNN ----------------------------------------------------------------------------------------


def _answer_for_cudnn(device: Device, note: Note) -> None:
    """Lower ``jax.nn.dot_product_attention(implementation="cudnn")`` for the compute capability of ``device``."""
    attention = importlib.import_module("jax._src.cudnn.fused_attention_stablehlo")
    ours = _capability(device.compute_capability)

    def cudnn_version() -> int:
        note(NOTE_CUDNN)
        return CUDNN_VERSION

    answers = {
        "check_cudnn_version": cudnn_version,
        "check_compute_capability": lambda least: ours >= _capability(least),
        "is_cuda_compute_capability_equal": lambda wanted: ours == _capability(wanted),
    }
    for name, answer in answers.items():
        if hasattr(attention, name):
            setattr(attention, name, answer)


def _capability(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split("."))


# --- tokamax --------------------------------------------------------------------------------------


def _cross_compile_tokamax(config: ModuleType, note: Note) -> None:
    """Turn on tokamax's option ``cross_compile``, which its kernels read before they query the machine, and note each
    use."""

    class CrossCompile(type(config.cross_compile)):  # type: ignore[misc]
        __slots__ = ()

        @property
        def value(self) -> bool:
            note(NOTE_TOKAMAX)
            return True

    object.__setattr__(config.cross_compile, "__class__", CrossCompile)  # it is frozen


def _after_import(name: str, change: Callable[[ModuleType], None]) -> None:
    """Call ``change`` with the module ``name`` when somebody imports it; at once where it is imported already."""
    if name in sys.modules:
        change(sys.modules[name])
    else:
        sys.meta_path.insert(0, _Watch(name, change))


class _Watch(importlib.abc.MetaPathFinder):
    """Finds one module, as the finders behind it do, and changes it as soon as it has been executed."""

    def __init__(self, name: str, change: Callable[[ModuleType], None]) -> None:
        self._name, self._change = name, change

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != self._name:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(fullname)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def execute_and_change(module: ModuleType) -> None:
                execute(module)
                self._change(module)

            spec.loader.exec_module = execute_and_change  # type: ignore[method-assign]
        return spec


# --- callbacks ------------------------------------------------------------------------------------


def _leave_out_callbacks() -> None:
    """Leave Python functions out: a compile-only client takes none. The calls of them stay in the module."""
    compiler: Module = importlib.import_module("jax._src.compiler")
    compile_and_load = getattr(compiler, "backend_compile_and_load", None)
    if compile_and_load is None:
        return

    def compile_without(
        backend: object, module: object, executable_devices: object, options: object, host_callbacks: Sequence[object]
    ) -> object:
        return compile_and_load(backend, module, executable_devices, options, [])

    compiler.backend_compile_and_load = compile_without
