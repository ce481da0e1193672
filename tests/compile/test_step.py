"""Real compilations of small steps, without a device. One of them, for eight devices, is shared by most tests."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import json
import os
import re
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from hloinspect.compile.child.main import notes_of_lost_offload
from hloinspect.compile.launch import compile_step
from hloinspect.errors import CompileError
from hloinspect.hardware import load_target, target_config_text
from hloinspect.inputs.manifest import CompileResult, load_result
from hloinspect.report.program import limits_of
from tests.support.jax_versions import JAX
from tests.support.places import ROOT

pytest.importorskip("jax", reason="compiling needs the extra hloinspect[cuda]")
pytestmark = pytest.mark.slow

# A training program as people write them: a mesh over jax.devices(), parameters made by a jitted initializer and put
# in place, optimizer state in host memory, activations offloaded by name. It never runs. What it saw is written next
# to it.
TRAIN = """
import json, os
import jax, jax.numpy as jnp, numpy as np
from jax.ad_checkpoint import checkpoint_name
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P

print("a print of the user's must not get in the way")
LAYERS, DIM, BATCH, SEQ = 3, 128, 8, 64
MESH = Mesh(np.array(jax.devices()).reshape(8), ("data",))
POLICY = jax.checkpoint_policies.save_and_offload_only_these_names(
    names_which_can_be_saved=[], names_which_can_be_offloaded=["hid"], offload_src="device", offload_dst="pinned_host")

def layer(x, w):
    hid = checkpoint_name(jnp.tanh(x @ w["up"]), "hid")
    return x + hid @ w["down"], None

def loss_fn(params, x):
    y, _ = jax.lax.scan(jax.checkpoint(layer, policy=POLICY), x, params)
    return jnp.mean(y.astype(jnp.float32) ** 2)

def init(key):
    a, b = jax.random.split(key)
    return {"up": jax.random.normal(a, (LAYERS, DIM, 4 * DIM), jnp.bfloat16), "down": jax.random.normal(b, (LAYERS, 4
    * DIM, DIM), jnp.bfloat16)}

def step():
    weights = NamedSharding(MESH, P(None, None, "data"))
    host = weights.with_memory_kind("pinned_host")
    params = jax.jit(init, out_shardings=weights)(jax.random.key(0))
    momentum = jax.device_put(jax.tree.map(lambda p: np.zeros(p.shape, np.float32), params), host)
    batch = jax.make_array_from_callback((BATCH, SEQ, DIM), NamedSharding(MESH, P("data")), lambda i: np.zeros((1,
    SEQ, DIM), jnp.bfloat16))

    def train_step(params, momentum, x):
        loss, grads = jax.value_and_grad(loss_fn)(params, x)
        momentum = jax.device_put(momentum, jax.tree.map(lambda _: weights.with_memory_kind("device"), momentum))
        momentum = jax.tree.map(lambda m, g: 0.9 * m + g.astype(jnp.float32), momentum, grads)
        params = jax.tree.map(lambda p, m: (p - 0.01 * m).astype(p.dtype), params, momentum)
        return params, jax.device_put(momentum, jax.tree.map(lambda _: host, momentum)), loss

    eager = float(jnp.arange(4.0).sum())  # eager work still works
    seen = dict(
        device_count=jax.device_count(), local=len(jax.local_devices()), local_count=jax.local_device_count(),
        backend=jax.default_backend(), platforms=sorted({d.platform for d in jax.devices("gpu")}),
        cpus=len(jax.devices("cpu")), kind=jax.devices()[0].device_kind, processes=jax.process_count(),
        index=jax.process_index(), eager=eager, mesh=jax.make_mesh((4, 2), ("a", "b")).size,
        params=type(params["up"]).__name__, momentum_kind=momentum["up"].sharding.memory_kind, kinds_differ=weights !=
        host and hash(weights) != hash(host), xla_flags=os.environ.get("XLA_FLAGS"))
    with open(os.path.join(os.path.dirname(__file__), "seen.json"), "w") as file:
        json.dump(seen, file)
    jitted = jax.jit(train_step, out_shardings=(weights, host, NamedSharding(MESH, P())), donate_argnums=(0, 1))
    return jitted, params, momentum, batch
