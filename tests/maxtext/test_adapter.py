"""MaxText's command without MaxText: arguments, names, complaints, memory of a host, the answer."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hloinspect.analyze.inspect import inspect
from hloinspect.analyze.options import JudgeOptions
from hloinspect.compile.child import maxtext
from hloinspect.compile.child.kernels import CUB_OPTIONS
from hloinspect.compile.child.policies import changed
from hloinspect.compile.flags import compiler_options, renamed
from hloinspect.compile.launch import compile_request
from hloinspect.compile.protocol import StepRequest
from hloinspect.errors import UsageError
from hloinspect.hardware import load_target
from hloinspect.inputs.manifest import OFFLOAD, REMAT, SAVE
from hloinspect.maxtext.summary import MaxTextAnswer, Variant, inspect_maxtext
from hloinspect.offload.names import hlo_type_name, likeness
from hloinspect.options import CompileOptions
from hloinspect.render.terminal.maxtext_text import maxtext_text
from hloinspect.report.host_memory import HostMemory, host_memory_of
from tests.support.places import FIXTURES

Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def program(tmp_path: Path) -> SimpleNamespace:
    """As much of MaxText's program as is needed to find its configurations."""
    (tmp_path / "base.yml").write_text("")
    return SimpleNamespace(pyconfig=SimpleNamespace(MAXTEXT_CONFIGS_DIR=str(tmp_path)))


# ---- the command line that MaxText gets


def test_a_configuration_of_maxtexts_own_is_found_by_its_name(program: SimpleNamespace, tmp_path: Path) -> None:
    words = maxtext._command_line(program, ["base.yml", "model_name=x"], "/scratch", "gpu")
    assert words[:2] == [str((tmp_path / "base.yml").resolve()), "model_name=x"]
    assert {"hardware=gpu", "enable_checkpointing=false", "jax_cache_dir=", "base_output_directory=/scratch"} < {*words}
    assert words[-2:] == ["compile_topology=hloinspect", "compile_topology_num_slices=1"]


def test_a_users_own_file_and_keys_go_before_ours(
    program: SimpleNamespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = tmp_path / "here"
    here.mkdir()
    (here / "base.yml").write_text("")
    monkeypatch.chdir(here)
    words = maxtext._command_line(program, ["base.yml", "run_name=mine", "hardware=gpu"], "/scratch", "tpu")
    assert words[0] == str((here / "base.yml").resolve())
    assert [word for word in words if word.startswith(("run_name", "hardware"))] == ["run_name=mine", "hardware=gpu"]
    assert "hardware=tpu" in maxtext._command_line(program, ["base.yml"], "/scratch", "tpu")


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ([], "MaxText needs its configuration"),
        (["bass.yml"], "there is no configuration bass.yml"),
        (["base.yml", "model_name"], "'model_name' is not key=value"),
        (["base.yml", "--target=x"], "'--target=x' is not key=value"),
        (["base.yml", "compile_topology=a3"], "compile_topology is not for MaxText to say here"),
    ],
)
def test_words_that_maxtext_cannot_take_are_refused(
    program: SimpleNamespace, arguments: list[str], complaint: str
) -> None:
    with pytest.raises(maxtext.MaxTextError, match=f"^{complaint}"):
        maxtext._command_line(program, arguments, "/scratch", "gpu")


def test_an_interface_that_moved_is_named() -> None:
    with pytest.raises(maxtext.MaxTextError, match=r"is not laid out as 0\.2\.5.*has no accelerator_to_spec_map"):
        maxtext._name_target(SimpleNamespace(), 8)
    changed = SimpleNamespace(UserFacingNameToSystemCharacteristics={}, SystemCharacteristics=lambda platform: None)
    with pytest.raises(maxtext.MaxTextError, match="SystemCharacteristics"):
        maxtext._name_target(SimpleNamespace(accelerator_to_spec_map=changed), 8)


def test_of_a_thousand_known_keys_the_nearest_one_is_named() -> None:
    keys = ", ".join(f"'{name}'" for name in ["query_proj", "key_proj", *(f"key_{n}" for n in range(1000))])
    complaint = maxtext._config_complaint(ValueError(f"'querry_proj' not in {keys}."))
    assert complaint.endswith("has no key querry_proj; did you mean query_proj?")
    assert "refuses the configuration: no" in maxtext._config_complaint(ValueError("no"))


def test_flags_of_maxtexts_configuration_get_their_types() -> None:
    assert maxtext._typed({"xla_a": "true", "xla_b": "false", "xla_c": "2x", "xla_d": 3}) == {
        "xla_a": True,
        "xla_b": False,
        "xla_c": "2x",
        "xla_d": 3,
    }


# ---- flags that NVIDIA publishes


