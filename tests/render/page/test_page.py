"""The page of `hloinspect report`, without a browser: its structure, its data, its safety and its bytes."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from hypothesis import given
from hypothesis import strategies as st

from hloinspect.analyze import inspect as api
from hloinspect.cli import main
from hloinspect.errors import UsageError
from hloinspect.kinds import D2H
from hloinspect.render.page import html_page
from hloinspect.render.page.bands import LANES, Band, Strings, encode_band, thinned, unit_ps
from hloinspect.render.page.elements import sentence
from hloinspect.render.page.memory_curve import memory_curve
from hloinspect.report.json import to_json
from hloinspect.report.schema import Unknown
from hloinspect.timeline.timeline import COLLECTIVE, COMPUTE, KINDS, WAIT, Interval, Segment, Timeline, overlap
from tests.support.answers import answer_of
from tests.support.gate_samples import FIXTURES, SMALL
from tests.support.html_samples import HOSTILE_MODULE, HOSTILE_NAME, Page, column, parse_page, summed

SCAN = FIXTURES / "gb200_offload_scan" / "module.hlo.txt.gz"
PIPELINED = FIXTURES / "gb200_offload_scan_pipelined" / "module.hlo.txt.gz"


@pytest.fixture(scope="module")
def scan() -> api.Inspection:
    return api.inspect(str(SCAN), target="gb200")


@pytest.fixture(scope="module")
def page(scan: api.Inspection) -> Page:
    return parse_page(scan.to_html())


def report(*arguments: str | Path) -> Result:
    return CliRunner().invoke(main, ["report", *map(str, arguments)])


# ---- the file


def is_whole_and_alone(text: str) -> Page:
    """Check that a page loads nothing, runs nothing but its own script, and has links that lead somewhere."""
    found = parse_page(text)
    ids = [e.attributes["id"] for e in found.elements if "id" in e.attributes]
    assert len(ids) == len(set(ids))
    for element in found.elements:
        assert element.tag not in {"link", "img", "iframe", "object", "embed", "base", "form"}
        for name, value in element.attributes.items():
            assert name not in {"src", "srcset", "style", "action", "data"}
            assert not name.startswith("on")
            if name == "href":
                assert value is not None
                assert value.startswith("#")
                assert value[1:] in ids
    (style,) = found.all("style")
    scripts = [e for e in found.all("script") if "type" not in e.attributes]
    policy = next(e.attributes["content"] for e in found.all("meta") if "http-equiv" in e.attributes)
    assert policy is not None
    assert policy.startswith("default-src 'none';")
    assert "unsafe" not in policy
    for source, element in (("style", style), *(("script", script) for script in scripts)):
        digest = base64.b64encode(hashlib.sha256(element.text.encode()).digest()).decode()
        assert f"{source}-src 'sha256-{digest}'" in policy
    assert len(scripts) == 1
    assert not set("<>&") & set(found.all("script")[0].text)  # nothing in the data can end it, or begin a comment
    return found


def test_a_page_is_one_file_that_loads_nothing_and_allows_only_its_own_script(scan: api.Inspection) -> None:
    found = is_whole_and_alone(scan.to_html())
    assert "url(" not in found.all("style")[0].text
    assert "@import" not in found.all("style")[0].text
    assert not re.search(r"https?://(?!www\.w3\.org)", found.all("script")[1].text)


def test_the_same_input_gives_the_same_bytes(
    hloinspect_process: Callable[..., Any], scan: api.Inspection, tmp_path: Path
) -> None:
    first = scan.to_html()
    assert api.inspect(str(SCAN), target="gb200").to_html() == first
    file = tmp_path / "page.html"
    done = hloinspect_process("report", str(SCAN), "--target", "gb200", "-o", str(file), env={"PYTHONHASHSEED": "7"})
    assert (done.returncode, done.stderr) == (0, "")
    assert file.read_bytes() == first.encode()


def test_the_summary_says_the_verdict_and_its_figures(scan: api.Inspection, page: Page) -> None:
    step = scan.report.step.predicted
    assert step is not None
    share = round(100 * step.stall_ms / step.time_ms)
    sentence_of = next(e.text for e in page.all("p") if e.attributes.get("class") == "verdict")
    assert "waits for host transfers" in sentence_of
    assert f"({share} %)" in sentence_of
    values = [e.text for e in page.all("b")]
    assert any(value.endswith("GiB") or value.endswith("MiB") for value in values)
    kind = next(e.text for e in page.all("p") if e.attributes.get("class") == "kind")
    assert "Predicted for 1 x gb200" in kind
    assert "Nothing was run" in kind


def test_every_finding_stands_there_with_its_rules_page(scan: api.Inspection, page: Page) -> None:
    assert scan.report.findings
    cards = [e for e in page.all("article") if (e.attributes.get("class") or "").startswith("finding")]
    assert len(cards) == len(scan.report.findings)
    pages = {e.attributes["id"] for e in page.all("details")}
    assert pages == {f"rule-{finding.code}" for finding in scan.report.findings}
    headings = [e.text for e in page.all("h4")]
    assert headings.count("When the advice does not hold") == len(pages)


# ---- its data is the report's


def test_the_transfers_of_a_page_are_those_of_the_json_report(scan: api.Inspection, page: Page) -> None:
    expected = json.loads(to_json(scan.report))["transfers"]
    data = page.data
    table, strings = data["sides"][0]["transfers"], data["strings"]
    assert table["count"] == len(expected)
    for name in ("id", "bytes", "executions", "bytes_per_step", "direction", "verdict", "reason", "start", "done"):
        assert column(table, name, strings) == [transfer[name] for transfer in expected]
    for name in ("duration_each_ms", "cover_ms", "exposed_ms", "wait_ms", "gain_if_free_ms", "low_ms", "high_ms"):
        assert column(table, f"p.{name}", strings) == [transfer["predicted"][name] for transfer in expected]


def decoded(band: dict[str, Any], strings: list[str], timeline: Timeline) -> Timeline:
    """Return the timeline that a page's script reads."""
    unit, segments = band["unit_ps"], []
    for raw, own in zip(band["segments"], timeline.segments, strict=True):
        starts, names = summed(raw["starts"]), summed(raw["names"])
        begin = own.start_ps
        assert all(
            (LANES[int(lane)] == "wait") == (KINDS[int(kind)] == WAIT)
            for lane, kind in zip(raw["lanes"], raw["kinds"], strict=True)
        )
        intervals = tuple(
            Interval(
                begin + start * unit,
                begin + (start + length) * unit,
                KINDS[int(kind)],
                "main" if LANES[int(lane)] == "wait" else LANES[int(lane)],
                transfer,
                strings[name],
            )
            for start, length, kind, lane, transfer, name in zip(
                starts, raw["lengths"], raw["kinds"], raw["lanes"], raw["transfers"], names, strict=True
            )
        )
        segments.append(Segment(raw["repeat"], begin, begin + raw["length"] * unit, intervals))
    return Timeline(strings[band["device"]], band["kind"], tuple(segments))


