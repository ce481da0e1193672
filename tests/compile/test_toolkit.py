"""NVIDIA's assembler is found where XLA finds it and where its users have it; if it is missing, the error says so."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from hloinspect import inspect
from hloinspect.compile.child import own_options, toolkit
from hloinspect.compile.launch import compile_step
from hloinspect.hardware import load_target
from tests.support.places import ROOT


@pytest.fixture
def nowhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """XLA's own folders of this machine do not count."""
    monkeypatch.setattr(toolkit, "_XLA_LOOKS_IN", ())


def a_toolkit(folder: Path, *, libdevice: bool = True) -> Path:
    ptxas = folder / "bin" / "ptxas"
    ptxas.parent.mkdir(parents=True)
    ptxas.write_text("#!/bin/sh\necho 'Cuda compilation tools, release 13.0, V13.0.88'\n")
    ptxas.chmod(0o755)
    if libdevice:
        (folder / "nvvm" / "libdevice").mkdir(parents=True)
        (folder / "nvvm" / "libdevice" / "libdevice.10.bc").write_bytes(b"BC")
    return folder


@pytest.mark.usefixtures("nowhere")
def test_the_packages_of_nvidia_come_before_the_machines_toolkits(tmp_path: Path) -> None:
    package, machine = a_toolkit(tmp_path / "cu13"), a_toolkit(tmp_path / "cuda")
    assert toolkit.find(None, str(package), {"CUDA_HOME": str(machine)}) == package
    assert toolkit.find(None, None, {"CUDA_HOME": str(machine)}) == machine


@pytest.mark.usefixtures("nowhere")
def test_the_toolkit_of_the_ptxas_on_the_path_is_taken_also_through_a_link(tmp_path: Path) -> None:
    machine = a_toolkit(tmp_path / "opt" / "cuda-13")
    (tmp_path / "links").mkdir()
    (tmp_path / "links" / "ptxas").symlink_to(machine / "bin" / "ptxas")
    assert toolkit.find(None, None, {"PATH": str(tmp_path / "links")}) == machine


@pytest.mark.usefixtures("nowhere")
@pytest.mark.parametrize("environ", [{}, {"PATH": ""}, {"CUDA_HOME": "/nonexistent", "CUDA_PATH": ""}])
def test_where_there_is_none_the_error_says_what_to_install(environ: dict[str, str]) -> None:
    with pytest.raises(toolkit.ToolkitError, match=r"pip install nvidia-cuda-nvcc nvidia-nvvm \(hloinspect\[cuda\]"):
        toolkit.find(None, None, environ)


@pytest.mark.usefixtures("nowhere")
def test_an_assembler_without_libdevice_is_not_enough(tmp_path: Path) -> None:
    half = a_toolkit(tmp_path / "half", libdevice=False)
    with pytest.raises(toolkit.ToolkitError):
        toolkit.find(None, str(half), {"CUDA_HOME": str(half), "PATH": str(half / "bin")})


def test_a_folder_that_the_user_names_is_left_to_xla(tmp_path: Path) -> None:
    assert toolkit.find(str(tmp_path), None, {}) == tmp_path


def test_xla_gets_a_folder_only_where_it_would_not_look(tmp_path: Path) -> None:
    usual, other = Path("/usr/local/cuda"), tmp_path / "cuda"
    assert toolkit.option(usual, None) == {}
    assert toolkit.option(other, str(other)) == {}
    assert toolkit.option(other, None) == {"xla_gpu_cuda_data_dir": str(other)}
    assert toolkit.option(usual, str(other)) == {"xla_gpu_cuda_data_dir": str(usual)}


def test_the_release_of_the_assembler_is_read_from_its_answer(tmp_path: Path) -> None:
    assert toolkit.release(a_toolkit(tmp_path / "cuda")) == "13.0.88"
    assert toolkit.release(tmp_path) is None


def test_no_autotuning_is_requested_where_the_module_is_the_same_without() -> None:
    def level(options: dict[str, str], jax: str = "0.12.0.1") -> object:
        usual = Path("/usr/local/cuda")
        return own_options.for_gpu(options, "dump", jax, usual, None).get("xla_gpu_autotune_level")

    assert level({}) == "0"
    assert level({}, "0.12.1.dev20261101+abc") == "0"
    assert level({}, "0.10.2") is None
    assert level({"xla_gpu_autotune_level": "4"}) == "4"
    assert level({"xla_gpu_load_autotune_results_from": "results.txt"}) is None


