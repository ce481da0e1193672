"""Several programs a step: which they are, where a step begins, and its figures against the oracle.

The traces are synthetic: our own modules, played one after the other on one device (tests/support/cuda_loops.py).
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hloinspect.measure.cycle import places_in, repeating_programs, repeating_steps
from hloinspect.measure.file import measure_file
from hloinspect.measure.measured import MeasuredDevice, MeasuredFile
from tests.measure.test_copies import covered
from tests.measure.test_oracle import disturbed, start_names
from tests.support.cuda_loops import TINY, Loop, play_loop
from tests.support.cuda_runtime import Speeds
from tests.support.cuda_traces import US, Event, Trace, write_trace
from tests.support.thorough import examples
from tests.support.trace_oracle import FIGURES, TRANSFER_FIGURES, OracleStep

OPTIMIZER, CALLBACK = "optimizer", "callback"
OFFLOAD, SAVE = "jax0.12.0.1/h100_offload_by_xla", "jax0.12.0.1/gb200_save"
Answer = Callable[[Trace], MeasuredFile]


@pytest.fixture
def answer(tmp_path: Path) -> Answer:
    return lambda trace: measure_file(write_trace(trace, tmp_path / "host.xplane.pb"))


def one(file: MeasuredFile) -> MeasuredDevice:
    (device,) = file.devices
    return device


def by_name(device: MeasuredDevice, loop: Loop, index: int) -> dict[str, dict[str, int]]:
    """Return the figures of all transfers in one step, by the module's name and the start."""
    programs = {loop.program(name): name for name in loop.names}
    every = {device.program: device.transfers, **{own.program: own.transfers for own in device.programs[1:]}}
    return {
        f"{programs[program]} {start_names(programs[program])[number]}": {
            figure: int(columns[figure][index]) for figure in TRANSFER_FIGURES
        }
        for program, transfers in every.items()
        for number, columns in transfers.items()
        if columns["events"][index]
    }


def assert_is(device: MeasuredDevice, loop: Loop, expected: Sequence[OracleStep]) -> None:
    """Compare every figure of every step, and of every transfer of every program."""
    steps = list(device.steps)
    assert len(steps) == len(expected)
    for index, (step, own) in enumerate(zip(steps, expected, strict=True)):
        assert {figure: getattr(step, figure) for figure in FIGURES} == {f: getattr(own, f) for f in FIGURES}
        assert step.compute_ps + step.collective_exposed_ps + step.exposed_ps + step.idle_ps == step.time_ps
        assert by_name(device, loop, index) == {
            name: {f: getattr(o, f) for f in TRANSFER_FIGURES} for name, o in own.transfers.items()
        }


def assert_parts_are(device: MeasuredDevice, loop: Loop, names: Sequence[str]) -> None:
    """Compare the part of each program in each step, and the time between, with what every moment shows."""
    programs = {one.program: one for one in device.programs}
    assert set(programs) == {loop.program(name) for name in names}
    for index, numbers in enumerate(loop.runs):
        windows = {}
        for number in numbers:
            own = [event for event in loop.events if event.run == number and event.program]
            windows[number] = Event(0, min(e.start_ps for e in own), max(e.end_ps for e in own), loop.ran[number])
        for name in names:
            own = [window for window in windows.values() if window.name == name]
            part = programs[loop.program(name)]
            assert part.runs[index] == len(own)
            assert part.time_ps[index] == sum(window.duration_ps for window in own)
        step = Event(0, int(device.start_ps[index]), int(device.end_ps[index]), "")
        assert device.between_ps[index] == step.duration_ps - covered(step, list(windows.values()))


# ---- two programs a step


@pytest.mark.parametrize("annotated", [False, True])
@pytest.mark.parametrize("blocking", [False, True])
def test_a_gradient_and_an_update_are_one_step(answer: Answer, annotated: bool, blocking: bool) -> None:
    loop = play_loop([[OFFLOAD, OPTIMIZER]] * 5, speeds=Speeds(d2h=300 * US, h2d=500 * US), blocking=blocking)
    file = answer(loop.trace(annotated=annotated))
    device = one(file)
    assert_is(device, loop, loop.oracle([OFFLOAD, OPTIMIZER]))
    assert set(device.set_aside) == {""}
    assert device.order == (loop.program(OFFLOAD), loop.program(OPTIMIZER))
    assert device.programs[0].program == device.program
    assert all(own.runs.tolist() == [1] * 5 for own in device.programs)
    assert any("is taken to be" in limit for limit in file.limits) is not annotated


def test_the_other_programs_transfers_have_waits_of_their_own(answer: Answer) -> None:
    loop = play_loop([[SAVE, OPTIMIZER, CALLBACK]] * 4, speeds=Speeds(d2h=600 * US, h2d=900 * US))
    device = one(answer(loop.trace()))
    assert_is(device, loop, loop.oracle(loop.names))
    others = [own for own in device.programs[1:] if own.transfers]
    assert others
    assert all(columns["wait_ps"].sum() > 0 for own in others for columns in own.transfers.values())


