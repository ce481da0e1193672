"""Lower a decoder's training step with the MLP's hidden activation kept, offloaded or recomputed.

Each function lowers one step for the devices that JAX reports (``train`` lowers any of these, by its arguments):

    offload_scan      layers in a ``lax.scan``; ``hid`` goes to pinned host memory and comes back for the backward pass
    offload_unrolled  the same, with the layers written out one after the other
    save              ``hid`` stays in device memory
    remat             only the input of a layer is kept; the backward pass computes the rest again

    hloinspect inspect examples/dense.py:offload_scan --target gb200
    LAYERS=4 BATCH=2 hloinspect inspect examples/dense.py:save --target h100

The shapes come from LAYERS, BATCH, SEQ, DIM, HIDDEN, HEADS and VOCAB in the environment. It needs only jax >= 0.9. It
is a real step: ``python examples/dense.py`` trains a tiny model for a few steps on the device of this
machine.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name
from jax.sharding import NamedSharding, PartitionSpec

Params = dict[str, Any]
LEARNING_RATE, BETA1, BETA2, EPSILON, WEIGHT_DECAY = 3e-4, 0.9, 0.95, 1e-8, 0.1


class Shapes(NamedTuple):
    layers: int = 8
    batch: int = 8
    seq: int = 2048
    dim: int = 4096
    hidden: int = 16384
    heads: int = 32
    vocab: int = 32768


def shapes_from_environment() -> Shapes:
    return Shapes(**{name: int(os.environ.get(name.upper(), default)) for name, default in Shapes()._asdict().items()})


# --- the model ------------------------------------------------------------------------------------


def init_params(key: jax.Array, s: Shapes) -> Params:
    keys = iter(jax.random.split(key, 5))

    def weights(*shape: int) -> jax.Array:
        return jax.random.normal(next(keys), shape, jnp.bfloat16) * shape[-2] ** -0.5

    layers = {
        "norm1": jnp.ones((s.layers, s.dim), jnp.bfloat16),
        "qkv": weights(s.layers, s.dim, 3 * s.dim),
        "out": weights(s.layers, s.dim, s.dim),
        "norm2": jnp.ones((s.layers, s.dim), jnp.bfloat16),
        "up": weights(s.layers, s.dim, s.hidden),
        "down": weights(s.layers, s.hidden, s.dim),
    }
    return {"embed": weights(s.vocab, s.dim), "layers": layers, "norm": jnp.ones((s.dim,), jnp.bfloat16)}


def rms_norm(x: jax.Array, scale: jax.Array) -> jax.Array:
    x32 = x.astype(jnp.float32)
    return (x32 * jax.lax.rsqrt(jnp.mean(x32 * x32, -1, keepdims=True) + 1e-6)).astype(x.dtype) * scale


def by_batch(x: jax.Array) -> jax.Array:
    """On several devices, keep an activation sharded by its batch: else the compiler may take the weights' sharding."""
    return x if jax.device_count() == 1 else jax.lax.with_sharding_constraint(x, over_batch())


