"""Plans of modules that are compiled already: one read of each, the table, JSON, CSV and the page."""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import json
import re
from collections.abc import Callable
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import click
import pytest

from hloinspect.hlo.load import load_module
from hloinspect.hlo.model import Module
from hloinspect.options import CompileOptions
from hloinspect.plan.model import Plan
from hloinspect.plan.verb import PlanRequest, make_plan
from hloinspect.render.data.plan_csv import plan_csv
from hloinspect.render.page.plan_html import plan_html
from hloinspect.render.page.point_pages import write_pages_to
from hloinspect.render.terminal.plan_text import plan_text
from tests.support.html_samples import HOSTILE_MODULE
from tests.support.json_schemas import faults


def maxtext_plan(corpus: Path, *names: str, **more: object) -> Plan:
    sources = tuple(f"{name}={corpus}/maxtext/llama405b_{file}.hlo.gz" for name, file in (n.split("=") for n in names))
    return make_plan(
        PlanRequest(sources=sources, targets=("gb200",), compiling=CompileOptions(topology="2x16x4"), **more)
    )  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def of_405b(corpus: Path) -> Plan:
    return maxtext_plan(
        corpus,
        "offload=cudnnjax",
        "remat=remat_cudnn",
        "save=device_cudnn",
        links=("100GB/s", "d2h=450GB/s,h2d=450GB/s"),
        also=("gb300",),
        samples=128.0,
        tokens=8192.0,
    )


def test_modules_stand_side_by_side_without_compiling(of_405b: Plan):
    offload, remat, save = of_405b.points
    assert [one.settings for one in of_405b.points] == [{"input": "offload"}, {"input": "remat"}, {"input": "save"}]
    assert of_405b.compiled == 0
    assert offload.step is not None
    assert remat.step is not None
    assert offload.memory is not None
    assert save.memory is not None
    # facts: 126 layers of decoder input, q, k and v: 66.9 GiB each way, which is what keeping them takes
    assert offload.d2h_bytes == offload.h2d_bytes == 71_873_593_344
    assert save.d2h_bytes == remat.d2h_bytes == 0
    freed = (save.memory.device_bytes or 0) - (offload.memory.device_bytes or 0)
    assert freed == pytest.approx(71_873_593_344, rel=0.02)
    assert offload.memory.host_devices == 4
    assert offload.memory.host_bytes == pytest.approx(4 * 71_873_593_344, rel=0.01)
    assert (remat.recompute_flops or 0) / (save.flops or 1) == pytest.approx(0.0246, rel=0.02)
    assert of_405b.unit == "tokens/s"
    assert offload.tokens_per_s == pytest.approx(128 * 8192 / offload.step.time_ms * 1e3)


def test_a_plan_has_the_limits_of_all_its_points_once_each(of_405b: Plan):
    assert all(point.limits for point in of_405b.points)
    assert set(of_405b.limits) == {limit for point in of_405b.points for limit in point.limits}
    assert len(of_405b.limits) == len(set(of_405b.limits))


def test_a_faster_link_and_another_target_are_judged_from_the_same_modules(of_405b: Plan):
    there = {(one.point, one.label): one for one in of_405b.elsewhere}
    assert len(there) == 9
    slow, fast = there[1, "100GB/s"], there[1, "d2h=450GB/s,h2d=450GB/s"]
    planned = of_405b.points[0].step
    assert slow.step is not None
    assert fast.step is not None
    assert planned is not None
    assert fast.step.stall_ms < planned.stall_ms < slow.step.stall_ms
    assert there[3, "100GB/s"].step == of_405b.points[2].step  # nothing moves: the link does not matter
    assert there[1, "gb300"].stand_in == "gb200"
    assert set(fast.verdicts) == {transfer.id for transfer in of_405b.points[0].transfers}


