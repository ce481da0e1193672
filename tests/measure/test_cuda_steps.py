"""Synthetic CUDA traces: steps, programs, devices, command buffers. See test_cuda.py for how they are made."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import pytest

from hloinspect.measure.file import measure_file
from tests.support.cuda_checks import Answer, assert_is_as_played, in_graphs, one, play, trace_of
from tests.support.cuda_runtime import PROGRAM, Run, Speeds, compiled
from tests.support.cuda_traces import MAIN, US, Annotation, Device, Event, Program, memcpy_details, write_trace
from tests.support.places import FIXTURES
from tests.support.trace_oracle import FIGURES


@pytest.fixture
def answer(tmp_path: Path) -> Answer:
    return lambda trace: measure_file(write_trace(trace, tmp_path / "host.xplane.pb"))


# ---- steps


def test_steps_that_are_launched_ahead_are_separated(answer: Answer) -> None:
    """Dispatch asynchronously: all steps are annotated and launched before the first one has run."""
    name = "jax0.12.0.1/gb200_offload_unrolled"
    speeds = Speeds(between_steps=5 * US, launch=US, kernel=lambda op: 60 * US, h2d=400 * US)
    run = play(name, 5, speeds=speeds, blocking=False)
    assert run.annotations[-1].end_ps < run.truth[1].end_ps
    device = one(answer(trace_of(run, name)))
    assert_is_as_played(device, run, name)
    assert list(device.numbers) == [0, 1, 2, 3, 4]


def test_steps_are_numbered_by_their_annotations(answer: Answer) -> None:
    run = play("optimizer")
    run.annotations = [replace(a, number=a.number + 100) for a in run.annotations]
    assert list(one(answer(trace_of(run, "optimizer"))).numbers) == [100, 101, 102, 103]


def test_without_annotations_the_programs_runs_are_the_steps(answer: Answer) -> None:
    run = play("optimizer")
    run.annotations = []
    device = one(answer(trace_of(run, "optimizer")))
    assert_is_as_played(device, run, "optimizer")


def test_two_runs_in_each_annotation_are_one_step(answer: Answer) -> None:
    """Accumulate gradients: the program runs twice in a step."""
    run = play("optimizer", 6)
    pairs = zip(run.annotations[::2], run.annotations[1::2], strict=True)
    run.annotations = [Annotation(n, a.start_ps, b.end_ps) for n, (a, b) in enumerate(pairs)]
    device = one(answer(trace_of(run, "optimizer")))
    assert len(device.set_aside) == 3
    assert [step.stall_ps for step in device.steps] == [
        run.truth[n].stall_ps + run.truth[n + 1].stall_ps for n in (0, 2, 4)
    ]


def test_a_first_step_that_compiles_is_set_aside(answer: Answer) -> None:
    run = play("optimizer", 5, speeds=Speeds(late=lambda op, step: 50_000 * US if op == "copy.6" and step == 0 else 0))
    device = one(answer(trace_of(run, "optimizer")))
    assert [bool(reason) for reason in device.set_aside] == [True, False, False, False, False]
    assert device.set_aside[0] == "warm-up"


@pytest.mark.parametrize("cut", ["begin", "end"])
def test_a_step_that_the_traces_end_cuts_is_set_aside(answer: Answer, cut: str) -> None:
    run = play("optimizer", 5)
    middle = run.truth[0 if cut == "begin" else 4].start_ps + 400 * US
    run.events = [e for e in run.events if (e.start_ps >= middle if cut == "begin" else e.end_ps <= middle)]
    device = one(answer(trace_of(run, "optimizer")))
    expected = [f"cut by the trace's {cut}" if n == (0 if cut == "begin" else 4) else "" for n in range(5)]
    assert list(device.set_aside) == expected


def test_a_step_with_a_lost_event_is_named_and_set_aside(answer: Answer) -> None:
    run = play("optimizer", 6)
    lost = next(e for e in run.events if e.run == 3 and e.op == "loop_multiply_fusion.1")
    run.events = [event for event in run.events if event is not lost]
    device = one(answer(trace_of(run, "optimizer")))
    assert [bool(reason) for reason in device.set_aside] == [n == 3 for n in range(6)]
    assert "loop_multiply_fusion.1" in device.details[3]


def test_a_copy_faster_than_memory_makes_its_step_impossible(answer: Answer) -> None:
    run = play("optimizer", 6)
    place = next(n for n, e in enumerate(run.events) if e.run == 2 and e.op == "copy-start.2")
    run.events[place] = replace(run.events[place], memcpy=memcpy_details("pinned", "device", 1 << 34))
    device = one(answer(trace_of(run, "optimizer")))
    assert [bool(reason) for reason in device.set_aside] == [n == 2 for n in range(6)]


def test_the_profilers_warning_of_dropped_events_is_passed_on(answer: Answer) -> None:
    warning = "Detected GPU events dropped on synthetic: 1024 activity events"
    file = answer(trace_of(play("optimizer"), "optimizer", warnings=(warning,)))
    assert any("dropped" in text for text in (*file.limits, *(gap.reason for gap in file.unknown)))


# ---- programs and devices


def other_program(run: Run, between: Iterable[int], program: int = 8) -> list[Event]:
    """Return kernels of another program directly after those runs."""
    ends = [run.truth[number].end_ps for number in between]
    return [
        Event(MAIN, end + (5 + 10 * n) * US, end + (12 + 10 * n) * US, f"fusion_{n}", f"fusion.{n}", program, run=-1)
        for end in ends
        for n in range(3)
    ]


def test_several_programs_are_separated(answer: Answer) -> None:
    run = play("optimizer", speeds=Speeds(between_steps=300 * US))
    module = compiled("jax0.12.0.1/gb200_save")
    trace = trace_of(run, "optimizer")
    other = Program(module.module.name, 8, module.proto)
    device = Device(0, (*run.events, *other_program(run, (0, 2))))
    file = answer(replace(trace, devices=(device,), modules=(*trace.modules, other)))
    assert file.program == PROGRAM
    assert_is_as_played(one(file), run, "optimizer")
    seen = {program.program: program for program in file.programs}
    assert seen[8].name == other.name
    assert seen[8].transfers == 0
    assert seen[PROGRAM].runs == 4
    assert seen[PROGRAM].transfers == 2


def test_each_device_is_measured_and_the_slow_one_shows(answer: Answer) -> None:
    runs = [play("optimizer", speeds=Speeds(h2d=h2d * US)) for h2d in (200, 1500, 200, 200)]
    devices = tuple(run.device(number) for number, run in enumerate(runs))
    file = answer(replace(trace_of(runs[0], "optimizer"), devices=devices))
    assert [device.name for device in file.devices] == [f"/device:GPU:{n}" for n in range(4)]
    for device, run in zip(file.devices, runs, strict=True):
        assert_is_as_played(device, run, "optimizer")
    stalls = [sum(step.stall_ps for step in device.steps) for device in file.devices]
    assert max(stalls) == stalls[1] > 2 * stalls[0]


@pytest.mark.parametrize("origin_ns", [236_761, 1_790_000_000_000_000_000])
def test_each_line_counts_from_its_own_time(answer: Answer, origin_ns: int) -> None:
    """Use times relative to the session, and UNIX times as before the profiler made them relative."""
    run = play("optimizer", speeds=Speeds(h2d=1100 * US))
    known = list(one(answer(trace_of(run, "optimizer"))).steps)
    steps = list(one(answer(trace_of(run, "optimizer", origin_ns=origin_ns))).steps)
    assert [step.stall_ps for step in steps] == [truth.stall_ps for truth in run.truth]
    for figure in (name for name in FIGURES if name not in ("start_ps", "end_ps")):
        assert [getattr(step, figure) for step in steps] == [getattr(step, figure) for step in known]


@pytest.mark.parametrize("id_is_stat", [True, False])
def test_the_module_is_found_in_both_layouts(answer: Answer, id_is_stat: bool) -> None:
    """Use the program's id as a statistic (JAX >= 0.9), and as the table's key and the end of the name (before)."""
    run = play("optimizer")
    own = compiled("optimizer")
    trace = replace(
        trace_of(run, "optimizer"), modules=(Program("jit_step", PROGRAM, own.proto, id_is_stat=id_is_stat),)
    )
    file = answer(trace)
    assert file.module is not None
    assert_is_as_played(one(file), run, "optimizer")


def test_without_a_module_copies_are_recognised_by_their_memories(answer: Answer) -> None:
    run = play("optimizer", speeds=Speeds(h2d=1100 * US))
    known = list(one(answer(trace_of(run, "optimizer"))).steps)
    file = answer(replace(trace_of(run, "optimizer"), modules=()))
    assert file.module is None
    assert file.unknown or file.limits
    for device in file.devices:
        assert sum(s.busy_h2d_ps for s in device.steps) == sum(s.busy_h2d_ps for s in known)


def test_an_instruction_may_run_as_several_kernels(answer: Answer) -> None:
    """Use a split product or a sort: every kernel names the same instruction."""
    run = play("optimizer", speeds=Speeds(h2d=1100 * US))
    known = list(one(answer(trace_of(run, "optimizer"))).steps)
    run.events = [
        half
        for event in run.events
        for half in (halves(event) if event.stream == MAIN and event.op and not event.memcpy else (event,))
    ]
    steps = list(one(answer(trace_of(run, "optimizer"))).steps)
    for figure in FIGURES:
        assert [getattr(step, figure) for step in steps] == [getattr(step, figure) for step in known]


def halves(event: Event) -> tuple[Event, Event]:
    middle = (event.start_ps + event.end_ps) // 2000 * 1000
    return replace(event, end_ps=middle), replace(event, start_ps=middle, name="splitKreduce_kernel")


@pytest.mark.slow
@pytest.mark.parametrize("version", ["jax0.10.2", "jax0.12.0.1"])
def test_every_fixture_is_measured_as_it_was_played(answer: Answer, version: str) -> None:
    homes = sorted((FIXTURES / version).glob("[agh]*"))
    assert len(homes) > 10
    for home in homes:
        name = f"{version}/{home.name}"
        run = play(name, 2, speeds=Speeds(d2h=2700 * US, h2d=1900 * US))
        if compiled(name).directions:
            assert_is_as_played(one(answer(trace_of(run, name))), run, name)


def test_a_program_of_one_instruction_is_cut_by_its_annotations(answer: Answer) -> None:
    """Use a program whose schedule does not separate its runs."""
    name = "jax0.12.0.1/gb200_compute_on_host_memory"
    run = play(name)
    assert len(run.events) == 4
    assert len(one(answer(trace_of(run, name))).set_aside) == 4


def test_without_a_module_steps_are_cut_by_their_annotations(answer: Answer) -> None:
    run = play("optimizer")
    device = one(answer(replace(trace_of(run, "optimizer"), modules=())))
    assert [step.end_ps for step in device.steps] == [truth.end_ps for truth in run.truth]


# ---- command buffers


def test_command_buffers_hide_operations_but_no_time(answer: Answer) -> None:
    name = "jax0.12.0.1/gb200_offload_unrolled"
    run = play(name, speeds=Speeds(d2h=1500 * US, h2d=900 * US))
    known = list(one(answer(trace_of(run, name))).steps)
    hidden = {f"gemm_fusion_dot.{n}" for n in range(300)}
    run.events = in_graphs(run, lambda event: event.op in hidden)
    file = answer(trace_of(run, name))
    steps = list(one(file).steps)
    for figure in ("time_ps", "compute_ps", "exposed_d2h_ps", "exposed_h2d_ps", "exposed_ps", "idle_ps"):
        assert [getattr(step, figure) for step in steps] == [getattr(step, figure) for step in known]
    assert file.hidden_events == sum(event.graph is not None for event in run.events)
    assert file.hidden_ops == ("command_buffer_3",)
    said = " ".join((*file.limits, *(gap.reason + gap.remedy for gap in file.unknown)))
    assert "--xla_gpu_enable_command_buffer=" in said


def test_slice_copies_inside_a_graph_count_for_the_total(answer: Answer) -> None:
    """Use a copy that names its graph's launch: only its memories are known, and no transfer of the module."""
    name = "jax0.10.2/gb200_offload_scan"
    run = play(name, speeds=Speeds(d2h=300 * US, h2d=400 * US))
    known = list(one(answer(trace_of(run, name))).steps)
    run.events = in_graphs(run, lambda event: event.what in ("d2h", "h2d"))
    file = answer(trace_of(run, name))
    steps = list(one(file).steps)
    for figure in ("time_ps", "compute_ps", "exposed_d2h_ps", "exposed_h2d_ps", "exposed_ps", "idle_ps"):
        assert [getattr(step, figure) for step in steps] == [getattr(step, figure) for step in known]
    assert file.classified_ps["memcpy"] > 0
    assert file.hidden_events == 32


def test_a_graph_that_was_traced_as_one_block_is_unknown(answer: Answer) -> None:
    name = "jax0.12.0.1/gb200_offload_unrolled"
    run = play(name)
    events = [event for event in run.events if event.stream != MAIN]
    for truth in run.truth:
        block = Event(MAIN, truth.start_ps, truth.end_ps - 50 * US, "CudaGraphExec:5", graph_exec=5)
        events.append(replace(block, op="command_buffer_3", program=PROGRAM))
    run.events = events
    file = answer(trace_of(run, name))
    assert file.unknown
    assert any("graph" in gap.reason.lower() for gap in file.unknown)
    assert len(one(file).set_aside) == 4
