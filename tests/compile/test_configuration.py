"""What decides a compilation and stands in neither the program nor the flags: it is in the cache's key, in the
manifest, and named where two programs are compared."""

from __future__ import annotations

import dataclasses
import hashlib
import importlib.metadata
import importlib.util
import json
import os
import re
from base64 import urlsafe_b64encode
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import hloinspect
from hloinspect.compile import environment
from hloinspect.compile.cache import entries
from hloinspect.compile.child import libraries
from hloinspect.compile.launch import compile_step
from hloinspect.compile.process import silent_end
from hloinspect.errors import InputError
from hloinspect.gate.configured import UNNAMED, configuration_changes
from hloinspect.gate.difference import snapshot_difference
from hloinspect.gate.snapshot import snapshot_of
from hloinspect.hardware import load_target
from hloinspect.inputs.manifest import CompileResult, Configuration, load_result, manifest_from_json
from hloinspect.report.program import limits_of
from tests.support.gate_samples import compiled_directory
from tests.support.places import CASES

CASE = CASES / "configured_by_jax.py"
SAMPLE = Configuration(
    compile_options={"memory_fitting_level": "O2"},
    compile_options_sha256="a" * 64,
    jax={},
    environment={},
    libraries={"jax-cuda13-pjrt": "0.12.0.1 b6de513893c0"},
    target_config_sha256="b" * 64,
)


# ---- the environment


def test_what_may_decide_a_compilation_is_in_the_key_and_what_a_person_may_know_in_the_manifest() -> None:
    environ = {
        "LIBTPU_INIT_ARGS": "--xla_tpu_a=1",
        "XLA_PYTHON_CLIENT_MEM_FRACTION": ".9",
        "NCCL_MAX_NCHANNELS": "2",
        "NCCL_VERSION": "2.29",
        "TPU_WORKER_HOSTNAMES": "a,b",
        "TF_CPP_MIN_LOG_LEVEL": "3",
        "TPU_SKIP_MDS_QUERY": "1",  # set by importing jax
        "AWS_SECRET_ACCESS_KEY": "secret",
        "HOME": "/home/user",
        "JAX_PLATFORMS": "cpu",
    }
    named = {"LIBTPU_INIT_ARGS", "XLA_PYTHON_CLIENT_MEM_FRACTION", "NCCL_MAX_NCHANNELS"}
    assert environment.named(environ).keys() == named
    assert environment.deciding(environ).keys() == named | {"NCCL_VERSION", "TPU_WORKER_HOSTNAMES", "JAX_PLATFORMS"}


def test_files_that_a_variable_names_are_found() -> None:
    assert environment.paths_in("--xla_a=/x/y --xla_b=1 cuda:/lib.so") == [Path("/x/y"), Path("/lib.so")]


def test_an_unknown_flag_of_libtpu_is_named() -> None:
    text = silent_end(1, "E0000 common_lib.cc:848] INVALID\nERROR: Unknown command line flag 'xla_nothing'\n")
    assert "Unknown command line flag 'xla_nothing' (of LIBTPU_INIT_ARGS?)" in text


# ---- libraries

Install = Callable[..., Path]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    """Puts a package with a library in front of those that are installed, as pip leaves it."""
    site = tmp_path / "site"
    site.mkdir()
    monkeypatch.syspath_prepend(str(site))

    def put(name: str, version: str, library: str = "", requires: str = "") -> Path:
        info = site / f"{name.replace('-', '_')}-{version}.dist-info"
        info.mkdir()
        needs = f"Requires-Dist: {requires}\n" if requires else ""
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{needs}")
        record = f"{info.name}/RECORD,,\n"
        file = site / library
        if library:
            file.parent.mkdir(parents=True)
            (file.parent / "__init__.py").write_text("")
            file.write_bytes(b"compiler of " + version.encode())
            digest = urlsafe_b64encode(hashlib.sha256(file.read_bytes()).digest()).decode().rstrip("=")
            record += f"{library},sha256={digest},{file.stat().st_size}\n"
        (info / "RECORD").write_text(record)
        return file

    return put


