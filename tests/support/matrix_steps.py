"""Small steps, one for each way in which a JAX program makes host transfers. test_matrix.py has their outcomes.

Each function without arguments lowers one step for the devices that JAX reports. The shapes are tiny, since only the
form matters.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name
from jax.experimental import compute_on as compute_on_module
from jax.sharding import NamedSharding, PartitionSpec

LAYERS, BATCH, DIM = 4, 64, 128
Params = dict[str, jax.Array]


def _at(memory_kind: str, *spec: str | None) -> NamedSharding:
    mesh = jax.make_mesh((jax.device_count(),), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    return NamedSharding(mesh, PartitionSpec(*spec), memory_kind=memory_kind)


def _array(*shape: int, at: NamedSharding | None = None, dtype: Any = jnp.float32) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, dtype, sharding=at or _at("device"))


def _host_stack() -> jax.ShapeDtypeStruct:
    return _array(LAYERS, DIM, DIM, at=_at("pinned_host"))


# --- activations -----------------------------------------------------------------------------------------------------


def _layer(x: jax.Array, w: Params) -> jax.Array:
    hidden = checkpoint_name(jnp.tanh(x @ w["up"]), "hidden")
    return x + jnp.sin(hidden @ w["down"])


def _remat(prevent_cse: bool = True) -> Callable[[jax.Array, Params], jax.Array]:
    policy = jax.checkpoint_policies.save_and_offload_only_these_names(
        names_which_can_be_saved=[],
        names_which_can_be_offloaded=["hidden"],
        offload_src="device",
        offload_dst="pinned_host",
    )
    return jax.checkpoint(_layer, policy=policy, prevent_cse=prevent_cse)


def _lower_grad(loss: Callable[[Params, jax.Array], jax.Array], *leading: int) -> jax.stages.Lowered:
    weights = {name: _array(*leading, DIM, DIM) for name in ("up", "down")}
    return jax.jit(jax.grad(loss)).lower(weights, _array(BATCH, DIM, at=_at("device", "data")))


def activations_scan() -> jax.stages.Lowered:
    def loss(w: Params, x: jax.Array) -> jax.Array:
        layer = _remat()
        return jnp.mean(jax.lax.scan(lambda x, w: (layer(x, w), None), x, w)[0] ** 2)

    return _lower_grad(loss, LAYERS)


def activations_scan_without_barrier() -> jax.stages.Lowered:
    def loss(w: Params, x: jax.Array) -> jax.Array:
        layer = _remat(prevent_cse=False)
        return jnp.mean(jax.lax.scan(lambda x, w: (layer(x, w), None), x, w)[0] ** 2)

    return _lower_grad(loss, LAYERS)


def activations_unrolled() -> jax.stages.Lowered:
    def loss(w: Params, x: jax.Array) -> jax.Array:
        layer = _remat()
        for i in range(LAYERS):
            x = layer(x, {name: stacked[i] for name, stacked in w.items()})
        return jnp.mean(x**2)

    return _lower_grad(loss, LAYERS)


def activations_nested_scan() -> jax.stages.Lowered:
    """Lower groups of layers, a scan in a scan: the input of each group is offloaded, its layers are computed again.

    An offload inside the inner scan does not compile with jax 0.10.2 and 0.12.0: XLA leaves the outer loop's stack of
    stacks on the device ("Expected instruction to have shape equal to").
    """
    policy = jax.checkpoint_policies.save_and_offload_only_these_names(
        names_which_can_be_saved=[],
        names_which_can_be_offloaded=["group"],
        offload_src="device",
        offload_dst="pinned_host",
    )

    def group(x: jax.Array, w: Params) -> jax.Array:
        x = checkpoint_name(jnp.cos(x), "group")
        return jax.lax.scan(lambda x, w: (_layer(x, w), None), x, w)[0]

    def loss(w: Params, x: jax.Array) -> jax.Array:
        remat_group = jax.checkpoint(group, policy=policy)
        return jnp.mean(jax.lax.scan(lambda x, w: (remat_group(x, w), None), x, w)[0] ** 2)

    return _lower_grad(loss, 2, 3)


# --- parameters and optimizer state ----------------------------------------------------------------------------------


def parameters_by_layer() -> jax.stages.Lowered:
    """Lower a step whose weights are on the host; a scan fetches one layer for each iteration."""

    def step(weights: jax.Array, x: jax.Array) -> jax.Array:
        def layer(x: jax.Array, w: jax.Array) -> tuple[jax.Array, None]:
            return jnp.tanh(x @ jax.device_put(w, _at("device"))), None

        return jax.lax.scan(layer, x, weights)[0]

    return jax.jit(step).lower(_host_stack(), _array(BATCH, DIM))


def parameters_nested_scan() -> jax.stages.Lowered:
    """Lower the same in groups: a scan in a scan, and the host stack has two leading dimensions."""

    def step(weights: jax.Array, x: jax.Array) -> jax.Array:
        def layer(x: jax.Array, w: jax.Array) -> tuple[jax.Array, None]:
            return jnp.tanh(x @ jax.device_put(w, _at("device"))), None

        return jax.lax.scan(lambda x, group: (jax.lax.scan(layer, x, group)[0], None), x, weights)[0]

    return jax.jit(step).lower(_array(2, 3, DIM, DIM, at=_at("pinned_host")), _array(BATCH, DIM))


def parameters_at_once() -> jax.stages.Lowered:
    """Lower a step whose weights are on the host; all are fetched before the first layer."""

    def step(weights: jax.Array, x: jax.Array) -> jax.Array:
        on_device = jax.device_put(weights, _at("device"))
        return jax.lax.scan(lambda x, w: (jnp.tanh(x @ w), None), x, on_device)[0]

    return jax.jit(step).lower(_host_stack(), _array(BATCH, DIM))


def optimizer() -> jax.stages.Lowered:
    """Lower a step with momentum on the host, sharded over the devices: fetched, updated, written back."""
    host, device = _at("pinned_host", None, None, "data"), _at("device", None, None, "data")

    def step(w: jax.Array, momentum: jax.Array, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        def loss(w: jax.Array) -> jax.Array:
            return jnp.mean(jax.lax.scan(lambda x, w: (jnp.tanh(x @ w), None), x, w)[0] ** 2)

        new = 0.9 * jax.device_put(momentum, device) + jax.grad(loss)(w)
        return w - 0.01 * new, jax.device_put(new, host)

    stack = (LAYERS, DIM, DIM)
    jitted = jax.jit(step, out_shardings=(device, host), donate_argnums=(0, 1))
    return jitted.lower(_array(*stack, at=device), _array(*stack, at=host), _array(BATCH, DIM))


# --- parts of a host buffer ------------------------------------------------------------------------------------------


def _lower_read(read: Callable[..., jax.Array], *indices: jax.ShapeDtypeStruct) -> jax.stages.Lowered:
    def step(stack: jax.Array, x: jax.Array, *indices: jax.Array) -> jax.Array:
        return jnp.tanh(x @ jax.device_put(read(stack, *indices), _at("device")))

    return jax.jit(step).lower(_host_stack(), _array(BATCH, DIM), *indices)


def strided_slice() -> jax.stages.Lowered:
    """Lower a slice of half of each row of two layers, which is no single run of memory.

    XLA refuses strides: ``stack[::2, :, ::2]``.
    """
    return _lower_read(lambda stack: stack[:2, :, : DIM // 2].reshape(DIM, DIM))


def contiguous_slice() -> jax.stages.Lowered:
    return _lower_read(lambda stack: stack[1])


def data_dependent_slice() -> jax.stages.Lowered:
    """Lower a step whose argument is the layer to fetch."""
    return _lower_read(lambda stack, i: jax.lax.dynamic_index_in_dim(stack, i, keepdims=False), _array(dtype=jnp.int32))


def data_dependent_slice_in_loop() -> jax.stages.Lowered:
    """Lower a loop that fetches the layers in an order that is data: no address can be known before."""

    def step(stack: jax.Array, x: jax.Array, order: jax.Array) -> jax.Array:
        def iteration(x: jax.Array, i: jax.Array) -> tuple[jax.Array, None]:
            layer = jax.lax.dynamic_index_in_dim(stack, i, keepdims=False)
            return jnp.tanh(x @ jax.device_put(layer, _at("device"))), None

        return jax.lax.scan(iteration, x, order)[0]

    return jax.jit(step).lower(_host_stack(), _array(BATCH, DIM), _array(LAYERS, dtype=jnp.int32))


def gather() -> jax.stages.Lowered:
    """Lower a lookup of rows of a table on the host by number, as for an embedding that does not fit on the device."""

    def step(table: jax.Array, rows: jax.Array) -> jax.Array:
        found = table.at[jax.device_put(rows, _at("pinned_host"))].get(mode="clip")
        return jnp.tanh(jax.device_put(found, _at("device")))

    return jax.jit(step).lower(_array(DIM, DIM, at=_at("pinned_host")), _array(BATCH, dtype=jnp.int32))


def transpose_on_host_memory() -> jax.stages.Lowered:
    """Lower a layout change between two arrays on the host: a kernel reads and writes over the link."""
    return jax.jit(lambda stack: stack.transpose(0, 2, 1), out_shardings=_at("pinned_host")).lower(_host_stack())


def _lower_write(donate: bool, *indices: jax.ShapeDtypeStruct) -> jax.stages.Lowered:
    def step(stack: jax.Array, x: jax.Array, *indices: jax.Array) -> jax.Array:
        new = jax.device_put(jnp.tanh(x @ x)[None], _at("pinned_host"))
        return jax.lax.dynamic_update_slice(stack, new, (indices[0] if indices else 1, 0, 0))

    jitted = jax.jit(step, out_shardings=_at("pinned_host"), donate_argnums=(0,) if donate else ())
    return jitted.lower(_host_stack(), _array(DIM, DIM), *indices)


def write_donated() -> jax.stages.Lowered:
    return _lower_write(donate=True)


def write_not_donated() -> jax.stages.Lowered:
    """Lower a step in which the whole stack is first copied from host to host."""
    return _lower_write(donate=False)


def write_data_dependent() -> jax.stages.Lowered:
    return _lower_write(True, _array(dtype=jnp.int32))


# --- control flow and the host ---------------------------------------------------------------------------------------


def conditional() -> jax.stages.Lowered:
    """Lower a step in which only one branch fetches from the host."""

    def step(stack: jax.Array, x: jax.Array, wanted: jax.Array) -> jax.Array:
        def fetch(x: jax.Array) -> jax.Array:
            return jnp.tanh(x @ jax.device_put(stack, _at("device"))[0])

        return jax.lax.cond(wanted, fetch, jnp.cos, x) * 2

    return jax.jit(step).lower(_host_stack(), _array(BATCH, DIM), _array(dtype=jnp.bool_))


def conditional_in_scan() -> jax.stages.Lowered:
    """Lower a scan that fetches a layer only in some iterations."""

    def step(weights: jax.Array, x: jax.Array) -> jax.Array:
        def layer(x: jax.Array, w: jax.Array) -> tuple[jax.Array, None]:
            def fetch(x: jax.Array) -> jax.Array:
                return jnp.tanh(x @ jax.device_put(w, _at("device")))

            return jax.lax.cond(x[0, 0] > 0, fetch, jnp.cos, x), None

        return jax.lax.scan(layer, x, weights)[0]

    return jax.jit(step).lower(_host_stack(), _array(BATCH, DIM))


def compute_on_the_host() -> jax.stages.Lowered:
    """Lower ``compute_on("device_host")``: the host computes the update of a state on the host."""
    compute_on = getattr(compute_on_module, "compute_on2", compute_on_module.compute_on)  # its name until jax 0.11

    def step(state: jax.Array, x: jax.Array) -> jax.Array:
        gradient = jax.device_put(jnp.tanh(x @ x), _at("pinned_host"))
        update = compute_on(
            lambda state, gradient: state * 0.9 + gradient,
            compute_type="device_host",
            out_memory_spaces=jax.memory.Space.Host,
        )
        return update(state, gradient)

    jitted = jax.jit(step, out_shardings=_at("pinned_host"), donate_argnums=0)
    return jitted.lower(_array(DIM, DIM, at=_at("pinned_host")), _array(DIM, DIM))


def kernel_on_host_memory() -> jax.stages.Lowered:
    """Lower arithmetic on an array that is never copied to the device."""
    step = jax.jit(lambda stack: stack * 2 + 1, out_shardings=_at("pinned_host"), donate_argnums=0)
    return step.lower(_host_stack())


def nothing_on_the_host() -> jax.stages.Lowered:
    """Lower the same model without an offload: there must be no transfer, and device-to-device copies are none."""

    def loss(w: Params, x: jax.Array) -> jax.Array:
        return jnp.mean(jax.lax.scan(lambda x, w: (_layer(x, w), None), x, w)[0] ** 2)

    return _lower_grad(loss, LAYERS)
