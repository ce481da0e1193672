"""The step in a few rows of characters, and that nothing of a report is wider than the terminal."""

from __future__ import annotations

import io
import os
import re
import shutil
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from subprocess import CompletedProcess

import click
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import hloinspect
from hloinspect.analyze.inspect import Inspection
from hloinspect.cli.console import TextForm, emit_report
from hloinspect.cli.timelines import predicted_picture
from hloinspect.kinds import D2H, H2D
from hloinspect.render.terminal.measured_text import to_text as measured_text
from hloinspect.render.terminal.minimap import ASCII_LEVELS, LEVELS, minimap
from hloinspect.render.terminal.report_text import to_text
from hloinspect.timeline.timeline import COMPUTE, WAIT, Interval, Segment, Timeline
from tests.support.places import ROOT
from tests.support.terminals import on_terminal
from tests.support.thorough import examples

FIXTURES = ROOT / "fixtures" / "jax0.12.0.1"
WIDTHS = (60, 80, 100)
SCAN = FIXTURES / "gb200_offload_scan" / "module.hlo.pb.gz"


@cache
def inspected(name: str) -> Inspection:
    return hloinspect.inspect(str(FIXTURES / name / "module.hlo.pb.gz"), target=name.partition("_")[0])


def rows(timeline: Timeline, width: int = 80, **how: bool) -> list[str]:
    return [click.unstyle(line) for line in minimap(timeline, width, **how)]


def cells(row: str) -> str:
    """Return the picture in a row of 80 columns: behind the label, before the note."""
    return row[7 : 80 - 16].ljust(80 - 16 - 7)


def step(*segments: Segment) -> Timeline:
    return Timeline("device", "predicted", segments)


def test_columns_are_shares_of_the_step() -> None:
    columns = len(cells(""))
    found = rows(
        step(
            Segment(
                1,
                0,
                columns,
                (
                    Interval(0, 10, COMPUTE, "main"),
                    Interval(10, 20, WAIT, "main", 1),
                    Interval(20, columns, COMPUTE, "main"),
                    Interval(4, 20, D2H, D2H, 1),
                    Interval(30, 40, H2D, H2D, 2),
                ),
            )
        )
    )
    assert len(found) == 3  # no loop
    assert cells(found[0]) == "█" * 10 + "░" * 10 + "█" * (columns - 20)
    assert cells(found[1]) == " " * 4 + "█" * 16 + " " * (columns - 20)
    assert cells(found[2]) == " " * 30 + "█" * 10 + " " * (columns - 40)
    assert found[0].endswith(f"░ waits {100 * 10 / columns:.0f} %")
    assert found[1].endswith(f"busy {100 * 16 / columns:.0f} %")


def test_a_loop_has_the_columns_of_all_its_iterations_and_shows_one() -> None:
    iteration = (Interval(10, 13, COMPUTE, "main"), Interval(12, 14, D2H, D2H, 1), Interval(13, 14, WAIT, "main", 1))
    found = rows(step(Segment(1, 0, 10, (Interval(0, 10, COMPUTE, "main"),)), Segment(10, 10, 14, iteration)))
    columns = len(cells(""))
    before = round(columns * 10 / 50)
    own = columns - before
    assert cells(found[-1])[: before + 4] == "|".ljust(before) + "|x10"
    assert set(cells(found[0])[:before]) == {"█"}
    assert abs(cells(found[0])[before:].count("░") - own / 4) <= 1
    assert abs(cells(found[1]).count("█") - own / 2) <= 1
    assert found[1].endswith("busy 40 %")


@settings(max_examples=examples(40, 1600))
@given(st.lists(st.tuples(st.integers(0, 56), st.integers(0, 57)), max_size=8), st.booleans())
def test_a_column_is_filled_to_the_share_of_its_time(spans: list[tuple[int, int]], is_unicode: bool) -> None:
    intervals = tuple(Interval(a, min(57 * 8, a + 8 * b), D2H, D2H, 1) for a, b in ((8 * a, b) for a, b in spans))
    intervals = (*(i for i in intervals if i.end_ps > i.start_ps), Interval(0, 3, D2H, D2H, 1))
    found = rows(step(Segment(1, 0, 57 * 8, intervals)), is_unicode=is_unicode)
    levels = LEVELS if is_unicode else ASCII_LEVELS
    for column, char in enumerate(cells(found[1])):
        busy = sum(any(i.start_ps <= t < i.end_ps for i in intervals) for t in range(8 * column, 8 * column + 8))
        most = len(levels) - 1
        assert char == (levels[max(1, round(busy / 8 * most))] if busy else " ")