def test_a_library_is_known_by_its_version_and_content(install: Install) -> None:
    file = install("libtpu", "0.0.50.1", "libtpu/libtpu.so")
    content = hashlib.sha256(b"compiler of 0.0.50.1").hexdigest()[:12]
    assert libraries.compilers("tpu", {}) == {"libtpu": f"0.0.50.1 {content}"}
    before = libraries.states("tpu", {})
    file.write_bytes(b"another, by hand")
    os.utime(file, ns=(file.stat().st_atime_ns, file.stat().st_mtime_ns + 10**9))
    content = hashlib.sha256(b"another, by hand").hexdigest()[:12]
    assert libraries.compilers("tpu", {}) == {"libtpu": f"0.0.50.1 {content}"}
    assert libraries.states("tpu", {}) != before


def test_a_library_that_the_environment_puts_in_place_of_the_package_is_named(install: Install, tmp_path: Path) -> None:
    own = install("libtpu", "0.0.50.1", "libtpu/libtpu.so")
    install("jax", "0.12.0.1", requires='libtpu==0.0.50.*; extra == "tpu"')
    install("jaxlib", "0.12.0.1")
    other = tmp_path / "mine.so"
    other.write_bytes(b"mine")
    environ = {"TPU_LIBRARY_PATH": str(other)}
    content = hashlib.sha256(b"mine").hexdigest()[:12]
    assert libraries.compilers("tpu", environ) == {"libtpu": f"TPU_LIBRARY_PATH {content}"}
    (note,) = libraries.other_releases("tpu", environ)
    assert note == f"TPU_LIBRARY_PATH={other} is used in place of libtpu 0.0.50.1: its release is unknown"
    assert libraries.other_releases("tpu", {"TPU_LIBRARY_PATH": str(own)}) == []  # as the package itself sets it


def test_a_plugin_of_another_release_than_jaxlib_is_named(install: Install) -> None:
    for package in ("jaxlib", "jax-cuda12-plugin", "jax-cuda12-pjrt"):
        install(package, "0.10.2")
    install("jax-cuda13-plugin", "0.12.0.1")
    install("jax-cuda13-pjrt", "0.12.0.1")
    (note,) = libraries.other_releases("gpu", {})
    assert note.startswith(
        "jax-cuda13-plugin and jax-cuda13-pjrt 0.12.0.1 are of another release than jaxlib 0.10.2: install one release"
    )


@pytest.mark.parametrize(
    ("wanted", "installed", "is_other"),
    [
        ("==0.0.50.*", "0.0.50.1", False),
        ("==0.0.50.*", "0.0.50", False),
        ("==0.0.42.*", "0.0.50.1", True),
        ("", "0.0.50", False),
    ],
)
def test_a_libtpu_that_jax_does_not_go_with_is_named(
    install: Install, wanted: str, installed: str, is_other: bool
) -> None:
    install("jax", "0.12.0.1", requires=f"libtpu{wanted}; extra == 'tpu'" if wanted else "numpy")
    install("jaxlib", "0.12.0.1")
    install("libtpu", installed, "libtpu/libtpu.so")
    notes = libraries.other_releases("tpu", {})
    assert [note.partition(":")[0] for note in notes] == (
        [f"libtpu {installed} is of another release than jaxlib 0.12.0.1, which goes with libtpu 0.0.42"]
        if is_other
        else []
    )


# ---- what is written, read and compared


def test_a_manifest_of_before_is_read_and_nothing_is_said_of_its_configuration(tmp_path: Path) -> None:
    old = load_result(compiled_directory(tmp_path / "old", "gb200_save")).manifest
    assert old.configuration is None
    new = dataclasses.replace(old, configuration=SAMPLE)
    assert manifest_from_json(new.to_json(), tmp_path) == new
    report = hloinspect.inspect(str(tmp_path / "old")).report
    was, now = (
        snapshot_of(
            dataclasses.replace(report, program=dataclasses.replace(report.program, configuration=each)), "step"
        )
        for each in (None, SAMPLE)
    )
    assert (snapshot_difference(was, now).made, snapshot_difference(now, was).made) == ((), ())


def test_a_configuration_that_is_not_whole_is_refused_by_its_key(tmp_path: Path) -> None:
    manifest = load_result(compiled_directory(tmp_path / "made", "gb200_save")).manifest
    whole = dataclasses.asdict(dataclasses.replace(manifest, configuration=SAMPLE))
    for name in dataclasses.asdict(SAMPLE):
        kept = {key: value for key, value in whole["configuration"].items() if key != name}
        with pytest.raises(InputError, match=rf"manifest\.json .*: configuration\.{name} is missing; if an older"):
            manifest_from_json(json.dumps({**whole, "configuration": kept}), tmp_path / "manifest.json")


