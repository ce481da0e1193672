"""Matrix products: our time beside XLA's own speed-of-light estimate, and what either leaves out.

    python benchmarks/accuracy_sol.py [--target h100]

compiles benchmarks/accuracy_steps.py:products and examples/dense.py:save without a device, with
``xla_gpu_collect_cost_model_stats``, and reads the cost entries that XLA leaves in each product's backend_config. The
entry named "sol" comes from measured tables of the target (Hopper, B200); the others are not used.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from accuracy_tables import ROOT, five_numbers, markdown, number, versions

from hloinspect.compile.launch import compile_step
from hloinspect.hardware import Target, load_target
from hloinspect.hlo.load import load_module
from hloinspect.hlo.model import Instruction, Module
from hloinspect.hlo.shape import Shape
from hloinspect.inputs.manifest import CompileResult
from hloinspect.predict.cost import Cost, cost_of
from hloinspect.predict.scenario import scenarios

STATISTICS = "xla_gpu_collect_cost_model_stats=true"
STEPS = ("benchmarks/accuracy_steps.py:products", "examples/dense.py:save")
SIZES = (
    (0.0, 10e9, "bf16 matrices, below 10 GFLOP"),
    (10e9, 100e9, "bf16 matrices, 10 to 100"),
    (100e9, 1e12, "bf16 matrices, 100 to 1000"),
    (1e12, 1e30, "bf16 matrices, above"),
)


@dataclass(frozen=True, slots=True)
class Product:
    """One matrix product: XLA's estimate and ours (central, lowest, highest), in microseconds, and what bounds ours.

    ``form`` is ``matrices`` for a bf16 product of two matrices, the one form that XLA has measured tables for; else
    ``batched``, ``f32 result`` (split along the contracted side, or requested so) or the operands' type.
    """

    name: str
    form: str
    cost: Cost
    sol_us: float
    ours_us: float
    low_us: float
    high_us: float
    bound: str

    @property
    def ratio(self) -> float:
        """Return our time over XLA's."""
        return self.ours_us / self.sol_us

    @property
    def inside(self) -> bool:
        """Return whether XLA's estimate lies within our range."""
        return self.low_us <= self.sol_us <= self.high_us


def sol_us(instruction: Instruction) -> float | None:
    """Return the microseconds of the entry named "sol" in an instruction's backend_config, or None where there is
    none."""
    entries = instruction.backend_config.get("reification_cost", ())
    times = [entry.get("exec_time_us") for entry in entries if isinstance(entry, dict) and entry.get("name") == "sol"]
    return float(times[0]) if times and times[0] else None


def form_of(result: Shape, dtype: str) -> str:
    """Return the form of a product of ``dtype`` operands in XLA's tables: see :class:`Product`."""
    if dtype != "bf16":
        return dtype
    if result.dtype != "bf16":
        return "f32 result"
    return "matrices" if len(result.dims) == 2 else "batched"


def products(module: Module, target: Target) -> Iterator[Product]:
    """Yield every matrix product of a module that XLA has a speed-of-light estimate for.

    Other fusions have an entry "sol" too, but only a placeholder of 0.001 or 0.01 us.
    """
    cases = scenarios(target, 1)
    for computation in module.computations.values():
        for instruction in computation:
            theirs = sol_us(instruction)
            if theirs is None:
                continue
            cost = cost_of(module, computation, instruction)
            if not cost.matrix_flops:
                continue
            times = [cost.time_ps(target, case) / 1e6 for case in cases]
            bound = cost.bound(target, cases[0])
            form = form_of(instruction.shape, cost.matrix_dtype)
            yield Product(instruction.name, form, cost, theirs, times[0], min(times), max(times), bound)


def by_size(found: Sequence[Product]) -> str:
    """Return our times over XLA's: bf16 products of two matrices by size, the other forms each as a whole."""
    plain = [p for p in found if p.form == "matrices"]
    groups = [(label, [p for p in plain if low <= p.cost.matrix_flops < high]) for low, high, label in SIZES]
    forms = sorted({p.form for p in found} - {"matrices"})
    groups += [(form, [p for p in found if p.form == form]) for form in forms]
    rows = []
    for label, members in groups:
        if members:
            spread = (f"{value:.2f}" for value in five_numbers([p.ratio for p in members]))
            rows.append((label, str(len(members)), *spread, f"{sum(p.inside for p in members)} of {len(members)}"))
    header = ("products", "count", "min", "quarter", "median", "three quarters", "max", "XLA's within our range")
    return markdown(header, rows)


def outliers(found: Iterable[Product], count: int = 10) -> str:
    """Return those furthest from 1 in either direction."""
    worst = sorted(found, key=lambda p: -max(p.ratio, 1 / p.ratio))[:count]
    rows = (
        (
            f"`{p.name}`, {p.form}",
            number(p.cost.matrix_flops / 1e9),
            number(p.cost.bytes / 1e6),
            number(p.sol_us),
            number(p.ours_us),
            f"{p.ratio:.2f}",
            p.bound,
        )
        for p in worst
    )
    return markdown(("product", "GFLOP", "MB", "XLA us", "ours us", "ours / XLA's", "ours is bound by"), rows)


def compiled(step: str, target: Target, out: Path, flags: Sequence[str]) -> CompileResult:
    """Return a step of this checkout, compiled."""
    return compile_step(str(ROOT / step), target, out=out, xla_flags=flags)


def main(write: Callable[[str], None] = print) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--target", default="h100", help="h100, h200 or b200: XLA has tables for these")
    arguments = parser.parse_args()
    target = load_target(arguments.target)
    found: list[Product] = []
    with tempfile.TemporaryDirectory() as scratch:
        for index, step in enumerate(STEPS):
            result = compiled(step, target, Path(scratch) / str(index), [STATISTICS])
            found += products(load_module(result.module_proto), target)
    write(versions(f"jax {result.manifest.versions.get('jax')}", f"target {target.name}") + "\n")
    if not found:
        write("XLA left no estimate named sol: this target, or this jax, has none.")
        return
    write(by_size(found) + "\n")
    write(outliers([p for p in found if p.form == "matrices"]))


if __name__ == "__main__":
    main()
