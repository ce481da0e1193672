"""Real modules against the values written down for them in the corpus' golden.json, which hloinspect did not make."""

from __future__ import annotations

import gzip
import json
import os
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from hloinspect.hlo import load_module
from hloinspect.kinds import D2H, H2D
from hloinspect.offload.transfers import Offload, Transfer, find_offload
from tests.support.places import ROOT

CORPUS = Path(os.environ.get("HLOINSPECT_CORPUS", ROOT.parent / "shared" / "corpus"))
GOLDEN: dict[str, Any] = json.loads(path.read_text()) if (path := CORPUS / "golden.json").is_file() else {}
MODULES = sorted(name for name, value in GOLDEN.items() if "asynchronous_transfers" in value)
VERSIONS = sorted(path.name for path in (CORPUS / "hlo" / "versions").glob("*.hlo"))
SLICE_BYTES = 536870912  # bf16[4,4096,16384]: 'hid' of one layer, in every program of hlo/versions
LAYERS = 8
DIRECTIONS = (D2H, H2D)

pytestmark = pytest.mark.skipif(not GOLDEN, reason="no corpus: set HLOINSPECT_CORPUS to its folder")


@cache
def offload_of(name: str) -> Offload:
    return find_offload(load_module(CORPUS / name))


def asynchronous(offload: Offload, direction: str) -> list[Transfer]:
    return [t for t in offload.transfers if t.direction == direction and t.asynchronous]


def facts_of(transfer: Transfer) -> tuple[str, str, str, int, int]:
    """What golden.json says of a transfer."""
    return (transfer.start, transfer.computation, transfer.direction, transfer.bytes, transfer.executions)


@pytest.mark.parametrize("name", MODULES)
def test_the_module_has_the_starts_and_bytes_that_were_counted_in_it(name: str) -> None:
    offload = offload_of(name)
    for direction, expected in GOLDEN[name]["asynchronous_transfers"].items():
        found = asynchronous(offload, direction)
        assert len(found) == expected["starts"]
        assert sum(t.bytes for t in found) == expected["bytes_each_start_summed"]


@pytest.mark.parametrize("name", [n for n in MODULES if "bytes_per_step" in GOLDEN[n]])
def test_the_module_moves_the_bytes_of_a_step_that_were_counted_in_it(name: str) -> None:
    offload = offload_of(name)
    for direction, expected in GOLDEN[name]["bytes_per_step"].items():
        assert sum(t.bytes_per_step for t in asynchronous(offload, direction)) == expected


@pytest.mark.parametrize("name", [n for n in MODULES if "transfers" in GOLDEN[n]])
def test_each_listed_transfer_is_found_where_it_is_with_its_bytes_and_executions(name: str) -> None:
    keys = ("start", "computation", "direction", "bytes", "executions")
    expected = sorted(tuple(entry[key] for key in keys) for entry in GOLDEN[name]["transfers"])
    assert sorted(facts_of(t) for t in offload_of(name).transfers if t.asynchronous) == expected


@pytest.mark.parametrize("name", MODULES)
def test_every_asynchronous_transfer_has_its_done_after_its_start(name: str) -> None:
    for transfer in offload_of(name).transfers:
        if transfer.asynchronous:
            assert transfer.done is not None
            assert transfer.done_index is not None
            assert transfer.done_index > transfer.start_index


@pytest.mark.parametrize("name", [n for n in MODULES if not GOLDEN[n]["asynchronous_transfers"]["d2h"]["starts"]])
def test_a_module_that_offloads_nothing_has_no_transfer_and_no_host_copy(name: str) -> None:
    offload = offload_of(name)
    assert (offload.transfers, offload.host_copies, offload.host_values) == ((), (), ())


def _scanned_maxtext() -> list[str]:
    names = [name for name in MODULES if name.startswith("maxtext/")]
    return [name for name in names if "scan_layers=true" in _manifest(name)["args"]]