"""
GB200 = load_target("gb200")


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> CompileResult:
    home = tmp_path_factory.mktemp("train")
    (home / "train.py").write_text(TRAIN)
    said: list[str] = []
    patch = pytest.MonkeyPatch()
    outside = "--xla_gpu_enable_triton_gemm=true --xla_gpu_enable_pipelined_host_offloading=true"
    patch.setenv("XLA_FLAGS", f"{outside} --xla_dump_to=nowhere --xla_cpu_no_such_flag=1")
    flags = ["--xla_gpu_enable_pipelined_host_offloading=false"]
    try:
        result = compile_step(
            f"{home / 'train.py'}:step", GB200, out=home / "out", devices=8, xla_flags=flags, on_progress=said.append
        )
    finally:
        patch.undo()
    (home / "progress.json").write_text(json.dumps(said))
    return result


@pytest.mark.smoke
def test_the_step_sees_the_targets_devices(trained: CompileResult) -> None:
    seen = json.loads((trained.directory.parent / "seen.json").read_text())
    assert seen == {
        "device_count": 8,
        "local": 4,
        "local_count": 4,
        "backend": "gpu",
        "platforms": ["gpu"],
        "cpus": 1,
        "kind": "NVIDIA GB200",
        "processes": 2,
        "index": 0,
        "eager": 6.0,
        "mesh": 8,
        "params": "TargetArray",
        "momentum_kind": "pinned_host",
        "kinds_differ": True,
        "xla_flags": None,
    }


@pytest.mark.smoke
def test_arguments_and_results_in_host_memory_stay_there(trained: CompileResult) -> None:
    header = trained.module_text.read_text().partition("\n")[0]
    arguments, _, results = header.partition("entry_computation_layout={(")[2].partition(")->(")
    assert (arguments.count("S(5)"), results.count("S(5)")) == (2, 2)
    moment_bytes = 3 * 128 * 512 * 4 // 8
    assert trained.manifest.memory["host_argument_size_in_bytes"] == 2 * moment_bytes
    assert trained.manifest.memory["host_temp_size_in_bytes"] == 3 * 64 * 512 * 2


@pytest.mark.smoke
def test_the_manifest_says_how_the_module_was_made(trained: CompileResult) -> None:
    manifest = trained.manifest
    assert (manifest.target, manifest.platform, manifest.devices, manifest.topology) == ("gb200", "gpu", 8, "1x2x4")
    # jaxlib 0.9 gives the module as the compiler has cloned it.
    assert manifest.module_name == ("jit_train_step" if JAX >= (0, 10) else "jit_train_step-clone")
    assert manifest.versions["jax"] == importlib.metadata.version("jax")
    assert manifest.versions["jaxlib"] == importlib.metadata.version("jaxlib")
    assert re.fullmatch(r"jax-cuda1[23]-plugin [\d.]+", manifest.versions["plugin"] or "")
    flags = ("--xla_gpu_enable_triton_gemm=true", "--xla_gpu_enable_pipelined_host_offloading=false")
    assert manifest.xla_flags == flags
    assert manifest.compiler_options == {
        "xla_gpu_enable_triton_gemm": True,
        "xla_gpu_enable_pipelined_host_offloading": False,
    }
    assert set(manifest.seconds) == {"import", "trace_and_lower", "compile"}
    assert 50e6 < manifest.peak_rss_bytes < 50e9
    (note,) = [note for note in manifest.notes if "XLA_FLAGS" in note]
    assert note == "XLA_FLAGS of the environment is in effect, as in a run: --xla_gpu_enable_triton_gemm=true"
    assert note in limits_of(manifest)
    assert any("autotuning" in note for note in manifest.notes)
    assert not any("gone" in note for note in manifest.notes)


@pytest.mark.smoke
def test_the_offloaded_name_points_at_the_line_that_computes_it(trained: CompileResult) -> None:
    (name,) = trained.manifest.offload_names
    assert (name.name, name.dtype, name.function) == ("hid", "bfloat16", "layer")
    assert name.shape[-2:] == (64, 512)
    line = TRAIN.splitlines()[(name.line or 0) - 1]
    assert line[name.column :].startswith("jnp.tanh(x @ w")
    locations = trained.module_text.read_text()
    assert f"line={name.line} end_line={name.line} column={name.column} " in locations


@pytest.mark.smoke
def test_all_files_are_there_and_agree(trained: CompileResult) -> None:
    assert load_result(trained.directory) == trained
    assert "while" in trained.module_text.read_text()
    assert b"jit_train_step" in trained.module_proto.read_bytes()[:100]
    stablehlo = trained.stablehlo.read_text()
    assert '_xla_buffer_placement = "pinned_host"' in stablehlo
    assert "train.py" in stablehlo
    assert trained.thunk_sequence is not None
    # Until jaxlib 0.9 a start is the kind of its copy, and there are no names of thunks.
    assert ("kAsyncStart" if JAX >= (0, 10) else "kCopyDone") in trained.thunk_sequence.read_text()
    assert (trained.directory / "thunk_metadata.txt").exists() == (JAX >= (0, 10))
    assert sorted(path.name for path in trained.directory.parent.iterdir() if path.name.startswith(".")) == []


@pytest.mark.smoke
def test_frames_of_hloinspect_are_not_in_the_module(trained: CompileResult) -> None:
    files = re.findall(r'^\d+ "(.*\.py)"$', trained.module_text.read_text(), re.MULTILINE)
    assert [Path(file).name for file in files] == ["train.py"]


@pytest.mark.smoke
def test_progress_is_reported(trained: CompileResult) -> None:
    said = json.loads((trained.directory.parent / "progress.json").read_text())
    assert said[0] == "importing jax"
    assert "compiling for 8 x gb200" in said


# --- what goes wrong ------------------------------------------------------------------------------

STEPS = """
import os, signal, sys, time
import jax, jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name

