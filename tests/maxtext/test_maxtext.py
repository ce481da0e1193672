"""MaxText as it is installed: a small step, Llama 3.1 405B for 128 GB200, and what goes wrong."""

from __future__ import annotations

import importlib.metadata
import json
import subprocess
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from hloinspect.analyze.inspect import inspect
from hloinspect.compile.launch import compile_request
from hloinspect.compile.protocol import StepRequest
from hloinspect.hardware import load_target
from hloinspect.inputs.manifest import CompileResult
from hloinspect.options import CompileOptions
from tests.support.json_schemas import faults

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(find_spec("maxtext") is None, reason="needs the extra hloinspect[maxtext] (Python 3.12)"),
]
Run = Callable[..., "subprocess.CompletedProcess[str]"]

LAYERS, SEQUENCE, WIDTH, HEADS, HEAD = 2, 256, 256, 4, 64
SMALL = [
    "base.yml",
    "attention=dot_product",
    f"base_emb_dim={WIDTH}",
    "base_mlp_dim=512",
    f"base_num_query_heads={HEADS}",
    f"base_num_kv_heads={HEADS}",
    f"head_dim={HEAD}",
    f"base_num_decoder_layers={LAYERS}",
    "vocab_size=512",
    f"max_target_length={SEQUENCE}",
    "per_device_batch_size=1",
    "ici_fsdp_parallelism=8",
    "remat_policy=custom",
    "decoder_layer_input=offload",
    "query_proj=offload",
    "opt_type=sgd",  # fewer kernels to compile
    "mla_q=offload",  # of DeepSeek: nothing in this model bears it
]
LAYER_INPUT_BYTES = SEQUENCE * WIDTH * 2
QUERY_BYTES = SEQUENCE * HEADS * HEAD * 2


@pytest.fixture(scope="session")
def small(tmp_path_factory: pytest.TempPathFactory, hloinspect: Run) -> dict[str, Any]:
    """The answer for a small step as JSON, run in a folder of its own."""
    home = tmp_path_factory.mktemp("maxtext")
    done = hloinspect(
        *("maxtext", "--target", "gb200", "--topology", "1x2x4", "--xla-flag", "xla_gpu_enable_triton_gemm=false"),
        *("--format", "json", "--keep", "kept", "--", *SMALL),
        cwd=home,
    )
    assert done.returncode == 0, done.stderr
    assert sorted(path.name for path in home.iterdir()) == ["kept"]  # MaxText would make maxtext_output
    answer: dict[str, Any] = json.loads(done.stdout)
    assert faults(answer, "maxtext") == []
    return {**answer, "kept": home / "kept"}


def test_the_answer_says_what_maxtext_was_asked_for(small: dict[str, Any]) -> None:
    assert small["schema"] == "hloinspect.maxtext/1"
    assert small["settings"]["version"] == importlib.metadata.version("maxtext")
    assert (small["settings"]["remat_policy"], small["settings"]["attention"]) == ("custom", "dot_product")
    assert small["offloaded"] == ["decoder_layer_input", "query_proj"]
    assert small["unmatched"] == ["mla_q"]
    assert small["on_device"] == []


def test_each_layers_tensors_go_out_under_maxtexts_names(small: dict[str, Any]) -> None:
    report = small["variants"][0]["report"]
    assert (report["schema"], report["target"]["devices"]) == ("hloinspect.report/1", 8)
    sent = {t["tensor"]["name"]: (t["bytes"], t["executions"]) for t in report["transfers"] if t["direction"] == "d2h"}
    back = {t["tensor"]["name"]: (t["bytes"], t["executions"]) for t in report["transfers"] if t["direction"] == "h2d"}
    assert sent == {"decoder_layer_input": (LAYER_INPUT_BYTES, LAYERS), "query_proj": (QUERY_BYTES, LAYERS)}
    assert back == sent


