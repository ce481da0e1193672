"""The page of `hloinspect report` in a browser: Debian's Chromium, driven by playwright. Nothing is downloaded.

Without either these tests are skipped; with HLOINSPECT_REQUIRE_BROWSER=1 (CI) that is a failure.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from hloinspect.render.page import html_page
from hloinspect.report.json import to_json
from hloinspect.units import bytes_text, time_text
from tests.support.answers import answer_of
from tests.support.browser_pages import CONTRASTS, GOOD_CONTRAST, Shown, show
from tests.support.html_samples import HOSTILE_MODULE

pytestmark = pytest.mark.slow

MOST_DRAWING_S = 2.0
"""Until all of a page is drawn, in processor time of its main thread: time on the wall also counts what else the
machine had to do."""


@dataclass
class Pages:
    """Opens pages, each written once."""

    browser: Any
    corpus: Path
    folder: Path
    written: dict[str, list[dict[str, Any]]] = field(default_factory=dict)

    def write(self, name: str) -> Path:
        file = self.folder / f"{name}.html"
        if name not in self.written:
            answers = [answer_of(self.corpus / source, **options) for source, options in INPUTS[name]]
            file.write_text(html_page(*answers), encoding="utf-8")
            self.written[name] = [json.loads(to_json(answer.report)) for answer in answers]
        return file

    def open(self, name: str, width: int = 1280, **options: Any) -> Shown:
        return show(self.browser, self.write(name), self.written[name], width, **options)


INPUTS: dict[str, list[tuple[str, dict[str, Any]]]] = {
    "s_off": [("hlo/s_off.hlo", {"target": "h100"})],
    "llama405b_nv": [("maxtext/llama405b_nv.hlo.gz", {"target": "gb200"})],
    "unroll126": [("maxtext/llama405b_unroll126_cudnn.hlo.gz", {"target": "gb200"})],
    "trace": [("traces/tpu_v6e_host_offload.xplane.pb", {})],
    "trace and target": [("traces/tpu_v6e_host_offload.xplane.pb", {"target": "v6e", "link": "50GB/s"})],
    "two": [("hlo/s_off.hlo", {"target": "h100"}), ("hlo/s_off_pipe_nocse.hlo", {"target": "h100"})],
}


@pytest.fixture(scope="module")
def written(browser: Any, corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Pages:
    return Pages(browser, corpus, tmp_path_factory.mktemp("pages"))


@pytest.fixture
def pages(written: Pages) -> Iterator[Pages]:
    """The pages; what a test opened is closed behind it."""
    yield written
    for context in written.browser.contexts:
        context.close()


# ---- what pages are held against


def check_rows(shown: Shown) -> None:
    """Every row of the table of transfers holds the numbers of the JSON report."""
    found = {}
    for row in shown.page.locator("#transfer-table tbody").evaluate(
        "body => [...body.rows].map((row) => [row.dataset.transfer, ...[...row.cells].map((cell) => cell.textContent)])"
    ):
        found[int(row[0])] = row[1:]
    for transfer in shown.reports[0]["transfers"]:
        times = transfer["predicted"] or transfer["measured"]
        cells = found[transfer["id"]]
        assert cells[0] == f"{transfer['direction']} {transfer['id']}"
        assert cells[2] == bytes_text(transfer["bytes"])
        assert cells[3] == f"\u00d7{transfer['executions']:,}"
        assert cells[4] == time_text(times["duration_each_ms"])
        assert cells[6] == time_text(times["wait_ms"])
        assert transfer["verdict"] in cells[-2]


def check_waits(shown: Shown, stall_ms: float) -> None:
    """The table of waits adds up to the stall of the step."""
    cells = shown.page.locator("#wait-table tbody tr td:nth-child(4)")
    total = sum(float(value) for value in cells.evaluate_all("cells => cells.map((cell) => cell.dataset.value)"))
    assert total / 1e6 == pytest.approx(stall_ms, rel=1e-3)


# ---- every page


@pytest.mark.parametrize("name", list(INPUTS))
def test_a_page_draws_soon_asks_for_nothing_and_holds_the_numbers_of_the_json_report(pages: Pages, name: str) -> None:
    file = pages.write(name)
    assert file.stat().st_size < 1_500_000
    shown = pages.open(name)
    shown.settle()
    assert 0 < shown.state("firstDrawMs") <= shown.state("readyMs")
    assert 0.01 < shown.busy_s() < MOST_DRAWING_S
    assert shown.said == []
    assert shown.requested == [file.as_uri()]
    rows = shown.page.locator("#transfer-table tbody tr")
    assert rows.count() == sum(len(report["transfers"]) for report in shown.reports)
    if len(shown.reports) == 1:
        check_rows(shown)
        step = shown.reports[0]["step"]
        if not step["measured"]:
            check_waits(shown, step["predicted"]["stall_ms"])
    shown.page.set_viewport_size({"width": 400, "height": 900})
    shown.settle()
    assert shown.page.evaluate("document.documentElement.scrollWidth") <= 400
    assert shown.said == []


def click_transfer(shown: Shown, number: int, kinds: tuple[int, ...] = (2, 3)) -> None:
    """Clicks the middle of a transfer's first copy in the picture."""
    frame, (band, *_) = shown.state("frame()"), shown.state("bands()")
    place = next(p for p in shown.state(f"placesOf(0, {number})") if p["kind"] in kinds)
    row = next(row for row in band["rows"] if row["lane"] == place["lane"])
    view = frame["view"]
    scale = (frame["width"] - frame["gutter"]) / (view["to"] - view["from"])
    x = frame["gutter"] + ((place["x0"] + place["x1"]) / 2 - view["from"]) * scale
    y = row["y"] + (place["slot"] + 0.5) * row["slot"]
    shown.page.locator("#canvas").click(position={"x": x, "y": y})
    shown.settle()


