"""Synthetic CUDA traces: every way in which XLA:GPU is known, or must be expected, to show a transfer or to hide one.

Each trace is made by playing one of our own compiled modules (tests/support/cuda_runtime.py), so the waits of the
device are known and not derived from the trace. They are synthetic: no public trace of offload on an NVIDIA GPU exists.
docs/trace.md says what is modelled on source and what on inference.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from hloinspect.measure.file import measure_file
from tests.support.cuda_checks import Answer, assert_all_steps_count, assert_is_as_played, one, play, trace_of, waits
from tests.support.cuda_runtime import Form, Speeds, compiled
from tests.support.cuda_traces import D2H, H2D, US, Event, build, memcpy_details, old_memcpy_details, write_trace
from tests.support.trace_oracle import FIGURES, measure


@pytest.fixture
def answer(tmp_path: Path) -> Answer:
    return lambda trace: measure_file(write_trace(trace, tmp_path / "host.xplane.pb"))


# ---- forms of transfers


@pytest.mark.parametrize("version", ["jax0.10.2", "jax0.12.0.1"])
@pytest.mark.parametrize("slow", [1, 12])
def test_copies_of_unrolled_layers_are_timed_and_charged(answer: Answer, version: str, slow: int) -> None:
    name = f"{version}/gb200_offload_unrolled"
    run = play(name, speeds=Speeds(d2h=slow * 100 * US, h2d=slow * 150 * US))
    file = answer(trace_of(run, name))
    assert_is_as_played(one(file), run, name)
    assert_all_steps_count(one(file))
    assert set(file.classified_ps) == {"hlo"}
    assert sum(step.stall_ps for step in one(file).steps) > 0
    assert {t.bytes for step in one(file).steps for t in step.transfers.values()} == {2 << 20}


@pytest.mark.parametrize("version", ["jax0.10.2", "jax0.12.0.1"])
def test_slices_of_scanned_layers_join_by_the_copy_inside_their_fusion(answer: Answer, version: str) -> None:
    """Use events whose hlo_op is the hero's name, called MemcpyD2D though one side is pinned."""
    name = f"{version}/gb200_offload_scan"
    run = play(name, speeds=Speeds(d2h=300 * US, h2d=400 * US))
    events = [event for event in run.events if event.what in ("d2h", "h2d")]
    assert {event.name for event in events} == {"MemcpyD2D"}
    assert not {event.op for event in events} & set(compiled(name).directions)
    device = one(answer(trace_of(run, name)))
    assert_is_as_played(device, run, name)
    assert {t.events for step in device.steps for t in step.transfers.values()} == {4}


@pytest.mark.parametrize("called", ["MemcpyD2D", "MemcpyD2H", "MemcpyH2D", "MemcpyOther"])
def test_what_a_slice_copy_is_called_does_not_matter(answer: Answer, called: str) -> None:
    name = "jax0.10.2/gb200_offload_scan"
    run = play(name, 2, form=Form(name=called))
    assert_is_as_played(one(answer(trace_of(run, name))), run, name)


def test_dynamic_memcpys_join_by_the_name_of_their_fusion(answer: Answer) -> None:
    """Use JAX 0.6 to 0.9: DynamicMemcpyThunk, which is named by the fusion."""
    name = "jax0.10.2/gb200_offload_scan"
    run = play(name, speeds=Speeds(d2h=300 * US, h2d=400 * US), form=Form(hero=False))
    assert {event.op for event in run.events if event.what == "d2h"} == {"wrapped_dynamic-update-slice"}
    assert_is_as_played(one(answer(trace_of(run, name))), run, name)


@pytest.mark.parametrize("hero", [True, False])
def test_a_kernel_that_works_on_pinned_memory_is_a_transfer(answer: Answer, hero: bool) -> None:
    name = "jax0.12.0.1/gb200_host_stack_donated"
    run = play(name, speeds=Speeds(d2h=300 * US), form=Form(name="", hero=hero))
    moved = [event for event in run.events if event.what == "d2h"]
    assert moved
    assert not any(event.memcpy for event in moved)
    device = one(answer(trace_of(run, name)))
    assert_is_as_played(device, run, name)
    assert all(step.exposed_d2h_ps > 0 for step in device.steps)


