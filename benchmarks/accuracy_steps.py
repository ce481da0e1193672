"""Steps that the accuracy scripts compile: matrix products of many sizes, and programs of published measurements.

Each function without arguments is a step for ``hloinspect compile`` or ``inspect``:

    products            matrix products, for XLA's own speed-of-light estimates (accuracy_sol.py)
    layers_*            P8: scanned MLP layers on 8 GPUs under four checkpoint policies (jax-ml/jax issue 23869)
    stacked_transpose   P12: a device-to-device copy with a transpose in its window (openxla/xla pull request 46150)
    llama8b_*           P1: a decoder of llama3-8b's size, fully sharded over the devices, the MLP's activation
                        offloaded (openxla/xla pull request 32297)
"""

from __future__ import annotations

import contextlib
import sys
import unittest.mock
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

sys.path.append(str(Path(__file__).resolve().parents[1] / "examples"))
import dense

# --- matrix products ------------------------------------------------------------------------------

SQUARES = (128, 256, 512, 1024, 2048, 4096, 8192, 16384)
TOKENS = (16, 256, 4096, 8192)
# (contracted, columns) of the layers of decoders of 8, 70 and 405 billion parameters (Llama 3's published sizes).
LAYERS = ((4096, 6144), (4096, 14336), (14336, 4096), (8192, 10240), (8192, 28672), (28672, 8192), (16384, 53248))
# (batch, rows, contracted, columns): attention's two products and an expert layer's.
BATCHED = ((256, 2048, 128, 2048), (256, 2048, 2048, 128), (64, 4096, 128, 4096), (16, 1024, 7168, 2048))


def products() -> jax.stages.Lowered:
    """Multiply ``[m, k] x [k, n]`` in bf16, and a few in other types: independent products in one module."""
    pairs = [((n, n), (n, n), "bfloat16") for n in SQUARES]
    pairs += [((m, k), (k, n), "bfloat16") for k, n in LAYERS for m in TOKENS]
    pairs += [((b, m, k), (b, k, n), "bfloat16") for b, m, k, n in BATCHED]
    pairs += [((n, n), (n, n), dtype) for dtype in ("float16", "float32") for n in (1024, 4096, 8192)]
    left = [jax.ShapeDtypeStruct(shape, dtype) for shape, _, dtype in pairs]
    right = [jax.ShapeDtypeStruct(shape, dtype) for _, shape, dtype in pairs]
    return jax.jit(lambda a, b: [x @ y for x, y in zip(a, b, strict=True)]).lower(left, right)


# --- P8 -------------------------------------------------------------------------------------------
#
# From the description and jaxpr: batch 64, 8192 positions, width 2048 in and out, 32 layers, float32, a mesh of
# 4 (data) x 2 (model); weights are split over the model axis by their hidden side; a layer's result is split over data
# and, along the positions, over model; a last layer gives one number a position. The issue is about memory.

LAYER_COUNT, BATCH, POSITIONS, WIDTH = 32, 64, 8192, 2048


