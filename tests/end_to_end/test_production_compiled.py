"""Real compilations with what a production run had: each has its effect, and the report says what XLA used."""

from __future__ import annotations

import importlib.metadata
import json
import re
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from hloinspect import Production
from hloinspect.analyze.inspect import inspect
from hloinspect.cli import main
from hloinspect.compile.launch import compile_step
from hloinspect.errors import CompileError
from hloinspect.hardware import load_target
from hloinspect.inputs.manifest import CompileResult, load_result
from hloinspect.plan.verb import PlanRequest, make_plan
from hloinspect.report.program import LIMIT_AUTOTUNING, limits_of
from tests.support.jax_versions import JAX

pytest.importorskip("jax", reason="compiling needs the extra hloinspect[cuda]")
pytestmark = pytest.mark.slow

STEPS = """
import jax, jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec as P

def bf16(*shape, sharding=None):
    return jax.ShapeDtypeStruct(shape, jnp.bfloat16, sharding=sharding)

def one_product():
    return jax.jit(lambda x, w: x @ w).lower(bf16(512, 1024), bf16(1024, 2048))

def two_gathers():
    mesh = jax.make_mesh((jax.device_count(),), ("d",))
    whole, parts = NamedSharding(mesh, P()), NamedSharding(mesh, P("d", None))
    def f(x, ws, y, z):
        y, z = jnp.tanh(y), jnp.sin(z)
        for gathered in (y, z):
            for i in range(4):
                x = jnp.tanh(x @ ws[i])
            x = x @ jax.lax.with_sharding_constraint(gathered, whole)
        return x
    shapes = bf16(512, 512, sharding=whole), bf16(4, 512, 512, sharding=whole)
    return jax.jit(f).lower(*shapes, bf16(512, 512, sharding=parts), bf16(512, 1024, sharding=parts))
"""
UNCOMBINED = "--xla_gpu_all_gather_combine_threshold_bytes=0"

# The key of an entry: XLA's version of its cache (kVersion of autotuner_cache.cc), the device and the kernel's text.
# cuDNN 9.14.2 is none of the target configurations'.
KEYS = {"0.10.2": 45, "0.12.0.1": 56}
KERNEL = (
    r"{\n  tmp_0 = bf16[512,1024]{1,0} parameter(0)\n  tmp_1 = bf16[1024,2048]{1,0} parameter(1)\n"
    r"  ROOT tmp_2 = bf16[512,2048]{1,0} dot(bf16[512,1024]{1,0} tmp_0, bf16[1024,2048]{1,0} tmp_1), "
    r"lhs_contracting_dims={1}, rhs_contracting_dims={0}\n}"
)
DEVICE = "CUDA: 9.0, Cores: 132, GPU clock: 1.98 GHz, Memory bandwidth: 3352 GB/s, L2 cache: 50 MB, DNN version: 9.14.2"
H100 = load_target("h100")