def test_a_copy_without_a_stream_of_its_own_is_waited_for_as_long_as_it_lasts(answer: Answer) -> None:
    name = "jax0.12.0.1/gb200_offload_unrolled"
    run = play(name, form=Form(synchronous=True))
    device = one(answer(trace_of(run, name)))
    assert_is_as_played(device, run, name)
    assert [step.stall_ps for step in device.steps] == [8 * 100 * US] * 4


def test_a_copy_that_names_no_memories_still_joins(answer: Answer) -> None:
    """Use the spelling of before 2021: ``size:N dest:D async:B``."""
    name = "jax0.12.0.1/gb200_offload_unrolled"
    run = play(name, speeds=Speeds(d2h=1000 * US))
    run.events = [replace(e, memcpy=old_memcpy_details(64) if e.memcpy else "") for e in run.events]
    assert_is_as_played(one(answer(trace_of(run, name))), run, name)


def test_an_offload_from_pageable_memory_is_still_one(answer: Answer) -> None:
    name = "jax0.12.0.1/gb200_offload_unrolled"
    run = play(name, 2)
    run.events = [replace(e, memcpy=e.memcpy.replace("pinned", "pageable")) for e in run.events]
    file = answer(trace_of(run, name))
    assert_is_as_played(one(file), run, name)
    assert not file.other_copies


def test_a_copy_from_host_to_host_goes_both_ways_and_stops_the_device(answer: Answer) -> None:
    """Copy a stack that is not donated as a whole, before one layer of it is replaced."""
    name = "jax0.12.0.1/gb200_host_stack_not_donated"
    run = play(name, form=Form(name=""))
    device = one(answer(trace_of(run, name)))
    copies = [event for event in run.events if event.what == "both"]
    assert len(copies) == 4
    for step, own in zip(device.steps, measure(run.events, run.awaited_at_end), strict=True):
        assert {f: getattr(step, f) for f in FIGURES} == {f: getattr(own, f) for f in FIGURES}
        assert step.exposed_h2d_ps == 100 * US
        assert step.stall_ps == step.stall_d2h_ps + 100 * US


def test_computation_on_the_host_is_the_hosts_time(answer: Answer) -> None:
    """Use compute_on: a gradient goes down, the host computes with it, and no event of the device shows that."""
    name = "jax0.12.0.1/gb200_compute_on"
    run = play(name, speeds=Speeds(python=700 * US))
    device = one(answer(trace_of(run, name)))
    for step, own in zip(device.steps, measure(run.events, run.awaited_at_end), strict=True):
        assert {f: getattr(step, f) for f in FIGURES} == {f: getattr(own, f) for f in FIGURES}
        assert step.idle_ps >= 700 * US
        assert step.host_bound_ps >= 700 * US


# ---- what is no transfer of the step


def eager(start_ps: int, kinds: tuple[str, str], size: int = 4096, **more: object) -> Event:
    """Return a copy that no module makes: on a separate stream of PjRt, without hlo_op."""
    to_host = kinds[0] == "device"
    called = "MemcpyD2H" if to_host else "MemcpyH2D"
    return Event(
        *(40 + to_host, start_ps, start_ps + 10 * US, called),
        memcpy=memcpy_details(*kinds, size),
        what="other_copy",
        **more,  # type: ignore[arg-type]
    )


@pytest.mark.parametrize("memory", ["pinned", "pageable"])
def test_device_put_is_separated_from_offload(answer: Answer, memory: str) -> None:
    run = play("optimizer")
    without = list(one(answer(trace_of(run, "optimizer"))).steps)
    run.events += [eager(t.start_ps + 300 * US, (memory, "device"), run=n) for n, t in enumerate(run.truth)]
    run.events += [eager(run.truth[1].start_ps + 400 * US, ("device", memory), 512, run=1)]
    file = answer(trace_of(run, "optimizer"))
    assert_is_as_played(one(file), run, "optimizer")
    assert [step.exposed_ps for step in one(file).steps] == [step.exposed_ps for step in without]
    assert {(c.direction, c.count, c.bytes) for c in file.other_copies} == {("h2d", 4, 4 * 4096), ("d2h", 1, 512)}


