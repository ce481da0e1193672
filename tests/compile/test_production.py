"""What a production run left behind is read, and what is none of it is refused in one line."""

from __future__ import annotations

import hashlib
import json
import struct
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from hloinspect import Production
from hloinspect.cli import main
from hloinspect.compile.child.tuned import compile_with, notes_of, production_use, profile_use, without_flag_of_run
from hloinspect.compile.launch import compilation_of
from hloinspect.compile.production import CURRENT, LEGACY, autotune_file, costs_of, production_run, with_dnn_version
from hloinspect.compile.protocol import StepRequest
from hloinspect.compile.run_flags import fields_of, read_run_flags
from hloinspect.errors import InputError, UsageError
from hloinspect.hardware import load_target, target_config_text
from hloinspect.inputs.manifest import AutotuneUse, ProductionUse, manifest_from_json
from hloinspect.options import CompileOptions
from tests.support.gate_samples import compiled_directory

DEBUG_OPTIONS = """
xla_cpu_enable_fast_min_max: false
xla_gpu_enable_triton_gemm: false
xla_gpu_all_gather_combine_threshold_bytes: 1073741824
xla_disable_hlo_passes: "rematerialization"
xla_disable_hlo_passes: "other, \\"quoted\\""
xla_gpu_enable_command_buffer: FUSION
xla_gpu_enable_command_buffer: CUBLAS
xla_gpu_pipeline_all_gather: COLLECTIVE_PIPELINING_MODE_ON
xla_gpu_autotune_gemm_rtol: 0.1
xla_dump_to: "/home/somebody/dump"  # where it went
xla_gpu_dump_llvmir: true
xla_gpu_per_fusion_autotune_cache_dir: "/home/somebody/cache"
xla_gpu_load_autotune_results_from: "/home/somebody/tuned.txt"
xla_gpu_pgle_profile_file_or_directory_path: "/home/somebody/pgle"
xla_gpu_kernel_cache_file: "/home/somebody/kernels"
xla_gpu_cuda_data_dir: "./cuda"
xla_pjrt_allow_auto_layout_in_hlo: true
xla_gpu_analytical_latency_estimator_options { key: "gpus_per_node" value: "4}" }
xla_backend_extra_options: { key: "a" value: "b" }
"""
TAKEN = (
    "xla_gpu_enable_triton_gemm=false",
    "xla_gpu_all_gather_combine_threshold_bytes=1073741824",
    'xla_disable_hlo_passes=rematerialization,other, "quoted"',
    "xla_gpu_enable_command_buffer=FUSION,CUBLAS",
    "xla_gpu_pipeline_all_gather=COLLECTIVE_PIPELINING_MODE_ON",
    "xla_gpu_autotune_gemm_rtol=0.1",
)
RESULTS = """version: 3
results {
  device: "CUDA: 9.0, Cores: 132, GPU clock: 1.98 GHz, Memory bandwidth: 3352 GB/s, DNN version: 9.14.2"
  hlo: "{\\n  tmp_0 = bf16[8]{0} parameter(0)\\n}"
  result { triton { block_m: 64 block_n: 64 block_k: 64 num_stages: 2 num_warps: 4 num_ctas: 1 } }
  version: 45
}
"""
PROFILE = 'costs { name: "all-gather-start" cost_us: 12.5 }\ncosts { name: "fusion.1" cost_us: 3 }\n'


def message(number: int, content: bytes) -> bytes:
    return bytes([number << 3 | 2, len(content)]) + content


BINARY_RESULTS = b"\x08\x03" + message(4, message(1, b"CUDA: 9.0, DNN version: 9.14.2") + message(2, b"{}"))
BINARY_CACHE = message(1, b"scope") + message(3, message(1, b"")) + message(3, message(1, b""))
BINARY_PROFILE = message(1, message(1, b"fusion.1") + b"\x11" + struct.pack("<d", 3.0)) + message(2, b"")


@pytest.fixture
def dump(tmp_path: Path) -> Path:
    folder = tmp_path / "dump"
    folder.mkdir()
    (folder / "module_0007.jit_step.debug_options").write_text(DEBUG_OPTIONS)
    return folder


# --- flags ----------------------------------------------------------------------------------------


