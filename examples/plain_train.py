"""Train a small language model with flax and optax. The script does not use hloinspect.

    python examples/plain_train.py      trains on the devices of this machine

With plain_step.py, hloinspect compiles its step for hardware that the machine does not have.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import partial

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax.training.train_state import TrainState
from jax.ad_checkpoint import checkpoint_name
from jax.sharding import Mesh, NamedSharding, PartitionSpec


def size(name: str, default: int) -> int:
    return int(os.environ.get(name, default))


LAYERS, DIM, HEADS, VOCAB, SEQ = (
    size("LAYERS", 4),
    size("DIM", 256),
    size("HEADS", 4),
    size("VOCAB", 512),
    size("SEQ", 128),
)
BATCH = size("BATCH", 2) * jax.device_count()
STEPS = 20

MESH = Mesh(np.array(jax.devices()), ("data",))
REPLICATED, SHARDED = NamedSharding(MESH, PartitionSpec()), NamedSharding(MESH, PartitionSpec("data"))
POLICY = jax.checkpoint_policies.save_and_offload_only_these_names(
    names_which_can_be_saved=[],
    names_which_can_be_offloaded=["hidden"],
    offload_src="device",
    offload_dst="pinned_host",
)


class Layer(nn.Module):
    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        mask = nn.make_causal_mask(x[..., 0])
        x = x + nn.SelfAttention(HEADS, dtype=jnp.bfloat16)(nn.LayerNorm()(x), mask)
        hidden = checkpoint_name(nn.gelu(nn.Dense(4 * DIM, dtype=jnp.bfloat16)(nn.LayerNorm()(x))), "hidden")
        return x + nn.Dense(DIM, dtype=jnp.bfloat16)(hidden)


class Model(nn.Module):
    @nn.compact
    def __call__(self, tokens: jax.Array) -> jax.Array:
        x = nn.Embed(VOCAB, DIM)(tokens)
        for _ in range(LAYERS):
            x = nn.remat(Layer, policy=POLICY)()(x)
        return nn.Dense(VOCAB)(nn.LayerNorm()(x))


def create_state() -> TrainState:
    model = Model()
    optimizer = optax.chain(
        optax.clip_by_global_norm(1.0), optax.adamw(optax.warmup_cosine_decay_schedule(0, 3e-3, 10, 1000))
    )

    @partial(jax.jit, out_shardings=REPLICATED)
    def create(key: jax.Array) -> TrainState:
        params = model.init(key, jnp.zeros((1, SEQ), jnp.int32))
        return TrainState.create(apply_fn=model.apply, params=params, tx=optimizer)

    state = create(jax.random.key(0))
    count = sum(leaf.size for leaf in jax.tree.leaves(state.params))
    print(f"{count / 1e6:.1f} M parameters on {jax.device_count()} x {jax.devices()[0].device_kind}")
    return state


def batches() -> Iterator[jax.Array]:
    generator = np.random.default_rng(0)
    tokens = np.cumsum(generator.integers(0, 3, (64, SEQ + 1)), axis=1) % VOCAB  # something that can be learnt
    while True:
        rows = generator.integers(0, len(tokens), BATCH // jax.process_count())
        yield jax.make_array_from_process_local_data(SHARDED, tokens[rows].astype(np.int32))


@partial(jax.jit, donate_argnums=0)
def train_step(state: TrainState, tokens: jax.Array) -> tuple[TrainState, jax.Array]:
    def loss_fn(params: dict) -> jax.Array:
        logits = state.apply_fn(params, tokens[:, :-1])
        return optax.softmax_cross_entropy_with_integer_labels(logits, tokens[:, 1:]).mean()

    loss, grads = jax.value_and_grad(loss_fn)(state.params)
    return state.apply_gradients(grads=grads), loss


def main() -> None:
    state = create_state()
    for i, tokens in zip(range(STEPS), batches(), strict=False):
        state, loss = train_step(state, tokens)
        print(f"step {i}: loss {float(loss):.3f}")


if __name__ == "__main__":
    main()
