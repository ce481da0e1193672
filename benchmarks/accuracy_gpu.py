"""GPU time: measured products, collectives and a JAX training step, beside what the model says of them.

    python benchmarks/accuracy_gpu.py [FOLDER] [--write]

Nothing is compiled: this takes some seconds. FOLDER (by default ``../shared/corpus/gpu``) holds ``matmul.csv`` and
``collectives.csv``, which are openxla/xla's own tables of measured kernels
(``xla/service/gpu/model/default_{matmul,collective}_perf_table.txtpb``), and ``h100_maxtext_fsdp4``, a step of MaxText
on four H100 with the GPU time of each of its instructions (NVIDIA/JAX-Toolbox). ``--write`` puts the tables into
docs/accuracy.md.

The rows of both tables are in two halves, like the fields of a chessboard. Constants in target files may be fitted to
one half. The other half is what they are judged on.
"""

from __future__ import annotations

import argparse
import csv
import json
import lzma
import math
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from statistics import quantiles
from typing import Any

from accuracy_tables import ROOT, markdown, number

from hloinspect.hardware import Target, load_target
from hloinspect.hardware.target import FAMILIES, Side
from hloinspect.hlo.load import load_module
from hloinspect.hlo.model import Computation, Instruction, Module
from hloinspect.offload.transfers import find_offload
from hloinspect.predict import predict
from hloinspect.predict.collective import COLLECTIVES, Collective, collective_of
from hloinspect.predict.cost import Cost, cost_of
from hloinspect.predict.products import Product
from hloinspect.predict.scenario import Scenario, scenarios

FOLDER = ROOT.parent / "shared" / "corpus" / "gpu"
DOCUMENT = ROOT / "docs" / "accuracy.md"
STEP = "h100_maxtext_fsdp4"
STEP_DEVICES = 4
SCATTER = "input_scatter_fusion"
"""The gradient of the embedding. The run's data had one token everywhere, so that all of its rows collide."""
COLLIDING = "scatter with all rows colliding"
SCATTERLESS_MS, WHOLE_MS = 61.6, (120.1, 130.1)
"""Measured times of four steady steps, from trace.parquet. Less the scatter of the slowest rank: 61.4 to 61.7."""

PRODUCT_SIZES = ((0.0, 2e9, "below 2 GFLOP"), (2e9, 10e9, "2 to 10"), (10e9, 1e11, "10 to 100"), (1e11, 1e30, "above"))
EXCHANGE_SIZES = (
    (0, 1 << 16, "below 64 KiB"),
    (1 << 16, 1 << 20, "64 KiB to 1 MiB"),
    (1 << 20, 1 << 24, "1 to 16 MiB"),
    (1 << 24, 1 << 27, "16 to 128 MiB"),
    (1 << 27, 1 << 62, "above"),
)
LAUNCH_US = {"h100": 7.0, "b200": 10.0, "gb200": 8.0}
"""Estimates of the launch in XLA's table of collectives. H100: an all-reduce of four takes 18.1 us there at 64 KiB, and
kernels of small ones take 10 to 13 us in the step below. B200: an all-reduce of two takes 20.5 to 22.6 us, and 9 in
nccl-tests with symmetric buffers (NVIDIA/nccl-tests issue 333), which XLA's are not. GB200: between both, from no
measurement."""
MAIN_KINDS = ("all-gather", "reduce-scatter", "all-reduce")
OTHER_KINDS = ("all-to-all", "collective-permute")
FEWEST = 5
"""Instructions of a class that the step's table shows by itself."""


@dataclass(frozen=True, slots=True)
class Timed:
    """One measured time beside the predicted ones, in microseconds. ``fitted`` says that constants may be fitted to it.

    ``what`` are the keys of the groups that it is counted in, the widest first. ``times`` is how often it runs.
    """

    what: tuple[str, ...]
    measured_us: float
    predicted_us: float
    low_us: float
    high_us: float
    fitted: bool = False
    times: float = 1.0

    @property
    def ratio(self) -> float:
        """Return the predicted time over the measured one."""
        return self.predicted_us / self.measured_us

    @property
    def inside(self) -> bool:
        """Return whether the measured time lies within the predicted range."""
        return self.low_us <= self.measured_us <= self.high_us


