"""A module is judged for the hardware that it was compiled for, and for no other."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from hloinspect.cli import main
from hloinspect.hlo.load import load_module
from tests.support.offload_samples import module_text

PLAIN = "%a = f32[8]{0} parameter(0)\nROOT %r = f32[8]{0} negate(%a)"
CPU_MARKS = (
    ', backend_config={"outer_dimension_partitions":["2"]}',
    ', backend_config={"fusion_config":{"kind":"__ynn_fusion"}}',
)
GPU_MARK = ', backend_config={"operation_queue_id":"0"}'
HOST = """%a = f32[8]{0} parameter(0)
%s = (f32[8]{0:S(5)}, f32[8]{0}, u32[]) copy-start(%a)
ROOT %d = f32[8]{0:S(5)} copy-done(%s)"""


def judged(path: Path, *more: str) -> tuple[int, dict]:  # type: ignore[type-arg]
    arguments = ["inspect", str(path), "--target", "gb200", "--format", "json", *more]
    result = CliRunner().invoke(main, arguments)
    return result.exit_code, json.loads(result.stdout)


def written(folder: Path, body: str, name: str = "module.hlo") -> Path:
    path = folder / name
    path.write_text(module_text(body))
    return path


@pytest.mark.parametrize("mark", CPU_MARKS)
def test_a_cpus_module_gets_no_prediction_for_a_gpu(tmp_path: Path, mark: str) -> None:
    path = written(tmp_path, PLAIN + mark)
    assert load_module(path).platform == "cpu"
    _, report = judged(path)
    assert (report["module"]["platform"], report["step"]["predicted"]) == ("cpu", None)
    assert report["unknown"][0]["reason"] == "the module was compiled for a CPU; gb200 is a GPU"
    gate = CliRunner().invoke(main, ["check", str(path), "--target", "gb200", "--budget", "stall=99%"])
    assert gate.exit_code == 3


def test_a_module_of_which_nothing_tells_gets_no_prediction(tmp_path: Path) -> None:
    _, report = judged(written(tmp_path, PLAIN))
    assert report["step"]["predicted"] is None
    assert "nothing in the module shows" in report["unknown"][0]["reason"]


@pytest.mark.parametrize("body", [PLAIN + GPU_MARK, HOST])
def test_a_mark_of_the_gpu_or_host_memory_is_evidence_enough(tmp_path: Path, body: str) -> None:
    _, report = judged(written(tmp_path, body))
    assert report["step"]["predicted"] is not None


@pytest.mark.parametrize(("platform", "predicted"), [("sm_10.0a_gpu_", True), ("cpu_", False), ("", False)])
def test_a_dump_tells_the_platform_by_its_files_names(tmp_path: Path, platform: str, predicted: bool) -> None:
    dump = tmp_path / "dump"
    dump.mkdir()
    written(dump, PLAIN, f"module_0001.jit_f.{platform}after_optimizations.txt")
    _, report = judged(dump)
    assert (report["step"]["predicted"] is not None) is predicted


@pytest.mark.slow
def test_what_jax_compiles_for_the_cpu_is_not_judged_for_a_gpu(tmp_path: Path) -> None:
    pytest.importorskip("jax")
    path = tmp_path / "module.hlo"
    code = "import sys, jax.numpy as n, jax; f = jax.jit(lambda x: n.tanh(x @ x)).lower(n.ones((64, 64)))"
    code += "; open(sys.argv[1], 'w').write(f.compile().as_text())"
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "JAX_SKIP_CUDA_CONSTRAINTS_CHECK": "1"}
    subprocess.run([sys.executable, "-c", code, path], env=environment, check=True, capture_output=True)
    assert judged(path)[1]["step"]["predicted"] is None
