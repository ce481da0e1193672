"""Columns from the pages of an SQLite file: what SQLite itself reads, or nothing."""

from __future__ import annotations

import random
import sqlite3
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hloinspect.profiles.nsys.pages import ABSENT, map_pages
from tests.support.nsys_builder import new_database
from tests.support.thorough import examples

INTEGERS = (0, 1, -1, 127, -128, 255, 1 << 15, -(1 << 23), 1 << 31, 1 << 40, -(1 << 47), 1 << 55, (1 << 63) - 1)


def written(path: Path, rows: list[tuple[object, ...]], page_size: int, numbers: list[int] | None = None) -> int:
    """Write a table of untyped columns, and return the first page of its tree."""
    path.unlink(missing_ok=True)
    with new_database(path) as connection:
        connection.execute(f"PRAGMA page_size = {page_size}")
        connection.execute("CREATE TABLE t (a, b, c, d)")
        own = numbers or range(1, len(rows) + 1)
        connection.executemany(
            "INSERT INTO t (rowid, a, b, c, d) VALUES (?, ?, ?, ?, ?)",
            [(number, *row) for number, row in zip(own, rows, strict=True)],
        )
        (root,) = connection.execute("SELECT rootpage FROM sqlite_master").fetchone()
    return int(root)


def read(path: Path, root: int, columns: tuple[int, ...]) -> tuple[list[list[int]], int] | None:
    pages = map_pages(path)
    assert pages is not None
    found = pages.table(root, columns)
    return None if found is None else ([column.tolist() for column in found[0]], found[1])


CELLS = st.one_of(
    st.none(),
    st.sampled_from(INTEGERS),
    st.integers(-(1 << 63), (1 << 63) - 1),
    st.floats(allow_nan=False).filter(lambda number: number != int(number) if abs(number) < 1e18 else True),
    st.text(max_size=80),
    st.binary(max_size=80),
)


@given(st.lists(st.tuples(CELLS, CELLS, CELLS, CELLS), max_size=60), st.sampled_from([512, 1024, 4096, 65536]))
@settings(max_examples=examples(200, 5000))
def test_columns_are_those_that_sqlite_reads(
    tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[object, ...]], page_size: int
) -> None:
    path = tmp_path_factory.getbasetemp() / "any.sqlite"
    root = written(path, rows, page_size)
    found = read(path, root, (2, -1, 0))
    assert found is not None
    columns, wrong = found
    assert columns[1] == list(range(1, len(rows) + 1))
    for column, place in ((columns[0], 2), (columns[2], 0)):
        assert column == [row[place] if isinstance(row[place], int) else ABSENT for row in rows]
    others = [cell for row in rows for cell in (row[2], row[0]) if cell is not None and not isinstance(cell, int)]
    assert wrong == len(others)


def test_a_large_table_has_its_rows_in_order(tmp_path: Path) -> None:
    rng = random.Random(5)
    rows = [(rng.choice(INTEGERS), None, "x" * rng.randrange(150), n) for n in range(70_000)]
    numbers = sorted(rng.sample(range(1, 1 << 40), len(rows)))
    path = tmp_path / "large.sqlite"
    root = written(path, rows, 512, numbers)
    assert read(path, root, (-1, 0, 3)) == ([numbers, [row[0] for row in rows], list(range(len(rows)))], 0)


def test_a_value_behind_a_long_text_is_left_to_sqlite(tmp_path: Path) -> None:
    path = tmp_path / "long.sqlite"
    root = written(path, [(1, "x" * 5000, 2, 3)], 1024)
    assert read(path, root, (0,)) == ([[1]], 0)
    assert read(path, root, (2,)) is None


def test_rows_from_before_a_column_was_added_are_left_to_sqlite(tmp_path: Path) -> None:
    path = tmp_path / "added.sqlite"
    root = written(path, [(1, 2, 3, 4)], 1024)
    with sqlite3.connect(path) as connection:
        connection.execute("ALTER TABLE t ADD COLUMN e INTEGER DEFAULT 7")
    connection.close()
    assert read(path, root, (0,)) == ([[1]], 0)
    assert read(path, root, (4,)) is None


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> tuple[bytes, int]:
    """Return a file of several pages, and the first page of its table."""
    path = tmp_path_factory.mktemp("sound") / "any.sqlite"
    root = written(path, [(n, "t" * (n % 90), -n, None) for n in range(300)], 512)
    return path.read_bytes(), root


@given(st.data())
@settings(max_examples=examples(200, 20_000))
def test_damage_gives_numbers_or_nothing(
    tmp_path_factory: pytest.TempPathFactory, sound: tuple[bytes, int], data: st.DataObject
) -> None:
    path = tmp_path_factory.getbasetemp() / "damaged.sqlite"
    whole, root = sound
    content = bytearray(whole)
    for _ in range(data.draw(st.integers(1, 6))):
        content[data.draw(st.integers(100, len(content) - 1))] = data.draw(st.integers(0, 255))
    del content[data.draw(st.integers(len(content) // 2, len(content))) :]
    path.unlink(missing_ok=True)  # the last one may still be mapped
    path.write_bytes(bytes(content))
    pages = map_pages(path)
    if pages is not None and (found := pages.table(root, (0, 2))) is not None:
        assert all(column.dtype == np.int64 for column in found[0])


def test_a_tree_that_goes_round_in_circles_is_left_to_sqlite(tmp_path: Path) -> None:
    path = tmp_path / "circle.sqlite"
    root = written(path, [(n, "t" * 90, n, n) for n in range(2000)], 512)
    content = bytearray(path.read_bytes())
    place = (root - 1) * 512
    assert content[place] == 5
    content[place + 8 : place + 12] = root.to_bytes(4, "big")
    path.write_bytes(bytes(content))
    assert read(path, root, (0,)) is None
