"""Effects of remedies: no rule advises what is wrong in the program's version, or what does not fit on the device."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from hloinspect.analyze.inspect import inspect
from hloinspect.compile.versions import comparable, release_of
from hloinspect.hardware import load_target
from hloinspect.hlo.load import load_module
from hloinspect.inputs.manifest import Configuration
from hloinspect.offload.program import build_program
from hloinspect.offload.slices import MEMCPY_CONFIG, SLICE_CONFIG, Slices, check_slices
from hloinspect.offload.transfers import find_offload
from hloinspect.placements.requested import Requested
from hloinspect.plan.axes import KNOWN_FLAGS
from hloinspect.plan.judge import pipelined_too_early
from hloinspect.report.placements import keep_apart
from hloinspect.report.schema import AuditEntry, AuditInfo, ProgramInfo, Report
from hloinspect.rules.engine import run_rules
from hloinspect.rules.evidence import Evidence
from tests.support.places import ROOT
from tests.support.rules_samples import CASES, FIXTURES, codes, edited, finding, fixture, judged, report_of

FLAG = "--xla_gpu_enable_pipelined_host_offloading=true"
UPDATE = "update to jax 0.11.1 or later"
GIB = 1 << 30

AS_IT_IS = CASES / "wrong_offsets_jax0.10.1.hlo.pb.xz"
NO_BARRIER = CASES / "wrong_offsets_cse_jax0.10.1.hlo.pb.xz"  # the same with prevent_cse=False
PIPELINED = CASES / "pipelined_wrong_offsets_jax0.10.1.hlo.pb.xz"


def program(jax: str | None, jaxlib: str | None = None, *flags: str) -> ProgramInfo:
    return ProgramInfo(jax=jax, jaxlib=jaxlib or jax, flags=flags or None)


def remedies(report: Report) -> str:
    return " | ".join(each.remedy for each in report.findings)


def with_device(report_path: Path, target: str, share: float, jax: str = "0.12.0") -> Report:
    """Return the report on a module for a device of which the step takes this share."""
    used = report_of(report_path, target).memory.device_bytes
    assert used is not None
    return judged(report_path, target, program=program(jax), device_limit_bytes=int(used / share))


# ---- pipelined host offloading


@pytest.mark.parametrize(
    ("name", "target", "code"),
    [
        ("h100_offload_scan", "h100", "HLO102"),
        ("gb200_offload_scan", "gb200", "HLO105"),
        ("gb200_offload_scan_unscheduled", "gb200", "HLO103"),
    ],
)
@pytest.mark.parametrize("jax", ["0.7.2", "0.8.2", "0.9.2", "0.10.1", "0.10.2", "0.11.0", "0.11.1.dev20260701"])
def test_before_0_11_1_pipelining_is_advised_behind_an_update_only(name: str, target: str, code: str, jax: str) -> None:
    remedy = finding(judged(fixture(name), target, program=program(jax)), code).remedy
    assert re.search(f"[Uu]{UPDATE[1:]}.* then {FLAG}", remedy)
    right = finding(judged(fixture(name), target, program=program("0.11.1")), code).remedy
    assert FLAG in right
    assert "0.11.1" not in right


def test_the_same_holds_for_a_loop_that_fetches_in_the_same_iteration() -> None:
    old = finding(report_of(NO_BARRIER, "h100"), "HLO112")
    new = finding(judged(NO_BARRIER, "h100", program=program("0.12.0")), "HLO112")
    assert old.remedy.startswith(UPDATE)
    assert new.remedy.startswith(FLAG)


def test_an_unknown_version_gets_the_release_from_which_on_the_flag_is_right() -> None:
    remedy = finding(report_of(fixture("h100_offload_scan"), "h100"), "HLO102").remedy
    assert f"{FLAG} (jax 0.11.1 or later only: before it gradients become wrong)" in remedy


def test_the_older_of_jax_and_jaxlib_counts_since_xla_comes_with_jaxlib() -> None:
    both = judged(fixture("h100_offload_scan"), "h100", program=program("0.11.1", "0.11.0"))
    assert UPDATE in finding(both, "HLO102").remedy


def test_a_module_of_0_10_1_shows_by_its_configurations_that_it_is_too_old() -> None:
    """Use the case in which HLO102 and HLO105 advised the flag, whatever jax had made the module."""
    report = report_of(AS_IT_IS, "h100")
    assert report.program.jax is None
    for code in ("HLO102", "HLO105"):
        assert re.search(f"[Uu]{UPDATE[1:]}.* then {FLAG}", finding(report, code).remedy)
    assert "HLO301" not in codes(report)


def test_pipelining_is_not_advised_for_a_program_that_is_pipelined_already(tmp_path: Path) -> None:
    """Use a program of which only the copies to the host are pipelined: those back are held by a barrier."""
    assert FLAG in remedies(report_of(AS_IT_IS, "h100"))
    others = [each for each in report_of(PIPELINED, "h100").findings if each.code != "HLO301"]
    assert {"HLO102", "HLO105"} <= {each.code for each in others}
    assert not any(FLAG in each.remedy for each in others)


def test_no_finding_of_a_module_with_wrong_slices_advises_the_flag() -> None:
    for path in (FIXTURES / "jax0.10.2").iterdir():
        report = report_of(fixture(path.name, "jax0.10.2"), path.name.partition("_")[0])
        if "HLO301" in codes(report):
            for each in report.findings:
                if each.code != "HLO301":
                    assert FLAG not in each.remedy or UPDATE in each.remedy.lower()


# ---- the remedy of HLO301


def test_the_pipelined_module_of_0_10_1_writes_each_iteration_into_the_place_of_the_next() -> None:
    checks = check_slices(find_offload(load_module(PIPELINED)).program).checks
    (wrong,) = [check for check in checks if check.on_host and not check.agrees]
    assert (wrong.by_index, wrong.emitted, wrong.config) == ((0, 8 << 20), (8 << 20, 16 << 20), MEMCPY_CONFIG)


def test_wrong_slices_of_the_older_configuration_have_their_own_remedy() -> None:
    reported = finding(report_of(PIPELINED, "h100"), "HLO301")
    assert reported.severity == "error"
    assert reported.evidence["configuration"] == MEMCPY_CONFIG
    assert reported.remedy.startswith("use jax 0.11.1 or later; or do not pipeline")
    assert "--xla_disable_hlo_passes=fusion-dynamic-memcpy-rewriter" in reported.remedy
    assert "HLO110" in reported.remedy
    assert "annotator" not in reported.remedy  # it changes nothing there
    assert "0.10.1" not in reported.remedy  # the version that made this module


def test_wrong_slices_of_the_newer_configuration_name_the_annotator_and_older_versions() -> None:
    reported = finding(report_of(fixture("gb200_offload_scan", "jax0.10.2"), "gb200"), "HLO301")
    assert reported.evidence["configuration"] == SLICE_CONFIG
    assert "--xla_disable_hlo_passes=dynamic-slice-annotator" in reported.remedy
    assert "use jax 0.8.0 to 0.10.1;" in reported.remedy
    assert "rewriter" not in reported.remedy


def test_a_pipelined_program_is_not_sent_to_the_versions_where_pipelining_is_wrong() -> None:
    pipelined = program("0.10.2", "0.10.2", FLAG)
    reported = finding(judged(fixture("gb200_offload_scan", "jax0.10.2"), "gb200", program=pipelined), "HLO301")
    assert "0.8.0 to 0.10.1 without pipelining" in reported.remedy


def test_copies_are_not_advised_before_0_11_1_for_kernels_that_the_workaround_makes() -> None:
    """Use a slice at the top level, which is a kernel; with the flag, the flag is the reason."""
    path = fixture("gb200_host_stack_donated")
    off = program("0.10.2", "0.10.2", "--xla_disable_hlo_passes=rematerialization,dynamic-slice-annotator")
    reported = finding(judged(path, "gb200", program=off), "HLO110")
    assert "the flags turn off the pass" in reported.message
    assert "with jax 0.11.1 or later only" in reported.remedy
    assert "the flags" not in finding(report_of(path, "gb200"), "HLO110").message


def test_a_version_that_is_right_otherwise_is_not_advised_to_itself() -> None:
    """Avoid the circle of older advice: update, and use an older one, and update."""
    for path, flags in ((fixture("gb200_offload_scan", "jax0.10.2"), ()), (PIPELINED, (FLAG,))):
        report = judged(path, "h100", program=program("0.12.0", None, *flags))
        assert not any(UPDATE in each.remedy.lower() for each in report.findings)
        assert FLAG not in remedies(report)
        reported = finding(report, "HLO301").remedy
        assert reported.startswith("compile with --xla_disable_hlo_passes=")
        assert "report it to XLA" in reported
        assert "use jax" not in reported


def test_wrong_slices_are_the_first_advice_for_a_loop_that_is_not_pipelined() -> None:
    found = inspect(str(NO_BARRIER), target="h100")
    right = next(check for check in check_slices(found.offload.program).checks if check.on_host)
    slices = Slices((dataclasses.replace(right, emitted=(8, 16)),))
    report = dataclasses.replace(found.report, program=program("0.12.0"))
    evidence = Evidence(report, found.offload, found.prediction, load_target("h100"), slices)
    assert "HLO301" in finding(run_rules(evidence), "HLO112").remedy


# ---- what HLO301 could not check


def not_looked_at(report: Report) -> str:
    """Return why HLO301 could not check some slice, or "" where it has checked all."""
    return "".join(rule.reason for rule in report.rules_not_run if rule.code == "HLO301")


@pytest.mark.parametrize("steps", [10, 100, 200, 300, 365, 400, 1000])
def test_no_limit_on_work_lets_a_wrong_slice_pass_silently(steps: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Use limits such as 365, with which the stacks, which are followed first, took what the slices would have
    needed."""
    monkeypatch.setattr("hloinspect.hlo.evaluate.MAX_STEPS_IN_ALL", steps)
    report = inspect(str(PIPELINED), target="h100").report
    assert "HLO301" in codes(report) or "takes too long" in not_looked_at(report)


