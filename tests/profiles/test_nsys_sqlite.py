"""Exports of Nsight Systems (SQLite): one run of the runtime's model gives the answer of the XSpace made from it.

The exports are synthetic (tests/support/nsys_traces.py) in three versions of nsys. The XSpace is checked against the
runtime and against a brute-force oracle in tests/measure.
"""

from __future__ import annotations

import random
import sqlite3
from dataclasses import replace
from pathlib import Path

import pytest
from click import unstyle
from hypothesis import given, settings
from hypothesis import strategies as st

from hloinspect import trace as trace_file
from hloinspect.errors import InputError
from hloinspect.render.terminal.measured_text import to_text
from tests.measure.test_oracle import disturbed, random_run, some_module
from tests.support.cuda_checks import assert_is_as_played, one, play, trace_of
from tests.support.cuda_runtime import PROGRAM, Form, Run, Speeds, compiled
from tests.support.cuda_traces import (
    MAIN,
    US,
    Annotation,
    Device,
    Event,
    Program,
    kernel_name,
    memcpy_details,
    write_trace,
)
from tests.support.nsys_builder import FORMS, global_id
from tests.support.nsys_builder import Form as Version
from tests.support.nsys_checks import Answers, answers, assert_same_answer, in_one_launch, of_export
from tests.support.nsys_traces import Writing, export_of, with_memsets_named, write_nsys
from tests.support.thorough import examples

SLOW = Speeds(d2h=300 * US, h2d=1100 * US)
MODULES = {
    "optimizer": Form(),
    "callback": Form(),
    "jax0.12.0.1/gb200_offload_unrolled": Form(),
    "jax0.10.2/gb200_offload_scan": Form(),
    "jax0.12.0.1/gb200_host_stack_donated": Form(name=""),
    "jax0.12.0.1/gb200_host_stack_not_donated": Form(name=""),
    "jax0.12.0.1/gb200_compute_on": Form(),
}
"""Modules, and the form of their slices over host memory."""
in_each_version = pytest.mark.parametrize("version", FORMS)


@pytest.mark.parametrize("name", MODULES)
@in_each_version
def test_an_export_gives_the_answer_of_the_xspace(tmp_path: Path, name: str, version: Version) -> None:
    run = play(name, speeds=SLOW, form=MODULES[name])
    assert_same_answer(answers(trace_of(run, name), tmp_path, Writing(version)))


@in_each_version
def test_waits_are_those_of_the_runtime(tmp_path: Path, version: Version) -> None:
    name = "jax0.12.0.1/gb200_offload_unrolled"
    run = play(name, speeds=SLOW)
    found = answers(trace_of(run, name), tmp_path, Writing(version))
    assert_is_as_played(one(found.files[1]), run, name)
    assert sum(step.stall_ps for step in one(found.files[1]).steps) > 0
    assert set(found.files[1].classified_ps) == {"hlo"}


@in_each_version
def test_a_copy_on_the_main_stream_is_waited_for(tmp_path: Path, version: Version) -> None:
    name = "jax0.12.0.1/gb200_offload_unrolled"
    run = play(name, form=Form(synchronous=True))
    found = answers(trace_of(run, name), tmp_path, Writing(version))
    assert_same_answer(found)
    assert [step.stall_ps for step in one(found.files[1]).steps] == [8 * 100 * US] * 4


@pytest.mark.parametrize("called", ["MemcpyD2D", "MemcpyD2H", "MemcpyH2D", "MemcpyOther"])
def test_the_memories_of_a_copy_say_where_it_goes_and_not_its_kind(tmp_path: Path, called: str) -> None:
    """A slice is copied with the call for device memory (DynamicMemcpyThunk), whatever CUPTI calls that."""
    name = "jax0.10.2/gb200_offload_scan"
    assert_same_answer(answers(trace_of(play(name, 2, form=Form(name=called)), name), tmp_path, Writing()))


def test_a_copy_that_is_named_by_its_fusion_joins(tmp_path: Path) -> None:
    name = "jax0.10.2/gb200_offload_scan"
    run = play(name, speeds=SLOW, form=Form(hero=False))
    assert_same_answer(answers(trace_of(run, name), tmp_path, Writing("2024.4")))