def test_pipelining_of_collectives_is_taken_as_xla_flags_takes_it() -> None:
    assert compiler_options(["--xla_gpu_pipeline_all_gather=on"]) == {
        "xla_gpu_pipeline_all_gather": "COLLECTIVE_PIPELINING_MODE_ON"
    }
    exact = {"xla_gpu_pipeline_all_reduce": "COLLECTIVE_PIPELINING_MODE_OFF"}
    assert compiler_options(["xla_gpu_pipeline_all_reduce=COLLECTIVE_PIPELINING_MODE_OFF"]) == exact


def test_a_refused_old_name_gets_the_new_one_and_others_get_none() -> None:
    old = {"xla_gpu_enable_pipelined_all_gather": True, "xla_foo": "1"}
    assert renamed(old, "xla_gpu_enable_pipelined_all_gather") == {
        "xla_gpu_pipeline_all_gather": "COLLECTIVE_PIPELINING_MODE_ON",
        "xla_foo": "1",
    }
    assert renamed(old, "xla_foo") is None
    assert renamed({}, "xla_gpu_enable_pipelined_all_gather") is None


# ---- policies without offload


def test_offloaded_names_are_left_out_or_kept_as_asked() -> None:
    names = {"names_which_can_be_saved": ["a"], "names_which_can_be_offloaded": ["b", "c"], "offload_src": "device"}
    assert changed(names, StepRequest(step="s", offloaded=OFFLOAD)) == names
    assert changed(names, StepRequest(step="s", offloaded=REMAT)) == {**names, "names_which_can_be_offloaded": []}
    saved = changed(names, StepRequest(step="s", offloaded=SAVE))
    assert (saved["names_which_can_be_saved"], saved["names_which_can_be_offloaded"]) == (["a", "b", "c"], [])


STEP = """
import jax, jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name

POLICY = jax.checkpoint_policies.save_and_offload_only_these_names(
    names_which_can_be_saved=[], names_which_can_be_offloaded=["hid"], offload_src="device", offload_dst="pinned_host")

def layer(x, w):
    hid = checkpoint_name(jnp.tanh(x @ w), "hid")
    return x + jnp.sin(hid) @ w.T, None

def step():
    loss = lambda w, x: jnp.mean(jax.lax.scan(jax.checkpoint(layer, policy=POLICY), x, w)[0] ** 2)
    shapes = jax.ShapeDtypeStruct((4, 64, 1024), jnp.float32), jax.ShapeDtypeStruct((32, 64), jnp.float32)
    return jax.jit(jax.grad(loss)).lower(*shapes)
"""
HID_BYTES = 4 * 32 * 1024 * 4


@pytest.mark.slow
def test_the_same_step_is_compiled_recomputing_or_keeping_what_it_offloads(tmp_path: Path) -> None:
    pytest.importorskip("jax", reason="compiling needs the extra hloinspect[cuda]")
    (tmp_path / "step.py").write_text(STEP)
    memory = {}
    for request in (OFFLOAD, REMAT, SAVE):
        wanted = StepRequest(step=f"{tmp_path / 'step.py'}:step", offloaded=request)
        result = compile_request(wanted, load_target("gb200"), CompileOptions(), out=tmp_path / request)
        memory[request] = result.manifest.memory
        assert ("S(5)" in result.module_text.read_text()) == (request == OFFLOAD)
        assert not any("names" in note for note in result.manifest.notes)
    host = {request: sizes["host_temp_size_in_bytes"] for request, sizes in memory.items()}
    assert host == {OFFLOAD: HID_BYTES, REMAT: 0, SAVE: 0}
    assert memory[SAVE]["temp_size_in_bytes"] - memory[REMAT]["temp_size_in_bytes"] >= HID_BYTES // 2


# ---- names by shape


@pytest.mark.parametrize(
    ("dtype", "word"),
    [
        ("bfloat16", "bf16"),
        ("float32", "f32"),
        ("float8_e4m3fn", "f8e4m3fn"),
        ("int8", "s8"),
        ("uint4", "u4"),
        ("bool", "pred"),
        ("complex64", "c64"),
        ("f32", "f32"),
    ],
)
def test_a_dtype_of_jax_gets_hlos_word(dtype: str, word: str) -> None:
    assert hlo_type_name(dtype) == word


@given(st.lists(st.tuples(st.integers(2, 9), st.integers(1, 6)), max_size=6), st.data())
def test_any_sharding_of_a_shape_is_a_part_of_it(parts: list[tuple[int, int]], data: st.DataObject) -> None:
    gone = [data.draw(st.booleans()) for _ in parts]  # dimensions of which one element is left
    whole = tuple(size * shards for size, shards in parts)
    shape = tuple(size for (size, _), left_out in zip(parts, gone, strict=True) if not left_out)
    untouched = sum(shards == 1 for (_, shards), left_out in zip(parts, gone, strict=True) if not left_out)
    assert likeness(shape, whole) >= untouched
    assert likeness((*shape, 11), whole) == -1 or any(size % 11 == 0 for size in whole)


