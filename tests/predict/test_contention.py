"""Device memory's bandwidth shared between kernels, host copies and device-side copies, computed by hand.

On this machine a host copy moves 1 byte in 1,000 ps and device memory 1 byte in 100 ps: a copy takes a tenth of it.
"""

from __future__ import annotations

from fractions import Fraction

import pytest

from hloinspect.predict.contention import Idle, kernels_of
from hloinspect.predict.link import FAIR_COPIES
from hloinspect.predict.schedule import Operation
from hloinspect.predict.simulate import simulate
from hloinspect.timeline.timeline import Overlap, overlap
from tests.support import brute_force as bf

MACHINE = bf.Machine(hbm=Fraction(1, 100))
MB = 10**6  # a millisecond over the link
TENTH = bf.MS // 1000  # bytes of device memory that take a tenth of a millisecond


def work(ms: float, memory_ms: float) -> Operation:
    """Return a kernel that computes for ``ms``, and whose bytes would take ``memory_ms``."""
    return bf.work(round(ms * bf.MS), round(memory_ms * 10 * TENTH))


def side(name: str, launch_ms: float, memory_ms: float) -> Operation:
    """Return a copy within device memory: what it needs alone is the longer of the two."""
    return bf.start_side(name, round(launch_ms * bf.MS), round(memory_ms * 10 * TENTH))


def run(*operations: Operation, machine: bf.Machine = MACHINE) -> Overlap:
    what = bf.schedule(list(operations))
    found = overlap(simulate(what, machine.target(), machine.scenario()).timeline)
    exact = bf.brute_force(what, machine)
    assert found.step.time_ps == pytest.approx(float(exact.time_ps))
    assert found.step.stall_ps == pytest.approx(float(exact.stall_ps))
    return found


def time_of(*operations: Operation, machine: bf.Machine = MACHINE) -> float:
    return run(*operations, machine=machine).step.time_ps / bf.MS


def test_a_device_copy_beside_a_kernel_that_is_bound_by_memory_makes_no_progress() -> None:
    # The transpose takes 4 ms and all of the bandwidth; the copy's 3 ms come after it.
    assert time_of(side("copy", 0, 3), work(0, 4), bf.done_of("copy")) == pytest.approx(7)


def test_a_device_copy_beside_a_product_runs_at_what_the_product_leaves() -> None:
    # A product of 8 ms needs a quarter of the bandwidth: the copy's 3 ms take 4, and nothing waits.
    assert time_of(side("copy", 0, 3), work(8, 2), bf.done_of("copy")) == pytest.approx(8)
    # One of 2 ms leaves it 1.5 ms of bandwidth; the other 1.5 are waited for.
    assert time_of(side("copy", 0, 3), work(2, 0.5), bf.done_of("copy")) == pytest.approx(3.5)


def test_a_device_copy_goes_on_where_a_later_kernel_leaves_room() -> None:
    # Nothing beside the transpose (4 ms), then 3/4 of 4 ms beside the product.
    assert time_of(side("copy", 0, 3), work(0, 4), work(4, 1), bf.done_of("copy")) == pytest.approx(8)


def test_a_device_copy_starts_up_while_a_kernel_has_the_memory() -> None:
    # 1 ms alone, of which 0.4 in memory: the 0.6 ms before that pass beside the transpose.
    assert time_of(side("copy", 1, 0.4), work(0, 4), bf.done_of("copy")) == pytest.approx(4.4)


def test_two_device_copies_go_one_after_the_other_even_beside_kernels() -> None:
    assert time_of(side("a", 0, 1), side("b", 0, 1), work(4, 2), bf.done_of("a"), bf.done_of("b")) == pytest.approx(
        4
    )  # each takes 2 ms beside a kernel that leaves half


def test_a_host_copy_slows_a_kernel_that_is_bound_by_memory_by_its_share() -> None:
    # 9 ms of memory work at nine tenths of the bandwidth take 10, and the copy of 20 ms hides beside.
    found = run(bf.start(1, "d2h", 20 * MB), work(0, 9), work(12, 0), bf.done(1))
    assert found.step.time_ps / bf.MS == pytest.approx(22)
    assert found.transfers[1].wait_ps == 0
    assert found.transfers[1].cover_ps == found.transfers[1].duration_ps


def test_a_host_copy_slows_only_the_part_of_a_kernel_that_it_runs_beside() -> None:
    # The copy takes 5 ms, in which 4.5 of the kernel's 9 are done.
    assert time_of(bf.start(1, "d2h", 5 * MB), work(0, 9), bf.done(1)) == pytest.approx(9.5)


