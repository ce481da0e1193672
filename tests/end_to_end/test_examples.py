"""The examples lower and compile, with the transfers that their descriptions promise."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest

from hloinspect import inspect
from hloinspect.compile.launch import compile_step
from hloinspect.hardware import load_target
from hloinspect.inputs.manifest import CompileResult
from tests.support.places import ROOT

pytest.importorskip("jax", reason="compiling needs the extra hloinspect[cuda]")
pytestmark = pytest.mark.slow

EXAMPLES = ROOT / "examples"
SHAPES = {
    **{"LAYERS": 3, "BATCH": 1, "SEQ": 128, "DIM": 256, "HIDDEN": 512, "HEADS": 2, "VOCAB": 256},
    **{"Q_RANK": 64, "KV_RANK": 32, "ROPE": 16, "EXPERTS": 4, "TOP_K": 2, "EXPERT_HIDDEN": 128},
}
HID = "bf16[1,128,512]"
QUICKER = ("xla_gpu_enable_triton_gemm=false",)  # as for what moves, nothing changes


@pytest.fixture
def compiled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):  # type: ignore[no-untyped-def]
    for name, size in SHAPES.items():
        monkeypatch.setenv(name, str(size))

    def run(step: str, target: str = "gb200", devices: int = 1, flags: Sequence[str] = QUICKER) -> CompileResult:
        out = tmp_path / "out"
        return compile_step(f"{EXAMPLES}/{step}", load_target(target), out=out, devices=devices, xla_flags=flags)

    return run


def transfers(result: CompileResult) -> Counter[str]:
    """The host transfers that the text starts, by opcode, direction and shape (slices without their leading 1)."""
    found: Counter[str] = Counter()
    for line in result.module_text.read_text().splitlines():
        start = re.match(r"\s+%\S+ = (\(.*\)) (copy|fusion)-start\(", line)
        if start and "S(5)" in start[1]:
            shapes = re.findall(r"(\w+\[[\d,]*\])\{([^}]*)\}", start[1])
            if start[2] == "copy":
                moved, to_host = shapes[0][0], "S(5)" in shapes[0][1]
            else:  # (buffer, update, indices...) -> buffer, or (buffer, indices...) -> slice
                to_host = "S(5)" in shapes[-1][1]
                moved = shapes[1 if to_host else -1][0]
            found[f"{start[2]} {'d2h' if to_host else 'h2d'} {moved.replace('[1,1,', '[1,')}"] += 1
    return found


def test_a_scanned_offload_has_one_transfer_each_way(compiled) -> None:  # type: ignore[no-untyped-def]
    result = compiled("dense.py:offload_scan")
    assert transfers(result) == {f"fusion d2h {HID}": 1, f"fusion h2d {HID}": 1}
    assert result.manifest.memory["host_temp_size_in_bytes"] == 3 * 128 * 512 * 2
    assert [name.name for name in result.manifest.offload_names] == ["hid"]


def test_an_unrolled_offload_has_one_transfer_each_way_for_each_layer(compiled) -> None:  # type: ignore[no-untyped-def]
    result = compiled("dense.py:offload_unrolled", "h100", 8)
    assert transfers(result) == {f"copy d2h {HID}": 3, f"copy h2d {HID}": 3}


@pytest.mark.parametrize("step", ["save", "remat"])
def test_saving_and_recomputing_move_nothing(compiled, step: str) -> None:  # type: ignore[no-untyped-def]
    result = compiled(f"dense.py:{step}")
    assert "S(5)" not in result.module_text.read_text()
    assert result.manifest.memory["host_temp_size_in_bytes"] == 0
    assert result.manifest.offload_names == ()


def test_optimizer_state_is_fetched_and_written_back(compiled) -> None:  # type: ignore[no-untyped-def]
    result = compiled("optimizer_state.py:offload", "h100")
    moments = ["f32[256,256]", "f32[3,256,768]", "f32[3,256,256]", "f32[3,256,512]", "f32[3,512,256]"]
    assert transfers(result) == {f"copy {way} {moment}": 2 for way in ("d2h", "h2d") for moment in moments}
    sizes = [256 * 256, 3 * 256 * 768, 3 * 256 * 256, 3 * 256 * 512, 3 * 512 * 256]
    assert result.manifest.memory["host_argument_size_in_bytes"] == 2 * 4 * sum(sizes)
    assert_all_that_is_asked_for_is_there(result)


def test_each_layer_fetches_its_parameters_twice_and_the_step_once_more_and_writes_them_back(compiled) -> None:  # type: ignore[no-untyped-def]
    result = compiled("optimizer_state.py:parameters_unrolled", "gb200", 128)
    moments, weights = 2 * (1 + 4 * 3), 4 * 3  # of the embedding and each layer; of each layer
    assert runs(result) == {"d2h": moments + weights, "h2d": moments + 3 * weights}
    in_host = weights_bytes(4) + weights_bytes(4) + weights_bytes(2) + 2 * 4 * 256 * 256
    assert result.manifest.memory["host_argument_size_in_bytes"] == in_host // 128
    assert_all_that_is_asked_for_is_there(result)


def weights_bytes(item: int) -> int:
    return 3 * (256 * 768 + 256 * 256 + 256 * 512 + 512 * 256) * item


def test_a_mixture_of_experts_moves_its_latents_and_its_experts_activations(compiled) -> None:  # type: ignore[no-untyped-def]
    result = compiled("moe.py:offload_scan", "gb200", 8)
    first, others, capacity = 1, 2, 128 * 2 * 5 // (4 * 4)
    assert runs(result) == dict.fromkeys(("d2h", "h2d"), 2 * first + 3 * others)
    latents = (128 * 64 + 128 * (32 + 16)) * 2
    moved = 3 * latents + others * 4 * capacity * 2 * 128 * 2
    report = inspect(result.directory).report
    for way in ("d2h", "h2d"):
        assert sum(t.bytes_per_step for t in report.transfers if t.direction == way) == moved
    assert [name.name for name in result.manifest.offload_names].count("expert_up") == 1
    assert {name.name for name in result.manifest.offload_names} == {"q_latent", "kv_latent", "expert_up"}
    assert_all_that_is_asked_for_is_there(result)


def runs(result: CompileResult) -> Counter[str]:
    """How often a step moves something, by direction."""
    found: Counter[str] = Counter()
    for transfer in inspect(result.directory).report.transfers:
        found[transfer.direction] += transfer.executions
    return found


def assert_all_that_is_asked_for_is_there(result: CompileResult) -> None:
    audit = inspect(result.directory).report.audit
    assert audit is not None
    assert {entry.outcome for entry in audit.entries} <= {"kept", "merged", "synchronous", "kernel"}
    assert (audit.unexplained, audit.unexplained_host) == ((), ())


@pytest.mark.parametrize("example", ["dense.py", "moe.py"])
def test_the_example_really_trains(example: str) -> None:
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "JAX_SKIP_CUDA_CONSTRAINTS_CHECK": "1"}
    environment["XLA_FLAGS"] = "--xla_backend_optimization_level=0"  # compiles in half the time
    done = subprocess.run(
        [sys.executable, EXAMPLES / example], capture_output=True, text=True, env=environment, check=True
    )
    losses = [float(loss) for loss in re.findall(r"loss ([\d.]+)", done.stdout)]
    assert len(losses) == 20
    assert losses[-1] < losses[0] - 0.5