@dataclass(frozen=True, slots=True)
class Summary:
    """What a group of times comes to. ``within`` is the share of predictions at most ``margin`` from the measured."""

    count: int
    total: float
    p10: float
    median: float
    p90: float
    within: float
    inside: float
    width: float

    def cells(self) -> tuple[str, ...]:
        """Return the figures as cells of a table."""
        ratios = (self.total, self.p10, self.median, self.p90)
        return (
            str(self.count),
            *(f"{ratio:.2f}" if ratio >= 0.01 else number(ratio) for ratio in ratios),
            f"{self.within:.0%}",
            f"{self.inside:.0%}",
            f"{self.width:.2f}",
        )


def summary(times: Sequence[Timed], margin: float) -> Summary:
    """Return what a group of times comes to. Raises ValueError for none."""
    if not times:
        raise ValueError("no times")
    ratios = [each.ratio for each in times]
    p10, median, p90 = _percentiles(ratios, 10, 50, 90)
    return Summary(
        len(times),
        sum(each.predicted_us * each.times for each in times) / sum(each.measured_us * each.times for each in times),
        p10,
        median,
        p90,
        sum(abs(ratio - 1) <= margin for ratio in ratios) / len(times),
        sum(each.inside for each in times) / len(times),
        _percentiles([each.high_us / each.low_us for each in times], 50)[0],
    )


def _percentiles(values: Sequence[float], *which: int) -> tuple[float, ...]:
    cuts = quantiles(values, n=100, method="inclusive") if len(values) > 1 else [values[0]] * 99
    return tuple(cuts[each - 1] for each in which)


def in_order(times: Iterable[Timed]) -> dict[tuple[str, ...], list[Timed]]:
    """Return times by their groups, in the order in which the groups first occur."""
    groups: dict[tuple[str, ...], list[Timed]] = {}
    for each in times:
        groups.setdefault(each.what, []).append(each)
    return groups


def span(figure: Callable[[Scenario], float], cases: Sequence[Scenario]) -> tuple[float, float, float]:
    """Return a time in picoseconds under the central scenario, and its least and greatest, in microseconds."""
    values = [figure(case) / 1e6 for case in cases]
    return values[0], min(values), max(values)


def _size(sizes: Sequence[tuple[float, float, str]], value: float) -> str:
    return next(name for low, high, name in sizes if low <= value < high)


# --- products


def product_times(path: Path) -> Iterator[Timed]:
    """Yield the products of XLA's table. Those in f8 on H100 are left out: they are faster than the chip's peak."""
    with path.open(newline="") as file:
        for row in csv.DictReader(file):
            count, rows, columns, depth = (int(row[key]) for key in ("batch", "m", "n", "k"))
            dtype = row["types"].partition("x")[0]
            if row["device"] == "h100" and dtype.startswith("f8"):
                continue
            product = Product(count, rows, columns, depth)
            central, low, high = span(*_product(row["device"], dtype, product))
            name = "f8" if dtype.startswith("f8") else "f32 (TF32)" if dtype == "f32" else dtype
            what = (f"{row['device'].upper()} {name}", _size(PRODUCT_SIZES, product.flops))
            fitted = sum(size.bit_length() for size in (count, rows, columns, depth)) % 2 == 0
            yield Timed(what, float(row["time_us"]), central, low, high, fitted)


def _product(device: str, dtype: str, product: Product) -> tuple[Callable[[Scenario], float], Sequence[Scenario]]:
    """Return the time of a product by scenario. XLA's table has f8 products with bf16 results."""
    operand, result = {"bf16": (2, 2), "f32": (4, 4)}.get(dtype, (1, 2))
    sides = (product.rows + product.columns) * product.depth * operand
    moved = product.count * (sides + product.rows * product.columns * result)
    cost = Cost(product.flops, dtype, bytes=moved, product=product)
    return lambda case: cost.time_ps(_target(device)[0], case), _at_full_clock(device, dtype)