def test_host_memory_is_what_was_offloaded_for_the_four_of_a_tray(small: dict[str, Any]) -> None:
    (step,) = small["variants"]
    moved = LAYERS * (LAYER_INPUT_BYTES + QUERY_BYTES)
    assert step["report"]["memory"]["host_bytes"] == moved
    assert step["host"] == {"devices": 4, "bytes": 4 * moved, "limit_bytes": 960_000_000_000}
    assert step["tensors"] == "offload"


def test_what_was_kept_can_be_inspected_again(small: dict[str, Any]) -> None:
    again = inspect(str(small["kept"]), target="gb200").report
    before = small["variants"][0]["report"]
    assert again.module.schedule_hash == before["module"]["schedule_hash"]
    assert again.step.predicted is not None
    assert again.step.predicted.time_ms == pytest.approx(before["step"]["predicted"]["time_ms"])


def test_a_plan_over_a_key_has_the_step_as_it_was_and_compiles_the_other(
    small: dict[str, Any], tmp_path: Path, hloinspect: Run
) -> None:
    done = hloinspect(
        *("maxtext", "--target", "gb200", "--topology", "1x2x4", "--xla-flag", "xla_gpu_enable_triton_gemm=false"),
        *("--plan", "query_proj=offload,remat", "--format", "json", "--", *SMALL),
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    plan = json.loads(done.stdout)
    assert faults(plan, "plan") == []
    assert (plan["schema"], plan["axes"]) == ("hloinspect.plan/1", {"query_proj": ["offload", "remat"]})
    offload, remat = plan["points"]
    assert [offload["from_cache"], remat["from_cache"], plan["compiled"]] == [True, False, 1]
    (alone,) = small["variants"]
    report = alone["report"]
    assert offload["step"]["time_ms"] == pytest.approx(report["step"]["predicted"]["time_ms"])
    assert offload["schedule_hash"] == report["module"]["schedule_hash"]
    assert offload["memory"]["device_bytes"] == report["memory"]["device_bytes"]
    assert offload["memory"]["host_bytes"] == alone["host"]["bytes"]
    assert offload["d2h_bytes"] == LAYERS * (LAYER_INPUT_BYTES + QUERY_BYTES)
    assert remat["d2h_bytes"] == LAYERS * LAYER_INPUT_BYTES
    # what is not brought back is computed again: each layer's product of the projection
    assert remat["recompute_flops"] == LAYERS * 2 * SEQUENCE * WIDTH * HEADS * HEAD
    assert (offload["samples"], plan["unit"]) == (8, "tokens/s")
    assert offload["tokens_per_s"] == pytest.approx(8 * SEQUENCE / offload["step"]["time_ms"] * 1e3, rel=1e-3)


# ---- TPUs

TPU_LAYERS, TPU_SEQUENCE, TPU_WIDTH = 2, 128, 128
TPU = [
    "base.yml",
    "attention=dot_product",
    f"base_emb_dim={TPU_WIDTH}",
    "base_mlp_dim=128",
    "base_num_query_heads=1",
    "base_num_kv_heads=1",
    "head_dim=128",
    f"base_num_decoder_layers={TPU_LAYERS}",
    "vocab_size=128",
    f"max_target_length={TPU_SEQUENCE}",
    "per_device_batch_size=1",
    "ici_fsdp_parallelism=4",
    "remat_policy=custom",
    "decoder_layer_input=offload",
    "opt_type=sgd",
]


@pytest.mark.skipif(find_spec("libtpu") is None, reason="needs the extra hloinspect[tpu]")
def test_the_step_is_compiled_for_tpus_as_well(tmp_path: Path, hloinspect: Run) -> None:
    done = hloinspect(
        *("maxtext", "--target", "v5e", "--topology", "2x2", "--link", "16GB/s", "--format", "json", "--", *TPU),
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    (step,) = answer["variants"]
    report = step["report"]
    assert (report["module"]["platform"], report["target"]["name"], report["target"]["devices"]) == ("tpu", "v5e", 4)
    assert (answer["offloaded"], answer["notes"]) == (["decoder_layer_input"], [])
    layer_input_bytes = TPU_SEQUENCE * TPU_WIDTH * 2
    assert {(t["tensor"]["name"], t["bytes"]) for t in report["transfers"]} == {
        ("decoder_layer_input", layer_input_bytes)
    }
    assert {t["direction"] for t in report["transfers"]} == {"d2h", "h2d"}
    host_bytes = report["memory"]["host_bytes"]
    assert host_bytes >= TPU_LAYERS * layer_input_bytes
    assert step["host"] == {"devices": 4, "bytes": 4 * host_bytes, "limit_bytes": None}


@pytest.mark.skipif(find_spec("libtpu") is not None, reason="libtpu is installed here")
def test_without_libtpu_its_extra_is_named_in_one_line(tmp_path: Path, hloinspect: Run) -> None:
    done = hloinspect("maxtext", "--target", "v5e", "--", "base.yml", cwd=tmp_path)
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert line.endswith("compiling for v5e needs libtpu; install it with: pip install 'hloinspect[tpu]'")


def test_a_key_that_maxtext_does_not_know_is_one_line_with_the_nearest(hloinspect: Run, tmp_path: Path) -> None:
    done = hloinspect("maxtext", "--target", "gb200", "--", "base.yml", "querry_proj=offload", cwd=tmp_path)
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert line.endswith("has no key querry_proj; did you mean query_proj?")


# ---- the 405B step of the corpus

DROPOUT_STATE_BYTES = 6 * 126 * (4 + 16) + 3 * (4 + 16)
"""Counts and keys of random streams, one per layer, that MaxText's commit of 2026-08-22 carried and 0.2.5 does not:
u32[126] and u32[126,4] six times, u32[] and u32[4] three times, as the two modules' entry layouts say."""


@pytest.fixture(scope="session")
def large(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[CompileResult, dict[str, Any]]:
    """Llama 3.1 405B with the keys and flags of the corpus, and what the corpus has of it."""
    known: dict[str, Any] = json.loads((corpus / "maxtext" / "llama405b_nv.json").read_text())
    words = [word for word in known["args"] if not word.startswith("compile_topology")]
    result = compile_request(
        StepRequest(step="maxtext", maxtext=tuple(words)),
        load_target(known["target"]),
        CompileOptions(topology=known["topology"], xla_flags=tuple(known["xla_flags"].split())),
        out=tmp_path_factory.mktemp("llama405b"),
    )
    return result, known


def test_the_405b_steps_memory_is_the_corpus_to_the_byte(large: tuple[CompileResult, dict[str, Any]]) -> None:
    result, known = large
    if (result.manifest.versions["jax"], result.manifest.settings["version"]) != (known["jax"], "0.2.5"):
        pytest.skip("the corpus was made with other versions")
    missing = {"argument": DROPOUT_STATE_BYTES, "alias": DROPOUT_STATE_BYTES}
    for part in ("argument", "alias", "temp", "host_temp", "host_argument", "host_output"):
        name = f"{part}_size_in_bytes"
        assert known["memory"][name] - result.manifest.memory[name] == missing.get(part, 0), name


def test_the_405b_steps_transfers_are_the_corpus_with_names(
    large: tuple[CompileResult, dict[str, Any]], corpus: Path
) -> None:
    result, _ = large
    report = inspect(str(result.directory), target="gb200").report
    before = inspect(str(corpus / "maxtext" / "llama405b_nv.hlo.gz"), target="gb200", topology="2x16x4").report
    kinds = [
        sorted((t.direction, t.mechanism, t.bytes, t.executions, t.asynchronous) for t in each.transfers)
        for each in (report, before)
    ]
    assert kinds[0] == kinds[1]
    names = {t.tensor.name: t.tensor.shape[-2:] for t in report.transfers if t.direction == "d2h"}
    assert names == {
        "decoder_layer_input": (8192, 16384),
        "query_proj": (128, 128),
        "key_proj": (8, 128),
        "value_proj": (8, 128),
    }