# ---- clocks


@pytest.mark.parametrize("shift_ns", [-3_000_000, 155_360_000_000, 1_700_000_000_000_000_000])
@in_each_version
def test_times_may_be_negative_or_count_from_1970(tmp_path: Path, shift_ns: int, version: Version) -> None:
    """Use a capture that began later than its first events, the time within a session, and ``--ts-normalize``."""
    run = play("optimizer", speeds=SLOW)
    assert_same_answer(answers(trace_of(run, "optimizer"), tmp_path, Writing(version, shift_ns=shift_ns)))


def test_steps_that_are_launched_ahead_are_separated(tmp_path: Path) -> None:
    name = "jax0.12.0.1/gb200_offload_unrolled"
    speeds = Speeds(between_steps=5 * US, launch=US, kernel=lambda op: 60 * US, h2d=400 * US)
    run = play(name, 5, speeds=speeds, blocking=False)
    found = answers(trace_of(run, name), tmp_path, Writing())
    assert_same_answer(found)
    assert len(one(found.files[1]).set_aside) == 5


def test_a_late_host_is_not_charged_to_the_transfer(tmp_path: Path) -> None:
    late = "loop_add_subtract_fusion"
    speeds = Speeds(h2d=1100 * US, late=lambda op, step: 1500 * US if op == late and step == 2 else 0)
    found = answers(trace_of(play("optimizer", speeds=speeds), "optimizer"), tmp_path, Writing())
    assert_same_answer(found)
    assert [step.host_bound_ps > 0 for step in one(found.files[1]).steps] == [False, False, True, False]


# ---- steps that ranges of the user mark