def test_an_xla_that_no_longer_knows_the_level_gets_none_unless_the_user_has_set_it() -> None:
    refusal = RuntimeError("INVALID_ARGUMENT: No such compile option: 'xla_gpu_autotune_level'")
    options = {"xla_gpu_autotune_level": "0", "xla_dump_to": "dump"}
    assert own_options.without_refused(options, {}, refusal) == {"xla_dump_to": "dump"}
    assert own_options.without_refused(options, {"xla_gpu_autotune_level": "0"}, refusal) is None
    assert own_options.without_refused({"xla_dump_to": "dump"}, {}, refusal) is None
    assert own_options.without_refused(options, {}, RuntimeError("No such compile option: 'xla_other'")) is None


COMPILE = """
import sys
from pathlib import Path
from hloinspect.compile.launch import compile_step
from hloinspect.hardware import load_target
result = compile_step("step.py:step", load_target("gb200"), out=Path("out"))
print(result.manifest.versions["ptxas"], "dot" in result.module_text.read_text())
"""
STEP = """
import jax, jax.numpy as jnp
def step():
    return jax.jit(lambda a, b: jnp.tanh(a @ b)), *[jax.ShapeDtypeStruct((256, 256), jnp.bfloat16)] * 2
"""


@pytest.mark.slow
def test_nvidias_packages_are_enough_on_a_machine_without_a_cuda_toolkit(tmp_path: Path) -> None:
    """In a mount namespace of its own, where the machine's toolkits are empty folders."""
    if importlib.util.find_spec("jax") is None or importlib.util.find_spec("nvidia.cu13") is None:
        pytest.skip("hloinspect[cuda] is not installed")
    enter = ["unshare", "--mount", "--map-root-user"] if os.geteuid() else ["unshare", "--mount"]
    if shutil.which("unshare") is None or subprocess.run([*enter, "true"], check=False).returncode:
        pytest.skip("this system has no mount namespaces for its users")
    (tmp_path / "empty").mkdir()
    (tmp_path / "step.py").write_text(STEP)
    hidden = sorted({path.resolve() for path in Path("/usr/local").glob("cuda*")})
    path = os.pathsep.join(p for p in os.environ["PATH"].split(os.pathsep) if not (Path(p) / "ptxas").exists())
    mounts = "".join(f"mount --bind {tmp_path / 'empty'} {folder} && " for folder in hidden)
    done = subprocess.run(
        [*enter, "sh", "-c", mounts + 'exec "$0" "$@"', sys.executable, "-c", COMPILE],
        cwd=tmp_path,
        env={**os.environ, "PATH": path, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    release, has_product = done.stdout.split()
    assert release.startswith("1")
    assert has_product == "True"


SLICE = """
import jax, jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding, PartitionSpec
def step():
    at = NamedSharding(Mesh(jax.devices()[:1], ("d",)), PartitionSpec(), memory_kind="pinned_host")
    stack = jax.ShapeDtypeStruct((4, 128, 128), jnp.float32, sharding=at)
    return jax.jit(lambda stack: jnp.tanh(jax.device_put(stack[1], jax.memory.Space.Device))), stack
"""


@pytest.mark.slow
def test_a_module_is_read_with_the_result_that_it_lies_in(tmp_path: Path) -> None:
    """Without autotuning the text has no sign that it would show a slice's marker, and this slice has none."""
    if importlib.util.find_spec("jax") is None:
        pytest.skip("hloinspect[cuda] is not installed")
    (tmp_path / "slice.py").write_text(SLICE)
    result = compile_step(f"{tmp_path / 'slice.py'}:step", load_target("gb200"), out=tmp_path / "out")
    whole = inspect(str(result.directory)).report
    assert [(each.direction, each.mechanism) for each in whole.transfers] == [("h2d", "kernel")]
    for part in (result.module_text, result.module_proto):
        assert inspect(str(part)).report.transfers == whole.transfers
        assert inspect(str(part)).report.memory == whole.memory
    result.module_text.write_text(result.module_text.read_text() + "\n")  # somebody's edit: no longer what it was
    assert inspect(str(result.module_text)).report.program.jax is None
