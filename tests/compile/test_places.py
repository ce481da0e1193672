"""Arrays of a target that is not there are where JAX puts them on devices that are: held against eight CPU devices."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from hloinspect import inspect
from hloinspect.compile.launch import compile_step
from hloinspect.hardware import load_target
from hloinspect.inputs.manifest import CompileResult
from tests.support.jax_versions import JAX
from tests.support.places import CASES

SCRIPTS = CASES / "scripts"
H100 = load_target("h100")

pytestmark = [
    pytest.mark.skipif(importlib.util.find_spec("jax") is None, reason="compiling needs hloinspect[cuda]"),
    pytest.mark.slow,
]
needs_optax = pytest.mark.skipif(importlib.util.find_spec("optax") is None, reason="optax is missing")

# XLA:CPU forgets the sharding of a value that is put in host memory inside of a program, and XLA:GPU does not.
OF_THE_PLATFORM = {"device_put inside"}


def _step(step: str, home: Path) -> CompileResult:
    with contextlib.chdir(home):  # where the scripts write what they found
        return compile_step(step, H100, out=home / "out", devices=8)


def test_eager_code_puts_arrays_where_jax_puts_them_on_real_devices(tmp_path: Path) -> None:
    script = SCRIPTS / "places.py"
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": "--xla_force_host_platform_device_count=8"}
    plain = subprocess.run([sys.executable, script], env=environment, capture_output=True, text=True, check=True)
    _step(f"{script}:step", tmp_path)
    on_target = json.loads((tmp_path / "places.json").read_text())
    on_cpu = json.loads(plain.stdout)
    assert len(on_cpu) > 40
    different = {name: (on_cpu[name], on_target[name]) for name in on_cpu if on_cpu[name] != on_target[name]}
    if JAX >= (0, 10):
        assert different.keys() <= OF_THE_PLATFORM, different
    else:  # some places are not known, but none is wrong
        wrong = {name: both for name, both in different.items() if not _of_jax_0_9(*both)}
        assert wrong.keys() == {"some out_shardings in host memory"}, wrong  # which XLA for CPUs refuses there
        assert len(on_cpu) - len(different) > 25


def _of_jax_0_9(on_cpu: list[Any], on_target: list[Any]) -> bool:
    """Return whether these places differ only since the one of the target is not known, or since XLA for CPUs calls a
    result in host memory (the last field) one in device memory (the third)."""
    unknown = ["NoneType", "", None, False, *on_cpu[4:]]
    pinned = [*on_cpu[:2], "pinned_host", *on_cpu[3:]]
    return on_target == unknown or (on_target == pinned and on_cpu[-1] == "Space.Host")


@pytest.fixture(scope="module")
def every_step(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What came of each function of the scripts: "lowered", its arguments in MiB (device and host), or an error."""
    home = tmp_path_factory.mktemp("every_step")
    _step(f"{SCRIPTS / 'every_step.py'}:step", home)
    found: dict[str, Any] = json.loads((home / "every_step.json").read_text())
    return found


@needs_optax
def test_initializers_libraries_and_keys_under_a_mesh_run(every_step: dict[str, Any]) -> None:
    ran = {
        name: outcome
        for name, outcome in every_step.items()
        if name.startswith(("init_patterns", "keys_under", "more_patterns"))
    }
    not_jitted = ran.pop("init_patterns.plain_function")
    assert "begins with <lambda>, a function that is not jitted (wrap it in jax.jit)" in not_jitted
    assert len(ran) > 30
    assert set(ran.values()) == {"lowered"}, ran


@needs_optax
def test_state_that_is_put_in_the_space_of_the_host_is_an_argument_there(every_step: dict[str, Any]) -> None:
    assert every_step["space_host.kind"] == [132, 256]
    # jax 0.9 does not say where results are: such an argument counts as one on the device, and a note says so
    assert every_step["space_host.space"] == ([132, 256] if JAX >= (0, 10) else [388, 0])


