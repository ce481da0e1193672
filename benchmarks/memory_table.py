"""Memory that offloading saves, by XLA's figures and by hloinspect's estimate: eight programs, one table.

    python benchmarks/memory_table.py [--target h100] [-o DIR]

Each program is compiled without a device by the JAX of the running Python. The model has eight MLP layers on
bf16[4,4096,4096] with a hidden size of 16384. ``hid``, the 512 MiB after the activation, is kept, sent to the host or
computed again: 4 GiB a step. XLA's figures are those of ``memory_analysis()``; hloinspect's come from the module's text
alone. Both leave the arguments out.
"""

from __future__ import annotations

import argparse
import datetime
import importlib
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

LAYERS, BATCH, SEQ, DIM, HIDDEN = 8, 4, 4096, 4096, 16384
GIB = 2**30

TSHIRT = (
    "xla_gpu_enable_latency_hiding_scheduler=true",
    "xla_gpu_enable_analytical_sol_latency_estimator=false",
)
NO_SCHEDULER = (
    "xla_gpu_enable_latency_hiding_scheduler=false",
    "xla_gpu_enable_analytical_sol_latency_estimator=false",
)


@dataclass(frozen=True, slots=True)
class Program:
    """A row of the table: a step of this file, and the XLA flags that it is compiled with."""

    what: str
    step: str
    flags: tuple[str, ...] = ()


PROGRAMS = (
    Program("scan, save on the device", "scan_save"),
    Program("scan, offload", "scan_offload"),
    Program("scan, recompute all", "scan_remat"),
    Program("unrolled, save on the device", "unrolled_save"),
    Program("unrolled, offload (the default scheduler)", "unrolled_offload"),
    Program("unrolled, offload, scheduler with its rough estimator", "unrolled_offload", TSHIRT),
    Program("unrolled, offload, no latency-hiding scheduler", "unrolled_offload", NO_SCHEDULER),
    Program("unrolled, offload, prevent_cse=False", "unrolled_offload_no_cse"),
)


# --- the steps; jax is imported in the process that compiles them only ----------------------------


def _lowered(policy: str, *, scan: bool, prevent_cse: bool = True) -> Any:
    jax: Any = importlib.import_module("jax")
    jnp: Any = importlib.import_module("jax.numpy")
    checkpoint_name: Any = importlib.import_module("jax.ad_checkpoint").checkpoint_name

    policies: dict[str, Callable[..., Any]] = {
        "save": jax.checkpoint_policies.save_only_these_names("hid"),
        "remat": jax.checkpoint_policies.nothing_saveable,
        "offload": jax.checkpoint_policies.save_and_offload_only_these_names(
            names_which_can_be_saved=[],
            names_which_can_be_offloaded=["hid"],
            offload_src="device",
            offload_dst="pinned_host",
        ),
    }

    def layer(x: Any, w: Any) -> Any:
        return x + checkpoint_name(jax.nn.gelu(x @ w["w1"]), "hid") @ w["w2"]

    again = jax.checkpoint(layer, policy=policies[policy], prevent_cse=prevent_cse)

    def loss(params: Any, x: Any) -> Any:
        if scan:
            x, _ = jax.lax.scan(lambda x, w: (again(x, w), None), x, params)
        else:
            for number in range(LAYERS):
                x = again(x, jax.tree.map(lambda stack, n=number: stack[n], params))
        return jnp.mean(x.astype(jnp.float32) ** 2)

    def step(params: Any, x: Any) -> Any:
        gradients = jax.grad(loss)(params, x)
        return jax.tree.map(lambda p, g: p - 1e-3 * g, params, gradients)

    mesh = jax.sharding.Mesh(jax.devices()[:1], ("d",))
    place = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())

    def array(*shape: int) -> Any:
        return jax.ShapeDtypeStruct(shape, jnp.bfloat16, sharding=place)

    params = {"w1": array(LAYERS, DIM, HIDDEN), "w2": array(LAYERS, HIDDEN, DIM)}
    return jax.jit(step, donate_argnums=0).lower(params, array(BATCH, SEQ, DIM))


def scan_save() -> Any:
    return _lowered("save", scan=True)


def scan_offload() -> Any:
    return _lowered("offload", scan=True)


def scan_remat() -> Any:
    return _lowered("remat", scan=True)


def unrolled_save() -> Any:
    return _lowered("save", scan=False)


def unrolled_offload() -> Any:
    return _lowered("offload", scan=False)


def unrolled_offload_no_cse() -> Any:
    return _lowered("offload", scan=False, prevent_cse=False)


# --- the table ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Row:
    """GiB of temporaries by XLA and by hloinspect, and the number of copies to the host that start late."""

    what: str
    device_gib: float
    estimated_device_gib: float
    host_gib: float
    estimated_host_gib: float
    sent: int
    late: int


def measure(program: Program, target_name: str, out: Path) -> tuple[Row, str]:
    """Compile one program, and return its row and the JAX version. Raises HloInspectError where it does not compile."""
    from hloinspect.compile.launch import compile_step
    from hloinspect.hardware import load_target
    from hloinspect.hlo.load import load_module
    from hloinspect.memory.estimate import memory_of
    from hloinspect.offload.transfers import find_offload

    step = f"{Path(__file__).resolve()}:{program.step}"
    result = compile_step(step, load_target(target_name), out=out, xla_flags=program.flags)
    module = load_module(result.module_text)
    memory = memory_of(find_offload(module))
    if memory is None:
        raise SystemExit(f"{program.what}: the module is not scheduled")
    xla = result.manifest.memory
    row = Row(
        what=program.what,
        device_gib=xla["temp_size_in_bytes"] / GIB,
        estimated_device_gib=memory.device.temp_bytes / GIB,
        host_gib=xla["host_temp_size_in_bytes"] / GIB,
        estimated_host_gib=memory.host.temp_bytes / GIB,
        sent=len(memory.releases),
        late=len(memory.late),
    )
    return row, result.manifest.versions["jax"] or "of unknown version"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--target", default="h100")
    parser.add_argument("-o", type=Path, default=None, help="keep what was compiled in this directory")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="hloinspect-") as scratch:
        rows, version = [], ""
        for number, program in enumerate(PROGRAMS):
            row, version = measure(program, options.target, (options.o or Path(scratch)) / f"{number}_{program.step}")
            rows.append(row)
    print(f"jax {version}, {options.target}, {datetime.date.today().isoformat()}; GiB of temporaries\n")
    print("| program | device, XLA | device, hloinspect | off | host, XLA | host, hloinspect | late |")
    print("|---|---|---|---|---|---|---|")
    for row in rows:
        off = 100 * (row.estimated_device_gib / row.device_gib - 1)
        late = f"{row.late} of {row.sent}" if row.sent else ""
        print(
            f"| {row.what} | {row.device_gib:.2f} | {row.estimated_device_gib:.2f} | {off:+.1f} % "
            f"| {row.host_gib:.2f} | {row.estimated_host_gib:.2f} | {late} |"
        )


if __name__ == "__main__":
    main()