def _manifest(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((CORPUS / name.replace(".hlo.gz", ".json")).read_text())
    return found


@pytest.mark.parametrize("name", _scanned_maxtext())
def test_what_a_scanned_program_sends_in_a_step_is_what_xla_reserved_in_host_memory(name: str) -> None:
    assert offload_of(name).bytes_per_step(D2H) == _manifest(name)["memory"]["host_temp_size_in_bytes"]


@pytest.mark.parametrize("name", MODULES)
def test_round_trips_are_mutual_and_of_one_size(name: str) -> None:
    by_id = {t.id: t for t in offload_of(name).transfers}
    for transfer in by_id.values():
        if transfer.round_trip is None:
            continue
        other = by_id[transfer.round_trip]
        assert {transfer.direction, other.direction} == {D2H, H2D}
        assert transfer.bytes == other.bytes
        assert transfer.tensor == other.tensor


@pytest.mark.parametrize("name", [n for n in MODULES if "unroll" in n or "/u_" in n or n == "hlo/s_off.hlo"])
def test_every_copy_of_an_unrolled_program_has_a_round_trip_of_its_own(name: str) -> None:
    transfers = offload_of(name).transfers
    partners = [t.round_trip for t in transfers]
    assert sorted(p for p in partners if p is not None) == sorted(t.id for t in transfers)


# ---- mechanisms


def test_peeled_slices_of_a_pipelined_loop_are_kernels_and_those_in_it_copies() -> None:
    """Only a loop's own slices have an address that the runtime can compute without the device."""
    for transfer in offload_of("maxtext/llama405b_pipe_cudnn.hlo.gz").transfers:
        assert transfer.mechanism == ("kernel" if transfer.computation == "main.67_spmd" else "dma")
        assert transfer.executions == (1 if transfer.computation == "main.67_spmd" else 125)


def test_the_mechanism_is_unknown_only_where_the_text_has_lost_the_marker() -> None:
    unknown = {
        name
        for name in [*MODULES, *(f"hlo/versions/{name}" for name in VERSIONS)]
        if any(t.mechanism == "unknown" for t in offload_of(name).transfers)
    }
    assert unknown == {"hlo/versions/jax0.9.2_act_scan.hlo"}


def test_the_thunk_sequence_of_a_dump_agrees_on_how_many_starts_go_each_way() -> None:
    folder = CORPUS / "dump_maxtext_gb200"
    (module,) = folder.glob("*after_optimizations.txt")
    (thunks,) = folder.glob("*thunk_sequence.txt")
    lines = thunks.read_text().splitlines()
    offload = find_offload(load_module(module))
    for direction in DIRECTIONS:
        starts = [line for line in lines if "kAsyncStart" in line and f"memcpy_{direction}_stream" in line]
        assert len(starts) == GOLDEN["dump_maxtext_gb200"]["streams"][f"memcpy_{direction}_stream"]
        found = asynchronous(offload, direction)
        assert len(found) == len(starts)
        assert {t.mechanism for t in found} == {"dma"}


# ---- versions of JAX


@pytest.mark.parametrize("file", [f for f in VERSIONS if "_act_unroll" in f])
def test_every_version_copies_each_unrolled_layer_out_and_back(file: str) -> None:
    transfers = offload_of(f"hlo/versions/{file}").transfers
    for direction in DIRECTIONS:
        found = [t for t in transfers if t.direction == direction]
        assert [(t.bytes, t.executions, t.mechanism) for t in found] == [(SLICE_BYTES, 1, "dma")] * LAYERS


@pytest.mark.parametrize("file", [f for f in VERSIONS if "_act_scan" in f])
def test_every_version_moves_each_scanned_layer_out_and_back(file: str) -> None:
    offload = offload_of(f"hlo/versions/{file}")
    slices = [t for t in offload.transfers if t.executions == LAYERS]
    assert [(t.direction, t.bytes, t.loop_depth) for t in slices] == [(D2H, SLICE_BYTES, 1), (H2D, SLICE_BYTES, 1)]
    assert all(t.asynchronous and t.done_index is not None for t in slices)


FALLBACK = ("jax0.5.3_act_scan.hlo", "jax0.6.2_act_scan.hlo", "jax0.7.2_act_scan.hlo")


@pytest.mark.parametrize("file", [f for f in VERSIONS if "_act_scan" in f])
def test_versions_before_0_8_slice_the_stack_within_host_memory_first_and_later_ones_do_not(file: str) -> None:
    offload = offload_of(f"hlo/versions/{file}")
    if file not in FALLBACK:
        assert offload.host_copies == ()
        return
    (copy,) = offload.host_copies
    assert (copy.executions, copy.mechanism) == (LAYERS, "kernel")
    assert copy.bytes == 2 * SLICE_BYTES  # reads a slice, writes a slice
    (back,) = (t for t in offload.transfers if t.direction == H2D)
    assert back.start.startswith("copy-start")


def test_jax_0_5_3_keeps_transfers_in_command_buffers_and_they_are_counted_by_the_loop_around() -> None:
    offload = offload_of("hlo/versions/jax0.5.3_act_scan.hlo")
    out = next(t for t in offload.transfers if t.direction == D2H)
    assert (out.computation, out.executions, out.loop_depth) == ("command_buffer", LAYERS, 1)
    assert offload.host_copies[0].computation == "command_buffer.2"


def test_jax_0_7_2_sends_a_stack_of_zeros_to_the_host_at_the_entry() -> None:
    transfers = offload_of("hlo/versions/jax0.7.2_act_scan.hlo").transfers
    zeros = [t for t in transfers if t.executions == 1]
    assert [(t.direction, t.bytes, t.computation) for t in zeros] == [(D2H, LAYERS * SLICE_BYTES, "main.8")]


@pytest.mark.parametrize("plain", [f for f in VERSIONS if f.replace(".hlo", "_dump.hlo") in VERSIONS])
def test_a_dump_and_as_text_of_one_version_give_the_same_transfers(plain: str) -> None:
    """The two were compiled from one program; as_text() may lose the mechanism, and names computations otherwise."""

    def shown(file: str) -> list[tuple[Any, ...]]:
        transfers = offload_of(f"hlo/versions/{file}").transfers
        return [
            (t.id, t.direction, t.bytes, t.executions, t.tensor, t.start, t.done, t.loop_depth, t.round_trip)
            for t in transfers
        ]

    assert shown(plain) == shown(plain.replace(".hlo", "_dump.hlo"))
    assert {t.mechanism for t in offload_of(f"hlo/versions/{plain.replace('.hlo', '_dump.hlo')}").transfers} == {"dma"}


# ---- the same by another way


@pytest.mark.parametrize("name", ["hlo/s_off.hlo", "maxtext/llama405b_cudnnjax.hlo.gz", "hlo/tpu_v5e_act_scan.hlo"])
def test_a_plain_search_of_the_text_finds_as_many_starts_with_host_memory_on_one_side(name: str) -> None:
    """An oracle that knows nothing of the model: a start's line, cut into operands and results at the tuple's comma."""
    data = (CORPUS / name).read_bytes()
    text = gzip.decompress(data).decode() if name.endswith(".gz") else data.decode()
    starts = [line for line in text.splitlines() if "-start(" in line and "S(5)" in line]
    assert len(starts) == len(offload_of(name).transfers)


def test_text_and_proto_of_the_tpu_module_give_the_same_six_copies() -> None:
    text = offload_of("hlo/tpu_v6e_host_offload.after_optimizations.txt")
    proto = offload_of("hlo/tpu_v6e_host_offload.hlo_proto.pb")
    assert text.transfers == proto.transfers
    assert [(t.direction, t.bytes) for t in text.transfers] == [(H2D, 5368709120)] * 3 + [(D2H, 5368709120)] * 3
    assert text.host_values == proto.host_values
    assert len(text.host_values) == 6