def test_the_timeline_of_a_page_has_the_overlap_of_the_prediction(scan: api.Inspection, page: Page) -> None:
    assert scan.prediction is not None
    data = page.data
    (band,) = data["sides"][0]["bands"]
    assert band["folds"]
    timeline = scan.prediction.timeline
    found = decoded(band, data["strings"], timeline)
    count = sum(segment.repeat * len(segment.intervals) for segment in timeline.segments)
    slack = 2 * band["unit_ps"] * count
    one, other = overlap(found), overlap(timeline)
    for name in ("time_ps", "compute_ps", "stall_ps", "exposed_ps", "busy_d2h_ps", "busy_h2d_ps"):
        assert getattr(one.step, name) == pytest.approx(getattr(other.step, name), abs=slack)
    assert one.transfers.keys() == other.transfers.keys()
    assert other.step.time_ps > 1000 * slack


times = st.integers(0, 10**13)
made_intervals = st.lists(
    st.builds(
        lambda start, length, kind, transfer: Interval(
            start, start + length, kind, {COMPUTE: "main", COLLECTIVE: "communication", WAIT: "main"}.get(kind, kind),
            transfer if kind not in (COMPUTE, COLLECTIVE) else 0, f"{kind}.{start}",
        ),
        times, st.integers(1, 10**11), st.sampled_from(KINDS), st.integers(1, 9),
    ),
    max_size=60,
)  # fmt: skip