def check_panel(shown: Shown, transfer: dict[str, Any]) -> None:
    """The panel shows the transfer with the numbers of the JSON report."""
    panel = shown.page.locator("#panel")
    text = panel.inner_text()
    assert text.startswith("\u00d7\n" if text.startswith("\u00d7") else f"{transfer['direction']} {transfer['id']}")
    assert f"{transfer['direction']} {transfer['id']}" in panel.locator("h3").inner_text()
    for kind in ("predicted", "measured"):
        for key in ("duration_each_ms", "duration_ms", "cover_ms", "exposed_ms", "wait_ms"):
            cell = panel.locator(f"[data-figure='{kind}.{key}']")
            if transfer[kind] is None:
                assert cell.count() == 0
                continue
            assert float(cell.get_attribute("data-value")) == transfer[kind][key]
            assert cell.inner_text().startswith(time_text(transfer[kind][key]))
    for part in (transfer["start"], transfer["done"], transfer["computation"]):
        assert part in text
    if transfer["source"]:
        assert f"{transfer['source']['file']}:{transfer['source']['line']}" in text
    assert transfer["reason"][1:] in text
    live = shown.page.locator("#live").inner_text()
    assert live.startswith(f"{transfer['direction']} {transfer['id']}, ")
    assert transfer["verdict"] in live


def test_a_click_on_a_transfer_shows_its_numbers_source_window_and_remedy(pages: Pages) -> None:
    shown = pages.open("s_off")
    report = shown.reports[0]
    for transfer in report["transfers"]:
        click_transfer(shown, transfer["id"])
        tip = shown.page.locator("#tip").inner_text()  # the pointer is still there
        assert tip.startswith(f"{transfer['direction']} {transfer['id']} ")
        assert f"{transfer['verdict']}: {transfer['reason']}" in tip
        share = round(100 * transfer["predicted"]["cover_ms"] / transfer["predicted"]["duration_ms"])
        assert f"{share} % of this beside compute or collectives" in tip
        check_panel(shown, transfer)
        about = [finding for finding in report["findings"] if transfer["id"] in finding["transfers"]]
        text = shown.page.locator("#panel").inner_text()
        assert about
        assert all(finding["code"] in text for finding in about)
        row = shown.page.locator(f"#transfer-table tr[data-transfer='{transfer['id']}']")
        assert "chosen" in (row.get_attribute("class") or "")
    first = report["transfers"][0]
    shown.page.locator("#panel .facts button").first.click()  # to the other end of the round trip
    check_panel(shown, next(t for t in report["transfers"] if t["id"] == report["transfers"][-1]["round_trip"]))
    assert first["round_trip"] == report["transfers"][-1]["id"]
    shown.page.locator("#canvas").focus()
    shown.page.keyboard.press("Escape")
    assert shown.page.locator("#panel").is_hidden()


