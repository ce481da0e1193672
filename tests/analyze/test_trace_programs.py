"""A report on a step of several programs: figures of all, each program's part, and the other programs' transfers."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from hloinspect.analyze.trace import TraceInspection, trace
from hloinspect.render.page import html_page
from hloinspect.render.page.words import compared
from hloinspect.render.terminal.measured_text import to_text
from hloinspect.report.step_programs import step_of_module
from tests.support.cuda_loops import TINY, Loop, play_loop
from tests.support.cuda_runtime import Speeds
from tests.support.cuda_traces import H100, US, write_trace
from tests.support.nsys_checks import answers, assert_same_answer
from tests.support.nsys_traces import Writing

OFFLOAD, OPTIMIZER, CALLBACK = "jax0.12.0.1/h100_offload_by_xla", "optimizer", "callback"


def traced(loop: Loop, folder: Path, *, annotated: bool = False, target: str | None = None) -> TraceInspection:
    return trace(str(write_trace(loop.trace(annotated=annotated), folder / "host.xplane.pb")), target=target)


@pytest.fixture(scope="module")
def loop() -> Loop:
    return play_loop([[OFFLOAD, OPTIMIZER]] * 5, speeds=Speeds(d2h=300 * US, h2d=500 * US))


def test_the_steps_figures_are_those_of_all_its_programs(loop: Loop, tmp_path: Path) -> None:
    report = traced(loop, tmp_path).report
    step = report.step.measured
    assert step is not None
    assert report.trace is not None
    expected = loop.oracle(loop.names)
    assert step.time_ms == pytest.approx(sum(own.time_ps for own in expected) / 5e9)
    assert step.stall_ms == pytest.approx(sum(own.stall_ps for own in expected) / 5e9)
    assert step.exposed_ms.total == pytest.approx(sum(own.exposed_ps for own in expected) / 5e9)
    programs = report.trace.step_programs
    assert [(one.name, one.runs, one.is_module) for one in programs] == [
        (report.module.name, 1.0, True),
        ("jit_step", 1.0, False),
    ]
    between = report.trace.between_programs_ms
    assert between is not None
    assert sum(one.time_ms for one in programs) + between == pytest.approx(step.time_ms)


def test_waits_of_all_programs_transfers_are_the_steps_stall(loop: Loop, tmp_path: Path) -> None:
    report = traced(loop, tmp_path).report
    assert report.trace is not None
    others = [transfer for one in report.trace.step_programs for transfer in one.transfers]
    assert [(one.direction, one.id) for one in others] == [("h2d", 1), ("d2h", 2)]
    every = [one.measured.wait_ms for one in (*report.transfers, *others) if one.measured]
    assert len(every) == len(report.transfers) + 2
    assert report.step.measured is not None
    assert sum(every) == pytest.approx(report.step.measured.stall_ms)
    assert {one.verdict for one in others} == {"hidden", "exposed"}


def test_a_terminal_says_what_the_step_consists_of_and_what_is_judged(loop: Loop, tmp_path: Path) -> None:
    text = to_text(traced(loop, tmp_path, target="h100").report)
    flat = " ".join(text.split())
    assert "the step is 2 programs: jit_loss 5.06 ms = 80 %, jit_step 1.22 ms = 19 %, between them 22 us = 0 %" in flat
    assert "predicted for h100: jit_loss alone" in flat
    assert "transfers of jit_step, another program of the step" in flat
    assert "the model does not explain this profile: measured 5.06 ms, predicted" in flat
    assert "predicted is jit_loss alone; rules and gates look at the transfers of jit_loss" in flat
    assert "other programs took" not in flat


def test_a_page_has_the_programs_and_compares_the_predicted_one_alone(loop: Loop, tmp_path: Path) -> None:
    found = traced(loop, tmp_path, target="h100")
    page = html_page(found)
    assert "Programs of the step" in page
    assert "Transfers of jit_step" in page
    ((name, _, measured),) = compared(found.report)
    assert (name, measured) == ("jit_loss", "5.06 ms")


def test_the_ratio_of_waits_is_that_of_one_run_where_gradients_are_accumulated(tmp_path: Path) -> None:
    """Compare a step of one run of the program with a step of three and a tiny update."""
    speeds = Speeds(d2h=300 * US, h2d=500 * US)
    folders = [tmp_path / name for name in ("once", "thrice")]
    for folder in folders:
        folder.mkdir()
    once = traced(play_loop([[OFFLOAD]] * 5, speeds=speeds), folders[0], target="h100").report
    plan = [[OFFLOAD] * 3 + [OPTIMIZER]] * 5
    thrice = traced(play_loop(plan, speeds=speeds), folders[1], target="h100").report
    ratios = [[one.measured and one.measured.wait_ratio for one in report.transfers] for report in (once, thrice)]
    assert ratios[1] == [None if ratio is None else pytest.approx(ratio) for ratio in ratios[0]]
    assert any(ratio is not None for ratio in ratios[0])


def test_the_step_that_is_compared_with_a_prediction_is_one_run_of_the_module(tmp_path: Path) -> None:
    speeds = Speeds(d2h=300 * US, h2d=500 * US)
    folders = [tmp_path / name for name in ("once", "thrice")]
    for folder in folders:
        folder.mkdir()
    once = step_of_module(traced(play_loop([[OFFLOAD]] * 5, speeds=speeds), folders[0]).report).measured
    plan = [[OFFLOAD] * 3 + [OPTIMIZER]] * 5
    thrice = step_of_module(traced(play_loop(plan, speeds=speeds), folders[1]).report).measured
    assert once is not None
    assert thrice is not None
    assert thrice.time_ms == pytest.approx(once.time_ms)
    assert thrice.stall_ms == pytest.approx(once.stall_ms)
    assert (thrice.stall_d2h_ms, thrice.stall_h2d_ms) == pytest.approx((once.stall_d2h_ms, once.stall_h2d_ms))


def test_programs_of_one_name_are_told_apart(tmp_path: Path) -> None:
    report = traced(play_loop([[OPTIMIZER, CALLBACK]] * 4), tmp_path).report
    assert report.trace is not None
    assert [one.name for one in report.trace.step_programs] == ["jit_step", "jit_step"]
    assert len({one.program_id for one in report.trace.step_programs}) == 2
    assert any("jit_step (20), jit_step (21)" in limit for limit in report.limits)
    assert [len(one.transfers) for one in report.trace.step_programs] == [0, 1]
    flat = " ".join(to_text(report).split())
    assert "the step is 2 programs: jit_step (20) " in flat
    assert ", jit_step (21) " in flat
    assert "transfers of jit_step (21), another program" in flat
    assert "transfers of jit_step (20), not at those of jit_step (21)" in flat


def test_instructions_of_one_name_are_those_of_their_own_program(loop: Loop, tmp_path: Path) -> None:
    """Both modules have a ``copy-start.2``, and only that of the report's module has a line and a prediction here."""
    found = traced(loop, tmp_path, target="h100")
    instructions, own = found.report.instructions, found.report.module.name
    assert instructions is not None
    assert found.report.trace is not None
    names = {one.program_id: one.name for one in found.report.trace.step_programs}
    assert {names[one.program_id] for one in instructions.largest if one.name == "copy-start.2"} == {own, "jit_step"}
    for one in instructions.largest:
        if names[one.program_id] != own:
            assert one.source is None
            assert one.predicted is None
    assert any(one.source for one in instructions.largest)
    text = to_text(found.report, width=200)
    assert f"predicted, ratio and inside: of {own} alone" in " ".join(text.split())
    assert re.search(r"copy-start\.2 +jit_step +h2d", to_text(found.report, width=200, show_all=True))
    assert re.search(r"copy-start\.2 +jit_loss +d2h", to_text(found.report, width=200, show_all=True))
    assert "<th>program</th>" in html_page(found).replace(' scope="col"', "").replace(' class="n"', "")