def small():
    return jax.jit(lambda x: x @ x).lower(jax.ShapeDtypeStruct((64, 64), jnp.float32))

def raises():
    raise ValueError("the batch does not\\nfit")  # line 10

def traces_badly():
    return jax.jit(lambda x: x + jnp.ones(7)).lower(jnp.ones(3))  # line 13

def aborts():
    os.abort()  # line 16

def is_killed():
    os.kill(os.getpid(), signal.SIGKILL)

def exits():
    sys.exit(3)

def leaves():
    os._exit(5)

def forks():
    if os.fork() == 0:
        sys.exit(1)  # of the other process
    os.wait()
    raise ValueError("the step's own")

class Odd(BaseException):
    pass

def raises_oddly():
    raise Odd("no Exception")

def waits():
    time.sleep(600)

def returns_nothing():
    pass

def needs_arguments(params, *, batch):
    return small()

def without_a_barrier():
    policy = jax.checkpoint_policies.save_and_offload_only_these_names(
        names_which_can_be_saved=[], names_which_can_be_offloaded=["hid"], offload_src="device",
        offload_dst="pinned_host")
    def layer(x, w):
        return checkpoint_name(jnp.tanh(x @ w), "hid") @ w
    layer = jax.checkpoint(layer, policy=policy, prevent_cse=False)
    shape = jax.ShapeDtypeStruct((256, 256), jnp.float32)
    return jax.jit(jax.grad(lambda w, x: layer(layer(x, w), w).sum())).lower(shape, shape)
