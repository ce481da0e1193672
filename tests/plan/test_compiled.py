"""Plans that compile: a small step with two named tensors, on real compilers, without a device."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from hloinspect.errors import CompileError
from hloinspect.inputs.manifest import load_result
from hloinspect.options import CompileOptions
from hloinspect.plan.model import Plan
from hloinspect.plan.verb import PlanRequest, make_plan
from hloinspect.render.page.point_pages import write_pages_to

pytest.importorskip("jax", reason="compiling needs the extra hloinspect[cuda]")
pytestmark = pytest.mark.slow

STEP = """
import os
import jax, jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name

DIM = 512

def train(batch=256, policy=None, unrolled=False, prevent_cse=True, crash=False, layers=4):
    if crash:
        os.abort()
    own = jax.checkpoint_policies.save_and_offload_only_these_names(
        names_which_can_be_saved=[], names_which_can_be_offloaded=["hid", "gate"], offload_src="device",
        offload_dst="pinned_host")

    def layer(x, w):
        hid = checkpoint_name(x @ w["up"], "hid")
        gate = checkpoint_name(jnp.sin(x) @ w["gate"], "gate")
        return x + (jnp.tanh(hid) * jnp.tanh(gate)) @ w["down"]

    layer = jax.checkpoint(layer, policy=policy or own, prevent_cse=prevent_cse)

    def loss(weights, x):
        if unrolled:
            for i in range(layers):
                x = layer(x, jax.tree.map(lambda w: w[i], weights))
        else:
            x, _ = jax.lax.scan(lambda x, w: (layer(x, w), None), x, weights)
        return jnp.mean(x.astype(jnp.float32) ** 2)

    def shape(*dims):
        return jax.ShapeDtypeStruct(dims, jnp.bfloat16)

    weights = {name: shape(layers, DIM, 4 * DIM) for name in ("up", "gate")} | {"down": shape(layers, 4 * DIM, DIM)}
    return jax.jit(jax.value_and_grad(loss)).lower(weights, shape(batch, DIM))

def with_its_own_policy():
    return train()

def without_names():
    return jax.jit(lambda x: x @ x).lower(jax.ShapeDtypeStruct((64, 64), jnp.float32))