def color_at(shown: Shown, x: float, y: float) -> list[int]:
    return list(
        shown.page.evaluate(
            """([x, y]) => {
              const canvas = document.getElementById("canvas");
              const ratio = canvas.width / canvas.clientWidth;
              return [...canvas.getContext("2d").getImageData(x * ratio, y * ratio, 1, 1).data].slice(0, 3);
            }""",
            [x, y],
        )
    )


def test_a_chosen_transfer_and_its_round_trip_are_outlined_in_the_picture(pages: Pages) -> None:
    shown = pages.open("s_off")
    click_transfer(shown, 2)
    frame, (band,) = shown.state("frame()"), shown.state("bands()")
    scale = (frame["width"] - frame["gutter"]) / (frame["view"]["to"] - frame["view"]["from"])
    for number in (1, 2):
        place = next(p for p in shown.state(f"placesOf(0, {number})") if p["kind"] in (2, 3))
        row = next(row for row in band["rows"] if row["lane"] == place["lane"])
        middle = frame["gutter"] + (place["x0"] + place["x1"]) / 2 * scale
        colors = [color_at(shown, middle + dx, row["y"] - 1) for dx in range(-9, 10)]
        assert any(max(color) < 60 for color in colors)
    shown.page.keyboard.press("Escape")
    shown.page.locator("#canvas").focus()
    shown.page.keyboard.press("Escape")
    shown.settle()
    assert min(color_at(shown, middle, row["y"] - 1)) > 120


def test_times_and_sizes_are_written_as_in_the_text_report(pages: Pages) -> None:
    shown = pages.open("s_off")
    chance = random.Random(9)
    times = [0.0, 1e-7, 0.1, 99.96, 100.0, 9999.6, 10_000.0, *(10 ** chance.uniform(-7, 6) for _ in range(400))]
    sizes = [0, 1, 1000, 1023, 1024, 1000 << 20, 1023 << 30, *(round(10 ** chance.uniform(0, 16)) for _ in range(400))]
    assert shown.page.evaluate("(all) => all.map(hloinspect.timeText)", times) == list(map(time_text, times))
    assert shown.page.evaluate("(all) => all.map(hloinspect.bytesText)", sizes) == list(map(bytes_text, sizes))


# ---- moving, opening, choosing