def with_marks(run: Run, folder: Path, texts: list[str]) -> Answers:
    """Return the answers for an XSpace with step annotations, and for an export with ranges of these names in their
    place."""
    trace = trace_of(run, "optimizer")
    export = export_of(trace, Writing())
    for own, text in zip(trace.annotations, texts, strict=True):
        export.push_pop(global_id(7000, 7003), own.start_ps // 1000, own.end_ps // 1000, text, domain=0)
    path = write_trace(with_memsets_named(trace), folder / "host.xplane.pb")
    return Answers(trace_file(str(path)), of_export(export.write(folder / "synthetic.sqlite"), trace))


def test_ranges_of_the_user_number_the_steps(tmp_path: Path) -> None:
    run = play("optimizer", speeds=SLOW)
    run.annotations = [replace(a, number=a.number + 100) for a in run.annotations]
    found = with_marks(run, tmp_path, [f"step {a.number}" for a in run.annotations])
    assert_same_answer(found)
    assert one(found.files[1]).numbers.tolist() == [100, 101, 102, 103]


def test_two_runs_in_each_range_of_the_user_are_one_step(tmp_path: Path) -> None:
    run = play("optimizer", 6, speeds=SLOW)
    pairs = zip(run.annotations[::2], run.annotations[1::2], strict=True)
    run.annotations = [Annotation(n, a.start_ps, b.end_ps) for n, (a, b) in enumerate(pairs)]
    found = with_marks(run, tmp_path, [f"train_step_{n}" for n in range(3)])
    assert_same_answer(found)
    assert len(one(found.files[1]).set_aside) == 3


@pytest.mark.parametrize("texts", [["step 4", "step 3", "step 2", "step 1"], ["epoch"] * 4, ["step 1", "a", "b", "c"]])
def test_ranges_that_are_no_steps_do_not_number_them(tmp_path: Path, texts: list[str]) -> None:
    run = play("optimizer", speeds=SLOW)
    found = with_marks(run, tmp_path, texts)
    assert one(found.files[1]).numbers.tolist() == [0, 1, 2, 3]


# ---- processes and devices


@pytest.mark.parametrize("named", [True, False])
@pytest.mark.parametrize("processes", [True, False])
@in_each_version
def test_each_device_is_measured(tmp_path: Path, version: Version, processes: bool, named: bool) -> None:
    """Use one process with four devices, and four that call their own device 0 and use the same correlation ids."""
    runs = [play("optimizer", speeds=Speeds(h2d=h2d * US)) for h2d in (200, 1500, 200, 700)]
    devices = tuple(run.device(number) for number, run in enumerate(runs))
    trace = replace(trace_of(runs[0], "optimizer"), devices=devices)
    found = answers(trace, tmp_path, Writing(version, processes=processes, named=named))
    assert_same_answer(found)
    assert len(found.files[1].devices) == 4
    for device, run in zip(found.files[1].devices, runs, strict=True):
        assert_is_as_played(device, run, "optimizer")


def test_several_programs_are_separated(tmp_path: Path) -> None:
    run = play("optimizer", speeds=Speeds(between_steps=300 * US))
    module = compiled("jax0.12.0.1/gb200_save")
    ops = [instruction.name for instruction in module.module.entry if instruction.opcode == "fusion"][:3]
    other = [
        Event(
            *(MAIN, end + (50 + 10 * n) * US, end + (57 + 10 * n) * US, kernel_name(op), op, 8),
            launched_ps=end + (40 + 5 * n) * US,
            run=-1 - number,
        )
        for number, end in enumerate(max(run.truth[place].end_ps, run.annotations[place].end_ps) for place in (0, 2))
        for n, op in enumerate(ops)
    ]
    assert ops
    trace = trace_of(run, "optimizer")
    programs = (*trace.modules, Program(module.module.name, 8, module.proto))
    found = answers(replace(trace, devices=(Device(0, (*run.events, *other)),), modules=programs), tmp_path, Writing())
    assert_same_answer(found)
    assert {program.program for program in found.files[1].programs} == {PROGRAM, 8}


# ---- what is no transfer of the step


def put(start_ps: int, memory: str, *, to_host: bool = False, run: int = 0) -> Event:
    """Return a copy that no module makes, launched by a thread that loads data or keeps a checkpoint."""
    kinds = ("device", memory) if to_host else (memory, "device")
    called, launch = ("MemcpyD2H", "cuMemcpyDtoHAsync_v2") if to_host else ("MemcpyH2D", "cuMemcpyHtoDAsync_v2")
    return Event(
        *(40 + to_host, start_ps, start_ps + 10 * US, called),
        memcpy=memcpy_details(*kinds, 4096),
        launched_ps=start_ps - 5 * US,
        launch=launch,
        what="other_copy",
        run=run,
    )


@pytest.mark.parametrize("memory", ["pinned", "pageable"])
@in_each_version
def test_copies_of_another_thread_are_no_offload(tmp_path: Path, memory: str, version: Version) -> None:
    """They are launched while the main thread is within a range of XLA, but not within it."""
    run = play("optimizer", speeds=SLOW)
    run.events += [put(t.start_ps + 300 * US, memory, run=n) for n, t in enumerate(run.truth)]
    run.events += [put(run.truth[1].start_ps + 400 * US, memory, to_host=True, run=1)]
    found = answers(trace_of(run, "optimizer"), tmp_path, Writing(version))
    assert_same_answer(found)
    seen = {(c.direction, c.count, c.bytes) for c in found.files[1].other_copies}
    assert seen == {("h2d", 4, 4 * 4096), ("d2h", 1, 4096)}
    assert_is_as_played(one(found.files[1]), run, "optimizer")


def test_migrations_of_unified_memory_are_no_transfers(tmp_path: Path) -> None:
    """Their correlation id is 0, as is that of calls without one, and so are stream and context."""
    run = play("optimizer", speeds=SLOW)
    trace = trace_of(run, "optimizer")
    export = export_of(trace, Writing())
    for number, truth in enumerate(run.truth):
        start = truth.end_ps // 1000 + 20_000
        export.memcpy(
            start, start + 900, correlation=0, deviceId=0, globalPid=global_id(7000), bytes=65536,
            copyKind=11 + number % 2, srcKind=7, dstKind=7, migrationCause=1, copyCount=None,
        )  # fmt: skip
    export.call(global_id(7000, 7000), -500, -400, "cuInit", correlation=0)
    export.push_pop(global_id(7000, 7000), -600, -300, "Thunk:#hlo_op=copy-start.2#", domain=1)
    plain = answers(trace, tmp_path / "plain", Writing())
    found = of_export(export.write(tmp_path / "synthetic.sqlite"), trace)
    assert found.report.transfers == plain.nsys.report.transfers
    assert [s.transfers for s in one(found.files[0]).steps] == [s.transfers for s in one(plain.files[1]).steps]
    assert found.files[0].other_copies == ()


# ---- CUDA graphs


@in_each_version
def test_nodes_of_graphs_join_by_how_they_were_made(tmp_path: Path, version: Version) -> None:
    name = "jax0.12.0.1/gb200_offload_unrolled"
    run = play(name, speeds=SLOW)
    chosen = [n for n, e in enumerate(run.events) if e.op.startswith("gemm_fusion_dot") and e.stream == MAIN]
    run.events = in_one_launch(run.events, chosen, hidden=False)
    assert any(event.graph is not None for event in run.events)
    found = answers(trace_of(run, name), tmp_path, Writing(version, nodes_made=True))
    assert_same_answer(found)
    assert found.files[1].hidden_events == 0
    assert set(found.files[1].classified_ps) == {"hlo"}


@pytest.mark.parametrize("clones", [1, 3])
def test_clones_of_nodes_are_named_as_their_originals(tmp_path: Path, clones: int) -> None:
    """Instantiating a graph clones its nodes, outside of the ranges in which they were recorded."""
    name = "jax0.12.0.1/gb200_offload_unrolled"
    run = play(name, speeds=SLOW)
    chosen = [n for n, e in enumerate(run.events) if e.op.startswith("gemm_fusion_dot") and e.stream == MAIN]
    run.events = in_one_launch(run.events, chosen, hidden=False)
    trace = trace_of(run, name)
    export = export_of(trace, Writing(nodes_made=True))
    for row in list(export.rows["CUDA_GRAPH_NODE_EVENTS"]):
        for number in range(clones):
            node = int(row["graphNodeId"] or 0) + (number << 50)
            later = {
                "graphNodeId": node + (1 << 50),
                "originalGraphNodeId": node,
                "start": -9_000_000,
                "end": -8_000_000,
            }
            export.add("CUDA_GRAPH_NODE_EVENTS", **{**row, **later})
    for row in export.rows["CUPTI_ACTIVITY_KIND_KERNEL"]:
        if row["graphNodeId"] is not None:
            assert isinstance(row, dict)
            row["graphNodeId"] += clones << 50
    found = of_export(export.write(tmp_path / "synthetic.sqlite"), trace)
    assert_same_answer(Answers(answers(trace, tmp_path, Writing(nodes_made=True)).xplane, found))


@in_each_version
def test_nodes_of_graphs_that_were_made_before_the_profile_are_hidden(tmp_path: Path, version: Version) -> None:
    """``--capture-range`` after the warm-up shows their launches only."""
    name = "jax0.12.0.1/gb200_offload_unrolled"
    run = play(name, speeds=SLOW)
    chosen = [n for n, e in enumerate(run.events) if e.op.startswith("gemm_fusion_dot") and e.stream == MAIN]
    run.events = in_one_launch(run.events, chosen, hidden=True)
    found = answers(trace_of(run, name), tmp_path, Writing(version))
    one_file, other = found.files
    assert other.hidden_events == one_file.hidden_events == len(chosen)
    assert other.hidden_ops == ("command_buffer_3",)
    for figure in ("time_ps", "compute_ps", "exposed_d2h_ps", "exposed_h2d_ps", "exposed_ps", "idle_ps"):
        assert one(other).figures[figure].tolist() == one(one_file).figures[figure].tolist()
    said = " ".join((*other.limits, *(gap.reason + gap.remedy for gap in other.unknown)))
    assert "--xla_gpu_enable_command_buffer=" in said


@in_each_version
def test_graphs_that_were_traced_as_a_whole_are_unknown(tmp_path: Path, version: Version) -> None:
    """``--cuda-graph-trace=graph`` is the default of nsys: what is inside a graph is not in the file."""
    name = "jax0.12.0.1/gb200_offload_unrolled"
    run = play(name)
    events = [event for event in run.events if event.stream != MAIN]
    for number, truth in enumerate(run.truth):
        block = Event(
            MAIN, truth.start_ps, truth.end_ps - 50 * US, "CudaGraphExec:5", graph_exec=5, launch="cuGraphLaunch"
        )
        launched = min(e.launched_ps or 0 for e in run.events if e.run == number) - 2 * US
        events.append(
            replace(
                block, op="command_buffer_3", program=PROGRAM, run=number, launched_ps=launched, launch="cuGraphLaunch"
            )
        )
    run.events = events
    found = answers(trace_of(run, name), tmp_path, Writing(version))
    one_file, other = found.files
    assert other.graph_blocks == one_file.graph_blocks == 4
    assert {t.verdict for t in found.nsys.report.transfers} == {"unknown"}
    reasons = [gap for gap in found.nsys.report.unknown if "graph" in gap.reason.lower()]
    assert reasons
    assert any("--cuda-graph-trace=node" in gap.remedy or "command_buffer" in gap.remedy for gap in reasons)


# ---- parts that are missing


@in_each_version
def test_without_rows_of_domains_ranges_are_known_by_their_names(tmp_path: Path, version: Version) -> None:
    run = play("optimizer", speeds=SLOW)
    assert_same_answer(answers(trace_of(run, "optimizer"), tmp_path, Writing(version, domains=False)))


def test_without_a_module_copies_are_known_by_their_memories(tmp_path: Path) -> None:
    run = play("optimizer", speeds=SLOW)
    found = answers(replace(trace_of(run, "optimizer"), modules=()), tmp_path, Writing())
    one_file, other = found.files
    assert other.module is None
    for name in ("busy_h2d_ps", "busy_d2h_ps"):
        assert sum(one(other).figures[name]) == sum(one(one_file).figures[name])
    assert any("--hlo" in gap.remedy for gap in found.nsys.report.unknown)


@in_each_version
def test_without_ranges_copies_and_kernels_are_still_seen(tmp_path: Path, version: Version) -> None:
    run = play("optimizer", speeds=SLOW)
    trace = trace_of(run, "optimizer")
    path = write_nsys(trace, tmp_path / "synthetic.sqlite", Writing(version), without=("NVTX_EVENTS",))
    found = trace_file(str(path))
    assert found.files[0].events == len(run.events)
    assert any("nvtx" in (gap.reason + gap.remedy).lower() for gap in found.report.unknown)


OPTIONAL = (
    "CUPTI_ACTIVITY_KIND_MEMCPY",
    "CUPTI_ACTIVITY_KIND_KERNEL",
    "CUPTI_ACTIVITY_KIND_MEMSET",
    "CUPTI_ACTIVITY_KIND_RUNTIME",
    "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION",
    "PROCESSES",
    "ThreadNames",
    "ANALYSIS_DETAILS",
    "TARGET_INFO_GPU",
    "TARGET_INFO_CUDA_DEVICE",
    "TARGET_INFO_CUDA_CONTEXT_INFO",
    "TARGET_INFO_SESSION_START_TIME",
    "TARGET_INFO_SYSTEM_ENV",
    "TARGET_INFO_NVTX_CUDA_DEVICE",
    "META_DATA_CAPTURE",
    "DIAGNOSTIC_EVENT",
    "ENUM_CUDA_MEMCPY_OPER",
    "ENUM_CUDA_MEM_KIND",
    "ENUM_NSYS_EVENT_TYPE",
)
FOR_WHAT_IS_MEASURED = OPTIONAL[:4]


@pytest.mark.parametrize("table", OPTIONAL)
@in_each_version
def test_every_table_may_be_missing(tmp_path: Path, table: str, version: Version) -> None:
    """``--lazy`` leaves out empty tables, ``--tables`` any."""
    run = play("optimizer", speeds=SLOW)
    trace = trace_of(run, "optimizer")
    found = answers(trace, tmp_path, Writing(version), without=(table,))
    assert found.nsys.files[0].events > 0
    if table not in FOR_WHAT_IS_MEASURED:
        one_file, other = found.files
        for name in ("stall_ps", "exposed_ps", "compute_ps"):
            assert one(other).figures[name].tolist() == one(one_file).figures[name].tolist()


def test_without_copies_the_waits_for_them_are_not_known(tmp_path: Path) -> None:
    trace = trace_of(play("optimizer", speeds=SLOW), "optimizer")
    path = write_nsys(trace, tmp_path / "synthetic.sqlite", Writing(), without=("CUPTI_ACTIVITY_KIND_MEMCPY",))
    report = of_export(path, trace).report
    assert {transfer.verdict for transfer in report.transfers} == {"unknown"}
    text = unstyle(to_text(report))
    assert "waiting for the host: not known" in text
    assert "transfers alone: not known" in text
    assert "2 of 2 are unknown, such as h2d 1: no event of it is in a step that counts." in text


def test_a_lost_call_leaves_its_operation_without_a_name(tmp_path: Path) -> None:
    """Calls from before the capture's start, or cut off by ``--times``: ids dangle."""
    run = play("optimizer", 6, speeds=SLOW)
    trace = trace_of(run, "optimizer")
    export = export_of(trace, Writing())
    calls = export.rows["CUPTI_ACTIVITY_KIND_RUNTIME"]
    export.rows["CUPTI_ACTIVITY_KIND_RUNTIME"] = [row for n, row in enumerate(calls) if n % 97]
    found = of_export(export.write(tmp_path / "synthetic.sqlite"), trace)
    assert found.files[0].events == len(run.events)
    assert len(found.files[0].devices) == 1


def test_an_export_without_events_of_a_device_says_so(tmp_path: Path) -> None:
    trace = trace_of(play("optimizer"), "optimizer")
    tables = tuple(f"CUPTI_ACTIVITY_KIND_{kind}" for kind in ("KERNEL", "MEMCPY", "MEMSET"))
    found = trace_file(str(write_nsys(trace, tmp_path / "synthetic.sqlite", Writing(), without=tables)))
    assert found.files[0].events == 0
    assert found.report.unknown


@pytest.mark.parametrize("table", ["StringIds", "META_DATA_EXPORT"])
def test_a_database_that_is_no_export_is_refused(tmp_path: Path, table: str) -> None:
    trace = trace_of(play("optimizer", 1), "optimizer")
    path = write_nsys(trace, tmp_path / "synthetic.sqlite", Writing(), without=(table,))
    with pytest.raises(InputError, match="Nsight Systems") as raised:
        trace_file(str(path))
    assert "\n" not in str(raised.value)


def test_an_export_of_nvprof_is_refused(tmp_path: Path) -> None:
    """It has tables of the same names, with another numbering of memories."""
    path = tmp_path / "nvprof.sqlite"
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE StringTable (_id_ INTEGER PRIMARY KEY, value TEXT)")
        connection.execute(
            "CREATE TABLE CUPTI_ACTIVITY_KIND_MEMCPY (_id_ INTEGER PRIMARY KEY, copyKind INT, bytes INT)"
        )
    connection.close()
    with pytest.raises(InputError) as raised:
        trace_file(str(path))
    assert "\n" not in str(raised.value)


# ---- any run


@given(st.integers(0, 2**32))
@settings(max_examples=examples(25, 1000))
def test_any_run_gives_one_answer_in_both_formats(tmp_path_factory: pytest.TempPathFactory, seed: int) -> None:
    rng = random.Random(seed)
    name = some_module(rng)
    run = random_run(name, rng, rng.choice((1, 3, 4)))
    if rng.random() < 0.5:
        moved = disturbed(run.events, rng)
        run.events = [replace(m, launched_ps=e.launched_ps) for m, e in zip(moved, run.events, strict=True)]
    writing = Writing(
        rng.choice(FORMS),
        processes=rng.random() < 0.5,
        named=rng.random() < 0.5,
        shift_ns=rng.choice((0, -5_000_000, 1_700_000_000_000_000_000)),
        domains=rng.random() < 0.7,
        noise=rng.random() < 0.7,
    )
    assert_same_answer(answers(trace_of(run, name), tmp_path_factory.mktemp("run"), writing))