def test_a_page_says_how_the_compiler_was_configured(tmp_path: Path) -> None:
    folder = compiled_directory(tmp_path / "made", "gb200_save")
    manifest = dataclasses.replace(load_result(folder).manifest, configuration=SAMPLE)
    (folder / "manifest.json").write_text(manifest.to_json(), encoding="utf-8")
    page = hloinspect.inspect(str(folder)).to_html()
    assert "<dt>compile options</dt><dd>memory_fitting_level=O2</dd>" in page
    assert "<dt>compiler</dt><dd>jax-cuda13-pjrt=0.12.0.1 b6de513893c0</dd>" in page


def test_libraries_of_another_release_limit_a_report(tmp_path: Path) -> None:
    manifest = load_result(compiled_directory(tmp_path / "made", "gb200_save")).manifest
    note = "jax-cuda13-pjrt 0.12.0.1 is of another release than jaxlib 0.10.2: install one release of all"
    assert note in limits_of(dataclasses.replace(manifest, notes=(*manifest.notes, note)))
    assert note not in limits_of(manifest)


@pytest.mark.parametrize(
    ("changed", "line"),
    [
        (
            {"compile_options": {"memory_fitting_level": "O2", "optimization_level": "O1"}},
            "optimization level: unset -> O1",
        ),
        ({"compile_options": {}}, "memory fitting level: O2 -> unset"),
        ({"jax": {"jax_enable_x64": "True"}}, "jax_enable_x64: unset -> True"),
        ({"environment": {"NCCL_MAX_NCHANNELS": "2"}}, "NCCL_MAX_NCHANNELS: unset -> 2"),
        ({"environment": {"LIBTPU_INIT_ARGS": "--a=1 --b=2"}}, "LIBTPU_INIT_ARGS: +--a=1 +--b=2"),
        (
            {"libraries": {"jax-cuda13-pjrt": "0.12.0.1 000000000000"}},
            "jax-cuda13-pjrt: 0.12.0.1 with another library (b6de513893c0 -> 000000000000)",
        ),
        (
            {"libraries": {"jax-cuda13-pjrt": "0.12.1 000000000000"}},
            "jax-cuda13-pjrt: 0.12.0.1 b6de513893c0 -> 0.12.1 000000000000",
        ),
        ({"target_config_sha256": "c" * 64}, "target's configuration for XLA: bbbbbbbbbbbb -> cccccccccccc"),
        ({"compile_options_sha256": "c" * 64}, UNNAMED),
    ],
)
def test_what_is_configured_otherwise_is_named(changed: dict[str, Any], line: str) -> None:
    other = dataclasses.replace(SAMPLE, **changed)
    assert configuration_changes(SAMPLE, other, same_target=True, hash_decides=True) == [line]
    assert configuration_changes(SAMPLE, SAMPLE, same_target=True, hash_decides=True) == []


def test_nothing_is_claimed_of_what_one_side_does_not_know() -> None:
    unknown = dataclasses.replace(SAMPLE, compile_options={}, compile_options_sha256=None)
    other = dataclasses.replace(SAMPLE, compile_options_sha256="c" * 64, libraries={}, target_config_sha256=None)
    assert configuration_changes(SAMPLE, unknown, same_target=True, hash_decides=True) == []
    assert configuration_changes(SAMPLE, other, same_target=False, hash_decides=False) == []


# ---- with JAX

JAX = importlib.metadata.version("jax") if importlib.util.find_spec("jax") else "0"
LEVELS_MATTER = tuple(int(part) for part in re.findall(r"\d+", JAX)[:2]) >= (0, 12)
"""Before, XLA for GPUs makes the same module of this program at level O1."""


def made(cache: Path | None, out: Path, flags: tuple[str, ...] = ()) -> CompileResult:
    return compile_step(f"{CASE}:step", load_target("gb200"), out=out, xla_flags=flags, cache=cache)


