"""Predictions of real modules, held against a measured run and against sums that can be done by hand."""

from __future__ import annotations

from collections import Counter
from functools import cache
from pathlib import Path

import pytest

from hloinspect.hardware import load_target, with_link
from hloinspect.hlo.load import load_module
from hloinspect.kinds import D2H, EXPOSED, H2D, HIDDEN, PARTIAL
from hloinspect.offload.transfers import Offload, find_offload
from hloinspect.predict import Prediction, predict
from hloinspect.predict.scenario import scenarios
from hloinspect.predict.schedule import Run, device_count, schedule_of
from hloinspect.predict.simulate import simulate
from hloinspect.timeline.timeline import overlap

MS = 1e9
MAXTEXT = (
    "ds671b_nv",
    "ds671b_scan_mla",
    "ds671b_unroll6",
    "llama405b_cudnnjax",
    "llama405b_device_cudnn",
    "llama405b_nv",
    "llama405b_nv_pipe",
    "llama405b_pipe_cudnn",
    "llama405b_remat_cudnn",
    pytest.param("llama405b_unroll126_cudnn", marks=pytest.mark.slow),
)


@cache
def offload_of(path: Path) -> Offload:
    return find_offload(load_module(path))


def predicted(path: Path, target: str, link: str = "", domain: int = 8) -> tuple[Offload, Prediction]:
    offload = offload_of(path)
    chosen = with_link(load_target(target), link) if link else load_target(target)
    return offload, predict(offload, chosen, device_count(offload.program.module), domain)


def by_direction(offload: Offload, prediction: Prediction, direction: str) -> set[str]:
    return {prediction.transfers[t.id].verdict for t in offload.transfers if t.direction == direction}


# TPU v6e, measured: TPU:0's clean steps in the trace that this module ran in (golden.json).


def test_the_measured_waits_of_a_tpu_come_out_within_two_percent(corpus: Path) -> None:
    offload, prediction = predicted(
        corpus / "hlo" / "tpu_v6e_host_offload.after_optimizations.txt", "v6e", "d2h=29.4GB/s,h2d=28.4GB/s"
    )
    waits = {t.done: prediction.transfers[t.id].times.wait_ps / MS for t in offload.transfers}
    measured = {"copy-done": 189.2, "copy-done.2": 194.1, "copy-done.4": 194.4, "copy-done.5": 182.4}
    assert {done: waits[done] for done in measured} == pytest.approx(measured, rel=0.02)
    assert waits["copy-done.1"] == waits["copy-done.3"] == 0  # the trace has no wait there either


def test_the_measured_step_of_a_tpu_comes_out_within_two_percent(corpus: Path) -> None:
    _, prediction = predicted(
        corpus / "hlo" / "tpu_v6e_host_offload.after_optimizations.txt", "v6e", "d2h=29.4GB/s,h2d=28.4GB/s"
    )
    assert prediction.step.time_ps / MS == pytest.approx(784.154, rel=0.02)
    assert prediction.step.stall_ps / prediction.step.time_ps == pytest.approx(0.9698, abs=0.005)


# Eight scanned layers that send a tensor of 512 MiB each.


def test_a_scanned_offload_is_partial_one_way_and_exposed_the_other_on_gb200(corpus: Path) -> None:
    offload, prediction = predicted(corpus / "hlo" / "s_off.hlo", "gb200")
    assert by_direction(offload, prediction, D2H) == {PARTIAL}
    assert by_direction(offload, prediction, H2D) == {EXPOSED}
    for transfer in offload.transfers:
        assert transfer.executions == 8
        assert transfer.loop_depth == 1
        assert transfer.source is not None
        assert (Path(transfer.source.file).name, transfer.source.line) == ("ex.py", 28)
        # 536,870,912 B at 225 GB/s and 10 us of latency: 2.396 ms, eight times.
        assert prediction.transfers[transfer.id].times.duration_ps / MS == pytest.approx(8 * 2.3961, rel=1e-4)


