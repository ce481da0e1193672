"""What stands in for the machine where kernels query it, as far as that can be seen without jax."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from hloinspect.compile.child import kernels

CUB = "INTERNAL: CUDA Runtime error: : cudaErrorInvalidDevice: invalid device ordinal"


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A package ``kernel_options`` with an option as tokamax has them: frozen, with slots, read as ``.value``."""
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "kernel_options.py").write_text(
        "import dataclasses\n"
        "@dataclasses.dataclass(frozen=True, slots=True)\n"
        "class Option:\n"
        "    config: object = None\n"
        "    @property\n"
        "    def value(self): return False\n"
        "cross_compile, other = Option(), Option()\n"
    )
    yield "kernel_options"
    sys.modules.pop("kernel_options", None)
    sys.meta_path[:] = [finder for finder in sys.meta_path if not isinstance(finder, kernels._Watch)]


def _read_as_true(module: ModuleType, said: list[str]) -> None:
    kernels._cross_compile_tokamax(module, said.append)


def test_a_module_is_changed_when_it_is_imported_and_not_before(package: str) -> None:
    said: list[str] = []
    kernels._after_import(package, lambda module: _read_as_true(module, said))
    assert package not in sys.modules
    module = importlib.import_module(package)
    assert said == []  # there was no query yet
    assert (module.cross_compile.value, module.other.value) == (True, False)
    assert said == [kernels.NOTE_TOKAMAX]
    assert not any(isinstance(finder, kernels._Watch) for finder in sys.meta_path)


def test_a_module_that_is_there_already_is_changed_at_once(package: str) -> None:
    module = importlib.import_module(package)
    kernels._after_import(package, lambda module: _read_as_true(module, []))
    assert module.cross_compile.value is True


def test_a_module_that_does_not_exist_still_does_not() -> None:
    kernels._after_import("no_such_kernels", lambda module: None)
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("no_such_kernels")
    assert not any(isinstance(finder, kernels._Watch) for finder in sys.meta_path)


def test_a_compilation_that_cub_stopped_is_tried_again_without_it_once() -> None:
    again = kernels.without_cub(RuntimeError(CUB), {"xla_gpu_foo": True})
    assert again == {"xla_gpu_foo": True, "xla_gpu_deviceless_cub_mode": "DEVICELESS_CUB_DISABLED"}
    assert kernels.without_cub(RuntimeError(CUB), again) is None
    assert kernels.without_cub(RuntimeError("RESOURCE_EXHAUSTED"), {}) is None
