"""Times of instructions in the report of ``hloinspect trace``: a real step on four H100, and synthetic traces."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from dataclasses import replace
from pathlib import Path

import pytest
from click import unstyle

from hloinspect.analyze.trace import trace
from hloinspect.gate.difference import snapshot_difference
from hloinspect.gate.snapshot import snapshot_of
from hloinspect.hardware import load_target
from hloinspect.kinds import COLLECTIVE_CLASSES
from hloinspect.measure.join import ProgramJoin, join_of
from hloinspect.predict.prices import instruction_prices
from hloinspect.predict.schedule import device_count
from hloinspect.render.page import html_page
from hloinspect.render.terminal.measured_text import to_text
from hloinspect.report.json import to_json
from hloinspect.report.schema import InstructionsInfo, Report
from hloinspect.report.unexplained import UNEXPLAINED, unexplained_text
from tests.support.cuda_checks import one, play, trace_of
from tests.support.cuda_runtime import Speeds, compiled
from tests.support.cuda_traces import H100, US, Device, Trace, in_hlo_proto, write_trace
from tests.support.json_schemas import faults

UNROLLED = "jax0.12.0.1/gb200_offload_unrolled"
SCAN = "jax0.12.0.1/gb200_offload_scan"
OPTIMIZER = "jax0.12.0.1/gb200_optimizer"


def found_in(report: Report) -> InstructionsInfo:
    assert report.instructions is not None
    return report.instructions


# ---- the H100 step of the corpus, whose instructions were timed independently of the project


@pytest.fixture(scope="module")
def h100(corpus: Path) -> tuple[Report, ProgramJoin]:
    pytest.importorskip("pyarrow")
    pytest.importorskip("hloinspect.profiles.nsys.archive")
    found = trace(str(corpus / "gpu" / "h100_maxtext_fsdp4"), target="h100")
    (file,) = found.files
    assert file.module is not None
    return found.report, join_of(file.module, "h100")


def test_each_instruction_of_the_h100_step_has_the_time_that_was_found_independently(
    h100: tuple[Report, ProgramJoin], corpus: Path
) -> None:
    """Compare the 100 longest. What the file names inside of a fusion or an async computation counts for that."""
    report, joined = h100
    truth = json.loads((corpus / "gpu" / "h100_maxtext_fsdp4" / "instructions.json").read_text())["instructions"]
    total: dict[str, float] = defaultdict(float)
    parts: dict[str, list[float]] = defaultdict(list)
    for timed in truth:
        known = joined.find(timed["instruction"])
        assert known is not None, timed
        total[known.name] += timed["total_us_per_device_step"] / 1e3
        parts[known.name].append(timed["median_us"] / 1e3)
    assert found_in(report).steps == 16
    assert len(found_in(report).largest) == 100
    for row in found_in(report).largest:
        assert row.total_ms == pytest.approx(total[row.name], rel=0.01), row
        if len(parts[row.name]) == 1:
            assert row.median_ms == pytest.approx(parts[row.name][0], rel=0.01), row
    assert found_in(report).total_ms == pytest.approx(sum(total.values()), rel=0.01)


def test_the_h100_step_has_the_known_sums_by_class(h100: tuple[Report, ProgramJoin]) -> None:
    """Compare with the table of shared/facts/gpu_measured.md: the scatter 50.8 ms, other memory-bound fusions 26.0,
    collectives above 100 MiB 10.6."""
    classes = {own.kind: own for own in found_in(h100[0]).classes}
    assert classes["scatter"].total_ms == pytest.approx(50.8, rel=0.01)
    fusions = ("reduce", "transpose", "dynamic-update-slice", "loop", "copy", "concatenate", "gather")
    assert sum(classes[kind].total_ms for kind in fusions) == pytest.approx(26.0, rel=0.05)
    large = sum(classes[kind].total_ms for kind in ("all-gather", "reduce-scatter"))
    assert large == pytest.approx(10.6, rel=0.02)
    assert classes["matmul"].instructions == 159


def test_the_small_all_reduce_of_the_h100_step_is_skew(h100: tuple[Report, ProgramJoin]) -> None:
    rows = {row.name: row for row in found_in(h100[0]).largest}
    small = rows["all-reduce-start.4"]
    assert small.skew_ms is not None
    assert small.skew_ms > 0.95 * small.total_ms
    large = rows["all-gather-start.4"]
    assert large.skew_ms is not None
    assert large.skew_ms < 0.05 * large.total_ms
    skews = found_in(h100[0]).skew_by_device
    assert len(skews) == 4
    assert skews[-1].skew_ms > 5 * skews[0].skew_ms  # the first has the slowest scatter: the others wait for it


def test_the_report_on_the_h100_step_says_first_that_the_model_does_not_explain_it(
    h100: tuple[Report, ProgramJoin],
) -> None:
    report, _ = h100
    text = unexplained_text(report)
    assert text.startswith("the model does not explain this profile: measured 125 ms, predicted 48.3 ms (43.7 ms to ")
    assert "scatter instructions take 50.8 ms where" in text
    assert found_in(report).unexplained == text
    said, shown = " ".join(unstyle(to_text(report)).split()), " ".join(report.first_texts)
    assert said.startswith(f"{shown} {text} jit_train_step measured on 4 x ")  # after which module was judged
    assert "The model does not explain this profile" in html_page(report)
    assert to_text(report).count(UNEXPLAINED) == 1


# ---- synthetic traces


def test_with_a_target_each_instruction_and_class_has_a_prediction_and_a_ratio(tmp_path: Path) -> None:
    run = play(SCAN, 4)
    seen = trace(str(write_trace(trace_of(run, SCAN), tmp_path / "host.xplane.pb")), target="gb200")
    found, table = found_in(seen.report), one(seen.files[0]).instructions
    joined = join_of(in_hlo_proto(compiled(SCAN).proto), SCAN)
    prices = instruction_prices(joined.offload, load_target("gb200"), device_count(joined.module), 1)
    assert table is not None
    assert len(table.names) == len(found.largest) + found.others
    assert found.compared == len(set(prices) & set(table.names)) > 100
    for row in found.largest:
        assert (row.predicted is not None) == (row.name in prices)
        if row.predicted is None:
            continue
        price = prices[row.name]
        assert row.predicted.time_ms == price.time_ps / 1e9
        assert row.predicted.low_ms <= row.predicted.time_ms <= row.predicted.high_ms
        assert row.ratio == pytest.approx(row.median_ms / row.predicted.time_ms)
    runs = dict(zip(table.names, (table.executions / 4).tolist(), strict=True))
    spent = dict(zip(table.names, (table.total_ps / 4e9).tolist(), strict=True))
    for kind in found.classes:
        every = [name for name, own in zip(table.names, table.classes, strict=True) if own == kind.kind]
        assert kind.total_ms == pytest.approx(sum(spent[name] for name in every))
        names = [name for name in every if name in prices]
        assert (kind.predicted is not None) == bool(names)
        if kind.predicted is None:
            continue
        assert kind.predicted.high_ms == pytest.approx(sum(runs[name] * prices[name].high_ps for name in names) / 1e9)
        own_ms = kind.total_ms - kind.unpredicted_ms
        assert kind.ratio == pytest.approx(own_ms / kind.predicted.time_ms)
    assert not faults(json.loads(to_json(seen.report)), "report")


def test_without_a_target_there_is_no_prediction_and_nothing_to_explain(tmp_path: Path) -> None:
    run = play(UNROLLED, 3)
    unnamed = trace_of(run, UNROLLED, device_stats={**H100, "gpu_device_name": "GPU"})  # which names no target
    report = trace(str(write_trace(unnamed, tmp_path / "host.xplane.pb"))).report
    found = found_in(report)
    assert (found.compared, found.inside_share, found.unexplained) == (0, None, None)
    assert all(row.predicted is None and row.ratio is None for row in found.largest)
    assert "predicted" not in to_text(report)
    assert [row.total_ms for row in found.largest] == sorted((row.total_ms for row in found.largest), reverse=True)


def test_findings_of_the_prediction_are_not_sure_where_it_does_not_explain_the_profile(tmp_path: Path) -> None:
    """Run copies a hundred times slower than predicted: what rests on the prediction says so and is no error."""
    run = play(OPTIMIZER, 4, speeds=Speeds(d2h=9000 * US, h2d=9000 * US))
    report = trace(str(write_trace(trace_of(run, OPTIMIZER), tmp_path / "host.xplane.pb")), target="gb200").report
    assert unexplained_text(report)
    from hloinspect.rules.registry import rule_of

    for finding in report.findings:
        if "prediction" in rule_of(finding.code).needs:
            assert finding.severity != "error"
            assert finding.message.endswith("(it rests on the prediction, which does not explain this profile)")
        else:
            assert "does not explain this profile" not in finding.message


def test_a_report_shows_five_instructions_and_with_all_a_hundred(tmp_path: Path) -> None:
    run = play(UNROLLED, 3)
    report = trace(str(write_trace(trace_of(run, UNROLLED), tmp_path / "host.xplane.pb")), target="gb200").report
    short, long = to_text(report), to_text(report, show_all=True)
    names = [row.name for row in found_in(report).largest]
    assert (len(names), found_in(report).others) == (100, 160)
    assert "and 255 more instructions" in short
    assert "and 160 more instructions" in long
    assert all(name[:15] in long for name in names)


@pytest.mark.parametrize("width", [40, 60, 80, 120])
def test_the_tables_fit_into_a_terminal(width: int, tmp_path: Path) -> None:
    run = play(OPTIMIZER, 3)
    report = trace(str(write_trace(trace_of(run, OPTIMIZER), tmp_path / "host.xplane.pb")), target="gb200").report
    from hloinspect.render.terminal.instructions_text import instruction_lines

    for line in instruction_lines(report, width, show_all=True):
        assert len(unstyle(line)) <= max(width, 76), line


# ---- ROCm


@pytest.mark.parametrize(
    ("name", "first"),
    [
        ("rocm_mi300x_jax08", "matmul"),
        ("rocm_mi300x_jax08_attention", "matmul"),
        ("rocm_mi300x_jax08_conv", "transpose"),
        ("rocm_mi300x_jax08_elementwise", "loop"),
        ("rocm_mi300x_roctracer", "transpose"),
    ],
)
def test_a_rocm_trace_has_kernels_by_class_and_says_that_copies_are_not_known(
    name: str, first: str, corpus: Path
) -> None:
    report = trace(str(corpus / "traces" / f"{name}.xplane.pb")).report
    found = found_in(report)
    assert report.trace is not None
    assert next(iter(report.trace.classes_ms)) == first
    assert found.total_ms > 0
    assert "unknown" not in {own.kind for own in found.classes}
    assert not COLLECTIVE_CLASSES & {own.kind for own in found.classes}
    assert {unknown.affects for unknown in report.unknown} == {"transfers"}
    text = unstyle(to_text(report))
    assert "waiting for the host: not known" in text
    assert "transfers alone: not known" in text
    page = html_page(trace(str(corpus / "traces" / f"{name}.xplane.pb"), target="mi300x"))
    assert "<b>not known</b>" in page
    assert not re.search(r"Waiting for the host</dt><dd><b>0 ms", page)
    assert "waits" not in text or re.search(r"GPU:\d.* - +- ", text)


def test_a_tpu_trace_has_its_waits_as_host_transfers(corpus: Path) -> None:
    report = trace(str(corpus / "traces" / "tpu_v6e_host_offload.xplane.pb"), target="v6e").report
    classes = {own.kind: own for own in found_in(report).classes}
    assert report.step.measured is not None
    waits = classes["d2h"].total_ms + classes["h2d"].total_ms
    assert waits == pytest.approx(report.step.measured.stall_ms, rel=1e-3)
    assert classes["d2h"].predicted is None  # a trace shows only the wait, which is no time of the copy
    assert not unexplained_text(report)


def test_a_chrome_trace_has_instructions_without_their_classes(corpus: Path) -> None:
    found = found_in(trace(str(corpus / "traces" / "tpu_vllm_no_offload.trace.json.gz")).report)
    assert [(own.kind, own.instructions) for own in found.classes] == [("unknown", 3311), ("all-reduce", 129)]


# ---- many hosts, and pages


@pytest.mark.parametrize("jobs", [1, 2])
def test_hosts_are_pooled_and_the_slow_one_makes_the_others_wait(jobs: int, tmp_path: Path) -> None:
    """Let the second host reach each collective 40 us later; its clock is an hour off."""
    folder = tmp_path / "plugins" / "profile" / "run"
    folder.mkdir(parents=True)
    run = play("optimizer", 4)
    quick = tuple(
        replace(event, start_ps=event.start_ps - 40 * US) if event.what == "collective" else event
        for event in run.events
    )
    modules = (compiled("optimizer").program,)
    write_trace(Trace((Device(0, quick),), modules), folder / "a.xplane.pb")
    write_trace(Trace((Device(0, tuple(run.events)),), modules, origin_ns=3_600_000_000_000), folder / "b.xplane.pb")
    report = trace(str(tmp_path), jobs=jobs).report
    found = found_in(report)
    assert found.steps == 8
    first, second = found.skew_by_device
    assert (first.host, first.skew_ms, second.host) == ("b", 0, "a")
    assert second.skew_ms > 0
    for row in found.largest:
        if row.kind in COLLECTIVE_CLASSES:
            assert row.skew_ms == pytest.approx(row.executions * 0.02, rel=0.01)


def test_the_page_has_the_instructions_and_says_what_is_not_explained(tmp_path: Path) -> None:
    run = play(OPTIMIZER, 3)
    report = trace(str(write_trace(trace_of(run, OPTIMIZER), tmp_path / "host.xplane.pb")), target="gb200").report
    page = html_page(report)
    assert '<section id="instructions">' in page
    assert "The instructions that take the longest" in page
    assert ("The model does not explain this profile" in page) == bool(unexplained_text(report))


def test_two_traces_are_compared_by_class(tmp_path: Path) -> None:
    sides = []
    for name, factor in (("a", 1), ("b", 2)):
        speeds = Speeds(kernel=lambda op, factor=factor: (factor if "gemm" in op else 1) * 20 * US)  # type: ignore[misc]
        path = write_trace(trace_of(play(SCAN, 3, speeds=speeds), SCAN), tmp_path / f"{name}.xplane.pb")
        sides.append(snapshot_of(trace(str(path)).report, name))
    changes = {change.metric: change for change in snapshot_difference(*sides).metrics}
    products = changes["time of matmul"]
    assert products.after == pytest.approx(2 * (products.before or 0))
    assert changes["time of loop"].before == changes["time of loop"].after
