"""The page of `hloinspect plan` in the browser of tests/conftest.py."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from hloinspect.cli.plan import page_links
from hloinspect.plan.front import front, with_recomputation
from hloinspect.plan.model import Plan, Point
from hloinspect.plan.verb import PlanRequest, make_plan
from hloinspect.render.page.plan_html import plan_html
from hloinspect.render.page.point_pages import write_pages_to
from hloinspect.units import bytes_text, time_text
from tests.support.browser_pages import CONTRASTS, GOOD_CONTRAST, Shown, show

pytestmark = pytest.mark.slow

POLICIES = {"save": "save", "remat": "remat", "offload": "offload_scan", "pipelined": "offload_scan_pipelined"}
GRAPHICS_CONTRAST = 3.0
"""The least contrast of what must be seen to understand a picture (WCAG 2, 1.4.11)."""

MARKS = """() => [...document.querySelectorAll("figure svg")].map((svg) => {
  const texts = [...svg.querySelectorAll("text:not([transform])")];
  const ticks = (anchor, place) => texts.filter((t) => t.getAttribute("text-anchor") === anchor)
    .map((t) => [Number(t.getAttribute(place)), Number(t.textContent.replaceAll(",", ""))]).filter((t) => !isNaN(t[1]));
  const corners = (shape) => (shape.getAttribute("points") || "").split(" ").filter(Boolean);
  const middle = (box) => [box.x + box.width / 2, box.y + box.height / 2];
  const marks = [...svg.querySelectorAll("a.mark")].map((a) => {
    const shape = a.querySelector("circle, polygon"), style = getComputedStyle(shape);
    return { href: a.getAttribute("href"), label: a.getAttribute("aria-label"), at: middle(shape.getBBox()),
      hollow: style.fill === "none", color: style.fill === "none" ? style.stroke : style.fill,
      shape: corners(shape).map((corner) => corner.split(",")
        .map((v, i) => Math.round((v - middle(shape.getBBox())[i]) / 4)).join()).join(" ") };
  });
  return { title: svg.getAttribute("aria-label"), across: ticks("middle", "x"), up: ticks("end", "y"), marks };
})"""

LEGEND = """() => Object.fromEntries([...document.querySelectorAll(".legend li")].map((item) =>
  [item.textContent.trim(), getComputedStyle(item.querySelector("circle, polygon")).fill]))"""

ON_TOP = """(mark) => { mark.scrollIntoView({ block: "center" }); const box = mark.getBoundingClientRect();
  return mark.contains(document.elementFromPoint(box.x + box.width / 2, box.y + box.height / 2)); }"""


@dataclass(frozen=True, slots=True)
class Written:
    """A plan, its page, and its JSON."""

    plan: Plan
    file: Path
    data: dict[str, Any]
    browser: Any

    def open(self, **options: Any) -> Shown:
        return show(self.browser, self.file, [self.data], **options)


@pytest.fixture(scope="module")
def written(browser: Any, root: Path, tmp_path_factory: pytest.TempPathFactory) -> Written:
    """Return four compiled modules under the names of policies, and as other batches: a slower one, one that does not
    fit."""
    folder = tmp_path_factory.mktemp("plan")
    modules = root / "fixtures" / "jax0.12.0.1"
    sources = [f"{label}={modules}/gb200_{name}/module.hlo.txt.gz" for label, name in POLICIES.items()]
    pages = folder / "plan-points"
    plan = make_plan(PlanRequest(sources=tuple(sources), targets=("gb200",), samples=8.0, pages=write_pages_to(pages)))
    points = [replace(one, settings={"policy": one.settings["input"], "batch": "8"}) for one in plan.points]
    points += [scaled(point, 4 + place, 4, 0.5 + 0.1 * place, True) for place, point in enumerate(points, 1)]
    points += [scaled(point, 8 + place, 16, 2 + 0.2 * place, False) for place, point in enumerate(points[:4], 1)]
    axes = {"policy": tuple(POLICIES), "batch": ("8", "4", "16")}
    plan = replace(plan, axes=axes, points=with_recomputation(points), front=front(points))
    file = folder / "plan.html"
    file.write_text(plan_html(plan, page_links(plan, pages)), encoding="utf-8")
    return Written(plan, file, json.loads(plan.to_json()), browser)


def scaled(point: Point, number: int, batch: int, times: float, fits: bool) -> Point:
    """Return a point with another batch, whose step takes ``times`` as long, and which fits or does not."""
    assert point.step is not None
    assert point.memory is not None
    assert point.memory.device_bytes is not None
    time_ms = times * point.step.time_ms
    return replace(
        point,
        number=number,
        settings={**point.settings, "batch": str(batch)},
        step=replace(point.step, time_ms=time_ms),
        memory=replace(point.memory, device_bytes=point.memory.device_bytes * batch // 8),
        samples=float(batch),
        samples_per_s=batch * 1e3 / time_ms,
        fits=fits,
        obstacle=None if fits else "the device: much of little",
    )


@pytest.fixture(autouse=True)
def closed_behind(browser: Any) -> Iterator[None]:
    yield
    for context in browser.contexts:
        context.close()


def value_at(place: float, ticks: Sequence[Sequence[float]]) -> float:
    """Return the value of a place on an axis, by the numbers along it."""
    (first, low), (last, high) = ticks[0], ticks[-1]
    return low + (place - first) / (last - first) * (high - low)


def test_every_point_is_drawn_where_the_json_has_it_and_nothing_is_requested(written: Written) -> None:
    shown = written.open()
    points = {f"#point-{point['number']}": point for point in written.data["points"]}
    times, speeds = shown.page.evaluate(MARKS)
    assert times["title"] == "Step time against batch"
    assert speeds["title"].startswith("Speed against device memory")
    for chart in (times, speeds):
        assert sorted(mark["href"] for mark in chart["marks"]) == sorted(points)
        ticks_up = [(y - 4, value) for y, value in chart["up"]]  # a number's foot is below its line
        for mark in chart["marks"]:
            point = points[mark["href"]]
            x, y = value_at(mark["at"][0], chart["across"]), value_at(mark["at"][1], ticks_up)
            if chart is times:
                expected = float(point["settings"]["batch"]), point["step"]["time_ms"]
            else:
                expected = point["memory"]["device_bytes"] / 2**30, point["samples_per_s"]
            assert x == pytest.approx(expected[0], rel=0.01, abs=0.005 * chart["across"][-1][1])
            assert y == pytest.approx(expected[1], rel=0.01, abs=0.005 * chart["up"][-1][1])
            assert mark["hollow"] == (point["fits"] is False)
            assert mark["label"].startswith(f"point {point['number']}: ")
    (line,) = shown.page.locator("polyline.front").evaluate_all("all => all.map((e) => e.getAttribute('points'))")
    assert len(line.split()) == len(written.data["front"]) > 1
    rows = shown.page.locator("h2#points + div tbody tr th a").evaluate_all("all => all.map((e) => e.hash)")
    assert rows == list(points)
    assert (shown.said, shown.requested) == ([], [written.file.as_uri()])
    shown.page.set_viewport_size({"width": 400, "height": 900})
    shown.settle()
    assert shown.page.evaluate("document.documentElement.scrollWidth") <= 400


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_each_policy_has_one_colour_and_shape_and_all_is_seen_in_the_light_and_in_the_dark(
    written: Written, scheme: str
) -> None:
    shown = written.open(color_scheme=scheme)
    legend = shown.page.evaluate(LEGEND)
    assert list(legend) == list(POLICIES)
    policies = {f"#point-{point['number']}": point["settings"]["policy"] for point in written.data["points"]}
    colors, shapes = defaultdict(set), defaultdict(set)
    for chart in shown.page.evaluate(MARKS):
        for mark in chart["marks"]:
            colors[policies[mark["href"]]].add(mark["color"])
            shapes[policies[mark["href"]]].add(mark["shape"])
    assert {policy: {color} for policy, color in legend.items()} == dict(colors)
    assert len(set(legend.values())) == len(POLICIES) == len({shape for (shape,) in shapes.values()})
    card = shown.page.locator("figure").first.evaluate("e => getComputedStyle(e).backgroundColor")
    assert all(contrast(color, card) > GRAPHICS_CONTRAST for color in legend.values())
    choose(shown, 1)
    found = shown.page.evaluate(CONTRASTS)
    assert len(found) > 100
    assert [text for ratio, text in found if ratio < GOOD_CONTRAST] == []
    paper = shown.page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (paper == "rgb(255, 255, 255)") == (scheme == "light")


def choose(shown: Shown, number: int) -> None:
    """Open a point by the keyboard."""
    shown.page.locator(f"a.mark[href='#point-{number}']").first.focus()
    shown.page.keyboard.press("Enter")


def contrast(one: str, other: str) -> float:
    """Return WCAG 2's ratio of two colours given as ``rgb(r, g, b)``."""

    def light(color: str) -> float:
        parts = [int(part) / 255 for part in color.removeprefix("rgb(").removesuffix(")").split(",")]
        linear = [part / 12.92 if part <= 0.03928 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    low, high = sorted((light(one), light(other)))
    return (high + 0.05) / (low + 0.05)


def test_a_click_on_a_mark_shows_the_point_and_leads_to_its_whole_report(written: Written) -> None:
    shown = written.open()
    page = shown.page
    assert page.locator("section.point:visible").count() == 0
    pointed = 0
    for point in written.data["points"]:
        marks = page.locator(f"a.mark[href='#point-{point['number']}']").all()
        free = next((mark for mark in marks if mark.evaluate(ON_TOP)), None)
        if free is not None:
            free.click()
            pointed += 1
        else:  # another mark lies upon it: keys still reach it
            choose(shown, point["number"])
        (panel,) = page.locator("section.point:visible").all()
        text = panel.inner_text()
        assert f"Point {point['number']}: policy={point['settings']['policy']}" in text
        assert time_text(point["step"]["time_ms"]) in text
        assert bytes_text(point["memory"]["device_bytes"]) in text
        rows = panel.locator("table").last.locator("tbody tr")
        if point["transfers"]:
            assert rows.count() == len(point["transfers"])
            assert time_text(point["transfers"][0]["wait_ms"]) in rows.first.inner_text()
        assert ("Does not fit into the device" in text) == (point["fits"] is False)
    assert pointed >= len(POLICIES)
    chosen = next(point for point in written.data["points"] if point["transfers"])
    choose(shown, chosen["number"])
    page.get_by_role("link", name="The whole report of this point").click()
    page.wait_for_function("window.hloinspect && window.hloinspect.readyMs")
    assert shown.requested[-1] == (written.file.parent / "plan-points" / f"point{chosen['number']}.html").as_uri()
    assert page.locator("#transfer-table tbody tr").count() == len(chosen["transfers"])
    (band,) = shown.state("bands()")
    assert band["real"] / 1e6 == pytest.approx(chosen["step"]["time_ms"], rel=1e-6)
    assert shown.said == []


def test_in_print_every_point_is_there_on_white(written: Written) -> None:
    shown = written.open(color_scheme="dark")
    shown.page.emulate_media(media="print", color_scheme="dark")
    assert shown.page.locator("section.point:visible").count() == len(written.data["points"])
    assert shown.page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    found = shown.page.evaluate(CONTRASTS)
    assert [text for ratio, text in found if ratio < GOOD_CONTRAST] == []


def test_hostile_names_do_not_run_and_are_shown_as_text(written: Written) -> None:
    evil = "<script>window.pwned=1</script></svg><img src=x onerror='window.pwned=2'>\u202e\"onfocus=pwned"
    first = replace(
        written.plan.points[0], settings={"policy": evil, "batch": evil}, error=evil, notes=(evil,), obstacle=evil
    )
    plan = replace(written.plan, source=evil, why=evil, points=(first, *written.plan.points[1:]), policies={evil: evil})
    file = written.file.with_name("hostile.html")
    file.write_text(plan_html(plan, {1: "javascript:window.pwned=3"}), encoding="utf-8")
    shown = show(written.browser, file, [])
    choose(shown, 1)
    panel = shown.page.locator("section.point:visible")
    assert "<script>window.pwned=1</script></svg><img src=x" in panel.inner_text()
    assert "\u202e" not in shown.page.content()
    assert shown.page.locator("img, script, [onfocus], [onerror]").count() == 0
    assert shown.page.evaluate("window.pwned") is None
    assert (shown.said, shown.requested[:1]) == ([], [file.as_uri()])
    assert {url.partition("#")[0] for url in shown.requested} == {file.as_uri()}
