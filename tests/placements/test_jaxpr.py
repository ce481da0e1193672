"""Placements that a jaxpr requests, through every kind of equation that runs other jaxprs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from hloinspect.placements.flow import Placements, Request, placements_from_json

jax = pytest.importorskip("jax", reason="jaxprs need jax")
jnp = jax.numpy
if not hasattr(jax, "memory"):
    pytest.skip("this jax has no jax.memory.Space", allow_module_level=True)

from hloinspect.compile.child import audit as child  # noqa: E402

X = jax.ShapeDtypeStruct((4, 4), jnp.float32)


def host(x: Any) -> Any:
    return jax.device_put(x, jax.memory.Space.Host)


def device(x: Any) -> Any:
    return jax.device_put(x, jax.memory.Space.Device)


def placements_of(
    function: Callable[..., Any], *arguments: Any, policies: Mapping[str, Any] | None = None
) -> Placements:
    jaxpr = jax.make_jaxpr(function)(*(arguments or (X,)))
    return placements_from_json(child.requested_of(jaxpr, None, policies or {}))


def requests_of(function: Callable[..., Any], *arguments: Any) -> tuple[Request, ...]:
    return placements_of(function, *arguments).requests


def test_what_is_put_on_the_host_and_fetched_is_one_round_trip_with_its_lines() -> None:
    sent, back = requests_of(lambda x: device(host(jnp.sin(x))))
    assert (sent.direction, sent.by, sent.dtype, sent.shape, sent.runs) == ("d2h", "device_put", "f32", (4, 4), 1)
    assert (back.direction, back.of, back.separated, back.computed) == ("h2d", 0, False, False)
    assert back.made == sent.made
    assert sent.made is not None
    assert sent.made.file == __file__


def test_a_value_that_is_already_in_its_memory_requests_nothing() -> None:
    assert requests_of(lambda x: device(jnp.sin(x))) == ()
    assert len(requests_of(lambda x: host(host(x)))) == 1


def test_loops_multiply_and_what_they_stack_is_followed() -> None:
    def step(x: Any) -> Any:
        def iteration(c: Any, _: Any) -> Any:
            def inner(d: Any, _: Any) -> Any:
                return jnp.cos(d), host(jnp.sin(d))

            return jax.lax.scan(inner, c, None, length=3)

        c, stack = jax.lax.scan(iteration, x, None, length=5)
        return c, device(stack[4, 2])

    sent, back = requests_of(step)
    assert (sent.runs, sent.counted, back.runs) == (15, True, 1)
    assert (back.of, back.separated) == (0, True)


def test_a_loop_without_a_count_is_counted_once_and_said_so() -> None:
    def step(x: Any) -> Any:
        return jax.lax.while_loop(lambda c: c.sum() < 3, lambda c: device(host(jnp.sin(c))), x)

    sent, back = requests_of(step)
    assert (sent.runs, sent.counted, sent.live) == (1, False, True)
    assert back.of == 0


def test_a_branch_is_conditional() -> None:
    def step(x: Any) -> Any:
        return jax.lax.cond(x.sum() > 0, lambda x: device(host(jnp.sin(x))), jnp.cos, x)

    assert [(request.direction, request.conditional) for request in requests_of(step)] == [("d2h", True), ("h2d", True)]


def test_a_function_that_is_called_twice_requests_twice() -> None:
    inner = jax.jit(lambda x: host(jnp.sin(x)))
    requests = requests_of(lambda x: (inner(x), inner(x * 2)))
    assert len(requests) == 2
    assert len({request.value for request in requests}) == 2


def test_one_value_sent_twice_is_one_value() -> None:
    def step(x: Any) -> Any:
        y = jnp.sin(x)
        return host(y), host(jnp.reshape(y, (4, 4)))

    requests = requests_of(step)
    assert len(requests) == 2
    assert len({request.value for request in requests}) == 1
    assert [request.result for request in requests] == [0, 1]


def test_what_nothing_returns_is_dead_and_what_depends_on_no_argument_is_constant() -> None:
    def step(x: Any) -> Any:
        dead = host(jnp.sin(x))
        del dead
        return x, host(jnp.zeros((4, 4)))

    dead, constant = requests_of(step)
    assert (dead.live, dead.constant) == (False, False)
    assert (constant.live, constant.constant) == (True, True)


def test_a_policys_placements_have_their_names_and_a_barrier_separates_them() -> None:
    from jax.ad_checkpoint import checkpoint_name

    policy = jax.checkpoint_policies.save_and_offload_only_these_names(
        names_which_can_be_saved=[],
        names_which_can_be_offloaded=["hid", "nowhere"],
        offload_src="device",
        offload_dst="pinned_host",
    )

    def layer(x: Any) -> Any:
        return jnp.sin(checkpoint_name(jnp.tanh(x @ x), "hid") @ x)

    def gradient(prevent_cse: bool) -> Callable[[Any], Any]:
        remat = jax.checkpoint(layer, policy=policy, prevent_cse=prevent_cse)
        return jax.grad(lambda x: remat(x).sum())

    for barrier in (True, False):
        placements = placements_of(gradient(barrier))
        sent, back = placements.requests
        assert (sent.by, sent.name, back.name, back.of, back.separated) == ("policy", "hid", "hid", 0, barrier)
        assert set(placements.names) == {"hid"}


def test_what_is_meant_for_the_host_is_noted() -> None:
    from jax.experimental import compute_on as module

    compute_on = getattr(module, "compute_on2", None) or module.compute_on
    try:
        decorated = compute_on(lambda x: x * 2, compute_type="device_host", out_memory_spaces=jax.memory.Space.Host)
    except TypeError:
        pytest.skip("this jax spells compute_on otherwise")
    placements = placements_of(lambda x: decorated(host(x)))
    assert len(placements.computes) == 1


def test_a_program_that_calls_without_end_is_given_up_and_said_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(child, "MOST_EQUATIONS", 10)
    placements = placements_of(lambda x: sum(host(jnp.sin(x * n)) for n in range(20)))
    assert placements.requests == ()
    assert "more than 10 equations" in placements.gap
