"""Compilations that are kept: whole or not at all, the oldest goes first, and nothing else is touched."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from click.testing import CliRunner
from msgspec.structs import replace

from hloinspect.cli import main
from hloinspect.compile.cache import clear, copy_to, entries, find, key_of, limit_bytes, store
from hloinspect.compile.protocol import AutotuneResults, Compilation, ProductionRun, Profile, StepRequest
from hloinspect.errors import UsageError
from hloinspect.options import cache_folder
from tests.support.gate_samples import compiled_directory

RESULTS = AutotuneResults(path="p", file="/p", sha256="0", text=True, message="AutotuneResults")
PROFILE = Profile(path="p", file="/p", sha256="0", text=True, directory=False)
GIVEN = ProductionRun(flags_from="dump", autotune_results=RESULTS, pgle=PROFILE)
COMPILATION = Compilation(
    step=StepRequest(step="train.py:step"),
    target="gb200",
    platform="gpu",
    target_config="gpu_device_info {}",
    devices=8,
    topology="1x2x4",
    xla_flags=("--a=1",),
    compiler_options={"a": True},
    production=GIVEN,
)
VERSIONS = {"jax": "0.12.0", "jaxlib": "0.12.0", "plugin": None}
CONFIGURATION = {"compile_options": "0", "environment": {}, "libraries": [["/lib.so", 1, 2, 3]]}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compiled_directory(tmp_path_factory.mktemp("made") / "step", "gb200_save")


@pytest.mark.parametrize(
    "changed",
    [
        {"target": "h100"},
        {"target_config": "gpu_device_info {x}"},
        {"devices": 4},
        {"topology": "2x1x4"},
        {"xla_flags": ()},
        {"compiler_options": {"a": False}},
        {"production": None},
        {"production": replace(GIVEN, pgle=replace(PROFILE, sha256="1"))},
        {"production": replace(GIVEN, pgle=replace(PROFILE, sha256="2"))},
        {"production": replace(GIVEN, autotune_results=replace(RESULTS, sha256="1"))},
    ],
)
def test_all_that_decides_the_module_decides_the_key(changed: dict[str, object]) -> None:
    key = key_of("module {}", COMPILATION, VERSIONS, CONFIGURATION)
    assert key_of("module {}", replace(COMPILATION, **changed), VERSIONS, CONFIGURATION) != key
    assert key_of("module { }", COMPILATION, VERSIONS, CONFIGURATION) != key
    assert key_of("module {}", COMPILATION, VERSIONS | {"jax": "0.12.1"}, CONFIGURATION) != key
    other = replace(COMPILATION, step=StepRequest(step="other.py:step"), notes=("a note",))
    assert key_of("module {}", other, VERSIONS, CONFIGURATION) == key


@pytest.mark.parametrize(
    "changed",
    [
        {"compile_options": "1"},
        {"environment": {"LIBTPU_INIT_ARGS": "--xla_tpu_a=1"}},
        {"libraries": [["/lib.so", 1, 2, 4]]},
    ],
)
def test_what_jax_and_the_environment_decide_is_in_the_key(changed: dict[str, object]) -> None:
    key = key_of("module {}", COMPILATION, VERSIONS, CONFIGURATION)
    assert key_of("module {}", COMPILATION, VERSIONS, CONFIGURATION | changed) != key


def test_what_was_kept_is_found_whole(tmp_path: Path, made: Path) -> None:
    cache, out = tmp_path / "cache", tmp_path / "out"
    assert find(cache, "k") is None
    store(cache, "k", made)
    found = find(cache, "k")
    assert found is not None
    out.mkdir()
    copy_to(found, out)
    names = {path.name for path in made.iterdir()} - {"manifest.json"}
    assert {path.name for path in out.iterdir()} == names
    assert all((out / name).read_bytes() == (made / name).read_bytes() for name in names)
    assert find(cache, "other") is None


def test_an_entry_that_is_not_whole_is_not_used_and_is_replaced(tmp_path: Path, made: Path) -> None:
    store(tmp_path, "k", made)
    text = tmp_path / "step-k" / "module.hlo.txt"
    text.write_text(text.read_text() + " ")
    assert find(tmp_path, "k") is None
    store(tmp_path, "k", made)
    assert find(tmp_path, "k") is not None


@pytest.mark.parametrize(
    "damage",
    [
        {"devices": True},
        {"platform": "npu"},
        {"memory": {"temp_size_in_bytes": 1}},
        {"compile_notes": 3},
        {"seconds": {"import": float("nan"), "trace_and_lower": 1.0, "compile": 1.0}},
        {"compiler_option": {}},
    ],
    ids=lambda damage: next(iter(damage)),
)
def test_an_entry_with_a_damaged_manifest_is_not_used_and_is_replaced(
    tmp_path: Path, made: Path, damage: dict[str, object]
) -> None:
    store(tmp_path, "0" * 40, made)
    manifest = tmp_path / f"step-{'0' * 40}" / "manifest.json"
    manifest.write_text(json.dumps(json.loads(manifest.read_text()) | damage))
    assert find(tmp_path, "0" * 40) is None
    store(tmp_path, "0" * 40, made)
    assert find(tmp_path, "0" * 40) is not None


def test_what_was_not_used_for_the_longest_goes_first(
    tmp_path: Path, made: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    size = sum(path.stat().st_size for path in made.iterdir())
    monkeypatch.setenv("HLOINSPECT_CACHE_BYTES", str(2 * size + 10))
    store(tmp_path, "a", made)
    store(tmp_path, "b", made)
    for age, name in ((300, "a"), (200, "b")):
        os.utime(tmp_path / f"step-{name}", (1e9 - age, 1e9 - age))
    assert find(tmp_path, "a") is not None  # used: now b is the older one
    store(tmp_path, "c", made)
    assert {path.name for path, _ in entries(tmp_path)} == {"step-a", "step-c"}


def test_a_folder_that_cannot_be_written_keeps_nothing_and_is_no_error(tmp_path: Path, made: Path) -> None:
    file = tmp_path / "file"
    file.write_text("")
    store(file / "below", "k", made)
    assert find(file / "below", "k") is None


def test_clearing_takes_our_entries_and_nothing_else(
    tmp_path: Path, made: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HLOINSPECT_CACHE", str(tmp_path))
    (tmp_path / "notes.txt").write_text("mine")
    store(tmp_path, "k", made)
    shown = CliRunner().invoke(main, ["cache", "--format", "json"])
    assert {key: json.loads(shown.stdout)[key] for key in ("entries", "removed")} == {"entries": 1, "removed": False}
    cleared = CliRunner().invoke(main, ["cache", "clear"])
    assert (cleared.exit_code, cleared.stdout.startswith("1 compilation (")) == (0, True)
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]
    assert clear(tmp_path / "no such folder") == (0, 0)


def test_the_folder_is_where_the_environment_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HLOINSPECT_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder() == tmp_path / "hloinspect"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_folder() == Path.home() / ".cache" / "hloinspect"
    monkeypatch.setenv("HLOINSPECT_CACHE_BYTES", "1 GiB")
    result = CliRunner().invoke(main, ["cache"])
    assert (result.exit_code, "no number of bytes" in result.stderr) == (2, True)
    with pytest.raises(UsageError):
        limit_bytes()