"""


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("plan")
    (folder / "step.py").write_text(STEP)
    (folder / "pyproject.toml").write_text('[tool.hloinspect.plan.flags]\nwrong = ["xla_no_such_flag=1"]\n')
    return folder


def plan_of(home: Path, *vary: str, step: str = "train", keep: Path | None = None, **more: object) -> Plan:
    return make_plan(
        PlanRequest(  # type: ignore[arg-type]
            sources=(f"{home / 'step.py'}:{step}",),
            vary=vary,
            targets=("h100",),
            folder=home,
            compiling=CompileOptions(cache=home / "cache", keep=keep),
            **more,
        )
    )


@pytest.fixture(scope="module")
def grid(home: Path) -> Plan:
    """Return three policies by two sets of flags, and four points that fail in different ways."""
    return plan_of(
        home,
        "policy=save,remat,offload:hid",
        "batch=4096",
        "flags=default,pipelined",
        tensors=True,
        points=(
            "policy=offload:hid,unrolled=true,prevent_cse=false",
            "crash=true",
            "policy=remat,batch=4096,flags=wrong",
            "bach=1",
        ),
        keep=home / "kept",
        pages=write_pages_to(home / "pages"),
    )


def test_every_combination_is_a_point_and_each_memory_is_xlas_own(grid: Plan, home: Path):
    assert len(grid.points) == 10
    for point in grid.points[:6]:
        assert point.memory is not None
        memory = load_result(home / "kept" / f"point{point.number}").manifest.memory
        sizes = [memory[f"{part}_size_in_bytes"] for part in ("argument", "temp", "output")]
        assert point.memory.device_bytes == sum(sizes) - memory["alias_size_in_bytes"]
        assert point.memory.source == "artifacts"
        assert point.memory.host_bytes == memory["host_temp_size_in_bytes"]
        assert point.samples == float(point.settings["batch"])


def test_the_policies_do_what_they_say(grid: Plan):
    assert grid.policies["save"] == "jax.checkpoint_policies.save_only_these_names('hid')"
    by_name = {tuple(point.settings.values()): point for point in grid.points[:6]}
    save, remat, offload = (by_name[policy, "4096", "default"] for policy in ("save", "remat", "offload:hid"))
    moved = 4 * 4096 * 2048 * 2  # layers x the tensor's bytes
    assert (offload.d2h_bytes, offload.h2d_bytes) == (moved, moved)
    assert save.d2h_bytes == remat.d2h_bytes == 0
    for other in (remat, offload):
        assert save.memory is not None
        assert other.memory is not None
        freed = (save.memory.device_bytes or 0) - (other.memory.device_bytes or 0)
        assert freed == pytest.approx(moved, rel=0.25)
    assert save.recompute_flops == offload.recompute_flops == 0.0
    products = 4 * (2 * 4096 * 512 * 2048)  # layers x the product again
    assert remat.recompute_flops == pytest.approx(products)
    assert {transfer.name for transfer in offload.transfers} == {"hid"}
    assert offload.step is not None
    assert offload.step.stall_ms > 0


def test_each_point_that_was_judged_has_a_page_with_its_step_and_settings(grid: Plan, home: Path):
    judged = [point for point in grid.points if point.step is not None]
    assert {page.name for page in (home / "pages").iterdir()} == {f"point{point.number}.html" for point in judged}
    page = (home / "pages" / "point5.html").read_text(encoding="utf-8")
    assert "step.py:train policy=offload:hid batch=4096 flags=default" in page
    assert str(home / "kept") not in page


def test_an_offload_that_xla_deletes_is_said_and_no_good_point(grid: Plan):
    lost = grid.points[6]
    assert lost.offload_lost is not None
    assert "gone from the optimized module" in lost.offload_lost
    assert not lost.is_good
    assert lost.number not in grid.front
    assert grid.best != lost.number


def test_a_step_that_crashes_is_one_row_with_its_message(grid: Plan):
    crashed = grid.points[7]
    assert crashed.error is not None
    assert "killed by SIGABRT" in crashed.error
    assert "in train" in crashed.error
    assert [point.number for point in grid.points if point.error] == [8, 9, 10]


def test_flags_that_xla_refuses_are_one_row_and_the_same_step_compiles_with_others(grid: Plan):
    assert "xla_no_such_flag" in (grid.points[8].error or "")
    assert grid.points[8].settings == {**grid.points[2].settings, "flags": "wrong"}
    assert grid.points[2].is_good


def test_an_argument_that_the_step_does_not_take_is_a_row_with_those_it_takes(grid: Plan):
    assert re.search("takes no argument 'bach'; it takes batch, policy, unrolled", grid.points[9].error or "")


def test_a_policy_for_a_step_that_has_none_is_an_error(home: Path):
    with pytest.raises(CompileError, match="has no parameter named policy, and makes no policy"):
        plan_of(home, "policy=remat", step="without_names")


def test_each_offloaded_tensor_is_measured_by_compiling_without_it(grid: Plan):
    """Use the points of the other policies as those without it, so that nothing more is compiled."""
    lines = {line.name: line for line in grid.tensors}
    base = grid.point(grid.tensors_of or 0)
    assert base.settings["policy"] == "offload:hid"
    assert set(lines) == {"hid"}
    for line in lines.values():
        assert line.bytes_per_step == 4 * 4096 * 2048 * 2
        assert line.freed_bytes == pytest.approx(line.bytes_per_step, rel=0.3)
        assert line.link_ms is not None
        assert line.wait_ms is not None
        assert line.wait_ms <= line.link_ms + 1e-9
        assert line.recompute_flops == pytest.approx(4 * 2 * 4096 * 512 * 2048)  # its own product, once more
        assert line.keep_gain_ms is not None
        assert line.keep_gain_ms > 0
        assert line.advice in ("keep", "recompute")


def test_a_step_without_parameters_has_the_names_of_its_own_policy_replaced(home: Path):
    plan = plan_of(home, "policy=own,remat,save", step="with_its_own_policy")
    own, remat, save = plan.points
    assert own.d2h_bytes == 2 * 4 * 256 * 2048 * 2
    assert remat.d2h_bytes == save.d2h_bytes == 0
    assert remat.recompute_flops
    assert not save.recompute_flops
    # a policy describes what was compiled: in a step with its own policy, "save" keeps what that one offloads
    assert plan.policies["save"] == "jax.checkpoint_policies.save_only_these_names('hid', 'gate')"
    assert plan.policies["own"].startswith("the step's own policy, which is jax.checkpoint_policies.save_and_offload_")


def test_a_plan_that_was_killed_compiles_only_the_rest(home: Path, root: Path):
    cache = home / "killed"
    vary = ("batch=64,128", "policy=remat")
    command = ["plan", f"{home / 'step.py'}:train", "--target", "h100", "--jobs", "1"]
    process = subprocess.Popen(
        [sys.executable, "-m", "hloinspect", *command, *(word for text in vary for word in ("--vary", text))],
        env={**os.environ, "PYTHONPATH": str(root), "HLOINSPECT_CACHE": str(cache)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        deadline = time.monotonic() + 300
        while len(list(cache.glob("step-*"))) < 1 and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.05)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.pid, signal.SIGKILL)
        process.wait()
    time.sleep(1.0)  # the child ends itself when its parent is gone
    had = len(list(cache.glob("step-*")))
    assert had == 1
    plan = make_plan(
        PlanRequest(
            sources=(f"{home / 'step.py'}:train",), vary=vary, targets=("h100",), compiling=CompileOptions(cache=cache)
        )
    )
    assert [point.from_cache for point in plan.points].count(True) == had
    assert plan.compiled == 2 - had
    assert all(point.is_good for point in plan.points)


def test_a_plan_over_maxtext_and_a_comparison_do_not_go_together(hloinspect: Callable[..., object], root: Path):
    done = hloinspect("maxtext", "--target", "gb200", "--plan", "a=1", "--compare", "remat", "--", "base.yml", cwd=root)
    assert done.returncode == 2  # type: ignore[attr-defined]
    assert "--plan and --compare do not go together" in done.stderr  # type: ignore[attr-defined]