def test_zoom_and_pan_by_wheel_buttons_keys_and_drag_keep_to_the_step(pages: Pages) -> None:
    shown = pages.open("llama405b_nv")
    page, canvas = shown.page, shown.page.locator("#canvas")
    whole = shown.state("view()")
    assert (whole["from"], whole["to"]) == (0, whole["whole"])
    canvas.focus()
    page.keyboard.press("+")
    near = shown.state("view()")
    assert near["to"] - near["from"] == pytest.approx(whole["whole"] / 2)
    page.keyboard.press("ArrowRight")
    assert shown.state("view()")["from"] == pytest.approx(near["from"] + 0.15 * whole["whole"] / 2)
    page.keyboard.press("0")
    assert shown.state("view()") == whole
    page.click("#tool-zoom-in")
    page.click("#tool-left")
    assert shown.state("view()")["from"] == 0
    page.click("#tool-fit")
    box = canvas.bounding_box()
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + 80)
    page.mouse.wheel(0, -100)  # the timeline is not focused: the page scrolls, the picture stays
    assert shown.state("view()") == whole
    page.evaluate("window.scrollTo(0, 0)")
    canvas.focus()
    box = canvas.bounding_box()
    x = box["x"] + box["width"] * 0.75
    page.mouse.move(x, box["y"] + 80)
    gutter, width = (shown.state("frame()")[name] for name in ("gutter", "width"))
    under = (x - box["x"] - gutter) / (width - gutter) * whole["whole"]
    page.mouse.wheel(0, -100)
    page.wait_for_function("window.hloinspect.view().from > 0")
    zoomed = shown.state("view()")
    assert zoomed["to"] - zoomed["from"] < whole["whole"]
    at = zoomed["from"] + (x - box["x"] - gutter) / (width - gutter) * (zoomed["to"] - zoomed["from"])
    assert at == pytest.approx(under, rel=1e-6)  # what is under the pointer stays there
    page.mouse.down()
    page.mouse.move(x + 60, box["y"] + 80, steps=4)
    page.mouse.up()
    dragged = shown.state("view()")
    moved = 60 / (width - gutter) * (zoomed["to"] - zoomed["from"])
    assert dragged["from"] == pytest.approx(zoomed["from"] - moved, rel=1e-6)
    assert page.locator("#panel").is_hidden()
    page.keyboard.press("n")
    page.evaluate("window.scrollTo(0, 0)")
    box = canvas.bounding_box()
    page.mouse.move(x, box["y"] + 10)
    page.mouse.down()
    page.mouse.move(x - 60, box["y"] + 10, steps=4)
    page.mouse.up()
    assert page.locator("#panel").is_visible()  # a drag is no click: one beside everything would deselect
    for _ in range(60):
        page.keyboard.press("+")
    assert shown.state("view()")["to"] > shown.state("view()")["from"]
    assert shown.said == []


def test_an_opened_loop_shows_all_its_iterations_and_the_whole_step_adds_up(pages: Pages) -> None:
    shown = pages.open("llama405b_nv")
    step_ms = shown.reports[0]["step"]["predicted"]["time_ms"]
    (band,) = shown.state("bands()")
    assert band["real"] / 1e6 == pytest.approx(step_ms, rel=1e-6)
    assert band["length"] < 0.2 * band["real"]
    transfer = next(t for t in shown.reports[0]["transfers"] if t["executions"] > 100)
    folded = len(shown.state(f"placesOf(0, {transfer['id']})"))
    shown.page.get_by_role("button", name="Open all loops").click()
    (band,) = shown.state("bands()")
    assert band["length"] == pytest.approx(band["real"], rel=1e-9)
    copies = [p for p in shown.state(f"placesOf(0, {transfer['id']})") if p["kind"] in (2, 3)]
    assert len(copies) >= transfer["executions"] > folded
    busy_ms = sum(place["x1"] - place["x0"] for place in copies) / 1e6
    assert busy_ms == pytest.approx(transfer["predicted"]["duration_ms"], rel=1e-3)
    for other in shown.reports[0]["transfers"]:  # what is drawn as exposed is what the report calls exposed
        bare_ms = sum(place["bare"] for place in shown.state(f"placesOf(0, {other['id']})")) / 1e6
        assert bare_ms == pytest.approx(other["predicted"]["exposed_ms"], rel=1e-3, abs=1e-3)
    assert any(other["predicted"]["exposed_ms"] > 1 for other in shown.reports[0]["transfers"])
    shown.page.get_by_role("button", name="Fold all loops").click()
    assert len(shown.state(f"placesOf(0, {transfer['id']})")) == folded
    loop = shown.page.locator("#loops button[aria-expanded]").first
    loop.focus()
    shown.page.keyboard.press("Enter")
    assert shown.page.locator("#loops button[aria-expanded='true']").count() == 1
    assert shown.page.evaluate("document.activeElement.getAttribute('aria-expanded')") == "true"
    assert shown.said == []


