"""The tables of a terminal and its lines of text: where cells stand, and what goes first where there is no room."""

from __future__ import annotations

import re

import click
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hloinspect.render.terminal.report_text import TRANSFERS
from hloinspect.render.terminal.table import NARROW, Column, Layout, columns_named, cut, table
from hloinspect.render.terminal.wrap import flow, wrapped

WIDTHS = (60, 80, 100)
HEAD = ["transfer", "tensor", "each", "runs", "takes", "covered", "waits", "verdict", "where"]
ROW = ["d2h   1", "bf16[4]", "8 B", "x1", "1 ms", "0 %", "1 ms", "exposed", "a.py:1 in f"]
words = st.text("abc ", min_size=0, max_size=40)


def plain(lines: list[str]) -> list[str]:
    return [click.unstyle(line) for line in lines]


def transfers(rows: list[list[str]], width: int) -> list[str]:
    return plain(table(columns_named(HEAD, {"where"}), rows, width, TRANSFERS))


@settings(max_examples=40)
@given(st.lists(st.lists(words, min_size=9, max_size=9), max_size=4), st.sampled_from(WIDTHS))
def test_a_table_keeps_which_its_wait_and_its_verdict_whole(body: list[list[str]], width: int) -> None:
    body = [[f"t{row[0][:7]}", *row[1:6], f"w{row[6][:7]}", f"v{row[7][:8]}", row[8]] for row in body]
    head, *lines = transfers(body, width)
    assert all(len(line) <= width for line in (head, *lines))
    for name in ("transfer", "waits", "verdict"):
        end = head.index(name) + len(name)
        for row, line in zip(body, lines, strict=True):
            assert line.ljust(end)[:end].endswith(row[HEAD.index(name)])


def test_a_table_with_room_for_all_is_left_as_it_is() -> None:
    roomy = transfers([ROW], 200)
    full = max(map(len, roomy))
    assert re.split(r" {2,}", roomy[0].strip()) == HEAD
    assert roomy[1].endswith("exposed  a.py:1 in f")
    assert transfers([ROW], full) == roomy
    assert transfers([ROW], full - 1)[1].endswith("exposed  a.py:1")


def test_a_column_is_shortened_then_cut_then_left_out_and_only_as_far_as_it_must() -> None:
    columns = (Column("name", is_left=True), Column("n"))
    layout = Layout((("name", lambda cell: cell.partition(" in ")[0]), ("name", 6), ("n", None)))
    rows = [("something in f", "12")]
    assert plain(table(columns, rows, 18, layout))[1] == " something  12"
    assert plain(table(columns, rows, 19, layout))[1] == " something in f  12"
    assert plain(table(columns, rows, 12, layout))[1] == " someth\u2026  12"
    assert plain(table(columns, rows, 11, layout))[1] == " somet\u2026  12"
    assert plain(table(columns, rows, 10, layout)) == [" name", " somet\u2026"]


def test_colours_are_no_characters_and_a_styled_cell_is_cut_without_them() -> None:
    red = click.style("exposed", fg="red")
    columns = (Column("a", is_left=True), Column("b"))
    assert plain(table(columns, [(red, "1"), ("x", "2")], 40)) == [" a        b", " exposed  1", " x        2"]
    assert red in table(columns, [(red, "1")], 40)[1]
    assert table(columns, [(red, "1")], 8, Layout((("a", 4),)))[1] == " exp\u2026  1"


def test_only_the_head_is_bold_and_its_last_lines_stand_beside_each_other() -> None:
    lines = table((Column("target", is_left=True), Column("HBM\nGB")), [("h100", "80")], 40, Layout(indent=0))
    assert plain(lines) == ["        HBM", "target   GB", "h100     80"]
    assert [line == click.style(click.unstyle(line), bold=True) for line in lines] == [True, True, False]


def test_gaps_are_as_wide_as_there_is_room() -> None:
    rows = [("aa", "b", "c")]
    columns = columns_named(("", "", ""), {""})
    found = [table(columns, rows, width, Layout(gaps=(1, 3), has_head=False))[0] for width in (11, 10, 9, 7, 1)]
    assert found == [" aa   b   c", " aa  b  c", " aa  b  c", " aa b c", " aa b c"]
    assert NARROW.gaps == (1, 3)


def test_the_last_column_is_wrapped_into_the_room_that_the_others_leave() -> None:
    columns = (Column(is_left=True, least=6), Column(is_left=True, least=8, is_wrapped=True))
    rows = [("key", "one two three"), ("longer", "")]
    layout = Layout(indent=0, has_head=False)
    assert table(columns, rows, 17, layout) == ["key     one two", "        three", "longer"]
    assert table(columns, rows, 5, layout) == ["key     one two", "        three", "longer"]


def test_a_table_without_rows_is_its_head() -> None:
    assert plain(table((Column("a"), Column("b")), [], 40)) == [" a  b"]
    assert table((Column("a"),), [], 40, Layout(has_head=False)) == []


@pytest.mark.parametrize(("width", "expected"), [(3, "abc"), (2, "a\u2026"), (1, "\u2026"), (0, "\u2026")])
def test_what_is_cut_ends_in_an_ellipsis(width: int, expected: str) -> None:
    assert cut("abc", width) == expected


def test_a_flag_and_a_path_are_never_broken() -> None:
    flag = "--xla_disable_hlo_passes=fusion-dynamic-memcpy-rewriter"
    assert wrapped(f"compile with {flag} then", 30, 1, 3) == [" compile with", f"   {flag}", "   then"]


@given(st.text("ab -", max_size=200), st.integers(10, 60), st.integers(0, 4), st.integers(0, 4))
def test_wrapping_keeps_every_word_and_the_width(text: str, width: int, first: int, rest: int) -> None:
    lines = wrapped(text, width, first, rest)
    assert " ".join(lines).split() == text.split()
    assert all(len(line) <= width or len(line.split()) == 1 for line in lines)
    assert all(line.startswith(" " * (rest if number else first)) for number, line in enumerate(lines))


def test_parts_follow_each_other_until_the_line_is_full() -> None:
    bold = click.style("step 3 ms", bold=True)
    assert plain(flow([bold, "compute 2 ms", "waits"], "; ", 24, 4)) == ["step 3 ms; compute 2 ms;", "    waits"]
    assert flow(["a long part that is wrapped"], "; ", 12, 2) == ["a long part", "  that is", "  wrapped"]
    assert plain(flow(["a", click.style("0123456789", fg="red")], "; ", 12, 4)) == ["a;", "  0123456789"]
