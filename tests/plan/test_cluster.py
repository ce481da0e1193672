"""A plan on a Dask cluster of two workers, one of which is killed while it compiles."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

import pytest

from hloinspect.options import CompileOptions
from hloinspect.plan.verb import PlanRequest, make_plan

distributed = pytest.importorskip("distributed", reason="needs the extra hloinspect[cluster]")
pytestmark = pytest.mark.slow

STEP = """
import os, time
import jax, jax.numpy as jnp

def step(size=64):
    open(os.path.join(os.path.dirname(__file__), f"{size}-{os.getppid()}.started"), "w").close()
    if size == 96 and not os.path.exists(os.path.join(os.path.dirname(__file__), "killed")):
        time.sleep(120)
    return jax.jit(lambda x: x @ x).lower(jax.ShapeDtypeStruct((size, size), jnp.float32))
"""


def test_a_plan_goes_on_when_a_worker_is_killed(tmp_path: Path, root: Path, monkeypatch: pytest.MonkeyPatch):
    pytest.importorskip("jax")
    (tmp_path / "step.py").write_text(STEP)
    monkeypatch.setenv("PYTHONPATH", str(root))
    monkeypatch.setenv("HLOINSPECT_CACHE", str(tmp_path / "cache"))

    def kill() -> None:
        """Kill the worker that compiles for size 96, once."""
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline:
            for mark in tmp_path.glob("96-*.started"):
                (tmp_path / "killed").touch()
                os.kill(int(mark.stem.partition("-")[2]), 9)
                return
            time.sleep(0.1)

    with distributed.LocalCluster(
        n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None, local_directory=str(tmp_path)
    ) as cluster:
        killer = threading.Thread(target=kill, daemon=True)
        killer.start()
        plan = make_plan(
            PlanRequest(
                sources=(f"{tmp_path / 'step.py'}:step",),
                vary=("size=64,96,crash",),
                targets=("h100",),
                compiling=CompileOptions(cache=tmp_path / "cache"),
                scheduler=cluster.scheduler_address,
            )
        )
        killer.join()
    assert (tmp_path / "killed").exists()
    good, again, wrong = plan.points
    assert good.step is not None
    assert again.step is not None
    assert len(list(tmp_path.glob("96-*.started"))) == 2
    assert wrong.error is not None
    assert "TypeError" in wrong.error
