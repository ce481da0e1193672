"""Async pairs whose start and `done` are in different computations."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hloinspect.hardware import load_target, with_link
from hloinspect.hlo import parse_text
from hloinspect.offload.transfers import find_offload
from hloinspect.predict import predict

COPY = "(f32[1024,1024]{1,0}, f32[1024,1024]{1,0:S(5)}, u32[])"
LOOP = f"(s32[], f32[1024,1024]{{1,0:S(5)}}, f32[1024,1024]{{1,0}}, {COPY})"

# Written by hand after XLA's loop-crossing async pairs: a prefetch starts before the loop, each iteration waits for it
# and starts the next one, and the wait for the last is after the loop.
PREFETCH = f"""HloModule prefetch, is_scheduled=true

%body (p: {LOOP}) -> {LOOP} {{
  %p = {LOOP} parameter(0)
  %i = s32[] get-tuple-element(%p), index=0
  %one = s32[] constant(1)
  %next = s32[] add(%i, %one)
  %host = f32[1024,1024]{{1,0:S(5)}} get-tuple-element(%p), index=1
  %sum = f32[1024,1024]{{1,0}} get-tuple-element(%p), index=2
  %token = {COPY} get-tuple-element(%p), index=3
  %arrived = f32[1024,1024]{{1,0}} copy-done(%token)
  %copy-start.2 = {COPY} copy-start(%host)
  %work = f32[1024,1024]{{1,0}} add(%sum, %arrived)
  ROOT %out = {LOOP} tuple(%next, %host, %work, %copy-start.2)
}}

%condition (p.1: {LOOP}) -> pred[] {{
  %p.1 = {LOOP} parameter(0)
  %i.1 = s32[] get-tuple-element(%p.1), index=0
  %n = s32[] constant(5)
  ROOT %more = pred[] compare(%i.1, %n), direction=LT
}}

ENTRY %main (a: f32[1024,1024], b: f32[1024,1024]) -> f32[1024,1024] {{
  %a = f32[1024,1024]{{1,0:S(5)}} parameter(0)
  %b = f32[1024,1024]{{1,0}} parameter(1)
  %zero = s32[] constant(0)
  %copy-start.1 = {COPY} copy-start(%a)
  %start = {LOOP} tuple(%zero, %a, %b, %copy-start.1)
  %loop = {LOOP} while(%start), condition=%condition, body=%body
  %sum.1 = f32[1024,1024]{{1,0}} get-tuple-element(%loop), index=2
  %token.1 = {COPY} get-tuple-element(%loop), index=3
  %last = f32[1024,1024]{{1,0}} copy-done(%token.1)
  ROOT %result = f32[1024,1024]{{1,0}} add(%sum.1, %last)
}}
"""


def test_a_start_that_travels_around_a_loop_is_paired_with_the_done_that_waits_for_it() -> None:
    before, inside = find_offload(parse_text(PREFETCH)).transfers
    assert (before.start, before.done, before.done_computation, before.executions) == (
        "copy-start.1",
        "arrived",
        "body",
        1,
    )
    assert (inside.start, inside.done, inside.done_computation, inside.executions) == (
        "copy-start.2",
        "arrived",
        "body",
        5,
    )


def test_each_iteration_waits_for_the_copy_that_the_one_before_it_started() -> None:
    target = with_link(load_target("gb200"), "1GB/s")  # 4 MiB take 4.19 ms, the work of an iteration microseconds
    target = replace(target, link=replace(target.link, latency_us=replace(target.link.latency_us, value=0.0)))
    prediction = predict(find_offload(parse_text(PREFETCH)), target, devices=1, domain=1)
    copy_ps = 1024 * 1024 * 4 * 1000
    # six copies in all; the wait for each is complete except for the few microseconds of work beside the next one
    assert prediction.step.busy_h2d_ps == pytest.approx(6 * copy_ps, rel=1e-6)
    assert prediction.step.stall_ps == pytest.approx(6 * copy_ps, rel=0.02)
    assert prediction.transfers[1].times.duration_ps == pytest.approx(copy_ps, rel=1e-6)
    assert prediction.transfers[2].times.duration_ps == pytest.approx(5 * copy_ps, rel=1e-6)


def test_a_done_whose_start_cannot_be_found_has_no_key() -> None:
    text = PREFETCH.replace("copy-done(%token)", "copy-done(%nowhere)")
    pairs = find_offload(parse_text(text)).pairs
    assert ("body", "arrived") not in pairs.done_keys
    assert ("main", "last") in pairs.done_keys
