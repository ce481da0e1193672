"""Predictions from the text of small modules."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import pytest

from hloinspect.hardware.target import Figure, Target
from hloinspect.hlo.load import load_module_bytes
from hloinspect.kinds import EXPOSED, HIDDEN, SYNCHRONOUS, UNKNOWN
from hloinspect.offload.transfers import find_offload
from hloinspect.predict import Prediction, predict
from hloinspect.predict.schedule import device_count
from tests.support import brute_force as bf

# On this machine 1 MB takes 1 ms over the link and 1 us through device memory, which a copy takes a thousandth of.
MEGABYTE = "f32[250000]"


def machine() -> Target:
    return bf.Machine(hbm=Fraction(1)).target()


def predicted(text: str, target: Target | None = None, devices: int = 1) -> Prediction:
    module = load_module_bytes(text.encode())
    return predict(find_offload(module), target or machine(), devices, 1)


def test_a_pair_next_to_each_other_is_exposed_and_its_gain_is_its_wait() -> None:
    found = predicted(
        f"""HloModule m, is_scheduled=true

ENTRY main {{
  p = {MEGABYTE}{{0}} parameter(0)
  s = ({MEGABYTE}{{0:S(5)}}, {MEGABYTE}{{0}}, u32[]) copy-start(p)
  d = {MEGABYTE}{{0:S(5)}} copy-done(s)
  ROOT n = {MEGABYTE}{{0}} negate(p)
}}
"""
    )
    # 1 ms of copy; the negation reads and writes a megabyte: 2 us.
    assert found.transfers[1].verdict == EXPOSED
    assert found.step.time_ps == pytest.approx(1_002_000_000)
    assert found.transfers[1].gain_if_free_ps == pytest.approx(1_000_000_000)
    assert found.without_transfers_ps == pytest.approx(2_000_000)
    assert found.ideal_ps == pytest.approx(1_000_000_000)
    assert found.stall_d2h_ps == found.step.stall_ps


def test_a_copy_without_a_pair_is_synchronous() -> None:
    found = predicted(
        f"""HloModule m, is_scheduled=true

ENTRY main {{
  p = {MEGABYTE}{{0}} parameter(0)
  ROOT c = {MEGABYTE}{{0:S(5)}} copy(p)
}}
"""
    )
    assert found.transfers[1].verdict == SYNCHRONOUS
    assert found.step.stall_ps == pytest.approx(1_000_000_000)


def test_a_start_without_a_done_has_no_verdict() -> None:
    found = predicted(
        f"""HloModule m, is_scheduled=true

ENTRY main {{
  p = {MEGABYTE}{{0}} parameter(0)
  s = ({MEGABYTE}{{0:S(5)}}, {MEGABYTE}{{0}}, u32[]) copy-start(p)
  ROOT n = {MEGABYTE}{{0}} negate(p)
}}
"""
    )
    assert found.transfers[1].verdict == UNKNOWN
    assert "no done" in found.transfers[1].reason.text


CONDITIONAL = f"""HloModule m, is_scheduled=true

send (p: {MEGABYTE}) -> {MEGABYTE} {{
  p = {MEGABYTE}{{0}} parameter(0)
  s = ({MEGABYTE}{{0:S(5)}}, {MEGABYTE}{{0}}, u32[]) copy-start(p)
  ROOT d = {MEGABYTE}{{0:S(5)}} copy-done(s)
}}

fetch (p: {MEGABYTE}) -> {MEGABYTE} {{
  p = {MEGABYTE}{{0}} parameter(0)
  a = {MEGABYTE}{{0:S(5)}} copy(p)
  ROOT b = {MEGABYTE}{{0:S(5)}} copy(p)
}}

ENTRY main {{
  p = {MEGABYTE}{{0}} parameter(0)
  c = pred[] parameter(1)
  ROOT r = {MEGABYTE}{{0:S(5)}} conditional(c, p, p), true_computation=send, false_computation=fetch
}}
"""


def test_a_transfer_in_a_branch_that_is_not_taken_is_not_called_hidden() -> None:
    # "fetch" moves two megabytes and is the longer branch: "send" does not run, so nothing can be said about its copy.
    found = predicted(CONDITIONAL)
    verdicts = {transfer.verdict for transfer in found.transfers.values()}
    assert verdicts == {SYNCHRONOUS, UNKNOWN}
    unknown = next(transfer for transfer in found.transfers.values() if transfer.verdict == UNKNOWN)
    assert "branch" in unknown.reason.text
    assert not unknown.robust  # in the scenarios that take the other branch it is exposed


def test_transfers_of_a_branch_that_is_not_taken_do_not_make_the_ideal_step_longer() -> None:
    found = predicted(CONDITIONAL)
    assert found.step.time_ps == pytest.approx(2_000_000_000)
    assert found.ideal_ps == pytest.approx(2_000_000_000)


LOOP = f"""HloModule m, is_scheduled=true