def test_a_page_is_used_by_keyboard_alone(pages: Pages) -> None:
    shown = pages.open("unroll126")
    page = shown.page
    page.locator("#canvas").focus()
    page.keyboard.press("n")
    assert page.locator("#panel h3").inner_text().startswith("d2h 1 ")
    page.keyboard.press("p")
    last = shown.reports[0]["transfers"][-1]
    assert page.locator("#panel h3").inner_text().startswith(f"{last['direction']} {last['id']} ")
    pick = page.locator("#transfer-table button.pick").nth(3)
    name = pick.inner_text()
    pick.focus()
    page.keyboard.press("Enter")
    assert page.locator("#panel h3").inner_text().startswith(f"{name} ")
    assert page.evaluate("document.activeElement.id") == "panel"
    number = int(name.split()[1])
    check_panel(shown, next(t for t in shown.reports[0]["transfers"] if t["id"] == number))
    view = shown.state("view()")
    place = next(p for p in shown.state(f"placesOf(0, {number})") if p["kind"] in (2, 3))
    assert view["from"] <= place["x0"] < place["x1"] <= view["to"]  # it was brought into view
    page.keyboard.press("Escape")
    assert page.evaluate("document.activeElement.id") == "canvas"
    unnamed = page.evaluate(
        """[...document.querySelectorAll("button, select, input, canvas[tabindex], [role=region]")].filter((e) =>
          !(e.getAttribute("aria-label") || e.textContent.trim() || e.labels && e.labels.length)).length"""
    )
    assert unnamed == 0


# ---- tables


def test_filters_and_sorting_show_what_the_json_report_has(pages: Pages) -> None:
    shown = pages.open("unroll126")
    page, transfers = shown.page, shown.reports[0]["transfers"]
    rows = page.locator("#transfer-table tbody tr")
    order = "rows => rows.map((row) => Number(row.dataset.transfer))"

    by_wait = sorted(transfers, key=lambda t: -t["predicted"]["wait_ms"])
    assert rows.evaluate_all(order) == [t["id"] for t in by_wait]  # the worst comes first
    page.select_option("#filter-verdict", "partial")
    page.select_option("#filter-direction", "h2d")
    expected = [t for t in transfers if t["direction"] == "h2d" and t["verdict"] == "partial"]
    assert len(expected) > 20
    assert sorted(rows.evaluate_all(order)) == [t["id"] for t in expected]
    moved = bytes_text(sum(t["bytes_per_step"] for t in expected))
    assert page.locator("#filter-count").inner_text() == f"{len(expected)} of 1,008 transfers, {moved} a step"

    head = page.locator("#transfer-table thead").get_by_role("button", name="Each")
    head.click()
    assert rows.evaluate_all(order) == [t["id"] for t in sorted(expected, key=lambda t: -t["bytes"])]
    head.click()
    assert rows.evaluate_all(order) == [t["id"] for t in sorted(expected, key=lambda t: t["bytes"])]
    assert page.locator("th[aria-sort='ascending']").first.inner_text().startswith("Each")
    page.fill("#filter-text", f"{expected[5]['start']} h2d")
    assert expected[5]["id"] in rows.evaluate_all(order)
    assert rows.count() < 20
    page.fill("#filter-text", "no such thing")
    assert rows.count() == 0
    assert shown.said == []


# ---- two timelines


def test_predicted_and_measured_stand_on_one_scale_with_the_numbers_of_both(pages: Pages) -> None:
    shown = pages.open("trace and target")
    predicted, measured = shown.state("bands()")
    step = shown.reports[0]["step"]
    assert predicted["real"] / 1e6 == pytest.approx(step["predicted"]["time_ms"], rel=1e-6)
    spread = step["measured"]["step_ms"]
    assert 0.99 * spread["min"] < measured["real"] / 1e6 < 1.01 * spread["max"]
    assert shown.state("view()")["to"] == max(predicted["length"], measured["length"])
    shown.page.locator("#transfer-table button.pick").first.click()
    number = int(shown.page.locator("#panel h3").inner_text().split()[1])
    check_panel(shown, next(t for t in shown.reports[0]["transfers"] if t["id"] == number))
    chooser = shown.page.locator("#devices-choice select")
    assert chooser.locator("option").count() == len(shown.reports[0]["devices"])
    chooser.select_option("2")
    label = chooser.locator("option").nth(2).inner_text()
    assert [band["label"] for band in shown.state("bands()")] == ["predicted", label]
    assert shown.said == []