def test_a_link_four_times_as_fast_hides_the_way_out(corpus: Path) -> None:
    offload, prediction = predicted(corpus / "hlo" / "s_off.hlo", "gb200", "900GB/s")
    assert by_direction(offload, prediction, D2H) == {HIDDEN}
    assert prediction.stall_d2h_ps == 0
    assert prediction.stall_h2d_ps > 0


def test_both_ways_stall_over_pcie(corpus: Path) -> None:
    offload, prediction = predicted(corpus / "hlo" / "s_off.hlo", "h100")
    assert not {HIDDEN} & (by_direction(offload, prediction, D2H) | by_direction(offload, prediction, H2D))
    assert prediction.stall_d2h_ps > 20 * MS
    assert prediction.stall_h2d_ps > 20 * MS


@pytest.mark.parametrize(("module", "target"), [("u_off_nolhs.hlo", "h100"), ("a100_act_unroll.hlo", "a100-80g")])
def test_without_the_latency_hiding_scheduler_every_pair_is_exposed(corpus: Path, module: str, target: str) -> None:
    offload, prediction = predicted(corpus / "hlo" / module, target)
    assert len(offload.transfers) >= 8
    assert {transfer.verdict for transfer in prediction.transfers.values()} == {EXPOSED}
    assert all(transfer.robust for transfer in prediction.transfers.values())
    # Nothing overlaps, so every copy stalls the step by all of its time, and would gain it back.
    assert prediction.step.stall_ps == sum(t.times.duration_ps for t in prediction.transfers.values())
    for transfer in prediction.transfers.values():
        assert transfer.gain_if_free_ps == pytest.approx(transfer.times.duration_ps, rel=1e-6)


def test_a_module_without_offload_neither_stalls_nor_gains(corpus: Path) -> None:
    offload, prediction = predicted(corpus / "hlo" / "s_save.hlo", "gb200")
    assert offload.transfers == ()
    assert prediction.step.stall_ps == 0
    assert prediction.without_transfers_ps == prediction.ideal_ps == prediction.step.time_ps


# MaxText on 128 GB200, two domains of 64.


@pytest.mark.parametrize("name", MAXTEXT)
def test_a_maxtext_step_predicts_figures_that_are_in_order(corpus: Path, name: str) -> None:
    offload, prediction = predicted(corpus / "maxtext" / f"{name}.hlo.gz", "gb200", domain=64)
    step, slack = prediction.step, 1e-9 * prediction.step.time_ps  # picoseconds are rounded in each iteration
    assert prediction.low_ps <= step.time_ps <= prediction.high_ps
    assert prediction.low_stall_ps <= step.stall_ps <= prediction.high_stall_ps
    assert prediction.without_transfers_ps <= step.time_ps + slack
    assert prediction.ideal_ps <= step.time_ps + slack
    assert prediction.without_transfers_ps <= prediction.ideal_ps
    assert step.exposed_ps <= step.exposed_d2h_ps + step.exposed_h2d_ps
    assert step.compute_ps <= step.time_ps
    # Transfers cost at most their waits, and 3.2 % of device memory (225 of 7,135 GB/s) while they move.
    slowed = 0.033 * (step.busy_d2h_ps + step.busy_h2d_ps)
    assert step.time_ps - prediction.without_transfers_ps <= step.stall_ps + slowed + slack
    assert prediction.unsettled == ()
    assert set(prediction.transfers) == {transfer.id for transfer in offload.transfers}


@pytest.mark.parametrize("name", ["ds671b_nv", "ds671b_unroll6", "llama405b_cudnnjax", "llama405b_nv_pipe"])
def test_in_every_scenario_the_stall_is_the_sum_of_the_waits(corpus: Path, name: str) -> None:
    offload = offload_of(corpus / "maxtext" / f"{name}.hlo.gz")
    target = load_target("gb200")
    schedule = schedule_of(offload, 128, 64)
    stalls = []
    for case in scenarios(target, 128):
        found = overlap(simulate(schedule, target, case).timeline)
        assert found.step.stall_ps == sum(times.wait_ps for times in found.transfers.values()), case.name
        stalls.append(found.step.stall_ps)
    assert max(stalls) > 0


