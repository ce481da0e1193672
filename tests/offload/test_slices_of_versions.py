"""The check of slices on whole programs: which versions of jax copy slices from wrong places."""

from __future__ import annotations

import gzip
import json
from typing import Any

import pytest

from hloinspect.hlo import Module, load_module, parse_text
from hloinspect.offload.mechanism import is_pure_copy
from tests.support.hlo_samples import CORPUS, ROOT
from tests.support.offload_samples import checks_of, wrong

FIXTURES = ROOT / "fixtures"
GOLDEN: dict[str, Any] = json.loads(path.read_text()) if (path := CORPUS / "golden.json").is_file() else {}
needs_corpus = pytest.mark.skipif(not GOLDEN, reason="no corpus: set HLOINSPECT_CORPUS to its folder")


def fixture(name: str, spelling: str = "txt") -> Module:
    return load_module(FIXTURES / name / f"module.hlo.{spelling}.gz")


# ---- whole programs: which versions are wrong


SCANS = sorted(f"{path.parent.name}/{path.name}" for path in FIXTURES.glob("jax*/*_offload_scan*"))
each_scan = pytest.mark.parametrize("name", [name for name in SCANS if "v6e" not in name and "double" not in name])
each_spelling = pytest.mark.parametrize("spelling", ["txt", "pb"])


@each_scan
@each_spelling
def test_of_the_fixtures_only_the_backward_fetch_of_0_10_2_is_wrong(name: str, spelling: str) -> None:
    checks = [check for check in checks_of(fixture(name, spelling)) if check.on_host]
    send, fetch = checks
    assert send.instruction.startswith("dynamic-update-slice-start")
    assert fetch.instruction.startswith("dynamic-slice-start")
    each = send.emitted[1]
    assert send.by_index == send.emitted == (0, each)
    assert fetch.by_index == (3 * each, 2 * each)  # the last of the four layers first
    assert fetch.agrees == (not name.startswith("jax0.10.2/"))
    assert fetch.agrees or fetch.emitted == (0, each)


@each_scan
def test_no_slice_within_the_device_is_wrong(name: str) -> None:
    within = [check for check in checks_of(fixture(name)) if not check.on_host]
    assert len(within) > 10
    assert all(check.agrees for check in within)


@each_spelling
def test_under_double_buffering_both_halves_of_0_10_2_take_the_same_layers(spelling: str) -> None:
    """Cover openxla/xla PR 47218: two layers for each iteration, but the address of each half moves by one."""
    checks = [c for c in checks_of(fixture("jax0.10.2/gb200_offload_scan_double_buffered", spelling)) if c.on_host]
    each = checks[0].emitted[1]
    assert {check.emitted for check in checks} == {(0, each)}
    assert [check.by_index for check in checks] == [(0, 2 * each), (each, 3 * each), (3 * each, each), (2 * each, 0)]
    assert not any(check.agrees for check in checks)


@each_spelling
def test_under_double_buffering_0_12_is_right(spelling: str) -> None:
    checks = [c for c in checks_of(fixture("jax0.12.0.1/gb200_offload_scan_double_buffered", spelling)) if c.on_host]
    assert len(checks) == 4
    assert all(check.agrees for check in checks)


@pytest.mark.parametrize("name", ["save", "remat", "offload_unrolled", "optimizer", "offload_by_xla"])
def test_what_offloads_no_slice_has_none_to_check_in_host_memory(name: str) -> None:
    folders = [folder for folder in FIXTURES.glob(f"jax*/*_{name}") if folder.is_dir()]
    assert folders
    for folder in folders:
        checks = checks_of(load_module(folder / "module.hlo.pb.gz"))
        assert not any(check.on_host or not check.agrees for check in checks)


@needs_corpus
def test_of_the_versions_exactly_those_that_are_known_are_wrong() -> None:
    known = GOLDEN["wrong_gradients"]
    found: dict[bool, set[str]] = {True: set(), False: set()}
    modules = [
        (path.name[3:].partition("_")[0], path) for path in (CORPUS / "hlo" / "versions").glob("*_act_scan*.hlo")
    ]
    modules += [
        (GOLDEN[f"hlo/{name}.hlo"]["jax"], CORPUS / "hlo" / f"{name}.hlo") for name in ("s_off", "s_off_pipe_nocse")
    ]
    for version, path in modules:
        checks = [check for check in checks_of(load_module(path)) if check.on_host]
        if len(checks) == 2:  # as_text() up to 0.10.1 has lost the configuration
            found[all(check.agrees for check in checks)].add(version)
    assert found[False] == set(known["versions_wrong"])
    assert found[True] == set(known["versions_right"])


