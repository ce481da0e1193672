"""Arrays as eager code makes them, and where JAX puts each: on real devices, and on a target that is not there.

As a script it prints where they are on the devices at hand; as a step it writes the same to places.json.
"""
import json
import random

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental.layout import Format, Layout

Space, P = jax.memory.Space, jax.sharding.PartitionSpec
mesh = jax.make_mesh((jax.device_count(),), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
rep, row, column = (jax.sharding.NamedSharding(mesh, spec) for spec in (P(), P("data"), P(None, "data")))
host = row.with_memory_kind("pinned_host")
explicit = jax.make_mesh((jax.device_count(),), ("data",), axis_types=(jax.sharding.AxisType.Explicit,))
on_host = jax.device_put(np.zeros((64, 128), np.float32), host)
by_row = jax.device_put(np.zeros((64, 128), np.float32), row)
typed = jax.device_put(np.zeros((64, 128), np.float32), jax.sharding.NamedSharding(explicit, P("data")))


one_on_host = jax.device_put(np.ones(8, np.float32), jax.sharding.SingleDeviceSharding(
    jax.devices()[0], memory_kind="pinned_host"))


def under(what, function):
    with what:
        return function()


CASES = {
    "zeros_like of a pinned array": lambda: jnp.zeros_like(on_host),
    "zeros_like": lambda: jnp.zeros_like(by_row),
    "ones_like of another type": lambda: jnp.ones_like(by_row, dtype=jnp.bfloat16),
    "copy": lambda: on_host.copy(),
    "identity jit": lambda: jax.jit(lambda x: x)(on_host),
    "reshape": lambda: on_host.reshape(-1),
    "operation in host memory": lambda: on_host + 1,
    "put on the device": lambda: jax.device_put(on_host, row),
    "put nowhere": lambda: jax.device_put(on_host),
    "Space.Host": lambda: jax.device_put(by_row, Space.Host),
    "Space.Device": lambda: jax.device_put(on_host, Space.Device),
    "Space.Host of numpy": lambda: jax.device_put(np.zeros(4), Space.Host),
    "Space.Host of an array that is nowhere in particular": lambda: jax.device_put(jnp.zeros(4), Space.Host),
    "Space.Host of a tree": lambda: jax.device_put({"a": by_row, "b": jnp.zeros(3)}, Space.Host)["a"],
    "cast": lambda: by_row.astype(jnp.bfloat16),
    "several operations in a jit": lambda: jax.jit(lambda x: (x * 2 + 1).astype(jnp.bfloat16))(by_row),
    "sum": lambda: by_row.sum(),
    "transpose": lambda: by_row.T,
    "index": lambda: by_row[0],
    "dot": lambda: by_row @ by_row.T,
    "stack": lambda: jnp.stack([by_row, by_row]),
    "replicated": lambda: jax.device_put(np.zeros((8, 8)), rep) @ jnp.ones((8, 8)),
    "constraint inside": lambda: jax.jit(lambda: jax.lax.with_sharding_constraint(jnp.ones((64, 8)), row))(),
    "device_put inside": lambda: jax.jit(lambda: jax.device_put(jnp.ones((64, 8)), host))(),
    "shard_map inside": lambda: jax.jit(
        lambda: jax.shard_map(lambda: jnp.ones((8, 8)), mesh=mesh, in_specs=(), out_specs=P("data"))()
    )(),
    "some out_shardings": lambda: jax.jit(lambda x: (x, x.sum(0)), out_shardings=(row, None))(by_row)[1],
    "some out_shardings in host memory": lambda: jax.jit(lambda x: (x, x.sum(0)), out_shardings=(host, None))(by_row)[0],
    "one device": lambda: jax.device_put(np.zeros(4), jax.devices()[1]) + 1,
    "default device": lambda: under(jax.default_device(jax.devices()[1]), lambda: jnp.ones(3) + 1),
    "key under a mesh": lambda: under(jax.set_mesh(mesh), lambda: jax.random.key(0)),
    "raw key under a mesh": lambda: under(jax.set_mesh(mesh), lambda: jax.random.PRNGKey(0)),
    "ones under a mesh": lambda: under(jax.set_mesh(mesh), lambda: jnp.ones((4, 4))),
    "number under a mesh": lambda: under(jax.set_mesh(mesh), lambda: jnp.asarray(3)),
    "normal under a mesh": lambda: under(jax.set_mesh(mesh), lambda: jax.random.normal(jax.random.key(0), (64, 64))),
    "weakly typed": lambda: by_row.sum() * 2.0,
    "explicit axes": lambda: typed.T * 2,
    "explicit axes, sum": lambda: typed.sum(0),
    "a key in a state": lambda: jax.jit(lambda: {"key": jax.random.key(0)}, out_shardings=rep)()["key"],
    "pinned zeros_like under a mesh": lambda: under(jax.set_mesh(mesh), lambda: jnp.zeros_like(on_host)),
    "ones on a sharding under a mesh": lambda: under(jax.set_mesh(mesh), lambda: jnp.ones((8, 8), device=row)),
    "constraint by a spec under a mesh": lambda: under(
        jax.set_mesh(mesh), lambda: jax.jit(lambda: jax.lax.with_sharding_constraint(jnp.ones((64, 8)), P("data")))()
    ),
    "shard_map under a mesh": lambda: under(
        jax.set_mesh(mesh), lambda: jax.jit(jax.shard_map(lambda x: x * 2, in_specs=P("data"), out_specs=P("data")))(jnp.ones((64, 8)))
    ),
    "an argument that is nowhere in particular": lambda: jax.jit(lambda x, y: (x + 1, y + 1))(by_row, jnp.ones((64, 128)))[1],
    "pinned on one device": lambda: one_on_host.reshape(2, 4),
    "one device, two memories": lambda: one_on_host + jnp.ones(8),
    "a tree in two memories": lambda: on_host + by_row,
    "gradient through a move": lambda: jax.grad(lambda x: jnp.sum(jax.device_put(x, column) ** 2))(by_row),
    "gradient of what is used twice": lambda: jax.grad(lambda x: jnp.sum(x * x + jnp.sin(x)))(by_row),
    "vmap": lambda: jax.vmap(lambda row: row * 2)(by_row),
    "scan": lambda: jax.lax.scan(lambda carry, x: (carry + x.sum(), x), jnp.zeros(()), by_row)[1],
    "first of a list": lambda: list(by_row)[0],
    "part of a sharded array": lambda: by_row[8:16],
    "global batch of int64": lambda: jax.make_array_from_callback((64,), row, lambda index: np.arange(64)[index]),
    "a memory that no device has": lambda: jax.device_put(by_row, row.with_memory_kind("hbm")),
    "results on other devices": lambda: jax.jit(lambda x: x, out_shardings=row)(jax.device_put(np.ones(8), jax.devices()[1])),
    "closed over, made under a mesh": lambda: under(
        jax.set_mesh(mesh), lambda: (lambda w: jax.jit(lambda x: x * w)(by_row))(jnp.arange(128.0))
    ),
    "called after compiling": lambda: jax.jit(lambda x: x.T).lower(by_row).compile()(by_row),
}

LAYOUTS = {
    "put in a layout": lambda: jax.device_put(np.zeros((64, 128), np.float32), Format(Layout((1, 0)), row)),
    "made in a layout": lambda: jax.jit(lambda x: x + 1, out_shardings=Format(Layout((1, 0)), row))(by_row),
}

OPERATIONS = {
    "cast": lambda x: x.astype(jnp.bfloat16),
    "add": lambda x: x + x,
    "scale": lambda x: jax.jit(lambda x: jnp.tanh(x) * 3)(x),
    "transpose": lambda x: x.T,
    "sum": lambda x: x.sum(0, keepdims=True) + jnp.zeros((64, 1)),
    "flip": lambda x: x[::-1],
    "pad": lambda x: jnp.concatenate([x, x]),
    "to the host and back": lambda x: jax.device_put(jax.device_put(x, Space.Host), Space.Device),
    "by columns": lambda x: jax.device_put(x, column),
}


def chain(seed):
    """A few operations by chance on an array in a place by chance."""
    choose = random.Random(seed)
    x = jax.device_put(np.zeros((64, 64), np.float32), choose.choice((rep, row, column)))
    for _ in range(3):
        x = OPERATIONS[choose.choice(sorted(OPERATIONS))](x)
    return x


def places():
    cases = {**CASES, **LAYOUTS, **{f"chain {seed}": lambda seed=seed: chain(seed) for seed in range(12)}}
    found = {}
    for name, make in cases.items():
        try:
            x = make()
        except Exception as error:
            found[name] = [type(error).__name__, str(error).partition(" device")[0][:60]]
            continue
        where = x.sharding
        found[name] = [
            type(where).__name__, str(getattr(where, "spec", "")), getattr(where, "memory_kind", None), x.committed,
            str(x.dtype), list(x.shape), name in LAYOUTS and str(x.format.layout.major_to_minor), bool(x.aval.weak_type), str(getattr(x.aval, "memory_space", "")),
        ]  # fmt: skip
    return found


def step():
    with open("places.json", "w") as file:
        json.dump(places(), file)
    return jax.jit(lambda x: x + 1), by_row


if __name__ == "__main__":
    print(json.dumps(places()))