@pytest.mark.parametrize(
    ("name", "bindings"),
    [
        ("llama405b_nv", {"window": 3, "queue": 1}),
        ("llama405b_nv_pipe", {"window": 2, "queue": 2}),
        ("ds671b_nv", {"window": 23, "queue": 2, "collective": 1, "elsewhere": 2}),
    ],
)
def test_whatever_is_not_hidden_in_a_maxtext_step_has_a_reason_and_its_sizes(
    corpus: Path, name: str, bindings: dict[str, int]
) -> None:
    offload, prediction = predicted(corpus / "maxtext" / f"{name}.hlo.gz", "gb200", domain=64)
    found: Counter[str] = Counter()
    for transfer in offload.transfers:
        judged = prediction.transfers[transfer.id]
        reason = judged.reason
        if judged.verdict == HIDDEN:
            assert (reason.binding, reason.missing_ps) == ("", None)
            continue
        found[reason.binding] += 1
        # Work of so many picoseconds more in its window each time, or a tensor of so many bytes, or such a link.
        assert reason.missing_ps is not None
        assert 0 < reason.missing_ps * transfer.executions <= judged.times.duration_ps + judged.times.wait_ps
        assert reason.largest_hidden_bytes is not None
        if reason.binding != "elsewhere":
            assert reason.largest_hidden_bytes < transfer.bytes
            assert reason.needed_bytes_per_s is None or reason.needed_bytes_per_s > 164e9  # what a shared Grace gives
    assert found == bindings


def flops_of(offload: Offload) -> float:
    executions = offload.program.executions
    schedule = schedule_of(offload, 128, 64)
    return sum(
        cost.matrix_flops * executions[name]
        for name, operations in schedule.operations.items()
        for operation in operations
        if isinstance(operation, Run)
        for cost in operation.costs
    )


def test_the_flops_of_a_llama_405b_step_are_those_of_its_layers(corpus: Path) -> None:
    """llama 3.1 405B, 8192 tokens a device, queries, keys, values and each layer's input offloaded."""
    tokens, dim, hidden, layers, heads, head, kv = 8192, 16384, 53248, 126, 128, 128, 1024
    qkv, out, up, down = dim * dim + 2 * dim * kv, dim * dim, 2 * dim * hidden, hidden * dim
    product = 2 * tokens  # FLOPs of a weight in one pass
    forward_and_backward = 3 * product * layers * (qkv + out + up + down)
    again = product * layers * (out + up)  # q, k and v come back; nothing needs the down projection's result
    vocabulary = 128_256 * dim
    logits, one_hot = 3 * product * vocabulary, 2 * product * vocabulary  # the embedding's input needs no gradient
    attention = 2 * tokens * tokens * heads * head  # two products, half of them masked
    attentions = layers * attention * (1 + 1 + 2.5)  # forward, again, backward
    by_hand = forward_and_backward + again + logits + one_hot + attentions
    assert by_hand == pytest.approx(2.53e16, rel=0.01)
    for name in ("llama405b_nv", "llama405b_cudnnjax"):
        assert flops_of(offload_of(corpus / "maxtext" / f"{name}.hlo.gz")) == pytest.approx(by_hand, rel=0.002)


def test_the_collectives_of_a_fully_sharded_step_carry_its_weights(corpus: Path) -> None:
    """FSDP over 128: all weights in bf16 gathered for each pass, gradients scattered once."""
    offload = offload_of(corpus / "maxtext" / "llama405b_nv.hlo.gz")
    executions = offload.program.executions
    moved: dict[str, int] = {}
    for name, operations in schedule_of(offload, 128, 64).operations.items():
        for operation in operations:
            collective = getattr(operation, "collective", None)
            if collective is not None:
                moved[collective.opcode] = moved.get(collective.opcode, 0) + collective.bytes * executions[name]
    weights = 2 * 405.85e9
    assert moved["all-gather"] == pytest.approx(2 * weights, rel=0.02)
    assert moved["reduce-scatter"] == pytest.approx(weights, rel=0.02)