def test_the_flags_of_a_dump_are_those_that_a_compilation_can_have(dump: Path) -> None:
    run = read_run_flags(dump)
    assert run.flags == TAKEN
    assert read_run_flags(dump / "module_0007.jit_step.debug_options").flags == TAKEN
    reasons = dict(run.left_out)
    assert set(reasons) | {flag.partition("=")[0] for flag in TAKEN} == {name for name, _ in fields_of(DEBUG_OPTIONS)}
    assert reasons["xla_dump_to"] == reasons["xla_gpu_dump_llvmir"] == "output"
    assert "--autotune-results" in reasons["xla_gpu_load_autotune_results_from"]
    assert "--pgle" in reasons["xla_gpu_pgle_profile_file_or_directory_path"]
    assert "message" in reasons["xla_backend_extra_options"]
    assert "path" in reasons["xla_gpu_kernel_cache_file"]


def test_the_flags_of_the_chosen_module_count(dump: Path) -> None:
    (dump / "module_0001.jit_init.debug_options").write_text("xla_gpu_enable_triton_gemm: true\n")
    with pytest.raises(InputError, match="2 files"):
        read_run_flags(dump)
    for key, text in (("module_0001.jit_init", "HloModule a\n"), ("module_0007.jit_step", "HloModule b\nS(5)\n")):
        (dump / f"{key}.sm_9.0a_gpu_after_optimizations.txt").write_text(text)
    assert read_run_flags(dump).flags == TAKEN


def test_a_real_dump_of_maxtext_has_no_flag_that_matters(corpus: Path) -> None:
    run = read_run_flags(corpus / "dump_maxtext_gb200")
    assert run.flags == ()
    assert len(run.left_out) == 6


def test_a_compiled_directory_has_the_options_that_it_was_compiled_with(tmp_path: Path) -> None:
    made = compiled_directory(tmp_path / "made", "gb200_save")
    manifest = json.loads((made / "manifest.json").read_text())
    manifest["compiler_options"] = {"xla_gpu_enable_triton_gemm": False, "xla_dump_to": "/x", "xla_gpu_memory_x": 3}
    (made / "manifest.json").write_text(json.dumps(manifest))
    assert read_run_flags(made).flags == ("xla_gpu_enable_triton_gemm=false", "xla_gpu_memory_x=3")
    assert read_run_flags(made / "manifest.json").flags == read_run_flags(made).flags


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (b"HloModule jit_step\n", "line 1 is no field"),
        (b"\xff\xfe\x00", "is no text"),
        (b"xla_a: true\nxla_b {", "does not end"),
        (b"xla_a: true\nxla_b", "line 2 is no field"),
    ],
)
def test_what_is_no_text_of_options_is_refused(tmp_path: Path, content: bytes, complaint: str) -> None:
    path = tmp_path / "file"
    path.write_bytes(content)
    with pytest.raises(InputError, match=complaint):
        read_run_flags(path)


def test_the_users_own_flag_wins_also_under_its_other_name(dump: Path) -> None:
    own = ["--xla_gpu_enable_triton_gemm=true", "xla_gpu_enable_pipelined_all_gather=false"]
    found = production_run(Production(flags_from=dump), "gpu", own)
    assert found is not None
    names = [flag.partition("=")[0] for flag in found.flags]
    assert names
    assert "xla_gpu_enable_triton_gemm" not in names
    assert "xla_gpu_pipeline_all_gather" not in names
    options = CompileOptions(production=Production(flags_from=dump), xla_flags=tuple(own))
    compilation = compilation_of(StepRequest(step="f.py:step"), load_target("h100"), options)
    assert compilation.xla_flags == (*found.flags, *own)


NAMES = st.from_regex(r"xla_[a-z]{1,8}_[a-z]{1,8}", fullmatch=True)
VALUES = st.one_of(
    st.sampled_from(["true", "false", "FUSION"]),
    st.integers().map(str),
    st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=12).map(
        lambda text: '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
    ),
)


@given(st.lists(st.tuples(NAMES, VALUES), max_size=8))
def test_every_field_of_a_text_proto_is_found_in_order(fields: list[tuple[str, str]]) -> None:
    text = "".join(f"{name}: {value}\n" for name, value in fields)
    found = list(fields_of(text))
    assert [name for name, _ in found] == [name for name, _ in fields]
    plain = [value[1:-1].replace('\\"', '"').replace("\\\\", "\\") if value[0] == '"' else value for _, value in fields]
    assert [value for _, value in found] == plain


