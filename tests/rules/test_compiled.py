"""Rules that only a compiled step can show, on steps that are compiled here: each beside its near miss."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path

import pytest

from hloinspect.analyze.inspect import inspect
from hloinspect.compile import launch
from hloinspect.compile.protocol import CompileOne, StepRequest
from hloinspect.hardware import load_target
from hloinspect.options import CompileOptions
from hloinspect.report.schema import Report
from tests.support.compiled import compile_together
from tests.support.rules_samples import ROOT, codes, finding

pytest.importorskip("jax", reason="compiling needs the extra hloinspect[cuda]")
pytestmark = pytest.mark.slow

MATRIX = ROOT / "tests" / "support" / "matrix_steps.py"
OF_THE_MATRIX = (
    "data_dependent_slice",
    "parameters_at_once",
    "parameters_by_layer",
    "strided_slice",
    "transpose_on_host_memory",
)
OF_POLICIES = (
    "right",
    "mistyped",
    "half",
    "deleted",
    "one_of_two_is_dead",
    "half_of_two",
    "made_and_not_used",
    "none_is_used",
    "dead_beside_state",
)
Compiled = Callable[[str], Report]

POLICY = """
import jax, jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name


def policy_of(offloaded):
    return jax.checkpoint_policies.save_and_offload_only_these_names(
        names_which_can_be_saved=[], names_which_can_be_offloaded=offloaded, offload_src="device",
        offload_dst="pinned_host")


def lowered(offloaded, unrolled=False):
    policy = policy_of(offloaded)

    def layer(x, w):
        return jnp.tanh(checkpoint_name(jnp.tanh(x @ w), "hid") @ w), None

    def loss(w, x):
        if unrolled:
            for i in range(len(w)):
                x = jax.checkpoint(layer, policy=policy, prevent_cse=False)(x, w[i])[0]
            return x.sum()
        return jax.lax.scan(jax.checkpoint(layer, policy=policy), x, w)[0].sum()

    shapes = jax.ShapeDtypeStruct((3, 64, 64), jnp.float32), jax.ShapeDtypeStruct((64, 64), jnp.float32)
    return jax.jit(jax.grad(loss)).lower(*shapes)


def right():
    return lowered(["hid"])


def mistyped():
    return lowered(["hidden"])


def half():
    return lowered(["hid", "hidden"])


def deleted():
    return lowered(["hid"], unrolled=True)


def two(first, second):

    def layer(x, w):
        return jnp.tanh(checkpoint_name(jnp.tanh(x @ w), "hid") @ w), None

    def loss(w, x):
        for offloaded in (first, second):
            x = jax.lax.scan(jax.checkpoint(layer, policy=policy_of(offloaded)), x, w)[0]
        return x.sum()

    shapes = jax.ShapeDtypeStruct((3, 64, 64), jnp.float32), jax.ShapeDtypeStruct((64, 64), jnp.float32)
    return jax.jit(jax.grad(loss)).lower(*shapes)


def one_of_two_is_dead():
    return two(["hid"], ["hidden"])


def half_of_two():
    return two(["hid"], ["hid", "hidden"])


def made_and_not_used():
    policy_of(["other"])
    return lowered(["hid"])


def none_is_used():
    policy_of(["hid"])
    w, x = jax.ShapeDtypeStruct((64, 64), jnp.float32), jax.ShapeDtypeStruct((64, 64), jnp.float32)
    return jax.jit(jax.grad(lambda w, x: checkpoint_name(jnp.tanh(x @ w), "hid").sum())).lower(w, x)


def dead_beside_state():
    policy = policy_of(["hidden", "input"])

    def layer(x, w):
        return jnp.tanh(checkpoint_name(jnp.tanh(x @ w), "hid") @ w), None

    def step(w, x, momentum):
        grad = jax.grad(lambda w: jax.lax.scan(jax.checkpoint(layer, policy=policy), x, w)[0].sum())(w)
        momentum = jax.device_put(momentum, jax.memory.Space.Device) * 0.9 + grad
        return w - momentum, jax.device_put(momentum, jax.memory.Space.Host)

    w, x = jax.ShapeDtypeStruct((3, 64, 64), jnp.float32), jax.ShapeDtypeStruct((64, 64), jnp.float32)
    device = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    host = jax.sharding.SingleDeviceSharding(jax.devices()[0], memory_kind="pinned_host")
    jitted = jax.jit(step, in_shardings=(device, device, host), out_shardings=(device, host))
    return jitted.lower(w, x, w)
"""


@pytest.fixture(scope="module")
def policy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a file with the steps above."""
    path = tmp_path_factory.mktemp("steps") / "policy.py"
    path.write_text(POLICY)
    return path


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory, policy: Path) -> Compiled:
    """Return the report on a step; all of them are compiled for gb200 by one process, which imports jax once."""
    home = tmp_path_factory.mktemp("together")
    steps = [f"{MATRIX}:{name}" for name in OF_THE_MATRIX] + [f"{policy}:{name}" for name in OF_POLICIES]
    gb200 = load_target("gb200")
    folders = {step: home / step.rpartition(":")[2] for step in steps}
    compilations = {step: launch.compilation_of(StepRequest(step=step), gb200, CompileOptions()) for step in steps}
    compile_together([CompileOne(compilation=compilations[step], out=str(folders[step])) for step in steps])
    return functools.cache(lambda step: inspect(str(folders[step])).report)


