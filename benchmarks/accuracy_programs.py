"""Published measurements of whole programs, compared with programs written to be like them.

    python benchmarks/accuracy_programs.py [memory] [copies] [pipelining]

compiles benchmarks/accuracy_steps.py without a device (some minutes and 1 GB of memory): the device and host memory of
scanned layers under four policies (jax-ml/jax issue 23869), a device-to-device copy behind a transpose (openxla/xla
pull request 46150), and a decoder with and without pipelined host offloading (pull request 32297).
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from accuracy_tables import ROOT, markdown, number, versions

from hloinspect.analyze.inspect import Inspection, inspect
from hloinspect.hardware import Target, load_target
from hloinspect.inputs.manifest import CompileResult, load_result
from hloinspect.predict.durations import Durations
from hloinspect.predict.scenario import scenarios
from hloinspect.predict.schedule import Done, Loop, Run, Schedule, StartSide, schedule_of
from hloinspect.predict.simulate import step_time_ps

STEPS = "benchmarks/accuracy_steps.py"
NO_SCHEDULER = (
    "xla_gpu_enable_latency_hiding_scheduler=false",
    "xla_gpu_enable_analytical_sol_latency_estimator=false",
)
PIPELINED = "xla_gpu_enable_pipelined_host_offloading=true"
COLLECTIVES_PIPELINED = tuple(
    f"xla_gpu_pipeline_{name}=COLLECTIVE_PIPELINING_MODE_ON" for name in ("all_gather", "reduce_scatter", "all_reduce")
)
GIB = 1 << 30

# jax-ml/jax issue 23869 (= openxla/xla issue 17541): step, device and host memory of one of 8 H100, in GiB.
LAYERS = (
    ("layers_nothing", "nothing kept", 20.27, 0.0),
    ("layers_hidden_saved", "`hidden` saved", 35.30, 0.0),
    ("layers_hidden_offloaded", "`hidden` offloaded", 19.75, 16.0),
    ("layers_residual_offloaded", "`residual` offloaded", 20.27, 0.0),
)
# openxla/xla pull request 46150: a copy whose window holds only a transpose; hardware and size are not given.
COPY_EXPOSED_US, COPY_HIDDEN_US = 675.0, 9.0
# openxla/xla pull request 32297: llama3-8b, fsdp=8, GB200, MLP activations offloaded; length and batch are not given.
PIPELINING_GAIN = 0.12


@dataclass(frozen=True, slots=True)
class Memory:
    """The memory of a compiled step on one device, in bytes: device temporaries, all of the device, host."""

    temporary: int
    device: int
    host: int


def memory_of(result: CompileResult) -> Memory:
    """Return XLA's own figures of a compiled step."""
    sizes = result.manifest.memory
    device = sum(sizes[f"{part}_size_in_bytes"] for part in ("argument", "temp", "output"))
    return Memory(
        temporary=sizes["temp_size_in_bytes"],
        device=device - sizes["alias_size_in_bytes"],
        host=sizes["host_temp_size_in_bytes"],
    )


def compiled(step: str, target: str, devices: int, flags: tuple[str, ...] = ()) -> tuple[CompileResult, Inspection]:
    """Return a step compiled and inspected. The files of the result are gone afterwards."""
    with tempfile.TemporaryDirectory() as scratch:
        keep = Path(scratch) / "step"
        found = inspect(f"{ROOT / STEPS}:{step}", target=target, devices=devices, xla_flags=flags, keep=keep)
        return load_result(keep), found


def memory_table() -> str:
    """Return table P8: the four policies, under today's scheduler and without it.

    XLA's default was to do without it when they were measured.
    """
    rows = []
    for step, label, device_gib, host_gib in LAYERS:
        row = [label, f"{device_gib} / {host_gib:g}"]
        for flags in ((), NO_SCHEDULER):
            result, found = compiled(step, "h100", 8, flags)
            memory = memory_of(result)
            sizes = f"{memory.temporary / GIB:.2f} / {memory.host / GIB:g}"
            row += [f"{sizes} ({memory.temporary / GIB / device_gib - 1:+.1%})"]
        moved = sum(t.bytes_per_step for t in found.offload.transfers if t.direction == "d2h")
        names = ", ".join(name.name for name in result.manifest.offload_names) or "none"
        rows.append((*row, f"{memory.device / GIB:.2f}", f"{moved / GIB:g}", names))
    header = (
        "policy", "measured GiB: device / host", "temporaries: device / host", "scheduler off",
        "with arguments and results", "moved to the host", "names that are offloaded",
    )  # fmt: skip
    return markdown(header, rows)


@dataclass(frozen=True, slots=True)
class SideCopy:
    """An async copy within device memory and the work in its window, in microseconds of each execution."""

    name: str
    takes_us: float
    memory_bound_us: float
    compute_bound_us: float