def test_copies_of_a_callback_are_no_offload(answer: Answer) -> None:
    run = play("callback")
    file = answer(trace_of(run, "callback"))
    assert_is_as_played(one(file), run, "callback")
    assert {(c.direction, c.count, c.bytes) for c in file.other_copies} == {("h2d", 4, 16), ("d2h", 4, 16)}
    assert {copies.origin for copies in file.other_copies} == {"callback"}
    assert {number for step in one(file).steps for number in step.transfers} == {1}


def test_copies_that_name_a_custom_call_of_no_known_module_are_no_offload(answer: Answer) -> None:
    """Use an FFI call of a program whose module the trace does not have."""
    run = play("optimizer")
    odd = [eager(t.start_ps + 300 * US, ("device", "pageable"), op="custom-call.4", program=99) for t in run.truth]
    run.events += odd
    file = answer(trace_of(run, "optimizer"))
    assert [set(step.transfers) for step in one(file).steps] == [{1, 2}] * 4
    assert [(c.direction, c.count) for c in file.other_copies] == [("d2h", 4)]


def test_a_memset_names_no_instruction_and_is_work_of_the_device(answer: Answer) -> None:
    run = play("optimizer")
    memsets = [event for event in run.events if event.memset]
    assert len(memsets) == 4
    assert not any(event.op or event.program for event in memsets)
    assert_is_as_played(one(answer(trace_of(run, "optimizer"))), run, "optimizer")


def test_eager_copies_of_old_traces_are_recognised_by_their_names(answer: Answer) -> None:
    """Use a trace of before 2021, when memcpy_details named no memory: the event's name has the direction."""
    run = play("optimizer")
    run.events += [
        replace(eager(t.start_ps + 300 * US, ("device", "pinned"), run=n), memcpy=old_memcpy_details(512))
        for n, t in enumerate(run.truth)
    ]
    file = answer(trace_of(run, "optimizer"))
    assert_is_as_played(one(file), run, "optimizer")
    assert [(c.direction, c.count, c.bytes) for c in file.other_copies] == [("d2h", 4, 4 * 512)]


def test_lines_that_are_no_streams_do_not_count(answer: Answer, tmp_path: Path) -> None:
    """Add CUPTI's overhead, counters, and what a viewer has derived."""
    run = play("optimizer")
    space = build(trace_of(run, "optimizer"))
    device = next(plane for plane in space.proto.planes if plane.name == b"/device:GPU:0")
    begin, end = run.truth[0].start_ps, run.truth[-1].end_ps
    for name in (b"CUPTI overhead", b"_counters_", b"XLA Ops", b"Steps"):
        line = device.lines.add(id=len(device.lines) + 100, name=name)
        line.events.add(metadata_id=1, offset_ps=begin, duration_ps=end - begin)
    device = one(measure_file(space.write(tmp_path / "host.xplane.pb")))
    assert_is_as_played(device, run, "optimizer")


# ---- collectives


def test_collectives_are_recognised_by_the_module(answer: Answer) -> None:
    run = play("optimizer", speeds=Speeds(collective=200 * US, h2d=700 * US))
    file = answer(trace_of(run, "optimizer"))
    assert_is_as_played(one(file), run, "optimizer")
    assert all(step.collective_exposed_ps > 500 * US for step in one(file).steps)


def test_nccl_kernels_are_collectives_without_a_module(answer: Answer) -> None:
    run = play("optimizer", speeds=Speeds(collective=200 * US))
    known = list(one(answer(trace_of(run, "optimizer"))).steps)
    run.events = [replace(e, op="", program=0) if e.what == "collective" else e for e in run.events]
    file = answer(trace_of(run, "optimizer"))
    assert [step.collective_exposed_ps for step in one(file).steps] == [s.collective_exposed_ps for s in known]
    assert file.classified_ps["name"] > 0


