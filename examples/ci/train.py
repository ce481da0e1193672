"""Lower a training step that sends the MLP's hidden activation to pinned host memory and fetches it again.

It gives only shapes, so lowering needs neither memory nor time.
"""

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name

LAYERS, BATCH, SEQ, DIM, HIDDEN = 4, 4, 4096, 16384, 16384

POLICY = jax.checkpoint_policies.save_and_offload_only_these_names(
    names_which_can_be_saved=[],
    names_which_can_be_offloaded=["hidden"],
    offload_src="device",
    offload_dst="pinned_host",
)


def layer(x, w):
    hidden = jax.nn.gelu(x @ w["up"])
    hidden = checkpoint_name(hidden, "hidden")
    return x + hidden @ w["down"], None


def loss_fn(params, x):
    body = jax.checkpoint(layer, policy=POLICY, prevent_cse=False)
    x, _ = jax.lax.scan(body, x, params)
    return jnp.mean(x.astype(jnp.float32) ** 2)


def train_step(params, x):
    loss, grads = jax.value_and_grad(loss_fn)(params, x)
    params = jax.tree.map(lambda p, g: (p - 0.01 * g).astype(p.dtype), params, grads)
    return params, loss


def step():
    params = {
        "up": jax.ShapeDtypeStruct((LAYERS, DIM, HIDDEN), jnp.bfloat16),
        "down": jax.ShapeDtypeStruct((LAYERS, HIDDEN, DIM), jnp.bfloat16),
    }
    x = jax.ShapeDtypeStruct((BATCH, SEQ, DIM), jnp.bfloat16)
    return jax.jit(train_step, donate_argnums=0).lower(params, x)
