"""Small schedules with their timelines computed by hand: on this link a megabyte takes a millisecond."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from fractions import Fraction

import pytest

from hloinspect.hardware.target import Figure
from hloinspect.kinds import EXPOSED, HIDDEN, PARTIAL, verdict_of
from hloinspect.predict.link import rates_of
from hloinspect.predict.scenario import scenarios
from hloinspect.predict.schedule import Branch, Done, Loop, Operation, StartTransfer
from hloinspect.predict.simulate import Simulation, simulate
from hloinspect.timeline.timeline import Overlap, overlap
from tests.support import brute_force as bf

MB = 10**6
PLAIN = bf.Machine()


def work(ms: float) -> Operation:
    return bf.work(round(ms * bf.MS))


def d2h(number: int, ms: float) -> Operation:
    return bf.start(number, "d2h", round(ms * MB))


def h2d(number: int, ms: float) -> Operation:
    return bf.start(number, "h2d", round(ms * MB))


def done(number: int) -> Operation:
    return bf.done(number)


def collective(name: str, ms: float) -> Operation:
    return bf.start_collective(name, round(ms * bf.MS))


@dataclass(frozen=True)
class Step:
    """The answer in milliseconds."""

    found: Overlap
    simulation: Simulation

    @property
    def time(self) -> float:
        return self.found.step.time_ps / bf.MS

    @property
    def stall(self) -> float:
        return self.found.step.stall_ps / bf.MS

    @property
    def exposed(self) -> float:
        return self.found.step.exposed_ps / bf.MS

    def takes(self, number: int) -> float:
        return self.found.transfers[number].duration_ps / bf.MS

    def cover(self, number: int) -> float:
        return self.found.transfers[number].cover_ps / bf.MS

    def wait(self, number: int) -> float:
        return self.found.transfers[number].wait_ps / bf.MS

    def verdict(self, number: int) -> str:
        times = self.found.transfers[number]
        return verdict_of(times.duration_ps, times.cover_ps)


def run(
    *operations: Operation,
    machine: bf.Machine = PLAIN,
    free: frozenset[int] | None = frozenset(),
    **computations: list[Operation],
) -> Step:
    what = bf.schedule(list(operations), **computations)
    simulation = simulate(what, machine.target(), machine.scenario(), free)
    return Step(overlap(simulation.timeline), simulation)


def test_a_start_next_to_its_done_is_waited_for_in_full() -> None:
    # 0..5 work, 5..15 copy and wait.
    step = run(work(5), d2h(1, 10), done(1))
    assert (step.time, step.wait(1), step.cover(1)) == (15, 10, 0)
    assert step.verdict(1) == EXPOSED


def test_a_start_waits_for_all_work_that_was_issued_before_it() -> None:
    # The copy does not begin at 0, though the copy engine is idle: 0..7 work, 7..10 copy beside 7..11 work.
    step = run(work(7), h2d(1, 3), work(4), done(1))
    assert (step.time, step.wait(1), step.cover(1)) == (11, 0, 3)


def test_a_window_with_enough_work_hides_a_transfer() -> None:
    # Copy 0..10 beside work 0..12: covered, nothing waits.
    step = run(d2h(1, 10), work(12), done(1))
    assert (step.time, step.stall, step.verdict(1)) == (12, 0, HIDDEN)


def test_a_window_that_is_too_small_leaves_the_rest_to_be_waited_for() -> None:
    # Copy 0..10, work 0..4, wait 4..10.
    step = run(d2h(1, 10), work(4), done(1))
    assert (step.time, step.wait(1), step.cover(1), step.exposed) == (10, 6, 4, 6)
    assert step.verdict(1) == PARTIAL


def test_a_transfer_is_hidden_from_exactly_the_threshold_on() -> None:
    # 9.5 of 10 ms covered is 95 %: hidden. 9.49 is not.
    assert run(d2h(1, 10), work(9.5), done(1)).verdict(1) == HIDDEN
    assert run(d2h(1, 10), work(9.49), done(1)).verdict(1) == PARTIAL


def test_a_transfer_is_exposed_below_exactly_the_lower_threshold() -> None:
    # 1 of 10 ms covered is 10 %: partial. 0.99 is exposed.
    assert run(d2h(1, 10), work(1), done(1)).verdict(1) == PARTIAL
    assert run(d2h(1, 10), work(0.99), done(1)).verdict(1) == EXPOSED


def test_two_transfers_in_one_direction_queue() -> None:
    # Copy 1 runs 0..10, copy 2 10..16; work 0..12. The second is waited for 12..16.
    step = run(d2h(1, 10), d2h(2, 6), work(12), done(1), done(2))
    assert (step.time, step.wait(1), step.wait(2)) == (16, 0, 4)
    assert (step.takes(2), step.cover(2)) == (6, 2)  # in the queue it does not run
    assert step.simulation.queued_behind == {2: 1}


@pytest.mark.parametrize("size", [8_318_350, 8_619_659, 8_598_323, 9_301_309, 8_847_975])
def test_a_copy_that_ends_as_the_next_one_starts_is_not_in_its_way(size: int) -> None:
    # Copy 3 has no bytes: it ends with its start-up, and so does the work. After copies of these sizes, rounding leaves
    # some millionths of a picosecond of it.
    machine = bf.Machine(
        d2h=Fraction(3, 1000),
        h2d=Fraction(1, 1300),
        duplex=(Fraction(93, 100), Fraction(1, 2)),
        latency_ps=3 * bf.MS,
    )
    before = [bf.start(1, "h2d", size), bf.start(2, "d2h", size), done(2), done(1)]
    step = run(*before, h2d(3, 0), work(3), h2d(4, 0), done(3), done(4), machine=machine)
    assert step.simulation.queued_behind == {}


def test_a_wait_is_charged_to_whatever_the_queue_works_on_meanwhile() -> None:
    # Copy 1 0..10, copy 2 10..16. The step waits for copy 2 alone from 3 on: 7 ms of it for copy 1, 6 for copy 2.
    step = run(d2h(1, 10), d2h(2, 6), work(3), done(2), done(1))
    assert (step.time, step.wait(1), step.wait(2), step.stall) == (16, 7, 6, 13)


def test_opposite_directions_run_side_by_side_on_a_full_duplex_link() -> None:
    # Both 0..10, work 0..10.
    step = run(d2h(1, 10), h2d(2, 10), work(10), done(1), done(2))
    assert (step.time, step.stall) == (10, 0)


def test_opposite_directions_slow_each_other_down_while_both_move_bytes() -> None:
    # Duplex factor 1/2. Both at half rate: the 4 MB are through at 8, when 6 of the 10 MB are left; those take 6 more.
    machine = replace(PLAIN, duplex=(Fraction(1, 2), Fraction(1, 2)))
    step = run(d2h(1, 10), h2d(2, 4), done(1), done(2), machine=machine)
    assert (step.takes(2), step.takes(1), step.time) == (8, 14, 14)


def test_a_wait_is_not_charged_to_the_other_direction() -> None:
    # As above; the step stands still for copy 1 all along, and when it waits for copy 2 that has long been finished.
    step = run(d2h(1, 10), h2d(2, 4), done(1), done(2), machine=replace(PLAIN, duplex=(Fraction(1, 2), Fraction(1, 2))))
    assert (step.wait(1), step.wait(2), step.exposed) == (14, 0, 14)


def test_the_start_up_time_of_a_copy_passes_before_its_bytes_move() -> None:
    # 2 ms latency: 0..2, bytes 2..12. Work 0..5, wait 5..12. It counts as time that the copy takes.
    step = run(d2h(1, 10), work(5), done(1), machine=replace(PLAIN, latency_ps=2 * bf.MS))
    assert (step.time, step.takes(1), step.wait(1), step.cover(1)) == (12, 12, 7, 5)


def test_the_start_up_time_of_one_direction_does_not_slow_the_other() -> None:
    # Latency 2, duplex 1/2. Copy 1: bytes from 2. Copy 2 starts at 4, its bytes move from 6: until then copy 1 has
    # moved 4 MB at the full rate; 6 MB are left, at half rate to 18; copy 2 then has 4 MB left, at full rate to 22.
    machine = replace(PLAIN, latency_ps=2 * bf.MS, duplex=(Fraction(1, 2), Fraction(1, 2)))
    step = run(d2h(1, 10), work(4), h2d(2, 10), done(1), done(2), machine=machine)
    assert (step.takes(1), step.takes(2), step.time) == (18, 18, 22)


def test_every_copy_in_a_queue_pays_its_own_start_up_time() -> None:
    # 1 + 3, then 1 + 3.
    step = run(d2h(1, 3), d2h(2, 3), done(1), done(2), machine=replace(PLAIN, latency_ps=bf.MS))
    assert step.time == 8


def test_a_collective_in_flight_covers_a_transfer() -> None:
    # Copy 0..10, collective 0..6 on its own stream; the step waits 0..10 and only 6..10 is exposed.
    step = run(collective("c", 6), d2h(1, 10), done(1), bf.done_of("c"))
    assert (step.time, step.cover(1), step.exposed, step.stall) == (10, 6, 4, 10)


def test_waiting_for_a_collective_is_no_stall() -> None:
    # Copy 0..4 and collective 0..6: the step stands still until 6, for the collective.
    step = run(collective("c", 6), d2h(1, 4), bf.done_of("c"), done(1))
    assert (step.time, step.stall, step.cover(1)) == (6, 0, 4)


def test_collectives_run_one_after_the_other() -> None:
    # a 0..5, b 5..8.
    step = run(collective("a", 5), collective("b", 3), bf.done_of("b"))
    assert (step.time, step.found.step.collective_exposed_ps) == (8, 8 * bf.MS)


def test_a_collective_without_a_pair_holds_the_main_stream_and_covers() -> None:
    # Copy 0..10 beside the collective 0..7; wait 7..10.
    step = run(d2h(1, 10), bf.blocking_collective(7 * bf.MS), done(1))
    assert (step.time, step.cover(1), step.wait(1)) == (10, 7, 3)


def test_a_synchronous_transfer_holds_the_main_stream() -> None:
    # Work 0..2, copy 2..5, work 5..6.
    step = run(work(2), bf.blocking(1, "h2d", 3 * MB), work(1))
    assert (step.time, step.wait(1), step.cover(1)) == (6, 3, 0)


def test_a_synchronous_transfer_queues_behind_an_asynchronous_one() -> None:
    # Copy 1 0..5, then the synchronous one 5..8: the step stands still 0..8, five of it for copy 1.
    step = run(d2h(1, 5), bf.blocking(2, "d2h", 3 * MB), done(1))
    assert (step.time, step.wait(1), step.wait(2)) == (8, 5, 3)


def test_a_transfer_that_runs_as_a_kernel_runs_beside_compute_if_there_is_room() -> None:
    step = run(bf.start(1, "h2d", 4 * MB, mechanism="kernel"), work(6), done(1))
    assert (step.time, step.cover(1)) == (6, 4)


def test_a_transfer_that_runs_as_a_kernel_takes_the_place_of_compute_if_there_is_none() -> None:
    # Kernel 0..4 alone, work 4..10.
    machine = replace(PLAIN, kernels_block=True)
    step = run(bf.start(1, "h2d", 4 * MB, mechanism="kernel"), work(6), done(1), machine=machine)
    assert (step.time, step.wait(1), step.cover(1)) == (10, 4, 0)


def test_the_copy_engine_runs_beside_compute_even_where_kernels_do_not() -> None:
    machine = replace(PLAIN, kernels_block=True)
    assert run(h2d(1, 4), work(6), done(1), machine=machine).time == 6


def test_a_copy_on_the_side_stream_covers_a_transfer() -> None:
    # Side copy 0..7, transfer 0..10; the step waits for the side copy to 7 and then for the transfer.
    step = run(bf.start_side("s", 7 * bf.MS), d2h(1, 10), bf.done_of("s"), done(1))
    assert (step.time, step.cover(1), step.wait(1)) == (10, 7, 3)


def test_a_loop_multiplies_its_iteration() -> None:
    # An iteration: copy 0..3 beside work 0..2, wait 1. Seven of them.
    step = run(Loop("body", None, 7), body=[d2h(1, 3), work(2), done(1)])
    assert (step.time, step.takes(1), step.cover(1), step.wait(1)) == (21, 21, 14, 7)


def test_the_first_iteration_of_a_loop_may_differ_from_the_others() -> None:
    # Copy 1 begins before the loop and runs 0..10. First iteration: copy 2 queues behind it and runs 10..12; wait
    # 1..12, 9 of it for copy 1 and 2 for copy 2. The other three iterations: copy 0..2, work 0..1, wait 1.
    step = run(d2h(1, 10), Loop("body", None, 4), done(1), body=[d2h(2, 2), work(1), done(2)])
    assert (step.time, step.wait(1), step.wait(2)) == (12 + 3 * 2, 9, 2 + 3 * 1)
    assert (step.takes(2), step.cover(2)) == (8, 3)


def test_nested_loops_multiply() -> None:
    # Inner iteration 3 ms (2 work, 1 waiting), five of them, then 1 work: 16; four of those.
    step = run(Loop("outer", None, 4), outer=[Loop("inner", None, 5), work(1)], inner=[d2h(1, 3), work(2), done(1)])
    assert (step.time, step.takes(1), step.wait(1)) == (64, 60, 20)


def test_a_loop_without_iterations_does_nothing() -> None:
    step = run(work(1), Loop("body", None, 0), body=[d2h(1, 3), done(1)])
    assert step.time == 1
    assert step.found.transfers == {}


def test_a_loop_of_one_iteration_runs_once() -> None:
    assert run(Loop("body", None, 1), body=[d2h(1, 3), work(2), done(1)]).time == 3


def test_a_condition_runs_once_more_than_it_holds() -> None:
    # Three iterations of 2 ms, and the condition, 1 ms, four times; once where there is no iteration.
    assert run(Loop("body", "condition", 3), body=[work(2)], condition=[work(1)]).time == 10
    assert run(Loop("body", "condition", 0), body=[work(2)], condition=[work(1)]).time == 1


def test_a_thousand_iterations_fold_into_a_few_segments() -> None:
    step = run(Loop("body", None, 1000), body=[d2h(1, 3), work(2), done(1)])
    assert (step.time, step.takes(1), step.wait(1)) == (3000, 3000, 1000)
    assert len(step.simulation.timeline.segments) < 10
    assert step.simulation.unsettled == ()


def test_a_thousand_iterations_of_a_thousand_iterations_fold() -> None:
    step = run(
        Loop("outer", None, 1000), outer=[Loop("inner", None, 1000), work(1)], inner=[d2h(1, 3), work(2), done(1)]
    )
    assert step.time == 1000 * 3001


def test_loops_nested_fifty_deep_take_no_time_to_predict() -> None:
    # Each level has three iterations, so the innermost runs 3^50 times: run twice a level, it would never end.
    bodies: dict[str, list[Operation]] = {f"body{level}": [Loop(f"body{level - 1}", None, 3)] for level in range(1, 50)}
    bodies["body0"] = [d2h(1, 3), work(2), done(1)]
    step = run(Loop("body49", None, 3), **bodies)
    assert step.time == pytest.approx(3.0 * 3**50)


@pytest.mark.parametrize("begin", [bf.start_collective, bf.start_side])
def test_unfinished_work_of_the_last_iteration_of_a_folded_loop_is_waited_for(begin: Callable[..., Operation]) -> None:
    # Each iteration waits for what the one before started (3 ms) and works 1 ms: iteration k ends at 3 k - 2, its
    # copy at 3 k. Ten iterations end at 28; the step goes on at 30 with 5 ms of work.
    body = [bf.done_of("a"), begin("a", 3 * bf.MS), work(1)]
    assert run(Loop("body", None, 10), bf.done_of("a"), work(5), body=body).time == 35


def test_a_transfer_may_be_awaited_one_iteration_later() -> None:
    # As above with a copy of 3 ms: in each iteration but the first 2 ms of waiting; after the loop 2 ms more.
    body = [done(1), d2h(1, 3), work(1)]
    step = run(Loop("body", None, 1000), done(1), work(5), body=body)
    assert (step.time, step.takes(1), step.wait(1), step.cover(1)) == (3005, 3000, 2000, 1000)


def test_a_transfer_that_is_never_awaited_still_runs_to_its_end() -> None:
    # Copy 0..10, work 0..4: the step ends when the copy does.
    step = run(d2h(1, 10), work(4))
    assert (step.time, step.takes(1), step.wait(1)) == (10, 10, 6)


def test_a_transfer_that_every_iteration_starts_and_none_awaits_runs_as_often() -> None:
    # Three copies of 10 ms queue, work 0..3: the step ends at 30.
    step = run(Loop("body", None, 3), body=[d2h(1, 10), work(1)])
    assert (step.time, step.takes(1), step.cover(1), step.wait(1)) == (30, 30, 3, 27)


def test_a_collective_from_before_a_loop_may_end_in_any_of_its_iterations() -> None:
    step = run(collective("a", 250), Loop("body", None, 300), body=[work(1)])
    assert (step.time, step.simulation.unsettled) == (300, ())


def test_a_loop_whose_queue_grows_is_said_not_to_have_settled() -> None:
    step = run(Loop("body", None, 1000), body=[d2h(1, 10), work(1)])
    assert step.simulation.unsettled == ("body",)


def test_a_done_of_something_that_never_started_waits_for_nothing() -> None:
    step = run(work(2), Done(("e", "nothing")), d2h(1, 3), work(3), done(1), done(1))
    assert (step.time, step.stall) == (5, 0)


@pytest.mark.parametrize(("longest", "time"), [(True, 9), (False, 2)])
def test_a_conditional_takes_its_longest_or_its_shortest_branch(longest: bool, time: float) -> None:
    machine = replace(PLAIN, longest_branch=longest)
    assert run(Branch(("a", "b")), a=[work(2)], b=[work(9)], machine=machine).time == time


@pytest.mark.parametrize(("longest", "time"), [(True, 5), (False, 0)])
def test_transfers_make_a_branch_long_as_compute_does(longest: bool, time: float) -> None:
    # lax.cond(offload, send, nothing): the branch that sends is the longer one although it computes nothing.
    machine = replace(PLAIN, longest_branch=longest)
    step = run(Branch(("nothing", "send")), nothing=[], send=[d2h(1, 5), done(1)], machine=machine)
    assert step.time == time


def test_a_counterfactual_takes_the_same_branch() -> None:
    # With its transfer free, "send" takes 1 ms and "other" would be the longer one, but the program is the same.
    step = run(Branch(("send", "other")), send=[d2h(1, 5), work(1), done(1)], other=[work(3)], free=frozenset({1}))
    assert step.time == 1


def test_a_call_runs_what_it_calls() -> None:
    assert run(Branch(("callee",)), work(1), callee=[work(2)]).time == 3


def test_of_two_concurrent_transfers_neither_gains_alone() -> None:
    # Both directions 0..10, nothing else: the step is 10 with either free, and 0 with both.
    operations = (d2h(1, 10), h2d(2, 10), done(1), done(2))
    assert run(*operations).time == 10
    assert run(*operations, free=frozenset({1})).time == 10
    assert run(*operations, free=frozenset({2})).time == 10
    assert run(*operations, free=None).time == 0


def test_the_gain_of_the_head_of_a_queue_may_be_more_than_its_own_wait() -> None:
    # Copy 1 0..10 is covered; copy 2 10..20 is waited for 10..20. Without copy 1 the second runs 0..10 and hides.
    operations = (d2h(1, 10), d2h(2, 10), work(10), done(1), done(2))
    step = run(*operations)
    assert (step.time, step.wait(1), step.wait(2)) == (20, 0, 10)
    assert run(*operations, free=frozenset({1})).time == 10


def test_a_copy_within_host_memory_crosses_the_link_half_each_way() -> None:
    # 8 MB read and written together: 4 ms on the main stream.
    assert run(bf.host_copy(8 * MB), work(1)).time == 5


def test_devices_that_share_a_host_share_its_memory() -> None:
    # A host memory of 3 GB/s for two devices leaves 1.5 GB/s for each, more than the link: 1 GB/s alone. With both
    # directions running there are 0.75 GB/s for each.
    target = PLAIN.target()
    assert target.link is not None
    link = replace(target.link, sharers=2, host_bytes_per_s=Figure(3e9, "test"))
    two = rates_of(link, replace(PLAIN.scenario(), sharers=2))
    assert two.alone == {"d2h": pytest.approx(1e-3), "h2d": pytest.approx(1e-3)}
    assert two.both == {"d2h": pytest.approx(0.75e-3), "h2d": pytest.approx(0.75e-3)}
    one = rates_of(link, replace(PLAIN.scenario(), sharers=1))
    assert one.both == {"d2h": pytest.approx(1e-3), "h2d": pytest.approx(1e-3)}


def test_no_more_devices_share_a_host_than_the_step_has() -> None:
    target = PLAIN.target()
    assert target.link is not None
    target = replace(target, link=replace(target.link, sharers=8))
    assert scenarios(target, devices=1)[0].sharers == 1
    assert scenarios(target, devices=4)[0].sharers == 4
    assert scenarios(target, devices=128)[0].sharers == 8
    assert {case.sharers for case in scenarios(target, devices=128)} == {1, 8}


def on_stream(operation: Operation, stream: str) -> Operation:
    assert isinstance(operation, StartTransfer)
    return replace(operation, transfer=replace(operation.transfer, stream=stream))


def test_transfers_of_one_stream_go_one_after_the_other_even_in_opposite_directions() -> None:
    # Copy 1 to the host 0..10; copy 2 from the host is of the same stream and cannot begin before 10: 10..20.
    same = run(
        on_stream(d2h(1, 10), "computation_stream[0]"), on_stream(h2d(2, 10), "computation_stream[0]"), done(1), done(2)
    )
    assert (same.time, same.wait(1), same.wait(2)) == (20, 10, 10)
    # On separate streams they run side by side: 0..10 both.
    separate = run(
        on_stream(d2h(1, 10), "computation_stream[0]"), on_stream(h2d(2, 10), "computation_stream[1]"), done(1), done(2)
    )
    assert separate.time == 10


def test_a_stream_holds_back_only_what_was_started_after() -> None:
    # Copy 1 and copy 2 go to the host (0..10, 10..20), copy 3 from the host shares a stream with copy 2: 20..30.
    step = run(d2h(1, 10), on_stream(d2h(2, 10), "s"), on_stream(h2d(3, 10), "s"), work(30), done(1), done(2), done(3))
    assert (step.time, step.wait(3)) == (30, 0)
    assert step.found.transfers[3].duration_ps == 10 * bf.MS
