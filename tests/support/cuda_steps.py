"""Steps from which the modules of synthetic traces are compiled, where no fixture has what is needed.

    python -m hloinspect compile tests/support/cuda_steps.py:callback --target gb200 -o OUT
    python -m hloinspect compile tests/support/matrix_steps.py:optimizer --target gb200 --devices 4 -o OUT

``OUT/module.hlo.pb``, packed with gzip and without this checkout's path in its table of files, are
``data/callback.hlo.pb.gz`` and ``data/optimizer_on_four.hlo.pb.gz`` (jax 0.12.0.1).
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec


def _at(memory_kind: str) -> NamedSharding:
    mesh = jax.make_mesh((jax.device_count(),), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    return NamedSharding(mesh, PartitionSpec(), memory_kind=memory_kind)


def callback() -> jax.stages.Lowered:
    """Lower a step in which a weight comes from the host while a callback in the middle gets a scale from Python."""

    def step(weight: jax.Array, x: jax.Array) -> jax.Array:
        y = jnp.tanh(x @ x)
        request = jax.ffi.ffi_call("xla_ffi_python_gpu_callback", jax.ShapeDtypeStruct((), jnp.float32))
        scale = request(jnp.sum(y), index=np.uint64(0))
        return jnp.tanh(y * scale) @ jax.device_put(weight, _at("device"))

    shape = (256, 256)
    weight = jax.ShapeDtypeStruct(shape, jnp.float32, sharding=_at("pinned_host"))
    return jax.jit(step).lower(weight, jax.ShapeDtypeStruct(shape, jnp.float32, sharding=_at("device")))