def test_what_stacks_cost_is_not_taken_from_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hloinspect.hlo.evaluate.MAX_STEPS_IN_ALL", 365)
    report = inspect(str(PIPELINED), target="h100").report
    assert "HLO301" in codes(report)
    assert not not_looked_at(report)


def test_a_rule_that_could_not_check_a_slice_still_reports_the_others(tmp_path: Path) -> None:
    """Use the same text with an offset that is no number in the configuration of one of four wrong slices."""
    path = fixture("gb200_offload_scan_double_buffered", "jax0.10.2")
    assert finding(report_of(path, "gb200"), "HLO301").evidence["slices"] == 4
    assert not not_looked_at(report_of(path, "gb200"))
    damaged = edited(path, tmp_path / "module.hlo", _without_offset(path))
    report = report_of(damaged, "gb200")
    assert finding(report, "HLO301").evidence["slices"] == 3
    assert not_looked_at(report).startswith("a copied slice of host memory (")
    assert "the configuration names no offset" in not_looked_at(report)


def _without_offset(path: Path) -> Callable[[str], str]:
    """Damage the configuration of the last wrong slice."""
    module = load_module(path)
    last = check_slices(find_offload(module).program).wrong[-1]
    start = module.computations[last.computation].find(last.instruction)
    assert start is not None
    body = start.called["calls"][0]

    def edit(text: str) -> str:
        head, begin, rest = text.partition(f"\n%{body} (")
        assert begin
        return head + begin + re.sub(r'"byte_offset":"\d+"', '"byte_offset":"none"', rest, count=1)

    return edit


