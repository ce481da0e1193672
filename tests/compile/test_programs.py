"""What programs do before and inside their step compiles without the device: in one child process each for all that
needs no compiling of its own, for the kernels, and for a plain training script."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from hloinspect import inspect
from hloinspect.compile.child import step_flags
from hloinspect.compile.launch import compile_step
from hloinspect.errors import CompileError
from hloinspect.hardware import load_target
from hloinspect.inputs.manifest import CompileResult
from tests.support.places import ROOT

H100 = load_target("h100")

needs_jax = pytest.mark.skipif(importlib.util.find_spec("jax") is None, reason="compiling needs hloinspect[cuda]")


def _works() -> ModuleType:
    spec = importlib.util.spec_from_file_location("fixture_works", ROOT / "fixtures" / "works.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


WORKS = _works()
LIBRARIES = {"linen": ("flax", "optax"), "nnx": ("flax", "optax"), "equinox": ("equinox", "optax")}
MEETS = ("own_mesh", "made_mesh", "mesh_context", "processes", "shard_map", *LIBRARIES)

# --- the tables in the docs -----------------------------------------------------------------------


def test_the_tables_in_the_docs_are_what_was_found() -> None:
    assert WORKS.tables() in (ROOT / "docs" / "compile.md").read_text()


def test_all_that_was_tried_works_with_every_version_and_no_transfer_is_lost_or_unexplained() -> None:
    found = WORKS.found()
    assert {"0.9.2", "0.10.2", "0.12.0.1"} <= set(found)
    for version, answers in found.items():
        for key, answer in answers.items():
            assert "error" not in answer, (version, key)
            assert (answer["lost"], answer["unexplained"]) == ([], 0), (version, key)
        assert {f"fixtures/programs.py:{name} h100 8" for name in WORKS.programs()} <= set(answers)


def test_a_third_of_the_combinations_has_each_two_together() -> None:
    chosen = set(WORKS.combinations(pairs=True))
    assert len(chosen) * 3 == len(list(WORKS.combinations(pairs=False)))
    for one, other in ((0, 1), (0, 2), (1, 2)):
        everything = {(case[one], case[other]) for case in WORKS.combinations(pairs=False)}
        assert {(case[one], case[other]) for case in chosen} == everything


# --- what a program meets before its step ---------------------------------------------------------

ARRAYS = """
import json, os, sys
sys.path.insert(0, FIXTURES)
import jax, jax.numpy as jnp, numpy as np
import programs

os.environ["XLA_FLAGS"] = "--xla_gpu_enable_triton_gemm=false --xla_dump_to=nowhere"

def outcome(function):
    try:
        return str(function())
    except Exception as error:
        return f"{type(error).__name__}: {error}"

def step():
    lowered = {name: getattr(programs, name)() for name in MEETS}
    mesh = programs._mesh()
    host = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("data"), memory_kind="pinned_host")
    x = jax.device_put(np.ones((16, 4), np.float32), host)
    y = jax.device_put(x, jax.memory.Space.Device)
    total = (2 * y + jnp.ones(4)).astype(jnp.bfloat16).T @ y[:, 0] - y.at[0, 0].set(1).sum()
    seen = dict(
        array=isinstance(x, jax.Array), nbytes=x.nbytes, kind=x.sharding.memory_kind, total=str(total.aval),
        ready=jax.block_until_ready(x) is x, devices=len(x.devices()), text=f"{x}"[:27], mean=jnp.mean(x).shape,
        value=outcome(lambda: float(y[0, 0])), numpy=outcome(lambda: np.asarray(x)),
        items=[str(part.shape) for part in y],
        shards=[str(shard.data.shape) for shard in x.addressable_shards],
        closed=outcome(lambda: jax.jit(lambda: x + 1).lower()),
        cpu=float(jnp.arange(4.0).sum()), lowered=sorted(lowered), initialized=jax.distributed.is_initialized())
    with open(os.path.join(os.path.dirname(__file__), "seen.json"), "w") as file:
        json.dump(seen, file)
    return lowered["own_mesh"]
"""


@pytest.fixture(scope="module")
def met(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What a step that does all of ``MEETS`` saw, on 16 H100 in two hosts."""
    home = tmp_path_factory.mktemp("met")
    installed = [n for n in MEETS if all(importlib.util.find_spec(package) for package in LIBRARIES.get(n, ()))]
    header = f"FIXTURES = {str(ROOT / 'fixtures')!r}\nMEETS = {installed!r}\n"
    (home / "step.py").write_text(header + ARRAYS)
    manifest = compile_step(f"{home / 'step.py'}:step", H100, out=home / "out", devices=16).manifest
    seen: dict[str, Any] = json.loads((home / "seen.json").read_text())
    return {**seen, "installed": sorted(installed), "options": manifest.compiler_options, "notes": manifest.notes}