def test_accumulated_gradients_and_an_update_are_one_step(answer: Answer) -> None:
    loop = play_loop([[OFFLOAD, OFFLOAD, OFFLOAD, OPTIMIZER]] * 4)
    device = one(answer(loop.trace()))
    assert_is(device, loop, loop.oracle(loop.names))
    runs = {own.program: own.runs.tolist() for own in device.programs}
    assert runs == {loop.program(OFFLOAD): [3] * 4, loop.program(OPTIMIZER): [1] * 4}


def test_annotations_decide_that_each_run_of_the_gradient_is_a_step(answer: Answer) -> None:
    """Annotate every micro-step: the update runs in every third one, so it is no part of a step."""
    loop = play_loop([[OFFLOAD], [OFFLOAD], [OFFLOAD, OPTIMIZER]] * 3)
    device = one(answer(loop.trace(annotated=True)))
    assert device.programs == ()
    assert_is(device, loop, loop.oracle([OFFLOAD]))


@pytest.mark.parametrize("annotated", [False, True])
def test_an_evaluation_now_and_then_is_no_part_of_the_step(answer: Answer, annotated: bool) -> None:
    plan = [[OFFLOAD, OPTIMIZER]] * 10
    plan = [[*step, SAVE] if number % 3 == 2 else step for number, step in enumerate(plan)]
    loop = play_loop(plan)
    device = one(answer(loop.trace(annotated=annotated)))
    assert_is(device, loop, loop.oracle([OFFLOAD, OPTIMIZER]))
    assert set(device.set_aside) == {""}


def test_a_rare_program_that_alone_has_transfers_is_measured_by_itself(answer: Answer) -> None:
    """Save the state from every fourth step: only that program moves anything to the host."""
    loop = play_loop(([[SAVE]] * 3 + [[SAVE, OPTIMIZER]]) * 3)
    device = one(answer(loop.trace(annotated=True)))
    assert device.programs == ()
    loop.runs = [runs for runs in loop.runs if len(runs) > 1]
    assert_is(device, loop, loop.oracle([OPTIMIZER]))


def test_a_program_that_changes_nothing_does_not_end_a_step_of_several_runs(answer: Answer) -> None:
    """Evaluate after every fourth step, three times: the same order as with accumulated gradients."""
    loop = play_loop([[OPTIMIZER]] * 3 + [[OPTIMIZER, TINY]] + ([[OPTIMIZER]] * 3 + [[OPTIMIZER, TINY]]) * 2)
    device = one(answer(loop.trace()))
    assert device.programs == ()
    assert_is(device, loop, loop.oracle([OPTIMIZER]))


def test_tiny_programs_of_each_step_are_parts_of_it(answer: Answer) -> None:
    loop = play_loop([[TINY, OFFLOAD, OPTIMIZER]] * 4)
    device = one(answer(loop.trace()))
    assert_is(device, loop, loop.oracle(loop.names))
    assert device.order == tuple(loop.program(name) for name in (TINY, OFFLOAD, OPTIMIZER))


@pytest.mark.parametrize("annotated", [False, True])
def test_a_tiny_program_does_not_make_one_program_a_step_of_several(answer: Answer, annotated: bool) -> None:
    loop = play_loop([[TINY, OFFLOAD]] * 4)
    device = one(answer(loop.trace(annotated=annotated)))
    assert device.programs == ()
    assert_is(device, loop, loop.oracle([OFFLOAD]))


def test_a_trace_that_begins_within_a_step_has_its_first_step_set_aside(answer: Answer) -> None:
    loop = play_loop([[OFFLOAD, OPTIMIZER]] * 5)
    first = loop.runs[0][0]
    expected = loop.oracle(loop.names)
    loop.events = [event for event in loop.events if event.run != first]
    device = one(answer(loop.trace()))
    assert device.set_aside == ("cut by the trace's begin", "", "", "", "")
    steps = list(device.steps)
    assert [step.time_ps for step in steps[1:]] == [own.time_ps for own in expected[1:]]


def test_a_step_without_its_update_is_set_aside(answer: Answer) -> None:
    loop = play_loop([[OFFLOAD, OPTIMIZER]] * 8)
    lost = loop.runs[3][1]
    loop.events = [event for event in loop.events if event.run != lost]
    device = one(answer(loop.trace()))
    assert [bool(reason) for reason in device.set_aside] == [number == 3 for number in range(8)]


def test_programs_that_alternate_in_no_order_are_not_put_together(answer: Answer) -> None:
    rng = random.Random(3)
    loop = play_loop([[OFFLOAD] if rng.random() < 0.5 else [OPTIMIZER] for _ in range(12)])
    assert one(answer(loop.trace())).programs == ()