@lru_cache
def _at_full_clock(device: str, dtype: str) -> tuple[Scenario, ...]:
    """Return the scenarios of a short run: without the clock of a long step, and with the spread of the figures of
    products alone."""
    target, (central, *_) = _target(device)
    figures = target.products[FAMILIES.get(dtype, dtype)]
    assert target.sustained is not None
    sides: tuple[Side, ...] = ("value", "high", "low")
    shares = [central.efficiency_of(dtype) * figures.gain.at(side) / figures.gain.value for side in sides]
    return tuple(
        replace(central, figures=side, dtype_efficiency={dtype: share / target.sustained.value})
        for side, share in zip(sides, shares, strict=True)
    )


@lru_cache
def _target(name: str) -> tuple[Target, tuple[Scenario, ...]]:
    target = load_target(name)
    return target, scenarios(target, 1)


# --- collectives


def exchange_times(path: Path) -> Iterator[Timed]:
    """Yield the collectives of XLA's table, all of them inside one NVLink domain."""
    with path.open(newline="") as file:
        rows = [*csv.DictReader(file)]
    sizes: dict[tuple[str, ...], set[int]] = {}
    members: dict[str, set[int]] = {}
    for row in rows:
        key = (row["device"], row["opcode"], row["members"], row["groups"])
        sizes.setdefault(key, set()).add(int(row["bytes"]))
        members.setdefault(row["device"], set()).add(int(row["members"]))
    for row in rows:
        key = (row["device"], row["opcode"], row["members"], row["groups"])
        size, count = int(row["bytes"]), int(row["members"])
        place = sorted(sizes[key]).index(size) + sorted(members[row["device"]]).index(count)
        if row["opcode"] == "collective-permute":
            count = 2  # each device sends to one other
        central, low, high = span(*_exchange(row["device"], Collective(row["opcode"], size, count, count)))
        what = (row["device"].upper(), row["opcode"], _size(EXCHANGE_SIZES, size))
        yield Timed(what, float(row["time_us"]), central, low, high, place % 2 == 0)


def _exchange(device: str, collective: Collective) -> tuple[Callable[[Scenario], float], Sequence[Scenario]]:
    """Return the time of a collective by scenario, with the launch that the table's times contain.

    The launch has the range of its kind: that range was fitted on both together.
    """
    target, cases = _target(device)
    kind = target.exchanges[collective.opcode]
    spread = {"low": kind.high, "value": 1.0, "high": kind.low}

    def time_ps(case: Scenario) -> float:
        launch = LAUNCH_US[device] * 1e6 * spread[case.figures]
        return collective.time_ps(target, case.collective_efficiency, case.figures) + launch

    return time_ps, cases


# --- the step on four H100


@dataclass(frozen=True, slots=True)
class Step:
    """The module of the step, and what was measured of each of its instructions."""

    module: Module
    rows: Sequence[Mapping[str, Any]]


def load_step(folder: Path) -> Step:
    """Return the step in a folder."""
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch) / "step.hlo.pb"
        path.write_bytes(lzma.decompress(next(folder.glob("*.hlo.pb.xz")).read_bytes()))
        module = load_module(path)
    return Step(module, json.loads((folder / "instructions.json").read_text())["instructions"])


def step_times(step: Step) -> Iterator[Timed]:
    """Yield each instruction of the step that takes GPU time, by class, with the median of its runs.

    Of a collective it is the tenth percentile: the longer runs wait for another rank.
    """
    module = step.module
    places = {each.name: (computation, each) for computation in module.computations.values() for each in computation}
    target = load_target("h100")
    cases = scenarios(target, STEP_DEVICES)
    for row in step.rows:
        computation, instruction = places[row["instruction"]]
        what, figure = _work(module, computation, instruction, target)
        if row["instruction"] == SCATTER:
            what = COLLIDING
        waits = instruction.start_of in COLLECTIVES or instruction.opcode in COLLECTIVES
        measured = row["p10_us" if waits else "median_us"]
        yield Timed((what,), measured, *span(figure, cases), times=row["runs_per_device_step"])


