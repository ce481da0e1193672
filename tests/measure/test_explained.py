"""How far a module explains the events of a profile."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hloinspect.hlo import load_module
from hloinspect.measure.explained import TRUSTED_SHARE, explained
from hloinspect.measure.file import measure_file
from hloinspect.measure.join import ProgramJoin
from hloinspect.offload.transfers import find_offload
from tests.support.cuda_checks import play, trace_of
from tests.support.cuda_runtime import compiled
from tests.support.cuda_traces import write_trace

SCAN, SAVE = "jax0.12.0.1/gb200_offload_scan", "jax0.12.0.1/gb200_save"


def join_in(path: Path) -> ProgramJoin:
    return ProgramJoin(find_offload(load_module(path)))


@given(st.dictionaries(st.sampled_from("abcdefgh"), st.integers(0, 50)), st.sets(st.sampled_from("abcdefgh")))
def test_shares_are_counted_by_events_and_by_names(events: dict[str, int], names: set[str]) -> None:
    found = explained(names, events)
    seen = Counter(events)
    every = list(seen.elements())
    if not every:
        assert found is None
        return
    assert found is not None
    assert (found.events, found.found) == (len(every), sum(name in names for name in every))
    assert (found.names, found.names_found) == (len(set(every)), len(set(every) & names))
    assert found.is_trusted == (
        found.found / found.events >= TRUSTED_SHARE and found.names_found / found.names >= TRUSTED_SHARE
    )
    assert set(found.missing) <= set(every) - names
    assert ("100 %" in found.text) == (found.found == found.events)


def test_the_module_of_a_run_explains_it_and_a_variant_with_its_name_does_not(corpus: Path) -> None:
    folder = corpus / "gpu" / "h100_maxtext_fsdp4"
    rows = json.loads((folder / "instructions.json").read_text())["instructions"]
    events = {row["instruction"]: round(16 * row["runs_per_device_step"]) for row in rows}
    own = explained(join_in(next(folder.glob("*.hlo.pb.xz"))), events)
    assert own is not None
    assert (own.found, own.names_found) == (own.events, own.names)
    for other in ("maxtext/llama405b_nv.hlo.gz", "maxtext/ds671b_nv.hlo.gz"):
        found = explained(join_in(corpus / other), events)
        assert found is not None
        assert not found.is_trusted
        assert found.names_found < 0.6 * found.names


def test_the_nearest_variants_of_one_model_do_not_explain_each_other(corpus: Path) -> None:
    joins = {name: join_in(corpus / "maxtext" / f"llama405b_{name}.hlo.gz") for name in ("cudnnjax", "device_cudnn")}
    for one, other in (("cudnnjax", "device_cudnn"), ("device_cudnn", "cudnnjax")):
        names = [
            i.name
            for c in joins[one].offload.program.computations()
            for i in c
            if i.opcode in ("fusion", "custom-call")
        ]
        found = explained(joins[other], dict.fromkeys(names, 1))
        assert found is not None
        assert 0.9 < found.names_found / found.names < TRUSTED_SHARE


def test_a_profile_is_explained_by_the_module_in_it(tmp_path: Path, corpus: Path) -> None:
    path = write_trace(trace_of(play(SCAN), SCAN), tmp_path / "host.xplane.pb")
    for file in (measure_file(path), measure_file(corpus / "traces" / "tpu_v6e_host_offload.xplane.pb")):
        found = file.explained
        assert found is not None
        assert found.found == found.events > 0
        assert found.is_trusted
        assert file.unknown == ()


def test_a_profile_with_another_module_is_not_trusted(tmp_path: Path) -> None:
    """The trace is synthetic: the events are of one module, and the module in it is another one."""
    whole = trace_of(play(SCAN), SCAN)
    other = replace(whole.modules[0], module_proto=compiled(SAVE).proto)
    file = measure_file(write_trace(replace(whole, modules=(other,)), tmp_path / "host.xplane.pb"))
    assert file.explained is not None
    assert not file.explained.is_trusted
    assert [gap.affects for gap in file.unknown if gap.reason.startswith("the module is not the one that ran")] == [
        "transfers"
    ]


def test_a_program_of_another_name_is_not_trusted() -> None:
    for module, program, trusted in (("jit_f", "jit_f", True), ("jit_f", "jit_g", False), ("jit_f", "", True)):
        found = explained({"a"}, {"a": 3}, module, program)
        assert found is not None
        assert found.is_trusted == trusted
        assert ("the profile names the program jit_g" in found.text) != trusted


@pytest.mark.parametrize("events", [{}, {"": 3}, {"a": 0}])
def test_events_without_names_are_no_evidence(events: dict[str, int]) -> None:
    assert explained({"a"}, events) is None