def test_ordinary_modules_have_no_slice_that_could_not_be_checked() -> None:
    modules = [*FIXTURES.glob("*/*/module.hlo.pb.gz"), AS_IT_IS, NO_BARRIER, PIPELINED]
    found = [check_slices(build_program(load_module(path))) for path in modules]
    assert sum(check.on_host for slices in found for check in slices.checks) == 34
    assert not any(slices.gap for slices in found)


# ---- what pipelines


def at_level(name: str) -> ProgramInfo:
    """Return a program whose optimization level JAX's own configuration sets."""
    options = {"optimization_level": name}
    return dataclasses.replace(program("0.12.0"), configuration=Configuration(options, None, {}, {}, {}, None))


O1 = "optimization_level=O1"


@pytest.mark.parametrize(
    ("of", "expected"),
    [
        (program("0.12.0"), ""),
        (program("0.12.0", None, FLAG), FLAG.removesuffix("=true")),
        (program("0.12.0", None, FLAG.replace("true", "1")), FLAG.removesuffix("=true")),
        (program("0.12.0", None, FLAG.replace("true", "false")), ""),
        (program("0.12.0", None, O1), "optimization level O1"),
        (program("0.12.0", None, "--optimization_level=EFFORT_O2"), "optimization level O2"),
        (program("0.12.0", None, "optimization_level=O0"), ""),
        (at_level("O1"), "optimization level O1"),
        (at_level("O0"), ""),
        (program(None, None, O1), "optimization level O1"),
        *((program(jax, None, O1), "") for jax in ("0.8.1", "0.9.1", "0.9.2", "0.10.2")),
        *((program(jax, None, O1), "optimization level O1") for jax in ("0.8.2", "0.9.0", "0.11.0")),
    ],
)
def test_pipelining_is_turned_on_by_its_flag_or_by_o1_where_o1_does_so(of: ProgramInfo, expected: str) -> None:
    report = dataclasses.replace(report_of(AS_IT_IS, "h100"), program=of)
    assert Evidence(report).pipelined_by == expected