def _work(
    module: Module, computation: Computation, instruction: Instruction, target: Target
) -> tuple[str, Callable[[Scenario], float]]:
    """Return the class of an instruction and its time by scenario."""
    collective = collective_of(module, computation, instruction, STEP_DEVICES, STEP_DEVICES)
    if collective is not None:
        size = "above 1 MiB" if collective.bytes > 1 << 20 else "small"
        return f"{collective.opcode}, {size}", lambda case: collective.time_ps(
            target, case.collective_efficiency, case.figures
        )
    cost = cost_of(module, computation, instruction)
    return class_of(module, instruction, cost), lambda case: cost.time_ps(target, case)


def whole_step(step: Step) -> tuple[tuple[str, ...], ...]:
    """Return the time of the whole step in milliseconds, measured and predicted, as rows of a table.

    Predicted without the scatter is the step less what the scatter is predicted to take.
    """
    target = load_target("h100")
    found = predict(find_offload(step.module), target, STEP_DEVICES, target.levels[0].devices)
    (scatter,) = (each for each in step_times(step) if each.what == (COLLIDING,))
    whole = [found.step.time_ps / 1e9, found.low_ps / 1e9, found.high_ps / 1e9]
    parts = (scatter.predicted_us, scatter.low_us, scatter.high_us)
    without = [time - part / 1e3 for time, part in zip(whole, parts, strict=True)]
    return tuple(
        (what, measured, f"{central:.1f}", f"{low:.1f} to {high:.1f}", ratio)
        for what, measured, (central, low, high), ratio in (
            (
                "less the scatter of the slowest rank",
                f"{SCATTERLESS_MS}",
                without,
                f"{without[0] / SCATTERLESS_MS:.2f}",
            ),
            ("whole", f"{WHOLE_MS[0]} to {WHOLE_MS[1]}", whole, f"{whole[0] / sum(WHOLE_MS) * 2:.2f}"),
        )
    )


def class_of(module: Module, instruction: Instruction, cost: Cost) -> str:
    """Return the class of an instruction that runs as a kernel: by size for a product, else by what it does."""
    if cost.matrix_flops:
        library = "cuBLAS" if instruction.opcode == "custom-call" else "Triton"
        return f"{library}, {_size(PRODUCT_SIZES, cost.matrix_flops)}"
    if instruction.opcode != "fusion":
        return instruction.custom_call_target or instruction.opcode
    body = module.computations[next(iter(instruction.called["calls"]))]
    kind = work_of(body)
    return f"{kind}, {'16 MB and more' if cost.bytes >= 16e6 else 'below 16 MB'}"


def work_of(body: Computation) -> str:
    """Return what a fusion does, by the rarest of its operations."""
    opcodes = {instruction.opcode for instruction in body}
    for opcode, name in (
        ("scatter", "scatter"),
        ("gather", "gather"),
        ("dynamic-update-slice", "update in place"),
        ("reduce", "reduce"),
        ("transpose", "transpose"),
        ("concatenate", "concatenate"),
        ("copy", "copy"),
    ):
        if opcode in opcodes:
            return name
    return "loop"


# --- tables

JUDGED = ("rows", "sum", "p10", "median", "p90")
MARGIN, EXCHANGE_MARGIN = 0.15, 0.25


def halves(times: Sequence[Timed], margin: float, keys: Sequence[str]) -> str:
    """Return a table with a row for each group: the half that was not fitted, then the other one."""
    rows = []
    for what, members in in_order(times).items():
        judged = summary([each for each in members if not each.fitted], margin)
        fitted = summary([each for each in members if each.fitted], margin)
        rows.append((*what, *judged.cells(), f"{fitted.median:.2f}", f"{fitted.within:.0%}", f"{fitted.inside:.0%}"))
    return markdown((*keys, *_header(margin), "fitted: median", f"within {margin:.0%}", "inside"), rows)


