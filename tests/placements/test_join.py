"""Requests and transfers: the assignment against brute force, and synthetic programs with a known result."""

from __future__ import annotations

import itertools
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hloinspect.decoding import Fault
from hloinspect.errors import InputError
from hloinspect.hlo.text import parse_text
from hloinspect.inputs.manifest import load_result, manifest_from_json
from hloinspect.offload.transfers import Offload, find_offload
from hloinspect.placements.assign_requests import STRONG, assign_transfers
from hloinspect.placements.audit import audit
from hloinspect.placements.flow import (
    ARGUMENT,
    CONSTANT,
    MERGE,
    OPERATION,
    PART,
    PUT,
    SAME,
    Flow,
    Node,
    Place,
    Put,
    placements_from_json,
    placements_to_json,
    read_requested,
    requested_in,
)
from hloinspect.placements.stablehlo import placements_of
from hloinspect.report.placements import RequestedOf, audited
from hloinspect.report.schema import AuditInfo
from tests.support.gate_samples import compiled_directory

# ---- the assignment

TIES = st.lists(st.dictionaries(st.integers(0, 4), st.sampled_from([10, 12, 30, 50]), max_size=4), max_size=5)


def most_assigned(ties: list[dict[int, int]]) -> int:
    """Return the most requests that can have a transfer each, by trying everything."""
    best = 0
    for choice in itertools.product(*([None, *each] for each in ties)):
        taken = [transfer for transfer in choice if transfer is not None]
        if len(set(taken)) == len(taken):
            best = max(best, len(taken))
    return best


@given(TIES)
def test_as_many_requests_as_possible_get_a_transfer(ties: list[dict[int, int]]) -> None:
    found = assign_transfers(ties, [1] * len(ties), [1] * 5)
    assert sum(bool(own) for own in found) == most_assigned(ties)


@given(TIES)
def test_what_strong_ties_alone_answer_stays_answered(ties: list[dict[int, int]]) -> None:
    strong = [{transfer: tie for transfer, tie in each.items() if tie >= 30} for each in ties]
    alone = assign_transfers(strong, [1] * len(ties), [1] * 5)
    found = assign_transfers(ties, [1] * len(ties), [1] * 5)
    assert {request for request, own in enumerate(alone) if own} <= {
        request for request, own in enumerate(found) if own
    }


@given(TIES, st.lists(st.integers(1, 4), min_size=5, max_size=5), st.lists(st.integers(1, 4), min_size=5, max_size=5))
def test_no_transfer_belongs_to_two_requests_or_to_one_without_a_tie(
    ties: list[dict[int, int]], wanted: list[int], supply: list[int]
) -> None:
    found = assign_transfers(ties, wanted[: len(ties)], supply)
    given_away = Counter(transfer for own in found for transfer in own)
    assert all(count == 1 for count in given_away.values())
    assert all(transfer in each for each, own in zip(ties, found, strict=True) for transfer in own)
    for transfer in set(range(5)) - set(given_away):  # the remaining transfers have no strong tie
        assert all(each.get(transfer, 0) < STRONG for each in ties)


def test_a_loop_with_a_peeled_first_iteration_gives_one_request_two_transfers() -> None:
    assert assign_transfers([{0: 10, 1: 10}], [4], [3, 1]) == [[0, 1]]
    # no more executions are requested: the other transfer belongs to something else
    assert assign_transfers([{0: 10, 1: 10}], [3], [3, 1]) == [[0]]


# ---- synthetic programs: each layer's value goes to the host and comes back, or was dropped

PUT_LINE = (
    "    %{out} = stablehlo.custom_call @annotate_device_placement(%{arg}) {{has_side_effect = true, "
    'mhlo.frontend_attributes = {{_xla_buffer_placement = "{kind}"}}}} : (tensor<{n}xf32>) -> tensor<{n}xf32>\n'
)


def program(sizes: list[int], barriers: list[bool]) -> str:
    """Return StableHLO that sends one value of each size to the host and fetches it, most of them behind a barrier."""
    lines = "    %x = stablehlo.negate %arg0 : tensor<4xf32>\n"
    for i, (size, barrier) in enumerate(zip(sizes, barriers, strict=True)):
        lines += f"    %v{i} = stablehlo.broadcast_in_dim %x, dims = [0] : (tensor<4xf32>) -> tensor<{size}xf32>\n"
        lines += PUT_LINE.format(out=f"h{i}", arg=f"v{i}", kind="pinned_host", n=size)
        held = f"h{i}"
        if barrier:
            lines += f"    %b{i} = stablehlo.optimization_barrier %h{i} : tensor<{size}xf32>\n"
            held = f"b{i}"
        lines += PUT_LINE.format(out=f"d{i}", arg=held, kind="device", n=size)
    ends = ", ".join(f"%d{i}" for i in range(len(sizes)))
    types = ", ".join(f"tensor<{size}xf32>" for size in sizes)
    return (
        "module @m {\n  func.func public @main(%arg0: tensor<4xf32>) -> "
        f"({types}) {{\n{lines}    return {ends} : {types}\n  }}\n}}\n"
    )