def timeline_of(intervals: list[Interval], start: int = 0) -> Timeline:
    end = max([interval.end_ps for interval in intervals], default=0) + 1
    return Timeline("device", "measured", (Segment(1, start, start + end, tuple(intervals)),))


@given(made_intervals)
def test_intervals_come_back_from_the_data_to_within_half_a_unit(intervals: list[Interval]) -> None:
    timeline = timeline_of(intervals)
    strings = Strings()
    band = encode_band(Band("b", timeline), strings)
    unit = unit_ps(timeline)
    found = decoded(json.loads(json.dumps(band)), strings.table, timeline).segments[0].intervals
    key = lambda i: (i.start_ps, i.end_ps, KINDS.index(i.kind), i.transfer)  # noqa: E731
    for one, other in zip(found, sorted(intervals, key=key), strict=True):
        assert abs(one.start_ps - other.start_ps) <= unit / 2
        assert abs(one.end_ps - other.end_ps) <= unit / 2
        assert (one.kind, one.stream, one.transfer, one.name) == (other.kind, other.stream, other.transfer, other.name)
    assert max(i.end_ps for i in timeline.segments[0].intervals) // unit < 10**9 if intervals else True


@given(made_intervals, st.integers(1, 40))
def test_of_a_step_with_too_many_events_only_short_neighbours_become_one(intervals: list[Interval], most: int) -> None:
    timeline = timeline_of(intervals)
    thin, grain = thinned(timeline, most)
    left = thin.segments[0].intervals
    if len(intervals) <= most:
        assert (thin, grain) == (timeline, 0)
        return
    moving = [i for i in intervals if i.kind not in (COMPUTE, COLLECTIVE)]
    assert sorted(map(repr, moving)) == sorted(repr(i) for i in left if i.kind not in (COMPUTE, COLLECTIVE))
    assert len(left) <= max(most, len(moving) + 2)  # two streams of work, of which all may become one
    spans: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for interval in left:
        spans[interval.kind].append((interval.start_ps, interval.end_ps))
    for interval in intervals:  # nothing is lost
        assert any(a <= interval.start_ps and interval.end_ps <= b for a, b in spans[interval.kind])
    for interval in left:  # and nothing is made up beyond the grain
        if interval.kind in (COMPUTE, COLLECTIVE) and interval not in intervals:
            own = [i for i in intervals if i.kind == interval.kind and i.start_ps >= interval.start_ps]
            covered = sum(i.end_ps - i.start_ps for i in own if i.end_ps <= interval.end_ps)
            assert covered > 0
            assert interval.end_ps - interval.start_ps <= 5 * grain


def test_a_measured_step_of_very_many_kernels_becomes_a_small_band() -> None:
    kernels = [Interval(i * 1000, i * 1000 + 900, COMPUTE, "main", 0, f"kernel.{i}") for i in range(60_000)]
    copies = [Interval(i * 100_000, i * 100_000 + 50_000, D2H, D2H, 1, "") for i in range(500)]
    thin, grain = thinned(timeline_of([*kernels, *copies]), 20_000)
    left = thin.segments[0].intervals
    assert 1000 < len(left) <= 20_000
    assert grain > 0
    assert sum(interval.kind == D2H for interval in left) == 500


# ---- memory


def test_the_memory_curve_reaches_the_peak_of_the_report(scan: api.Inspection) -> None:
    assert scan.memory is not None
    assert scan.prediction is not None
    curve = memory_curve(scan.memory, scan.prediction.timeline)
    assert curve is not None
    assert scan.report.memory.peak is not None
    assert curve.device_peak_bytes == scan.report.memory.peak.bytes
    assert max(max(segment.device_bytes) for segment in curve.segments) == curve.device_peak_bytes
    host = scan.memory.host
    standing = host.argument_bytes + host.output_bytes - host.alias_bytes
    assert curve.host_peak_bytes == pytest.approx(standing + host.lower_bytes, rel=1e-6)


