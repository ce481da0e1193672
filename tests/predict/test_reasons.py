"""Reasons why a transfer is not hidden, and the sizes that go with them."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import pytest

from hloinspect.hlo import parse_text
from hloinspect.kinds import D2H, H2D, verdict_of
from hloinspect.predict.link import Rates
from hloinspect.predict.reasons import Circumstances, Reason, has_remat_barrier, reason_of
from hloinspect.predict.schedule import Operation
from hloinspect.predict.simulate import simulate
from hloinspect.timeline.timeline import overlap
from tests.support import brute_force as bf

MS = 10**9
MB = 10**6
MACHINE = bf.Machine(d2h=Fraction(1, 1000), h2d=Fraction(1, 1000))  # a megabyte takes a millisecond
RATES = Rates({D2H: 1e-3, H2D: 1e-3}, {D2H: 1e-3, H2D: 1e-3}, 0.0)
PLAIN = Circumstances(RATES, frozenset(), frozenset())


def reason(
    number: int, *operations: Operation, around: Circumstances = PLAIN, direction: str = H2D, size: int = MB
) -> Reason:
    """Return the reason of one transfer of a schedule."""
    simulation = simulate(bf.schedule(list(operations)), MACHINE.target(), MACHINE.scenario())
    times = overlap(simulation.timeline).transfers[number]
    verdict = verdict_of(times.duration_ps, times.cover_ps, times.wait_ps)
    transfer = replace(bf.transfer(number, direction, size), done_computation="e")
    behind = simulation.queued_behind.get(number)
    return reason_of(transfer, verdict, times, simulation.windows.get(number), behind, around)


def test_a_window_that_is_too_short_says_by_how_much_and_what_would_fit() -> None:
    # 1 ms of work for 4 MB, which take 4: 3 are missing, 1 MB would fit, and 4 GB/s would do.
    found = reason(1, bf.start(1, H2D, 4 * MB), bf.work(MS), bf.done(1), size=4 * MB)
    assert found.binding == "window"
    assert found.missing_ps == pytest.approx(3 * MS)
    assert found.largest_hidden_bytes == MB
    assert found.needed_bytes_per_s == pytest.approx(4e9)


def test_a_pair_without_anything_between_is_said_to_be_waited_for_at_once_and_hides_nothing() -> None:
    found = reason(1, bf.start(1, D2H, MB), bf.done(1), direction=D2H)
    assert (found.binding, found.largest_hidden_bytes, found.needed_bytes_per_s) == ("window", 0, None)
    assert "as soon as it is started" in found.text


def test_a_transfer_whose_window_would_do_alone_is_bound_by_the_queue() -> None:
    # 3 MB ahead of it, and 2 ms of work: alone its one millisecond would fit.
    operations = (
        bf.start(1, H2D, 3 * MB),
        bf.start(2, H2D, MB),
        bf.work(2 * MS),
        bf.done(1),
        bf.work(MS // 2),
        bf.done(2),
    )
    found = reason(2, *operations)
    assert found.binding == "queue"
    assert "transfer 1" in found.text


def test_a_direction_that_is_busy_all_the_step_is_the_reason_before_any_window() -> None:
    around = replace(PLAIN, saturated=frozenset({H2D}))
    found = reason(1, bf.start(1, H2D, 4 * MB), bf.work(MS), bf.done(1), around=around, size=4 * MB)
    assert found.binding == "link"


def test_an_h2d_under_a_rematerialization_barrier_is_said_so_and_a_d2h_is_not() -> None:
    around = replace(PLAIN, barriers=frozenset({"e"}))
    back = reason(1, bf.start(1, H2D, 4 * MB), bf.work(MS), bf.done(1), around=around, size=4 * MB)
    sent = reason(1, bf.start(1, D2H, 4 * MB), bf.work(MS), bf.done(1), around=around, size=4 * MB, direction=D2H)
    assert (back.binding, sent.binding) == ("barrier", "window")


def test_a_collective_that_runs_beside_a_wait_is_named_as_the_only_cover() -> None:
    found = reason(
        1, bf.start_collective("c", 10 * MS), bf.start(1, H2D, 5 * MB), bf.done(1), bf.work(10 * MS), size=5 * MB
    )
    assert found.binding == "collective"
    assert found.missing_ps == pytest.approx(5 * MS)


def test_the_barrier_of_a_checkpoint_is_seen_by_its_op_name() -> None:
    text = (
        "HloModule m, is_scheduled=true\n\nENTRY %e (p: f32[]) -> f32[] {\n"
        '  %p = f32[] parameter(0)\n  ROOT %r = f32[] negate(%p), metadata={op_name="NAME"}\n}\n'
    )
    with_barrier = parse_text(text.replace("NAME", "jit(step)/transpose(jvp())/while/body/closed_call/remat2"))
    without = parse_text(text.replace("NAME", "jit(remat2)/neg"))
    assert has_remat_barrier(with_barrier.entry)
    assert not has_remat_barrier(without.entry)
