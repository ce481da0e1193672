"""Comparison of predictions with the NVIDIA GPU at hand: host copies, and small training steps with and without
offload.

    python benchmarks/calibrate_gpu.py [--target h200] [--out DIRECTORY] [--seconds 200]

needs jax with CUDA and one GPU, requires no input, and ends in under four minutes: what does not fit into ``--seconds``
is left out and listed. It writes ``calibration.json`` and ``calibration.md`` and keeps each step's module and trace in
DIRECTORY. Without a GPU it says so and exits with 3.

The comparing functions take plain values and need neither jax nor a GPU (tests/end_to_end/test_accuracy.py).
"""

from __future__ import annotations

import argparse
import contextlib
import json
import logging
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from accuracy_published import COPY_BYTES, copy_rate_gbps
from accuracy_tables import ROOT, markdown, number, versions

from hloinspect.errors import TargetError
from hloinspect.hardware import Target, load_target, target_of_device
from hloinspect.hlo.load import load_module
from hloinspect.hlo.model import Module
from hloinspect.kinds import D2H, H2D
from hloinspect.offload.transfers import Offload, Transfer, find_offload
from hloinspect.predict import Prediction, predict
from hloinspect.predict.scenario import scenarios

SCHEMA = "hloinspect.gpu-calibration/1"
NO_GPU = 3
BOTH = "both"
COPY_SIZES = (4 << 20, 64 << 20, COPY_BYTES)
SHAPES = {"LAYERS": 4, "BATCH": 4, "SEQ": 2048, "DIM": 4096, "HIDDEN": 16384, "HEADS": 32, "VOCAB": 8192}
STEPS = ("save", "offload_scan", "offload_unrolled", "remat")
WARM, TIMED, TRACED = 3, 10, 3
# Copies inside a CUDA graph lose the name of their instruction in a trace.
OPTIONS = {"xla_gpu_enable_command_buffer": ""}
MAX_NESTING = 4


@dataclass(frozen=True, slots=True)
class CopyTime:
    """Host copies of one size: ``direction`` is d2h, h2d or both (one each way, issued together)."""

    direction: str
    bytes: int
    median_us: float


@dataclass(frozen=True, slots=True)
class TracedCopy:
    """A copy or a kernel in a trace, with the HLO instruction that it is annotated with."""

    hlo_op: str
    duration_us: float


@dataclass(frozen=True, slots=True)
class Ratio:
    """A measured figure (None: not found) beside the predicted one and its range, all in ``unit``."""

    what: str
    unit: str
    measured: float | None
    predicted: float
    low: float
    high: float

    @property
    def ratio(self) -> float | None:
        """Return the predicted figure over the measured one, or None where nothing was measured."""
        return self.predicted / self.measured if self.measured else None

    @property
    def inside(self) -> bool | None:
        """Return whether the measured figure lies within the predicted range."""
        return None if self.measured is None else self.low <= self.measured <= self.high


@dataclass(slots=True)
class Result:
    """All results of a run."""

    target: str
    device: str
    made_with: str
    copies: list[Ratio] = field(default_factory=list)
    steps: list[Ratio] = field(default_factory=list)
    transfers: list[Ratio] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)


# --- comparing ------------------------------------------------------------------------------------


def compare_copies(measured: Iterable[CopyTime], target: Target) -> list[Ratio]:
    """Return the rates of host copies beside the target's, in GB/s in each direction."""
    found = []
    for copy in measured:
        for direction in (D2H, H2D) if copy.direction == BOTH else (copy.direction,):
            rates = [
                copy_rate_gbps(target, case, direction, copy.direction == BOTH, copy.bytes)
                for case in scenarios(target, 1)
            ]
            beside = " beside the other direction" if copy.direction == BOTH else ""
            what = f"{direction} of {copy.bytes >> 20} MiB{beside}"
            found.append(Ratio(what, "GB/s", copy.bytes / copy.median_us / 1e3, rates[0], min(rates), max(rates)))
    return found