def test_the_memory_curve_is_the_sum_of_the_buffers_that_live(scan: api.Inspection) -> None:
    """Compare each point with brute force: arguments, results, and every temporary with a span around that place."""
    assert scan.memory is not None
    assert scan.prediction is not None
    memory, live = scan.memory, scan.memory.live
    curve = memory_curve(memory, scan.prediction.timeline)
    assert curve is not None
    standing = sum(b.bytes for b in live.buffers if b.memory_space == 0 and (b.parameter >= 0 or b.is_result))
    expected = {
        standing + sum(b.bytes for b in memory.device.temporaries if any(f <= t <= e for f, e in b.spans))
        for t in range(len(live.order))
    }
    found = {size for segment in curve.segments for size in segment.device_bytes}
    assert found <= expected
    assert len(found) > 3
    for segment, own in zip(curve.segments, scan.prediction.timeline.segments, strict=True):
        assert list(segment.times_ps) == sorted(segment.times_ps)
        assert 0 <= segment.times_ps[0] <= segment.times_ps[-1] <= own.end_ps - own.start_ps


# ---- hostile names


def test_hostile_names_stay_text_everywhere(tmp_path: Path) -> None:
    file = tmp_path / "step.hlo"
    file.write_text(HOSTILE_MODULE, encoding="utf-8")
    answer = api.inspect(str(file), target="gb200")
    assert len(answer.report.transfers) == 2
    for text in (answer.to_html(), html_page(answer, answer), answer.report.to_html()):
        found = is_whole_and_alone(text)
        assert len(found.all("script")) == 2
        assert all(char == "\n" or char.isprintable() for char in text)
        assert all(ord(char) < 128 for char in found.all("script")[0].text)
        assert "<b>" not in (found.all("h1")[0].text or "")
    strings = "\n".join(parse_page(answer.to_html()).data["strings"])
    assert "</script>" in strings  # kept as text
    assert "\u202e" not in strings
    assert "jit_</title>" in parse_page(answer.to_html()).all("title")[0].text


def test_every_text_of_a_report_is_escaped_whatever_field_it_stands_in(scan: api.Inspection) -> None:
    evil = f"{HOSTILE_NAME}\u2028\u202e\x1b[31m--x<i>`<b>`**<u>**"
    changed = replace(
        scan.report,
        module=replace(scan.report.module, name=evil, platform=evil),
        input=replace(scan.report.input, path=evil),
        program=replace(scan.report.program, jax=evil, flags=(evil,), topology=evil),
        transfers=tuple(replace(t, reason=evil, computation=evil, start=evil) for t in scan.report.transfers),
        findings=tuple(
            replace(f, name=evil, message=evil, remedy=evil, source_text=evil) for f in scan.report.findings
        ),
        limits=(evil,),
        unknown=(Unknown(evil, evil, "time"),),
    )
    found = is_whole_and_alone(html_page(replace(scan, report=changed)))
    assert not found.all("i")
    assert not found.all("u")
    assert len(found.all("script")) == 2
    assert is_whole_and_alone(html_page(changed, changed))


@given(st.text())
def test_a_sentence_is_text_and_code_and_nothing_else(text: str) -> None:
    found = parse_page(f"<p>{sentence(text)}</p>")
    assert {element.tag for element in found.elements} <= {"p", "code", "strong"}


# ---- which page for which input


def test_two_inputs_stand_side_by_side_with_their_differences(scan: api.Inspection) -> None:
    other = api.inspect(str(PIPELINED), target="gb200")
    found = is_whole_and_alone(html_page(scan, other))
    data = found.data
    assert [side["label"] for side in data["sides"]] == ["A", "B"]
    assert [len(side["bands"]) for side in data["sides"]] == [1, 1]
    said = CliRunner().invoke(main, ["diff", str(SCAN), str(PIPELINED), "--target", "gb200", "--all"]).stdout
    words = " ".join(said.split())
    items = [e.text for e in found.all("li") if e.text.startswith(("gone ", "new ", "changed "))]
    assert len(items) > 2
    assert [item for item in items if item not in words] == []