@needs_corpus
def test_nothing_else_in_the_corpus_is_wrong() -> None:
    flagged = {name for name, value in GOLDEN.items() if isinstance(value, dict) and value.get("jax") == "0.10.2"}
    names = [name for name in GOLDEN if name.endswith((".hlo", ".hlo.gz")) and "unroll126" not in name]
    found = {name for name in names if wrong(load_module(CORPUS / name))}
    assert found == {"hlo/s_off.hlo", "hlo/s_off_pipe_nocse.hlo"} <= flagged


@needs_corpus
def test_the_dump_of_a_671b_step_has_twenty_slices_and_all_are_right() -> None:
    (path,) = (CORPUS / "dump_maxtext_gb200").glob("*after_optimizations.txt")
    checks = checks_of(load_module(path))
    assert len(checks) == 20
    assert all(check.on_host and check.agrees for check in checks)


@needs_corpus
@pytest.mark.parametrize(("name", "stale"), [("llama405b_nv", 5), ("llama405b_nv_pipe", 10), ("ds671b_nv", 13)])
def test_a_stale_configuration_of_a_kernel_is_no_fault(name: str, stale: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Cover slices that pipelining moved to another iteration with an old configuration.

    All are of fusions that also convert. Those run as kernels, and a kernel uses its index (docs/slices.md).
    """
    module = load_module(CORPUS / "maxtext" / f"{name}.hlo.gz")
    assert wrong(module) == []
    monkeypatch.setattr("hloinspect.offload.slices.is_pure_copy", lambda _: True)
    kernels = [check for check in checks_of(module) if not check.agrees]
    assert len(kernels) == stale
    for check in kernels:
        fusion = module.computations[check.computation].find(check.instruction)
        assert fusion is not None
        assert fusion.opcode == "fusion"
        body = module.computations[fusion.called["calls"][0]]
        assert not check.on_host
        assert not is_pure_copy(body)
        assert "convert" in {instruction.opcode for instruction in body}


# ---- edits of a correct fixture


def edited(old: str, new: str) -> list[str]:
    """Return what is wrong after an edit of the configuration of the backward fetch, or of its index."""
    text = gzip.decompress((FIXTURES / "jax0.12.0.1/gb200_offload_scan/module.hlo.txt.gz").read_bytes()).decode()
    lines = text.splitlines()
    body = lines.index(next(line for line in lines if line.startswith("%wrapped_dynamic-slice_computation ")))
    for number, line in enumerate(lines):
        inside = body < number < body + 9 or "%loop_subtract_fusion = " in line or "%subtract.2 = " in line
        if inside and old in line:
            lines[number] = line.replace(old, new)
            return wrong(parse_text("\n".join(lines)))
    raise AssertionError(f"{old} is not in the fixture")


RIGHT = '"linear":{"byte_offset":"6291456","byte_stride":"-2097152"}'


@pytest.mark.parametrize(
    ("old", "new", "right"),
    [
        (RIGHT, RIGHT, True),
        (RIGHT, '"linear":{"byte_offset":"6291456","byte_stride":"2097152"}', False),
        (RIGHT, '"linear":{"byte_offset":"4194304","byte_stride":"-2097152"}', False),
        (RIGHT, '"linear":{"byte_offset":"6291456"}', False),  # an absent number is 0
        (f'"byte_offset":"0","byte_stride":"0",{RIGHT}', '"byte_offset":"6291456","byte_stride":"-2097152"', True),
        (f'"byte_offset":"0","byte_stride":"0",{RIGHT}', '"byte_offset":"0","byte_stride":"2097152"', False),
        ('"byte_offset":"0","byte_stride":"0"', '"byte_offset":"7","byte_stride":"7"', True),  # linear goes first
    ],
    ids=["as it is", "sign", "offset", "no stride", "of 0.11", "of 0.11, wrong", "beside linear"],
)
def test_an_edited_configuration_is_wrong_where_it_leaves_the_index(old: str, new: str, right: bool) -> None:
    assert edited(old, new) == ([] if right else ["dynamic-slice-start.1"])


def test_an_index_that_is_edited_away_is_found_too() -> None:
    assert "dynamic-slice-start.1" in edited(
        "subtract(%constant_45_1, %param_0.367)", "add(%constant_45_1, %param_0.367)"
    )