"""


@pytest.fixture
def steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "steps.py").write_text(STEPS)
    (tmp_path / "broken.py").write_text("def step(:\n")
    (tmp_path / "huge.py").write_text(
        "import jax, jax.numpy as jnp\ndef step():\n    x = jnp.ones((1 << 40,), jnp.int8)\n"
    )
    (tmp_path / "unfinished.py").write_text("import no_such_package\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("step", "message"),
    [
        ("steps.py:raises", r"ValueError: the batch does not fit \(.*steps\.py:10, in raises\)"),
        ("steps.py:traces_badly", r"TypeError: add got incompatible shapes .*7.* \(.*steps\.py:13, in <lambda>\)"),
        ("steps.py:aborts", r"killed by SIGABRT \(.*steps\.py:16, in aborts\)"),
        ("steps.py:is_killed", r"killed by SIGKILL \(out of memory\?\)"),
        ("steps.py:exits", r"called sys\.exit\(3\)"),
        ("steps.py:leaves", r"ended with code 5 and no result"),
        ("steps.py:forks", r"^ValueError: the step's own \("),
        ("steps.py:raises_oddly", r"^Odd: no Exception \("),
        ("steps.py:returns_nothing", r"returned None: a step returns jax\.jit"),
        ("steps.py:needs_arguments", r"needs arguments \(params, batch\)"),
        ("steps.py:smal", r"has no function 'smal'; did you mean small\?"),
        ("steps.py:jax", r"is a module, not a function"),
        ("nowhere.py:step", r"there is no file nowhere\.py"),
        ("steps", r"write file\.py:function or package\.module:function"),
        ("no.such.module:step", r"there is no module 'no'"),
        ("broken.py:step", r"SyntaxError: .* \(.*broken\.py:1\)"),
        (
            "huge.py:step",
            r"an array of 1 TiB on this machine, which has not the memory for it.*\(.*huge\.py:3, in step\)$",
        ),
        ("unfinished:step", r"ModuleNotFoundError: No module named 'no_such_package' \(.*unfinished\.py:1"),
    ],
)
def test_a_step_that_fails_gives_its_own_words_in_one_line(steps: Path, step: str, message: str) -> None:
    before = sorted(steps.rglob("*.py"))
    with pytest.raises(CompileError, match=message) as caught:
        compile_step(step, GB200, out=steps / "out")
    assert "\n" not in str(caught.value)
    assert not (steps / "out").exists()
    assert sorted(steps.rglob("*.py")) == before


def test_the_detail_of_an_error_has_the_traceback(steps: Path) -> None:
    with pytest.raises(CompileError) as caught:
        compile_step("steps.py:raises", GB200, out=steps / "out")
    assert "Traceback (most recent call last)" in caught.value.detail
    assert 'raise ValueError("the batch does not' in caught.value.detail


@pytest.mark.parametrize(
    ("flag", "message"),
    [
        ("xla_gpu_no_such_flag=1", "No such compile option: 'xla_gpu_no_such_flag'"),
        ("xla_gpu_enable_pipelined_host_offloading=maybe", "'maybe' is not a valid bool"),
    ],
)
def test_a_flag_that_xla_refuses_is_one_error(steps: Path, flag: str, message: str) -> None:
    with pytest.raises(CompileError, match=message):
        compile_step("steps.py:small", GB200, out=steps / "out", xla_flags=[flag])


def test_flags_of_every_type_are_taken(steps: Path) -> None:
    flags = [
        "--xla_gpu_enable_command_buffer=FUSION,CUSTOM_CALL",
        "--xla_gpu_memory_limit_slop_factor=90",
        "--xla_disable_hlo_passes=dynamic-slice-annotator",
        "--xla_gpu_enable_latency_hiding_scheduler",
    ]
    result = compile_step("steps:small", GB200, out=steps / "out", xla_flags=flags)
    assert result.manifest.compiler_options["xla_gpu_memory_limit_slop_factor"] == "90"
    assert result.manifest.step == "steps:small"


def test_a_step_that_takes_too_long_is_stopped_with_all_it_started(steps: Path) -> None:
    began = time.monotonic()
    with pytest.raises(CompileError, match="took longer than 3 s"):
        compile_step("steps.py:waits", GB200, out=steps / "out", timeout_s=3)
    assert time.monotonic() - began < 60
    assert not (steps / "out").exists()


def test_the_child_ends_when_its_parent_is_killed(steps: Path) -> None:
    code = """if True:
        from pathlib import Path
        from hloinspect.compile.launch import compile_step
        from hloinspect.hardware import load_target
        say = lambda text: print(text, flush=True)
        compile_step("steps.py:waits", load_target("gb200"), out=Path("out"), on_progress=say)"""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    parent = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, env=environment)
    assert parent.stdout is not None
    assert any("tracing" in line for line in parent.stdout)
    children = Path(f"/proc/{parent.pid}/task/{parent.pid}/children").read_text().split()
    assert len(children) == 1
    parent.kill()
    parent.wait()
    deadline = time.monotonic() + 30
    while _runs(children[0]) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not _runs(children[0])


def _runs(pid: str) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.mark.smoke
def test_an_offload_that_xla_deletes_is_noted(steps: Path) -> None:
    result = compile_step("steps.py:without_a_barrier", GB200, out=steps / "out")
    assert "S(5)" not in result.module_text.read_text()
    (note,) = [note for note in result.manifest.notes if note.startswith("the requested offload is gone")]
    assert "placements on the host" in note


HOST_RESULT = 'func.func public @main(%arg0: tensor<4xf32>) -> (tensor<4xf32> {mhlo.memory_kind = "pinned_host"})'


@pytest.mark.parametrize(
    ("stablehlo", "module", "expected"),
    [
        (HOST_RESULT, "HloModule m, entry_computation_layout={(f32[4]{0})->f32[4]{0:S(5)}}\n", []),
        (
            HOST_RESULT,
            "HloModule m, entry_computation_layout={(f32[4]{0})->f32[4]{0}}\n%x = f32[4]{0:S(5)} copy",
            ["arg"],
        ),
        (HOST_RESULT, "HloModule m, entry_computation_layout={(f32[4]{0})->f32[4]{0}}\n", ["the"]),
        ('{_xla_buffer_placement = "device"}', "HloModule m\n", []),
        ('{_xla_buffer_placement = "pinned_host"}', "HloModule m\n", ["the"]),
    ],
)
def test_what_was_requested_of_the_host_is_compared_with_the_module(
    stablehlo: str, module: str, expected: list[str]
) -> None:
    assert [note[:3] for note in notes_of_lost_offload(stablehlo, module)] == expected


def test_without_jax_the_error_says_how_to_install_it(steps: Path) -> None:
    # Python finds modules of the working directory first: this is what a broken or missing installation looks like.
    (steps / "jax.py").write_text("raise ModuleNotFoundError(\"No module named 'jax'\", name='jax')\n")
    with pytest.raises(CompileError, match=r"pip install 'hloinspect\[cuda\]'"):
        compile_step("steps.py:small", GB200, out=steps / "out")


@pytest.mark.smoke
def test_without_libtpu_the_error_says_how_to_install_it(steps: Path) -> None:
    if _installed("libtpu"):
        pytest.skip("libtpu is installed")
    with pytest.raises(CompileError, match=r"needs libtpu; install it with: pip install 'hloinspect\[tpu\]'"):
        compile_step("steps.py:small", load_target("v6e"), out=steps / "out")


def test_a_tpu_step_sees_only_the_requested_devices(steps: Path) -> None:
    if not _installed("libtpu"):
        pytest.skip("libtpu is not installed")
    (steps / "tpu.py").write_text(
        "import steps, jax\ndef step():\n    assert jax.device_count() == len(jax.devices('tpu')) == 1\n"
        "    assert jax.default_backend() == 'tpu'\n    return steps.small()\n"
    )
    result = compile_step("tpu.py:step", load_target("v6e"), out=steps / "out")
    assert (result.manifest.topology, result.thunk_sequence) == ("v6e:2x2", None)


def _installed(distribution: str) -> bool:
    try:
        importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


@pytest.fixture
def user_target(steps: Path, monkeypatch: pytest.MonkeyPatch):  # type: ignore[no-untyped-def]
    """A target whose XLA configuration is the text given."""

    def with_config(text: str):  # type: ignore[no-untyped-def]
        monkeypatch.setattr("hloinspect.hardware.target_config_text", lambda target: text)
        return dataclasses.replace(GB200, name="mine")

    return with_config


def test_fields_that_jaxlib_does_not_know_are_dropped_and_noted(steps: Path, user_target) -> None:  # type: ignore[no-untyped-def]
    text = target_config_text(GB200)
    newer = text.replace("core_count:", 'future_limit: 3\n  future_part { a: 1 b { c: "}" } }\n  core_count:', 1)
    result = compile_step("steps.py:small", user_target(newer), out=steps / "out")
    (note,) = [note for note in result.manifest.notes if "does not know" in note]
    assert "future_limit, future_part" in note


def test_a_configuration_that_xla_cannot_read_is_one_error(steps: Path, user_target) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(CompileError, match="XLA cannot make the topology of mine"):
        compile_step("steps.py:small", user_target("gpu_device_info { core_count: many }"), out=steps / "out")


# --- the command ----------------------------------------------------------------------------------


def _command(*arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    line = [sys.executable, "-m", "hloinspect", "compile", *arguments]
    return subprocess.run(line, capture_output=True, text=True, env=environment, check=False)


def test_the_command_prints_where_the_files_are(steps: Path) -> None:
    done = _command("steps.py:small", "--target", "gb200")
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert "small-gb200/module.hlo.txt" in done.stdout
    assert load_result(steps / "small-gb200").manifest.devices == 1


@pytest.mark.smoke
def test_the_command_speaks_json(steps: Path) -> None:
    done = _command("steps.py:small", "--target", "h100", "-o", "there", "--format", "json")
    answer = json.loads(done.stdout)
    assert answer["schema"] == "hloinspect.manifest/1"
    assert Path(answer["files"]["module_text"]).is_file()


def test_the_command_fails_in_one_line_and_verbosely_with_the_traceback(steps: Path) -> None:
    quiet = _command("steps.py:raises", "--target", "gb200", "-o", "there")
    assert (quiet.returncode, quiet.stdout) == (2, "")
    assert quiet.stderr.count("\n") == 1
    assert quiet.stderr.startswith("hloinspect: error: ValueError: the batch")
    verbose = _command("steps.py:raises", "--target", "gb200", "-o", "there", "--verbose")
    assert "Traceback (most recent call last)" in verbose.stderr
    assert verbose.stderr.rstrip().endswith(quiet.stderr.rstrip())


def test_help_shows_examples() -> None:
    done = _command("--help")
    assert done.returncode == 0
    assert textwrap.dedent("hloinspect compile train.py:step --target gb200") in done.stdout
