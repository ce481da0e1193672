"""Pages in a browser, for tests: Debian's Chromium, controlled by playwright. Nothing is downloaded."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

GOOD_CONTRAST = 4.5
"""Least contrast of text that is not large (WCAG 2, AA)."""

CONTRASTS = """() => {
  const parse = (text) => (text.match(/[\\d.]+/g) || []).map(Number);
  const linear = (v) => ((v /= 255) <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
  const light = ([r, g, b]) => 0.2126 * linear(r) + 0.7152 * linear(g) + 0.0722 * linear(b);
  const behind = (element) => {
    for (let at = element; at; at = at.parentElement) {
      const color = parse(getComputedStyle(at).backgroundColor);
      if (color.length === 3 || color[3] === 1) return color;
    }
    return [255, 255, 255];
  };
  const found = [];
  for (const element of document.querySelectorAll("body *")) {
    const own = [...element.childNodes].some((node) => node.nodeType === 3 && node.textContent.trim());
    if (!own || !element.getClientRects().length || ["SCRIPT", "STYLE", "OPTION"].includes(element.tagName)) continue;
    const [a, b] = [light(parse(getComputedStyle(element).color)), light(behind(element))];
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    found.push([ratio, `${element.tagName}.${element.className}: ${element.textContent.trim().slice(0, 30)}`]);
  }
  return found;
}"""
"""Script that returns the contrast of every text on a page, with the text."""


def give_up(reason: str) -> None:
    if os.environ.get("HLOINSPECT_REQUIRE_BROWSER", "") not in ("", "0"):
        pytest.fail(f"HLOINSPECT_REQUIRE_BROWSER is set, and {reason}")
    pytest.skip(reason)


@contextmanager
def running_browser() -> Iterator[Any]:
    """Yield Chromium.

    Without it, or without playwright, the test is skipped. With HLOINSPECT_REQUIRE_BROWSER=1 (CI) it fails.
    """
    program = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if program is None:
        give_up("there is no chromium")
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        give_up("there is no playwright")
    with sync_playwright() as driver:
        running = driver.chromium.launch(executable_path=program, args=["--no-sandbox"])
        try:
            yield running
        finally:
            running.close()


@dataclass
class Shown:
    """A page in the browser: its messages on the console, its network requests, and the report that it shows."""

    page: Any
    meter: Any
    reports: list[dict[str, Any]]
    said: list[str] = field(default_factory=list)
    requested: list[str] = field(default_factory=list)

    def state(self, call: str) -> Any:
        return self.page.evaluate(f"window.hloinspect.{call}")

    def busy_s(self) -> float:
        """Return the processor time of the page's main thread since the page was opened, in seconds."""
        found = self.meter.send("Performance.getMetrics")["metrics"]
        return float(next(metric["value"] for metric in found if metric["name"] == "TaskDuration"))

    def settle(self) -> None:
        """Wait for the next picture."""
        self.page.evaluate("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")


def show(browser: Any, file: Path, reports: list[dict[str, Any]], width: int = 1280, **options: Any) -> Shown:
    """Open a page in a context of its own, and record its messages and requests from the start."""
    context = browser.new_context(viewport={"width": width, "height": 900}, **options)
    page = context.new_page()
    meter = context.new_cdp_session(page)
    meter.send("Performance.enable", {"timeDomain": "threadTicks"})
    shown = Shown(page, meter, reports)
    shown.page.on("console", lambda message: shown.said.append(message.text))
    shown.page.on("pageerror", lambda error: shown.said.append(str(error)))
    shown.page.on("dialog", lambda dialog: shown.said.append(f"dialog {dialog.message}"))
    shown.page.on("request", lambda request: shown.requested.append(request.url))
    shown.page.goto(file.as_uri())
    return shown