def test_without_transfers_or_room_there_is_no_picture() -> None:
    work = Segment(1, 0, 10, (Interval(0, 10, COMPUTE, "main"),))
    moves = Segment(1, 0, 10, (Interval(0, 10, D2H, D2H, 1),))
    assert rows(step(work)) == rows(step()) == rows(step(moves), 40) == []
    assert rows(step(replace(moves, end_ps=0, intervals=()))) == []


# ---- nothing wraps


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize(
    "name",
    [
        *("gb200_offload_scan", "gb200_offload_unrolled", "gb200_optimizer", "gb200_compute_on", "gb200_remat"),
        *("gb200_compute_on_host_memory", "h100_offload_by_xla", "gb200_offload_unrolled_unscheduled"),
    ],
)
def test_no_line_of_a_report_is_wider_than_the_terminal(name: str, width: int) -> None:
    found = inspected(name)
    picture = minimap(found.prediction.timeline, width) if found.prediction else ()
    for show_all in (False, True):
        for line in click.unstyle(to_text(found.report, width, show_all, picture)).splitlines():
            assert len(line) <= width


@pytest.mark.parametrize("width", WIDTHS)
def test_no_line_of_a_measured_report_is_wider_than_the_terminal(corpus: Path, width: int) -> None:
    found = _golden(corpus / "traces" / "tpu_v6e_host_offload.xplane.pb")
    for report in (found, replace(found, step=replace(found.step, predicted=None))):
        for show_all in (False, True):
            for line in click.unstyle(measured_text(report, width, show_all)).splitlines():
                assert len(line) <= width


@cache
def _golden(path: Path) -> hloinspect.Report:
    return hloinspect.trace(str(path), target="v6e").report


# ---- when it is drawn


def has_picture(text: str) -> bool:
    return re.search(r"^ main   ?.*waits \d+ %$", re.sub("\x1b\\[[0-9;]*m", "", text), re.M) is not None


def test_a_terminal_gets_a_picture_in_colour_on_its_first_screen() -> None:
    code, text = on_terminal("inspect", str(SCAN), "--target", "gb200", columns=80)
    assert code == 0
    assert has_picture("\n".join(text.splitlines()[:12]))
    assert "\x1b[" in text
    assert "█" in text
    assert all(len(click.unstyle(line)) <= 80 for line in text.splitlines())


def test_colour_and_other_characters_are_left_out_where_they_are_not_wanted() -> None:
    plain = {"NO_COLOR": "1", "PYTHONIOENCODING": "ascii:replace"}
    _, text = on_terminal("inspect", str(SCAN), "--target", "gb200", env=plain)
    assert has_picture(text)
    assert "\x1b[" not in text
    assert "#" in text


class Terminal(io.StringIO):
    """Standard output that says it is a terminal."""

    encoding = "utf-8"

    def isatty(self) -> bool:
        return True


def drawn(monkeypatch: pytest.MonkeyPatch, requested: bool | None, *, columns: int = 80, term: str = "xterm") -> bool:
    """Return whether a report on a terminal has a picture."""
    monkeypatch.setenv("TERM", term)
    monkeypatch.setattr(shutil, "get_terminal_size", lambda *_, **__: os.terminal_size((columns, 40)))
    monkeypatch.setattr(sys, "stdout", Terminal())
    found = inspected("gb200_offload_scan")
    emit_report(found.report, "text", None, TextForm(to_text, predicted_picture(found), False, requested))
    assert isinstance(sys.stdout, Terminal)
    return has_picture(sys.stdout.getvalue())


def test_a_terminal_without_room_or_sense_for_a_picture_gets_none_unless_it_is_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert drawn(monkeypatch, None)
    assert not drawn(monkeypatch, None, columns=50)
    assert not drawn(monkeypatch, None, term="dumb")
    assert not drawn(monkeypatch, False)
    assert drawn(monkeypatch, True, columns=50, term="dumb")


def test_a_pipe_and_a_file_get_no_picture_unless_it_is_asked_for(
    hloinspect: Callable[..., CompletedProcess[str]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found, file = inspected("gb200_offload_scan"), tmp_path / "report.txt"
    arguments = ("inspect", str(SCAN), "--target", "gb200")
    assert has_picture(hloinspect(*arguments, "--timeline").stdout)
    for requested in (None, True):
        form = TextForm(to_text, predicted_picture(found), False, requested)
        emit_report(found.report, "text", None, form)
        assert has_picture(capsys.readouterr().out) == bool(requested)
        emit_report(found.report, "text", str(file), form)
        assert has_picture(file.read_text(encoding="utf-8")) == bool(requested)
