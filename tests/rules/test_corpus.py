"""Rules that fire on every module of the corpus.

Each entry was checked by hand, in the module itself; the comment beside it says what is there. Only errors and warnings
are compared: information costs less than 0.5 % of the step.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from hloinspect.report.schema import Report
from tests.support.places import ROOT
from tests.support.rules_samples import codes, finding, report_of

CORPUS = Path(os.environ.get("HLOINSPECT_CORPUS", ROOT.parent / "shared" / "corpus"))
pytestmark = pytest.mark.skipif(not (CORPUS / "golden.json").is_file(), reason="no corpus: set HLOINSPECT_CORPUS")

# The scanned program of hlo/versions (8 layers, H100, barrier): the H2D is consumed by the remat2 tuple, at the top of
# the backward iteration; the D2H has a third of the iteration after it, too little; both waits together are 130 ms
# where the forward loop takes 52.
SCAN = {"HLO102", "HLO105", "HLO114"}
# The unrolled one with the scheduler on: seven D2H stand in the backward pass, the last six H2D follow one another
# with windows that would do alone, the first H2D feeds the barrier of the last layer.
UNROLLED = {"HLO102", "HLO105", "HLO107", "HLO201"}
# With the scheduler off (before 0.7.2, A100, flag): nothing stands between any start and its done, and no D2H is late.
ALL_ADJACENT = {"HLO111"}

FIRING: dict[tuple[str, str], set[str]] = {
    ("hlo/s_off.hlo", "h100"): SCAN | {"HLO301"},  # jax 0.10.2: the slice walks forward
    # the H2D is an iteration ahead; the D2H's window is as short as before; the peeled pair are kernels, 19 ms of 247
    ("hlo/s_off_pipe_nocse.hlo", "h100"): {"HLO105", "HLO110", "HLO301"},
    ("hlo/u_off.hlo", "h100"): UNROLLED,
    ("hlo/u_off_nolhs.hlo", "h100"): ALL_ADJACENT,
    ("hlo/u_off_nocse.hlo", "h100"): {"HLO302"},  # with the StableHLO beside it: 8 placements, no S(5)
    ("hlo/a100_act_unroll.hlo", "a100"): ALL_ADJACENT,
    ("hlo/s_remat.hlo", "h100"): set(),
    ("hlo/s_save.hlo", "h100"): set(),
    ("hlo/u_save.hlo", "h100"): set(),
    ("hlo/tpu_v5e_act_scan.hlo", "v5e"): set(),  # no link is published: rules on time could not run
    # three times 5 GiB each way for 24 ms of compute: the link, and nothing else, although they queue
    ("hlo/tpu_v6e_host_offload.after_optimizations.txt", "v6e"): {"HLO106"},
    ("hlo/tpu_llama_train_no_offload.after_optimizations.hlo.gz", "v6e"): set(),  # 258 copy-starts to VMEM
    # three H2D of the backward loop are started at its top and needed by the attention's backward behind an all-gather;
    # 66.9 GiB of pinned memory is above the pool's 64
    ("maxtext/llama405b_cudnnjax.hlo.gz", "gb200"): {"HLO112", "HLO207"},
    ("maxtext/llama405b_pipe_cudnn.hlo.gz", "gb200"): {"HLO207"},  # its peeled kernels: information only, 3.6 ms
    ("maxtext/llama405b_nv.hlo.gz", "gb200"): {"HLO207"},
    ("maxtext/llama405b_nv_pipe.hlo.gz", "gb200"): {"HLO207"},
    ("maxtext/llama405b_remat_cudnn.hlo.gz", "gb200"): set(),
    # 141 of 184 GiB: 77 %, and XLA's allocator takes 75 % by default
    ("maxtext/llama405b_device_cudnn.hlo.gz", "gb200"): {"HLO209"},
    # ten H2D start next to their dones in the backward loop of the experts, 154 of 184 GiB used; four of the
    # tensors are fetched twice there (golden.json says so too)
    ("maxtext/ds671b_nv.hlo.gz", "gb200"): {"HLO109", "HLO113", "HLO209"},
    ("maxtext/ds671b_scan_mla.hlo.gz", "gb200"): set(),
    # 24 of 30 D2H start in the backward pass; barriers of the unrolled layers hold eight H2D
    ("maxtext/ds671b_unroll6.hlo.gz", "gb200"): {"HLO102", "HLO201"},
    ("dump_maxtext_gb200", "gb200"): set(),  # all waits are less than 0.1 % of the step
    ("hlo/versions/jax0.5.3_act_unroll.hlo", "h100"): ALL_ADJACENT,
    ("hlo/versions/jax0.6.2_act_unroll.hlo", "h100"): ALL_ADJACENT,
    # the backward loop first slices within host memory, by a kernel (fused_dynamic_slice), and the forward one of 0.5.3
    # writes by one
    ("hlo/versions/jax0.5.3_act_scan.hlo", "h100"): {"HLO110", "HLO112", "HLO305"},
    ("hlo/versions/jax0.6.2_act_scan.hlo", "h100"): {"HLO102", "HLO105", "HLO305"},
    # the 4 GiB stack is made of zeros on the device and copied over (loop_broadcast_fusion, copy-start)
    ("hlo/versions/jax0.7.2_act_scan.hlo", "h100"): {"HLO105", "HLO205", "HLO305"},
    ("hlo/versions/jax0.7.2_act_unroll.hlo", "h100"): UNROLLED - {"HLO102"},
    ("hlo/versions/jax0.8.0_act_unroll.hlo", "h100"): UNROLLED - {"HLO102"},
    # the scheduler of 0.9.2 lets only the last two D2H be late; the barrier holds five H2D, and one queues
    ("hlo/versions/jax0.9.2_act_unroll.hlo", "h100"): {"HLO102", "HLO103", "HLO105", "HLO107"},
    ("hlo/versions/jax0.11.0_act_unroll.hlo", "h100"): UNROLLED,
    ("hlo/versions/jax0.12.0_act_unroll.hlo", "h100"): UNROLLED,
    ("hlo/versions/jax0.11.0_act_scan.hlo", "h100"): SCAN | {"HLO301"},
    ("hlo/versions/jax0.11.0_act_scan_dump.hlo", "h100"): SCAN | {"HLO301"},
    ("hlo/versions/jax0.9.2_act_scan.hlo", "h100"): SCAN | {"HLO403"},  # as_text() of 0.9.2 has lost the memcpy marker
    # this dump writes get-tuple-elements compactly, and remat2 is gone with them: the barrier cannot be seen
    ("hlo/versions/jax0.12.0_act_scan_dump.hlo", "h100"): SCAN - {"HLO102"} | {"HLO112"},
    **{
        (f"hlo/versions/jax{name}.hlo", "h100"): SCAN
        for name in (
            *("0.8.0_act_scan", "0.8.0_act_scan_dump", "0.8.2_act_scan_dump", "0.9.0_act_scan_dump"),
            *("0.9.2_act_scan_dump", "0.10.0_act_scan_dump", "0.10.1_act_scan_dump", "0.11.1_act_scan_dump"),
            *("0.11.2_act_scan_dump", "0.12.0_act_scan"),
        )
    },
}


def corpus_report(name: str, target: str) -> Report:
    return report_of(CORPUS / name, target)


@pytest.mark.parametrize(("name", "target"), FIRING, ids=[f"{name}-{target}" for name, target in FIRING])
def test_these_rules_and_no_others_speak_on(name: str, target: str) -> None:
    assert codes(corpus_report(name, target), "error", "warning") == FIRING[name, target]


def test_every_module_of_the_corpus_is_in_the_table() -> None:
    there = {
        str(path.relative_to(CORPUS))
        for folder in ("hlo", "hlo/versions", "maxtext")
        for path in (CORPUS / folder).iterdir()
    }
    modules = {name for name in there if name.endswith((".hlo", ".hlo.gz", "optimizations.txt"))}
    assert modules - {name for name, _ in FIRING} == {"maxtext/llama405b_unroll126_cudnn.hlo.gz"}  # has a separate test


@pytest.mark.parametrize(("name", "target"), FIRING, ids=[f"{name}-{target}" for name, target in FIRING])
def test_a_rule_speaks_once_and_says_where_what_and_how_much(name: str, target: str) -> None:
    report = corpus_report(name, target)
    found = [each.code for each in report.findings]
    assert len(found) == len(set(found))
    known = {transfer.id for transfer in report.transfers}
    for each in report.findings:
        assert each.message
        assert each.remedy
        assert set(each.transfers) <= known
        if each.transfers:
            assert each.transfer == each.transfers[0]
            assert each.instruction is not None
            assert each.computation is not None


@pytest.mark.parametrize(("name", "target"), FIRING, ids=[f"{name}-{target}" for name, target in FIRING])
def test_no_wait_has_two_causes(name: str, target: str) -> None:
    """Leave out HLO109 and HLO114, which are about bytes and about an alternative, and charge no wait."""
    report = corpus_report(name, target)
    charged = [number for each in report.findings if each.cost_ms for number in each.transfers]
    waiting = {t.id for t in report.transfers if t.predicted and t.predicted.wait_ms > 0}
    assert len([number for number in charged if number in waiting]) == len({n for n in charged if n in waiting})


def test_the_advice_for_a_delayed_copy_is_right_for_the_module_that_follows_it() -> None:
    """Compare s_off with s_off_pipe_nocse, which has both changes that HLO102 advises: the finding is gone, and the
    step is as long as predicted, to a fifteenth."""
    before, after = corpus_report("hlo/s_off.hlo", "h100"), corpus_report("hlo/s_off_pipe_nocse.hlo", "h100")
    held = finding(before, "HLO102")
    assert "prevent_cse=False" in held.remedy
    assert "Only under scan" in held.remedy
    assert "HLO102" not in codes(after)
    assert held.gain_ms is not None
    assert before.step.predicted is not None
    assert after.step.predicted is not None
    gained = before.step.predicted.time_ms - after.step.predicted.time_ms
    assert held.gain_ms == pytest.approx(gained, rel=1 / 15)


def test_leaving_the_barrier_out_is_never_advised_for_unrolled_layers() -> None:
    """Use u_off_nocse, which is u_off with prevent_cse=False: there it deletes the offload."""
    held = finding(corpus_report("hlo/u_off.hlo", "h100"), "HLO102")
    assert held.remedy.startswith("scan the layers")
    assert "not on unrolled layers" in held.remedy
    assert "HLO302" in codes(corpus_report("hlo/u_off_nocse.hlo", "h100"))


def test_a_loop_that_is_not_pipelined_gets_the_gain_of_the_pipelined_program() -> None:
    before = corpus_report("maxtext/llama405b_cudnnjax.hlo.gz", "gb200")
    after = corpus_report("maxtext/llama405b_pipe_cudnn.hlo.gz", "gb200")
    reported = finding(before, "HLO112")
    assert "xla_gpu_enable_pipelined_host_offloading=true" in reported.remedy
    assert "HLO112" not in codes(after)
    assert before.step.predicted is not None
    assert after.step.predicted is not None
    assert reported.gain_ms == pytest.approx(before.step.predicted.stall_ms - after.step.predicted.stall_ms, rel=0.05)


def test_recomputing_is_called_cheaper_where_the_recomputed_program_is_predicted_to_be() -> None:
    """Compare s_off with s_remat, which computes the value again, and s_off_pipe_nocse, which hides half of the
    waits."""
    reported = finding(corpus_report("hlo/s_off.hlo", "h100"), "HLO114")
    offloaded, recomputed = corpus_report("hlo/s_off.hlo", "h100"), corpus_report("hlo/s_remat.hlo", "h100")
    assert offloaded.step.predicted is not None
    assert recomputed.step.predicted is not None
    assert reported.gain_ms is not None
    assert offloaded.step.predicted.time_ms - recomputed.step.predicted.time_ms >= reported.gain_ms > 0
    assert "HLO114" not in codes(corpus_report("hlo/s_off_pipe_nocse.hlo", "h100"))


def test_the_peeled_layer_of_a_pipelined_loop_is_reported_as_kernels_once() -> None:
    reported = finding(corpus_report("maxtext/llama405b_pipe_cudnn.hlo.gz", "gb200"), "HLO110")
    assert (len(reported.transfers), reported.evidence["peeled"]) == (8, 8)


def test_what_is_fetched_twice_is_counted() -> None:
    """Use golden.json: the backward loop of the experts fetches q, k, v and the input twice, 32 GB more than is
    sent."""
    reported = finding(corpus_report("maxtext/ds671b_nv.hlo.gz", "gb200"), "HLO109")
    extra = reported.evidence["extra_bytes"]
    assert isinstance(extra, int)
    assert extra == pytest.approx(32e9, rel=0.05)
    assert reported.computation == "region_25.46_spmd.clone.1"


def test_pipelining_is_advised_to_no_module_whose_slices_it_makes_wrong() -> None:
    """Use modules of XLA before 0.11.1, or without a version."""
    flag = "--xla_gpu_enable_pipelined_host_offloading=true"
    versions = (
        "0.8.0_act_scan_dump",
        "0.9.2_act_scan_dump",
        "0.10.1_act_scan_dump",
        "0.11.0_act_scan",
        "0.11.2_act_scan_dump",
    )
    for name in (f"hlo/versions/jax{each}.hlo" for each in versions):
        for each in corpus_report(name, "h100").findings:
            assert each.code == "HLO301" or flag not in each.remedy or "jax 0.11.1 or later" in each.remedy
    reported = finding(corpus_report("hlo/versions/jax0.10.1_act_scan_dump.hlo", "h100"), "HLO102")
    assert "update to jax 0.11.1 or later" in reported.remedy


def test_a_step_that_needs_most_of_the_device_needs_more_than_xlas_allocator_takes() -> None:
    reported = finding(corpus_report("maxtext/llama405b_device_cudnn.hlo.gz", "gb200"), "HLO209")
    assert reported.severity == "warning"
    assert "an estimated 141 GiB" in reported.message
    assert "138 GiB (75% of the device's 184 GiB)" in reported.message
    assert "XLA_PYTHON_CLIENT_MEM_FRACTION=0.79 " in reported.remedy


def test_the_version_of_jax_is_the_cause_of_a_slice_within_host_memory() -> None:
    reported = finding(corpus_report("hlo/versions/jax0.7.2_act_scan.hlo", "h100"), "HLO305")
    assert reported.remedy.startswith("update jax")


def test_the_wrong_slice_is_named_with_both_walks() -> None:
    wrong = finding(corpus_report("hlo/s_off.hlo", "h100"), "HLO301")
    assert wrong.evidence["by_index_bytes"] == [3758096384, 3221225472]
    assert wrong.evidence["emitted_bytes"] == [0, 536870912]


def test_a_module_without_its_stablehlo_says_that_a_deleted_offload_was_not_looked_for(tmp_path: Path) -> None:
    alone = tmp_path / "u_off_nocse.hlo"
    alone.write_bytes((CORPUS / "hlo" / "u_off_nocse.hlo").read_bytes())
    report = report_of(alone, "h100")
    assert "HLO302" not in codes(report)
    assert "HLO302" in {rule.code for rule in report.rules_not_run}


def test_without_a_link_the_rules_on_time_are_listed_as_not_run() -> None:
    report = corpus_report("hlo/tpu_v5e_act_scan.hlo", "v5e")
    assert {"HLO101", "HLO102", "HLO105", "HLO106"} <= {rule.code for rule in report.rules_not_run}
    assert all(rule.reason for rule in report.rules_not_run)


@pytest.mark.slow
def test_of_126_unrolled_layers_500_of_504_copies_to_the_host_are_late_in_one_finding() -> None:
    report = corpus_report("maxtext/llama405b_unroll126_cudnn.hlo.gz", "gb200")
    late = finding(report, "HLO201")
    assert (len(late.transfers), late.evidence["copies"]) == (500, 504)
    assert codes(report, "error") == {"HLO201"}