def compare_step(name: str, times_ms: Sequence[float], prediction: Prediction) -> Ratio:
    """Return the median step beside the predicted one, in milliseconds."""
    predicted = (prediction.step.time_ps, prediction.low_ps, prediction.high_ps)
    return Ratio(f"{name}: step", "ms", statistics.median(times_ms), *(value / 1e9 for value in predicted))


def compare_memory(name: str, peak_bytes: int | None, assigned_bytes: int) -> Ratio:
    """Return the allocator's peak beside what XLA assigned, in GiB.

    Return None where the device does not give it, or an earlier step's peak was higher.
    """
    measured = None if peak_bytes is None else peak_bytes / 2**30
    assigned = assigned_bytes / 2**30
    return Ratio(f"{name}: device memory", "GiB", measured, assigned, assigned, assigned)


def names_of(module: Module, transfer: Transfer) -> frozenset[str]:
    """Return every name that a trace may give a transfer: its start's, and those of what the start runs.

    Under ``lax.scan`` an event has the name of the copy inside the fusion inside the async computation.
    """
    names = {transfer.start}
    computations = [transfer.computation]
    start = next((i for i in module.computations[transfer.computation] if i.name == transfer.start), None)
    callees = list(start.called_names) if start is not None else []
    for _ in range(MAX_NESTING):
        computations, callees = callees, []
        for name in computations:
            for instruction in module.computations.get(name, ()):
                names.add(instruction.name)
                callees += instruction.called_names
    return frozenset(names)


def compare_transfers(
    name: str, offload: Offload, prediction: Prediction, traced: Sequence[TracedCopy], steps: int
) -> list[Ratio]:
    """Return each transfer's duration (microseconds each) and count a step beside those in a trace of ``steps`` steps.

    A transfer that no event is annotated with has None for its measured duration and 0 for its count.
    """
    link = prediction.target.link
    assert link is not None
    found = []
    for transfer in offload.transfers:
        if not transfer.executions:
            continue
        names = names_of(offload.program.module, transfer)
        durations = [copy.duration_us for copy in traced if copy.hlo_op in names]
        rates = [
            copy_rate_gbps(prediction.target, case, transfer.direction, False, int(transfer.bytes))
            for case in scenarios(prediction.target, prediction.devices)
        ]
        alone = [transfer.bytes / rate / 1e3 for rate in rates]
        each = prediction.transfers[transfer.id].times.duration_ps / transfer.executions / 1e6
        label = f"{name}: {transfer.direction} {transfer.id} `{transfer.start}`"
        low, high = min(*alone, each), max(*alone, each)
        measured = statistics.median(durations) if durations else None
        found.append(Ratio(f"{label}, each", "us", measured, each, low, high))
        count = float(transfer.executions)
        found.append(Ratio(f"{label}, a step", "copies", len(durations) / steps, count, count, count))
    return found


def to_json(result: Result) -> str:
    """Return the result as JSON text, each comparison with its ratio."""

    def entry(ratio: Ratio) -> dict[str, object]:
        return {**asdict(ratio), "ratio": ratio.ratio, "inside": ratio.inside}

    parts: dict[str, object] = {
        name: [entry(ratio) for ratio in getattr(result, name)] for name in ("copies", "steps", "transfers")
    }
    head = {"schema": SCHEMA, "target": result.target, "device": result.device, "made_with": result.made_with}
    return json.dumps({**head, **parts, "left_out": result.left_out}, indent=1) + "\n"


def to_markdown(result: Result) -> str:
    """Return the result as Markdown."""
    lines = [f"Target {result.target}, measured on {result.device}. {result.made_with}.", ""]
    for title, ratios in (("Host copies", result.copies), ("Steps", result.steps), ("Transfers", result.transfers)):
        if ratios:
            lines += [
                f"### {title}",
                "",
                markdown(("what", "measured", "predicted", "range", "ratio", ""), rows(ratios)),
            ]
            lines.append("")
    lines += [f"Left out: {text}" for text in result.left_out]
    return "\n".join(lines).rstrip() + "\n"


