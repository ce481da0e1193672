"""Lower a mixture of experts with latent attention (MLA), built like DeepSeek-V3. Its latents and expert up-projections
go to pinned host memory.

    offload_scan      layers in a ``lax.scan``, the first ones (with a dense MLP) in one of their own
    offload_unrolled  the same, with the layers written out one after the other
    save              the tensors that the others offload stay in device memory
    remat             only the input of a layer is kept; the backward pass computes the rest again

    hloinspect inspect examples/moe.py:offload_scan --target gb200
    hloinspect inspect examples/moe.py:offload_scan --target gb200 --devices 128

Attention keeps two narrow tensors of a layer (``q_latent``, ``kv_latent``) and computes queries, keys and values from
them again; the experts' hidden activation (``expert_up``) is the widest of all. Each sequence sends its tokens to
``TOP_K`` of ``EXPERTS`` experts, up to a capacity; tokens above it are dropped. The optimizer and the rest are those of
dense.py, and so is the sharding: over all devices (FSDP). The shapes come from the environment.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, NamedTuple

import dense  # the file beside this one
import jax
import jax.numpy as jnp
from dense import Params, by_batch, rms_norm
from jax.ad_checkpoint import checkpoint_name

OFFLOADED = ["q_latent", "kv_latent", "expert_up"]


class Shapes(NamedTuple):
    layers: int = 6
    dense_layers: int = 1
    batch: int = 4
    seq: int = 2048
    dim: int = 2048
    hidden: int = 8192  # of the dense layers
    heads: int = 16
    q_rank: int = 768
    kv_rank: int = 256
    rope: int = 32  # of each head's width, the part that is rotated
    experts: int = 32
    top_k: int = 4
    expert_hidden: int = 1024
    vocab: int = 32768

    @property
    def capacity(self) -> int:
        """The tokens of a sequence that an expert takes: a quarter more than its share."""
        return max(1, self.seq * self.top_k * 5 // (self.experts * 4))


def shapes_from_environment() -> Shapes:
    return Shapes(**{name: int(os.environ.get(name.upper(), default)) for name, default in Shapes()._asdict().items()})


# --- the model ------------------------------------------------------------------------------------


def init_params(key: jax.Array, s: Shapes) -> Params:
    keys = iter(jax.random.split(key, 32))

    def weights(*shape: int) -> jax.Array:
        return jax.random.normal(next(keys), shape, jnp.bfloat16) * shape[-2] ** -0.5

    def ones(*shape: int) -> jax.Array:
        return jnp.ones(shape, jnp.bfloat16)

    def attention_weights(count: int) -> Params:
        return {
            "norm1": ones(count, s.dim),
            "q_down": weights(count, s.dim, s.q_rank),
            "norm_q": ones(count, s.q_rank),
            "q_up": weights(count, s.q_rank, s.dim),
            "kv_down": weights(count, s.dim, s.kv_rank + s.rope),
            "norm_kv": ones(count, s.kv_rank),
            "kv_up": weights(count, s.kv_rank, 2 * s.dim - s.heads * s.rope),
            "out": weights(count, s.dim, s.dim),
            "norm2": ones(count, s.dim),
        }

    first, rest = s.dense_layers, s.layers - s.dense_layers
    return {
        "embed": weights(s.vocab, s.dim),
        "first": attention_weights(first)
        | {"up": weights(first, s.dim, s.hidden), "down": weights(first, s.hidden, s.dim)},
        "layers": attention_weights(rest)
        | {
            "router": weights(rest, s.dim, s.experts),
            "experts_up": weights(rest, s.experts, s.dim, 2 * s.expert_hidden),
            "experts_down": weights(rest, s.experts, s.expert_hidden, s.dim),
        },
        "norm": ones(s.dim),
    }


def rotate(x: jax.Array) -> jax.Array:
    """Apply rotary positions to ``x`` of [batch, seq, heads, width]."""
    half = x.shape[-1] // 2
    angles = jnp.arange(x.shape[1])[:, None, None] * 10000.0 ** (-jnp.arange(half) / half)
    cos, sin = jnp.cos(angles).astype(x.dtype), jnp.sin(angles).astype(x.dtype)
    left, right = x[..., :half], x[..., half:]
    return jnp.concatenate([left * cos - right * sin, left * sin + right * cos], -1)


def attention(x: jax.Array, w: Params, s: Shapes) -> jax.Array:
    """Apply multi-head latent attention: queries, keys and values are computed from two narrow tensors."""
    batch, seq, dim = x.shape
    width = dim // s.heads
    q_latent = checkpoint_name(by_batch(x @ w["q_down"]), "q_latent")
    kv_latent = checkpoint_name(by_batch(x @ w["kv_down"]), "kv_latent")
    q = (rms_norm(q_latent, w["norm_q"]) @ w["q_up"]).reshape(batch, seq, s.heads, width)
    kv = (rms_norm(kv_latent[..., : s.kv_rank], w["norm_kv"]) @ w["kv_up"]).reshape(batch, seq, s.heads, -1)
    k_rope = rotate(kv_latent[..., None, s.kv_rank :])  # one for all heads
    q = jnp.concatenate([q[..., s.rope :], rotate(q[..., : s.rope])], -1)
    k = jnp.concatenate([kv[..., :-width], jnp.broadcast_to(k_rope, (batch, seq, s.heads, s.rope))], -1)
    mixed = jax.nn.dot_product_attention(q, k, kv[..., -width:], is_causal=True, implementation="xla")
    return mixed.reshape(x.shape) @ w["out"]


def experts(x: jax.Array, w: Params, s: Shapes) -> jax.Array:
    """Apply the ``top_k`` experts of each token to ``x`` of [batch, seq, dim]. Each sequence is routed on its own."""
    scores, chosen = jax.lax.top_k(jax.nn.softmax((x @ w["router"]).astype(jnp.float32)), s.top_k)
    scores = (scores / jnp.sum(scores, -1, keepdims=True)).astype(x.dtype)
    expert, place = jax.vmap(lambda row: places(row, s))(chosen.reshape(x.shape[0], -1))
    token = jnp.arange(s.seq * s.top_k) // s.top_k

    def gathered(x: jax.Array, expert: jax.Array, place: jax.Array) -> jax.Array:
        empty = jnp.zeros((s.experts, s.capacity, s.dim), x.dtype)
        return empty.at[expert, place].set(x[token], mode="drop")

    def combined(y: jax.Array, expert: jax.Array, place: jax.Array, scores: jax.Array) -> jax.Array:
        back = y.at[expert, place].get(mode="fill", fill_value=0) * scores.reshape(-1, 1)
        return back.reshape(s.seq, s.top_k, s.dim).sum(1)

    taken = jax.vmap(gathered)(x, expert, place)
    up = checkpoint_name(by_batch(jnp.einsum("becd,edf->becf", taken, w["experts_up"])), "expert_up")
    gate, value = jnp.split(up, 2, -1)
    out = jnp.einsum("becf,efd->becd", jax.nn.silu(gate) * value, w["experts_down"])
    return jax.vmap(combined)(out, expert, place, scores)


def places(chosen: jax.Array, s: Shapes) -> tuple[jax.Array, jax.Array]:
    """Return for each choice of a sequence its expert, and which row of that expert it takes. A row beyond the capacity
    is dropped."""
    before = jnp.cumsum(jax.nn.one_hot(chosen, s.experts, dtype=jnp.int32), 0)
    return chosen, jnp.take_along_axis(before, chosen[:, None], 1)[:, 0] - 1


def dense_layer(x: jax.Array, w: Params, s: Shapes) -> jax.Array:
    x = by_batch(x)
    x = x + attention(rms_norm(x, w["norm1"]), w, s)
    return x + jax.nn.gelu(rms_norm(x, w["norm2"]) @ w["up"]) @ w["down"]


def moe_layer(x: jax.Array, w: Params, s: Shapes) -> jax.Array:
    x = by_batch(x)
    x = x + attention(rms_norm(x, w["norm1"]), w, s)
    return x + experts(rms_norm(x, w["norm2"]), w, s)


def loss_fn(params: Params, tokens: jax.Array, s: Shapes, policy: Callable[..., Any], scan: bool) -> jax.Array:
    x = params["embed"][tokens[:, :-1]]
    for layer, stack in ((dense_layer, params["first"]), (moe_layer, params["layers"])):
        remat_layer = jax.checkpoint(lambda x, w, layer=layer: layer(x, w, s), policy=policy)
        if scan:
            x, _ = jax.lax.scan(lambda x, w, one=remat_layer: (one(x, w), None), x, stack)
        else:
            for w in dense.separate(stack, stack["out"].shape[0]):
                x = remat_layer(x, w)
    logits = (rms_norm(x, params["norm"]) @ params["embed"].T).astype(jnp.float32)
    picked = jnp.take_along_axis(logits, tokens[:, 1:, None], -1)[..., 0]
    return jnp.mean(jax.nn.logsumexp(logits, -1) - picked)


# --- the steps ------------------------------------------------------------------------------------


def make_train_step(s: Shapes, policy: Callable[..., Any], scan: bool) -> Any:
    def train_step(params: Params, state: Params, tokens: jax.Array) -> tuple[Params, Params, jax.Array]:
        loss, grads = jax.value_and_grad(loss_fn)(params, tokens, s, policy, scan)
        params, state = dense.adamw(params, grads, state)
        return params, state, loss

    return jax.jit(train_step, donate_argnums=(0, 1))


def offload_policy() -> Callable[..., Any]:
    return jax.checkpoint_policies.save_and_offload_only_these_names(
        names_which_can_be_saved=[],
        names_which_can_be_offloaded=OFFLOADED,
        offload_src="device",
        offload_dst="pinned_host",
    )


def lower(policy: Callable[..., Any], scan: bool) -> jax.stages.Lowered:
    s = shapes_from_environment()
    return make_train_step(s, policy, scan).lower(*dense.abstract_arguments(s, init_params))


def offload_scan() -> jax.stages.Lowered:
    return lower(offload_policy(), scan=True)


def offload_unrolled() -> jax.stages.Lowered:
    return lower(offload_policy(), scan=False)


def save() -> jax.stages.Lowered:
    return lower(jax.checkpoint_policies.save_only_these_names(*OFFLOADED), scan=True)


def remat() -> jax.stages.Lowered:
    return lower(jax.checkpoint_policies.nothing_saveable, scan=True)


def main() -> None:
    """Train a tiny model on random tokens: the loss must fall."""
    s = Shapes(3, 1, 2, 32, 64, 128, heads=4, q_rank=24, kv_rank=16, rope=4, experts=4, top_k=2, vocab=128)
    s = s._replace(expert_hidden=64)
    step = make_train_step(s, jax.checkpoint_policies.nothing_saveable, scan=True)
    params = init_params(jax.random.key(0), s)
    state = dense.init_optimizer(params)
    tokens = jax.random.randint(jax.random.key(1), (s.batch, s.seq + 1), 0, s.vocab)
    for i in range(20):
        params, state, loss = step(params, state, tokens)
        print(f"step {i}: loss {loss:.3f}")


if __name__ == "__main__":
    main()