@given(st.integers(0, 2**32))
@settings(max_examples=examples(12, 400))
def test_what_is_measured_of_several_programs_is_what_the_oracle_sees(
    tmp_path_factory: pytest.TempPathFactory, seed: int
) -> None:
    rng = random.Random(seed)

    def some(most_us: int) -> int:
        return rng.randrange(1, most_us * 1000) * 1000

    cycle = rng.choice(
        ([OFFLOAD, OPTIMIZER], [OPTIMIZER, CALLBACK], [CALLBACK, CALLBACK, OPTIMIZER], [TINY, OPTIMIZER, SAVE])
    )
    speeds = Speeds(
        kernel=lambda op: some(40),
        transfer=lambda op: some(rng.choice((20, 300, 1500))),
        slice=some(10),
        collective=some(80),
        late=lambda op, step: some(150) if rng.random() < 0.1 else 0,
    )
    is_disturbed = rng.random() < 0.5
    annotated = not is_disturbed and rng.random() < 0.5  # disturbed launches may leave their annotation
    loop = play_loop([cycle] * rng.choice((3, 4)), speeds=speeds, between_ps=5000 * US, within_ps=700 * US)
    if is_disturbed:
        loop.events = disturbed(loop.events, rng)
    has_host = annotated or rng.random() < 0.7
    trace = loop.trace(annotated=annotated, host=has_host)
    device = one(measure_file(write_trace(trace, tmp_path_factory.mktemp("trace") / "host.xplane.pb")))
    assert_is(device, loop, loop.oracle(loop.names, launches_known=has_host))
    assert_parts_are(device, loop, loop.names)


# ---- the order of runs


def brute_steps(sequence: Sequence[int], cycle: Sequence[int]) -> list[int]:
    """Return the step of each run: a step is the longest piece that is the cycle with some runs left out."""
    found: list[int] = []
    while len(found) < len(sequence):
        rest = sequence[len(found) :]
        size = max(n for n in range(1, len(rest) + 1) if left_out(rest[:n], cycle))
        found += [found[-1] + 1 if found else 0] * size
    return found


def left_out(piece: Sequence[int], cycle: Sequence[int]) -> bool:
    every = iter(cycle)
    return all(program in every for program in piece)


@given(st.data())
def test_runs_are_put_into_steps_as_long_as_they_follow_the_cycle(data: st.DataObject) -> None:
    cycle = data.draw(st.lists(st.integers(0, 3), min_size=1, max_size=5))
    sequence = data.draw(st.lists(st.sampled_from(cycle), min_size=1, max_size=20))
    assert repeating_steps(sequence, cycle).step_of_run.tolist() == brute_steps(sequence, cycle)
    assert [cycle[place] for place in places_in(sequence, cycle)] == sequence


@given(st.data())
def test_a_cycle_is_found_again_from_any_begin_with_rare_programs_between(data: st.DataObject) -> None:
    """Make the sequence from the cycle: each program once or, for the first one, several times in a row."""
    size = data.draw(st.integers(2, 5))
    repeats = data.draw(st.integers(1, 3))
    cycle = [0] * repeats + list(range(1, size))
    sequence = cycle * data.draw(st.integers(5, 12))
    sequence = sequence[data.draw(st.integers(0, len(cycle) - 1)) :]
    rare = data.draw(st.lists(st.integers(0, len(sequence)), max_size=1))
    for place in rare:
        sequence.insert(place, 9)
    found = repeating_programs(sequence, 0, {9}, set(range(size)))
    assert len(found) == len(cycle)
    assert any(list(found[place:] + found[:place]) == cycle for place in range(len(cycle)))


@pytest.mark.parametrize(
    ("sequence", "expected"),
    [
        ("ABABABAB", "AB"),
        ("ABABEABABEABABE", "AB"),
        ("AABAABAAB", "AAB"),
        ("AAAAEAAAAEAAAAE", "A"),
        ("AEAAAAAAEAAA", "A"),
        ("hABhABhAB", "hAB"),
        ("hABhABABhABhABhAB", "hAB"),
        ("hABABABABhAB", "AB"),
        ("hAhAhAhA", "A"),
        ("AABABBAB", "A"),
        ("A", "A"),
        ("AB", "A"),
        ("ABA", "AB"),
    ],
)
def test_the_programs_of_a_step_are_those_of_most_steps(sequence: str, expected: str) -> None:
    """Use A for the main program, B for an update, E for an evaluation, and small letters for tiny programs."""
    found = repeating_programs([ord(one) for one in sequence], ord("A"), {ord("h")}, {ord("A"), ord("B")})
    text = "".join(map(chr, found))
    assert len(text) == len(expected)
    assert expected in text + text
