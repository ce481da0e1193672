"""The decoder of dense.py with AdamW's moments in pinned host memory, as arguments and results of the step.

    hloinspect inspect examples/optimizer.py:offload --target gb200
    hloinspect inspect examples/optimizer.py:offload --target gb200 --devices 8

Each step fetches the moments, updates them and writes them back. Everything is sharded over all devices (FSDP). The
shapes come from the environment as in dense.py.
"""

from __future__ import annotations

from typing import Any

import dense  # the file beside this one
import jax
from jax.sharding import NamedSharding, PartitionSpec


def shard(tree: Any, mesh: jax.sharding.Mesh, memory_kind: str) -> Any:
    """A sharding for each leaf: the last axis over all devices; norms and count whole, and always on the device."""

    def sharding(path: tuple[Any, ...], leaf: jax.ShapeDtypeStruct) -> NamedSharding:
        if leaf.ndim < 2 or path[-1].key.startswith("norm"):
            return NamedSharding(mesh, PartitionSpec(), memory_kind="device")
        return NamedSharding(mesh, PartitionSpec(*[None] * (leaf.ndim - 1), "data"), memory_kind=memory_kind)

    return jax.tree.map_with_path(sharding, tree)


def lower(memory_kind: str) -> jax.stages.Lowered:
    s = dense.shapes_from_environment()
    params, state, tokens = dense.abstract_arguments(s)
    mesh = jax.make_mesh((jax.device_count(),), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    params_at, state_at = shard(params, mesh, "device"), shard(state, mesh, memory_kind)
    batch_at = NamedSharding(mesh, PartitionSpec("data"))
    state_on_device = shard(state, mesh, "device")

    def train_step(params: Any, state: Any, tokens: jax.Array) -> tuple[Any, Any, jax.Array]:
        policy = jax.checkpoint_policies.nothing_saveable
        loss, grads = jax.value_and_grad(dense.loss_fn)(params, tokens, s, policy, scan=True)
        params, state = dense.adamw(params, grads, jax.device_put(state, state_on_device))
        return params, jax.device_put(state, state_at), loss

    step = jax.jit(
        train_step,
        in_shardings=(params_at, state_at, batch_at),
        out_shardings=(params_at, state_at, NamedSharding(mesh, PartitionSpec())),
        donate_argnums=(0, 1),
    )
    return step.lower(params, state, tokens)


def offload() -> jax.stages.Lowered:
    return lower("pinned_host")


def keep() -> jax.stages.Lowered:
    return lower("device")