# ---- who is waited for


def test_transfers_of_one_direction_queue_and_each_is_charged_for_its_own_end(answer: Answer) -> None:
    """Fetch moments of the optimizer: one copy begins when the one before it ends, and nine wait in the queue."""
    name = "jax0.12.0.1/gb200_optimizer"
    run = play(name, 2, speeds=Speeds(d2h=300 * US, h2d=400 * US))
    for stream in (D2H, H2D):
        queue = [event for event in run.events if event.stream == stream and event.run == 1]
        assert sum(b.start_ps == a.end_ps for a, b in pairwise(queue)) >= 8
    device = one(answer(trace_of(run, name)))
    assert_is_as_played(device, run, name)
    assert len(waits(device, name)[1]) > 5


def test_opposite_directions_are_exposed_together_but_counted_once(answer: Answer) -> None:
    name = "jax0.12.0.1/h100_offload_unrolled"
    run = play(name, 2, speeds=Speeds(d2h=3000 * US, h2d=3000 * US))
    device = one(answer(trace_of(run, name)))
    assert_is_as_played(device, run, name)
    assert all(step.exposed_ps < step.exposed_d2h_ps + step.exposed_h2d_ps for step in device.steps)


def test_a_late_host_is_not_charged_to_the_transfer(answer: Answer) -> None:
    """Launch the operation after the done long after the copy ended: the device stood still for lack of work."""
    late = "loop_add_subtract_fusion"
    speeds = Speeds(h2d=1100 * US, late=lambda op, step: 1500 * US if op == late and step == 2 else 0)
    run = play("optimizer", speeds=speeds)
    device = one(answer(trace_of(run, "optimizer")))
    assert_is_as_played(device, run, "optimizer")
    steps = list(device.steps)
    assert "copy-start.2" in waits(device, "optimizer")[1]
    assert "copy-start.2" not in waits(device, "optimizer")[2]
    assert steps[2].host_bound_ps > 0
    assert steps[1].host_bound_ps == 0


def test_without_the_hosts_plane_waits_are_charged_and_the_limit_is_reported(answer: Answer) -> None:
    run = play("optimizer", speeds=Speeds(h2d=1100 * US))
    device = one(answer(trace_of(run, "optimizer")))
    file = answer(trace_of(run, "optimizer", host=False))
    assert [step.stall_ps for step in one(file).steps] == [step.stall_ps for step in device.steps]
    assert device.launches_known
    assert not one(file).launches_known
    assert any("launch" in limit for limit in file.limits)


def test_a_step_that_ends_with_a_transfer_waits_for_it(answer: Answer) -> None:
    run = play("optimizer", speeds=Speeds(d2h=500 * US))
    device = one(answer(trace_of(run, "optimizer")))
    assert_is_as_played(device, run, "optimizer")
    assert [own["copy-start.1.0"] for own in waits(device, "optimizer")] == [500 * US] * 4


def test_copies_that_begin_at_once_in_both_directions_are_measured(answer: Answer) -> None:
    """Run two streams on two engines: a copy each way at the very same time, exposed to the last picosecond."""
    run = play("optimizer")
    begin = run.truth[0].start_ps
    place = {e.op: n for n, e in enumerate(run.events) if e.run == 0 and e.stream in (D2H, H2D)}
    for op in ("copy-start.2", "copy-start.1.0"):
        run.events[place[op]] = replace(run.events[place[op]], start_ps=begin, end_ps=begin + 40 * US)
    steps = list(one(answer(trace_of(run, "optimizer"))).steps)
    own = measure(run.events, run.awaited_at_end)[0]
    assert (steps[0].exposed_d2h_ps, steps[0].exposed_h2d_ps) == (own.exposed_d2h_ps, own.exposed_h2d_ps)
    assert steps[0].busy_d2h_ps == steps[0].busy_h2d_ps == 40 * US
