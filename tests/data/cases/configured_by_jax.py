"""What decides a compilation and is not in StableHLO: JAX's own configuration, options of ``jax.jit``, XLA_FLAGS that
the code sets. MODE says which of them this code sets itself: level does what JAX_OPTIMIZATION_LEVEL=O1 would."""

import os

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name

MODE = os.environ.get("MODE")


def loss(ws, x):
    policy = jax.checkpoint_policies.save_and_offload_only_these_names(
        names_which_can_be_saved=[],
        names_which_can_be_offloaded=["h"],
        offload_src="device",
        offload_dst="pinned_host",
    )

    def block(x, w):
        h = checkpoint_name(jnp.tanh(x @ w), "h")
        return jnp.sin(h @ w.T), None

    x, _ = jax.lax.scan(jax.checkpoint(block, policy=policy), x, ws)
    return jnp.mean(x.astype(jnp.float32) ** 2)


def step():
    options = None
    if MODE == "level":
        jax.config.update("jax_optimization_level", "O1")
    if MODE == "jit":
        options = {"xla_gpu_enable_pipelined_host_offloading": True}
    if MODE == "flags":
        os.environ["XLA_FLAGS"] = "--xla_gpu_enable_pipelined_host_offloading=true"
    arguments = (jax.ShapeDtypeStruct((6, 512, 512), jnp.bfloat16), jax.ShapeDtypeStruct((4096, 512), jnp.bfloat16))
    return jax.jit(jax.grad(loss), compiler_options=options).lower(*arguments)