def module(sizes: list[int]) -> Offload:
    """Return a module with one round trip of each size."""
    lines = "  %p = f32[4]{0} parameter(0)\n"
    for i, n in enumerate(sizes):
        host, device = f"f32[{n}]{{0:S(5)}}", f"f32[{n}]{{0}}"
        lines += f"  %v{i} = {device} broadcast(%p), dimensions={{0}}\n"
        lines += f"  %s{i} = ({host}, {device}, u32[]) copy-start(%v{i})\n  %h{i} = {host} copy-done(%s{i})\n"
        lines += f"  %t{i} = ({device}, {host}, u32[]) copy-start(%h{i})\n  %d{i} = {device} copy-done(%t{i})\n"
    lines += "  ROOT %end = f32[4]{0} negate(%p)\n"
    return find_offload(
        parse_text(f"HloModule m, is_scheduled=true\n\nENTRY %main (p: f32[4]) -> f32[4] {{\n{lines}}}\n")
    )


@given(st.lists(st.tuples(st.sampled_from([8, 16, 32]), st.booleans(), st.booleans()), min_size=1, max_size=6))
def test_of_made_up_programs_as_many_are_kept_and_lost_as_was_made_up(layers: list[tuple[int, bool, bool]]) -> None:
    sizes = [size for size, _, _ in layers]
    kept = [size for size, stays, _ in layers if stays]
    found = audit(module(kept), placements_of(program(sizes, [barrier for *_, barrier in layers])))
    assert not found.unexplained
    counts = Counter[tuple[str, int, bool]]()
    for entry in found.entries:
        counts[entry.direction, entry.shape[0], entry.outcome == "kept"] += entry.count
    for way in ("d2h", "h2d"):
        for size in (8, 16, 32):
            assert counts[way, size, True] == kept.count(size)
            assert counts[way, size, False] == sizes.count(size) - kept.count(size)
    for entry in found.lost:  # without a barrier the cause is known
        assert entry.cause in ("folded", "no transfer")


@given(st.lists(st.sampled_from([8, 16]), max_size=3), st.lists(st.sampled_from([64, 128]), min_size=1, max_size=3))
def test_transfers_of_shapes_that_were_not_requested_are_named(requested: list[int], strange: list[int]) -> None:
    offload = module([*requested, *strange])
    found = audit(offload, placements_of(program(requested or [8], [True] * len(requested or [8]))))
    sizes = {transfer.id: transfer.tensor.shape[0] for transfer in offload.transfers}
    assert sorted(sizes[number] for number in found.unexplained) == sorted([*strange, *strange])


# ---- the graph


def graph(*nodes: Node) -> Flow:
    made = Flow()
    for node in nodes:
        made.add(node)
    made.results = [len(nodes) - 1]
    return made


def node(kind: str, *inputs: int, to_host: bool | None = None, **more: object) -> Node:
    put = None if to_host is None else Put(to_host, "device_put", 1)
    on_host = to_host if kind != ARGUMENT else False
    return Node(kind, [*inputs], "f32", (4,), on_host, put=put, **more)


def test_a_value_that_is_there_already_requests_nothing() -> None:
    assert graph(node(ARGUMENT, number=0), node(PUT, 0, to_host=False)).requests() == ()


def test_what_comes_back_out_of_a_loops_stack_is_what_was_put_in() -> None:
    made = graph(
        node(ARGUMENT, number=0),
        node(OPERATION, 0, place=Place("a.py", 3, 0, "f")),
        node(SAME, 1, name="hid", place=Place("a.py", 4, 0, "f")),
        node(PUT, 2, to_host=True),
        node(CONSTANT),
        node(MERGE, 4, 6),
        node(PART, 5, 3),  # the stack with the value of this iteration
        node(PART, 5),  # the backward loop's slice
        node(PUT, 7, to_host=False),
    )
    made.nodes[4].on_host = None
    sent, back = made.requests()
    assert (sent.name, sent.made, sent.constant) == ("hid", Place("a.py", 3, 0, "f"), False)
    assert (back.of, back.name, back.made, back.separated, back.computed) == (0, "hid", sent.made, True, False)


def test_a_placement_that_no_result_needs_is_not_live() -> None:
    made = graph(node(ARGUMENT, number=0), node(OPERATION, 0), node(PUT, 1, to_host=True), node(OPERATION, 1))
    (request,) = made.requests()
    assert not request.live
    made.effects = [2]
    assert made.requests()[0].live


def test_a_value_that_depends_on_no_argument_is_constant() -> None:
    (request,) = graph(node(CONSTANT), node(OPERATION, 0), node(PUT, 1, to_host=True)).requests()
    assert request.constant
    assert request.result == 0