def test_a_program_without_a_module_is_a_part_of_the_step(tmp_path: Path) -> None:
    report = traced(play_loop([[TINY, OFFLOAD, OPTIMIZER]] * 4), tmp_path, annotated=True).report
    assert report.trace is not None
    assert [(one.name, one.is_module) for one in report.trace.step_programs] == [
        ("", False),
        ("jit_loss", True),
        ("jit_step", False),
    ]
    assert "the step is 3 programs: program 20 2 us" in " ".join(to_text(report).split())
    assert not any("is taken to be" in limit for limit in report.limits)


def test_several_hosts_that_number_their_programs_differently_are_one_run(tmp_path: Path, loop: Loop) -> None:
    for host, shift in (("a", 0), ("b", 100)):
        own = replace_programs(loop, shift)
        write_trace(own.trace(), tmp_path / f"{host}.xplane.pb")
    report = trace(str(tmp_path)).report
    assert report.trace is not None
    assert [one.name for one in report.trace.step_programs] == ["jit_loss", "jit_step"]
    assert len(report.devices) == 2
    assert json.loads(report.to_json())["trace"]["step_programs"][1]["transfers"][1]["measured"]["wait_ms"] > 0


def replace_programs(loop: Loop, shift: int) -> Loop:
    events = [replace(event, program=event.program and event.program + shift) for event in loop.events]
    return Loop(loop.names, events, loop.annotations, loop.runs, loop.ran, loop.at_end, first=loop.first + shift)


def test_an_export_of_nsight_systems_gives_the_same_step_of_several_programs(loop: Loop, tmp_path: Path) -> None:
    found = answers(replace(loop.trace(), device_stats={**H100, "memory_bandwidth": 10**17}), tmp_path, Writing())
    assert_same_answer(found)
    one, other = (each.report.trace for each in (found.xplane, found.nsys))
    assert one is not None
    assert other is not None
    assert [program.name for program in other.step_programs] == ["jit_loss", "jit_step"]
    assert other.step_programs == one.step_programs
    assert other.between_programs_ms == one.between_programs_ms