def attention(x: jax.Array, w: Params, heads: int) -> jax.Array:
    batch, seq, dim = x.shape
    qkv = checkpoint_name(by_batch(x @ w["qkv"]), "qkv")
    q, k, v = (part.reshape(batch, seq, heads, dim // heads) for part in jnp.split(qkv, 3, -1))
    mixed = jax.nn.dot_product_attention(q, k, v, is_causal=True, implementation="xla").reshape(x.shape)
    return checkpoint_name(mixed @ w["out"], "attn")


def mlp(x: jax.Array, w: Params) -> jax.Array:
    hid = checkpoint_name(by_batch(jax.nn.gelu(x @ w["up"])), "hid")
    return hid @ w["down"]


def layer(x: jax.Array, w: Params, heads: int) -> jax.Array:
    x = checkpoint_name(by_batch(x), "inp")
    x = x + attention(rms_norm(x, w["norm1"]), w, heads)
    return x + mlp(rms_norm(x, w["norm2"]), w)


def separate(layers: Any, count: int) -> Iterator[Params]:
    """Yield the weights of one layer after the other, from a stack of all layers or from a list."""
    for i in range(count):
        yield layers[i] if isinstance(layers, list) else jax.tree.map(lambda stacked, i=i: stacked[i], layers)


def loss_fn(
    params: Params,
    tokens: jax.Array,
    s: Shapes,
    policy: Callable[..., Any],
    scan: bool,
    prevent_cse: bool = True,
    fetch: Callable[[Params], Params] = lambda w: w,
) -> jax.Array:
    """Return the loss. ``fetch`` gets the weights of one layer where it runs, and again in its backward pass."""
    remat_layer = jax.checkpoint(lambda x, w: layer(x, fetch(w), s.heads), policy=policy, prevent_cse=prevent_cse)
    x = params["embed"][tokens[:, :-1]]
    if scan:
        x, _ = jax.lax.scan(lambda x, w: (remat_layer(x, w), None), x, params["layers"])
    else:
        for w in separate(params["layers"], s.layers):
            x = remat_layer(x, w)
    logits = (rms_norm(x, params["norm"]) @ params["embed"].T).astype(jnp.float32)
    picked = jnp.take_along_axis(logits, tokens[:, 1:, None], -1)[..., 0]
    return jnp.mean(jax.nn.logsumexp(logits, -1) - picked)


# --- AdamW ----------------------------------------------------------------------------------------


def init_optimizer(params: Params) -> Params:
    zeros = jax.tree.map(lambda p: jnp.zeros(p.shape, jnp.float32), params)
    return {"mean": zeros, "square": jax.tree.map(jnp.copy, zeros), "count": jnp.zeros((), jnp.int32)}


def adamw(params: Params, grads: Params, state: Params) -> tuple[Params, Params]:
    count = state["count"] + 1
    mean = jax.tree.map(lambda m, g: BETA1 * m + (1 - BETA1) * g.astype(jnp.float32), state["mean"], grads)
    square = jax.tree.map(lambda v, g: BETA2 * v + (1 - BETA2) * g.astype(jnp.float32) ** 2, state["square"], grads)
    scale_m, scale_v = 1 / (1 - BETA1**count), 1 / (1 - BETA2**count)

    def updated(p: jax.Array, m: jax.Array, v: jax.Array) -> jax.Array:
        p32 = p.astype(jnp.float32)
        step = m * scale_m / (jnp.sqrt(v * scale_v) + EPSILON) + WEIGHT_DECAY * p32
        return (p32 - LEARNING_RATE * step).astype(p.dtype)

    return jax.tree.map(updated, params, mean, square), {"mean": mean, "square": square, "count": count}


# --- the steps ------------------------------------------------------------------------------------


def make_train_step(s: Shapes, policy: Callable[..., Any], scan: bool, prevent_cse: bool = True) -> Any:
    def train_step(params: Params, state: Params, tokens: jax.Array) -> tuple[Params, Params, jax.Array]:
        loss, grads = jax.value_and_grad(loss_fn)(params, tokens, s, policy, scan, prevent_cse)
        params, state = adamw(params, grads, state)
        return params, state, loss

    return jax.jit(train_step, donate_argnums=(0, 1))


def abstract_arguments(s: Any, init: Callable[..., Params] = init_params) -> tuple[Params, Params, Any]:
    """Return shapes and dtypes only: lowering needs no values, so they use no memory.

    On several devices everything is sharded over them (FSDP), and ``s.batch`` is the batch of each.
    """
    params = jax.eval_shape(lambda: init(jax.random.key(0), s))
    tokens = jax.ShapeDtypeStruct((s.batch * jax.device_count(), s.seq + 1), jnp.int32)
    arguments = params, jax.eval_shape(init_optimizer, params), tokens
    if jax.device_count() == 1:
        return arguments
    return jax.tree.map(lambda leaf, at: leaf.update(sharding=at), arguments, shardings(arguments))


def over_batch() -> NamedSharding:
    mesh = jax.make_mesh((jax.device_count(),), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    return NamedSharding(mesh, PartitionSpec("data"))


def shardings(arguments: Any) -> Any:
    """Return the shardings of parameters, state and tokens: the batch is split over all devices, each weight along its
    last axis or the one before it, whichever divides."""
    mesh = over_batch().mesh

    def sharding(path: tuple[Any, ...], leaf: jax.ShapeDtypeStruct) -> NamedSharding:
        if leaf.dtype == jnp.int32 and leaf.ndim == 2:  # tokens
            return over_batch()
        axes = range(leaf.ndim - 2, leaf.ndim) if leaf.ndim > 1 and not path[-1].key.startswith("norm") else ()
        axis = max((axis for axis in axes if leaf.shape[axis] % mesh.size == 0), default=None)
        return NamedSharding(mesh, PartitionSpec(*("data" if i == axis else None for i in range(leaf.ndim))))

    return jax.tree.map_with_path(sharding, arguments)


def offload_policy() -> Callable[..., Any]:
    return jax.checkpoint_policies.save_and_offload_only_these_names(
        names_which_can_be_saved=[],
        names_which_can_be_offloaded=["hid"],
        offload_src="device",
        offload_dst="pinned_host",
    )


def lower(policy: Callable[..., Any], scan: bool) -> jax.stages.Lowered:
    s = shapes_from_environment()
    return make_train_step(s, policy, scan).lower(*abstract_arguments(s))


def offload_scan() -> jax.stages.Lowered:
    return lower(offload_policy(), scan=True)


def offload_unrolled() -> jax.stages.Lowered:
    return lower(offload_policy(), scan=False)


def save() -> jax.stages.Lowered:
    return lower(jax.checkpoint_policies.save_only_these_names("hid"), scan=True)


def remat() -> jax.stages.Lowered:
    return lower(jax.checkpoint_policies.nothing_saveable, scan=True)


def train(
    batch: int = 8,
    layers: int = 8,
    policy: Callable[..., Any] | None = None,
    unrolled: bool = False,
    prevent_cse: bool = True,
) -> jax.stages.Lowered:
    """Lower the step for `hloinspect plan`, which varies the arguments. Without a ``policy``, ``hid`` is offloaded.

    hloinspect plan examples/dense.py:train --vary policy=save,remat,offload:hid --vary batch=4,8 --target gb200
    """
    s = shapes_from_environment()._replace(batch=batch, layers=layers)
    step = make_train_step(s, policy or offload_policy(), scan=not unrolled, prevent_cse=prevent_cse)
    return step.lower(*abstract_arguments(s))


def main() -> None:
    """Train a tiny model on random tokens: the loss must fall."""
    s = Shapes(layers=2, batch=2, seq=32, dim=64, hidden=128, heads=4, vocab=128)
    step = make_train_step(s, jax.checkpoint_policies.nothing_saveable, scan=True)
    params = init_params(jax.random.key(0), s)
    state = init_optimizer(params)
    tokens = jax.random.randint(jax.random.key(1), (s.batch, s.seq + 1), 0, s.vocab)
    for i in range(20):
        params, state, loss = step(params, state, tokens)
        print(f"step {i}: loss {loss:.3f}")


if __name__ == "__main__":
    main()
