"""MaxText's steps for 128 GB200: predicted time with its range, stall, FLOPs, and the time of the prediction.

    python benchmarks/accuracy_maxtext.py DIRECTORY

reads every ``*.hlo.gz`` of a directory of modules (optimized HLO, compiled for 128 GPUs as 2x16x4; MaxText's own
commands are in docs/accuracy.md). Nothing here is measured on hardware: the table shows that the figures are possible.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from accuracy_tables import markdown, number, versions

from hloinspect.hardware import Target, load_target
from hloinspect.hlo.load import load_module
from hloinspect.kinds import D2H
from hloinspect.memory.estimate import memory_of
from hloinspect.offload.transfers import Offload, find_offload
from hloinspect.predict import Prediction, predict
from hloinspect.predict.schedule import Run, schedule_of

DEVICES, DOMAIN = 128, 64


@dataclass(frozen=True, slots=True)
class Step:
    """One module: its prediction, its matrix FLOPs a step, the seconds of CPU from file to prediction, and the number
    of its copies to the host that start only when the backward pass has begun."""

    name: str
    prediction: Prediction
    offload: Offload
    flops: float
    seconds: float
    late: int

    def utilization(self, target: Target) -> float:
        """Return the matrix FLOPs a second over the bf16 peak, recomputation included."""
        return self.flops / (self.prediction.step.time_ps / 1e12) / target.peak_flops["bf16"].value


def matrix_flops(offload: Offload) -> float:
    """Return the matrix FLOPs of a step on one device, loops counted."""
    executions = offload.program.executions
    return sum(
        cost.matrix_flops * executions[name]
        for name, operations in schedule_of(offload, DEVICES, DOMAIN).operations.items()
        for operation in operations
        if isinstance(operation, Run)
        for cost in operation.costs
    )


def step_of(path: Path, target: Target) -> Step:
    """Read and predict one module."""
    begin = time.process_time()
    offload = find_offload(load_module(path))
    prediction = predict(offload, target, DEVICES, DOMAIN)
    seconds = time.process_time() - begin
    late = len(memory_of(offload, prediction.timeline).late)
    return Step(path.name.partition(".")[0], prediction, offload, matrix_flops(offload), seconds, late)


def row_of(step: Step, target: Target) -> tuple[str, ...]:
    """Return one line of the table."""
    found = step.prediction
    ms = 1e9
    return (
        f"`{step.name}`",
        f"{found.step.time_ps / ms:.0f}",
        f"{found.low_ps / ms:.0f} to {found.high_ps / ms:.0f}",
        f"{found.step.stall_ps / ms:.0f}",
        f"{found.without_transfers_ps / ms:.0f}",
        f"{found.step.collective_exposed_ps / ms:.0f}",
        str(len(step.offload.transfers)),
        f"{step.late} of {sum(transfer.direction == D2H for transfer in step.offload.transfers)}",
        f"{step.flops / 1e15:.2f}",
        f"{step.utilization(target):.0%}",
        number(step.seconds),
    )


def main(write: Callable[[str], None] = print) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("directory", type=Path)
    directory = parser.parse_args().directory
    paths = sorted(directory.glob("*.hlo.gz"))
    if not paths:
        sys.exit(f"{directory} holds no *.hlo.gz")
    target = load_target("gb200")
    header = (
        "module", "step ms", "range", "stall ms", "free transfers ms", "collectives alone ms", "transfers",
        "late to the host", "PFLOP",
        "of the peak", "CPU s to predict",
    )  # fmt: skip
    write(versions() + "\n")
    write(markdown(header, (row_of(step_of(path, target), target) for path in paths)))


if __name__ == "__main__":
    main()