# --- autotuning results ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "message", "text", "entries"),
    [
        (RESULTS.encode(), LEGACY, True, 1),
        (b"# proto-file: xla\n\n" + RESULTS.encode(), LEGACY, True, 1),
        (BINARY_RESULTS, LEGACY, False, 1),
        (b'entries {\n  key { target { device: "699b92c0fb30cb16" } }\n}\n', CURRENT, True, 1),
        (BINARY_CACHE, CURRENT, False, 2),
    ],
)
def test_results_of_autotuning_are_recognized(content: bytes, message: str, text: bool, entries: int) -> None:
    found = autotune_file(content, Path("tuned"))
    assert (found.message, found.text, found.entries) == (message, text, entries)
    assert found.dnn_version == ("9.14.2" if message == LEGACY else None)


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (b"version: 3\n", "is empty"),
        (b"", "is empty|no autotuning results"),
        (b"hello {{{", "no autotuning results"),
        (b"\xff\xff\xff\xff\x01hello", "no autotuning results"),
        (PROFILE.encode(), "no autotuning results"),
        (b"\x0a\xff", "no autotuning results"),
    ],
)
def test_what_holds_no_results_is_refused(content: bytes, complaint: str) -> None:
    with pytest.raises(InputError, match=complaint):
        autotune_file(content, Path("tuned"))


def test_the_target_has_the_cudnn_of_the_results(tmp_path: Path) -> None:
    path = tmp_path / "tuned.pbtxt"
    path.write_text(RESULTS)
    production = production_run(Production(autotune_results=path), "gpu", [])
    text = with_dnn_version(target_config_text(load_target("h100")), production)
    assert 'dnn_version: "9.14.2"' in text
    assert "dnn_version_info { major: 9 minor: 14 patch: 2 }" in text
    assert with_dnn_version("x", None) == "x"


def compiled_by(answers: list[object], requested: list[dict[str, object]]):  # type: ignore[no-untyped-def]
    def compile(options: dict[str, object]) -> object:
        requested.append(options)
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    return compile


def test_xla_says_which_kernels_have_no_entry(tmp_path: Path) -> None:
    path = tmp_path / "module.autotune_results.pbtxt"
    path.write_text(RESULTS)
    production = production_run(Production(autotune_results=path), "gpu", [])
    requested: list[dict[str, object]] = []
    refused = RuntimeError("NOT_FOUND: Failed to get configs for: 2 out of 3 instructions. See logs")
    compiled, use = compile_with(production, tmp_path, compiled_by([refused, "module"], requested))
    assert compiled == "module"
    complete = "xla_gpu_require_complete_aot_autotune_results"
    assert [complete in options for options in requested] == [True, False]
    loaded = Path(str(requested[1]["xla_gpu_load_autotune_results_from"]))
    assert (loaded.suffix, loaded.read_text()) == (".txt", RESULTS)  # .pbtxt would be taken for binary
    assert use == AutotuneUse(str(path), hashlib.sha256(RESULTS.encode()).hexdigest(), 2, 3)
    assert "1 of 3 kernels" in notes_of(production, production_use(production, use, None))[0]

    refused = RuntimeError("NOT_FOUND: No cached config found for HLO instr: %fusion = ...")
    _, use = compile_with(production, tmp_path, compiled_by([refused, "module"], []))
    assert use is not None
    assert (use.missing, use.of) == (1, None)

    requested = []
    compiled, _ = compile_with(production, tmp_path, compiled_by(["requested", "module"], requested), keeps_dump=True)
    assert compiled == "module"
    assert (
        [complete in options for options in requested]
        == ["xla_dump_to" in options for options in requested]
        == [True, False]
    )

    _, use = compile_with(production, tmp_path, compiled_by(["module"], []))
    assert use is not None
    assert use.missing == 0
    assert "every kernel" in notes_of(production, production_use(production, use, None))[0]


# --- profiles -------------------------------------------------------------------------------------


def test_the_costs_of_a_profile_are_read_from_text_and_binary() -> None:
    assert costs_of(PROFILE.encode(), Path("p")) == ("all-gather-start", "fusion.1")
    assert costs_of(BINARY_PROFILE, Path("p")) == ("fusion.1",)


@pytest.mark.parametrize("content", [b"", b"hello", b"\x0a\xff", BINARY_RESULTS, RESULTS.encode(), b"\xff\xff"])
def test_what_is_no_profile_is_refused(content: bytes) -> None:
    with pytest.raises(InputError, match="no PGLE profile"):
        costs_of(content, Path("p"))


