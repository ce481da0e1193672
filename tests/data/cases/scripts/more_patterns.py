"""What libraries do with arrays before a step: exporting, batches of a process, unpacking, gradients and keys outside of jit."""
import jax
import jax.export
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import NamedSharding, PartitionSpec as P

mesh = jax.make_mesh((jax.device_count(),), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
row = NamedSharding(mesh, P("data"))
f = jax.jit(lambda x: x * 2)


def parameters(rows=64):
    return jax.device_put(np.ones((rows, 8), np.float32), row)


def exported():
    found = jax.export.export(f)(parameters())
    assert "stablehlo.multiply" in found.mlir_module()
    return f, parameters()


def batch_of_a_process():
    local = np.ones((64 // jax.process_count(), 8), np.float32)
    whole = multihost_utils.host_local_array_to_global_array(local, mesh, P("data"))
    assert whole.shape == (64, 8), whole.shape
    return f, whole


def unpacked():
    first, second, *_ = jax.device_put(np.ones((8, 8), np.float32), row)
    assert len(parameters()) == 64
    return jax.jit(lambda x, y: x @ y), first, second


def gradient_outside_of_jit():
    return f, jax.grad(lambda w: jnp.sum(w * w + w))(parameters())


def donated_twice():
    step = jax.jit(lambda x: x + 1, donate_argnums=0)
    with jax.set_mesh(mesh):
        x = jnp.zeros(())
        y = step(x)
        assert int(step(y)) == 2
    return f, parameters()


def closed_over():
    with jax.set_mesh(mesh):
        table = jnp.arange(8.0)
        return jax.jit(lambda x: x * table), parameters()