@needs_jax
@pytest.mark.slow
def test_programs_lower_with_own_meshes_local_data_flax_and_equinox(met: dict[str, Any]) -> None:
    assert met["lowered"] == met["installed"]
    assert len(met["lowered"]) >= 5
    assert met["initialized"] is True
    assert met["cpu"] == 6.0  # eager work still runs


@needs_jax
@pytest.mark.slow
def test_an_array_on_the_target_is_an_array_without_values(met: dict[str, Any]) -> None:
    assert (met["array"], met["nbytes"], met["kind"], met["devices"]) == (True, 16 * 4 * 4, "pinned_host", 16)
    assert met["total"].startswith("float32[4")
    assert (met["ready"], met["mean"], met["text"]) == (True, [], "TargetArray(float32[16, 4],")
    assert met["items"] == ["(4,)"] * 16
    assert met["shards"] == ["(1, 4)"] * 16


@needs_jax
@pytest.mark.slow
def test_flags_that_the_steps_own_code_sets_are_used_and_noted(met: dict[str, Any]) -> None:
    assert met["options"] == {"xla_gpu_enable_triton_gemm": False}
    (note,) = [note for note in met["notes"] if "step's code sets" in note]
    assert "--xla_gpu_enable_triton_gemm=false" in note


def test_flags_of_the_steps_own_code_leave_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XLA_FLAGS", "--xla_force_host_platform_device_count=8  --xla_dump_to=x --xla_gpu_foo=3")
    note = "XLA_FLAGS that the step's code sets: --xla_gpu_foo=3"
    assert step_flags.take_over("gpu") == ({"xla_gpu_foo": "3"}, note)
    assert step_flags.take_over("gpu") == ({}, "")
    monkeypatch.setenv("XLA_FLAGS", "--xla_gpu_foo=3")
    assert step_flags.take_over("tpu") == ({}, "")
    monkeypatch.setenv("XLA_FLAGS", "--nonsense!")
    with pytest.raises(CompileError, match="'--nonsense!' is not an XLA flag"):
        step_flags.take_over("gpu")


@needs_jax
@pytest.mark.slow
@pytest.mark.parametrize("requested", ["value", "numpy", "closed"])
def test_reading_a_value_on_the_target_says_that_nothing_runs_there(met: dict[str, Any], requested: str) -> None:
    assert met[requested].startswith("NoValueError: the step's code needs the value of TargetArray(float32")
    assert "nothing runs there, only shapes are known" in met[requested]


# --- kernels --------------------------------------------------------------------------------------

KERNELS = """
import sys
sys.path.insert(0, FIXTURES)
import jax, jax.numpy as jnp
import programs

def all_of_them():
    names = ("cudnn_attention", "pallas_triton", "ragged_products", "callbacks")
    jitted = []
    lower = programs.jax.jit
    programs.jax.jit = lambda function: jitted.append(function) or Caught(jitted)
    [getattr(programs, name)() for name in names]
    programs.jax.jit = lower
    functions, arguments = jitted[::2], jitted[1::2]
    return jax.jit(lambda *args: [f(*a) for f, a in zip(functions, args)]).lower(*arguments)

class Caught:
    def __init__(self, jitted):
        self.jitted = jitted

    def lower(self, *arguments):
        self.jitted.append(arguments)

def plain():
    return jax.jit(lambda x: jnp.tanh(x @ x)).lower(jax.ShapeDtypeStruct((64, 64), jnp.float32))
"""