def side_copies(found: Inspection, schedule: Schedule) -> list[SideCopy]:
    """Return the async copies within device memory of a program, with the work between start and done."""
    assert found.prediction is not None
    target = found.prediction.target
    case = scenarios(target, 1)[0]
    copies = []
    for operations in schedule.operations.values():
        for index, start in enumerate(operations):
            if not isinstance(start, StartSide):
                continue
            window = {"memory": 0.0, "compute": 0.0, "launch": 0.0}
            for operation in operations[index + 1 :]:
                if isinstance(operation, Done) and operation.key == start.key:
                    break
                if isinstance(operation, Run):
                    for cost in operation.costs:
                        window[cost.bound(target, case)] += cost.time_ps(target, case) / 1e6
            takes = start.cost.time_ps(target, case) / 1e6
            copies.append(SideCopy(start.key[1], takes, window["memory"], window["compute"]))
    return copies


def exposed_share(target: Target, schedule: Schedule) -> float:
    """Return the share of the time of the copies within device memory by which the step would be shorter without
    them."""
    case = scenarios(target, 1)[0]
    durations = Durations(target, case)
    without = {
        name: tuple(operation for operation in operations if not isinstance(operation, StartSide))
        for name, operations in schedule.operations.items()
    }
    iterations = {
        operation.body: operation.trips
        for operations in schedule.operations.values()
        for operation in operations
        if isinstance(operation, Loop)
    }
    takes = sum(
        iterations.get(name, 1) * operation.cost.time_ps(target, case)
        for name, operations in schedule.operations.items()
        for operation in operations
        if isinstance(operation, StartSide)
    )
    whole = step_time_ps(schedule, target, case, frozenset(), durations)
    bare = step_time_ps(replace(schedule, operations=without), target, case, frozenset(), durations)
    return (whole - bare) / takes


def copy_table() -> str:
    """Return table P12: the share of a device-to-device copy that is left exposed behind a transpose."""
    rows = []
    for name in ("h100", "gb200"):
        _, found = compiled("stacked_transpose", name, 1)
        schedule = schedule_of(found.offload, 1, 8)
        for copy in side_copies(found, schedule):
            rows.append(
                (
                    name,
                    number(copy.takes_us),
                    number(copy.memory_bound_us),
                    number(copy.compute_bound_us),
                    f"{exposed_share(load_target(name), schedule):.0%}",
                    f"{COPY_EXPOSED_US / (COPY_EXPOSED_US + COPY_HIDDEN_US):.0%}",
                )
            )
    header = (
        "target", "copy us", "memory-bound work in its window us", "other work us", "predicted exposed",
        "measured exposed",
    )  # fmt: skip
    return markdown(header, rows)


def pipelining_table() -> str:
    """Return table P1: the step without and with pipelined host offloading, and with pipelined collectives too, as
    measured."""
    rows = []
    for step, attention, barrier in (
        ("llama8b_fused", "cuDNN", "no"),
        ("llama8b_fused_barrier", "cuDNN", "yes"),
        ("llama8b_offload", "plain", "no"),
        ("llama8b_offload_barrier", "plain", "yes"),
    ):
        times = []
        for flags in ((), (PIPELINED,), (PIPELINED, *COLLECTIVES_PIPELINED)):
            _, found = compiled(step, "gb200", 8, flags)
            assert found.prediction is not None
            times.append(found.prediction)
        before, _, after = times
        rows.append(
            (
                attention,
                barrier,
                *(f"{each.step.time_ps / 1e9:.0f} ms, stall {each.step.stall_ps / 1e9:.0f}" for each in times),
                f"{before.step.time_ps / after.step.time_ps - 1:+.1%}",
                f"{PIPELINING_GAIN:+.0%}",
            )
        )
    header = (
        "attention", "barrier", "default", "pipelined", "with collectives pipelined", "predicted faster by", "measured",
    )  # fmt: skip
    return markdown(header, rows)


TABLES: dict[str, tuple[str, Callable[[], str]]] = {
    "memory": ("Memory of scanned layers on 8 H100", memory_table),
    "copies": ("A device-to-device copy behind a transpose", copy_table),
    "pipelining": ("Pipelined host offloading, 8 GB200", pipelining_table),
}


def main(write: Callable[[str], None] = print) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("tables", nargs="*", metavar="TABLE", help=", ".join(TABLES))
    chosen = parser.parse_args().tables or list(TABLES)
    if unknown := [name for name in chosen if name not in TABLES]:
        parser.error(f"no table {unknown[0]!r}: one of {', '.join(TABLES)}")
    write(versions() + "\n")
    for name in chosen:
        title, table = TABLES[name]
        write(f"### {title}\n\n{table()}\n")


if __name__ == "__main__":
    main()