def test_a_profile_is_given_to_xla_under_a_name_that_it_reads(tmp_path: Path) -> None:
    for name, content, suffix in (("a.txt", PROFILE.encode(), ".pbtxt"), ("b.dat", BINARY_PROFILE, ".pb")):
        (tmp_path / name).write_bytes(content)
        production = production_run(Production(pgle=tmp_path / name), "gpu", [])
        requested: list[dict[str, object]] = []
        compile_with(production, tmp_path, compiled_by(["module"], requested))
        (path,) = requested[0].values()
        assert (Path(str(path)).suffix, Path(str(path)).read_bytes()) == (suffix, content)


def test_costs_are_counted_that_name_an_instruction_of_the_module(tmp_path: Path) -> None:
    text = 'HloModule m, frontend_attributes={fingerprint_before_lhs="abc1"}\n\n  %fusion.1 = f32[] fusion()\n'
    folder = tmp_path / "profiles"
    folder.mkdir()
    (folder / "abc1.pbtxt").write_text(PROFILE)
    for path, matched, of in ((folder / "abc1.pbtxt", 1, 2), (folder, 1, 2)):
        production = production_run(Production(pgle=path), "gpu", [])
        use = profile_use(production, text)
        assert use is not None
        assert (use.matched, use.of) == (matched, of)
    production = production_run(Production(pgle=folder), "gpu", [])
    use = profile_use(production, text.replace("abc1", "abc2"))
    assert use is not None
    assert use.of == 0
    assert "no file with this module's fingerprint" in notes_of(production, production_use(production, None, use))[0]


def test_a_flag_of_the_run_that_xla_refuses_is_left_out_and_the_users_own_is_not(dump: Path) -> None:
    options = CompileOptions(production=Production(flags_from=dump), xla_flags=("xla_own=1",))
    compilation = compilation_of(StepRequest(step="f.py:step"), load_target("h100"), options)
    assert compilation.production is not None
    flag = compilation.production.flags[0]
    name = flag.partition("=")[0]
    refused = RuntimeError(f"INVALID_ARGUMENT: No such compile option: '{name}'")
    found = without_flag_of_run(compilation, {**compilation.compiler_options, "xla_more": True}, refused)
    assert found is not None
    other, compiler_options = found
    assert other.production is not None
    assert (flag in other.production.flags, flag in other.xla_flags, name in other.compiler_options) == (False,) * 3
    assert other.production.left_out[-1] == (name, "this XLA does not know it")
    assert (name in compiler_options, "xla_more" in compiler_options) == (False, True)
    assert flag in compilation.xla_flags  # the request itself is not changed
    own = RuntimeError("INVALID_ARGUMENT: No such compile option: 'xla_own'")
    assert without_flag_of_run(compilation, compilation.compiler_options, own) is None


# --- what a user sees -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("option", "value", "complaint"),
    [
        ("--flags-from", "nowhere", "nowhere cannot be read: No such file"),
        ("--autotune-results", "nowhere", "--autotune-results nowhere: No such file"),
        ("--pgle", "nowhere", "--pgle nowhere: No such file"),
        ("--pgle", ".", "holds no profile"),
        ("--flags-from", ".", "holds no *.debug_options"),
    ],
)
@pytest.mark.parametrize("command", ["inspect", "check", "compile", "passes", "diff"])
def test_a_file_that_is_missing_is_named_before_anything_is_compiled(
    command: str, option: str, value: str, complaint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("step.py").write_text("")
    more = {"check": ["--budget", "stall=1%"], "diff": ["step.py:step"]}.get(command, [])
    result = CliRunner().invoke(main, [command, "step.py:step", *more, "--target", "gb200", option, value])
    assert result.exit_code == 2
    assert complaint in result.stderr
    assert result.stderr.count("\n") == 1


def test_what_is_compiled_already_takes_none_of_it(root: Path, dump: Path) -> None:
    module = root / "fixtures" / "jax0.12.0.1" / "gb200_save" / "module.hlo.txt.gz"
    result = CliRunner().invoke(main, ["inspect", str(module), "--flags-from", str(dump)])
    assert (result.exit_code, "--flags-from is for compiling a step" in result.stderr) == (2, True)


def test_a_tpu_takes_no_results_of_autotuning(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="TPU"):
        production_run(Production(autotune_results=tmp_path), "tpu", [])


def test_a_manifest_without_a_word_of_it_has_none(tmp_path: Path) -> None:
    made = compiled_directory(tmp_path / "made", "gb200_save")
    text = (made / "manifest.json").read_text()
    data = json.loads(text)
    for key in ("production", "compile_notes", "cached"):
        data.pop(key, None)
    manifest = manifest_from_json(json.dumps(data), made)
    assert manifest.production == ProductionUse()
    assert not manifest.cached