@pytest.fixture(scope="session")
def warm(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, CompileResult]:
    """A cache that holds the case as it is without any change."""
    pytest.importorskip("jax", reason="compiling needs the extra hloinspect[cuda]")
    home = tmp_path_factory.mktemp("warm")
    return home / "cache", made(home / "cache", home / "plain")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("environ", "flags", "named"),
    [
        ({"MODE": "level"}, (), "optimization level: unset -> O1"),
        ({"JAX_OPTIMIZATION_LEVEL": "O1"}, (), "optimization level: unset -> O1"),
        ({"MODE": "jit"}, (), "xla_gpu_enable_pipelined_host_offloading: unset -> true"),
        ({"MODE": "flags"}, (), "xla_gpu_enable_pipelined_host_offloading: unset -> true"),
        (
            {},
            ("xla_gpu_enable_pipelined_host_offloading=true",),
            "flags: +xla_gpu_enable_pipelined_host_offloading=true",
        ),
        ({"JAX_DEFAULT_MATMUL_PRECISION": "highest"}, (), "jax_default_matmul_precision: unset -> highest"),
    ],
    ids=["code", "environment", "jit", "XLA_FLAGS", "flag", "program"],
)
def test_the_cache_gives_what_compiling_anew_gives(
    warm: tuple[Path, CompileResult],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    environ: dict[str, str],
    flags: tuple[str, ...],
    named: str,
) -> None:
    cache, plain = warm
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    fresh, found = (made(cache, tmp_path / name, flags) for name in ("fresh", "found"))
    assert (fresh.manifest.cached, found.manifest.cached) == (False, True)
    assert found.manifest.module_sha256 == fresh.manifest.module_sha256
    assert found.manifest.configuration == fresh.manifest.configuration
    reports = [hloinspect.inspect(str(result.directory), target="gb200").report for result in (plain, found)]
    assert named in snapshot_difference(*(snapshot_of(report, "step") for report in reports)).made
    if "level" not in named or LEVELS_MATTER:
        assert fresh.manifest.module_sha256 != plain.manifest.module_sha256
    if "level" in named and LEVELS_MATTER:
        assert [len(report.transfers) for report in reports] == [2, 3]


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("libtpu") is None, reason="needs the extra hloinspect[tpu]")
def test_libtpus_own_arguments_are_in_effect_kept_separate_and_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def compiled(name: str) -> CompileResult:
        return compile_step(f"{CASE}:step", load_target("v5e"), out=tmp_path / name, cache=tmp_path / "cache")

    plain = compiled("plain")
    monkeypatch.setenv("LIBTPU_INIT_ARGS", "--xla_tpu_enable_latency_hiding_scheduler=false")
    fresh, found = compiled("fresh"), compiled("found")
    assert (fresh.manifest.cached, found.manifest.cached) == (False, True)
    assert plain.manifest.module_sha256 != fresh.manifest.module_sha256 == found.manifest.module_sha256
    snapshots = [snapshot_of(hloinspect.inspect(str(r.directory), target="v5e").report, "step") for r in (plain, found)]
    assert "LIBTPU_INIT_ARGS: +--xla_tpu_enable_latency_hiding_scheduler=false" in snapshot_difference(*snapshots).made
    assert any("LIBTPU_INIT_ARGS of the environment is in effect" in note for note in found.manifest.notes)


@pytest.mark.slow
def test_what_xla_writes_or_reads_on_the_way_is_not_kept(tmp_path: Path, warm: tuple[Path, CompileResult]) -> None:
    tuned = tmp_path / "tuned"
    tuned.mkdir()
    kept = entries(warm[0])
    result = made(warm[0], tmp_path / "out", (f"xla_gpu_per_fusion_autotune_cache_dir={tuned}",))
    assert (result.manifest.cached, entries(warm[0])) == (False, kept)
    assert any("kept" in note and str(tuned) in note for note in result.manifest.notes)


PARTITIONED = """
import jax, jax.numpy as jnp
from jax.experimental.custom_partitioning import custom_partitioning

@custom_partitioning
def sine(x):
    return jnp.sin(x)

sine.def_partition(
    infer_sharding_from_operands=lambda mesh, given, result: given[0].sharding,
    partition=lambda mesh, given, result: (mesh, jnp.sin, given[0].sharding, (given[0].sharding,)),
    sharding_rule="i -> i",
)

def step():
    mesh = jax.make_mesh((jax.device_count(),), ("data",))
    split = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("data"))
    return jax.jit(sine, in_shardings=split).lower(jax.ShapeDtypeStruct((64,), jnp.float32))
"""


