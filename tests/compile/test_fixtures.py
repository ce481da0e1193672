"""The committed fixtures are whole, hold nothing of the machine that made them, and agree with themselves."""

from __future__ import annotations

import dataclasses
import gzip
import hashlib
import importlib.util
import json
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from hloinspect.inputs.manifest import manifest_from_json
from tests.support.places import FIXTURES

HOME = FIXTURES
FIXTURES = sorted(path.parent for path in HOME.glob("jax*/*/expected.json"))


def _search() -> ModuleType:
    spec = importlib.util.spec_from_file_location("fixture_search", HOME / "search.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


SEARCH = _search()
each_fixture = pytest.mark.parametrize("fixture", FIXTURES, ids=lambda path: f"{path.parent.name}/{path.name}")


def _text(fixture: Path) -> str:
    return gzip.decompress((fixture / "module.hlo.txt.gz").read_bytes()).decode()


def _expected(fixture: Path) -> dict[str, Any]:
    expected: dict[str, Any] = json.loads((fixture / "expected.json").read_text())
    return expected


def test_both_versions_of_jax_have_fixtures_and_all_together_are_small() -> None:
    assert {path.parent.name for path in FIXTURES} >= {"jax0.10.2", "jax0.12.0.1"}
    assert len(FIXTURES) >= 30
    assert sum(path.stat().st_size for path in HOME.rglob("*") if path.is_file()) < 5e6


@each_fixture
def test_a_fixture_is_whole(fixture: Path) -> None:
    manifest = manifest_from_json((fixture / "manifest.json").read_text(), fixture / "manifest.json")
    assert manifest.module_sha256 == hashlib.sha256(_text(fixture).encode()).hexdigest()
    assert fixture.parent.name == f"jax{manifest.versions['jax']}"
    assert fixture.name.startswith(manifest.target.partition("-")[0])
    assert (fixture / "thunk_sequence.txt").exists() == (manifest.platform == "gpu")


@each_fixture
def test_a_fixture_names_no_path_of_the_machine_that_made_it(fixture: Path) -> None:
    proto = gzip.decompress((fixture / "module.hlo.pb.gz").read_bytes())
    plain = [path.read_bytes() for path in fixture.iterdir() if path.suffix != ".gz"]
    text = _text(fixture).encode()
    for data in (text, proto, *plain):
        sources = re.findall(rb"(?<![\w.-])(?:/[\w.+-]+)+\.py\b", data)
        neutral = (b"/home/user/hloinspect/", b"/home/user/packages/")
        assert [path for path in sources if not path.startswith(neutral)] == []
        assert b"site-packages" not in data
    for data in (text, proto):
        assert re.search(rb"/home/user/hloinspect/\w+/\w+\.py", data)


@each_fixture
def test_the_expected_values_agree_with_text_proto_and_thunks(fixture: Path) -> None:
    expected, found = _expected(fixture), SEARCH.search_module(_text(fixture))
    proto = gzip.decompress((fixture / "module.hlo.pb.gz").read_bytes())
    for direction, values in expected["transfers"].items():
        starts = found.starts(direction)
        assert values["instructions"] == len(starts)
        assert values["names"] == sorted(start.name for start in starts)
        assert values["bytes_each"] == sorted({start.size_bytes for start in starts})
        moved = found.bytes_of_executions(direction)
        assert moved is None or (len(moved), sum(moved)) == (values["executions_per_step"], values["bytes_per_step"])
        assert all(start.name.encode() in proto for start in starts)
    assert expected["host_to_host_copies"] == found.host_to_host_copies
    assert expected["kernels_on_host_memory"] == found.kernels_on_host_memory
    if "thunks" in expected:
        named = expected["thunks"]["d2h_starts"] is not None
        thunks = SEARCH.search_thunks((fixture / "thunk_sequence.txt").read_text(), named)
        assert expected["thunks"] == dataclasses.asdict(thunks)
        assert thunks.by_copy_engine + thunks.by_kernel == len(found.all_starts)


@each_fixture
def test_what_is_offloaded_takes_its_place_in_host_memory(fixture: Path) -> None:
    expected = _expected(fixture)
    d2h, h2d = expected["transfers"]["d2h"], expected["transfers"]["h2d"]
    if expected["offload_names"] and d2h["instructions"]:
        assert d2h["bytes_per_step"] == h2d["bytes_per_step"] == expected["memory"]["host_temp_bytes"]
    if not d2h["instructions"] and not expected["kernels_on_host_memory"]:
        assert expected["lines_with_host_memory"] == 0
        assert expected["memory"]["host_temp_bytes"] == expected["memory"]["host_argument_bytes"] == 0