def test_a_program_at_o1_is_not_advised_to_pipeline() -> None:
    path = fixture("gb200_offload_scan")
    assert FLAG in remedies(judged(path, "gb200", program=program("0.12.0")))
    assert FLAG not in remedies(judged(path, "gb200", program=at_level("O1")))


def test_leaving_out_o1_with_older_versions_is_advised_for_wrong_slices_at_o1() -> None:
    at_o1 = judged(fixture("gb200_offload_scan", "jax0.10.2"), "gb200", program=program("0.10.2", None, O1))
    reported = finding(at_o1, "HLO301").remedy
    assert f"0.8.0 to 0.10.1 without pipelining (leave out {FLAG} and O1)" in reported


@pytest.mark.parametrize(
    ("path", "is_pipelined"),
    [
        (CASES / "double_buffered_odd_jax0.12.0.1.hlo.pb.xz", False),
        (CASES / "double_buffered_odd_pipelined_jax0.12.0.1.hlo.pb.xz", True),
        (FIXTURES / "jax0.12.0.1/gb200_offload_scan_double_buffered/module.hlo.pb.gz", False),
        (PIPELINED, True),
        (CASES / "pipelined_one_stack.hlo", True),
        (AS_IT_IS, False),
    ],
)
def test_a_writer_in_front_of_a_double_buffered_loop_is_no_pipelining(path: Path, is_pipelined: bool) -> None:
    """Compare double buffering, which peels the first of an odd number of iterations, with pipelining, which peels the
    last."""
    found = inspect(str(path), target="h100")
    assert Evidence(found.report, found.offload).is_pipelined == is_pipelined
    others = [each.remedy for each in found.report.findings if each.code != "HLO301"]
    assert (FLAG in " ".join(others)) == (not is_pipelined)


# ---- what is folded


@pytest.mark.parametrize(
    ("jax", "scan"),
    [
        (None, "scan the layers (not with jax 0.10.2 or 0.11.0, which read wrong slices: HLO301)"),
        ("0.12.0", "scan the layers"),
    ],
)
def test_where_copies_are_folded_both_rules_say_the_same(jax: str | None, scan: str) -> None:
    found = inspect(str(fixture("gb200_offload_scan")), target="gb200")
    folded = AuditEntry(
        "value", "d2h", "policy", "x", "bf16", (4,), 1, 1, "dropped", "folded", "no barrier", None, (), None, None
    )
    report = dataclasses.replace(found.report, audit=AuditInfo("jaxpr", (folded,)), program=program(jax))
    one = finding(run_rules(Evidence(report, found.offload, found.prediction)), "HLO309")
    save = inspect(str(fixture("gb200_save")), target="gb200")
    nothing = dataclasses.replace(save.report, program=program(jax))
    all_of_it = run_rules(Evidence(nothing, save.offload, save.prediction, requested=Requested(1, 1, 0, 0)))
    assert one.remedy == finding(all_of_it, "HLO302").remedy == keep_apart(scan)
    assert "HLO201" in one.remedy


# ---- versions


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        ("0.12.0", (0, 12, 0)),
        ("0.12", (0, 12, 0)),
        ("0.12.0.1", (0, 12, 0)),
        ("0.12.0+cuda", (0, 12, 0)),
        ("0.12.0.dev20261130", (0, 12, -1)),
        ("0.12.0rc1", (0, 12, -1)),
        ("0.11.1.dev1+g1234", (0, 11, 0)),
        ("unknown", ()),
    ],
)
def test_a_version_in_front_of_a_release_is_older_than_it(text: str, numbers: tuple[int, ...]) -> None:
    assert comparable(text) == numbers


def test_a_development_version_is_of_the_release_that_it_leads_to() -> None:
    """Compare versions as jaxlib compares itself with its plugins."""
    assert release_of("0.12.0.dev20261130") == release_of("0.12.0") == (0, 12, 0)
    assert release_of("0.0.50.1", 3) == (0, 0, 50)
    assert release_of("0.12", 4) == (0, 12, 0, 0)


# ---- scanning


@pytest.mark.parametrize(
    ("jax", "said"),
    [
        ("0.10.2", "with jax 0.11.1 or later: this one reads wrong slices in a scan"),
        ("0.11.0", "with jax 0.11.1 or later: this one reads wrong slices in a scan"),
        (None, "(not with jax 0.10.2 or 0.11.0, which read wrong slices: HLO301)"),
        ("0.10.1", None),
        ("0.11.1", None),
    ],
)
def test_scanning_is_advised_with_the_versions_in_which_scans_are_right(jax: str | None, said: str | None) -> None:
    remedy = finding(judged(fixture("gb200_offload_unrolled"), "gb200", program=program(jax)), "HLO201").remedy
    assert remedy.startswith("scan the layers instead of unrolling them")
    assert ("HLO301" in remedy) == (said is not None)
    assert said is None or said in remedy