@pytest.mark.slow
def test_a_step_with_a_function_that_xla_calls_is_not_kept(tmp_path: Path) -> None:
    pytest.importorskip("jax")
    (tmp_path / "partitioned.py").write_text(PARTITIONED)
    step, cache = f"{tmp_path / 'partitioned.py'}:step", tmp_path / "cache"
    result = compile_step(step, load_target("h100"), out=tmp_path / "out", devices=8, cache=cache)
    assert (result.manifest.cached, entries(cache)) == (False, [])
    assert any("custom_partitioning" in note for note in result.manifest.notes)


@pytest.fixture
def handed() -> Callable[..., Any]:
    """What JAX would hand to XLA for a small program on CPUs, with JAX's configuration changed for the test."""
    jax = pytest.importorskip("jax")
    from hloinspect.compile.child.handed_over import handed_over

    before = dict(jax.config.values)

    def of(
        options: dict[str, Any] | None = None, jit: dict[str, Any] | None = None, arguments: int = 1, **configured: Any
    ) -> Any:
        for name, value in configured.items():
            jax.config.update(name, value)
        function, given = (lambda *xs: [x * 2 for x in xs]), [jax.ShapeDtypeStruct((8,), "float32")] * arguments
        lowered = jax.jit(function, compiler_options=jit).lower(*given)
        found = handed_over(lowered, options or {}, ["xla_flag"], ["xla_own"])
        for name in configured:
            jax.config.update(name, before[name])
        return found

    return of


@pytest.mark.slow
@pytest.mark.parametrize(
    ("configured", "named"),
    [
        ({"jax_optimization_level": "O1"}, {"optimization_level": "O1"}),
        ({"jax_memory_fitting_level": "O3"}, {"memory_fitting_level": "O3"}),
        ({"jax_exec_time_optimization_effort": 0.5}, {"exec_time_optimization_effort": "0.5"}),
        ({"jax_memory_fitting_effort": -1.0}, {"memory_fitting_effort": "-1.0"}),
        ({"jax_compiler_enable_remat_pass": False}, {"xla_disable_hlo_passes": "rematerialization"}),
        ({"jax_disable_most_optimizations": True}, {"xla_backend_optimization_level": "0"}),
        ({"jax_use_shardy_partitioner": False}, {}),
    ],
)
def test_all_of_jaxs_configuration_that_enters_the_options_is_seen(
    handed: Callable[..., Any], configured: dict[str, Any], named: dict[str, str]
) -> None:
    import jax

    if not configured.keys() <= jax.config.values.keys():
        pytest.skip(f"jax {JAX} has no such configuration")
    plain, other, again = handed(), handed(**configured), handed()
    assert plain == again
    assert (other.whole == plain.whole, other.comparable == plain.comparable) == (False, False)
    assert named.items() <= other.named.items() - plain.named.items()


@pytest.mark.slow
def test_options_differ_by_type_and_by_who_gave_them(handed: Callable[..., Any]) -> None:
    plain = handed()
    found = [
        handed({"xla_a": "1"}),
        handed({"xla_a": 1}),
        handed(jit={"xla_a": True}),
        handed({"xla_a": True, "xla_flag": 1}),
    ]
    assert len({each.whole for each in (plain, *found)}) == 5
    assert [each.named.get("xla_a") for each in found] == ["1", "1", "true", "true"]
    assert all("xla_flag" not in each.named for each in found)  # named among the flags
    own = handed({"xla_own": "1", "xla_dump_to": "/tmp/x"})
    assert (own.whole == plain.whole, own.named) == (False, plain.named)
    wider = handed(arguments=3)
    assert (wider.whole == plain.whole, wider.comparable, wider.named) == (False, plain.comparable, plain.named)
    path = handed(jit={"xla_some_file": "/home/user/file"})
    assert (path.named, path.comparable) == (plain.named, plain.comparable)
    assert path.given["xla_some_file"] == "/home/user/file"


@pytest.mark.slow
def test_a_jax_that_compiles_in_another_way_is_never_answered_from_the_cache(
    handed: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    from jax._src import compiler

    for name in ("compile_or_get_cached", "backend_compile_and_load"):
        monkeypatch.delattr(compiler, name)
    assert handed() is None
