"""Small steps that request host memory and get it, or lose some of it on purpose, for
tests/placements/test_compiled.py.

Each function without arguments lowers one step for the devices that JAX reports.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name
from jax.sharding import NamedSharding, PartitionSpec

LAYERS, BATCH, DIM = 4, 64, 128


def _at(memory_kind: str) -> NamedSharding:
    mesh = jax.make_mesh((jax.device_count(),), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    return NamedSharding(mesh, PartitionSpec(), memory_kind=memory_kind)


def _array(*shape: int, memory_kind: str = "device") -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.float32, sharding=_at(memory_kind))


def _policy(*names: str) -> Any:
    return jax.checkpoint_policies.save_and_offload_only_these_names(
        names_which_can_be_saved=[],
        names_which_can_be_offloaded=[*names],
        offload_src="device",
        offload_dst="pinned_host",
    )


def _lower_layers(layer: Any, policy: Any, unrolled: bool = False, without_barrier: tuple[int, ...] = ()) -> Any:
    def loss(w: jax.Array, x: jax.Array) -> jax.Array:
        if unrolled:
            for i in range(LAYERS):
                x = jax.checkpoint(layer, policy=policy, prevent_cse=i not in without_barrier)(x, w[i])
            return jnp.mean(x**2)
        remat = jax.checkpoint(layer, policy=policy)
        return jnp.mean(jax.lax.scan(lambda x, w: (remat(x, w), None), x, w)[0] ** 2)

    return jax.jit(jax.grad(loss)).lower(_array(LAYERS, DIM, DIM), _array(BATCH, DIM))


def _layer(x: jax.Array, w: jax.Array) -> jax.Array:
    hidden = checkpoint_name(jnp.tanh(x @ w), "hidden")
    return x + jnp.sin(hidden @ w)


def three_names() -> Any:
    """Lower a step with three names of one shape: two are computed by one line, and one is the layer's input."""

    def layer(x: jax.Array, w: jax.Array) -> jax.Array:
        x = checkpoint_name(x, "input")
        one, other = (checkpoint_name(jnp.tanh(x @ v), name) for v, name in ((w, "one"), (w.T, "other")))
        return x + jnp.sin((one * other) @ w)

    return _lower_layers(layer, _policy("input", "one", "other"))


def dots_policy() -> Any:
    """Lower a step with a policy without names."""
    return _lower_layers(_layer, jax.checkpoint_policies.offload_dot_with_no_batch_dims("device", "pinned_host"))


def by_hand_in_custom_vjp() -> Any:
    @jax.custom_vjp
    def product(x: jax.Array, w: jax.Array) -> jax.Array:
        return jnp.tanh(x @ w)

    def forward(x: jax.Array, w: jax.Array) -> Any:
        y = jnp.tanh(x @ w)
        return y, (jax.device_put(y, jax.memory.Space.Host), w, x)

    def backward(kept: Any, gradient: jax.Array) -> Any:
        y, w, x = kept
        gradient = gradient * (1 - jax.device_put(y, jax.memory.Space.Device) ** 2)
        return gradient @ w.T, x.T @ gradient

    product.defvjp(forward, backward)

    def loss(w: jax.Array, x: jax.Array) -> jax.Array:
        return jnp.mean(jax.lax.scan(lambda x, w: (product(x, w), None), x, w)[0] ** 2)

    return jax.jit(jax.grad(loss)).lower(_array(LAYERS, DIM, DIM), _array(BATCH, DIM))


def fetched_twice() -> Any:
    def step(x: jax.Array, stack: jax.Array) -> jax.Array:
        one = jax.device_put(stack, _at("device"))
        other = jax.device_put(stack, _at("device"))
        return jnp.tanh(x @ one) + jnp.sin(x @ other.T)

    return jax.jit(step).lower(_array(BATCH, DIM), _array(DIM, DIM, memory_kind="pinned_host"))


def result_by_sharding() -> Any:
    return jax.jit(lambda x: jnp.tanh(x @ x), out_shardings=_at("pinned_host")).lower(_array(DIM, DIM))


def unused_argument() -> Any:
    return jax.jit(lambda x, state: jnp.tanh(x @ x)).lower(
        _array(DIM, DIM), _array(DIM, DIM, memory_kind="pinned_host")
    )


# --- what is lost ------------------------------------------------------------------------------------


def dead() -> Any:
    def step(x: jax.Array) -> jax.Array:
        y = jnp.tanh(x @ x)
        kept = jax.device_put(y, _at("pinned_host"))
        del kept  # no result needs it
        return y * 2

    return jax.jit(step).lower(_array(DIM, DIM))


def misspelt() -> Any:
    return _lower_layers(_layer, _policy("hiden"))


def output_named() -> Any:
    """Lower a step whose name is on the layer's result: the backward pass needs no such value."""

    def layer(x: jax.Array, w: jax.Array) -> jax.Array:
        return checkpoint_name(x + jnp.sin(jnp.tanh(x @ w) @ w), "output")

    return _lower_layers(layer, _policy("output"))


def half_folded() -> Any:
    return _lower_layers(_layer, _policy("hidden"), unrolled=True, without_barrier=(1, 3))


def round_trip_at_once() -> Any:
    def step(x: jax.Array) -> jax.Array:
        y = jax.device_put(jnp.tanh(x @ x), _at("pinned_host"))
        return jax.device_put(y, _at("device")) @ x

    return jax.jit(step).lower(_array(DIM, DIM))


def returned_to_the_device() -> Any:
    """Lower a step that puts a value on the host and returns it on the device."""

    def step(x: jax.Array) -> jax.Array:
        return jax.device_put(jnp.tanh(x @ x), _at("pinned_host"))

    return jax.jit(step, out_shardings=_at("device")).lower(_array(DIM, DIM))


# --- what the compiler refuses -----------------------------------------------------------------------


def strided() -> Any:
    def step(stack: jax.Array, x: jax.Array) -> jax.Array:
        return x @ jax.device_put(stack[::2, :, ::2].reshape(DIM, DIM), _at("device"))

    return jax.jit(step).lower(_array(4, DIM, DIM, memory_kind="pinned_host"), _array(DIM, DIM))


def unknown_kernel() -> Any:
    def step(x: jax.Array) -> jax.Array:
        return jax.ffi.ffi_call("a_kernel_of_nobody", jax.ShapeDtypeStruct((DIM, DIM), jnp.float32))(x)

    return jax.jit(step).lower(_array(DIM, DIM))


def returned_unpinned() -> Any:
    def step(x: jax.Array) -> jax.Array:
        return jax.device_put(jnp.tanh(x @ x), _at("unpinned_host"))

    return jax.jit(step, out_shardings=_at("unpinned_host")).lower(_array(DIM, DIM))