@pytest.fixture(scope="module")
def steps(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("steps")
    (folder / "steps.py").write_text(STEPS)
    return folder


def results_for(version: int, block: int) -> str:
    tiles = f"block_m: {block} block_n: {block} block_k: {block} num_stages: 2 num_warps: 4 num_ctas: 1"
    entry = f'device: "{DEVICE}"\n  hlo: "{KERNEL}"\n  result {{ run_time {{ nanos: 1 }} triton {{ {tiles} }} }}'
    return f"version: 3\nresults {{\n  {entry}\n  version: {version}\n}}\n"


def product_flags() -> list[str]:
    """XLA of jax 0.12 reads this message only when a flag says so."""
    is_new = tuple(map(int, importlib.metadata.version("jax").split(".")[:2])) >= (0, 12)
    return ["xla_gpu_use_new_autotune_cache_format=false"] if is_new else []


def test_results_of_autotuning_decide_the_tiles_of_a_product(steps: Path) -> None:
    version = KEYS.get(importlib.metadata.version("jaxlib"))
    if version is None:
        pytest.skip("the version of this XLA's autotuning cache is not known")
    path = steps / "module.autotune_results.pbtxt"
    path.write_text(results_for(version, 64))
    found = inspect(
        f"{steps}/steps.py:one_product",
        target="h100",
        xla_flags=product_flags(),
        production=Production(autotune_results=path),
        keep=steps / "tuned",
    )
    program = found.report.program
    assert program.autotuned is True
    assert program.autotune_results is not None
    assert (program.autotune_results.missing, program.autotune_results.of) == (0, None)
    assert LIMIT_AUTOTUNING not in found.report.limits
    plan = make_plan(PlanRequest(sources=(str(steps / "tuned"),), targets=("h100",)))
    assert plan.limits == found.report.limits
    assert tile_sizes(steps / "tuned") == ["64"]


def tile_sizes(directory: Path) -> list[str]:
    return re.findall(r'"sizes":\["(\d+)"\]', (directory / "module.hlo.txt").read_text())


def test_results_for_another_xla_are_said_to_be_of_no_use(steps: Path) -> None:
    path = steps / "other.txt"
    path.write_text(results_for(7, 64))
    found = inspect(
        f"{steps}/steps.py:one_product",
        target="h100",
        xla_flags=product_flags(),
        production=Production(autotune_results=path),
        keep=steps / "other",
    )
    program = found.report.program
    assert program.autotuned is False
    assert program.autotune_results is not None
    assert (program.autotune_results.missing, program.autotune_results.of) == (1, None)
    assert any(f"no entry in the autotuning results {path}" in limit for limit in found.report.limits)
    assert tile_sizes(steps / "other") != ["64"]
    notes = json.loads((steps / "other" / "manifest.json").read_text())["notes"]
    assert any("for another device (CUDA: 9.0" in note for note in notes)


def test_results_that_xla_cannot_read_are_one_line(steps: Path) -> None:
    path = steps / "broken.txt"
    path.write_text("version: 3\nresults {\n  device: 7\n}\n")
    with pytest.raises(CompileError, match=r"XLA cannot read .*broken\.txt: INVALID_ARGUMENT"):
        compile_step(
            f"{steps}/steps.py:one_product",
            H100,
            out=steps / "broken",
            xla_flags=product_flags(),
            production=Production(autotune_results=path),
        )


# --- a profile ------------------------------------------------------------------------------------


def scheduled(result: CompileResult) -> list[str]:
    """Instructions of the entry that do something, in order."""
    entry = result.module_text.read_text().partition("\nENTRY")[2]
    found = re.findall(r"^  (?:ROOT )?%(\S+) = .*?[)\]}] ([a-z\-]+)\(", entry, re.MULTILINE)
    return [name for name, opcode in found if opcode not in ("parameter", "bitcast", "get-tuple-element", "constant")]


@pytest.fixture(scope="module")
def gathers(steps: Path) -> CompileResult:
    return compile_step(f"{steps}/steps.py:two_gathers", H100, out=steps / "gathers", devices=8, xla_flags=[UNCOMBINED])


def test_a_profile_decides_the_schedule(steps: Path, gathers: CompileResult) -> None:
    names = scheduled(gathers)
    # jax 0.9 starts the second gather right behind the first one without a profile: only cheap gathers move it there
    gather_us, other_us = (50_000, 3_000) if JAX >= (0, 10) else (1, 500)
    costs = [(name, gather_us if "gather" in name else other_us) for name in names]
    text = "".join(f'costs {{ name: "{name}" cost_us: {cost} }}\n' for name, cost in [*costs, ("gone.1", 5)])
    (steps / "profile.txt").write_text(text)
    found = inspect(
        f"{steps}/steps.py:two_gathers",
        target="h100",
        devices=8,
        xla_flags=[UNCOMBINED],
        production=Production(pgle=steps / "profile.txt"),
        keep=steps / "profiled",
    )
    assert found.report.program.pgle is not None
    assert (found.report.program.pgle.matched, found.report.program.pgle.of) == (len(names), len(names) + 1)
    with_profile = scheduled(load_result(steps / "profiled"))
    assert sorted(with_profile) == sorted(names)
    started, before = (order.index("all-gather-start.1") for order in (with_profile, names))
    assert started < before if JAX >= (0, 10) else started > before


# --- flags and the cache --------------------------------------------------------------------------


def test_the_flags_of_a_dump_are_compiled_with_and_what_is_of_no_use_is_named(steps: Path) -> None:
    dump = steps / "dump"
    flags = [f"--xla_dump_to={dump}", "--xla_gpu_enable_triton_gemm=false", "--xla_gpu_memory_limit_slop_factor=80"]
    first = compile_step(f"{steps}/steps.py:one_product", H100, out=steps / "first", xla_flags=flags)
    assert "__cublas" in first.module_text.read_text()
    (options,) = dump.glob("*.debug_options")
    options.write_text(f"{options.read_text()}\nxla_gpu_no_such_flag: true\nxla_gpu_autotune_level: NEVER\n")

    (steps / "foreign.pbtxt").write_text('costs { name: "nothing.7" cost_us: 5 }\n')
    production = Production(flags_from=dump, pgle=steps / "foreign.pbtxt")
    result = compile_step(f"{steps}/steps.py:one_product", H100, out=steps / "second", production=production)
    assert "__cublas" in result.module_text.read_text()
    taken = ("xla_gpu_enable_triton_gemm=false", "xla_gpu_memory_limit_slop_factor=80")
    assert sorted(result.manifest.xla_flags) == sorted(taken)
    run = result.manifest.production.flags_from
    assert run is not None
    assert sorted(run.flags) == sorted(taken)
    assert {
        ("xla_gpu_no_such_flag", "this XLA does not know it"),
        ("xla_gpu_autotune_level", "this XLA does not take its value"),
    } < set(run.left_out)

    assert any("0 of its 1 costs are of instructions" in note for note in result.manifest.notes)
    assert any("is of another module" in limit for limit in limits_of(result.manifest))
    assert any("xla_gpu_no_such_flag" in limit for limit in limits_of(result.manifest))


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(main, [str(argument) for argument in arguments])


def test_a_report_from_the_cache_is_the_same_bytes(
    steps: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HLOINSPECT_CACHE", str(tmp_path / "cache"))
    (steps / "some.pbtxt").write_text('costs { name: "gemm_fusion_dot_general" cost_us: 5 }\n')
    command = ["inspect", f"{steps}/steps.py:one_product", "--target", "h100", "--format", "json"]
    command += ["--pgle", str(steps / "some.pbtxt")]
    reports = [run(*command, "--keep", tmp_path / name) for name in ("made", "found")]
    assert len(list((tmp_path / "cache").glob("step-*"))) == 1
    assert len({report.stdout for report in reports}) == 1, [report.output for report in reports]
    assert "schema" in reports[0].stdout
    manifests = [json.loads((tmp_path / name / "manifest.json").read_text()) for name in ("made", "found")]
    assert [manifest["cached"] for manifest in manifests] == [False, True]
    for manifest in manifests:
        del manifest["cached"], manifest["seconds"]
    assert manifests[0] == manifests[1]