@needs_optax
def test_a_cast_of_sharded_parameters_keeps_their_sharding(every_step: dict[str, Any]) -> None:
    cast, jitted, direct = (every_step[f"sharding_lost_step.{name}"] for name in ("cast", "jitted", "direct"))
    assert cast == jitted == direct == [48, 0]


@needs_optax
@pytest.mark.parametrize("function", ["python_float", "array", "accumulation"])
def test_a_scan_whose_carry_begins_as_a_python_number_lowers(every_step: dict[str, Any], function: str) -> None:
    assert every_step[f"microbatch_loss.{function}"] == "lowered"


UNKNOWN = """
import jax, jax.numpy as jnp, numpy as np

def step():
    rows = jax.sharding.NamedSharding(jax.make_mesh((8,), ("data",)), jax.sharding.PartitionSpec("data"))
    x = jax.device_put(np.ones((8, 8), np.float32), rows)
    known_to_nobody = jax.ffi.ffi_call("nobody_has_this", jax.ShapeDtypeStruct((8, 8), jnp.float32))
    y = jax.jit(known_to_nobody)(x)
    return jax.jit(lambda x, y, z: x + y + z), x, y, y * 2
"""


def test_a_sharding_that_nobody_knows_is_said(tmp_path: Path) -> None:
    (tmp_path / "step.py").write_text(UNKNOWN)
    result = _step(f"{tmp_path / 'step.py'}:step", tmp_path)
    (unknown, *_) = inspect(str(result.directory), target="h100").report.unknown
    assert "2 arguments of <lambda> have no known sharding" in unknown.reason
    assert unknown.affects == "transfers"
    assert "give those arguments a sharding" in unknown.remedy
    assert ("0.10" in unknown.remedy) == (JAX < (0, 10))  # no advice to use what the jax at hand is already
    notes = result.manifest.notes
    assert any("2 arguments of <lambda> have no known sharding" in note for note in notes), notes
    assert any("XLA does not compile it" in note and "nobody_has_this" in note for note in notes), notes


COMPILED = """
import jax, jax.numpy as jnp

def step():
    shape = jax.ShapeDtypeStruct((256, 256), jnp.float32)
    return jax.jit(lambda x: x @ x).lower(shape).compile(compiler_options={"xla_gpu_enable_triton_gemm": False})
"""


def test_a_compiled_program_that_a_step_returns_keeps_its_options(tmp_path: Path) -> None:
    (tmp_path / "step.py").write_text(COMPILED)
    result = _step(f"{tmp_path / 'step.py'}:step", tmp_path)
    assert "cublas" in result.module_text.read_text()
    assert result.manifest.compiler_options == {"xla_gpu_enable_triton_gemm": False}
    assert any("xla_gpu_enable_triton_gemm=False" in note for note in result.manifest.notes)


CLASSES = """
import jax, pickle

def step():
    device = jax.devices()[0]
    mesh = jax.make_mesh((8,), ("data",))
    made = jax.NamedSharding(mesh, jax.P("data"), memory_kind="pinned_host")
    assert type(made) is jax.NamedSharding is jax.sharding.NamedSharding
    assert isinstance(jax.numpy.ones(3).sharding, jax.sharding.SingleDeviceSharding)  # made by C++
    assert isinstance(jax.typeof(0.0).sharding, jax.NamedSharding)  # made while jax was imported
    assert made.with_memory_kind("device").memory_kind == "device" != made.memory_kind
    assert made != jax.NamedSharding(mesh, jax.P("data")) and len({made, made.with_memory_kind("device")}) == 2
    assert jax.sharding.SingleDeviceSharding(device, memory_kind="pinned_host").memory_kind == "pinned_host"
    return jax.jit(lambda x: x + 1).lower(jax.ShapeDtypeStruct((8,), "float32", sharding=made))
"""


def test_the_classes_of_shardings_stay_jaxs_own_and_keep_memory_kinds(tmp_path: Path) -> None:
    (tmp_path / "step.py").write_text(CLASSES)
    result = _step(f"{tmp_path / 'step.py'}:step", tmp_path)
    assert "S(5)" in result.module_text.read_text().partition("\n")[0]