def test_two_inputs_have_a_timeline_each_and_rows_that_know_their_side(pages: Pages) -> None:
    shown = pages.open("two")
    assert [band["label"] for band in shown.state("bands()")] == ["A: predicted", "B: predicted"]
    for side, report in enumerate(shown.reports):
        for transfer in report["transfers"]:
            shown.page.click(f"#transfer-table tr[data-side='{side}'][data-transfer='{transfer['id']}'] button")
            head = shown.page.locator("#panel h3").inner_text()
            assert head.startswith(f"{'AB'[side]} {transfer['direction']} {transfer['id']} ")
            cell = shown.page.locator("#panel [data-figure='predicted.wait_ms']")
            assert float(cell.get_attribute("data-value")) == transfer["predicted"]["wait_ms"]
            about = [f["code"] for f in report["findings"] if transfer["id"] in f["transfers"]]
            assert shown.page.locator("#panel .remedy a").all_inner_texts() == about


# ---- what it looks like


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_text_has_contrast_in_the_light_and_in_the_dark(pages: Pages, scheme: str) -> None:
    shown = pages.open("two", color_scheme=scheme)
    shown.page.locator("#transfer-table button.pick").first.click()
    shown.page.evaluate("for (const each of document.querySelectorAll('details')) each.open = true")
    for is_light in (scheme == "light", scheme != "light"):  # as the system has it, and then the other by the button
        shown.settle()
        found = shown.page.evaluate(CONTRASTS)
        assert len(found) > 150
        assert [text for ratio, text in found if ratio < GOOD_CONTRAST] == []
        paper = shown.page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert (paper == "rgb(255, 255, 255)") == is_light
        assert (min(color_at(shown, 3, 3)) > 200) == is_light  # the picture goes along
        shown.page.click("#theme")


def test_in_print_tables_are_whole_and_tools_are_gone(pages: Pages) -> None:
    shown = pages.open("llama405b_nv", color_scheme="dark")
    shown.page.set_viewport_size({"width": 1280, "height": 300})
    assert shown.page.locator("#transfers .scroll").evaluate("e => e.scrollHeight > e.clientHeight + 100")
    shown.page.evaluate("window.dispatchEvent(new Event('beforeprint'))")
    shown.page.emulate_media(media="print")
    for selector in ("nav", "#theme", ".filters", ".tools"):
        assert shown.page.locator(selector).first.is_hidden()
    assert shown.page.evaluate(
        "[...document.querySelectorAll('.scroll')].every((e) => e.scrollHeight <= e.clientHeight + 2)"
    )
    assert min(color_at(shown, 3, 3)) > 200  # dark pages are printed on white
    found = shown.page.evaluate(CONTRASTS)
    assert [text for ratio, text in found if ratio < GOOD_CONTRAST] == []


# ---- hostile names


def test_hostile_names_do_not_run_and_are_shown_as_text(pages: Pages, tmp_path: Path) -> None:
    module = tmp_path / "step.hlo"
    module.write_text(HOSTILE_MODULE, encoding="utf-8")
    answer = answer_of(module, target="gb200")
    file = tmp_path / "page.html"
    file.write_text(html_page(answer, answer), encoding="utf-8")
    shown = show(pages.browser, file, [json.loads(to_json(answer.report))])
    page = shown.page
    for pick in page.locator("#transfer-table button.pick").all():
        pick.click()
        assert "</script><img src=x onerror='window.pwned=2'>?gnp.py:7" in page.locator("#panel").inner_text()
    box = page.locator("#canvas").bounding_box()
    for share in (0.2, 0.4, 0.6, 0.8):
        page.mouse.move(box["x"] + box["width"] * share, box["y"] + 60)
    shown.settle()
    assert page.evaluate("window.pwned") is None
    assert page.locator("img").count() == 0
    assert page.evaluate("document.scripts.length") == 2
    assert "jit_</title><script>pwned</script>" in page.locator("h1").inner_text()
    assert (shown.said, shown.requested) == ([], [file.as_uri()])
