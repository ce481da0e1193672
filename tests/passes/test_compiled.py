"""The ledger of steps that are compiled here: the passes of a real XLA, by its names."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from hloinspect.passes.census import census_of
from hloinspect.passes.dump import find_passes, read_text
from hloinspect.passes.follow import follow
from hloinspect.passes.ledger import Ledger, ledger_of
from tests.support.jax_versions import JAX

pytest.importorskip("jax", reason="compiling needs the extra hloinspect[cuda]")
pytestmark = pytest.mark.slow

STEPS = """
import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name

POLICY = jax.checkpoint_policies.save_and_offload_only_these_names(
    names_which_can_be_saved=[], names_which_can_be_offloaded=["hid"], offload_src="device", offload_dst="pinned_host"
)
W = jax.ShapeDtypeStruct((3, 64, 64), jnp.bfloat16)
X = jax.ShapeDtypeStruct((16, 64), jnp.bfloat16)


def layer(x, w):
    return jnp.tanh(checkpoint_name(jnp.tanh(x @ w), "hid") @ w)


def scanned():
    block = jax.checkpoint(layer, policy=POLICY)
    loss = lambda w, x: jax.lax.scan(lambda x, w: (block(x, w), None), x, w)[0].astype(jnp.float32).sum()
    return jax.jit(jax.grad(loss)).lower(W, X)


def without_barrier():
    block = jax.checkpoint(layer, policy=POLICY, prevent_cse=False)

    def loss(w, x):
        for i in range(3):
            x = block(x, w[i])
        return x.astype(jnp.float32).sum()

    return jax.jit(jax.grad(loss)).lower(W, X)
"""


@dataclass(frozen=True)
class Compiled:
    """The command's output for a step, and the ledger of the texts that it kept."""

    said: str
    ledger: Ledger
    folder: Path


@pytest.fixture(scope="session")
def compiled(
    tmp_path_factory: pytest.TempPathFactory, hloinspect: Callable[..., subprocess.CompletedProcess[str]]
) -> Callable[[str], Compiled]:
    place = tmp_path_factory.mktemp("passes")
    (place / "steps.py").write_text(STEPS)
    made: dict[str, Compiled] = {}

    def run(step: str) -> Compiled:
        if step not in made:
            kept = place / step
            done = hloinspect("passes", f"{place / 'steps.py'}:{step}", "--target", "h100", "--keep", str(kept))
            assert done.returncode == 0, done.stderr
            made[step] = Compiled(done.stdout, ledger_of(find_passes(kept)), kept)
        return made[step]

    return run


def changes(found: Compiled) -> list[tuple[str, str]]:
    return [(change.text.pipeline, change.text.name) for change in found.ledger.shown]


def test_the_passes_of_a_scanned_offload_stand_in_order(compiled: Callable[[str], Compiled]) -> None:
    found = compiled("scanned")
    assert [name for _, name in changes(found)] == [
        "convert-memory-placement-to-internal-annotations",
        "host-offloader",
        "host-memory-transfer-asyncifier",
        "dynamic-slice-annotator" if JAX >= (0, 10) else "fusion-dynamic-memcpy-rewriter",
    ]
    assert [(count.kind, count.count, count.bytes) for count in found.ledger.last.counts] == [
        ("host_buffer", 1, 3 * 16 * 64 * 2),
        ("async_d2h", 1, 16 * 64 * 2),
        ("async_h2d", 1, 16 * 64 * 2),
    ]
    assert "compiled for 1 x h100, jax " in found.said
    assert "\nlost " not in found.said


def test_the_pass_that_deletes_an_offload_without_a_barrier_is_named(compiled: Callable[[str], Compiled]) -> None:
    found = compiled("without_barrier")
    assert changes(found)[-1] == ("post-layout_assignment", "algsimp")
    assert found.ledger.shown[-1].dropped == {"d2h": 3, "h2d": 3}
    assert "lost         3 of 3 to the host and 3 of 3 back, by algsimp (text " in found.said
    assert found.ledger.last.counts == ()


def test_both_transfers_of_a_scan_go_back_to_the_annotations_of_the_policy(compiled: Callable[[str], Compiled]) -> None:
    ledger = compiled("scanned").ledger
    for item in ledger.last.items:
        trail = follow(ledger, item.name)
        assert trail.lost == ""
        assert trail.hops[-1].item.kind == f"annotation_{item.direction}"
        assert trail.hops[-1].item.place.rpartition("/")[2].startswith("steps.py:")


@pytest.mark.parametrize("step", ["scanned", "without_barrier"])
def test_the_quick_look_misses_nothing_in_texts_of_xla(step: str, compiled: Callable[[str], Compiled]) -> None:
    found = ledger_of(find_passes(compiled(step).folder, steps=True))
    after = {change.place: change.after for change in found.changes}
    current = found.first
    for place, text in enumerate(found.dump.texts):
        current = after.get(place, current)
        exact = census_of(read_text(text))
        assert exact.counts == current.counts, text.path.name
        assert {item.name for item in exact.items} == {item.name for item in current.items}, text.path.name


def test_the_diff_of_a_pass_shows_both_sides_and_nothing_else(
    compiled: Callable[[str], Compiled], hloinspect: Callable[..., subprocess.CompletedProcess[str]]
) -> None:
    done = hloinspect("passes", str(compiled("scanned").folder), "--pass", "host-offloader", "--format", "json")
    answer: dict[str, Any] = json.loads(done.stdout)
    (difference,) = answer["differences"]
    lines = [(line["sign"], line["text"]) for part in difference["parts"] for line in part["lines"]]
    gone = [text for sign, text in lines if sign == "-" and "MoveTo" in text]
    assert len(gone) == 2
    assert any(sign == "+" and " S(5) dynamic-update-slice(" in text for sign, text in lines)
    assert all("metadata" not in text for _, text in lines)