def test_a_report_alone_gives_a_page_without_a_timeline_that_says_so(scan: api.Inspection) -> None:
    found = is_whole_and_alone(scan.report.to_html())
    assert not found.all("canvas")
    assert any("a report alone has no timeline" in e.text.lower() for e in found.all("p"))
    assert found.data["sides"][0]["transfers"]["count"] == len(scan.report.transfers)


def test_without_a_target_the_page_says_what_is_not_known(tmp_path: Path) -> None:
    file = tmp_path / "page.html"
    result = report(SMALL, "-o", file)
    assert result.exit_code == 3
    found = is_whole_and_alone(file.read_text(encoding="utf-8"))
    assert any("is not known" in e.text for e in found.all("p"))
    assert any("no target was given" in e.text for e in found.all("p"))


def test_a_trace_shows_what_was_measured_beside_what_was_predicted(corpus: Path) -> None:
    trace = corpus / "traces" / "tpu_v6e_host_offload.xplane.pb"
    alone = answer_of(trace, target="none")
    assert {band["kind"] for band in parse_page(alone.to_html()).data["sides"][0]["bands"]} == {"measured"}
    answer = answer_of(trace, target="v6e", link="50GB/s")
    found = is_whole_and_alone(answer.to_html())
    kinds = [band["kind"] for band in found.data["sides"][0]["bands"]]
    assert kinds == ["predicted", *["measured"] * 4]
    assert answer.report.step.measured is not None
    rows = [e.text for e in found.all("caption")]
    assert "Predicted and measured" in rows
    assert "Devices" in rows


def test_a_notebook_shows_an_inspection_as_its_report_and_of_many_transfers_the_longest_waits(
    scan: api.Inspection,
) -> None:
    assert scan._repr_html_() == scan.report._repr_html_()
    times = scan.report.transfers[0].predicted
    assert times is not None
    many = tuple(
        replace(scan.report.transfers[0], id=n, predicted=replace(times, wait_ms=float(n))) for n in range(1, 301)
    )
    found = parse_page(replace(scan.report, transfers=many)._repr_html_())
    ids = [int(e.text.split()[1]) for e in found.all("td") if re.fullmatch(r"(d2h|h2d) \d+", e.text)]
    assert ids == list(range(201, 301))
    assert any("of 300" in e.text for e in found.all("p"))


# ---- the command


def test_the_page_is_written_where_it_should_be_and_the_command_says_where(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = report(SMALL, "--target", "gb200")
    assert (result.exit_code, result.stdout.split(" (")[0]) == (0, "report.html")
    text = Path("report.html").read_text(encoding="utf-8")
    assert report(SMALL, "--target", "gb200").exit_code == 0  # a page of ours is written again
    assert report(SMALL, "--target", "gb200", "-o", "-").stdout == text
    Path("report.html").write_text("mine", encoding="utf-8")
    result = report(SMALL, "--target", "gb200")
    assert (result.exit_code, Path("report.html").read_text()) == (2, "mine")
    assert "name another file with -o" in result.stderr
    assert report(SMALL, "--target", "gb200", "-o", "report.html").exit_code == 0


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ((), "Missing argument"),
        ((SMALL, SMALL, SMALL), "these are 3"),
        ((SMALL, "--target-b", "h100"), "there is one"),
        ((SMALL, "--open", "-o", "-"), "--open needs a file"),
        (("no/such/file",), "no such file"),
        ((SMALL, "--target", "gb200", "-o", "no/such/folder/page.html"), "cannot write"),
        ((SMALL, "--xla-flag", "a=b"), "compiled already"),
        ((SMALL, "--expect", SMALL), "--expect is for a trace"),
    ],
)
def test_wrong_use_is_one_line_and_exit_code_2(arguments: tuple[str | Path, ...], complaint: str) -> None:
    result = report(*arguments)
    assert result.exit_code == 2
    assert complaint in result.stderr
    assert "Traceback" not in result.stderr
    assert len([line for line in result.stderr.splitlines() if not line.startswith("try: ")]) == 1


def test_html_page_shows_one_or_two_and_says_so(scan: api.Inspection) -> None:
    for answers in ((), (scan, scan, scan)):
        with pytest.raises(UsageError, match="one input, or two"):
            html_page(*answers)
