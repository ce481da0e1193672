"""Give XLA layouts that put arguments and results in host memory, where its compiler ignores their memory kinds.

XLA's compile-only GPU compiler reads ``mhlo.memory_kind`` of a module's arguments and results from jax 0.10 on. Before,
it drops it: parameters and optimizer state of a step are compiled as device memory, or the module is refused (E1200).
It does read the layouts of the compile options, and a layout can say host memory: ``f32[8,128]{1,0:S(5)}``.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Iterable

import jax

from hloinspect.compile.child.jax_types import MlirAttributes, MlirModule, MlirType, Module, Options

READ_BY_XLA = (0, 10)
"""The first version of jax whose compiler needs no help."""

_HOST_KIND, _HOST_SPACE = '"pinned_host"', "S(5)"


def keep_memory_kinds() -> None:
    """Compile every module with the layouts that its memory kinds request, from here on. Nothing changes where jax is
    new enough, or where a module has nothing in host memory."""
    if jax.__version_info__ >= READ_BY_XLA:
        return
    compiler: Module = importlib.import_module("jax._src.compiler")
    compile_and_load = compiler.backend_compile_and_load

    @functools.wraps(compile_and_load)
    def compile_with_layouts(
        backend: object, module: MlirModule, executable_devices: object, options: Options, *rest: object
    ) -> object:
        _set_layouts(module, options)
        return compile_and_load(backend, module, executable_devices, options, *rest)

    compiler.backend_compile_and_load = compile_with_layouts


def _set_layouts(module: MlirModule, options: Options) -> None:
    xla_client = importlib.import_module("jax._src.lib").xla_client
    main = next(op for op in module.body.operations if op.attributes["sym_name"].value == "main")
    arguments = shapes_in_memory(main.type.inputs, main.arg_attrs)
    results = shapes_in_memory(main.type.results, main.attributes["res_attrs"])
    if not any(_HOST_SPACE in shape for shape in arguments + results):
        return
    options.argument_layouts = [xla_client.Shape(shape) for shape in arguments]
    whole = results[0] if len(results) == 1 else f"({', '.join(results)})"
    options.executable_build_options.result_layout = xla_client.Shape(whole)


def shapes_in_memory(types: Iterable[MlirType], attributes: Iterable[MlirAttributes]) -> list[str]:
    """Return shapes as HLO text, of a function's MLIR tensor types and its attributes for each: row-major, and in host
    memory where ``mhlo.memory_kind`` says ``pinned_host``."""
    return [_shape(tensor, _kind(given) == _HOST_KIND) for tensor, given in zip(types, attributes, strict=True)]


def _kind(attributes: MlirAttributes) -> str:
    return str(attributes["mhlo.memory_kind"]) if "mhlo.memory_kind" in attributes else ""


def _shape(tensor: MlirType, on_host: bool) -> str:
    dims = ",".join(str(size) for size in tensor.shape)
    order = ",".join(str(axis) for axis in reversed(range(tensor.rank)))
    layout = f"{order}:{_HOST_SPACE}" if on_host else order
    return f"{hlo_dtype(str(tensor.element_type))}[{dims}]" + (f"{{{layout}}}" if layout else "")


def hlo_dtype(mlir: str) -> str:
    """Return HLO's name of an MLIR element type: ``bf16`` is one in both, ``ui8`` is ``u8``, ``f8E4M3FN`` is
    ``f8e4m3fn``."""
    complex_ = {"complex<f32>": "c64", "complex<f64>": "c128"}
    if mlir in complex_:
        return complex_[mlir]
    if mlir == "i1":
        return "pred"
    if mlir.startswith("ui"):
        return f"u{mlir[2:]}"
    return f"s{mlir[1:]}" if mlir.startswith("i") else mlir.lower()