def test_the_scheduler_is_advised_to_unrolled_layers_with_what_it_does_to_their_memory() -> None:
    unrolled = finding(report_of(fixture("a100_offload_unrolled"), "a100"), "HLO111").remedy
    assert unrolled.startswith("scan the layers")
    assert "HLO201" in unrolled
    assert "--xla_gpu_enable_latency_hiding_scheduler=true" in unrolled


@pytest.mark.parametrize("rule", ["HLO102", "HLO103", "HLO105", "HLO112"])
def test_the_page_of_a_rule_that_names_the_flag_names_the_version(rule: str) -> None:
    page = (ROOT / "docs" / "rules" / f"{rule}.md").read_text()
    assert FLAG in page
    assert "jax 0.11.1 or later" in " ".join(page.split())
    assert "0.8.2 and later" not in " ".join(page.split())


# ---- memory


@pytest.mark.parametrize(
    ("path", "target", "code"),
    [
        (fixture("gb200_offload_scan"), "gb200", "HLO105"),
        (NO_BARRIER, "h100", "HLO105"),
        (NO_BARRIER, "h100", "HLO112"),
        (fixture("gb200_offload_scan_unscheduled"), "gb200", "HLO113"),
    ],
)
def test_what_needs_more_memory_is_not_advised_where_the_step_does_not_fit(path: Path, target: str, code: str) -> None:
    large = with_device(path, target, 1.2)
    assert large.findings[0].code == "HLO209"
    remedy = finding(large, code).remedy
    assert FLAG not in remedy
    assert "slop_factor" not in remedy


def test_the_slop_factor_is_advised_at_the_limit_with_what_is_left() -> None:
    remedy = finding(with_device(fixture("gb200_offload_scan_unscheduled"), "gb200", 0.85), "HLO113").remedy
    assert "xla_gpu_memory_limit_slop_factor" in remedy
    assert "HLO209" in remedy


def test_pipelining_is_not_advised_where_one_more_layer_does_not_fit() -> None:
    """Use a step that fits, and that would not with another hid of 2 MiB."""
    path = fixture("gb200_offload_scan")
    used = report_of(path, "gb200").memory.device_bytes
    assert used is not None

    def remedy_with(left: int) -> str:
        return finding(
            judged(path, "gb200", program=program("0.12.0"), device_limit_bytes=used + left), "HLO105"
        ).remedy

    assert FLAG not in remedy_with((2 << 20) - 1)
    assert FLAG in remedy_with(2 << 20)


def test_pipelining_says_where_it_needs_more_than_xlas_allocator_takes() -> None:
    path = fixture("gb200_offload_scan")
    used = report_of(path, "gb200").memory.device_bytes
    assert used is not None
    close = judged(path, "gb200", program=program("0.12.0"), device_limit_bytes=int((used + (1 << 20)) / 0.75))
    assert "HLO209" not in codes(close)
    assert "2 MiB more on the device" in finding(close, "HLO105").remedy
    assert "HLO209" in finding(close, "HLO105").remedy


# ---- plans


def test_slices_become_kernels_by_one_set_of_flags_in_every_version() -> None:
    (flag,) = KNOWN_FLAGS["kernel-slices"]
    assert set(flag.partition("=")[2].split(",")) == {"dynamic-slice-annotator", "fusion-dynamic-memcpy-rewriter"}


def test_a_point_that_pipelines_too_early_is_never_a_good_one() -> None:
    report = report_of(AS_IT_IS, "h100")

    def fault(*compiler: str) -> str | None:
        return pipelined_too_early(dataclasses.replace(report, program=program(compiler[0], None, *compiler[1:])))

    assert "before jax 0.11.1" in (fault("0.10.1", FLAG) or "")
    assert fault("0.11.1", FLAG) is None
    assert fault("0.10.1", FLAG.replace("true", "false")) is None
    assert fault("0.10.1") is None
    assert fault("0.9.0", O1) == "optimization level O1 makes gradients wrong before jax 0.11.1"
    assert fault("0.10.1", O1) is None  # O1 does not pipeline there
    kernels = tuple(dataclasses.replace(each, mechanism="kernel") for each in report.transfers)
    slow = dataclasses.replace(report, transfers=kernels, program=program("0.10.1", None, FLAG))
    assert pipelined_too_early(slow) is None  # its slices go by the index