def _layers(saved: Sequence[str], offloaded: Sequence[str]) -> jax.stages.Lowered:
    auto = jax.sharding.AxisType.Auto
    mesh = jax.make_mesh((4, jax.device_count() // 4), ("data", "model"), axis_types=(auto, auto))
    policy = jax.checkpoint_policies.save_and_offload_only_these_names(
        names_which_can_be_saved=list(saved),
        names_which_can_be_offloaded=list(offloaded),
        offload_src="device",
        offload_dst="pinned_host",
    )

    def spread(x: jax.Array, *axes: str | None) -> jax.Array:
        return jax.lax.with_sharding_constraint(x, NamedSharding(mesh, P(*axes)))

    @partial(jax.checkpoint, policy=policy, prevent_cse=True)
    def layer(x: jax.Array, weights: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, None]:
        up, down = weights
        hidden = checkpoint_name(spread(x @ up, "data", None, "model"), "hidden")
        x = spread(x + jax.nn.relu(hidden) @ down, "data", "model", None)
        return checkpoint_name(x, "residual"), None

    def loss(params: tuple[Any, jax.Array], x: jax.Array, wanted: jax.Array) -> jax.Array:
        stacked, last = params
        x, _ = jax.lax.scan(layer, x, stacked)
        return jnp.mean((jnp.mean(x @ last, axis=(1, 2)) - wanted) ** 2)

    def array(shape: tuple[int, ...], *axes: str | None) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(shape, jnp.float32, sharding=NamedSharding(mesh, P(*axes)))

    stacked = (
        array((LAYER_COUNT, WIDTH, WIDTH), None, None, "model"),
        array((LAYER_COUNT, WIDTH, WIDTH), None, "model", None),
    )
    params = (stacked, array((WIDTH, 1)))
    return jax.jit(jax.grad(loss)).lower(params, array((BATCH, POSITIONS, WIDTH), "data"), array((BATCH,), "data"))


def layers_nothing() -> jax.stages.Lowered:
    """Keep nothing but each layer's input."""
    return _layers([], [])


def layers_hidden_saved() -> jax.stages.Lowered:
    """Keep ``hidden`` in device memory."""
    return _layers(["hidden"], [])


def layers_hidden_offloaded() -> jax.stages.Lowered:
    """Send ``hidden`` to pinned host memory."""
    return _layers([], ["hidden"])


def layers_residual_offloaded() -> jax.stages.Lowered:
    """Name a layer's result ``residual``, which no layer's backward pass needs: the policy has nothing to offload."""
    return _layers([], ["residual"])


# --- P12 ------------------------------------------------------------------------------------------

ROWS = 16384


def stacked_transpose() -> jax.stages.Lowered:
    """Stack a product (an async copy within device memory) while the only other work is a transpose of it."""
    square = jax.ShapeDtypeStruct((ROWS, ROWS), jnp.bfloat16)

    def body(w: jax.Array, x: jax.Array, _: None) -> tuple[jax.Array, jax.Array]:
        y = x @ w
        blocks = jax.lax.optimization_barrier(y).reshape(128, ROWS // 128, ROWS)
        turned = jax.lax.optimization_barrier(jnp.swapaxes(blocks, 0, 2)).reshape(ROWS, ROWS)
        return jnp.tanh(turned), y

    return jax.jit(lambda x, w: jax.lax.scan(partial(body, w), x, None, length=8)).lower(square, square)


# --- P1 -------------------------------------------------------------------------------------------


LLAMA8B = dense.Shapes(layers=32, batch=2, seq=4096, dim=4096, hidden=21504, heads=32, vocab=128256)
"""The depth, width and vocabulary of llama3-8b; one up projection of the same size as its two; two sequences a
device."""


def _fused_layer(x: jax.Array, w: dense.Params, heads: int) -> jax.Array:
    """Return dense.layer with cuDNN's attention, which keeps no scores."""
    batch, seq, dim = x.shape
    qkv = checkpoint_name(dense.rms_norm(x, w["norm1"]) @ w["qkv"], "qkv")
    q, k, v = (part.reshape(batch, seq, heads, dim // heads) for part in jnp.split(qkv, 3, -1))
    mixed = jax.nn.dot_product_attention(q, k, v, is_causal=True, implementation="cudnn").reshape(x.shape)
    x = x + checkpoint_name(mixed @ w["out"], "attn")
    return x + dense.mlp(dense.rms_norm(x, w["norm2"]), w)


def _without_queries_for_cudnn() -> contextlib.ExitStack:
    """Replace the questions of JAX for the GPU's cuDNN and its compute capability: here there is no GPU."""
    from jax._src.cudnn import fused_attention_stablehlo as cudnn

    answers = {
        "check_cudnn_version": lambda: 91300,
        "check_compute_capability": lambda capability: True,
        "is_cuda_compute_capability_equal": lambda capability: False,
    }
    stack = contextlib.ExitStack()
    for name, answer in answers.items():
        stack.enter_context(unittest.mock.patch.object(cudnn, name, answer))
    return stack


def _fsdp(
    policy: Callable[..., Any], prevent_cse: bool, layer_of: Callable[..., jax.Array] = dense.layer
) -> jax.stages.Lowered:
    shapes = dense.shapes_from_environment()
    if shapes == dense.Shapes():
        shapes = LLAMA8B
    mesh = jax.make_mesh((jax.device_count(),), ("data",), axis_types=(jax.sharding.AxisType.Auto,))

    def spread(x: jax.Array, *axes: str | None) -> jax.Array:
        return jax.lax.with_sharding_constraint(x, NamedSharding(mesh, P(*axes)))

    @partial(jax.checkpoint, policy=policy, prevent_cse=prevent_cse)
    def layer(x: jax.Array, weights: dense.Params) -> jax.Array:
        whole = jax.tree.map(spread, weights)  # each layer gathers its weights, and again in the backward pass
        return spread(layer_of(spread(x, "data"), whole, shapes.heads), "data")

    def loss(params: dense.Params, tokens: jax.Array) -> jax.Array:
        embed = spread(params["embed"])
        x = spread(embed[tokens[:, :-1]], "data")
        x, _ = jax.lax.scan(lambda x, weights: (layer(x, weights), None), x, params["layers"])
        logits = (dense.rms_norm(x, params["norm"]) @ embed.T).astype(jnp.float32)
        picked = jnp.take_along_axis(logits, tokens[:, 1:, None], -1)[..., 0]
        return jnp.mean(jax.nn.logsumexp(logits, -1) - picked)

    def train_step(
        params: dense.Params, state: dense.Params, tokens: jax.Array
    ) -> tuple[dense.Params, dense.Params, jax.Array]:
        value, gradients = jax.value_and_grad(loss)(params, tokens)
        params, state = dense.adamw(params, gradients, state)
        return params, state, value

    def split(leaf: jax.ShapeDtypeStruct, axis: int) -> jax.ShapeDtypeStruct:
        axes: list[str | None] = [None] * leaf.ndim
        if leaf.ndim and leaf.shape[axis] % jax.device_count() == 0:
            axes[axis] = "data"
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=NamedSharding(mesh, P(*axes)))

    params, state, tokens = dense.abstract_arguments(shapes)
    params, state = (jax.tree.map(partial(split, axis=-1), tree) for tree in (params, state))
    placed = [jax.tree.map(lambda leaf: leaf.sharding, tree) for tree in (params, state)]
    step = jax.jit(train_step, donate_argnums=(0, 1), out_shardings=(*placed, None))
    return step.lower(params, state, split(tokens, 0))


def llama8b_offload() -> jax.stages.Lowered:
    """Send the MLP's activation to the host. Attention is plain, with as many key as query heads."""
    return _fsdp(dense.offload_policy(), prevent_cse=False)  # as MaxText has it for scanned layers


def llama8b_offload_barrier() -> jax.stages.Lowered:
    """Use JAX's default: a barrier holds each backward layer until all its residuals are back."""
    return _fsdp(dense.offload_policy(), prevent_cse=True)


def llama8b_fused() -> jax.stages.Lowered:
    """Use cuDNN's attention in llama8b_offload."""
    with _without_queries_for_cudnn():
        return _fsdp(dense.offload_policy(), prevent_cse=False, layer_of=_fused_layer)


def llama8b_fused_barrier() -> jax.stages.Lowered:
    """Use cuDNN's attention in llama8b_offload_barrier."""
    with _without_queries_for_cudnn():
        return _fsdp(dense.offload_policy(), prevent_cse=True, layer_of=_fused_layer)