def test_a_shape_that_is_no_part_and_one_of_too_many_dimensions_are_like_nothing() -> None:
    assert likeness((8, 3), (8, 64)) == -1
    assert likeness((64, 8), (8, 64)) == -1
    assert likeness((2,) * 20, (2,) * 20) == -1


# ---- wrong use


@pytest.mark.parametrize(
    ("target", "compare", "complaint"),
    [
        (None, [], "say what to compile MaxText for"),
        ("gb200", ["saves"], "--compare saves: it is remat, save"),
    ],
)
def test_wrong_use_is_told_before_anything_is_compiled(target: str | None, compare: list[str], complaint: str) -> None:
    with pytest.raises(UsageError, match=complaint):
        inspect_maxtext(["base.yml"], CompileOptions(), JudgeOptions(target=target), compare=compare)


@pytest.mark.skipif(find_spec("maxtext") is not None, reason="MaxText is installed here")
def test_without_maxtext_the_extra_is_named_in_one_line(hloinspect: Run) -> None:
    done = hloinspect("maxtext", "--target", "gb200", "--", "base.yml")
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert line == (
        "hloinspect: error: MaxText is not installed; install it with: pip install 'hloinspect[maxtext]' "
        "(Python 3.12 or newer)"
    )


def test_no_configuration_is_wrong_use(hloinspect: Run) -> None:
    done = hloinspect("maxtext", "--target", "gb200")
    assert (done.returncode, "Missing argument" in done.stderr) == (2, True)


# ---- the answer


@pytest.fixture(scope="module")
def answer() -> MaxTextAnswer:
    """A small module in MaxText's place: 4 GiB on the host for each of 128 devices."""
    fixture = FIXTURES / "jax0.12.0.1" / "gb200_offload_scan" / "module.hlo.txt.gz"
    report = inspect(str(fixture), target="gb200").report
    memory = replace(report.memory, device_bytes=200 << 30, host_bytes=4 << 30)
    report = replace(report, memory=memory, program=replace(report.program, topology="2x16x4"))
    host = host_memory_of(report, load_target("gb200"))
    step = Variant("offload", report, host, 7.5, 12.0, 1 << 30)
    other = Variant("remat", report, replace(host, bytes=0), 7.5, 12.0, 1 << 30)
    settings = {"library": "MaxText", "version": "0.2.5", "model_name": "m", "remat_policy": "custom"}
    return MaxTextAnswer(settings, ("query_proj",), ("mla_q",), ("out_proj",), ("a note",), (step, other))


def test_a_host_is_what_the_last_figure_of_the_topology_says(answer: MaxTextAnswer) -> None:
    tray = answer.variants[0].host
    assert tray == HostMemory(devices=4, bytes=16 << 30, limit_bytes=2 * 480 * 10**9)  # two Graces
    assert host_memory_of(answer.variants[0].report, load_target("h100")).limit_bytes == (
        load_target("h100").link.host_memory_bytes.value / 2  # four of the eight that share it
    )


@pytest.mark.parametrize(("topology", "chips"), [("v5e:1x1", 1), ("v5e:2x2", 4), ("v5e:16x16", 4), ("v5p:4x4x4", 4)])
def test_a_host_of_tpus_has_four_chips_whatever_the_slices_shape(
    answer: MaxTextAnswer, topology: str, chips: int
) -> None:
    report = answer.variants[0].report
    report = replace(report, program=replace(report.program, topology=topology))
    assert host_memory_of(report, load_target("v5e")) == HostMemory(chips, chips * (4 << 30), None)


def test_experts_are_kept_from_cub_on_gpus_only() -> None:
    config = SimpleNamespace(num_experts=8, sparse_matmul=True)
    options = {hardware: maxtext._options_without_cub(config, hardware) for hardware in ("gpu", "tpu")}
    assert options == {"gpu": CUB_OPTIONS, "tpu": {}}
    assert maxtext._options_without_cub(SimpleNamespace(num_experts=1, sparse_matmul=True), "gpu") == {}


def test_the_answer_names_tensors_memory_and_what_does_not_fit(answer: MaxTextAnswer) -> None:
    lines = maxtext_text(answer).splitlines()
    text = "\n".join(lines)
    assert "MaxText 0.2.5" in lines[0]
    assert lines[0].endswith("m   remat_policy=custom")
    assert " offloads  query_proj" in lines
    assert " on device out_proj" in lines
    assert " unused    mla_q: in the policy, and no value of the model" in lines
    assert "200 GiB = 109 % of 184 GiB: does not fit" in text
    assert "16 GiB = 2 % of 894 GiB, pinned, by the 4 GPUs of a host" in text
    rows = {line.split()[0]: line.split() for line in lines if line.startswith((" offloaded ", " recomputed "))}
    assert rows["offloaded"][-6:] == ["200", "GiB", "no", "16", "GiB", "yes"]
    assert rows["recomputed"][-3:] == ["0", "B", "yes"]
    assert lines[-1] == "compiled in 12 s, 8 s of it in the compiler, with 1 GiB of memory"
    assert "note: a note" in lines