body (t: (s32[], {MEGABYTE})) -> (s32[], {MEGABYTE}) {{
  t = (s32[], {MEGABYTE}{{0}}) parameter(0)
  i = s32[] get-tuple-element(t), index=0
  p = {MEGABYTE}{{0}} get-tuple-element(t), index=1
  s = ({MEGABYTE}{{0:S(5)}}, {MEGABYTE}{{0}}, u32[]) copy-start(p)
  n = {MEGABYTE}{{0}} negate(p)
  d = {MEGABYTE}{{0:S(5)}} copy-done(s)
  one = s32[] constant(1)
  j = s32[] add(i, one)
  ROOT r = (s32[], {MEGABYTE}{{0}}) tuple(j, n)
}}

condition (t: (s32[], {MEGABYTE})) -> pred[] {{
  t = (s32[], {MEGABYTE}{{0}}) parameter(0)
  i = s32[] get-tuple-element(t), index=0
  k = s32[] constant(12)
  ROOT c = pred[] compare(i, k), direction=LT
}}

ENTRY main {{
  p = {MEGABYTE}{{0}} parameter(0)
  z = s32[] constant(0)
  t = (s32[], {MEGABYTE}{{0}}) tuple(z, p)
  w = (s32[], {MEGABYTE}{{0}}) while(t), condition=condition, body=body
  ROOT n = {MEGABYTE}{{0}} get-tuple-element(w), index=1
}}
"""


def test_a_loop_of_a_module_runs_as_often_as_its_counter_says() -> None:
    # Twelve iterations of a 1 ms copy, 2 us of each under the negation; the counters cost bytes, not milliseconds.
    found = predicted(LOOP)
    times = found.transfers[1].times
    assert times.duration_ps == pytest.approx(12_000_000_000)
    assert times.cover_ps == pytest.approx(12 * 2_000_000, rel=0.002)
    assert found.step.stall_ps == times.wait_ps == pytest.approx(12 * 998_000_000, rel=1e-5)


def test_a_fast_enough_link_hides_the_loops_transfer_and_no_link_rate_is_needed_then() -> None:
    target = machine()
    assert target.link is not None
    fast = Figure(1e12, "test")  # the copy takes 1 us, the negation 2
    found = predicted(LOOP, replace(target, link=replace(target.link, d2h_bytes_per_s=fast)))
    assert found.transfers[1].verdict == HIDDEN
    assert found.transfers[1].reason.needed_bytes_per_s is None


def test_the_needed_rate_is_the_one_at_which_the_window_would_do() -> None:
    # 2 us of work for a megabyte: 500 GB/s. At that rate the transfer hides.
    needed = predicted(LOOP).transfers[1].reason.needed_bytes_per_s
    assert needed is not None
    assert needed == pytest.approx(500e9, rel=0.002)
    target = machine()
    assert target.link is not None
    found = predicted(LOOP, replace(target, link=replace(target.link, d2h_bytes_per_s=Figure(needed, "test"))))
    assert found.transfers[1].verdict == HIDDEN


def test_devices_are_counted_from_the_modules_header() -> None:
    text = LOOP.replace("is_scheduled=true", "is_scheduled=true, num_partitions=16, replica_count=2", 1)
    assert device_count(load_module_bytes(text.encode())) == 32


def test_a_target_without_a_link_is_refused() -> None:
    with pytest.raises(ValueError, match="no host link"):
        predicted(LOOP, replace(machine(), link=None))


HOST_TO_HOST = f"""HloModule m, is_scheduled=true

slice (h: f32[1000000], i: s32[]) -> {MEGABYTE} {{
  h = f32[1000000]{{0:S(5)}} parameter(0)
  i = s32[] parameter(1)
  ROOT d = {MEGABYTE}{{0:S(5)}} dynamic-slice(h, i), dynamic_slice_sizes={{250000}}
}}

ENTRY main {{
  h = f32[1000000]{{0:S(5)}} parameter(0)
  i = s32[] parameter(1)
  q = {MEGABYTE}{{0:S(5)}} parameter(2)
  s = ((f32[1000000]{{0:S(5)}}, s32[]), {MEGABYTE}{{0:S(5)}}, u32[]) fusion-start(h, i), kind=kLoop, calls=slice
  t = ({MEGABYTE}{{0}}, {MEGABYTE}{{0:S(5)}}, u32[]) copy-start(q)
  u = {MEGABYTE}{{0}} copy-done(t)
  d = {MEGABYTE}{{0:S(5)}} fusion-done(s)
  ROOT r = ({MEGABYTE}{{0}}, {MEGABYTE}{{0:S(5)}}) tuple(u, d)
}}
"""


def test_an_async_slice_within_host_memory_holds_up_the_copies_from_the_host() -> None:
    # The slice moves 1 MB before the copy's own: both take a millisecond on the stream of the copies from the host.
    found = predicted(HOST_TO_HOST)
    assert found.step.time_ps == pytest.approx(2_000_000_000)
    assert found.transfers[1].times.duration_ps == pytest.approx(1_000_000_000)
    assert found.step.stall_ps == pytest.approx(2_000_000_000)
    assert found.without_transfers_ps == 0