def rows(ratios: Iterable[Ratio]) -> Iterator[tuple[str, ...]]:
    """Yield comparisons as rows of a table."""
    for ratio in ratios:
        measured = "none" if ratio.measured is None else f"{number(ratio.measured)} {ratio.unit}"
        span = number(ratio.low) if ratio.low == ratio.high else f"{number(ratio.low)} to {number(ratio.high)}"
        share = "" if ratio.ratio is None else f"{ratio.ratio:.2f}"
        mark = "outside the range" if ratio.inside is False else ""
        yield ratio.what, measured, number(ratio.predicted), span, share, mark


# --- measuring ------------------------------------------------------------------------------------


def find_gpu() -> Any | None:
    """Return the first CUDA device, or None where jax is missing or has none."""
    if not Path("/dev/nvidiactl").exists():  # no driver: the plugin would log at length that it finds no library
        logging.getLogger("jax._src.xla_bridge").setLevel(logging.CRITICAL + 1)
    try:
        import jax

        return jax.devices("cuda")[0]
    except (ImportError, RuntimeError):
        return None


def median_us(run: Callable[[], Any], times: int) -> float:
    """Return the median of wall times until the result is ready, after one run that is not counted."""
    import jax

    jax.block_until_ready(run())
    durations = []
    for _ in range(times):
        begin = time.perf_counter()
        jax.block_until_ready(run())
        durations.append((time.perf_counter() - begin) * 1e6)
    return statistics.median(durations)


