"""Helpers of the tests of rules: reports of real modules, and minimal edits where no compiler makes the case."""

from __future__ import annotations

import gzip
import re
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path

from hloinspect.analyze.inspect import inspect
from hloinspect.hardware import load_target
from hloinspect.offload.slices import check_slices
from hloinspect.placements.requested import Requested
from hloinspect.report.schema import FindingInfo, ProgramInfo, Report
from hloinspect.rules.engine import run_rules
from hloinspect.rules.evidence import Evidence
from tests.support.places import ROOT

FIXTURES = ROOT / "fixtures"
CASES = ROOT / "tests" / "data" / "cases"
JAX = "jax0.12.0.1"


def fixture(name: str, jax: str = JAX) -> Path:
    """Return the path of a fixture's text."""
    return FIXTURES / jax / name / "module.hlo.txt.gz"


@cache
def report_of(path: Path, target: str | None) -> Report:
    """Return the report on a module, made once."""
    return inspect(str(path), target=target).report


def judged(
    path: Path, target: str, *, program: ProgramInfo | None = None, requested: Requested | None = None, **memory: object
) -> Report:
    """Return the report on a module with another program, request or memory, judged again by the rules."""
    found = inspect(str(path), target=target)
    report = replace(
        found.report,
        program=program or found.report.program,
        memory=replace(found.report.memory, **memory),  # type: ignore[arg-type]
    )
    slices = check_slices(found.offload.program)
    return run_rules(Evidence(report, found.offload, found.prediction, load_target(target), slices, requested))


def codes(report: Report, *severities: str) -> set[str]:
    """Return the codes of the findings of these severities, or of all where none is given."""
    return {finding.code for finding in report.findings if not severities or finding.severity in severities}


def finding(report: Report, code: str) -> FindingInfo:
    """Return the only finding of a rule."""
    (found,) = [each for each in report.findings if each.code == code]
    return found


def edited(path: Path, out: Path, *edits: Callable[[str], str]) -> Path:
    """Write a module with edits to ``out`` and return it. Each edit must change the module."""
    text = gzip.decompress(path.read_bytes()).decode() if path.suffix == ".gz" else path.read_text()
    for edit in edits:
        changed = edit(text)
        assert changed != text, "the edit found nothing to change"
        text = changed
    out.write_text(text, encoding="utf-8")
    return out


def synchronous(start: str, done: str) -> Callable[[str], str]:
    """Return an edit that makes one copy-start and its copy-done a plain copy, as where no pass makes it
    asynchronous."""

    def edit(text: str) -> str:
        made = re.search(rf"^ *%{re.escape(start)} = .* copy-start\(([^)]*)\).*\n", text, re.MULTILINE)
        assert made is not None
        return text.replace(made[0], "").replace(f"copy-done(%{start})", f"copy({made[1]})")

    return edit


def done_after_start(start: str, done: str) -> Callable[[str], str]:
    """Return an edit that moves a `done` to directly after its start."""

    def edit(text: str) -> str:
        lines = text.splitlines(keepends=True)
        (old,) = [line for line in lines if re.match(rf" *%{re.escape(done)} = ", line)]
        lines.remove(old)
        (place,) = [n for n, line in enumerate(lines) if re.match(rf" *%{re.escape(start)} = ", line)]
        return "".join([*lines[: place + 1], old, *lines[place + 1 :]])

    return edit