def _header(margin: float) -> tuple[str, ...]:
    return (*JUDGED, f"within {margin:.0%}", "inside", "high / low")


def product_table(times: Iterable[Timed]) -> str:
    """Return the table of products by device and type, of all sizes together and by size."""
    sizes = ["all", *(name for *_, name in PRODUCT_SIZES)]
    found = [each for time in times for each in (time, replace(time, what=(time.what[0], "all")))]
    found.sort(key=lambda each: (each.what[0], sizes.index(each.what[1])))
    return halves(found, MARGIN, ("products", "size"))


def exchange_table(times: Iterable[Timed]) -> str:
    """Return the table of collectives from 64 KiB on by device and kind; of those that training is made of by size."""
    sizes = ["all", *(name for *_, name in EXCHANGE_SIZES[1:])]
    found = []
    for time in times:
        device, kind, size = time.what
        if size not in sizes:
            continue
        main = kind in MAIN_KINDS
        kind = ", ".join(MAIN_KINDS) if main else kind
        found.append(replace(time, what=(device, kind, "all")))
        if main:
            found.append(replace(time, what=(device, kind, size)))
    found.sort(key=lambda each: (each.what[0], each.what[1] in OTHER_KINDS, each.what[1], sizes.index(each.what[2])))
    return halves(found, EXCHANGE_MARGIN, ("device", "kind", "bytes"))


def step_table(times: Iterable[Timed]) -> str:
    """Return the table of the step's instructions by class, the most measured time first."""
    found = [*times]
    few = {what for what, members in in_order(found).items() if len(members) < FEWEST and what != (COLLIDING,)}
    groups = in_order(replace(each, what=("others",)) if each.what in few else each for each in found)
    rows = [
        (what, f"{_spent(members):.2f}", *summary(members, EXCHANGE_MARGIN).cells())
        for (what,), members in sorted(groups.items(), key=lambda item: -_spent(item[1]))
    ]
    return markdown(("class", "ms a step", *_header(EXCHANGE_MARGIN)), rows)


def _spent(times: Iterable[Timed]) -> float:
    """Return milliseconds a step."""
    return math.fsum(each.measured_us * each.times for each in times) / 1e3


def sections(folder: Path) -> dict[str, str]:
    """Return the tables by the name of their place in docs/accuracy.md."""
    step = load_step(folder / STEP)
    return {
        "gpu step": markdown(("step, ms", "measured", "predicted", "range", "ratio"), whole_step(step)),
        "gpu instructions": step_table(step_times(step)),
        "gpu products": product_table(product_times(folder / "matmul.csv")),
        "gpu collectives": exchange_table(exchange_times(folder / "collectives.csv")),
    }


def written(document: str, tables: dict[str, str]) -> str:
    """Return a document with tables between the two comments that name each. Raises ValueError where one is missing."""
    for name, table in tables.items():
        start, end = f"<!-- {name} -->\n", f"<!-- end of {name} -->\n"
        before, found, rest = document.partition(start)
        _, closed, after = rest.partition(end)
        if not found or not closed:
            raise ValueError(f"no place for {name}")
        document = f"{before}{start}\n{table}\n\n{end}{after}"
    return document


def main(write: Callable[[str], None] = print) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("folder", nargs="?", type=Path, default=FOLDER)
    parser.add_argument("--write", action="store_true", help="put the tables into docs/accuracy.md")
    arguments = parser.parse_args()
    tables = sections(arguments.folder)
    for name, table in tables.items():
        write(f"### {name}\n\n{table}\n")
    if arguments.write:
        DOCUMENT.write_text(written(DOCUMENT.read_text(), tables))


if __name__ == "__main__":
    main()
