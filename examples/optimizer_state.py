"""Lower the decoder of dense.py with the optimizer's state, or the weights too, in pinned host memory.

    offload      AdamW's moments: each step fetches them, updates them and writes them back
    parameters   the layers' weights too: a layer fetches its own, and again in the backward pass; the step fetches all
                 of them for its update, and writes the new ones back
    keep         nothing: everything is in device memory

Each has its layers scanned, or written out one after the other (``offload_unrolled``, ``parameters_unrolled``).

    hloinspect inspect examples/optimizer_state.py:offload --target gb200
    hloinspect inspect examples/optimizer_state.py:parameters --target gb200 --devices 8

Everything is sharded over all devices (FSDP). The shapes come from the environment as in dense.py. ``step`` takes the
memory kinds as arguments.
"""

from __future__ import annotations

from typing import Any

import dense  # the file beside this one
import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding

Params = dense.Params


def step(state: str = "pinned_host", params: str = "device", scan: bool = True) -> jax.stages.Lowered:
    """Lower the training step with the moments in memory of kind ``state`` and the layers' weights in ``params``."""
    s = dense.shapes_from_environment()
    arguments = dense.abstract_arguments(s)
    if not scan:  # then each layer has arrays of its own
        arguments = jax.eval_shape(lambda *trees: unstacked(trees, s.layers), *arguments)
    params_on_device, state_on_device, tokens_at = dense.shardings(arguments)
    weights, moments = params_on_device["layers"], ("mean", "square")
    params_at = params_on_device | {"layers": in_memory(params, weights, arguments[0]["layers"])}
    state_at = state_on_device | {m: in_memory(state, state_on_device[m], arguments[0]) for m in moments}

    fetched = params != "device"

    def train_step(params: Params, state: Params, tokens: jax.Array) -> tuple[Params, Params, jax.Array]:
        loss, grads = loss_and_grads(params, tokens, s, scan, fetched)
        if fetched:
            params = jax.device_put(params, params_on_device)
        params, state = dense.adamw(params, grads, jax.device_put(state, state_on_device))
        if fetched:
            params = jax.device_put(params, params_at)
        return params, jax.device_put(state, state_at), loss

    places = params_at, state_at, tokens_at
    placed = jax.tree.map(lambda leaf, at: leaf.update(sharding=at), arguments, places)
    jitted = jax.jit(train_step, out_shardings=(params_at, state_at, None), donate_argnums=(0, 1))
    return jitted.lower(*placed)


def unstacked(tree: Any, count: int) -> Any:
    """Return the same arrays, with a list of single layers in place of each stack of ``layers``."""
    if isinstance(tree, tuple):
        return tuple(unstacked(part, count) for part in tree)
    if not isinstance(tree, dict):
        return tree
    split = {key: list(dense.separate(part, count)) for key, part in tree.items() if key == "layers"}
    return {key: split.get(key) or unstacked(part, count) for key, part in tree.items()}


def in_memory(kind: str, shardings: Any, arrays: Any) -> Any:
    """Return the same shardings in memory of another kind. Small arrays (norms) stay on the device."""

    def place(path: tuple[Any, ...], sharding: NamedSharding, array: jax.ShapeDtypeStruct) -> NamedSharding:
        small = array.ndim < 2 or path[-1].key.startswith("norm")
        return sharding.with_memory_kind("device" if small else kind)

    return jax.tree.map_with_path(place, shardings, arrays)


def loss_and_grads(params: Params, tokens: jax.Array, s: dense.Shapes, scan: bool, fetched: bool) -> tuple[Any, Params]:
    """Return the loss and all gradients, on the device. With ``fetched``, each layer fetches its weights from the host.

    The gradient of a value has the memory kind of the value, so gradients of host weights would go to the host. Here
    they are the gradients of zeros on the device that are passed beside the weights.
    """
    policy = jax.checkpoint_policies.nothing_saveable
    if not fetched:
        return jax.value_and_grad(dense.loss_fn)(params, tokens, s, policy, scan)

    def loss_fn(params_and_zeros: Params) -> jax.Array:
        weights, zeros = params["layers"], params_and_zeros["layers"]
        both = weights, zeros
        if isinstance(weights, list):
            both = list(zip(*both, strict=True))
        return dense.loss_fn(params_and_zeros | {"layers": both}, tokens, s, policy, scan, fetch=lambda w: fetch(*w))

    zeros = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), params["layers"])
    return jax.value_and_grad(loss_fn)(params | {"layers": zeros})


@jax.custom_vjp
def fetch(w: Params, zeros: Params) -> Params:
    """Fetch the weights ``w`` of a layer to the device. Their gradients are those of ``zeros``.

    The barrier is for unrolled layers. Without it XLA for GPUs fetches once for the forward pass and the update, the
    weights stay on the device in between, and libtpu 0.0.50.1 fails. With it, libtpu still fetches them only once.
    """
    w = jax.lax.optimization_barrier(w)
    return jax.tree.map(lambda leaf: jax.device_put(leaf, jax.memory.Space.Device), w)


fetch.defvjp(lambda w, zeros: (fetch(w, zeros), None), lambda _, grads: (None, grads))


def offload() -> jax.stages.Lowered:
    return step()


def offload_unrolled() -> jax.stages.Lowered:
    return step(scan=False)


def parameters() -> jax.stages.Lowered:
    return step(params="pinned_host")


def parameters_unrolled() -> jax.stages.Lowered:
    return step(params="pinned_host", scan=False)


def keep() -> jax.stages.Lowered:
    return step(state="device")