def measure_copies(device: Any) -> Iterator[CopyTime]:
    """Yield the times of host copies of each size, each direction alone and both together."""
    import jax
    import jax.numpy as jnp

    def at(kind: str) -> Any:
        return jax.sharding.SingleDeviceSharding(device, memory_kind=kind)

    on_device, on_host = at("device"), at("pinned_host")
    out = jax.jit(lambda x: jax.device_put(x, on_host), out_shardings=on_host)
    back = jax.jit(lambda x: jax.device_put(x, on_device), out_shardings=on_device)
    cross = jax.jit(
        lambda x, y: (jax.device_put(x, on_host), jax.device_put(y, on_device)), out_shardings=(on_host, on_device)
    )
    for size in COPY_SIZES:
        here = jax.device_put(jnp.zeros(size // 4, jnp.float32), on_device)
        there = jax.device_put(here, on_host)
        yield CopyTime(D2H, size, median_us(lambda x=here: out(x), 10))
        yield CopyTime(H2D, size, median_us(lambda x=there: back(x), 10))
        yield CopyTime(BOTH, size, median_us(lambda x=here, y=there: cross(x, y), 10))


def peak_bytes(device: Any) -> int:
    """Return the allocator's highest use so far, which never falls, or 0 where the device does not give it."""
    return int((device.memory_stats() or {}).get("peak_bytes_in_use", 0))


def traced_copies(directory: Path) -> list[TracedCopy]:
    """Return the events on the GPU planes of the newest trace in a directory that have the name of an HLO
    instruction."""
    from jax.profiler import ProfileData

    newest = max(directory.rglob("*.xplane.pb"), key=lambda path: path.stat().st_mtime, default=None)
    found: list[TracedCopy] = []
    if newest is None:
        return found
    for plane in ProfileData.from_file(str(newest)).planes:
        if not plane.name.startswith("/device:GPU"):
            continue
        for line in plane.lines:
            for event in line.events:
                stats: Mapping[str, Any] = {key: value for key, value in event.stats if key}
                if "hlo_op" in stats:
                    found.append(TracedCopy(str(stats["hlo_op"]), event.duration_ns / 1e3))
    return found


def measure_step(name: str, device: Any, target: Target, out: Path, result: Result) -> None:
    """Compile, run and trace one step of examples/dense.py on the device, and compare it."""
    import dense
    import jax

    shapes = dense.shapes_from_environment()
    compiled = getattr(dense, name)().compile(compiler_options=dict(OPTIONS))
    module = out / f"{name}.hlo.pb"
    module.write_bytes(compiled.runtime_executable().hlo_modules()[0].as_serialized_hlo_module_proto())
    offload = find_offload(load_module(module))
    prediction = predict(offload, target, 1, 1)

    before = peak_bytes(device)
    params = jax.jit(lambda: dense.init_params(jax.random.key(0), shapes))()
    state = jax.jit(dense.init_optimizer)(params)
    tokens = jax.random.randint(jax.random.key(1), (shapes.batch, shapes.seq + 1), 0, shapes.vocab)
    times = []
    for index in range(WARM + TIMED):
        begin = time.perf_counter()
        params, state, loss = compiled(params, state, tokens)
        jax.block_until_ready(loss)
        if index >= WARM:
            times.append((time.perf_counter() - begin) * 1e3)
    with jax.profiler.trace(str(out / f"{name}.trace")):
        for _ in range(TRACED):
            params, state, loss = compiled(params, state, tokens)
        jax.block_until_ready((params, state, loss))
    sizes = compiled.memory_analysis()
    assigned = sizes.argument_size_in_bytes + sizes.temp_size_in_bytes + sizes.output_size_in_bytes
    after = peak_bytes(device)
    result.steps.append(compare_step(name, times, prediction))
    result.steps.append(compare_memory(name, after if after > before else None, assigned - sizes.alias_size_in_bytes))
    traced = traced_copies(out / f"{name}.trace")
    result.transfers += compare_transfers(name, offload, prediction, traced, TRACED)


def measure(device: Any, target: Target, out: Path, seconds: float) -> Result:
    """Measure everything, until the time is over."""
    import jax

    begin = time.monotonic()
    result = Result(target.name, device.device_kind, versions(f"jax {jax.__version__}"))
    result.copies = compare_copies(measure_copies(device), target)
    write(result, out)
    os.environ.update({name: str(value) for name, value in SHAPES.items() if name not in os.environ})
    sys.path.append(str(ROOT / "examples"))
    longest = 0.0
    for name in STEPS:
        started = time.monotonic()
        if started - begin + longest > seconds:
            result.left_out.append(f"{name}: no time was left")
            continue
        with contextlib.ExitStack() as stack:
            stack.callback(lambda: write(result, out))
            try:
                measure_step(name, device, target, out, result)
            except Exception as error:  # a step that does not fit or compile must not lose the others
                result.left_out.append(f"{name}: {type(error).__name__}: {str(error).splitlines()[0][:200]}")
        longest = max(longest, time.monotonic() - started)
    return result


def write(result: Result, out: Path) -> None:
    """Write both files, whole or not at all."""
    for name, text in (("calibration.json", to_json(result)), ("calibration.md", to_markdown(result))):
        partial = out / f".{name}"
        partial.write_text(text, encoding="utf-8")
        os.replace(partial, out / name)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--target", help="default: the one whose XLA description has the device's name")
    parser.add_argument("--out", type=Path, default=Path("calibration"))
    parser.add_argument("--seconds", type=float, default=200.0, help="start no step that would end later (default 200)")
    arguments = parser.parse_args()
    device = find_gpu()
    if device is None:
        print("calibrate_gpu: no CUDA GPU is at hand, or no jax with CUDA: nothing was measured", file=sys.stderr)
        return NO_GPU
    name = arguments.target or target_of_device(device.device_kind)
    if name is None:
        print(f"calibrate_gpu: no target describes {device.device_kind!r}: name one with --target", file=sys.stderr)
        return 2
    try:
        target = load_target(name)
    except TargetError as error:
        print(f"calibrate_gpu: {error}", file=sys.stderr)
        return 2
    if target.link is None:
        print(f"calibrate_gpu: target {name} has no host link to compare with", file=sys.stderr)
        return 2
    arguments.out.mkdir(parents=True, exist_ok=True)
    print(to_markdown(measure(device, target, arguments.out, arguments.seconds)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
