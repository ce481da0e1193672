"""The examples lower and compile, with the transfers that their descriptions promise."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from hloinspect.compile import CompileResult, compile_step
from hloinspect.hardware import load_target

pytest.importorskip("jax", reason="compiling needs the extra hloinspect[cuda]")
pytestmark = pytest.mark.slow

EXAMPLES = Path(__file__).parents[1] / "examples"
SHAPES = {"LAYERS": 3, "BATCH": 1, "SEQ": 128, "DIM": 256, "HIDDEN": 512, "HEADS": 2, "VOCAB": 256}
HID = "bf16[1,128,512]"


@pytest.fixture
def compiled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):  # type: ignore[no-untyped-def]
    for name, size in SHAPES.items():
        monkeypatch.setenv(name, str(size))

    def run(step: str, target: str = "gb200") -> CompileResult:
        return compile_step(f"{EXAMPLES}/{step}", load_target(target), out=tmp_path / "out")

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
    assert transfers(compiled("dense.py:offload_unrolled")) == {f"copy d2h {HID}": 3, f"copy h2d {HID}": 3}


@pytest.mark.parametrize("step", ["save", "remat"])
def test_saving_and_recomputing_move_nothing(compiled, step: str) -> None:  # type: ignore[no-untyped-def]
    result = compiled(f"dense.py:{step}")
    assert "S(5)" not in result.module_text.read_text()
    assert result.manifest.memory["host_temp_size_in_bytes"] == 0
    assert result.manifest.offload_names == ()


def test_optimizer_state_is_fetched_and_written_back(compiled) -> None:  # type: ignore[no-untyped-def]
    result = compiled("optimizer.py:offload", "h100")
    moments = ["f32[256,256]", "f32[3,256,768]", "f32[3,256,256]", "f32[3,256,512]", "f32[3,512,256]"]
    assert transfers(result) == {f"copy {way} {moment}": 2 for way in ("d2h", "h2d") for moment in moments}
    sizes = [256 * 256, 3 * 256 * 768, 3 * 256 * 256, 3 * 256 * 512, 3 * 512 * 256]
    assert result.manifest.memory["host_argument_size_in_bytes"] == 2 * 4 * sum(sizes)


def test_optimizer_state_may_stay_on_the_device(compiled) -> None:  # type: ignore[no-untyped-def]
    assert "S(5)" not in compiled("optimizer.py:keep").module_text.read_text()


def test_the_dense_example_really_trains() -> None:
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "JAX_SKIP_CUDA_CONSTRAINTS_CHECK": "1"}
    done = subprocess.run(
        [sys.executable, EXAMPLES / "dense.py"], capture_output=True, text=True, env=environment, check=True
    )
    losses = [float(loss) for loss in re.findall(r"loss ([\d.]+)", done.stdout)]
    assert len(losses) == 20
    assert losses[-1] < losses[0] - 0.5