def test_a_module_is_read_once_for_all_its_points(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = root / "fixtures" / "jax0.12.0.1" / "gb200_offload_scan" / "module.hlo.txt.gz"
    read: list[Path] = []

    def load_and_count(source: Path) -> Module:
        read.append(Path(source))
        return load_module(source)

    monkeypatch.setattr("hloinspect.analyze.load.load_module", load_and_count)
    request = PlanRequest(
        sources=(str(path),),
        targets=("gb200", "gb300"),
        links=("100GB/s", "450GB/s"),
        also=("h100",),
        pages=write_pages_to(tmp_path / "pages"),
    )
    plan = make_plan(request)
    assert read == [path]
    assert [(one.point, one.label) for one in plan.elsewhere] == [
        (number, label) for number in (1, 2) for label in ("100GB/s", "450GB/s", "h100")
    ]
    assert sorted(page.name for page in (tmp_path / "pages").iterdir()) == ["point1.html", "point2.html"]


def test_what_xla_computes_again_by_itself_is_said_of_a_point(tmp_path: Path):
    """Use names of operations with ``rematted_computation``, which they have where the program requests it."""
    module = HOSTILE_MODULE.replace("fusion.1", "fusion.1.remat2").replace("jit(f)/neg", "rematted_computation/neg")
    for name, text in (("again.hlo", module), ("once.hlo", HOSTILE_MODULE)):
        (tmp_path / name).write_text(text, encoding="utf-8")
    again, once = make_plan(
        PlanRequest(sources=(str(tmp_path / "again.hlo"), str(tmp_path / "once.hlo")), targets=("gb200",))
    ).points
    assert again.notes == (
        "to save memory XLA computes an instruction again by itself, the largest fusion.1.remat2; "
        "flags=no-xla-remat keeps it from that",
    )
    assert once.notes == ()


def test_what_takes_more_memory_is_no_advice_where_the_step_does_not_fit(tmp_path: Path):
    path = tmp_path / "again.hlo"
    path.write_text(HOSTILE_MODULE.replace("fusion.1", "fusion.1.remat2"), encoding="utf-8")
    (point,) = make_plan(PlanRequest(sources=(str(path),), targets=("gb200",), memory_share=1e-12)).points
    assert point.fits is False
    assert point.notes == ("to save memory XLA computes an instruction again by itself, the largest fusion.1.remat2",)


def test_what_is_judged_elsewhere_is_what_a_plan_for_there_says(of_405b: Plan, corpus: Path):
    there = {one.label: one for one in of_405b.elsewhere if one.point == 1}
    alone = maxtext_plan(corpus, "offload=cudnnjax", links=("100GB/s",)).points[0]
    assert there["100GB/s"].step == alone.step
    assert there["100GB/s"].fits == alone.fits
    assert there["100GB/s"].verdicts == {line.id: line.verdict for line in alone.transfers}
    assert there["100GB/s"].waits_ms == {line.id: line.wait_ms for line in alone.transfers}


@pytest.mark.parametrize("width", [80, 100])
def test_the_text_keeps_to_its_width_and_says_what_the_json_says(of_405b: Plan, width: int):
    text = plan_text(of_405b, width)
    table = text.split("\n\n")[1]
    assert max(len(click.unstyle(line)) for line in text.splitlines()) <= width
    assert re.search(r"1 +offload +16\.\d\d s", table)
    assert "(compiled for gb200)" in text
    data = json.loads(of_405b.to_json())
    assert faults(data, "plan") == []
    assert data["best"] == of_405b.best
    assert [one["step"]["time_ms"] for one in data["points"]] == [
        pytest.approx(one.step.time_ms) for one in of_405b.points if one.step
    ]


def test_the_csv_has_a_line_for_each_point(of_405b: Plan):
    rows = list(csv.DictReader(io.StringIO(plan_csv(of_405b))))
    assert [row["input"] for row in rows] == ["offload", "remat", "save"]
    assert float(rows[0]["stall_ms"]) == pytest.approx(of_405b.points[0].step.stall_ms, abs=1e-6)  # type: ignore[union-attr]
    assert [row["best"] for row in rows].count("true") == 1


def test_a_cell_that_a_spreadsheet_would_run_is_text(of_405b: Plan):
    evil = replace(of_405b.points[0], settings={"input": "=cmd()"}, error="@SUM(1)")
    rows = list(csv.DictReader(io.StringIO(plan_csv(replace(of_405b, points=(evil,))))))
    assert rows[0]["input"] == "'=cmd()"
    assert rows[0]["error"] == "'@SUM(1)"


def test_names_from_outside_reach_the_terminal_as_printable_text(of_405b: Plan):
    evil = replace(of_405b.points[0], settings={"input": "a\x1b[31m\u202eb"}, error="bad\x07\nthing")
    text = plan_text(replace(of_405b, points=(evil,), best=None, front=(), elsewhere=()))
    assert all(char.isprintable() or char == "\n" for char in re.sub(r"\x1b\[\d*m", "", text))


# --- the page -------------------------------------------------------------------------------------


class Reader(HTMLParser):
    """The tags of a page with their attributes, and its text."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.words.append(data)

    def with_tag(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.tags if name == tag]


def read_page(page: str) -> Reader:
    reader = Reader()
    reader.feed(page)
    return reader


def test_the_page_has_a_panel_for_each_point_and_every_mark_leads_to_one(of_405b: Plan):
    page = plan_html(of_405b, {1: "plan-points/point1.html"})
    assert page == plan_html(of_405b, {1: "plan-points/point1.html"})
    found = read_page(page)
    panels = {one["id"] for one in found.with_tag("section")}
    assert panels == {"point-1", "point-2", "point-3"}
    marks = [one["href"] for one in found.with_tag("a") if "mark" in (one.get("class") or "")]
    assert sorted(marks) == ["#point-1", "#point-2", "#point-3"]
    assert "plan-points/point1.html" in [one["href"] for one in found.with_tag("a")]
    style = re.search(r"<style>(.*?)</style>", page, re.DOTALL)
    assert style is not None
    digest = base64.b64encode(hashlib.sha256(style[1].encode()).digest()).decode()
    (policy,) = [one["content"] for one in found.with_tag("meta") if one.get("http-equiv")]
    assert policy == f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"
    assert not found.with_tag("script")
    assert "http" not in page.replace("http-equiv", "")


def test_a_mark_stands_where_its_figures_are(of_405b: Plan):
    page = plan_html(of_405b)
    places = dict(
        re.findall(r'<a href="#point-(\d)" class="mark[^>]*>.*?<(?:circle cx|polygon points)="([\d.]+)', page)
    )
    sizes = {str(one.number): one.memory.device_bytes for one in of_405b.points if one.memory}
    in_order = sorted(sizes, key=lambda number: sizes[number] or 0)
    assert sorted(places, key=lambda number: float(places[number])) == in_order


def test_names_from_outside_are_text_on_the_page(of_405b: Plan):
    evil = '<script>alert(1)</script>\u202e</svg>"onload=x'
    points = (replace(of_405b.points[0], settings={"input": evil}, error=evil, notes=(evil,), directory=evil),)
    page = plan_html(
        replace(of_405b, source=evil, points=points, best=1, front=(1,), elsewhere=(), policies={evil: evil})
    )
    found = read_page(page)
    assert not found.with_tag("script")
    assert "<script>alert(1)</script>" in "".join(found.words)
    assert not any("onload" in attributes for _, attributes in found.tags)
    assert "\u202e" not in page


def test_the_page_and_the_reports_of_its_points_are_written(
    hloinspect: Callable[..., object], root: Path, tmp_path: Path
):
    fixtures = root / "fixtures" / "jax0.12.0.1"
    inputs = [f"{name}={fixtures}/gb200_{name}/module.hlo.txt.gz" for name in ("save", "offload_scan")]
    done = hloinspect("plan", *inputs, "--target", "gb200", "--format", "html", "-o", str(tmp_path / "plan.html"))
    assert done.returncode == 0  # type: ignore[attr-defined]
    links = [one["href"] or "" for one in read_page((tmp_path / "plan.html").read_text()).with_tag("a")]
    reports = sorted({link for link in links if not link.startswith("#")})
    assert reports == ["plan-points/point1.html", "plan-points/point2.html"]
    assert all("<title>" in (tmp_path / link).read_text() for link in reports)