def test_copies_both_ways_take_twice_as_much() -> None:
    assert time_of(
        bf.start(1, "d2h", 20 * MB), bf.start(2, "h2d", 20 * MB), work(0, 8), work(10, 0), bf.done(1), bf.done(2)
    ) == pytest.approx(20)  # 8 ms at 4/5 take 10


def test_a_host_copy_leaves_a_kernel_alone_that_is_bound_by_compute() -> None:
    # It needs 0.9 of the bandwidth, which is what is left.
    assert time_of(bf.start(1, "d2h", 5 * MB), work(10, 9), bf.done(1)) == pytest.approx(10)


def test_a_host_copy_takes_its_share_from_a_device_copy_too() -> None:
    assert time_of(bf.start(1, "d2h", 20 * MB), side("copy", 0, 9), bf.done_of("copy"), bf.done(1)) == pytest.approx(20)
    assert time_of(bf.start(1, "d2h", 5 * MB), side("copy", 0, 9), bf.done_of("copy"), bf.done(1)) == pytest.approx(9.5)


def test_a_host_copy_that_starts_up_takes_nothing_yet() -> None:
    machine = bf.Machine(hbm=Fraction(1, 100), latency_ps=9 * bf.MS)
    assert time_of(bf.start(1, "d2h", 1 * MB), work(0, 9), bf.done(1), machine=machine) == pytest.approx(10)


def test_kernels_are_slowed_one_by_one() -> None:
    found = kernels_of([(4.0, 2.0), (2.0, 2.0)], 0.5)
    assert found.ends_ps == (0.0, 4.0, 8.0)  # the second one needs it all and gets half
    assert found.lefts_ps == (0.0, 0.0, 0.0)
    assert kernels_of([(4.0, 2.0), (2.0, 2.0)], 0.0).lefts_ps == (0.0, 2.0, 2.0)


def test_what_is_left_and_when_are_each_others_inverse() -> None:
    kernels = kernels_of([(4.0, 1.0), (3.0, 3.0), (2.0, 1.0)], 0.0)
    for left in (0.5, 2.9, 3.1, 3.9):
        assert kernels.left_ps(kernels.moment_ps(left)) == pytest.approx(left)
    assert kernels.moment_ps(3.0) == pytest.approx(4.0)  # the first such moment
    assert kernels.moment_ps(4.1) == float("inf")
    assert Idle(0.5).left_ps(Idle(0.5).moment_ps(3.0)) == pytest.approx(3.0)


# copies of one direction that share the link

FAIR = bf.Machine(fair=True)


def test_two_copies_of_one_direction_that_share_the_link_end_together() -> None:
    found = run(bf.start(1, "d2h", 4 * MB), bf.start(2, "d2h", 4 * MB), bf.done(1), bf.done(2), machine=FAIR)
    assert found.transfers[1].duration_ps / bf.MS == found.transfers[2].duration_ps / bf.MS == pytest.approx(8)
    assert found.transfers[1].wait_ps / bf.MS == pytest.approx(8)  # the first done waits for both
    assert found.step.busy_d2h_ps / bf.MS == pytest.approx(8)


def test_a_small_copy_gets_past_a_large_one_where_they_share() -> None:
    operations = (bf.start(1, "d2h", 9 * MB), bf.start(2, "d2h", 1 * MB), bf.done(2), work(20, 0), bf.done(1))
    assert time_of(*operations, machine=FAIR) == pytest.approx(22)  # 1 MB at half the rate
    assert time_of(*operations, machine=bf.Machine()) == pytest.approx(30)  # behind 9 ms


def test_more_copies_than_engines_still_queue() -> None:
    count = FAIR_COPIES + 1
    starts = [bf.start(number, "d2h", MB) for number in range(1, count + 1)]
    found = run(*starts, *[bf.done(number) for number in range(1, count + 1)], machine=FAIR)
    assert found.transfers[1].duration_ps / bf.MS == pytest.approx(FAIR_COPIES)
    assert found.transfers[count].duration_ps / bf.MS == pytest.approx(1)


def test_each_direction_keeps_its_own_share_while_both_run() -> None:
    # D2H keeps a half, H2D all: 2 ms of D2H are done after 4 of H2D.
    machine = bf.Machine(duplex=(Fraction(1, 2), Fraction(1)))
    found = run(bf.start(1, "d2h", 6 * MB), bf.start(2, "h2d", 4 * MB), bf.done(2), bf.done(1), machine=machine)
    assert found.transfers[2].duration_ps / bf.MS == pytest.approx(4)
    assert found.transfers[1].duration_ps / bf.MS == pytest.approx(8)