def test_what_was_found_survives_the_manifest() -> None:
    placements = placements_of(program([8, 16, 8], [True, False, True]))
    assert len(placements.requests) == 6
    assert placements_from_json(placements_to_json(placements)) == placements  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        ({"requests": [{"direction": "up"}]}, "requested.requests[0].by is missing"),
        ({"requests": 3}, "requested.requests: expected a list, found 3"),
        ({"source": "hlo2"}, "requested.source: expected jaxpr, stablehlo or hlo, found 'hlo2'"),
        (
            {"asks": []},
            "requested has the key 'asks' of an older version; make it anew: `hloinspect compile ",
        ),
    ],
)
def test_a_manifest_that_is_not_whole_is_one_line(tmp_path: Path, damage: dict[str, object], said: str) -> None:
    made = load_result(compiled_directory(tmp_path / "made", "gb200_save")).manifest
    placements = placements_of(program([8], [True]))
    manifest = replace(made, requested={**placements_to_json(placements), **damage})
    with pytest.raises(InputError) as caught:
        requested_in(manifest, tmp_path / "manifest.json")
    assert said in str(caught.value)
    assert str(caught.value).startswith(f"{tmp_path}/manifest.json is not a whole hloinspect.manifest/1: ")


def test_a_manifest_whose_requests_are_nested_too_deeply_is_one_line(tmp_path: Path) -> None:
    made = load_result(compiled_directory(tmp_path / "made", "gb200_save")).manifest
    path = tmp_path / "manifest.json"
    depth = 4000 if sys.version_info >= (3, 12) else 480  # json of Python 3.11 itself refuses deeper ones
    text = replace(made, requested={"source": "@"}).to_json().replace('"@"', "[" * depth + "]" * depth)
    with pytest.raises(InputError, match=r"not a whole hloinspect.manifest/1: requested.requests is missing"):
        requested_in(manifest_from_json(text, path), path)


def test_a_request_for_the_value_of_no_request_is_refused() -> None:
    data = placements_to_json(placements_of(program([8, 8], [True, False])))
    data["requests"][1]["of"] = 7  # type: ignore[index]
    with pytest.raises(Fault, match=r"requests\[1\]\.of: there is no request 7, of 4"):
        read_requested(data)


# ---- what is known without the step


def test_without_any_source_the_audit_says_what_to_give() -> None:
    _, info = audited(module([8]), RequestedOf())
    assert info == AuditInfo(None, unknown=info.unknown)
    assert "STEM.stablehlo" in info.unknown[0].remedy


def test_from_stablehlo_names_are_not_known_and_that_is_said(tmp_path: Path) -> None:
    path = tmp_path / "step.stablehlo"
    path.write_text(program([8, 16], [True, True]))
    _, info = audited(module([8, 16]), RequestedOf(stablehlo=path))
    assert (info.requested_from, info.unexplained) == ("stablehlo", ())
    assert {entry.outcome for entry in info.entries} == {"kept"}
    assert "checkpoint names" in info.unknown[0].reason


def test_xlas_own_offload_is_explained_by_its_flag(tmp_path: Path) -> None:
    path = tmp_path / "step.stablehlo"
    path.write_text(program([8], [True]))
    flag = "--xla_gpu_enable_host_memory_offloading"
    assert audited(module([8, 64]), RequestedOf(stablehlo=path, flags=(f"{flag}=false",)))[1].unexplained == (3, 4)
    _, info = audited(module([8, 64]), RequestedOf(stablehlo=path, flags=(f"{flag}=true",)))
    assert info.unexplained == ()
    assert [entry.transfers for entry in info.entries if entry.by == "flag"] == [(3, 4)]


@pytest.mark.parametrize(
    ("name", "outcomes"),
    [
        ("s_off", {("d2h", 1, 8, "kept"), ("h2d", 1, 8, "kept")}),
        ("u_off_nocse", {("d2h", 8, 8, "dropped"), ("h2d", 8, 8, "dropped")}),
    ],
)
def test_real_stablehlo_beside_a_module_is_enough(
    corpus: Path, name: str, outcomes: set[tuple[str, int, int, str]]
) -> None:
    from hloinspect.analyze.inspect import inspect

    info = inspect(str(corpus / "hlo" / f"{name}.hlo")).report.audit
    assert info is not None
    assert {(e.direction, e.requested, e.runs, e.outcome) for e in info.entries} == outcomes
    assert {e.cause for e in info.entries if e.outcome == "dropped"} <= {"folded"}
    assert info.unexplained == ()


@given(st.data())
def test_stablehlo_that_is_cut_or_changed_never_breaks_the_reader(data: st.DataObject) -> None:
    text = program([8, 16], [True, False])
    start = data.draw(st.integers(0, len(text)))
    end = data.draw(st.integers(start, min(len(text), start + 80)))
    middle = data.draw(st.sampled_from(["", "}", "{", "%h0", "func.func @f(", "loc(#loc3)", "tensor<"]))
    placements_of(text[:start] + middle + text[end:])
