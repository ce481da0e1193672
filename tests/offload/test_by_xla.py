"""Transfers that were not requested: XLA's rematerialization sends to the host what does not fit on the device.

The flag is ``--xla_gpu_enable_host_memory_offloading``, form F14.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hloinspect.analyze.inspect import inspect
from hloinspect.hlo import load_module
from hloinspect.inputs.manifest import manifest_from_json
from hloinspect.kinds import D2H, H2D
from hloinspect.offload.transfers import Offload, find_offload
from tests.support.hlo_samples import ROOT

FIXTURES = [ROOT / "fixtures" / version / "h100_offload_by_xla" for version in ("jax0.10.2", "jax0.12.0.1")]
ROWS, DIM, HIDDEN = 16 * 4096, 8192, 131072
HID, BETWEEN = 2 * ROWS * HIDDEN, 2 * ROWS * DIM  # bf16
SENT = [BETWEEN] * 4 + [HID] * 2

each_fixture = pytest.mark.parametrize("fixture", FIXTURES, ids=lambda path: path.parent.name)


def sizes(offload: Offload, direction: str) -> list[int]:
    return sorted(t.bytes for t in offload.transfers if t.direction == direction)


@each_fixture
@pytest.mark.parametrize("spelling", ["txt", "pb"])
def test_each_is_found_with_its_direction_bytes_and_executions(fixture: Path, spelling: str) -> None:
    offload = find_offload(load_module(fixture / f"module.hlo.{spelling}.gz"))
    assert sizes(offload, D2H) == sizes(offload, H2D) == SENT
    for transfer in offload.transfers:
        assert (transfer.executions, transfer.loop_depth, transfer.mechanism) == (1, 0, "dma")
        assert transfer.asynchronous
        assert transfer.done is not None
    assert (offload.host_copies, offload.host_values) == ((), ())


@each_fixture
def test_each_comes_back_once(fixture: Path) -> None:
    transfers = {t.id: t for t in find_offload(load_module(fixture / "module.hlo.pb.gz")).transfers}
    for transfer in transfers.values():
        back = transfers[transfer.round_trip or 0]
        assert back.round_trip == transfer.id
        assert (back.tensor, back.direction) == (transfer.tensor, H2D if transfer.direction == D2H else D2H)


@each_fixture
def test_the_line_that_made_the_tensor_is_named_but_no_checkpoint_name(fixture: Path) -> None:
    """Read a step that calls ``checkpoint_name(..., "hid")`` and has no policy that offloads it."""
    manifest = manifest_from_json((fixture / "manifest.json").read_text(), fixture / "manifest.json")
    assert manifest.xla_flags == ("xla_gpu_enable_host_memory_offloading=true",)
    assert manifest.offload_names == ()
    for transfer in find_offload(load_module(fixture / "module.hlo.pb.gz")).transfers:
        assert transfer.tensor.name == ""
        assert transfer.source is not None
        assert transfer.source.file == "/home/user/hloinspect/fixtures/steps.py"
        assert transfer.source.function == "too_large.<locals>.loss"


@each_fixture
def test_what_lies_on_the_host_is_what_xla_reserved_there(fixture: Path) -> None:
    reserved = json.loads((fixture / "expected.json").read_text())["memory"]["host_temp_bytes"]
    assert reserved == 2 * HID + 3 * BETWEEN  # of the four, two are not in memory at the same time
    memory = inspect(str(fixture / "module.hlo.pb.gz"), target="h100").report.memory
    assert memory.source == "estimated"
    assert memory.host_bytes == reserved