@pytest.fixture(scope="module")
def kernel_steps(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("kernels")
    (home / "steps.py").write_text(f"FIXTURES = {str(ROOT / 'fixtures')!r}\n{KERNELS}")
    return home


@needs_jax
@pytest.mark.slow
def test_kernels_of_cudnn_triton_cub_and_callbacks_compile_and_are_noted(kernel_steps: Path) -> None:
    result = compile_step(f"{kernel_steps / 'steps.py'}:all_of_them", H100, out=kernel_steps / "out", devices=8)
    text = result.module_text.read_text()
    for kernel in ("__cudnn$fmhaSoftmaxBackward", "__gpu$xla.gpu.triton", "xla_ffi_python_gpu_callback"):
        assert kernel in text or kernel.replace("xla_ffi_", "xla_ffi_partitioned_") in text, kernel
    notes = [note.split()[0] for note in result.manifest.notes]
    assert ("cuDNN" in notes, "callbacks" in notes) == (True, True)
    assert "tokamax" not in notes
    needs_cub = tuple(int(part) for part in (result.manifest.versions["jax"] or "").split(".")[:2]) >= (0, 10)
    assert ("scratch" in notes) == needs_cub


@needs_jax
@pytest.mark.slow
def test_a_step_without_such_kernels_has_no_such_notes(kernel_steps: Path) -> None:
    result = compile_step(f"{kernel_steps / 'steps.py'}:plain", H100, out=kernel_steps / "plain")
    assert [note for note in result.manifest.notes if not note.startswith(("no autotuning", "target config"))] == []


# --- entry layouts (jax 0.9) ----------------------------------------------------------------------

LAYOUTS = """
import json, sys
import jax, jax.numpy as jnp
from hloinspect.compile.child import entry_layouts
from jax._src.lib import xla_client

cpu = jax.sharding.SingleDeviceSharding(jax.devices()[0])
dtypes = ["bool", "int8", "uint8", "int4", "uint4", "int32", "uint32", "bfloat16", "float16", "float32", "complex64",
          "float8_e4m3fn", "float8_e5m2", "float8_e8m0fnu", "float4_e2m1fn"]
arguments = [jax.ShapeDtypeStruct((2, 3), d) for d in dtypes] + [jax.ShapeDtypeStruct((), "float32")]
host = jax.ShapeDtypeStruct((4, 5), "float32", sharding=cpu.with_memory_kind("pinned_host"))
module = jax.jit(lambda *a: a).lower(host, *arguments).compiler_ir("stablehlo")
main = next(op for op in module.body.operations if op.attributes["sym_name"].value == "main")
shapes = entry_layouts.shapes_in_memory(main.type.inputs, main.arg_attrs)
print(json.dumps([shapes, [str(xla_client.Shape(shape)) for shape in shapes]]))
"""


@needs_jax
@pytest.mark.slow
def test_shapes_of_arguments_are_written_as_xla_reads_them_with_their_memory() -> None:
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "JAX_PLATFORMS": "cpu",
        "JAX_SKIP_CUDA_CONSTRAINTS_CHECK": "1",
    }
    done = subprocess.run([sys.executable, "-c", LAYOUTS], capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    written, read = json.loads(done.stdout)
    assert written == read
    assert (written[0], written[1], written[-1]) == ("f32[4,5]{1,0:S(5)}", "pred[2,3]{1,0}", "f32[]")
    assert [shape.partition("[")[0] for shape in written[2:-1]] == [
        *["s8", "u8", "s4", "u4", "s32", "u32", "bf16", "f16", "f32", "c64"],
        *["f8e4m3fn", "f8e5m2", "f8e8m0fnu", "f4e2m1fn"],
    ]


# --- a plain training script ----------------------------------------------------------------------

SMALL = {"LAYERS": "2", "DIM": "64", "HEADS": "2", "VOCAB": "64", "SEQ": "32", "BATCH": "2"}
needs_flax = pytest.mark.skipif(
    not all(importlib.util.find_spec(package) for package in ("flax", "optax")), reason="flax or optax is missing"
)


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> CompileResult:
    with pytest.MonkeyPatch.context() as patch:
        for name, size in SMALL.items():
            patch.setenv(name, size)
        step = f"{ROOT / 'examples' / 'plain_step.py'}:step"
        return compile_step(step, H100, out=tmp_path_factory.mktemp("plain") / "out", devices=8)


@needs_jax
@needs_flax
@pytest.mark.slow
def test_a_plain_training_script_compiles_through_a_step_of_two_lines(plain: CompileResult) -> None:
    source = (ROOT / "examples" / "plain_step.py").read_text()
    code = [line for line in source.split('"""')[2].splitlines() if line.strip() and not line.startswith("import")]
    assert len(code) == 2
    script = (ROOT / "examples" / "plain_train.py").read_text().split('"""')[2]
    assert "hloinspect" not in script
    report = inspect(plain.directory).report
    moved = {(t.direction, t.tensor.shape, t.executions) for t in report.transfers}
    assert moved == {("d2h", (2, 32, 256), 1), ("h2d", (2, 32, 256), 1)}
    assert len(report.transfers) == 2 * 2
    assert report.audit is not None
    assert {entry.outcome for entry in report.audit.entries} == {"kept"}
    assert report.audit.unexplained == ()


@needs_jax
@needs_flax
@pytest.mark.slow
def test_the_plain_training_script_really_trains() -> None:
    environment = {**os.environ, **SMALL, "JAX_PLATFORMS": "cpu", "JAX_SKIP_CUDA_CONSTRAINTS_CHECK": "1"}
    script = ROOT / "examples" / "plain_train.py"
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    losses = [float(loss) for loss in re.findall(r"loss ([\d.]+)", done.stdout)]
    assert len(losses) == 20
    assert losses[-1] < losses[0] - 0.5


@needs_jax
@pytest.mark.slow
def test_a_target_array_that_a_jitted_function_closes_over_is_one_clear_line(tmp_path: Path) -> None:
    (tmp_path / "closing.py").write_text(
        "import jax, jax.numpy as jnp\n"
        "def step():\n"
        "    w = jax.device_put(jnp.ones((4, 4)), jax.devices()[0])\n"
        "    return jax.jit(lambda x: x @ w).lower(jnp.ones((4, 4)))\n"
    )
    with pytest.raises(CompileError, match=r"needs the value of TargetArray\(float32\[4, 4\].*closing\.py:4"):
        compile_step(f"{tmp_path / 'closing.py'}:step", H100, out=tmp_path / "out")