def test_an_offload_that_xla_deleted_is_an_error(compiled: Compiled, policy: Path) -> None:
    report = compiled(f"{policy}:deleted")
    assert report.transfers == ()
    reported = finding(report, "HLO302")
    assert (reported.severity, reported.evidence["host_bytes"]) == ("error", 0)
    assert "prevent_cse=True" in reported.remedy
    assert "HLO302" not in codes(compiled(f"{policy}:right"))


def test_a_whole_stack_that_is_fetched_for_a_loop_of_layers_is_reported_and_a_layer_in_each_iteration_is_not(
    compiled: Compiled,
) -> None:
    at_once, by_layer = compiled(f"{MATRIX}:parameters_at_once"), compiled(f"{MATRIX}:parameters_by_layer")
    reported = finding(at_once, "HLO203")
    assert reported.evidence["bytes"] == 4 * reported.evidence["layer_bytes"]  # type: ignore[operator]
    assert "HLO203" not in codes(by_layer)
    assert "HLO105" not in codes(at_once)  # one cause, one finding
    assert "HLO112" in codes(by_layer)
    assert "prevent_cse" not in finding(by_layer, "HLO112").remedy  # there is no jax.checkpoint in it


def test_a_slice_that_is_not_one_run_of_memory_is_a_kernel(compiled: Compiled) -> None:
    strided, by_data = (
        finding(compiled(f"{MATRIX}:{step}"), "HLO110") for step in ("strided_slice", "data_dependent_slice")
    )
    assert "is not one run of memory" in strided.message
    assert "first dimension" in strided.remedy
    assert "no fixed address" in by_data.message
    assert strided.evidence["peeled"] == by_data.evidence["peeled"] == 0
    assert "HLO110" not in codes(compiled(f"{MATRIX}:parameters_by_layer"))


def test_a_transpose_between_two_places_on_the_host_is_a_layout_change(compiled: Compiled) -> None:
    report = compiled(f"{MATRIX}:transpose_on_host_memory")
    assert finding(report, "HLO306").severity == "warning"
    assert "HLO305" not in codes(report)


def test_what_was_compiled_without_a_device_is_said_to_be_not_tuned(compiled: Compiled) -> None:
    assert "HLO405" in codes(compiled(f"{MATRIX}:parameters_by_layer"), "info")


def test_a_memory_kind_that_is_kept_is_not_reported_as_dropped(compiled: Compiled) -> None:
    report = compiled(f"{MATRIX}:parameters_by_layer")
    assert "HLO304" not in codes(report)
    assert "HLO304" not in {rule.code for rule in report.rules_not_run}


def test_the_line_of_the_step_stands_in_the_finding(compiled: Compiled) -> None:
    reported = finding(compiled(f"{MATRIX}:parameters_by_layer"), "HLO112")
    assert reported.source is not None
    assert Path(reported.source.file).name == "matrix_steps.py"
    assert reported.source_text == MATRIX.read_text().splitlines()[reported.source.line - 1].strip()


def test_a_name_that_a_policy_offloads_and_no_value_has_is_reported(compiled: Compiled, policy: Path) -> None:
    report = compiled(f"{policy}:mistyped")
    reported = finding(report, "HLO303")
    assert (reported.severity, reported.evidence["names"]) == ("error", ["hidden"])
    assert report.transfers == ()
    assert "HLO303" not in codes(compiled(f"{policy}:right"))
    assert finding(compiled(f"{policy}:half"), "HLO303").severity == "warning"


def test_a_policy_of_which_no_name_matches_is_an_error_whatever_else_is_offloaded(
    compiled: Compiled, policy: Path
) -> None:
    """Use the case in which a misspelt policy beside optimizer state in host memory was a warning."""
    report = compiled(f"{policy}:dead_beside_state")
    assert {transfer.direction for transfer in report.transfers} == {"d2h", "h2d"}
    reported = finding(report, "HLO303")
    assert (reported.severity, reported.evidence["names"]) == ("error", ["hidden", "input"])
    assert "the policy has no effect, though the step offloads other values" in reported.message


def test_each_policy_is_judged_by_its_own_names(compiled: Compiled, policy: Path) -> None:
    dead = finding(compiled(f"{policy}:one_of_two_is_dead"), "HLO303")
    assert (dead.severity, dead.evidence["names"]) == ("error", ["hidden"])
    assert finding(compiled(f"{policy}:half_of_two"), "HLO303").severity == "warning"


@pytest.mark.parametrize("step", ["made_and_not_used", "none_is_used"])
def test_a_policy_that_is_made_and_not_used_is_no_finding(step: str, compiled: Compiled, policy: Path) -> None:
    report = compiled(f"{policy}:{step}")
    assert "HLO303" not in codes(report)
    assert bool(report.transfers) is (step == "made_and_not_used")
